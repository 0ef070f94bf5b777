"""Test ``kernel="cublas"`` and its calls, with a model of cublasGemmEx in NumPy."""

import ctypes
import itertools
import threading
import time
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cases import configure, in_threads, stored_shapes, used
from numpy.lib.stride_tricks import as_strided

import cute_gemm as cg
from cute_gemm.arch import Arch
from cute_gemm.arrays import read
from cute_gemm.errors import NoGpuError, OptionError, UnsupportedError
from cute_gemm.kernels.config import NothingToChoose
from cute_gemm.kernels.library import cublas
from cute_gemm.kernels.library import kernel as library
from cute_gemm.plan import reused
from cute_gemm.problem.describe import from_operands, from_sizes
from cute_gemm.problem.scalars import Scalar
from cute_gemm.problem.verify import verify
from cute_gemm.run import driver, memory

M, N, K = 5, 4, 3
OPS = ["".join(letters) for letters in itertools.product("NTC", repeat=2)]
TYPES = {0: "f4", 1: "f8", 4: "c8", 5: "c16"}
COMPUTE = {"f4": 68, "f8": 70, "c8": 68, "c16": 70}
NOT_SUPPORTED = 15
CONFIG, ARCH = NothingToChoose("cublas"), "sm_90a"


class Model:
    """A model of cuBLAS as documented, for matrices in host memory."""

    def __init__(self) -> None:
        self.stream, self.mode = 0, 0
        self.settings: list[tuple[str, int]] = []
        self.calls: list[tuple[int, int]] = []  # stream and pointer mode of each call
        self.batches: list[int] = []
        self.handles = 0
        self.code = 0

    def cublasCreate_v2(self, handle: Any) -> int:
        self.handles += 1
        handle._obj.value = self.handles
        return 0

    def cublasSetStream_v2(self, handle: ctypes.c_void_p, stream: int) -> int:
        self.settings.append(("stream", stream))
        self.stream = stream
        return 0

    def cublasSetPointerMode_v2(self, handle: ctypes.c_void_p, mode: int) -> int:
        time.sleep(0)  # other threads may run, as during a call of a library
        self.settings.append(("mode", mode))
        self.mode = mode
        return 0

    def cublasGetStatusString(self, code: int) -> bytes:
        return b"it is a model"

    def cublasGemmEx_64(
        self, handle, operation_a, operation_b, m, n, k, alpha, a, type_a, lda, b, type_b, ldb,
        beta, c, type_c, ldc, compute, algorithm,
    ) -> int:  # fmt: skip
        return self.gemm(
            (operation_a, operation_b), (m, n, k), alpha, (a, type_a, lda, 0), (b, type_b, ldb, 0),
            beta, (c, type_c, ldc, 0), 1, compute, algorithm,
        )  # fmt: skip

    def cublasGemmStridedBatchedEx_64(
        self, handle, operation_a, operation_b, m, n, k, alpha, a, type_a, lda, stride_a,
        b, type_b, ldb, stride_b, beta, c, type_c, ldc, stride_c, batch, compute, algorithm,
    ) -> int:  # fmt: skip
        self.batches.append(batch)
        return self.gemm(
            (operation_a, operation_b), (m, n, k), alpha, (a, type_a, lda, stride_a),
            (b, type_b, ldb, stride_b), beta, (c, type_c, ldc, stride_c), batch, compute, algorithm,
        )  # fmt: skip

    def gemm(
        self, operations, extents, alpha, of_a, of_b, beta, of_c, batch, compute, algorithm
    ) -> int:
        (operation_a, operation_b), (m, n, k) = operations, extents
        (a, type_a, lda, _), (b, type_b, ldb, _), (c, type_c, ldc, _) = of_a, of_b, of_c
        self.calls.append((self.stream, self.mode))
        if self.code:
            return self.code
        kind = TYPES[type_a]
        assert (type_b, type_c, algorithm) == (type_a, type_a, -1) and compute == COMPUTE[kind]

        def stored(pointer: int, rows: int, columns: int, ld: int) -> np.ndarray:
            assert ld >= max(1, rows)
            size = np.dtype(kind).itemsize
            count = ld * (columns - 1) + rows if rows and columns else 0
            flat = np.frombuffer((ctypes.c_char * (count * size)).from_address(pointer), kind)
            return as_strided(flat, (rows, columns), (size, size * ld))

        def factor(pointer: int) -> Any:
            size = np.dtype(kind).itemsize
            return np.frombuffer((ctypes.c_char * size).from_address(pointer), kind)[0]

        def operand(pointer: int, operation: int, rows: int, columns: int, ld: int) -> np.ndarray:
            if operation == 0:
                return stored(pointer, rows, columns, ld)
            matrix = stored(pointer, columns, rows, ld).T
            return matrix.conj() if operation == 2 else matrix

        for i in range(batch):
            at = [
                x + i * step * np.dtype(kind).itemsize
                for x, step in ((a, of_a[3]), (b, of_b[3]), (c, of_c[3]))
            ]
            out = stored(at[2], m, n, ldc)
            scaled = factor(beta) * out if factor(beta) != 0 else np.zeros_like(out)
            left, right = (
                operand(at[0], operation_a, m, k, lda),
                operand(at[1], operation_b, k, n, ldb),
            )
            out[...] = factor(alpha) * (left @ right) + scaled
        return 0


