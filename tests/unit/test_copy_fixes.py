"""Test fixes of a copy: each one is applied, and an exhaustive search finds no better ones."""

import random
import re
from collections import Counter
from typing import Any

import numpy as np
import pytest
from cases import configure
from copy_search import aliases, asked, compared, paid, random_question, refutations

from cute_gemm.api import analyze
from cute_gemm.copies.report import CopyReport, analyze_copy
from cute_gemm.cute.layout import Layout
from cute_gemm.cute.notation import parse
from cute_gemm.errors import OptionError
from cute_gemm.kernels.sm80.pipeline import Sm80Pipeline
from cute_gemm.problem.describe import from_sizes


def again(question: dict[str, Any], report: CopyReport, place: int = 0) -> list[CopyReport]:
    """Return the reports after each fix of a row. No fix may be wrong."""
    assert refutations(question, report) == []
    return [analyze_copy(**question | fix.change) for fix in report.fixes[place]]


def test_a_tensor_that_a_fix_names_does_not_alias() -> None:
    question = {
        "tensor": "(128,32):(32,1)", "threads": "(16,8):(1,16)", "values": "(8,1):(1,8)",
        "atom": "st.global.128",
    }  # fmt: skip
    report = analyze_copy(**question)
    fixed = again(question, report)
    assert [found.coalesced for found in fixed] == [True, True]
    # A former fix, (128,32):(1,32), has (32,0) and (0,1) at the same offset.
    assert report.fixes[0][1].change["tensor"] == "(128,32):(1,128)"
    assert "tensor (128,32):(1,128)" in report.fixes[0][1].what


def test_a_tile_is_no_longer_than_its_pitch() -> None:
    question = {"tensor": "(64,4):(5,1)", "threads": "(64,1):(1,0)", "values": "(1,1)",
                "atom": "ld.global", "dtype": "int32"}  # fmt: skip
    report = analyze_copy(**question)
    again(question, report)
    for fix in report.fixes[0]:
        assert "a tile of (64,8)" not in fix.what or not aliases(
            asked(question | fix.change).layout
        )


def test_no_fix_costs_more_than_it_saves() -> None:
    question = {
        "tensor": "(64,6):(1,64)", "smem": "(64,6):(1,65)", "dtype": "float64",
        "threads": "(32,3):(3,1)", "atom": "ld.global.64",
    }  # fmt: skip
    report = analyze_copy(**question)
    now = [paid(row) for row in report.rows]
    for place in (0, 1):
        fixed = again(question, report, place)
        assert fixed
        for found in fixed:
            # 128-bit loads, a former fix, are not aligned at a pitch of 65.
            assert all(paid(row) <= cost for row, cost in zip(found.rows, now, strict=True))
    assert any(found.coalesced for found in again(question, report))


def test_nothing_is_assumed_beside_plain_accesses() -> None:
    question = {"tensor": "(64,32):(32,1)", "dtype": "float32", "threads": "(32,1):(1,32)",
                "atom": "st.shared.32"}  # fmt: skip
    report = analyze_copy(**question)
    assert all(found.rows[0].wavefronts == 1 for found in again(question, report)[:3])
    whats = [fix.what for fix in report.fixes[0]]
    assert whats[0] == "a swizzle: Sw<5,0,5> o 0 o (64,32):(32,1)"
    assert "(64,32):(33,1), rows padded by 4 bytes" in whats  # of the given major
    # The fix is also right for a named reader.
    beside = question | {"reader": "ldmatrix.x4"}
    best = analyze_copy(**beside).fixes[0][0]
    assert best.what == "a swizzle: Sw<3,2,3> o 0 o (64,32):(32,1)"
    assert best.reading == "4 wavefronts per request, ideal 1; ldmatrix.x4 4, ideal 4"
    named = question | {"reader": "ld.shared.32 threads (1,32):(0,1)"}
    first = analyze_copy(**named).fixes[0][0]
    assert first.reading == "1 wavefront per request, ideal 1; ld.shared 1, ideal 1"
    assert first.what == "a swizzle: Sw<5,0,5> o 0 o (64,32):(32,1)"


