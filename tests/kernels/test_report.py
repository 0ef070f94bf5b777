"""Test the report: rows, verdicts, sentences, text and JSON."""

import io
import json
from dataclasses import dataclass, replace

import numpy as np
import pytest

import cute_gemm as cg
from cute_gemm._text import percent
from cute_gemm.access import tma
from cute_gemm.access.accesses import GlobalAccess, Option, SharedAccess, TmaAccess
from cute_gemm.errors import OptionError
from cute_gemm.problem.describe import from_sizes
from cute_gemm.problem.matrix import Matrix
from cute_gemm.problem.problem import GemmProblem
from cute_gemm.rendering import rows
from cute_gemm.rendering.shown import WIDTH
from cute_gemm.report import report
from cute_gemm.toolchain.cubin import Resources
from cute_gemm.toolchain.signature import Launch

LANE = np.arange(32)


@dataclass(frozen=True)
class Config:
    name: str = "sm80_f16_[128x128x32]"
    cta_tiler: tuple[int, int, int] = (128, 128, 32)
    copy: str = "mn_major"
    swizzle: object = complex(1, 2)


BUILT = Resources(168, 0, 0, 0, 0)


def tile_coords(tile: tuple[int, int], axis: int, width: int, across: int) -> np.ndarray:
    """Return coordinates of 128 threads, ``across`` of them along ``axis``, for a whole tile."""
    steps = (width, 1) if axis == 0 else (1, width)
    threads = (across, 128 // across)
    index = np.arange(128)
    place = np.stack([index % threads[0], index // threads[0]], axis=-1)
    place = place if axis == 0 else place[:, ::-1]
    cover = (threads[0] * width, threads[1]) if axis == 0 else (threads[1], threads[0] * width)
    return np.concatenate(
        [
            (place * steps + (i, j)).reshape(-1, 32, 2)
            for j in range(0, tile[1], cover[1])
            for i in range(0, tile[0], cover[0])
        ]
    )


def load(matrix: Matrix, axis: int, width: int, across: int, **more: object) -> GlobalAccess:
    tile = (128, 32)
    return GlobalAccess(
        matrix.name, "load", "cp.async" if width > 1 else "ld.global", 16 * width, matrix, tile,
        tile_coords(tile, axis, width, across), axis, sweeps=8, **more,
    )  # fmt: skip


def accesses(problem: GemmProblem) -> list[GlobalAccess | SharedAccess]:
    """Return accesses of a reference kernel for TN: A is loaded by halves, B is vectorized."""
    store = GlobalAccess(
        "C", "store", "st.global", 16, problem.C, (128, 128), tile_coords((128, 128), 0, 1, 32), 0,
        1, limit="the accumulator's layout holds one element of a column in each register",
        unit="CTA",
    )  # fmt: skip
    pitch = (LANE % 16) * 128 + (LANE // 16) * 16
    return [
        load(
            problem.A, 0, 1, 16, limit="the vector runs along M, whose stride is 512",
            fix=Option("copy", "auto"),
        ),
        load(problem.B, 1, 8, 4),
        SharedAccess("A", "load", "ldmatrix.x4", 128, pitch[None], 4096, fix="Swizzle<3,3,3>"),
        SharedAccess("B", "load", "ldmatrix.x4", 128, (LANE * 16)[None], 4096), store,
    ]  # fmt: skip


@pytest.fixture
def problem() -> GemmProblem:
    return from_sizes("TN", m=1024, n=768, k=512, dtype="float16")


@pytest.fixture
def made(problem: GemmProblem) -> report.Report:
    return report.make_report(
        problem, "sm80_pipeline", Config(), "sm_80", accesses(problem), Launch(48, 128, 49152)
    )


def test_rows(made):
    a, b, c = made["A"], made["B"], made["C"]
    assert [row.instruction for row in a.rows] == ["ld.global", "ldmatrix.x4"]
    assert (a.coalesced, b.coalesced, c.coalesced) == (False, True, True)
    assert (a.conflict_free, b.conflict_free, c.conflict_free) == (False, True, True)
    bad, good, (out,) = a.rows[0], b.rows[0], c.rows
    # A request reads 16 rows of 2 adjacent halves.
    assert (bad.sectors, bad.ideal_sectors, bad.lines, bad.bytes) == (16, 2, 16, 64)
    assert (bad.efficiency, bad.verdict) == (0.125, "strided")
    assert (good.sectors, good.ideal_sectors, good.lines, good.bytes) == (16, 16, 8, 512)
    assert (good.requests, good.unit, good.verdict) == (16, "k-tile", "coalesced")
    assert (out.requests, out.unit, out.sectors) == (512, "CTA", 2)
    # Each of 8 x 16 tiles of A is loaded 8 times: 128 requests per tile, 16 sectors per request.
    assert (bad.launch.requests, bad.launch.sectors) == (131072, 2097152)
    assert bad.launch.wavefronts is None
    shared = a.rows[1]
    assert (shared.wavefronts, shared.ideal_wavefronts, shared.conflicts) == (32, 4, 28)
    assert (shared.verdict, shared.launch.wavefronts) == ("8-way conflict", 131072)
    assert shared.sectors is None and shared.efficiency is None


def test_c_is_coalesced_only_when_loads_and_stores_are(problem):
    store = accesses(problem)[-1]
    strided = GlobalAccess(
        "C", "load", "ld.global", 16, problem.C, (128, 128),
        tile_coords((128, 128), 1, 1, 32), 0, 1,
    )  # fmt: skip
    for first, second in ((store, strided), (strided, store)):
        made = report.make_report(problem, "k", None, "sm_80", [first, second], Launch(1, 128, 0))
        assert not made["C"].coalesced
        assert made["A"].coalesced  # no access is uncoalesced


def test_findings_say_what_why_and_how_to_fix(made):
    a, limit, conflict, narrow = made.findings
    assert a.startswith("A: ld.global of 16 bits is not coalesced: 16 sectors per request where 2")
    assert "12.5 % of the bytes fetched are used" in a
    assert "16 runs of only 4 bytes, 1024 bytes apart: the lanes do not run along K" in a
    assert a.endswith(
        'Fix: copy="auto"; or threads (32,4):(4,1), values (1,8), cp.async of 128 bits '
        "(16 sectors per request, ideal 16, 100 %)."
    )
    assert limit == (
        "A: ld.global of 16 bits, not 128: the vector runs along M, whose stride is 512."
    )
    assert "bank conflicts (8-way conflict): a request takes 32 wavefronts where 4" in conflict
    assert conflict.endswith("Fix: Swizzle<3,3,3>.")
    assert narrow.startswith("C: st.global of 16 bits, not 128: the accumulator's layout")


@pytest.mark.parametrize(
    ("matrix", "width", "verdict", "why"),
    [
        (Matrix("B", (256, 64), (64, 1), "float16", 2), 1, "off sector", "aligned to 2 bytes"),
        (Matrix("B", (256, 64), (65, 1), "float16", 256), 1, "off sector", "65 x 2 bytes"),
        (Matrix("B", (256, 64), (65, 1), "float16", 256), 8, "misaligned", "multiple of its 16"),
        (
            Matrix("B", (256, 4), (64, 1), "float16", 256),
            1,
            "strided",
            "matrix has only 4 elements",
        ),
        (Matrix("B", (0, 4), (64, 1), "float16", 256), 1, "no access", ""),
    ],
)
def test_verdicts(problem, matrix, width, verdict, why):
    one = load(matrix, 1, width, 4)
    if width == 1 and matrix.shape[1] >= 32:
        one = replace(one, coords=tile_coords((128, 32), 1, 1, 32))
    made = report.make_report(problem, "k", None, "sm_80", [one], Launch(1, 128, 0))
    (row,) = made.rows
    assert row.verdict == verdict and why in row.why
    assert [s for s in made.findings if why in s] or verdict == "no access"
    assert any("would fault" in s for s in made.findings) == (verdict == "misaligned")
    assert row.good == (verdict == "no access")


def test_a_narrow_tile_is_named(problem):
    matrix = Matrix("A", (256, 64), (64, 1), "float16", 256)
    coords = np.stack([LANE, 0 * LANE], axis=-1)[None]
    one = GlobalAccess("A", "load", "cp.async", 128, matrix, (32, 8), coords, 1, 1)
    (row,) = report.make_report(problem, "k", None, "sm_80", [one], Launch(1, 32, 0)).rows
    assert "tile has only 8 elements along K" in row.why


def test_edges_have_their_own_figures():
    problem = from_sizes("TN", m=200, n=256, k=64, lda=64, dtype="float16")
    one = load(problem.A, 1, 8, 4)
    shifted = from_sizes("TN", m=256, n=256, k=70, lda=80, dtype="float16")
    made = report.make_report(problem, "k", None, "sm_80", [one], Launch(1, 128, 0))
    (row,) = made.rows
    assert (row.interior_tiles, row.edge_tiles, row.edge_efficiency) == (2, 2, 1.0)
    assert row.launch.off > 0 and made.findings == ()
    one = load(shifted.A, 1, 8, 4)
    made = report.make_report(shifted, "k", None, "sm_80", [one], Launch(1, 128, 0))
    (sentence,) = made.findings
    assert made["A"].coalesced
    assert "2 of 6 tiles are at an edge, with 37.5 % efficiency there" in sentence


def test_a_matrix_smaller_than_a_tile_is_said_to_be():
    problem = from_sizes("TN", m=100, n=100, k=32, dtype="float16")
    one = load(problem.A, 1, 8, 4)
    made = report.make_report(problem, "k", None, "sm_80", [one], Launch(1, 128, 0))
    assert made["A"].coalesced and made.rows[0].interior_tiles == 0
    assert made.findings == (
        "A: cp.async of 128 bits: the matrix fills no tile, so all figures are of edge tiles.",
    )


def test_text(made):
    text = str(made)
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= WIDTH
    first, blank, *head = text.splitlines()[:9]
    assert first == (
        "time not predicted; on A100 SXM 80GB its bound is 2.58 us (tensor cores); "
        "A's ld.global is not coalesced"
    ) and not blank  # fmt: skip
    assert head[0].startswith("gemm TN (BLAS-equivalent TN)  M=1024 N=768 K=512  float16")
    assert head[1].split()[:3] == ["A(M,K)", "(1024,512):(512,1)", "K-major,"]
    assert head[2].split()[:2] == ["B(N,K)", "(768,512):(512,1)"]
    assert head[3].split()[:3] == ["C(M,N)", "(1024,768):(1,1024)", "M-major,"]
    # Brackets are not interpreted as markup.
    assert head[4:6] == ["kernel sm80_pipeline, sm_80", "config sm80_f16_[128x128x32]"]
    assert head[6] == "launch 48 CTAs x 128 threads, 49,152 bytes of dynamic shared memory"
    for word in ("12.5 %", "strided", "coalesced", "8-way conflict", "conflict-free", "2,097,152"):
        assert word in text
    assert "…" not in text  # no figure was truncated


def test_text_of_huge_figures_fits():
    side = 2**29 - 1
    problem = from_sizes("NT", m=side, n=side, k=side, dtype="float16")
    one = replace(load(problem.A, 0, 1, 32), sweeps=2**24)
    made = report.make_report(problem, "k", None, "sm_80", [one], Launch(2**31 - 1, 128, 0))
    text = str(made)
    assert "…" not in text and f"{made.rows[0].launch.sectors:.4e}" in text
    assert max(map(len, text.splitlines())) <= WIDTH
    assert json.loads(made.to_json())["accesses"][0]["launch"]["bytes"] > 2**63


def test_resources_are_shown(problem):
    def line(built: Resources) -> str:
        made = report.make_report(
            problem, "k", Config(), "sm_80", [], Launch(1, 128, 0), resources=built
        )
        return str(made).splitlines()[8]

    assert line(BUILT).endswith("; 168 registers, 0 bytes static, no spills")
    assert line(replace(BUILT, spill_stores=8, spill_loads=12)).endswith("20 bytes spilled")


def test_colours_go_to_a_console_that_has_them(made):
    from rich.console import Console

    out = io.StringIO()
    made.show(Console(file=out, width=110, force_terminal=True, color_system="standard"))
    assert "\x1b[" in out.getvalue()


def test_show_without_a_console_prints(made, capsys):
    made.show()
    assert "BLAS-equivalent TN" in capsys.readouterr().out


def test_json(made):
    found = json.loads(made.to_json())
    assert found == json.loads(json.dumps(made.to_dict()))
    assert list(found) == [
        "format", "headline", "predicted_seconds", "unmeasured", "causes", "op", "blas_op", "m",
        "n", "k", "l", "compute", "matrices", "groups", "kernel", "config",
        "config_name", "arch", "launch", "resources", "operands", "accesses", "findings",
        "fixes", "auxiliary", "performance", "candidates", "measured",
    ]  # fmt: skip
    assert found["matrices"]["A"]["stride"] == [512, 1]
    assert found["matrices"]["A"]["modes"] == ["M", "K"]
    assert found["config"]["cta_tiler"] == [128, 128, 32]
    assert found["config"]["swizzle"] == "(1+2j)"
    assert found["launch"] == {"grid": 48, "block": 128, "smem": 49152}
    assert found["resources"] is None
    assert found["operands"]["A"] == {"coalesced": False, "conflict_free": False}
    row = found["accesses"][0]
    assert (row["operand"], row["space"], row["launch"]["sectors"]) == ("A", "global", 2097152)
    assert (row["part"], row["launch"]["lanes"]) == ("", 131072 * 32)
    assert len(found["accesses"]) == len(found["fixes"]) == 5
    assert found["fixes"][0][0]["figures"]["sectors"] == 16
    assert (
        found["performance"]["per_result"]["global_loads"]
        == made.performance.per_result.global_loads
    )


def test_an_unknown_operand_names_the_known_ones(made):
    with pytest.raises(
        KeyError, match=r"'D' is not in the report; expected one of \('A', 'B', 'C'"
    ):
        made["D"]


def test_no_access_at_all(problem):
    made = report.make_report(problem, "k", None, "sm_80", [], Launch(0, 128, 0))
    assert made["A"].coalesced and made["A"].conflict_free
    assert made.findings == () and "kernel k, sm_80" in str(made)


@pytest.mark.parametrize(
    ("fraction", "text"), [(1.0, "100 %"), (0.99999, "99.9 %"), (0.125, "12.5 %"), (None, "-")]
)
def test_percent_never_rounds_up_to_all(fraction, text):
    assert percent(fraction) == text


# -- related rows ----------------------------------------------------------------------------------


def one_row(access, problem: GemmProblem) -> tuple[report.Report, rows.AccessRow]:
    made = report.make_report(problem, "k", None, "sm_80", [access], Launch(1, 128, 0))
    return made, made.rows[0]


@pytest.mark.parametrize("kernel", ["sm80_pipeline", "cutlass_universal"])
def test_rows_and_accesses_go_together(kernel):
    made = cg.analyze(
        "TN", m=300, n=200, k=100, dtype="float16", kernel=kernel, arch="sm_80", beta=1.0
    )
    assert len(made.rows) == len(made.accesses) == len(made.fixes) > 6
    for row, access in zip(made.rows, made.accesses, strict=True):
        assert (row.operand, row.part, row.unit) == (access.operand, access.part, access.unit)
        assert row.unit == "CTA" or row.operand != "C"
        assert row.launch.lanes > 0 and row.launch.bytes > 0


def test_lanes_and_bytes_of_the_launch(made):
    bad, shared = made["A"].rows
    # 1024 x 512 halves, once for each of the 8 sweeps of load().
    assert bad.launch.bytes == 1024 * 512 * 2 * 8 == bad.launch.lanes * 2
    assert shared.launch.lanes == 4096 * 32 and shared.launch.bytes == 4096 * 512


def test_beta_reads_c():
    sizes = {"m": 256, "n": 256, "k": 64, "dtype": "float16", "kernel": "cutlass_universal"}

    def loads(made: report.Report) -> list[rows.AccessRow]:
        return [r for r in made["C"].rows if (r.space, r.direction) == ("global", "load")]

    without, made = (cg.analyze("NT", arch="sm_80", beta=beta, **sizes) for beta in (0, 2))
    assert not loads(without) and len(loads(made)) == 1
    more = made.performance.traffic.compulsory_bytes - without.performance.traffic.compulsory_bytes
    assert more == 256 * 256 * 2


def test_what_is_counted_and_what_l2_is_asked_for():
    """Test unaligned 16-byte cp.async: L1 and L2 sectors of a request and of the launch."""
    sizes = {"m": 4096, "n": 4096, "k": 4096, "dtype": "float16", "arch": "sm_90a"}
    made = cg.analyze("NT", lda=4104, kernel="sm80_pipeline", **sizes)
    a, b = (made[name].rows[0] for name in "AB")
    assert (a.sectors, a.l2_sectors, a.ideal_sectors) == (18, 24, 16)
    assert b.sectors == b.l2_sectors == b.ideal_sectors == 16
    for row in (a, b):
        assert row.launch.sectors == row.sectors * row.launch.requests
        assert row.launch.l2_sectors == row.l2_sectors * row.launch.requests
        assert row.efficiency == row.bytes / (32 * row.l2_sectors)
        said = row.to_dict()
        assert (said["sectors"], said["l2_sectors"]) == (row.sectors, row.l2_sectors)
    assert made.findings[0].startswith(
        "A: cp.async of 128 bits is not coalesced: 18 sectors per request (24 of L2) where 16 would"
    )
    lines = [line.split() for line in str(made).splitlines()]
    for head, figure in (("18", "24"), (f"{a.launch.sectors:,}", f"{a.launch.l2_sectors:,}")):
        [place] = [
            n for n, line in enumerate(lines) if line[:2] == ["A", "cp.async"] and head in line
        ]
        assert lines[place + 1] == ["of", "L2", figure]
    assert sum(line[:2] == ["of", "L2"] for line in lines) == 2


def test_edges_too_have_two_kinds_of_sectors():
    made = cg.analyze(
        "NT", m=1000, n=1000, k=64, dtype="float16", kernel="sm80_pipeline", arch="sm_80"
    )
    row = made["A"].rows[0]
    edge = row.analysis.edge
    assert row.edge_sectors == edge.sectors / edge.requests != edge.l2_sectors / edge.requests
    assert row.edge_efficiency == edge.bytes / (32 * edge.l2_sectors)


# -- fixes ----------------------------------------------------------------------------------------


def test_a_bad_row_without_a_name_for_its_fix_has_the_fix_alone(problem):
    _, row = one_row(load(problem.A, 0, 1, 16), problem)
    assert row.fix.startswith("threads (32,4):(4,1), values (1,8), cp.async of 128 bits (16 sec")


def test_a_good_row_has_none(made):
    assert [bool(row.fix) for row in made.rows] == [not row.good for row in made.rows]
    # A good row may have a wider fix.
    assert made.rows[-1].good and made.fixes[-1]


def test_fixes_do_not_look_at_edges(problem):
    """Test that edge tiles and partial vectors do not change the fixes of full tiles."""
    matrix = Matrix("A", (1008, 500), (512, 1), "float16", 256)
    for change in ({}, {"tail": "full"}, {"tail": "whole"}):
        odd, _ = one_row(replace(load(matrix, 0, 1, 16), **change), problem)
        even, _ = one_row(load(problem.A, 0, 1, 16), problem)
        assert odd.fixes == even.fixes != ((),)


@pytest.mark.parametrize(
    ("kernel", "arch", "dtype", "op"),
    [
        ("sm90_wgmma", "sm_90a", "float16", "NN"),
        ("sm90_wgmma", "sm_90a", "int8", "TN"),
        ("sm80_pipeline", "sm_80", "float16", "NT"),
        ("tensor_core", "sm_80", "float64", "NN"),
        ("double_buffered", "sm_80", "float32", "TT"),
    ],
)
def test_requests_are_of_the_whole_unit(kernel: str, arch: str, dtype: str, op: str) -> None:
    """Test that requests are of a CTA or a k-tile, also if it consists of several parts."""
    made = cg.analyze(
        op, m=1024, n=1024, k=1024, dtype=dtype, kernel=kernel, arch=arch, beta=1, backend="cpu"
    )
    rows, columns, k_tiles = (-(-1024 // extent) for extent in made.config.tile)
    assert "C" in {row.operand for row in made.rows}
    for row in made.rows:
        units = rows * columns * (k_tiles if row.unit == "k-tile" else 1)
        assert row.launch.requests == row.requests * units, (row.operand, row.name)


def test_fixes_are_looked_for_once(problem, monkeypatch):
    asked = []
    monkeypatch.setattr(report, "_looked_for", {})
    monkeypatch.setattr(
        report, "fixes", lambda given, threads: asked.append(given) or [()] * len(given)
    )
    first = load(problem.A, 0, 1, 16)
    one_row(first, problem)
    one_row(load(problem.A, 0, 1, 16), problem)
    assert len(asked) == 1
    other = replace(problem.A, alignment=2)
    for access in (load(other, 0, 1, 16), load(problem.A, 1, 1, 16), load(problem.A, 0, 1, 32)):
        one_row(access, problem)
    assert len(asked) == 4
    # The parts of a launch are one copy, represented by that of the full tiles.
    halves = [
        replace(first, origin=(0, 500), extents=(1024, 12), part="last k-tile"),
        replace(first, extents=(1024, 500), part="others"),
    ]
    made = report.make_report(problem, "k", None, "sm_80", halves, Launch(1, 128, 0))
    assert [access.region for access in asked[-1]] == [(1024, 480)] and len(made.fixes) == 2


def test_a_store_is_not_made_wider_than_its_matrix(problem):
    coords = tile_coords((128, 32), 1, 1, 4)
    matrix = Matrix("C", (256, 60), (64, 1), "float16", 256)
    one = GlobalAccess("C", "store", "st.global", 16, matrix, (128, 32), coords, 1, 1, unit="CTA")
    made, _ = one_row(one, problem)
    assert "values (1,4)" in made.fixes[0][0].what or "values (1,8)" not in str(made.fixes)


# -- parts and edges ------------------------------------------------------------------------------


def parts(problem: GemmProblem) -> list[GlobalAccess]:
    """Return loads of A with K = 70: two k-tiles, and 6 more elements."""
    matrix = Matrix("A", (256, 70), (80, 1), "float16", 256)
    whole = load(matrix, 1, 8, 4)
    return [
        replace(whole, extents=(256, 64)),
        replace(whole, origin=(0, 64), extents=(256, 6), part="last k-tile"),
    ]


def test_a_part_at_the_edge_does_not_judge_the_operand(problem):
    both = parts(problem)
    made = report.make_report(problem, "k", None, "sm_80", both, Launch(1, 128, 0))
    first, last = made.rows
    assert (first.good, first.edge_tiles, first.at_edges) == (True, 0, False)
    assert (last.good, last.interior_tiles, last.at_edges) == (False, 0, True)
    assert made["A"].coalesced
    assert made.findings == (
        "A: cp.async of 128 bits (last k-tile): all its tiles are at an edge, with 37.5 % "
        "efficiency there.",
    )
    alone = report.make_report(problem, "k", None, "sm_80", both[1:], Launch(1, 128, 0))
    assert not alone["A"].coalesced  # an only part determines the verdict


def test_less_than_a_sector_is_no_bad_efficiency(problem):
    """Test one element per request, or one for all lanes: coalesced, although 6.2 % are used."""
    coords = np.zeros((1, 32, 2), int)
    one = replace(load(problem.A, 1, 1, 16), coords=coords, tile=(128, 32))
    made, row = one_row(one, problem)
    assert (row.verdict, row.efficiency) == ("coalesced", 2 / 32)
    lines = str(made).splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith("Global memory")) + 3
    assert lines[at].endswith("-   coalesced, 2 bytes used") and "6.2 %" not in str(made)
    assert "lanes" not in lines[at - 2].split()  # all 32 lanes
    half = np.where(np.arange(32)[:, None] < 16, coords, -1)
    made, _ = one_row(replace(one, coords=half), problem)
    assert "lanes" in str(made).split()


def test_parts_and_edges_are_in_the_tables(problem):
    both = parts(problem)
    made = report.make_report(problem, "k", None, "sm_80", both, Launch(1, 128, 0))
    text = str(made)
    assert text.count("\n      last k-tile") == 3  # per request, edges, launch
    edges = text[text.index("of the edge tiles") :].splitlines()[3]
    assert edges.split() == ["A", "cp.async", "0", "2", "8", "37.5", "%"]
    assert "edge tiles" not in str(one_row(both[0], problem)[0])
    assert max(map(len, text.splitlines())) <= WIDTH


def test_wide_rows_with_parts_are_not_cut_off():
    made = cg.analyze(
        "TN", m=4095, n=4097, k=4093, dtype="bfloat16", kernel="cutlass_universal", arch="sm_80",
        beta=1.0,
    )  # fmt: skip
    assert any(row.part for row in made.rows) and "…" not in str(made)
    assert max(map(len, str(made).splitlines())) <= WIDTH


# -- TMA ------------------------------------------------------------------------------------------


def test_a_bulk_copy_has_a_row():
    problem = from_sizes("TN", m=256, n=256, k=128, dtype="float16")
    one = TmaAccess("A", "load", problem.A, (128, 64), 3, swizzle=128, multicast=3)
    made, row = one_row(one, problem)
    found = tma.analyze(one)
    assert (row.instruction, row.space, row.bits, row.lanes) == ("TMA", "global", 0, 0)
    assert (row.requests, row.unit, row.sectors, row.ideal_sectors) == (1, "k-tile", 512, 512)
    # A multicast for three CTAs counts once in L2, and in the shared memory of each.
    assert (row.launch.requests, row.launch.sectors) == (4, found.launch.sectors)
    assert row.launch.bytes == 3 * 256 * 128 * 2
    assert row.launch.lanes == 0
    assert "TMA" in str(made) and made["A"].rows == (row,)
    assert made.performance.per_result.global_loads == 3 * 256 * 128 / 256**2


def test_what_the_driver_refuses_is_a_finding():
    problem = from_sizes("TN", m=256, n=256, k=128, lda=129, dtype="float16")
    one = TmaAccess("A", "load", problem.A, (128, 64), 1, swizzle=128, fix="pad lda to 136")
    made, row = one_row(one, problem)
    assert (row.good, row.verdict, row.fix) == (False, "illegal", "pad lda to 136")
    assert any("requires a stride that is a multiple of 16 bytes" in s for s in made.findings)
    assert all(s.endswith("Fix: pad lda to 136.") for s in made.findings)


# -- performance and formats ----------------------------------------------------------------------


def test_performance_is_printed(made):
    text = str(made)
    for label, says in made.performance.lines():
        assert f"\n {label} " in text or f"\n{label} " in text
        assert says[:40] in text
    assert "A100" in text


def test_a_gpu_of_ones_selection():
    sizes = {"m": 64, "n": 64, "k": 64, "dtype": "float16", "arch": "sm_90"}
    made = cg.analyze("TN", gpu="H200", **sizes)
    assert made.performance.gpu.name.startswith("H200") and "H200" in str(made)
    with pytest.raises(OptionError, match="gpu='A100.*' has compute capability 8.0"):
        cg.analyze("TN", gpu="A100", **sizes)
    with pytest.raises(OptionError, match="Voodoo"):
        cg.analyze("TN", gpu="Voodoo", **sizes)


def test_a_build_gives_occupancy(problem):
    made = report.make_report(
        problem, "k", None, "sm_80", [], Launch(48, 128, 49152),
        resources=replace(BUILT, registers=255),
    )  # fmt: skip
    assert made.performance.occupancy.registers_known
    assert not cg.plan("TN", m=8, n=8, k=8, dtype="float16", arch="sm_80", backend="cpu").report(
    ).performance.occupancy.registers_known  # fmt: skip


def test_html_of_a_report(made):
    page, cell = made.to_html(), made._repr_html_()
    assert page.startswith("<!DOCTYPE html>") and cell.startswith("<div")
    assert "12.5 %" in page and "12.5 %" in cell
