"""Test ``analyze_copy``: figures by hand and by brute force, every notation, every error."""

import json
import re
from typing import Any

import numpy as np
import pycute
import pytest
from hypothesis import strategies as st

from cute_gemm.copies.atoms import atom_name
from cute_gemm.copies.report import CopyReport, analyze_copy
from cute_gemm.cute.atoms import LDMATRIX, LDMATRIX_TRANS, MATRIX_ATOMS, MMA_ATOMS
from cute_gemm.cute.copies import TiledMma, mma_tiled_copy
from cute_gemm.cute.layout import Layout, Swizzle, from_map, tile_to_shape
from cute_gemm.cute.notation import parse
from cute_gemm.errors import OptionError

REFERENCE = "Sw<3,3,4> o 0 o ((32,4),(8,4)):((1,256),(32,1024))"


def copied(**question: Any) -> CopyReport:
    return analyze_copy(**({"dtype": "float16"} | question))


# -- by hand --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tensor", "threads", "values", "atom", "dtype", "sectors", "ideal"),
    [
        # As counted on an H200.
        ("(32,1):(1,32)", "32:1", "1:0", "ld.global", "float32", 4, 4),
        ("(32,1):(1024,1)", "32:1", "1:0", "ld.global", "float32", 32, 4),
        ("(128,1):(1,128)", "32:1", "4:1", "ld.global", "float32", 16, 16),
        ("(256,1):(1,256)", "32:1", "8:1", "cp.async", "float16", 16, 16),
        ("(32,8):(2048,1)", "(32,1):(1,0)", "(1,8):(0,1)", "cp.async", "float16", 32, 16),
        # A warp of (16,8) M-major threads on a K-major operand: 16 runs of two halves.
        ("(128,32):(4096,1)", "(16,8):(1,16)", "(8,1):(1,0)", "cp.async", "float16", 16, 2),
        ("(128,32):(1,4096)", "(16,8):(1,16)", "(8,1):(1,0)", "cp.async", "float16", 16, 16),
        # Known good layouts.
        ("(128,32):(4096,1)", "(32,4):(4,1)", "(1,8):(0,1)", "cp.async", "float16", 16, 16),
        ("(128,64):(4096,1)", "(16,8):(8,1)", "(1,8):(0,1)", "cp.async", "float16", 16, 16),
        # Broadcast: all lanes read the same element.
        ("(32,1):(0,0)", "32:1", "1:0", "ld.global", "float32", 1, 1),
    ],
)
def test_global_by_hand(
    tensor: str, threads: str, values: str, atom: str, dtype: str, sectors: int, ideal: int
) -> None:
    report = copied(tensor=tensor, threads=threads, values=values, atom=atom, dtype=dtype)
    (row,) = report.rows
    assert (row.sectors, row.ideal_sectors) == (sectors, ideal)
    assert report.coalesced is row.good is (sectors == ideal)
    assert report.conflict_free
    assert bool(report.fixes[0]) is not report.coalesced or report.bits < 128


def test_the_references_loads() -> None:
    slow = copied(
        tensor="(128,32):(4096,1)",
        threads="(16,8):(1,16)",
        values="(8,1):(1,8)",
        atom="SM80_CP_ASYNC_CACHEGLOBAL<uint128_t>",
    )
    (row,) = slow.rows
    assert (row.instruction, row.bits, row.efficiency, row.requests) == (
        "ld.global", 16, 0.125, 128,
    )  # fmt: skip
    assert row.verdict == "strided"
    assert "16 runs of only 4 bytes, 65536 bytes apart" in row.why
    assert any("the widest instruction that fits is evaluated" in line for line in slow.findings)
    best = slow.fixes[0][0]
    assert best.what == "threads (32,4):(4,1), values (1,8), cp.async of 128 bits"
    assert best.reading == "16 sectors per request, ideal 16, 100 %"
    assert row.fix == str(best)


