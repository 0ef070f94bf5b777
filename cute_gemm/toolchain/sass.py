"""Machine code as text.

``nvdisasm`` comes from its wheel (``pip install 'cute-gemm[sass]'``) or from a CUDA toolkit.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

from cute_gemm.errors import ToolError

#: Command that installs nvdisasm.
INSTALL = "pip install 'cute-gemm[sass]'"

# ``@!PT`` never executes: ptxas puts such an LDS between stores and cp.async.
_INSTRUCTION = re.compile(
    r"^\s+/\*[0-9a-f]{4,}\*/\s+(?!@!U?PT\b)(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", re.MULTILINE
)


def disassemble(cubin: bytes) -> str:
    """Return the machine code of a cubin, of any architecture, as ``nvdisasm`` prints it.

    ``ToolError`` if there is no nvdisasm, in wheels or conda, under ``CUDA_HOME`` or on ``PATH``,
    or if it refuses the cubin.
    """
    from cuda.pathfinder import find_nvidia_binary_utility

    tool = find_nvidia_binary_utility("nvdisasm") or shutil.which("nvdisasm")
    if tool is None:
        raise ToolError(f"nvdisasm was not found: {INSTALL}, or set CUDA_HOME to a toolkit")
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "kernel.cubin"  # nvdisasm reads files only
        path.write_bytes(cubin)
        answer = subprocess.run(
            [tool, "--print-code", str(path)], capture_output=True, text=True, check=False
        )
    if answer.returncode:
        said = (answer.stderr or answer.stdout).replace(str(path), "the cubin").strip()
        raise ToolError(f"{tool} failed ({said or answer.returncode}): {INSTALL} for a newer one")
    return answer.stdout


def instructions(sass: str) -> Counter[str]:
    """Count the instructions of a disassembly by opcode with its modifiers, ``LDG.E.U16``.

    Instructions that never execute (predicate ``!PT``) are left out.
    """
    return Counter(_INSTRUCTION.findall(sass))
