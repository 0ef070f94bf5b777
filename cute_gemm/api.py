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
from cute_gemm.problem.parts.groups import UNCHECKED, UNWRITTEN

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
        Two letters, A's and B's: ``N`` the matrix as stored, ``T`` its transpose, ``C`` or ``H``
        its conjugate transpose. This is BLAS's convention for the arrays as they are given.
    A, B
        (M, K) or, transposed, (K, M); (K, N) or (N, K). NumPy arrays, or device arrays of CuPy,
        PyTorch, JAX or anything with DLPack or ``__cuda_array_interface__``; one stride must be 1.
        The result of PyTorch's tensors, of which one requires grad, is differentiable in them and
        in operands of the epilogue, unless C is given.
        float16, bfloat16, float32, float64, complex64, complex128, int8, or float8_e4m3fn and
        float8_e5m2, also one with the other. With a leading dimension
        L more, L products are computed at once; an operand without it, or whose L is 1 or has the
        stride 0, is shared by all.
    C
        (M, N), or (L, M, N) of a batch, updated in place and returned; None makes a new one in A's
        library.
    alpha
        A number or a 0-d array; one on the device is read by the kernel, without a synchronisation.
        With ``alpha == 0`` A and B are not read.
    beta
        As alpha; with ``beta == 0`` C is not read.
    order
        ``"F"`` (column-major) or ``"C"``, of a new C.
    out_dtype
        Type of a new C: the operands' or, for half types, float32; of int8 int32, or
        bfloat16, float16 or float32, in which alpha and beta are float32; of 8-bit floats
        bfloat16, float16, float32 or an 8-bit float, to which results are rounded to nearest and
        saturate.
    compute
        ``"tf32"`` lets float32 operands be multiplied in tf32; ``"bf16x9"`` as sums of three
        bfloat16 each, on tensor cores of compute capability 9.0, with the accuracy of float32;
        ``"bf16x6"`` leaves the three smallest of the nine products out. Of 8-bit floats
        ``"fast_accum"`` leaves sums in the accumulators of tensor cores, which keep some 14 bits
        of them on Hopper; by default those of each 128 of k are added in float32.
    scale_a, scale_b
        Factors of op(A) and op(B), in float32: of the whole operand, a number or shape (); of rows
        of op(A), (M, 1), or columns of op(B), (N, 1); of 8-bit floats also of 128 of k of each,
        (M, K / 128) and (N, K / 128), or of blocks of 128 x 128, (M / 128, K / 128) and
        (N / 128, K / 128), rounded up, with any strides. The shape says which. In a batch they may
        have L in front.
    epilogue
        What becomes of each result before it is stored, of real floats: a name, whose parts are
        joined by ``+`` (``"bias+gelu"``), or a function of the accumulator and operands
        (`epilogue`). Its operands are keyword arguments of this call (``bias=b``): numbers,
        or arrays that broadcast to C as in NumPy, (N,), (M, 1) or (M, N), with any strides; those
        on the host that have no dimensions count as numbers. Of one that takes `pairs` or `halves`
        of columns (``"swiglu"``) C has half as many columns, and beta is 0.
    kernel, **kernel_options
        A name from `kernels`, and fields of its config. ``"host"`` is a loop on the CPU, also
        where there is a GPU. With every kernel go ``pack`` (``"A"``, ``"B"``, ``"AB"``,
        ``"scales"``, ``"none"`` or ``"auto"``: operands, or block scales, that are copied to
        aligned scratch first) and ``split_k`` (slices of K, or ``"auto"``); without them ``"auto"``
        weighs both, and a named kernel does neither.
        ``batch_invariant=True``: on a GPU a row of C has the same bits whatever the other rows of
        op(A) are and however many; see `Plan.order_of_summation`. A named kernel packs too then.
        ``order_of_summation=plan.order_of_summation``: the sums have the order, and so the bits, of
        those of another plan for such A and B.
        ``compile="background"``: a kernel that is built and predicted to take up to 1.25 times as
        long computes until the chosen one is built; ``prefer_loaded=0.02``: one that takes up to
        2 % longer is taken for good.
    backend
        ``"cuda"``, ``"cpu"`` or ``"auto"``: the CPU where there is no GPU, with a warning;
        ``"interpreter"``: the kernel itself, its PTX executed on the CPU.
    arch
        Compile for this arch rather than the device's.
    stream
        A raw ``CUstream`` or an object that has one; the library's current one if None.
    tune
        Measure which kernel is the fastest, on matrices of its own, which takes seconds, and keep
        the choice on disk: such calls take it from then on, without ``tune`` and in other processes
        too (of this GPU, this version, these extents, types, layouts and options). ``"online"``:
        nothing waits; after 100 calls of a shape the next ones run the best candidates in turns
        and are timed, and the fastest is kept, on disk too. Not with ``batch_invariant``, in a CUDA
        graph that is being captured, or with PyTorch's deterministic algorithms.

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
    scale_b: Any = None, epilogue: Any = None, tail: str = UNWRITTEN, check: str = UNCHECKED,
    kernel: str = "auto", backend: Backend = "auto", arch: str | None = None, stream: Any = None,
    **kernel_options: Any,
) -> Any:  # fmt: skip
    """Compute a GEMM for each of G groups, of sizes that are on the device, in one launch.

    The groups lie one behind the other along M, N or K, which is read from the dimensions of A and
    B as ``torch._grouped_mm`` does:

    - A 2-D and B 3-D, *ragged M*: rows of group g are ``op(A)[rows] @ op(B[g])``, and C is (M, N).
    - A 3-D and B 2-D, *ragged N*: columns of group g are ``op(A[g]) @ op(B)[:, columns]``.
    - A and B 2-D, *ragged K*: C is (G, M, N), and ``C[g]`` the product of the group's columns of
      op(A) and rows of op(B).

    Groups may be empty or of any size; where one ends need not be aligned.

    Parameters
    ----------
    op, A, B
        As for `cute_gemm.gemm`; one of A and B, or neither, has a leading dimension of G.
    offsets
        int32 (G,), where A and B are: the end of each group along the ragged mode; the first begins
        at 0, each other one where that before it ends. The host does not read what is on a device:
        what C holds is not defined if they decrease or exceed the extent, but nothing beyond the
        arrays is touched then.
    C
        As above, updated in place and returned; None makes a new one. Rows (or columns) behind
        ``offsets[-1]`` are of no group; ``tail`` says what becomes of them. An empty group of
        a ragged K gives ``beta * C[g]``, zeros without beta.
    tail
        ``"unwritten"`` leaves rows (or columns) of C behind ``offsets[-1]`` as they are, in a new C
        as the memory was. ``"zero"`` has the same launch store zeros there, whatever beta and the
        epilogue are. With a ragged K nothing lies behind, and both are the same.
    check
        ``"device"``: offsets that decrease or exceed are an error. The host does not wait: a small
        launch before the product sets a flag, and the next call with this word on the device raises
        OffsetsError, before it computes anything. Of arrays on the host the call itself raises.
        ``"none"``: nobody looks.
    scale_a, scale_b
        As for `cute_gemm.gemm`, and of groups: of the operand whose rows are ragged (A with
        a ragged M) of each row, (M,), or, of 8-bit floats, of 128 of k of each, (M, K / 128). Of
        the operand with a matrix for each group also of its rows, (G, N) or (N,), of 128 of k of
        each, (G, N, K / 128), and of blocks of 128 x 128, (G, N / 128, K / 128), without G where
        all groups share them. With a ragged K of rows, (M,), and of rows of each group, (G, M).
        (G,) has one for each group. Where a shape fits several, rows come first, then groups, then
        blocks of 128 of k, then those of 128 x 128; with G, or 1, in front there is no doubt.
    alpha, beta, order, out_dtype, compute, epilogue, kernel, backend, arch, stream, \
    **kernel_options
        As for `cute_gemm.gemm`, of each group's product. An operand of the epilogue may be
        (G, N) or (G, 1, N): a row for each group. (N,), (M, 1) and (M, N) go with C as usual.

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
    tune: Tune | Tuning = False, offsets: Any = None, tail: str = UNWRITTEN,
    check: str = UNCHECKED, **kernel_options: Any,
) -> Plan:  # fmt: skip
    """Work a GEMM out without running it: from arrays, or from BLAS's sizes.

    Parameters
    ----------
    op, A, B, C, order, out_dtype, compute, scale_a, scale_b, epilogue, kernel, \
    backend, arch, tune, **kernel_options
        As for `gemm`; ``tune`` may be a `cute_gemm.plan.tune.Tuning` that says how. With sizes, a
        scale, or an operand of the epilogue, may be a shape, of a row-major array of float32 or
        of C's type, and a scale what its numbers are of: ``"tensor"``, ``"row"``, ``"1x128"`` or
        ``"128x128"``; left out, ``bias`` is (N,), ``residual`` lies as C does, and ``scale`` is a
        number.
    m, n, k, dtype, lda, ldb, ldc, storage
        In place of arrays: extents, element type (of A and B, where these differ:
        ``"float8_e4m3fn x float8_e5m2"``), leading dimensions in elements, and the order (``"F"``
        or ``"C"``) in which A and B are stored.
    l, batch_a, batch_b, batch_c
        Of a batch: number of products, and elements from one stored matrix to the next, by default
        without padding; 0 shares A or B.
    ragged
        Of a grouped GEMM of sizes, the mode along which its ``l`` groups lie: ``"M"``, ``"N"`` or
        ``"K"``, whose extent is that of all groups.
    base_offset
        Elements from an aligned address to each of A, B and C: 0 or a power of two. For sizes, and
        for NumPy arrays: these are copied to aligned memory of a device, so that a view's own
        address means nothing there. Device arrays have the alignment of their addresses.
    gpu
        The GPU for which the config is chosen and that reports are of: a name (``"H200"``), a file
        ``.toml`` or ``.json`` that describes one, a dict of its values, or a `Gpu`. Where no
        ``arch`` is given its own is taken. By default this machine's, if it is of the arch, or the
        one that stands for the arch.
    offsets
        As for `cute_gemm.grouped_gemm`, of arrays.
    tail, check
        As for `cute_gemm.grouped_gemm`, of arrays or with ``ragged``.

    Returns
    -------
    Plan

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
    """Report every memory access of the kernel that `plan` would choose; nothing is compiled.

    Parameters
    ----------
    op, A, B, C, **keywords
        As for `plan`.
    beta
        As for `Plan.report`.
    backend
        As for `plan`; nothing is computed, whatever it is.

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

    What is in no cache is compiled by processes that are started for it, one per core and 32 at
    most, if the plans are of two kernels or more: two builds pay already for the start of two
    processes, and threads gain a factor of 1.5, however many. A single kernel, and all where there
    is one core, is compiled in this process. A script needs no ``if __name__ == "__main__"``.

    Parameters
    ----------
    plans
        Of any problems and archs; each kernel is built once.
    tell
        Called with how many kernels are done, of how many: at once, and whenever one is.

    Returns
    -------
    list
        The builds, in the order of the plans.

    Raises
    ------
    CompileError, HeaderError
        Of the first kernel that cannot be built, when the others are.

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
