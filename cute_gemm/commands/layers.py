"""The fewest kernels that serve a layer at any number of tokens: ``cute-gemm compile --layer``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from cute_gemm.api import plan
from cute_gemm.errors import OptionError
from cute_gemm.plan.plan import Plan


class Layer(NamedTuple):
    """The kernels of a layer ``y = x @ w.T``, w of N x K.

    ``plans``: for each number of tokens; ``kernels``: number of kernels, out of ``candidates``;
    ``mean`` and ``worst``: predicted times over those of the best kernels.
    """

    n: int
    k: int
    plans: list[Plan]
    kernels: int
    candidates: int
    mean: float
    worst: float


def shapes(text: str) -> list[tuple[int, int]]:
    """Return N and K of ``4096x4096,11008x4096``."""
    try:
        found = [tuple(map(int, word.split("x"))) for word in text.split(",")]
    except ValueError:
        found = []
    if not found or any(len(x) != 2 or min(x) < 1 for x in found):
        raise OptionError(f"--layer {text}; expected N x K of weights, such as 4096x4096")
    return [(n, k) for n, k in found]


def tokens(text: str) -> range:
    """Return the numbers of tokens of ``1:8192``, or of ``64:8192:64``, both ends included."""
    try:
        first, last, *step = map(int, text.split(":"))
        found = range(first, last + 1, *step)
    except (ValueError, TypeError):
        found = range(0)
    if not found or found[0] < 1 or found.step < 1:
        raise OptionError(
            f"--tokens {text}; expected FIRST:LAST or FIRST:LAST:STEP, such as 1:8192"
        )
    return found


def layer(
    n: int, k: int, numbers: Sequence[int], within: float, tell: Callable[[int, int], None],
    **given: Any,
) -> Layer:  # fmt: skip
    """Select the fewest kernels of which one is predicted within ``within`` of the best at each m.

    The selection is greedy: first the kernel that serves the most numbers of tokens, then the one
    that serves most of the rest, and so on.
    """
    rows: list[Plan] = []
    near: list[dict[tuple[Any, ...], Any]] = []
    for done, m in enumerate(numbers):
        tell(done, len(numbers))
        found = plan("NT", m=m, n=n, k=k, storage="C", order="C", backend="cpu", **given)
        listed = [
            (x, x.prediction.seconds if x.prediction else 1.0)
            for x in found.candidates(within=1 + within)
        ]
        kept: dict[tuple[Any, ...], Any] = {}
        for one, seconds in listed:
            key = one.kernel.name, one.config.name, one.algorithm
            kept.setdefault(key, (one, seconds / listed[0][1]))
        rows.append(found)
        near.append(kept)
    keys = list(dict.fromkeys(key for kept in near for key in kept))
    serves = np.array([[key in kept for kept in near] for key in keys])
    taken: set[tuple[Any, ...]] = set()
    left = np.ones(len(near), bool)
    while left.any():
        index = int((serves & left).sum(1).argmax())
        taken.add(keys[index])
        left &= ~serves[index]
    plans, ratios = [], []
    for found, kept in zip(rows, near, strict=True):
        candidate, ratio = min((kept[key] for key in taken & kept.keys()), key=lambda x: x[1])
        plans.append(found.taking(candidate))
        ratios.append(ratio)
    return Layer(n, k, plans, len(taken), len(keys), float(np.mean(ratios)), max(ratios))
