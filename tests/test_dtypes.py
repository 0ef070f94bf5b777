"""Rows of types against NumPy, struct, cutlass_library and the CUDA headers."""

from __future__ import annotations

import re
import struct

import cutlass_library
import ml_dtypes
import numpy as np
import pytest

from cute_gemm.cute.atoms import mma_atoms
from cute_gemm.problem.dtypes import DTYPES, dtype, factor, operand_types
from cute_gemm.toolchain.headers import include_paths

ROWS = [row for row in DTYPES.values() if row.name != "tf32"]  # which no library stores


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
        assert all(DTYPES[compute].cublas_compute > 0 for compute in row.computes)


def test_codes_are_those_of_the_header() -> None:
    (header,) = [p for path in include_paths() if (p := path / "library_types.h").is_file()]
    codes = dict(re.findall(r"CUDA_([RC]_\d+[A-Z]+)\s*= *(\d+)", header.read_text()))
    kinds = {"f": "R_{}F", "cf": "C_{}F", "bf": "R_{}BF", "s": "R_{}I"}
    for row in ROWS:
        letters, bits = re.fullmatch(r"([a-z]+)(\d+)", row.tag).groups()
        assert row.cublas == int(codes[kinds[letters].format(bits)]), row.name
    assert dtype("tf32").cublas == dtype("float32").cublas  # as which it is stored


@pytest.mark.parametrize(
    ("types", "name"),
    [
        ("float16", "float16"),
        ("float32", "float32"),
        ("float32/tf32", "tf32"),
        ("complex128", "float64"),
        ("int8", "int8"),
    ],
)
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
