"""Test descriptors against the elements that they address, and all checks of arguments."""

import dataclasses
import itertools
from decimal import Decimal
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from cases import OPS, problem_of, stored_shapes
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

from cute_gemm import errors
from cute_gemm.arrays import read
from cute_gemm.arrays.base import Operand
from cute_gemm.dtypes import DTYPES
from cute_gemm.problem.describe import from_operands, from_sizes
from cute_gemm.problem.matrix import Matrix
from cute_gemm.problem.scalars import Scalar, check_beta, scalar


def stored(shape, order="F", pad=0, dtype=np.float32):
    """Return a matrix whose leading dimension is ``pad`` longer than the minimum."""
    rows, columns = shape
    if order == "F":
        return np.zeros((rows + pad, columns), dtype, order="F")[:rows]
    return np.zeros((rows, columns + pad), dtype)[:, :columns]


def on_gpu(shape=(4, 6), strides=(1, 4), dtype="float16", pointer=0x10000, **more):
    facts = {"device": 0, "library": "torch", "owner": None, "readonly": False, **more}
    return Operand(pointer, shape, strides, dtype, **facts)


# --- descriptors ----------------------------------------------------------------------------------

# The table of the project's conventions, m, n, k = 5, 7, 3 and ld = 10, 20, 30.
BLAS_TABLE = {
    "NT": ("(5,3):(1,10)", "(7,3):(1,20)", "(5,7):(1,30)"),
    "TN": ("(5,3):(10,1)", "(7,3):(20,1)", "(5,7):(1,30)"),
    "NN": ("(5,3):(1,10)", "(7,3):(20,1)", "(5,7):(1,30)"),
    "TT": ("(5,3):(10,1)", "(7,3):(1,20)", "(5,7):(1,30)"),
}


@pytest.mark.parametrize("op", OPS)
def test_blas_storage(op):
    problem = from_sizes(op, m=5, n=7, k=3, dtype="float32", lda=10, ldb=20, ldc=30)
    assert (str(problem.A), str(problem.B), str(problem.C)) == BLAS_TABLE[op]
    assert problem.blas_op == op
    assert problem.flops == 2 * 5 * 7 * 3


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_complex_problems(dtype):
    for op in ("".join(letters) for letters in itertools.product("NTCH", repeat=2)):
        problem = from_sizes(op, m=5, n=7, k=3, dtype=dtype, lda=10, ldb=20, ldc=30)
        as_real = op.translate(str.maketrans("CH", "TT"))
        assert (str(problem.A), str(problem.B), str(problem.C)) == BLAS_TABLE[as_real]
        assert (problem.op, problem.blas_op) == (op, as_real)
        assert (problem.A.conj, problem.B.conj) == (op[0] in "CH", op[1] in "CH")
        assert not problem.C.conj
    assert problem.flops == 8 * 5 * 7 * 3  # four multiplications and four additions
    assert problem.A.nbytes == 15 * (8 if dtype == "complex64" else 16)


@pytest.mark.parametrize("op", OPS)
def test_row_major_storage_is_the_other_blas_op(op):
    problem = from_sizes(op, m=5, n=7, k=3, dtype="float32", storage="C", order="C")
    assert problem.op == op
    assert problem.blas_op == op.translate(str.maketrans("NT", "TN"))
    assert (problem.C.stride, problem.C.major) == ((7, 1), "N")


def test_majors():
    problem = from_sizes("TT", m=5, n=7, k=3, dtype="float32")
    assert (problem.A.major, problem.B.major, problem.C.major) == ("K", "MN", "M")
    assert (problem.A.unit, problem.A.ld, problem.A.nbytes) == (1, 3, 60)


orders = st.sampled_from("FC")
extents = st.integers(0, 4)
pads = st.integers(0, 3)


