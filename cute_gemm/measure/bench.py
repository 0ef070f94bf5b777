"""Kernels checked and timed on this GPU, next to cuBLAS, in one run and interleaved.

``bench`` does so for many kernels, ops and sizes (``cute-gemm bench``); ``compare`` for one plan.
"""

from __future__ import annotations

import argparse
import functools
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cute_gemm import select
from cute_gemm.errors import OptionError
from cute_gemm.kernels.library.cublas import Cublas, CublasError
from cute_gemm.measure.contestants import Function, named_function, of_cublas, of_kernel, runs_on
from cute_gemm.measure.matrices import Place
from cute_gemm.measure.result import BenchResult
from cute_gemm.measure.size import Progress, Size, machine
from cute_gemm.measure.timing import device_clock, interleave
from cute_gemm.problem.problem import from_sizes

if TYPE_CHECKING:
    import numpy as np

    from cute_gemm.api import Plan
    from cute_gemm.problem.arrays import Order

OPS = ("NN", "NT", "TN", "TT")


# ---- one plan -----------------------------------------------------------------------------------


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
        ``problem.flops`` over that time, in 10**12 per second.
    cublas_milliseconds
        Median time of cuBLAS's call, or None without one.
    ratio
        Median over the rounds of cuBLAS's time over ours: above 1 ours is faster; or None.
    rounds, calls
        Rounds, and calls of ours in a round.
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
    from cute_gemm.run.driver import entered
    from cute_gemm.run.memory import upload

    with ExitStack() as stack:
        stack.enter_context(entered(device))
        held = [stack.enter_context(upload(matrix, device)) for matrix in (A, B, C)]
        place = Place(*(buffer.pointer for buffer in held))
        ours = of_kernel(plan, [place], device, alpha, beta)
        group = {"ours": functools.partial(ours, 0)}
        try:
            blas = stack.enter_context(Cublas())
            theirs = of_cublas(blas, plan.problem, [place], alpha, beta)
            theirs(0)  # refuses here what it does not support
            group["cuBLAS"] = functools.partial(theirs, 0)
            about = blas.version
        except CublasError as error:
            about = str(error)
        return _timing(plan.problem.flops, group, rounds, device, about)


def _timing(
    flops: int, group: Mapping[str, Callable[[], object]], rounds: int, device: int, about: str
) -> Timing:
    """Time ours, and cuBLAS if it is in the group."""
    [samples] = interleave([group], rounds, device_clock(device))
    ours, theirs = samples["ours"], samples.get("cuBLAS")
    return Timing(
        ours.median,
        flops / ours.median / 1e9,
        None if theirs is None else theirs.median,
        None if theirs is None else ours.ratio(theirs),
        rounds,
        ours.calls,
        about,
    )


# ---- many ---------------------------------------------------------------------------------------


