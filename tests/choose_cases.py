"""Select the default cases from the mutants that they detect and their time.

``python tests/choose_cases.py`` writes ``data/default_cases.txt``. The file lists the cases of
``kernels``, ``whole`` and ``gpu`` that run without ``--every-case``, and then, with a ``-``, the
test functions without such a case. Functions that are not in the file are new, and run. The times
are in ``data/costs.jsonl.gz``. ``python tests/choose_cases.py COSTS`` first stores the times that a
run with ``-p costs --every-case`` wrote, which replace those of the same folders. A case is
selected if it

1. takes less than `CHEAP` CPU seconds, or is the cheapest of its test function and takes at most
   the `DEAR` seconds of its folder,
2. detects a mutant of the stored kill matrix that no selected case detects, or has a pair of
   kernel, type, op or part (`pairs`) that no selected case has. Cases that take at most
   `OF_A_MUTANT` and `OF_A_PAIR` are taken greedily, by the number of missing items per second,
3. is for a GPU, takes at most `OF_TRIPLES`, and has one of the `triples` that fewer than two
   selected cases have.
"""

import gzip
import json
import re
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, product
from math import inf
from pathlib import Path
from typing import Any

import kill_matrix

from cute_gemm.dtypes import DTYPES
from cute_gemm.kernels import registry

#: Folders whose tests are selected by the list.
RINGS = ("kernels/", "whole/", "gpu/")
#: The stored list.
STORED = Path(__file__).parent / "data" / "default_cases.txt"
CHEAP = 0.05
#: Times of tests, as written by ``costs.py``.
COSTS = Path(__file__).parent / "data" / "costs.jsonl.gz"
#: CPU seconds above which a test function needs no case in the list.
DEAR = {"kernels": 0.5, "whole": 0.5, "gpu": inf}
#: Most CPU seconds of a case that is selected for a mutant, and for a pair.
OF_A_MUTANT, OF_A_PAIR = 4.0, 1.0
#: Number of GPU cases that must have each triple, and most CPU seconds of such a case.
TWICE, OF_TRIPLES = 2, 60.0
OPS = ("NN", "NT", "TN", "TT")


@dataclass(frozen=True)
class Chosen:
    """The stored list.

    ``cases``: ids, relative to ``tests``; ``left_out``: functions without a case that runs.
    """

    cases: frozenset[str]
    left_out: frozenset[str]

    @cached_property
    def functions(self) -> frozenset[str]:
        """The test functions of the list."""
        return self.left_out | {function(case) for case in self.cases}

    def runs(self, case: str) -> bool:
        """Return whether a case is in the list, or its function is not."""
        return case in self.cases or function(case) not in self.functions


def read(path: Path = STORED) -> Chosen:
    """Return the stored list."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return Chosen(
        frozenset(line for line in lines if line[0] != "-"),
        frozenset(line[1:] for line in lines if line[0] == "-"),
    )


def function(case: str) -> str:
    """Return the test function of a case: ``"kernels/test_steps.py::test_packed"``."""
    return case.partition("[")[0]


def words(case: str) -> frozenset[tuple[str, str]]:
    """Return the kernel, types and op in the name of a case, and its module as its part."""
    name = set(re.split(r"[^A-Za-z0-9_]+", case))
    kinds = {"kernel": registry.KERNELS, "type": (*DTYPES, "tf32"), "op": OPS}
    found = {(kind, word) for kind, known in kinds.items() for word in known if word in name}
    return frozenset(found | {("part", case.partition("::")[0])})


def pairs(case: str) -> frozenset[frozenset[tuple[str, str]]]:
    """Return a case's pairs of kernel, type and op, and of kernel and part."""
    kinds = ("kernel", "op"), ("kernel", "type"), ("op", "type"), ("kernel", "part")
    both = combinations(sorted(words(case)), 2)
    return frozenset(frozenset(pair) for pair in both if (pair[0][0], pair[1][0]) in kinds)


