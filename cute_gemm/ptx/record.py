"""What was executed: memory instructions by warp with the addresses of their lanes, and counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from cute_gemm.ptx.lanes import Lanes
from cute_gemm.ptx.memory import WARP
from cute_gemm.ptx.parser import Instruction

Array = np.ndarray[Any, Any]
#: Bytes of a sector.
SECTOR = 32


@dataclass(frozen=True)
class Accesses:
    """Memory instructions of warps, in the order in which they were executed.

    Attributes
    ----------
    instruction
        Index into the instructions of the kernel, (requests,).
    shared, store
        Whether it is to shared memory, and whether it is a store, (requests,); ``cp.async`` is two:
        a load of global memory and a store to shared memory.
    width
        Bytes that a lane names with its address, (requests,).
    cta, warp
        The CTA, x fastest, and the warp in it, (requests,).
    lanes
        Which of the 32 lanes take part, (requests, 32).
    addresses
        The byte that each lane names, (requests, 32): a global address, or one in shared memory,
        from 0. A lane that does not take part has -1.
    order
        Number of the execution for all CTAs of a batch at once, (requests,): what a copy reads has
        the number behind that of where it writes.
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
    """Notes accesses while a kernel is executed."""

    def __init__(self) -> None:
        self._found: list[tuple[tuple[int, bool, bool, int], int, Array, Array]] = []
        self._warps: Counter[tuple[int, int]] = Counter()
        self._requests: list[tuple[int, int, int, Array]] = []
        self._boxes: dict[tuple[str, bool], list[int]] = {}

    def access(self, what: tuple[int, bool, bool, int], machine: Lanes, addresses: Array) -> None:
        """Note the addresses of all lanes; those that execute take part.

        ``what``: the instruction, whether shared memory, whether a store, and the width.
        """
        shape = (machine.ctas, -1, WARP)
        lanes = _warps(machine.lanes(), machine, False).reshape(shape)
        whole = _warps(np.broadcast_to(addresses, machine.shape), machine, 0).reshape(shape)
        self._found.append((what, machine.first, lanes, whole.astype(np.int64)))

    def requests(self, instruction: int, cta: int, warp: int, addresses: Array) -> None:
        """Note reads of 16 bytes of shared memory, at these addresses, (requests, 32)."""
        self._requests.append((instruction, cta, warp, addresses))

    def box(self, name: str, store: bool, offsets: Array, rows: Array, size: int) -> None:
        """Note a box: of each element that the buffer has its offset, and its row in the box."""
        sectors = rows.astype(np.int64) << 48 | offsets // SECTOR
        counts = self._boxes.setdefault((name, store), [0, 0, 0])
        for index, more in enumerate((1, len(np.unique(sectors)), len(offsets) * size)):
            counts[index] += more

    def boxes(self) -> tuple[Boxes, ...]:
        """All boxes that were noted."""
        return tuple(Boxes(*what, *counts) for what, counts in self._boxes.items())

    def executed(self, begin: int, count: int, machine: Lanes) -> None:
        """Note that the warps of the lanes that execute took these instructions."""
        lanes = _warps(machine.lanes(), machine, False).reshape(machine.ctas, -1, WARP)
        self._warps[begin, count] += int(lanes.any(axis=2).sum())

    def counts(self, code: list[Instruction]) -> dict[str, int]:
        """Instructions of warps by opcode."""
        counter: Counter[str] = Counter()
        for (begin, count), warps in self._warps.items():
            for inst in code[begin : begin + count]:
                counter[".".join(inst.op)] += warps
        return dict(counter)

    def accesses(self) -> Accesses:
        """Return all accesses, one row for each warp with an active lane."""
        dtypes = (np.int32, bool, bool, np.int32, np.int32, np.int32)
        parts: list[list[Array]] = [[np.zeros(0, kind)] for kind in dtypes]
        parts += [[np.zeros((0, WARP), kind)] for kind in (bool, np.int64)]
        parts.append([np.zeros(0, np.int32)])
        for number, (what, first, lanes, addresses) in enumerate(self._found):
            ctas, warps = np.nonzero(lanes.any(axis=2))
            rows = lanes[ctas, warps]
            columns = (
                *(np.full(len(ctas), x, kind) for x, kind in zip(what, dtypes, strict=False)),
                (first + ctas).astype(np.int32),
                warps.astype(np.int32),
                rows,
                np.where(rows, addresses[ctas, warps], -1),
                np.full(len(ctas), number, np.int32),
            )
            for part, each in zip(parts, columns, strict=True):
                part.append(each)
        for number, (instruction, cta, warp, addresses) in enumerate(
            self._requests, len(self._found)
        ):
            row = (instruction, True, False, 16, cta, warp)
            for part, value, kind in zip(parts, row, dtypes, strict=False):
                part.append(np.full(len(addresses), value, kind))
            parts[6].append(np.ones(addresses.shape, bool))
            parts[7].append(addresses)
            parts[8].append(np.full(len(addresses), number, np.int32))
        return Accesses(*(np.concatenate(part) for part in parts))


def _warps(lanes: Array, machine: Lanes, fill: Any) -> Array:
    """Lanes of all CTAs, filled up to whole warps."""
    missing = -machine.threads % WARP
    return np.pad(lanes, ((0, 0), (0, missing)), constant_values=fill) if missing else lanes
