"""Checks and times of kernels for many ops and sizes: ``cute-gemm bench``."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cute_gemm._text import hint_for, named
from cute_gemm.api import plan as make_plan
from cute_gemm.errors import (
    CompileError,
    CubinError,
    LaunchError,
    NoGpuError,
    OptionError,
    UnsupportedError,
)  # fmt: skip
from cute_gemm.kernels import registry
from cute_gemm.kernels.options import assignments, option_value, spelled
from cute_gemm.measure.matrices import DeviceMatrices, Factors, Reference, stacked
from cute_gemm.measure.result import BenchResult, Entry, Outcome, SizeResult, Speed
from cute_gemm.measure.timed import (
    CUBLAS,
    Function,
    Key,
    Machine,
    Start,
    machine,
    named_function,
    of_function,
    of_kernel,
    timed,
)  # fmt: skip
from cute_gemm.plan.builds import Builds
from cute_gemm.problem.describe import from_sizes
from cute_gemm.run.timing import copies_past_l2, device_clock, host_clock, interleave, l2_bytes

if TYPE_CHECKING:
    from cute_gemm.arrays.base import Order
    from cute_gemm.cost_model.roofline import Roofline
    from cute_gemm.plan.plan import Plan
    from cute_gemm.problem.problem import GemmProblem
    from cute_gemm.run.timing import Samples

#: Called with a description of the work, the amount done, and the total.
Progress = Callable[[str, int, int], None]

OPS = ("NN", "NT", "TN", "TT")
#: A kernel of a list: its name, and options in brackets.
_ASKED = re.compile(r"([^\[\]]+?)\s*(?:\[([^\[\]]*)\])?")
#: Largest m n k for the loop on the host: 1024^3 takes it about a second.
_HOST_MNK = 1 << 30


def bench(
    ops: Sequence[str] = OPS, kernels: str | Sequence[str] = "ladder",
    sizes: Sequence[int | tuple[int, int, int]] = (4096,), dtype: str = "float32", *,
    l: int = 1, pad: int = 0, compute: str | None = None,
    order: Order = "F", rounds: int = 9, seed: int = 0,
    check: bool = True, against: Sequence[str | Function] = (), device: int = 0,
    options: Mapping[str, Any] | None = None, progress: Progress | None = None,
) -> BenchResult:  # fmt: skip
    """Check kernels against float64, and time them in turns with cuBLAS if it is installed.

    Each kernel first computes ``C = op(A) @ op(B)`` for column-major random matrices. C is filled
    with NaN before, and every element is compared. A kernel with a wrong result is not timed.

    Then CUDA events time all kernels and cuBLAS in turns: in batches of about 10 ms, and in rounds
    whose order changes (`cute_gemm.run.timing.interleave` describes the rounds and the handling of
    slow kernels). Calls use several copies of the matrices in turn. Together the copies exceed
    twice the L2 cache; there are at most 256.

    The kernel ``host``, the loop on the CPU, is timed separately by the wall clock. It is timed up
    to m n k = 2**30 (1024^3), which takes about a second.

    Parameters
    ----------
    ops
        BLAS ops, such as ``"NN"``.
    kernels
        ``"ladder"``, from the loop on the host to TMA and wgmma; ``"all"``; or names, as a sequence
        or as one string with commas. cuBLAS is always timed too. A name may have options of the
        config, ``"sm90_wgmma[cluster=2x1,stages=4]"``, and a kernel may be listed several times.
    sizes
        ``n`` for three equal extents, or ``(m, n, k)``.
    dtype
        Element type of A and B.
    l
        Number of products in a batch.
    pad
        Number of elements of padding in the leading dimensions of A and B.
    compute
        Compute mode, such as ``"tf32"`` for float32 matrices; None is the default of the type.
    order
        Order of C: ``"F"`` or ``"C"``.
    rounds
        Number of rounds of timing.
    seed
        Seed of the random matrices.
    check
        Whether results are compared with float64.
    against
        Your own functions to check and time like the kernels, or their names
        ``"module:function"``. A function is called as ``f(op, A, B, C)``. It launches
        ``C = op(A) @ op(B)`` on the legacy default stream of the current device (the default of
        PyTorch and CuPy) and does not wait for it. A, B and C have ``__cuda_array_interface__`` of
        version 3. A and B are column-major as stored: A is (m, k) for ``N`` and (k, m) for ``T``, B
        is (k, n) or (n, k). C is (m, n) in `order`. (The interface has no name for bfloat16; its
        arrays have ``"<V2"``.) All calls get the same objects, so a function can keep what it
        converts them to.
    device
        Ordinal of the CUDA device.
    options
        Options of all kernels that are compiled here. Options after a name override them.
    progress
        A function that is called with the name of a step, the number of finished parts, and the
        total.

    Returns
    -------
    BenchResult
        The time and the check of each kernel, op and size.

    Raises
    ------
    NoGpuError
        If there is no GPU, unless ``host`` is the only kernel.
    LaunchError
        If a kernel fails on the device. Nothing else can then run on it.
    OutOfMemoryError
        If the matrices do not fit on the device.
    """
    from cute_gemm.run.driver import why_no_gpu

    listed = asked(kernels, options or {})
    functions: dict[str, Function] = {}
    for name, function in map(named_function, against):
        if functions.setdefault(name, function) is not function:
            raise OptionError(f"against: two functions are called {name!r}; expected other names")
    for name, value, least in (("rounds", rounds, 1), ("l", l, 1), ("pad", pad, 0)):
        if value < least:
            raise OptionError(f"{name}={value}; expected {least} or more")
    more: dict[str, Any] = {"l": l, "dtype": dtype, "order": order, "compute": compute}
    problems = [
        {problem.op: problem for problem in (_problem(op, *size, pad, **more) for op in ops)}
        for size in map(extents, sizes)
    ]
    if not problems or not problems[0]:
        raise OptionError(f"ops={ops!r}, sizes={sizes!r}; expected one of each or more")
    first = next(iter(problems[0].values()))
    with ExitStack() as stack:
        gpu = None
        if functions or any(x.runs_on != "cpu" for x in listed):
            reason = why_no_gpu()
            if reason is not None:
                raise NoGpuError(f"bench needs a GPU, unless the only kernel is 'host': {reason}")
            gpu = stack.enter_context(machine(device))
        results = [
            _Size(problems_of_size, seed, pad, check, rounds, progress).run(listed, functions, gpu)
            for problems_of_size in problems
        ]
        return BenchResult(
            dtype=first.dtype, compute=first.compute, order=order, ops=tuple(problems[0]),
            gpu=gpu.name if gpu else None, arch=gpu.arch if gpu else None,
            cublas=gpu.about_cublas if gpu else "no GPU was used",
            checked=check, rounds=rounds, seed=seed, pad=pad, sizes=tuple(results),
        )  # fmt: skip


class Asked(NamedTuple):
    """A requested kernel with its options; its entries have the same name."""

    name: str
    kernel: str
    options: dict[str, Any]
    runs_on: str  #: ``"gpu"``, ``"cpu"`` or ``"library"``.


def asked(kernels: str | Sequence[str], options: Mapping[str, Any]) -> tuple[Asked, ...]:
    """Return the kernels of ``"ladder"``, ``"all"`` or names with commas; refuse unknown names.

    ``options`` are options of all kernels that are compiled here; ``name[option=value]`` sets an
    option of one kernel.
    """
    listed: Sequence[str]
    if kernels == "ladder":
        listed = registry.LADDER
    elif kernels == "all":
        listed = registry.names()
    else:  # at commas outside brackets
        listed = re.split(r",(?![^\[]*\])", kernels) if isinstance(kernels, str) else kernels
    entries: dict[str, Asked] = {}
    for text in map(str.strip, listed):
        match = _ASKED.fullmatch(text)
        kernel, own = (match[1], match[2]) if match else (text, "")
        # An unknown name raises an error.
        runs_on = "gpu" if kernel == "auto" else registry.get(kernel).runs_on
        given = {name: option_value(x) for name, x in assignments(own or "", repr(text)).items()}
        if given and runs_on != "gpu":
            raise OptionError(f"kernels has {text!r}, and {kernel!r} takes no options: omit them")
        chosen = {**options, **given} if runs_on == "gpu" else {}
        _check_options(kernel, chosen, given)
        words = ",".join(f"{name}={spelled(value)}" for name, value in chosen.items())
        name = f"{kernel}[{words}]" if words else kernel
        entries.setdefault(name, Asked(name, kernel, chosen, runs_on))
    return tuple(entries.values())


def _check_options(kernel: str, options: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Refuse an option that no kernel has, or an ``own`` option that this kernel does not have."""
    known = registry.options()
    # An option without owners is an option of every kernel.
    mine = () if kernel == "auto" else registry.get(kernel).options
    having = [x for x, owners in known.items() if kernel == "auto" or not owners or x in mine]
    for option in options:
        if option not in (having if option in own else known):
            expected = hint_for(option, having) or f"expected one of {', '.join(having)}"
            raise OptionError(f"kernels: {kernel!r} has no option {option!r}; {expected}")