def test_a_reader_and_a_writer_have_rows_of_their_own() -> None:
    home = "(128,32):(32,1)"
    question = {"tensor": "(128,32):(4096,1)", "smem": home, "atom": "cp.async.128",
                "threads": "(32,4):(4,1)", "values": "(1,8)"}  # fmt: skip
    named = {
        "reader": ({"atom": "ldmatrix.x4"}, "ldmatrix.x4"),
        "writer": ({"atom": "st.shared.32", "threads": "(32,1):(1,32)", "values": "(1,2)"},
                   "st.shared.32 threads (32,1):(1,32) values (1,2)"),
    }  # fmt: skip
    plain = analyze_copy(**question)
    both = question | {argument: text for argument, (_, text) in named.items()}
    report = analyze_copy(**both)
    assert plain.conflict_free and not plain.findings and not report.conflict_free
    assert report.rows[:2] == plain.rows
    for row, (argument, (asked_alone, _)) in zip(report.rows[2:], named.items(), strict=True):
        alone = analyze_copy(tensor=home, **asked_alone).rows[0]
        figures = (
            "instruction", "bits", "direction", "requests", "wavefronts", "verdict", "launch",
        )  # fmt: skip
        assert [getattr(row, name) for name in figures] == [
            getattr(alone, name) for name in figures
        ]
        assert row.part == argument and "conflict" in row.verdict
        assert any(f"({argument}) has bank conflicts" in line for line in report.findings)
    # A fix of one row makes no other row worse, and is in the public report.
    found = again(question | {"reader": "ldmatrix.x4"}, analyze_copy(
        **question, reader="ldmatrix.x4"), 2)  # fmt: skip
    assert found and all(fixed.conflict_free for fixed in found)
    # All tiles of a matrix are read.
    tiled = analyze_copy(**both | {"extents": "300x64"})
    assert tiled.rows[2].launch.requests == 3 * 2 * report.rows[2].launch.requests
    # If rows are not whole, the row has the width that fits, as without the reader.
    torn = question | {"smem": "Sw<2,0,5> o 0 o (128,32):(32,1)", "reader": "ldmatrix.x4"}
    report = analyze_copy(**torn)
    assert report.rows[2].instruction == "ld.shared" and not report.conflict_free
    assert any("takes rows of 16 contiguous bytes" in line for line in report.findings)
    for reader in ("ld.global.64 threads (8,4):(4,1) values (1,4)", "cp.async.bulk threads 1:0"):
        with pytest.raises(OptionError, match="does not move vectors of threads"):
            analyze_copy(**question, reader=reader)


def test_figures_of_a_fix_are_the_rows_to_the_last_bit() -> None:
    question = {"tensor": "(32,24):(1,40)", "smem": "(32,24):(40,1)", "dtype": "float64",
                "threads": "(32,3):(3,1)", "values": "(1,2):(1,1)", "atom": "cp.async"}  # fmt: skip
    report = analyze_copy(**question)
    again(question, report, 1)
    # A third of a conflict per request, as a quotient and not as a difference of means.
    assert 4 / 3 in [fix.figures["conflicts"] for fix in report.fixes[1]]


def test_a_swizzle_stays_within_the_memory_that_cute_reserves() -> None:
    """Test ``cosize`` of C++ CuTe, which is that of the layout without its swizzle."""
    question = {"tensor": "(16,32):(1,32)", "threads": "(1,32):(0,1)", "values": "(2,1)",
                "atom": "st.shared", "dtype": "float32"}  # fmt: skip
    report = analyze_copy(**question)
    again(question, report)
    assert report.fixes[0]
    for fix in report.fixes[0]:
        layout = parse(fix.change["tensor"])
        assert layout.table().max() < layout.affine.cosize


def test_what_the_row_shows_gets_no_worse() -> None:
    question = {
        "tensor": "(128,64):(4160,1)", "threads": "(16,2):(2,1)", "values": "(1,1)",
        "atom": "cp.async", "smem": "Sw<3,1,4> o 0 o (128,64):(1,128)", "dtype": "float32",
    }  # fmt: skip
    report = analyze_copy(**question)
    # A former fix, threads (4,8):(1,4), takes 4. Counters show less, because L1 has banks too.
    assert report.rows[1].wavefronts == 2 < report.rows[1].launch.counted_wavefronts / 256
    again(question, report, 1)
    assert report.fixes[1]
    assert all(fix.figures["wavefronts"] == 1 for fix in report.fixes[1])


