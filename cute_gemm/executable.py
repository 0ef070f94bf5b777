"""``Executable``: runs a GEMM on arrays laid out as planned, at the cost of a launch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from cute_gemm._kept import Kept
from cute_gemm._text import named
from cute_gemm.errors import DeviceError, DTypeError, OptionError, ShapeError
from cute_gemm.frameworks import ADAPTERS, host_array, read
from cute_gemm.frameworks.base import Operand, Order
from cute_gemm.kernels.steps import Steps, packing_step, steps
from cute_gemm.packed import PackedOperand
from cute_gemm.problem.matrix import Matrix
from cute_gemm.problem.passes import DIRECT, Route, packed
from cute_gemm.problem.problem import GemmProblem, describe, from_operands
from cute_gemm.problem.scalars import ONE, ZERO, Scalar, check_beta, scalar

if TYPE_CHECKING:
    import numpy as np

    from cute_gemm.kernels.base import Kernel

#: Launches of an executable that are kept, by alpha and beta.
_BOUND_KEPT = 64

#: Immutable types of numbers.
_NUMBERS = (float, int, complex)


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A call on device arrays that passed every check, to be repeated on arrays laid out alike.

    ``layouts``: the `fingerprint` of its arrays; ``spans``: bytes from the first element of A, B
    and C to the last; ``stream``: returns the stream that their library works on. No array is kept
    alive.
    """

    executable: Executable
    layouts: Any
    a: Operand
    b: Operand
    c: Operand | None
    spans: tuple[int, int, int]
    stream: Callable[[], int]

    def again(self, at: tuple[int, int, int], C: Any, alpha: Any, beta: Any, stream: Any) -> Any:
        """Compute on arrays of these layouts at other addresses; return C, or a new one.

        Return None, without computing, if C overlaps A or B; the layouts settle everything else.
        """
        executable = self.executable
        if C is not None:
            a, b, c = at
            span_a, span_b, span_c = self.spans
            end = c + span_c
            if (a < end and c < a + span_a) or (b < end and c < b + span_b):
                return None
            newest_alpha, newest_beta, bound = executable.newest
            if alpha is newest_alpha and beta is newest_beta:
                bound(at, self.stream() if stream is None else raw_stream(stream))
                return C
        factors = scalars(alpha, beta, executable.problem, self.a.device, self.c, stream)
        result = executable.run(self.a, self.b, self.c, *factors, stream, at=at)
        if C is None:
            return result
        bound = executable._bound.get((factors[0][:2], factors[1][:2], ""))
        if bound is not None and type(alpha) in _NUMBERS and type(beta) in _NUMBERS:
            executable.newest = alpha, beta, bound
        return C


