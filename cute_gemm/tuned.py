"""Choices that were measured: a file per GPU beside the cubins, read once in a process.

What is not of this version, or not understood, counts as not there, and goes when the next choice
is stored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from cute_gemm._text import duration
from cute_gemm.model.price import pitch
from cute_gemm.problem.passes import Route
from cute_gemm.toolchain import cache

if TYPE_CHECKING:
    from pathlib import Path

    from cute_gemm.problem.problem import GemmProblem

_FORMAT = 2


class Measured(NamedTuple):
    """The fastest of the configs that were measured for a problem.

    ``config``: its name; ``seconds``: the median of a call; ``configs``: how many were measured;
    ``predicted``: the one that prices prefer, ``""`` where it is this one, and its seconds, 0 where
    it did not run; ``advised``: those that ``nvidia-matmul-heuristics`` alone recommended, and the
    seconds of each, None where it was not asked; ``advice_won``: whether this is one of them.
    """

    kernel: str
    config: str
    pack: str
    split_k: int
    seconds: float
    configs: int
    predicted: str = ""
    predicted_seconds: float = 0.0
    advised: dict[str, float] | None = None
    advice_won: bool = False

    def names(self, kernel: str, config: str, route: Route) -> bool:
        """Whether it is this one."""
        mine = self.kernel, self.config, Route(self.pack, self.split_k)
        return mine == (kernel, config, route)

    def __str__(self) -> str:
        least = f"the least of {self.configs} configs"
        of = least if self.configs > 1 else "the only config that ran"
        text = f"{duration(self.seconds)} measured, {of}"
        text += ", recommended by nvidia-matmul-heuristics alone" * self.advice_won
        if not self.predicted:
            return f"{text}, as predicted"
        took = f"took {duration(self.predicted_seconds)}" if self.predicted_seconds else "failed"
        return f"{text}; {self.predicted}, which was predicted to be, {took}"


#: Choices by GPU and question, of those GPUs that were asked for.
_choices: dict[str, dict[str, Measured]] = {}


def find(
    gpu: str, problem: GemmProblem, arch: str, kernel: str, options: Mapping[str, Any]
) -> Measured | None:
    """Return what was measured on a GPU for such a problem and such words of a call, or None."""
    known = _choices.get(gpu)
    if known is None:
        known = _choices[gpu] = _read(gpu)
    return known.get(question(problem, arch, kernel, options)) if known else None


def store(
    gpu: str, problem: GemmProblem, arch: str, kernel: str, options: Mapping[str, Any],
    choice: Measured,
) -> None:  # fmt: skip
    """Keep a choice, in this process and on disk, beside what others have stored there."""
    asked, name = question(problem, arch, kernel, options), _file(gpu)
    with cache.building(name):
        known = {**_choices.get(gpu, {}), **_read(gpu), asked: choice}
        cache.put_beside(name, _encode(gpu, known))
    _choices[gpu] = known


def question(problem: GemmProblem, arch: str, kernel: str, options: Mapping[str, Any]) -> str:
    """Return all that a choice depends on but the GPU: the problem's class and a call's words."""
    words = [arch, kernel, f"{problem.m}x{problem.n}x{problem.k}", problem.compute]
    words += [f"l={problem.l}"] * (problem.l != 1) + [problem.epilogue.name]
    for x in problem.matrices:
        shared = ",shared" * (problem.l != 1 and not x.batch_stride)
        conj = ",conj" * x.conj
        words.append(f"{x.name}={x.dtype},{x.major},{x.alignment},{pitch(x)}{conj}{shared}")
    words += [f"{name}={value}" for name, value in sorted(options.items())]
    return " ".join(filter(None, words))


def stored() -> dict[str, int]:
    """Return how many choices this directory has of each GPU."""
    found = {}
    for path in _files():
        with suppress(OSError):
            gpu, choices = _decode(cache.read(path))
            found[gpu] = len(choices)
    return {gpu: count for gpu, count in found.items() if count}


def clear() -> None:
    """Delete all."""
    _choices.clear()
    for path in _files():
        with suppress(OSError):
            path.unlink()


def _read(gpu: str) -> dict[str, Measured]:
    found: dict[str, Measured] = {}
    for data in cache.beside(_file(gpu)):
        name, choices = _decode(data)
        if name == gpu:
            found = {**choices, **found}
    return found


def _version() -> dict[str, Any]:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return {"format": _FORMAT, "version": version("cute-gemm")}
    except PackageNotFoundError:  # a checkout that is not installed
        return {"format": _FORMAT, "version": ""}


def _encode(gpu: str, choices: dict[str, Measured]) -> bytes:
    rows = {asked: one._asdict() for asked, one in choices.items()}
    return json.dumps({**_version(), "gpu": gpu, "choices": rows}, indent=1).encode()


def _decode(data: bytes) -> tuple[str, dict[str, Measured]]:
    """Return GPU and choices of a file; none where it is of another version, or damaged."""
    try:
        read = json.loads(data)
        if any(read[name] != value for name, value in _version().items()):
            return "", {}
        return str(read["gpu"]), {asked: _choice(one) for asked, one in read["choices"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return "", {}


def _choice(row: dict[str, Any]) -> Measured:
    kinds: tuple[Any, ...] = (
        str, str, str, int, float, int, str, float, _advised, bool,
    )  # fmt: skip
    return Measured(*(kind(row[x]) for kind, x in zip(kinds, Measured._fields, strict=True)))


def _advised(found: Any) -> dict[str, float] | None:
    return None if found is None else {str(name): float(took) for name, took in found.items()}


def _file(gpu: str) -> str:
    return f"tuned-{re.sub('[^A-Za-z0-9.]+', '-', gpu)}.json"


def _files() -> list[Path]:
    try:
        return sorted(cache.directory().glob("tuned-*.json"))
    except OSError:
        return []
