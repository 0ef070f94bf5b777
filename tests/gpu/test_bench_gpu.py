"""The cuBLAS that results are timed against computes the same; skipped where there is none."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from cute_gemm import runtime
from cute_gemm.atoms import DTYPES
from cute_gemm.cublas import Cublas, CublasError
from cute_gemm.devices import entered
from cute_gemm.operand import read
from cute_gemm.problem import from_operands
from cute_gemm.verify import verify

pytestmark = pytest.mark.gpu

M, N, K = 72, 40, 56


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int8"])
@pytest.mark.parametrize("op", ["NN", "NT", "TN", "TT"])
def test_cublas_computes_the_same(op, dtype):
    rng = np.random.default_rng(0)
    numpy = DTYPES[dtype].numpy
    for orders in itertools.product("FC", repeat=3):
        A = np.asarray(3 * rng.standard_normal((M, K) if op[0] == "N" else (K, M))).astype(numpy)
        B = np.asarray(3 * rng.standard_normal((K, N) if op[1] == "N" else (N, K))).astype(numpy)
        A, B = np.asarray(A, order=orders[0]), np.asarray(B, order=orders[1])
        C = np.zeros((M, N), DTYPES[DTYPES[dtype].outputs[0]].numpy, order=orders[2])
        problem = from_operands(op, read(A, "A"), read(B, "B"), read(C, "C"))
        with entered(0), runtime.upload(A) as a, runtime.upload(B) as b, runtime.upload(C) as c:
            try:
                with Cublas() as blas:
                    blas.bind(problem, a.pointer, b.pointer, c.pointer, 1, 0)()
                    runtime.download(c, C)
            except CublasError as error:
                pytest.skip(str(error))
        assert verify(problem, A, B, C).ok