@dataclass(eq=False)
class Executable:
    """A problem, the kernel and route that compute it, and the launches that are kept.

    ``backend`` and ``device`` are those of the `Plan` that holds it. Launches are bound once for
    each alpha and beta.
    """

    problem: GemmProblem
    kernel: Kernel
    config: Any
    arch: str
    route: Route
    backend: Literal["cuda", "cpu", "interpreter"]
    device: int | None

    def __post_init__(self) -> None:
        self._bound: Kept[tuple[Any, ...], Callable[..., None]] = Kept(_BOUND_KEPT)
        #: The last alpha and beta, as objects, and the launch with them; one tuple, since threads
        #: share it.
        self.newest: tuple[Any, Any, Any] = (object(), object(), None)

    @cached_property
    def steps(self) -> Steps:
        """The launches in order: a kernel, and what goes before and behind it."""
        return self._steps()

    def _steps(self, kept: str = "") -> Steps:
        kernel = self.kernel.compiled()
        return steps(kernel, self.config, self.problem, self.arch, self.route, kept)

    def bind(self, device: int, alpha: Scalar, beta: Scalar, kept: str = "") -> Callable[..., None]:
        """Return a launch of the operands' addresses and a stream."""
        if self.route == DIRECT:
            return self.kernel.bind(self.config, self.problem, self.arch, device, alpha, beta)
        from cute_gemm.run.sequence import Launches

        parts = self._steps(kept) if kept else self.steps
        launches = [
            (step.bind(device, alpha, beta), step.addresses(parts.operands)) for step in parts
        ]
        return Launches(launches, parts.scratch, device)

    def compute(
        self, A: Any, B: Any, C: Any, alpha: Any, beta: Any, stream: Any, layouts: Any
    ) -> tuple[Any, Call | None]:
        """Compute on arrays that are checked against the problem.

        Return C and, for device arrays with a fingerprint, the call.
        """
        kept = {x.name: x for x in (A, B) if isinstance(x, PackedOperand)}
        a = kept["A"].operand if "A" in kept else read(A, "A")
        b = kept["B"].operand if "B" in kept else read(B, "B")
        c = None if C is None else read(C, "C")
        self._check(a, b, c)
        factors = scalars(alpha, beta, self.problem, a.device, c, stream)
        if kept:
            for operand in kept.values():
                operand.check(self.problem, self.route.pack)
            a, b = (kept[x].there() if x in kept else y for x, y in (("A", a), ("B", b)))
        result = self.run(a, b, c, *factors, stream, "".join(kept))
        return result, None if kept else self.call(layouts, a, b, c)

    def call(self, layouts: Any, a: Operand, b: Operand, c: Operand | None) -> Call | None:
        """Return the call on operands that fit; None without layouts or a device."""
        if layouts is None or a.device is None:
            return None
        a, b = replace(a, owner=None), replace(b, owner=None)
        c = None if c is None else replace(c, owner=None)
        spans = self.problem.A.span, self.problem.B.span, self.problem.C.span
        return Call(self, layouts, a, b, c, spans, ADAPTERS[a.library].stream(a))

    def on_host(
        self, A: Any, B: Any, C: Any, beta: complex
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return host arrays that fit as NumPy arrays, with a new C where none is given."""
        a, b = read(A, "A"), read(B, "B")
        c = None if C is None else read(C, "C")
        self._check(a, b, c)
        problem = self.problem
        check_beta(scalar(beta, "beta", problem.accumulator.name, None), c)
        if a.device is not None:
            raise DeviceError(
                f"A is on {a.place}, and a trace is of host arrays; pass copies, such as np.asarray"
            )
        return host_array(a), host_array(b), host_array(self._new(a, b) if c is None else c)

    def _new(self, a: Operand, b: Operand) -> Operand:
        """Return a new C of A's library."""
        problem = self.problem
        order: Order = "C" if problem.C.major == "N" else "F"
        batch = (problem.l,) if 3 in (len(a.shape), len(b.shape)) else ()
        shape = *batch, problem.m, problem.n
        return read(ADAPTERS[a.library].new(a, shape, order, problem.C.dtype), "C")

    def _check(self, a: Operand, b: Operand, c: Operand | None) -> None:
        """Refuse arrays that do not fit the plan."""
        planned = self.problem
        if a.dtype != planned.A.dtype:
            raise DTypeError(
                f"A has dtype {a.dtype}, and the plan was made for {planned.A.dtype}; make a plan "
                "with these arrays"
            )
        order: Order = "C" if planned.C.major == "N" else "F"
        out = planned.C.dtype if c is None else None
        problem = from_operands(
            planned.op, a, b, c, order=order, out_dtype=out, compute=planned.compute
        )
        for name in "ABC":
            _check_matrix(getattr(planned, name), getattr(problem, name))
        device = self.device
        if a.device is not None and a.device != device:
            where = "the CPU" if device is None else f"CUDA device {device}"
            raise DeviceError(
                f"A is on {a.place} and the plan is for {where}; make a plan with these arrays"
            )

    def pack(self, X: Any, name: str, stream: Any) -> PackedOperand:
        """Pack an operand for calls to come."""
        problem, pack = self.problem, self.route.pack
        if name not in ("A", "B") or name not in pack:
            does = f"packs {' and '.join(pack)}" if pack else "packs nothing"
            raise OptionError(
                f"name={name!r}, and this plan {does}: make it with pack='A', 'B' or 'AB'"
            )
        operand, matrix = read(X, name), getattr(problem, name)
        _check_matrix(matrix, describe(problem.op, name, operand, problem.l))
        _, packing = packed(problem, name)
        (target,) = packing.targets
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
        kept: str = "", at: tuple[int, int, int] | None = None,
    ) -> Any:  # fmt: skip
        """Compute on operands and factors that fit; return C, a new one if none is given.

        ``kept``: names of operands that are packed already; ``at``: addresses of the matrices, if
        not the operands'.
        """
        problem = self.problem
        new = c is None
        if c is None:
            c = self._new(a, b)
        if self.backend != "cuda":
            self._run_on_host(host_array(a), host_array(b), host_array(c), alpha.value, beta.value)
        elif problem.m and problem.n and problem.l:
            bound = self._bound.get((alpha[:2], beta[:2], kept)) or self._bind(alpha, beta, kept)
            if c.device is None:
                self._run_from_host(bound, a, b, c, beta)
            else:
                if at is None:
                    at = a.pointer, b.pointer, c.pointer
                elif new:
                    at = at[0], at[1], c.pointer
                bound(at, _handle(a, stream))
                if ADAPTERS[c.library].synchronizes:
                    from cute_gemm.run.driver import synchronize

                    synchronize(c.device)
        return ADAPTERS[a.library].result(a, c.owner) if new else c.owner

    def _bind(self, alpha: Scalar, beta: Scalar, kept: str = "") -> Callable[..., None]:
        """Keep and return a bound launch."""
        bound = self.bind(self.device or 0, alpha, beta, kept)
        self._bound[alpha[:2], beta[:2], kept] = bound
        return bound

    def _run_on_host(
        self, A: np.ndarray, B: np.ndarray, C: np.ndarray, alpha: complex, beta: complex
    ) -> None:
        """Compute on host arrays, in place."""
        if self.backend == "interpreter":
            from cute_gemm.ptx.gemm import execute

            execute(self, A, B, C, alpha, beta)
        else:
            self.kernel.on_host(self.problem, A, B, C, alpha, beta)

    def _run_from_host(
        self, bound: Callable[..., None], a: Operand, b: Operand, c: Operand, beta: Scalar
    ) -> None:
        """Copy in, compute, copy out."""
        from cute_gemm.run.driver import entered
        from cute_gemm.run.memory import allocate_like, download, upload

        device, C = self.device or 0, host_array(c)
        with (
            entered(device),
            upload(host_array(a), device) if a.device is None else nullcontext(a) as on_a,
            upload(host_array(b), device) if b.device is None else nullcontext(b) as on_b,
            upload(C, device) if beta.value != 0 else allocate_like(C, device) as on_c,
        ):
            bound((on_a.pointer, on_b.pointer, on_c.pointer))
            download(on_c, C)