def test_padding_makes_ldmatrix_legal() -> None:
    question = {"tensor": "(128,64):(65,1)", "atom": "ldmatrix.x4"}
    report = analyze_copy(**question)
    assert report.rows[0].verdict == "misaligned" and not report.conflict_free
    again(question, report)
    padded = [fix for fix in report.fixes[0] if fix.change["tensor"] == "(128,64):(72,1)"]
    assert padded[0].figures == {"wavefronts": 4, "ideal_wavefronts": 4, "conflicts": 0}


def test_a_tensor_without_a_unit_stride() -> None:
    question = {"tensor": "(64,64):(128,2)", "threads": "(32,4):(1,32)", "atom": "ld.global"}
    report = analyze_copy(**question)
    (best,) = again(question, report)[:1]
    assert (report.rows[0].sectors, best.rows[0].sectors) == (32, 4)  # 64 of 128 bytes


# -- printed fixes are valid arguments ------------------------------------------------------------

LAYOUT = r"(?:Sw<\d+,\d+,\d+> o \d+ o )?\([\d,()]*\):\([\d,()]*\)(?:, tiled to \(\d+,\d+\))?"


def pasted(question: dict[str, Any], what: str) -> dict[str, Any]:
    """Return a fix as arguments, parsed from its text."""
    change: dict[str, Any] = {}
    for argument, pattern in (
        ("threads", rf"threads ({LAYOUT})"),
        ("values", r"values (\(\d+,\d+\))"),
        ("atom", r"((?:cp\.async|(?:ld|st|red|atom)\.\w+) of \d+ bits)"),
        ("tensor", rf"tensor ({LAYOUT})"),
        ("smem", rf"into shared memory ({LAYOUT})"),
        ("base_alignment", r"base address aligned to (\d+) bytes"),
    ):
        if found := re.search(pattern, what):
            change[argument] = int(found[1]) if argument == "base_alignment" else found[1]
    if not change:  # a layout of shared memory, after the text of the replaced layout
        name = "tensor" if asked(question).space == "shared" else "smem"
        change[name] = what.rpartition(": ")[2]
    if "threads" in change and "tv" in question:
        change |= {"tv": None, "tile": None}
    return change


def test_every_fix_pastes_back() -> None:
    kinds = set()
    for number in range(14):
        question = random_question(random.Random(f"paste {number}"))
        if question["dtype"] == "int8" and number % 3:  # (the slowest)
            continue
        for fixes in analyze_copy(**question).fixes:
            for fix in fixes:
                change = pasted(question, fix.what)
                one, other = asked(question | change), asked(question | fix.change)
                assert (one.layout, one.smem, one.alignment, one.space) == (
                    other.layout, other.smem, other.alignment, other.space,
                ), fix  # fmt: skip
                assert np.array_equal(one.tiled.partition, other.tiled.partition), fix
                assert one.atom.bits == other.atom.bits and one.atom.kind == other.atom.kind
                kinds |= set(change) | {"padded" for _ in re.findall("rows padded", fix.what)}
    assert kinds >= {"threads", "values", "atom", "tensor", "smem", "padded"}


def test_everything_else_that_is_printed_pastes_back() -> None:
    question = {
        "tensor": "gmem_ptr_16b(0x7f5a8c000100) o (128,32,?):(?,1,32)", "let": "?=4,4096",
        "smem": "Sw<3,3,4> o 0 o ((32,4),(8,4),4):((1,256),(32,1024),4096)",
        "threads": "(16,8):(1,16)", "values": "(8,1):(1,8)", "atom": "cp.async.128",
    }  # fmt: skip
    report = analyze_copy(**question)
    text = str(report)
    heads = dict(re.findall(r"^(tensor|smem|threads|values) +(.*)$", text, re.M))
    assert heads == {name: getattr(report, name) for name in heads} and len(heads) == 4
    one, other = asked(question), asked(heads | {"atom": "cp.async of 128 bits"})
    assert (one.layout, one.smem) == (other.layout, other.smem)
    assert np.array_equal(one.tiled.partition, other.tiled.partition)
    covers = re.search(r"one copy covers (\(\d+,\d+\))", text)
    assert covers
    tv = {
        "tv": "((16,8),(8,1)):((8,128),(1,0))", "tile": covers[1], "threads": None, "values": None,
    }  # fmt: skip
    assert asked(question | tv).tiled.tile == (128, 8)


