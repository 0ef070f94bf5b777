"""Test calls with device arrays: checks of arrays at other addresses, and of changed arrays.

The arrays are fakes.
"""

import gc
import sys
import weakref
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fake_arrays import FakeCupy, FakeTensor, fake_torch, on_h200, torch_dtype

import cute_gemm as cg
from cute_gemm import api
from cute_gemm.errors import (
    ArrayError,
    DeviceError,
    GemmError,
    OptionError,
    OverlapError,
    ScalarError,
    ShapeError,
    UnsupportedError,
)
from cute_gemm.plan import executable, reused, select
from cute_gemm.plan.executable import Executable

Array = partial(FakeCupy, shape=(8, 8), dtype="float32")
Tensor = partial(FakeTensor, shape=(8, 8), strides=(1, 8), dtype="float32")
A, B, C = Array(0x10000), Array(0x20000), Array(0x30000)


class Calls(list[tuple[int, ...]]):
    """The launches, the number of times that arrays were read, and PyTorch's current stream."""

    read, stream = 0, 7


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Emulate a GPU that records launches."""
    made = Calls()
    stream = SimpleNamespace(ptr=7)
    cupy = SimpleNamespace(cuda=SimpleNamespace(get_current_stream=lambda device: stream))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    torch = fake_torch(
        lambda device: made.stream,
        compiler=SimpleNamespace(is_compiling=lambda: False),
        is_grad_enabled=lambda: True,
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    on_h200(monkeypatch)
    monkeypatch.setattr(
        Executable, "bind", lambda self, *_: lambda at, *stream: made.append((*at, *stream))
    )
    monkeypatch.setattr(reused, "plans", type(reused.plans)(64))
    monkeypatch.setattr(reused, "recent_calls", type(reused.recent_calls)(64))
    for module in (api, executable):
        monkeypatch.setattr(module, "read", _counted(made, module.read))
    return made


@pytest.fixture(params=["gemm", "plan"])
def call(request: pytest.FixtureRequest, calls: Calls) -> Any:
    """Return a plan's call or ``gemm`` for arrays like A, B and C."""
    plan = cg.plan("NN", A, B, C)
    return plan if request.param == "plan" else partial(cg.gemm, "NN")


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


@pytest.mark.parametrize(
    "change",
    [
        {"compute": "tf32"}, {"kernel": "naive"}, {"arch": "sm_80"}, {"out_dtype": "float32"},
        {"order": "C"}, {"backend": "cuda"},
    ],
    ids=str,
)  # fmt: skip
def test_a_call_in_other_words_is_another_call(calls: Calls, change: dict[str, Any]) -> None:
    cg.gemm("NN", A, B, C)
    seen = calls.read
    for _ in range(2):
        cg.gemm("NN", A, B, C, **change)
        assert calls.read == seen + 3
    cg.gemm("NT", A, B, C)
    assert calls.read == seen + 6


def test_no_factor_stands_for_those_of_a_first_call(calls: Calls, call: Any) -> None:
    call(A, B, C)
    for _ in range(2):
        with pytest.raises(ScalarError):
            call(A, B, C, alpha=None, beta=None)
    assert len(calls) == 1


def test_what_lies_elsewhere_is_checked_for_all_that_addresses_decide(
    calls: Calls, call: Any
) -> None:
    call(A, B, C)
    for at in (A.data.ptr, A.data.ptr + 252, A.data.ptr - 252, B.data.ptr):
        with pytest.raises((OverlapError, ShapeError)):  # a plan first checks the alignment
            call(A, B, Array(at))
    for lies in ((A, B, Array(C.data.ptr, device=1)), (A, Array(B.data.ptr, device=1), C)):
        with pytest.raises(DeviceError):
            call(*lies)
    assert len(calls) == 1
    for at in (A.data.ptr - 256, A.data.ptr + 256, B.data.ptr + 256):  # adjacent
        call(A, B, Array(at))
    assert len(calls) == 4


def test_another_alignment_is_another_plan(calls: Calls) -> None:
    cg.gemm("NN", A, B, C)
    first = calls.read
    cg.gemm("NN", Array(0x10004), B, C)
    assert calls.read == first + 3 and len(reused.plans) == 2
    plan = cg.plan("NN", A, B, C)
    plan(A, B, C)
    with pytest.raises(ShapeError, match="A starts at an address aligned to 4 bytes"):
        plan(Array(0x10004), B, C)


