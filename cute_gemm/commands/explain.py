"""``cute-gemm explain``: a kernel's one idea, and its code if that is asked for."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from cute_gemm.commands.arguments import add_problem, number, sizes
from cute_gemm.commands.output import OK, show

if TYPE_CHECKING:
    from rich.console import Console

    from cute_gemm.api import Plan

_CODE = {
    "source": "the template and the unit that instantiates it",
    "ptx": "the PTX; beside the others, where the terminal is wide enough",
    "sass": "the machine code, by nvdisasm",
}
#: Characters of a column of code beside others, at least.
_COLUMN = 60


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what ``cute-gemm explain`` takes."""
    parser.add_argument("name", metavar="KERNEL", help="a name from `cute-gemm kernels`")
    add_problem(parser, kernel=False)
    parser.add_argument("--gpu", metavar="NAME", help="what bounds it there: H200, A100, 4090, ...")
    parser.add_argument(
        "--beta", type=number, default=0, help="with another than 0, C is read (default 0)"
    )
    for kind, what in _CODE.items():
        parser.add_argument(f"--{kind}", action="store_true", help=f"print {what}")


def command(arguments: argparse.Namespace) -> int:
    """Print the explanation and the code that is asked for; return 0."""
    from cute_gemm.analysis.explain import explain

    given = {name: getattr(arguments, name) for name in ("arch", "gpu", "beta")}
    found = explain(arguments.name, arguments.op, **sizes(arguments), **given, **arguments.options)
    code = {kind: _code(found.plan, kind) for kind in _CODE if getattr(arguments, kind)}
    if arguments.json:
        print(json.dumps({**found.to_dict(), **code}, indent=2, allow_nan=False))
        return OK
    show(found)
    if code:
        from rich.console import Console

        print_code(Console(), code)
    return OK


def _code(made: Plan, kind: str) -> str:
    """The text of a kernel: its template and unit, its PTX or its SASS."""
    from cute_gemm.analysis.ideas import template

    text: str = getattr(made, kind)
    if kind == "source" and made.compiled:
        return f"{template(made.kernel)}\n// The unit that is compiled.\n\n{text}"
    return text


def print_code(console: Console, code: dict[str, str]) -> None:
    """Print texts beside each other on a wide terminal, else one after the other."""
    from rich.table import Table
    from rich.text import Text

    if len(code) > 1 and console.width >= _COLUMN * len(code):
        table = Table(expand=True, show_edge=False)
        for kind in code:
            table.add_column(kind, ratio=1, overflow="fold", vertical="top")
        table.add_row(*(Text(text.expandtabs(4)) for text in code.values()))
        console.print(table)
        return
    for kind, text in code.items():
        print(f"\n==== {kind} ====\n\n{text.rstrip()}")
