"""``cute-gemm trace``: a kernel executed without a GPU, beside what its report says."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cute_gemm._text import named, printable
from cute_gemm.commands.arguments import add, add_problem, integers, number
from cute_gemm.commands.output import (
    OK,
    WRONG,
    check_html,
    print_json,
    progress,
    say,
    show,
    show_report,
)
from cute_gemm.errors import FaultError, OptionError

if TYPE_CHECKING:
    import numpy as np

    from cute_gemm.analysis.traced import Request
    from cute_gemm.ptx import Buffer, Execution

#: Seconds after which a bar says how far the CTAs are.
_PATIENCE = 3.0
_ARRAY = re.compile(r"(\w+)=(?:(\w+):(\d+(?:x\d+)*)|(.+\.npy))")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what ``cute-gemm trace`` takes."""
    add_problem(parser)
    for action in parser._actions:
        if action.dest == "op":
            action.nargs, action.help = "?", f"{action.help}; left out with --ptx"
    add(parser, "--alpha", "--beta", "--base-offset", "--seed", "--html")
    parser.add_argument(
        "--access",
        metavar="NAME",
        help="show one request, lane by lane: to A, B, C, an --arg, or shared",
    )
    for name, what in (
        ("cta", "of this CTA, x fastest"), ("warp", "of this warp"),
        ("request", "the warp's request of this number, from 0"),
    ):  # fmt: skip
        parser.add_argument(
            f"--{name}", type=int, default=0, metavar="N", help=f"{what} (default 0)"
        )
    own = parser.add_argument_group("a kernel of one's own")
    own.add_argument("--ptx", metavar="FILE", help="execute an entry of this PTX text")
    own.add_argument("--entry", metavar="NAME", help="where it has several")
    own.add_argument("--grid", default="1", metavar="X,Y,Z", help="CTAs (default 1)")
    own.add_argument("--block", default="32", metavar="X,Y,Z", help="threads of a CTA (default 32)")
    own.add_argument(
        "--shared", type=int, default=0, metavar="BYTES", help="dynamic shared memory (default 0)"
    )
    own.add_argument(
        "--arg", action="append", default=[], metavar="ARG",
        help="of each parameter in order: A=float32:64x32 (random, rows contiguous), A=FILE.npy, "
        "5, 0.5",
    )  # fmt: skip
    own.add_argument(
        "--limit", type=int, metavar="N",
        help="instructions after which it counts as one that does not end (default 20,000,000, or "
        "500,000 in which no thread stores, passes a barrier or accesses another address)",
    )  # fmt: skip
    own.add_argument("--save", metavar="DIR", help="write the arrays to DIR/NAME.npy")


def command(arguments: argparse.Namespace) -> int:
    """Print predicted | executed; return 1 if a figure differs, C is wrong or there is a fault."""
    try:
        return _own(arguments) if arguments.ptx else _planned(arguments)
    except FaultError as error:
        if arguments.json:
            print_json({"fault": {**named(error, "kind", "line"), "message": str(error)}})
        print(f"cute-gemm: {printable(str(error))}", file=sys.stderr)
        return WRONG


@contextmanager
def _shown() -> Iterator[None]:
    """Show how far a launch has come that is executed inside, if it takes long."""
    from cute_gemm.ptx.launch import PROGRESS

    with progress(_PATIENCE) as tell:
        before = PROGRESS.set(tell and partial(tell, "CTAs executed"))
        try:
            yield
        finally:
            PROGRESS.reset(before)


def _planned(arguments: argparse.Namespace) -> int:
    """Execute the kernel of a problem on random matrices."""
    from cute_gemm.api import plan as make_plan
    from cute_gemm.commands.arguments import planned
    from cute_gemm.commands.matrices import stored

    if arguments.op is None:
        raise OptionError("OP is missing; expected NN, NT, TN or TT, or --ptx FILE")
    check_html(arguments)
    A, B, C = stored(arguments, planned(arguments).problem)
    plan = make_plan(
        arguments.op, A, B, C, backend="interpreter", **arguments.options,
        **named(arguments, "compute", "kernel", "arch", "base_offset"),
    )  # fmt: skip
    if not plan.compiled:
        raise OptionError(f"kernel {plan.kernel!r} is not compiled: nothing of it is executed here")
    with _shown():
        found = plan.trace(A, B, C, alpha=arguments.alpha, beta=arguments.beta)
    if arguments.access:
        requests = found.requests(arguments.access, arguments.cta, arguments.warp)
        found = replace(found, shown=_chosen(arguments, requests))
    show_report(arguments, found)
    return OK if found.agrees else WRONG


def _chosen(arguments: argparse.Namespace, requests: Sequence[Request]) -> Request:
    """The request that is shown."""
    if not 0 <= arguments.request < len(requests):
        raise OptionError(
            f"--request {arguments.request} is none of the {len(requests)} requests to "
            f"{arguments.access} of CTA {arguments.cta}, warp {arguments.warp}"
        )
    return requests[arguments.request]


