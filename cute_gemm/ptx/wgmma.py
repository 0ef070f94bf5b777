"""Products of warp groups: PTX ISA, 9.7.15 (``wgmma``).

Of 16-bit floats and tf32, added up in float32, and of 8-bit integers, in int32.

Operands lie in shared memory as their descriptors say (9.7.15.5.1). One is made of parts of 16
bytes of the unit-stride mode, two along k; ``s`` parts lie side by side in a span of 16 s bytes, 1
without a swizzle, 2, 4 or 8 with one. K-major, part j of row i is at

    (i % 8) 16 s + (i / 8) SBO + j (16 with a swizzle, LBO without),

and MN-major, of 16-bit elements alone, part j along the rows, of column i of k, at

    (j % s) 16 + (j / s) LBO + (i % 8) 16 s + (i / 8) SBO     with a swizzle,
    j SBO + (i % 8) 16 + (i / 8) LBO                          without,

from the start on; the swizzle is that of the address (`cute_gemm.ptx.bulk.swizzled`).

A may be in registers: of a thread four words, of 32 bytes of k words t and t + 4 of rows g and
g + 8 of its warp's 16, g = lane / 4, t = lane % 4, rows first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cute_gemm.errors import FaultError
from cute_gemm.ptx.bulk import swizzled, wrong
from cute_gemm.ptx.cluster import machine_of
from cute_gemm.ptx.code import Code, opcode
from cute_gemm.ptx.machine import Step
from cute_gemm.ptx.parser import Immediate, Instruction, Register, Vector
from cute_gemm.ptx.undefined import demand
from cute_gemm.ptx.warps import FACTORS, SUMS, rounded

if TYPE_CHECKING:
    from cute_gemm.ptx.cluster import ClusterMachine

Array = np.ndarray[Any, Any]

#: Threads of a warp group, its warps, and the rows of an instruction.
_GROUP, _WARPS, _ROWS = 128, 4, 64
#: Bytes of k of an instruction, those of a part, and k of 16-bit elements.
_BYTES, _PART, _DEEP = 32, 16, 16
#: Bytes of the span by the descriptor's layout type.
_SPANS = (0, 128, 64, 32)


class Operand(NamedTuple):
    """A or B of an instruction: its rows, whether k is the unit-stride mode, and its sign."""

    rows: int
    major_k: bool
    sign: int


def parts(operand: Operand, descriptor: int) -> Array:
    """Addresses in shared memory of the operand's parts of 16 bytes, the rows of each in turn.

    K-major (parts along k, rows), MN-major (parts along the rows, k).
    """
    start, lead, step = (16 * (descriptor >> at & 0x3FFF) for at in (0, 16, 32))
    span = _SPANS[descriptor >> 62 & 3]
    return swizzled(start + _steps(operand, lead, step, span), span)


@lru_cache(maxsize=64)
def _steps(operand: Operand, lead: int, step: int, span: int) -> Array:
    """From the start of an operand to its parts, without the swizzle."""
    side = max(span // 16, 1)
    if operand.major_k:
        j, i = np.ogrid[: _BYTES // _PART, : operand.rows]
        at = i % 8 * 16 * side + i // 8 * step + j * (16 if span else lead)
    else:
        j, i = np.ogrid[: operand.rows // 8, :_DEEP]
        at = i % 8 * 16 * side
        if span:
            at = at + j % side * 16 + j // side * lead + i // 8 * step
        else:
            at = at + j * step + i // 8 * lead
    return np.asarray(at)


@dataclass(eq=False)
class _Product:
    """One instruction of one warp group."""

    one: Instruction
    cta: int
    group: int
    slots: tuple[int, ...]
    kind: str
    #: What lies in shared memory with its parts' places in the bytes of all CTAs: A and B, or B.
    operands: tuple[tuple[Operand, Array], ...]
    #: A, (rows, k), if it is in registers.
    known: tuple[Array, ...]
    #: The registers that nobody may touch.
    held: frozenset[int]
    #: Whether what was there is added to.
    adds: bool
    index: int
    serial: int
    #: The group of instructions that it belongs to.
    batch: int = 0
    granules: Array = field(default_factory=lambda: np.zeros(0, np.int64))


class Products:
    """The products of a batch that nobody has waited for."""

    def __init__(self, machine: ClusterMachine) -> None:
        self.machine = machine
        groups = machine.ctas, max(1, machine.threads // _GROUP)
        self._flying: dict[tuple[int, int], list[_Product]] = {}
        self._committed = np.zeros(groups, np.int64)
        #: Where registers have been touched since the last fence.
        self._touched = np.ones(groups, bool)
        self._serial = 0

    # ---- who executes --------------------------------------------------------------------------

    def groups(self, one: Instruction) -> list[tuple[int, int]]:
        """The warp groups that execute, (CTA, group); a fault where one does not as a whole."""
        machine = self.machine
        if machine.threads % _GROUP:
            machine.fault(one, "divergent", "the CTA is not of whole warp groups", machine.lanes())
        lanes = machine.lanes()
        each = lanes.reshape(machine.ctas, -1, _GROUP)
        some = np.asarray(each.any(axis=2))
        missing = ~each & some[:, :, None]
        if missing.any():
            what = "divergent: this thread of the warp group does not execute it, and all must"
            machine.fault(one, "divergent", what, missing.reshape(machine.shape))
        return [(int(cta), int(group)) for cta, group in np.argwhere(some)]

    def _rows(self, cta: int, group: int) -> Array:
        return cta * self.machine.shared.clocks.warps + group * _WARPS + np.arange(_WARPS)

    def _fault(self, product: _Product, kind: str, what: str) -> FaultError:
        one, machine = product.one, self.machine
        who = f"CTA {machine.name(product.cta)}, warp group {product.group}"
        return FaultError(f"line {one.line}: {one.text[:60]}..: {who}: {what}", kind, one.line)

    def touch(self, one: Instruction, slots: frozenset[int]) -> None:
        """See that lanes that execute touch no registers of products that are under way."""
        machine = self.machine
        lanes = machine.lanes()
        for (cta, group), flying in self._flying.items():
            mine = lanes[cta, group * _GROUP : (group + 1) * _GROUP]
            for product in flying if mine.any() else ():
                if slots & product.held:
                    bad = np.zeros(machine.shape, bool)
                    bad[cta, group * _GROUP : (group + 1) * _GROUP] = mine
                    what = f"in flight: the wgmma of line {product.one.line} has these registers, "
                    machine.fault(one, "in flight", f"{what}and is not waited for", bad)
        if machine.threads % _GROUP == 0:
            self._touched |= lanes.reshape(machine.ctas, -1, _GROUP).any(axis=2)

    # ---- what is done --------------------------------------------------------------------------

    def fence(self, one: Instruction) -> None:
        """``wgmma.fence``."""
        for place in self.groups(one):
            self._touched[place] = False

    def start(
        self, one: Instruction, slots: tuple[int, ...], kind: str, operands: tuple[Operand, ...],
        descriptors: Array, adds: Array, index: int, own: tuple[int, ...],
    ) -> None:  # fmt: skip
        """Begin the products of the groups that execute; descriptors (operands, CTAs, threads).

        ``own``: the registers that A is in, of which the operands have the sign alone; or none.
        """
        shared, held = self.machine.shared, frozenset((*slots, *own))
        for cta, group in self.groups(one):
            mine = slice(group * _GROUP, (group + 1) * _GROUP)
            words, scale = descriptors[:, cta, mine], adds[cta, mine]
            self._serial += 1
            known = (operands[0].sign * self._rows_in(own, kind, cta, group),) if own else ()
            made = _Product(
                one, cta, group, slots, kind, (), known, held, bool(scale[0]), index, self._serial
            )
            if (words != words[:, :1]).any() or (scale != scale[0]).any():
                raise self._fault(made, "divergent", "its threads give different operands")
            if self._touched[cta, group]:
                what = "no wgmma.fence since its registers were used otherwise"
                raise self._fault(made, "fence", what)
            found = []
            for operand, word in zip(operands[len(known) :], words[:, 0].tolist(), strict=True):
                if word >> 49 & 7:
                    raise self._fault(made, "misaligned", "a base offset is not executed here")
                at = parts(operand, word)
                if at.min() < 0 or at.max() > shared.bytes - 16:
                    what = f"out of bounds: the CTA has {shared.bytes} bytes of shared memory"
                    raise self._fault(made, "out of bounds", what)
                found.append((operand, at + cta * shared.pitch))
            made.operands = tuple(found)
            if shared.watched:
                self._watch(made)
            self._note(made)
            made.batch = int(self._committed[cta, group])
            self._flying.setdefault((cta, group), []).append(made)

    def _rows_in(self, own: tuple[int, ...], kind: str, cta: int, group: int) -> Array:
        """A, (rows, k), from the registers of a group's threads."""
        machine, mine = self.machine, slice(group * _GROUP, (group + 1) * _GROUP)
        thread = np.arange(_GROUP)
        row, word = thread // 32 * 16 + thread % 32 // 4, thread % 4
        words = np.empty((_ROWS, _BYTES // 4), np.uint32)
        for i, slot in enumerate(own):
            values = np.broadcast_to(machine.values[slot], machine.shape)[cta, mine]
            words[row + i % 2 * 8, word + i // 2 * 4] = np.ascontiguousarray(values).view(np.uint32)
        return np.asarray(FACTORS[kind].numbers(words)).reshape(_ROWS, -1)

    def _watch(self, made: _Product) -> None:
        """Note what is read from now on."""
        shared = self.machine.shared
        bytes_ = np.concatenate([at.reshape(-1) for _, at in made.operands])
        if (shared.undefined.view(np.uint64).take(bytes_[:, None] // 8 + np.arange(2)) != 0).any():
            raise self._fault(made, "uninitialised", wrong("uninitialised"))
        each = max(1, 16 // shared.granule)
        made.granules = (bytes_[:, None] // shared.granule + np.arange(each)).reshape(-1)
        rows = self._rows(made.cta, made.group)
        if kind := shared.begin_read(made.granules, rows, made.serial):
            raise self._fault(made, kind, wrong(kind))

    def _note(self, made: _Product) -> None:
        recorder = self.machine.recorder
        if recorder is None:
            return
        cta, warp = made.cta, made.group * _WARPS
        for _, at in made.operands:
            lanes = at.reshape(-1, 32) - cta * self.machine.shared.pitch
            recorder.requests(made.index, self.machine.first + cta, warp, lanes)

    def commit(self, one: Instruction) -> None:
        """``wgmma.commit_group``."""
        for place in self.groups(one):
            self._committed[place] += 1

    def wait(self, one: Instruction, left: int) -> None:
        """``wgmma.wait_group``: all but the last groups are read, multiplied and added up."""
        done: dict[tuple[int, ...], list[_Product]] = {}
        for place in self.groups(one):
            flying = self._flying.pop(place, [])
            end = self._committed[place] - left
            kept = [product for product in flying if product.batch >= end]
            for product in flying:
                if product.batch < end:
                    done.setdefault(product.slots, []).append(product)
            if kept:
                self._flying[place] = kept
        for slots, products in done.items():
            self._add(slots, products)

    def _add(self, slots: tuple[int, ...], products: list[_Product]) -> None:
        """Products in order, added to the registers of their groups.

        Thread t of the group has rows 16 (t / 32) + t % 32 / 4 and 8 below, of each 8 columns
        2 (t % 4) and the next; value i is of block i / 4 of columns, below where i / 2 is odd
        (9.7.15.5.1.1). Of an instruction the products, exact in float64, are added up there by
        NumPy's matmul, in its order, and to what was there; that is rounded once to float32, or
        wrapped to int32.
        """
        machine = self.machine
        places = sorted({(product.cta, product.group) for product in products})
        ctas, groups = (np.array(x) for x in zip(*places, strict=True))
        whole = [
            np.broadcast_to(machine.values[slot], machine.shape).reshape(machine.ctas, -1, _GROUP)
            for slot in slots
        ]
        held = np.stack([each[ctas, groups] for each in whole], axis=-1)
        thread, i = np.ogrid[:_GROUP, : len(slots)]
        row = thread // 32 * 16 + thread % 32 // 4 + i // 2 % 2 * 8
        column = i // 4 * 8 + thread % 4 * 2 + i % 2
        sums = np.empty((len(places), _ROWS, len(slots) * 2), held.dtype)
        sums[:, row, column] = held
        number = {place: index for index, place in enumerate(places)}
        fresh = np.zeros(len(places), bool)
        for product in products:
            at = number[product.cta, product.group]
            factors = list(product.known)
            factors += [self._numbers(product.kind, *each) for each in product.operands]
            found = factors[0] @ factors[1].T
            if product.adds:
                found += sums[at]
            else:
                fresh[at] = True
            sums[at] = rounded(found, product.kind)
            if machine.shared.watched:
                rows = self._rows(product.cta, product.group)
                machine.shared.end_read(product.granules, rows, product.serial)
        held = sums[:, row, column]
        for index, (slot, old) in enumerate(zip(slots, whole, strict=True)):
            new = old.copy()
            new[ctas, groups] = held[..., index]
            machine.values[slot] = new.reshape(machine.shape)
            lost = machine.undefined[slot]
            if lost is not None:
                kept = np.broadcast_to(lost, machine.shape).copy()
                kept.reshape(machine.ctas, -1, _GROUP)[ctas[fresh], groups[fresh]] = 0
                machine.undefined[slot] = kept if kept.any() else None

    def _numbers(self, kind: str, operand: Operand, at: Array) -> Array:
        """The elements of an operand, (rows, k)."""
        bits = self.machine.shared.view(np.uint64).take(at[..., None] // 8 + np.arange(2))
        numbers = FACTORS[kind].numbers(bits.view(np.uint32)).reshape(*at.shape, -1)
        # (parts, rows, elements) or (parts, k, elements)
        order = (1, 0, 2) if operand.major_k else (0, 2, 1)
        found = numbers.transpose(order).reshape(operand.rows, -1)
        return np.asarray(operand.sign * found)


# ---- instructions --------------------------------------------------------------------------------

#: Of A's and B's type: k of an instruction, and how many signs and majors it is told.
_SAID = {"f16": (16, 2, 2), "bf16": (16, 2, 2), "tf32": (8, 2, 0), "s8": (32, 0, 0)}


@opcode("wgmma")
def _group(code: Code, one: Instruction) -> Step:
    """``wgmma.fence``, ``commit_group``, ``wait_group``."""
    machine = machine_of(code)
    if one.op == ("wgmma", "fence", "sync", "aligned"):
        return lambda: machine.products.fence(one)
    if one.op == ("wgmma", "commit_group", "sync", "aligned"):
        return lambda: machine.products.commit(one)
    left = one.operands[0] if one.operands else None
    if one.op == ("wgmma", "wait_group", "sync", "aligned") and isinstance(left, Immediate):
        count = int(left.value)
        return lambda: machine.products.wait(one, count)
    raise code.refuse(one)


@opcode("wgmma.mma_async")
def _mma(code: Code, one: Instruction) -> Step:
    """``wgmma.mma_async.sync.aligned.SHAPE.D.T.T``, with A in shared memory or in registers."""
    machine, values = machine_of(code), code.values
    op, operands = one.op, one.operands
    shape = op[4] if len(op) == 8 else ""
    kind, index = op[-1], code.index
    deep, signs, flips = _SAID.get(kind, (0, 0, 0))
    fits = op[2:4] == ("sync", "aligned") and op[5:] == (SUMS.get(kind), kind, kind)
    found = re.fullmatch(f"m64n([0-9]+)k{deep}", shape)
    rows = code.parts(operands[1]) if isinstance(operands[1], Vector) else ()
    flips -= bool(rows and flips)  # which are of what lies in shared memory
    if not fits or not found or len(operands) != 4 + signs + flips:
        raise code.refuse(one, f"only of {', '.join(_SAID)}")
    columns, sums = int(found[1]), SUMS[kind]
    targets = code.parts(operands[0])
    slots = tuple(code.register(one, each, sums).slot for each in targets)
    typed = all(isinstance(each, Register) and (each.type == "f32") == (sums == "f32")
                for each in targets)  # fmt: skip
    if len(slots) != columns // 2 or not typed or columns % 8 or not 8 <= columns <= 256:
        raise code.refuse(one, f"it takes {columns // 2} registers of {sums}")
    own = tuple(code.register(one, each, "b32").slot for each in rows)
    if own and len(own) != 4:
        raise code.refuse(one, "A takes 4 registers")
    words = [code.source(one, each, "u64") for each in operands[1 + bool(own) : 3]]
    scale = code.source(one, operands[3], "pred")
    said = [each.value for each in operands[4:] if isinstance(each, Immediate)]
    if len(said) != signs + flips:
        raise code.refuse(one)
    sign, flipped = said[:signs] or (1, 1), said[signs:] or (0, 0)
    flipped = (0, *flipped)[-2:]
    if not {*sign} <= {1, -1} or not {*flipped} <= {0, 1}:
        raise code.refuse(one)
    factors = tuple(
        Operand(n, not flip, int(each))
        for n, each, flip in zip((_ROWS, columns), sign, flipped, strict=True)
    )

    def start() -> None:
        for slot in (*(source.slot for source in (*words, scale)), *own):
            demand(machine, one, slot, "a descriptor, a scale or a row")
        given = [np.broadcast_to(values[x.slot], machine.shape) for x in words]
        adds = np.broadcast_to(values[scale.slot], machine.shape)
        descriptors = np.stack(given).astype(np.uint64)
        machine.products.start(one, slots, kind, factors, descriptors, adds, index, own)

    return start
