"""Test arrays of every library: used in place, on their stream, with results of that library."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from cases import PLAIN, TYPES, Case, narrow, operands, placed
from foreign_arrays import Capsule, Interface, assert_product
from gemm_cases import Builds

import cute_gemm as cg
from cute_gemm.arrays import read
from cute_gemm.dtypes import DTYPES
from cute_gemm.errors import ArrayError, GemmError, ReadOnlyError, ShapeError
from cute_gemm.problem.describe import from_operands
from cute_gemm.problem.verify import verify

M, N, K = 65, 63, 127
#: Kernels of column-major and of row-major arrays, whose BLAS-equivalent ops differ.
KERNELS: list[Case] = [
    narrow("sm80_pipeline", name, op, None, order)
    for name in ("float32", "float16")
    for op in ("TN", "NT")
    for order in ("F", "C")
] + [narrow("sm80_pipeline", name, op) for name in PLAIN for op in ("NN", "TT")]

#: Clock cycles that keep a stream busy, about 90 ms: a result without a wait is wrong.
BUSY = 150_000_000


pair = partial(operands, mnk=(M, N, K))


@pytest.fixture(scope="module", autouse=True)
def built(builds: Builds, arch: str) -> None:
    """Compile all kernels of this module into the cache."""
    for case in KERNELS:
        builds.wait(case.plan(arch))


# NumPy --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["F", "C"])
@pytest.mark.parametrize("op", ["NN", "TT"])
@pytest.mark.parametrize("name", PLAIN)
def test_numpy(name: str, op: str, order: str) -> None:
    t = TYPES[name]
    A, B = pair(op, t.dtype, order)
    a, b = A.copy(), B.copy()
    C = cg.gemm(op, A, B, compute=t.compute, backend="cuda")
    assert type(C) is np.ndarray and C.dtype == DTYPES[t.out].numpy
    assert C.flags.f_contiguous
    problem = from_operands(op, read(A, "A"), read(B, "B"), compute=t.compute)
    assert verify(problem, A, B, C).ok
    assert np.array_equal(A, a) and np.array_equal(B, b)


def test_numpy_in_place() -> None:
    A, B = pair("TN")
    frame = np.full((M + 5, N + 2), 7.5, "f4", order="F")
    C = frame[2 : M + 2, 1 : N + 1]
    C[...] = placed((M, N), "float32", "F")[0]
    old = C.copy()
    assert cg.gemm("TN", A, B, C, alpha=-0.5, beta=2.0, backend="cuda") is C
    assert_product("TN", A, B, C, C=old, alpha=-0.5, beta=2.0)
    outside = np.ones(frame.shape, bool)
    outside[2 : M + 2, 1 : N + 1] = False
    assert (frame[outside] == 7.5).all()


def test_numpy_does_not_read_c_without_beta() -> None:
    A, B = pair("TN")
    C = np.full((M, N), np.nan, "f4")
    assert cg.gemm("TN", A, B, C, backend="cuda") is C
    assert_product("TN", A, B, C)


@pytest.mark.parametrize("order", ["F", "C"])
def test_numpy_order_of_a_new_c(order: str) -> None:
    A, B = pair("NT")
    C = cg.gemm("NT", A, B, order=order, backend="cuda")
    assert C.flags.f_contiguous == (order == "F") and C.flags.c_contiguous == (order == "C")
    assert_product("NT", A, B, C)


# PyTorch ------------------------------------------------------------------------------------------


def on_torch(array: np.ndarray) -> Any:
    return torch.from_numpy(array).cuda()


@pytest.mark.parametrize("rows", ["C", "F"])
@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64", "int8"])
def test_torch(name: str, rows: str) -> None:
    kind = getattr(torch, name)
    A = torch.randint(-9, 10, (M, K), device="cuda").to(kind)
    B = torch.randint(-9, 10, (N, K), device="cuda").to(kind)
    if rows == "F":
        A, B = A.T.contiguous().T, B.T.contiguous().T
    C = cg.gemm("NT", A, B)
    assert isinstance(C, torch.Tensor) and C.device == A.device
    assert C.dtype == getattr(torch, TYPES[name].out) and C.stride() == (1, M)
    assert torch.equal(C, (A.double() @ B.double().T).to(C.dtype))


def test_torch_in_place_and_parameters() -> None:
    A, B = torch.ones(K, M, device="cuda"), torch.ones(K, N, device="cuda")
    C = torch.full((M, N), 2.0, device="cuda")
    address = C.data_ptr()
    assert cg.gemm("TN", A, B, C, beta=3) is C
    assert C.data_ptr() == address and (C == K + 6).all()
    # A parameter is a subclass of Tensor. One that requires grad cannot be C.
    parameter = torch.nn.Parameter(A)
    assert cg.gemm("TN", parameter, B).requires_grad
    with torch.no_grad():
        assert (cg.gemm("TN", parameter, B) == K).all()
    with pytest.raises(ArrayError, match="detach"):
        cg.gemm("TN", parameter, B, C)


@pytest.mark.parametrize("library", ["torch", "cupy"])
def test_a_new_c_each_time(library: str) -> None:
    """Test that repeated calls with the same arrays return different results."""
    pytest.importorskip(library)
    A, B = pair("NT")
    a, b = (on_torch(x) if library == "torch" else on_cupy(x) for x in (A, B))
    plan = cg.plan("NT", a, b)
    for call in (lambda: cg.gemm("NT", a, b), lambda: plan(a, b)):
        results = [call() for _ in range(3)]
        assert len({id(x) for x in results}) == 3
        assert len({read(x, "C").pointer for x in results}) == 3
        for x in results:
            assert_product("NT", A, B, x.cpu().numpy() if library == "torch" else x.get())


def test_torch_on_the_host() -> None:
    """Test tensors that are copied to the device and back, as NumPy arrays are."""
    A, B = (torch.from_numpy(x) for x in pair("TN"))
    C = cg.gemm("TN", A, B, backend="cuda")
    assert isinstance(C, torch.Tensor) and C.device.type == "cpu"
    assert_product("TN", A.numpy(), B.numpy(), C.numpy())


@pytest.mark.parametrize("how", ["current", "object", "handle"])
def test_torch_on_a_side_stream(how: str) -> None:
    """Test calls without synchronization. The data arrive late in the stream."""
    numpys = pair("TN")
    real = [torch.from_numpy(x.T.copy()).cuda().T for x in numpys]
    late = [torch.full_like(x, torch.nan) for x in real]
    C = torch.full((N, M), torch.nan, device="cuda").T
    cg.gemm("TN", *real, C.clone())  # load the kernel before the race
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(BUSY)
        for target, source in zip(late, real, strict=True):
            target.copy_(source)
        if how == "current":
            cg.gemm("TN", *late, C)
    if how == "object":
        cg.gemm("TN", *late, C, stream=side)
    elif how == "handle":
        cg.gemm("TN", *late, C, stream=side.cuda_stream)
    assert not side.query()  # the host did not wait
    with torch.cuda.stream(side):
        result = C.clone()
    side.synchronize()
    assert_product("TN", *numpys, result.cpu().numpy())


def test_a_plan_follows_the_current_stream() -> None:
    """Test one plan on two streams, each time after pending work."""
    A, B = torch.ones(K, M, device="cuda"), torch.ones(K, N, device="cuda")
    C = torch.zeros(M, N, device="cuda")
    plan = cg.plan("TN", A, B, C)
    plan(A, B, C)
    torch.cuda.synchronize()
    for value, stream in enumerate((torch.cuda.Stream(), torch.cuda.Stream()), 2):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(BUSY)
            A.fill_(value)
            plan(A, B, C)
        assert not stream.query()
        stream.synchronize()
        assert (value * K == C).all()


def negative(x: Any) -> Any:
    """Return a lazily negated view of other memory, with the layout of x."""
    return torch.zeros_like(x, dtype=torch.complex64).conj().imag.as_strided(x.shape, x.stride())


@pytest.mark.parametrize("which", range(3), ids="ABC".__getitem__)
@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.resize_(64, 65), lambda x: x.set_(x.new_zeros(64, 70)),
        lambda x: x.requires_grad_(), lambda x: x.as_strided_((32, 32), (64, 2)),
        lambda x: setattr(x, "data", negative(x)), lambda x: setattr(x, "data", x.double()),
    ],
    ids=["resize_", "set_", "requires_grad_", "as_strided_", "negative", "double"],
)  # fmt: skip
def test_a_tensor_that_was_changed_in_place_is_refused(
    change: Callable[[Any], Any], which: int
) -> None:
    """Test tensors that change after three calls with them."""
    tensors = [torch.ones(64, 64, device="cuda") for _ in range(3)]
    calls: list[Callable[..., Any]] = [cg.plan("NN", *tensors), partial(cg.gemm, "NN")]
    for call in calls * 3:
        call(*tensors)
    change(tensors[which])
    for call in calls:
        with pytest.raises(GemmError):
            call(*tensors)


def test_a_tensor_that_was_turned_or_moved_in_place_is_taken_as_it_is() -> None:
    A, B = (torch.randint(-4, 5, (64, 64), device="cuda").float() for _ in "AB")
    C = torch.zeros(64, 64, device="cuda")
    plan = cg.plan("NN", A, B, C)
    for _ in range(3):
        plan(A, B, C)
        cg.gemm("NN", A, B, C)
    A.t_()
    with pytest.raises(ShapeError, match="A is"):
        plan(A, B, C)
    assert torch.equal(cg.gemm("NN", A, B, C), A @ B)
    A.t_()
    B.data, C.data = B + 1, torch.zeros_like(C)
    for beta in (0.0, 1.0, 1.0, 0.0):
        expected = A @ B + beta * C
        assert torch.equal(plan(A, B, C, beta=beta), expected)
        C.zero_()
        assert torch.equal(cg.gemm("NN", A, B, C, beta=beta), A @ B)


# CuPy ---------------------------------------------------------------------------------------------


def on_cupy(array: np.ndarray) -> Any:
    """Return a copy on the device, in the same order."""
    cupy = pytest.importorskip("cupy")
    return cupy.array(array, order="F" if array.flags.f_contiguous else "C")


@pytest.mark.parametrize("order", ["F", "C"])
@pytest.mark.parametrize("name", ["float16", "float32", "float64", "int8"])
def test_cupy(name: str, order: str) -> None:
    cupy = pytest.importorskip("cupy")
    A, B = pair("NN", name, order)
    C = cg.gemm("NN", on_cupy(A), on_cupy(B))
    assert isinstance(C, cupy.ndarray) and C.device.id == 0 and C.flags.f_contiguous
    assert_product("NN", A, B, cupy.asnumpy(C))


def test_cupy_in_place() -> None:
    cupy = pytest.importorskip("cupy")
    A, B = pair("TN")
    old = placed((M, N), "float32", "F")[0]
    C = on_cupy(old)
    assert cg.gemm("TN", on_cupy(A), on_cupy(B), C, beta=-0.5) is C
    assert_product("TN", A, B, cupy.asnumpy(C), C=old, beta=-0.5)


#: Waits until a word of host memory is set, or for about 5 s.
HOLD = """extern "C" __global__ void hold(int const volatile* released) {
  for (long long const end = clock64() + 10000000000ll; !*released && clock64() < end;) {}
}"""


@contextmanager
def held(stream: Any) -> Iterator[None]:
    """Keep a stream busy until the end of the block."""
    import cupy

    memory = cupy.cuda.alloc_pinned_memory(4)
    released = np.frombuffer(memory, np.int32, 1)
    released[0] = 0
    hold = cupy.RawKernel(HOLD, "hold")
    with stream:
        hold((1,), (1,), (np.uint64(memory.ptr),))
    try:
        yield
    finally:
        released[0] = 1
        stream.synchronize()


@pytest.mark.parametrize("how", ["current", "object"])
def test_cupy_on_a_stream(how: str) -> None:
    cupy = pytest.importorskip("cupy")
    A, B = pair("TN")
    real = [on_cupy(A), on_cupy(B)]
    late = [on_cupy(np.full_like(x, np.nan)) for x in (A, B)]
    C = on_cupy(np.full((M, N), np.nan, "f4", order="F"))
    cg.gemm("TN", *real, C.copy(order="K"))  # compile the kernel that the held call launches
    cupy.cuda.Device().synchronize()
    side = cupy.cuda.Stream(non_blocking=True)
    with held(side):
        with side:
            for target, source in zip(late, real, strict=True):
                target.data.copy_from_device_async(source.data, source.nbytes, side)
            if how == "current":
                cg.gemm("TN", *late, C)
        if how == "object":
            cg.gemm("TN", *late, C, stream=side)
        assert not side.done
    assert_product("TN", A, B, cupy.asnumpy(C))


# JAX ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "int8"])
def test_jax(name: str) -> None:
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip("JAX was installed without CUDA")
    A, B = pair("NT", name, "C")
    a, b = jax.numpy.asarray(A), jax.numpy.asarray(B)
    C = cg.gemm("NT", a, b)
    assert isinstance(C, jax.Array) and C.device == a.device
    assert C.dtype == DTYPES[TYPES[name].out].numpy
    assert_product("NT", A, B, np.asarray(C))
    # JAX operations on the result are right as well: it is complete when JAX gets it.
    assert np.array_equal(np.asarray(C.T + 0), np.asarray(C).T)


def test_jax_computes_its_operands_first() -> None:
    """Test operands that JAX may still be computing, on a stream that it does not expose."""
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip("JAX was installed without CUDA")
    A, B = pair("NT", "float32", "C")

    @jax.jit
    def slow(x: Any) -> Any:
        """Return the same matrix, after 300 dependent products that no compiler can simplify."""
        turn = jax.numpy.eye(2048)[::-1]
        start = jax.numpy.eye(2048) * jax.numpy.where(x[0, 0] == x[0, 0], 1.0, 0.0)
        step = jax.lax.fori_loop(0, 300, lambda _, y: turn @ y, start)
        return x * step[0, 0]  # reversed 300 times: 1

    a, b = jax.numpy.asarray(A), jax.numpy.asarray(B)
    slow(a).block_until_ready()
    C = cg.gemm("NT", slow(a), b)
    assert_product("NT", A, B, np.asarray(C))


def test_a_jax_array_is_not_written_to() -> None:
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip("JAX was installed without CUDA")
    A, B = (jax.numpy.asarray(x) for x in pair("NT", order="C"))
    C = jax.numpy.zeros((M, N), "float32")
    with pytest.raises(ReadOnlyError, match="C .jax. is immutable"):
        cg.gemm("NT", A, B, C)
    assert not np.asarray(C).any()


# Anything else ------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrap", [Capsule, Interface])
def test_other_libraries(wrap: Callable[[Any], Any]) -> None:
    A, B = pair("TN")
    a, b = (torch.from_numpy(x.T.copy()).cuda().T for x in (A, B))
    c = torch.full((N, M), torch.nan, device="cuda").T
    C = wrap(c)
    assert cg.gemm("TN", wrap(a), wrap(b), C) is C
    assert_product("TN", A, B, c.cpu().numpy())
    with pytest.raises(ArrayError, match="which cannot be made here"):
        cg.gemm("TN", wrap(a), wrap(b))


def test_dlpack_waits_for_the_producer() -> None:
    """Test DLPack with the legacy stream: the exporter makes it wait for its own stream."""
    A, B = pair("TN")
    real = [torch.from_numpy(x.T.copy()).cuda().T for x in (A, B)]
    late = [torch.full_like(x, torch.nan) for x in real]
    C = torch.full((N, M), torch.nan, device="cuda").T
    cg.gemm("TN", *(Capsule(x) for x in real), Capsule(C.clone()))
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(BUSY)
        for target, source in zip(late, real, strict=True):
            target.copy_(source)
        cg.gemm("TN", *(Capsule(x) for x in late), Capsule(C))
        result = C.cpu().numpy()
    assert_product("TN", A, B, result)


def test_libraries_mixed() -> None:
    """Test operands of two libraries on one device. The result is an array of A's library."""
    cupy = pytest.importorskip("cupy")
    A, B = pair("TN")
    a, b = torch.from_numpy(A.T.copy()).cuda().T, on_cupy(B)
    torch.cuda.synchronize()
    cupy.cuda.Device().synchronize()
    C = cg.gemm("TN", a, b)
    assert isinstance(C, torch.Tensor)
    assert_product("TN", A, B, C.cpu().numpy())
    C = cg.gemm("NT", b.T, a.T)
    assert isinstance(C, cupy.ndarray)
    assert_product("NT", B.T, A.T, cupy.asnumpy(C))
