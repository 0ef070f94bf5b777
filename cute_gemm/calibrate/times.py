"""Measured times: of a problem, several configs each, as lines of JSON in a compressed file."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from cute_gemm import api
from cute_gemm.errors import GemmError, OptionError
from cute_gemm.gpus.gpu import Gpu
from cute_gemm.kernels.candidate import Candidate
from cute_gemm.plan.plan import Plan
from cute_gemm.problem.parts.packing import Algorithm

#: Format of files; files of other formats are refused.
_FORMAT = 1


class Entry(NamedTuple):
    """A config on a problem: kernel, name of the config, packed operands, slices of K, and time.

    ``microseconds``: of a call, with its auxiliary kernels; 0 before it is measured.
    """

    kernel: str
    config: str
    pack: str
    split_k: int
    microseconds: float = 0.0


@dataclass(frozen=True)
class Contest:
    """A problem, as arguments of `plan`, and configs that compute it."""

    sizes: dict[str, Any]
    entries: tuple[Entry, ...]

    def plan(self, gpu: Gpu) -> Plan:
        """Return the plan of the problem on a GPU, which need not exist."""
        given = dict(self.sizes)
        return api.plan(
            given.pop("op"), **given, arch=str(gpu.arch), gpu=gpu, backend="cpu", kernel="auto"
        )

    def candidates(self, gpu: Gpu) -> dict[Entry, Candidate]:
        """Return the candidate of each entry, without those that the package no longer has."""
        candidates = {
            (x.kernel.name, x.config.name, x.algorithm.pack): x for x in self.plan(gpu).candidates()
        }
        known = {}
        for entry in self.entries:
            candidate = candidates.get((entry.kernel, entry.config, entry.pack))
            if candidate is not None:
                algorithm = Algorithm(entry.pack, entry.split_k)
                known[entry] = candidate._replace(algorithm=algorithm, prediction=None)
        return known


def entry(candidate: Candidate) -> Entry:
    """Return the entry of a candidate, not yet measured."""
    algorithm = candidate.algorithm
    return Entry(candidate.kernel.name, candidate.config.name, algorithm.pack, algorithm.split_k)


@dataclass(frozen=True)
class Times:
    """The times of one GPU, and their sources."""

    gpu: str
    source: str
    contests: list[Contest]

    @property
    def count(self) -> int:
        """The number of times."""
        return sum(len(contest.entries) for contest in self.contests)

    def write(self, path: Path) -> None:
        """Write a file, compressed."""
        head = {"format": _FORMAT, "gpu": self.gpu, "source": self.source}
        rows = ({"sizes": x.sizes, "entries": x.entries} for x in self.contests)
        lines = "".join(json.dumps(row) + "\n" for row in (head, *rows))
        # Without a name and a time, equal times give equal files.
        path.write_bytes(gzip.compress(lines.encode(), mtime=0))


def read(path: Path) -> Times:
    """Read a file of times; raise OptionError for other files."""
    try:
        head, *rows = map(json.loads, gzip.decompress(path.read_bytes()).splitlines())
        if head["format"] != _FORMAT:
            raise ValueError(f"it has format {head['format']}, expected {_FORMAT}")
        contests = [
            Contest(row["sizes"], tuple(Entry(*values) for values in row["entries"]))
            for row in rows
        ]
        return Times(str(head["gpu"]), str(head["source"]), contests)
    except (
        OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, RecursionError,
        GemmError,
    ) as error:  # fmt: skip
        reason = getattr(error, "strerror", None) or error
        raise OptionError(
            f"times={str(path)!r} cannot be read: {reason}; expected a file that "
            "cute-gemm calibrate --times wrote"
        ) from error


def joined(several: Sequence[Times]) -> Times:
    """Return the joined times of several files of one GPU."""
    names = sorted({times.gpu for times in several})
    if len(names) > 1:
        raise OptionError(f"the times are of {', '.join(names)}; expected those of one GPU")
    sources = dict.fromkeys(times.source for times in several)
    contests = [contest for times in several for contest in times.contests]
    return Times(names[0], "; ".join(sources), contests)


def divided(contests: Iterable[Contest]) -> tuple[list[Contest], list[Contest]]:
    """Return the contests to fit, and every fourth, which is held out."""
    every = list(contests)
    return [contest for place, contest in enumerate(every) if place % 4 != 3], every[3::4]


def measured(contest: Contest, microseconds: dict[Entry, float]) -> Contest:
    """Return a contest with the times of its measured entries."""
    entries = tuple(
        entry._replace(microseconds=microseconds[entry])
        for entry in contest.entries
        if entry in microseconds
    )
    return replace(contest, entries=entries)
