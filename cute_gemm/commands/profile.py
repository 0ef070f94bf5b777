"""``cute-gemm profile``: the figures of the report compared with the hardware's counters."""

from __future__ import annotations

import argparse

from cute_gemm._text import named
from cute_gemm.commands.arguments import add, add_options, add_problem, sizes
from cute_gemm.commands.output import OK, WRONG, print_json, show


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what ``cute-gemm profile`` takes."""
    add_problem(parser)
    add(parser, "--beta", "--base-offset", "--epilogue")
    add_options(
        parser, {"--ncu PATH": "the program ncu of Nsight Compute (default: search for it)"}
    )


def command(arguments: argparse.Namespace) -> int:
    """Print predicted | counted | difference, and return 1 if any figure differs, else 0."""
    from cute_gemm.measure.profile import Case, profile

    others = named(arguments, "op", "kernel", "arch", "options", "beta", "base_offset", "epilogue")
    [result] = profile([Case(**sizes(arguments), **others)], arguments.ncu)
    if arguments.json:
        print_json(result.to_dict())
    else:
        show(result)
    return WRONG if result.differences else OK
