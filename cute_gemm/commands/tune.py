"""``cute-gemm tune``: measure which kernel is the fastest, for later calls to take."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

from cute_gemm._text import duration, named
from cute_gemm.api import plan
from cute_gemm.commands.arguments import add_problem, sizes
from cute_gemm.commands.bench import parse_sizes
from cute_gemm.commands.output import OK, print_json, progress, say
from cute_gemm.select import label
from cute_gemm.tune import Tuning
from cute_gemm.tuned import Measured


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what ``cute-gemm tune`` takes."""
    add_problem(parser, several=True)
    parser.add_argument(
        "--sizes", metavar="LIST",
        help="in place of -m, -n and -k: N, or MxNxK, several with commas: 1024,1000x1003x1001",
    )  # fmt: skip
    most = Tuning().candidates
    text = f"how many configs to measure, those of the least predicted times (default {most})"
    parser.add_argument("--candidates", type=int, default=most, metavar="N", help=text)
    parser.add_argument("--again", action="store_true", help="also where a choice is stored")
    text = (
        "measure also the configs that nvidia-matmul-heuristics recommends, 8 at most (needs "
        "pip install 'cute-gemm[heuristics]')"
    )
    parser.add_argument("--heuristics", action="store_true", help=text)


def command(arguments: argparse.Namespace) -> int:
    """Measure and store what is not stored, and say what is taken from now on; return 0."""
    extents = [(arguments.m, arguments.n, arguments.k)]
    if arguments.sizes is not None:
        extents = parse_sizes(arguments.sizes)
    found: list[dict[str, Any]] = []
    for (m, n, k), op in product(extents, arguments.ops):
        of = f"{op} {m} x {n} x {k}" + f", {arguments.l} times" * (arguments.l != 1)
        with progress() as shown:
            tuning = Tuning(
                **named(arguments, "candidates", "again", "heuristics"),
                tell=partial(_tell, shown, of),
            )
            one = plan(
                op, **sizes(arguments) | {"m": m, "n": n, "k": k}, tune=tuning,
                **named(arguments, "kernel", "arch"), **arguments.options,
            )  # fmt: skip
        problem = one.problem
        found.append({
            **named(problem, "op", "m", "n", "k", "l"), "dtype": problem.dtype,
            "compute": problem.compute, "kernel": one.kernel, "config_name": one.symbol,
            "measured": one.measured._asdict() if one.measured else None,
        })  # fmt: skip
        if not arguments.json:
            say(f"{of} {problem.types}: {label(one.candidates()[0])}\n  {one.why}")
            if arguments.heuristics and one.measured:
                say("\n".join(_advice(one.measured)))
    if arguments.json:
        print_json({"tuned": found})
    return OK


def _advice(measured: Measured) -> Iterator[str]:
    """Say which configs nvidia-matmul-heuristics alone recommended, and whether one won."""
    found = measured.advised or {}
    if not found:
        yield "  nvidia-matmul-heuristics recommended no others that ran"
        return
    among = "among them" if measured.advice_won else "not among them"
    yield (
        f"  of these nvidia-matmul-heuristics alone recommended {len(found)}, the fastest {among}:"
    )
    for name, seconds in sorted(found.items(), key=lambda one: one[1]):
        yield f"    {duration(seconds)}  {name}"


def _tell(shown: Callable[[str, int, int], None] | None, of: str, what: str, *done: int) -> None:
    if shown is not None:
        shown(f"{of}: {what}", *done)
