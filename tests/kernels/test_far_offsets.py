"""Test operands that span 2**31 elements or more: every offset must have 64 bits.

NumPy's zeros, and the interpreter's memory, are only allocated where they are touched.
"""

import numpy as np
import pytest
from gpu.far_cases import Far, cases, values
from unity_build import unity_build

import cute_gemm as cg
from cute_gemm.plan.interpreted import execute
from cute_gemm.problem.verify import verify


def sparse(shape: tuple[int, ...], strides: tuple[int, ...]) -> np.ndarray:
    span = 1 + sum((extent - 1) * step for extent, step in zip(shape, strides, strict=True))
    memory = np.zeros(span, np.float16)
    return np.lib.stride_tricks.as_strided(memory, shape, [2 * step for step in strides])


def plan_of(case: Far, *arrays: np.ndarray) -> cg.Plan:
    options = {"kernel": case.kernel, "arch": case.arch, "backend": "cpu", **dict(case.options)}
    return cg.plan(case.op, *(arrays or (sparse(*place) for place in case.places)), **options)


@pytest.mark.parametrize("case", cases(), ids=str)
@unity_build(plan_of)
def test_offsets_beyond_32_bits(case: Far) -> None:
    A, B, C = (sparse(*place) for place in case.places)
    for number, array in enumerate((A, B, C)):
        array[...] = values(array.shape, number)
    plan = plan_of(case, A, B, C)
    before = C.copy()
    execute(plan, A, B, C, 1.5, 0.5)
    assert verify(plan.problem, A, B, C, C=before, alpha=1.5, beta=0.5).ok
