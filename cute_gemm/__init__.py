"""A layout-aware GEMM frontend for NVIDIA GPUs; see the README."""

from cute_gemm.api import KernelInfo, Plan, analyze, gemm, kernels, plan
from cute_gemm.errors import GemmError

__all__ = ["GemmError", "KernelInfo", "Plan", "analyze", "gemm", "kernels", "plan"]
