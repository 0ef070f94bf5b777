"""PTX executed in NumPy: what NVRTC emitted, run and watched without a GPU.

`parser` makes instructions of a text, `flow` blocks of these. `program` has each instruction
translated once into a function over arrays of lanes, by the translators in `arithmetic`,
`approximate`, `scalars`, `convert`, `access`, `atomics` and `warps`, which see operands through
`code` and addresses through `places`. `machine` executes the blocks, lanes that go apart and
barriers among them (`warpwait`: those of warps); `memory` and `copies` are what it executes them
on, `epochs` finds races in shared memory, `undefined` follows what nobody has set, `record` keeps
the accesses. Where threads wait for more than a barrier of their CTA, `waiting` executes the
blocks, on what `cluster` knows of its lanes, with `barriers`, `gates`, `bulk` (TMA) and `wgmma`,
told by `synchronise`; `clocks` instead of epochs say who has seen what. `launch` is a launch of
arrays and numbers.
"""

from cute_gemm.ptx.launch import Buffer, Execution, TensorMap, run
from cute_gemm.ptx.parser import Kernel, parse
from cute_gemm.ptx.record import Accesses

__all__ = ["Accesses", "Buffer", "Execution", "Kernel", "TensorMap", "parse", "run"]
