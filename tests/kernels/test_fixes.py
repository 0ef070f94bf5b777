"""Test fixes: the proposed change, and that the report of the change equals the fix's figures."""

import re
from dataclasses import replace

import numpy as np
import pytest
from cases import configure
from hypothesis import given, settings
from hypothesis import strategies as st
from report_search import counted

from cute_gemm.access import gmem, smem
from cute_gemm.access.accesses import GlobalAccess, SharedAccess, TmaAccess
from cute_gemm.access.fix import Fix
from cute_gemm.api import analyze
from cute_gemm.copies.report import analyze_copy
from cute_gemm.cute.atoms import universal
from cute_gemm.cute.copies import TiledCopy, gmem_tiled_copy
from cute_gemm.cute.layout import Layout, Swizzle, column_major, row_major, tile_to_shape
from cute_gemm.cute.notation import parse
from cute_gemm.dtypes import DTYPES
from cute_gemm.fixes.smem import fix_shared
from cute_gemm.kernels.sm80.pipeline import Sm80Pipeline
from cute_gemm.problem.describe import from_sizes
from cute_gemm.problem.matrix import Matrix
from cute_gemm.rendering.rows import make_row
from cute_gemm.report.fixes import fixes
from cute_gemm.report.options import with_options

KERNEL = Sm80Pipeline()
K_HOME = "into shared memory Sw<2,3,3> o 0 o (8,32):(32,1), tiled to (128,32) read by ldmatrix.x4"
MN_HOME = (
    "into shared memory Sw<3,3,3> o 0 o (64,8):(1,64), tiled to (128,32) read by ldmatrix.x4.trans"
)


def fix_global(access: GlobalAccess, threads: int = 128) -> tuple[Fix, ...]:
    """Return the fixes of one access without related accesses."""
    (found,) = fixes([access], threads)
    return found


def shared(
    operand: str, direction: str, copy: TiledCopy, layout: Layout, extents: tuple[int, int]
) -> SharedAccess:
    """Return an access of a kernel's buffer, computed from the tiled copy itself."""
    narrow = copy.atom.name == "ld.global"
    name = copy.atom.name if direction == "load" else "st.shared" if narrow else "cp.async"
    return SharedAccess(
        operand=operand,
        direction=direction,  # type: ignore[arg-type]
        instruction=name,
        bits=copy.atom.bits,
        offsets=copy.vector_offsets(layout, extents),
        executions=1,
        layout=layout,
        coords=copy.requests(extents),
        element_bits=copy.element_bits,
    )


def accesses(op: str, copy: str, dtype: str = "float16", **sizes: int) -> list:
    """Return the global loads of A and B, with the stores and loads of their buffers."""
    problem = from_sizes(op, dtype=dtype, **({"m": 512, "n": 512, "k": 256} | sizes))
    config = configure(KERNEL, problem, "sm_80", copy=copy)
    loads = [a for a in KERNEL.accesses(config, problem) if isinstance(a, GlobalAccess)]
    out: list[GlobalAccess | SharedAccess] = []
    for plan in config.operands:
        home = plan.smem_layout
        assert isinstance(home.shape, tuple) and isinstance(home.stride, tuple)
        stage = Layout(home.shape[:2], home.stride[:2], home.swizzle)
        out += [a for a in loads if a.operand == plan.source and a.tail != "elements"]
        out.append(shared(plan.source, "store", plan.gmem_copy, stage, plan.extents))
        out.append(shared(plan.source, "load", plan.smem_copy, stage, plan.extents))
    return out


# -- the reference layout -------------------------------------------------------------------------