@settings(max_examples=300, deadline=None)
@given(
    st.tuples(st.sampled_from("NTCHntch"), st.sampled_from("NTCHntch")).map("".join),
    st.tuples(extents, extents, extents),
    st.tuples(orders, orders, orders),
    st.tuples(pads, pads, pads),
)
def test_descriptors_address_the_elements(op, mnk, order, pad):
    m, n, k = mnk
    A_shape, B_shape = stored_shapes(op.upper(), *mnk)
    arrays = [
        stored(shape, o, p)
        for shape, o, p in zip((A_shape, B_shape, (m, n)), order, pad, strict=True)
    ]
    for i, array in enumerate(arrays):
        array[:] = 1000 * (i + 1) + np.arange(array.size).reshape(array.shape)
    A, B, C = arrays
    problem = problem_of(op, A, B, C)

    def addressed(matrix, array):
        return as_strided(array, matrix.shape, [4 * stride for stride in matrix.stride])

    assert (problem.op, problem.m, problem.n, problem.k) == (op.upper(), m, n, k)
    op_A = A if op[0] in "Nn" else A.T
    op_B = B if op[1] in "Nn" else B.T
    np.testing.assert_array_equal(addressed(problem.A, A), op_A)
    np.testing.assert_array_equal(addressed(problem.B, B), op_B.T)
    np.testing.assert_array_equal(addressed(problem.C, C), C)
    for matrix in (problem.A, problem.B, problem.C):
        assert matrix.stride[matrix.unit] == 1
        assert not matrix.conj
    new = problem_of(op, A, B, order=order[2])
    assert new == problem_of(op, A, B, np.empty((m, n), "f4", order[2]))


@pytest.mark.parametrize("claimed", [0, 1, 2, 3, 7, 100, -1])
def test_a_single_row_or_column_says_nothing_by_its_stride(claimed):
    base = np.zeros(200, np.float32)
    column = as_strided(base, (6, 1), (4, 4 * claimed))
    row = as_strided(base, (1, 6), (4 * claimed, 4))
    problem = problem_of("NN", column, row)
    # Vectors can be along the six elements of each.
    assert (problem.A.stride, problem.A.major) == ((1, 6), "MN")
    assert (problem.B.stride, problem.B.major) == ((1, 6), "MN")
    assert problem_of("TT", row, column) == dataclasses.replace(problem, op="TT")
    problem = problem_of("NT", row, row)
    assert (problem.A.stride, problem.A.major, problem.B.stride) == ((6, 1), "K", (6, 1))
    element = as_strided(base, (1, 1), (4 * claimed, 4 * claimed))
    assert problem_of("NN", element, element).A.stride == (1, 1)


def test_a_row_of_a_column_major_matrix_keeps_its_leading_dimension():
    rows = np.zeros((8, 6), np.float32, order="F")[2:3]
    assert problem_of("NN", rows, np.zeros((6, 4), "f4")).A.stride == (1, 8)
    assert problem_of("NT", np.zeros((4, 6), "f4"), rows).B.stride == (1, 8)


def test_broadcast_operands_are_read_as_they_are():
    row = np.broadcast_to(np.arange(5, dtype=np.float32), (4, 5))
    assert problem_of("NN", row, np.zeros((5, 3), "f4")).A.stride == (0, 1)


def test_new_c_is_column_major_unless_asked():
    A, B = np.zeros((5, 3), "f2"), np.zeros((3, 7), "f2")
    new = problem_of("NN", A, B).C
    assert new == Matrix("C", (5, 7), (1, 5), "float16", 256)
    new = problem_of("NN", A, B, order="C", out_dtype=np.float32).C
    assert new == Matrix("C", (5, 7), (7, 1), "float32", 256)


def test_new_c_of_jax_is_row_major():
    like = on_gpu((4, 4), (4, 1), library="jax")
    assert from_operands("NN", like, like).C.major == "N"


def test_given_c_decides_order_and_dtype():
    A, B, C = np.zeros((5, 3), "f2"), np.zeros((3, 7), "f2"), stored((5, 7), "C", 2)
    problem = problem_of("NN", A, B, C)
    assert (problem.C.stride, problem.C.dtype) == ((9, 1), "float32")


