"""Test layouts: pycute's algebra, swizzles, CuTe's notation and the C++ text."""

import re

import numpy as np
import pycute
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cute_gemm.cute.layout import (
    Layout,
    Swizzle,
    column_major,
    composes,
    from_map,
    row_major,
    tile_to_shape,
)
from cute_gemm.cute.notation import as_printed, parse
from cute_gemm.errors import NotationError
from cute_gemm.toolchain.headers import include_paths

LEAF = st.tuples(st.integers(1, 4), st.integers(0, 40))


def congruent(pairs: object) -> tuple:
    """Return a shape and a stride with the nesting of (shape, stride) leaves."""
    if isinstance(pairs, tuple):
        return pairs
    assert isinstance(pairs, list)
    shapes, strides = zip(*map(congruent, pairs), strict=True)
    return shapes, strides


TREES = st.recursive(LEAF, lambda inner: st.lists(inner, min_size=1, max_size=3), max_leaves=5)
AFFINE = st.lists(TREES, min_size=1, max_size=3).map(congruent).map(lambda two: Layout(*two))
SWIZZLES = st.tuples(
    st.integers(0, 4), st.integers(0, 5), st.integers(0, 4), st.sampled_from([1, -1])
).map(lambda four: Swizzle(four[0], four[1], four[3] * (four[0] + four[2])))
LAYOUTS = st.builds(
    lambda affine, swizzle: Layout(affine.shape, affine.stride, swizzle),
    AFFINE,
    st.none() | SWIZZLES,
)


# -- evaluation -----------------------------------------------------------------------------------


@settings(deadline=None, max_examples=30)
@given(AFFINE)
def test_offsets_are_pycutes(layout: Layout) -> None:
    oracle = pycute.Layout(layout.shape, layout.stride)
    assert layout.size == oracle.size()
    assert layout.cosize == oracle.cosize()
    assert [layout(i) for i in range(layout.size)] == [oracle(i) for i in range(layout.size)]
    assert layout(np.arange(layout.size)).tolist() == [oracle(i) for i in range(layout.size)]
    table = layout.table()
    assert table.shape == layout.extents == tuple(map(pycute.product, layout.shape))
    for coordinate in np.ndindex(table.shape):
        assert table[coordinate] == oracle(*coordinate) == layout(*coordinate)


@settings(deadline=None)
@given(AFFINE)
def test_coalesced_modes_are_pycutes(layout: Layout) -> None:
    found = layout.coalesced()
    assert np.array_equal(found.table(), layout.table())
    assert found.coalesced() == found
    assert isinstance(found.shape, tuple) and isinstance(found.stride, tuple)
    for shape, stride, s, d in zip(
        layout.shape, layout.stride, found.shape, found.stride, strict=True
    ):
        oracle = pycute.coalesce(pycute.Layout(shape, stride))
        assert (s, d) == (oracle.shape, oracle.stride)


def test_coalesced_by_hand() -> None:
    layout = Layout(((2, 4), (1, 8)), ((1, 2), (7, 8)), Swizzle(1, 0, 3))
    assert layout.coalesced() == Layout((8, 8), (1, 8), Swizzle(1, 0, 3))
    assert Layout(8, 2).coalesced() == Layout(8, 2)


@given(SWIZZLES.filter(lambda swizzle: swizzle.shift), st.integers(0, 2**14 - 1))  # pycute: never 0
def test_swizzle_is_pycutes(swizzle: Swizzle, offset: int) -> None:
    oracle = pycute.Swizzle(swizzle.bits, swizzle.base, swizzle.shift)
    assert swizzle(offset) == oracle(offset)
    assert swizzle(np.array([offset, 0])).tolist() == [oracle(offset), 0]


@given(AFFINE, SWIZZLES)
def test_a_swizzle_comes_after_the_affine_part(affine: Layout, swizzle: Swizzle) -> None:
    layout = Layout(affine.shape, affine.stride, swizzle)
    assert np.array_equal(layout.table(), swizzle(affine.table()))
    assert layout.affine == affine


