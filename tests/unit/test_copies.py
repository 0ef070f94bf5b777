"""Test tiled copies and tiled MMAs: the coordinates of each thread."""

from collections.abc import Callable

import numpy as np
import pytest

from cute_gemm.cute.atoms import LDMATRIX, LDMATRIX_TRANS, MMA_ATOMS, MmaAtom, cp_async, universal
from cute_gemm.cute.copies import TiledCopy, TiledMma, gmem_tiled_copy, mma_tiled_copy
from cute_gemm.cute.layout import Layout, Swizzle, column_major, row_major

LANE = np.arange(32)
HALF = MMA_ATOMS["SM80_16x8x16_F32F16F16F32_TN"]


def tiled(atom: MmaAtom, wm: int, wn: int, k_atoms: int = 1, n_atoms: int = 2) -> TiledMma:
    m, n, k = atom.shape_mnk
    return TiledMma(
        atom,
        Layout((wm, wn, 1), (1, wm, 0)),
        (Layout(m * wm, 1), Layout(n * wn * n_atoms, 1), Layout(k * k_atoms, 1)),
    )


def counts(coordinates: np.ndarray, extents: tuple[int, int]) -> np.ndarray:
    out = np.zeros(extents, dtype=int)
    np.add.at(out, (coordinates[..., 0], coordinates[..., 1]), 1)
    return out


# -- gmem_tiled_copy ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("threads", "values"),
    [
        (row_major(32, 4), row_major(1, 8)),
        (column_major(16, 8), column_major(8, 1)),
        (column_major(16, 8), column_major(2, 2)),
        (row_major(8, 8), row_major(2, 4)),
    ],
    ids=str,
)
def test_raked_product_is_the_naive_loop(threads: Layout, values: Layout) -> None:
    copy = gmem_tiled_copy(cp_async(128), 16, threads, values)
    (tm, tn), (vm, vn) = threads.extents, values.extents
    assert copy.tile == (tm * vm, tn * vn)
    assert copy.partition.shape == (tm * tn, vm * vn, 2)
    for i in range(tm):
        for j in range(tn):
            for p in range(vm):
                for q in range(vn):
                    place = copy.partition[threads(i, j), values(p, q)]
                    assert place.tolist() == [i * vm + p, j * vn + q]
    assert (counts(copy.partition, copy.tile) == 1).all()


def test_design_threads_and_values() -> None:
    # K-major half, bK = 32: threads (32,4):(4,1), values (1,8).
    copy = gmem_tiled_copy(cp_async(128), 16, row_major(32, 4), row_major(1, 8))
    assert copy.source is copy.partition and copy.values == 8
    assert copy.partition[:6, 0].tolist() == [[0, 0], [0, 8], [0, 16], [0, 24], [1, 0], [1, 8]]
    assert copy.partition[5].tolist() == [[1, 8 + value] for value in range(8)]
    assert str(copy.source_tv()) == "((4,32),8):((256,1),32)"
    requests = copy.requests((128, 32))  # 4 warps, and 4 times the 32 rows of one copy
    assert requests.shape == (16, 32, 2)
    rows = np.unique(requests[..., 0].min(axis=1))
    assert rows.tolist() == list(range(0, 128, 8))
    assert (requests[..., 0].max(axis=1) - requests[..., 0].min(axis=1) == 7).all()


