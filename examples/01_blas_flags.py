"""What BLAS flags and memory orders become: the CuTe descriptors of all sixteen combinations.

The four ops, each with column-major and row-major A and B. The strides come from the arrays, so a
row-major array with op N has the descriptor of a BLAS matrix with op T: the last column names the
op that BLAS would be called with for the same memory. Every result is checked against float64.
"""

import itertools

import numpy as np

import cute_gemm as cg
from cute_gemm.problem.verify import verify

M, N, K = 192, 128, 64


def main() -> None:
    rng = np.random.default_rng(0)
    print(f"C(M,N) = op(A) op(B) with M = {M}, N = {N}, K = {K}; float32; C column-major")
    print()
    print(
        "op  A         B         A(M,K)             B(N,K)             C(M,N)             BLAS op"
    )
    names = {"F": "column", "C": "row"}
    for op, order_a, order_b in itertools.product(("NN", "NT", "TN", "TT"), "FC", "FC"):
        shape_a = (M, K) if op[0] == "N" else (K, M)
        shape_b = (K, N) if op[1] == "N" else (N, K)
        A = np.asarray(rng.standard_normal(shape_a), np.float32, order=order_a)
        B = np.asarray(rng.standard_normal(shape_b), np.float32, order=order_b)

        problem = cg.plan(op, A, B).problem
        result = cg.gemm(op, A, B)

        verdict = verify(problem, A, B, result)
        if not verdict.ok:
            raise SystemExit(f"{op}: {verdict.wrong} elements are wrong")
        print(
            f"{op}  {names[order_a]:<8}  {names[order_b]:<8}  {problem.A!s:<17}  "
            f"{problem.B!s:<17}  {problem.C!s:<17}  {problem.blas_op}"
        )
    print()
    print("all sixteen results are within the float32 error bound of a float64 reference")
    print("beware: what DeepGEMM calls nt (A and B both K-major) is TN here and in BLAS")


if __name__ == "__main__":
    main()
