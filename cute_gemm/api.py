"""``gemm``, ``plan``, ``analyze``: arrays -> operands -> problem -> kernel -> result or report."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from cute_gemm import select
from cute_gemm.atoms import DTYPES
from cute_gemm.compiler import build, normalize_arch, ptx
from cute_gemm.errors import DeviceError, DTypeError, NoGpuError, OptionError, ShapeError
from cute_gemm.operand import (
    Operand,
    Order,
    fingerprint,
    host_array,
    needs_synchronize,
    new_matrix,
    read,
    stream_handle,
)
from cute_gemm.problem import GemmProblem, Scalar, check_beta, from_operands, from_sizes, scalar

if TYPE_CHECKING:
    from cute_gemm.analysis.report import Report
    from cute_gemm.cubin import Build, Resources
    from cute_gemm.emitter import TranslationUnit
    from cute_gemm.kernels.base import Launch
    from cute_gemm.runtime import BoundLaunch, LoadedKernel

Backend = Literal["auto", "cuda", "cpu"]

#: What kernels are compiled for where there is no GPU and no ``arch=``.
DEFAULT_ARCH = "sm_80"

#: Plans that ``gemm`` made, by problem (a plan keeps its problem alive, so its id is its own).
_plans: dict[tuple[Any, ...], Plan] = {}
_PLANS_KEPT = 1024
_BOUND_KEPT = 64


@dataclass(frozen=True, slots=True)
class KernelInfo:
    """What a kernel is called, what it is, and what it takes.

    Attributes
    ----------
    name, summary
        The value of ``kernel=``; one line.
    minimum_cc
        Lowest compute capability, as an int: 80.
    dtypes
        Element types; ``"float32/tf32"`` is float32 with ``compute="tf32"``.
    options
        Keyword arguments of :func:`gemm` that set a field of the kernel's config.
    """

    name: str
    summary: str
    minimum_cc: int
    dtypes: tuple[str, ...]
    options: tuple[str, ...]


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
        What the kernel is compiled for.
    kernel, config, why
        The kernel's name, its config, and a sentence on the choice.

    Examples
    --------
    >>> import numpy as np
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
        self._scalar = DTYPES[problem.A.dtype].accumulator
        self._bound: dict[tuple[Any, ...], BoundLaunch] = {}
        self._seen: tuple[Any, ...] = ()
        self._last: tuple[Operand, ...] = ()

    def __repr__(self) -> str:
        p = self.problem
        return f"Plan({p.op} m={p.m} n={p.n} k={p.k} {p.A.dtype}, {self.config.name}, {self.arch})"

    # ---- what the kernel is ---------------------------------------------------------------------

    @cached_property
    def unit(self) -> TranslationUnit:
        """The CUDA C++ translation unit."""
        return self._kernel.emit(self.config)

    @property
    def source(self) -> str:
        """The text of the translation unit."""
        return self.unit.source

    @property
    def symbol(self) -> str:
        """The kernel's name in the cubin."""
        return self.unit.symbol

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
        from cute_gemm.sass import disassemble

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
            factors = _scalars(alpha, beta, self.problem, a.device, c)
            result = self._run(a, b, c, *factors, stream)
            if c is not None and a.device is not None:
                self._seen = seen
                self._last = tuple(replace(operand, owner=None) for operand in (a, b, c))
            return result
        # Device arrays that are what and where those of the last call were need no second check.
        a, b, c = self._last
        factors = _scalars(alpha, beta, self.problem, a.device, c)
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
        if c is None:
            order: Order = "C" if problem.C.major == "N" else "F"
            c = read(new_matrix(a, (problem.m, problem.n), order, problem.C.dtype), "C")
        if not problem.m or not problem.n:
            return c.owner
        if self.backend == "cpu":
            from cute_gemm import cpu

            cpu.gemm(problem, host_array(a), host_array(b), host_array(c), alpha.value, beta.value)
            return c.owner
        key = (alpha.value, beta.value, alpha.pointer, beta.pointer)
        bound = self._bound.get(key) or self._bind(key)
        if a.device is None:
            self._run_from_host(bound, a, b, c, beta)
        else:
            handle = stream_handle(a) if stream is None else _handle(stream)
            bound(a.pointer, b.pointer, c.pointer, handle)
            if needs_synchronize(a):
                from cute_gemm.runtime import synchronize

                synchronize(a.device)
        return c.owner

    @cached_property
    def _loaded(self) -> LoadedKernel:
        from cute_gemm.runtime import load

        return load(self.build, self.device or 0)

    def _bind(self, key: tuple[Any, ...]) -> BoundLaunch:
        problem = self.problem
        bound = self._loaded.bind(
            self.launch,
            m=problem.m,
            n=problem.n,
            k=problem.k,
            lda=problem.A.ld,
            ldb=problem.B.ld,
            ldc=problem.C.ld,
            scalar=self._scalar,
            alpha=key[0],
            beta=key[1],
            alpha_pointer=key[2],
            beta_pointer=key[3],
        )
        if len(self._bound) >= _BOUND_KEPT:
            self._bound.clear()
        self._bound[key] = bound
        return bound

    def _run_from_host(
        self, bound: BoundLaunch, a: Operand, b: Operand, c: Operand, beta: Scalar
    ) -> None:
        """Copy in, compute, copy out."""
        from cute_gemm.runtime import allocate_like, download, upload

        device, C = self.device or 0, host_array(c)
        with (
            upload(host_array(a), device) as on_a,
            upload(host_array(b), device) as on_b,
            upload(C, device) if beta.value != 0 else allocate_like(C, device) as on_c,
        ):
            bound(on_a.pointer, on_b.pointer, on_c.pointer)
            download(on_c, C)


