"""Test tuning on a device: stored configs and results. C must not change.

No test depends on the measured speed.
"""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import cute_gemm as cg
from cute_gemm.commands import cli
from cute_gemm.errors import CompileError
from cute_gemm.measure.matrices import Factors
from cute_gemm.plan import tuned
from cute_gemm.plan.steps import Step
from cute_gemm.plan.tune import Tuning
from cute_gemm.problem.describe import from_sizes
from cute_gemm.problem.verify import verify
from cute_gemm.run import memory
from cute_gemm.run.driver import device_name

FEW = Tuning(candidates=4)
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{op: (op, {"m": 512, "n": 384, "k": 256, "dtype": "float16"}) for op in ("NN", "NT", "TN")},
    "row-major C": ("TT", {"m": 512, "n": 384, "k": 256, "dtype": "bfloat16", "order": "C"}),
    "packed": ("TN", {"m": 1023, "n": 1025, "k": 1021, "dtype": "bfloat16", "pack": "AB"}),
    "split": ("NT", {"m": 64, "n": 96, "k": 16384, "dtype": "float16", "split_k": 4}),
    "thin": ("TN", {"m": 1, "n": 1000, "k": 2048, "dtype": "float16"}),
    "small products": ("NN", {"m": 9, "n": 7, "k": 16, "l": 500, "dtype": "float16"}),
    "a batch": ("NN", {"m": 96, "n": 80, "k": 64, "l": 5, "dtype": "float32"}),
    "tf32": ("NT", {"m": 256, "n": 256, "k": 256, "dtype": "float32", "compute": "tf32"}),
    "int8": ("TN", {"m": 256, "n": 192, "k": 128, "dtype": "int8"}),
    "complex": ("CN", {"m": 128, "n": 96, "k": 64, "dtype": "complex64"}),
    "complex128": ("NC", {"m": 128, "n": 96, "k": 64, "dtype": "complex128"}),
}


@pytest.fixture(autouse=True)
def place(own_choices: Path) -> Path:
    return own_choices


def rows(place: Path) -> list[dict[str, Any]]:
    """Return the stored configs."""
    (file,) = place.glob("tuned-*.json")
    found = json.loads(file.read_text())
    assert found["gpu"] == device_name()
    return list(found["configs"].values())


@pytest.mark.parametrize("case", CASES)
def test_the_selection_is_stored_taken_and_right(case, place, monkeypatch):
    op, given = CASES[case]
    measured = cg.plan(op, **given, tune=FEW)
    (row,) = rows(place)
    assert 0 < row["seconds"] < 1 and 1 <= row["configs"] <= 4
    assert not row["predicted"] or not row["predicted_seconds"] < row["seconds"]
    monkeypatch.setattr(tuned, "_tuned", {})
    plan = cg.plan(op, **given)
    assert (plan.config, plan.algorithm) == (measured.config, measured.algorithm)
    assert plan.measured == measured.measured and "measured" in plan.why

    sizes = {name: given[name] for name in ("m", "n", "k", "dtype")}
    factors = Factors(from_sizes(op, **sizes, l=given.get("l", 1)), 0)
    A, B = (factors.stored(*factors.form(name, op)) for name in "AB")
    C = plan(A, B)
    assert verify(plan.problem, A, B, C).ok


def test_a_call_measures_on_matrices_of_its_own_and_computes_once(place):
    A, B = (torch.randn(512, 512, device="cuda", dtype=torch.float16) for _ in range(2))
    expected = A.float() @ B.float()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
        C = torch.ones(512, 512, device="cuda", dtype=torch.float16)
        A_before, B_before = A.clone(), B.clone()
        cg.gemm("NN", A, B, C, beta=1.0, tune=True)
        assert torch.allclose(C.float(), expected + 1, atol=0.2)
        for tune in (True, False):
            C.fill_(1)
            assert cg.gemm("NN", A, B, C, beta=1.0, tune=tune) is C
            assert torch.allclose(C.float(), expected + 1, atol=0.2)
    torch.cuda.synchronize()
    assert torch.equal(A, A_before) and torch.equal(B, B_before)
    assert len(rows(place)) == 1
    assert cg.plan("NN", A, B, C).measured.configs > 1