def bench(
    ops: Sequence[str] = OPS,
    kernels: str | Sequence[str] = "ladder",
    sizes: Sequence[int | tuple[int, int, int]] = (4096,),
    dtype: str = "float32",
    *,
    compute: str | None = None,
    order: Order = "F",
    rounds: int = 9,
    seed: int = 0,
    check: bool = True,
    against: Sequence[str | Function] = (),
    device: int = 0,
    progress: Progress | None = None,
) -> BenchResult:
    """Check kernels against float64 and time them, next to cuBLAS when one is installed.

    Each kernel first computes ``C = op(A) @ op(B)`` of column-major random matrices into a C of
    NaN, and every element is compared; a kernel that is wrong is not timed. Then all kernels and
    cuBLAS are timed in turns by CUDA events, in batches of about 10 ms and in rounds of changing
    order (`cute_gemm.measure.timing.interleave`, which says what becomes of slow ones). Calls take
    several copies of the matrices in turn, so many that together they exceed twice the L2 cache, at
    most 256. The kernel ``host``, the loop on the CPU, is timed apart, by the wall clock, and only
    up to m n k = 2**30, that is 1024^3, which takes it about a second.

    Parameters
    ----------
    ops
        Ops, two letters each.
    kernels
        ``"ladder"``: the tutorial kernels from the loop on the host to cuBLAS; ``"all"``; or names,
        which may also be given as one string with commas.
    sizes
        Extents: ``n`` for n x n x n, or ``(m, n, k)``.
    dtype, compute, order
        Type of A and B; ``"tf32"`` for float32 matrices; ``"F"`` or ``"C"``, of C.
    rounds
        How often each kernel is timed.
    seed
        Of the random matrices.
    check
        Whether results are compared with float64.
    against
        Functions of one's own that are checked and timed like the kernels, each as
        ``"module:function"`` or itself. One is called as ``f(op, A, B, C)`` and starts
        ``C = op(A) @ op(B)`` on the legacy default stream of the current device (the default of
        PyTorch and CuPy), without waiting for it. A, B and C have ``__cuda_array_interface__`` of
        version 3; A and B are as stored, column-major: A is (m, k) for ``N`` and (k, m) for ``T``,
        B is (k, n) or (n, k); C is (m, n), of `order`. (The interface has no name for bfloat16:
        ``"<V2"``.) The same objects come again and again, so that what they are converted to can
        be kept.
    device
        CUDA ordinal.
    progress
        Called with what is being done, how much of it is done, and of how much.

    Returns
    -------
    BenchResult

    Raises
    ------
    NoGpuError
        Without a GPU, unless ``host`` is the only kernel.
    UnknownKernelError, OptionError, OpError, ShapeError, DTypeError
        For what the argument of that name says.
    LaunchError
        When a kernel fails on the device, after which nothing can run there; it says which.
    OutOfMemoryError
        When the matrices do not fit on the device.

    Examples
    --------
    >>> found = bench(["NN", "TN"], "host", [(64, 48, 32)], "float64", rounds=3)
    >>> found.ok, found.sizes[0].find("host", "TN").speed.rounds
    (True, 3)
    """
    names = _kernel_names(kernels)
    functions: dict[str, Function] = {}
    for name, function in map(named_function, against):
        if functions.setdefault(name, function) is not function:
            raise OptionError(f"against: two functions are called {name!r}; expected other names")
    if rounds < 1:
        raise OptionError(f"rounds={rounds}; expected 1 or more")
    problems = [
        {
            problem.op: problem
            for problem in (
                from_sizes(op, m=m, n=n, k=k, dtype=dtype, order=order, compute=compute)
                for op in ops
            )
        }
        for m, n, k in map(_extents, sizes)
    ]
    if not problems or not problems[0]:
        raise OptionError(f"ops={ops!r}, sizes={sizes!r}; expected one of each or more")
    first = next(iter(problems[0].values()))
    with ExitStack() as stack:
        gpu = None
        if functions or any(runs_on(name) != "cpu" for name in names):
            gpu = stack.enter_context(machine(device))
        found = [
            Size(given, seed, check, rounds, gpu, progress).run(names, functions)
            for given in problems
        ]
        return BenchResult(
            dtype=first.A.dtype,
            compute=first.compute,
            order=order,
            ops=tuple(problems[0]),
            gpu=gpu.name if gpu else None,
            arch=gpu.arch if gpu else None,
            cublas=gpu.about_cublas if gpu else "no GPU was used",
            checked=check,
            rounds=rounds,
            seed=seed,
            sizes=tuple(found),
        )


def _kernel_names(kernels: str | Sequence[str]) -> tuple[str, ...]:
    if kernels == "ladder":
        return select.LADDER
    if kernels == "all":
        return select.names()
    listed = kernels.split(",") if isinstance(kernels, str) else kernels
    names = tuple(dict.fromkeys(name.strip() for name in listed))
    for name in names:
        runs_on(name)  # raises for a name that is not known
    return names


def _extents(size: int | tuple[int, int, int]) -> tuple[int, int, int]:
    extents = (size,) * 3 if isinstance(size, int) else tuple(size)
    if len(extents) != 3 or min(extents) < 1:
        raise OptionError(f"size {size!r}; expected n or (m, n, k), each 1 or more")
    return extents


