"""What would fix a copy of one's own: other arguments of ``analyze_copy``, asked about again.

A fix is a change of the question. Each is evaluated as the question itself is, both sides of the
copy together, and offered only if it is legal, no side costs more and one costs less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from cute_gemm.access import GlobalAccess, SharedAccess
from cute_gemm.analysis.copy.arguments import ALIGNMENT, Copy, undivided
from cute_gemm.analysis.copy.atoms import atom_name
from cute_gemm.analysis.copy.evaluate import asked_width, evaluated
from cute_gemm.analysis.copy.partners import NamedPartner, Partner, buffer_of
from cute_gemm.analysis.fixes import gmem as places
from cute_gemm.analysis.fixes import smem as homes
from cute_gemm.analysis.fixes.smem import Fix, Want
from cute_gemm.cute import choose
from cute_gemm.cute.atoms import universal
from cute_gemm.cute.copies import TiledCopy, gmem_tiled_copy
from cute_gemm.cute.layout import Layout, column_major, row_major
from cute_gemm.model import gmem, smem
from cute_gemm.model.analyze import Analysis, analyze


class Tried(NamedTuple):
    """A question and what it costs; ``words`` and ``change`` say what is new in it.

    ``accesses`` are the copy's own, and behind them those of the partners that the user names.
    """

    words: tuple[str, ...]
    change: dict[str, Any]
    copy: Copy
    accesses: list[GlobalAccess | SharedAccess]
    found: list[Analysis]

    @property
    def faults(self) -> bool:
        """Whether an access of the copy's own is misaligned."""
        return not all(map(self.aligned, range(self.own)))

    def aligned(self, index: int) -> bool:
        """Whether an access is legal."""
        return bool(getattr(self.found[index], "aligned", True))

    def paid(self, index: int) -> tuple[int, ...]:
        """What an access costs as its row shows it, in sectors or in wavefronts."""
        total: Any = self.found[index].launch
        if isinstance(total, gmem.GlobalCounts):
            return total.sectors, total.l2_sectors
        return (total.wavefronts,)

    def limits(self, index: int) -> tuple[int, ...]:
        """What no fix may raise: what an access costs, and what counters show of it."""
        total: Any = self.found[index].launch
        return (*self.paid(index), max(getattr(total, "counted_wavefronts", 0), *self.paid(index)))

    def ideal(self, index: int) -> float:
        """How near an access is to its ideal, as its row shows it; 1.0 there."""
        found: Any = self.found[index]
        if isinstance(found, gmem.GlobalAnalysis):
            counts = found.judged
            return counts.ideal_sectors / max(1, counts.sectors, counts.l2_sectors)
        return float(found.once.ideal_wavefronts / max(1, found.once.wavefronts))

    def good(self, index: int) -> bool:
        """Whether an access is coalesced, or free of conflicts."""
        found: Any = self.found[index]
        both = self.accesses[index]
        return bool(found.coalesced if isinstance(both, GlobalAccess) else found.conflict_free)

    @property
    def own(self) -> int:
        """How many of the accesses are the copy's own."""
        return 1 + (self.copy.smem is not None)

    def beside(self, index: int) -> list[int]:
        """Where the user names partners: the other accesses of the buffer of an access."""
        both = range(len(self.accesses) if len(self.accesses) > self.own else 0)
        return [i for i in both if i != index and isinstance(self.accesses[i], SharedAccess)]

    def free(self, index: int) -> bool:
        """Whether it is good, and so is what is named beside it."""
        return self.good(index) and all(map(self.good, self.beside(index)))

    def quality(self, index: int) -> tuple[bool, float, int]:
        """How good an access is, whatever it costs."""
        legal = self.aligned(index) and not self.faults
        return legal, self.ideal(index), self.accesses[index].bits

    @property
    def best(self) -> bool:
        """Whether the first access, of global memory, is as good as any."""
        return self.good(0) and self.accesses[0].bits >= 8 * self.copy.size * widest(self.copy)

    def key(self, *indices: int) -> tuple[bool, float, float]:
        """What accesses are compared by, per element, the least first."""
        cost, requests = (sum(map(of, indices)) for of in (self.cost, self.requests))
        faults = self.faults or not all(map(self.aligned, indices))
        return faults, cost / self.copy.moved, requests / self.copy.moved

    def rank(self, index: int) -> tuple[bool, float, float]:
        """What fixes of an access are ranked by: what is named beside it counts too."""
        return self.key(index, *self.beside(index))

    def cost(self, index: int) -> int:
        """What it costs in one number."""
        return sum(self.paid(index))

    def requests(self, index: int) -> int:
        """Its instructions."""
        return int(self.found[index].launch.requests)


