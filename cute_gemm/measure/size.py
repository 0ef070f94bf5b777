"""One size of a benchmark: its matrices, and its kernels checked and timed on them."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from cute_gemm.api import Plan
from cute_gemm.api import plan as make_plan
from cute_gemm.errors import (
    CompileError,
    CubinError,
    LaunchError,
    NoGpuError,
    OptionError,
    UnsupportedError,
)
from cute_gemm.kernels.library.cublas import Cublas, CublasError
from cute_gemm.measure.contestants import (
    Function,
    Start,
    compile_missing,
    of_cublas,
    of_function,
    of_kernel,
    runs_on,
)
from cute_gemm.measure.matrices import (
    DeviceMatrices,
    Factors,
    Place,
    Reference,
    copies_past_l2,
    l2_bytes,
)
from cute_gemm.measure.result import Entry, Outcome, SizeResult, Speed
from cute_gemm.measure.timing import Samples, device_clock, host_clock, interleave
from cute_gemm.problem.dtypes import dtype

if TYPE_CHECKING:
    from cute_gemm.analysis.performance import Roofline
    from cute_gemm.gpus.table import Gpu
    from cute_gemm.problem.arrays import Order
    from cute_gemm.problem.problem import GemmProblem

#: Called with what is being done, how much of it is done, and of how much.
Progress = Callable[[str, int, int], None]

#: Largest m n k for the loop on the host: 1024^3 takes it about a second.
_HOST_MNK = 1 << 30
CUBLAS = "cublas"


@dataclass(frozen=True)
class Machine:
    """The GPU and the cuBLAS that a benchmark runs on.

    Attributes
    ----------
    device, name, arch
        CUDA ordinal, the driver's name for it, what kernels are compiled for.
    gpu
        Its row among the GPUs that are known; None without one.
    l2_bytes
        Size of its L2 cache.
    blas, about_cublas
        A handle and the library's version; None and why there is none.
    """

    device: int
    name: str
    arch: str
    gpu: Gpu | None
    l2_bytes: int
    blas: Cublas | None
    about_cublas: str

    def cublas(self, problem: GemmProblem, places: Sequence[Place]) -> Start:
        """Return what starts cuBLAS; CublasError when there is none."""
        if self.blas is None:
            raise CublasError(self.about_cublas)
        return of_cublas(self.blas, problem, places)

    def roofline(self, problem: GemmProblem) -> Roofline | None:
        """Return where the problem stands on this GPU's roofline, if that is known."""
        from cute_gemm.analysis.performance import roofline

        return None if self.gpu is None else roofline(self.gpu, problem)


@contextmanager
def machine(device: int) -> Iterator[Machine]:
    """Enter the context of a device, and start cuBLAS there if there is one.

    Raises
    ------
    NoGpuError
        Without a GPU.
    """
    from cute_gemm.gpus.table import gpu
    from cute_gemm.run.driver import device_arch, device_name, entered, why_no_gpu

    reason = why_no_gpu()
    if reason is not None:
        raise NoGpuError(f"bench needs a GPU, unless the only kernel is 'host': {reason}")
    name = device_name(device)
    try:
        row = gpu(name)
    except OptionError:
        row = None
    with ExitStack() as stack:
        stack.enter_context(entered(device))
        blas = None
        try:
            blas = stack.enter_context(Cublas())
            about = blas.version
        except CublasError as error:
            about = str(error)
        yield Machine(device, name, device_arch(device), row, l2_bytes(device), blas, about)


