"""Test caches between calls: their memory is bounded for any number of shapes."""

import functools
import gc
import importlib
import pkgutil
import tracemalloc
from itertools import cycle, product

import numpy as np
import pytest
from cases import OPS, in_threads
from fake_arrays import on_h200
from gpu import shapes

import cute_gemm as cg
from cute_gemm import api
from cute_gemm._kept import KEPT, Kept
from cute_gemm.kernels import base
from cute_gemm.plan import reused, select
from cute_gemm.plan.executable import Executable
from cute_gemm.problem.scalars import scalar

#: Dicts, lists and sets of modules that grow, but not with the shapes of problems: loaded kernels,
#: a handle and a pool of each device, tuned configs, issued warnings, handlers of custom calls.
NOT_BY_SHAPE = {
    "cute_gemm.cost_model.calibrated._known",  # by GPU
    "cute_gemm.jax.ffi._registered",
    "cute_gemm.plan.checked._numbers",  # it has a bound of its own
    "cute_gemm.plan.tuned._tuned",
    "cute_gemm.run.flags._flags",
    "cute_gemm.run.launch._loaded",
    "cute_gemm.run.memory._pools",
    "cute_gemm.kernels.library.kernel._handles",
    "cute_gemm.toolchain.cache._warned",
}
#: Functions that cache every result: of a config, a device, an architecture, an activation.
ALWAYS = {
    "cute_gemm.report.ideas", "cute_gemm.arch", "cute_gemm.kernels.cutlass.unit", "cute_gemm.api",
    "cute_gemm.cost_model.calibration",
    "cute_gemm.kernels.registry", "cute_gemm.run.driver", "cute_gemm.plan.select",
    "cute_gemm.toolchain.headers", "cute_gemm.toolchain.nvrtc", "cute_gemm.toolchain.workers",
    "cute_gemm.problem.layers", "cute_gemm.jax.products", "cute_gemm.torch.running",
}  # fmt: skip


def modules():
    for found in pkgutil.walk_packages(cg.__path__, "cute_gemm."):
        if not found.name.endswith("__main__"):
            yield importlib.import_module(found.name)


def test_the_least_recently_used_is_dropped() -> None:
    kept = Kept[int, str](3)
    for number in range(3):
        kept[number] = "first"
    kept[2] = "again"
    assert list(kept.items()) == [(0, "first"), (1, "first"), (2, "again")]
    assert kept.get(0) == "first" and kept.get(7) is None
    kept[3] = "one more"
    assert list(kept.items()) == [(2, "again"), (0, "first"), (3, "one more")]


def test_entries_may_weigh_more_than_one() -> None:
    kept = Kept[str, str](6, weigh=len)
    kept["a"], kept["b"] = "123", "45"
    kept["a"] = "1234"
    assert kept == {"a": "1234", "b": "45"} and kept.weight == 6
    kept["c"] = "6"
    assert kept == {"b": "45", "c": "6"} and kept.weight == 3
    kept["d"] = "too long for it"  # the last item is kept, for any weight
    assert kept == {"d": "too long for it"}
    kept["e"] = "7"
    assert kept == {"e": "7"} and kept.weight == 1


def classes(count: int) -> None:
    """Select kernels for as many classes of problems."""
    for number, op in zip(range(count), cycle(OPS)):
        ld = 64 + number // 4
        sizes = {"m": 64, "n": 64, "k": 64, "lda": ld, "ldb": 2 * ld, "ldc": 64 + number % 5}
        cg.plan(op, **sizes, dtype="float16", arch="sm_90a", backend="cpu")


