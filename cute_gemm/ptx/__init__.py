"""PTX executed in NumPy: what NVRTC emitted, run and watched without a GPU."""

from cute_gemm.ptx.launch import Buffer, Execution, run
from cute_gemm.ptx.parser import Kernel, parse

__all__ = ["Buffer", "Execution", "Kernel", "parse", "run"]
