"""Test that each of many planted errors makes a test without a GPU fail.

``python tests/mutants.py`` applies one mutant at a time to a copy of the project, and runs the
tests that execute the affected kernels, or, for other code, the file that tests it. It prints the
first failing test of each mutant, and exits with 1 if a mutant is not detected. ``--only REGEX``
selects mutants, ``--jobs N`` runs N of them at a time, and ``--list`` prints them.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from mutant import Mutant
from mutants_grouped import GROUPED
from mutants_kernels import KERNELS
from mutants_package import PACKAGE
from mutants_pairs import PAIRS
from mutants_sm90 import SM90

ROOT = Path(__file__).resolve().parents[1]

MUTANTS: tuple[Mutant, ...] = KERNELS + SM90 + GROUPED + PAIRS + PACKAGE


class Outcome(NamedTuple):
    """The outcome of a mutant: the test that detected it, or ``""``, and the seconds."""

    mutant: Mutant
    test: str
    seconds: float


def break_it(tree: Path, mutant: Mutant) -> None:
    """Write the broken file, or raise ValueError if ``old`` does not occur exactly once."""
    path = tree / mutant.file
    text = path.read_text()
    if text.count(mutant.old) != 1:
        raise ValueError(
            f"{mutant.name}: {mutant.file} has {mutant.old!r} {text.count(mutant.old)} times"
        )
    path.write_text(text.replace(mutant.old, mutant.new))


@contextmanager
def broken_copy(mutant: Mutant) -> Iterator[Path]:
    """Yield a copy of the project with the mutant."""
    with tempfile.TemporaryDirectory() as name:
        tree = Path(name)
        for folder in ("cute_gemm", "templates", "tests"):
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / folder, tree / folder, ignore=ignore)
        shutil.copy(ROOT / "pyproject.toml", tree)
        break_it(tree, mutant)
        yield tree


def search_path(tree: Path) -> str:
    """Return the search path of modules for tests of a copy, which come first."""
    return os.pathsep.join([str(tree), str(tree / "tests"), os.environ.get("PYTHONPATH", "")])


def try_it(mutant: Mutant) -> Outcome:
    """Apply a mutant to a copy, and run its tests until the first failure."""
    start = time.perf_counter()
    with broken_copy(mutant) as tree:
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
        done = subprocess.run(
            [*command, *mutant.tests, "-k", mutant.kernels],
            cwd=tree, capture_output=True, text=True, env=os.environ | {
                "PYTHONPATH": search_path(tree), "CUTE_GEMM_CACHE_DIR": str(tree / "cubins"),
                "CUTE_GEMM_TEST_TOGETHER": "1",
            },
            check=False,
        )  # fmt: skip
    failed = re.findall(r"^FAILED (\S+)", done.stdout, re.MULTILINE)
    if done.returncode not in (0, 1) or (done.returncode == 1 and not failed):
        raise RuntimeError(f"{mutant.name}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return Outcome(mutant, failed[0] if failed else "", time.perf_counter() - start)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", default="", help="a regular expression of names of mutants")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--list", action="store_true")
    given = parser.parse_args(arguments)
    chosen = [one for one in MUTANTS if re.search(given.only, one.name)]
    if given.list:
        for one in chosen:
            print(f"{one.name:55} {one.file}")
        return 0
    survivors = 0
    with ThreadPoolExecutor(given.jobs) as pool:
        for found in pool.map(try_it, chosen):
            survivors += not found.test
            print(
                f"{found.mutant.name:55} {found.test or 'NOT DETECTED'} ({found.seconds:.0f} s)",
                flush=True,
            )
    print(f"{len(chosen)} mutants, {len(chosen) - survivors} detected, {survivors} not")
    return int(survivors > 0)


if __name__ == "__main__":
    sys.exit(main())