def test_swizzle_by_hand() -> None:
    # Chunk c of row r is at chunk c ^ r.
    layout = Layout((8, 64), (64, 1), Swizzle(3, 3, 3))
    rows, columns = np.indices((8, 64))
    expected = rows * 64 + ((columns // 8) ^ rows) * 8 + columns % 8
    assert np.array_equal(layout.table(), expected)
    assert layout.cosize == layout.size == 512


@pytest.mark.parametrize("numbers", [(-1, 0, 0), (1, -1, 1), (3, 3, 2), (3, 3, -2)])
def test_what_is_no_swizzle(numbers: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match=r"is not one: expected B >= 0, M >= 0 and \|S\| >= B"):
        Swizzle(*numbers)


def test_what_is_no_layout() -> None:
    with pytest.raises(ValueError, match=r"stride \(1,2\) is not congruent with shape \(\(2,2\),4"):
        Layout(((2, 2), 4), (1, 2))
    with pytest.raises(ValueError, match=r"is not congruent"):
        Layout((2, 4), 1)
    with pytest.raises(ValueError, match=r"has 3 entries; expected 1 or 2"):
        Layout((2, 4), (1, 2))(0, 0, 0)


def test_compact_layouts() -> None:
    assert column_major(4, 3, 2) == Layout((4, 3, 2), (1, 4, 12))
    assert row_major(4, 3, 2) == Layout((4, 3, 2), (6, 2, 1))
    assert np.array_equal(row_major(4, 3).table(), np.arange(12).reshape(4, 3))
    assert np.array_equal(column_major(4, 3).table(), np.arange(12).reshape(4, 3, order="F"))


# -- tile_to_shape --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("atom", "shape", "text"),
    [
        # The layouts of a reference kernel and of this package's, as C++ CuTe prints them.
        ("(8,32):(32,1)", (128, 32, 3), "((8,16),(32,1),(1,3)):((32,256),(1,0),(0,4096))"),
        ("(32,8):(1,32)", (128, 32), "((32,4),(8,4)):((1,256),(32,1024))"),
        (
            "Sw<3,3,4> o 0 o (32,8):(1,32)",
            (128, 32, 3),
            "Sw<3,3,4> o 0 o ((32,4),(8,4),(1,3)):((1,256),(32,1024),(0,4096))",
        ),
        (
            "Sw<3,3,3> o 0 o (8,64):(64,1)",
            (16, 128),
            "Sw<3,3,3> o 0 o ((8,2),(64,2)):((64,512),(1,1024))",
        ),
        ("(8,32):(32,1)", (8, 32), "((8,1),(32,1)):((32,0),(1,0))"),
    ],
)
def test_tile_to_shape(atom: str, shape: tuple[int, ...], text: str) -> None:
    layout = tile_to_shape(parse(atom), shape)
    assert str(layout) == text
    assert layout.extents == shape
    assert np.array_equal(np.sort(layout.table(), axis=None), np.arange(layout.size))


def test_tile_to_shape_repeats_the_atom_first_mode_fastest() -> None:
    atom = Layout((8, 64), (64, 1), Swizzle(3, 3, 3))
    i, j = np.indices((32, 128))
    expected = atom(i % 8, j % 64) + 512 * (i // 8 + 4 * (j // 64))
    assert np.array_equal(tile_to_shape(atom, (32, 128)).table(), expected)


def test_tile_to_shape_refuses_what_does_not_divide() -> None:
    with pytest.raises(ValueError, match="extent 100 is not a multiple of the atom's 8"):
        tile_to_shape(Layout((8, 32), (32, 1)), (100, 32))


# -- from_map -------------------------------------------------------------------------------------


@settings(deadline=None)
@given(AFFINE)
def test_from_map_finds_the_layout(layout: Layout) -> None:
    assert from_map(layout.table()) == layout.coalesced()


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ([1, 2, 3, 4], "the first offset is 1; expected 0"),
        ([0, 1, 2, 5], "4 offsets do not split into runs of 3"),
        ([0, 1, 3, 5], "not those of a layout"),
        ([[0, 1], [2, 4]], "a mode depends on another"),
    ],
)
def test_from_map_refuses(offsets: list, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_map(np.array(offsets))


def test_from_map_refuses_a_swizzle() -> None:
    with pytest.raises(ValueError, match="not those of a layout"):
        from_map(Layout((8, 8), (8, 1), Swizzle(3, 0, 3)).table())


# -- notation -------------------------------------------------------------------------------------


@settings(deadline=None)
@given(LAYOUTS)
def test_what_is_printed_parses(layout: Layout) -> None:
    assert parse(str(layout)) == layout


@pytest.mark.parametrize(
    ("text", "layout"),
    [
        ("Sw<3,3,3> o _0 o (_8,_64):(_64,_1)", Layout((8, 64), (64, 1), Swizzle(3, 3, 3))),
        ("S<2,3,3> o 0 o (8,32):(32,1)", Layout((8, 32), (32, 1), Swizzle(2, 3, 3))),
        ("Swizzle<1, 4, -3>o 0 o 8:1", Layout(8, 1, Swizzle(1, 4, -3))),
        (
            "((_4,_8),(_2,_2,_2)):((_32,_1),(_16,_8,_128))",
            Layout(((4, 8), (2, 2, 2)), ((32, 1), (16, 8, 128))),
        ),
        ("  ( (2 ,2), 4 ) : ( (1,_8), 2 )  ", Layout(((2, 2), 4), ((1, 8), 2))),
        ("_128:_1", Layout(128, 1)),
        ("(8):(1)", Layout((8,), (1,))),
        ("(8,):(1,)", Layout((8,), (1,))),
        ("SW_3_3_3 o 0 o (8, 64):(64, 1)", Layout((8, 64), (64, 1), Swizzle(3, 3, 3))),
        ("Sw<3,3,3> o _8 o (8,64):(64,1)", Layout((8, 64), (64, 1), Swizzle(3, 3, 3), 8)),
    ],
)
def test_cutes_notations(text: str, layout: Layout) -> None:
    assert parse(text) == layout
    assert parse(str(layout)) == layout


PLAIN, HALF = Layout((8, 64), (64, 1)), Layout((8, 64), (64, 1), Swizzle(3, 3, 3))


@pytest.mark.parametrize(
    ("text", "layout", "space", "bits", "alignment"),
    [
        # print(tensor) of C++ CuTe. The swizzle of a pointer applies to bytes.
        ("gmem_ptr[16b](0x7f2c00000000) o (_8,_64):(_64,_1)", PLAIN, "global", 16, 1 << 34),
        ("smem_ptr[32b](0x7f2c00000000) o (8,64):(64,_1)", PLAIN, "shared", 32, 1 << 34),
        ("ptr[8b](0x7f2c..) o (8,64):(64,1)", PLAIN, None, 8, None),
        ("rmem_ptr[16b](0x7f) o (8,64):(64,1)", PLAIN, None, 16, 1),
        ("Sw<3,4,3>_smem_ptr[16b](0x7f2c00000400) o (_8,_64):(_64,_1)", HALF, "shared", 16, 1024),
        ("Sw<3,4,3> o smem_ptr[16b](unset) o (_8,_64):(_64,_1)", HALF, "shared", 16, None),
        ("smem_ptr[16b](0x7f2c) o Sw<3,3,3> o _0 o (_8,_64):(_64,_1)", HALF, "shared", 16, 4),
        (
            "Sw<3,4,3> o smem_ptr[64b](unset) o (_8,_64):(_64,_1)",
            Layout((8, 64), (64, 1), Swizzle(3, 1, 3)), "shared", 64, None,
        ),
        # CuTe DSL, static and at run time.
        ("tensor<ptr<f16, smem, align<1024>, S<3,4,3>> o (8,64):(64,1)>", HALF, "shared", 16, 1024),
        ("tensor<ptr<bf16, gmem> o (8,64):(64,1)>", PLAIN, "global", 16, None),
        ("ptr<f8E4M3FN, gmem, align<16>> o (8,64):(64,1)", PLAIN, "global", 8, 16),
        (
            "raw_ptr(0x0000781f44200400: f32, gmem, align<16>) o (8,64):(64,1) =\n ( 2.23, -0.9",
            PLAIN, "global", 32, 1024,
        ),
        (
            "tensor(raw_ptr(0x00007ffe26625740: f32, rmem, align<32>) o (8,64):(64,1), data=\n [",
            PLAIN, None, 32, 64,
        ),
        ("(8,64):(64,1)", PLAIN, None, None, None),
        # Before CUTLASS 3.5.
        ("gmem_ptr_16b(0x7f5a8c000002) o (_8,_64):(_64,_1)", PLAIN, "global", 16, 2),
        ("smem_ptr_32b(0x7f5a8c000040) o (8,64):(64,1)", PLAIN, "shared", 32, 64),
    ],
)  # fmt: skip
def test_printed_tensors(
    text: str, layout: Layout, space: str | None, bits: int | None, alignment: int | None
) -> None:
    assert as_printed(text) == (layout, space, bits, alignment)
    assert parse(text) == layout


def test_dynamic_extents_and_strides_are_bound() -> None:
    assert parse("(?,64):(64,?{i64})", (8, 1)) == PLAIN
    assert parse("(8,8):(?{div=8},?)", (8,)) == Layout((8, 8), (8, 8))
    with pytest.raises(NotationError, match="replaced by a value, and there are 2"):
        parse("(?,?):(?,1)", (8, 8))


def test_an_atom_tiled_to_a_shape() -> None:
    atom = parse("Sw<2,3,3> o 0 o (8,32):(32,1)")
    assert parse(f"{atom}, tiled to (128,64)") == tile_to_shape(atom, (128, 64))
    for text, message in (("(100,32)", "100 is not a multiple"), ("(8,)", "an extent for each")):
        with pytest.raises(NotationError, match=message):
            parse(f"{atom}, tiled to {text}")


def test_an_offset_is_added_before_the_swizzle() -> None:
    part = parse("Sw<3,3,3> o 64 o (8,64):(64,1)")
    assert str(part) == "Sw<3,3,3> o 64 o (8,64):(64,1)"
    assert part(0, 0) == Swizzle(3, 3, 3)(64) == 72
    assert "ComposedLayout<Swizzle<3,3,3>,_64," in part.cpp()


@pytest.mark.parametrize(
    ("mode", "extent", "stride", "composes_so"),
    [
        # As in pycute's composition and in nvcc's static_assert.
        ("(6,4):(1,8)", 4, 1, False),
        ("(6,4):(1,8)", 12, 1, True),
        ("(6,4):(1,8)", 3, 1, True),
        ("(6,4):(1,8)", 4, 3, True),
        ("(6,4):(1,8)", 2, 4, False),
        ("(6,4):(1,6)", 4, 1, True),  # one mode of 24
        ("(2,3,4):(1,8,32)", 6, 2, True),
        ("(2,3,4):(1,8,32)", 4, 2, False),
        ("(2,3,4):(1,8,32)", 6, 1, True),
        ("24:7", 5, 1, True),
    ],
)
def test_what_composes(mode: str, extent: int, stride: int, composes_so: bool) -> None:
    assert composes(parse(mode), extent, stride) is composes_so


def test_layouts_of_any_kind_are_taken() -> None:
    assert parse(HALF) is HALF
    assert parse(pycute.Layout((8, (2, 3)), (6, (1, 2)))) == Layout((8, (2, 3)), (6, (1, 2)))
    assert parse(str(HALF)) == HALF
    with pytest.raises(NotationError, match="expected"):
        parse(object())


@given(SWIZZLES.filter(lambda swizzle: swizzle.base >= 3), st.integers(0, 3))
def test_a_swizzle_of_bytes_does_the_same_to_elements(swizzle: Swizzle, log: int) -> None:
    bits = 8 << log
    text = f"{swizzle} o smem_ptr[{bits}b](unset) o (64,64):(64,1)"
    elements = np.arange(64 * 64)
    if swizzle.shift < 0:  # its source bits must not be within an element
        swizzle = Swizzle(swizzle.bits, swizzle.base, -swizzle.shift)
        text = text.replace(",-", ",")
    expected = swizzle(elements << log) >> log
    assert np.array_equal(parse(text).swizzle(elements), expected)


@pytest.mark.parametrize(
    ("text", "column", "expected"),
    [
        ("", 0, "'('"), ("8:x", 2, "'('"), ("(8,64)(64,1)", 6, "':'"), ("(8,64) (64,1)", 7, "':'"),
        ("(8,64):(64,1", 12, "')'"), ("(8,64):(64,1) x", 14, "the end of the layout"),
        ("(8,64,):(1,8,64)", 6, "'('"),
        ("(8,-64):(1,8)", 3, "an integer of 0 or more: negative ones are not supported"),
        ("(8,64):(-64,1)", 8, "an integer of 0 or more: negative ones are not supported"),
        ("(?,64):(64,1)", 1, "an integer: a dynamic '?' must be replaced by its value"),
        ("(8,64):(64,?{i64})", 11, "an integer: a dynamic '?' must be replaced by its value"),
        (
            "(8,64):(1@1,1@0)", 8,
            "an integer: a basis stride such as 1@0 makes coordinates, not offsets",
        ),
        ("(8,64):(64,1)>", 13, "the end of the layout"),
        ("(8,64):(64,1), data=[0.0]", 13, "the end of the layout"),
        (
            "Sw<2,2,3> o smem_ptr[64b](unset) o (8,8):(8,1)", 3,
            "a swizzle of bytes that leaves elements of 64 bits",
        ),
        ("ptr<f16, smem, S<3,4,3>> o S<3,3,3> o 0 o (8,64):(64,1)", 29, "one swizzle only"),
        ("Sw<3,3,3> (8,64):(64,1)", 10, "'o 0 o' after the swizzle"),
        ("Sw<3,3> o 0 o (8,64):(64,1)", 0, "'('"),
    ],
)  # fmt: skip
def test_what_does_not_parse(text: str, column: int, expected: str) -> None:
    with pytest.raises(NotationError) as caught:
        parse(text)
    assert caught.value.column == column
    assert str(caught.value) == (
        f"layout {text!r} does not parse at column {column + 1}: expected {expected}"
    )


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("(8,64):(64)", 7, r"stride \(64\) is not congruent with shape \(8,64\)"),
        ("Sw<3,3,2> o 0 o (8,64):(64,1)", 3, r"swizzle <3,3,2> is not one"),
    ],
)
def test_what_parses_and_is_no_layout(text: str, column: int, message: str) -> None:
    with pytest.raises(NotationError, match=message) as caught:
        parse(text)
    assert caught.value.column == column