def test_the_references_two_defects() -> None:
    found = accesses("NN", "mn_major")
    a_load, a_store, a_read, b_load, b_store, b_read = fixes(found, 128)
    # A is M-major: coalesced, but its buffer has conflicts on both sides.
    assert a_load == ()
    best = "Sw<3,3,3> in place of Sw<3,3,4>: Sw<3,3,3> o 0 o ((32,4),(8,4)):((1,256),(32,1024))"
    assert a_store[0].what == best
    assert a_store[0].reading == "4 wavefronts per request, ideal 4; ldmatrix.x4.trans 4, ideal 4"
    assert a_read[0].what == best
    assert a_read[0].reading == "4 wavefronts per request, ideal 4; cp.async 4, ideal 4"
    assert [fix.what for fix in a_read[1:]] == [
        "Sw<3,3,3> o 0 o (64,8):(1,64), tiled to (128,32)",
        "(128,32):(1,136), rows padded by 16 bytes",
    ]
    # B is K-major: copied by single halves. A swizzle alone does not fix its stores.
    assert [str(fix) for fix in b_load] == [
        f"threads (32,4):(4,1), values (1,8), cp.async of 128 bits, {K_HOME} "
        "(16 sectors per request, ideal 16, 100 %)",
        "threads (16,8):(1,16), values (8,1), cp.async of 128 bits, op NT, B N-major, "
        + MN_HOME.removesuffix(" read by ldmatrix.x4.trans")
        + " (16 sectors per request, ideal 16, 100 %)",
    ]
    assert b_load[0].figures == {
        "bits": 128, "requests": 4 * 4, "sectors": 16, "ideal_sectors": 16, "efficiency": 1,
    }  # fmt: skip
    assert [fix.what for fix in b_store] == [fix.what for fix in b_load]
    assert b_store[0].reading == "4 wavefronts per request, ideal 4; ldmatrix.x4 4, ideal 4"
    assert b_read[0].reading == "4 wavefronts per request, ideal 4; cp.async 4, ideal 4"
    assert not any(fix.figures["conflicts"] for fix in (*a_store, *a_read, *b_store, *b_read))


