"""Test ``compute="bf16x9"`` and ``"bf16x6"`` on a GPU, against float64 and float32 kernels."""

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from test_components import COMPUTES, drawn, errors

import cute_gemm as cg
from cute_gemm.problem.verify import verify

OPS = ("NN", "NT", "TN", "TT")
#: m, n, k and padding in elements: aligned, partial tiles, few rows, odd leading dimensions.
SIZES = (
    (512, 384, 1024, 0), (300, 200, 560, 4), (1, 640, 512, 0), (129, 257, 515, 0),
    (131, 96, 64, 1), (640, 24, 2050, 3), (7, 5, 1, 0),
)  # fmt: skip
OPTIONS = (
    {"split_k": 3},
    {"ping_pong": 1, "warp_groups": 2, "tile": (64, 128, 64)},
    {"cluster": (2, 1)},
)


@pytest.fixture(autouse=True)
def hopper(arch: str) -> None:
    if arch != "sm_90a":
        pytest.skip(f"products of components are for sm_90a, and this is {arch}")


def padded(rows: int, columns: int, pad: int) -> Any:
    whole = torch.randn(rows, columns + pad, device="cuda")
    whole[:, columns:] = float("nan")
    return whole[:, :columns]


@pytest.mark.parametrize("compute", COMPUTES)
@pytest.mark.parametrize(("op", "size"), [*product(OPS, SIZES)])
def test_every_op(op: str, size: tuple[int, int, int, int], compute: str) -> None:
    torch.manual_seed(0)
    m, n, k, pad = size
    A = padded(*((m, k) if op[0] == "N" else (k, m)), pad)
    B = padded(*((k, n) if op[1] == "N" else (n, k)), pad)
    before = torch.randn(m, n, device="cuda")
    C = before.clone()
    cg.gemm(op, A, B, C, alpha=0.5, beta=2.0, compute=compute)
    arrays = [x.cpu().numpy() for x in (A, B, C, before)]
    problem = cg.plan(op, A, B, C, compute=compute).problem
    assert verify(problem, *arrays[:3], C=arrays[3], alpha=0.5, beta=2.0).ok


@pytest.mark.parametrize("compute", COMPUTES)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_options(options: dict[str, Any], compute: str) -> None:
    torch.manual_seed(0)
    A, B = torch.randn(3, 200, 700, device="cuda"), torch.randn(3, 700, 300, device="cuda")
    plan = cg.plan("NN", A, B, compute=compute, kernel="sm90_wgmma", **options)
    C = plan(A, B)
    assert verify(plan.problem, *(x.cpu().numpy() for x in (A, B, C))).ok


@pytest.mark.parametrize("compute", COMPUTES)
@pytest.mark.parametrize("kind", ["normal", "wide", "positive", "large"])
def test_errors_are_at_most_those_of_float32(kind: str, compute: str) -> None:
    random = np.random.default_rng(1)
    A, B = drawn(kind, random, (256, 4096)), drawn(kind, random, (4096, 128))
    given = [torch.from_numpy(x).cuda() for x in (A, B)]
    found, plain = (
        errors(A, B, cg.gemm("NN", *given, **options).cpu().numpy())
        for options in ({"compute": compute}, {"kernel": "double_buffered"})
    )
    assert found.max() <= plain.max() and (found**2).mean() <= (plain**2).mean()


@pytest.mark.parametrize("compute", COMPUTES)
def test_infinities_and_nan_are_those_of_float32(compute: str) -> None:
    torch.manual_seed(0)
    A, B = torch.randn(64, 128, device="cuda"), torch.randn(128, 48, device="cuda")
    A[0, 3], A[1, 5], A[2, 7] = float("inf"), -float("inf"), float("nan")
    A[3, 0], A[3, 1], B[9, 4], A[4, 9] = float("inf"), -float("inf"), float("inf"), 0
    found, plain = (cg.gemm("NN", A, B, **x).cpu() for x in ({"compute": compute}, {}))
    same = torch.where(found.isfinite(), 0, found), torch.where(plain.isfinite(), 0, plain)
    torch.testing.assert_close(*same, equal_nan=True)


def test_packed_once() -> None:
    torch.manual_seed(0)
    A, B = torch.randn(100, 300, device="cuda"), torch.randn(300, 200, device="cuda")
    plan = cg.plan("NN", A, B, compute="bf16x9", order="C")
    packed = plan.pack(B, "B")
    assert torch.equal(plan(A, packed), plan(A, B))
