"""``cute-gemm analyze``: every memory access of a kernel."""

from __future__ import annotations

import argparse

from cute_gemm.commands.arguments import add, add_problem, group_ends, planned
from cute_gemm.commands.output import OK, check_html, show_report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``cute-gemm analyze``."""
    add_problem(parser)
    add(parser, "--gpu", "--beta", "--base-offset", "--epilogue", "--group-sizes")
    add(parser, "--build", "--html")


def command(arguments: argparse.Namespace) -> int:
    """Print the report; return 0."""
    check_html(arguments)
    plan = planned(arguments)
    if arguments.build:
        _ = plan.build
    show_report(arguments, plan.report(beta=arguments.beta, offsets=group_ends(arguments)))
    return OK
