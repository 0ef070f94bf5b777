"""Test ``read`` for arrays of each library, with fakes of PyTorch, CuPy and JAX."""

import subprocess
import sys
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from fake_arrays import FakeCupy, FakeTensor, fake_torch
from hypothesis import given, settings
from hypothesis import strategies as st

import cute_gemm as cg
from cute_gemm.arrays import ADAPTERS, fingerprint, host_array, read
from cute_gemm.arrays.base import Operand, dtype_name
from cute_gemm.dtypes import DTYPES
from cute_gemm.errors import ArrayError, ReadOnlyError, ScalarError, ShapeError, StrideError
from cute_gemm.problem.overlap import overlap
from cute_gemm.problem.scalars import scalar


class Parameter(FakeTensor):
    pass


def new_matrix(like, *given):
    """Return a new array of the library of an operand."""
    return ADAPTERS[like.library].new(like, *given)


class Exporter:
    """An array of another library."""

    def __init__(self, array, device=(1, 0)):
        self.array, self.device = array, device

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)


def facts(found):
    return found.shape, found.strides, found.dtype, found.device, found.library, found.readonly


@pytest.mark.parametrize(
    ("array", "strides"),
    [
        (np.zeros((3, 5), order="F"), (1, 3)), (np.zeros((3, 5)), (5, 1)),
        (np.zeros((8, 9), order="F")[2:5, 1:6], (1, 8)), (np.zeros((8, 9))[2:5, 1:6], (9, 1)),
        (np.zeros((6, 10))[::2, ::2], (20, 2)), (np.zeros((3, 5))[::-1], (-5, 1)),
    ],
)  # fmt: skip
def test_numpy_strides_and_address(array, strides):
    found = read(array, "A")
    assert facts(found) == ((3, 5), strides, "float64", None, "numpy", False)
    assert found.pointer == array.ctypes.data
    assert host_array(found) is array


@pytest.mark.parametrize(
    "dtype",
    [
        "float16", "float32", "float64", "int8", "complex64", "complex128", "bfloat16",
        "float8_e4m3fn",
    ],
)  # fmt: skip
def test_numpy_dtypes(dtype):
    kind = getattr(ml_dtypes, dtype, None) or dtype
    found = read(np.zeros((2, 3), kind), "A")
    assert (found.dtype, found.strides) == (dtype, (3, 1))


def test_numpy_other_byte_order_is_another_type():
    assert read(np.zeros((2, 2), np.dtype("f4").newbyteorder()), "A").dtype != "float32"


def test_numpy_readonly():
    array = np.zeros((2, 2))
    array.flags.writeable = False
    assert read(array, "C").readonly


def test_numpy_subclasses():
    assert read(np.zeros((2, 2)).view(np.recarray), "A").library == "numpy"
    with pytest.raises(ArrayError, match=r"A is a masked array.*A\.filled"):
        read(np.ma.zeros((2, 2)), "A")


def test_strides_between_elements():
    records = np.zeros((2, 4), np.dtype([("x", "f4"), ("y", "i1")]))
    with pytest.raises(StrideError, match=r"B has strides \(20, 5\) in bytes.*4-byte.*B\.copy"):
        read(records["x"], "B")


@pytest.mark.parametrize("shape", [(), (3,)])
def test_not_a_matrix(shape):
    with pytest.raises(ShapeError, match=r"B has shape .*matrix.*reshape") as caught:
        read(np.zeros(shape), "B")
    assert str(shape) in str(caught.value)


class SciPys:
    """A sparse array, which is not an array but can be converted to one."""

    def toarray(self):
        raise AssertionError("the caller's to decide")


@pytest.mark.parametrize(
    ("thing", "end"),
    [
        ([[1.0]], r": np\.asarray\(A\) makes one"),
        (np.float32(1), r": np\.asarray\(A\) makes one"), (SciPys(), r": A\.toarray\(\) makes one"),
        (None, ""), ("A", ""), (3, ""), (object(), ""),
    ],
)  # fmt: skip
def test_not_an_array(thing, end):
    """Test that the message names a conversion, if there is one."""
    with pytest.raises(ArrayError, match=rf"^A is a \w+\.\w+; expected .*_interface__{end}$"):
        read(thing, "A")