@pytest.fixture(params=["gemm", "plan"])
def on(request: pytest.FixtureRequest, calls: Calls) -> Any:
    """Return a function that returns a plan's call or ``gemm``, after three calls of it."""

    def made(*tensors: Tensor) -> Any:
        plan = cg.plan("NN", *tensors)
        call = plan if request.param == "plan" else partial(cg.gemm, "NN")
        for _ in range(3):
            call(*tensors)
        calls.clear()
        return call

    return made


def tensors(dtype: str = "float32") -> list[Tensor]:
    return [Tensor(at, dtype=dtype) for at in (0x10000, 0x20000, 0x30000)]


@pytest.mark.parametrize("which", range(3), ids="ABC".__getitem__)
@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"shape": (8, 9)}, ShapeError), ({"shape": (8, 8, 8), "strides": (1, 8, 64)}, GemmError),
        ({"strides": (2, 16)}, GemmError), ({"dtype": torch_dtype("float64")}, GemmError),
        ({"ordinal": 1}, DeviceError), ({"requires_grad": True}, ArrayError),
        ({"lazy": "neg"}, ArrayError), ({"lazy": "conj"}, ArrayError), ({"at": 0x10001}, GemmError),
        ({"layout": "torch.sparse_coo"}, ArrayError),
    ],
    ids=lambda given: "-".join(given) if isinstance(given, dict) else "",
)  # fmt: skip
def test_what_was_changed_of_the_same_objects_is_seen(
    calls: Calls, on: Any, which: int, changed: dict[str, Any], error: type[Exception]
) -> None:
    """Test ``x.data = y``, ``resize_`` and other changes of an object that was used before."""
    given = tensors("complex64" if changed.get("lazy") == "conj" else "float32")
    call, before = on(*given), dict(vars(given[which]))

    def no_memory() -> int:
        raise RuntimeError("Cannot access data pointer of Tensor that doesn't have storage")

    vars(given[which]).update(changed)
    if "layout" in changed:
        given[which].data_ptr = no_memory  # type: ignore[method-assign]
    with pytest.raises(error):
        call(*given)
    assert not calls
    vars(given[which]).clear()
    vars(given[which]).update(before)
    assert call(*given) is given[2]
    assert calls == [(0x10000, 0x20000, 0x30000, 7)]


def test_a_transpose_of_the_same_object_is_another_problem(calls: Calls) -> None:
    given = tensors()
    plan = cg.plan("NN", *given)
    for _ in range(3):
        plan(*given)
        cg.gemm("NN", *given)
    given[0].strides, seen = (8, 1), calls.read
    with pytest.raises(ShapeError, match=r"A is .8,8.:.8,1. of float32"):
        plan(*given)
    cg.gemm("NN", *given)
    assert calls.read == seen + 6 and len(reused.plans) == 2


def test_the_same_objects_may_lie_elsewhere(calls: Calls, on: Any) -> None:
    given = tensors()
    call, seen = on(*given), calls.read
    given[0].at, given[2].at = 0x50000, 0x60100
    call(*given)
    assert calls == [(0x50000, 0x20000, 0x60100, 7)] and calls.read == seen
    given[1].at = 0x60100
    with pytest.raises(OverlapError):
        call(*given)


def test_the_stream_is_the_one_of_the_call(calls: Calls, on: Any) -> None:
    given = tensors()
    call, seen = on(*given), calls.read
    calls.stream = 8
    call(*given)
    call(*given, stream=9)
    calls.stream = 10
    call(*given)
    assert [made[3] for made in calls] == [8, 9, 10] and calls.read == seen


