"""Test the rows of ``amax``: its atomics in the report, and as executed."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from interpreted import of_few_ctas

import cute_gemm as cg

GREATEST = cg.epilogue(lambda acc: (acc, cg.amax(acc)))

#: Kernel, type, arch, (l, m, n, k), options: warps of a tile with and without results, several
#: tiles of a CTA, one atomic per warp and per lane, an auxiliary kernel that stores C.
CASES: list[tuple[str, str, str, tuple[int, ...], dict[str, Any]]] = [
    ("naive", "float64", "sm_80", (70, 45, 20), {}),
    ("coalesced", "float32", "sm_80", (70, 45, 20), {"warp_along": "k"}),
    ("bank_free", "float32", "sm_80", (70, 45, 20), {}),
    ("warp_tiled", "float64", "sm_80", (70, 45, 20), {}),
    ("sm80_pipeline", "float16", "sm_80", (5, 20, 40), {"tile": (128, 128, 32)}),
    ("sm80_pipeline", "float64", "sm_80", (70, 45, 40), {}),
    ("sm80_pipeline", "float16", "sm_80", (70, 45, 400), {"split_k": 3}),
    ("thin", "float16", "sm_80", (5, 300, 200), {}),
    ("batched", "float32", "sm_80", (5, 7, 9, 20), {}),
    ("sm90_wgmma", "float16", "sm_90a", (200, 264, 64),
     {"tile": (64, 64, 64), "warp_groups": 2, "ping_pong": 1}),
    ("sm90_wgmma", "float16", "sm_90a", (204, 264, 64),
     {"tile": (64, 128, 64), "warp_groups": 2, "swap_ab": 1, "cluster": (2, 1)}),
    ("sm90_wgmma", "float16", "sm_90a", (72, 40, 8), {"tile": (64, 96, 64), "warp_groups": 1}),
]  # fmt: skip


@pytest.mark.parametrize(("kernel", "dtype", "arch", "sizes", "options"), CASES)
def test_the_atomics_are_those_that_are_executed(kernel, dtype, arch, sizes, options) -> None:
    *batch, m, n, k = sizes
    random = np.random.default_rng(sum(sizes))
    A, B = (random.standard_normal((*batch, *x)).astype(dtype) for x in ((m, k), (k, n)))
    plan = cg.plan(
        "NN", A, B, kernel=kernel, arch=arch, backend="cpu", epilogue=GREATEST, **options
    )
    trace = plan.trace(A, B)
    assert trace.agrees
    figures = [
        figure
        for figures in (trace.figures, *(figures for _, figures in trace.auxiliary))
        for figure in figures
        if figure.kind.operand == "result_1"
    ]
    assert {x.kind.instruction for x in figures} == {"atom.global"}
    assert [x.figure for x in figures] == ["requests", "lanes", "sectors"]
    # The atomics do not depend on values that are not 0.
    assert [x.executed for x in figures] == [x.predicted for x in figures]
    more = replace(figures[0], executed=figures[0].executed + 1)
    assert more.difference == 1 and replace(more, executed=0).difference == 0


def test_warps_of_zeros_have_no_atomic() -> None:
    A, B = np.zeros((70, 20), np.float32), np.ones((20, 45), np.float32)
    A[0, 0] = 3
    plan = cg.plan("NN", A, B, kernel="naive", arch="sm_80", backend="cpu", epilogue=GREATEST)
    trace = plan.trace(A, B)
    (figure,) = (x for x in trace.figures if x.kind.operand == "result_1" and x.figure == "lanes")
    assert (figure.predicted, figure.executed) == (140, 2) and trace.agrees


def test_the_row_of_a_report() -> None:
    sizes = {"m": 4096, "n": 4096, "k": 4096, "dtype": "float16", "epilogue": GREATEST}
    report = cg.analyze("TN", **sizes, kernel="sm90_wgmma", gpu="H100 SXM")
    (row,) = (row for row in report.rows if row.operand == "result_1")
    warps = 4 * report.config.warp_groups
    assert (row.instruction, row.bits, row.direction) == ("atom.global", 32, "store")
    # Tests execute few CTAs, each with its own atomics.
    grid = of_few_ctas(report.launch).grid
    assert row.launch.requests == row.launch.lanes == grid * warps
    assert "result_1 atom.global" in str(report)
