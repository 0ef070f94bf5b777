"""The report: rows, verdicts, sentences, text and JSON."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, replace

import numpy as np
import pytest

from cute_gemm.analysis import report, rows
from cute_gemm.kernels.base import GlobalAccess, Launch, SharedAccess
from cute_gemm.problem import GemmProblem, Matrix, from_sizes

LANE = np.arange(32)


@dataclass(frozen=True)
class Config:
    name: str = "sm80_f16_[128x128x32]"
    cta_tiler: tuple[int, int, int] = (128, 128, 32)
    copy: str = "mn_major"
    swizzle: object = complex(1, 2)


@dataclass(frozen=True)
class Built:
    registers: int = 168
    shared_static: int = 0
    spill_stores: int = 0
    spill_loads: int = 0
    stack: int = 0


def tile_coords(tile: tuple[int, int], axis: int, width: int, across: int) -> np.ndarray:
    """128 threads, ``across`` of them along ``axis``, over the whole tile."""
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
        matrix.name,
        "load",
        "cp.async" if width > 1 else "ld.global",
        16 * width,
        matrix,
        tile,
        tile_coords(tile, axis, width, across),
        axis,
        sweeps=8,
        **more,
    )


def accesses(problem: GemmProblem) -> list[GlobalAccess | SharedAccess]:
    """The field's reference kernel on TN: A stays half by half, B has a layout that fits."""
    store = GlobalAccess(
        "C",
        "store",
        "st.global",
        16,
        problem.C,
        (128, 128),
        tile_coords((128, 128), 0, 1, 32),
        0,
        1,
        limit="the accumulator's layout holds one element of a column in each register",
    )
    pitch = (LANE % 16) * 128 + (LANE // 16) * 16
    return [
        load(
            problem.A,
            0,
            1,
            16,
            limit="the vector runs along M, whose stride is 512",
            mend='copy="auto": threads (32,4):(4,1), values (1,8)',
        ),
        load(problem.B, 1, 8, 4),
        SharedAccess("A", "load", "ldmatrix.x4", 128, pitch[None], 4096, mend="Swizzle<3,3,3>"),
        SharedAccess("B", "load", "ldmatrix.x4", 128, (LANE * 16)[None], 4096),
        store,
    ]


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
    # 16 rows of 2 neighbouring halves in a request.
    assert (bad.sectors, bad.ideal_sectors, bad.lines, bad.bytes) == (16, 2, 16, 64)
    assert (bad.efficiency, bad.verdict) == (0.125, "strided")
    assert (good.sectors, good.ideal_sectors, good.lines, good.bytes) == (16, 16, 8, 512)
    assert (good.requests, good.unit, good.verdict) == (16, "k-tile", "coalesced")
    assert (out.requests, out.unit, out.sectors) == (512, "CTA", 2)
    # Each of 8 x 16 tiles of A is visited 8 times: 128 requests a tile, 16 sectors a request.
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
        assert made["A"].coalesced  # nothing is known against it


def test_findings_say_what_why_and_how_to_mend(made):
    a, limit, conflict, narrow = made.findings
    assert a.startswith("A: ld.global of 16 bits is not coalesced: 16 sectors per request where 2")
    assert "12.5 % of the bytes fetched are used" in a
    assert "16 runs of only 4 bytes, 1024 bytes apart: the lanes do not run along K" in a
    assert a.endswith('Mend: copy="auto": threads (32,4):(4,1), values (1,8).')
    assert limit == (
        "A: ld.global of 16 bits, not 128: the vector runs along M, whose stride is 512."
    )
    assert "bank conflicts (8-way conflict): a request takes 32 wavefronts where 4" in conflict
    assert conflict.endswith("Mend: Swizzle<3,3,3>.")
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
        "A: cp.async of 128 bits: the matrix fills no tile, so its figures are of edge tiles.",
    )


def test_text(made):
    text = str(made)
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= report.WIDTH
    head = text.splitlines()[:7]
    assert head[0].startswith("gemm TN (BLAS-equivalent TN)  M=1024 N=768 K=512  float16")
    assert head[1].split()[:3] == ["A(M,K)", "(1024,512):(512,1)", "K-major,"]
    assert head[2].split()[:2] == ["B(N,K)", "(768,512):(512,1)"]
    assert head[3].split()[:3] == ["C(M,N)", "(1024,768):(1,1024)", "M-major,"]
    # Brackets are text, not markup.
    assert head[4:6] == ["kernel sm80_pipeline, sm_80", "config sm80_f16_[128x128x32]"]
    assert head[6] == "launch 48 CTAs x 128 threads, 49,152 bytes of dynamic shared memory"
    for word in ("12.5 %", "strided", "coalesced", "8-way conflict", "conflict-free", "2,097,152"):
        assert word in text
    assert "…" not in text  # no figure was cut off


def test_text_of_huge_figures_fits():
    side = 2**29 - 1
    problem = from_sizes("NT", m=side, n=side, k=side, dtype="float16")
    one = replace(load(problem.A, 0, 1, 32), sweeps=2**24)
    made = report.make_report(problem, "k", None, "sm_80", [one], Launch(2**31 - 1, 128, 0))
    text = str(made)
    assert "…" not in text and f"{made.rows[0].launch.sectors:.4e}" in text
    assert max(map(len, text.splitlines())) <= report.WIDTH
    assert json.loads(made.to_json())["accesses"][0]["launch"]["bytes"] > 2**63


def test_resources_are_shown(problem):
    def line(built: Built) -> str:
        made = report.make_report(
            problem, "k", Config(), "sm_80", [], Launch(1, 128, 0), resources=built
        )
        return str(made).splitlines()[6]

    assert line(Built()).endswith("; 168 registers, 0 bytes static, no spills")
    assert line(Built(spill_stores=8, spill_loads=12)).endswith("20 bytes spilled")


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
        "format", "op", "blas_op", "m", "n", "k", "compute", "matrices", "kernel", "config",
        "config_name", "arch", "launch", "resources", "operands", "accesses", "findings",
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
    assert len(found["accesses"]) == 5


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
    assert rows.percent(fraction) == text
