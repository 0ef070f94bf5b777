"""What a shape that was never seen costs the host: ``cute-gemm bench --random-shapes``.

Shapes are drawn from a seed, extents evenly on a log scale, and every kernel gets each of them
twice. With a GPU the time is that of a call of `gemm` on arrays there, up to its launch; without
one, that of what such a call does until the driver is asked: it reads the arrays, describes and
looks up the problem, chooses a config and packs the arguments of its launch.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cute_gemm import api
from cute_gemm._kept import KEPT
from cute_gemm._text import FORMAT, counted, size
from cute_gemm.analysis.shown import Shown
from cute_gemm.analysis.tables import Column, Table
from cute_gemm.errors import OptionError, UnsupportedError
from cute_gemm.frameworks import read
from cute_gemm.kernels import registry
from cute_gemm.measure.matrices import generator
from cute_gemm.problem.dtypes import DTYPES
from cute_gemm.problem.problem import from_operands, from_sizes

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

    from cute_gemm.frameworks.base import Order
    from cute_gemm.plan import Plan
    from cute_gemm.problem.problem import GemmProblem

#: Largest extent that is drawn.
LARGEST = 4096
#: Shapes between two words on the progress.
_STEP = 100


class Shape(NamedTuple):
    """An op and its extents."""

    op: str
    m: int
    n: int
    k: int


@dataclass(frozen=True, slots=True)
class Costs:
    """Host time of some calls: how many, and the least, median, 90th percentile and worst, in us.

    None of no calls.
    """

    calls: int
    least: float | None = None
    median: float | None = None
    p90: float | None = None
    worst: float | None = None

    @property
    def times(self) -> tuple[float | None, ...]:
        """The four."""
        return self.least, self.median, self.p90, self.worst

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Costs:
        """Return the costs of calls that took so long."""
        if not seconds:
            return cls(0)
        figures = np.quantile(np.array(seconds) * 1e6, (0, 0.5, 0.9, 1))
        return cls(len(seconds), *(round(float(figure), 1) for figure in figures))


@dataclass(frozen=True, slots=True)
class KernelCosts:
    """One kernel on all shapes.

    How many configs of it they took, and how many shapes it refused; ``building``: first calls
    whose kernel was not there yet: it was read from the cache, into which all were compiled before,
    and loaded (without a GPU: only described);
    ``first``: those of a shape that is new, of a kernel that is there; ``repeated``.
    """

    kernel: str
    configs: int
    refused: int
    building: Costs
    first: Costs
    repeated: Costs


@dataclass(frozen=True)
class ShapesResult(Shown):
    """What :func:`random_shapes` found; ``print`` it, or take ``to_dict()``.

    ``gpu``: where calls went up to their launches, or None, and in ``why_no_launch`` the reason;
    ``resident_before`` and ``resident_after``: bytes of memory that the process had, None where the
    system does not say; ``kept``: entries of what is kept between calls, by name.
    """

    dtype: str
    compute: str
    order: str
    ops: tuple[str, ...]
    shapes: int
    seed: int
    gpu: str | None
    arch: str
    why_no_launch: str
    kernels: tuple[KernelCosts, ...]
    resident_before: int | None
    resident_after: int | None
    kept: dict[str, int]

    def to_dict(self) -> dict[str, Any]:
        """Return everything in strings, numbers, lists and dicts, with keys that stay."""
        return {"format": FORMAT, **asdict(self)}

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        where = f"{self.gpu} ({self.arch})" if self.gpu else f"no GPU, for {self.arch}"
        yield Text(
            f"{self.shapes:,} shapes of {' '.join(self.ops)}, {self.dtype}, compute "
            f"{self.compute}, extents 1 to {LARGEST}, seed {self.seed}, on {where}"
        )
        yield Text()
        heads = ("calls", "least", "median", "90 %", "worst")
        columns = (Column("kernel", left=True), Column("call", left=True), *map(Column, heads))
        rows = [
            [one.kernel, what, f"{costs.calls:,}", *map(_microseconds, costs.times)]
            for one in self.kernels
            for what, costs in (
                ("of a new kernel", one.building), ("of a new shape", one.first),
                ("repeated", one.repeated),
            )
        ]  # fmt: skip
        yield Table("host cost of a call, in microseconds", columns, rows)
        yield Text()
        for one in self.kernels:
            refused = f"; {one.refused:,} shapes were refused" * bool(one.refused)
            kernels = counted(one.configs, "kernel")
            yield Text(f"{one.kernel}: {kernels} took them{refused}")
        if self.resident_before and self.resident_after:
            before, after = size(self.resident_before), size(self.resident_after)
            yield Text(f"resident memory: {before} before, {after} after")
        kept = (f"{count:,} {name.replace('_', ' ')}" for name, count in self.kept.items())
        yield Text(f"kept: {', '.join(kept)}")
        yield Text(self._method())

    def _method(self) -> str:
        if not self.why_no_launch:
            return (
                "A call goes from gemm to its launch, for whose result nobody waits. Kernels were "
                "compiled before: one that is new is read from the cache and loaded."
            )
        return (
            f"Nothing was built or launched ({self.why_no_launch}): measured is what a call does "
            "before that, which reads the arrays, describes the problem, chooses a config and "
            "packs the launch's arguments."
        )


def _microseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"


def draw(count: int, seed: int, ops: Sequence[str]) -> list[Shape]:
    """Return so many shapes, each different, of ops in random order."""
    numbers = generator(seed)
    found: dict[Shape, None] = {}
    while len(found) < count:
        m, n, k = np.exp(numbers.uniform(0, np.log(LARGEST + 1), 3)).astype(int).tolist()
        found[Shape(ops[int(numbers.integers(len(ops)))], m, n, k)] = None
    return list(found)


def random_shapes(
    count: int, ops: Sequence[str], kernels: Sequence[str], dtype: str = "float32", *,
    compute: str | None = None, order: Order = "F", seed: int = 0, device: int = 0,
    progress: Callable[[str, int, int], None] | None = None,
) -> ShapesResult:  # fmt: skip
    """Time the first and the second call of ``count`` random shapes, with each kernel.

    ``kernels`` are names, ``"auto"`` among them. OptionError for a kernel that is not compiled
    here, or a count below 1.
    """
    if count < 1:
        raise OptionError(f"random_shapes={count}; expected 1 or more")
    for name in kernels:
        if name != "auto" and registry.get(name).runs_on != "gpu":
            raise OptionError(
                f"random_shapes: kernel {name!r} is not compiled here; expected auto, or names of "
                "kernels that are"
            )
    problem = from_sizes(ops[0], m=1, n=1, k=1, dtype=dtype, compute=compute, order=order)
    library, why_not = _library()
    made = _Launched if library else _OnHost
    calls = made(problem, order, library, device)
    ops = tuple(dict.fromkeys(op.upper() for op in ops))
    shapes = draw(count, seed, ops)
    before = _resident()
    found = tuple(_costs(calls, name, shapes, progress) for name in kernels)
    return ShapesResult(
        problem.dtype, problem.compute, order, ops, count, seed, *calls.place, why_not,
        found, before, _resident(), {name: len(one) for name, one in KEPT.items()},
    )  # fmt: skip


def _costs(calls: _OnHost, kernel: str, shapes: Sequence[Shape], progress: Any) -> KernelCosts:
    symbols: set[str] = set()
    building: list[float] = []
    first: list[float] = []
    repeated: list[float] = []
    refused = 0
    calls.build_ahead(kernel, shapes, progress)
    for number, shape in enumerate(shapes):
        if progress is not None and number % _STEP == 0:
            progress(f"{kernel}: shapes", number, len(shapes))
        arrays = calls.arrays(shape)
        start = time.perf_counter()
        try:
            calls.first(kernel, shape.op, *arrays)
        except UnsupportedError:
            refused += 1
            continue
        middle = time.perf_counter()
        calls.again(kernel, shape.op, *arrays)
        end = time.perf_counter()
        symbol = calls.plan(kernel, shape.op, *arrays).symbol
        (first if symbol in symbols else building).append(middle - start)
        repeated.append(end - middle)
        symbols.add(symbol)
        calls.settle()
    costs = (Costs.of(seconds) for seconds in (building, first, repeated))
    return KernelCosts(kernel, len(symbols), refused, *costs)


class _OnHost:
    """The part of a call that needs no GPU, on arrays of the host whose elements nobody reads."""

    backend: api.Backend = "cpu"

    def __init__(self, problem: GemmProblem, order: Order, library: Any, device: int) -> None:
        self._order = order
        self._compute = problem.compute
        self._library = library
        self._device = device
        self._rooms = [self._room(matrix.dtype) for matrix in (problem.A, problem.B, problem.C)]

    @property
    def place(self) -> tuple[str | None, str]:
        """The GPU, and what kernels are for."""
        return None, api.DEFAULT_ARCH

    def _room(self, dtype: str) -> Any:
        return np.empty(LARGEST**2, DTYPES[dtype].numpy)

    def arrays(self, shape: Shape) -> list[Any]:
        """Return A, B and C of a shape, without padding."""
        op, m, n, k = shape
        stored = (m, k) if op[0] == "N" else (k, m), (k, n) if op[1] == "N" else (n, k), (m, n)
        return [
            room[: rows * columns].reshape(columns, rows).T
            if order == "F"
            else room[: rows * columns].reshape(rows, columns)
            for room, (rows, columns), order in zip(
                self._rooms, stored, ("F", "F", self._order), strict=True
            )
        ]

    def plan(self, kernel: str, op: str, A: Any, B: Any, C: Any) -> Plan:
        """Return the plan, as `gemm` makes or finds it."""
        a, b, c = read(A, "A"), read(B, "B"), read(C, "C")
        problem = from_operands(op, a, b, c, compute=self._compute)
        return api.kept_plan(problem, a.device, kernel, self.backend, None, {})

    def build_ahead(self, kernel: str, shapes: Sequence[Shape], progress: Any) -> None:
        """Compile what the shapes take, where it is needed."""

    def first(self, kernel: str, op: str, *arrays: Any) -> None:
        """Do what the first call of a shape does."""
        plan = self.plan(kernel, op, *arrays)
        for step in plan.steps:
            assert step.launch
            step.arguments()

    def again(self, kernel: str, op: str, *arrays: Any) -> None:
        """Do what the next one does."""
        self.plan(kernel, op, *arrays)

    def settle(self) -> None:
        """Wait for what was started."""


class _Launched(_OnHost):
    """Calls of `gemm` on arrays of PyTorch or CuPy."""

    backend = "cuda"

    @property
    def place(self) -> tuple[str | None, str]:
        """See `_OnHost.place`."""
        from cute_gemm.run.driver import device_arch, device_name

        return device_name(self._device), device_arch(self._device)

    def _room(self, dtype: str) -> Any:
        if self._library.__name__ == "cupy":
            with self._library.cuda.Device(self._device):
                return self._library.empty(LARGEST**2, DTYPES[dtype].numpy)
        kind = getattr(self._library, dtype)
        return self._library.empty(LARGEST**2, dtype=kind, device=f"cuda:{self._device}")

    def build_ahead(self, kernel: str, shapes: Sequence[Shape], progress: Any) -> None:
        """Compile into the cache, several at once; what is kept in memory is dropped again."""
        plans: dict[str, Plan] = {}
        for shape in shapes:
            with suppress(UnsupportedError):
                plan = self.plan(kernel, shape.op, *self.arrays(shape))
                plans.setdefault(plan.symbol, plan)
        tell = None if progress is None else partial(progress, f"{kernel}: compile")
        api.compile(plans.values(), tell)
        for kept in KEPT.values():
            kept.clear()

    def first(self, kernel: str, op: str, A: Any, B: Any, C: Any) -> None:
        """See `_OnHost.first`."""
        api.gemm(op, A, B, C, compute=self._compute, kernel=kernel, backend="cuda")

    again = first

    def settle(self) -> None:
        """See `_OnHost.settle`."""
        from cute_gemm.run.driver import synchronize

        synchronize(self._device)


def _library() -> tuple[Any, str]:
    """Return PyTorch or CuPy, whichever can make arrays on a GPU; or None, and why not."""
    from cute_gemm.run.driver import why_no_gpu

    reason = why_no_gpu()
    if reason is not None:
        return None, reason
    for name in ("torch", "cupy"):
        with suppress(ImportError):
            library = import_module(name)
            if name == "cupy" or library.cuda.is_available():
                return library, ""
    return None, "neither PyTorch nor CuPy is installed, whose arrays gemm would be given"


def _resident() -> int | None:
    """Return the bytes of memory that the process has now, where the system says so."""
    with suppress(OSError, ValueError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return None