@contextmanager
def in_place(array: np.ndarray, device: int = 0) -> Any:
    """Yield a device buffer that is the host array itself."""
    yield SimpleNamespace(pointer=array.ctypes.data)


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Model:
    """Emulate a GPU and cuBLAS in host memory."""
    made = Model()
    inside: list[int] = []

    @contextmanager
    def entered(device: int) -> Any:
        inside.append(device)
        yield
        inside.pop()

    def load() -> Model:
        assert inside, "a handle belongs to the context in which it is made"
        return made

    monkeypatch.setattr(cublas, "_load", load)
    monkeypatch.setattr(library, "_handles", {})
    monkeypatch.setattr(library, "entered", entered)
    monkeypatch.setattr(driver, "entered", entered)
    monkeypatch.setattr(driver, "why_no_gpu", lambda: None)
    monkeypatch.setattr(driver, "device_arch", lambda device: Arch("sm_90a"))
    monkeypatch.setattr(driver, "device_name", lambda device: "NVIDIA H200")
    monkeypatch.setattr(driver, "multiprocessors", lambda device: 132)
    for name in ("upload", "allocate_like"):
        monkeypatch.setattr(memory, name, in_place)
    monkeypatch.setattr(memory, "download", lambda buffer, array: None)
    monkeypatch.setattr(reused, "plans", {})
    return made


def matrix(shape: tuple[int, int], order: str, dtype: str = "c16", seed: int = 0) -> np.ndarray:
    """Return a random matrix with elements between its columns, or rows."""
    rng = np.random.default_rng([seed, *shape])
    inner, outer = shape if order == "F" else shape[::-1]
    numbers = rng.standard_normal((outer, inner + 2)) + 1j * rng.standard_normal((outer, inner + 2))
    view = numbers.astype(dtype) if "c" in dtype else numbers.real.astype(dtype)
    view = view[:, :inner]
    return view.T if order == "F" else view


def pair(op: str, orders: str, dtype: str = "c16", sizes: Any = (M, N, K)) -> Any:
    a, b = stored_shapes(op, *sizes)
    return matrix(a, orders[0], dtype, 1), matrix(b, orders[1], dtype, 2)


