"""Test the BLAS contract of every kernel, type and op on a GPU (``tests/blas_contract.py``).

    python tests/gpu/contract.py [--processes 12] [--seconds 200] [--seed 1] [--json FILE]
        [--kernels naive,thin] [--types float16] [--backend cuda] [--most 4]

The script first runs the special cases and some products of every kernel, type, op and layout, in
random order, and then more products until the time is over. For each kernel and type it prints the
numbers of cases that passed, that the package does not support, that would need more compiled
kernels than ``--most``, and that failed. A line with the reason follows for each failure. The exit
status is 1 if a case fails, or if no case passes for a type that the kernel supports.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.append(str(Path(__file__).parents[1]))
import blas_contract as contract
from contract_backends import Backend, TooManyError
from processes import FATAL, spread

from cute_gemm.kernels import registry
from cute_gemm.kernels.refusals import runs_on

#: Products of a unit in the first pass and in each further pass, and the number of further passes.
FIRST, FURTHER, PASSES = 24, 300, 8


class Cuda(Backend):
    """A GPU, called with PyTorch's tensors."""

    def __init__(self, most: int | None = None) -> None:
        super().__init__("cuda", None, most)

    def run(self, case: Any, *arrays: np.ndarray, change: Callable[..., Any] | None = None) -> None:
        from device_matrices import on_device

        placed = [on_device(x) for x in arrays]
        self._call(case, *(tensor for tensor, _ in placed), change)
        for _, back in placed:
            back()


class Unit(NamedTuple):
    """A kernel, type, op and layout, and the range of its products to compute."""

    backend: str
    kernel: str
    kind: contract.Kind
    op: str
    layout: str
    begin: int
    end: int
    most: int
    deadline: float

    @property
    def cases(self) -> list[contract.Case]:
        words = self.kernel, self.kind, self.op, self.layout
        drawn = contract.products(*words)[self.begin : self.end]
        long = self.backend != "interpreter"
        return [*contract.special(*words, long=long), *drawn] if self.begin == 0 else drawn


_backends: dict[tuple[str, int], Backend] = {}


def backend_of(name: str, kernel: str, most: int) -> Backend:
    """Return the backend of this process."""
    if (name, most) not in _backends:
        _backends[name, most] = Cuda(most) if name == "cuda" else Backend(name, "sm_90a", most)
    return _backends[name, most]


def run_unit(unit: Unit) -> tuple[dict[str, Any], bool]:
    """Compute the cases of a unit. Return counts and failures, and whether the GPU is lost."""
    backend = backend_of(unit.backend, unit.kernel, unit.most)
    backend.forget()
    counts: Counter[str] = Counter()
    failures: list[tuple[str, str]] = []
    refusals: Counter[str] = Counter()
    for number, case in enumerate(unit.cases):
        if time.monotonic() > unit.deadline:
            counts["not run"] += len(unit.cases) - number
            break
        try:
            refusal = contract.check(case, backend)
        except TooManyError:
            counts["left out"] += 1
        except Exception as error:
            said = str(error) if isinstance(error, AssertionError) else repr(error)
            failures.append((str(case), said))
            counts["failed"] += 1
            if any(word in said for word in FATAL):
                return {"counts": counts, "failures": failures, "refusals": refusals,
                        "kernels": len(backend.symbols)}, True  # fmt: skip
        else:
            counts["refused" if refusal else "passed"] += 1
            refusals[refusal] += 1
    del refusals[""]
    return {"counts": counts, "failures": failures, "refusals": refusals,
            "kernels": len(backend.symbols)}, False  # fmt: skip


