"""Accesses that a kernel executed, counted in the same way as the predicted ones.

The interpreter (`cute_gemm.ptx`) records each memory instruction of each warp with the addresses of
its lanes. This module counts requests, sectors and wavefronts by the model's rules of the hardware,
and compares instructions, active lanes and addresses with the rows of a report.

ptxas merges adjacent loads or stores of shared memory into wider ones. If the report has these and
the PTX does not, the bytes of both are compared. Bulk tensor copies (TMA) count as boxes and the
sectors of their rows in the matrix. A request of wgmma is 32 parts of 16 bytes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cute_gemm._text import named
from cute_gemm.access import gmem, smem
from cute_gemm.ptx.access import described
from cute_gemm.ptx.memory import GLOBAL

if TYPE_CHECKING:
    from cute_gemm.ptx.launch import Execution
    from cute_gemm.ptx.parser import Instruction
    from cute_gemm.ptx.record import Accesses
    from cute_gemm.rendering.rows import AccessRow

#: The compared figures in each space, by their names in the rows of a report.
FIGURES = {
    "global": ("requests", "lanes", "sectors"),
    "shared": ("requests", "lanes", "wavefronts", "counted_wavefronts"),
}
_FAR = np.int64(1) << 62


class Kind(NamedTuple):
    """A kind of access; ``operand`` is "" in shared memory, whose tiles are reused."""

    operand: str
    space: str
    direction: str
    instruction: str
    bits: int


@dataclass(frozen=True, slots=True)
class Compared:
    """One figure of a kind of access, predicted and executed."""

    kind: Kind
    figure: str
    predicted: int
    executed: int
    #: Whether a smaller figure is right too: a warp whose results are all 0 executes no atomic.
    at_most: bool = False

    @property
    def difference(self) -> int:
        """Executed minus predicted."""
        difference = self.executed - self.predicted
        return max(difference, 0) if self.at_most else difference

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, the fields of the kind, and the difference."""
        own = named(self, "figure", "predicted", "executed", "difference")
        return {**self.kind._asdict(), **own}


