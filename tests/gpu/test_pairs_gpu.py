"""Test epilogues of pairs of columns on a GPU: every case, device arrays, gradients."""

from typing import Any

import pytest
import torch
from device_matrices import inside
from pairs_cases import APART, BOTH, WGMMA, PairsCase, run

import cute_gemm as cg
from cute_gemm.plan.steps import reduces


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("case", [*WGMMA, *APART], ids=str)
def test_every_case(case: PairsCase, kind: str) -> None:
    plan = run(case, kind, "cuda")
    assert reduces(plan.config, plan.problem, plan.algorithm) == (kind in case.apart)


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize(("m", "n", "k"), [(4096, 6144, 512), (300, 1000, 264), (17, 4096, 2048)])
def test_nothing_beside_the_results_is_written(m: int, n: int, k: int, kind: str) -> None:
    """Test a C in a wider matrix, NaN around inputs, large tiles, and more tiles than CTAs."""
    (_, A), (_, B) = (inside(*shape) for shape in ((m, k), (n, k)))
    whole, C = inside(m, n // 2, 7.0)
    take = getattr(cg, kind)

    @cg.epilogue
    def gated(acc: Any, bias: Any) -> Any:
        gate, up = take(acc)
        return cg.silu(gate + bias) * up

    bias = torch.randn(n // 2, device="cuda")
    product = A.float() @ B.float().T
    gate, up = (product[:, 0::2], product[:, 1::2]) if kind == "pairs" else product.chunk(2, dim=1)
    exact = torch.nn.functional.silu(gate + bias) * up
    for _ in range(3):  # the third call takes the fast path
        C.fill_(torch.nan)
        assert cg.gemm("NT", A, B, C, epilogue=gated, bias=bias) is C
        torch.testing.assert_close(C.float(), exact, rtol=2e-2, atol=2e-1)
        C[...] = 7
        assert bool((whole == 7).all())


def test_gradients() -> None:
    x, w = (
        torch.randn(size, 128, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        for size in (96, 256)
    )
    y = cg.gemm("NT", x, w, order="C", epilogue="swiglu")
    z = x @ w.T
    expected = torch.nn.functional.silu(z[:, 0::2]) * z[:, 1::2]
    g = torch.randn_like(y)
    ours, theirs = (torch.autograd.grad(each, (x, w), g) for each in (y, expected))
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=5e-2, atol=2.0)
