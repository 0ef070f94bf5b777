"""Test tensors of coordinates, as CuTe prints them, with the matrix that they index."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cute_gemm.copies.report import analyze_copy
from cute_gemm.cute.notation import as_indexed, as_printed
from cute_gemm.errors import GemmError, NotationError, OptionError

COPY = {"threads": "(16,8):(8,1)", "values": "(1,8)", "atom": "cp.async.128"}


@settings(deadline=None, max_examples=100)
@given(
    st.permutations([(0, 4, 1), (0, 4, 4), (1, 8, 1), (1, 3, 5)]),
    st.sampled_from(["({},{}):({},{})", "(({},{})):(({},{}))"]),
    st.integers(0, 9), st.integers(0, 9), st.integers(1, 100), st.integers(0, 100),
)  # fmt: skip
def test_offsets_are_the_matrixs_at_the_coordinates(
    modes: list[tuple[int, int, int]], form: str, i: int, j: int, pitch: int, other: int
) -> None:
    """Test offsets. A mode has the matrix's mode in which it steps, its extent and its step."""
    (a, m, da), (b, n, db) = modes[:2]
    matrix = f"(100,100):({pitch},{other})"
    text = f"ArithTuple({i},{j}) o " + form.format(m, n, f"{da}@{a}", f"{db}@{b}")
    whole = as_printed(matrix)
    printed, start = as_indexed(text, whole)
    table = start + printed.layout.table().reshape(-1)
    found = []
    for x, y in np.ndindex(m, n):
        at = [i, j]
        at[a] += da * x
        at[b] += db * y
        found.append(at[0] * pitch + at[1] * other)
    order = found if form.startswith("({},") else np.reshape(found, (m, n)).T.reshape(-1).tolist()
    assert table.tolist() == order


@pytest.mark.parametrize(
    ("tensor", "matrix", "offsets"),
    [
        ("(128,64):(1@0,1@1)", "(4096,4096):(4096,1)", "(128,64):(4096,1)"),
        ("(128,64):(_1@1,_1@0)", "(4096,4096):(1,4096)", "(128,64):(4096,1)"),
        ("ArithTuple(0,0) o (_128,_64):(_1@1,_1@0)", "(4096,4096):(1,4096)", "(128,64):(4096,1)"),
        ("ArithTupleIter(0,0) o (128,64):(1@0,1@1)", "(4096,4096):(4096,1)", "(128,64):(4096,1)"),
        (
            "ArithTuple(_0,_0) o (128,64):(1@0,1@1):\n  (0,0)  (0,1)\n",
            "(4096,4096):(4096,1)",
            "(128,64):(4096,1)",
        ),
        ("(0,0) o (128,64):(1@0,1@1)", "(4096,4096):(4096,1)", "(128,64):(4096,1)"),
        ("tensor<(0,0) o (128,64):(1@0,1@1)>", "(4096,4096):(4096,1)", "(128,64):(4096,1)"),
        ("((16,8),64):((1@0,16@0),1@1)", "(4096,4096):(4096,1)", "((16,8),64):((4096,65536),1)"),
        ("(128,64):(2@0,1@1)", "(4096,4096):(4096,1)", "(128,64):(8192,1)"),
        ("(128,64):(1@1,1@0@0)", "((64,64),4096):((1,64),4096)", "(128,64):(4096,1)"),
        ("(?,64):(1@0,1@1)", "(4096,4096):(?,1)", "(128,64):(4096,1)"),
        ("(128,64):(0,1@0)", "4096:1", "(128,64):(0,1)"),
    ],
)
def test_a_copy_of_coordinates_is_that_of_offsets(tensor: str, matrix: str, offsets: str) -> None:
    let = "128" if "?,64" in tensor else ""
    if let:
        matrix = matrix.replace("?", "4096")
    report = analyze_copy(**COPY, tensor=tensor, matrix=matrix, let=let)
    plain = analyze_copy(**COPY, tensor=offsets)
    assert report.rows == plain.rows and report.base_alignment == 256
    assert (report.tensor, report.matrix) == (tensor.strip(), matrix)
    assert f"matrix   {matrix}" in str(report) and report.to_dict()["matrix"] == matrix
    assert plain.matrix == "" and "matrix" not in str(plain)


@pytest.mark.parametrize(
    ("start", "matrix", "dtype", "alignment"),
    [
        ("(256,64)", "(4096,4096):(4096,1)", "float16", 128),
        ("(256,8)", "(4096,4096):(4096,1)", "float16", 16),
        ("(1,0)", "(4096,4096):(4104,1)", "float16", 16),
        ("(0,64)", "gmem_ptr[16b](0x7f5a8c000020) o (4096,4096):(4096,1)", "float16", 32),
        ("(0,64)", "(4096,4096):(4096,1)", "int4", 32),
    ],
)
def test_where_it_begins_is_part_of_the_address(
    start: str, matrix: str, dtype: str, alignment: int
) -> None:
    question = COPY | {"tensor": f"ArithTuple{start} o (128,64):(1@0,1@1)", "dtype": dtype}
    report = analyze_copy(**question, matrix=matrix)
    assert report.base_alignment == alignment
    pitch = matrix.rpartition("(")[2]
    plain = analyze_copy(**question | {"tensor": f"(128,64):({pitch}", "base_alignment": alignment})
    assert report.rows == plain.rows