# ---- the command --------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what ``cute-gemm bench`` takes."""
    parser.epilog = (
        "GFLOP/s, per cent of cuBLAS in the same run and of this GPU's roofline; --json has the "
        "times and their spread too. Exit status 1 if a kernel is wrong, or could not be built."
    )
    parser.add_argument(
        "ops", nargs="*", metavar="OP", default=list(OPS), help="BLAS ops (default NN NT TN TT)"
    )
    parser.add_argument(
        "--kernels", default="ladder", metavar="LIST",
        help="ladder (default): the tutorial kernels, from the loop on the host to cuBLAS; all; or "
        "names from `cute-gemm kernels`, with commas",
    )  # fmt: skip
    parser.add_argument(
        "--sizes", default="4096", metavar="LIST",
        help="N, or MxNxK, several with commas: 1024,4096,1000x1003x1001 (default 4096)",
    )  # fmt: skip
    parser.add_argument("--dtype", default="float32", help="of A and B (default float32)")
    parser.add_argument("--compute", help="float32 or tf32, for float32 matrices")
    parser.add_argument("--order", choices=("F", "C"), default="F", help="order of C (default F)")
    parser.add_argument("--rounds", type=int, default=9, help="rounds of timing (default 9)")
    parser.add_argument("--seed", type=int, default=0, help="of the random matrices (default 0)")
    parser.add_argument("--no-check", action="store_true", help="skip the comparison with float64")
    parser.add_argument(
        "--against", action="append", default=[], metavar="MODULE:FUNCTION",
        help="check and time f(op, A, B, C) of your own too: C = op(A) op(B), started on the "
        "default stream, of matrices with __cuda_array_interface__; may be given several times",
    )  # fmt: skip
    parser.add_argument("--plot", metavar="FILE", help="draw it to FILE.svg or FILE.png")
    parser.add_argument(
        "--json", nargs="?", const="-", metavar="FILE",
        help="write JSON to FILE, or print it instead of the tables",
    )  # fmt: skip


def command(arguments: argparse.Namespace) -> int:
    """Print the tables, and return 1 if a kernel is wrong or could not be built, else 0."""
    from cute_gemm.measure import plot as bench_plot

    sizes = parse_sizes(arguments.sizes)
    if arguments.plot:
        bench_plot.check(arguments.plot)
    file = Path(arguments.json) if arguments.json not in (None, "-") else None
    if file and re.fullmatch("[NTCH]{2}", file.name, re.IGNORECASE):
        raise OptionError(
            f"json={str(file)!r} is an op; put ops before --json, or name a FILE.json"
        )
    if file and not file.absolute().parent.is_dir():
        raise OptionError(f"json={str(file)!r} lies in no directory that exists")
    with _progress() as progress:
        found = bench(
            arguments.ops, arguments.kernels, sizes, arguments.dtype, compute=arguments.compute,
            order=arguments.order, rounds=arguments.rounds, seed=arguments.seed,
            check=not arguments.no_check, against=arguments.against, progress=progress,
        )  # fmt: skip
    if arguments.json == "-":
        print(found.to_json())
    elif sys.stdout.isatty():
        from rich.console import Console

        Console().print(found)
    else:
        print(found)
    if file:
        file.write_text(found.to_json() + "\n", encoding="utf-8")
    if arguments.plot:
        found.plot(arguments.plot)
    return 0 if found.ok else 1


def parse_sizes(text: str) -> list[tuple[int, int, int]]:
    """Read the value of ``--sizes``.

    Raises
    ------
    OptionError
        For what is no size.

    Examples
    --------
    >>> parse_sizes("1024,1000x1003x1001")
    [(1024, 1024, 1024), (1000, 1003, 1001)]
    """
    sizes = []
    for part in text.split(","):
        words = part.strip().lower().split("x")
        if len(words) not in (1, 3) or not all(word.isdecimal() for word in words):
            raise OptionError(f"size {part!r}; expected N or MxNxK, as in 4096 or 1000x1003x1001")
        m, n, k = map(int, words if len(words) == 3 else words * 3)
        sizes.append(_extents((m, n, k)))
    return sizes


@contextmanager
def _progress() -> Iterator[Progress | None]:
    """Give what draws a bar on standard error, if that is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=1)

        def tell(text: str, done: int, total: int) -> None:
            bar.update(task, description=text, completed=done, total=total)

        yield tell
