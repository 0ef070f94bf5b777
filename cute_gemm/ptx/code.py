"""Interface of translators of instructions: operands as slots of the machine's values.

A translator makes one function per instruction, once; the function reads and sets values.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from cute_gemm.errors import PtxError, shown
from cute_gemm.ptx.follow import Rule, whole
from cute_gemm.ptx.machine import Machine, Step
from cute_gemm.ptx.memory import PARAMETERS, SHARED_WINDOW, Array
from cute_gemm.ptx.parser import (
    BYTES,
    Address,
    Immediate,
    Instruction,
    Kernel,
    Name,
    Operand,
    Register,
    Vector,
)

#: NumPy's dtypes of instruction types; unsigned for bits without a number in NumPy.
DTYPES: dict[str, Any] = {
    "pred": np.bool_,
    **{f"{kind}{bits}": np.dtype(f"uint{bits}").type for kind in "bu" for bits in (8, 16, 32, 64)},
    **{f"s{bits}": np.dtype(f"int{bits}").type for bits in (8, 16, 32, 64)},
    "f16": np.uint16, "bf16": np.uint16, "f16x2": np.uint32, "bf16x2": np.uint32,
    "tf32": np.uint32, "f32": np.float32, "f64": np.float64,
}  # fmt: skip
#: Storage of registers: floats of 32 and 64 bits as such, all other types as bits.
STORED = {
    name: kind if name in ("pred", "f32", "f64") else np.dtype(f"uint{8 * BYTES[name]}").type
    for name, kind in DTYPES.items()
}
_SPECIAL = re.compile(r"%n?(tid|ctaid|clusterid)\.[xyz]|%cluster_n?(ctaid\.[xyz]|ctarank)|%laneid")


class Source(NamedTuple):
    """A value to read: its slot, and the dtype to view its bits as, if it differs."""

    slot: int
    view: Any


class Code:
    """The operands of a kernel: registers, constants, special registers and parameters."""

    def __init__(self, kernel: Kernel, machine: Machine, parameters: bytes) -> None:
        self.kernel, self.machine, self.parameters = kernel, machine, parameters
        self.values = machine.values
        self.specials: dict[str, int] = {}
        #: Index of the translated instruction.
        self.index = 0
        #: Results of memory instructions about base registers (`AddressOperand`).
        self.known: dict[Any, tuple[Any, ...]] = {}
        #: For the translated instruction: results, each with the rule for its undefined bits and
        #: its sources.
        self.rules: list[tuple[int, Rule, list[Source]]] = []
        self._constants: dict[tuple[Any, bytes], int] = {}

    def refuse(self, inst: Instruction, what: str = "") -> PtxError:
        """Return the error of an instruction that the interpreter does not support."""
        why = f": {what}" if what else ""
        what = f"{shown(inst.text)} is not supported by the interpreter"
        return PtxError(f"line {inst.line}: {what}{why}")

    def require(self, inst: Instruction, fits: bool, what: str = "") -> None:
        """Refuse an instruction that does not fit."""
        if not fits:
            raise self.refuse(inst, what)

    def only(self, inst: Instruction, *allowed: str) -> None:
        """Refuse an opcode with a part, after the first, that is not among these."""
        for part in inst.op[1:]:
            self.require(inst, part in allowed, f".{part} is not supported")

    def constant(self, value: Any, kind: Any) -> int:
        """Return the slot of a constant value."""
        array = np.array([[value]]).astype(kind)
        key = (kind, array.tobytes())
        if key not in self._constants:
            self._constants[key] = len(self.values)
            self._append(array)
        return self._constants[key]

    def _append(self, value: Any) -> None:
        self.values.append(value)
        self.machine.undefined.append(None)

    def source(self, inst: Instruction, operand: Operand, kind: str) -> Source:
        """Return an operand read as a type of the instruction; widths must agree."""
        dtype = DTYPES[kind]
        if isinstance(operand, Register):
            stored = STORED[operand.type]
            fits = BYTES[operand.type] == BYTES[kind]
            self.require(inst, fits, f"{operand.name} is of type {operand.type}")
            return Source(operand.slot, None if stored is dtype else dtype)
        if isinstance(operand, Immediate):
            return Source(self.constant(*_immediate(operand.value, kind)), None)
        if isinstance(operand, Name):
            return self._named(inst, operand.name, kind)
        raise self.refuse(inst)

    def _named(self, inst: Instruction, name: str, kind: str) -> Source:
        if _SPECIAL.fullmatch(name) and BYTES[kind] == 4:
            if name not in self.specials:
                self.specials[name] = len(self.values)
                self._append(None)
            return Source(self.specials[name], None if DTYPES[kind] is np.uint32 else DTYPES[kind])
        if name in self.kernel.shared or name in self.kernel.globals:
            return Source(self.constant(self.address_of(name), DTYPES[kind]), None)
        if name in self.kernel.parameters and BYTES[kind] == 8:
            address = PARAMETERS + self.kernel.parameters[name].offset
            return Source(self.constant(address, DTYPES[kind]), None)
        if name == "WARP_SZ":
            return Source(self.constant(32, DTYPES[kind]), None)
        raise self.refuse(inst, f"{name} is not known")

    def read(self, source: Source) -> Any:
        """Return the values of a source, viewed as its dtype."""
        values = self.values[source.slot]
        return values if source.view is None else values.view(source.view)

    def address_of(self, name: str) -> int:
        """Return the address of a variable in its own space."""
        if name in self.kernel.shared:
            return self.kernel.shared[name].offset
        return self.machine.memory.address("variables") + self.kernel.globals[name].offset

    def register(self, inst: Instruction, operand: Operand, kind: str) -> Register:
        """Return an operand that must be a register with the width of a type."""
        if not isinstance(operand, Register):
            raise self.refuse(inst)
        fits = np.dtype(STORED[operand.type]).itemsize == np.dtype(STORED[kind]).itemsize
        self.require(inst, fits, f"{operand.name} is of type {operand.type}")
        return operand

    def parts(self, operand: Operand) -> tuple[Operand, ...]:
        """Return the elements of a vector, or the operand itself."""
        return operand.parts if isinstance(operand, Vector) else (operand,)

    # ---- functions of an element ---------------------------------------------------------------

    def apply(
        self, inst: Instruction, function: Callable[..., Any], result: str, kinds: tuple[str, ...],
        follow: Rule | None = None, constants: int = 0,
    ) -> Step:  # fmt: skip
        """Set the first operand to a function of the others.

        ``kinds``: their types. ``result``: type of the function's result. ``follow``: how undefined
        bits pass through it; by default the whole result is undefined if one bit is.
        ``constants``: number of last operands that the function contains.
        """
        first, *others = inst.operands[: len(inst.operands) - constants]
        self.require(inst, len(others) == len(kinds))
        register = self.register(inst, first, result)
        sources = [
            self.source(inst, other, kind) for other, kind in zip(others, kinds, strict=True)
        ]
        return self.step(register, function, DTYPES[result], sources, follow)

    def step(
        self, register: Register, function: Callable[..., Any], result: Any, sources: list[Source],
        follow: Rule | None = None,
    ) -> Step:  # fmt: skip
        """Return a function that sets a register; ``result``: dtype of ``function``'s result."""
        values, to, stored = self.values, register.slot, STORED[register.type]
        self.rules.append((to, follow or whole(stored), sources))
        if stored is not result or any(source.view is not None for source in sources):

            def viewed() -> None:
                value = function(
                    *(values[x] if v is None else values[x].view(v) for x, v in sources)
                )
                values[to] = value if stored is result else value.view(stored)

            return viewed
        slots = [source.slot for source in sources]
        if len(slots) == 2:
            a, b = slots

            def two() -> None:
                values[to] = function(values[a], values[b])

            return two

        def several() -> None:
            values[to] = function(*[values[slot] for slot in slots])

        return several


