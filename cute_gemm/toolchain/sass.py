"""Machine code: what ptxas made of a kernel, and whether the report's instructions are in it.

``nvdisasm`` comes from its wheel (``pip install 'cute-gemm[sass]'``) or from a CUDA toolkit.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from cute_gemm.access import SharedAccess, TmaAccess
from cute_gemm.errors import ToolError

if TYPE_CHECKING:
    from cute_gemm.access import Access

#: How to get what is missing.
INSTALL = "pip install 'cute-gemm[sass]'"

#: The report's instructions in SASS; to the plain loads and stores comes the width.
_OPCODES = {
    ("cp.async", 128): "LDGSTS.E.BYPASS",
    "cp.async": "LDGSTS.E",
    "ld.global": "LDG.E",
    "st.global": "STG.E",
    "ld.shared": "LDS",
    "st.shared": "STS",
}
_WIDTHS = {8: ".U8", 16: ".U16", 32: "", 64: ".64", 128: ".128"}

#: Modifiers that say what is moved and how; others are hints (``LTC128B``) or scopes (``STRONG``).
_MODIFIERS = re.compile(r"E|BYPASS|[US]8|[US]?16|2|4|64|128|M88|MT88|[1-5]D|MULTICAST")

# ``@!PT`` is never: ptxas puts such an LDS between stores and cp.async.
_INSTRUCTION = re.compile(
    r"^\s+/\*[0-9a-f]{4,}\*/\s+(?!@!U?PT\b)(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", re.MULTILINE
)


def disassemble(cubin: bytes) -> str:
    """Return the machine code of a cubin, of any architecture, as ``nvdisasm`` prints it.

    ``ToolError`` when there is no nvdisasm, in wheels or conda, under ``CUDA_HOME`` or on ``PATH``,
    and when the one there is refuses the cubin.
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

    Those that never execute (predicate ``!PT``) are left out.
    """
    return Counter(_INSTRUCTION.findall(sass))


def claims(accesses: Iterable[Access]) -> set[str]:
    """Return what the machine code must have, if a report with these accesses tells the truth.

    Opcodes with what matters of their modifiers: ``"LDGSTS.E.BYPASS.128"``.
    """
    return {_claim(access) for access in accesses}


def check(cubin: bytes, accesses: Iterable[Access]) -> list[str]:
    """Return the `claims` that no instruction of a kernel's cubin has; none is the good answer.

    What an opcode moves is not known: A's loads and B's are one claim when they are alike.
    """
    executed = {_kind(opcode) for opcode in instructions(disassemble(cubin))}
    return sorted(claims(accesses) - executed)


def _claim(access: Access) -> str:
    if isinstance(access, TmaAccess):
        if access.direction == "store":
            return f"UTMASTG.{access.modes}D"
        return f"UTMALDG.{access.modes}D" + ".MULTICAST" * (access.multicast > 1)
    name, bits = access.instruction, access.bits
    if isinstance(access, SharedAccess) and name == "wgmma":
        return "IGMMA.U8.U8" if access.element_bits == 8 else "HGMMA"
    matrix = re.fullmatch(r"(ld|st)matrix\.x([124])(\.trans)?", name)
    if matrix:
        opcode = "LDSM" if matrix[1] == "ld" else "STSM"
        number = "" if matrix[2] == "1" else f".{matrix[2]}"
        return f"{opcode}.16.{'MT88' if matrix[3] else 'M88'}{number}"
    return _OPCODES.get((name, bits), _OPCODES.get(name, name)) + _WIDTHS[bits]


def _kind(opcode: str) -> str:
    """An opcode as `claims` spells it."""
    name, *modifiers = opcode.split(".")
    # A load through a pointer whose address space ptxas could not tell, and one of signed bytes.
    name = {"LD": "LDG", "ST": "STG"}.get(name, name)
    kept = [each for each in modifiers if _MODIFIERS.fullmatch(each)]
    return ".".join([name, *kept]).replace(".S8", ".U8").replace(".S16", ".U16")
