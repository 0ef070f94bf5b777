"""``cute-gemm analyze``: every memory access of a kernel."""

from __future__ import annotations

import argparse

from cute_gemm.commands.arguments import add_html, add_problem, number, planned
from cute_gemm.commands.output import check_html, show_report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what ``cute-gemm analyze`` takes."""
    add_problem(parser)
    parser.add_argument("--gpu", metavar="NAME", help="place it on this GPU: H200, A100, 4090, ...")
    parser.add_argument(
        "--beta", type=number, default=0, help="with another than 0, C is read (default 0)"
    )
    parser.add_argument(
        "--build", action="store_true", help="compile it too, for registers and occupancy"
    )
    add_html(parser)


def command(arguments: argparse.Namespace) -> int:
    """Print the report; return 0."""
    from cute_gemm.gpus.table import arch_for

    check_html(arguments)
    plan = planned(arguments, arch=arch_for(arguments.arch, arguments.gpu))
    if arguments.build:
        _ = plan.build
    return show_report(arguments, plan.report(gpu=arguments.gpu, beta=arguments.beta))