@pytest.mark.parametrize(
    ("pointer", "alignment"),
    [(0x10002, 2), (0x10010, 16), (0x10100, 256), (0x11000, 256), (0, 256)],
)
def test_alignment(pointer, alignment):
    A, B = on_gpu(pointer=pointer), on_gpu((6, 8), (1, 6))
    assert from_operands("NN", A, B).A.alignment == alignment


def test_a_host_array_will_be_aligned_on_the_device():
    assert problem_of("NN", np.zeros(9)[1:].reshape(2, 4), np.zeros((4, 4))).A.alignment == 256


def test_equal_arguments_give_the_same_problem():
    A, B = on_gpu(), on_gpu((6, 8), (1, 6))
    elsewhere = dataclasses.replace(A, pointer=0x20000)
    assert from_operands("nt", A, A) is from_operands("NT", elsewhere, A)
    assert from_operands("NN", A, B) == from_sizes("NN", m=4, n=8, k=6, dtype="float16")


@pytest.mark.parametrize(
    ("dtype", "out_dtype", "compute", "expected"),
    [
        ("float16", None, None, ("float16", "float32")),
        ("float16", "float32", None, ("float32", "float32")),
        ("bfloat16", None, None, ("bfloat16", "float32")),
        ("float32", None, None, ("float32", "float32")),
        ("float32", None, "tf32", ("float32", "tf32")),
        ("float64", None, "float64", ("float64", "float64")),
        ("complex64", None, None, ("complex64", "float32")),
        (np.complex128, None, "float64", ("complex128", "float64")),
        (np.int8, None, None, ("int32", "int32")),
        (ml_dtypes.bfloat16, ml_dtypes.bfloat16, None, ("bfloat16", "float32")),
    ],
)
def test_types(dtype, out_dtype, compute, expected):
    problem = from_sizes("NN", m=2, n=2, k=2, dtype=dtype, out_dtype=out_dtype, compute=compute)
    assert (problem.C.dtype, problem.compute) == expected


# --- errors ---------------------------------------------------------------------------------------

