"""An epilogue of a Python class and a C++ functor, and problems of every kernel family."""

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from cases import placed

from cute_gemm.arch import Arch
from cute_gemm.dtypes import DType
from cute_gemm.gpus.table import nearest
from cute_gemm.plan.plan import Plan
from cute_gemm.plan.select import select
from cute_gemm.problem.describe import from_sizes
from cute_gemm.problem.epilogue.epilogue import (
    EpilogueArguments,
    EpilogueOperand,
    LinearCombination,
)
from cute_gemm.problem.matrix import Matrix
from cute_gemm.problem.problem import GemmProblem
from cute_gemm.problem.verify import Verdict, verify
from cute_gemm.run.memory import download, upload

CPP = (Path(__file__).parent / "data" / "bias_clamp.cuh").read_text(encoding="utf-8")


@dataclass(frozen=True)
class BiasClamp(LinearCombination):
    """``clamp(alpha * accumulator + beta * C + bias, -4, 4)``, with a bias along N."""

    name: ClassVar[str] = "bias_clamp"
    label: ClassVar[str] = "bias_clamp"
    functor: ClassVar[str] = "BiasClamp"
    source: ClassVar[str] = CPP
    operands: ClassVar[tuple[EpilogueOperand, ...]] = (
        EpilogueOperand("bias", "float32", "N", "N"),
    )

    def apply(self, accumulator: np.ndarray, arguments: EpilogueArguments) -> np.ndarray:
        linear = super().apply(accumulator, arguments)
        return np.clip(linear + arguments.operands["bias"].astype(linear.dtype), -4, 4)

    def bound(
        self, accumulator: np.ndarray, error: np.ndarray, magnitude: np.ndarray, dtype: DType,
        arguments: EpilogueArguments,
    ) -> np.ndarray:  # fmt: skip
        C, alpha, beta, operands = arguments
        linear = super().bound(accumulator, error, magnitude, dtype, arguments)
        terms = abs(alpha) * magnitude + abs(operands["bias"]) + (0 if C is None else abs(beta * C))
        return linear + dtype.roundoff * terms


def with_bias(problem: GemmProblem) -> GemmProblem:
    """Return the problem with this epilogue. All products of a batch share the bias."""
    bias = Matrix("bias", (problem.m, problem.n), (0, 1), "float32", 256, l=problem.l)
    return replace(problem, epilogue=BiasClamp(), operands=(bias,))


def plan_of(problem: GemmProblem, kernel: str, arch: str, **options: Any) -> Plan:
    selection = select(problem, arch, kernel, options, nearest(Arch(arch)))
    return Plan(problem, "cpu", None, arch, selection, True)


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
          "warp_groups": 1, "ping_pong": 0, "swap_ab": swap_ab, "cluster": "1x1"})
        for dtype, size, out, order, swap_ab in (
            ("float16", 2, None, "F", 0), ("float16", 2, None, "C", 1), ("tf32", 4, None, "F", 1),
            ("bfloat16", 2, "float32", "C", 0), ("float16", 2, None, "C", 0),
        )
    ),
    ("sm90_wgmma", "sm_90a", "float16", None, "F", (71, 57, 64), {"tile": "64x64x64",
     "warp_groups": 1}),
    ("sm90_wgmma", "sm_90a", "float16", None, "F", (200, 136, 64),
     {"tile": "128x128x64", "warp_groups": 2, "cluster": "2x1"}),
    # With split-K, the reduction kernel applies the epilogue.
    ("sm80_pipeline", "sm_80", "float16", None, "C", (64, 48, 200),
     {"split_k": 3, "tile": "64x64x32"}),
    ("sm90_wgmma", "sm_90a", "float16", None, "F", (64, 48, 256), {"split_k": 2, "pack": "AB"}),
)  # fmt: skip


class EpilogueCase(NamedTuple):
    """A problem without the epilogue, and plans with and without it."""

    asked: GemmProblem
    plan: Plan
    plain: Plan


def epilogue_case(case: Any) -> EpilogueCase:
    """Return one of `CASES`. TMA supports the leading dimensions of sm90_wgmma."""
    kernel, arch, dtype, out, order, (m, n, k), options = case
    types = {"dtype": "float32", "compute": "tf32"} if dtype == "tf32" else {"dtype": dtype}
    lda, ldb = (-(-m // 16) * 16, -(-k // 16) * 16) if kernel == "sm90_wgmma" else (m, k)
    sizes = {"m": m, "n": n, "k": k, "lda": lda, "ldb": ldb}
    asked = from_sizes("NN", **sizes, order=order, out_dtype=out, **types)
    options = options | ({"pack": "AB"} if dtype == "tf32" else {})
    plans = (plan_of(problem, kernel, arch, **options) for problem in (with_bias(asked), asked))
    return EpilogueCase(asked, *plans)


def arrays(problem: GemmProblem) -> dict[str, np.ndarray]:
    """Return host arrays of the problem, and a bias, with random values."""
    random = np.random.default_rng(problem.m)
    made = {}
    for name, shape in (("A", (problem.m, problem.k)), ("B", (problem.k, problem.n)),
                        ("C", (problem.m, problem.n))):  # fmt: skip
        matrix = getattr(problem, name)
        order = "F" if name != "C" or matrix.unit == 0 else "C"
        pad = matrix.ld - shape[order == "C"]
        made[name], _ = placed(shape, matrix.dtype, order, pad, random=random)
    made["bias"] = random.standard_normal(problem.n).astype(np.float32)
    return made


def on_gpu(case: Any, arch: str) -> Verdict:
    """Compute a case on device 0, with arrays that end with their last element."""
    problem = (plan := epilogue_case((case[0], arch, *case[2:])).plan).problem
    given = arrays(problem)
    before = given["C"].copy(order="K")
    scaling = {"alpha": -1.5, "beta": 0.75}
    bound = plan.bind(0, **scaling)
    with ExitStack() as stack:
        buffers = {
            name: stack.enter_context(upload(np.atleast_2d(array))) for name, array in given.items()
        }
        bound(tuple(buffers[matrix.name].pointer for matrix in problem.matrices))
        download(buffers["C"], given["C"])
    A, B, C, bias = given.values()
    return verify(problem, A, B, C, C=before, **scaling, operands={"bias": bias})
