"""What a kernel's instructions did, counted as the report counts what it predicts.

The interpreter notes each memory instruction of each warp with the addresses of its lanes
(`cute_gemm.ptx`). Here they become requests, sectors and wavefronts by the model's rules of the
hardware, and stand beside the rows of a report: what is compared are the instructions, which lanes
take part in them, and where they go.

Of neighbouring loads or stores of shared memory in PTX ptxas makes wider ones. Where the report has
such and the PTX has not, the bytes of both are compared. Of bulk tensor copies (TMA) these are the
boxes and the sectors of their rows in the matrix; of wgmma, 32 parts of 16 bytes a request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cute_gemm.model import gmem, smem
from cute_gemm.ptx.access import described
from cute_gemm.ptx.memory import GLOBAL

if TYPE_CHECKING:
    from cute_gemm.analysis.rows import AccessRow
    from cute_gemm.ptx.launch import Execution
    from cute_gemm.ptx.parser import Instruction
    from cute_gemm.ptx.record import Accesses

#: The figures of each space that are compared, as rows of a report call them.
FIGURES = {
    "global": ("requests", "lanes", "sectors"),
    "shared": ("requests", "lanes", "wavefronts", "counted_wavefronts"),
}
_FAR = np.int64(1) << 62


class Kind(NamedTuple):
    """A kind of access; ``operand`` is "" in shared memory, where tiles take turns."""

    operand: str
    space: str
    direction: str
    instruction: str
    bits: int


@dataclass(frozen=True, slots=True)
class Compared:
    """One figure of a kind of access in units, by the report and as executed."""

    kind: Kind
    figure: str
    predicted: int
    executed: int

    @property
    def difference(self) -> int:
        """Executed less predicted."""
        return self.executed - self.predicted

    def to_dict(self) -> dict[str, Any]:
        """Return its fields, those of its kind and the difference."""
        own = {name: getattr(self, name) for name in ("figure", "predicted", "executed")}
        return {**self.kind._asdict(), **own, "difference": self.difference}


def compare(rows: Iterable[AccessRow], execution: Execution) -> tuple[Compared, ...]:
    """Put what a report says of a launch and what was executed side by side."""
    said, done = predicted(rows), executed(execution)
    kinds = sorted(said.keys() | done.keys())
    found: list[Compared] = []
    for family in dict.fromkeys(kind[:4] for kind in kinds):
        widths = [kind for kind in kinds if kind[:4] == family]
        figures = [
            Compared(kind, figure, *(each.get(kind, Counter())[figure] for each in (said, done)))
            for kind in widths
            for figure in FIGURES[kind.space]
            # What counters show is something else of copies only; a box has no lanes.
            if (figure != "counted_wavefronts" or kind.instruction == "cp.async")
            and (figure != "lanes" or kind.bits)
        ]
        split = any(one.figure == "requests" and one.difference for one in figures)
        if split and len(widths) > 1 and family[1] == "shared":
            both = (
                sum(each[kind]["lanes"] * kind.bits // 8 for kind in widths if kind in each)
                for each in (said, done)
            )
            figures = [Compared(Kind(*family, 0), "bytes", *both)]
        found += figures
    return tuple(found)


def predicted(rows: Iterable[AccessRow]) -> dict[Kind, Counter[str]]:
    """Sum what a report says of a launch, by kind of access; what is never executed is left out."""
    found: dict[Kind, Counter[str]] = {}
    for row in rows:
        if row.launch.requests:
            operand = row.operand if row.space == "global" else ""
            kind = Kind(operand, row.space, row.direction, row.instruction, row.bits)
            figures = {name: getattr(row.launch, name) for name in FIGURES[row.space]}
            found.setdefault(kind, Counter()).update(figures)
    return found


def executed(execution: Execution) -> dict[Kind, Counter[str]]:
    """Count what was executed, by kind of access."""
    found: dict[Kind, Counter[str]] = {}
    accesses = execution.accesses
    assert accesses is not None
    for index in np.unique(accesses.instruction).tolist():
        mine = accesses.of(accesses.instruction == index)
        for kind, figures in _counted(execution, execution.kernel.instructions[index], mine):
            found.setdefault(kind, Counter()).update(figures)
    for box in execution.boxes or ():
        kind = Kind(box.buffer, "global", "store" if box.store else "load", "TMA", 0)
        found[kind] = Counter(requests=box.requests, sectors=box.sectors)
    return found


def _counted(
    execution: Execution, one: Instruction, mine: Accesses
) -> Iterator[tuple[Kind, dict[str, int]]]:
    """The figures of one instruction, by what it accessed."""
    name, direction, bits = described(one)
    far = ~mine.shared
    shared, there = mine.addresses[~far], mine.addresses[far]
    if name == "cp.async":
        direction, there = "store", _sources(mine, far)
    if len(shared):
        kind = Kind("", "shared", direction, name.format("shared"), bits)
        yield kind, _shared(kind.instruction, bits, shared, there)
    for operand, chosen in _operands(execution, there):
        kind = Kind(operand, "global", "load", name, bits)
        if name != "cp.async":
            kind = kind._replace(direction=direction, instruction=name.format("global"))
        targets = shared[chosen] if gmem.bypasses_l1(name, bits) else None
        yield kind, _global(there[chosen], targets)


def _sources(mine: Accesses, far: np.ndarray) -> np.ndarray:
    """Where the copies of each request come from, [requests, 32]; -1 of a lane that writes zeros.

    A copy's target is noted first and its source, of lanes that read anything, right behind it.
    """
    places = np.stack((mine.order + far * -1, mine.cta, mine.warp), axis=1).tolist()
    whose = [tuple(place) for place in places]
    at = {whose[row]: number for number, row in enumerate(np.flatnonzero(~far).tolist())}
    found = np.full((len(at), smem.LANES), -1, np.int64)
    found[[at[whose[row]] for row in np.flatnonzero(far).tolist()]] = mine.addresses[far]
    return found


def _operands(execution: Execution, lanes: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """The buffers that requests touch, and which requests."""
    first = np.where(lanes < 0, _FAR, lanes).min(axis=1, initial=_FAR) - GLOBAL
    for region in execution.regions:
        chosen = (first >= region.begin) & (first < region.end)
        if chosen.any():
            yield region.name, chosen


def distinct(rows: np.ndarray) -> int:
    """Return how many distinct values each row has, -1 not counted, summed."""
    ordered = np.sort(rows, axis=-1)
    fresh = np.ones(ordered.shape, bool)
    fresh[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    return int((fresh & (ordered >= 0)).sum())


def _global(lanes: np.ndarray, targets: np.ndarray | None) -> dict[str, int]:
    """Figures of requests to global memory; ``targets``: of copies past L1 (``gmem.analyze``)."""
    active = lanes >= 0
    places = lanes // gmem.SECTOR
    if targets is not None:
        places = lanes // gmem.LINE * (1 << 20) + targets // gmem.SECTOR
    sectors = distinct(np.where(active, places, -1))
    return {"requests": len(lanes), "lanes": int(active.sum()), "sectors": sectors}


def _shared(instruction: str, bits: int, lanes: np.ndarray, sources: np.ndarray) -> dict[str, int]:
    """Figures of requests to shared memory; ``sources``: of copies, where they come from."""
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
