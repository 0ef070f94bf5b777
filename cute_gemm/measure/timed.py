"""Times of kernels and users' functions on this GPU, in turns with cuBLAS or with each other.

This module times one or two plans; `cute_gemm.measure.bench` times many kernels.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cute_gemm._text import counted
from cute_gemm.errors import OptionError, UnsupportedError
from cute_gemm.kernels.library.cublas import CublasError
from cute_gemm.kernels.library.kernel import handle_on
from cute_gemm.plan.tune import matrices
from cute_gemm.problem.scalars import Scalar
from cute_gemm.run.timing import Clock, Samples, device_clock, interleave, l2_bytes

if TYPE_CHECKING:
    import numpy as np

    from cute_gemm.cost_model.roofline import Roofline
    from cute_gemm.plan.plan import Plan
    from cute_gemm.problem.problem import GemmProblem

#: Name and op of a contestant.
Key = tuple[str, str]
#: Starts the GEMM on a copy of the matrices; successive numbers use the copies in turn.
Start = Callable[[int], object]
#: For each copy, the addresses of A, B, C and the other operands of a plan.
Places = Sequence[Sequence[int]]
#: A function of ``--against``: ``f(op, A, B, C)``.
Function = Callable[[str, Any, Any, Any], object]

CUBLAS = "cublas"


@dataclass(frozen=True)
class Machine:
    """A GPU: its CUDA ordinal, the driver's name, the architecture, and cuBLAS.

    ``about_cublas`` is the version of cuBLAS, or the reason why it cannot be used.
    """

    device: int
    name: str
    arch: str
    about_cublas: str

    def cublas(
        self, problem: GemmProblem, places: Places, alpha: complex = 1, beta: complex = 0
    ) -> Start:
        """Return a function that starts cuBLAS's GEMM on the legacy default stream.

        Raise CublasError without cuBLAS, or for an unsupported combination. The returned function
        raises it for some combinations.
        """
        launch = handle_on(self.device).launcher(problem, Scalar(alpha), Scalar(beta), self.device)
        return lambda index: launch(*places[index % len(places)])

    def roofline(self, problem: GemmProblem) -> Roofline | None:
        """Return the place of the problem on this GPU's roofline; None if it is not known."""
        from cute_gemm.cost_model.roofline import roofline
        from cute_gemm.gpus.table import gpu

        try:
            return roofline(gpu(self.name), problem)
        except OptionError:
            return None


@contextmanager
def machine(device: int) -> Iterator[Machine]:
    """Enter the context of a device, and start cuBLAS if it is installed."""
    from cute_gemm.run.driver import device_arch, device_name, entered

    with entered(device):
        try:
            about = handle_on(device).version
        except CublasError as error:
            about = str(error)
        yield Machine(device, device_name(device), device_arch(device), about)


def of_kernel(
    plan: Plan, places: Places, device: int, alpha: complex = 1, beta: complex = 0
) -> Start:
    """Build a plan's kernel, and return a function that starts it on the legacy default stream."""
    bound = plan.bind(device, alpha, beta)
    return lambda index: bound(places[index % len(places)])


@dataclass(frozen=True, eq=False)
class DeviceArray:
    """A matrix as stored on the device. The interface describes bfloat16 as two bytes."""

    __cuda_array_interface__: dict[str, Any]


def of_function(
    function: Function, op: str, matrices: Sequence[np.ndarray], places: Places
) -> Start:
    """Return a function that calls ``function(op, A, B, C)`` on the copies at ``places``."""

    def shown(pointer: int, like: np.ndarray) -> DeviceArray:
        # The stream is idle when a function is called: waiting would only take time.
        interface = {"version": 3, "shape": like.shape, "strides": like.strides, "stream": None}
        return DeviceArray({**interface, "typestr": like.dtype.str, "data": (pointer, False)})

    arrays = [[shown(*pair) for pair in zip(place, matrices, strict=True)] for place in places]
    return lambda index: function(op, *arrays[index % len(arrays)])


def named_function(against: str | Function) -> tuple[str, Function]:
    """Return the name and the function of ``"module:function"``, or of a function.

    The module must be installed or in the working directory.
    """
    if not isinstance(against, str):
        name = getattr(against, "__qualname__", type(against).__name__)
        return f"{getattr(against, '__module__', '')}:{name}", against
    module, colon, name = against.partition(":")
    if not (module and colon and name):
        raise OptionError(f"against={against!r}; expected MODULE:FUNCTION")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        function = functools.reduce(getattr, name.split("."), importlib.import_module(module))
    except ImportError as error:
        expected = "expected a module of the working directory or an installed one"
        raise OptionError(
            f"against={against!r} cannot be imported ({error}); {expected}"
        ) from error
    except AttributeError:
        raise OptionError(f"against={against!r}: {module} has no {name}") from None
    if not callable(function):
        kind = type(function).__name__
        raise OptionError(f"against={against!r} is a {kind}; expected a function f(op, A, B, C)")
    return against, function


