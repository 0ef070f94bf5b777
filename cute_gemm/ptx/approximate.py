"""Approximate functions of floats: PTX ISA, 9.7.3, which bounds their errors.

The result here is the function's value rounded once, which is within PTX's bounds.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from cute_gemm.ptx.code import Code, opcode
from cute_gemm.ptx.machine import Step
from cute_gemm.ptx.memory import Array
from cute_gemm.ptx.parser import Instruction

_FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "ex2": np.exp2,
    "lg2": np.log2,
    "rcp": np.reciprocal,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "tanh": np.tanh,
}


def flushed(x: Array) -> Array:
    """Replace subnormal numbers by zeros with their sign."""
    small = abs(x) < np.finfo(x.dtype).tiny
    return np.where(small, np.copysign(x.dtype.type(0), x), x)


@opcode("div.approx", parts=r"approx\.ftz\.f32")
def _quotient(code: Code, inst: Instruction) -> Step:
    """Divide; if the divisor exceeds 2^126, the quotient of a finite number is 0 (9.7.3.8)."""

    def divide(x: Array, y: Array) -> Array:
        x, y = flushed(x), flushed(y)
        result = flushed((x.astype(np.float64) / y).astype(np.float32))
        large = (abs(y) > 2.0**126) & np.isfinite(y)
        lost = np.where(np.isfinite(x), np.copysign(np.float32(0), result), np.float32(np.nan))
        return np.where(large, lost, result).astype(np.float32)

    return code.apply(inst, divide, "f32", ("f32", "f32"))


@opcode(
    "ex2.approx", "lg2.approx", "rcp.approx", "rsqrt.approx", "tanh.approx",
    parts=r"approx\.(ftz\.)?f(32|64)",
)  # fmt: skip
def _approximate(code: Code, inst: Instruction) -> Step:
    """Compute in float64 and round."""
    name, kind = inst.op[0], inst.op[-1]
    code.require(inst, kind == "f32" or name in ("rcp", "rsqrt"))
    function, flushes = _FUNCTIONS[name], "ftz" in inst.op

    def compute(x: Array) -> Array:
        x = flushed(x) if flushes else x
        result = function(x.astype(np.float64)).astype(x.dtype)
        return flushed(result) if flushes else result

    return code.apply(inst, compute, kind, (kind,))