def test_calls_in_use_are_timed_and_right(place):
    torch = pytest.importorskip("torch")
    A, B = (torch.randn(640, 640, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    expected = A.float() @ B.float()
    end, chosen, calls = time.monotonic() + 120, None, 0
    while not chosen and time.monotonic() < end:
        C = cg.gemm("NN", A, B, tune="online")
        calls += 1
        assert torch.allclose(C.float(), expected, atol=1.0)
        chosen = list(place.glob("tuned-*.json"))
        if calls % 100 == 0:
            time.sleep(0.05)  # kernels are compiled in the background
    (row,) = rows(place)
    assert 2 <= row["configs"] <= 6 and 0 < row["seconds"] < 1e-3
    torch.cuda.synchronize()
    plan = cg.plan("NN", A, B)
    assert plan.measured and "measured, the least of" in plan.why
    assert torch.allclose(cg.gemm("NN", A, B, tune="online").float(), expected, atol=1.0)


def test_captured_calls_are_not_timed(place):
    torch = pytest.importorskip("torch")
    A, B = (torch.randn(384, 640, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    C = cg.gemm("NT", A, B, tune="online")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(40):
            again = cg.gemm("NT", A, B, tune="online")
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(again, C) and not list(place.glob("tuned-*.json"))


def test_layers_are_timed_where_the_environment_asks(place, monkeypatch):
    torch = pytest.importorskip("torch")
    ct = pytest.importorskip("cute_gemm.torch")
    monkeypatch.setenv("CUTE_GEMM_TUNE", "online")
    x = torch.randn(448, 512, device="cuda", dtype=torch.bfloat16)
    w = torch.randn(576, 512, device="cuda", dtype=torch.bfloat16)
    end = time.monotonic() + 120
    while not list(place.glob("tuned-*.json")) and time.monotonic() < end:
        y = ct.linear(x, w)
        time.sleep(0.001)
    expected = x.float() @ w.float().T
    assert len(rows(place)) == 1 and torch.allclose(y.float(), expected, atol=1.0)
    assert torch.allclose(ct.linear(x, w).float(), expected, atol=1.0)


def test_an_operand_off_its_vectors(place):
    A = torch.randn(300 * 256 + 1, device="cuda", dtype=torch.float16)[1:].view(300, 256)
    B = torch.randn(256, 200, device="cuda", dtype=torch.float16)
    C = cg.gemm("NN", A, B, tune=True)
    assert torch.allclose(C.float(), A.float() @ B.float(), atol=0.2)
    assert cg.plan("NN", A, B).measured and cg.plan("NN", A.clone(), B).measured is None


def test_memory_is_given_back(place, monkeypatch):
    free: list[int] = []
    original = memory.DeviceBuffer.free
    monkeypatch.setattr(
        memory.DeviceBuffer, "free", lambda self: free.append(self.pointer) or original(self)
    )
    cg.plan("NN", m=256, n=256, k=256, dtype="float16", tune=FEW)
    assert len({at for at in free if at}) >= 3 * 2


def test_what_cannot_be_built_is_left_out(place, monkeypatch):
    given = {"m": 320, "n": 256, "k": 192, "dtype": "float16"}
    first = cg.plan("TN", **given)
    original = Step.build

    def build(step: Step, *compiler: Any) -> Any:
        if step.config == first.config:
            raise CompileError("it spills")
        return original(step, *compiler)

    monkeypatch.setattr(Step, "build", build)
    plan = cg.plan("TN", **given, tune=FEW)
    assert plan.config != first.config and plan.measured.configs == 3
    assert "which was predicted to be the fastest, failed" in plan.why


def test_the_command_and_another_process(place, capsys):
    words = ["tune", "TN", "NN", "--sizes", "256,128x96x64", "--candidates", "3", "--json"]
    assert cli.main(words) == 0
    found = json.loads(capsys.readouterr().out)["tuned"]
    assert len(found) == 4 and len(rows(place)) == 4
    script = (
        "import cute_gemm as cg; p = cg.plan('NN', m=128, n=96, k=64, dtype='float16');"
        "print(p.symbol, p.measured is not None)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert answer.stdout.split() == [found[3]["config_name"], "True"]
    assert cli.main(["cache", "size"]) == 0
    assert f"4 tuned configs for {device_name()}" in capsys.readouterr().out


def test_in_a_graph_of_torch(place):
    A, B = (torch.randn(128, 128, device="cuda", dtype=torch.float16) for _ in range(2))
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda A, B: cg.gemm("NN", A, B, tune=True), fullgraph=True, backend="aot_eager"
    )
    assert torch.allclose(compiled(A, B).float(), A.float() @ B.float(), atol=0.2)
    assert len(rows(place)) == 1
