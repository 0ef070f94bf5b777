"""The cases that run by default, chosen from what they notice and what they cost.

``python tests/choose_cases.py`` writes ``data/default_cases.txt``: of the tests in ``kernels`` and
``whole`` those that run without ``--every-case``. What they cost stands in ``data/costs.jsonl.gz``;
``python tests/choose_cases.py COSTS`` stores the file of a run with ``-p costs --every-case`` there
first. A case is chosen that

1. takes less than `CHEAP` CPU seconds, or is the cheapest of its test function and takes no more
   than the `DEAR` seconds of its folder,
2. notices a mutant of the stored kill matrix, so that each is noticed by two cases where two are
   known: one after another that which notices most of what is left for its seconds,
3. has a pair of words of different kinds (`pairs`) that no case has yet.
"""

from __future__ import annotations

import gzip
import json
import re
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import combinations
from pathlib import Path

import kill_matrix

from cute_gemm.dtypes import DTYPES
from cute_gemm.kernels import registry

#: Folders of tests of which the list has a part.
RINGS = ("kernels/", "whole/")
#: The stored list.
STORED = Path(__file__).parent / "data" / "default_cases.txt"
CHEAP = 0.05
#: What tests cost, as ``costs.py`` writes it.
COSTS = Path(__file__).parent / "data" / "costs.jsonl.gz"
#: CPU seconds above which a test function has no case of its own in the list.
DEAR = {"kernels": 1.5, "whole": 0.7}
#: Cases that notice each mutant.
TWICE = 2
OPS = ("NN", "NT", "TN", "TT")


def read(path: Path = STORED) -> frozenset[str]:
    """Return the ids of the chosen cases, relative to ``tests``."""
    return frozenset(path.read_text(encoding="utf-8").splitlines())


def function(case: str) -> str:
    """Return the test function of a case: ``"kernels/test_steps.py::test_packed"``."""
    return case.partition("[")[0]


def words(case: str) -> frozenset[tuple[str, str]]:
    """Return what a case is of: its kernel, types and op by its name, its part by its module."""
    name = set(re.split(r"[^A-Za-z0-9_]+", case))
    kinds = {"kernel": registry.KERNELS, "type": (*DTYPES, "tf32"), "op": OPS}
    found = {(kind, word) for kind, known in kinds.items() for word in known if word in name}
    return frozenset(found | {("part", case.partition("::")[0])})


def pairs(case: str) -> frozenset[frozenset[tuple[str, str]]]:
    """Return a case's pairs of kernel, type and op, and of kernel and part."""
    kinds = ("kernel", "op"), ("kernel", "type"), ("op", "type"), ("kernel", "part")
    both = combinations(sorted(words(case)), 2)
    return frozenset(frozenset(pair) for pair in both if (pair[0][0], pair[1][0]) in kinds)


def cover(wanted: dict[str, Iterable], times: int, seconds: dict[str, float]) -> list[str]:
    """Return cases that together have each thing so often, or as often as there are cases.

    ``wanted``: the things that each case has. The next case is the one with most of what is still
    missing for its seconds.
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
    noticing: dict[str, set[str]] = defaultdict(set)
    for name, kills in matrix.items():
        for case in kills.noticed:
            if case in seconds:
                noticing[case].add(name)
    chosen |= set(cover(noticing, TWICE, seconds))
    paired = {case: pairs(case) for case in seconds if case.startswith("kernels/")}
    old = set().union(*(paired.get(case, ()) for case in chosen))
    chosen |= set(cover({case: each - old for case, each in paired.items()}, 1, seconds))
    return chosen


def main(path: str = "") -> None:
    """Write the list, and say what it takes."""
    if path:
        COSTS.write_bytes(gzip.compress(Path(path).read_bytes(), mtime=0))
    rows = [json.loads(line) for line in gzip.decompress(COSTS.read_bytes()).splitlines()]
    seconds = {row["id"].partition("tests/")[2]: row["cpu"] + row["children"] for row in rows}
    matrix = kill_matrix.read()
    for kills in matrix.values():  # of cases that were not in that run
        seconds = kills.passed | kills.noticed | seconds
    seconds = {case: x for case, x in seconds.items() if case.startswith(RINGS)}
    chosen = choose(seconds, matrix)
    STORED.write_text("".join(f"{case}\n" for case in sorted(chosen)), encoding="utf-8")
    total = sum(seconds[case] for case in chosen)
    middle = statistics.median(seconds[case] for case in chosen)
    print(f"{len(chosen)} of {len(seconds)} cases, {total:.0f} CPU seconds, median {middle:.2f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
