"""What was executed: memory instructions by warp with the addresses of their lanes, and counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from cute_gemm.ptx.parser import Instruction

if TYPE_CHECKING:
    from cute_gemm.ptx.machine import Machine

Array = np.ndarray[Any, Any]
WARP = 32


@dataclass(frozen=True)
class Accesses:
    """Memory instructions of warps, in the order in which they were executed.

    Attributes
    ----------
    instruction
        Index into the instructions of the kernel, (requests,).
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
    cta: Array
    warp: Array
    lanes: Array
    addresses: Array
    order: Array

    def __len__(self) -> int:
        return len(self.instruction)

    def of(self, index: int) -> Accesses:
        """Those of one instruction."""
        chosen = self.instruction == index
        return Accesses(*(getattr(self, name)[chosen] for name in self.__dataclass_fields__))


class Recorder:
    """Notes accesses while a kernel is executed."""

    def __init__(self) -> None:
        self._found: list[tuple[int, int, Array, Array]] = []
        self._warps: Counter[tuple[int, int]] = Counter()

    def access(self, index: int, machine: Machine, addresses: Array) -> None:
        """Note the addresses of all lanes; those that execute take part."""
        shape = (machine.ctas, -1, WARP)
        lanes = _warps(machine.lanes(), machine, False).reshape(shape)
        whole = _warps(np.broadcast_to(addresses, machine.shape), machine, 0).reshape(shape)
        self._found.append((index, machine.first, lanes, whole.astype(np.int64)))

    def executed(self, begin: int, count: int, machine: Machine) -> None:
        """Note that the warps of the lanes that execute took these instructions."""
        lanes = _warps(machine.lanes(), machine, False).reshape(machine.ctas, -1, WARP)
        self._warps[begin, count] += int(lanes.any(axis=2).sum())

    def counts(self, code: list[Instruction]) -> dict[str, int]:
        """Instructions of warps by opcode."""
        found: Counter[str] = Counter()
        for (begin, count), warps in self._warps.items():
            for one in code[begin : begin + count]:
                found[".".join(one.op)] += warps
        return dict(found)

    def accesses(self) -> Accesses:
        """All that was noted, a row for each warp with a lane that took part."""
        parts: list[list[Array]] = [[], [], [], [], [], []]
        for number, (index, first, lanes, addresses) in enumerate(self._found):
            ctas, warps = np.nonzero(lanes.any(axis=2))
            rows = lanes[ctas, warps]
            one = (
                np.full(len(ctas), index, np.int32),
                (first + ctas).astype(np.int32),
                warps.astype(np.int32),
                rows,
                np.where(rows, addresses[ctas, warps], -1),
                np.full(len(ctas), number, np.int32),
            )
            for part, each in zip(parts, one, strict=True):
                part.append(each)
        empty = np.zeros(0, np.int32), np.zeros((0, WARP), np.int64)
        kinds = (empty[0], empty[0], empty[0], empty[1].astype(bool), empty[1], empty[0])
        return Accesses(
            *(np.concatenate([kind, *part]) for kind, part in zip(kinds, parts, strict=True))
        )


def _warps(lanes: Array, machine: Machine, fill: Any) -> Array:
    """Lanes of all CTAs, filled up to whole warps."""
    missing = -machine.threads % WARP
    return np.pad(lanes, ((0, 0), (0, missing)), constant_values=fill) if missing else lanes