@pytest.mark.parametrize(
    ("tile", "tv"),
    [
        # print(tiled_copy) of C++ CuTe and of CuTe DSL.
        ("  Tiler_MN:       (_32,_32)", "  TiledLayout_TV: ((_4,_32),_8):((_256,_1),_32)"),
        ("Tiler MN:        (32:1,32:1)", "TV Layout tiled: ((4,32),8):((256,1),32)"),
        (("32:1", "32:1"), "((4,32),8):((256,1),32)"),  # tiled_copy.tiler_mn
        ([32, 32], "((4,32),8):((256,1),32)"),
        ("32x32", "((4,32),8):((256,1),32)"),
    ],
)
def test_tilers_and_tv_layouts_of_cute(tile: Any, tv: str) -> None:
    question: dict[str, Any] = {"tensor": "(128,32):(4096,1)", "atom": "cp.async.128"}
    held = analyze_copy(**question, threads="(32,4):(4,1)", values="(1,8)")
    report = analyze_copy(**question, tile=tile, tv=tv)
    assert report.rows == held.rows and report.coalesced
    assert report.values == "((4,32),8):((256,1),32)"


def test_a_tiler_that_permutes_is_refused() -> None:
    with pytest.raises(OptionError, match="expected two extents"):
        analyze_copy(
            tensor="(64,64):(64,1)", tile="(32:2,32:1)", tv="(32,8):(1,32)", atom="cp.async"
        )


@pytest.mark.parametrize(
    ("dtype", "name", "size"),
    [
        ("cutlass.Float16", "float16", 2), ("half_t", "float16", 2), ("cute::half_t", "half_t", 2),
        ("torch.bfloat16", "bfloat16", 2), ("Float8E4M3FN", "Float8E4M3FN", 1),
        ("float_e5m2_t", "float_e5m2_t", 1), ("uint8", "uint8", 1), ("int16", "int16", 2),
        ("uint64_t", "uint64_t", 8), ("s64", "s64", 8), (np.uint16, "uint16", 2),
        (type("Int32", (), {}), "int32", 4), ("uint128_t", "uint128_t", 16),
    ],
)  # fmt: skip
def test_elements_by_any_name(dtype: Any, name: str, size: int) -> None:
    report = analyze_copy(tensor="(32,1):(1,32)", threads="32:1", values="(1,1)",
                          atom="ld.global", dtype=dtype)  # fmt: skip
    assert (report.dtype, report.bits, report.rows[0].bytes) == (name, 8 * size, 32 * size)


# -- pointers, stages, dynamic strides ------------------------------------------------------------


@pytest.mark.parametrize(
    ("tensor", "alignment"),
    [
        ("gmem_ptr[16b](0x7f5a8c000002) o (_128,_32):(4096,_1)", 2),
        ("tensor<ptr<f16, gmem, align<2>> o (128,32):(4096,1)>", 2),
        ("gmem_ptr_16b(0x7f5a8c000010) o (_128,_32):(4096,_1)", 16),
        ("raw_ptr(0x7f5a8c000020: f16, gmem, align<2>) o (128,32):(4096,1)", 32),
        ("(128,32):(4096,1)", 256),
    ],
)
def test_a_printed_pointers_alignment_is_the_base_alignment(tensor: str, alignment: int) -> None:
    question = {"tensor": tensor, "threads": "(32,4):(4,1)", "values": "(1,8)",
                "atom": "cp.async.128"}  # fmt: skip
    report = analyze_copy(**question)
    assert report.base_alignment == alignment
    assert report.coalesced is (alignment >= 32)
    assert (report.rows[0].verdict == "misaligned") is (alignment < 16)
    assert f"base address aligned to {alignment} bytes" in str(report)
    again(question, report)
    assert analyze_copy(**question, base_alignment=256).coalesced  # overrides the pointer's