class Size:
    """One size under way.

    Parameters
    ----------
    problems
        The problem of each op.
    seed, check, rounds
        As for :func:`cute_gemm.measure.bench.bench`.
    gpu
        None when nothing runs on one.
    progress
        Told what is being done.
    """

    def __init__(
        self,
        problems: dict[str, GemmProblem],
        seed: int,
        check: bool,
        rounds: int,
        gpu: Machine | None,
        progress: Progress | None,
    ) -> None:
        self.problems = problems
        self.rounds = rounds
        self.gpu = gpu
        self._progress = progress
        self._first = first = next(iter(problems.values()))
        self._order: Order = "F" if first.C.unit == 0 else "C"
        self._entries: dict[tuple[str, str], Entry] = {}
        self._samples: dict[tuple[str, str], Samples] = {}
        self._tell("product in float64", 0, 1)
        self.factors = Factors(first, seed)
        self.reference = Reference(first, self.factors) if check else None
        self._c = np.empty((first.m, first.n), dtype(first.C.dtype).numpy, order=self._order)

    def run(self, names: Sequence[str], functions: Mapping[str, Function]) -> SizeResult:
        """Check and time kernels, and functions by their names."""
        for name in names:
            if runs_on(name) == "cpu":
                for problem in self.problems.values():
                    self._run_on_host(name, problem)
        first, gpu, copies, roofline = self._first, self.gpu, 1, None
        # cuBLAS is what the others are compared with, so it is there in any case.
        listed = [name for name in names if name != CUBLAS] + [*functions]
        if gpu is not None:
            listed.append(CUBLAS)
            copies, roofline = copies_past_l2(first, gpu.l2_bytes), gpu.roofline(first)
            self._run_on_gpu(gpu, [n for n in names if runs_on(n) == "gpu"], functions, copies)
        entries = [self._finished(name, op, roofline) for name in listed for op in self.problems]
        return SizeResult(first.m, first.n, first.k, copies, roofline, tuple(entries))

    def _tell(self, what: str, done: int, total: int) -> None:
        if self._progress is not None:
            first = self._first
            self._progress(f"{first.m} x {first.n} x {first.k}: {what}", done, total)

    def _finished(self, name: str, op: str, roofline: Roofline | None) -> Entry:
        """Return the entry with its speed."""
        entry, samples = self._entries[name, op], self._samples.get((name, op))
        if samples is None:
            return entry
        cublas = self._samples.get((CUBLAS, op))
        gflops = self.problems[op].flops / samples.median / 1e6
        speed = Speed(
            milliseconds=samples.median,
            quartiles=samples.quartiles,
            gflops=gflops,
            of_cublas=samples.ratio(cublas) if cublas else None,
            of_roofline=gflops / (1e3 * roofline.attainable_tflops) if roofline else None,
            rounds=len(samples.taken),
            calls=samples.calls,
        )
        return replace(entry, speed=speed)

    def _judge(self, entry: Entry) -> bool:
        """Compare C with the reference, keep the entry, and return whether it may be timed."""
        if self.reference is not None:
            found = self.reference.check(self._c)
            entry = replace(entry, max_error=found.max_error)
            if found.wrong:
                reason = (
                    f"{found.wrong:,} of {self._c.size:,} elements are out of bound, the worst at "
                    f"{found.worst}; largest error {found.max_error:.3g}"
                )
                entry = replace(entry, outcome="wrong", reason=reason)
        self._entries[entry.kernel, entry.op] = entry
        return entry.outcome == "ok"

    def _refuse(self, name: str, op: str, error: Exception, outcome: Outcome = "refused") -> None:
        reason = str(error).strip().partition("\n")[0]
        self._entries[name, op] = Entry(name, op, outcome, reason)

    # ---- on the host --------------------------------------------------------------------------

    def _run_on_host(self, name: str, problem: GemmProblem) -> None:
        op, C = problem.op, self._c
        if problem.m * problem.n * problem.k > _HOST_MNK:
            reason = "it is timed up to m n k = 2^30 (1024^3), which takes a CPU about a second"
            self._refuse(name, op, UnsupportedError(reason))
            return
        self._tell(f"{name} {op}", 0, 1)
        try:
            plan = self._plan(name, problem, backend="cpu")
        except (UnsupportedError, OptionError) as error:
            self._refuse(name, op, error)
            return
        A, B = (self.factors.stored(*self.factors.form(matrix, op)) for matrix in "AB")
        C.fill(-1 if dtype(problem.C.dtype).roundoff == 0 else np.nan)
        plan(A, B, C)
        if self._judge(Entry(name, op, "ok", config=plan.config.name)):
            group = {(name, op): lambda: plan(A, B, C)}
            self._samples |= interleave([group], self.rounds, host_clock)[0]

    def _plan(self, name: str, problem: GemmProblem, **where: Any) -> Plan:
        return make_plan(
            problem.op, m=problem.m, n=problem.n, k=problem.k, dtype=problem.inputs.name,
            order=self._order, compute=problem.compute, kernel=name, **where,
        )  # fmt: skip

    # ---- on the GPU ---------------------------------------------------------------------------

    def _run_on_gpu(
        self, gpu: Machine, names: Sequence[str], functions: Mapping[str, Function], copies: int
    ) -> None:
        """Compile, then check everything, then time all that is right."""
        plans = self._plans(gpu, names)
        compile_missing(list(plans.values()), functools.partial(self._tell, "compile"))
        with DeviceMatrices(self.factors, self._c, copies, gpu.device) as matrices:
            starts: dict[tuple[str, str], Start] = {}
            total = len(plans) + (len(functions) + 1) * len(self.problems)
            done = itertools.count()

            def check(name: str, op: str, make: Callable[[], Start], config: str = "") -> None:
                self._tell(f"check {name} {op}", next(done), total)
                entry = Entry(name, op, "ok", config=config)
                start = self._checked(entry, make, matrices, name in functions)
                if start is not None:
                    starts[name, op] = start

            for op, problem in self.problems.items():
                places = matrices.places(op)
                for name in names:
                    if (plan := plans.get((name, op))) is not None:
                        make = functools.partial(of_kernel, plan, places, gpu.device)
                        check(name, op, make, plan.config.name)
                for name, function in functions.items():
                    likes = matrices.likes(op)
                    check(name, op, functools.partial(of_function, function, op, likes, places))
                check(CUBLAS, op, functools.partial(gpu.cublas, problem, places))
            self._time(starts, copies, gpu.device)

    def _plans(self, gpu: Machine, names: Sequence[str]) -> dict[tuple[str, str], Plan]:
        plans = {}
        for op, problem in self.problems.items():
            for name in names:
                try:
                    plans[name, op] = self._plan(name, problem, backend="cuda", arch=gpu.arch)
                except (UnsupportedError, OptionError) as error:
                    self._refuse(name, op, error)
        return plans

    def _checked(
        self, entry: Entry, make: Callable[[], Start], matrices: DeviceMatrices, mine: bool
    ) -> Start | None:
        """Run it once and judge the result; return what starts it if it may be timed."""
        name, op = entry.kernel, entry.op
        matrices.spoil()
        try:
            start = make()
            start(0)
        except (UnsupportedError, CublasError) as error:
            self._refuse(name, op, error)
            return None
        except (CompileError, CubinError, LaunchError) as error:
            self._refuse(name, op, error, "failed")
            return None
        except Exception as error:
            if not mine:
                raise
            # A function of the user's own may raise what it likes.
            self._refuse(name, op, RuntimeError(f"{type(error).__name__}: {error}"), "failed")
            return None
        try:
            matrices.download()
        except LaunchError as error:  # it ran and failed; nothing can run after that
            raise LaunchError(f"{name} {op}: {error}") from error
        return start if self._judge(entry) else None

    def _time(self, starts: Mapping[tuple[str, str], Start], copies: int, device: int) -> None:
        turns = itertools.cycle(range(copies))
        groups: dict[str, dict[tuple[str, str], Callable[[], None]]] = {}
        for (name, op), start in starts.items():
            group = groups.setdefault(op, {})
            group[name, op] = functools.partial(_start_next, start, turns)
        done, total = itertools.count(1), len(starts) * (self.rounds + 1)
        for samples in interleave(
            list(groups.values()), self.rounds, device_clock(device),
            lambda: self._tell("time", next(done), total),
        ):  # fmt: skip
            self._samples |= samples


def _start_next(start: Start, turns: Iterator[int]) -> None:
    start(next(turns))
