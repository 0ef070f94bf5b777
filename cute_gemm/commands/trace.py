"""``cute-gemm trace``: execute a kernel without a GPU, and compare it with its report."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from math import prod
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
from cute_gemm.errors import CompileError, FaultError, OptionError, PtxError, shown

if TYPE_CHECKING:
    import numpy as np

    from cute_gemm.ptx import Buffer, Execution
    from cute_gemm.report.traced import Request

#: Limits: bytes and modes of an array, shared memory of a CTA, threads of a launch.
_MOST_BYTES, _MOST_MODES, _MOST_SHARED, _MOST_THREADS = 1 << 34, 8, 232_448, 1 << 28
_TEXT = "PTX, or CUDA C++ in a file whose name ends in .cu"
#: Seconds after which a progress bar counts the executed CTAs.
_PATIENCE = 3.0
_ARRAY = re.compile(r"(\w+)=(?:(\w+):(\d+(?:x\d+)*)|(.+\.npy))")

_ARG = "next parameter: A=float32:64x32, A=FILE.npy, 5, 0.5"
_PTX = "file of PTX, or of CUDA C++ (.cu), to execute"
_LIMIT = "instructions after which the kernel is stopped (default 20,000,000)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``cute-gemm trace``."""
    add_problem(parser, without_op="omit it with --ptx")
    add(parser, "--alpha", "--beta", "--base-offset", "--seed", "--group-sizes", "--html")
    add_options(
        parser,
        {"--access NAME": "show a request lane by lane: of A, B, C, an --arg, shared"},
    )
    request = {
        "--cta N": "CTA of that request, x fastest",
        "--warp N": "warp of that request",
        "--request N": "number of that request among the warp's (default 0)",
    }
    add_options(parser, request, type=int, default=0)
    own = parser.add_argument_group("another kernel")
    add_options(own, {"--ptx FILE": _PTX})
    add_options(own, {"--entry NAME": "the entry, if the file has several"})
    add_options(own, {"--grid X,Y,Z": "CTAs (default 1)"}, default="1")
    add_options(own, {"--block X,Y,Z": "threads of a CTA (default 32)"}, default="32")
    add_options(own, {"--shared BYTES": "dynamic shared memory"}, type=int, default=0)
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
    """Show the progress of a launch that is executed in the context, if it takes long."""
    from cute_gemm.ptx.launch import PROGRESS

    with progress(_PATIENCE) as tell:
        before = PROGRESS.set(partial(tell, "CTAs executed"))
        try:
            yield
        finally:
            PROGRESS.reset(before)


def _planned(arguments: argparse.Namespace) -> int:
    """Execute the kernel of a problem on random matrices."""
    from cute_gemm.commands.matrices import planned_on_matrices

    if arguments.op is None:
        raise OptionError("OP is missing; expected NN, NT, TN or TT, or --ptx FILE")
    check_html(arguments)
    plan, (A, B, C), operands = planned_on_matrices(
        arguments, backend="interpreter", base_offset=arguments.base_offset
    )
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
            f"{arguments.warp} has {counted(len(requests), 'request')} to {arguments.access}, "
            "counted from 0"
        )
    return requests[arguments.request]


# ---- another kernel ------------------------------------------------------------------------------


def _own(arguments: argparse.Namespace) -> int:
    """Execute an entry of a PTX file on arrays and numbers, and print the changes."""
    import numpy as np

    from cute_gemm.measure.matrices import generator
    from cute_gemm.ptx import Buffer, run
    from cute_gemm.ptx.lines import Sources
    from cute_gemm.report.executed import executed
    from cute_gemm.report.traced import requests_of
    from cute_gemm.toolchain.nvrtc import UNIT

    if arguments.op is not None:
        raise OptionError(
            f"OP is {arguments.op!r}, and --ptx names another kernel: omit one of them"
        )
    if arguments.html:
        raise OptionError("--html writes the report of a problem; with --ptx expected --json")
    extents = _extents(arguments.grid, "grid"), _extents(arguments.block, "block")
    _check_launch(arguments, *extents)
    rng = generator(arguments.seed)
    parameters: list[Any] = [_argument(text, rng) for text in arguments.arg]
    buffers = [buffer for buffer in parameters if isinstance(buffer, Buffer)]
    _check_names([buffer.name for buffer in buffers])
    before = {buffer.name: buffer.array.copy() for buffer in buffers}
    file = Path(arguments.ptx)
    text = _ptx(file, arguments.arch)
    try:
        with _shown():
            execution = run(
                text, arguments.entry, *extents, arguments.shared, parameters, record=True,
                most_steps=arguments.limit,
            )  # fmt: skip
    except (FaultError, PtxError) as error:
        if file.suffix == ".cu":  # its lines are not those of its PTX
            error.args = (Sources(text, UNIT, file.name).with_places(str(error)), *error.args[1:])
        raise
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
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        message = f"--ptx {shown(str(file))} cannot be read: {error.strerror}; expected {_TEXT}"
        raise OptionError(message) from error
    except ValueError as error:  # it is not UTF-8, or the name has a NUL
        raise OptionError(f"--ptx {shown(str(file))} is not text; expected {_TEXT}") from error
    if file.suffix != ".cu":
        return text
    from cute_gemm.plan.backend import DEFAULT_ARCH
    from cute_gemm.run.driver import device_arch, why_no_gpu
    from cute_gemm.toolchain.nvrtc import compile_ptx
    from cute_gemm.toolchain.unit import TranslationUnit

    arch = arch or (DEFAULT_ARCH if why_no_gpu() else device_arch())
    try:
        unit = TranslationUnit(text, "", (file.absolute().parent,))
        return compile_ptx(unit, arch, lines=True)
    except CompileError as error:
        message = re.sub(r"^unit\b", lambda _: file.name, str(error))
        raise CompileError(message, error.log) from error