def triples(case: str) -> frozenset[frozenset[tuple[str, str]]]:
    """Return a case's kernel with a type and an op, and its function with each of them."""
    by_kind: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for word in words(case):
        by_kind[word[0]].append(word)
    kinds = [by_kind[kind] for kind in ("kernel", "type", "op")]
    every = set(product(*(kind or [("", "")] for kind in kinds)))
    own = {(("function", function(case)), word) for kind in kinds for word in kind}
    return frozenset(frozenset(each) for each in every | own)


def cover(wanted: dict[str, Iterable], times: int, seconds: dict[str, float]) -> list[str]:
    """Return cases that together have each item ``times`` times, or as often as it occurs.

    ``wanted``: the items of each case. The next case is the one with the most missing items per
    second.
    """
    having = {case: set(things) for case, things in wanted.items()}
    known = Counter(thing for things in having.values() for thing in things)
    missing = {thing: min(times, count) for thing, count in known.items()}
    chosen: list[str] = []
    while missing:
        best = max(having, key=lambda x: (len(having[x] & missing.keys()) / (0.05 + seconds[x]), x))
        for thing in having.pop(best) & missing.keys():
            missing[thing] -= 1
            if not missing[thing]:
                del missing[thing]
        chosen.append(best)
    return chosen


def choose(seconds: dict[str, float], matrix: dict[str, kill_matrix.Kills]) -> set[str]:
    """Return the cases of the list."""
    by_function = defaultdict(list)
    for case in seconds:
        by_function[function(case)].append(case)
    cheapest = [min(cases, key=lambda x: (seconds[x], x)) for cases in by_function.values()]
    chosen = {case for case in cheapest if seconds[case] <= DEAR[case.partition("/")[0]]}
    chosen |= {case for case in seconds if seconds[case] < CHEAP}
    having: dict[str, set[Any]] = defaultdict(set)
    for name, kills in matrix.items():
        for case in kills.noticed:
            if seconds.get(case, inf) <= OF_A_MUTANT:
                having[case].add(name)
    for case in seconds:
        if case.startswith("kernels/") and seconds[case] <= OF_A_PAIR:
            having[case] |= pairs(case)
    known = set().union(*(having.get(case, ()) for case in chosen))
    missing = {case: things - known for case, things in having.items()}
    of_gpu = {
        case: triples(case)
        for case in seconds
        if case.startswith("gpu/") and seconds[case] <= OF_TRIPLES
    }
    return chosen | {*cover(missing, 1, seconds), *cover(of_gpu, TWICE, seconds)}


def store(lines: list[str]) -> None:
    """Store times, replacing those of tests in the same folders."""
    folders = {_folder(line) for line in lines}
    old = gzip.decompress(COSTS.read_bytes()).decode().splitlines()
    kept = [line for line in old if _folder(line) not in folders]
    COSTS.write_bytes(gzip.compress("".join(f"{x}\n" for x in kept + lines).encode(), mtime=0))


def _folder(line: str) -> str:
    return str(Path(json.loads(line)["id"]).parts[1])


def main(path: str = "") -> None:
    """Write the list, and print its number of cases and CPU time."""
    if path:
        store(Path(path).read_text().splitlines())
    rows = [json.loads(line) for line in gzip.decompress(COSTS.read_bytes()).splitlines()]
    seconds = {row["id"].partition("tests/")[2]: row["cpu"] + row["children"] for row in rows}
    matrix = kill_matrix.read()
    for kills in matrix.values():  # for cases that were not in that run
        seconds = kills.passed | kills.noticed | seconds
    seconds = {case: x for case, x in seconds.items() if case.startswith(RINGS)}
    chosen = choose(seconds, matrix)
    left_out = {function(case) for case in seconds} - {function(case) for case in chosen}
    lines = [*sorted(chosen), *(f"-{name}" for name in sorted(left_out))]
    STORED.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    total = sum(seconds[case] for case in chosen)
    middle = statistics.median(seconds[case] for case in chosen)
    print(f"{len(chosen)} of {len(seconds)} cases, {total:.0f} CPU seconds, median {middle:.2f}")
    for ring in RINGS:
        own = [case for case in chosen if case.startswith(ring)]
        print(f"{ring} {len(own)} cases, {sum(seconds[case] for case in own):.0f} CPU seconds")


if __name__ == "__main__":
    main(*sys.argv[1:])