class Lanewise:
    """An operand as a number per executing lane; for an address, one in shared memory."""

    def __init__(self, code: Code, inst: Instruction, operand: Operand, kind: str = "u32") -> None:
        self.machine, self.inst, self.offset = code.machine, inst, 0
        if isinstance(operand, Address):
            self.offset, operand = operand.offset, operand.base
            wide = isinstance(operand, Register) and operand.type in ("u64", "s64", "b64")
            kind = "u64" if wide else kind
        self.slot = code.source(inst, operand, kind).slot

    def __call__(self, what: str = "its address") -> Array:
        """Return the numbers, one per lane; fault if one is undefined."""
        self.machine.demand(self.inst, self.slot, what)
        values = self.machine.each(self.machine.values[self.slot]).astype(np.int64)
        if values.size and values.min() >= SHARED_WINDOW:
            values = values - SHARED_WINDOW
        return values + self.offset


def _immediate(value: int | float, kind: str) -> tuple[Any, Any]:
    """Return a constant of an instruction of a type, and its dtype (PTX ISA, 4.5)."""
    dtype = DTYPES[kind]
    if kind in ("f32", "f64"):
        return value, dtype
    bits = 8 * BYTES[kind]
    if isinstance(value, float):  # 0f.. or 0d.. for bits
        form = {32: "<f", 64: "<d"}.get(bits, "<d")
        value = int.from_bytes(struct.pack(form, value), "little")
    if kind == "pred":
        return bool(value), dtype
    value &= (1 << bits) - 1
    if kind.startswith("s") and value >> (bits - 1):
        value -= 1 << bits
    return value, dtype


def group_step(code: Code, inst: Instruction, what: str, name: str) -> Step:
    """Return the step of ``commit_group`` or ``wait_group``.

    ``name``: the machine's attribute that has the groups.
    """
    machine = code.machine
    if what == "commit_group":
        return lambda: getattr(machine, name).commit(inst)
    (left,) = inst.operands
    if not isinstance(left, Immediate):
        raise code.refuse(inst)
    count = int(left.value)
    return lambda: getattr(machine, name).wait(inst, count)


Translator = Callable[[Code, Instruction], Step]
#: Translators by the first parts of an opcode; the longest match counts.
TRANSLATORS: dict[str, Translator] = {}


def translator_of(inst: Instruction) -> Translator | None:
    """Return the translator of an instruction, or None."""
    names = (".".join(inst.op[:parts]) for parts in range(min(4, len(inst.op)), 0, -1))
    return next((TRANSLATORS[name] for name in names if name in TRANSLATORS), None)


def opcode(*names: str, parts: str = ".*") -> Callable[[Translator], Translator]:
    """Register a translator for opcodes; ``parts``: a pattern of all parts after the first."""
    pattern = re.compile(parts)

    def put(translator: Translator) -> Translator:
        def translate(code: Code, inst: Instruction) -> Step:
            if not pattern.fullmatch(".".join(inst.op[1:])):
                raise code.refuse(inst)
            return translator(code, inst)

        TRANSLATORS.update(dict.fromkeys(names, translate))
        return translator

    return put