def test_what_jax_traces_has_no_memory():
    class Tracer:
        """A tracer, whose ``__array__`` raises."""

        def __array__(self):
            raise TypeError

    Tracer.__module__ = "jax._src.core"
    Traced = type("DynamicJaxprTracer", (Tracer,), {})
    message = r"is traced by JAX \(jit, grad, vmap, \.\.\.\) .* call cute_gemm\.jax\.gemm"
    with pytest.raises(ArrayError, match=f"^A {message}"):
        read(Traced(), "A")
    with pytest.raises(ScalarError, match=f"^alpha {message}"):
        scalar(Traced(), "alpha", "float32", None)


def test_torch_on_a_gpu():
    tensor = FakeTensor(ordinal=3)
    found = read(tensor, "A")
    assert facts(found) == ((4, 6), (1, 4), "float16", 3, "torch", False)
    assert found.pointer == 0x7000
    assert found.owner is tensor


def test_torch_subclass_is_read_as_torch():
    assert read(Parameter(), "A").library == "torch"


def test_class_of_the_same_name_elsewhere_is_not_torch():
    kind = type("Tensor", (), {})
    kind.__module__ = "torchlike.core"
    with pytest.raises(ArrayError, match=r"torchlike\.core\.Tensor"):
        read(kind(), "A")


def test_torch_on_the_host():
    array = np.arange(24, dtype=np.float32).reshape(4, 6)
    tensor = FakeTensor(array.ctypes.data, (4, 6), (6, 1), "float32", "cpu")
    found = read(tensor, "A")
    assert (found.device, found.library, found.dtype) == (None, "torch", "float32")
    seen = host_array(found)
    assert np.shares_memory(seen, array) and np.array_equal(seen, array)


def test_torch_bfloat16_on_the_host():
    array = np.array([[1.5, -2.0]], ml_dtypes.bfloat16)
    tensor = FakeTensor(array.ctypes.data, (1, 2), (2, 1), "bfloat16", "cpu")
    seen = host_array(read(tensor, "A"))
    assert seen.dtype == ml_dtypes.bfloat16
    assert np.shares_memory(seen, array)
    assert seen.tolist() == [[1.5, -2.0]]


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (FakeTensor(place="mps"), r"A is a tensor on .*mps.*A\.cuda\(\)"),
        (FakeTensor(batched=True), r"A is a tensor without its own memory, as in torch\.vmap"),
        (FakeTensor(layout="torch.sparse_coo"), r"sparse_coo.*A\.to_dense\(\)"),
        (FakeTensor(lazy="conj"), r"A is a view whose conj bit is set.*pass A\.resolve_conj\(\)"),
        (FakeTensor(lazy="neg"), r"A is a view whose neg bit is set.*pass A\.resolve_neg\(\)"),
    ],
)
def test_torch_refused(tensor, message):
    with pytest.raises(ArrayError, match=message):
        read(tensor, "A")


@pytest.mark.parametrize("place", range(3))
def test_what_requires_grad_is_taken_where_no_gradient_is_kept(monkeypatch, place):
    wanted = True
    torch = fake_torch(is_grad_enabled=lambda: wanted)
    monkeypatch.setitem(sys.modules, "torch", torch)
    tensors = [FakeTensor(), FakeTensor(), FakeTensor()]
    plain = fingerprint(*tensors)
    tensors[place] = parameter = Parameter(requires_grad=True)
    with pytest.raises(
        ArrayError, match=r"^B requires grad .* B\.detach\(\), or call it under tor"
    ):
        read(parameter, "B")
    # A fingerprint without gradients is not valid with them.
    assert fingerprint(*(FakeTensor(requires_grad=True) for _ in range(3))) is None
    wanted = False
    assert read(parameter, "B").shape == (4, 6)
    assert plain is not None and fingerprint(*(FakeTensor(requires_grad=True),) * 3)