A, B = np.zeros((4, 6), "f4"), np.zeros((6, 5), "f4")
BAD_ARRAYS = {
    "op letter": (errors.OpError, "op is 'NX'", ("NX", A, B), {}),
    "op length": (errors.OpError, "op is 'N'.*two letters", ("N", A, B), {}),
    "op type": (errors.OpError, r"op is \['N', 'N'\]", (["N", "N"], A, B), {}),
    "k": (
        errors.ShapeError,
        r"op 'TN' with A of shape \(4, 6\) makes k = 4, .* B of shape \(6, 5\) k = 6.*\(k, m\)",
        ("tn", A, B), {},
    ),
    "C shape": (
        errors.ShapeError, r"C has shape \(5, 4\); expected \(4, 5\).*\(4, 6\).*\(6, 5\)",
        ("NN", A, B, np.zeros((5, 4), "f4")), {},
    ),
    "no unit stride": (
        errors.StrideError, r"A of shape \(4, 6\) has strides \(24, 2\).*np\.asfortranarray\(A\)",
        ("NN", np.zeros((8, 12), "f4")[::2, ::2], B), {},
    ),
    "no unit stride, transposed": (
        errors.StrideError, r"B of shape \(5, 6\) has strides \(24, 2\).*np\.asfortranarray\(B\)",
        ("NT", A, np.zeros((10, 12), "f4")[::2, ::2]), {},
    ),
    "negative stride": (
        errors.StrideError, r"A .*strides \(-6, 1\).*none negative", ("NN", A[::-1], B), {},
    ),
    "strides of C": (
        errors.StrideError, r"C of shape \(4, 5\).*C\[\.\.\.\] = gemm",
        ("NN", A, B, np.zeros((8, 10), "f4")[::2, ::2]), {},
    ),
    "mixed dtypes": (
        errors.DTypeError,
        r"A has dtype float32 and B has dtype float64.* float64 holds .*: A\.astype\('float64'\)$",
        ("NN", A, B.astype("f8")), {},
    ),
    "dtype": (
        errors.DTypeError, "A has dtype int16.*one of float16,", ("NN", A.astype("i2"), B), {},
    ),
    "output dtype as input": (
        errors.DTypeError, "A has dtype int32", ("NN", A.astype("i4"), B), {},
    ),
    "no bytes": (errors.DTypeError, "A has dtype void", ("NN", np.zeros((4, 6), "V0"), B), {}),
    "byte order": (
        errors.DTypeError, r"A has dtype .f4, whose bytes .*: pass A\.astype\('float32'\)$",
        ("NN", A.astype(A.dtype.newbyteorder()), B), {},
    ),
    "byte order of C": (
        errors.DTypeError, r"C has dtype .f4, whose bytes .*: pass C\.astype\('float32'\)$",
        ("NN", A, B, np.zeros((4, 5), A.dtype.newbyteorder())), {},
    ),
    "C dtype": (
        errors.DTypeError, "C of dtype float64 .* A and B of dtype float32; expected float32",
        ("NN", A, B, np.zeros((4, 5))), {},
    ),
    "out_dtype": (errors.DTypeError, "dtype float16", ("NN", A, B), {"out_dtype": "float16"}),
    "out_dtype against C": (
        errors.DTypeError, "out_dtype is float16 and the given C has dtype float32",
        ("NN", A.astype("f2"), B.astype("f2"), np.zeros((4, 5), "f4")), {"out_dtype": np.float16},
    ),
    "compute": (
        errors.OptionError, "compute = 'tf32' does not go with dtype float64; expected float64",
        ("NN", A.astype("f8"), B.astype("f8")), {"compute": "tf32"},
    ),
    "compute of complex": (
        errors.OptionError, "compute = 'tf32' does not go with dtype complex64; expected float32",
        ("NN", A.astype("c8"), B.astype("c8")), {"compute": "tf32"},
    ),
    "real C of complex": (
        errors.DTypeError,
        "C of dtype float32 does not go with A and B of dtype complex64; expected complex64",
        ("NN", A.astype("c8"), B.astype("c8"), np.zeros((4, 5), "f4")), {},
    ),
    "complex and real": (
        errors.DTypeError,
        r"A has dtype complex64 and B has dtype float32.*B\.astype\('complex64'\)",
        ("NN", A.astype("c8"), B), {},
    ),
    "order": (errors.OptionError, "order = 'K'.*'F'.*'C'", ("NN", A, B), {"order": "K"}),
    "order with C": (
        errors.OptionError, "order = 'K'", ("NN", A, B, np.zeros((4, 5), "f4")), {"order": "K"},
    ),
    "C of one row": (
        errors.OverlapError, r"C of shape \(4, 5\) has strides \(0, 1\).*at least 5, not 0",
        ("NN", A, B, as_strided(np.zeros(5, "f4"), (4, 5), (0, 4))), {},
    ),
    "C with too small a step": (
        errors.OverlapError, r"C .*strides \(1, 3\).*at least 4, not 3",
        ("NN", A, B, as_strided(np.zeros(50, "f4"), (4, 5), (4, 12))), {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_ARRAYS)
def test_bad_arrays(case):
    error, message, arrays, options = BAD_ARRAYS[case]
    with pytest.raises(error, match=message):
        problem_of(*arrays, **options)


def test_readonly_c():
    C = np.zeros((4, 5), "f4")
    C.flags.writeable = False
    with pytest.raises(errors.ReadOnlyError, match="C .*read-only"):
        problem_of("NN", A, B, C)


@pytest.mark.parametrize("empty", [(0, 5, 6), (4, 0, 6), (4, 5, 0)])
def test_arguments_are_checked_though_there_is_nothing_to_do(empty):
    m, n, k = empty
    A, B, C = np.zeros((m, k), "f4"), np.zeros((k, n), "f4"), np.zeros((m, n), "f4")
    assert (problem_of("NN", A, B, C).m, problem_of("NN", A, B, C).n) == (m, n)
    C.flags.writeable = False
    with pytest.raises(errors.ReadOnlyError):
        problem_of("NN", A, B, C)
    with pytest.raises(errors.DTypeError):
        problem_of("NN", A, B.astype("f8"))


def test_overlap_with_an_operand():
    buffer = np.zeros((4, 12), "f4")
    left, right = buffer[:, :4], buffer[:, 4:8]
    other = np.zeros((4, 4), "f4")
    assert problem_of("NN", left, other, right).C.ld == 12
    with pytest.raises(errors.OverlapError, match="C shares memory with A"):
        problem_of("NN", left, other, buffer[:, 3:7])
    with pytest.raises(errors.OverlapError, match="C shares memory with B"):
        problem_of("NN", other, left, left)


def test_devices():
    host, gpu, other = np.zeros((4, 4), "f2"), on_gpu((4, 4)), on_gpu((4, 4), device=1)
    host = read(host, "A")
    for operands, message in [
        ((host, gpu), r"A is on the host \(numpy\) and B is on CUDA device 0 \(torch\)"),
        ((gpu, other), r"A is on CUDA device 0 .* B is on CUDA device 1"),
        ((gpu, gpu, host), r"A is on CUDA device 0 .* C is on the host"),
    ]:
        with pytest.raises(errors.DeviceError, match=message):
            from_operands("NN", *operands)


def test_misaligned_device_array():
    with pytest.raises(errors.AlignmentError, match="A starts at .* multiple of 1 .* 2 bytes"):
        from_operands("NN", on_gpu((4, 4), pointer=0x10001), on_gpu((4, 4)))


def test_the_fix_is_in_the_words_of_the_library():
    B = on_gpu((4, 4))
    for library, fix in [("torch", r"A\.contiguous"), ("cupy", r"cupy\.asf"), ("jax", "a cont")]:
        with pytest.raises(errors.StrideError, match=f"pass {fix}"):
            from_operands("NN", on_gpu((4, 4), (2, 8), library=library), B)
    with pytest.raises(errors.DTypeError, match=r": A\.to\(torch\.float64\)$"):
        from_operands("NN", B, on_gpu((4, 4), dtype="float64"))
    both = r"float32 holds .*: A\.to\(torch\.float32\) and B\.to\(torch\.float32\)$"
    with pytest.raises(errors.DTypeError, match=both):
        from_operands("NN", B, on_gpu((4, 4), dtype="bfloat16"))
    with pytest.raises(errors.DTypeError, match="B has dtype int64, which is not supported"):
        from_operands("NN", B, on_gpu((4, 4), dtype="int64"))


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"m": -1}, errors.ShapeError, r"m = -1; expected 0 to 2\*\*31 - 1"),
        ({"k": 2**31}, errors.ShapeError, "k = 2147483648"),
        ({"n": 1.5}, errors.ShapeError, "n = 1.5 is not an integer"),
        ({"lda": 3}, errors.StrideError, r"lda = 3; expected at least 4.*4 x 6, column-major"),
        ({"op": "TN", "lda": 5}, errors.StrideError, "lda = 5; expected at least 6.*6 x 4"),
        ({"ldb": 4, "storage": "C"}, errors.StrideError, "ldb = 4; .*least 5.*6 x 5, row-major"),
        ({"ldc": 3}, errors.StrideError, "ldc = 3; expected at least 4"),
        ({"ldc": 4, "order": "C"}, errors.StrideError, "ldc = 4; expected at least 5"),
        ({"ldb": 2**58}, errors.StrideError, "ldb = .*64 bits"),
        ({"lda": "wide"}, errors.StrideError, "lda = 'wide' is not an integer"),
        ({"storage": "R"}, errors.OptionError, "storage = 'R'"),
        ({"dtype": "float8"}, errors.DTypeError, "float8, .*expected one of float16"),
        ({"op": "NQ"}, errors.OpError, "op is 'NQ'"),
    ],
)
def test_bad_sizes(given, error, message):
    sizes = {"op": "NN", "m": 4, "n": 5, "k": 6, "dtype": "float32", **given}
    with pytest.raises(error, match=message):
        from_sizes(sizes.pop("op"), **sizes)


