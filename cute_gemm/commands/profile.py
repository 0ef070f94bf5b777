"""``cute-gemm profile``: the figures of the report compared with the hardware's counters."""

from __future__ import annotations

import argparse

from cute_gemm._text import named
from cute_gemm.commands.arguments import add, add_options, add_problem, group_ends, planned, sizes
from cute_gemm.commands.output import OK, WRONG, show_result
from cute_gemm.errors import OptionError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``cute-gemm profile``."""
    add_problem(parser)
    add(parser, "--beta", "--base-offset", "--epilogue", "--group-sizes")
    add_options(
        parser, {"--ncu PATH": "the program ncu of Nsight Compute (default: search for it)"}
    )


def command(arguments: argparse.Namespace) -> int:
    """Print predicted | counted | difference, and return 1 if any figure differs, else 0."""
    from cute_gemm.measure.profile import Case, profile
    from cute_gemm.problem.parts.groups import equal_ends

    others = named(arguments, "op", "kernel", "arch", "options", "beta", "base_offset", "epilogue")
    sized = sizes(arguments)
    if sized.pop("ragged"):
        if arguments.base_offset:
            raise OptionError(
                f"--base-offset {arguments.base_offset} came with --ragged, whose accesses are "
                "counted at aligned addresses: leave one of the two out"
            )
        ends = group_ends(arguments) or equal_ends(planned(arguments).problem)
        sized |= {"ragged": arguments.ragged, "offsets": ends}
    [result] = profile([Case(**sized, **others)], arguments.ncu)
    show_result(arguments, result)
    return WRONG if result.differences else OK
