"""``Candidate``: what a choice is made from, ``Measured`` times, and the sentences that say why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from cute_gemm._text import duration
from cute_gemm.cost_model.price import Price
from cute_gemm.problem.parts.packing import DIRECT, Route, packed_names

if TYPE_CHECKING:
    from cute_gemm.kernels.base import Kernel


class Candidate(NamedTuple):
    """A kernel with a config and a route that take the problem, and what it is to cost."""

    kernel: Kernel
    config: Any
    price: Price | None  # None where nothing is known of the kernel
    route: Route = DIRECT


class Measured(NamedTuple):
    """The fastest of the configs that were measured for a problem.

    ``config``: its name; ``seconds``: the median of a call; ``configs``: number of configs
    measured; ``predicted``: the config of the lowest price, ``""`` if it is this one;
    ``predicted_seconds``: its time, 0 if it did not run.
    """

    kernel: str
    config: str
    pack: str
    split_k: int
    seconds: float
    configs: int
    predicted: str = ""
    predicted_seconds: float = 0.0

    def names(self, kernel: str, config: str, route: Route) -> bool:
        """Whether kernel, config and route are those of this choice."""
        mine = self.kernel, self.config, Route(self.pack, self.split_k)
        return mine == (kernel, config, route)

    def __str__(self) -> str:
        least = f"the least of {self.configs} configs"
        standing = least if self.configs > 1 else "the only config that ran"
        text = f"{duration(self.seconds)} measured, {standing}"
        if not self.predicted:
            return f"{text}, as predicted"
        outcome = f"took {duration(self.predicted_seconds)}" if self.predicted_seconds else "failed"
        return f"{text}; {self.predicted}, which was predicted to be, {outcome}"


def why(candidates: Sequence[Candidate], by_name: bool, measured: str = "") -> str:
    """Say why the first of these was chosen, with figures, and who came next.

    ``measured``: what a measurement says of it.
    """
    asked = "asked for by name" if by_name else ""
    price = candidates[0].price
    if price is None:
        return "; ".join(filter(None, (asked, "its time is not predicted")))
    parts = " and ".join(f"{duration(seconds)} of {name}" for name, seconds in price.largest(2))
    text = f"{duration(price.seconds)} predicted ({parts} alone)"
    if measured:
        text = f"{measured}; {text}"
    elif len(candidates) > 1:
        text += f", the least of {len(candidates)} configs; next "
        text += ", ".join(
            f"{name} {duration(other.price.seconds)}"
            for name, other in list(zip(labels(candidates[:3]), candidates, strict=False))[1:]
            if other.price is not None
        )
    return "; ".join(filter(None, (asked, text, _why_passes(candidates, price))))


def _why_passes(candidates: Sequence[Candidate], price: Price) -> str:
    """Say what passes take of the first one's time, and what those before it and behind K save."""
    route = candidates[0].route
    said = []
    if route.pack:
        what, seconds = " and ".join(packed_names(route.pack)), duration(price.terms["packing"])
        said.append(f"packing {what} takes {seconds}")
    if "reduction" in price.terms:
        seconds = duration(price.terms["reduction"])
        adds = f"adding {route.split_k} slices of K"
        said.append(f"{adds if route.split_k > 1 else 'pairing columns'} takes {seconds}")
    for candidate in candidates:
        if route != DIRECT and candidate.route == DIRECT and candidate.price is not None:
            direct = f"{label(candidate)} {duration(candidate.price.seconds)}"
            return f"{' and '.join(said)} of it; without, {direct}"
    return f"{' and '.join(said)} of it" if said else ""


def label(candidate: Candidate, whole: bool = False) -> str:
    """Return ``"sm90_wgmma 128x256x64 g2 c2x1 x"``, which no other candidate is called.

    Behind the tile stands what else tells them apart, as in the config's name: of ``sm90_wgmma``
    warp groups, p for groups that take turns, the cluster and x for A and B swapped. ``whole``:
    with all of the config's name.
    """
    config = candidate.config
    words = [config.name] if whole else [candidate.kernel.name, _extents(config.tile)]
    for option, text in () if whole else candidate.kernel.label_options.items():
        value = getattr(config, option)
        if value not in (0, (1, 1)):
            words.append(text.format(_extents(value) if isinstance(value, tuple) else value))
    if candidate.route.pack:
        words.append(f"with {' and '.join(packed_names(candidate.route.pack))} packed")
    if candidate.route.split_k > 1:
        words.append(f"in {candidate.route.split_k} slices of K")
    elif candidate.price is not None and "reduction" in candidate.price.terms:
        words.append("with columns paired behind it")
    return " ".join(filter(None, words))


def labels(candidates: Sequence[Candidate]) -> list[str]:
    """Return the label of each; where they are equal, with the options that tell them apart."""
    names = [label(candidate) for candidate in candidates]
    for name in {name for name in names if names.count(name) > 1}:
        alike = [at for at, other in enumerate(names) if other == name]
        options = candidates[alike[0]].kernel.options
        values = [
            {option: getattr(candidates[at].config, option) for option in options} for at in alike
        ]
        for at, own in zip(alike, values, strict=True):
            differ = (x for x in options if any(other[x] != own[x] for other in values))
            names[at] = " ".join((name, *(f"{option} {own[option]}" for option in differ)))
    return names


def _extents(of: tuple[int, ...]) -> str:
    return "x".join(map(str, of))