def test_a_printed_pointer_to_shared_memory_counts_too() -> None:
    question = {"threads": "(8,4):(4,1)", "values": "(1,8)", "atom": "ld.shared.128"}
    report = analyze_copy(tensor="smem_ptr[16b](0x7f0000000404) o (8,32):(32,1)", **question)
    assert report.rows[0].verdict == "misaligned"
    assert report.findings[0].startswith("tensor: ld.shared of 128 bits would fault: some lane's")
    assert analyze_copy(tensor="smem_ptr[16b](0x7f0400) o (8,32):(32,1)", **question).conflict_free


def test_stages_are_all_looked_at() -> None:
    question = {"threads": "(32,4):(4,1)", "values": "(1,8)", "atom": "cp.async.128"}
    tile, home = "(128,32):(4096,1)", "Sw<2,3,3> o 0 o ((8,16),(32,1)):((32,256),(1,0))"
    one = analyze_copy(tensor=tile, smem=home, **question)
    staged = "Sw<2,3,3> o 0 o ((8,16),(32,1),3):((32,256),(1,0),4096)"
    assert analyze_copy(tensor=tile, smem=staged, **question).rows == one.rows
    whole = analyze_copy(tensor="(128,32,3):(4096,1,32)", smem=staged, **question)
    assert whole.coalesced and whole.conflict_free
    assert [row.requests for row in whole.rows] == [3 * row.requests for row in one.rows]
    # Stages whose distance is half a vector are not alike.
    odd = analyze_copy(tensor="(128,32,3):(4096,1,33)", **question)
    assert odd.rows[0].verdict == "misaligned"


def test_a_dynamic_stride_is_bound() -> None:
    question = {"threads": "(32,4):(4,1)", "values": "(1,8)", "atom": "cp.async.128"}
    found = analyze_copy(tensor="(128,32):(?,1)", let="?=4096", **question)
    assert found.tensor == "(128,32):(4096,1)" and found.coalesced
    assert not analyze_copy(tensor="(128,32):(?,1)", let=4104, **question).coalesced


def test_a_swizzle_with_an_offset() -> None:
    # Rows 4 to 7 of the good K-major tile have the same figures as in the whole tile.
    report = analyze_copy(tensor="Sw<3,3,3> o 256 o (4,64):(64,1)", threads="(4,8):(8,1)",
                          values="(1,8)", atom="ld.shared.128")  # fmt: skip
    whole = parse("Sw<3,3,3> o 0 o (8,64):(64,1)").table()[4:, ::8]
    assert report.accesses[0].offsets.tolist() == [(2 * whole).reshape(-1).tolist()]
    assert report.tensor == "Sw<3,3,3> o 256 o (4,64):(64,1)" and report.conflict_free


# -- bulk tensor copies ---------------------------------------------------------------------------

TENSOR, HOME = "(4096,4096):(4096,1)", "Sw<3,3,3> o 0 o (128,64):(64,1)"


@pytest.mark.parametrize(
    "atom",
    ["tma", "SM90_TMA_LOAD", "cute.nvgpu.cpasync.CopyBulkTensorTileG2SOp()",
     "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"],
)  # fmt: skip
def test_a_bulk_tensor_copy(atom: str) -> None:
    report = analyze_copy(tensor=TENSOR, tile="128x64", smem=HOME, atom=atom)
    (row,) = report.rows
    assert (report.coalesced, report.conflict_free, report.findings) == (True, True, ())
    # 128 rows of 128 bytes; 32 x 64 boxes of the tensor.
    assert (row.instruction, row.sectors, row.launch.requests) == ("TMA", 512, 32 * 64)
    assert "one copy covers (128,64)" in str(report) and report.to_dict()["atom"] == atom
    # Without a swizzle, 8 rows of 16 bytes are in one bank.
    plain = analyze_copy(tensor=TENSOR, tile=(128, 64), atom=atom)
    assert plain.coalesced and not plain.conflict_free
    assert "rows of 128 bytes, swizzle 128, take 1." in plain.findings[0]


