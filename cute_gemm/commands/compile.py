"""``cute-gemm compile``: kernels to cubins in the cache."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from cute_gemm.api import compile
from cute_gemm.commands.arguments import add_problem, planned
from cute_gemm.commands.output import OK, build_dict, build_time, print_json, progress, say
from cute_gemm.errors import OptionError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what ``cute-gemm compile`` takes."""
    add_problem(parser, several=True)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the cubin to FILE")


def command(arguments: argparse.Namespace) -> int:
    """Compile each op for each arch, several at once; return 0."""
    archs = arguments.arch.split(",") if arguments.arch else [None]
    if arguments.output and len(archs) * len(arguments.ops) > 1:
        raise OptionError(
            f"--output takes one cubin, and {len(arguments.ops)} ops for {len(archs)} "
            "architectures make more; leave it out, the cache keeps them all"
        )
    plans = [planned(arguments, op=op, arch=arch) for op in arguments.ops for arch in archs]
    with progress() as shown:
        compile(plans, None if shown is None else partial(shown, "compile"))
    for plan in plans:
        build = plan.build
        if not arguments.json:
            registers = f"{build.resources.registers} registers"
            say(f"{plan.symbol}  {plan.arch}")
            say(f"  ... {build_time(plan)}, {len(build.cubin)} bytes, {registers}")
        if arguments.output:
            arguments.output.write_bytes(build.cubin)
    if arguments.json:
        print_json({"builds": list(map(build_dict, plans))})
    return OK