#: Makes changed questions.
Round = Callable[[Copy], Iterable[tuple[tuple[str, ...], dict[str, Any], Copy]]]


def copy_fixes(
    copy: Copy, named: Sequence[NamedPartner] = (), assumed: Sequence[Partner] = ()
) -> list[tuple[Fix, ...]]:
    """What would fix each access of a copy and of its named partners, of fewest changes first."""
    return _Search(copy, named, assumed).fixes()


class _Search:
    """The fixes of one question."""

    def __init__(
        self, copy: Copy, named: Sequence[NamedPartner], assumed: Sequence[Partner]
    ) -> None:
        self.copy, self.named, self.assumed = copy, named, assumed
        accesses, self.tiled = evaluated(copy)
        self.now = self.judged((), {}, copy, accesses)
        self.threads = len(copy.tiled.partition)
        self.place = "tensor" if copy.space == "shared" else "smem"

    def fixes(self) -> list[tuple[Fix, ...]]:
        """One tuple per access."""
        out: list[list[Tried]] = []
        for index, access in enumerate(self.now.accesses):
            if self.now.good(index) and (index or self.place == "tensor" or self.now.best):
                out.append([])
            elif isinstance(access, GlobalAccess):
                out.append(self.of_global())
            else:
                out.append(self.of_shared(index))
        for index in range(1, len(out) if self.now.own > 1 else 0):
            # What fixes the copy as a whole.
            free = self.now.good(index) or any(tried.good(index) for tried in out[index])
            both = [t for t in out[0] if "smem" in t.change and self.cheaper(t, index)]
            out[index] = out[index] if free else [*both, *out[index]]
        return [tuple(self.fix(tried, index) for tried in found) for index, found in enumerate(out)]

    # -- trying --------------------------------------------------------------------------------

    def judged(
        self, words: tuple[str, ...], change: dict[str, Any], copy: Copy, accesses: Any = None
    ) -> Tried:
        """A question with what its accesses cost."""
        accesses = accesses or evaluated(copy)[0]
        if buffer_of(copy) is not None:
            accesses = [*accesses, *(partner.row(copy) for partner in self.named)]
        return Tried(words, change, copy, accesses, [*map(analyze, accesses)])

    def tried(
        self, words: tuple[str, ...], change: dict[str, Any], copy: Copy, index: int
    ) -> Tried | None:
        """A changed question, unless it is illegal or costs more where ``index`` is to gain."""
        for layout in (copy.layout, copy.smem):
            if layout is not None and undivided(layout, copy.tiled):
                return None
        written = copy.direction == "store" and not copy.atom.reduces
        if ("tensor" in change or written) and copy.aliases():
            return None
        if "smem" in change and copy.smem is not None and not _injective(copy.smem):
            return None
        spelled = copy.packing.spelled(change) if copy.packing else (words, change)
        if spelled is None:
            return None
        tried = self.judged(*spelled, copy)
        if "atom" in change and tried.accesses[0].bits != copy.atom.bits:
            return None
        return tried if self.no_worse(tried, index) else None

    def no_worse(self, new: Tried, index: int) -> bool:
        """Whether nothing faults, and no side costs more than now, unless that ends a fault."""
        old = self.now
        if new.faults or len(new.found) != len(old.found):
            return False
        home = buffer_of(new.copy)
        for side, partner in enumerate(self.named, old.own):
            after, before = new.accesses[side], old.accesses[side]
            assert home is not None
            if partner.transposed(home) or (partner.fits(before) and not partner.fits(after)):
                return False
        legal = [*filter(old.aligned, range(len(old.found)))]
        if not all(map(new.aligned, legal)):
            return False
        if old.faults or not old.aligned(index):
            return True
        scale = new.copy.moved, old.copy.moved
        for side in legal:
            pairs = zip(new.limits(side), old.limits(side), strict=True)
            if any(after * scale[1] > before * scale[0] for after, before in pairs):
                return False
        return True

    def cheaper(self, new: Tried, index: int) -> bool:
        """Whether an access costs less than now, itself or in instructions, and is better."""
        return new.key(index) < self.now.key(index) and (
            new.quality(index) > self.now.quality(index) or new.good(index)
        )

    def best_of(self, candidates: Iterable[Any], index: int) -> Tried | None:
        """The cheapest for an access; the first of equals."""
        best: Tried | None = None
        for words, change, copy in candidates:
            new = self.tried(words, change, copy, index)
            if new is None or not self.cheaper(new, index):
                continue
            if best is None or new.rank(index) < best.rank(index):
                best = new
            if best.free(index) and (index or self.place == "tensor" or best.best):
                break
        return best

    def fix(self, tried: Tried, index: int) -> Fix:
        """A change in words, with what is read then."""
        what, access, found = ", ".join(tried.words), tried.accesses[index], tried.found[index]
        if isinstance(access, GlobalAccess):
            assert isinstance(found, gmem.GlobalAnalysis)
            return replace(places.global_fix(what, access, found), change=tried.change)
        beside: list[Any] = [tried.accesses[i] for i in tried.beside(index)]
        beside = beside or self.beside(tried)
        return replace(homes.shared_fix(what, [access, *beside], 0), change=tried.change)

    def beside(self, tried: Tried) -> list[SharedAccess]:
        """The assumed partners, where they are free of conflicts then."""
        home = buffer_of(tried.copy)
        if home is None or "threads" in tried.change:
            return []
        found = [partner.access(home) for partner in self.assumed]
        return [access for access in found if access and smem.analyze(access).conflict_free]

    # -- global memory -------------------------------------------------------------------------

    def of_global(self) -> list[Tried]:
        """Fixes of the access of global memory."""
        copy = self.copy
        worst = getattr(self.now.found[0], "worst", None)
        rounds: tuple[Round, ...] = (
            lambda copy: [((), {}, copy)],
            lambda copy: [*_padded(copy), *_aligned(copy)],
            lambda copy: (
                (words + more, change | also, both)
                for words, change, padded in _padded(copy)
                for more, also, both in _aligned(padded)
            ),
            _longer,
            _transposed,
        )
        offered: list[Tried] = []
        strided = worst is not None and worst.cause == "strided"
        for number, places_of in enumerate(rounds):
            last = number == len(rounds) - 1
            if offered and offered[-1].best and not (last and strided):
                continue
            best = self.best_of(self.changed(places_of(copy)), 0)
            if copy.smem is not None and not (best and best.best):
                wider = self.best_of(self.with_homes(places_of(copy)), 0)
                if wider and (best is None or wider.rank(0) < best.rank(0)):
                    best = wider
            if best is None:
                continue
            # The other major is worth naming beside another copy for the same storage.
            other = last and strided and best.best
            if other or not offered or best.rank(0) < offered[-1].rank(0):
                offered.append(best)
        return offered

    def changed(self, given: Iterable[Any]) -> Iterator[Any]:
        """The present copy in a place that is new, then others there."""
        for words, change, copy in given:
            if change:
                yield words, change, copy
            for more, also, other in self.rearranged(copy):
                yield more + words, also | change, other

    def rearranged(self, copy: Copy) -> Iterator[Any]:
        """Other copies of the tile; of a coalesced one only wider ones are of use."""
        least = self.now.accesses[0].bits if self.now.good(0) else 0
        for words, change, other in _threads(copy, self.threads, copy.layout):
            if (other.atom.bits or 0) > least:
                yield words, change, other

    def with_homes(self, given: Iterable[Any]) -> Iterator[Any]:
        """The two best copies, each into shared memory in which its vectors lie together."""
        size = self.copy.size
        flat = row_major(*self.copy.layout.extents)
        free: list[tuple[Any, Any]] = []
        for words, change, copy in given:
            alone = replace(copy, smem=None)
            for more, also, other in [((), {}, alone), *self.rearranged(alone)]:
                if undivided(other.layout, other.tiled):
                    continue
                tried = self.judged((*more, *words), also | change, other)
                fits = "atom" not in also or tried.accesses[0].bits == other.atom.bits
                if fits and not tried.faults and self.cheaper(tried, 0):
                    free.append((tried.key(0), tried))
        for _, tried in sorted(free, key=itemgetter(0))[:2]:
            wants = self.wants(tried.copy, tried.accesses[0].bits // (8 * size))
            for home in homes.ranked(wants, size, homes.atoms, flat, 1) if wants else ():
                words = (*tried.words, f"into shared memory {home.what}")
                new = replace(tried.copy, smem=home.layout, smem_alignment=ALIGNMENT["shared"])
                yield words, tried.change | {"smem": str(home.layout)}, new

    # -- shared memory -------------------------------------------------------------------------

    def of_shared(self, index: int) -> list[Tried]:
        """Fixes of the access of shared memory: another layout of the tile, or another copy."""
        copy = self.copy
        layout = buffer_of(copy)
        assert layout is not None
        free: list[Tried] = []
        better: list[Tried] = []
        kinds = (homes.swizzled, homes.atoms, homes.padded)[: 1 if layout.offset else 3]
        for kind in kinds:
            best: Tried | None = None
            for wants in self.all_wants():
                best = self.best_of(self.housed(layout, wants, kind), index)
                if best is not None and best.free(index):
                    break
            if best is not None:
                (free if best.free(index) else better).append(best)
        if copy.atom.matrix is None and index < self.now.own:
            both = self.best_of(_threads(copy, self.threads, layout), index)
            if both is not None:
                (free if both.free(index) else better).append(both)
        found = free or sorted(better, key=lambda tried: tried.rank(index))[:1]
        return list({tried.words: tried for tried in found}.values())

    def housed(self, layout: Layout, wants: Sequence[Want], kind: homes.Kind) -> Iterator[Any]:
        """The copy with the tile in other layouts of shared memory."""
        copy = self.copy
        for home in homes.ranked(wants, copy.size, kind, layout, 16):
            if self.place == "tensor":
                yield (home.what,), *_in(copy, home.layout)
            else:
                new = replace(copy, smem=home.layout, smem_alignment=ALIGNMENT["shared"])
                yield (home.what,), {"smem": str(home.layout)}, new

    def all_wants(self) -> Iterator[list[Want]]:
        """What the copy and its partners want of a layout; then narrower, and the copy alone."""
        extents = self.copy.layout.extents
        asked = [partner.copy for partner in self.named or self.assumed]
        now = [evaluated(partner.question)[1] for partner in self.named]
        beside = [
            [_want(copy, extents) for copy in copies if copy.covers(extents)]
            for copies in (asked, now)
        ]
        for width in dict.fromkeys((asked_width(self.copy), self.tiled.values)):
            wants = self.wants(self.copy, width)
            yield from ([*wants, *others] for others in beside if wants and others)
            if wants and not self.named:
                yield wants

    def wants(self, copy: Copy, width: int) -> list[Want] | None:
        """What a copy by vectors of ``width`` elements wants of shared memory."""
        bits, held = 8 * copy.size * width, copy.tiled.partition.shape[1]
        if copy.atom.matrix is not None:
            tiled = replace(copy.tiled, atom=copy.atom.matrix)
            if held % (tiled.bits // tiled.element_bits):
                return None
        elif held % width:
            return None
        elif self.place == "tensor":
            tiled = replace(copy.tiled, atom=choose.copy_atom(_atom(copy, bits), bits))
        else:
            side = replace(copy.tiled, atom=choose.copy_atom(_atom(copy, bits), bits))
            tiled = choose.shared_side(side)
        return [_want(tiled, copy.layout.extents)]


def _want(tiled: TiledCopy, extents: tuple[int, ...]) -> Want:
    """What an instruction wants of a layout, by coordinates alone."""
    elements = tiled.elements(extents)
    idle = (elements < 0).any(axis=-1)
    at = np.where(idle, -1, elements @ (extents[1], 1))
    lanes = np.unique(at[..., 0], axis=0)
    vectors = at.reshape(-1, at.shape[-1])
    vectors = np.unique(vectors[vectors[:, 0] >= 0], axis=0)
    step = np.unique(np.diff(vectors, axis=-1))
    axis = {1: 1, extents[1]: 0}.get(int(step[0])) if step.size == 1 else None
    return Want(
        tiled.atom.name, tiled.bits if tiled.atom.threads == 1 else 128, lanes, vectors, axis
    )


def _injective(layout: Layout) -> bool:
    return len(np.unique(layout.table())) == layout.size


# -- other copies, other places -------------------------------------------------------------------


def _threads(
    copy: Copy, threads: int, layout: Layout
) -> Iterator[tuple[tuple[str, ...], dict[str, Any], Copy]]:
    """As many threads laid out otherwise, each with one vector, the longest runs first.

    For global memory alone the longest runs are the best, where there are any; shared memory asks
    for others too.
    """
    several = copy.space == "shared" or copy.smem is not None
    several = several or choose.contiguous_axis(layout) is None
    if copy.atom.kind == "bulk":  # one thread's
        return
    for axis in _along(layout):
        run = min(widest(copy), choose.run(layout.table(), axis))
        for width in (1 << bit for bit in reversed(range(run.bit_length()))):
            value = row_major(1, width) if axis else column_major(width, 1)
            orders = _orders(layout.extents, axis, width, threads, copy.space == "shared")
            for order in orders if several else islice(orders, 1):
                tiled = gmem_tiled_copy(universal("", 8 * copy.size), 8 * copy.size, order, value)
                bits = 8 * copy.size * width
                if tiled.layouts != copy.tiled.layouts or copy.atom.bits != bits:
                    yield _with_threads(copy, tiled, bits)


def _along(layout: Layout) -> tuple[int, int]:
    """The two modes, the one along which elements are nearer to each other first."""
    first = choose.contiguous_axis(layout)
    if first is None:
        table = layout.table()
        steps = [np.moveaxis(table, axis, 0)[1:2].min(initial=1 << 62) for axis in (0, 1)]
        first = int(steps[1] <= steps[0])
    return first, 1 - first


def _orders(
    extents: tuple[int, ...], axis: int, width: int, threads: int, both: bool
) -> Iterator[Layout]:
    """Thread layouts, as many lanes along ``axis`` as there can be first; ``both``: or across."""
    for lanes in range(threads, 0, -1):
        if threads % lanes or extents[axis] % (lanes * width):
            continue
        if extents[1 - axis] % (threads // lanes):
            continue
        shape = (threads // lanes, lanes) if axis else (lanes, threads // lanes)
        yield row_major(*shape) if axis else column_major(*shape)
        if both and 1 < lanes < threads:
            yield column_major(*shape) if axis else row_major(*shape)


def _with_threads(
    copy: Copy, tiled: TiledCopy, bits: int
) -> tuple[tuple[str, ...], dict[str, Any], Copy]:
    thread, value = tiled.layouts
    name = _atom(copy, bits)
    words = f"threads {thread}", "values ({},{})".format(*value.extents), f"{name} of {bits} bits"
    change: dict[str, Any] = {"threads": str(thread), "values": str(value)}
    change["atom"] = f"{name}.{bits}"
    if not copy.tiled.layouts:
        change |= {"tv": None, "tile": None}
    return words, change, replace(copy, tiled=tiled, atom=atom_name(change["atom"]))


def _atom(copy: Copy, bits: int) -> str:
    """The instruction of a copy of vectors of ``bits``."""
    return copy.atom.instruction(copy.space, copy.direction, bits)


def widest(copy: Copy) -> int:
    """Elements of the widest vector that a fix may have: 16 bytes, or more if more was asked for.

    A reduction's is no wider than it is: of what operation it is, the name of an atom tells.
    """
    least = 0 if copy.atom.kind == "reduce" else choose.VECTOR // copy.size
    return max(least, asked_width(copy))


def _in(copy: Copy, layout: Layout) -> tuple[dict[str, Any], Copy]:
    """The copy of another tensor, with what the text of the present one says beside its layout."""
    change: dict[str, Any] = {"tensor": str(layout)}
    if copy.atom.space is None or copy.atom.kind == "cp.async":
        change["space"] = copy.space
    if copy.space == "shared":
        return change, replace(copy, layout=layout, alignment=ALIGNMENT["shared"])
    return change | {"base_alignment": copy.alignment}, replace(copy, layout=layout)


def _moved(copy: Copy, layout: Layout, said: str) -> Any:
    words = (f"tensor {layout}", said) if said else (f"tensor {layout}",)
    return words, *_in(copy, layout)


def _padded(copy: Copy) -> Iterator[Any]:
    """The tile in a tensor whose leading dimension is padded."""
    for layout, said in places.padded(copy.layout, copy.size, copy.extents):
        yield _moved(copy, layout, said)


def _aligned(copy: Copy) -> Iterator[Any]:
    """The tile in a tensor whose base address is better aligned."""
    for alignment, said in places.aligned(copy.alignment):
        change = {"base_alignment": alignment}
        yield (said,), change, replace(copy, alignment=alignment)


def _longer(copy: Copy) -> Iterator[Any]:
    """A tile that holds whole sectors along the contiguous mode."""
    if copy.smem is None and copy.extents is None:
        for layout, said in places.longer(copy.layout, copy.size):
            yield _moved(copy, layout, said)


def _transposed(copy: Copy) -> Iterator[Any]:
    """The tile in a tensor that is contiguous the other way."""
    found = places.strides(copy.layout)
    if found is not None:
        step = max(1, gmem.SECTOR // copy.size)
        pitch, pitched = found[0][found[1]], found[1]
        least = -(-(copy.extents or copy.layout.extents)[pitched] // step) * step
        transposed = places.with_pitch(copy.layout, max(pitch, least), 1 - pitched)
        yield _moved(copy, transposed, "")