def test_what_is_kept_of_classes_of_problems_is_bounded_by_bytes(
    small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test the bound of their configs, each of which takes at most 2 KB."""
    kept = select._classes
    monkeypatch.setattr(kept, "most", 1 << 17)
    tracemalloc.start()
    try:
        classes(3)
        gc.collect()
        full = tracemalloc.get_traced_memory()[0]
        configs = sum(len(legal.configs) for legal in kept.values())
        assert configs == kept.weight > 300 and len(kept) == 3
        kept.clear()
        gc.collect()
        assert full - tracemalloc.get_traced_memory()[0] < 2048 * configs
    finally:
        tracemalloc.stop()
    monkeypatch.setattr(kept, "most", 400)
    classes(5)
    assert 0 < kept.weight <= 400 and 0 < len(kept) < 5


def test_whatever_grows_has_a_bound() -> None:
    growing, unbounded = set(), set()
    for module in modules():
        for name, value in vars(module).items():
            if type(value) in (dict, list, set) and name.startswith("_") and name[1] != "_":
                # Upper-case names are constant tables of the source.
                lower = name == name.lower()
                growing |= {f"{module.__name__}.{name}"} if lower else set()
            elif isinstance(value, functools._lru_cache_wrapper):
                unbounded |= {value.__module__} if value.cache_info().maxsize is None else set()
    assert growing == NOT_BY_SHAPE
    assert unbounded <= ALWAYS
    assert set(KEPT) == {
        "plans", "recent_calls", "problem_classes", "operand_counts", "orders_of_summation",
        "builds", "jax_launches", "legal_configs", "footprints", "operand_configs",
        "torch_launches", "torch_orders_of_summation",
    }  # fmt: skip


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> int:
    """Set small bounds, which few shapes reach."""
    for kept in KEPT.values():
        kept.clear()
        monkeypatch.setattr(kept, "most", 8)
    return 8


def test_many_shapes_leave_no_more_than_the_bounds(small: int) -> None:
    room = np.zeros(64 * 64, "f4")
    for m, n, k in product(range(1, 20, 4), range(1, 5), (3, 4)):
        A, B = room[: m * k].reshape(m, k), room[: k * n].reshape(k, n)
        cg.gemm("NN", A, B, kernel="double_buffered", backend="cpu")
    assert [len(kept) <= small for kept in KEPT.values()] == [True] * len(KEPT)
    assert {name for name, kept in KEPT.items() if kept} == {
        "plans", "problem_classes", "operand_counts", "legal_configs", "footprints",
        "operand_configs",
    }  # fmt: skip
    shapes.measure(shapes.Host("float64"), "thread_tile_2d", shapes.draw(20, 0, ("TN", "NN")))
    assert max(map(len, KEPT.values())) <= small


def test_many_device_arrays_builds_and_scalars_leave_no_more_than_the_bounds(
    small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Emulate device arrays, whose calls are cached by their fingerprints.
    monkeypatch.setattr(api, "fingerprint", lambda A, B, C, others: (A.shape, B.shape))
    read = api.read
    device = {"device": 0, "library": "cupy"}
    monkeypatch.setattr(api, "read", lambda x, name: functools.reduce(
        lambda operand, item: setattr(operand, *item) or operand, device.items(), read(x, name)
    ))  # fmt: skip
    on_h200(monkeypatch)
    monkeypatch.setattr(Executable, "run", lambda self, *_, **__: self)
    executables = [
        cg.gemm("NN", np.zeros((m, 4), "f4"), np.zeros((4, 4), "f4"), kernel="naive")
        for m in range(1, 40)
    ]
    assert 0 < len(reused.recent_calls) <= small

    executable = executables[0]
    monkeypatch.setattr(Executable, "bind", lambda *_: print)
    beta = scalar(0.0, "beta", "float32", None)
    for number in range(200):
        executable.launch(scalar(float(number), "alpha", "float32", None), beta, (), "")
    assert 0 < len(executable._bound) <= 64

    monkeypatch.setattr("cute_gemm.toolchain.nvrtc.build", lambda *_, **__: _Built())
    monkeypatch.setattr(base, "replace", lambda built, **_: built)
    for raster in range(1, 40):
        plan = cg.plan(
            "NN", m=4, n=4, k=4, dtype="float32", kernel="double_buffered", raster=raster
        )
        assert plan.build
    assert 0 < len(base._builds) <= small


class _Built:
    """A build that does nothing."""


def test_many_threads_choose_while_what_is_kept_is_emptied(small: int) -> None:
    """Test counts of operands that another thread removes, and that are computed again."""

    def config(k: int) -> str:
        sizes = {"m": k, "n": k, "k": k, "dtype": "float16"}
        return cg.plan("TN", **sizes, kernel="double_buffered", backend="cpu").symbol

    expected = {k: config(k) for k in range(1, 13)}

    def choose(start: int) -> None:
        turned = [*range(start, 13), *range(1, start)]
        assert {k: config(k) for k in turned} == expected

    in_threads(choose, range(1, 13, 3))
