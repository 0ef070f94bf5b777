"""``cute-gemm explain``: the rungs of the ladder; the idea of a kernel, and its code."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cute_gemm._text import FORMAT, named
from cute_gemm.commands.arguments import (
    CODE,
    PROBLEM_WORDS,
    add,
    add_problem,
    codes,
    group_ends,
    sizes,
)
from cute_gemm.commands.output import OK, print_json, say, show
from cute_gemm.errors import DTypeError, UnsupportedError
from cute_gemm.kernels import registry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from cute_gemm.gpus.table import GpuLike
    from cute_gemm.plan.plan import Plan
    from cute_gemm.report.explain import Explanation, Next

#: Smallest width of a column of code next to others, in characters.
_COLUMN = 60


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``cute-gemm explain``."""
    text = f"auto, or one of {', '.join(registry.names())}; without one the ladder is listed"
    parser.add_argument("name", metavar="KERNEL", nargs="?", help=text)
    add_problem(parser, kernel=False)
    add(parser, "--gpu", "--beta", "--group-sizes")
    text = f": {', '.join(CODE)}, which nvdisasm disassembles; several: with commas, side by side "
    add(parser, "--show", help=f"{text}on a terminal that is wide enough")


def explain(
    kernel: str, op: str, *, gpu: GpuLike | None = None, beta: complex = 0.0,
    ends: Sequence[int] | None = None, **arguments: Any,
) -> Explanation:  # fmt: skip
    """Plan a kernel and the next one of the ladder, and explain them without compiling.

    ``arguments`` (m, n, k, dtype, leading dimensions, ``arch``, fields of the config), ``gpu``,
    whose rates bound the kernel, and errors are those of `cute_gemm.plan`; with a ``beta``
    other than 0, C is read too. ``ends``: where groups end, if they are not of equal sizes.
    """
    from cute_gemm.api import plan
    from cute_gemm.report.explain import Next, explanation
    from cute_gemm.report.ideas import idea

    def explained(name: str, **options: Any) -> Explanation:
        chosen = plan(op, kernel=name, gpu=gpu, **{"backend": "cpu", **options})
        report = chosen.report(beta=beta, offsets=ends) if chosen.compiled else None
        return explanation(registry.get(chosen.kernel), chosen, report, beta != 0)

    first = explained(kernel, **arguments)
    # Not the options, which belong to this kernel's config.
    same = {name: arguments[name] for name in (*PROBLEM_WORDS, "arch") if name in arguments}
    following: list[Next] = []
    ladder = registry.LADDER  # it has no kernels registered by users
    after = ladder.index(first.kernel) + 1 if first.kernel in ladder else len(ladder)
    for name in ladder[after:]:
        try:
            other = explained(name, **same)
        except (UnsupportedError, DTypeError) as error:
            following.append(Next(name, idea(registry.get(name)), str(error).rstrip(".")))
            continue
        following.append(Next(name, other.idea, changes=first.before(other)))
        break
    return replace(first, next=tuple(following))


def command(arguments: argparse.Namespace) -> int:
    """Print the explanation and the requested code, or without a kernel the ladder; return 0."""
    if arguments.name is None:
        return _print_ladder(arguments.json)
    kinds = codes(arguments)
    if arguments.dtype is None:  # the type of `bench`, unless it is refused
        types = () if arguments.name == "auto" else registry.get(arguments.name).dtypes
        arguments.dtype = types[0] if types and "float32" not in types else "float32"
    result = explain(
        arguments.name, arguments.op, ends=group_ends(arguments), **sizes(arguments),
        **named(arguments, "arch", "gpu", "beta"), **arguments.options,
    )  # fmt: skip
    code = {kind: _code(result.plan, kind) for kind in kinds}
    if arguments.json:
        print_json({**result.to_dict(), **code})
        return OK
    show(result)
    if code:
        from rich.console import Console

        print_code(Console(), code)
    return OK


def _print_ladder(as_json: bool) -> int:
    """Print the rungs of the ladder and how to go on; return 0."""
    from cute_gemm.report.ideas import idea

    rungs = [registry.get(name) for name in registry.LADDER]
    if as_json:
        ladder = [{**named(rung, "name", "summary"), "idea": idea(rung)} for rung in rungs]
        print_json({"format": FORMAT, "ladder": ladder})
        return OK
    say("The ladder: each kernel has one idea more than the kernel above it.")
    say()
    width = max(map(len, registry.LADDER))
    for rung in rungs:
        say(f"  {rung.name:<{width}}  {rung.summary}")
    others = ", ".join(name for name in registry.names() if name not in registry.LADDER)
    first = registry.LADDER[1]
    say()
    say(f"Not on the ladder: {others}.")
    say()
    say(f"Explain a kernel for NN:      cute-gemm explain {first}")
    say(f"Another op, extents, a GPU:   cute-gemm explain {first} TN -m 4096 -k 512 --gpu H200")
    say(f"With its source:              cute-gemm explain {first} --show source")
    say("Measure the ladder on a GPU:  cute-gemm bench NN")
    return OK


def _code(chosen: Plan, kind: str) -> str:
    """Return the text of a kernel: its template and unit, its PTX or its SASS."""
    text: str = getattr(chosen, kind)
    if kind == "source" and chosen.compiled:
        template = registry.get(chosen.kernel).compiled().template.read_text(encoding="utf-8")
        return f"{template}\n// The unit that is compiled.\n\n{text}"
    return text


def print_code(console: Console, code: dict[str, str]) -> None:
    """Print texts next to each other on a terminal that is wide enough, else in sequence."""
    from rich.table import Table
    from rich.text import Text

    texts = {kind: text.expandtabs(4) for kind, text in code.items()}
    widths = [max(_COLUMN, *map(len, text.splitlines())) for text in texts.values()]
    if len(code) > 1 and console.width >= sum(widths) + 3 * len(code):
        table = Table(show_edge=False)
        for kind in texts:
            table.add_column(kind, no_wrap=True, vertical="top")
        table.add_row(*map(Text, texts.values()))
        console.print(table)
        return
    for kind, text in code.items():
        print(f"\n==== {kind} ====\n\n{text.rstrip()}")
