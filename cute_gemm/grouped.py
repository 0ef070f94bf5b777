"""``grouped_gemm``: a GEMM of each of several groups, whose sizes are on the device."""

from __future__ import annotations

from typing import Any

from cute_gemm.api import multiply, with_fast_accum
from cute_gemm.arrays.base import Order
from cute_gemm.call import Backend, given_scales


def grouped_gemm(
    op: str, A: Any, B: Any, offsets: Any, C: Any = None, *, alpha: Any = 1.0, beta: Any = 0.0,
    order: Order = "F", out_dtype: Any = None, compute: str | None = None, scale_a: Any = None,
    scale_b: Any = None, fast_accum: bool | None = None, epilogue: Any = None,
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
        ``offsets[-1]`` are of no group: they are not written, in a new C neither. An empty group of
        a ragged K gives ``beta * C[g]``, zeros without beta.
    scale_a, scale_b
        As for `cute_gemm.gemm`, and of groups: of the operand whose rows are ragged (A with
        a ragged M) of each row, (M,), or, of 8-bit floats, of 128 of k of each, (M, K / 128). Of
        the operand with a matrix for each group also of its rows, (G, N) or (N,), of 128 of k of
        each, (G, N, K / 128), and of blocks of 128 x 128, (G, N / 128, K / 128), without G where
        all groups share them. With a ragged K of rows, (M,), and of rows of each group, (G, M).
        (G,) has one for each group. Where a shape fits several, rows come first, then groups, then
        blocks of 128 of k, then those of 128 x 128; with G, or 1, in front there is no doubt.
    alpha, beta, order, out_dtype, compute, fast_accum, epilogue, kernel, backend, arch, stream, \
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
    compute = with_fast_accum(compute, fast_accum)
    kernel_options |= given_scales(scale_a, scale_b) | {"offsets": offsets}
    words = op, order, out_dtype, compute, epilogue, kernel, backend, arch
    return multiply(grouped_gemm, words, A, B, C, alpha, beta, stream, False, kernel_options)
