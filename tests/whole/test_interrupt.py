"""Test that Ctrl-C ends a command at once, without a traceback, at startup and in BLAS calls."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")


def _takes_interrupts() -> None:
    """Enable SIGINT, which a background process of a shell and its children ignore."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def started(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *words], cwd=ROOT, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(ROOT)},
        preexec_fn=_takes_interrupts,
    )  # fmt: skip


def interrupted(process: subprocess.Popen[str]) -> tuple[int, str, float]:
    """Return the exit status after Ctrl-C, the last lines of errors, and the elapsed seconds."""
    begin = time.monotonic()
    process.send_signal(signal.SIGINT)
    try:
        _, err = process.communicate(timeout=20)
    finally:
        process.kill()
    return process.returncode, err, time.monotonic() - begin


@pytest.mark.parametrize("module", ["numpy.version", "cute_gemm.arch"])
def test_while_it_starts(module: str) -> None:
    """Test each phase. Python prints the module that it imported last."""
    process = started("-X", "importtime", "-m", "cute_gemm", "doctor")
    assert process.stderr is not None
    while module not in (line := process.stderr.readline()):
        assert line
    status, err, _ = interrupted(process)
    assert status == 130 and "Traceback" not in err


#: A command that runs C code for half an hour, like a product of BLAS, without Python.
LONG = """
import hashlib, sys
sys.argv = ["cute-gemm", "kernels"]
from cute_gemm.commands import cli, kernels
def command(arguments):
    print("begun", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)
kernels.command = command
sys.exit(cli.main())
"""


def test_while_a_library_computes() -> None:
    process = started("-c", LONG)
    assert process.stdout is not None and process.stdout.readline() == "begun\n"
    time.sleep(0.5)  # until it runs C code
    status, err, seconds = interrupted(process)
    assert (status, err) == (130, "") and seconds < 5


def test_a_program_that_uses_the_package_keeps_its_handler() -> None:
    said = "import cute_gemm, signal; print(signal.getsignal(2) is signal.default_int_handler)"
    out, _ = started("-c", said).communicate(timeout=60)
    assert out == "True\n"