def compare(
    rows: Iterable[AccessRow], execution: Execution, at_most: Collection[str] = (),
    by_lanes: Collection[str] = (),
) -> tuple[Compared, ...]:  # fmt: skip
    """Compare the predictions of a report for a launch with its execution.

    ``at_most``: operands whose executed figures may be smaller. ``by_lanes``: operands for which
    only lanes are compared, since a load of a diverged warp is several requests.
    """
    old, new = (defaultdict(Counter, x) for x in (predicted(rows), executed(execution)))
    kinds = sorted(old.keys() | new.keys())
    compared: list[Compared] = []
    for family in dict.fromkeys(kind[:4] for kind in kinds):
        widths = [kind for kind in kinds if kind[:4] == family]
        figures = [
            Compared(kind, figure, old[kind][figure], new[kind][figure], kind.operand in at_most)
            for kind in widths
            for figure in FIGURES[kind.space]
            # Only copies have another figure in counters; a box has no lanes.
            if (figure != "counted_wavefronts" or kind.instruction == "cp.async")
            and (figure != "lanes" or kind.bits)
            and (figure == "lanes" or kind.operand not in by_lanes)
        ]
        merged = any(x.figure == "requests" and x.difference for x in figures)
        if merged and len(widths) > 1 and family[1] == "shared":
            moved = [sum(x[kind]["lanes"] * kind.bits // 8 for kind in widths) for x in (old, new)]
            figures = [Compared(Kind(*family, 0), "bytes", moved[0], moved[1])]
        compared += figures
    return tuple(compared)


def predicted(rows: Iterable[AccessRow]) -> dict[Kind, Counter[str]]:
    """Sum the predictions of a report by kind of access, without those that never execute."""
    counts: dict[Kind, Counter[str]] = {}
    for row in rows:
        if row.launch.requests:
            operand = row.operand if row.space == "global" else ""
            kind = Kind(operand, row.space, row.direction, row.instruction, row.bits)
            counts.setdefault(kind, Counter()).update(named(row.launch, *FIGURES[row.space]))
    return counts


def executed(execution: Execution) -> dict[Kind, Counter[str]]:
    """Count the executed accesses by kind."""
    counts: dict[Kind, Counter[str]] = {}
    accesses = execution.accesses
    assert accesses is not None
    for index in np.unique(accesses.instruction).tolist():
        chosen = accesses.of(accesses.instruction == index)
        for kind, figures in _counted(execution, execution.kernel.instructions[index], chosen):
            counts.setdefault(kind, Counter()).update(figures)
    for box in execution.boxes or ():
        kind = Kind(box.buffer, "global", "store" if box.store else "load", "TMA", 0)
        counts[kind] = Counter(requests=box.requests, sectors=box.sectors)
    return counts


def _counted(
    execution: Execution, instruction: Instruction, accesses: Accesses
) -> Iterator[tuple[Kind, dict[str, int]]]:
    """Return the figures of one instruction by operand."""
    name, direction, bits = described(instruction)
    is_global = ~accesses.shared
    shared, far = accesses.addresses[~is_global], accesses.addresses[is_global]
    if name == "cp.async":
        direction, far = "store", _sources(accesses, is_global)
    if len(shared):
        kind = Kind("", "shared", direction, name.format("shared"), bits)
        yield kind, _shared(kind.instruction, bits, shared, far)
    for operand, chosen in _operands(execution, far):
        kind = Kind(operand, "global", "load", name, bits)
        if name != "cp.async":
            kind = kind._replace(direction=direction, instruction=name.format("global"))
        targets = shared[chosen] if gmem.bypasses_l1(name, bits) else None
        yield kind, _global(far[chosen], targets)


def _sources(accesses: Accesses, is_global: np.ndarray) -> np.ndarray:
    """Return the source addresses of each copy request, [requests, 32]; -1 for a lane of zeros.

    The target of a copy is recorded first, then its source for the lanes that read.
    """
    moments = np.stack((accesses.order - is_global, accesses.cta, accesses.warp), axis=1).tolist()
    keys = [tuple(moment) for moment in moments]
    at = {keys[row]: number for number, row in enumerate(np.flatnonzero(~is_global).tolist())}
    sources = np.full((len(at), smem.LANES), -1, np.int64)
    rows = [at[keys[row]] for row in np.flatnonzero(is_global).tolist()]
    sources[rows] = accesses.addresses[is_global]
    return sources


def _operands(execution: Execution, lanes: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the buffers that requests touch, each with the mask of its requests."""
    first = np.where(lanes < 0, _FAR, lanes).min(axis=1, initial=_FAR) - GLOBAL
    for region in execution.regions:
        chosen = (first >= region.begin) & (first < region.end)
        if chosen.any():
            yield region.name, chosen


def distinct(rows: np.ndarray) -> int:
    """Return the number of distinct values of each row, added over rows; -1 does not count."""
    ordered = np.sort(rows, axis=-1)
    fresh = np.ones(ordered.shape, bool)
    fresh[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    return int((fresh & (ordered >= 0)).sum())


def _global(lanes: np.ndarray, targets: np.ndarray | None) -> dict[str, int]:
    """Count requests to global memory; ``targets`` are those of copies that bypass L1."""
    active = lanes >= 0
    places = lanes // gmem.SECTOR
    if targets is not None:
        places = lanes // gmem.LINE * (1 << 20) + targets // gmem.SECTOR
    sectors = distinct(np.where(active, places, -1))
    return {"requests": len(lanes), "lanes": int(active.sum()), "sectors": sectors}


def _shared(instruction: str, bits: int, lanes: np.ndarray, sources: np.ndarray) -> dict[str, int]:
    """Count requests to shared memory; ``sources`` are the source addresses of copies."""
    if number := smem.matrices(instruction):
        lanes = np.where(np.arange(smem.LANES) < number * smem.MATRIX_ROWS, lanes, -1)
    waves = int(smem.phase_wavefronts(smem.phase_words(instruction, bits, lanes))[0].sum())
    counted = waves
    if instruction == "cp.async":
        begin = np.where(sources < 0, -1, sources - GLOBAL)
        past = gmem.bypasses_l1(instruction, bits)
        counted = 0 if past else int(smem.copy_wavefronts(bits, lanes, begin).sum())
    return {
        "requests": len(lanes), "lanes": int((lanes >= 0).sum()), "wavefronts": waves,
        "counted_wavefronts": counted,
    }  # fmt: skip