def test_sizes_beyond_32_bit_offsets():
    A = from_sizes("NN", m=2**31 - 1, n=1, k=4, dtype="float64").A
    assert A.nbytes == 32 * (2**31 - 1)


# --- alpha and beta -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "dtype", "value"),
    [
        (2, "float64", 2.0), (True, "float32", 1.0), (0.1, "float64", 0.1),
        (0.1, "float16", float(np.float32(0.1))), (1e-60, "float16", 0.0),
        (1e60, "float32", np.inf), (-np.inf, "float32", -np.inf), (Fraction(1, 4), "float32", 0.25),
        (Decimal("0.5"), "float64", 0.5), (np.float16(1.5), "float32", 1.5),
        (ml_dtypes.bfloat16(1.5), "bfloat16", 1.5), (np.array(2.5), "float32", 2.5),
        (np.array(3, "i8"), "int8", 3), (-7.0, "int8", -7), (2**31 - 1, "int32", 2**31 - 1),
        (2, "complex128", 2 + 0j), (0.1 - 0.3j, "complex128", 0.1 - 0.3j),
        (0.1 - 0.3j, "complex64", complex(np.float32(0.1), -np.float32(0.3))),
        (complex(1e60, -1e-60), "complex64", complex(np.inf, -0.0)),
        (Fraction(1, 4), "complex64", 0.25 + 0j), (np.complex64(2 - 1j), "complex128", 2 - 1j),
        (np.array(3j), "complex64", 3j), (np.float16(1.5), "complex64", 1.5 + 0j),
    ],
)  # fmt: skip
def test_numbers(x, dtype, value):
    found = scalar(x, "alpha", dtype, None)
    assert found == Scalar(value)
    assert type(found.value) is type(value)


