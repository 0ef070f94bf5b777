"""``cute-gemm trace``: a kernel executed without a GPU, and compared with its report."""

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

from cute_gemm._text import counted, named, printable
from cute_gemm.commands.arguments import add, add_options, add_problem, integers, number
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
from cute_gemm.errors import CompileError, FaultError, OptionError

if TYPE_CHECKING:
    import numpy as np

    from cute_gemm.analysis.traced import Request
    from cute_gemm.ptx import Buffer, Execution

#: Seconds after which a progress bar counts the executed CTAs.
_PATIENCE = 3.0
_ARRAY = re.compile(r"(\w+)=(?:(\w+):(\d+(?:x\d+)*)|(.+\.npy))")

_ARG = "value of the next parameter: A=float32:64x32 (random, rows contiguous), A=FILE.npy, 5, 0.5"
_PTX = (
    "execute an entry of this file: PTX, or CUDA C++ if it ends in .cu, which NVRTC compiles for "
    "--arch with the options and headers of this package's kernels"
)
_LIMIT = (
    "instructions after which the kernel is taken not to end (default 20,000,000, or 500,000 in "
    "which no thread stores, passes a barrier or accesses another address)"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what ``cute-gemm trace`` takes."""
    add_problem(parser, without_op="omit it with --ptx")
    add(parser, "--alpha", "--beta", "--base-offset", "--seed", "--group-sizes", "--html")
    add_options(
        parser,
        {"--access NAME": "show one request lane by lane; NAME is A, B, C, an --arg, or shared"},
    )
    request = {
        "--cta N": "CTA of that request, x fastest (default 0)",
        "--warp N": "warp of that request (default 0)",
        "--request N": "number of that request among the warp's (default 0)",
    }
    add_options(parser, request, type=int, default=0)
    own = parser.add_argument_group("another kernel")
    add_options(own, {"--ptx FILE": _PTX})
    add_options(own, {"--entry NAME": "the entry, if the file has several"})
    add_options(own, {"--grid X,Y,Z": "CTAs (default 1)"}, default="1")
    add_options(own, {"--block X,Y,Z": "threads of a CTA (default 32)"}, default="32")
    add_options(own, {"--shared BYTES": "dynamic shared memory (default 0)"}, type=int, default=0)
    add_options(own, {"--arg ARG": _ARG}, action="append", default=[])
    add_options(own, {"--limit N": _LIMIT}, type=int)
    add_options(own, {"--save DIR": "write the arrays to DIR/NAME.npy"})


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
    """Show the progress of a launch that is executed inside, if it takes long."""
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
    from cute_gemm.commands.matrices import stored, stored_operands

    if arguments.op is None:
        raise OptionError("OP is missing; expected NN, NT, TN or TT, or --ptx FILE")
    check_html(arguments)
    sized = planned(arguments).problem
    A, B, C = stored(arguments, sized)
    operands = stored_operands(arguments, sized)
    plan = make_plan(
        arguments.op, A, B, C, backend="interpreter", **arguments.options, **operands,
        **named(arguments, "compute", "fast_accum", "kernel", "arch", "base_offset"),
    )  # fmt: skip
    if not plan.compiled:
        raise OptionError(f"kernel {plan.kernel!r} is not compiled: it has no PTX to execute")
    with _shown():
        trace = plan.trace(A, B, C, alpha=arguments.alpha, beta=arguments.beta, **operands)
    if arguments.access:
        requests = trace.requests(arguments.access, arguments.cta, arguments.warp)
        trace = replace(trace, shown=_chosen(arguments, requests))
    show_report(arguments, trace)
    return OK if trace.agrees else WRONG


def _chosen(arguments: argparse.Namespace, requests: Sequence[Request]) -> Request:
    """Return the request to show."""
    if not 0 <= arguments.request < len(requests):
        raise OptionError(
            f"--request {arguments.request} does not fit; CTA {arguments.cta}, warp "
            f"{arguments.warp} makes {counted(len(requests), 'request')} to {arguments.access}, "
            "counted from 0"
        )
    return requests[arguments.request]


# ---- another kernel ------------------------------------------------------------------------------


def _own(arguments: argparse.Namespace) -> int:
    """Execute an entry of a PTX file on arrays and numbers, and print what it did."""
    import numpy as np

    from cute_gemm.analysis.executed import executed
    from cute_gemm.analysis.traced import requests_of
    from cute_gemm.measure.matrices import generator
    from cute_gemm.ptx import Buffer, run

    if arguments.op is not None:
        raise OptionError(
            f"OP is {arguments.op!r}, and --ptx names another kernel: omit one of them"
        )
    if arguments.html:
        raise OptionError("--html writes the report of a problem; with --ptx expected --json")
    rng = generator(arguments.seed)
    parameters: list[Any] = [_argument(text, rng) for text in arguments.arg]
    buffers = [buffer for buffer in parameters if isinstance(buffer, Buffer)]
    before = {buffer.name: buffer.array.copy() for buffer in buffers}
    text = _ptx(Path(arguments.ptx), arguments.arch)
    extents = _extents(arguments.grid, "grid"), _extents(arguments.block, "block")
    with _shown():
        execution = run(
            text, arguments.entry, *extents, arguments.shared, parameters, record=True,
            most_steps=arguments.limit,
        )  # fmt: skip
    if arguments.save:
        Path(arguments.save).mkdir(parents=True, exist_ok=True)
        for buffer in buffers:
            np.save(Path(arguments.save) / f"{buffer.name}.npy", buffer.array)
    request = None
    if arguments.access:
        where, names = (arguments.access, arguments.cta, arguments.warp), [x.name for x in buffers]
        request = _chosen(arguments, requests_of(execution, *where, names))
    arrays = [_changes(buffer, before[buffer.name]) for buffer in buffers]
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


def _ptx(file: Path, arch: str | None) -> str:
    """Return the PTX of a file, compiled if it is CUDA C++."""
    text = file.read_text(encoding="utf-8")
    if file.suffix != ".cu":
        return text
    from cute_gemm.backend import DEFAULT_ARCH
    from cute_gemm.run.driver import device_arch, why_no_gpu
    from cute_gemm.toolchain.nvrtc import ptx
    from cute_gemm.toolchain.unit import TranslationUnit

    arch = arch or (DEFAULT_ARCH if why_no_gpu() else device_arch())
    try:
        return ptx(TranslationUnit(text, "", (file.absolute().parent,)), arch)
    except CompileError as error:
        said = re.sub(r"^unit\b", lambda _: file.name, str(error))
        raise CompileError(said, error.log) from error


def _argument(text: str, rng: np.random.Generator) -> Buffer | int | float:
    """Return an array, by type and extents or from a file, or a number."""
    import numpy as np

    from cute_gemm.frameworks.base import dtype_row
    from cute_gemm.problem.values import random_values
    from cute_gemm.ptx import Buffer

    match = _ARRAY.fullmatch(text)
    if match is None:
        try:
            value = number(text)
        except ValueError:
            value = 1j
        if isinstance(value, complex):
            raise OptionError(
                f"--arg {text!r} is not understood; expected A=float32:64x32, A=FILE.npy or 5"
            )
        return value
    name, kind, extents, file = match.groups()
    if file is not None:
        return Buffer(np.load(file), name)
    shape = integers(extents.split("x"), "--arg")
    return Buffer(random_values(rng, shape, dtype_row(kind).name), name, 0)


def _extents(text: str, name: str) -> tuple[int, ...]:
    """Read extents: ``"4,2"``."""
    if not re.fullmatch(r"\d+([,x]\d+){0,2}", text):
        raise OptionError(
            f"--{name} {text!r} does not fit; expected one to three extents, as in 4,2"
        )
    return integers(re.split("[,x]", text), f"--{name}")


def _changes(buffer: Buffer, before: np.ndarray) -> dict[str, Any]:
    """Describe an array, with the number of its elements that changed."""
    import numpy as np

    same = buffer.array.view(np.uint8) == before.view(np.uint8)
    changed = int((~same.reshape(*before.shape, -1).all(axis=-1)).sum())
    return {
        "name": buffer.name, "dtype": str(buffer.array.dtype), "shape": list(buffer.array.shape),
        "changed": changed,
    }  # fmt: skip


def _show(
    execution: Execution, arrays: list[dict[str, Any]], kinds: list[dict[str, Any]],
    counts: dict[str, int],
) -> None:  # fmt: skip
    from cute_gemm.analysis.tables import table
    from cute_gemm.analysis.traced import instructions_table

    say(f"{execution.kernel.name}\n")
    lines = [
        (row["name"], row["dtype"], "x".join(map(str, row["shape"])), f"{row['changed']:,}")
        for row in arrays
    ]
    heads = ("array", "dtype", "shape", "elements changed")
    show(table("", heads, lines, *heads[:-1]))
    figures = ("requests", "lanes", "sectors", "wavefronts")
    rows = [
        (
            f"{row['operand'] or 'shared'} {row['instruction']}", str(row["bits"]),
            *(f"{row[name]:,}" if name in row else "-" for name in figures),
        )
        for row in kinds
    ]  # fmt: skip
    say()
    show(table("Accesses", ("access", "bits", *figures), rows, "access"))
    say()
    show(instructions_table(counts))
