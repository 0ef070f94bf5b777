"""Threads that execute a kernel: lanes of NumPy arrays, their divergence and their barriers.

All threads of a batch of CTAs are lanes. A register is an array that broadcasts to (CTAs, threads):
a value that all threads of a CTA, the same thread of all CTAs, or all threads share is stored once.
Arrays are never changed in place.

Diverged lanes run separately until they meet: the lanes at the lowest instruction continue first,
which is where the code of compilers reconverges. Lanes wait for each other only at barriers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cute_gemm.errors import FaultError
from cute_gemm.ptx.lanes import Copies, Lanes, WarpBarriers
from cute_gemm.ptx.memory import GLOBAL, WARP, Array, GlobalMemory, SharedMemory
from cute_gemm.ptx.parser import Instruction
from cute_gemm.ptx.record import Recorder

#: Instructions of a batch of CTAs after which a kernel is considered endless; and the same for
#: instructions without an effect.
MOST_STEPS, IDLE_STEPS = 20_000_000, 500_000

Step = Callable[[], None]


@dataclass
class Wait:
    """A condition for which lanes wait, individually if it has ``poll`` (`cute_gemm.ptx.waiting`).

    Otherwise they wait for all lanes of their CTA that have not ended.
    """

    inst: Instruction
    #: Return which executing lanes continue now, and apply the effects of that.
    poll: Callable[[], Array] | None = None
    #: Return what the executing lanes still wait for.
    says: Callable[[], str] = lambda: "other threads of its CTA have not arrived"
    #: What is executed when all have arrived.
    met: Step | None = None


@dataclass
class Piece:
    """A block of instructions as functions.

    ``plain`` may change registers of lanes that are not here, ``apart`` preserves them. Then
    follows one of: a branch of lanes with ``choice`` to ``target``, and of others to the next piece
    (None: the end); a wait.
    """

    plain: list[Step] = field(default_factory=list)
    apart: list[Step] = field(default_factory=list)
    next: int | None = None
    target: int | None = None
    #: Slot of the predicate of a branch, and whether it is negated; -1: unconditional.
    choice: int = -1
    negated: bool = False
    wait: Wait | None = None
    #: Index of its first instruction, and their number.
    begin: int = 0
    count: int = 0

    def append(self, plain: Step, apart: Step | None = None) -> None:
        """Append a step, or both forms of one."""
        self.plain.append(plain)
        self.apart.append(apart or plain)


class Machine(Lanes):
    """A batch of CTAs of a launch, with its registers and pending operations."""

    def __init__(
        self, grid: tuple[int, int, int], block: tuple[int, int, int], memory: GlobalMemory,
        most_steps: int | None, recorder: Recorder | None, slots: int, cluster: int = 1,
    ) -> None:  # fmt: skip
        super().__init__(math.prod(block))
        self.grid, self.block, self.cluster = grid, block, cluster
        self.memory = memory
        self.recorder = recorder
        self.values: list[Any] = [None] * slots
        #: The undefined bits of each value (`cute_gemm.ptx.undefined`), or None.
        self.undefined: list[Array | None] = [None] * slots
        self.steps, self.most_steps = 0, most_steps
        #: Steps at which lanes last stored a value, passed a barrier or went to a new address.
        self.moved = 0
        #: Whether the kernel may start before the previous launch has ended.
        self.dependent = False
        #: Tensor maps by the places of their parameters.
        self.maps: dict[int, Any] = {}
        self.copies: Copies

    # ---- a batch -------------------------------------------------------------------------------

    def begin(self, first: int, ctas: int, shared: SharedMemory, specials: dict[str, int]) -> None:
        """Restart with CTAs ``first`` up to ``first + ctas``; ``specials``: slots by name."""
        self.first, self.ctas, self.shared = first, ctas, shared
        self.copies = Copies(self)
        #: Lanes that have waited for the end of the previous launch.
        self.followed = np.full(self.shape, not self.dependent)
        self.mask = None
        #: Lanes that are ready to continue at a piece, and lanes that wait at one.
        self.ready: dict[int, Array | None] = {0: None}
        self.parked: dict[int, Array | None] = {}
        self.warps = WarpBarriers(self)
        numbers = first + np.arange(ctas, dtype=np.uint32)[:, None]
        lanes = np.arange(self.threads, dtype=np.uint32)[None, :]
        for name, slot in specials.items():
            self.values[slot] = self._special(name, numbers, lanes)

    def _special(self, name: str, numbers: Array, lanes: Array) -> Array:
        """Return the value of a special register (PTX ISA, chapter 10)."""
        kind, _, axis = name.partition(".")
        # CTAs of a cluster lie along x.
        size = self.cluster
        clusters, each = (self.grid[0] // size, *self.grid[1:]), (size, 1, 1)
        places = {
            "%tid": (lanes, self.block), "%laneid": (lanes, (WARP, 1, 1)),
            "%ctaid": (numbers, self.grid), "%clusterid": (numbers // np.uint32(size), clusters),
            "%cluster_ctaid": (numbers, each), "%cluster_ctarank": (numbers, each),
        }  # fmt: skip
        mode = "xyz".index(axis) if axis else 0
        if kind not in places:  # the extent, as in %ntid
            return np.full((1, 1), places[kind.replace("n", "", 1)][1][mode], np.uint32)
        index, extents = places[kind]
        if extents[mode] == 1:
            return np.zeros((1, 1), np.uint32)
        below = np.uint32(math.prod(extents[:mode]))
        return np.asarray(index // below % np.uint32(extents[mode]))

    # ---- lanes ---------------------------------------------------------------------------------

    def alive(self) -> Array:
        """Return the lanes that have not ended."""
        masks = self.mask, *self.ready.values(), *self.parked.values()
        return np.logical_or.reduce([self.full(mask) for mask in masks])

    def who(self, lanes: Array) -> str:
        """Return lanes as text: the warps of the first CTA among them."""
        cta = int(np.argwhere(lanes)[0][0])
        warps = np.unique(np.flatnonzero(lanes[cta]) // 32).tolist()
        return f"CTA {self.name(cta)}, warp{'s' * (len(warps) > 1)} {', '.join(map(str, warps))}"

    def follow(self) -> None:
        """Execute ``griddepcontrol.wait``: lanes wait for the previous launch."""
        self.followed = self.followed | self.lanes()

    def check_dependency(self, inst: Instruction) -> None:
        """Fault if executing lanes access global memory before the previous launch has ended."""
        if self.dependent:
            what = "race: the previous launch may not have ended: no griddepcontrol.wait before"
            self.fault(inst, "race", what, self.lanes() & ~self.followed)

    def whole(self, inst: Instruction, size: int, name: str) -> Array:
        """Return which groups of ``size`` threads execute, (CTAs, groups); fault if partial."""
        if self.threads % size:
            what = f"the CTA does not consist of whole {name}s"
            self.fault(inst, "divergent", what, self.lanes())
        self.together()
        if self.mask is None:
            return np.ones((self.ctas, self.threads // size), bool)
        lanes = self.lanes().reshape(self.ctas, -1, size)
        some = np.asarray(lanes.any(axis=2))
        missing = ~lanes & some[..., None]
        what = f"divergent: this thread of the {name} does not execute it, but all must"
        self.fault(inst, "divergent", what, missing.reshape(self.shape))
        return some

    def together(self) -> None:
        """Let lanes of warps that execute a warp instruction see each other's accesses.

        PTX guarantees this for memory only with ``bar.warp.sync``; the lanes are converged then.
        """

    def set(self, slot: int, value: Array, undefined: Array | None = None) -> None:
        """Set a register and its undefined bits."""
        self.values[slot] = value
        self.undefined[slot] = None if undefined is None or not undefined.any() else undefined

    def keep(self, slots: tuple[int, ...], step: Step) -> None:
        """Execute a step, and restore these registers in lanes that are masked off."""
        values, mask = self.values, self.mask
        if mask is None:
            step()
            return
        undefined = self.undefined
        before = [(values[slot], undefined[slot]) for slot in slots]
        step()
        for slot, (old, lost) in zip(slots, before, strict=True):
            if old is not None:
                values[slot] = np.where(mask, values[slot], old)
            now = undefined[slot]
            if lost is not None or now is not None:
                now = np.zeros_like(lost) if now is None else now
                lost = np.zeros_like(now) if lost is None else lost
                now = np.where(mask, now, lost)
                undefined[slot] = now if now.any() else None

    def fault(
        self, inst: Instruction, kind: str, what: str, bad: Array, address: Any = None
    ) -> None:
        """Raise a fault for the first lane of ``bad``, if any, with its address."""
        if not bad.any():
            return
        cta, thread = (int(x) for x in np.argwhere(self.full(bad))[0])
        where = ""
        if address is not None:
            value = int(self.full(address)[cta, thread])
            where = f" at address {value:#x}"
            what = what.replace("{near}", self.memory.near(value - GLOBAL))
        raise inst.fault(kind, f"CTA {self.name(cta)}, thread {thread}{where}: {what}")

    def demand(self, inst: Instruction, slot: int, what: str) -> None:
        """Fault if a value that matters is undefined in an executing lane."""
        if (bits := self.undefined[slot]) is not None:
            came = "depends on a register or shared memory that no thread has set"
            self.fault(inst, "uninitialised", f"{what} {came}", (bits != 0) & self.lanes())

    def number(self, rows: Any) -> Any:
        """Return the numbers of CTAs of the batch, from 1; those of a cluster share one."""
        return (self.first + rows) // self.cluster + 1

    def name(self, row: int) -> str:
        """Return the place of a CTA of the batch in the grid."""
        number = self.first + row
        x, y, _ = self.grid
        return f"({number % x}, {number // x % y}, {number // (x * y)})"

    # ---- execution -----------------------------------------------------------------------------

    def execute(self, pieces: list[Piece]) -> None:
        """Run the batch to its end; `FaultError` for illegal actions."""
        self.moved = begin = self.steps
        limit = begin + (MOST_STEPS if self.most_steps is None else self.most_steps)
        ready, parked = self.ready, self.parked
        while ready or parked:
            if not ready:
                self.wake(pieces)
                continue
            place = min(ready)
            self.mask = mask = ready.pop(place)
            piece = pieces[place]
            self._count(piece, limit)
            for step in piece.apart if ready or parked else piece.plain:
                step()
            if piece.wait is not None:
                self._wait(place, piece, piece.wait)
            elif piece.choice >= 0:
                self._branch(piece, mask, ready)
            elif piece.next is not None:
                join(ready, piece.next, mask)

    def wake(self, pieces: list[Piece]) -> None:
        """Let lanes continue after all that have not ended wait; fault if none can."""
        if not self.poll(pieces):
            self._meet(pieces)

    def _count(self, piece: Piece, limit: int) -> None:
        """Count the steps of a piece; fault if that exceeds the limit."""
        self.steps += piece.count
        what = ""
        if self.steps > limit:
            most = MOST_STEPS if self.most_steps is None else self.most_steps
            what = (
                f"the kernel has not ended after {most:,} instructions: a wait that never ends, "
                "or a limit that is too low"
            )
        elif self.most_steps is None and self.steps > self.moved + IDLE_STEPS:
            what = (
                f"the kernel loops: in {IDLE_STEPS:,} instructions no thread has stored "
                "anything, passed a barrier or accessed another address; a wait that never ends, "
                "or one that needs a limit of instructions"
            )
        if what:
            raise FaultError(what, "endless")
        if self.recorder is not None:
            self.recorder.executed(piece.begin, piece.count, self)

    def _wait(self, place: int, piece: Piece, wait: Wait) -> None:
        """Let executing lanes pass a wait, or park them there."""
        if wait.poll is None:
            join(self.parked, place, self.mask)
            return
        lanes = self.lanes()
        go = wait.poll() & lanes
        if go.any():
            self.moved = self.steps
            join(self.ready, piece.next or 0, None if go.all() else go)
        stay = lanes & ~go
        if stay.any():
            join(self.parked, place, None if stay.all() else stay)

    def poll(self, pieces: list[Piece]) -> bool:
        """Poll all parked lanes; return whether any continues."""
        for place, mask in list(self.parked.items()):
            wait = pieces[place].wait
            if wait is not None and wait.poll is not None:
                del self.parked[place]
                self.mask = mask
                self._wait(place, pieces[place], wait)
        return bool(self.ready)

    def stuck(self, pieces: list[Piece]) -> None:
        """Raise a fault for waits that never end."""
        waits, line = [], 0
        for place in sorted(self.parked):
            self.mask, wait = self.parked[place], pieces[place].wait
            assert wait is not None
            line = line or wait.inst.line
            waits.append(wait.inst.says(f"{wait.says()} ({self.who(self.lanes())})"))
        raise FaultError("a wait that never ends: " + "; ".join(waits), "deadlock", line)

    def _branch(self, piece: Piece, mask: Array | None, ready: dict[int, Array | None]) -> None:
        """Send lanes to the target of a branch, or past it."""
        choice: Array = self.values[piece.choice]
        if choice.size == 1:
            to = piece.target if bool(choice[0, 0]) != piece.negated else piece.next
            if to is not None:
                join(ready, to, mask)
            return
        taken, left = (~choice, choice) if piece.negated else (choice, ~choice)
        if mask is not None:
            taken, left = taken & mask, left & mask
        for to, lanes, others in ((piece.target, taken, left), (piece.next, left, taken)):
            if to is not None and lanes.any():
                join(ready, to, lanes if others.any() else mask)

    def _meet(self, pieces: list[Piece]) -> None:
        """Check that lanes that wait at barriers form whole CTAs, and let them continue.

        ``bar.sync`` is ``barrier.sync.aligned``: all threads of a warp execute the same one (PTX
        ISA, 9.7.13.1). Like compute-sanitizer, this requires it of all threads of the CTA that have
        not ended.
        """
        waits = [(wait, self.full(self.parked[x])) for x in self.parked if (wait := pieces[x].wait)]
        if any(wait.poll is not None for wait, _ in waits):
            self.stuck(pieces)
        alive = np.any([lanes for _, lanes in waits], axis=0)
        for wait, lanes in waits:
            missing = lanes.any(axis=1, keepdims=True) & alive & ~lanes
            if missing.any():
                cta, thread = np.argwhere(missing)[0]
                line = next(other.inst.line for other, there in waits if there[cta, thread])
                what = f"other threads of its CTA wait here, but it waits at line {line}"
                self.fault(wait.inst, "barrier", what, missing)
        parked = self.parked.copy()
        self.parked.clear()
        for (wait, _), (place, self.mask) in zip(waits, parked.items(), strict=True):
            if wait.met is not None:
                wait.met()
            join(self.ready, pieces[place].next or 0, self.mask)
        self.moved = self.steps
        self.shared.next_epoch()


def join(where: dict[int, Array | None], place: int, mask: Array | None) -> None:
    """Add lanes to those at a place."""
    if place not in where or mask is None:
        where[place] = mask
        return
    lanes = where[place]
    if lanes is not None:
        both = lanes | mask
        where[place] = None if both.all() else both
