"""Measure which cases detect which mutants. The default cases are selected from this matrix.

``python tests/kill_matrix.py FILE`` applies each mutant of ``mutants.py`` to a copy of the project,
and runs random cases of the tests that the mutant names: about as many of each test function,
``--cases`` in all. Cases that fail have detected the mutant. Cases that were not drawn, or not run
within ``--seconds``, are not in the matrix. ``--only REGEX`` selects mutants, and ``--jobs N`` runs
N of them at a time. The results in FILE are kept, so that parts can be computed one after another,
and again with other random cases (``--draw NUMBER``).
"""

import argparse
import gzip
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
from _pytest.mark import KeywordMatcher
from _pytest.mark.expression import Expression
from mutant import Mutant
from mutants import MUTANTS, broken_copy, search_path

#: The stored matrix.
STORED = Path(__file__).parent / "data" / "kills.json.gz"


class Kills(NamedTuple):
    """The outcome of a mutant.

    Attributes
    ----------
    noticed, passed
        CPU seconds of the cases that failed with the mutant, and of those that passed, by name:
        ``test_steps.py::test_packed[NN]``.
    """

    noticed: dict[str, float]
    passed: dict[str, float]


def read(path: Path = STORED) -> dict[str, Kills]:
    """Return the kills of each mutant by its name, or an empty dict if nothing is stored."""
    if not path.exists():
        return {}
    with gzip.open(path, "rt") as file:
        return {name: Kills(**row) for name, row in json.load(file).items()}


def write(matrix: dict[str, Kills], path: Path = STORED) -> None:
    rows = {name: matrix[name]._asdict() for name in sorted(matrix)}
    text = json.dumps(rows, separators=(",", ":"))
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


class _Collected:
    """A plugin that keeps the items of a run."""

    items: list[pytest.Item]

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.items = session.items


def collect(files: list[str], options: tuple[str, ...]) -> list[pytest.Item]:
    """Return the cases of test files that run with these options."""
    plugin = _Collected()
    words = ("--collect-only", "-qq", "-p", "no:cacheprovider", *options)
    if pytest.main([*words, *files], plugins=[plugin]):
        raise RuntimeError(f"pytest cannot collect {' '.join(files)}")
    return plugin.items


def draw(mutant: Mutant, items: list[pytest.Item], count: int, number: int) -> list[str]:
    """Return the ids of ``count`` cases that the mutant affects, about as many of each function."""
    expression = Expression.compile(mutant.kernels)
    by_function: dict[tuple[str, str], list[str]] = defaultdict(list)
    for item in items:
        file = item.nodeid.partition("::")[0]
        if file in mutant.tests and expression.evaluate(KeywordMatcher.from_item(item)):
            by_function[file, getattr(item, "originalname", item.name)].append(item.nodeid)
    chance = random.Random(f"{mutant.name} {number}")
    cases = [chance.sample(ids, len(ids)) for ids in by_function.values()]
    chance.shuffle(cases)
    drawn: list[str] = []
    while any(cases) and len(drawn) < count:
        drawn += [ids.pop() for ids in cases if ids]
    return drawn[:count]


def run(mutant: Mutant, ids: list[str], seconds: float, stop: int) -> Kills:
    """Apply a mutant to a copy, and run cases until the time limit or ``stop`` failures."""
    kills = Kills({}, {})
    with tempfile.TemporaryDirectory() as name, broken_copy(mutant) as tree:
        costs, cases = Path(name, "costs"), Path(name, "cases")
        costs.touch()
        cases.write_text("\n".join(ids) + "\n")
        command = [
            sys.executable, "-m", "pytest", "-q", "--every-case", "-p", "no:cacheprovider",
            "-p", "costs", "--maxfail", str(stop), f"@{cases}",
        ]  # fmt: skip
        environment = os.environ | {
            "PYTHONPATH": search_path(tree), "CUTE_GEMM_CACHE_DIR": str(tree / "cubins"),
            "CUTE_GEMM_TEST_COSTS": str(costs), "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        with Path(name, "output").open("w+") as output:
            process = subprocess.Popen(
                command, cwd=tree, env=environment, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            output.seek(0)
            text = output.read()
        for line in costs.read_text().splitlines():
            row = json.loads(line)
            place = kills.noticed if row["failed"] else kills.passed
            place[row["id"].partition("tests/")[2]] = round(row["cpu"] + row["children"], 2)
    if process.returncode not in (0, 1, -signal.SIGKILL):
        print(f"{mutant.name}: pytest ends with {process.returncode}\n{text[-2000:]}")
    return kills


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("file", type=Path, nargs="?", default=STORED)
    parser.add_argument("--only", default="", help="a regular expression of names of mutants")
    parser.add_argument("--cases", type=int, default=40, help="most cases of each mutant")
    parser.add_argument("--seconds", type=float, default=300, help="most seconds of each mutant")
    parser.add_argument(
        "--stop", type=int, default=0, help="stop after so many failures; 0 runs all cases"
    )
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--draw", type=int, default=0, help="seed of the random cases")
    parser.add_argument("--fewer", type=int, help="only mutants that fewer cases have detected")
    parser.add_argument("--default", action="store_true", help="only default cases")
    given = parser.parse_args(arguments)
    matrix = read(given.file)
    chosen = [mutant for mutant in MUTANTS if re.search(given.only, mutant.name)]
    if given.fewer is not None:
        known = {name for name, kills in matrix.items() if len(kills.noticed) >= given.fewer}
        chosen = [mutant for mutant in chosen if mutant.name not in known]
    files = sorted({file for mutant in chosen for file in mutant.tests})
    items = collect(files, () if given.default else ("--every-case",))

    def attempt(mutant: Mutant) -> tuple[Mutant, Kills]:
        ids = draw(mutant, items, given.cases, given.draw)
        return mutant, run(mutant, ids, given.seconds, given.stop)

    with ThreadPoolExecutor(given.jobs) as pool:
        for mutant, kills in pool.map(attempt, chosen):
            before = matrix.get(mutant.name, Kills({}, {}))
            matrix[mutant.name] = Kills(
                before.noticed | kills.noticed, before.passed | kills.passed
            )
            write(matrix, given.file)
            counts = f"{len(kills.noticed)} of {len(kills.noticed) + len(kills.passed)}"
            print(f"{mutant.name:55} detected by {counts} cases", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
