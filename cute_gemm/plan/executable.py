"""``Executable``: runs a GEMM on arrays laid out as planned, at the cost of a launch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from cute_gemm._kept import Kept
from cute_gemm.arrays import ADAPTERS, host_array, read
from cute_gemm.arrays.base import META, Operand, Order
from cute_gemm.call import Call
from cute_gemm.dtypes import DTYPES
from cute_gemm.errors import DeviceError, DTypeError, OptionError, ShapeError
from cute_gemm.plan.packed import PackedOperand
from cute_gemm.plan.steps import Steps, packing_step, reduces, steps
from cute_gemm.problem import reference
from cute_gemm.problem.describe import describe
from cute_gemm.problem.epilogue.fuse import (
    NOTHING,
    Operands,
    check_scalar_overlap,
    read_offsets,
)
from cute_gemm.problem.matrix import Matrix
from cute_gemm.problem.parts.packing import DIRECT, Algorithm, packed, packed_names
from cute_gemm.problem.problem import GemmProblem
from cute_gemm.problem.scalars import ONE, ZERO, Scalar, check_beta, scalar

if TYPE_CHECKING:
    from cute_gemm.kernels.base import Kernel
    from cute_gemm.plan.select import Selection

#: Launches that an executable keeps, by alpha and beta.
_BOUND_KEPT = 64

#: Immutable types of numbers.
_NUMBERS = (float, int, complex)


@dataclass(frozen=True, slots=True, eq=False)
class RecentCall:
    """A call on device arrays that passed every check, to be repeated on arrays of these layouts.

    ``layouts``: the `fingerprint` of its arrays; ``spans``: bytes from the first element of A, B,
    C and the epilogue's operands to the last; ``order``: places of the operands among the arrays of
    the fingerprint after C; ``numbers``: of the epilogue; ``stream``: returns the stream that
    their library works on; ``new``: makes a C, and returns it with its address. No array is kept
    alive.
    """

    executable: Executable
    layouts: Any
    a: Operand
    b: Operand
    c: Operand | None
    spans: tuple[int, ...]
    stream: Callable[[], int]
    new: Callable[[], tuple[Any, int]]
    order: tuple[int, ...] = ()
    numbers: tuple[float, ...] = ()

    def again(self, at: tuple[int, ...], C: Any, alpha: Any, beta: Any, stream: Any) -> Any:
        """Compute on arrays of these layouts at other addresses; return C, or a new one.

        Return None, without computing, if C overlaps an input, or if a better kernel is built. The
        layouts decide everything else.
        """
        executable = self.executable
        if executable.replaced:
            return None
        if len(at) > 3:
            at = (*at[:3], *(at[3 + place] for place in self.order))
        if C is not None:
            a, b, c = at[:3]
            span_a, span_b, span_c = self.spans[:3]
            end = c + span_c
            if (a < end and c < a + span_a) or (b < end and c < b + span_b):
                return None
            for operand, span in zip(at[3:], self.spans[3:], strict=True):
                if operand < end and c < operand + span:
                    return None
        newest_alpha, newest_beta, newest_numbers, bound = executable.newest
        same = alpha is newest_alpha and beta is newest_beta and self.numbers == newest_numbers
        if same and not executable.results and (C is not None or beta == 0):
            handle = self.stream() if stream is None else raw_stream(stream)
            if C is not None:
                bound(at, handle)
                return C
            made, pointer = self.new()
            bound((*at[:2], pointer, *at[3:]), handle)
            return made
        c_there = self.c if C is None or self.c is None else replace(self.c, pointer=at[2])
        factors = scalars(alpha, beta, executable.problem, self.a.device, c_there, stream)
        result = executable.run(
            self.a, self.b, self.c, *factors, stream, at=at, numbers=self.numbers
        )
        if executable.results:
            return result if C is None else (C, *result[1:])
        bound = executable._bound.get((factors[0][:2], factors[1][:2], self.numbers, ""))
        if bound is not None and type(alpha) in _NUMBERS and type(beta) in _NUMBERS:
            executable.newest = alpha, beta, self.numbers, bound
        return result if C is None else C


@dataclass(eq=False)
class Executable:
    """A problem, the kernel and algorithm that compute it, and kept launches.

    ``by_name``: whether the call named the kernel; the other fields are those of its `Plan`.
    Launches are bound once for each alpha, beta and numbers of the epilogue.
    """

    problem: GemmProblem
    selection: Selection
    by_name: bool
    arch: str
    backend: Literal["cuda", "cpu", "interpreter"]
    device: int | None

    def __post_init__(self) -> None:
        self._bound: Kept[tuple[Any, ...], Callable[..., None]] = Kept(_BOUND_KEPT)
        #: Returns whether a better kernel is built, if one is being built.
        self.is_replaced: Callable[[], bool] | None = None
        #: Wraps a launch so that calls run, and time, other kernels in its place.
        self.wrap_launch: Callable[..., Callable[..., None]] | None = None
        #: The last alpha and beta, as objects and numbers, and their launch; one tuple, since
        #: threads share it.
        self.newest: tuple[Any, Any, Any, Any] = (object(), object(), (), None)

    @property
    def kernel(self) -> Kernel:
        """The selected kernel."""
        return self.selection.kernel

    @property
    def config(self) -> Any:
        """The config of the kernel."""
        return self.selection.config

    @property
    def algorithm(self) -> Algorithm:
        """The auxiliary kernels."""
        return self.selection.algorithm

    @property
    def replaced(self) -> bool:
        """Whether another kernel computes from now on."""
        return self.is_replaced is not None and self.is_replaced()

    def at(self, numbers: tuple[float, ...]) -> Executable:
        """Return this executable with these numbers of the epilogue."""
        if numbers == self.problem.numbers:
            return self
        return replace(self, problem=replace(self.problem, numbers=numbers))

    @cached_property
    def _call(self) -> Call:
        """The call that describes arrays as the problem describes its own."""
        return Call.like(self.problem)

    @cached_property
    def results(self) -> tuple[Matrix, ...]:
        """The results in addition to C, in the order in which they are returned."""
        return self.problem.results

    @cached_property
    def steps(self) -> Steps:
        """The launches in order: the kernel, and the auxiliary kernels before and after it."""
        return self._steps()

    def _steps(self, kept: str = "") -> Steps:
        kernel, sms = self.kernel.compiled(), self.selection.gpu.sms
        return steps(kernel, self.config, self.problem, self.arch, self.algorithm, kept, sms)

    def bind(
        self, device: int, alpha: Scalar, beta: Scalar, kept: str = "",
        numbers: tuple[float, ...] = (),
    ) -> Callable[..., None]:  # fmt: skip
        """Return a launch, a function of the operands' addresses and a stream."""
        if numbers != self.problem.numbers:
            return self.at(numbers).bind(device, alpha, beta, kept, numbers)
        reduced = reduces(self.config, self.problem, self.algorithm)
        if self.algorithm == DIRECT and not reduced:
            return self.kernel.bind(self.config, self.problem, self.arch, device, alpha, beta)
        from cute_gemm.run.sequence import Launches

        parts = self._steps(kept) if kept else self.steps
        launches = [
            (step.bind(device, alpha, beta), step.addresses(parts.operands)) for step in parts
        ]
        return Launches(launches, parts.scratch, device)

    def compute(
        self, A: Any, B: Any, C: Any, alpha: Any, beta: Any, stream: Any, layouts: Any,
        given: Mapping[str, Any],
    ) -> tuple[Any, RecentCall | None]:  # fmt: skip
        """Compute on arrays and operands of the epilogue that were checked against the problem.

        Return C and, for device arrays with a fingerprint, the call.
        """
        kept = {x.name: x for x in (A, B) if isinstance(x, PackedOperand)}
        a = kept["A"].operand if "A" in kept else read(A, "A")
        b = kept["B"].operand if "B" in kept else read(B, "B")
        c = None if C is None else read(C, "C")
        operands = self._check(a, b, c, given)
        factors = scalars(alpha, beta, self.problem, a.device, c, stream)
        if kept:
            for operand in kept.values():
                operand.check(self.problem, self.algorithm.pack)
            a, b = (kept[x].there() if x in kept else y for x, y in (("A", a), ("B", b)))
        result = self.run(
            a, b, c, *factors, stream, "".join(kept), operands=operands, numbers=operands.values
        )
        return result, None if kept else self.call(layouts, a, b, c, operands, given)

    def call(
        self, layouts: Any, a: Operand, b: Operand, c: Operand | None, operands: Operands,
        given: Mapping[str, Any],
    ) -> RecentCall | None:  # fmt: skip
        """Return the call on operands that fit; None without layouts or a device.

        ``given``: the arguments whose arrays the fingerprint has, in addition to A, B and C.
        """
        if layouts is None or a.device is None:
            return None
        # A converted array has a different address at every call.
        names = [name for name in given if name in operands.arrays]
        if any(operands.arrays[name].owner is not given[name] for name in names):
            return None
        a, b = replace(a, owner=None), replace(b, owner=None)
        c = None if c is None else replace(c, owner=None)
        # Results in addition to C are new at every call.
        read = len(self.problem.matrices) - len(self.results)
        spans = tuple(matrix.span for matrix in self.problem.matrices[:read])
        order = tuple(names.index(name) for name in operands.arrays)
        adapter = ADAPTERS[a.library]
        stream, new = adapter.stream(a), adapter.maker(a, *self._shape(a, b))
        return RecentCall(self, layouts, a, b, c, spans, stream, new, order, operands.values)

    def on_host(
        self, A: Any, B: Any, C: Any, beta: complex, given: Mapping[str, Any]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, Operands, dict[str, np.ndarray]]:
        """Return host arrays that fit as NumPy arrays, with a new C if none is given.

        Operands of the epilogue and new arrays of its further results follow.
        """
        a, b = read(A, "A"), read(B, "B")
        c = None if C is None else read(C, "C")
        operands = self._check(a, b, c, given)
        problem = self.problem
        factor = scalar(beta, "beta", problem.scalar.name, None)
        check_beta(factor, c, problem.epilogue.pairs)
        if a.device is not None:
            raise DeviceError(
                f"A is on {a.place}, and a trace is of host arrays; pass copies, such as np.asarray"
            )
        c = c or self._new(a, b)
        results = self.named_results(self._new_results(a, c))
        return host_array(a), host_array(b), host_array(c), operands, results

    def _new(self, a: Operand, b: Operand) -> Operand:
        """Return a new C of A's library."""
        return read(ADAPTERS[a.library].new(a, *self._shape(a, b)), "C")

    def _shape(self, a: Operand, b: Operand) -> tuple[tuple[int, ...], Order, str]:
        """Return shape, order and type of a new C."""
        problem = self.problem
        batched = (
            problem.groups.mode == "K" if problem.groups else 3 in (len(a.shape), len(b.shape))
        )
        batch = (problem.l,) if batched else ()
        shape = *batch, problem.m, problem.columns
        return shape, "C" if problem.C.major == "N" else "F", problem.C.dtype

    def _check(
        self, a: Operand, b: Operand, c: Operand | None, given: Mapping[str, Any]
    ) -> Operands:
        """Refuse arrays that do not fit the plan; return the operands of the epilogue."""
        planned = self.problem
        if a.dtype != planned.A.dtype:
            raise DTypeError(
                f"A has dtype {a.dtype}, and the plan was made for {planned.A.dtype}; make a plan "
                "with these arrays"
            )
        call = self._call if c is None else replace(self._call, out_dtype=None)
        given, ends = dict(given), None
        if planned.groups:
            ends = read_offsets(given.pop("offsets", None))
        problem = call.describe(a, b, c, ends)
        if ends is not None and (problem.groups.mode, problem.l) != (
            planned.groups.mode,
            planned.l,
        ):
            raise ShapeError(
                f"A of shape {a.shape}, B of shape {b.shape} and offsets of shape {ends.shape} "
                f"make {problem.l} groups along {problem.groups.mode}, and the plan was made for "
                f"{planned.l} along {planned.groups.mode}; make a plan with these arrays"
            )
        for name in "ABC":
            _check_matrix(getattr(planned, name), getattr(problem, name))
        device = self.device
        if a.device is not None and a.device != device:
            where = "the CPU" if device is None else f"CUDA device {device}"
            raise DeviceError(
                f"A is on {a.place} and the plan is for {where}; make a plan with these arrays"
            )
        if call.epilogue is None and given:
            raise OptionError(
                f"{next(iter(given))}= came with a plan without an epilogue: leave it out"
            )
        problem, operands = call.fuse(problem, given, a.device, c, ends)
        if (problem.epilogue, problem.scale_rows) != (planned.epilogue, planned.scale_rows):
            said, instead = (
                [(x.name, x.dtype, x.shape) for x in each.scales]
                + [(x.name, x.dtype, x.modes) for x in each.epilogue.operands]
                + [*each.epilogue.numbers]
                for each in (planned, problem)
            )
            raise ShapeError(
                f"the epilogue's operands are {instead}, and the plan was made for {said}; make a "
                "plan with these arrays"
            )
        for matrix, other in zip(planned.matrices[3:], problem.matrices[3:], strict=True):
            _check_matrix(matrix, other)
        return operands

    def pack(self, X: Any, name: str, stream: Any) -> PackedOperand:
        """Pack an operand for later calls."""
        problem, pack = self.problem, self.algorithm.pack
        if not isinstance(name, str) or name not in ("A", "B") or name not in pack:
            does = f"packs {' and '.join(packed_names(pack))}" if pack else "packs nothing"
            raise OptionError(
                f"name={name!r}, and this plan {does}: make it with pack='A', 'B' or 'AB'"
            )
        stream = None if stream is None else raw_stream(stream)
        operand, matrix = read(X, name), getattr(problem, name)
        _check_matrix(matrix, describe(problem.op, name, operand, problem.l))
        packed_problem, packing = packed(problem, name)
        target = getattr(packed_problem, name)
        if self.backend != "cuda":
            return PackedOperand(name, matrix, target, operand)
        from cute_gemm.run.memory import DeviceBuffer, upload

        device = self.device or 0
        memory = DeviceBuffer(packing.nbytes, device)
        bound = packing_step(packing, self.arch).bind(device, ONE, ZERO)
        if operand.device is None:
            with upload(host_array(operand), device) as source:  # its end waits for the launch
                bound((source.pointer, source.pointer, memory.pointer))
        else:
            bound((operand.pointer, operand.pointer, memory.pointer), _handle(operand, stream))
        # The operand's address no longer matters, neither for alignment nor for overlap with C.
        return PackedOperand(name, matrix, target, replace(operand, owner=None, pointer=0), memory)

    def run(
        self, a: Operand, b: Operand, c: Operand | None, alpha: Scalar, beta: Scalar, stream: Any,
        kept: str = "", at: tuple[int, ...] | None = None, operands: Operands = NOTHING,
        numbers: tuple[float, ...] = (),
    ) -> Any:  # fmt: skip
        """Compute on operands and factors that fit; return C, or a new C if none is given.

        ``kept``: names of operands that are already packed; ``at``: addresses of the matrices, if
        not those of the operands; ``operands`` and ``numbers``: of the epilogue.
        """
        problem = self.problem
        stream = None if stream is None else raw_stream(stream)
        new = c is None
        if problem.groups.checked and a.device is None:
            from cute_gemm.plan.checked import check_on_host

            check_on_host(problem, host_array(operands.arrays["offsets"]))
        if c is None:
            c = self._new(a, b)
        results = self._new_results(a, c)
        if a.device == META:
            pass  # shapes, strides and types suffice
        elif self.backend != "cuda":
            self._run_on_host(a, b, c, alpha.value, beta.value, operands, results)
        elif not (problem.m and problem.n and problem.l):
            if c.device is None:
                self.named_results(results)
            elif results:
                self._zero(results, _handle(a, stream))
        else:
            bound = self.launch(alpha, beta, numbers, kept)
            if c.device is None:
                self._run_from_host(bound, a, b, c, beta, operands, results)
            else:
                if at is None:
                    others = (operand.pointer for operand in operands.arrays.values())
                    at = a.pointer, b.pointer, c.pointer, *others
                elif new:
                    at = at[0], at[1], c.pointer, *at[3:]
                handle = _handle(a, stream)
                if results:
                    at = *at, *(result.pointer for result in results)
                    self._zero(results, handle)
                bound(at, handle)
                if ADAPTERS[c.library].synchronizes:
                    from cute_gemm.run.driver import synchronize

                    synchronize(c.device)
        first = ADAPTERS[a.library].result(a, c.owner) if new else c.owner
        return (first, *self._returned(a, results)) if results else first

    def _new_results(self, a: Operand, c: Operand) -> tuple[Operand, ...]:
        """Return new arrays of A's library for the results in addition to C, (1, 1) for numbers."""
        adapter = ADAPTERS[a.library]
        order: Order = "C" if self.problem.C.major == "N" else "F"
        return tuple(
            read(adapter.new(a, c.shape if x.extents else (1, 1), order, x.dtype), x.name)
            for x in self.results
        )

    def _returned(self, a: Operand, results: tuple[Operand, ...]) -> Iterator[Any]:
        """Yield the results in addition to C as the caller gets them."""
        for x, result in zip(self.results, results, strict=True):
            array = ADAPTERS[a.library].result(a, result.owner)
            yield array if x.extents else array.reshape(())

    def _unset(self, results: tuple[Operand, ...]) -> Iterator[Operand]:
        """Yield the results that launches only raise from 0: the greatest of all elements."""
        for x, result in zip(self.results, results, strict=True):
            if not x.extents:
                yield result

    def _zero(self, results: tuple[Operand, ...], stream: int) -> None:
        """Set the results of `_unset` to 0, in stream order."""
        from cute_gemm.run.memory import zero

        for result in self._unset(results):
            zero(result.pointer, DTYPES[result.dtype].bytes, self.device or 0, stream)

    def launch(
        self, alpha: Scalar, beta: Scalar, numbers: tuple[float, ...] = (), kept: str = ""
    ) -> Callable[..., None]:
        """Return the result of `bind`, which is kept."""
        key = alpha[:2], beta[:2], numbers, kept
        bound = self._bound.get(key)
        if bound is None:
            bound = self.bind(self.device or 0, alpha, beta, kept, numbers)
            if self.problem.groups.checked:
                from cute_gemm.plan.checked import CheckedLaunch

                bound = CheckedLaunch(bound, self.problem, self.arch, self.device or 0)
            if self.wrap_launch is not None and not kept:
                bound = self.wrap_launch(bound, alpha, beta, numbers)
            self._bound[key] = bound
        return bound

    def _run_on_host(
        self, a: Operand, b: Operand, c: Operand, alpha: complex, beta: complex,
        operands: Operands, results: tuple[Operand, ...],
    ) -> None:  # fmt: skip
        """Compute on host arrays, in place."""
        arrays = host_array(a), host_array(b), host_array(c)
        others = operands.on_host() | self.named_results(results)
        problem = self.problem
        if self.backend == "interpreter" and problem.m and problem.n and problem.l:
            from cute_gemm.plan.interpreted import execute

            executable = self.at(operands.values)
            execute(executable, *arrays, alpha, beta, operands=others)
        else:
            self.by_numpy(*arrays, alpha, beta, others)

    def by_numpy(self, *arguments: Any) -> None:
        """Compute on the CPU, in place, with the arguments of `Kernel.on_host` after the problem.

        Kernels that are selected without a name compute alike, so none has to be selected.
        """
        compute = self.kernel.on_host if self.by_name else reference.gemm
        compute(self.problem, *arguments)

    def named_results(self, results: tuple[Operand, ...]) -> dict[str, np.ndarray]:
        """Return host arrays of the results in addition to C by name, with 0 from `_unset`."""
        for result in self._unset(results):
            host_array(result)[...] = 0
        return {x.name: host_array(result) for x, result in zip(self.results, results, strict=True)}

    def _run_from_host(
        self, bound: Callable[..., None], a: Operand, b: Operand, c: Operand, beta: Scalar,
        operands: Operands, results: tuple[Operand, ...],
    ) -> None:  # fmt: skip
        """Copy the operands to the device, compute, and copy the results back."""
        from cute_gemm.run.driver import entered
        from cute_gemm.run.memory import allocate_like, download, upload

        device, C = self.device or 0, host_array(c)
        with ExitStack() as stack:
            stack.enter_context(entered(device))
            on_a, on_b, *others = (
                stack.enter_context(upload(array, device)) if x.device is None else x
                for x, array in (
                    *((x, host_array(x)) for x in (a, b)),
                    *((x, _memory(host_array(x))) for x in operands.arrays.values()),
                )
            )
            # With groups along M or N, rows or columns of C outside every group keep their values.
            groups = self.problem.groups
            kept = beta.value != 0 or (groups.mode in ("M", "N") and not groups.zero_tail)
            on_c = stack.enter_context(upload(C, device) if kept else allocate_like(C, device))
            ends = list(self.named_results(results).values())
            on_ends = [stack.enter_context(upload(array, device)) for array in ends]
            pointers = (x.pointer for x in (on_a, on_b, on_c, *others, *on_ends))
            bound(tuple(pointers))
            for source, target in zip((on_c, *on_ends), (C, *ends), strict=True):
                download(source, target)


