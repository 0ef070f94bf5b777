"""An epilogue of one Python value and one C++ functor, in every kernel that is emitted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from cute_gemm.analysis.executed import compare
from cute_gemm.analysis.rows import make_row
from cute_gemm.arch import Arch
from cute_gemm.dtypes import DTYPES, DType
from cute_gemm.errors import UnsupportedError
from cute_gemm.gpus.table import nearest
from cute_gemm.kernels.registry import get
from cute_gemm.plan import Plan
from cute_gemm.problem import reference
from cute_gemm.problem.epilogue import EpilogueOperand, LinearCombination
from cute_gemm.problem.matrix import Matrix
from cute_gemm.problem.problem import GemmProblem, from_sizes
from cute_gemm.problem.verify import verify
from cute_gemm.ptx import execute
from cute_gemm.select import select

CPP = (Path(__file__).parent / "data" / "bias_clamp.cuh").read_text(encoding="utf-8")


@dataclass(frozen=True)
class BiasClamp(LinearCombination):
    """``clamp(alpha * accumulator + beta * C + bias, -4, 4)``, with a bias along N."""

    name: ClassVar[str] = "bias_clamp"
    functor: ClassVar[str] = "BiasClamp"
    source: ClassVar[str] = CPP
    operands: ClassVar[tuple[EpilogueOperand, ...]] = (EpilogueOperand("bias", "float32", "N"),)

    def apply(
        self, accumulator: np.ndarray, C: np.ndarray | None, alpha: complex, beta: complex,
        operands: Mapping[str, np.ndarray],
    ) -> np.ndarray:  # fmt: skip
        linear = super().apply(accumulator, C, alpha, beta, operands)
        return np.clip(linear + operands["bias"].astype(linear.dtype), -4, 4)

    def bound(
        self, error: np.ndarray, magnitude: np.ndarray, C: np.ndarray | None, alpha: complex,
        beta: complex, operands: Mapping[str, np.ndarray], accumulator: DType,
    ) -> np.ndarray:  # fmt: skip
        linear = super().bound(error, magnitude, C, alpha, beta, operands, accumulator)
        terms = abs(alpha) * magnitude + abs(operands["bias"]) + (0 if C is None else abs(beta * C))
        return linear + accumulator.roundoff * terms


def with_bias(problem: GemmProblem) -> GemmProblem:
    """The problem with this epilogue, whose bias all products of a batch share."""
    bias = Matrix("bias", (problem.m, problem.n), (0, 1), "float32", 256, l=problem.l)
    return replace(problem, epilogue=BiasClamp(), operands=(bias,))


def plan_of(problem: GemmProblem, kernel: str, arch: str, **options: Any) -> Plan:
    choice = select(problem, arch, kernel, options, nearest(Arch(arch)))
    return Plan(problem, "cpu", None, arch, choice, True)


#: Kernel, architecture, type, type of C, order of C, extents, options.
CASES = (
    ("naive", "sm_80", "float32", None, "F", (70, 45, 19), {}),
    ("vectorized", "sm_80", "float32", None, "C", (128, 64, 32), {}),
    ("double_buffered", "sm_80", "float32", None, "F", (128, 128, 24), {}),
    ("tensor_core", "sm_80", "bfloat16", None, "C", (136, 72, 40), {}),
    ("sm80_pipeline", "sm_80", "float16", None, "F", (70, 45, 19), {"tile": "64x64x32"}),
    ("sm80_pipeline", "sm_80", "float16", "float32", "C", (72, 48, 40), {"tile": "64x64x32"}),
    ("thin", "sm_80", "float16", None, "F", (5, 70, 64), {}),
    *(
        ("sm90_wgmma", "sm_90a", dtype, out, order, (72, 56, 64),
         {"tile": "64x64x128" if size == 1 else "64x64x64" if size == 2 else "64x64x32",
          "groups": 1, "ping_pong": 0, "swap_ab": swap_ab, "cluster": "1x1"})
        for dtype, size, out, order, swap_ab in (
            ("float16", 2, None, "F", 0), ("float16", 2, None, "C", 1), ("tf32", 4, None, "F", 1),
            ("bfloat16", 2, "float32", "C", 0), ("float16", 2, None, "C", 0),
        )
    ),
    ("sm90_wgmma", "sm_90a", "float16", None, "F", (71, 57, 64), {"tile": "64x64x64", "groups": 1}),
    ("sm90_wgmma", "sm_90a", "float16", None, "F", (200, 136, 64),
     {"tile": "128x128x64", "groups": 2, "cluster": "2x1"}),
    # The reduction is the last step: the epilogue is there.
    ("sm80_pipeline", "sm_80", "float16", None, "C", (64, 48, 200),
     {"split_k": 3, "tile": "64x64x32"}),
    ("sm90_wgmma", "sm_90a", "float16", None, "F", (64, 48, 256), {"split_k": 2, "pack": "AB"}),
)  # fmt: skip


def arrays(problem: GemmProblem) -> dict[str, np.ndarray]:
    random = np.random.default_rng(problem.m)
    made = {}
    for name, shape in (("A", (problem.m, problem.k)), ("B", (problem.k, problem.n)),
                        ("C", (problem.m, problem.n))):  # fmt: skip
        matrix = getattr(problem, name)
        values = random.standard_normal(shape).astype(DTYPES[matrix.dtype].numpy)
        made[name] = np.asarray(values, order="F" if name != "C" or matrix.unit == 0 else "C")
    made["bias"] = random.standard_normal(problem.n).astype(np.float32)
    return made


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case[:5])))
def test_every_kernel_takes_it(case: Any) -> None:
    kernel, arch, dtype, out, order, (m, n, k), options = case
    types = {"dtype": "float32", "compute": "tf32"} if dtype == "tf32" else {"dtype": dtype}
    lda, ldb = -(-m // 16) * 16, -(-k // 16) * 16
    asked = from_sizes(
        "NN", m=m, n=n, k=k, lda=m if kernel != "sm90_wgmma" else lda,
        ldb=k if kernel != "sm90_wgmma" else ldb, order=order, out_dtype=out, **types,
    )  # fmt: skip
    options = dict(options)
    if dtype == "tf32":
        options["pack"] = "AB"
    plan = plan_of(with_bias(asked), kernel, arch, **options)
    assert "bias_clamp" in plan.steps.each[-1].unit.symbol
    given = arrays(plan.problem)
    A, B = (
        np.lib.stride_tricks.as_strided(buffer, x.shape, (x.itemsize, ld * x.itemsize))
        for x, ld in ((given["A"], asked.A.ld), (given["B"], asked.B.ld))
        for buffer in [np.zeros(ld * x.shape[1], x.dtype)]
    )
    A[...], B[...] = given["A"], given["B"]
    before, expected = given["C"].copy(order="K"), given["C"].copy(order="K")
    bias = {"bias": given["bias"]}

    # The result, by the interpreter and by NumPy.
    executions = execute(plan, A, B, given["C"], -1.5, 0.75, operands=bias, record=True)
    scaling = {"alpha": -1.5, "beta": 0.75, "operands": bias}
    assert verify(plan.problem, A, B, given["C"], C=before, **scaling).ok
    reference.gemm(plan.problem, A, B, expected, **scaling)
    assert verify(plan.problem, A, B, expected, C=before, **scaling).ok
    assert abs(given["C"].astype(float)).max() == 4
    assert not verify(asked, A, B, given["C"], C=before, alpha=-1.5, beta=0.75).ok

    # The report: rows of the bias, as they were executed.
    report = plan.report(beta=0.75)
    last, execution = plan.steps.each[-1], executions[-1]

    rows = [make_row(access) for access in last.accesses(True)]
    loads = [row for row in rows if row.operand == "bias"]
    assert loads and all(row.instruction == "ld.global" for row in loads)
    assert not [each for each in compare(rows, execution) if each.difference]
    assert "bias" in report.to_dict()["matrices"]
    assert report.performance.traffic.compulsory["bias"] == 4 * n

    # The price.
    plain = plan_of(asked, kernel, arch, **options)
    assert plan.candidates()[0].price.seconds >= plain.candidates()[0].price.seconds


def test_libraries_and_cutlass_take_blas_alone() -> None:
    asked = with_bias(from_sizes("NN", m=64, n=64, k=64, dtype="float16"))
    for name in ("cutlass_universal", "cublas", "host"):
        with pytest.raises(UnsupportedError, match="not epilogue 'bias_clamp': take"):
            get(name).configure(asked, "sm_80")
