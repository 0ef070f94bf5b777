"""Factors on predicted times that measured times ask for, by boosted trees.

A price knows what units do, not how they get in each other's way. What it misses is regular: the
ratio of measured to predicted times depends on the tile, on the rounds of CTAs and on what the
price is made of. A `Correction` is that ratio as a sum of small trees, fitted to measured times
(`calibrate.boost`) of one GPU and part of its `Calibration`.

All nodes of a level of a tree compare the same feature with the same threshold, as in CatBoost
(Prokhorenkova et al. 2018, "CatBoost: unbiased boosting with categorical features"): the answers
are the bits of the leaf's number, and a few operations on arrays evaluate all trees.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

#: What trees compare, as `Prices.features` returns it: of a config; of its launch, with the part of
#: its last round of CTAs that is empty and the parts of its tiles that are inside of C; of its
#: predicted time, with parts of the seconds.
FEATURES = (
    "tile M", "tile N", "tile K", "cluster M", "cluster N", "resident CTAs", "exposed", "lone",
    "slices", "k tiles", "rounds", "last round", "inside M", "inside N", "seconds",
    "L2", "DRAM", "launch", "start", "end", "busy", "TMA", "latency",
    "shared memory", "L1", "issue",
)  # fmt: skip
#: Levels of a tree.
LEVELS = 6
#: Rows of features that are looked up at a time.
_ROWS = 4096
#: Times that are corrected at once: more of the least never held the fastest config.
_LEAST = 8


class Tree(NamedTuple):
    """A tree: of each level a feature and a threshold, and a value for each leaf.

    The leaf's number has a bit for each level, the first the least significant: whether the feature
    exceeds the threshold.
    """

    features: tuple[int, ...]
    thresholds: tuple[float, ...]
    values: tuple[float, ...]


@dataclass(frozen=True)
class Correction:
    """Trees, whose values add up to the logarithm of measured over predicted time."""

    trees: tuple[Tree, ...]

    @cached_property
    def _arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Features and thresholds of all trees, 8 of each, values, and where those of each begin.

        A leaf's number is a byte: nothing exceeds the thresholds of the levels that are missing.
        """
        features, thresholds, values = zip(*self.trees, strict=True)
        missing = (0, 0), (0, 8 - LEVELS)
        begins = np.arange(len(self.trees)) << LEVELS
        return (
            np.pad(np.array(features), missing).ravel(),
            np.pad(np.array(thresholds), missing, constant_values=np.inf).ravel(),
            np.concatenate(values),
            begins,
        )

    def logarithms(self, features: np.ndarray) -> np.ndarray:
        """Return the logarithm of the factor for each row of features (`Prices.features`)."""
        of, thresholds, values, begins = self._arrays
        out = []
        for begin in range(0, len(features), _ROWS):
            exceeds = features[begin : begin + _ROWS].take(of, axis=1) > thresholds
            leaves = np.packbits(exceeds, axis=1, bitorder="little")
            out.append(values.take(leaves + begins).sum(axis=1))
        return np.concatenate(out) if out else np.zeros(0)

    def factors(self, features: np.ndarray) -> np.ndarray:
        """Return the factor on the predicted time for each row of features."""
        return np.exp(self.logarithms(features))


def correct_least(
    seconds: np.ndarray, factors: Callable[[np.ndarray], np.ndarray]
) -> dict[int, float]:
    """Correct the least of these seconds, in place, until the least of all is a corrected one.

    ``factors``: of the seconds at some indices, which ascend. Returns the factors by index.
    """
    left, known = seconds.copy(), dict[int, float]()
    while int(seconds.argmin()) not in known:
        least = left.argpartition(min(_LEAST, len(left)) - 1)[:_LEAST]
        least = np.sort(least[np.isfinite(left[least])])
        if not len(least):  # nothing is left to choose from
            break
        corrections = factors(least)
        seconds[least] *= corrections
        left[least] = np.inf
        known.update(zip(least.tolist(), corrections.tolist(), strict=True))
    return known