def test_nan_is_a_number():
    assert np.isnan(scalar(np.nan, "beta", "float16", None).value)


@pytest.mark.parametrize(
    ("x", "dtype", "message"),
    [
        (0.5, "int8", r"alpha is 0\.5; expected an integer of 32 bits"),
        (np.nan, "int8", "alpha is nan; expected an integer"),
        (np.inf, "int8", "alpha is inf"),
        (2**31, "int8", "alpha is 2147483648"),
        (1j, "int8", "alpha is 1j"),
        (1 + 0j, "float32", r"alpha is \(1\+0j\); expected a real number"),
        (np.complex64(1), "float64", "expected a real number"),
        (10**400, "float64", "expected a real number"),
        ("two", "float32", "alpha is 'two'; expected a number or a 0-d array"),
        (None, "float32", "alpha is None; expected a number"),
        ("1j", "complex64", "alpha is '1j'; expected a number or a 0-d"),
        (10**400, "complex128", "expected a number: accumulators are complex128"),
        (np.ones(1, "c8"), "complex64", r"shape \(1,\).*0-d array"),
        (np.ones(1), "float32", r"shape \(1,\).*0-d array.*reshape\(\(\)\)"),
    ],
)
def test_not_numbers(x, dtype, message):
    with pytest.raises(errors.ScalarError, match=message):
        scalar(x, "alpha", dtype, None)


def device_scalar(monkeypatch, **facts):
    operand = on_gpu((), (), **{"dtype": "float32", **facts})
    monkeypatch.setattr("cute_gemm.problem.scalars.read", lambda array, name, dimensions: operand)
    return object()