@pytest.mark.parametrize(("lazy", "dtype"), [("conj", "complex64"), ("neg", "float16")])
def test_a_lazy_view_is_not_taken_for_what_it_views(lazy, dtype):
    """Test conjugated and negated views. Plans skip checks of known fingerprints."""
    tensor, again = (FakeTensor(dtype=dtype) for _ in range(2))
    view = FakeTensor(dtype=dtype, lazy=lazy)
    seen = fingerprint(tensor, tensor, tensor)
    assert seen is not None and seen == fingerprint(again, again, again)
    for others in ((view, tensor, tensor), (tensor, view, tensor), (tensor, tensor, view)):
        assert fingerprint(*others) is None
    assert fingerprint(tensor, tensor, None) is not None
    assert fingerprint(view, tensor, None) is None


@pytest.mark.parametrize("place", range(3))
def test_what_has_no_fingerprint_is_read(place):
    for other in (FakeTensor(layout="torch.sparse_coo"), FakeCupy(), np.zeros((4, 6))):
        arrays = [FakeTensor(), FakeTensor(), FakeTensor()]
        arrays[place] = other
        assert fingerprint(*arrays) is None


@pytest.mark.parametrize("place", range(3))
def test_a_tensor_whose_storage_was_freed_has_no_fingerprint(place):
    """Test a tensor with the same layout as others, but an address of 0."""
    tensors = [FakeTensor(), FakeTensor(), FakeTensor()]
    assert fingerprint(*tensors) is not None
    tensors[place] = FakeTensor(0)
    assert fingerprint(*tensors) is None
    assert fingerprint(*[FakeTensor()] * 3, {"bias": FakeTensor(0)}) is None


@pytest.mark.parametrize("kind", [FakeCupy, FakeTensor])
def test_a_fingerprint_has_all_that_a_plan_depends_on(kind):
    """Test that a change of one property of any operand changes the fingerprint."""

    def made(at=0x9000, device=2, strides=None, **given):
        if kind is FakeTensor:
            return FakeTensor(at, ordinal=device, strides=strides or (1, 4), **given)
        array = FakeCupy(at, device=device, **given)
        array.strides = strides or array.strides
        return array

    same, moved = made(), made(at=0x9100)
    facts = (
        {"at": 0x9010}, {"shape": (4, 5)}, {"strides": (2, 16)}, {"dtype": "float32"},
        {"device": 1},
    )  # fmt: skip
    for count in (2, 3):
        rest = [None] * (3 - count)
        expected, _ = fingerprint(*[same] * count, *rest)
        for place in range(count):
            arrays = [same] * count
            arrays[place] = moved  # equally aligned
            found, addresses = fingerprint(*arrays, *rest)
            assert found == expected and addresses[place] == 0x9100
            for fact in facts:
                arrays[place] = made(**fact)
                assert fingerprint(*arrays, *rest)[0] != expected, (place, fact)


def test_cupy():
    found = read(FakeCupy(device=2), "B")
    assert facts(found) == ((4, 6), (1, 4), "float16", 2, "cupy", False)
    assert found.pointer == 0x9000


def test_dlpack_on_the_host_is_numpy_without_a_copy():
    array = np.zeros((3, 5), order="F")
    found = read(Exporter(array), "A")
    assert facts(found)[:5] == ((3, 5), (1, 3), "float64", None, "numpy")
    assert found.pointer == array.ctypes.data
    assert host_array(found).ctypes.data == array.ctypes.data


def test_dlpack_that_fails_says_why():
    exporter = Exporter(None)
    with pytest.raises(
        ArrayError, match=r"A, a .*Exporter, does not export.*np\.asarray"
    ) as caught:
        read(exporter, "A")
    assert isinstance(caught.value.__cause__, AttributeError)


