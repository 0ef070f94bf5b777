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
        pairs = [tuple(map(int, word.split("x"))) for word in text.split(",")]
    except ValueError:
        pairs = []
    if not pairs or any(len(x) != 2 or min(x) < 1 for x in pairs):
        raise OptionError(f"--layer {text}; expected N x K of weights, such as 4096x4096")
    return [(n, k) for n, k in pairs]


def tokens(text: str) -> range:
    """Return the numbers of tokens of ``1:8192``, or of ``64:8192:64``, both ends included."""
    try:
        first, last, *step = map(int, text.split(":"))
        numbers = range(first, last + 1, *step)
    except (ValueError, TypeError):
        numbers = range(0)
    if not numbers or numbers[0] < 1 or numbers.step < 1:
        raise OptionError(
            f"--tokens {text}; expected FIRST:LAST or FIRST:LAST:STEP, such as 1:8192"
        )
    return numbers


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
        selected = plan("NT", m=m, n=n, k=k, storage="C", order="C", backend="cpu", **given)
        candidates = selected.candidates(within=1 + within)
        seconds = [x.prediction.seconds if x.prediction else 1.0 for x in candidates]
        kept: dict[tuple[Any, ...], Any] = {}
        for candidate, time in zip(candidates, seconds, strict=True):
            key = candidate.kernel.name, candidate.config.name, candidate.algorithm
            kept.setdefault(key, (candidate, time / seconds[0]))
        rows.append(selected)
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
    for selected, kept in zip(rows, near, strict=True):
        candidate, ratio = min((kept[key] for key in taken & kept.keys()), key=lambda x: x[1])
        plans.append(selected.taking(candidate))
        ratios.append(ratio)
    return Layer(n, k, plans, len(taken), len(keys), float(np.mean(ratios)), max(ratios))
