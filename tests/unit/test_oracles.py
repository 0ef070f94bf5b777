"""Test layout algebra and atoms against other implementations: pycute and tensor-layouts.

tensor-layouts' functions for banks and sectors are no reference, because they do not support
vector accesses.
"""

import numpy as np
import pycute
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cute_gemm.cute.atoms import LDMATRIX, MATRIX_ATOMS, MMA_ATOMS
from cute_gemm.cute.copies import TiledCopy, gmem_tiled_copy
from cute_gemm.cute.layout import Layout, Swizzle, column_major, row_major, tile_to_shape
from cute_gemm.cute.notation import parse

tl = pytest.importorskip("tensor_layouts", reason="an oracle: pip install tensor-layouts")
atoms_nv = pytest.importorskip("tensor_layouts.atoms_nv")

ATOMS = {
    name: value
    for name, value in vars(atoms_nv).items()
    if type(value).__name__ in ("MMAAtom", "CopyAtom")
}


def table(layout: object) -> np.ndarray:
    """Return the offsets of a tensor-layouts layout of two modes."""
    first, second = (tl.size(tl.mode(layout, i)) for i in (0, 1))
    return np.array([[layout(i, j) for j in range(second)] for i in range(first)])


# -- atoms ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(set(MMA_ATOMS) & set(ATOMS)))
def test_mma_atoms(name: str) -> None:
    ours, theirs = MMA_ATOMS[name], ATOMS[name]
    assert ours.shape_mnk == theirs.shape_mnk
    for operand in "abc":
        expected = table(getattr(theirs, f"{operand}_layout"))
        assert np.array_equal(getattr(ours, operand).table(), expected)


def test_most_mma_atoms_have_an_oracle() -> None:
    # bfloat16 has float16's layouts, FMA is one thread.
    assert set(MMA_ATOMS) - set(ATOMS) <= {"SM80_16x8x16_F32BF16BF16F32_TN", "UniversalFMA<float>"}
    bf16, f16 = (MMA_ATOMS[f"SM80_16x8x16_F32{t}{t}F32_TN"] for t in ("BF16", "F16"))
    assert (bf16.a, bf16.b, bf16.c) == (f16.a, f16.b, f16.c)


@pytest.mark.parametrize("name", MATRIX_ATOMS)
def test_matrix_atoms(name: str) -> None:
    ours = MATRIX_ATOMS[name]
    theirs = ATOMS[ours.cpp]
    held, rows = theirs.dst_layout_bits, theirs.src_layout_bits
    if name.startswith("st"):
        held, rows = rows, held
    assert ours.destination is not None
    assert np.array_equal(ours.destination.table(), table(held))
    # A warp whose data are in order: its element e has the coordinate (0, e).
    number = ours.destination.table()[:, ::16] // 16
    partition = np.stack([np.zeros_like(number), number], axis=-1)
    copy = TiledCopy(ours, 16, (1, number.size), partition)
    lanes = 8 * int(name.split(".x")[1][0])
    assert np.array_equal(copy.source[:lanes, :, 1], table(rows)[:lanes, ::16] // 16)
    assert (copy.source[lanes:] == -1).all()
    assert copy.bits == 4 * lanes


# -- algebra --------------------------------------------------------------------------------------

SHAPES = st.tuples(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 3, 4]))
LAYOUTS = st.builds(
    lambda shape, rows: (row_major if rows else column_major)(*shape), SHAPES, st.booleans()
)


@settings(deadline=None, max_examples=50)
@given(LAYOUTS, LAYOUTS)
def test_raked_product_is_tensor_layouts(threads: Layout, values: Layout) -> None:
    """Test CuTe's ``make_tiled_copy``: right inverse of the raked product, as (thread, value)."""
    copy = gmem_tiled_copy(LDMATRIX, 16, threads, values)
    block, tiler = (tl.Layout(layout.shape, layout.stride) for layout in (threads, values))
    product = tl.raked_product(block, tiler)  # (m, n) -> thread + value * threads
    for (thread, value, _), _ in np.ndenumerate(copy.partition):
        m, n = copy.partition[thread, value]
        assert product(int(m), int(n)) == thread + value * threads.size


@settings(deadline=None, max_examples=50)
@given(LAYOUTS, st.tuples(st.sampled_from([1, 2, 3]), st.sampled_from([1, 2])))
def test_tile_to_shape_is_a_blocked_product(atom: Layout, times: tuple[int, int]) -> None:
    extents = (atom.extents[0] * times[0], atom.extents[1] * times[1])
    ours = tile_to_shape(atom, extents)
    product = tl.blocked_product(
        tl.Layout(atom.shape, atom.stride), tl.Layout(times, (1, times[0]))
    )
    assert np.array_equal(ours.table(), table(product))


@settings(deadline=None)
@given(LAYOUTS, st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3)))
def test_swizzled_layouts(affine: Layout, bms: tuple[int, int, int]) -> None:
    bits, base, more = bms
    shift = bits + more
    assume(shift)  # tensor-layouts and pycute treat a shift of 0 as no swizzle
    ours = Layout(affine.shape, affine.stride, Swizzle(bits, base, shift))
    theirs = tl.compose(tl.Swizzle(bits, base, shift), tl.Layout(affine.shape, affine.stride))
    third = pycute.ComposedLayout(
        pycute.Swizzle(bits, base, shift), 0, pycute.Layout(affine.shape, affine.stride)
    )
    for m, n in np.ndindex(affine.extents):
        assert ours(m, n) == theirs(m, n) == third(m, n)
    assert parse(third) == ours


@settings(deadline=None)
@given(LAYOUTS)
def test_layouts_of_other_libraries_are_taken(layout: Layout) -> None:
    assert parse(pycute.Layout(layout.shape, layout.stride)) == layout
    assert parse(tl.Layout(layout.shape, layout.stride)) == layout


POWERS = LAYOUTS.filter(lambda layout: layout.size & (layout.size - 1) == 0)


@settings(deadline=None)
@given(POWERS, POWERS)
def test_compositions_are_pycutes(outer: Layout, inner: Layout) -> None:
    """Test composed layouts: evaluation composes."""
    assume(inner.size <= outer.size)  # powers of two fulfill CuTe's divisibility conditions
    composed = pycute.composition(
        pycute.Layout(outer.shape, outer.stride), pycute.Layout(inner.shape, inner.stride)
    )
    index = np.arange(inner.size)
    assert np.array_equal(parse(composed)(index), outer(inner(index)))
