"""Device time of a plan next to cuBLAS, in one run and interleaved.

Clocks and power limits of a GPU move by more than the differences that matter, so the two take
turns and what counts is the median of the rounds' ratios, not the ratio of two separate times.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from cute_gemm.atoms import dtype

if TYPE_CHECKING:
    import numpy as np

    from cute_gemm.api import Plan

#: Device time of one batch in milliseconds: long enough that an event's 0.5 us does not count.
_BATCH_MS = 10.0
_MOST_CALLS = 2000
_WARM_UP_CALLS = 3


@dataclass(frozen=True, slots=True)
class Timing:
    """Device time of one GEMM, ours and cuBLAS's.

    Calls follow each other without a pause and reuse the same matrices, so that small ones are in
    L2. A call that takes the device less time than the host needs to launch it is timed with the
    launch.

    Attributes
    ----------
    milliseconds
        Median time of a call of ours.
    teraflops
        ``2 m n k`` over that time, in 10**12 per second.
    cublas_milliseconds
        Median time of cuBLAS's call, or None without one.
    ratio
        Median over the rounds of cuBLAS's time over ours: above 1 ours is faster; or None.
    rounds, calls
        Rounds, and calls of each in a round.
    cublas
        Version of cuBLAS (``"13.1"``), or why there is no such time.
    """

    milliseconds: float
    teraflops: float
    cublas_milliseconds: float | None
    ratio: float | None
    rounds: int
    calls: int
    cublas: str

    def __str__(self) -> str:
        text = f"{self.milliseconds:.4g} ms, {self.teraflops:.4g} TFLOP/s"
        if self.ratio is None:
            return f"{text}; no ratio to cuBLAS: {self.cublas}"
        return (
            f"{text}, {self.ratio:.3f} of cuBLAS {self.cublas} ({self.cublas_milliseconds:.4g} ms; "
            f"median of {self.rounds} interleaved rounds of {self.calls} calls)"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dict."""
        return asdict(self)


def compare(
    plan: Plan,
    A: np.ndarray,
    B: np.ndarray,
    C: np.ndarray,
    *,
    alpha: complex = 1.0,
    beta: complex = 0.0,
    rounds: int = 9,
    device: int = 0,
) -> Timing:
    """Time a plan on copies of these host matrices, next to cuBLAS when one is installed.

    cuBLAS is the one that PyTorch, CuPy, nvmath or a CUDA toolkit brought; it gets the same op,
    leading dimensions and order of C. A and B are not changed, and neither is the host's C.

    Parameters
    ----------
    plan
        What `cute_gemm.plan` gave for these matrices, with ``backend == "cuda"``.
    A, B, C
        Host arrays as stored.
    alpha, beta
        Scalars of the call.
    rounds
        How often each of the two is timed.
    device
        CUDA ordinal.

    Raises
    ------
    NoGpuError
        Without a GPU.
    OutOfMemoryError
        When the three matrices do not fit on the device.
    """
    from cute_gemm import runtime
    from cute_gemm.cublas import Cublas, CublasError
    from cute_gemm.devices import entered

    problem = plan.problem
    scalar = dtype(problem.A.dtype).accumulator
    with ExitStack() as stack:
        stack.enter_context(entered(device))
        a, b, c = (stack.enter_context(runtime.upload(x, device)).pointer for x in (A, B, C))
        bound = runtime.load(plan.build, device).bind(
            plan.launch, m=problem.m, n=problem.n, k=problem.k, lda=problem.A.ld,
            ldb=problem.B.ld, ldc=problem.C.ld, scalar=scalar, alpha=alpha, beta=beta,
        )  # fmt: skip
        ours = functools.partial(bound, a, b, c)
        theirs: Callable[[], None] | None = None
        try:
            blas = stack.enter_context(Cublas())
            theirs = blas.bind(problem, a, b, c, alpha, beta)
            theirs()  # refuses here what it does not support
            about = blas.version
        except CublasError as error:
            theirs, about = None, str(error)
        return _interleave(problem.flops, ours, theirs, rounds, device, about)


def _interleave(
    flops: int,
    ours: Callable[[], None],
    theirs: Callable[[], None] | None,
    rounds: int,
    device: int,
    about: str,
) -> Timing:
    """Warm up, choose the calls per batch, and time both in turns."""
    from cute_gemm.runtime import Event, synchronize

    start, end = Event(device), Event(device)

    def batch(function: Callable[[], None], calls: int) -> float:
        start.record()
        for _ in range(calls):
            function()
        end.record()
        end.synchronize()
        return end.since(start) / calls

    contestants = [ours] if theirs is None else [ours, theirs]
    for function in contestants:
        batch(function, _WARM_UP_CALLS)
    slowest = max(batch(function, _WARM_UP_CALLS) for function in contestants)
    calls = min(_MOST_CALLS, max(1, round(_BATCH_MS / max(slowest, 1e-4))))

    times: list[list[float]] = []
    for index in range(rounds):
        # Who goes first changes, so that neither always meets the warmer chip.
        order = contestants if index % 2 == 0 else contestants[::-1]
        found = {function: batch(function, calls) for function in order}
        times.append([found[function] for function in contestants])
    synchronize(device)

    mine = statistics.median(time[0] for time in times)
    other = ratio = None
    if theirs is not None:
        other = statistics.median(time[1] for time in times)
        ratio = statistics.median(time[1] / time[0] for time in times)
    return Timing(mine, flops / mine / 1e9, other, ratio, rounds, calls, about)
