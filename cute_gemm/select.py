"""Problem -> kernel, config and route: enumerate, refuse, price, compare."""

from __future__ import annotations

import operator
from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cute_gemm._kept import Kept
from cute_gemm._text import named
from cute_gemm.arch import Arch
from cute_gemm.errors import OptionError, UnsupportedError
from cute_gemm.gpus.gpu import Gpu
from cute_gemm.gpus.table import nearest, of_device
from cute_gemm.kernels import registry
from cute_gemm.kernels.base import common_traits
from cute_gemm.kernels.candidate import Candidate
from cute_gemm.kernels.options import access_bytes
from cute_gemm.kernels.passes import PACK, REDUCE
from cute_gemm.model.price import Footprint, Prices
from cute_gemm.problem.passes import (
    DIRECT,
    Packing,
    Route,
    packed,
    slice_extents,
    sliced,
    wants_k_major,
)

if TYPE_CHECKING:
    from cute_gemm.kernels.base import Kernel
    from cute_gemm.problem.matrix import Matrix
    from cute_gemm.problem.problem import GemmProblem
    from cute_gemm.tuned import Measured

#: What ``"auto"`` chooses from: the other rungs of the ladder are there to be overtaken.
CONTENDERS = ("sm80_pipeline", "double_buffered", "thin", "sm90_wgmma")


#: Into how many slices K may be cut where nobody says.
_SPLITS = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)
#: What ``pack`` takes; None: ``"auto"`` where the kernel is chosen, and ``"none"`` for one by name.
PACKS = ("auto", "none", "A", "B", "AB")


class Choice(NamedTuple):
    """The kernel, config and route that were chosen, whose prices said so, and what from.

    ``candidates()`` are by the prices of ``gpu``, ``candidates(another)`` by those of that one;
    by keywords those of another ``problem`` or ``kernel``, or with other options.
    """

    kernel: Kernel
    config: Any
    gpu: Gpu
    candidates: Callable[..., tuple[Candidate, ...]]
    route: Route = DIRECT
    measured: Measured | None = None


def select(
    problem: GemmProblem,
    arch: str,
    kernel: str = "auto",
    options: Mapping[str, Any] | None = None,
    gpu: Gpu | None = None,
    measured: Measured | None = None,
) -> Choice:
    """Enumerate the configs that take a problem, refuse, price and compare.

    ``kernel``: a name, or ``"auto"``: the cheapest config of the kernels that contend; ``options``:
    fields of the config; ``gpu``: whose prices, by default those of the GPU that stands for the
    arch; ``measured``: what to take in place of the cheapest, if it is one of them.
    UnknownKernelError, UnsupportedError or OptionError when there is nothing to choose from.
    """
    place = gpu or nearest(Arch(arch if arch != "cpu" else "sm_80"))
    asked = _asked(problem, kernel, dict(options or {}), place)
    given = {"": problem}
    packings = {}
    for pack in filter(None, asked.packs):
        given[pack], packings[pack] = packed(problem, pack)
    shelf = _shelf(problem, given, arch, kernel, asked, place)
    if shelf.prices is None:
        made, config, route = shelf.offers[0]  # "auto" is no packing and one piece: see `_asked`
        route = route._replace(split_k=route.split_k or asked.splits[0])
        only = (Candidate(made, config, None, route),)
        return Choice(made, config, place, lambda another=None, **changed: only, route)
    prices, times = shelf.prices, _Times(problem, shelf, packings, asked, place)

    def candidates(another: Gpu | None = None, **changed: Any) -> tuple[Candidate, ...]:
        if changed or another not in (None, place):
            kept = {} if "kernel" in changed else dict(options or {})  # which that one has not
            of = changed.pop("problem", problem), arch, changed.pop("kernel", kernel)
            return select(*of, kept | changed, another or place).candidates()
        order = sorted(range(len(shelf.offers)), key=lambda i: (i != taken, times.seconds[i]))
        found = []
        for index in order:
            made, config, _ = shelf.offers[index]
            route, passes = times.route(index)
            price = prices.price(problem, index, route.split_k)
            found.append(Candidate(made, config, price.behind(passes), route))
        return tuple(found)

    taken = None if measured is None else times.find(measured)
    best = int(times.seconds.argmin()) if taken is None else taken
    made, config, _ = shelf.offers[best]
    known = None if taken is None else measured
    return Choice(made, config, place, candidates, times.route(best)[0], known)


class _Asked(NamedTuple):
    """Options of a call: those of the kernel's config, operands to pack, slices of K to try."""

    options: dict[str, Any]
    packs: tuple[str, ...]
    splits: tuple[int, ...]


