"""The comparison's arithmetic, and the call of cuBLAS against a model of it in NumPy."""

from __future__ import annotations

import ctypes
import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from cute_gemm import bench, cublas
from cute_gemm.operand import read
from cute_gemm.problem import from_operands

M, N, K = 5, 4, 3


def model_of_gemm_ex(
    handle, trans_a, trans_b, m, n, k, alpha, a, type_a, lda, b, type_b, ldb, beta, c, type_c, ldc,
    compute, algorithm,
) -> int:  # fmt: skip
    """The cublasGemmEx for float64 on host memory, as its documentation has it."""
    assert (type_a, type_b, type_c, compute, algorithm) == (1, 1, 1, 70, -1)

    def stored(pointer: int, rows: int, columns: int, ld: int) -> np.ndarray:
        assert ld >= rows
        count = ld * (columns - 1) + rows
        flat = np.frombuffer((ctypes.c_double * count).from_address(pointer))
        return np.lib.stride_tricks.as_strided(flat, (rows, columns), (8, 8 * ld))

    left = stored(a, k, m, lda).T if trans_a else stored(a, m, k, lda)
    right = stored(b, n, k, ldb).T if trans_b else stored(b, k, n, ldb)
    out = stored(c, m, n, ldc)
    factors = [ctypes.c_double.from_address(x).value for x in (alpha, beta)]
    out[...] = factors[0] * (left @ right) + factors[1] * out
    return 0


@pytest.fixture
def blas() -> cublas.Cublas:
    """A handle whose library is the model."""
    made = cublas.Cublas.__new__(cublas.Cublas)
    made._handle = ctypes.c_void_p()
    made._library = SimpleNamespace(cublasGemmEx_64=model_of_gemm_ex)
    return made


def padded(rng, rows: int, columns: int, order: str) -> np.ndarray:
    if order == "F":
        return rng.standard_normal((columns, rows + 2)).T[:rows]
    return rng.standard_normal((rows, columns + 3))[:, :columns]


@pytest.mark.parametrize("op", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("orders", list(itertools.product("FC", repeat=3)))
def test_cublas_is_asked_for_the_same_gemm(blas, op, orders):
    rng = np.random.default_rng(0)
    A = padded(rng, *((M, K) if op[0] == "N" else (K, M)), orders[0])
    B = padded(rng, *((K, N) if op[1] == "N" else (N, K)), orders[1])
    C = padded(rng, M, N, orders[2])
    problem = from_operands(op, read(A, "A"), read(B, "B"), read(C, "C"))
    left, right = (A if op[0] == "N" else A.T), (B if op[1] == "N" else B.T)
    expected = 2 * left @ right - 0.5 * C

    blas.bind(problem, A.ctypes.data, B.ctypes.data, C.ctypes.data, 2, -0.5)()

    np.testing.assert_allclose(C, expected, rtol=1e-13)


def test_what_cublas_refuses_is_said(blas):
    blas._library = SimpleNamespace(cublasGemmEx_64=lambda *_: 15)
    x = np.ones((2, 2))
    problem = from_operands("NN", read(x, "A"), read(x, "B"))
    with pytest.raises(cublas.CublasError, match="does not support NN of float64"):
        blas.bind(problem, 0, 0, 0, 1, 0)()


class Mark:
    """An event on such a device."""

    def __init__(self, clock):
        self.clock = clock
        self.at = 0.0

    def record(self):
        self.at = self.clock.now

    def synchronize(self):
        pass

    def since(self, earlier):
        return self.at - earlier.at


class Clock:
    """A device whose calls take known times, and which gets slower."""

    def __init__(self, monkeypatch):
        from cute_gemm import runtime

        self.now = 0.0
        self.calls: list[str] = []
        monkeypatch.setattr(runtime, "Event", lambda device: Mark(self))
        monkeypatch.setattr(runtime, "synchronize", lambda device: None)

    def work(self, name: str, milliseconds: float):
        def call():
            self.calls.append(name)
            self.now += milliseconds * (1 + len(self.calls) / 100)

        return call


def test_the_ratio_is_of_neighbours_in_time(monkeypatch):
    clock = Clock(monkeypatch)
    ours, theirs = clock.work("ours", 2.0), clock.work("theirs", 1.0)
    timing = bench._interleave(10**9, ours, theirs, 8, 0, "13.1")
    assert timing.ratio == pytest.approx(0.5, abs=0.02)  # though the clock slowed down by half
    assert timing.calls == 5
    assert timing.teraflops == pytest.approx(1 / timing.milliseconds)
    assert "0.5" in str(timing)
    assert "cuBLAS 13.1" in str(timing)


def test_without_cublas_there_is_no_ratio(monkeypatch):
    clock = Clock(monkeypatch)
    timing = bench._interleave(10**9, clock.work("ours", 2.0), None, 3, 0, "no cuBLAS found")
    assert timing.ratio is timing.cublas_milliseconds is None
    assert timing.milliseconds > 0
    assert "no cuBLAS found" in str(timing)
    assert set(timing.to_dict()) >= {"milliseconds", "teraflops", "ratio"}
