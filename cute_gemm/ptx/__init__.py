"""PTX executed in NumPy: the output of NVRTC runs and is checked without a GPU.

`parser` reads the instructions of a text, `flow` cuts them into blocks. `program` translates each
instruction once into a function over arrays of lanes, with the translators in `arithmetic`,
`scalars`, `convert`, `access` and `warps`, which access operands through `code` and addresses
through `places`. `machine` executes the blocks on `memory`, including divergent lanes and barriers;
`lanes` has copies in flight and waits in a warp. `epochs` finds races in shared memory, `undefined`
follows uninitialised values, `record` stores accesses. If threads wait for more than barriers of
their CTA, `waiting` executes the blocks with `barriers`, `bulk` (TMA) and `wgmma`, whose
instructions `synchronise` translates; `clocks` then replaces epochs. `launch` is a launch with
arrays and numbers.
"""

from cute_gemm.ptx.launch import Buffer, Execution, TensorMap, run
from cute_gemm.ptx.parser import Kernel, parse
from cute_gemm.ptx.record import Accesses

__all__ = ["Accesses", "Buffer", "Execution", "Kernel", "TensorMap", "parse", "run"]