def _asked(problem: GemmProblem, kernel: str, options: dict[str, Any], gpu: Gpu) -> _Asked:
    """Take ``pack`` and ``split_k`` from the options; OptionError for what they do not take."""
    pack, split = options.pop("pack", None), options.pop("split_k", None)
    if pack is None:
        pack = "auto" if kernel == "auto" else "none"
    if split is None:
        split = "auto" if kernel == "auto" else 1
    if pack not in PACKS:
        raise OptionError(f"option pack={pack!r} is unknown; expected one of {', '.join(PACKS)}")
    packs: tuple[str, ...] = ("" if pack == "none" else pack,)
    if pack == "auto":
        slow = [matrix for matrix in (problem.A, problem.B) if _worth_packing(problem, matrix)]
        packs = ("", "".join(matrix.name for matrix in slow)) if slow else ("",)
        if len(slow) == 2 and wants_k_major(problem) and gpu.arch.has("wgmma"):
            # One of them may go through registers.
            packs += tuple(
                matrix.name
                for matrix, other in (slow, slow[::-1])
                if access_bytes(other, False)[0] == 16
            )
    if split == "auto":
        tiles = problem.m * problem.n / (128 * 128)
        few = problem.l * max(tiles, 1) <= _SPLIT_TILES * gpu.sms
        most = problem.k // _SLICE_K if few and problem.k >= _SPLIT_K else 0
        splits = _SPLITS[: bisect(_SPLITS, most)]
    else:
        splits = _slices(problem, split)
    if 0 in (problem.m, problem.n, problem.k, problem.l):
        packs, splits = ("",), ()  # there is nothing to copy, or to cut
    if kernel != "auto" and registry.get(kernel).runs_on != "gpu":
        if any(packs) or (splits and split != "auto"):
            raise OptionError(
                f"options pack and split_k are for kernels that are compiled here, and "
                f"{kernel!r} is not one of them: leave them out"
            )
        splits = ()
    return _Asked(options, packs, splits)


def _slices(problem: GemmProblem, split: Any) -> tuple[int, ...]:
    """Return the slices that were asked for: none for 1."""
    try:
        count = int(split) if isinstance(split, str) else operator.index(split)
    except (TypeError, ValueError):
        count = 0
    if count < 1:
        raise OptionError(
            f"option split_k={split!r} does not fit; expected 'auto' or 1 or more slices of K"
        )
    count = min(count, max(problem.k, 1))
    if count * problem.l > _MOST_SLICES:
        raise OptionError(
            f"option split_k={split} cuts each of l={problem.l} products; expected "
            f"{max(1, _MOST_SLICES // problem.l)} slices or fewer, for {_MOST_SLICES} in all"
        )
    return (count,) if count > 1 else ()


#: Slices are counted in 32 bits.
_MOST_SLICES = 2**31 - 1
#: The least k that is cut where nobody says, the least of a slice then, and the most tiles of C for
#: each multiprocessor: short sums gain nothing, and many tiles fill a GPU.
_SPLIT_K, _SLICE_K, _SPLIT_TILES = 128, 32, 2


def _worth_packing(problem: GemmProblem, one: Matrix) -> bool:
    """Whether a kernel may like another layout of this operand better than its own."""
    transposed = wants_k_major(problem) and one.major != "K"
    return transposed or access_bytes(one, False)[0] < 16


@cache
def gpu_of_device(device: int) -> Gpu:
    """Return what a device is, with the multiprocessors that its driver says it has."""
    from cute_gemm.run.driver import device_arch, device_name, multiprocessors

    return of_device(device_name(device), device_arch(device), multiprocessors(device))


class _Shelf(NamedTuple):
    """Legal configs of one class of problems by route, and their prices, where they have any.

    A ``split_k`` of 0: that of the call. ``barred``: infinity, in the first row for configs that
    have it, in the second for the others, else 0; ``packs``: which number in the packs that were
    asked for each has.
    """

    offers: list[tuple[Kernel, Any, Route]]
    prices: Prices | None
    barred: np.ndarray
    packs: np.ndarray


#: By the configs of all classes, of which each takes up to 2 KB: classes have tens to hundreds.
_shelves: Kept[Any, _Shelf] = Kept(1 << 17, "problem_classes", lambda shelf: len(shelf.offers))


def _shelf(
    problem: GemmProblem, given: dict[str, GemmProblem], arch: str, kernel: str, asked: _Asked,
    gpu: Gpu,
) -> _Shelf:  # fmt: skip
    """Return the configs for a problem's class: what it depends on beside its extents.

    ``given``: what the kernel is given with each choice of operands packed.
    """
    kernels = _contenders(asked.options) if kernel == "auto" else [registry.get(kernel)]
    options = tuple(
        (name, tuple(value) if isinstance(value, list) else value)
        for name, value in sorted(asked.options.items())
    )
    whole = [given[pack] for pack in asked.packs]
    parts = whole if len(asked.splits) != 1 else []
    if asked.splits:
        k, count = slice_extents(problem, asked.splits[0], 1)
        parts = parts + [replace(each, k=k, l=problem.l * count) for each in whole]
    traits = [(id(made), made.traits(part)) for part in parts for made in kernels]
    key = (
        arch, gpu, options, asked.packs, len(asked.splits) == 1, asked.splits[:1],
        common_traits(problem), tuple(traits),
    )  # fmt: skip
    shelf = _shelves.get(key)  # which keeps the kernels that it names
    if shelf is None:
        shelf = _shelves[key] = _filled(given, arch, kernels, asked, gpu)
    return shelf