def test_factors_are_those_of_the_call(
    calls: Calls, on: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test cached alpha and beta, which are looked up by object identity."""
    launched: list[tuple[complex, complex]] = []

    def bind(self: Any, device: int, alpha: Any, beta: Any, kept: str, numbers: Any) -> Any:
        return lambda *given: launched.append((alpha.value, beta.value))

    monkeypatch.setattr(Executable, "bind", bind)
    given = tensors()
    call = on(*given)
    with pytest.raises(ScalarError):
        call(*given, alpha=None, beta=None)
    beta = np.array(2.0)  # the same object later has another value
    for _ in range(3):
        call(*given, beta=beta)
        beta += 1
    assert launched[-3:] == [(1, 2), (1, 3), (1, 4)]
    launched.clear()
    factors: list[tuple[Any, Any]] = [
        (2.0, 1.0), (5.0, 1.0), (float("5"), float("1")), (3, 1), (1.0, 1.0), (1.0, 0.0),
        (np.float32(0.5), np.float64(0.25)),
    ]  # fmt: skip
    for alpha, beta in factors:
        for _ in range(3):
            call(*given, alpha=alpha, beta=beta)
    for _ in range(2):
        call(*given)
        with pytest.raises(ScalarError):
            call(*given, beta=1j)
    assert launched == [pair for pair in factors for _ in range(3)] + [(1, 0)] * 2


def test_factors_on_the_device_do_not_lie_in_c(calls: Calls, on: Any) -> None:
    given = tensors()
    call = on(*given)
    inside, outside = Tensor(0x30010), Tensor(0x40000)
    for number in (inside, outside):
        number.shape = number.strides = ()
    for name in ("alpha", "beta"):
        call(*given, **{name: outside})
        with pytest.raises(OverlapError, match=f"C shares memory with {name}, .* or a number"):
            call(*given, **{name: inside})
    given[2].at = 0x40000  # the new address of C
    with pytest.raises(OverlapError):
        call(*given, alpha=outside)
    call(*given, alpha=inside)
    assert len(calls) == 3


def test_a_plan_is_freed_with_its_last_reference(calls: Calls) -> None:
    """Test that a plan and its executable are in no reference cycle after any call."""
    gc.disable()
    try:
        for given in (tensors(), [A, B, C]):
            plan = cg.plan("NN", *given)
            for _ in range(3):
                plan(*given)
            cg.gemm("NN", *given)
            assert plan.steps and plan.why and plan.report()
            gone = weakref.ref(plan), weakref.ref(plan.executable)
            del plan
            assert [x() for x in gone] == [None, None]
    finally:
        gc.enable()


def test_nothing_is_launched_for_no_elements(calls: Calls, on: Any) -> None:
    given = tensors()
    for tensor in given[::2]:
        tensor.shape, tensor.strides = (0, 8), (1, 1)
    call = on(*given)
    assert [call(*given) is given[2] for _ in range(3)] == [True] * 3
    assert not calls


# ---- epilogues ----------------------------------------------------------------------------------


def test_calls_with_an_epilogue_are_known_by_it_and_by_its_operands(calls: Calls) -> None:
    scale, residual, more = Array(0x40000, shape=(1, 8)), Array(0x50000), Array(0x60000)

    @cg.epilogue
    def both(acc: Any, scale: Any, residual: Any) -> Any:
        return acc * scale + residual

    bound: list[Any] = []
    operands = {"residual": residual, "scale": scale}  # not in the epilogue's order
    for _ in range(2):
        cg.gemm("NN", A, B, C, epilogue=both, **operands)
    seen = calls.read
    cg.gemm("NN", A, B, C, epilogue=both, scale=scale, residual=more)
    cg.gemm("NN", A, B, C, epilogue=both, residual=more, scale=scale)
    first = 0x10000, 0x20000, 0x30000, 0x40000
    assert calls == [(*first, at, 7) for at in (0x50000, 0x50000, 0x60000, 0x60000)]
    assert calls.read == seen + 3  # the third call has its operands in another order
    for epilogue in ("residual", "residual+relu"):
        for _ in range(2):
            cg.gemm("NN", A, B, C, epilogue=epilogue, residual=more)
            bound.append(calls.read)
    assert bound[0] == bound[1] and bound[1] + 3 == bound[2] == bound[3]
    # C may be an operand, but must not overlap one.
    cg.gemm("NN", A, B, C, epilogue="residual", residual=C)
    for _ in range(2):
        with pytest.raises(OverlapError, match="C shares memory with residual"):
            cg.gemm("NN", A, B, C, epilogue="residual", residual=Array(0x30080))
    with pytest.raises(DeviceError, match="residual is on CUDA device 1"):
        cg.gemm("NN", A, B, C, epilogue="residual", residual=Array(0x50000, device=1))


@pytest.fixture
def zeroed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Return fake new arrays, and record the addresses and sizes that are set to 0."""
    places = iter(range(0x70000, 0x80000, 0x100))
    found: list[tuple[int, int]] = []

    def made(self: Any, like: Any, shape: Any, order: Any, dtype: str) -> Array:
        array: Any = Array(next(places), shape=shape)

        def reshape(asked: tuple[int, ...]) -> Any:
            array.asked = asked
            return array

        array.reshape = reshape
        return array

    monkeypatch.setattr("cute_gemm.arrays.cupy._CuPy.new", made)
    monkeypatch.setattr("cute_gemm.run.memory.zero", lambda at, n, *_: found.append((at, n)))
    return found


def test_further_results_are_new_at_every_call(calls: Calls, zeroed: list[tuple[int, int]]) -> None:
    both = cg.epilogue(lambda acc: (acc, acc * 2, cg.amax(acc)))
    for given in (C, C, C, None, None):
        result, twice, greatest = cg.gemm("NN", A, B, given, epilogue=both)
        assert result is C if given is C else result.data.ptr == calls[-1][2]
        assert calls[-1][3:] == (twice.data.ptr, greatest.data.ptr, 7)
        assert zeroed[-1] == (greatest.data.ptr, 4)
    assert len({launched[3] for launched in calls}) == len(zeroed) == 5
    assert calls.read == 3 + 2 * 5 + 2 + 2  # A, B and C once, further results, and a new C


def test_the_greatest_of_no_elements_is_set_to_zero(
    calls: Calls, zeroed: list[tuple[int, int]]
) -> None:
    both = cg.epilogue(lambda acc: (acc, cg.amax(acc)))
    for _ in range(2):
        _, greatest = cg.gemm("NN", Array(0x10000, shape=(0, 8)), B, epilogue=both)
        assert zeroed[-1] == (greatest.data.ptr, 4) and not calls


def test_numbers_of_an_epilogue_are_those_of_the_call(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched: list[tuple[float, ...]] = []

    def bind(self: Any, device: int, alpha: Any, beta: Any, kept: str, numbers: Any) -> Any:
        return lambda *given: launched.append(numbers)

    monkeypatch.setattr(Executable, "bind", bind)
    plan = cg.plan("NN", A, B, C, epilogue="scale", scale=1.0)
    for number in (2.0, 2.0, 3.0, 3.0, 2.0):
        cg.gemm("NN", A, B, C, epilogue="scale", scale=number)
        plan(A, B, C, scale=number)
    assert launched == [(number,) for number in (2.0, 2.0, 2.0, 2.0, 3.0, 3.0, 3.0, 3.0, 2.0, 2.0)]
    assert len(reused.plans) == 1


class TestWithoutSelection:
    """On the CPU, a call computes without selecting a kernel."""

    @pytest.fixture
    def selected(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """Record the selections, and keep no plan."""
        made, select_kernel = list[str](), select.select

        def recorded(problem: Any, *arguments: Any) -> Any:
            made.append(problem.dtype)
            return select_kernel(problem, *arguments)

        monkeypatch.setattr(select, "select", recorded)
        monkeypatch.setattr(reused, "plans", type(reused.plans)(64))
        return made

    def test_a_call_selects_nothing(self, selected: list[str]) -> None:
        X = np.arange(12.0).reshape(3, 4)
        assert (cg.gemm("NT", X, X, backend="cpu") == X @ X.T).all()
        assert selected == []
        (kept,) = reused.plans.values()
        assert kept.kernel == cg.plan("NT", X, X, backend="cpu").kernel
        assert (kept.config, kept.gpu.name) == (kept._selection.config, "A100 SXM 80GB")
        assert selected == ["float64", "float64"]  # once for each plan

    @pytest.mark.parametrize(
        "words",
        [{"kernel": "sm80_pipeline"}, {"split_k": 2}, {"batch_invariant": True}],
        ids=["kernel", "split_k", "batch_invariant"],
    )
    def test_what_may_be_refused_is_selected(
        self, selected: list[str], words: dict[str, Any]
    ) -> None:
        X = np.ones((64, 64), "f2")
        assert (cg.gemm("NT", X, X, backend="cpu", **words) == 64).all()
        assert selected == ["float16"]

    def test_errors_come_from_the_call(self) -> None:
        X = np.ones((64, 64), "f4")
        with pytest.raises(OptionError, match="pack='C' is unknown"):
            cg.gemm("NT", X, X, backend="cpu", pack="C")
        with pytest.raises(UnsupportedError, match="the only kernel is 'sm90_wgmma'"):
            cg.gemm("NT", X, X, backend="cpu", arch="sm_80", compute="bf16x9")