# Calls --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("orders", list(map("".join, itertools.product("FC", repeat=3))))
@pytest.mark.parametrize("op", [*OPS, "HN", "TH"])
def test_complex_ops_in_every_order(model: Model, op: str, orders: str) -> None:
    A, B = pair(op, orders)
    C = matrix((M, N), orders[2])
    alpha, beta = 2 - 1j, -0.5j
    expected = alpha * used(A, op[0]) @ used(B, op[1]) + beta * C
    # BLAS cannot conjugate without a transpose, and a row-major C exchanges A and B.
    lost = [name for name, i in (("A", 0), ("B", 1)) if op[i] in "CH" and orders[i] != orders[2]]
    before = C.copy()
    if lost:
        with pytest.raises(UnsupportedError, match=r"conjugates only with a transpose, and [AB]"):
            cg.gemm(op, A, B, C, alpha=alpha, beta=beta, kernel="cublas")
        assert (before == C).all() and not model.calls
    else:
        assert cg.gemm(op, A, B, C, alpha=alpha, beta=beta, kernel="cublas") is C
        np.testing.assert_allclose(C, expected, rtol=1e-13)


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
def test_types(model: Model, dtype: str) -> None:
    A, B = pair("CT", "FF", dtype)
    C = cg.gemm("CT", A, B, alpha=3, kernel="cublas", backend="cuda")
    problem = from_operands("CT", read(A, "A"), read(B, "B"), read(C, "C"))
    assert C.dtype == dtype and verify(problem, A, B, C, alpha=3).ok


@pytest.mark.parametrize("sizes", [(M, N, 1), (1, N, K), (M, 1, K), (1, 1, 1), (M, N, 0)])
@pytest.mark.parametrize("op", OPS)
def test_vectors_can_be_conjugated(model: Model, op: str, sizes: tuple[int, int, int]) -> None:
    """Test vectors, whose descriptors do not show whether they are transposed."""
    for order in "FC":
        A, B = (np.array(x, order=order) for x in pair(op, order * 2, sizes=sizes))
        C = cg.gemm(op, A, B, order=order, kernel="cublas")
        np.testing.assert_allclose(C, used(A, op[0]) @ used(B, op[1]), rtol=1e-13)


@pytest.mark.parametrize("shared", ["", "A", "B"])
@pytest.mark.parametrize("order", ["F", "C"])
@pytest.mark.parametrize("op", ["NN", "TN", "CT"])
def test_a_batch_is_one_call(model: Model, op: str, order: str, shared: str) -> None:
    """Test strides of the arrays, 0 for a shared operand, and interleaved matrices of C."""
    pairs = [pair(op, order * 2, sizes=(M, N, K)) for _ in range(3)]
    A, B = (np.stack([p[i] * (j + 1) for j, p in enumerate(pairs)]) for i in (0, 1))
    A, B = A[1] if shared == "A" else A, B[2] if shared == "B" else B
    C = np.full((M, 3, N) if order == "C" else (N, 3, M), np.nan, "c16")
    C = C.swapaxes(0, 1) if order == "C" else C.transpose(1, 2, 0)
    expected = 2j * np.matmul(*(
        np.stack([used(x, letter) for x in X]) if X.ndim == 3 else used(X, letter)
        for X, letter in ((A, op[0]), (B, op[1]))
    ))  # fmt: skip
    lost = [i for i in (0, 1) if op[i] == "C" and (A, B)[i].strides[-1] == 16 and order == "F"]
    if lost:
        with pytest.raises(UnsupportedError, match="conjugates only with a transpose"):
            cg.gemm(op, A, B, C, alpha=2j, kernel="cublas")
        return
    assert cg.gemm(op, A, B, C, alpha=2j, kernel="cublas") is C
    np.testing.assert_allclose(C, expected, rtol=1e-13)
    assert model.batches == [3] and len(model.calls) == 1


def test_a_batch_of_one_or_none(model: Model) -> None:
    A, B = pair("NN", "FF")
    assert cg.gemm("NN", A[None], B, kernel="cublas").shape == (1, M, N)
    assert not model.batches and len(model.calls) == 1
    assert cg.gemm("NN", np.stack([A] * 2)[:0], B, kernel="cublas").shape == (0, M, N)
    assert len(model.calls) == 1


@pytest.mark.parametrize("sizes", [(0, N, K), (M, 0, K), (0, 0, 0)])
def test_nothing_to_do(model: Model, sizes: tuple[int, int, int]) -> None:
    A, B = pair("CC", "FF", sizes=sizes)
    assert cg.gemm("CC", A, B, kernel="cublas").shape == sizes[:2]
    assert not model.calls