def timed(
    starts: Mapping[Key, Start], rounds: int, clock: Clock,
    step: Callable[[], None] = lambda: None,
) -> dict[Key, Samples]:  # fmt: skip
    """Time all in turns, op by op; successive calls use successive copies."""
    numbers = itertools.count()

    def call(start: Start) -> Callable[[], object]:
        return lambda: start(next(numbers))

    groups: dict[str, dict[Key, Callable[[], object]]] = {}
    for key, start in starts.items():
        groups.setdefault(key[1], {})[key] = call(start)
    return interleave(list(groups.values()), rounds, clock, step)


@dataclass(frozen=True, slots=True)
class Timing:
    """Device times of one GEMM, by a plan and by cuBLAS; small matrices are in L2."""

    #: Median time of a call of the plan, and ``problem.flops`` over it in 10**12 per second.
    milliseconds: float
    teraflops: float
    #: Median time of cuBLAS, and the median over the rounds of its time over the plan's. None
    #: without cuBLAS.
    cublas_milliseconds: float | None
    ratio: float | None
    #: Number of rounds, and of calls of the plan in a round.
    rounds: int
    calls: int
    #: Version of cuBLAS, or the reason why it was not timed.
    cublas: str

    def __str__(self) -> str:
        text = f"{self.milliseconds:.4g} ms, {self.teraflops:.4g} TFLOP/s"
        if self.ratio is None:
            return f"{text}; no ratio to cuBLAS: {self.cublas}"
        rounds, calls = counted(self.rounds, "interleaved round"), counted(self.calls, "call")
        return (
            f"{text}, {self.ratio:.3f} of cuBLAS {self.cublas} ({self.cublas_milliseconds:.4g} ms; "
            f"median of {rounds} of {calls})"
        )


def time_plan(
    plan: Plan, A: np.ndarray, B: np.ndarray, C: np.ndarray, *, alpha: complex = 1.0,
    beta: complex = 0.0, rounds: int = 9, device: int = 0,
    operands: Mapping[str, np.ndarray] | None = None,
) -> Timing:  # fmt: skip
    """Time a plan on copies of these host matrices, in turns with cuBLAS if it is installed.

    A, B and C are as stored, and ``operands`` are the other operands of the plan. They do not
    change. The plan is a plan of `cute_gemm.plan` for them with ``backend == "cuda"``. cuBLAS is
    that of PyTorch, CuPy, nvmath or a CUDA toolkit. It computes the same op with the same leading
    dimensions and order of C. Raise NoGpuError without a GPU, and OutOfMemoryError if the matrices
    do not fit.
    """
    from cute_gemm.run.memory import upload

    problem = plan.problem
    ours, theirs = ("ours", problem.op), (CUBLAS, problem.op)
    with machine(device) as gpu, ExitStack() as stack:
        given = {"A": A, "B": B, "C": C, **(operands or {})}
        arrays = (given[matrix.name] for matrix in problem.matrices)
        whole = (array[:, None] if array.ndim == 1 else array for array in arrays)
        place = [stack.enter_context(upload(array, device)).pointer for array in whole]
        starts = {ours: of_kernel(plan, [place], device, alpha, beta)}
        about = gpu.about_cublas
        try:
            start = gpu.cublas(problem, [place[:3]], alpha, beta)
            start(0)  # raises an error for what cuBLAS does not support
            starts[theirs] = start
        except CublasError as error:
            about = str(error)
        samples = timed(starts, rounds, device_clock(device))
    own, cublas = samples[ours], samples.get(theirs)
    median, ratio = (cublas.median, own.ratio(cublas)) if cublas else (None, None)
    teraflops = problem.flops / own.median / 1e9
    return Timing(own.median, teraflops, median, ratio, rounds, own.calls, about)


@dataclass(frozen=True, slots=True)
class Turns:
    """Times of several plans in turns: for each its samples, or None and the reason.

    ``gpu`` is the driver's name of the GPU, or None.
    """

    samples: tuple[Samples | None, ...]
    refused: tuple[str, ...]
    gpu: str | None


def time_in_turns(
    plans: Sequence[Plan], *, beta: complex = 0.0, rounds: int = 9, device: int = 0
) -> Turns:
    """Time plans in turns, each on its own random matrices, which exceed L2.

    Results are not checked. A library that is not installed, or does not support the problem, has
    no samples. Raise NoGpuError without a GPU, and OutOfMemoryError if the matrices do not fit.
    """
    from cute_gemm.run.driver import device_name, entered

    refused = [""] * len(plans)
    starts: dict[Key, Start] = {}
    with entered(device), ExitStack() as stack:
        for number, plan in enumerate(plans):
            places = stack.enter_context(matrices(plan.problem, device, l2_bytes(device)))
            try:
                start = of_kernel(plan, places, device, 1, beta)
                start(0)  # raises an error for what a library does not support
            except UnsupportedError as error:
                refused[number] = str(error)
                continue
            starts[str(number), ""] = start
        samples = timed(starts, rounds, device_clock(device))
    of_plans = tuple(samples.get((str(number), "")) for number in range(len(plans)))
    return Turns(of_plans, tuple(refused), device_name(device))
