"""Operands of instructions on barriers and bulk copies, which lanes execute one by one."""

from __future__ import annotations

import numpy as np

from cute_gemm.ptx.code import Code, Source
from cute_gemm.ptx.memory import SHARED_WINDOW, Array
from cute_gemm.ptx.parser import Address, Instruction, Operand, Register
from cute_gemm.ptx.undefined import demand


class Lanewise:
    """An operand as a number per executing lane; for an address, one in shared memory."""

    def __init__(self, code: Code, inst: Instruction, operand: Operand, kind: str = "u32") -> None:
        self.machine, self.inst, self.values, self.offset = code.machine, inst, code.values, 0
        if isinstance(operand, Address):
            self.offset, operand = operand.offset, operand.base
            wide = isinstance(operand, Register) and operand.type in ("u64", "s64", "b64")
            kind = "u64" if wide else kind
        self.source: Source = code.source(inst, operand, kind)

    def __call__(self, what: str = "its address") -> Array:
        """Return the numbers, one per lane; fault if one is undefined."""
        demand(self.machine, self.inst, self.source.slot, what)
        values = self.values[self.source.slot].astype(np.int64)
        values = np.broadcast_to(values, self.machine.shape)[self.machine.lanes()]
        if values.size and values.min() >= SHARED_WINDOW:
            values = values - SHARED_WINDOW
        return np.asarray(values + self.offset)
