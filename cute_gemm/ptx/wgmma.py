"""Products of warp groups: PTX ISA, 9.7.15 (``wgmma``).

Supported are 8- and 16-bit floats and tf32, accumulated in float32, and 8-bit integers, in int32.

Descriptors give the places of operands in shared memory (9.7.15.5.1). An operand consists of parts
of 16 bytes of the unit-stride mode, two along k; ``s`` adjacent parts fill a span of 16 s bytes, 1
without a swizzle, 2, 4 or 8 with one. K-major, part j of row i is at

    (i % 8) 16 s + (i / 8) SBO + j (16 with a swizzle, LBO without),

and MN-major, for 16-bit elements only, part j along the rows, of column i of k, at

    (j % s) 16 + (j / s) LBO + (i % 8) 16 s + (i / 8) SBO     with a swizzle,
    j SBO + (i % 8) 16 + (i / 8) LBO                          without,

relative to the start; the swizzle is that of the address (`cute_gemm.ptx.bulk.swizzled`).

A may be in registers, four words per thread: of 32 bytes of k, words t and t + 4 of rows g and
g + 8 of its warp's 16, g = lane / 4, t = lane % 4, rows first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple
from weakref import proxy

import numpy as np

from cute_gemm.errors import FaultError
from cute_gemm.ptx.bulk import swizzled, wrong
from cute_gemm.ptx.clocks import ClusterMachine, machine_of
from cute_gemm.ptx.code import Code, group_step, opcode
from cute_gemm.ptx.machine import Step
from cute_gemm.ptx.memory import Array
from cute_gemm.ptx.parser import Immediate, Instruction, Vector
from cute_gemm.ptx.record import Recorder
from cute_gemm.ptx.warps import FACTORS, rounded

#: Threads of a warp group, its warps, and the rows of an instruction.
_GROUP, _WARPS, _ROWS = 128, 4, 64
#: Bytes along k of an instruction and of a part, and k of 16-bit elements.
_BYTES, _PART, _DEEP = 32, 16, 16
#: Bytes of the span by the descriptor's layout type.
_SPANS = (0, 128, 64, 32)


class WgmmaOperand(NamedTuple):
    """A or B of an instruction: its rows, whether k is the unit-stride mode, and its sign."""

    rows: int
    major_k: bool
    sign: int


def parts(operand: WgmmaOperand, descriptor: int) -> Array:
    """Return addresses in shared memory of the operand's parts of 16 bytes, by part and row.

    K-major (parts along k, rows), MN-major (parts along the rows, k).
    """
    start, lead, step = (16 * (descriptor >> bit & 0x3FFF) for bit in (0, 16, 32))
    span = _SPANS[descriptor >> 62 & 3]
    return swizzled(start + _steps(operand, lead, step, span), span)


@lru_cache(maxsize=64)
def _steps(operand: WgmmaOperand, lead: int, step: int, span: int) -> Array:
    """Return offsets of an operand's parts from its start, without the swizzle."""
    side = max(span // 16, 1)
    if operand.major_k:
        j, i = np.ogrid[: _BYTES // _PART, : operand.rows]
        offsets = i % 8 * 16 * side + i // 8 * step + j * (16 if span else lead)
    else:
        j, i = np.ogrid[: operand.rows // 8, :_DEEP]
        offsets = i % 8 * 16 * side
        if span:
            offsets = offsets + j % side * 16 + j // side * lead + i // 8 * step
        else:
            offsets = offsets + j * step + i // 8 * lead
    return np.asarray(offsets)


@dataclass(eq=False)
class _Product:
    """One instruction of one warp group."""

    inst: Instruction
    cta: int
    group: int
    slots: tuple[int, ...]
    #: The types of A and B.
    kinds: tuple[str, str]
    #: A, (rows, k), if it is in registers.
    known: tuple[Array, ...]
    #: The registers in use.
    held: frozenset[int]
    #: Whether it adds to the accumulators.
    adds: bool
    index: int
    serial: int
    #: Operands in shared memory, with the places of their parts in the bytes of all CTAs: A and B,
    #: or B.
    operands: list[tuple[WgmmaOperand, Array]] = field(default_factory=list)
    #: The group of instructions that it belongs to.
    batch: int = 0
    granules: Array = field(default_factory=lambda: np.zeros(0, np.int64))


class Products:
    """The pending products of a batch."""

    def __init__(self, machine: ClusterMachine) -> None:
        self.machine: ClusterMachine = proxy(machine)  # which owns this
        groups = machine.ctas, max(1, machine.threads // _GROUP)
        self._flying: dict[tuple[int, int], list[_Product]] = {}
        self._committed = np.zeros(groups, np.int64)
        #: Where registers have been used since the last fence.
        self._touched = np.ones(groups, bool)
        self._serial = 0

    def groups(self, inst: Instruction) -> list[tuple[int, int]]:
        """Return the executing warp groups, (CTA, group); fault if one executes in part."""
        some = self.machine.whole(inst, _GROUP, "warp group")
        return [(int(cta), int(group)) for cta, group in np.argwhere(some)]

    def _rows(self, cta: int, group: int) -> Array:
        return cta * self.machine.shared.clocks.warps + group * _WARPS + np.arange(_WARPS)

    def _fault(self, product: _Product, kind: str, what: str) -> FaultError:
        inst, machine = product.inst, self.machine
        who = f"CTA {machine.name(product.cta)}, warp group {product.group}"
        return FaultError(f"line {inst.line}: {inst.text[:60]}..: {who}: {what}", kind, inst.line)

    def touch(self, inst: Instruction, slots: frozenset[int]) -> None:
        """Fault if executing lanes use registers of pending products."""
        machine = self.machine
        lanes = machine.lanes()
        for (cta, group), flying in self._flying.items():
            executing = lanes[cta, group * _GROUP : (group + 1) * _GROUP]
            for product in flying if executing.any() else ():
                if slots & product.held:
                    bad = np.zeros(machine.shape, bool)
                    bad[cta, group * _GROUP : (group + 1) * _GROUP] = executing
                    what = f"in flight: the wgmma of line {product.inst.line} has these registers, "
                    machine.fault(inst, "in flight", f"{what}and is not waited for", bad)
        if machine.threads % _GROUP == 0:
            self._touched |= lanes.reshape(machine.ctas, -1, _GROUP).any(axis=2)

    # ---- operations ----------------------------------------------------------------------------

    def fence(self, inst: Instruction) -> None:
        """Execute ``wgmma.fence``."""
        for place in self.groups(inst):
            self._touched[place] = False

    def start(
        self, inst: Instruction, slots: tuple[int, ...], kinds: tuple[str, str],
        operands: tuple[WgmmaOperand, ...],
        descriptors: Array, adds: Array, index: int, own: tuple[int, ...],
    ) -> None:  # fmt: skip
        """Begin the products of the executing groups; descriptors (operands, CTAs, threads).

        ``own``: slots of the registers of A, whose operand then only has the sign; or none.
        """
        shared, used = self.machine.shared, frozenset((*slots, *own))
        for cta, group in self.groups(inst):
            threads = slice(group * _GROUP, (group + 1) * _GROUP)
            words, scale = descriptors[:, cta, threads], adds[cta, threads]
            self._serial += 1
            known = (operands[0].sign * self._rows_in(own, kinds[0], cta, group),) if own else ()
            product = _Product(
                inst, cta, group, slots, kinds, known, used, bool(scale[0]), index, self._serial
            )
            if (words != words[:, :1]).any() or (scale != scale[0]).any():
                raise self._fault(product, "divergent", "its threads give different operands")
            if self._touched[cta, group]:
                what = "no wgmma.fence since its registers were used otherwise"
                raise self._fault(product, "fence", what)
            for operand, word in zip(operands[len(known) :], words[:, 0].tolist(), strict=True):
                if word >> 49 & 7:
                    raise self._fault(product, "misaligned", "a base offset is not supported")
                places = parts(operand, word)
                if places.min() < 0 or places.max() > shared.bytes - 16:
                    what = f"out of bounds: the CTA has {shared.bytes} bytes of shared memory"
                    raise self._fault(product, "out of bounds", what)
                product.operands.append((operand, places + cta * shared.pitch))
            if shared.watched:
                self._watch(product)
            if self.machine.recorder is not None:
                self._note(product, self.machine.recorder)
            product.batch = int(self._committed[cta, group])
            self._flying.setdefault((cta, group), []).append(product)

    def _rows_in(self, own: tuple[int, ...], kind: str, cta: int, group: int) -> Array:
        """Return A, (rows, k), from the registers of a group's threads."""
        machine, threads = self.machine, slice(group * _GROUP, (group + 1) * _GROUP)
        thread = np.arange(_GROUP)
        row, word = thread // 32 * 16 + thread % 32 // 4, thread % 4
        words = np.empty((_ROWS, _BYTES // 4), np.uint32)
        for i, slot in enumerate(own):
            values = machine.full(machine.values[slot])[cta, threads]
            words[row + i % 2 * 8, word + i // 2 * 4] = np.ascontiguousarray(values).view(np.uint32)
        return np.asarray(FACTORS[kind].numbers(words)).reshape(_ROWS, -1)

    def _watch(self, product: _Product) -> None:
        """Mark the granules that the product reads."""
        shared = self.machine.shared
        bytes_ = np.concatenate([places.reshape(-1) for _, places in product.operands])
        if (shared.undefined.view(np.uint64).take(bytes_[:, None] // 8 + np.arange(2)) != 0).any():
            raise self._fault(product, "uninitialised", wrong("uninitialised"))
        each = max(1, 16 // shared.granule)
        product.granules = (bytes_[:, None] // shared.granule + np.arange(each)).reshape(-1)
        rows = self._rows(product.cta, product.group)
        if kind := shared.begin_read(product.granules, rows, product.serial):
            raise self._fault(product, kind, wrong(kind))

    def _note(self, product: _Product, recorder: Recorder) -> None:
        cta, warp = product.cta, product.group * _WARPS
        for _, places in product.operands:
            lanes = places.reshape(-1, 32) - cta * self.machine.shared.pitch
            recorder.requests(product.index, self.machine.first + cta, warp, lanes)

    def commit(self, inst: Instruction) -> None:
        """Execute ``wgmma.commit_group``."""
        for place in self.groups(inst):
            self._committed[place] += 1

    def wait(self, inst: Instruction, left: int) -> None:
        """Execute ``wgmma.wait_group``: complete all groups but the last ones."""
        done: dict[tuple[int, ...], list[_Product]] = {}
        groups = self.groups(inst)
        for place in groups:
            flying = self._flying.pop(place, [])
            end = self._committed[place] - left
            for product in flying:
                if product.batch < end:
                    done.setdefault(product.slots, []).append(product)
            if later := [product for product in flying if product.batch >= end]:
                self._flying[place] = later
        for slots, products in done.items():
            self._add(slots, products)
        for place in groups:  # the warps of a group read together
            self.machine.shared.clocks.meet(self._rows(*place))

    def _add(self, slots: tuple[int, ...], products: list[_Product]) -> None:
        """Add products in order to the registers of their groups.

        Thread t of the group has rows 16 (t / 32) + t % 32 / 4 and 8 below, of each 8 columns
        2 (t % 4) and the next; value i is of block i / 4 of columns, below if i / 2 is odd
        (9.7.15.5.1.1). The products of an instruction, exact in float64, are added by NumPy's
        matmul, in its order, and to the accumulators; the sum is rounded once to float32, or
        wrapped to int32.
        """
        machine = self.machine
        places = sorted({(product.cta, product.group) for product in products})
        ctas, groups = (np.array(x) for x in zip(*places, strict=True))
        whole = [
            machine.full(machine.values[slot]).reshape(machine.ctas, -1, _GROUP) for slot in slots
        ]
        elements = np.stack([each[ctas, groups] for each in whole], axis=-1)
        stored = elements.dtype
        if FACTORS[products[0].kinds[0]].accumulator == "f32":
            elements = elements.view(np.float32)
        thread, i = np.ogrid[:_GROUP, : len(slots)]
        row = thread // 32 * 16 + thread % 32 // 4 + i // 2 % 2 * 8
        column = i // 4 * 8 + thread % 4 * 2 + i % 2
        accumulators = np.empty((len(places), _ROWS, len(slots) * 2), elements.dtype)
        accumulators[:, row, column] = elements
        number = {place: index for index, place in enumerate(places)}
        fresh = np.zeros(len(places), bool)
        for product in products:
            row_of = number[product.cta, product.group]
            factors = list(product.known)
            kinds = product.kinds[len(product.known) :]
            factors += [
                self._numbers(kind, *each)
                for kind, each in zip(kinds, product.operands, strict=True)
            ]
            total = factors[0] @ factors[1].T
            if product.adds:
                total += accumulators[row_of]
            else:
                fresh[row_of] = True
            accumulators[row_of] = rounded(total, product.kinds[0])
            if machine.shared.watched:
                rows = self._rows(product.cta, product.group)
                machine.shared.end_read(product.granules, rows, product.serial)
        elements = accumulators[:, row, column]
        for index, (slot, old) in enumerate(zip(slots, whole, strict=True)):
            new = old.copy()
            new[ctas, groups] = np.ascontiguousarray(elements[..., index]).view(stored)
            machine.values[slot] = new.reshape(machine.shape)
            lost = machine.undefined[slot]
            if lost is not None:
                bits = machine.full(lost).copy()
                bits.reshape(machine.ctas, -1, _GROUP)[ctas[fresh], groups[fresh]] = 0
                machine.undefined[slot] = bits if bits.any() else None

    def _numbers(self, kind: str, operand: WgmmaOperand, places: Array) -> Array:
        """Return the elements of an operand, (rows, k)."""
        bits = self.machine.shared.view(np.uint64).take(places[..., None] // 8 + np.arange(2))
        numbers = FACTORS[kind].numbers(bits.view(np.uint32)).reshape(*places.shape, -1)
        # (parts, rows, elements) or (parts, k, elements)
        order = (1, 0, 2) if operand.major_k else (0, 2, 1)
        ordered = numbers.transpose(order).reshape(operand.rows, -1)
        return np.asarray(operand.sign * ordered)


# ---- instructions --------------------------------------------------------------------------------

#: By type of A and B: k of an instruction, and the number of its sign and major operands.
_SAID = {"f16": (16, 2, 2), "bf16": (16, 2, 2), "tf32": (8, 2, 0), "s8": (32, 0, 0)}
_SAID |= {"e4m3": (32, 2, 0), "e5m2": (32, 2, 0)}


@opcode("wgmma", parts=r"(fence|commit_group|wait_group)\.sync\.aligned")
def _group(code: Code, inst: Instruction) -> Step:
    """Translate ``wgmma.fence``, ``commit_group``, ``wait_group``."""
    machine = machine_of(code)
    if inst.op[1] == "fence":
        return lambda: machine.products.fence(inst)
    return group_step(code, inst, inst.op[1], "products")


@opcode("wgmma.mma_async")
def _mma(code: Code, inst: Instruction) -> Step:
    """Translate ``wgmma.mma_async.sync.aligned.SHAPE.D.T.T``, with A in shared memory or not."""
    machine, values = machine_of(code), code.values
    op, operands = inst.op, inst.operands
    shape = op[4] if len(op) == 8 else ""
    kind, other, index = op[-2], op[-1], code.index
    deep, signs, flips = _SAID.get(kind, (0, 0, 0))
    fits = kind in _SAID and (kind == other or {kind, other} == {"e4m3", "e5m2"})
    fits = fits and op[2:4] == ("sync", "aligned") and op[5:-2] == (FACTORS[kind].accumulator,)
    match = re.fullmatch(f"m64n([0-9]+)k{deep}", shape)
    rows = code.parts(operands[1]) if isinstance(operands[1], Vector) else ()
    flips -= bool(rows and flips)  # these apply to shared memory
    if not fits or not match or len(operands) != 4 + signs + flips:
        raise code.refuse(inst, f"only for {', '.join(_SAID)}")
    columns, accumulator = int(match[1]), FACTORS[kind].accumulator
    targets = [code.register(inst, each, accumulator) for each in code.parts(operands[0])]
    slots = tuple(target.slot for target in targets)
    # Float accumulators may be in registers of bits; integers not in those of floats.
    typed = accumulator == "f32" or all(target.type != "f32" for target in targets)
    if len(slots) != columns // 2 or not typed or columns % 8 or not 8 <= columns <= 256:
        raise code.refuse(inst, f"it takes {columns // 2} registers of {accumulator}")
    own = tuple(code.register(inst, each, "b32").slot for each in rows)
    code.require(inst, len(own) in (0, 4), "A takes 4 registers")
    words = [code.source(inst, each, "u64") for each in operands[1 + bool(own) : 3]]
    scale = code.source(inst, operands[3], "pred")
    signs_and_majors = [each.value for each in operands[4:] if isinstance(each, Immediate)]
    code.require(inst, len(signs_and_majors) == signs + flips)
    sign, flipped = signs_and_majors[:signs] or (1, 1), signs_and_majors[signs:] or (0, 0)
    flipped = (0, *flipped)[-2:]
    code.require(inst, {*sign} <= {1, -1} and {*flipped} <= {0, 1})
    factors = tuple(
        WgmmaOperand(n, not flip, int(each))
        for n, each, flip in zip((_ROWS, columns), sign, flipped, strict=True)
    )

    def start() -> None:
        for slot in (*(source.slot for source in (*words, scale)), *own):
            machine.demand(inst, slot, "a descriptor, a scale or a row")
        read = [machine.full(values[x.slot]) for x in words]
        adds = machine.full(values[scale.slot])
        descriptors = np.stack(read).astype(np.uint64)
        machine.products.start(inst, slots, (kind, other), factors, descriptors, adds, index, own)

    return start
