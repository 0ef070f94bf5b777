"""``cute-gemm emit``: a kernel's translation unit, its PTX or its SASS."""

from __future__ import annotations

import argparse
from pathlib import Path

from cute_gemm._text import named
from cute_gemm.commands.arguments import add_problem, planned
from cute_gemm.commands.output import OK, print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what ``cute-gemm emit`` takes."""
    add_problem(parser)
    text = parser.add_mutually_exclusive_group()
    text.add_argument("--ptx", action="store_true", help="print PTX instead")
    text.add_argument("--sass", action="store_true", help="print machine code instead, by nvdisasm")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write it to FILE")


def command(arguments: argparse.Namespace) -> int:
    """Print or write the text; return 0."""
    plan = planned(arguments)
    kind = "ptx" if arguments.ptx else "sass" if arguments.sass else "source"
    text: str = getattr(plan, kind)
    if arguments.output:
        arguments.output.write_text(text, encoding="utf-8")
    if arguments.json:
        print_json({**named(plan, "kernel", "arch", "symbol"), kind: text})
    elif not arguments.output:
        print(text, end="" if text.endswith("\n") else "\n")
    return OK
