"""``cute-gemm profile``: what the report says next to what the hardware counts."""

from __future__ import annotations

import argparse

from cute_gemm._text import named
from cute_gemm.commands.arguments import add, add_problem, sizes
from cute_gemm.commands.output import OK, WRONG, print_json, show


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what ``cute-gemm profile`` takes."""
    add_problem(parser)
    add(parser, "--beta", "--base-offset", beta="default 0: C is not read")
    parser.add_argument("--ncu", metavar="PATH", help="Nsight Compute (default: look for it)")


def command(arguments: argparse.Namespace) -> int:
    """Print predicted | counted | difference, and return 1 if any figure differs, else 0."""
    from cute_gemm.measure.profile import Case, profile

    others = named(arguments, "op", "kernel", "arch", "options", "beta", "base_offset")
    [found] = profile([Case(**sizes(arguments), **others)], arguments.ncu)
    if arguments.json:
        print_json(found.to_dict())
    else:
        show(found)
    return WRONG if found.differences else OK
