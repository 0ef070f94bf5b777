"""``cute-gemm tune``: measure which kernel is the fastest, and store it for later calls."""

from __future__ import annotations

import argparse
from itertools import product
from typing import Any

from cute_gemm._text import counted, named
from cute_gemm.api import plan
from cute_gemm.commands.arguments import add, add_options, add_problem, extents_of, sizes
from cute_gemm.commands.output import OK, print_json, progress, say
from cute_gemm.kernels.candidate import label
from cute_gemm.plan.tune import Tuning

_FLAGS = {"--again": "measure again even if a config is stored"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``cute-gemm tune``."""
    add_problem(parser, ops="+")
    add(parser, "--sizes")
    most = Tuning().candidates
    text = f"number of configs to measure, the fastest by prediction (default {most})"
    add_options(parser, {"--candidates N": text}, type=int, default=most)
    add_options(parser, _FLAGS)


def command(arguments: argparse.Namespace) -> int:
    """Measure and store missing configs, and print the stored ones; return 0."""
    extents = extents_of(arguments)
    tuned: list[dict[str, Any]] = []
    for (m, n, k), op in product(extents, arguments.ops):
        of = f"{op} {m} x {n} x {k}" + _several(arguments)
        with progress() as shown:
            tuning = Tuning(
                **named(arguments, "candidates", "again"),
                tell=lambda what, *done, of=of, shown=shown: shown(f"{of}: {what}", *done),
            )
            planned = plan(
                op, **sizes(arguments) | {"m": m, "n": n, "k": k}, tune=tuning,
                **named(arguments, "kernel", "arch"), **arguments.options,
            )  # fmt: skip
        problem = planned.problem
        tuned.append({
            **named(problem, "op", "m", "n", "k", "l", "dtype", "compute"),
            "kernel": planned.kernel, "config_name": planned.symbol,
            "measured": planned.measured._asdict() if planned.measured else None,
        })  # fmt: skip
        if not arguments.json:
            say(f"{of} {problem.types}: {label(planned.candidates()[0])}\n  {planned.why}")
    if arguments.json:
        print_json({"tuned": tuned})
    return OK


def _several(arguments: argparse.Namespace) -> str:
    """Return the number of products as text, "" for one."""
    if arguments.ragged:
        return f", {counted(arguments.l, 'group')} along {arguments.ragged}"
    return f", {arguments.l} times" * (arguments.l != 1)