# ---- a kernel of one's own -----------------------------------------------------------------------


def _own(arguments: argparse.Namespace) -> int:
    """Execute an entry of a PTX text on arrays and numbers, and say what it did."""
    import numpy as np

    from cute_gemm.analysis.executed import executed
    from cute_gemm.analysis.traced import requests_of
    from cute_gemm.measure.matrices import generator
    from cute_gemm.ptx import Buffer, run

    if arguments.op is not None:
        raise OptionError(
            f"OP is {arguments.op!r}, and --ptx has an entry of its own: leave one out"
        )
    if arguments.html:
        raise OptionError("--html has the page of a problem's report; with --ptx expected --json")
    rng = generator(arguments.seed)
    given: list[Any] = [_argument(text, rng) for text in arguments.arg]
    buffers = [one for one in given if isinstance(one, Buffer)]
    before = {one.name: one.array.copy() for one in buffers}
    text = Path(arguments.ptx).read_text(encoding="utf-8")
    extents = _extents(arguments.grid, "grid"), _extents(arguments.block, "block")
    with _shown():
        execution = run(
            text, arguments.entry, *extents, arguments.shared, given, record=True,
            most_steps=arguments.limit,
        )  # fmt: skip
    if arguments.save:
        Path(arguments.save).mkdir(parents=True, exist_ok=True)
        for one in buffers:
            np.save(Path(arguments.save) / f"{one.name}.npy", one.array)
    request = None
    if arguments.access:
        where, names = (arguments.access, arguments.cta, arguments.warp), [x.name for x in buffers]
        request = _chosen(arguments, requests_of(execution, *where, names))
    arrays = [_changes(one, before[one.name]) for one in buffers]
    kinds = [{**kind._asdict(), **figures} for kind, figures in sorted(executed(execution).items())]
    counts = dict(sorted((execution.counts or {}).items(), key=lambda pair: -pair[1]))
    if arguments.json:
        print_json(
            {"entry": execution.kernel.name, "arrays": arrays, "accesses": kinds, "counts": counts}
        )
        return OK
    _show(execution, arrays, kinds, counts)
    if request is not None:
        say()
        show(request.table())
    return OK


def _argument(text: str, rng: np.random.Generator) -> Buffer | int | float:
    """An array by its type and extents or from a file, or a number."""
    import numpy as np

    from cute_gemm.problem.dtypes import dtype
    from cute_gemm.problem.values import random_values
    from cute_gemm.ptx import Buffer

    found = _ARRAY.fullmatch(text)
    if found is None:
        try:
            value = number(text)
        except ValueError:
            value = 1j
        if isinstance(value, complex):
            raise OptionError(
                f"--arg {text!r} is no argument; expected A=float32:64x32, A=FILE.npy or 5"
            )
        return value
    name, kind, extents, file = found.groups()
    if file is not None:
        return Buffer(np.load(file), name)
    shape = integers(extents.split("x"), "--arg")
    return Buffer(random_values(rng, shape, dtype(kind).name), name, 0)


def _extents(text: str, name: str) -> tuple[int, ...]:
    """``"4,2"``."""
    if not re.fullmatch(r"\d+([,x]\d+){0,2}", text):
        raise OptionError(f"--{name} {text!r} does not fit; expected one to three extents, as 4,2")
    return integers(re.split("[,x]", text), f"--{name}")


def _changes(one: Buffer, before: np.ndarray) -> dict[str, Any]:
    """What an array is, and how many of its elements are others now."""
    import numpy as np

    same = one.array.view(np.uint8) == before.view(np.uint8)
    changed = int((~same.reshape(*before.shape, -1).all(axis=-1)).sum())
    return {
        "name": one.name, "dtype": str(one.array.dtype), "shape": list(one.array.shape),
        "changed": changed,
    }  # fmt: skip


def _show(
    execution: Execution, arrays: list[dict[str, Any]], kinds: list[dict[str, Any]],
    counts: dict[str, int],
) -> None:  # fmt: skip
    from cute_gemm.analysis.tables import Column, Table
    from cute_gemm.analysis.traced import instructions_table

    say(f"{execution.kernel.name}\n")
    lines = [
        (one["name"], one["dtype"], "x".join(map(str, one["shape"])), f"{one['changed']:,}")
        for one in arrays
    ]
    heads = ("array", "dtype", "shape", "elements changed")
    show(Table("", tuple(Column(head, left=head != heads[-1]) for head in heads), lines))
    figures = ("requests", "lanes", "sectors", "wavefronts")
    rows = [
        (
            f"{one['operand'] or 'shared'} {one['instruction']}", str(one["bits"]),
            *(f"{one[name]:,}" if name in one else "-" for name in figures),
        )
        for one in kinds
    ]  # fmt: skip
    say()
    columns = tuple(Column(head, left=head == "access") for head in ("access", "bits", *figures))
    show(Table("Accesses", columns, rows))
    say()
    show(instructions_table(counts))