def test_what_a_tensor_map_cannot_hold() -> None:
    question = {"tensor": "(4096,4096):(4097,1)", "tile": (128, 64), "atom": "tma.store"}
    report = analyze_copy(**question)
    assert report.rows[0].verdict == "illegal" and not report.coalesced
    assert "pad it to 4104" in report.findings[0]
    for change, message in (
        ({"tensor": "(4096,4096):(8192,2)"}, "in two plain modes, one of stride 1"),
        ({"tile": None}, "tile is missing; expected the box"),
        ({"threads": "32:1"}, "does not go with atom 'tma.store'"),
        ({"smem": "(128,64):(1,128)"}, "expected (128,64):(64,1)"),
        ({"smem": "Sw<3,3,4> o 0 o (128,64):(64,1)"}, "TMA does not have; write Sw<3,3,3>"),
        ({"smem": "Sw<3,4,3> o 0 o (128,64):(64,1)"}, "TMA does not have; write Sw<3,3,3>"),
        ({"smem": "Sw<2,4,3> o 0 o (128,64):(64,1)"}, "TMA does not have; write Sw<2,3,3>"),
        (
            {"smem": "Sw<3,3,3> o 0 o (128,64):(64,1)", "dtype": "int8"},
            "TMA does not have; write Sw<3,4,3> for 1-byte elements",
        ),
        ({"dtype": "complex128"}, "moves elements of 1 to 8 bytes"),
    ):
        with pytest.raises(OptionError) as caught:
            analyze_copy(**question | change)
        assert message in str(caught.value)


# -- the same figures as reports ------------------------------------------------------------------


def test_cp_async_is_counted_as_in_a_kernel() -> None:
    question = {
        "tensor": "(64,32):(40,1)", "smem": "Sw<2,3,3> o 0 o ((8,8),32):((32,256),1)",
        "threads": "(32,4):(4,1)", "values": "(1,8):(8,1)", "atom": "cp.async.128",
    }  # fmt: skip
    load, store = analyze_copy(**question).rows
    # docs/counters.md: L1 counts pairs of a line and a shared sector, L2 of a global sector and it.
    assert (load.launch.sectors, load.launch.l2_sectors) == (144, 192)
    assert (load.sectors, load.l2_sectors) == (18, 24)
    assert store.launch.counted_wavefronts == 0
    narrow = {"tensor": "(64,32):(32,1)", "smem": "(64,32):(1,65)", "dtype": "float32",
              "threads": "(1,32):(0,1)", "values": "(1,1)", "atom": "cp.async.32"}  # fmt: skip
    report = analyze_copy(**narrow | {"threads": "(32,4):(1,32)"})
    store = report.rows[1]
    assert store.launch.counted_wavefronts > store.launch.wavefronts
    assert "counters show" in report.findings[-1]


@pytest.mark.parametrize(
    ("dtype", "lda", "way"), [("float16", 40, "auto"), ("float32", 32, "mn_major")]
)
def test_a_copy_counts_as_the_kernels_row_of_it(dtype: str, lda: int, way: str) -> None:
    given: Any = {"m": 128, "n": 128, "k": 32, "dtype": dtype, "lda": lda}
    problem = from_sizes("TN", **given)
    chosen: Any = {"tile": (128, 128, 32), "warps": (2, 2), "copy": way}
    config = configure(Sm80Pipeline(), problem, "sm_80", **chosen)
    report = analyze("TN", **given, kernel="sm80_pipeline", arch="sm_80", **chosen)
    (plan,) = (plan for plan in config.operands if plan.source == "A")
    threads, values = plan.gmem_copy.layouts
    home = plan.smem_layout
    assert isinstance(home.shape, tuple) and isinstance(home.stride, tuple)
    copy = analyze_copy(
        tensor=f"(128,32):({lda},1)", threads=threads, values=values, dtype=dtype,
        smem=Layout(home.shape[:2], home.stride[:2], home.swizzle),
        atom=f"cp.async.{plan.gmem_copy.bits}",
    )  # fmt: skip
    kernels = [row for row in report["A"].rows if row.instruction == "cp.async"]
    assert len(kernels) == 2 and kernels[0].bits == copy.bits
    for row, own in zip(copy.rows, kernels, strict=True):
        for name in ("requests", "sectors", "l2_sectors", "wavefronts", "counted_wavefronts"):
            assert getattr(row.launch, name) == getattr(own.launch, name), name
    if dtype == "float32":  # L1's banks are counted
        assert copy.rows[1].launch.counted_wavefronts > copy.rows[1].launch.wavefronts
    else:
        assert copy.rows[0].l2_sectors > copy.rows[0].sectors


