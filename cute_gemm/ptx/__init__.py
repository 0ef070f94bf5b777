"""PTX executed in NumPy: what NVRTC emitted, run and watched without a GPU."""

from cute_gemm.ptx.gemm import execute
from cute_gemm.ptx.launch import Buffer, Execution, run
from cute_gemm.ptx.parser import Kernel, parse
from cute_gemm.ptx.record import Accesses

__all__ = ["Accesses", "Buffer", "Execution", "Kernel", "execute", "parse", "run"]