def gemm(
    op: str,
    A: Any,
    B: Any,
    C: Any = None,
    *,
    alpha: Any = 1.0,
    beta: Any = 0.0,
    order: Order = "F",
    out_dtype: Any = None,
    compute: str | None = None,
    kernel: str = "auto",
    backend: Backend = "auto",
    arch: str | None = None,
    stream: Any = None,
    **kernel_options: Any,
) -> Any:
    """Compute ``C <- alpha * op(A) @ op(B) + beta * C`` with BLAS semantics.

    Parameters
    ----------
    op
        Two letters, A's and B's: ``N`` the matrix as stored, ``T`` its transpose, ``C`` or ``H``
        its conjugate transpose. This is BLAS's convention for the arrays as they are given.
    A, B
        (M, K) or, transposed, (K, M); (K, N) or (N, K). NumPy arrays, or device arrays of CuPy,
        PyTorch, JAX or anything with DLPack or ``__cuda_array_interface__``; one stride must be 1.
        float16, bfloat16, float32, float64 or int8.
    C
        (M, N), updated in place and returned; None makes a new one in A's library.
    alpha, beta
        Numbers or 0-d arrays; one on the device is read by the kernel, without a synchronisation.
        With ``beta == 0`` C is not read; with ``alpha == 0`` A and B are not.
    order
        ``"F"`` (column-major) or ``"C"``, of a new C.
    out_dtype
        Type of a new C: the operands' or, for half types, float32; int32 for int8.
    compute
        ``"tf32"`` lets float32 operands be multiplied in tf32.
    kernel, **kernel_options
        A name from :func:`kernels`, and fields of its config.
    backend
        ``"cuda"``, ``"cpu"`` or ``"auto"``: the CPU where there is no GPU, with a warning.
    arch
        Compile for this arch rather than the device's.
    stream
        A raw ``CUstream`` or an object that has one; the library's current one if None.

    Returns
    -------
    array
        C, of the operands' library.

    Raises
    ------
    GemmError
        A subclass per cause; nothing has been written then.

    Examples
    --------
    >>> import numpy as np
    >>> A, B = np.arange(6.0).reshape(2, 3), np.ones((4, 3))
    >>> gemm("NT", A, B, backend="cpu")[:, 0]
    array([ 3., 12.])
    """
    a, b = read(A, "A"), read(B, "B")
    c = None if C is None else read(C, "C")
    problem = from_operands(op, a, b, c, order=order, out_dtype=out_dtype, compute=compute)
    factors = _scalars(alpha, beta, problem, a.device, c)
    options = [
        (name, tuple(value) if isinstance(value, list) else value)
        for name, value in sorted(kernel_options.items())
    ]
    key = (id(problem), a.device, kernel, backend, arch, *options)
    found = _plans.get(key)
    if found is None:
        if len(_plans) >= _PLANS_KEPT:
            _plans.clear()
        found = _make_plan(problem, a.device, kernel, backend, arch, kernel_options)
        _plans[key] = found
    return found._run(a, b, c, *factors, stream)