def _memory(array: np.ndarray) -> np.ndarray:
    """Return all elements from an operand's first to its last as a row."""
    steps = zip(array.shape, array.strides, strict=True)
    last = sum((extent - 1) * step for extent, step in steps) // array.itemsize
    shape = 1, last + 1 if array.size else 0
    return np.lib.stride_tricks.as_strided(array, shape, (0, array.itemsize))


def _check_matrix(planned: Matrix, matrix: Matrix) -> None:
    """Refuse a matrix whose layout is not the plan's, or that is less aligned."""
    name = planned.name
    if matrix.alignment < planned.alignment:
        raise ShapeError(
            f"{name} starts at an address aligned to {matrix.alignment} bytes, and the plan "
            f"was made for {planned.alignment}; make a plan with these arrays"
        )
    if matrix.aligned_as(planned) != planned:
        raise ShapeError(
            f"{name} is {matrix} of {matrix.dtype}, and the plan was made for {planned} of "
            f"{planned.dtype}; make a plan with these arrays"
        )


def scalars(
    alpha: Any, beta: Any, problem: GemmProblem, device: int | None, c: Operand | None, stream: Any
) -> tuple[Scalar, Scalar]:
    """Check alpha and beta of a call; check beta against C or its absence.

    A scalar on the device that has another type is converted there, in stream order.
    """
    if type(alpha) is float and type(beta) is float and alpha == 1.0 and beta == 0.0:
        return ONE, ZERO  # every accumulator has these two
    kind = problem.scalar.name

    def convert(operand: Operand, dtype: str) -> Any:
        handle = None if stream is None else raw_stream(stream)
        return ADAPTERS[operand.library].converted(operand.owner, dtype, handle)

    factors = (
        scalar(alpha, "alpha", kind, device, convert), scalar(beta, "beta", kind, device, convert)
    )  # fmt: skip
    check_beta(factors[1], c, problem.epilogue.pairs)
    for name, factor in zip(("alpha", "beta"), factors, strict=True):
        if c is not None and factor.pointer and factor.owner is None:
            check_scalar_overlap(c, name, factor.pointer, kind)
    return factors


def _handle(operand: Operand, stream: Any) -> int:
    """Return the raw ``CUstream`` of a call, by default that of the array's library."""
    return ADAPTERS[operand.library].stream(operand)() if stream is None else raw_stream(stream)


def raw_stream(stream: Any) -> int:
    """Return the raw ``CUstream`` of a library's stream."""
    if type(stream) is int and 0 <= stream < 2**64:
        return stream
    handle = None
    for attribute in ("cuda_stream", "ptr", "handle"):
        if (value := getattr(stream, attribute, None)) is not None:
            handle = int(value)
            break
    else:
        if (protocol := getattr(stream, "__cuda_stream__", None)) is not None:
            handle = int(protocol()[1])
    if handle is not None:
        return handle
    raise OptionError(
        f"stream={stream!r} is not a CUDA stream; expected an int, or an object of PyTorch, CuPy "
        "or cuda.core"
    )