def _check_matrix(planned: Matrix, matrix: Matrix) -> None:
    """Refuse a matrix that is not laid out as the plan's, or less aligned."""
    name = planned.name
    if matrix.alignment < planned.alignment:
        raise ShapeError(
            f"{name} starts at an address aligned to {matrix.alignment} bytes, and the plan "
            f"was made for {planned.alignment}; make a plan with these arrays"
        )
    if replace(matrix, **named(planned, "alignment", "first_alignment")) != planned:
        raise ShapeError(
            f"{name} is {matrix} of {matrix.dtype}, and the plan was made for {planned} of "
            f"{planned.dtype}; make a plan with these arrays"
        )


def scalars(
    alpha: Any, beta: Any, problem: GemmProblem, device: int | None, c: Operand | None, stream: Any
) -> tuple[Scalar, Scalar]:
    """Check alpha and beta of a call, beta against C or its absence.

    A scalar on the device that has another type is converted there, in the order of the stream.
    """
    if type(alpha) is float and type(beta) is float and alpha == 1.0 and beta == 0.0:
        return ONE, ZERO  # every accumulator has these two
    kind = problem.accumulator.name

    def convert(operand: Operand, dtype: str) -> Any:
        handle = None if stream is None else raw_stream(stream)
        return ADAPTERS[operand.library].converted(operand.owner, dtype, handle)

    factors = (
        scalar(alpha, "alpha", kind, device, convert), scalar(beta, "beta", kind, device, convert)
    )  # fmt: skip
    check_beta(factors[1], c)
    return factors


def _handle(operand: Operand, stream: Any) -> int:
    """Return the raw ``CUstream`` of a call, by default that of the array's library."""
    return ADAPTERS[operand.library].stream(operand)() if stream is None else raw_stream(stream)


def raw_stream(stream: Any) -> int:
    """Return the raw ``CUstream`` of a library's stream."""
    if isinstance(stream, int):
        return stream
    for attribute in ("cuda_stream", "ptr", "handle"):
        if (value := getattr(stream, attribute, None)) is not None:
            return int(value)
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        return int(protocol()[1])
    raise OptionError(
        f"stream={stream!r} is not a CUDA stream; expected an int, or an object of PyTorch, CuPy "
        "or cuda.core"
    )