def plan(
    op: str,
    A: Any = None,
    B: Any = None,
    C: Any = None,
    *,
    m: int | None = None,
    n: int | None = None,
    k: int | None = None,
    dtype: Any = None,
    lda: int | None = None,
    ldb: int | None = None,
    ldc: int | None = None,
    storage: Order = "F",
    order: Order = "F",
    out_dtype: Any = None,
    compute: str | None = None,
    kernel: str = "auto",
    backend: Backend = "auto",
    arch: str | None = None,
    **kernel_options: Any,
) -> Plan:
    """Work a GEMM out without running it: from arrays, or from BLAS's sizes.

    Parameters
    ----------
    op, A, B, C, order, out_dtype, compute, kernel, backend, arch, **kernel_options
        As for :func:`gemm`.
    m, n, k, dtype, lda, ldb, ldc, storage
        In place of arrays: extents, element type, leading dimensions in elements, and the order
        (``"F"`` or ``"C"``) in which A and B are stored.

    Returns
    -------
    Plan

    Examples
    --------
    >>> p = plan("TN", m=4096, n=4096, k=4096, dtype="float16", arch="sm_90a")
    >>> print(p.problem.A, p.problem.B, p.problem.C)
    (4096,4096):(4096,1) (4096,4096):(4096,1) (4096,4096):(1,4096)
    """
    sizes = {"m": m, "n": n, "k": k, "dtype": dtype}
    device = None
    if A is None and B is None:
        missing = [name for name, value in sizes.items() if value is None]
        if missing:
            raise OptionError(
                f"plan() needs A and B, or m, n, k and dtype; {', '.join(missing)} is missing"
            )
        problem = from_sizes(
            op,
            m=m,  # type: ignore[arg-type]
            n=n,  # type: ignore[arg-type]
            k=k,  # type: ignore[arg-type]
            dtype=dtype,
            lda=lda,
            ldb=ldb,
            ldc=ldc,
            order=order,
            out_dtype=out_dtype,
            compute=compute,
            storage=storage,
        )
    else:
        given = [name for name, value in (*sizes.items(), ("lda", lda), ("ldb", ldb), ("ldc", ldc))
                 if value is not None]  # fmt: skip
        if given:
            raise OptionError(f"plan() takes arrays or sizes; {', '.join(given)} came with arrays")
        a, b = read(A, "A"), read(B, "B")
        c = None if C is None else read(C, "C")
        problem = from_operands(op, a, b, c, order=order, out_dtype=out_dtype, compute=compute)
        device = a.device
    return _make_plan(problem, device, kernel, backend, arch, kernel_options)


def analyze(
    op: str,
    A: Any = None,
    B: Any = None,
    C: Any = None,
    *,
    gpu: str | None = None,
    beta: complex = 0.0,
    **arguments: Any,
) -> Report:
    """Report every memory access of the kernel that :func:`plan` would choose; nothing is compiled.

    Parameters
    ----------
    op, A, B, C, **arguments
        As for :func:`plan`.
    gpu, beta
        As for :meth:`Plan.report`.

    Examples
    --------
    >>> report = analyze("TN", m=4096, n=4096, k=4096, dtype="float16", copy="mn_major")
    >>> report["A"].coalesced, report["B"].coalesced
    (False, False)
    """
    made = plan(op, A, B, C, **{"backend": "cpu", **arguments})
    return made.report(gpu=gpu, beta=beta)


def kernels() -> list[KernelInfo]:
    """Return what kernels there are."""
    found = map(select.get, select.names())
    return [KernelInfo(k.name, k.summary, k.minimum_cc, k.dtypes, k.options) for k in found]


def _make_plan(
    problem: GemmProblem,
    device: int | None,
    kernel: str,
    backend: Backend,
    arch: str | None,
    options: dict[str, Any],
) -> Plan:
    where = _backend(backend, device)
    if where == "cuda":
        from cute_gemm.runtime import device_arch

        device = device or 0
        target = normalize_arch(arch) if arch else device_arch(device)
    else:
        target = normalize_arch(arch) if arch else _arch_without_backend()
    return Plan(problem, where, device, target, kernel, options)


def _arch_without_backend() -> str:
    """The arch to emit for when the CPU computes: the GPU's, if there is one all the same."""
    from cute_gemm.runtime import device_arch, why_no_gpu

    return DEFAULT_ARCH if why_no_gpu() else device_arch(0)


def _backend(backend: Backend, device: int | None) -> Literal["cuda", "cpu"]:
    if backend not in ("auto", "cuda", "cpu"):
        raise OptionError(f"backend={backend!r} is unknown; expected 'auto', 'cuda' or 'cpu'")
    if backend == "cpu":
        if device is not None:
            raise DeviceError(
                f"backend='cpu' cannot read A on CUDA device {device}: pass host arrays, "
                "or leave backend out"
            )
        return "cpu"
    from cute_gemm.runtime import why_no_gpu

    reason = why_no_gpu()
    if reason is None:
        return "cuda"
    if backend == "cuda" or device is not None:
        raise NoGpuError(f"backend='cuda' needs a GPU: {reason}")
    _warn_cpu(reason)
    return "cpu"


_warned = False


def _warn_cpu(reason: str) -> None:
    """Say once in a process that the CPU computes."""
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(f"no usable GPU ({reason}); computing on the CPU", stacklevel=5)


_ONE_AND_ZERO = (Scalar(1), Scalar(0))


def _scalars(
    alpha: Any, beta: Any, problem: GemmProblem, device: int | None, c: Operand | None
) -> tuple[Scalar, Scalar]:
    if type(alpha) is float and type(beta) is float and alpha == 1.0 and beta == 0.0:
        return _ONE_AND_ZERO  # every accumulator has these two
    factors = (
        scalar(alpha, "alpha", problem.A.dtype, device),
        scalar(beta, "beta", problem.A.dtype, device),
    )
    check_beta(factors[1], c)
    return factors


def _handle(stream: Any) -> int:
    """The raw ``CUstream`` of whatever a library calls a stream."""
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
