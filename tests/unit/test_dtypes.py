"""Test rows of types against NumPy, struct, cutlass_library and the CUDA headers."""

import re
import struct

import cutlass_library
import ml_dtypes
import numpy as np
import pytest

import cute_gemm as cg
from cute_gemm.arrays.base import dtype_name, dtype_row
from cute_gemm.commands import cli
from cute_gemm.cute.atoms import mma_atoms
from cute_gemm.dtypes import DTYPES, canonical, factor, holding, operand_types
from cute_gemm.measure.bench import bench
from cute_gemm.toolchain.headers import include_paths

ROWS = [row for row in DTYPES.values() if row.name != "tf32"]  # no library stores tf32


@pytest.mark.parametrize("name", [row.name for row in ROWS])
def test_rows_are_numpys(name: str) -> None:
    row = DTYPES[name]
    assert (row.numpy.name, row.numpy.itemsize) == (name, row.bytes)
    assert row.is_complex == (row.numpy.kind == "c")
    assert row.in_numpy == (row.numpy.type.__module__ == "numpy")
    if row.numpy.kind == "i":
        assert (row.roundoff, row.underflow) == (0, 0)
        return
    about = ml_dtypes.finfo(row.numpy)
    assert row.roundoff == float(about.eps) / 2
    parts = np.sqrt(2) if row.is_complex else 1
    smallest = float(about.smallest_subnormal) / 2 * parts
    assert row.underflow == (pytest.approx(smallest) if about.bits < 64 else 0)


def test_rows_are_cutlass_librarys() -> None:
    for row in DTYPES.values():
        element = cutlass_library.DataType[row.tag]
        assert cutlass_library.DataTypeSize[element] == 8 * row.bytes


def test_accumulators_are_rows_with_scalars() -> None:
    for row in DTYPES.values():
        sums = DTYPES[row.accumulator]
        assert struct.calcsize(f"={sums.scalar}") == sums.bytes
        assert (row.name in row.outputs or row.accumulator in row.outputs) == bool(row.computes)
        types = [compute for compute in row.computes if compute in DTYPES]
        assert all(DTYPES[compute].cublas_compute > 0 for compute in types)


def test_codes_are_those_of_the_header() -> None:
    (header,) = [p for path in include_paths() if (p := path / "library_types.h").is_file()]
    codes = dict(re.findall(r"CUDA_([RC]_\d+[A-Z]+(?:_E\dM\d)?)\s*= *(\d+)", header.read_text()))
    kinds = {"f": "R_{}F", "cf": "C_{}F", "bf": "R_{}BF", "s": "R_{}I"}
    for row in ROWS:
        if row.bytes == 1 and row.roundoff:
            assert row.cublas == int(codes[f"R_8F_{row.tag.upper()}"])
            continue
        letters, bits = re.fullmatch(r"([a-z]+)(\d+)", row.tag).groups()
        assert row.cublas == int(codes[kinds[letters].format(bits)]), row.name
    assert dtype_row("tf32").cublas == dtype_row("float32").cublas  # it is stored as float32


@pytest.mark.parametrize(
    ("types", "name"),
    [
        ("float16", "float16"), ("float32", "float32"), ("float32/tf32", "tf32"),
        ("complex128", "float64"), ("int8", "int8"),
    ],
)  # fmt: skip
def test_factors(types: str, name: str) -> None:
    assert types in operand_types()
    row, _, compute = types.partition("/")
    assert factor(row, compute or DTYPES[row].computes[0]).name == name


def test_atoms_of_a_type() -> None:
    doubles = [atom.shape_mnk for atom in mma_atoms("f64", "f64")]
    assert doubles == [(16, 8, 4), (16, 8, 8), (16, 8, 16), (8, 8, 4)]
    assert [atom.minimum_cc for atom in mma_atoms("f64", "f64")] == [90, 90, 90, 80]
    assert [atom.name for atom in mma_atoms("tf32", "tf32")] == ["SM80_16x8x8_F32TF32TF32F32_TN"]
    assert mma_atoms("f16", "bf16") == ()


# -- names ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("float16", "f16 fp16 half FP16 half_t Float16"), ("bfloat16", "bf16 BF16 bfloat16_t"),
        ("float32", "f32 fp32 single F32"), ("float64", "f64 fp64 double"),
        ("int8", "s8 i8 int8_t"), ("int32", "s32 i32 int32_t"), ("complex64", "cf32"),
        ("complex128", "cf64"),
    ],
)  # fmt: skip
def test_synonyms(name: str, names: str) -> None:
    for one in names.split():
        assert canonical(one) == dtype_row(one).name == dtype_name(one) == name


def test_a_name_means_one_type() -> None:
    every = [name for row in DTYPES.values() for name in {row.name, row.tag, *row.synonyms}]
    assert len(set(every)) == len(every)


def test_synonyms_everywhere(capsys: pytest.CaptureFixture) -> None:
    sizes = {"m": 8, "n": 8, "k": 8, "arch": "sm_80"}
    assert (
        cg.plan("NN", dtype="half", out_dtype="f32", backend="cpu", **sizes).problem.C.dtype
        == "float32"
    )
    assert cg.analyze("NN", dtype="bf16", **sizes).problem.dtype == "bfloat16"
    assert (
        cg.plan("NN", dtype="fp32", compute="TF32", backend="cpu", **sizes).problem.compute
        == "tf32"
    )
    A = np.ones((4, 4), np.float16)
    assert cg.gemm("NN", A, A, out_dtype="fp32", backend="cpu").dtype == np.float32
    copy = cg.analyze_copy(
        tensor="(8,16):(16,1)", threads="(8,4):(4,1)", atom="ld.global", dtype="f32"
    )
    assert copy.dtype == "float32"
    assert bench(["NN"], "host", [8], "single", check=False).dtype == "float32"
    size = ("-m", "8", "-n", "8", "-k", "8", "--arch", "sm_80")
    for command in (
        ("analyze", "TN"),
        ("explain", "naive", "TN"),
        ("run", "TN", "--kernel", "host"),
    ):
        assert cli.main([*command, *size, "--dtype", "fp64", "--json"]) == 0
        assert '"float64"' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("names", "common"),
    [
        (("float16", "float32"), "float32"), (("float16", "bfloat16"), "float32"),
        (("int8", "float16"), "float16"), (("int8", "bfloat16"), "bfloat16"),
        (("float64", "complex64"), "complex128"), (("float32", "complex64"), "complex64"),
        (("float32", "float32"), "float32"),
    ],
)  # fmt: skip
def test_the_type_that_holds_both(names: tuple[str, str], common: str) -> None:
    assert holding(*names) == holding(*names[::-1]) == common
    every = np.arange(256, dtype=np.uint8).view(np.int8)
    for name in names:  # numbers next to 1, the smallest and the largest are exact
        row = DTYPES[name].numpy
        about = ml_dtypes.finfo(row) if row.kind != "i" else None
        numbers = every if about is None else [1 + about.eps, about.tiny, about.max]
        given = np.asarray(numbers, row)
        assert (given.astype(DTYPES[common].numpy).astype(np.complex128) == given).all()
