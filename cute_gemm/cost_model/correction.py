"""Factors on predicted times, by boosted trees that are fitted to measured times.

A prediction models units, but not their interference. Its error is systematic: the ratio of
measured to predicted times depends on the tile, on the rounds of CTAs and on the terms of the
prediction. A `Correction` models that ratio as a sum of small trees, fitted to measured times of
one GPU (`calibrate.boost`). It is part of the GPU's `Calibration`.

All nodes of a level of a tree compare the same feature with the same threshold, as in CatBoost
(Prokhorenkova et al. 2018, "CatBoost: unbiased boosting with categorical features"): the results
are the bits of the leaf's number, and a few operations on arrays evaluate all trees.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

#: Features that trees compare, as `Predictions.features` returns them: of a config; of its launch,
#: with the empty part of its last round of CTAs and the parts of its tiles inside C; of its
#: predicted time, with parts of the seconds.
FEATURES = (
    "tile M", "tile N", "tile K", "cluster M", "cluster N", "resident CTAs", "exposed", "lone",
    "slices", "k tiles", "rounds", "last round", "inside M", "inside N", "seconds",
    "L2", "DRAM", "launch", "start", "end", "busy", "TMA", "latency",
    "shared memory", "L1", "issue",
)  # fmt: skip
#: Levels of a tree.
LEVELS = 6
#: Rows of features that are evaluated at a time: the bytes of a word.
_ROWS = 8
#: Contribution of each level to the number of a leaf.
_BITS = np.array([1 << level for level in range(LEVELS)], np.uint64)
#: Times that are corrected at once, the least first: larger numbers never contained the fastest
#: config.
_LEAST = 8


class Tree(NamedTuple):
    """A tree: a feature and a threshold for each level, and a value for each leaf.

    The leaf's number has a bit for each level, the first being the least significant: whether the
    feature exceeds the threshold.
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
        """Features and thresholds by level and tree, values by tree, and their first indices.

        Thresholds and first indices are repeated for `_ROWS` rows, which are evaluated together.
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
            # Results are bytes of 0 or 1, those of eight rows in a word: the sum over levels gives
            # the numbers of leaves.
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
    """Correct the least of these seconds in place, until the least of all is corrected.

    ``factors``: function from indices to factors of their seconds. Return the factors by index.
    """
    left, known = seconds.copy(), dict[int, float]()
    best, least_left = np.inf, 0.0
    last = min(_LEAST, len(left) - 1)
    while least_left < best:
        order = left.argpartition(last)
        least = order[:_LEAST]
        found = left[least]
        if found.max() == np.inf:  # no seconds are left
            least, found = least[np.isfinite(found)], found[np.isfinite(found)]
        corrections = factors(least)
        corrected = found * corrections
        seconds[least], left[least] = corrected, np.inf
        best, least_left = min(best, *corrected.tolist()), left[order[last]]
        known.update(zip(least.tolist(), corrections.tolist(), strict=True))
    return known
