"""``gemm``, ``plan``, ``analyze``: arrays -> operands -> problem -> kernel -> result or report."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, overload

from cute_gemm.arrays import fingerprint, read
from cute_gemm.arrays.base import META, Order
from cute_gemm.arrays.torch import as_operator, differentiates, is_operator, traced
from cute_gemm.call import (
    Backend,
    Call,
    Tune,
    check_names,
    epilogue_of,
    given_scales,
    parameters,
    with_parameters_of,
)
from cute_gemm.errors import OptionError, missing
from cute_gemm.kernels.listing import KernelInfo, kernels
from cute_gemm.plan import reused
from cute_gemm.problem.describe import check_order
from cute_gemm.problem.epilogue.fuse import read_offsets

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Unpack

    from cute_gemm.gpus.table import GpuLike
    from cute_gemm.plan.plan import Plan
    from cute_gemm.plan.tune import Tuning
    from cute_gemm.problem.epilogue.fuse import EpilogueFunction
    from cute_gemm.report.report import Report
    from cute_gemm.signatures import AnalyzeWords, Array, GemmWords, GroupedWords, PlanWords
    from cute_gemm.toolchain.cubin import Build

__all__ = [
    "Backend", "KernelInfo", "analyze", "compile", "gemm", "grouped_gemm", "kernels", "plan",
]  # fmt: skip


@overload
def gemm(
    op: str, A: NDArray[Any], B: Any, C: NDArray[Any] | None = None, *,
    epilogue: str | None = None, **words: Unpack[GemmWords],
) -> NDArray[Any]: ...  # fmt: skip


@overload
def gemm(
    op: str, A: Array, B: Any, C: Array | None = None, *,
    epilogue: str | None = None, **words: Unpack[GemmWords],
) -> Array: ...  # fmt: skip


@overload
def gemm(
    op: str, A: Any, B: Any, C: Any = None, *,
    epilogue: EpilogueFunction | Callable[..., Any], **words: Any,
) -> Any: ...  # fmt: skip


def gemm(
    op: str, A: Any, B: Any, C: Any = None, *, alpha: Any = 1.0, beta: Any = 0.0,
    order: Order = "F", out_dtype: Any = None, compute: str | None = None,
    scale_a: Any = None, scale_b: Any = None, epilogue: Any = None, kernel: str = "auto",
    backend: Backend = "auto", arch: str | None = None, stream: Any = None, tune: Tune = False,
    **kernel_options: Any,
) -> Any:  # fmt: skip
    """Compute ``C <- epilogue(alpha * op(A) @ op(B) + beta * C)`` with BLAS semantics.

    Parameters
    ----------
    op
        Two letters, for A and for B, in BLAS's convention: ``N`` takes the matrix as it is stored,
        ``T`` its transpose, ``C`` or ``H`` its conjugate transpose.
    A, B
        A is (M, K), or (K, M) if it is transposed. B is (K, N), or (N, K) if it is transposed. One
        stride of each must be 1.

        Arrays are those of NumPy, which are copied to the GPU, and device arrays of CuPy, PyTorch
        or JAX, or with DLPack or ``__cuda_array_interface__``. Types are float16, bfloat16,
        float32, float64, complex64, complex128, int8, and float8_e4m3fn and float8_e5m2, which may
        be mixed.

        A leading dimension L makes a batch of L products. An operand without it, with L = 1 or with
        a stride of 0 along it is shared by all products.

        If a PyTorch tensor requires grad and C is not given, the result is differentiable in A, B
        and the operands of the epilogue.
    C
        (M, N), or (L, M, N) for a batch. It is updated in place and returned. By default a new
        array is made in the library of A.
    alpha, beta
        Numbers or 0-d arrays. The kernel reads one on the device without a synchronization. If
        alpha is 0, A and B are not read. If beta is 0, C is not read.
    order
        The order of a new C: ``"F"`` (column-major) or ``"C"`` (row-major).
    out_dtype
        The type of a new C, by default that of A and B; for int8 int32, for 8-bit floats bfloat16.

        Half types may give float32. int8 may give bfloat16, float16 or float32; alpha and beta are
        then float32. 8-bit floats may give bfloat16, float16, float32 or an 8-bit float, to which
        results are rounded to nearest and saturated.
    compute
        ``"tf32"`` multiplies float32 in tf32. ``"bf16x9"`` multiplies float32 as sums of three
        bfloat16, on tensor cores of compute capability 9.0, with the accuracy of float32;
        ``"bf16x6"`` leaves out the three smallest of the nine products.

        ``"fast_accum"``, for 8-bit floats, keeps the accumulators in the tensor cores, which hold
        about 14 bits on Hopper. By default the products of each 128 of k are added in float32.
    scale_a, scale_b
        Factors of op(A) and op(B), in float32. Their shape says what they apply to:

        - a number or (): a tensor scale;
        - (M, 1) of op(A), (N, 1) of op(B): row scales;
        - (M, K / 128) and (N, K / 128), rounded up, for 8-bit floats: a block scale for each 128 of
          k of a row;
        - (M / 128, K / 128) and (N / 128, K / 128), rounded up, for 8-bit floats: a block scale for
          each 128 x 128 elements.

        Strides are arbitrary. For a batch, L may stand in front.
    epilogue
        The function that is applied to each result before it is stored, for real floating-point
        types: a name, whose parts are joined by ``+`` (``"bias+gelu"``), or a function of the
        accumulator and operands (see `cute_gemm.epilogue`).

        Operands are keyword arguments of this call (``bias=b``). They are numbers, or arrays of any
        strides that broadcast to C: (N,), (M, 1) or (M, N). With `cute_gemm.pairs` or
        `cute_gemm.halves` (``"swiglu"``), C has N / 2 columns and beta must be 0.
    kernel
        A name from `cute_gemm.kernels`, or ``"auto"``. ``"host"`` is a loop on the CPU.
    backend
        ``"cuda"``, ``"cpu"`` or ``"auto"``, which is the CPU if there is no GPU, with a warning.
        ``"interpreter"`` executes the PTX of the kernel on the CPU.
    arch
        The architecture to compile for, ``"sm_90a"``; by default that of the device.
    stream
        A ``CUstream`` or an object that has one; by default the current stream of the library.
    tune
        True measures the best candidates, which takes seconds, and stores the fastest on disk.
        Later calls with the same extents, types, layouts and options use it, also without ``tune``
        and in other processes, on the same GPU and with the same version of this package.

        ``"online"`` does not wait. After 100 calls of a shape, the next calls run and time the best
        candidates in turn, and the fastest is stored. It has no effect with ``batch_invariant``, in
        a CUDA graph that is being captured, or with PyTorch's deterministic algorithms.
    **kernel_options
        Fields of the kernel's config, such as ``tile=(128, 128, 32)``; `cute_gemm.kernels` lists
        them. Six options work with every kernel that is compiled:

        - ``pack``: the operands, or block scales, that are copied to aligned scratch first:
          ``"A"``, ``"B"``, ``"AB"``, ``"scales"``, ``"none"`` or ``"auto"``. Without it,
          ``kernel="auto"`` weighs packing, and a named kernel does not pack.
        - ``split_k``: the number of slices of K, or ``"auto"``, with the same default.
        - ``batch_invariant=True``: on a GPU, a row of C has the same bits whatever the other rows
          of op(A) are, and however many. A named kernel may then pack too.
        - ``order_of_summation=plan.order_of_summation``: the result has the bits of that plan. See
          `cute_gemm.Plan`.
        - ``compile="background"``: until the selected kernel is built, a built kernel whose
          predicted time is up to 1.25 times as long computes.
        - ``prefer_loaded=0.02``: a built kernel whose predicted time is up to 2 % longer is used
          and no other is built.

    Returns
    -------
    array
        C, an array of the library of A; a tuple if the epilogue has further results.

    Raises
    ------
    GemmError
        A subclass for each cause. C is unchanged then.

    Examples
    --------
    >>> import numpy as np
    >>> A, B = np.arange(6.0).reshape(2, 3), np.ones((4, 3))
    >>> gemm("NT", A, B, backend="cpu")[:, 0]
    array([ 3., 12.])
    >>> gemm("NT", A, B, epilogue="bias+relu", bias=-np.arange(4.0), backend="cpu")[0]
    array([3., 2., 1., 0.])
    """
    if scale_a is not None or scale_b is not None:
        kernel_options |= given_scales(scale_a, scale_b)
    words = op, order, out_dtype, compute, epilogue, kernel, backend, arch
    return multiply(gemm, words, A, B, C, alpha, beta, stream, tune, kernel_options)


@overload
def grouped_gemm(
    op: str, A: NDArray[Any], B: Any, offsets: Any, C: NDArray[Any] | None = None, *,
    epilogue: str | None = None, **words: Unpack[GroupedWords],
) -> NDArray[Any]: ...  # fmt: skip


@overload
def grouped_gemm(
    op: str, A: Array, B: Any, offsets: Any, C: Array | None = None, *,
    epilogue: str | None = None, **words: Unpack[GroupedWords],
) -> Array: ...  # fmt: skip


@overload
def grouped_gemm(
    op: str, A: Any, B: Any, offsets: Any, C: Any = None, *,
    epilogue: EpilogueFunction | Callable[..., Any], **words: Any,
) -> Any: ...  # fmt: skip


def grouped_gemm(
    op: str, A: Any, B: Any, offsets: Any, C: Any = None, *, alpha: Any = 1.0, beta: Any = 0.0,
    order: Order = "F", out_dtype: Any = None, compute: str | None = None, scale_a: Any = None,
    scale_b: Any = None, epilogue: Any = None, tail: str = "unwritten", check: str = "none",
    kernel: str = "auto", backend: Backend = "auto", arch: str | None = None, stream: Any = None,
    **kernel_options: Any,
) -> Any:  # fmt: skip
    """Compute a GEMM for each of G groups, whose sizes are on the device, in one launch.

    The groups lie one after the other along M, N or K. As for ``torch._grouped_mm``, the dimensions
    of A and B say along which:

    - A 2-D and B 3-D, *ragged M*: rows of group g are ``op(A)[rows] @ op(B[g])``, and C is (M, N).
    - A 3-D and B 2-D, *ragged N*: columns of group g are ``op(A[g]) @ op(B)[:, columns]``.
    - A and B 2-D, *ragged K*: C is (G, M, N), and ``C[g]`` the product of the group's columns of
      op(A) and rows of op(B).

    Groups may be empty or of any size; where one ends need not be aligned.

    Parameters
    ----------
    op, A, B
        As for `cute_gemm.gemm`. At most one of A and B has a leading dimension of G.
    offsets
        int32 (G,), on the device of A and B: the end of each group along the ragged mode. The first
        group begins at 0, and each other group at the end of the one before. The host does not read
        offsets on a device. If they decrease or exceed the extent, the values of C are undefined,
        but no memory outside of the arrays is accessed.
    C
        (M, N) or, with a ragged K, (G, M, N). It is updated in place and returned. By default a new
        array is made. An empty group of a ragged K gives ``beta * C[g]``, which is 0 without beta.
    tail
        What rows (or columns) of C after ``offsets[-1]`` hold: ``"unwritten"`` leaves them as they
        are, so that a new C is uninitialized there; ``"zero"`` stores zeros in the same launch,
        whatever beta and the epilogue are. A ragged K has no such rows.
    check
        ``"device"`` makes offsets that decrease or exceed the extent an error. The host does not
        wait: a small kernel before the product sets a flag, and the next call with
        ``check="device"`` on the device raises OffsetsError before it computes. For arrays on the
        host, the call itself raises. ``"none"`` does not check.
    scale_a, scale_b
        As for `cute_gemm.gemm`, and the shapes below. The block scales are for 8-bit floats.

        - (G,): a scale for each group.
        - The operand whose rows are ragged (A with a ragged M): (M,) row scales, (M, K / 128) block
          scales.
        - The operand with a matrix for each group: (G, N) row scales, (G, N, K / 128) and
          (G, N / 128, K / 128) block scales; without G, all groups share them.
        - With a ragged K: (M,) row scales, (G, M) row scales of each group.

        If a shape fits several of these, row scales are taken first, then scales of groups, then
        blocks of 128 of k, then blocks of 128 x 128. A G, or 1, in front makes the shape
        unambiguous.
    alpha, beta, order, out_dtype, compute, epilogue
        As for `cute_gemm.gemm`, for the product of each group. An operand of the epilogue may be
        (G, N) or (G, 1, N), a row for each group, or broadcast to C: (N,), (M, 1) or (M, N).
    kernel, backend, arch, stream, **kernel_options
        As for `cute_gemm.gemm`.

    Returns
    -------
    array
        C, an array of the library of A; a tuple if the epilogue has further results.

    Raises
    ------
    GemmError
        A subclass for each cause. C is unchanged then.

    Examples
    --------
    >>> import numpy as np
    >>> A, B = np.ones((5, 3)), np.ones((2, 3, 4)) * [[[1]], [[10]]]
    >>> ends = np.array([2, 5], np.int32)
    >>> grouped_gemm("NN", A, B, ends, backend="cpu")[:, 0]
    array([ 3.,  3., 30., 30., 30.])
    """
    kernel_options |= given_scales(scale_a, scale_b) | {"offsets": offsets}
    words = op, order, out_dtype, compute, epilogue, kernel, backend, arch, tail, check
    return multiply(grouped_gemm, words, A, B, C, alpha, beta, stream, False, kernel_options)


def multiply(
    function: Callable[..., Any], words: tuple[Any, ...], A: Any, B: Any, C: Any, alpha: Any,
    beta: Any, stream: Any, tune: Tune, keywords: dict[str, Any],
) -> Any:  # fmt: skip
    """Compute what ``function`` is called with: `gemm` or, if it is another, `grouped_gemm`.

    ``words`` are those of `Call.of`; ``keywords`` of the latter has ``offsets``.
    """
    grouped = function is not gemm
    tracing = traced()
    seen = None if tracing else fingerprint(A, B, C, keywords)
    if tracing or (seen is None and is_operator(A, B, C, keywords)):
        if not grouped:
            return as_operator(words, A, B, C, alpha, beta, stream, {"tune": tune} | keywords)
        if tracing or differentiates(A, B, *keywords.values()):
            raise OptionError(
                "grouped_gemm() is not differentiable, and came with tensors that require grad, or "
                "within torch.compile or torch.func: call cute_gemm.torch.grouped_mm, or detach "
                "them"
            )
    if seen is not None:
        key = seen[0], words, tune
        try:
            recent = reused.recent_calls.get(key)
        except TypeError:  # an argument that has no hash: the check below says which
            recent = None
        if recent is not None:
            result = recent.again(seen[1], C, alpha, beta, stream)
            if result is not None:
                return result
    make, scalars = _planning()
    given = dict(keywords)
    ends = read_offsets(keywords.pop("offsets")) if grouped else None
    call, operands = Call.of(function, words, keywords, (plan, analyze), grouped, tune=tune)
    a, b = read(A, "A"), read(B, "B")
    c = None if C is None else read(C, "C")
    device = a.device
    problem, own = call.fuse(call.describe(a, b, c, ends), operands, device, c, ends)
    factors = scalars(alpha, beta, problem, device, c, stream)
    if device == META:
        device, call = None, replace(call, backend="cpu")
    executable = make.kept_plan(problem, device, call, tune).executable
    result = executable.run(a, b, c, *factors, stream, operands=own, numbers=own.values)
    if seen is not None and (again := executable.call(seen[0], a, b, c, own, given)) is not None:
        reused.recent_calls[key] = again
    return result


@cache
def _planning() -> tuple[Any, Any]:
    """Return `cute_gemm.plan.make` and `scalars`: they, and all that they need, are imported late.

    Importing the package takes a third of the time without.
    """
    try:
        from cute_gemm.plan import make
        from cute_gemm.plan.executable import scalars
    except ModuleNotFoundError as error:
        if str(error.name).startswith("cute_gemm"):
            raise
        raise missing(str(error.name)) from error
    return make, scalars


def recent_call(words: tuple[Any, ...], A: Any, B: Any, keywords: dict[str, Any]) -> Any:
    """Return the `RecentCall` that `multiply` kept of a call without C; None where it kept none."""
    seen = fingerprint(A, B, None, keywords)
    return None if seen is None else reused.recent_calls.get((seen[0], words, False))


@overload
def plan(
    op: str, A: Any = None, B: Any = None, C: Any = None, *,
    epilogue: str | None = None, **words: Unpack[PlanWords],
) -> Plan: ...  # fmt: skip


@overload
def plan(
    op: str, A: Any = None, B: Any = None, C: Any = None, *,
    epilogue: EpilogueFunction | Callable[..., Any], **words: Any,
) -> Plan: ...  # fmt: skip


def plan(
    op: str, A: Any = None, B: Any = None, C: Any = None, *,
    m: int | None = None, n: int | None = None, k: int | None = None, dtype: Any = None,
    l: int | None = None, lda: int | None = None, ldb: int | None = None, ldc: int | None = None,
    batch_a: int | None = None, batch_b: int | None = None, batch_c: int | None = None,
    ragged: str | None = None, base_offset: int = 0, storage: Order = "F", order: Order = "F",
    out_dtype: Any = None, compute: str | None = None, scale_a: Any = None, scale_b: Any = None,
    epilogue: Any = None, kernel: str = "auto",
    backend: Backend = "auto", arch: str | None = None, gpu: GpuLike | None = None,
    tune: Tune | Tuning = False, offsets: Any = None, tail: str = "unwritten",
    check: str = "none", **kernel_options: Any,
) -> Plan:  # fmt: skip
    """Select the kernel of a GEMM from arrays, or from sizes, without running it.

    Parameters
    ----------
    op, A, B, C, order, out_dtype, compute, scale_a, scale_b, epilogue
        As for `cute_gemm.gemm`.

        If sizes are given, a scale or an operand of the epilogue may be a shape: that of a
        row-major array of float32, or of the type of C. A scale may also be ``"tensor"``,
        ``"row"``, ``"1x128"`` or ``"128x128"``. By default ``bias`` is (N,), ``residual`` has the
        layout of C, and ``scale`` is a number.
    kernel, backend, arch, tune, **kernel_options
        As for `cute_gemm.gemm`. ``tune`` may also be a `cute_gemm.plan.tune.Tuning`.
    m, n, k, dtype, lda, ldb, ldc, storage
        Sizes in place of arrays: the extents, the element type, the leading dimensions in elements,
        and the order (``"F"`` or ``"C"``) in which A and B are stored. If A and B have different
        types, ``dtype`` is ``"float8_e4m3fn x float8_e5m2"``.
    l, batch_a, batch_b, batch_c
        For a batch: the number of products, and the elements from one stored matrix to the next, by
        default without padding. With 0, all products share A or B.
    ragged
        For a grouped GEMM of sizes: the mode along which its ``l`` groups lie, ``"M"``, ``"N"`` or
        ``"K"``. The extent of that mode is that of all groups.
    base_offset
        Elements from an aligned address to each of A, B and C, 0 or a power of two, for sizes and
        for NumPy arrays, which are copied to aligned memory. Device arrays have the alignment of
        their addresses.
    gpu
        The GPU that the config is selected for and that reports describe: a name (``"H200"``), a
        ``.toml`` or ``.json`` file, a dict, or a `Gpu`. It also sets ``arch`` if that is not given.
        By default it is the GPU of this machine if it has the architecture, or else the one that
        stands for the architecture.
    offsets
        As for `cute_gemm.grouped_gemm`, with arrays.
    tail, check
        As for `cute_gemm.grouped_gemm`, with ``offsets`` or ``ragged``.

    Returns
    -------
    Plan
        The plan. Call it with arrays to compute; see `cute_gemm.Plan`.

    Raises
    ------
    GemmError
        A subclass for each cause, such as UnsupportedError for a config that the kernel lacks.

    Examples
    --------
    >>> p = plan("TN", m=4096, n=4096, k=4096, dtype="float16", arch="sm_90a")
    >>> print(p.problem.A, p.problem.B, p.problem.C)
    (4096,4096):(4096,1) (4096,4096):(4096,1) (4096,4096):(1,4096)
    """
    kernel_options |= given_scales(scale_a, scale_b)
    words = op, order, out_dtype, compute, epilogue, kernel, backend, arch, tail, check
    sizes = {"m": m, "n": n, "k": k, "dtype": dtype}
    strides = {"lda": lda, "ldb": ldb, "ldc": ldc}
    strides |= {"batch_a": batch_a, "batch_b": batch_b, "batch_c": batch_c}
    grouped = ragged is not None or offsets is not None
    call, operands = Call.of(
        plan, words, kernel_options, (analyze,), grouped, storage=storage, dtype=dtype, tune=tune
    )
    device = None
    if A is None and B is None:
        missing = [name for name, value in sizes.items() if value is None]
        if missing:
            raise OptionError(
                f"plan() needs A and B, or m, n, k and dtype; {', '.join(missing)} is missing"
            )
        if offsets is not None:
            raise OptionError("offsets= came without A and B: give ragged= and l= in its place")
        sizes |= strides | {"l": 1 if l is None else l}
        problem, operands = call.describe_sizes(operands, ragged, storage, **sizes)
    else:
        others = {**sizes, "l": l, **strides, "ragged": ragged}
        given = [name for name, value in others.items() if value is not None]
        if given:
            raise OptionError(f"plan() takes arrays or sizes; {', '.join(given)} came with arrays")
        check_order(storage, "storage")
        a, b = read(A, "A"), read(B, "B")
        c = None if C is None else read(C, "C")
        problem = call.describe(a, b, c, None if offsets is None else read_offsets(offsets))
        device = None if a.device == META else a.device
    moved = problem.with_base_offset(base_offset)
    if moved is not problem and device is not None:
        raise OptionError(
            f"base_offset={base_offset!r} came with arrays on a device, which have addresses "
            "of their own: leave it out"
        )
    problem, _ = call.fuse(moved, operands, device)
    return _planning()[0].make_plan(problem, device, call, gpu, tune)


@overload
def analyze(
    op: str, A: Any = None, B: Any = None, C: Any = None, *,
    epilogue: str | None = None, **words: Unpack[AnalyzeWords],
) -> Report: ...  # fmt: skip


@overload
def analyze(
    op: str, A: Any = None, B: Any = None, C: Any = None, *,
    epilogue: EpilogueFunction | Callable[..., Any], **words: Any,
) -> Report: ...  # fmt: skip


def analyze(
    op: str, A: Any = None, B: Any = None, C: Any = None, *, beta: complex = 0.0,
    backend: Backend = "cpu", **keywords: Any,
) -> Report:  # fmt: skip
    """Report every memory access of the kernel that `plan` selects; nothing is compiled.

    Parameters
    ----------
    op, A, B, C, **keywords
        As for `cute_gemm.plan`: arrays, or ``m``, ``n``, ``k`` and ``dtype``, and the options of
        kernels.
    beta
        With a value other than 0, C is read too.
    backend
        As for `cute_gemm.plan`; nothing is computed.

    Returns
    -------
    Report
        The report; see `cute_gemm.Report`.

    Raises
    ------
    GemmError
        A subclass for each cause, as for `cute_gemm.plan`.

    Examples
    --------
    >>> report = analyze("TN", m=4096, n=4096, k=4096, dtype="float16", copy="mn_major")
    >>> report["A"].coalesced, report["B"].coalesced
    (False, False)
    """
    others = {x: y for x, y in keywords.items() if x not in parameters(plan)}
    others |= given_scales(keywords.get("scale_a"), keywords.get("scale_b"))
    epilogue_of(keywords.get("epilogue"), others)
    check_names(analyze, others)
    return plan(op, A, B, C, backend=backend, **keywords).report(beta=beta)


analyze.__signature__ = with_parameters_of(plan, analyze)  # type: ignore[attr-defined]


def compile(  # it is reached as cute_gemm.compile
    plans: Iterable[Plan], tell: Callable[[int, int], None] | None = None
) -> list[Build]:
    """Build the kernels of plans, several at once, into the cache; no GPU is needed.

    Two or more kernels that are in no cache are compiled by new processes, one for each core and at
    most 32. A single kernel is compiled in this process, and so are all kernels on one core. A
    script needs no ``if __name__ == "__main__"``.

    Parameters
    ----------
    plans
        Plans for any problems and architectures. Each kernel is built once.
    tell
        A function that is called with the number of kernels that are done and the number of all:
        once at the start, and after each kernel.

    Returns
    -------
    list
        The builds, in the order of the plans.

    Raises
    ------
    CompileError
        NVRTC refuses a kernel. The other kernels are built first.
    HeaderError
        Headers of CUTLASS or CUDA are missing.

    Examples
    --------
    >>> ops = [plan(op, m=64, n=64, k=64, dtype="float32", kernel="naive") for op in ("NN", "TN")]
    >>> [build.arch for build in compile(ops)]
    ['sm_80', 'sm_80']
    """
    try:
        asked = list(plans)
    except TypeError:  # one plan, say
        asked = []
        fits = False
    else:
        fits = all(hasattr(each, "steps") for each in asked)
    if not fits:
        raise OptionError(f"plans={plans!r} does not fit; expected a list of what plan() returns")
    if tell is not None and not callable(tell):
        raise OptionError(f"tell={tell!r} does not fit; expected a function of two numbers")
    from cute_gemm.plan.builds import Builds

    builds = Builds(asked)
    builds.finish(tell)
    return [builds.of(each) for each in asked]
