"""Executed memory instructions by warp with the addresses of their lanes, and counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from cute_gemm.ptx.lanes import Lanes
from cute_gemm.ptx.memory import WARP, Array
from cute_gemm.ptx.parser import Instruction

#: Bytes of a sector.
SECTOR = 32


@dataclass(frozen=True)
class Accesses:
    """Memory instructions of warps, in order of execution.

    Attributes
    ----------
    instruction
        Index into the instructions of the kernel, (requests,).
    shared, store
        Whether it accesses shared memory, and whether it is a store, (requests,); ``cp.async`` has
        two: a load of global memory and a store to shared memory.
    width
        Bytes at the address of a lane, (requests,).
    cta, warp
        The CTA, x fastest, and the warp in it, (requests,).
    lanes
        Which of the 32 lanes are active, (requests, 32).
    addresses
        The byte address of each lane, (requests, 32): a global address, or one in shared memory,
        from 0. An inactive lane has -1.
    order
        Number of the execution for all CTAs of a batch, (requests,): the read of a copy has the
        number after that of its write.
    """

    instruction: Array
    shared: Array
    store: Array
    width: Array
    cta: Array
    warp: Array
    lanes: Array
    addresses: Array
    order: Array

    def __len__(self) -> int:
        return len(self.instruction)

    def of(self, chosen: Array) -> Accesses:
        """Return the requests that a mask (requests,) selects."""
        return Accesses(*(getattr(self, name)[chosen] for name in self.__dataclass_fields__))


class Boxes(NamedTuple):
    """Bulk tensor copies of a buffer, the sectors of their rows that it has, and bytes."""

    buffer: str
    store: bool
    requests: int
    sectors: int
    bytes: int


class Recorder:
    """A recorder of accesses while a kernel is executed."""

    def __init__(self) -> None:
        #: Instruction, CTAs, warps, lanes and addresses of requests; those of wgmma separately.
        self._accesses: list[tuple[tuple[int, bool, bool, int], Any, Any, Array, Array]] = []
        self._products: list[tuple[tuple[int, bool, bool, int], Any, Any, Array, Array]] = []
        self._warps: Counter[tuple[int, int]] = Counter()
        self._boxes: dict[tuple[str, bool], list[int]] = {}

    def access(self, what: tuple[int, bool, bool, int], machine: Lanes, addresses: Array) -> None:
        """Note the addresses of all lanes; executing lanes are active.

        ``what``: the instruction, whether shared memory, whether a store, and the width.
        """
        lanes = _warps(machine.lanes(), machine)
        ctas, warps = np.nonzero(lanes.any(axis=2))
        lanes = lanes[ctas, warps]
        named = _warps(machine.full(addresses), machine)[ctas, warps]
        places = np.where(lanes, named, -1)
        self._accesses.append((what, machine.first + ctas, warps, lanes, places))

    def requests(self, instruction: int, cta: int, warp: int, addresses: Array) -> None:
        """Note reads of 16 bytes of shared memory at these addresses, (requests, 32)."""
        what = (instruction, True, False, 16)
        self._products.append((what, cta, warp, np.ones(addresses.shape, bool), addresses))

    def box(self, name: str, store: bool, offsets: Array, rows: Array, size: int) -> None:
        """Note a box: for each element in the buffer, its offset and its row in the box."""
        sectors = rows.astype(np.int64) << 48 | offsets // SECTOR
        counts = self._boxes.setdefault((name, store), [0, 0, 0])
        for index, more in enumerate((1, len(np.unique(sectors)), len(offsets) * size)):
            counts[index] += more

    def boxes(self) -> tuple[Boxes, ...]:
        """Return all boxes."""
        return tuple(Boxes(*what, *counts) for what, counts in self._boxes.items())

    def executed(self, begin: int, count: int, machine: Lanes) -> None:
        """Note that the warps of the executing lanes executed these instructions."""
        self._warps[begin, count] += int(_warps(machine.lanes(), machine).any(axis=2).sum())

    def counts(self, code: list[Instruction]) -> dict[str, int]:
        """Return instructions of warps by opcode."""
        counter: Counter[str] = Counter()
        for (begin, count), warps in self._warps.items():
            for inst in code[begin : begin + count]:
                counter[".".join(inst.op)] += warps
        return dict(counter)

    def accesses(self) -> Accesses:
        """Return all accesses, one row for each warp with an active lane."""
        kinds = (np.int32, bool, bool, np.int32, np.int32, np.int32, bool, np.int64, np.int32)
        parts: list[list[Array]] = [
            [np.zeros((0, WARP) if place in (6, 7) else 0, kind)]
            for place, kind in enumerate(kinds)
        ]
        for number, (what, ctas, warps, lanes, addresses) in enumerate(
            (*self._accesses, *self._products)
        ):
            columns = (*what, ctas, warps, lanes, addresses, number)
            for part, values, kind in zip(parts, columns, kinds, strict=True):
                shape = np.shape(values) or len(lanes)
                part.append(np.full(shape, values, kind))
        return Accesses(*map(np.concatenate, parts))


def _warps(values: Array, machine: Lanes) -> Array:
    """Return values of all lanes, padded to whole warps: (CTAs, warps, 32)."""
    missing = -machine.threads % WARP
    whole = np.pad(values, ((0, 0), (0, missing))) if missing else values
    return whole.reshape(machine.ctas, -1, WARP)