# -- C++ ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layout", "text"),
    [
        (Layout((8, 64), (64, 1)), "Layout<Shape<_8,_64>,Stride<_64,_1>>"),
        (Layout(8, 1), "Layout<_8,_1>"),
        (Layout((128, 256), (1, 132)), "Layout<Shape<_128,_256>,Stride<_1,Int<132>>>"),
        (
            Layout(((4, 8), 2), ((32, 1), 16)),
            "Layout<Shape<Shape<_4,_8>,_2>,Stride<Stride<_32,_1>,_16>>",
        ),
        (
            Layout((8, 64), (64, 1), Swizzle(3, 3, 3)),
            "ComposedLayout<Swizzle<3,3,3>,_0,Layout<Shape<_8,_64>,Stride<_64,_1>>>",
        ),
    ],
)
def test_cpp(layout: Layout, text: str) -> None:
    assert layout.cpp() == text


def test_constants_have_names_only_where_cute_names_them() -> None:
    headers = [path / "cute/numeric/integral_constant.hpp" for path in include_paths()]
    (header,) = [path for path in headers if path.is_file()]
    named = {int(n) for n in re.findall(r"using _(\d+) *= *Int", header.read_text())}
    assert {0, 1, 8, 64} <= named
    for number in (*range(300), *(1 << bit for bit in range(8, 24))):
        text = Layout(number, 0).cpp()
        assert text in (f"Layout<_{number},_0>", f"Layout<Int<{number}>,_0>")
        assert text.startswith("Layout<Int<") or number in named
