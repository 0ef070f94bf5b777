"""Check that the interpreter and ``compute-sanitizer`` detect five planted faults.

``python tests/gpu/faults.py`` executes the kernels of ``tests/data/faults.cu`` in the interpreter,
launches each under the suitable tools of ``compute-sanitizer``, in a process of its own, and prints
the results. The fixed version of each kernel must have no reports. The script lists the faults that
``compute-sanitizer`` does not detect, and exits with 1 if the interpreter misses a fault or a fixed
version is reported. ``--all`` runs every tool for every fault, ``--sanitizer PATH`` is the program,
and ``--timeout S`` limits the time of a launch.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cute_gemm.errors import FaultError, GemmError
from cute_gemm.ptx import Buffer, run
from cute_gemm.toolchain.nvrtc import build, ptx
from cute_gemm.toolchain.unit import TranslationUnit

SOURCE = Path(__file__).parents[1] / "data" / "faults.cu"
#: The arrays have no multiple of 512 bytes, so another allocation cannot start at their end.
CTAS, THREADS = 3, 64
#: Exit status of a program in which ``compute-sanitizer`` reports an error.
FOUND = 77
#: Option of newer versions of initcheck, which also check shared memory.
SHARED_TOO = "--initcheck-address-space"
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")


class Fault(NamedTuple):
    """A kernel of ``faults.cu``, the kind of its `FaultError`, and the tools that may detect it."""

    name: str
    kind: str
    tools: tuple[str, ...]


FAULTS = (
    Fault("out_of_bounds", "out of bounds", ("memcheck",)),
    Fault("race", "race", ("racecheck",)),
    Fault("missing_wait", "in flight", ("racecheck",)),
    Fault("uninitialised", "uninitialised", ("initcheck",)),
    Fault("divergent_barrier", "barrier", ("synccheck",)),
)


def unit(name: str, fixed: bool) -> TranslationUnit:
    text = f"#define FIXED {int(fixed)}\n{SOURCE.read_text(encoding='utf-8')}"
    return TranslationUnit(text, name)


def matrices() -> tuple[np.ndarray, np.ndarray]:
    """Return the input of the kernels, and an array for their output."""
    given = np.arange(CTAS * THREADS, dtype=np.float32).reshape(CTAS, THREADS)
    return given, np.full_like(given, np.nan)


def interpret(name: str, fixed: bool) -> np.ndarray:
    """Return the output of the kernel, or raise ``FaultError``."""
    given, out = matrices()
    text = ptx(unit(name, fixed), "sm_80")
    run(text, name, (CTAS,), (THREADS,), 0, [Buffer(given, "in"), Buffer(out, "out")])
    return out


def launch(name: str, fixed: bool) -> None:
    """Run the kernel on GPU 0."""
    from cute_gemm.problem.describe import from_sizes
    from cute_gemm.problem.scalars import ONE, ZERO
    from cute_gemm.run.driver import device_arch
    from cute_gemm.run.launch import load
    from cute_gemm.run.memory import allocate_like, download, upload
    from cute_gemm.toolchain.signature import Launch, gemm_signature

    given, out = matrices()
    kernel = load(build(unit(name, fixed), device_arch(0)))
    nothing = from_sizes("NN", m=0, n=0, k=0, dtype="float32")  # only two of its arguments are used
    signature = gemm_signature(nothing.operation(4, 4, 4))
    bound = kernel.bind(Launch(CTAS, THREADS, 0), signature.arguments(nothing, ONE, ZERO))
    with upload(given) as source, allocate_like(out) as target:
        bound((source.pointer, target.pointer, 0))
        download(target, out)


# -- compute-sanitizer ----------------------------------------------------------------------------


def program(path: str | None) -> str | None:
    """Return the path of ``compute-sanitizer``: as given, on ``PATH``, or in a CUDA toolkit."""
    homes = (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda")
    below = ("bin", "compute-sanitizer")
    places = [f"{home}/{one}/compute-sanitizer" for home in homes if home for one in below]
    for place in [path] if path else ["compute-sanitizer", *places]:
        if found := shutil.which(place):
            return found
    return None


def options(sanitizer: str, tool: str) -> list[str]:
    """Return the options of a tool, with checks of shared memory if it supports them."""
    chosen = ["--tool", tool, "--error-exitcode", str(FOUND)]
    if tool == "memcheck":  # the bindings cause API errors on purpose when they look up functions
        chosen += ["--report-api-errors", "no"]
    if tool == "initcheck":
        text = subprocess.run([sanitizer, "--help"], capture_output=True, text=True, check=False)
        if SHARED_TOO in text.stdout + text.stderr:
            chosen += [SHARED_TOO, "all"]
    return chosen


def watched(sanitizer: str, tool: str, name: str, fixed: bool, timeout: float) -> tuple[bool, str]:
    """Return whether a tool reports an error, and its first message."""
    own = [sys.executable, __file__, "--launch", name, *["--fixed"] * fixed]
    with subprocess.Popen(
        [sanitizer, *options(sanitizer, tool), *own], stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            said, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # its own session: the sanitizer and the kernel
            return False, f"did not end in {timeout:.0f} s"
    lines = [line.strip("= \n") for line in said.splitlines() if line.startswith("=========")]
    lines = [line for line in lines if line and "COMPUTE-SANITIZER" not in line]
    counts = re.findall(r"SUMMARY: (\d+) (?:error|hazard)", said)
    if process.returncode not in (0, FOUND) and not counts:
        last = said.strip().splitlines()[-1:] or ["nothing was said"]
        return False, f"FAILED with {process.returncode}: {last[0]}"
    found = process.returncode == FOUND or any(map(int, counts))
    return found, lines[0] if found and lines else "nothing found"


def rows(sanitizer: str | None, every_tool: bool, timeout: float) -> list[tuple[str, ...]]:
    """Return fault, whether it is fixed, the interpreter's message, the tool and its message."""
    found = []
    for fault in FAULTS:
        for fixed in (False, True):
            try:
                interpret(fault.name, fixed)
                said = "nothing found"
            except FaultError as error:
                said = str(error)
            for tool in TOOLS if every_tool else fault.tools:
                what, first = False, "not there"
                if sanitizer is not None:
                    what, first = watched(sanitizer, tool, fault.name, fixed, timeout)
                row = (fault.name, "fixed" if fixed else "broken", said, tool, str(what), first)
                print(" | ".join(row), flush=True)
                found.append(row)
    return found