def _contenders(options: dict[str, Any]) -> list[Kernel]:
    """Return the kernels to choose from that have these options."""
    kernels = [registry.get(name) for name in CONTENDERS]
    contenders = [kernel for kernel in kernels if set(options) <= set(kernel.options)]
    if not contenders:
        several = "s" * (len(options) > 1)
        owners = [set(registry.options().get(name, ())) for name in options]
        having = [name for name in registry.names() if all(name in of for of in owners)]
        raise OptionError(
            f"kernel='auto' chooses from {', '.join(CONTENDERS)}, none of which has the "
            f"option{several} {' and '.join(map(repr, options))}; "
            + (f"name a kernel that has: {', '.join(having)}" if having else "leave one out")
        )
    return contenders


def _filled(
    given: dict[str, GemmProblem], arch: str, kernels: Sequence[Kernel], asked: _Asked, gpu: Gpu
) -> _Shelf:
    offers: list[tuple[Kernel, Any, Route]] = []
    footprints: list[Footprint] = []
    refused: Exception | None = None
    # With a number of slices that was given nothing else is tried.
    splits = [0] if len(asked.splits) == 1 else [1, 0] if asked.splits else [1]
    for pack, split in product(asked.packs, splits):
        problem = given[pack] if split else _sliced(given[pack], asked.splits[0])
        for made in kernels:
            try:
                made.check_call(problem, arch, asked.options)
                for config, cost in made.offers(problem, arch, asked.options, gpu):
                    offers.append((made, config, Route(pack, split)))
                    footprints += [cost] if cost is not None else []
            except (OptionError, UnsupportedError) as error:
                refused = refused or error
    if not offers and refused is not None:
        raise refused
    priced = len(footprints) == len(offers)
    return _Shelf(
        offers,
        Prices(footprints, gpu) if priced else None,
        np.array([(0, np.inf) if route.split_k else (np.inf, 0) for *_, route in offers]).T,
        np.array([asked.packs.index(route.pack) for *_, route in offers]),
    )


def _sliced(problem: GemmProblem, slices: int) -> GemmProblem:
    """Slices of K, with the addresses of the whole: how wide accesses are does not change.

    So the counts of A's and B's accesses serve for both.
    """
    found = sliced(problem, slices, 1)[0]
    A, B = (
        replace(one, **named(of, "alignment", "first_alignment"))
        for one, of in ((found.A, problem.A), (found.B, problem.B))
    )
    return replace(found, A=A, B=B)


class _Times:
    """Predicted seconds of a shelf's configs on a problem, each with the best number of slices."""

    def __init__(
        self, problem: GemmProblem, shelf: _Shelf, packings: dict[str, Packing],
        asked: _Asked, gpu: Gpu,
    ) -> None:  # fmt: skip
        assert shelf.prices is not None
        self._shelf = shelf
        self._packing = {pack: PACK.seconds(one, gpu) for pack, one in packings.items()}
        if not asked.splits:
            self.seconds = shelf.prices.seconds(problem)
        else:
            counts = np.array((1, *asked.splits), float)[:, None]
            behind = REDUCE.seconds(problem, counts, gpu)
            behind[0] = 0.0
            table = shelf.prices.seconds(problem, counts) + behind
            # Direct ones stay in one piece, and the others are cut.
            table[0] += shelf.barred[0]
            table[1:] += shelf.barred[1]
            self._table, self._counts, self._behind = table, counts, behind
            self.seconds = table.min(axis=0)
        if packings:
            before = np.array([self._packing.get(pack, 0.0) for pack in asked.packs])
            self.seconds = self.seconds + before[shelf.packs]

    def find(self, measured: Measured) -> int | None:
        """Return the number of a config that was measured; None where it is no choice any more."""
        for index, (made, config, _) in enumerate(self._shelf.offers):
            if measured.names(made.name, config.name, self.route(index)[0]):
                return index
        return None

    def route(self, index: int) -> tuple[Route, dict[str, float]]:
        """Return the route of a config, and the seconds of its passes."""
        route = self._shelf.offers[index][2]
        passes = {"packing": self._packing[route.pack]} if route.pack else {}
        if not route.split_k:
            best = int(self._table[:, index].argmin())
            route = route._replace(split_k=int(self._counts[best, 0]))
            passes["reduction"] = float(self._behind[best, 0])
        return route, passes
