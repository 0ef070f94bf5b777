"""Factors on predicted times that measured times ask for, by boosted trees.

A prediction knows what units do, not how they get in each other's way. What it misses is regular:
the ratio of measured to predicted times depends on the tile, on the rounds of CTAs and on what the
prediction is made of. A `Correction` is that ratio as a sum of small trees, fitted to measured
times (`calibrate.boost`) of one GPU and part of its `Calibration`.

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

#: What trees compare, as `Predictions.features` returns it: of a config; of its launch, with the
#: part of its last round of CTAs that is empty and the parts of its tiles that are inside of C; of
#: its predicted time, with parts of the seconds.
FEATURES = (
    "tile M", "tile N", "tile K", "cluster M", "cluster N", "resident CTAs", "exposed", "lone",
    "slices", "k tiles", "rounds", "last round", "inside M", "inside N", "seconds",
    "L2", "DRAM", "launch", "start", "end", "busy", "TMA", "latency",
    "shared memory", "L1", "issue",
)  # fmt: skip
#: Levels of a tree.
LEVELS = 6
#: Rows of features that are looked up at a time: the bytes of a word.
_ROWS = 8
#: What an answer of each level adds to the number of a leaf.
_BITS = np.array([1 << level for level in range(LEVELS)], np.uint64)
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
    def _arrays(self) -> tuple[np.ndarray, ...]:
        """Features and thresholds by level and tree, values by tree, and where those of each begin.

        Thresholds and beginnings are there for each of `_ROWS` rows, which are looked up together.
        """
        features, thresholds, values = map(np.array, zip(*self.trees, strict=True))
        begins = np.arange(len(self.trees)) << LEVELS
        return (
            features.T.ravel(), thresholds.T.reshape(-1, 1).repeat(_ROWS, axis=1), values.ravel(),
            begins.repeat(_ROWS),
        )  # fmt: skip

    def logarithms(self, features: np.ndarray) -> np.ndarray:
        """Return the logarithm of the factor for each row of features (`Predictions.features`)."""
        of, thresholds, values, begins = self._arrays
        rows, columns = len(features), features.T
        if rows % _ROWS:
            columns = np.pad(columns, ((0, 0), (0, -rows % _ROWS)))
        out = np.empty(columns.shape[1])
        for begin in range(0, rows, _ROWS):
            some = slice(begin, begin + _ROWS)
            # Answers are bytes of 0 or 1, of eight rows in a word: a sum over levels makes them
            # numbers of leaves.
            exceeds = (columns[:, some].take(of, axis=0) > thresholds).view(np.uint64)
            leaves = (_BITS @ exceeds.reshape(LEVELS, -1)).view(np.uint8) + begins
            out[some] = np.add.reduce(values.take(leaves).reshape(-1, _ROWS))
        return out[:rows]

    def factors(self, features: np.ndarray) -> np.ndarray:
        """Return the factor on the predicted time for each row of features."""
        return np.exp(self.logarithms(features))


def correct_least(
    seconds: np.ndarray, factors: Callable[[np.ndarray], np.ndarray]
) -> dict[int, float]:
    """Correct the least of these seconds, in place, until the least of all is a corrected one.

    ``factors``: of the seconds at some indices. Returns the factors by index.
    """
    left, known = seconds.copy(), dict[int, float]()
    best, least_left = np.inf, 0.0
    last = min(_LEAST, len(left) - 1)
    while least_left < best:
        order = left.argpartition(last)
        least = order[:_LEAST]
        found = left[least]
        if found.max() == np.inf:  # nothing else is left to choose from
            least, found = least[np.isfinite(found)], found[np.isfinite(found)]
        corrections = factors(least)
        corrected = found * corrections
        seconds[least], left[least] = corrected, np.inf
        best, least_left = min(best, *corrected.tolist()), left[order[last]]
        known.update(zip(least.tolist(), corrections.tolist(), strict=True))
    return known
