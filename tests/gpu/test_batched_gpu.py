"""Test batches of small products on a GPU: random ones, long ones, and bytes around C."""

from typing import Any

import pytest
import torch
from batched_cases import KINDS, BatchedCase, Lie, drawn
from device_matrices import on_device

import cute_gemm as cg
from cute_gemm.problem.verify import verify


def check(case: BatchedCase, kernel: str = "batched") -> cg.Plan:
    """Check C, and that the bytes between its elements do not change."""
    buffers = case.buffers()
    A, B, C = case.views(buffers)
    views, (*_, back) = zip(*map(on_device, (A, B, C)), strict=True)
    before, around = C.copy(), buffers[2].copy()
    alpha = {"c": 1.5 - 0.5j, "i": 3}.get(C.dtype.kind, -1.5)
    beta = int(case.beta) if C.dtype.kind == "i" else case.beta
    options = dict(case.options) if kernel == "batched" else {}
    plan = cg.plan(case.op, *views, kernel=kernel, **options)
    plan(*views, alpha=alpha, beta=beta)
    back()
    verdict = verify(plan.problem, A, B, C, C=before, alpha=alpha, beta=beta)
    assert verdict.ok, verdict
    C[...] = before
    assert buffers[2].tobytes() == around.tobytes(), "bytes around C have changed"
    return plan


@pytest.mark.parametrize("seed", range(60))
def test_drawn_batches(seed: int) -> None:
    check(drawn(seed, sorted(KINDS)[seed % len(KINDS)], most=64 if seed % 3 else 24))


def long(kind: str, m: int, n: int, k: int, l: int, lies: tuple[Lie, ...], **more: Any) -> Any:
    return BatchedCase(kind, "NN", "CCC", (m, n, k, l), lies, **{"beta": 0.0, **more})  # type: ignore[arg-type]


def dense(rows: int, run: int, l: int, offset: int = 0) -> Lie:
    """Return the layout of contiguous rows and matrices."""
    return Lie(run, rows * run, offset, offset + rows * run * l + 16)


def heads(rows: int, run: int, l: int) -> Lie:
    """Return the layout of interleaved matrices: row i of all matrices, then row i + 1."""
    return Lie(run * l, run, 0, rows * run * l + 16)


LONG = {
    "rows of 12 bytes": long("float32", 3, 3, 3, 50000, (dense(3, 3, 50000),) * 3),
    "rows of 12 bytes, odd bases": long(
        "float32", 3, 3, 3, 70001, tuple(dense(3, 3, 70001, offset) for offset in (1, 3, 2))
    ),
    "rows of 98 bytes": long(
        "float16", 49, 32, 49, 1000, (dense(49, 49, 1000), dense(49, 32, 1000), dense(49, 32, 1000))
    ),
    "rows of 394 bytes": long(
        "bfloat16", 16, 32, 49, 1200,
        (Lie(197, 197 * 16, 1, 197 * 16 * 1200 + 16), dense(49, 32, 1200), dense(16, 32, 1200)),
    ),
    "heads": long(
        "float16", 16, 64, 16, 4096, (dense(16, 16, 4096), heads(16, 64, 4096), heads(16, 64, 4096))
    ),
    "heads of 6 bytes": long(
        "float16", 20, 3, 20, 3000, (dense(20, 20, 3000), heads(20, 3, 3000), heads(20, 3, 3000))
    ),
    "one B for all": long(
        "float64", 3, 8, 3, 66000, (dense(3, 3, 66000), Lie(8, 0, 0, 40), dense(3, 8, 66000)),
        beta=0.5,
    ),
    "a column each": long(
        "float32", 64, 1, 64, 3000, (dense(64, 64, 3000), dense(64, 1, 3000), dense(64, 1, 3000))
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LONG)
def test_long_batches(name: str) -> None:
    check(LONG[name])


def test_auto_takes_it() -> None:
    plan = check(LONG["rows of 12 bytes"], "auto")
    assert plan.kernel == "batched"


def test_an_empty_batch_and_no_k() -> None:
    A, B = torch.ones(0, 3, 4, device="cuda"), torch.ones(0, 4, 5, device="cuda")
    assert cg.gemm("NN", A, B, kernel="batched").shape == (0, 3, 5)
    A, B = torch.ones(100, 3, 0, device="cuda"), torch.ones(100, 0, 5, device="cuda")
    C = torch.ones(100, 3, 5, device="cuda")
    cg.gemm("NN", A, B, C, beta=2.0, kernel="batched")
    assert (C == 2).all()
