"""``cute-gemm prove``: kernels' layouts against those of C++ CuTe."""

from __future__ import annotations

import argparse

from cute_gemm._text import named
from cute_gemm.commands.arguments import add_problem, planned
from cute_gemm.commands.output import OK, print_json, printer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what ``cute-gemm prove`` takes."""
    add_problem(parser, several=True)


def command(arguments: argparse.Namespace) -> int:
    """Compile the proof of each op; return 0. What does not hold is a ``CompileError``."""
    say = printer(quiet=arguments.json)
    proved = []
    for op in arguments.ops:
        plan = planned(arguments, op=op)
        say(f"{plan.symbol}  {plan.arch}\n  ... ", end="")
        proof = plan.proof
        say(f"{len(proof.facts)} facts hold, {proof.seconds:.1f} s")
        proved.append(named(plan, "kernel", "symbol") | named(proof, "arch", "seconds", "facts"))
    if arguments.json:
        print_json(proved)
    return OK
