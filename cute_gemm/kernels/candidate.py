"""``Candidate`` of kernel selection, ``Measured`` times, and sentences that explain selections."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from cute_gemm._text import duration
from cute_gemm.cost_model.prediction import Prediction
from cute_gemm.kernels.options import spelled
from cute_gemm.problem.parts.packing import DIRECT, Algorithm, packed_names

if TYPE_CHECKING:
    from cute_gemm.kernels.base import Kernel


class Candidate(NamedTuple):
    """A kernel, config and algorithm that support the problem, and their predicted time."""

    kernel: Kernel
    config: Any
    prediction: Prediction | None  # None if the kernel has no cost model
    algorithm: Algorithm = DIRECT


class Measured(NamedTuple):
    """The fastest of the configs measured for a problem.

    ``config``: its name; ``seconds``: the median of a call; ``configs``: number of configs
    measured; ``predicted``: the config with the lowest predicted time, ``""`` if it is this one;
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

    def names(self, kernel: str, config: str, algorithm: Algorithm) -> bool:
        """Return whether kernel, config and algorithm are those of this measurement."""
        mine = self.kernel, self.config, Algorithm(self.pack, self.split_k)
        return mine == (kernel, config, algorithm)

    def __str__(self) -> str:
        least = f"the least of {self.configs} configs"
        standing = least if self.configs > 1 else "the only config that ran"
        text = f"{duration(self.seconds)} measured, {standing}"
        if not self.predicted:
            return f"{text}, as predicted"
        outcome = f"took {duration(self.predicted_seconds)}" if self.predicted_seconds else "failed"
        return f"{text}; {self.predicted}, which was predicted to be the fastest, {outcome}"


def why(candidates: Sequence[Candidate], by_name: bool, measured: str = "") -> str:
    """Return why the first candidate was selected, with figures and the next candidate.

    ``measured``: the result of a measurement, in words.
    """
    asked = "asked for by name" if by_name else ""
    prediction = candidates[0].prediction
    if prediction is None:
        return "; ".join(filter(None, (asked, "its time is not predicted")))
    parts = " and ".join(
        f"{duration(seconds)} of {name}" for name, seconds in prediction.largest(2)
    )
    text = f"{duration(prediction.seconds)} predicted ({parts} alone)"
    if measured:
        text = f"{measured}; {text}"
    elif len(candidates) > 1:
        text += f", the least of {len(candidates)} configs; next "
        text += ", ".join(
            f"{name} {duration(other.prediction.seconds)}"
            for name, other in list(zip(labels(candidates[:3]), candidates, strict=False))[1:]
            if other.prediction is not None
        )
    return "; ".join(filter(None, (asked, text, _why_auxiliary(candidates, prediction))))


def _why_auxiliary(candidates: Sequence[Candidate], prediction: Prediction) -> str:
    """Return the part of the first candidate's time spent in auxiliary kernels, and the saving."""
    algorithm, said = candidates[0].algorithm, []
    if algorithm.pack:
        what = " and ".join(packed_names(algorithm.pack))
        said.append(f"packing {what} takes {duration(prediction.terms['packing'])}")
    if "reduction" in prediction.terms:
        slices = f"adding {algorithm.split_k} slices of K"
        what = slices if algorithm.split_k > 1 else "pairing columns"
        said.append(f"{what} takes {duration(prediction.terms['reduction'])}")
    text = f"{' and '.join(said)} of it" if said else ""
    for other in candidates if algorithm != DIRECT else ():
        if other.algorithm == DIRECT and other.prediction is not None:
            return f"{text}; without, {label(other)} {duration(other.prediction.seconds)}"
    return text


def label(candidate: Candidate, whole: bool = False) -> str:
    """Return a label of a candidate, as in ``"sm90_wgmma 128x256x64 g2 c2x1 x"``.

    Other options follow the tile, as in the config's name: for ``sm90_wgmma`` warp groups, p for
    warp groups that take turns, the cluster, and x for A and B swapped. ``whole``: with the
    config's whole name.
    """
    config = candidate.config
    words = [config.name] if whole else [candidate.kernel.name, spelled(config.tile)]
    for option, text in () if whole else candidate.kernel.label_options.items():
        value = getattr(config, option)
        if value not in (0, (1, 1)):
            words.append(text.format(spelled(value)))
    if candidate.algorithm.pack:
        words.append(f"with {' and '.join(packed_names(candidate.algorithm.pack))} packed")
    if candidate.algorithm.split_k > 1:
        words.append(f"in {candidate.algorithm.split_k} slices of K")
    elif candidate.prediction is not None and "reduction" in candidate.prediction.terms:
        words.append("with a launch that pairs columns")
    return " ".join(filter(None, words))


def labels(candidates: Sequence[Candidate]) -> list[str]:
    """Return the label of each candidate, with more options if labels would be equal."""
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