@pytest.mark.parametrize("op", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("dtype", ["float16", "float64", "complex128", "int8"])
def test_good_layouts_want_no_fix(op: str, dtype: str) -> None:
    assert fixes(accesses(op, "auto", dtype), 128) == [()] * 6


@pytest.mark.parametrize(("op", "other"), [("TN", ("NN", "TT")), ("TT", ("NT", None))])
def test_the_op_whose_storage_fits(op: str, other: tuple[str, str | None]) -> None:
    found = fixes(accesses(op, "mn_major"), 128)
    for at, letters, stored in ((0, other[0], "A M-major"), (3, other[1], "B N-major")):
        named = [fix for fix in found[at] if ", op " in fix.what]
        assert len(named) == (letters is not None)
        if letters is not None:
            assert f"op {letters}, {stored}" in named[0].what
            # The report of that op has the same sectors.
            row = accesses(letters, "mn_major")[at]
            assert gmem.analyze(row).judged.sectors / gmem.analyze(row).judged.requests == 16
            assert named[0].figures["sectors"] == 16


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int8"])
@pytest.mark.parametrize("op", ["NN", "NT", "TN", "TT"])
def test_a_bad_copy_is_fixed_by_the_one_that_the_kernels_choose(op: str, dtype: str) -> None:
    given: dict = {"tile": (128, 128, 128 // DTYPES[dtype].bytes), "warps": (2, 4), "stages": 3}
    problem = from_sizes(op, m=512, n=512, k=256, dtype=dtype)
    config = configure(KERNEL, problem, "sm_80", copy="mn_major", **given)
    plans = configure(KERNEL, problem, "sm_80", **given).operands
    found = KERNEL.accesses(config, problem)
    bad = ""
    for access, offered in zip(found, fixes(found, 256), strict=True):
        for plan in plans:
            if not isinstance(access, GlobalAccess) or access.operand != plan.source:
                continue
            threads, values = plan.gmem_copy.layouts
            vector = "({},{})".format(*values.extents)
            best = f"threads {threads}, values {vector}, cp.async of 128 bits"
            assert not offered or offered[0].what.startswith(best)
            bad += plan.source if offered else ""
            if offered and plan.major == "K" and plan.smem_copy.atom.destination is not None:
                assert f"into shared memory {plan.smem_atom}, tiled to " in offered[0].what
    k_major = "A" * (op[0] == "T") + "B" * (op[1] == "N")
    assert bad == "AB" if dtype == "int8" else bad == k_major  # 8 bytes of int8 per access, not 16


def test_a_k_tile_without_a_whole_vector_is_no_reason_to_fail() -> None:
    # The last k-tile has 4 columns, so vectors of 8 would not be inside it.
    problem = from_sizes("NN", m=200, n=200, k=100, dtype="float16", lda=204, ldb=204, ldc=204)
    found = KERNEL.accesses(configure(KERNEL, problem, "sm_80"), problem)
    last = [access.part == "last k-tile" for access in found]
    offered = fixes(found, 128)
    assert any(last) and all(fix.figures.get("requests") != 0 for fixed in offered for fix in fixed)


def test_the_last_k_tiles_fixes_are_of_the_last_k_tile() -> None:
    report = analyze("NN", m=100, n=100, k=130, dtype="float64", kernel="tensor_core", arch="sm_80")
    whole, last = report["B"].of("global")
    padded = "leading dimension 132, a multiple of 32 bytes"
    assert (whole.part, last.part) == ("all but the last k-tile", "last k-tile")
    assert str(whole.fixes[0]) == f"{padded} (16 sectors per request, ideal 16, 100 %)"
    # Its 2 columns take half of 4 sectors, before and after.
    assert (last.sectors, last.efficiency, last.fixes) == (4, 0.5, ())
    fixed = analyze("NN", m=100, n=100, k=130, dtype="float64", kernel="tensor_core",
                     arch="sm_80", ldb=132)  # fmt: skip
    for row in fixed["B"].of("global"):
        assert (row.sectors, row.efficiency) == ((4, 0.5) if row.part == last.part else (16, 1))


def test_a_part_keeps_the_fixes_that_fix_it_with_its_own_figures() -> None:
    given: dict = {"m": 300, "n": 260, "k": 201, "dtype": "float16", "kernel": "sm80_pipeline"}
    report = analyze("TN", **given, copy="mn_major", arch="sm_80")
    whole, last = report["A"].of("global")
    assert [fix.what for fix in whole.fixes] == [fix.what for fix in last.fixes]
    for row in (whole, last):
        for fix in row.fixes:
            found = gmem.analyze(fix.access).judged
            assert fix.access.region == row.access.region
            assert fix.figures["sectors"] == found.sectors / found.requests
    # Every fix of a store reduces its conflicts.
    for row in report["A"].of("shared"):
        assert all(fix.figures["conflicts"] < row.conflicts for fix in row.fixes)


def test_sectors_that_l2_is_asked_for_twice_are_fixed() -> None:
    """Test vectors 16 bytes after a sector: L1 sectors are ideal, but L2 sectors are doubled."""
    given: dict = {"m": 256, "n": 256, "k": 32, "dtype": "float16", "lda": 64, "arch": "sm_80"}
    given |= {"kernel": "sm80_pipeline", "tile": (128, 128, 32)}
    (row,) = analyze("TN", **given, base_offset=8)["A"].of("global")
    assert (row.sectors, row.ideal_sectors, row.l2_sectors, row.good) == (16, 16, 32, False)
    (fix,) = row.fixes
    assert str(fix) == "base address aligned to 32 bytes (16 sectors per request, ideal 16, 100 %)"
    (fixed,) = analyze("TN", **given, base_offset=16)["A"].of("global")
    assert fixed.good and fixed.l2_sectors == 16


def test_a_kernels_own_option_is_a_fix() -> None:
    given: dict = {"m": 256, "n": 256, "k": 64, "dtype": "float32", "kernel": "naive"}
    report = analyze("NN", **given, arch="sm_80")
    (row,) = report["B"].of("global")
    fix, other = row.fixes
    assert str(fix) == 'warp_along="m" (1 sector per request, ideal 1, 12.5 %)'
    assert str(other) == "op NT, B N-major (4 sectors per request, ideal 4, 100 %)"
    assert fix.what in row.fix and fix.what in " ".join(report.findings)
    fixed = analyze("NN", **given, arch="sm_80", **fix.change)
    assert all(fixed[name].coalesced for name in "ABC") and not report["B"].coalesced
    (after,) = fixed["B"].of("global")
    assert all(getattr(after, name) == figure for name, figure in fix.figures.items())
    sectors = [sum(row.launch.sectors or 0 for row in one.rows) for one in (report, fixed)]
    assert sectors[1] < sectors[0]
    # The fixed report has no further fixes.
    for name in "AB":
        assert all(row.fixes == () for row in fixed[name].of("global"))


def test_a_leading_dimension_is_no_shorter_than_a_row() -> None:
    """Test tiles that are one element deep, which have no stride in CuTe's coalesced layout."""
    given: dict = {"m": 4100, "n": 256, "k": 100, "dtype": "float32", "kernel": "coalesced"}
    report = analyze("NT", **given, arch="sm_80")
    (row,) = report["A"].of("global")
    assert [fix.what for fix in row.fixes] == ["leading dimension 4104, a multiple of 32 bytes"]
    (fixed,) = analyze("NT", **given, arch="sm_80", lda=4104)["A"].of("global")
    assert fixed.good and not row.good
    assert fixed.sectors == row.fixes[0].figures["sectors"]


def test_another_op_comes_with_its_leading_dimension() -> None:
    given: dict = {"m": 1799, "n": 490, "k": 555, "dtype": "bfloat16", "kernel": "naive"}
    row = analyze("NN", **given, arch="sm_80")["B"].of("global")[0]
    (what,) = (fix.what for fix in row.fixes if fix.what.startswith("op "))
    assert what == "op NT, B N-major, leading dimension 496"
    fixed = analyze("NT", **given, arch="sm_80", ldb=496)["B"].of("global")[0]
    assert (fixed.sectors, fixed.efficiency) == (2, 1)


def test_fixes_of_random_reports() -> None:
    counts, wrong = counted(30, "everywhere")
    assert wrong == []
    assert counts["fixes"] > 60 and counts["applied"] > 20


@pytest.mark.matrix
def test_fixes_of_four_hundred_reports() -> None:
    counts, wrong = counted(400, "matrix")
    assert wrong == []
    assert counts["fixes"] > 1000 and counts["applied"] > 300


# -- figures of fixes and of the model ------------------------------------------------------------


def layouts(what: str) -> tuple[Layout, Layout, int]:
    """Return threads, values and bits of a fix's text."""
    match = re.search(r"threads (\S+), values \((\d+),(\d+)\), \S+ of (\d+) bits", what)
    assert match is not None
    p, q = int(match[2]), int(match[3])
    return parse(match[1]), column_major(p, q), int(match[4])


def done(access: GlobalAccess, what: str) -> GlobalAccess:
    """Return the access after applying a fix's text."""
    matrix = access.matrix
    if match := re.search(r"leading dimension (\d+)", what):
        stride = (1, int(match[1])) if matrix.unit == 0 else (int(match[1]), 1)
        matrix = replace(matrix, stride=stride)
    if match := re.search(r"base address aligned to (\d+)", what):
        matrix = replace(matrix, alignment=int(match[1]))
    if re.search(r"\bop |-major", what):
        transposed = -(-matrix.shape[1 - matrix.unit] * DTYPES[matrix.dtype].bytes // 32)
        ld = transposed * 32 // DTYPES[matrix.dtype].bytes
        matrix = replace(matrix, stride=(1, ld) if matrix.unit else (ld, 1))
    access = replace(access, matrix=matrix)
    if match := re.search(r"a tile of \((\d+),(\d+)\)", what):
        access = replace(access, tile=(int(match[1]), int(match[2])))
    if "threads" not in what:
        return access
    threads, values, bits = layouts(what)
    copy = gmem_tiled_copy(universal("", bits), 8 * DTYPES[matrix.dtype].bytes, threads, values)
    axis = int(values.extents[1] > 1) if values.size > 1 else matrix.unit
    return replace(access, coords=copy.requests(access.tile), bits=bits, axis=axis)


def rate(access: GlobalAccess) -> tuple[bool, float, int]:
    found = gmem.analyze(access)
    judged = found.judged
    return found.aligned, judged.ideal_sectors / judged.sectors, access.bits


MATRICES = st.builds(
    lambda shape, pad, major, dtype, alignment: Matrix(
        "A", shape, (1, shape[0] + pad) if major else (shape[1] + pad, 1), dtype, alignment
    ),
    st.tuples(st.integers(1, 300), st.integers(1, 300)), st.integers(0, 20), st.booleans(),
    st.sampled_from(["int8", "float16", "float32", "float64"]), st.sampled_from([8, 16, 32, 256]),
)  # fmt: skip


@settings(deadline=None, max_examples=80)
@given(
    MATRICES,
    st.sampled_from([(64, 32), (128, 8), (16, 64)]),
    st.booleans(),
    st.sampled_from(["load", "store"]),
)
def test_a_fix_is_better_and_reads_as_it_says(
    matrix: Matrix, tile: tuple[int, int], across: bool, direction: str
) -> None:
    threads = row_major(16, 8) if across else column_major(16, 8)
    copy = gmem_tiled_copy(
        universal("", 0), 8 * DTYPES[matrix.dtype].bytes, threads, column_major(1, 1)
    )
    access = GlobalAccess(
        "A",
        direction,  # type: ignore[arg-type]
        "ld.global" if direction == "load" else "st.global",
        8 * DTYPES[matrix.dtype].bytes,
        matrix,
        tile,
        copy_requests(copy, tile),
        matrix.unit,
        1,
    )
    found = fix_global(access)
    now, rated = rate(access), []
    for fix in found:
        fixed = done(access, fix.what)
        analysis = gmem.analyze(fixed)
        judged = analysis.judged
        assert fix.figures["sectors"] == judged.sectors / judged.requests
        assert fix.figures["ideal_sectors"] == judged.ideal_sectors / judged.requests
        assert fix.figures["efficiency"] == judged.efficiency
        assert fix.figures["requests"] == analysis.tile.requests
        assert fix.figures["bits"] == fixed.bits
        rated.append(rate(fixed))
        assert rated[-1] > now
        if direction == "store":
            assert matrix.shape[fixed.axis] % (fixed.bits // access.bits) == 0
    assert all(a < b for a, b in zip(rated, rated[1:], strict=False)) or (True, 1.0, 128) in rated


def copy_requests(copy: TiledCopy, tile: tuple[int, int]) -> np.ndarray:
    return replace(copy, atom=universal("", copy.element_bits)).requests(tile)


def aligned_copy(matrix: Matrix, **more: object) -> GlobalAccess:
    """Return an ideal copy: threads (32,4):(4,1), values (1,8) on a K-major half matrix."""
    copy = gmem_tiled_copy(universal("", 128), 16, row_major(32, 4), row_major(1, 8))
    tile = (128, 32)
    return GlobalAccess(
        "A", "load", "cp.async", 128, matrix, tile, copy.requests(tile), 1, 1, **more
    )  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ld", "alignment", "fix"),
    [
        (4096, 256, ()),
        (4104, 256, ("leading dimension 4112, a multiple of 32 bytes",)),
        (4096, 16, ("base address aligned to 32 bytes",)),
        (4104, 16, ("leading dimension 4112, a multiple of 32 bytes, base address aligned to 32 "
                    "bytes",)),
    ],
)  # fmt: skip
def test_padding_and_alignment(ld: int, alignment: int, fix: tuple[str, ...]) -> None:
    matrix = Matrix("A", (4096, 4096), (ld, 1), "float16", alignment)
    found = fix_global(aligned_copy(matrix))
    assert tuple(fix.what for fix in found)[-1:] == fix
    assert all(text.figures["sectors"] == 16 for text in found[-1:])


def test_an_odd_leading_dimension() -> None:
    matrix = Matrix("B", (513, 4097), (4097, 1), "float16", 256)
    access = replace(aligned_copy(matrix), bits=16, instruction="ld.global")
    access = replace(
        access, coords=gmem_tiled_copy(universal("", 16), 16, row_major(4, 32), row_major(1, 1))
        .requests((128, 32)),
    )  # fmt: skip
    best = fix_global(access, 128)[-1]
    assert best.what == (
        "threads (32,4):(4,1), values (1,8), cp.async of 128 bits, "
        "leading dimension 4112, a multiple of 32 bytes"
    )
    # A store must end where the matrix does, and 4097 halves do not split into vectors.
    narrow = fix_global(replace(access, direction="store", instruction="st.global"), 128)
    assert {fix.figures["bits"] for fix in narrow} == {16}


def test_a_tile_shorter_than_a_sector() -> None:
    matrix = Matrix("A", (4096, 4096), (4096, 1), "float16", 256)
    copy = gmem_tiled_copy(universal("", 128), 16, row_major(128, 1), row_major(1, 8))
    access = GlobalAccess(
        "A", "load", "cp.async", 128, matrix, (128, 8), copy.requests((128, 8)), 1, 1
    )
    found = fix_global(access, 128)
    assert found[0].what == (
        "threads (64,2):(2,1), values (1,8), cp.async of 128 bits, a tile of (128,16)"
    )
    assert "A M-major" in found[1].what
    assert found[0].figures["sectors"] == found[1].figures["sectors"] == 16


def test_what_nothing_fixes() -> None:
    # A column has only three elements.
    matrix = Matrix("A", (1, 3), (4, 1), "float16", 256)
    assert all(fix.figures["bits"] > 16 for fix in fix_global(aligned_copy(matrix)))
    elements = aligned_copy(
        Matrix("A", (4096, 4095), (4095, 1), "float16", 256), tail="elements", width=8
    )
    assert fix_global(elements) == ()
    tma = TmaAccess("A", "load", matrix, (128, 32), 1)
    assert fixes([tma]) == [()]


@pytest.mark.parametrize(
    ("kernel", "op", "ld"),
    [
        ("thread_tile_2d", "TN", 512),  # A's loads would take two wavefronts instead of one
        ("double_buffered", "NN", 513),  # B's stores
        ("bank_free", "TT", 513),  # A's loads
    ],
)
def test_no_fix_makes_shared_memory_dearer(kernel: str, op: str, ld: int) -> None:
    sizes = {"m": 512, "n": 512, "k": 256, "lda": ld, "ldb": ld, "ldc": ld}
    report = analyze(op, dtype="float32", kernel=kernel, arch="sm_80", **sizes)
    said = [fix.what for row in report.rows if row.space == "global" for fix in row.fixes]
    assert said and not any("above the ideal" in what for what in said)


@pytest.mark.parametrize("more", [0, 1])
def test_an_option_that_costs_wavefronts_is_no_fix(more: int) -> None:
    """Test options with fewer sectors, and as many wavefronts as before, or one more."""
    lanes = np.arange(32)
    matrix = Matrix("A", (32, 32), (1, 32), "float32", 256)

    def load(*step: int) -> GlobalAccess:
        coords = (lanes[:, None] * step)[None]
        return GlobalAccess("A", "load", "ld.global", 32, matrix, (32, 32), coords, 0, 1)

    def store(far: int) -> SharedAccess:
        offsets = np.where(lanes == 31, 4 * 31 + far, 4 * lanes)[None]
        return SharedAccess("A", "store", "st.shared", 32, offsets, 1)

    rows = [make_row(access) for access in (load(0, 1), store(0))]
    found = with_options(rows, lambda: [({"copy": "x"}, [load(1, 0), store(4 * more)])])
    assert [fix.what for fix in found[0].fixes] == ['copy="x"'] * (not more)


# -- shared memory --------------------------------------------------------------------------------


def bank_conflicts(access: SharedAccess, layout: Layout) -> int:
    """Return wavefronts above the ideal, counted with sets of words."""
    assert access.coords is not None
    number = smem.matrices(access.instruction)
    size = 16 if number else access.bits // 8
    group = 8 if number else min(32, 128 // size)
    total = 0
    for request in access.coords[:, : 8 * number or 32]:
        for phase in request.reshape(-1, group, 2):
            words = set()
            for i, j in phase:
                start = int(layout(i, j)) * access.element_bits // 8
                words |= {(start + byte) // 4 for byte in range(size)}
            banks = [sum(word % 32 == bank for word in words) for bank in range(32)]
            total += max(banks) - -(-len(words) // 32)
    return total


def layout_of(what: str, extents: tuple[int, int]) -> Layout:
    """Return the layout in a fix's text."""
    text = what.partition(": ")[2] or what
    if ", tiled to " in text:
        return tile_to_shape(parse(text.partition(", tiled")[0]), extents)
    return parse(text.partition(", rows")[0])


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(["float16", "float32", "float64", "int8"]),
    st.sampled_from([(64, 32), (32, 64), (16, 16)]),
    st.integers(0, 1),
    st.sampled_from([(0, 0, 0), (1, 2, 3), (2, 3, 3), (3, 3, 3), (3, 3, 4), (2, 0, 5)]),
    st.sampled_from([16, 8, 4]),
    st.booleans(),
)
def test_a_home_frees_all_accesses(
    dtype: str,
    extents: tuple[int, int],
    axis: int,
    swizzle: tuple[int, int, int],
    vector: int,
    loads: bool,
) -> None:
    size = DTYPES[dtype].bytes
    width = max(1, vector // size)
    stride = (1, extents[0]) if axis == 0 else (extents[1], 1)
    layout = Layout(extents, stride, Swizzle(*swizzle) if swizzle[0] else None)
    values = column_major(width, 1) if axis == 0 else row_major(1, width)
    copies = [gmem_tiled_copy(universal("x", 8 * size * width), 8 * size, row_major(8, 4), values)]
    if loads:  # single elements in the order of an MMA
        copies.append(
            gmem_tiled_copy(universal("x", 8 * size), 8 * size, row_major(8, 4), row_major(1, 1))
        )
    try:
        buffer = [
            replace(
                shared("A", "load" if at else "store", copy, layout, extents),
                instruction="ld.shared" if at else "st.shared",
            )
            for at, copy in enumerate(copies)
        ]
    except ValueError:  # the swizzle splits the vectors
        return
    found = fix_shared(buffer)
    for access, offered in zip(buffer, found, strict=True):
        conflicts = bank_conflicts(access, layout)
        assert (smem.analyze(access).once.conflicts == 0) is (conflicts == 0)
        assert conflicts or not offered
        for fix in offered:
            home = layout_of(fix.what, extents)
            assert home.extents == extents
            assert len(np.unique(home.table())) == home.size
            each = [bank_conflicts(other, home) for other in buffer]
            assert fix.figures["conflicts"] * len(access.offsets) == pytest.approx(
                each[buffer.index(access)]
            )
            assert sum(each) < sum(bank_conflicts(other, layout) for other in buffer)
            for other, copy in zip(buffer, copies, strict=True):  # vectors are not split
                moved = copy.vector_offsets(home, extents)
                assert (moved * 8 % other.bits == 0).all()


@pytest.mark.parametrize(
    ("home", "atom", "first"),
    [
        # If the tile is one atom wide, its swizzle is the atom's.
        ("(128,64):(64,1)", "ldmatrix.x4", "a swizzle: Sw<3,3,3> o 0 o (128,64):(64,1)"),
        ("(128,32):(32,1)", "ldmatrix.x4", "a swizzle: Sw<2,3,3> o 0 o (128,32):(32,1)"),
        ("(64,32):(1,64)", "ldmatrix.x4.trans", "a swizzle: Sw<3,3,3> o 0 o (64,32):(1,64)"),
        ("(16,64):(128,1)", "stmatrix.x4", "a swizzle: Sw<3,3,4> o 0 o (16,64):(128,1)"),
    ],
)
def test_known_good_swizzles_are_found(home: str, atom: str, first: str) -> None:
    assert analyze_copy(tensor=home, atom=atom).fixes[0][0].what == first


def test_without_a_layout_nothing_is_offered() -> None:
    store = accesses("NN", "mn_major")[1]
    assert fixes([replace(store, layout=None)]) == [()]
    assert fix_shared([replace(store, coords=None)]) == [()]
    other = replace(store, layout=parse("(128,32):(1,128)"))
    assert fix_shared([store, other]) == [(), ()]