def _argument(text: str, rng: np.random.Generator) -> Buffer | int | float:
    """Return an array, from type and extents or from a file, or a number."""
    from cute_gemm.arrays.base import dtype_row
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
        return Buffer(_loaded(file), name)
    shape, row = integers(extents.split("x"), "--arg"), dtype_row(kind)
    size = prod(shape) * row.bytes
    if size > _MOST_BYTES or len(shape) > _MOST_MODES:
        raise OptionError(
            f"--arg {shown(text)} has {counted(len(shape), 'extent')} and {size:,} bytes; expected "
            f"at most {_MOST_MODES} and {_MOST_BYTES:,}"
        )
    return Buffer(random_values(rng, shape, row.name), name, 0)


def _loaded(file: str) -> np.ndarray:
    """Return the array of a NumPy file."""
    import numpy as np

    what = f"--arg file {shown(file)}"
    try:
        # Mapped: its declared size is checked before memory is allocated.
        array = np.load(file, mmap_mode="r")
    except OSError as error:
        cause = error.strerror or str(error).partition("\n")[0]
        raise OptionError(f"{what} cannot be read: {cause}; expected what np.save wrote") from error
    except Exception as error:  # NumPy raises many types for damaged files
        raise OptionError(
            f"{what} is not an array that NumPy reads; expected what np.save wrote"
        ) from error
    if not isinstance(array, np.ndarray) or array.dtype.kind in "OSUMm" or not array.itemsize:
        kind = getattr(array, "dtype", type(array).__name__)
        raise OptionError(f"{what} has {shown(str(kind))}; expected an array of numbers")
    if array.nbytes > _MOST_BYTES:
        raise OptionError(f"{what} has {array.nbytes:,} bytes; expected at most {_MOST_BYTES:,}")
    return np.array(array, order="K")


def _check_launch(
    arguments: argparse.Namespace, grid: tuple[int, ...], block: tuple[int, ...]
) -> None:
    """Refuse a launch that no GPU takes, or that takes too long to execute."""
    if not 0 <= arguments.shared <= _MOST_SHARED:
        raise OptionError(
            f"--shared {arguments.shared} does not fit; expected 0 to {_MOST_SHARED:,} bytes, the "
            "most that a CTA has on any GPU"
        )
    if arguments.limit is not None and arguments.limit < 1:
        raise OptionError(f"--limit {arguments.limit} does not fit; expected 1 or more")
    threads = prod(grid) * prod(block)
    if threads > _MOST_THREADS:
        raise OptionError(
            f"--grid {arguments.grid} with --block {arguments.block} has {threads:,} threads; "
            f"expected at most {_MOST_THREADS:,}, which are executed one instruction at a time"
        )
    if arguments.save and Path(arguments.save).exists() and not Path(arguments.save).is_dir():
        raise OptionError(f"--save {shown(arguments.save)} is a file; expected a directory")


def _check_names(names: Sequence[str]) -> None:
    """Refuse names of arrays that are ambiguous."""
    for name in names:
        if name in ("shared", "variables"):
            raise OptionError(f"--arg {name}= is a name of memory; expected another, such as A=")
        if names.count(name) > 1:
            raise OptionError(f"--arg {name}= is given twice; expected a name for each array")


def _extents(text: str, name: str) -> tuple[int, ...]:
    """Read extents: ``"4,2"``."""
    if not re.fullmatch(r"\d+([,x]\d+){0,2}", text):
        raise OptionError(
            f"--{name} {text!r} does not fit; expected one to three extents, as in 4,2"
        )
    return integers(re.split("[,x]", text), f"--{name}")


def _changes(buffer: Buffer, before: np.ndarray) -> dict[str, Any]:
    """Return the description of an array, with the number of its elements that changed."""
    import numpy as np

    def elements(array: np.ndarray) -> np.ndarray:
        """Return the bytes of each element: NaN is not equal to itself."""
        flat = np.ascontiguousarray(array).reshape(-1)
        return flat.view(np.uint8).reshape(array.size, array.itemsize)

    changed = int((elements(buffer.array) != elements(before)).any(axis=1).sum())
    return {
        "name": buffer.name, "dtype": str(buffer.array.dtype), "shape": list(buffer.array.shape),
        "changed": changed,
    }  # fmt: skip


def _show(
    execution: Execution, arrays: list[dict[str, Any]], kinds: list[dict[str, Any]],
    counts: dict[str, int],
) -> None:  # fmt: skip
    from cute_gemm.rendering.tables import table
    from cute_gemm.report.traced import instructions_table

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