@pytest.mark.parametrize("tensor", ["(0,4) o (128,64):(1@0,1@1)", "(128,64):(1@0,1@1)"])
def test_fixes_are_of_offsets_or_of_the_same_coordinates(tensor: str) -> None:
    question = {"tensor": tensor, "matrix": "(4096,4096):(4098,1)", "atom": "ld.global.128",
                "threads": "(16,8):(1,16)", "values": "(1,8)"}  # fmt: skip
    report = analyze_copy(**question)
    assert report.fixes[0]
    for fix in report.fixes[0]:
        (row,) = analyze_copy(**question | fix.change).rows
        for name, figure in fix.figures.items():
            assert getattr(row, name) == pytest.approx(figure), (fix, name)
    assert any(fix.change.get("matrix", "") is None for fix in report.fixes[0])


def test_a_box_of_a_tensor_map() -> None:
    matrix, home = "(4096,8192):(_1,4096)", "Sw<3,3,3> o 0 o (128,64):(64,1)"
    box = analyze_copy(tensor="ArithTuple(64,256) o (_128,_64):(_1@1,_1@0)", matrix=matrix,
                       smem=home, atom="tma")  # fmt: skip
    assert (box.tile, box.rows[0].requests, box.base_alignment) == ((128, 64), 1, 128)
    assert box.coalesced and box.conflict_free and not box.findings
    every = {"tensor": "ArithTuple(0,0) o (8192,4096):(_1@1,_1@0)", "tile": "128x64", "smem": home}
    whole = analyze_copy(**every, matrix=matrix, atom="tma")
    assert whole.rows == analyze_copy(**every | {"tensor": "(8192,4096):(4096,1)"}, atom="tma").rows
    assert whole.rows[0].interior_tiles == 64 * 64
    with pytest.raises(OptionError, match="no unit stride in mode 0, which is a tensor map's fir"):
        analyze_copy(**every, matrix="(8192,4096):(4096,1)", atom="tma")
    with pytest.raises(OptionError, match="expected coordinates of a multiple of 16 bytes"):
        analyze_copy(tensor="(4,0) o (128,64):(1@1,1@0)", matrix=matrix, atom="tma")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"matrix": None}, NotationError,
         "column 11: expected an integer: a basis stride such as 1@0 makes coordinates, not "
         "offsets; matrix= takes the layout that they index"),
        ({"matrix": None, "tensor": "ArithTuple(0,0) o (128,64):(1@0,1@1)"}, NotationError,
         "matrix= takes the layout that they index"),
        ({"matrix": None, "tensor": "(0,0) o (128,64):(64,1)"}, NotationError,
         "expected a layout of basis strides such as 1@0 after coordinates"),
        ({"tensor": "(128,64):(1@2,1@1)"}, NotationError, "column 11: expected 0, or a basis of "
         "one of the modes of matrix (4096,4096):(4096,1), such as 1@1"),
        ({"tensor": "(128,64):(1@0@1,1@0)"}, NotationError, "basis of one of the modes of matrix"),
        ({"matrix": "((64,64),4096):((1,64),4096)"}, NotationError,
         "of one of the modes of matrix ((64,64),4096):((1,64),4096), such as 1@1"),
        ({"tensor": "(128,64):(64,1)"}, NotationError, "expected 0, or a basis of one"),
        ({"tensor": "ArithTuple(4000,0) o (128,64):(1@0,1@1)"}, OptionError,
         "reaches coordinate 4127 where matrix (4096,4096):(4096,1) has 4096"),
        ({"tensor": "(0,0,0) o (128,64):(1@0,1@1)"}, OptionError,
         "begins at other coordinates than matrix (4096,4096):(4096,1) has modes"),
        ({"tensor": "(0,0) o (128,64):(1@0,1@1) o"}, NotationError, "expected the end of the"),
        ({"matrix": "Sw<3,3,3> o 0 o (4096,4096):(4096,1)"}, OptionError, "is swizzled; expected"),
        ({"matrix": "4096x4096"}, NotationError, "does not parse at column"),
        ({"extents": "1000x1000"}, OptionError, "extents='1000x1000' do not go with matrix="),
        ({"tensor": "(0,1) o (128,64):(1@0,1@1)", "dtype": "int4"}, OptionError,
         "begins at element 1 of the matrix, within a byte of 4-bit elements"),
    ],
)  # fmt: skip
def test_refusals(change: dict[str, Any], error: type[GemmError], message: str) -> None:
    question = COPY | {"tensor": "(128,64):(1@0,1@1)", "matrix": "(4096,4096):(4096,1)"}
    with pytest.raises(error) as caught:
        analyze_copy(**question | change)
    assert message in str(caught.value) and "\n" not in str(caught.value)
