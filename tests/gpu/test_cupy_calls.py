"""Test the calls that CuPy's ``cublas.gemm`` supports: types, ops, orders, kinds of scalars."""

from itertools import product
from typing import Any

import numpy as np
import pytest

import cute_gemm as cg
from cute_gemm.arrays import read
from cute_gemm.problem.describe import from_operands
from cute_gemm.problem.verify import verify

M, N, K = 21, 34, 55
#: A type of the matrices, and another type of the scalars.
TYPES = {
    "float32": "float64", "float64": "float32", "complex64": "complex128",
    "complex128": "complex64",
}  # fmt: skip
OPS = ["".join(op) for op in product("NTC", repeat=2)]
ORDERS = [*product("FC", repeat=3)]
#: Library of alpha and beta; "other" is the second type of ``TYPES``.
SCALARS = (
    ("python", "python"), ("numpy", "numpy"), ("numpy other", "numpy other"), ("cupy", "cupy"),
    ("cupy other", "cupy other"), ("cupy", "python"), ("numpy", "cupy other"),
)  # fmt: skip


def matrix(rows: int, columns: int, dtype: str, order: str) -> np.ndarray:
    random = np.random.default_rng([rows, columns])
    parts = random.standard_normal((2, rows, columns))
    values = parts[0] + 1j * parts[1] if dtype[0] == "c" else parts[0]
    return np.asarray(values.astype(dtype), order=order)  # type: ignore[call-overload]


@pytest.mark.parametrize("dtype", TYPES)
def test_each_of_504(dtype: str) -> None:
    """Test nine ops, eight orders and seven kinds of scalars. C is read and written in place."""
    cupy = pytest.importorskip("cupy")
    alpha, beta = (1.5 - 0.5j, -0.25 + 2j) if dtype[0] == "c" else (1.5, -0.25)

    def given(value: complex, kind: str) -> Any:
        library, _, other = kind.partition(" ")
        if library == "python":
            return value
        array = np.array(value, TYPES[dtype] if other else dtype)
        return cupy.asarray(array) if library == "cupy" else array

    hosts = {
        (op, orders): (
            matrix(*((M, K) if op[0] == "N" else (K, M)), dtype, orders[0]),
            matrix(*((K, N) if op[1] == "N" else (N, K)), dtype, orders[1]),
            matrix(M, N, dtype, orders[2]),
        )
        for op, orders in product(OPS, ORDERS)
    }
    there = {at: [cupy.array(x, order="K") for x in arrays] for at, arrays in hosts.items()}
    cg.compile([cg.plan(op, *there[op, orders]) for op, orders in there])
    calls = 0
    for (op, orders), kinds in product(hosts, SCALARS):
        A, B, old = hosts[op, orders]
        C = cupy.array(old, order="K")
        factors = {"alpha": given(alpha, kinds[0]), "beta": given(beta, kinds[1])}
        assert cg.gemm(op, *there[op, orders][:2], C, **factors) is C
        problem = from_operands(op, read(A, "A"), read(B, "B"), read(old, "C"))
        verdict = verify(problem, A, B, cupy.asnumpy(C, order="A"), C=old, alpha=alpha, beta=beta)
        assert verdict.ok, (op, orders, kinds, verdict)
        calls += 1
    assert calls == 504
