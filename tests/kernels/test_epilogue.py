"""Test an epilogue of a Python class and a C++ functor, in every kernel that is emitted."""

from typing import Any

import pytest
from epilogue_cases import CASES, arrays, epilogue_case, with_bias

from cute_gemm.errors import UnsupportedError
from cute_gemm.kernels import refusals
from cute_gemm.kernels.registry import get
from cute_gemm.plan.interpreted import execute
from cute_gemm.problem import reference
from cute_gemm.problem.describe import from_sizes
from cute_gemm.problem.verify import verify
from cute_gemm.rendering.rows import make_row
from cute_gemm.report.executed import compare


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case[:5])))
def test_every_kernel_takes_it(case: Any) -> None:
    asked, plan, plain = epilogue_case(case)
    assert "bias_clamp" in plan.steps.each[-1].unit.symbol
    given = arrays(plan.problem)
    A, B, C = (given[name] for name in "ABC")
    before, expected = C.copy(order="K"), C.copy(order="K")
    bias = {"bias": given["bias"]}

    # The result, in the interpreter and in NumPy.
    executions = execute(plan, A, B, C, -1.5, 0.75, operands=bias, record=True)
    scaling = {"alpha": -1.5, "beta": 0.75, "operands": bias}
    assert verify(plan.problem, A, B, C, C=before, **scaling).ok
    reference.gemm(plan.problem, A, B, expected, **scaling)
    assert verify(plan.problem, A, B, expected, C=before, **scaling).ok
    assert abs(C.astype(float)).max() == 4
    assert not verify(asked, A, B, C, C=before, alpha=-1.5, beta=0.75).ok

    # The report: rows of the bias, as executed.
    report = plan.report(beta=0.75)
    last, execution = plan.steps.each[-1], executions[-1]

    rows = [make_row(access) for access in last.accesses(True)]
    loads = [row for row in rows if row.operand == "bias"]
    assert loads and all(row.instruction == "ld.global" for row in loads)
    assert not [each for each in compare(rows, execution) if each.difference]
    assert "bias" in report.to_dict()["matrices"]
    assert report.performance.traffic.compulsory["bias"] == 4 * asked.n

    # The predicted time.
    assert plan.candidates()[0].prediction.seconds >= plain.candidates()[0].prediction.seconds


def test_libraries_and_cutlass_take_blas_alone() -> None:
    asked = with_bias(from_sizes("NN", m=64, n=64, k=64, dtype="float16"))
    for name in ("cutlass_universal", "cublas", "host"):
        with pytest.raises(UnsupportedError, match="not epilogue 'bias_clamp': take"):
            refusals.check(get(name), asked, "sm_80")
