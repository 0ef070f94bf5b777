"""Calls on device arrays: what is checked again when they lie elsewhere. The arrays are fakes."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import cute_gemm as cg
from cute_gemm import api, executable, select
from cute_gemm.errors import DeviceError, OverlapError, ShapeError


class Array:
    """What of a ``cupy.ndarray`` is read: 8 x 8, float32, column-major."""

    def __init__(self, at: int, shape: tuple[int, int] = (8, 8), device: int = 0) -> None:
        self.data = SimpleNamespace(ptr=at, device_id=device)
        self.shape, self.strides = shape, (4, 4 * shape[0])
        self.dtype, self.itemsize = np.dtype("float32"), 4


Array.__module__, Array.__name__ = "cupy", "ndarray"
A, B, C = Array(0x10000), Array(0x20000), Array(0x30000)


class Calls(list[tuple[int, ...]]):
    """The launches that were made, and how often arrays were read."""

    read: int = 0


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """A GPU that writes down what is launched."""
    made = Calls()
    stream = SimpleNamespace(ptr=7)
    cupy = SimpleNamespace(cuda=SimpleNamespace(get_current_stream=lambda device: stream))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(api, "_backend", lambda *_: "cuda")
    monkeypatch.setattr("cute_gemm.run.driver.device_arch", lambda device: api.Arch("sm_90a"))
    monkeypatch.setattr(select, "gpu_of_device", lambda device: None)
    monkeypatch.setattr("cute_gemm.run.driver.device_name", lambda device: "NVIDIA H200")
    monkeypatch.setattr(cg.Plan, "bind", lambda self, *_: lambda *given: made.append(given))
    monkeypatch.setattr(api, "_plans", type(api._plans)(64))
    monkeypatch.setattr(api, "_recent", type(api._recent)(64))
    for module in (api, executable):
        monkeypatch.setattr(module, "read", _counted(made, module.read))
    return made


@pytest.fixture(params=["gemm", "plan"])
def call(request: pytest.FixtureRequest, calls: Calls) -> Any:
    """Either way to compute on arrays like A, B and C."""
    plan = cg.plan("NN", A, B, C)
    return plan if request.param == "plan" else lambda *given: cg.gemm("NN", *given)


def _counted(made: Calls, read: Any) -> Any:
    def counted(array: Any, name: str) -> Any:
        made.read += 1
        return read(array, name)

    return counted


def test_arrays_of_known_layouts_are_not_read_again_wherever_they_lie(
    calls: Calls, call: Any
) -> None:
    call(A, B, C)
    seen = calls.read
    assert call(A, B, C) is C
    moved = Array(0x50000), Array(0x40000), Array(0x60100)
    assert call(*moved) is moved[2]
    assert calls.read == seen and calls == [
        (0x10000, 0x20000, 0x30000, 7), (0x10000, 0x20000, 0x30000, 7),
        (0x50000, 0x40000, 0x60100, 7),
    ]  # fmt: skip


def test_what_lies_elsewhere_is_checked_for_all_that_addresses_decide(
    calls: Calls, call: Any
) -> None:
    call(A, B, C)
    for at in (A.data.ptr, A.data.ptr + 252, A.data.ptr - 252, B.data.ptr):
        with pytest.raises((OverlapError, ShapeError)):  # a plan is of another alignment first
            call(A, B, Array(at))
    for lies in ((A, B, Array(C.data.ptr, device=1)), (A, Array(B.data.ptr, device=1), C)):
        with pytest.raises(DeviceError):
            call(*lies)
    assert len(calls) == 1
    for at in (A.data.ptr - 256, A.data.ptr + 256, B.data.ptr + 256):  # side by side
        call(A, B, Array(at))
    assert len(calls) == 4


def test_another_alignment_is_another_plan(calls: Calls) -> None:
    cg.gemm("NN", A, B, C)
    first = calls.read
    cg.gemm("NN", Array(0x10004), B, C)
    assert calls.read == first + 3 and len(api._plans) == 2
    plan = cg.plan("NN", A, B, C)
    plan(A, B, C)
    with pytest.raises(ShapeError, match="A starts at an address aligned to 4 bytes"):
        plan(Array(0x10004), B, C)
