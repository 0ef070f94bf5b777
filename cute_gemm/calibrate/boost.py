"""Trees of a `Correction`, fitted to the errors of predicted times: gradient boosting.

Each tree is fitted to the errors that earlier trees leave (Friedman 2001, "Greedy function
approximation: a gradient boosting machine"), on a newly drawn part of the features.
"""

from __future__ import annotations

import numpy as np

from cute_gemm.cost_model.correction import LEVELS, Tree

#: Largest number of thresholds of a feature, and share of the features that a tree may use.
_THRESHOLDS, _PART = 31, 0.7
#: Share of its errors that a tree corrects, and weight of each leaf in addition to that of
#: its samples: a leaf with few samples corrects less.
_RATE, _PRIOR = 0.4, 10.0
#: Digits of thresholds and decimals of values.
_DIGITS, _DECIMALS = 5, 4


def boosted(
    features: np.ndarray, errors: np.ndarray, weights: np.ndarray, count: int
) -> list[Tree]:
    """Return trees whose sum predicts errors, least squares by weights.

    ``features``: a row for each error; ``count``: number of trees.
    """
    thresholds = [_thresholds(column) for column in features.T]
    bins = [
        np.searchsorted(cuts, column, side="left")  # the number of thresholds that it exceeds
        for cuts, column in zip(thresholds, features.T, strict=True)
    ]
    drawn, trees = np.random.RandomState(0), []
    left = errors.astype(float)
    offered = [place for place, cuts in enumerate(thresholds) if len(cuts)]
    for _ in range(count if offered else 0):
        among = sorted(drawn.permutation(offered)[: max(1, round(_PART * len(offered)))])
        leaves, levels = np.zeros(len(left), int), []
        for level in range(LEVELS):
            cuts = {
                x: _best(bins[x], len(thresholds[x]), leaves, level, left, weights) for x in among
            }
            feature = max(among, key=lambda x: cuts[x][0])
            cut = cuts[feature][1]
            levels.append((int(feature), float(thresholds[feature][cut])))
            leaves = leaves + ((bins[feature] > cut) << level)
        sums = np.bincount(leaves, left * weights, 1 << LEVELS)
        values = _RATE * sums / (np.bincount(leaves, weights, 1 << LEVELS) + _PRIOR)
        values = values.round(_DECIMALS) + 0.0  # no -0.0
        left -= values[leaves]
        of, at = zip(*levels, strict=True)
        trees.append(Tree(of, at, tuple(values.tolist())))
    return trees


def _thresholds(column: np.ndarray) -> np.ndarray:
    """Return thresholds of a feature at even shares of its samples."""
    values = np.unique(column)
    ends = np.quantile(column, np.linspace(0, 1, _THRESHOLDS + 2)[1:-1], method="lower")
    below = np.unique(np.searchsorted(values, ends))
    below = below[below < len(values) - 1]
    between = (values[below] + values[below + 1]) / 2
    return np.unique([float(f"{x:.{_DIGITS}g}") for x in between])


def _best(
    bins: np.ndarray, cuts: int, leaves: np.ndarray, level: int, errors: np.ndarray,
    weights: np.ndarray,
) -> tuple[float, int]:  # fmt: skip
    """Return the largest decrease of errors by a threshold of a feature that cuts all leaves."""
    shape = 1 << level, cuts + 1
    place = leaves * (cuts + 1) + bins
    size = shape[0] * shape[1]
    sums = np.bincount(place, errors * weights, size).reshape(shape).cumsum(axis=1)
    heavy = np.bincount(place, weights, size).reshape(shape).cumsum(axis=1)
    below, above = sums[:, :-1], sums[:, -1:] - sums[:, :-1]
    gains = below**2 / (heavy[:, :-1] + _PRIOR)
    gains += above**2 / (heavy[:, -1:] - heavy[:, :-1] + _PRIOR)
    gain = gains.sum(axis=0)
    cut = int(gain.argmax())
    return float(gain[cut]), cut
