"""A layout-aware GEMM frontend for NVIDIA GPUs; see the README."""

# First: importing the subpackage of that name later would put it in the function's place.
import cute_gemm.kernels  # noqa: F401
from cute_gemm.analysis.copy.report import analyze_copy
from cute_gemm.api import KernelInfo, Plan, analyze, compile, gemm, kernels, plan
from cute_gemm.errors import GemmError

__all__ = [
    "GemmError", "KernelInfo", "Plan", "analyze", "analyze_copy", "compile", "gemm", "kernels",
    "plan",
]  # fmt: skip
