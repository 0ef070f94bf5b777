"""Measure the host time of the first call with a shape, and of the next call.

    python tests/gpu/shapes.py --count 1000 --kernels auto,sm80_pipeline --dtype float16

Shapes are random, with extents that are uniform on a log scale. With a GPU and PyTorch, the script
measures calls of `gemm` up to the launch, with kernels that are already compiled; "new kernel" are
the calls that load their kernel. Without a GPU, it measures the steps before the launch: reading
the arrays, describing the problem, selecting a config and packing the arguments.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from cute_gemm import api
from cute_gemm._kept import KEPT, clear_all
from cute_gemm.arrays import read
from cute_gemm.call import Call
from cute_gemm.dtypes import DTYPES
from cute_gemm.errors import UnsupportedError
from cute_gemm.plan import make
from cute_gemm.plan.plan import Plan
from cute_gemm.problem.describe import from_operands, from_sizes
from cute_gemm.run import driver

#: Largest random extent.
LARGEST = 4096


class Shape(NamedTuple):
    """An op and its extents."""

    op: str
    m: int
    n: int
    k: int


def draw(count: int, seed: int, ops: Sequence[str]) -> list[Shape]:
    """Return ``count`` different shapes, with random ops."""
    random = np.random.default_rng(seed)
    shapes: dict[Shape, None] = {}
    while len(shapes) < count:
        m, n, k = np.exp(random.uniform(0, np.log(LARGEST + 1), 3)).astype(int).tolist()
        shapes[Shape(ops[int(random.integers(len(ops)))], m, n, k)] = None
    return list(shapes)


class Host:
    """Calls without a launch, on NumPy arrays whose elements are not read."""

    backend: api.Backend = "cpu"

    def __init__(self, dtype: str) -> None:
        problem = from_sizes("NN", m=1, n=1, k=1, dtype=dtype)
        self.rooms = [self.room(x.dtype) for x in (problem.A, problem.B, problem.C)]

    def room(self, dtype: str) -> Any:
        return np.empty(LARGEST**2, DTYPES[dtype].numpy)

    def arrays(self, shape: Shape) -> list[Any]:
        """Return column-major A, B and C of a shape, without padding."""
        op, m, n, k = shape
        stored = (m, k) if op[0] == "N" else (k, m), (k, n) if op[1] == "N" else (n, k), (m, n)
        return [
            room[: rows * columns].reshape(columns, rows).T
            for room, (rows, columns) in zip(self.rooms, stored, strict=True)
        ]

    def plan(self, kernel: str, op: str, *arrays: Any) -> Plan:
        """Return the plan, new or stored, as `gemm` does."""
        A, B, C = (read(array, name) for array, name in zip(arrays, "ABC", strict=True))
        return make.kept_plan(
            from_operands(op, A, B, C), A.device, Call(op, kernel=kernel, backend=self.backend)
        )

    def prepare(self, kernel: str, shapes: Iterable[Shape]) -> None:
        """Do the work that is not measured."""

    def first(self, kernel: str, op: str, *arrays: Any) -> None:
        """Do the work of the first call with a shape."""
        for step in self.plan(kernel, op, *arrays).steps:
            step.arguments()

    def again(self, kernel: str, op: str, *arrays: Any) -> None:
        """Do the work of the next call."""
        self.plan(kernel, op, *arrays)

    def wait(self) -> None:
        """Wait until launched work ends."""


class Gpu(Host):
    """Calls of `gemm` with PyTorch tensors, up to their launches."""

    backend = "cuda"

    def room(self, dtype: str) -> Any:
        import torch

        return torch.empty(LARGEST**2, dtype=getattr(torch, dtype), device="cuda:0")

    def prepare(self, kernel: str, shapes: Iterable[Shape]) -> None:
        """Compile the kernels of the shapes into the cache, and clear the caches in memory."""
        plans: dict[str, Plan] = {}
        for shape in shapes:
            with suppress(UnsupportedError):
                plan = self.plan(kernel, shape.op, *self.arrays(shape))
                plans.setdefault(plan.symbol, plan)
        api.compile(plans.values())
        clear_all()

    def first(self, kernel: str, op: str, A: Any, B: Any, C: Any) -> None:
        api.gemm(op, A, B, C, kernel=kernel, backend="cuda")

    again = first

    def wait(self) -> None:
        driver.synchronize(0)


def measure(calls: Host, kernel: str, shapes: Sequence[Shape]) -> dict[str, list[float]]:
    """Return the seconds of the calls with each supported shape, by kind of call."""
    times: dict[str, list[float]] = {"new kernel": [], "new shape": [], "repeated": []}
    symbols: set[str] = set()
    calls.prepare(kernel, shapes)
    for shape in shapes:
        words = kernel, shape.op, *calls.arrays(shape)
        with suppress(UnsupportedError):
            first = seconds(calls.first, *words)
            times["repeated"].append(seconds(calls.again, *words))
            symbol = calls.plan(*words).symbol
            times["new shape" if symbol in symbols else "new kernel"].append(first)
            symbols.add(symbol)
            calls.wait()
    return times


def seconds(call: Callable[..., None], *words: Any) -> float:
    start = time.perf_counter()
    call(*words)
    return time.perf_counter() - start


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--kernels", default="auto")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--ops", default="NN,NT,TN,TT")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(words)
    reason = driver.why_no_gpu()
    print(f"on {driver.device_name(0)}" if reason is None else f"without a launch: {reason}")
    calls = Gpu(arguments.dtype) if reason is None else Host(arguments.dtype)
    shapes = draw(arguments.count, arguments.seed, arguments.ops.split(","))
    print(f"{'kernel':<20}{'call':<12}{'calls':>8}{'median':>12}{'90 %':>12}{'worst':>12} us")
    for kernel in arguments.kernels.split(","):
        for kind, times in measure(calls, kernel, shapes).items():
            figures = np.quantile(np.array(times) * 1e6, (0.5, 0.9, 1)) if times else ()
            row = "".join(f"{figure:>12,.1f}" for figure in figures)
            print(f"{kernel:<20}{kind:<12}{len(times):>8,}{row}")
    print("kept:", ", ".join(f"{len(kept):,} {name}" for name, kept in KEPT.items()))


if __name__ == "__main__":
    sys.exit(main())