def extents(size: int | Sequence[int]) -> tuple[int, int, int]:
    """Return m, n and k of a size, which is n or (m, n, k)."""
    triple = (size,) * 3 if isinstance(size, int) else tuple(size)
    if len(triple) != 3 or min(triple) < 1:
        raise OptionError(f"size {size!r}; expected n or (m, n, k), each 1 or more")
    return triple


def _problem(op: str, m: int, n: int, k: int, pad: int, **more: Any) -> GemmProblem:
    """Return the problem of column-major matrices whose leading dimensions are padded."""
    if pad:
        rows = m if op[:1] in "Nn" else k, k if op[1:] in "Nn" else n
        more |= {"lda": rows[0] + pad, "ldb": rows[1] + pad}
    return from_sizes(op, m=m, n=n, k=k, **more)


class _Size:
    """The state of one size: its matrices, and the results so far.

    ``problems`` has the problem of each op; ``seed``, ``pad``, ``check``, ``rounds`` and
    ``progress`` are those of `bench`.
    """

    def __init__(
        self, problems: dict[str, GemmProblem], seed: int, pad: int, check: bool, rounds: int,
        progress: Progress | None,
    ) -> None:  # fmt: skip
        self.problems = problems
        self.rounds = rounds
        self.progress = progress
        self.first = first = next(iter(problems.values()))
        self.order: Order = "F" if first.C.unit == 0 else "C"
        self.entries: dict[Key, Entry] = {}
        self.samples: dict[Key, Samples] = {}
        self._tell("product in float64", 0, 1)
        self.factors = Factors(first, seed, pad)
        self.reference = Reference(first, self.factors) if check else None
        rows, columns = (first.m, first.n) if self.order == "C" else (first.n, first.m)
        C = np.empty(stacked(first, (rows, columns)), first.C.element.numpy)
        self.C = C if self.order == "C" else C.swapaxes(-1, -2)

    def run(
        self, kernels: Sequence[Asked], functions: Mapping[str, Function], gpu: Machine | None
    ) -> SizeResult:
        """Check and time kernels, and functions by their names."""
        self._run_on_host([x for x in kernels if x.runs_on == "cpu"])
        first, copies, roofline = self.first, 1, None
        listed = [x.name for x in kernels if x.name != CUBLAS] + [*functions]
        if gpu is not None:
            # cuBLAS is the baseline, so it is always included.
            listed.append(CUBLAS)
            copies, roofline = copies_past_l2(first, l2_bytes(gpu.device)), gpu.roofline(first)
            on_gpu = [x for x in kernels if x.runs_on == "gpu"]
            self._run_on_gpu(on_gpu, functions, gpu, copies)
        entries = [self._finished((name, op), roofline) for name in listed for op in self.problems]
        return SizeResult(first.m, first.n, first.k, copies, roofline, tuple(entries), first.l)

    def _tell(self, what: str, done: int, total: int) -> None:
        if self.progress is not None:
            first = self.first
            batch = f", {first.l} times" if first.l > 1 else ""
            self.progress(f"{first.m} x {first.n} x {first.k}{batch}: {what}", done, total)

    def _run_on_host(self, kernels: Sequence[Asked]) -> None:
        """Check and time each kernel on its own."""
        for (name, op), plan in self._plans(kernels, backend="cpu").items():
            self._tell(f"{name} {op}", 0, 1)
            A, B = (self.factors.stored(*self.factors.form(matrix, op)) for matrix in "AB")
            self.C.fill(-1 if self.first.C.element.roundoff == 0 else np.nan)
            plan(A, B, self.C)
            if self._judge((name, op), plan.config.name):
                group = {(name, op): functools.partial(plan, A, B, self.C)}
                self.samples |= interleave([group], self.rounds, host_clock)

    def _run_on_gpu(
        self, kernels: Sequence[Asked], functions: Mapping[str, Function], gpu: Machine, copies: int
    ) -> None:
        """Compile all kernels, check their results, and time those with right results."""
        plans = self._plans(kernels, backend="cuda", arch=gpu.arch)
        # The plan raises the error again, with its message, when it builds.
        Builds(list(plans.values())).finish(functools.partial(self._tell, "compile"))
        with DeviceMatrices(self.factors, self.C, copies, gpu.device) as matrices:
            makes: dict[Key, Callable[[], Start]] = {}
            for op, problem in self.problems.items():
                places, likes = matrices.of(op)
                for row in kernels:
                    if (plan := plans.get((row.name, op))) is not None:
                        makes[row.name, op] = functools.partial(of_kernel, plan, places, gpu.device)
                for name, function in functions.items():
                    makes[name, op] = functools.partial(of_function, function, op, likes, places)
                makes[CUBLAS, op] = functools.partial(gpu.cublas, problem, places)
            starts = {}
            for done, (key, make) in enumerate(makes.items()):
                self._tell(f"check {' '.join(key)}", done, len(makes))
                config = plans[key].config.name if key in plans else ""
                start = self._checked(key, config, make, matrices, key[0] in functions)
                if start is not None:
                    starts[key] = start
            step, steps = itertools.count(1), len(starts) * (self.rounds + 1)
            clock, tell = device_clock(gpu.device), lambda: self._tell("time", next(step), steps)
            self.samples |= timed(starts, self.rounds, clock, tell)

    def _plans(self, kernels: Sequence[Asked], **where: Any) -> dict[Key, Plan]:
        """Return the plans of the kernels that take the problem."""
        plans = {}
        for op, problem in self.problems.items():
            for row in kernels:
                try:
                    products = problem.m * problem.n * problem.k * problem.l
                    if where["backend"] == "cpu" and products > _HOST_MNK:
                        most = "m n k = 2^30 (1024^3), which takes a CPU about a second"
                        raise UnsupportedError(f"it is timed up to {most}")
                    plans[row.name, op] = make_plan(
                        op, **named(problem, "m", "n", "k", "l", "dtype", "compute"),
                        lda=problem.A.ld, ldb=problem.B.ld, order=self.order, kernel=row.kernel,
                        **where, **row.options,
                    )  # fmt: skip
                except (UnsupportedError, OptionError) as error:
                    self._refuse((row.name, op), error)
        return plans

    def _checked(
        self, key: Key, config: str, make: Callable[[], Start], matrices: DeviceMatrices, own: bool
    ) -> Start | None:
        """Run a kernel once and check its result; return the function to time, or None."""
        matrices.spoil()
        try:
            start = make()
            start(0)
        except UnsupportedError as error:
            self._refuse(key, error)
        except (CompileError, CubinError, LaunchError) as error:
            self._refuse(key, error, "failed")
        except Exception as error:
            if not own:
                raise
            # A user's function may raise any error.
            self._refuse(key, f"{type(error).__name__}: {error}", "failed")
        else:
            try:
                matrices.download()
            except LaunchError as error:  # it ran and failed; nothing can run after that
                raise LaunchError(f"{' '.join(key)}: {error}") from error
            if self._judge(key, config):
                return start
        return None

    def _refuse(self, key: Key, error: Exception | str, outcome: Outcome = "refused") -> None:
        self.entries[key] = Entry(*key, outcome, str(error).strip().partition("\n")[0])

    def _judge(self, key: Key, config: str) -> bool:
        """Compare C with the reference, keep the entry, and return whether it may be timed."""
        check, reason = self.reference.check(self.C) if self.reference else None, ""
        if check and check.wrong:
            reason = (
                f"{check.wrong:,} of {self.C.size:,} elements are out of bound, the worst at "
                f"{check.worst}; largest error {check.max_error:.3g}"
            )
        outcome: Outcome = "wrong" if reason else "ok"
        error = check.max_error if check else None
        self.entries[key] = Entry(*key, outcome, reason, config, error)
        return not reason

    def _finished(self, key: Key, roofline: Roofline | None) -> Entry:
        """Return the entry with its speed."""
        samples, cublas = self.samples.get(key), self.samples.get((CUBLAS, key[1]))
        if samples is None:
            return self.entries[key]
        gflops = self.problems[key[1]].flops / samples.median / 1e6
        of_cublas = samples.ratio(cublas) if cublas else None
        of_roofline = gflops / (1e3 * roofline.attainable_tflops) if roofline else None
        counts = len(samples.taken), samples.calls
        times = samples.median, samples.quartiles
        return replace(
            self.entries[key], speed=Speed(*times, gflops, of_cublas, of_roofline, *counts)
        )
