"""Test the toy kernel on a device. It consists of a template, a module and a registry entry."""

import numpy as np
import pytest
from cases import OPS

import cute_gemm as cg
from cute_gemm.kernels import registry
from cute_gemm.problem.verify import verify


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("order", ["F", "C"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gemm(op, order, dtype, monkeypatch):
    monkeypatch.setitem(registry.KERNELS, "toy", ("toy_kernel", "Toy"))
    rng = np.random.default_rng(0)
    m, n, k = 70, 9, 13
    A = np.asfortranarray(rng.random((m, k) if op[0] == "N" else (k, m)).astype(dtype))
    B = np.asfortranarray(rng.random((k, n) if op[1] == "N" else (n, k)).astype(dtype))
    C = rng.random((m, n)).astype(dtype, order=order)
    before = C.copy(order="K")
    plan = cg.plan(op, A, B, C, kernel="toy", backend="cuda")
    cg.gemm(op, A, B, C, alpha=2, beta=-0.5, kernel="toy", backend="cuda")
    assert verify(plan.problem, A, B, C, C=before, alpha=2, beta=-0.5).ok
    C[...] = np.nan  # must not be read
    assert verify(plan.problem, A, B, plan(A, B, C)).ok
    batch = np.stack([A, -A])
    found = cg.gemm(op, batch, B, kernel="toy", backend="cuda")
    np.testing.assert_array_equal(found[1], -found[0])