@pytest.mark.parametrize(
    ("module", "library", "readonly"),
    [("jaxlib._jax", "jax", True), ("numba.cuda", "dlpack", False)],
)
@pytest.mark.parametrize("protocol", ["__dlpack_device__", "__cuda_array_interface__"])
def test_other_device_arrays(monkeypatch, module, library, readonly, protocol):
    utils = pytest.importorskip("cuda.core.utils")
    asked = []

    class View:
        @staticmethod
        def from_any_interface(array, stream_ptr):
            asked.append(stream_ptr)
            if "cuda" in protocol:
                assert array.__cuda_array_interface__["version"] == 3
            return SimpleNamespace(
                ptr=0x4000, shape=(4, 6), strides=(6, 1), dtype=np.dtype("f4"), device_id=1,
                readonly=False,
            )  # fmt: skip

    monkeypatch.setattr(utils, "StridedMemoryView", View)
    exported = property(lambda self: {"version": 2}) if "cuda" in protocol else lambda self: (2, 1)
    kind = type("Array", (), {protocol: exported})
    kind.__module__ = module
    found = read(kind(), "A")
    assert facts(found) == ((4, 6), (6, 1), "float32", 1, library, readonly)
    assert asked == [1]  # the legacy default stream, on which the kernel runs
    assert ADAPTERS[library].stream(found)() == 0
    assert ADAPTERS[library].synchronizes


def test_streams(monkeypatch):
    torch = fake_torch(lambda d: 1000 + d)
    cuda = SimpleNamespace(get_current_stream=lambda d: SimpleNamespace(ptr=2000 + d))
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda))
    arrays = FakeTensor(ordinal=3), FakeCupy(device=2), FakeTensor(place="cpu"), np.eye(2)
    found = [read(x, "A") for x in arrays]
    assert [ADAPTERS[x.library].stream(x)() for x in found] == [1003, 2002, 0, 0]
    assert not any(ADAPTERS[x.library].synchronizes for x in found)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int32"])
@pytest.mark.parametrize(("order", "strides"), [("F", (1, 4)), ("C", (3, 1))])
def test_new_numpy_matrix(dtype, order, strides):
    made = read(new_matrix(read(np.eye(2), "A"), (4, 3), order, dtype), "C")
    assert facts(made) == ((4, 3), strides, dtype, None, "numpy", False)


@pytest.mark.parametrize(
    ("shape", "order", "strides"),
    [((4, 3), "F", (1, 4)), ((4, 3), "C", (3, 1)), ((0, 3), "F", (1, 1)), ((4, 0), "C", (1, 1))],
)
def test_new_torch_matrix(monkeypatch, shape, order, strides):
    made = fake_torch(
        float16="half", empty_strided=lambda *given, dtype, device: (*given, dtype, device)
    )
    monkeypatch.setitem(sys.modules, "torch", made)
    assert new_matrix(read(FakeTensor(ordinal=3), "A"), shape, order, "float16") == (
        shape, strides, "half", 3,
    )  # fmt: skip


def test_new_cupy_matrix_is_made_on_the_device_of_the_operand(monkeypatch):
    current = [0]

    class Device:
        def __init__(self, ordinal):
            self.ordinal = ordinal

        def __enter__(self):
            current.append(self.ordinal)

        def __exit__(self, *_):
            current.pop()

    def empty(shape, dtype, order):
        return shape, dtype, order, current[-1]

    cupy = SimpleNamespace(cuda=SimpleNamespace(Device=Device), empty=empty)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    made = new_matrix(read(FakeCupy(device=2), "A"), (4, 3), "F", "float32")
    assert made == ((4, 3), np.dtype("f4"), "F", 2)


def test_new_jax_matrix_is_complete(monkeypatch):
    def empty(shape, dtype, device):
        return SimpleNamespace(block_until_ready=lambda: (shape, dtype, device))

    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(numpy=SimpleNamespace(empty=empty)))
    like = Operand(0, (2, 2), (2, 1), "float32", 0, "jax", SimpleNamespace(device="gpu0"), True)
    assert new_matrix(like, (4, 3), "F", "float32") == ((4, 3), "float32", "gpu0")
    assert ADAPTERS["jax"].new_order("F") == "C"