def test_k_of_0_makes_nothing_of_an_infinite_alpha(model: Model) -> None:
    C = matrix((M, N), "F")
    before = C.copy()
    A, B = pair("NN", "FF", sizes=(M, N, 0))
    cg.gemm("NN", A, B, C, alpha=np.inf, beta=2, kernel="cublas")
    np.testing.assert_array_equal(C, 2 * before)


def test_a_broadcast_operand_is_refused(model: Model) -> None:
    row = np.broadcast_to(np.ones(K), (M, K))
    with pytest.raises(UnsupportedError, match=r"leading dimension.* A is \(5,3\):\(0,1\)"):
        cg.gemm("NN", row, np.ones((K, N)), kernel="cublas")


# The handle ---------------------------------------------------------------------------------------


def number(value: complex) -> tuple[int, Any]:
    """Return the address of a number on the device, and the object that owns it."""
    kept = np.array(value, "c16")
    return kept.ctypes.data, kept


def test_stream_and_pointer_mode_are_set_when_they_change(model: Model) -> None:
    A, B, C = (matrix((M, M), "F", seed=i) for i in range(3))
    problem = from_operands("NN", read(A, "A"), read(B, "B"), read(C, "C"))
    handle = library.CublasLibrary()
    alpha, kept = number(2j)
    on_host = handle.bind(CONFIG, problem, ARCH, 0)
    on_device = handle.bind(CONFIG, problem, ARCH, 0, Scalar(1, alpha), Scalar(1, alpha))
    addresses = tuple(x.ctypes.data for x in (A, B, C))
    on_host(addresses)
    on_host(addresses, 7)
    on_host(addresses, 7)
    on_device(addresses, 7)
    on_device(addresses, 9)
    on_host(addresses)
    assert model.calls == [(0, 0), (7, 0), (7, 0), (7, 1), (9, 1), (0, 0)]
    assert len(model.settings) == 2 * 4
    assert model.handles == 1
    assert kept == 2j