def main() -> int:
    """Print the table, or launch one kernel."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--all", action="store_true", help="every tool for every fault")
    parser.add_argument("--sanitizer", metavar="PATH")
    parser.add_argument("--timeout", type=float, default=120.0, metavar="S")
    parser.add_argument(
        "--launch", choices=[fault.name for fault in FAULTS], help="launch only this kernel"
    )
    parser.add_argument("--fixed", action="store_true", help="launch its fixed version")
    given = parser.parse_args()
    if given.launch:
        launch(given.launch, given.fixed)
        return 0
    sanitizer = program(given.sanitizer)
    if sanitizer is not None:
        from cute_gemm.run.driver import device_arch

        for fault in FAULTS:  # compile before running under the sanitizer
            for fixed in (False, True):
                build(unit(fault.name, fixed), device_arch(0))
    else:
        print("compute-sanitizer was not found: name it with --sanitizer PATH", flush=True)
    table = rows(sanitizer, given.all, given.timeout)
    missed = [row for row in table if (row[1] == "broken") == (row[2] == "nothing found")]
    wrong = [row for row in table if row[1] == "fixed" and row[4] == "True"]
    unseen = {row[0] for row in table} - {row[0] for row in table if row[4] == "True"}
    print(f"interpreter: {len(missed)} rows wrong; compute-sanitizer: {len(wrong)} fixed reported")
    if sanitizer is not None:
        print(f"compute-sanitizer does not detect: {', '.join(sorted(unseen)) or 'none'}")
    return 1 if missed or wrong else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except GemmError as error:
        print(f"faults.py: {error}", file=sys.stderr)
        sys.exit(2)
