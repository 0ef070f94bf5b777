"""Test properties of random products on a GPU, in several processes.

    python tests/gpu/properties.py [--examples 4000] [--seconds 60] [--seed 1] [--processes 12]
        [--only exact,loop] [--kernels thin,sm90_wgmma] [--backend cuda] [--json FILE]
    python tests/gpu/properties.py --again 'PROPERTY: {...}'

A run checks some examples of one property (``tests/product_properties.py``) and one kind of
product, and compiles few kernels. The last lines are the numbers of examples that held and that are
not supported, the number of kernels, and for each failure the simplest example that hypothesis has
found. ``--again`` with that line checks the example alone. The script exits with 1 if a property
failed, or if no example held.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # threads of each process
sys.path.append(str(Path(__file__).parents[1]))
from drawn_products import Product
from product_properties import BITS, PROPERTIES, Machine
from property_runs import FATAL, Tally, runs

from cute_gemm.kernels import registry

#: Examples of a run, and kernels that it may compile.
OF_A_RUN, KERNELS = 20, 8


def work(number: int, given: argparse.Namespace, until: float) -> dict[str, Any]:
    """Check runs until the time is over or the process has its share. Return the results."""
    machine, tally = Machine(given.backend, most=KERNELS), Tally()
    share = -(-given.examples // given.processes)
    found: dict[str, Any] = {"runs": 0, "failures": []}
    by_name: Counter[str] = Counter()
    for run in runs(given.seed * 100_000 + 1000 * number, given.kernels, given.only):
        if tally.held >= share or time.time() > until:
            break
        before = tally.held
        examples = min(OF_A_RUN, share - tally.held)
        failure = run.check(machine, examples, given.largest, tally, until)
        by_name[run.name] += tally.held - before
        found["runs"] += 1
        if failure:
            found["failures"].append(failure)
            print(failure, flush=True)
            if any(word in failure for word in FATAL):
                break
    return found | {
        "held": dict(by_name), "refused": dict(tally.refused), "kernels": sorted(machine.symbols),
    }  # fmt: skip


def again(line: str, backend: str) -> int:
    """Check one example."""
    name, _, product = line.partition(": ")
    PROPERTIES[name][0](Product.of(product), Machine(backend))
    print("it holds")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [x for x in registry.names() if registry.get(x).runs_on != "cpu"]
    words = {"type": lambda text: text.split(",")}
    parser.add_argument("--examples", type=int, default=4000)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=12)
    parser.add_argument("--only", default=list(PROPERTIES), **words)
    parser.add_argument("--kernels", default=["auto", *names], **words)
    parser.add_argument("--largest", type=int, default=300, help="largest extent")
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--again", metavar="LINE")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if given.again:
        return again(given.again, given.backend)
    if given.backend == "cpu":  # NumPy's BLAS determines the bits
        given.only = [name for name in given.only if name != BITS]
    print(f"seed {given.seed}, {given.processes} processes", flush=True)
    start = time.time()
    found, broken = [], []
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(given.processes, context) as pool:
        until = start + given.seconds
        asked = [pool.submit(work, x, given, until) for x in range(given.processes)]
        for done in as_completed(asked):
            try:
                found.append(done.result())
            except Exception as error:
                broken.append(f"a process failed: {type(error).__name__}: {error}")
    held: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    for each in found:
        held.update(each["held"])
        refused.update(each["refused"])
    failures = broken + [x for each in found for x in each["failures"]]
    kernels = set().union(*(each["kernels"] for each in found))
    for name in given.only:
        print(f"{name:22} {held[name]:6} held")
    for sentence, number in refused.most_common(5):
        print(f"not supported {number:5}: {sentence[:150]}")
    print(
        f"{held.total()} examples held, {refused.total()} not supported, {len(failures)} runs of "
        f"{sum(x['runs'] for x in found)} failed; {len(kernels)} kernels, "
        f"{time.time() - start:.0f} s, seed {given.seed}"
    )
    for failure in failures:
        print(f"FAILED {failure}")
    if given.json:
        given.json.write_text(
            json.dumps({"seed": given.seed, "held": held, "refused": refused, "failures": failures,
                        "kernels": len(kernels)}, indent=1)
        )  # fmt: skip
    return 1 if failures or not held else 0


if __name__ == "__main__":
    sys.exit(main())