@pytest.mark.parametrize(
    ("tensor", "atom", "wavefronts"),
    [
        ("(8,64):(64,1)", "ldmatrix.x4", 32),
        ("Sw<3,3,3> o 0 o (8,64):(64,1)", "ldmatrix.x4", 4),
        ("(16,64):(64,1)", "ldmatrix.x2", 16),
        ("(16,64):(64,1)", "stmatrix.x1", 8),
        ("Sw<3,3,3> o 0 o (16,64):(64,1)", "stmatrix.x2", 2),
        ("Sw<2,3,3> o 0 o (16,32):(32,1)", "ldmatrix.x4", 4),
        ("Sw<3,3,3> o 0 o (64,16):(1,64)", "ldmatrix.x4.trans", 4),
        (REFERENCE, "ldmatrix.x4.trans", 8),
        ("Sw<3,3,3> o 0 o ((32,4),(8,4)):((1,256),(32,1024))", "ldmatrix.x4.trans", 4),
    ],
)
def test_matrix_instructions_by_hand(tensor: str, atom: str, wavefronts: int) -> None:
    (row,) = copied(tensor=tensor, atom=atom).rows
    assert row.instruction == atom and row.space == "shared"
    assert row.direction == ("load" if atom.startswith("ld") else "store")
    number = int(re.findall(r"x(\d)", atom)[0])
    assert row.bits == 32 * number and row.lanes == 8 * number
    assert (row.wavefronts, row.ideal_wavefronts) == (wavefronts, number)


def test_the_references_swizzle_conflicts_on_stores_too() -> None:
    question = {
        "tensor": "(128,32):(1,4096)",
        "threads": "(16,8):(1,16)",
        "values": "(8,1):(1,8)",
        "atom": "cp.async.128",
    }
    report = copied(**question, smem=REFERENCE)
    assert report.coalesced and not report.conflict_free
    gmem, store = report.rows
    assert (gmem.space, store.space, store.direction) == ("global", "shared", "store")
    assert (store.wavefronts, store.ideal_wavefronts) == (8, 4)
    assert store.verdict == "2-way conflict"
    best = report.fixes[1][0]
    assert best.what.startswith("Sw<3,3,3> in place of Sw<3,3,4>: ")
    assert best.reading == "4 wavefronts per request, ideal 4; ldmatrix.x4.trans 4, ideal 4"
    fixed = copied(**question, smem=best.what.partition(": ")[2])
    assert fixed.conflict_free and fixed.rows[1].wavefronts == 4
    # Only the shared side.
    alone = copied(**question | {"tensor": REFERENCE}, space="shared")
    assert alone.rows[0] == store


# -- by brute force -------------------------------------------------------------------------------


def bijections(sizes: tuple[int, ...]) -> st.SearchStrategy[Layout]:
    def make(m: int, n: int, rows: bool) -> Layout:
        return Layout((m, n), (n, 1) if rows else (1, m))

    return st.builds(make, st.sampled_from(sizes), st.sampled_from(sizes), st.booleans())


STRIDES = st.sampled_from([0, 1, 2, 7, 8, 24, 64, 96, 100, 128, 512])
MODES = st.one_of(
    st.tuples(st.just(32), STRIDES),
    st.tuples(st.just((4, 8)), st.tuples(STRIDES, STRIDES)),
    st.tuples(st.just((8, 2, 2)), st.tuples(STRIDES, STRIDES, STRIDES)),
)


def requests_of(
    layout: Layout, threads: Layout, values: Layout, width: int
) -> list[list[list[int]]]:
    """Return offsets of each lane of each request, by the definition of a tiled copy."""
    (tm, tn), (vm, vn) = threads.extents, values.extents
    held: dict[tuple[int, int], tuple[int, int]] = {}
    for i in range(tm):
        for j in range(tn):
            for p in range(vm):
                for q in range(vn):
                    held[threads(i, j), values(p, q)] = (i * vm + p, j * vn + q)
    out = []
    for m in range(0, layout.extents[0], tm * vm):
        for n in range(0, layout.extents[1], tn * vn):
            for warp in range(0, threads.size, 32):
                for first in range(0, values.size, width):
                    lanes = []
                    for thread in range(warp, min(warp + 32, threads.size)):
                        places = [held[thread, value] for value in range(first, first + width)]
                        lanes.append([int(layout(m + i, n + j)) for i, j in places])
                    out.append(lanes)
    return out


def fitting(requests: list[list[list[int]]], size: int, alignment: int) -> bool:
    return all(
        lane == list(range(lane[0], lane[0] + len(lane)))
        and (alignment * 10**6 + lane[0] * size) % (len(lane) * size) == 0
        and alignment % (len(lane) * size) == 0
        for request in requests
        for lane in request
    )


