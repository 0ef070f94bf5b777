"""``cute-gemm prove``: compare kernels' layouts with those of C++ CuTe."""

from __future__ import annotations

import argparse

from cute_gemm._text import counted, named
from cute_gemm.commands.arguments import add_problem, planned
from cute_gemm.commands.output import OK, print_json, say, silent


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``cute-gemm prove``."""
    add_problem(parser, ops="+")


def command(arguments: argparse.Namespace) -> int:
    """Compile the proof of each op; return 0. A fact that is false raises ``CompileError``."""
    tell = silent if arguments.json else say
    proved = []
    for op in arguments.ops:
        plan = planned(arguments, op=op)
        tell(f"{plan.symbol}  {plan.arch}")
        proof = plan.proof
        held = counted(len(proof.facts), "fact holds", "facts hold")
        tell(f"  ... {held}, {proof.seconds:.1f} s")
        proved.append(named(plan, "kernel", "symbol") | named(proof, "arch", "seconds", "facts"))
    if arguments.json:
        print_json({"proofs": proved})
    return OK
