"""``Plan``: a GEMM worked out, to be looked at, compiled and run again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from cute_gemm import select
from cute_gemm.errors import DeviceError, DTypeError, OptionError, ShapeError, UnsupportedError
from cute_gemm.kernels.host import Host
from cute_gemm.problem.arrays import (
    Operand,
    Order,
    fingerprint,
    host_array,
    needs_synchronize,
    new_matrix,
    read,
    stream_handle,
)
from cute_gemm.problem.dtypes import DTYPES
from cute_gemm.problem.problem import GemmProblem, Scalar, check_beta, from_operands, scalar
from cute_gemm.toolchain.nvrtc import build, ptx

if TYPE_CHECKING:
    from cute_gemm.analysis.report import Report
    from cute_gemm.kernels.base import Launch
    from cute_gemm.toolchain.cubin import Build, Resources
    from cute_gemm.toolchain.unit import TranslationUnit

#: Launches of a plan that are kept, by alpha and beta.
_BOUND_KEPT = 64


class Plan:
    """A GEMM worked out: the kernel for one problem on one arch. Made by :func:`plan`.

    Attributes
    ----------
    problem
        Extents and CuTe descriptors.
    backend
        ``"cuda"`` or ``"cpu"``: where a call computes.
    device
        CUDA ordinal, or None.
    arch
        What the kernel is compiled for; ``"cpu"`` for ``kernel="host"``.
    kernel, config, why
        The kernel's name, its config, and a sentence on the choice.

    Examples
    --------
    >>> import numpy as np
    >>> from cute_gemm import plan
    >>> A, B = np.ones((8, 4), "f4"), np.ones((4, 2), "f4")
    >>> p = plan("NN", A, B, backend="cpu")
    >>> p.problem.blas_op, p.kernel, p(A, B)[0, 0]
    ('TT', 'sm80_pipeline', np.float32(4.0))
    """

    def __init__(
        self,
        problem: GemmProblem,
        backend: Literal["cuda", "cpu"],
        device: int | None,
        arch: str,
        kernel: str,
        options: dict[str, Any],
    ) -> None:
        self.problem = problem
        self.backend = backend
        self.device = device
        self.arch = arch
        self._kernel, self.config, self.why = select.select(problem, arch, kernel, **options)
        self.kernel = self._kernel.name
        self._bound: dict[tuple[Any, ...], Callable[..., None]] = {}
        self._seen: tuple[Any, ...] = ()
        self._last: tuple[Operand, ...] = ()

    def __repr__(self) -> str:
        p = self.problem
        return f"Plan({p.op} m={p.m} n={p.n} k={p.k} {p.A.dtype}, {self.config.name}, {self.arch})"

    # ---- what the kernel is ---------------------------------------------------------------------

    @property
    def compiled(self) -> bool:
        """Whether the kernel is one that is emitted and compiled here.

        Of ``"host"``, a loop in Python, and ``"cublas"``, a library, there is no unit, build,
        launch or report: asking for one is an `UnsupportedError`.
        """
        return self._kernel.runs_on == "gpu"

    @cached_property
    def unit(self) -> TranslationUnit:
        """The CUDA C++ translation unit."""
        return self._kernel.emit(self.config)

    @property
    def source(self) -> str:
        """The text of the translation unit; of ``kernel="host"`` the loop in Python."""
        return self._kernel.source() if isinstance(self._kernel, Host) else self.unit.source

    @property
    def symbol(self) -> str:
        """The kernel's name in the cubin; of what is not compiled, its config's name."""
        return self.unit.symbol if self.compiled else self.config.name

    @cached_property
    def launch(self) -> Launch:
        """CTAs, threads per CTA, dynamic shared memory in bytes."""
        return self._kernel.launch(self.config, self.problem)

    @cached_property
    def build(self) -> Build:
        """The compiled kernel, from the cache or from NVRTC."""
        return build(self.unit, self.arch)

    @property
    def cubin(self) -> bytes:
        """The machine code."""
        return self.build.cubin

    @property
    def resources(self) -> Resources:
        """Registers, shared memory and spills."""
        return self.build.resources

    @cached_property
    def ptx(self) -> str:
        """The kernel in PTX; compiled for this alone."""
        return ptx(self.unit, self.arch)

    @cached_property
    def sass(self) -> str:
        """The machine code as text; needs ``nvdisasm`` (``pip install 'cute-gemm[sass]'``)."""
        from cute_gemm.toolchain.sass import disassemble

        return disassemble(self.cubin)

    def report(self, *, gpu: str | None = None, beta: complex = 0.0) -> Report:
        """Return the analysis of every memory access of this kernel on this problem.

        Parameters
        ----------
        gpu
            A GPU's name, for roofline and waves (``"H200"``); by default one stands for the arch.
        beta
            With another than 0, C is read too.

        Raises
        ------
        OptionError
            For a GPU that is not known, or that does not run kernels of this arch.
        """
        from cute_gemm.analysis.report import make_report

        return make_report(
            self.problem,
            self.kernel,
            self.config,
            self.arch,
            self._kernel.accesses(self.config, self.problem, reads_c=beta != 0),
            self.launch,
            self.build.resources if "build" in self.__dict__ else None,
            gpu=gpu,
            reads_c=beta != 0,
            pictures=self._kernel.pictures(self.config),
        )

    # ---- running it -----------------------------------------------------------------------------

    def __call__(
        self,
        A: Any,
        B: Any,
        C: Any = None,
        *,
        alpha: Any = 1.0,
        beta: Any = 0.0,
        stream: Any = None,
    ) -> Any:
        """Compute ``C <- alpha * op(A) @ op(B) + beta * C`` on arrays like those planned for.

        Parameters
        ----------
        A, B, C
            Arrays whose descriptors are the plan's; a new C is made when it is left out.
        alpha, beta
            Numbers, or 0-d arrays; one on the device is read by the kernel.
        stream
            A raw ``CUstream`` or an object that has one; the arrays' library's current one if None.

        Raises
        ------
        ShapeError
            When an array's descriptor is not the plan's; everything that :func:`gemm` raises.
        """
        seen = (fingerprint(A), fingerprint(B), fingerprint(C))
        if seen != self._seen or None in seen:
            a, b = read(A, "A"), read(B, "B")
            c = None if C is None else read(C, "C")
            self._check(a, b, c)
            factors = scalars(alpha, beta, self.problem, a.device, c)
            result = self._run(a, b, c, *factors, stream)
            if c is not None and a.device is not None:
                self._seen = seen
                self._last = tuple(replace(operand, owner=None) for operand in (a, b, c))
            return result
        # Device arrays that are what and where those of the last call were need no second check.
        a, b, c = self._last
        factors = scalars(alpha, beta, self.problem, a.device, c)
        self._run(a, b, c, *factors, stream)
        return C

    def _check(self, a: Operand, b: Operand, c: Operand | None) -> None:
        """Refuse arrays that this plan's kernel cannot serve."""
        planned = self.problem
        if a.dtype != planned.A.dtype:
            raise DTypeError(
                f"A has dtype {a.dtype}, and the plan was made for {planned.A.dtype}; make a plan "
                "with these arrays"
            )
        problem = from_operands(
            planned.op,
            a,
            b,
            c,
            order="C" if planned.C.major == "N" else "F",
            out_dtype=planned.C.dtype if c is None else None,
            compute=planned.compute,
        )
        for name in "ABC":
            mine, given = getattr(planned, name), getattr(problem, name)
            if given.alignment < mine.alignment:
                raise ShapeError(
                    f"{name} starts at an address aligned to {given.alignment} bytes, and the plan "
                    f"was made for {mine.alignment}; make a plan with these arrays"
                )
            if replace(given, alignment=mine.alignment) != mine:
                raise ShapeError(
                    f"{name} is {given} of {given.dtype}, and the plan was made for {mine} of "
                    f"{mine.dtype}; make a plan with these arrays"
                )
        if a.device is not None and a.device != self.device:
            raise DeviceError(
                f"A is on {a.place} and the plan is for "
                f"{'the CPU' if self.device is None else f'CUDA device {self.device}'}; "
                "make a plan with these arrays"
            )

    def _run(
        self, a: Operand, b: Operand, c: Operand | None, alpha: Scalar, beta: Scalar, stream: Any
    ) -> Any:
        problem = self.problem
        if self.backend == "cpu" and self._kernel.runs_on == "library":
            raise UnsupportedError(
                f"kernel {self.kernel!r} computes on a GPU only and backend is 'cpu': leave one of "
                "the two out"
            )
        if c is None:
            order: Order = "C" if problem.C.major == "N" else "F"
            c = read(new_matrix(a, (problem.m, problem.n), order, problem.C.dtype), "C")
        if not problem.m or not problem.n:
            return c.owner
        if self.backend == "cpu":
            from cute_gemm.problem import reference as cpu

            compute = self._kernel.gemm if isinstance(self._kernel, Host) else cpu.gemm
            compute(problem, host_array(a), host_array(b), host_array(c), alpha.value, beta.value)
            return c.owner
        key = (alpha.value, beta.value, alpha.pointer, beta.pointer)
        bound = self._bound.get(key) or self._bind(key)
        if a.device is None:
            self._run_from_host(bound, a, b, c, beta)
        else:
            handle = stream_handle(a) if stream is None else raw_stream(stream)
            bound(a.pointer, b.pointer, c.pointer, handle)
            if needs_synchronize(a):
                from cute_gemm.run.launch import synchronize

                synchronize(a.device)
        return c.owner

    def bind(
        self,
        device: int = 0,
        alpha: complex = 1,
        beta: complex = 0,
        alpha_pointer: int = 0,
        beta_pointer: int = 0,
    ) -> Callable[..., None]:
        """Return a function that starts this GEMM, of the addresses of A, B and C and a stream.

        Parameters
        ----------
        device
            CUDA ordinal.
        alpha, beta
            Values, where the pointers are 0.
        alpha_pointer, beta_pointer
            Device addresses that they are read from, or 0.

        Raises
        ------
        CompileError, CubinError, LaunchError
            When the kernel cannot be built, loaded or launched there.
        UnsupportedError
            For ``kernel="host"``, and ``"cublas"`` where there is none.
        """
        problem = self.problem
        if self._kernel.runs_on == "library":
            bound: Callable[..., None] = self._kernel.bind(  # type: ignore[attr-defined]
                problem, device, alpha, beta, alpha_pointer, beta_pointer
            )
            return bound
        from cute_gemm.run.launch import load

        return load(self.build, device).bind(
            self.launch,
            m=problem.m,
            n=problem.n,
            k=problem.k,
            lda=problem.A.ld,
            ldb=problem.B.ld,
            ldc=problem.C.ld,
            scalar=DTYPES[problem.A.dtype].accumulator,
            alpha=alpha,
            beta=beta,
            alpha_pointer=alpha_pointer,
            beta_pointer=beta_pointer,
        )

    def _bind(self, key: tuple[Any, ...]) -> Callable[..., None]:
        """Keep and return a bound launch; ``key`` is alpha and beta."""
        bound = self.bind(self.device or 0, *key)
        if len(self._bound) >= _BOUND_KEPT:
            self._bound.clear()
        self._bound[key] = bound
        return bound

    def _run_from_host(
        self, bound: Callable[..., None], a: Operand, b: Operand, c: Operand, beta: Scalar
    ) -> None:
        """Copy in, compute, copy out."""
        from cute_gemm.run.launch import allocate_like, download, upload

        device, C = self.device or 0, host_array(c)
        with (
            upload(host_array(a), device) as on_a,
            upload(host_array(b), device) as on_b,
            upload(C, device) if beta.value != 0 else allocate_like(C, device) as on_c,
        ):
            bound(on_a.pointer, on_b.pointer, on_c.pointer)
            download(on_c, C)


_ONE_AND_ZERO = (Scalar(1), Scalar(0))


def scalars(
    alpha: Any, beta: Any, problem: GemmProblem, device: int | None, c: Operand | None
) -> tuple[Scalar, Scalar]:
    """Check alpha and beta of a call, beta against the C that is given or not."""
    if type(alpha) is float and type(beta) is float and alpha == 1.0 and beta == 0.0:
        return _ONE_AND_ZERO  # every accumulator has these two
    factors = (
        scalar(alpha, "alpha", problem.A.dtype, device),
        scalar(beta, "beta", problem.A.dtype, device),
    )
    check_beta(factors[1], c)
    return factors


def raw_stream(stream: Any) -> int:
    """Return the raw ``CUstream`` of whatever a library calls a stream."""
    if isinstance(stream, int):
        return stream
    for attribute in ("cuda_stream", "ptr", "handle"):
        value = getattr(stream, attribute, None)
        if value is not None:
            return int(value)
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        return int(protocol()[1])
    raise OptionError(
        f"stream={stream!r} is not a CUDA stream; expected an int, or an object of PyTorch, CuPy "
        "or cuda.core"
    )
