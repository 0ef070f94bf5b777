"""Passes before and after the kernel that multiplies: packing, and the sum over slices of K."""

from cute_gemm.kernels.passes.pack import Pack
from cute_gemm.kernels.passes.reduce import Reduce

PACK, REDUCE = Pack(), Reduce()