# -- TiledMma -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("wm", "wn"), [(1, 1), (2, 2), (2, 4), (4, 1)])
@pytest.mark.parametrize("name", MMA_ATOMS)
def test_partitions_cover_each_coordinate(name: str, wm: int, wn: int) -> None:
    mma = tiled(MMA_ATOMS[name], wm, wn, k_atoms=2)
    bm, bn, bk = map(mma.extent, range(3))
    assert mma.size == MMA_ATOMS[name].threads * wm * wn
    # Warps along the other mode have the same elements of A and B. Elements of C have one holder.
    for operand, extents, holders in (("A", (bm, bk), wn), ("B", (bn, bk), wm), ("C", (bm, bn), 1)):
        held = mma.partition(operand)
        assert held.shape == (mma.size, extents[0] * extents[1] * holders // mma.size, 2)
        assert (counts(held, extents) == holders).all()


def test_fma_partitions_cover_with_a_permutation() -> None:
    # A thread has four adjacent rows, as in the kernel for an MN-major operand.
    mma = TiledMma(
        MMA_ATOMS["UniversalFMA<float>"],
        Layout(((8, 2), (4, 4), 1), ((1, 32), (8, 64), 0)),
        (Layout((16, 4), (4, 1)), Layout(16, 1), Layout(1, 1)),
    )
    assert mma.size == 256
    assert (counts(mma.partition("C"), (64, 16)) == 1).all()
    assert (counts(mma.partition("A"), (64, 1)) == 16).all()
    assert (counts(mma.partition("B"), (16, 1)) == 16).all()
    assert mma.partition("A")[1, :, 0].tolist() == [4, 5, 6, 7]
    assert "Tile<Layout<Shape<_16,_4>,Stride<_4,_1>>,Int<16>,Int<1>>" in mma.cpp()


def test_two_warps_along_m_lie_behind_each_other() -> None:
    a = tiled(HALF, 2, 2).partition("A")
    assert np.array_equal(a[32:64], a[:32] + [16, 0])  # warp 1 is the second along M
    assert np.array_equal(a[64:96], a[:32])  # warp 2 is the second along N


def test_values_count_the_atom_then_m_or_n_then_k() -> None:
    b = tiled(HALF, 1, 1, k_atoms=2).partition("B")  # two atoms along N, two along K
    corners = b[0].reshape(2, 2, 4, 2)[:, :, 0]
    assert corners.tolist() == [[[0, 0], [8, 0]], [[0, 16], [8, 16]]]


Place = Callable[[int, int, int], tuple[int, int]]

#: The PTX ISA's fragment tables: (g, t, i) -> coordinate, with g = lane / 4, t = lane % 4 and the
#: i-th element of the lane; A as (m, k), B as (n, k), C as (m, n).
C_16x8: Place = lambda g, t, i: (g + 8 * (i >= 2), 2 * t + i % 2)  # noqa: E731
A_16: Place = lambda g, t, i: (g + 8 * (i // 2 % 2), 2 * t + i % 2 + 8 * (i >= 4))  # noqa: E731
B_16: Place = lambda g, t, i: (g, 2 * t + i % 2 + 8 * (i >= 2))  # noqa: E731
A_32: Place = lambda g, t, i: (g + 8 * (i % 2), t + 4 * (i // 2))  # noqa: E731
B_32: Place = lambda g, t, i: (g, t + 4 * i)  # noqa: E731
A_8: Place = lambda g, t, i: (g + 8 * (i // 4 % 2), 4 * t + i % 4 + 16 * (i >= 8))  # noqa: E731
B_8: Place = lambda g, t, i: (g, 4 * t + i % 4 + 16 * (i >= 4))  # noqa: E731
FRAGMENTS: dict[str, tuple[Place, Place, Place]] = {
    "SM80_16x8x16_F32F16F16F32_TN": (A_16, B_16, C_16x8),
    "SM80_16x8x16_F32BF16BF16F32_TN": (A_16, B_16, C_16x8),
    "SM80_16x8x8_F32TF32TF32F32_TN": (A_32, B_32, C_16x8),
    "SM80_16x8x32_S32S8S8S32_TN": (A_8, B_8, C_16x8),
    **{
        f"SM89_16x8x32_F32{a}{b}F32_TN": (A_8, B_8, C_16x8)
        for a in ("E4M3", "E5M2")
        for b in ("E4M3", "E5M2")
    },
    "SM80_8x8x4_F64F64F64F64_TN": (
        lambda g, t, i: (g, t),
        lambda g, t, i: (g, t),
        lambda g, t, i: (g, 2 * t + i),
    ),
    "SM90_16x8x4_F64F64F64F64_TN": (A_32, B_32, C_16x8),
    "SM90_16x8x8_F64F64F64F64_TN": (A_32, B_32, C_16x8),
    "SM90_16x8x16_F64F64F64F64_TN": (A_32, B_32, C_16x8),
}


@pytest.mark.parametrize("name", FRAGMENTS)
def test_fragments_are_those_of_the_ptx_isa(name: str) -> None:
    mma = tiled(MMA_ATOMS[name], 1, 1, n_atoms=1)
    for operand, place in zip("ABC", FRAGMENTS[name], strict=True):
        held = mma.partition(operand)
        expected = [[place(x // 4, x % 4, i) for i in range(held.shape[1])] for x in range(32)]
        assert held.tolist() == [[list(two) for two in lane] for lane in expected], operand


def test_every_tensor_core_atom_has_its_fragments_here() -> None:
    assert set(FRAGMENTS) == {name for name, atom in MMA_ATOMS.items() if atom.threads == 32}


# -- ldmatrix -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operand", "atom", "outer", "k"),
    [
        # Lane i has row i % 8 of matrix i // 8. A's matrices go along M first, B's along K first.
        ("A", LDMATRIX, LANE % 16, 8 * (LANE // 16)),
        ("B", LDMATRIX, LANE % 8 + 8 * (LANE // 16), 8 * (LANE // 8 % 2)),
        # Transposed, a row is one k and eight m or n.
        ("A", LDMATRIX_TRANS, 8 * (LANE // 8 % 2), LANE % 8 + 8 * (LANE // 16)),
        ("B", LDMATRIX_TRANS, 8 * (LANE // 16), LANE % 16),
    ],
)
def test_ldmatrix_rows(operand: str, atom: object, outer: np.ndarray, k: np.ndarray) -> None:
    copy = mma_tiled_copy(atom, 16, tiled(HALF, 1, 1), operand)  # type: ignore[arg-type]
    assert copy.source.shape == (32, 8, 2)
    step = np.arange(8)[None, :, None] * ([0, 1] if atom is LDMATRIX else [1, 0])
    assert np.array_equal(copy.source, np.stack([outer, k], axis=-1)[:, None] + step)
    # The elements that are read are those of the MMA.
    assert (counts(copy.source, copy.tile) == counts(copy.partition, copy.tile)).all()


def test_ldmatrix_of_several_instructions_and_warps() -> None:
    copy = mma_tiled_copy(LDMATRIX, 16, tiled(HALF, 2, 1, k_atoms=2), "A")
    assert copy.tile == (32, 32) and copy.source.shape == (64, 16, 2)
    requests = copy.requests((64, 32))
    assert requests.shape == (2 * 2 * 2, 32, 2)  # warps, halves of K, halves of M
    corners = sorted(map(tuple, requests[:, 0].tolist()))
    assert corners == [(m, k) for m in (0, 16, 32, 48) for k in (0, 16)]
    for one in requests:
        assert np.array_equal(one - one[0], np.stack([LANE % 16, 8 * (LANE // 16)], axis=-1))


# -- vectors --------------------------------------------------------------------------------------


def k_vectors() -> TiledCopy:
    return gmem_tiled_copy(cp_async(128), 16, row_major(32, 4), row_major(1, 8))


def test_vector_offsets_are_bytes() -> None:
    plain = k_vectors().vector_offsets(row_major(32, 32), (32, 32))
    assert np.array_equal(plain, np.arange(128).reshape(4, 32) * 16)
    # Swizzle<2,3,3>: chunk c of row r moves to chunk c ^ (r / 2).
    layout = Layout((32, 32), (32, 1), Swizzle(2, 3, 3))
    found = k_vectors().vector_offsets(layout, (32, 32))
    thread = np.arange(128)
    row, chunk = thread // 4, thread % 4
    assert np.array_equal(found.ravel(), row * 64 + (chunk ^ (row // 2 % 4)) * 16)


@pytest.mark.parametrize(
    ("copy", "layout"),
    [
        (k_vectors(), column_major(32, 32)),
        (k_vectors(), Layout((32, 32), (32, 1), Swizzle(2, 2, 3))),  # chunks of 4 are moved
        (mma_tiled_copy(LDMATRIX, 16, tiled(HALF, 1, 1), "A"), column_major(16, 16)),
        (mma_tiled_copy(LDMATRIX_TRANS, 16, tiled(HALF, 1, 1), "A"), row_major(16, 16)),
        (mma_tiled_copy(universal("st.shared", 128), 32, tiled(HALF, 1, 1), "C"),
         column_major(16, 16)),
    ],
    ids=["across", "swizzle", "ldmatrix", "ldmatrix.trans", "accumulators"],
)  # fmt: skip
def test_vectors_that_are_not_contiguous_are_refused(copy: TiledCopy, layout: Layout) -> None:
    with pytest.raises(ValueError, match=r"of 128 bits does not fit .* not contiguous there"):
        copy.vector_offsets(layout, copy.tile)


def test_single_elements_fit_any_layout() -> None:
    copy = mma_tiled_copy(universal("st.shared", 32), 32, tiled(HALF, 1, 1), "C")
    offsets = copy.vector_offsets(Layout((16, 16), (1, 20)), (16, 16))
    assert offsets.shape == (8, 32)
    first = 4 * (LANE // 4 + 20 * 2 * (LANE % 4))  # rows g, columns 2t
    assert np.array_equal(offsets[0], first)