@pytest.mark.parametrize(
    ("dtype", "kind"), [("float16", "float32"), ("float32", "float32"), ("complex64", "complex64")]
)
def test_device_scalars_are_left_to_the_kernel(monkeypatch, dtype, kind):
    x = device_scalar(monkeypatch, dtype=kind)
    assert scalar(x, "alpha", dtype, 0) == Scalar(1, 0x10000)


def test_device_scalar_of_another_type(monkeypatch):
    x = device_scalar(monkeypatch, dtype="float64")
    with pytest.raises(errors.DTypeError, match=r"alpha .*float64; .*alpha\.to\(torch\.float32\)"):
        scalar(x, "alpha", "float16", 0)
    with pytest.raises(errors.DTypeError, match=r"alpha .*float64; .*to\(torch\.complex128\)"):
        scalar(x, "alpha", "complex128", 0)


@pytest.mark.parametrize(
    ("kind", "dtype", "taken"),
    [
        ("float64", "float16", True), ("bfloat16", "float32", True), ("int64", "float32", True),
        ("float32", "complex64", True), ("complex128", "complex64", True),
        ("complex64", "float32", False), ("int16", "int8", True), ("int64", "int8", False),
        ("float32", "int8", False), ("qint8", "float32", False),
    ],
)  # fmt: skip
def test_device_scalars_are_converted_where_nothing_is_lost(monkeypatch, kind, dtype, taken):
    """Test lossless conversions. Rounding is allowed, because host numbers are rounded too."""
    operands = {"x": on_gpu((), (), dtype=kind), "made": on_gpu((), (), dtype="float32")}
    operands["made"] = dataclasses.replace(operands["made"], pointer=0x20000)
    monkeypatch.setattr("cute_gemm.problem.scalars.read", lambda x, *_: operands.get(x))
    asked = []
    convert = lambda operand, to: asked.append((operand.dtype, to)) or "made"  # noqa: E731
    if not taken:
        with pytest.raises(errors.DTypeError, match=f"alpha is a device array of dtype {kind}"):
            scalar("x", "alpha", dtype, 0, convert)
        assert not asked
        return
    assert scalar("x", "alpha", dtype, 0, convert) == Scalar(1, 0x20000, "made")
    [(given, to)] = asked
    assert given == kind and to == DTYPES[dtype].accumulator


def test_a_library_that_does_not_convert(monkeypatch):
    x = device_scalar(monkeypatch, dtype="float64")
    with pytest.raises(errors.DTypeError, match="expected float32"):
        scalar(x, "alpha", "float32", 0, lambda operand, to: None)


@pytest.mark.parametrize(("device", "place"), [(None, "the host"), (1, "CUDA device 1")])
def test_device_scalar_elsewhere(monkeypatch, device, place):
    x = device_scalar(monkeypatch)
    message = rf"beta is on CUDA device 0 .* A is on {place}.*a number: beta\.item\(\)"
    with pytest.raises(errors.DeviceError, match=message):
        scalar(x, "beta", "float16", device)


def test_beta_needs_a_c():
    check_beta(Scalar(0.0), None)
    check_beta(Scalar(2.0), object())
    for beta, message in [
        (Scalar(2.0), r"beta = 2\.0"),
        (Scalar(np.nan), "beta = nan"),
        (Scalar(0, 0x10000), "beta on the device"),
    ]:
        with pytest.raises(errors.ScalarError, match=message):
            check_beta(beta, None)


def test_every_error_is_a_gemm_error_and_a_builtin():
    kinds = [x for x in vars(errors).values() if isinstance(x, type) and x is not errors.GemmError]
    for kind in kinds:
        assert issubclass(kind, errors.GemmError)
        assert issubclass(kind, (ValueError, TypeError, RuntimeError, MemoryError))
    assert errors.NotationError("text", 3).column == 3
    assert errors.CompileError("first", "all of it").log == "all of it"