def widest(layout: Layout, threads: Layout, values: Layout, size: int, alignment: int) -> int:
    width = 16 // size
    while values.size % width or not fitting(
        requests_of(layout, threads, values, width), size, alignment
    ):
        width //= 2
    return width


def bank_wavefronts(words_of_phases: list[list[set[int]]]) -> tuple[int, int]:
    taken = ideal = 0
    for phase in words_of_phases:
        words = set().union(*phase) if phase else set()
        taken += max((sum(w % 32 == bank for w in words) for bank in range(32)), default=0)
        ideal += -(-len(words) // 32)
    return taken, ideal


# -- fragments ------------------------------------------------------------------------------------

MMA = TiledMma(
    MMA_ATOMS["SM80_16x8x16_F32F16F16F32_TN"],
    Layout((2, 2, 1), (1, 2, 0)),
    (Layout(32, 1), Layout(32, 1), Layout(16, 1)),
)


@pytest.mark.parametrize(
    ("operand", "atom", "home"),
    [
        ("A", LDMATRIX, "Sw<2,3,3> o 0 o (8,32):(32,1)"),
        ("B", LDMATRIX, "(8,32):(32,1)"),
        ("A", LDMATRIX_TRANS, "Sw<3,3,3> o 0 o (64,8):(1,64)"),
        ("B", LDMATRIX_TRANS, "Sw<3,3,4> o 0 o (32,8):(1,32)"),
    ],
)
def test_a_tv_layout_is_the_kernels_own_copy(operand: str, atom: Any, home: str) -> None:
    kernels = mma_tiled_copy(atom, 16, MMA, operand)
    layout = tile_to_shape(parse(home), (128, 32))
    partition = kernels.partition
    held = from_map(partition[..., 0] + kernels.tile[0] * partition[..., 1])
    report = copied(tensor=layout, tv=held, tile=kernels.tile, atom=atom.name)
    (access,) = report.accesses
    expected = kernels.vector_offsets(layout, (128, 32))
    assert np.array_equal(np.unique(access.offsets, axis=0), np.unique(expected, axis=0))
    assert len(access.offsets) == len(expected)
    # The default threads of a warp are the same.
    alone = copied(tensor=layout, atom=atom.name)
    assert alone.rows[0].wavefronts == report.rows[0].wavefronts


@pytest.mark.parametrize("name", MATRIX_ATOMS)
def test_rows_along_either_mode(name: str) -> None:
    atom = MATRIX_ATOMS[name]
    for axis, home in ((1, "(16,64):(64,1)"), (0, "(64,16):(1,64)")):
        (access,) = copied(tensor=home, atom=atom.cpp).accesses
        rows = access.coords[(access.coords >= 0).all(axis=-1)]
        # Every row of 8 halves once: 16 along the other mode, 8 along this one.
        assert sorted(rows[:, axis].tolist()) == sorted(list(range(0, 64, 8)) * 16)
        assert sorted(rows[:, 1 - axis].tolist()) == sorted(list(range(16)) * 8)
        # A matrix has 8 rows, one below the other.
        number = int(name.split(".x")[1][0])
        matrices = access.coords[:, : 8 * number].reshape(-1, 8, 2)
        assert (np.diff(matrices[..., 1 - axis]) == 1).all()
        assert (np.diff(matrices[..., axis]) == 0).all()
        assert (access.offsets[:, 8 * number :] == -1).all()


def test_matrices_of_other_elements() -> None:
    row = copied(tensor="(8,64):(64,1)", atom="ldmatrix.x4", dtype="int8").rows[0]
    assert (row.requests, row.wavefronts) == (1, 16)
    row = copied(tensor="(8,16):(16,1)", atom="ldmatrix.x4", dtype="float32").rows[0]
    assert (row.requests, row.wavefronts) == (1, 16)  # 64-byte rows: 4 matrices, 4-way each
    for atom, dtype, message in (
        ("ldmatrix.x4", "float64", "gives a thread 32 bits of a matrix; float64 has 64"),
        ("ldmatrix.x4.trans", "float32", "transposes elements of 16 bits; float32 has 32"),
    ):
        with pytest.raises(OptionError, match=message):
            copied(tensor="(8,64):(64,1)", atom=atom, dtype=dtype)


def test_a_matrix_without_rows_is_a_finding() -> None:
    report = copied(tensor="(16,16):(2,32)", atom="ldmatrix.x4")
    assert report.rows[0].instruction == "ld.shared" and report.bits == 16
    assert any("takes rows of 16 contiguous bytes" in text for text in report.findings)
    fragments = copied(
        tensor="(16,16):(16,1)", threads="(8,4):(4,1)", values="(1,1):(0,0)", atom="stmatrix.x1"
    )
    assert fragments.rows[0].instruction == "st.shared"
    assert any("moves 2 values of a thread, and there are 1" in t for t in fragments.findings)
    wide = copied(
        tensor="(32,32):(32,1)", threads="(32,4):(4,1)", values="(1,8):(0,1)", atom="ldmatrix.x4"
    )
    assert (wide.rows[0].instruction, wide.bits) == ("ld.shared", 128)
    assert wide.findings[-1].endswith("in such rows; plain loads are evaluated.")


# -- widths ---------------------------------------------------------------------------------------


def test_an_atom_wider_than_the_run() -> None:
    question = {"tensor": "(64,32):(1,64)", "threads": "(8,4):(4,1)", "values": "(1,8):(0,1)"}
    report = copied(**question, atom="cp.async.128")
    assert report.rows[0].instruction == "ld.global" and report.bits == 16
    assert [text for text in report.findings if "cp.async.128 needs 8 contiguous" in text]
    half = copied(**question | {"values": "(2,4):(1,2)"}, atom="cp.async.64")
    assert (half.rows[0].instruction, half.bits) == ("cp.async", 32)
    # With shared memory of the other major, the vector is as short there too.
    both = copied(
        tensor="(64,32):(1,64)", threads="(8,4):(1,8)", values="(8,1):(1,0)", atom="cp.async",
        smem="(64,32):(32,1)",
    )  # fmt: skip
    assert [row.instruction for row in both.rows] == ["ld.global", "st.shared"]
    assert both.bits == 16
    assert "into shared memory" in both.fixes[0][0].what


def test_a_misaligned_vector_has_its_verdict() -> None:
    odd = {"tensor": "(32,32):(33,1)", "threads": "(32,4):(4,1)", "values": "(1,8):(0,1)"}
    report = copied(**odd, atom="cp.async.128")
    assert report.bits == 128 and report.rows[0].verdict == "misaligned"
    assert not report.coalesced
    assert report.fixes[0][0].figures["bits"] < 128  # a narrower copy is the smallest change
    assert "leading dimension 48, a multiple of 32 bytes" in report.fixes[0][-1].what
    # Without a given width the copy is as wide as possible.
    assert copied(**odd, atom="ld.global").bits == 16
    assert copied(**odd | {"tensor": "(32,32):(36,1)"}, atom="ld.global").bits == 64
    low = copied(**odd | {"tensor": "(32,32):(32,1)"}, atom="ld.global", base_alignment=4)
    assert low.bits == 32
    assert any("base address aligned to 4 bytes" in finding for finding in low.findings)


@pytest.mark.parametrize(
    ("atom", "bits"),
    [
        ("DefaultCopy", 16),
        ("AutoVectorizingCopy", 128),
        ("AutoVectorizingCopyWithAssumedAlignment<64>", 64),
        ("ld.global.32", 32),
    ],
)
def test_what_the_atom_limits(atom: str, bits: int) -> None:
    report = copied(tensor="(32,32):(32,1)", threads="(32,4):(4,1)", values="(1,8)"
                    ":(0,1)", atom=atom)  # fmt: skip
    assert report.bits == bits and report.coalesced is (bits == 128)
    assert bool(report.findings) is (bits < 128)
    assert (report.fixes[0][0].figures["bits"] == 128) if bits < 128 else not report.fixes[0]


def test_fewer_threads_than_a_warp() -> None:
    report = copied(tensor="(48,1):(1,48)", threads="48:1", values="1:0", atom="ld.global.16")
    (row,) = report.rows
    assert (row.requests, row.lanes, row.bytes) == (2, 24, 48)
    assert report.coalesced
    # Lanes beyond the elements are inactive.
    lanes = report.accesses[0].coords[..., 0]
    assert lanes.tolist() == [list(range(32)), list(range(32, 48)) + [-1] * 16]


def test_values_left_out_are_one_vector() -> None:
    question = {"tensor": "(128,64):(64,1)", "threads": "(16,8):(8,1)", "atom": "cp.async"}
    report = copied(**question)
    assert report.rows == copied(**question, values="(1,8):(0,1)").rows
    assert copied(**question | {"tensor": "(128,64):(1,128)"}).tile == (128, 8)


# -- notations ------------------------------------------------------------------------------------


class Dsl:
    """An object with the text of CuTe DSL objects."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text


@pytest.mark.parametrize(
    ("tensor", "atom"),
    [
        (Layout((8, 64), (64, 1), Swizzle(3, 3, 3)), "ldmatrix.x4"),
        ("S<3,3,3> o 0 o (8,64):(64,1)", "SM75_U32x4_LDSM_N"),
        ("Sw<3,3,3> o _0 o (_8,_64):(_64,_1)", "Copy_Atom<SM75_U32x4_LDSM_N, half_t>"),
        ("Sw<3,4,3> o smem_ptr[16b](unset) o (_8,_64):(_64,_1)", "cute::SM75_U32x4_LDSM_N{}"),
        ("Sw<3,4,3>_smem_ptr[16b](0x7f0000000400) o (_8,_64):(_64,_1)", "ldmatrix.x4"),
        (
            Dsl("tensor<ptr<f16, smem, align<1024>, S<3,4,3>> o (8,64):(64,1)>"),
            "warp.LdMatrix8x8x16bOp(transpose=False, num_matrices=4)",
        ),
        (
            pycute.ComposedLayout(pycute.Swizzle(3, 3, 3), 0, pycute.Layout((8, 64), (64, 1))),
            "ldmatrix.sync.aligned.m8n8.x4.shared.b16",
        ),
    ],
)
def test_one_shared_tensor_in_every_notation(tensor: Any, atom: str) -> None:
    report = copied(tensor=tensor, atom=atom)
    assert report.tensor == "Sw<3,3,3> o 0 o (8,64):(64,1)"
    assert report.rows == copied(tensor="Sw<3,3,3> o 0 o (8,64):(64,1)", atom="ldmatrix.x4").rows


@pytest.mark.parametrize(
    ("tensor", "atom"),
    [
        (pycute.Layout((128, 32), (1, 4096)), "cp.async.128"),
        ("gmem_ptr[16b](0x7f2c00000000) o (_128,_32):(_1,4096)", "cp.async"),
        ("(128,32):(1,4096)", "SM80_CP_ASYNC_CACHEALWAYS_ZFILL<cute::uint128_t>"),
        (
            "raw_ptr(0x0000781f44200400: f16, gmem, align<16>) o (128,32):(1,4096) =\n ( 2.2, 0.1",
            "cute.nvgpu.cpasync.CopyG2SOp(cache_mode=<LoadCacheMode.GLOBAL>)",
        ),
    ],
)
def test_one_global_tensor_in_every_notation(tensor: Any, atom: str) -> None:
    question = {"threads": "(_16,_8):(_1,_16)", "values": "(_8,_1):(_1,_0)"}
    report = copied(tensor=tensor, atom=atom, **question)
    expected = copied(tensor="(128,32):(1,4096)", atom="cp.async.128", **question)
    assert report.rows == expected.rows and report.bits == 128


def test_hierarchy_is_only_notation() -> None:
    question = {"threads": "(16,8):(1,16)", "values": "(8,1):(1,8)", "atom": "cp.async"}
    flat = copied(tensor="(128,32):(1,4096)", **question)
    nested = copied(
        tensor="((8,16),(4,8)):((1,8),(4096,16384))",
        threads="((4,4),8):((1,4),16)", values="(8):(1)", atom="cp.async",
    )  # fmt: skip
    assert nested.rows == flat.rows


@pytest.mark.parametrize(
    ("text", "kind", "space", "direction", "bits", "feature"),
    [
        ("red.global", "reduce", "global", "store", None, ""),
        ("red.global.add.f32", "reduce", "global", "store", 32, ""),
        ("red.relaxed.gpu.global.add.noftz.bf16x2", "reduce", "global", "store", 32, ""),
        ("red.global.add.v4.f32", "reduce", "global", "store", 128, "red.vector"),
        ("red.global.v8.f16.add.noftz", "reduce", "global", "store", 128, "red.vector"),
        ("red.global.add.noftz.v2.f16", "reduce", "global", "store", 32, "red.vector"),
        ("atom.acq_rel.sys.global.cas.b64", "reduce", "global", "store", 64, ""),
        ("red.global.64", "reduce", "global", "store", 64, ""),
        ("atom.global.exch.b128", "reduce", "global", "store", 128, "red.vector"),
        ("atom.shared.add.u32", "reduce", "shared", "store", 32, ""),
        ("red.shared::cta.max.s32", "reduce", "shared", "store", 32, ""),
        ("cp.async.bulk", "bulk", "global", "load", None, "tma"),
        ("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];",
         "bulk", "global", "load", None, "tma"),
        ("cp.async.bulk.global.shared::cta.bulk_group", "bulk", "global", "store", None, "tma"),
        ("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32", "bulk", "global", "store",
         None, "tma"),
        ("SM90_BULK_COPY_G2S", "bulk", "global", "load", None, "tma"),
        ("Copy_Atom<SM90_BULK_COPY_S2G, half_t>", "bulk", "global", "store", None, "tma"),
        ("SM90_BULK_COPY_AUTO{}", "bulk", "global", None, None, "tma"),
        ("cute.nvgpu.cpasync.CopyBulkG2SOp()", "bulk", "global", "load", None, "tma"),
        ("SM90_TMA_REDUCE_ADD", "tma", "global", "store", None, "tma"),
        ("ld.global.v8.b32", "universal", "global", "load", 256, "ld.256"),
        ("ld.global.nc.L1::no_allocate.v4.b64", "universal", "global", "load", 256, "ld.256"),
        ("st.global.v4.f64", "universal", "global", "store", 256, "ld.256"),
        ("SM100_LOAD_256bit_CACHE_NOALLOCATION", "universal", "global", "load", 256, "ld.256"),
        ("SM100_STORE_256bit_CACHE_NOALLOCATION", "universal", "global", "store", 256, "ld.256"),
        ("ld.global.128", "universal", "global", "load", 128, ""),
        ("ldmatrix.sync.aligned.m16n16.x2.trans.shared.b8", "matrix", "shared", "load", None,
         "matrix.b8"),
        ("SM100_U8x16_LDSM_T", "matrix", "shared", "load", None, "matrix.b8"),
        ("stmatrix.sync.aligned.m16n8.x4.trans.shared.b8", "matrix", "shared", "store", None,
         "matrix.b8"),
        ("StMatrix16x8x8bOp(num_matrices=4)", "matrix", "shared", "store", None, "matrix.b8"),
        ("SM100_SU4_DU8x16_x4_LDSM_N", "matrix", "shared", "load", None, "matrix.b8"),
        ("stmatrix.x4", "matrix", "shared", "store", None, "stmatrix"),
        ("ldmatrix.x4.trans", "matrix", "shared", "load", None, ""),
        ("cp.async.64", "cp.async", "global", "load", 64, "cp.async"),
        ("ld.global", "universal", "global", "load", None, None),
        # PTX's names.
        ("ld.global.nc.v4.f32", "universal", "global", "load", 128, None),
        ("ld.global.nc.L1::no_allocate.L2::128B.v2.b64", "universal", "global", "load", 128, None),
        ("ld.relaxed.gpu.global.u32", "universal", "global", "load", 32, None),
        ("ld.volatile.shared.v2.f32", "universal", "shared", "load", 64, None),
        ("ld.shared::cta.b16", "universal", "shared", "load", 16, None),
        ("st.global.cs.v4.u32", "universal", "global", "store", 128, None),
        ("st.shared.f16x2", "universal", "shared", "store", 32, None),
        ("cp.async.cg.shared.global", "cp.async", "global", "load", 128, None),
        ("cp.async.cg.shared::cta.global.L2::128B [%r1], [%rd2], 16;",
         "cp.async", "global", "load", 128, None),
        ("cp.async.ca.shared.global", "cp.async", "global", "load", None, None),
        ("cp.async.ca.shared.global [%0], [%1], 8, %2;", "cp.async", "global", "load", 64, None),
        # CuTe's names.
        ("UniversalCopy<uint_bit_t<128>>", "universal", None, None, 128, None),
        ("Copy_Atom<UniversalCopy<cute::uint_bit_t<64>>, half_t>",
         "universal", None, None, 64, None),
        ("UniversalCopy<uint_byte_t<16>>", "universal", None, None, 128, None),
        ("SM80_CP_ASYNC_CACHEGLOBAL<uint_bit_t<128>>", "cp.async", "global", "load", 128, None),
        ("make_copy_atom(cute.nvgpu.CopyUniversalOp(), cutlass.Float16, num_bits_per_copy=64)",
         "universal", None, None, 64, None),
        # Names in this package's reports.
        ("cp.async of 128 bits", "cp.async", "global", "load", 128, None),
        ("st.global of 16 bits", "universal", "global", "store", 16, None),
        ("st.shared.b64", "universal", "shared", "store", 64, None),
        ("cp.async.32", "cp.async", "global", "load", 32, None),
        ("UniversalCopy<uint64_t>", "universal", None, None, 64, None),
        ("UniversalCopy<double, double>", "universal", None, None, 64, None),
        ("Copy_Atom<UniversalCopy<uint128_t>, float>{}", "universal", None, None, 128, None),
        ("SM80_CP_ASYNC_CACHEALWAYS<uint32_t>", "cp.async", "global", "load", 32, None),
        ("AutoCopyAsync", "cp.async", "global", "load", None, None),
        ("cute.nvgpu.CopyUniversalOp()", "universal", None, None, None, None),
        ("stmatrix.x2.trans", "matrix", "shared", "store", None, None),
        ("StMatrix8x8x16bOp(True, 2)", "matrix", "shared", "store", None, None),
    ],
)  # fmt: skip
def test_names(
    text: str, kind: str, space: str, direction: str | None, bits: int | None, feature: str | None
) -> None:
    """Test names. ``feature``: the required feature of an architecture; None is not checked."""
    atom = atom_name(text)
    assert (atom.kind, atom.space, atom.direction, atom.bits) == (kind, space, direction, bits)
    assert feature is None or atom.feature == feature
    if "stmatrix.x2.trans" in text or text.startswith("StMatrix8"):
        assert atom.matrix is MATRIX_ATOMS["stmatrix.x2.trans"]


def test_a_plain_copy_goes_where_it_is_told() -> None:
    question = {"tensor": "(32,8):(8,1)", "threads": "32:1", "values": "(1,8):(0,1)"}
    name = "UniversalCopy<uint128_t>"
    for space in ("global", "shared"):
        for direction in ("load", "store"):
            (row,) = copied(**question, atom=name, space=space, direction=direction).rows
            assert row.instruction == f"{direction[:2]}.{space}".replace("lo.", "ld.")
    smem = question | {"tensor": "smem_ptr[16b](0x7f00) o (32,8):(8,1)"}
    assert copied(**smem, atom=name).rows[0].instruction == "ld.shared"
    assert copied(**smem, atom="cp.async").rows[0].space == "shared"


# -- the report -----------------------------------------------------------------------------------


def test_what_is_printed_and_written() -> None:
    report = copied(
        tensor="(128,32):(4096,1)", threads="(16,8):(1,16)", values="(8,1):(1,8)",
        atom="cp.async.128", smem=REFERENCE,
    )  # fmt: skip
    text = str(report)
    for part in (
        "cp.async.128 of float16",
        "tensor   (128,32):(4096,1)",
        f"smem     {REFERENCE}",
        "ld.global",
        "12.5 %",
        "4-way conflict",
    ):
        assert part in text
    assert max(map(len, text.splitlines())) <= 112
    data = json.loads(report.to_json())
    assert data == json.loads(json.dumps(report.to_dict()))
    assert data["coalesced"] is False and data["conflict_free"] is False and data["bits"] == 16
    assert [row["space"] for row in data["accesses"]] == ["global", "shared"]
    assert data["fixes"][0][0]["figures"]["sectors"] == 16
    assert data["findings"] == list(report.findings) and data["tile"] == [128, 8]
    nothing = copied(
        tensor="(128,32):(32,1)", threads="(32,4):(4,1)", values="(1,8):(0,1)", atom="cp.async"
    )
    assert nothing.findings == () and nothing.fixes == ((),) and nothing.rows[0].fix == ""
