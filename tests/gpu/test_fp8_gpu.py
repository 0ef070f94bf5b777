"""Test 8-bit floats on a GPU: every kernel, op, pair of types and kind of scale, against float64.

C is surrounded by canaries, and a C that must not be read holds NaN. The bound is that of
`verify`, which includes the precision of the accumulators of tensor cores.
"""

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from device_matrices import on_device
from fp8_cases import (
    BLOCKS,
    E4M3,
    OPS,
    PAIRS,
    Call,
    Case,
    block_scaled,
    boxed,
    k_tiles,
    loaded,
    packed,
    spread,
)

import cute_gemm as cg
from cute_gemm.dtypes import DTYPES
from cute_gemm.problem.verify import Verdict

#: Sizes of "auto": full tiles, partial tiles, decoding, odd.
SIZES = (
    (256, 512, 1024), (300, 200, 560), (1, 640, 512), (16, 768, 1024), (129, 257, 515),
    (64, 96, 16), (5, 7, 1000), (640, 24, 2064),
)  # fmt: skip
AUTO = [
    Case("auto", op, PAIRS[(i + j) % 4], scales, *SIZES[i], pad=(16, 0, 1)[(i + j) % 3],
         order="FC"[(i + j) % 2], fast_accum=(i + j) % 2 == 1 and not {*scales} & {*BLOCKS})
    for i, (j, op) in product(range(len(SIZES)), enumerate(OPS))
    for scales in (("", ""), ("row", "row"), ("tensor", "number"), BLOCKS, ("1x128", "1x128"))
]  # fmt: skip


def compute(case: Case, beta: float, alpha: float = -1.25) -> tuple[Verdict, cg.Plan]:
    call = Call.of(case)
    before = call.C.copy(order="K")
    if not beta:
        call.C[...] = np.nan
    A, B, (C, back) = on_device(call.A)[0], on_device(call.B)[0], on_device(call.C)
    operands: dict[str, Any] = {
        name: on_device(value)[0] if isinstance(value, np.ndarray) else value
        for name, value in call.operands.items()
    }
    arrays = A, B, C
    plan = cg.plan(case.op, *arrays, **operands, **call.keywords)
    assert plan.backend == "cuda"
    result = cg.gemm(case.op, *arrays, alpha=alpha, beta=beta, **operands, **call.keywords)
    assert result is C
    back()
    call.assert_canaries()
    return call.judged(plan, call.C, before, alpha=alpha, beta=beta), plan


def check(case: Case) -> None:
    for beta in (0.5, 0.0):
        verdict, plan = compute(case, beta)
        assert verdict.ok, f"{plan.symbol}, beta={beta}: {verdict}"