@pytest.fixture
def jax(monkeypatch):
    """Emulate JAX on the CPU: read-only arrays for NumPy, and functions that create them."""

    class Array:
        def __init__(self, array):
            self.array = np.array(array, order="C")
            self.array.flags.writeable = False

        def __dlpack_device__(self):
            return 1, 0

        def __dlpack__(self, **options):
            raise BufferError("no bfloat16")

        def __array__(self, dtype=None, copy=None):
            return self.array

    Array.__module__ = "jaxlib._jax"
    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(numpy=SimpleNamespace(asarray=Array)))
    return Array


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "complex128"])
def test_jax_on_the_host(jax, dtype):
    kind = DTYPES[dtype].numpy
    A, B = (jax(np.arange(12).reshape(shape).astype(kind)) for shape in ((4, 3), (3, 4)))
    found = read(A, "A")
    assert facts(found) == ((4, 3), (3, 1), dtype, None, "jax", True) and found.owner is A
    for C in (cg.gemm("NN", A, B, backend="cpu"), cg.plan("NN", A, B, backend="cpu")(A, B)):
        assert type(C) is jax and C.array.dtype == kind and C.array.flags.c_contiguous
        assert (C.array.astype(complex) == (A.array @ B.array).astype(kind).astype(complex)).all()
    assert type(cg.gemm("NN", A, B.array, backend="cpu")) is jax
    assert type(cg.gemm("NN", A.array, B, backend="cpu")) is np.ndarray
    assert type(cg.gemm("NN", jax(np.ones((0, 3), kind)), B, backend="cpu")) is jax
    with pytest.raises(ReadOnlyError, match="immutable, as all arrays of JAX are.* take gemm"):
        cg.gemm("NN", A, B, C, backend="cpu")


def test_new_matrix_of_an_unknown_library():
    like = Operand(0, (2, 2), (2, 1), "float32", 0, "dlpack", Exporter(None), False)
    with pytest.raises(ArrayError, match=r"Exporter.*pass a C of shape \(4, 3\) and dtype float32"):
        new_matrix(like, (4, 3), "F", "float32")


@pytest.mark.parametrize(
    "spelled",
    [
        "float16",
        np.float16,
        np.dtype("float16"),
        type("d", (), {"__str__": lambda s: "t.float16"})(),
    ],
)
def test_dtype_names(spelled):
    assert dtype_name(spelled) == "float16"


def test_operand_says_where_it_is_and_not_what_is_in_it():
    assert read(FakeTensor(ordinal=3), "A").place == "CUDA device 3 (torch)"
    found = read(np.full((2, 2), 77.0), "A")
    assert found.place == "the host (numpy)"
    assert "77" not in repr(found).replace(str(found.pointer), "")


regions = st.builds(
    lambda start, rows, columns, ld, transposed, wide: Operand(
        0x10000 + start, (columns, rows) if transposed else (rows, columns),
        (ld, 1) if transposed else (1, ld), "float32" if wide else "int8", 0, "torch", None, False,
    ),
    st.integers(0, 60), st.integers(0, 6), st.integers(0, 6), st.integers(0, 12), st.booleans(),
    st.booleans(),
)  # fmt: skip


def addresses(found):
    size = 4 if found.dtype == "float32" else 1
    i, j, byte = np.ogrid[: found.shape[0], : found.shape[1], :size]
    return set((found.pointer + (i * found.strides[0] + j * found.strides[1]) * size + byte).flat)


@settings(max_examples=300, deadline=None)
@given(regions, regions)
def test_overlap_is_exact(a, b):
    assert overlap(a, b) == bool(addresses(a) & addresses(b))


def test_overlap_of_blocks_of_one_large_buffer():
    def block(start, ld):
        return Operand(
            0x7F0000000000 + 2 * start, (2000, 4000), (1, ld), "float16", 0, "", 0, False
        )

    assert not overlap(block(0, 4001), block(2000, 4001))
    assert overlap(block(0, 4001), block(1999, 4001))
    assert overlap(block(0, 4001), block(2000, 4002))


def test_no_array_library_is_imported():
    script = (
        "import sys, cute_gemm.problem.reference\n"
        "print([m for m in ('torch', 'cupy', 'jax', 'ml_dtypes', 'cuda.core') if m in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
