"""Test the results of all candidates of kernel selection on a device.

Candidates are random, except that every tile of ``sm90_wgmma`` is tested. The problems are small,
so that all tiles of a type are candidates, and no tile divides the extents.
"""

import random

import numpy as np
import pytest
from cases import OPS

import cute_gemm as cg
from cute_gemm.kernels.candidate import Candidate, label
from cute_gemm.plan.plan import Plan
from cute_gemm.plan.select import Selection
from cute_gemm.problem.values import random_values
from cute_gemm.problem.verify import verify

TYPES = (
    "float16", "bfloat16", "float32", "float32/tf32", "float64", "complex64", "complex128", "int8",
)  # fmt: skip
#: Random candidates of each problem.
DRAWN = 8


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("name", TYPES)
def test_candidates(name: str, op: str, arch: str) -> None:
    chance = random.Random(f"{name} {op}")
    dtype, _, compute = name.partition("/")
    m, n = chance.randint(40, 300), chance.randint(40, 300)
    k, batch, aligned = chance.randint(150, 600), chance.choice((1, 1, 3)), chance.random() < 0.7
    if aligned:  # all vectors are aligned, but no tile divides the extents
        m, n, k = (extent // 16 * 16 for extent in (m, n, k))
    numbers = np.random.default_rng(m * n * k)
    shapes = ((m, k) if op[0] == "N" else (k, m)), ((k, n) if op[1] == "N" else (n, k))
    A, B = (random_values(numbers, (batch, *shape[::-1]), dtype).swapaxes(1, 2) for shape in shapes)
    order = chance.choice("FC")
    plan = cg.plan(op, A, B, order=order, compute=compute or None, backend="cuda")
    candidates = plan.candidates()
    drawn = [candidates[0], *chance.sample(candidates[1:], min(DRAWN - 1, len(candidates) - 1))]
    check(plan, drawn, A, B)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn"])
def test_tiles_of_wgmma(dtype: str, op: str, arch: str) -> None:
    """Test every tile and cluster with one of the ops, and extents that no tile divides."""
    if arch != "sm_90a":
        pytest.skip(f"sm90_wgmma needs sm_90a; the GPU has {arch}")
    turn = OPS.index(op)
    m, n, k = (rows + 16 * turn for rows in (656, 592, 336))
    numbers = np.random.default_rng(turn)
    shapes = ((m, k) if op[0] == "N" else (k, m)), ((k, n) if op[1] == "N" else (n, k))
    A, B = (random_values(numbers, shape[::-1], dtype).T for shape in shapes)
    plan = cg.plan(op, A, B, order="FC"[turn % 2], kernel="sm90_wgmma", pack="auto", backend="cuda")
    by_tile: dict[tuple[object, ...], Candidate] = {}
    for one in plan.candidates():
        x = one.config
        by_tile.setdefault((x.tile, x.warp_groups, x.ping_pong, x.cluster, x.swap_ab), one)
    assert len(by_tile) > 200
    check(plan, [by_tile[tile] for tile in sorted(by_tile)][turn :: len(OPS)], A, B)


def check(plan: Plan, candidates: list[Candidate], A: np.ndarray, B: np.ndarray) -> None:
    """Check two calls of each candidate.

    ``A``, ``B``: NumPy arrays of the plan's problem.
    """
    plans = [
        Plan(
            plan.problem, "cuda", 0, plan.arch,
            Selection(one.kernel, one.config, plan.gpu, plan.candidates, one.algorithm),
        )
        for one in candidates
    ]  # fmt: skip
    cg.compile(plans)
    for one, each in zip(candidates, plans, strict=True):
        said = f"{plan.problem}, {label(one)}: {each.symbol}"
        for _ in range(2):
            verdict = verify(plan.problem, A, B, each(A, B))
            assert verdict.ok, f"{said}: {verdict}"