@pytest.mark.parametrize(
    "case", [*spread(), *block_scaled(), *boxed(), *k_tiles(), *packed(), *loaded()], ids=str
)
def test_every_kernel(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("case", AUTO, ids=str)
def test_auto(case: Case) -> None:
    check(case)


_TILES = ((128, 128, 128), (128, 160, 128), (128, 192, 128), (256, 128, 128), (256, 96, 128))


@pytest.mark.parametrize("cluster", [(1, 1), (2, 1), (1, 2)])
@pytest.mark.parametrize("swap_ab", [0, 1])
@pytest.mark.parametrize("scales", [("", ""), ("row", "row"), BLOCKS])
@pytest.mark.parametrize("tile", _TILES, ids=str)
def test_large_tiles(tile: tuple[int, int, int], scales: Any, swap_ab: int, cluster: Any) -> None:
    bm, bn, bk = tile
    tile = (bn, bm, bk) if swap_ab else tile
    if swap_ab:
        scales, cluster = scales[::-1], cluster[::-1]
    options = (("tile", tile), ("swap_ab", swap_ab), ("warp_groups", 2), ("ping_pong", 0),
               ("cluster", cluster))  # fmt: skip
    check(Case("sm90_wgmma", "TN", (E4M3, E4M3), scales, 700, 560, 1200, options=options))


@pytest.mark.parametrize("op", ["NN", "TT"])
@pytest.mark.parametrize("fast_accum", [False, True])
def test_large_tiles_with_a_through_registers(op: str, fast_accum: bool) -> None:
    tile, swap_ab = ((128, 128, 128), 0) if op == "NN" else ((128, 128, 128), 1)
    options = (("tile", tile), ("swap_ab", swap_ab), ("warp_groups", 2), ("ping_pong", 0))
    check(Case("sm90_wgmma", op, (E4M3, E4M3), ("row", "row"), 704, 560, 1200,
               fast_accum=fast_accum, options=options))  # fmt: skip


@pytest.mark.parametrize("fast_accum", [False, True])
@pytest.mark.parametrize("k", [128, 1024, 16384])
def test_how_far_sums_are_off(k: int, fast_accum: bool, record_property: Any) -> None:
    """Test positive factors, whose sums grow so that truncation errors accumulate."""
    case = Case("sm90_wgmma", "TN", m=128, n=128, k=k, out="float32", fast_accum=fast_accum)
    call = Call.of(case)
    for X in (call.A, call.B):
        X[...] = abs(X.astype(np.float32)).astype(X.dtype)
    A, B, (C, back) = on_device(call.A)[0], on_device(call.B)[0], on_device(call.C)
    plan = cg.plan("TN", A, B, C, **call.keywords)
    plan(A, B, C)
    back()
    verdict = call.judged(plan, call.C, call.C, alpha=1.0, beta=0.0)
    exact = call.A.astype(float).T @ call.B.astype(float)
    relative = abs(call.C - exact).max() / exact.max()
    part = f"{verdict.max_ratio:.4f} of the bound"
    print(f"\nk={k} fast_accum={fast_accum}: {relative:.2e} off, {part}")
    record_property("relative", float(relative))
    assert verdict.ok, verdict


def test_scales_on_the_device_and_by_value() -> None:
    case = Case("auto", "TN", m=128, n=128, k=256)
    call = Call.of(case)
    A, B = on_device(call.A)[0], on_device(call.B)[0]
    half = torch.tensor(0.5, device="cuda")
    scaled = [
        cg.gemm("TN", A, B, scale_a=a, scale_b=b)
        for a, b in ((half, 3.0), (0.5, torch.full((1, 1), 3.0, device="cuda")), (1.5, None))
    ]
    assert torch.equal(scaled[0], scaled[1]) and torch.equal(scaled[0], scaled[2])
    half += 0.5  # a call reads the current value
    assert torch.equal(cg.gemm("TN", A, B, scale_a=half, scale_b=1.5), scaled[0])


def test_beside_scaled_mm() -> None:
    """Compare row scales and tensor scales with PyTorch's, to one bit of bfloat16."""
    torch.manual_seed(0)
    a = torch.randn(256, 512, device="cuda").to(torch.float8_e4m3fn)
    b = torch.randn(384, 512, device="cuda").to(torch.float8_e4m3fn)
    rows, columns = (torch.rand(n, 1, device="cuda") + 0.5 for n in (256, 384))
    theirs = torch._scaled_mm(a, b.t(), scale_a=rows, scale_b=columns.t(), out_dtype=torch.bfloat16)
    ours = cg.gemm("NT", a, b, scale_a=rows, scale_b=columns, order="C")
    torch.testing.assert_close(ours, theirs, rtol=2.0**-6, atol=0.5)


def test_saturation_on_the_device() -> None:
    wide = torch.full((64, 128), 4.0, device="cuda")
    wide[1], wide[2] = -4.0, float("nan")
    a = wide.to(torch.float8_e4m3fn)
    for out in (torch.float8_e4m3fn, torch.float8_e5m2):
        largest = DTYPES[str(out)[6:]].saturates
        for kernel in ("sm90_wgmma", "naive"):
            C = cg.gemm("NT", a, a[:32], alpha=1e6, out_dtype=out, kernel=kernel).float()
            assert (C[0, [0, 3]] == largest).all() and C[0, 1] == -largest
            assert C[2].isnan().all() and C[:, 2].isnan().all()


def test_a_batch_that_shares_b() -> None:
    case = replace(next(block_scaled()), l=0)
    call = Call.of(replace(case, scales=("", "")))
    A = torch.stack([on_device(call.A)[0].view(torch.uint8)] * 3).view(torch.float8_e4m3fn)
    C = cg.gemm(case.op, A, on_device(call.B)[0])
    assert torch.equal(C[0], C[2]) and C.shape == (3, case.m, case.n)