def units(given: argparse.Namespace, deadline: float) -> Iterator[Unit]:
    """Yield all units of each pass, in random order.

    The units that run in the given time are therefore a sample of all kernels, types and ops.
    """
    kernels = given.kernels.split(",") if given.kernels else registry.names()
    bounds = [0, *(FIRST + FURTHER * number for number in range(PASSES + 1))]
    every = []
    for kernel in kernels:
        place = registry.get(kernel).runs_on
        if place == "cpu" and given.backend == "cuda":
            continue
        if place != "gpu" and given.backend == "interpreter":
            continue
        for kind in contract.kinds(kernel):
            if given.types in str(kind):
                every += [(kernel, kind, *x) for x in product(contract.ops(kernel, kind),
                                                              contract.LAYOUTS)]  # fmt: skip
    random.Random(given.seed).shuffle(every)
    for begin, end in zip(bounds, bounds[1:], strict=False):
        for words in every:
            yield Unit(given.backend, *words, begin, end, given.most, deadline)


def tell(results: list[tuple[Unit, dict[str, Any] | None]], units: int) -> dict[str, Any]:
    """Print the table and all failures, and return them."""
    rows: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    failures: list[tuple[str, str]] = []
    refusals: Counter[str] = Counter()
    for unit, result in results:
        row = rows[unit.kernel, str(unit.kind)]
        if result is None:
            result = {"counts": {"failed": 1}, "kernels": 0, "refusals": {}, "failures": [
                (f"{unit.kernel} {unit.kind} {unit.op} {unit.layout}",
                 "the process ended, or did not end in time")]}  # fmt: skip
        row.update(result["counts"])
        row["kernels"] += result["kernels"]
        failures += result["failures"]
        refusals.update(result["refusals"])
    words = ("passed", "refused", "left out", "not run", "failed", "kernels")
    print(f"{'kernel':<18}{'types':<44}" + "".join(f"{word:>10}" for word in words))
    for (kernel, kind), row in sorted(rows.items()):
        print(f"{kernel:<18}{kind:<44}" + "".join(f"{row[word]:>10,}" for word in words))
        if not row["passed"] and listed(kernel, kind):
            failures.append((f"{kernel} {kind}", "no case passed of a type that it is listed with"))
    total: Counter[str] = Counter()
    for row in rows.values():
        total.update(row)
    print(f"{'all':<62}" + "".join(f"{total[word]:>10,}" for word in words))
    for sentence, count in refusals.most_common(12):
        print(f"refused {count:,} times: {sentence}")
    print(f"{len(results):,} of {units:,} units were run")
    for case, reason in failures:
        print(f"FAILED {case}: {reason}")
    return {"rows": {" ".join(key): row for key, row in rows.items()}, "failures": failures,
            "total": total}  # fmt: skip


def listed(kernel: str, kind: str) -> bool:
    """Return whether a kernel supports these types with the default type of C, on this GPU."""
    kinds = {str(x): x for x in contract.kinds(kernel, others=False)}
    if kind not in kinds or registry.get(kernel).runs_on != "gpu":
        return False
    from cute_gemm.run.driver import device_arch, why_no_gpu

    return runs_on(registry.get(kernel), kinds[kind].operands, "sm_80" if why_no_gpu()
                   else device_arch(0))  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--processes", type=int, default=min(12, os.cpu_count() or 1))
    parser.add_argument("--seconds", type=float, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json")
    parser.add_argument("--kernels", default="")
    parser.add_argument("--types", default="", help="substring of the names of the types")
    parser.add_argument("--backend", default="cuda", choices=("cuda", "cpu", "interpreter"))
    parser.add_argument(
        "--most", type=int, default=4, help="most compiled kernels of an op, type and layout"
    )
    given = parser.parse_args()
    start = time.monotonic()
    asked = list(units(given, start + given.seconds))
    results = list(spread(run_unit, asked, given.processes, start + given.seconds))
    found = tell(results, len(asked))
    print(f"{time.monotonic() - start:.0f} s")
    if given.json:
        Path(given.json).write_text(json.dumps(found, indent=1), encoding="utf-8")
    return bool(found["failures"])


if __name__ == "__main__":
    sys.exit(main())