def test_lanes_in_two_columns_where_nothing_is_contiguous() -> None:
    """Test columns whose elements are interleaved and share sectors."""
    question = {"tensor": "(128,64):(2,5)", "threads": "(8,2):(1,8)", "values": "(1,2):(1,1)",
                "dtype": "float64", "atom": "red.global", "arch": "sm_100a"}  # fmt: skip
    report = analyze_copy(**question)
    ((fix, *_),) = report.fixes
    assert (fix.change["threads"], fix.change["values"]) == ("(8,2):(1,8)", "(1,1):(1,1)")
    (found, *_) = again(question, report)
    assert found.rows[0].launch.sectors < report.rows[0].launch.sectors


def test_a_fix_that_suits_the_partner_stays_when_narrower_vectors_have_none() -> None:
    question = {
        "tensor": "Sw<3,0,4> o 0 o (128,32):(34,1)", "threads": "(16,16):(1,16)",
        "values": "(2,1):(1,2)", "atom": "ld.shared.128", "dtype": "float16",
        "writer": "stmatrix.x4",
    }  # fmt: skip
    report = analyze_copy(**question)
    assert not report.rows[1].good
    assert any(after.rows[1].instruction == "stmatrix.x4" for after in again(question, report, 1))


def test_misalignment_in_shared_memory_is_a_fault() -> None:
    narrow = {"tensor": "(64,32):(33,1)", "threads": "(32,4):(4,1)", "values": "(1,4):(4,1)",
              "dtype": "float32", "atom": "ld.shared.128"}  # fmt: skip
    report = analyze_copy(**narrow)
    assert (report.bits, report.rows[0].verdict, report.conflict_free) == (128, "misaligned", False)
    assert "would fault" in report.findings[0]
    assert all(found.conflict_free for found in again(narrow, report))
    into = narrow | {"tensor": "(64,32):(32,1)", "smem": "(64,32):(33,1)", "atom": "cp.async.128"}
    report = analyze_copy(**into)
    assert [row.verdict for row in report.rows] == ["coalesced", "misaligned"]
    again(into, report, 1)
    matrix = analyze_copy(tensor="(16,16):(20,1)", atom="ldmatrix.x4")
    assert (matrix.rows[0].instruction, matrix.rows[0].verdict) == ("ldmatrix.x4", "misaligned")
    assert analyze_copy(**narrow | {"atom": "ld.shared"}).bits == 32  # without a given width


def test_a_fallback_is_legal() -> None:
    question = {"tensor": "(24,4):(5,1)", "threads": "(12,2):(2,1)", "values": "(1,2):(2,1)",
                "dtype": "int32", "atom": "ld.global.128"}  # fmt: skip
    report = analyze_copy(**question)
    assert report.bits == 32 and report.rows[0].verdict == "strided"
    again(question, report)


# -- random copies --------------------------------------------------------------------------------


def counted(copies: int, seed: str) -> tuple[Counter[str], list[str]]:
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    for number in range(copies):
        question = random_question(random.Random(f"{seed} {number}"))
        report = analyze_copy(**question)
        wrong += refutations(question, report)
        counts["fixes"] += sum(map(len, report.fixes))
        for kind, text in compared(question, report):
            counts[kind] += 1
            wrong += [f"{kind}: {text}"] if text else []
    return counts, wrong


def test_random_copies() -> None:
    counts, wrong = counted(12, "everywhere")
    assert wrong == []
    assert counts["fixes"] > 12 and counts["bad rows"] > 4


@pytest.mark.matrix
def test_five_thousand_random_copies() -> None:
    counts, wrong = counted(5000, "matrix")
    assert wrong == []
    assert counts["fixes"] > 5000 and counts["bad rows"] > 2000
