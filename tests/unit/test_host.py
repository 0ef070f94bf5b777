"""Test ``kernel="host"`` as a kernel. Its results are tested in test_cpu.py."""

import warnings
from functools import partial
from types import SimpleNamespace
from typing import Any

import cases
import numpy as np
import pytest
from fake_arrays import FakeTensor

import cute_gemm as cg
from cute_gemm.arrays import read
from cute_gemm.dtypes import DTYPES
from cute_gemm.errors import DeviceError, OptionError, UnsupportedError
from cute_gemm.kernels.host import Host
from cute_gemm.problem.describe import from_operands
from cute_gemm.problem.verify import verify
from cute_gemm.run import driver

M, N, K = 300, 270, 33  # more than a block of C


operands = partial(cases.operands, order="C", mnk=(M, N, K))


@pytest.mark.parametrize("order", ["F", "C"])
@pytest.mark.parametrize("op", ["NN", "TC", "HN"])
@pytest.mark.parametrize("name", [name for name in Host.dtypes if " x " not in name])
def test_gemm(name: str, op: str, order: str) -> None:
    dtype, _, compute = name.partition("/")
    A, B = operands(op, dtype)
    given: dict[str, Any] = {"compute": compute or None, "order": order}
    C = cg.gemm(op, A, B, kernel="host", alpha=-1, **given)
    assert C.dtype.name == DTYPES[dtype].outputs[0]
    problem = from_operands(op, read(A, "A"), read(B, "B"), read(C, "C"), compute=compute or None)
    assert verify(problem, A, B, C, alpha=-1).ok


def test_every_type_is_one_of_its() -> None:
    assert {name.partition("/")[0] for name in Host.dtypes if " x " not in name} == {
        row.name for row in DTYPES.values() if row.outputs
    }
    assert "float32/tf32" in Host.dtypes


def test_products_are_added_in_the_order_of_k() -> None:
    """Test sums that depend on the order: 1 is lost next to 2**25, unless they cancel before."""
    for row, total in (([2.0**25, -(2.0**25), 1], 1), ([2.0**25, 1, -(2.0**25)], 0)):
        A = np.array([row], np.float32)
        assert cg.gemm("NT", A, np.ones_like(A), kernel="host") == total


def test_the_plan_shows_the_loop() -> None:
    plan = cg.plan("NT", m=M, n=N, k=K, dtype="float32", kernel="host", arch="sm_90a")
    assert (plan.kernel, plan.backend, plan.device, plan.arch) == ("host", "cpu", None, "cpu")
    assert (plan.symbol, plan.config.name, plan.compiled) == ("host", "host", False)
    assert repr(plan) == "Plan(NT m=300 n=270 k=33 float32, host, cpu)"
    assert plan.source.startswith("def gemm(") and "for k in range(problem.k):" in plan.source
    A, B = map(np.asfortranarray, operands("NT", "float32"))
    assert (plan(A, B) == cg.gemm("NT", A, B, kernel="host")).all()


def test_what_a_loop_in_python_does_not_have() -> None:
    plan = cg.plan("NT", m=M, n=N, k=K, dtype="float32", kernel="host")
    for name in ("unit", "ptx", "sass", "cubin", "build", "resources", "launch"):
        with pytest.raises(UnsupportedError, match="'host' is a loop in Python.*plan.source is"):
            getattr(plan, name)
    with pytest.raises(UnsupportedError, match="'host' is a loop in Python"):
        plan.report()
    with pytest.raises(UnsupportedError, match="'host' is a loop in Python"):
        cg.analyze("NT", m=M, n=N, k=K, dtype="float32", kernel="host")


def test_what_is_compiled() -> None:
    assert cg.plan("NT", m=M, n=N, k=K, dtype="float32", backend="cpu").compiled


@pytest.mark.parametrize("reason", [None, "there is none"])
def test_a_gpu_makes_no_difference(monkeypatch: pytest.MonkeyPatch, reason: str | None) -> None:
    """Test that a GPU is neither used nor required."""
    monkeypatch.setattr(driver, "why_no_gpu", lambda: reason)
    A, B = operands("NN", "float32")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for backend in ("auto", "cpu"):
            plan = cg.plan("NN", A, B, kernel="host", backend=backend)  # type: ignore[arg-type]
            assert plan.backend == "cpu" and plan(A, B).shape == (M, N)
        with pytest.raises(OptionError, match="'host' computes on the CPU and backend is 'cuda'"):
            cg.gemm("NN", A, B, kernel="host", backend="cuda")


def test_device_arrays_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"shape": (4, 4), "dtype": "float32", "ordinal": 1}
    A, B, C = (FakeTensor(**there) for _ in range(3))
    monkeypatch.setattr("cute_gemm.problem.overlap.overlap", lambda a, b: False)
    message = "kernel='host' cannot read A on CUDA device 1: pass host arrays, or leave kernel out"
    with pytest.raises(DeviceError, match=message):
        cg.gemm("NN", A, B, C, kernel="host")
    plan = cg.plan("NN", m=4, n=4, k=4, dtype="float32", kernel="host")
    with pytest.raises(DeviceError, match="A is on CUDA device 1 .* the plan is for the CPU"):
        plan(A, B, C)
    alpha = SimpleNamespace(device=1)
    monkeypatch.setattr("cute_gemm.problem.scalars.read", lambda _, name, dimensions: read(A, name))
    x = np.ones((4, 4), np.float32)
    with pytest.raises(DeviceError, match=r"alpha is on CUDA device 1 .*number: alpha\.item"):
        cg.gemm("NN", x, x, alpha=alpha, kernel="host")


def test_it_has_no_options() -> None:
    with pytest.raises(OptionError, match="'tile' is not one of kernel 'host'; expected none"):
        cg.plan("NN", m=4, n=4, k=4, dtype="float32", kernel="host", tile=(8, 8, 8))
