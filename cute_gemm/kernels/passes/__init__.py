"""Passes before and behind the kernel that multiplies: packing, slices of K, sums of results."""

from cute_gemm.kernels.passes.pack import Pack
from cute_gemm.kernels.passes.reduce import Reduce
from cute_gemm.kernels.passes.sum import Summing

PACK, REDUCE, SUM = Pack(), Reduce(), Summing()
