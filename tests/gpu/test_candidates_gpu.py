"""Whatever a choice is made from computes what it should: candidates drawn at random, on a device.

The problems are small, so that all of a type's tiles are among the candidates, with extents that no
tile divides.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
from cases import OPS

import cute_gemm as cg
from cute_gemm.kernels.candidate import label
from cute_gemm.plan import Plan
from cute_gemm.problem.values import random_values
from cute_gemm.problem.verify import verify
from cute_gemm.select import Choice

pytestmark = pytest.mark.gpu

TYPES = (
    "float16", "bfloat16", "float32", "float32/tf32", "float64", "complex64", "complex128", "int8",
)  # fmt: skip
#: Of each problem.
DRAWN = 8


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("name", TYPES)
def test_candidates(name: str, op: str, arch: str) -> None:
    chance = random.Random(f"{name} {op}")
    dtype, _, compute = name.partition("/")
    m, n = chance.randint(40, 300), chance.randint(40, 300)
    k, batch, aligned = chance.randint(150, 600), chance.choice((1, 1, 3)), chance.random() < 0.7
    if aligned:  # every vector, though no tile
        m, n, k = (extent // 16 * 16 for extent in (m, n, k))
    numbers = np.random.default_rng(m * n * k)
    shapes = ((m, k) if op[0] == "N" else (k, m)), ((k, n) if op[1] == "N" else (n, k))
    A, B = (random_values(numbers, (batch, *shape[::-1]), dtype).swapaxes(1, 2) for shape in shapes)
    order = chance.choice("FC")
    plan = cg.plan(op, A, B, order=order, compute=compute or None, backend="cuda")
    candidates = plan.candidates()
    drawn = [candidates[0], *chance.sample(candidates[1:], min(DRAWN - 1, len(candidates) - 1))]
    plans = [
        Plan(
            plan.problem, "cuda", 0, arch,
            Choice(one.kernel, one.config, plan.gpu, plan.candidates, one.route),
        )
        for one in drawn
    ]  # fmt: skip
    cg.compile(plans)
    for one, each in zip(drawn, plans, strict=True):
        said = f"{op} {m}x{n}x{k} l={batch}, {label(one)}: {each.symbol}"
        for _ in range(2):
            verdict = verify(plan.problem, A, B, each(A, B))
            assert verdict.ok, f"{said}: {verdict}"