def test_one_scalar_on_the_device_takes_the_other_there(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test that the other scalar is copied there, because cuBLAS takes one pointer mode."""
    copies: list[np.ndarray] = []

    def upload(array: np.ndarray, device: int) -> Any:
        copies.append(array.copy())
        return SimpleNamespace(pointer=copies[-1].ctypes.data)

    waits: list[int] = []
    monkeypatch.setattr(cublas, "upload", upload)
    monkeypatch.setattr(cublas, "synchronize", waits.append)
    A, B = pair("NT", "FF")
    for alpha_there, beta_there in ((True, False), (False, True), (True, True)):
        C = matrix((M, N), "F")
        expected = 2j * A @ B.T + (3 - 1j) * C
        (alpha, kept), (beta, kept_too) = number(2j), number(3 - 1j)
        problem = from_operands("NT", read(A, "A"), read(B, "B"), read(C, "C"))
        start = library.CublasLibrary().bind(
            CONFIG, problem, ARCH, 0, Scalar(1, alpha) if alpha_there else Scalar(2j),
            Scalar(1, beta) if beta_there else Scalar(3 - 1j),
        )  # fmt: skip
        start(tuple(x.ctypes.data for x in (A, B, C)))
        np.testing.assert_allclose(C, expected, rtol=1e-13)
        assert model.mode == 1
        del kept, kept_too
    assert len(copies) == 2 and waits == [0, 0]


def test_threads_share_one_handle_and_no_call(model: Model) -> None:
    """Test that the stream of a thread is the stream of its own call."""
    A, B = pair("NN", "FF")
    C = matrix((M, N), "F")
    problem = from_operands("NN", read(A, "A"), read(B, "B"), read(C, "C"))
    start = threading.Barrier(4)
    wrong: list[tuple[int, int]] = []
    original = model.cublasGemmEx_64
    mine = threading.local()

    def checked(*arguments: Any) -> int:
        if model.stream != mine.stream:
            wrong.append((model.stream, mine.stream))
        return original(*arguments)

    model.cublasGemmEx_64 = checked  # type: ignore[method-assign]

    def work(stream: int) -> None:
        mine.stream = stream
        out = matrix((M, N), "F")
        start.wait(timeout=30)
        call = library.CublasLibrary().bind(CONFIG, problem, ARCH, 0)
        for _ in range(100):
            call((A.ctypes.data, B.ctypes.data, out.ctypes.data), stream)

    in_threads(work, (1, 2, 3, 4))
    assert model.handles == 1 and len(model.calls) == 400 and not wrong


def test_what_cublas_refuses_is_said(model: Model) -> None:
    A, B = pair("NN", "FF")
    for code, message in ((NOT_SUPPORTED, "does not support NN of complex128"), (7, "NN.*a model")):
        model.code = code
        with pytest.raises(UnsupportedError, match=message):
            cg.gemm("NN", A, B, kernel="cublas")


# The kernel ---------------------------------------------------------------------------------------


def test_no_cublas_is_one_sentence(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise cublas.CublasError("no cuBLAS found")

    monkeypatch.setattr(cublas, "_load", missing)
    A, B = pair("NN", "FF")
    C = matrix((M, N), "F")
    before = C.copy()
    with pytest.raises(UnsupportedError, match="no cuBLAS found"):
        cg.gemm("NN", A, B, C, kernel="cublas")
    assert (before == C).all()


def test_a_missing_library_names_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    pathfinder = pytest.importorskip("cuda.pathfinder")

    def missing(name: str) -> None:
        raise pathfinder.DynamicLibNotFoundError(name)

    monkeypatch.setattr(pathfinder, "load_nvidia_dynamic_lib", missing)
    with pytest.raises(UnsupportedError, match="no cuBLAS found.*pip install nvidia-cublas"):
        cublas.Cublas()


def test_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "why_no_gpu", lambda: "there is none")
    A, B = pair("NN", "FF")
    for function in (cg.gemm, cg.plan):
        with pytest.raises(NoGpuError, match="kernel='cublas' needs a GPU: there is none; kernel="):
            function("NN", A, B, kernel="cublas")
    plan = cg.plan("NN", A, B, kernel="cublas", backend="cpu")  # for inspection only
    C = np.full((M, N), 3 + 0j, order="F")
    with pytest.raises(UnsupportedError, match="'cublas' computes only on a GPU and backend is"):
        plan(A, B, C)
    with pytest.raises(UnsupportedError, match="'cublas' computes only on a GPU and backend is"):
        cg.gemm("NN", A[:0], B, kernel="cublas", backend="cpu")
    assert (C == 3).all()


def test_nothing_is_known_of_it() -> None:
    plan = cg.plan("NT", m=8, n=8, k=8, dtype="complex64", kernel="cublas", backend="cpu")
    assert (plan.kernel, plan.symbol, plan.compiled) == ("cublas", "cublas", False)
    for name in ("unit", "source", "ptx", "sass", "cubin", "build", "resources", "launch"):
        with pytest.raises(UnsupportedError, match="NVIDIA's library.*take another kernel"):
            getattr(plan, name)
    with pytest.raises(UnsupportedError, match="accesses are not known"):
        cg.analyze("NT", m=8, n=8, k=8, dtype="float32", kernel="cublas")


def test_it_has_no_options_and_needs_sm_80() -> None:
    sizes: dict[str, Any] = {"m": 8, "n": 8, "k": 8, "dtype": "float32", "backend": "cpu"}
    with pytest.raises(
        OptionError, match="option 'tile' is not one of kernel 'cublas'; expected none"
    ):
        cg.plan("NN", kernel="cublas", tile=(64, 64, 8), **sizes)
    with pytest.raises(UnsupportedError, match="sm_75"):
        cg.plan("NN", kernel="cublas", arch="sm_75", **sizes)


def test_every_type_has_a_number() -> None:
    kernel = library.CublasLibrary()
    for name in kernel.dtypes:
        dtype, _, compute = name.partition("/")
        problem = from_sizes("NN", m=8, n=8, k=8, dtype=dtype, compute=compute or None)
        assert configure(kernel, problem, "sm_80").name == "cublas"
