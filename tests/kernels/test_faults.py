"""Test that the interpreter detects planted faults (``tests/data/faults.cu``)."""

import re
import sys

import numpy as np
import pytest
from gpu import faults

from cute_gemm.errors import FaultError
from cute_gemm.ptx.parser import parse
from cute_gemm.toolchain.nvrtc import ptx

#: Name -> instruction, CTA, thread, and more text of the message, with the address.
SAID = {
    "out_of_bounds": (
        "ld.global.f32", 2, 63, "at address 0x7f.*: out of bounds: 1 bytes after the end of in",
    ),
    "race": ("ld.volatile.shared.f32", 0, 0, "at address 0x80: race: .* without a barrier in"),
    "missing_wait": (
        "ld.volatile.shared.f32", 0, 0, "at address 0x80: .* asynchronous copy, not waited for",
    ),
    "uninitialised": ("st.global.f32", 0, 48, "shared memory that no thread has set"),
    "divergent_barrier": ("bar.sync", 0, 48, "other threads of its CTA wait here, but it waits at"),
}  # fmt: skip


@pytest.mark.parametrize("fault", faults.FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_is_found_and_its_fixed_twin_is_clean(fault: faults.Fault) -> None:
    opcode, cta, thread, said = SAID[fault.name]
    with pytest.raises(FaultError, match=said) as caught:
        faults.interpret(fault.name, fixed=False)
    error = caught.value
    assert error.kind == fault.kind
    assert re.match(rf"line {error.line}: .*CTA \({cta}, 0, 0\), thread {thread}\b", str(error))
    code = parse(ptx(faults.unit(fault.name, False), "sm_80"), fault.name).instructions
    (blamed,) = (one for one in code if one.line == error.line)
    assert blamed.text.startswith(opcode)
    assert np.isfinite(faults.interpret(fault.name, fixed=True)).all()


SANITIZER = """#!{python}
import sys
if "--help" in sys.argv:
    sys.exit(print("--initcheck-address-space"))
if "race" in sys.argv and "--fixed" not in sys.argv:
    print("========= COMPUTE-SANITIZER\\n========= Error: Race reported")
    sys.exit(print("========= RACECHECK SUMMARY: 1 hazard displayed") or 77)
if "missing_wait" in sys.argv:
    import time
    time.sleep(60)
if "uninitialised" in sys.argv:
    assert sys.argv[sys.argv.index("--initcheck-address-space") + 1] == "all"
print("========= COMPUTE-SANITIZER\\n========= ERROR SUMMARY: 0 errors")

"""


def test_what_a_sanitizer_says_is_read(tmp_path) -> None:
    tool = tmp_path / "compute-sanitizer"
    tool.write_text(SANITIZER.format(python=sys.executable))
    tool.chmod(0o755)
    path = faults.program(str(tool))
    assert path and faults.program(str(tmp_path / "none")) is None

    def watched(tool: str, name: str, fixed: bool = False, timeout: float = 60):
        return faults.watched(path, tool, name, fixed, timeout)

    assert watched("racecheck", "race") == (True, "Error: Race reported")
    assert watched("racecheck", "race", fixed=True) == (False, "nothing found")
    assert watched("racecheck", "missing_wait", timeout=1) == (False, "did not end in 1 s")
    assert watched("initcheck", "uninitialised") == (False, "nothing found")


def test_the_table_without_a_sanitizer(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["faults.py", "--sanitizer", str(tmp_path / "none")])
    assert faults.main() == 0
    out = capsys.readouterr().out
    assert "compute-sanitizer was not found" in out
    assert out.count(" | broken | line ") == out.count(" | fixed | nothing") == 5
