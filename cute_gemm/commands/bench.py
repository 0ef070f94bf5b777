"""``cute-gemm bench``: kernels compared, as tables and JSON."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from cute_gemm._text import named
from cute_gemm.commands.arguments import SEVERAL, TYPES, add, add_options, extents_of, given
from cute_gemm.commands.output import OK, WRONG, output_file, progress, show_result
from cute_gemm.errors import OptionError
from cute_gemm.kernels import registry
from cute_gemm.measure.bench import OPS, bench
from cute_gemm.measure.result import BenchResult

_KERNELS = (
    ": ladder (default), every rung from the loop on the host to sm90_wgmma; all; auto, "
    f"{', '.join(registry.names())}{SEVERAL}, and options after a name, as in "
    '"sm90_wgmma[cluster=2x1],sm90_wgmma[stages=3]"; cublas is timed with all of them'
)
#: Arguments that have no meaning for a stored run.
_MEASURING = (
    "ops", "kernel", "m", "n", "k", "sizes", "l", "pad", "dtype", "compute", "order", "rounds",
    "seed", "no_check", "against", "options",
)  # fmt: skip
_AGAINST = (
    "also check and time your function f(op, A, B, C), which starts C = op(A) op(B) on the "
    "default stream, for matrices with __cuda_array_interface__; may be repeated"
)
_FROM = (
    "measure nothing: print or --json the run in FILE, which --output FILE wrote, or a "
    "stored run of the documentation (docs/data)"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``cute-gemm bench``."""
    parser.set_defaults(options={})
    parser.epilog = (
        "Fields of the kernels' configs are options too, of all kernels listed: --tile 128x128x32. "
        "Prints GFLOP/s, per cent of cuBLAS in the same run and per cent of this GPU's roofline; "
        "--json has the times and their spread too. The exit status is 1 if a kernel is wrong or "
        "could not be built."
    )
    text = "BLAS ops (default NN NT TN TT)"
    parser.add_argument("ops", nargs="*", metavar="OP", default=list(OPS), help=text)
    add(parser, "--kernel", help=_KERNELS, default="ladder")
    add(parser, "-m", "-n", "-k", default=4096)
    add(parser, "--sizes", "-l")
    text = "elements of padding after each column of A and B as stored (default 0)"
    add_options(parser, {"--pad N": text}, type=int, default=0)
    add(parser, "--dtype", help=f": of A and B, {TYPES} (default float32)", default="float32")
    add(parser, "--compute", "--order", "--rounds", "--seed", "--no-check")
    add_options(parser, {"--against MODULE:FUNCTION": _AGAINST}, action="append", default=[])
    add(parser, "-o,--output", help=": the run as JSON; - for stdout")
    add_options(parser, {"--from FILE": _FROM}, dest="stored")


def command(arguments: argparse.Namespace) -> int:
    """Print the tables, and return 1 if a kernel is wrong or could not be built, else 0."""
    file = output_file(arguments)
    result = _stored(arguments) if arguments.stored is not None else _measured(arguments)
    arguments.json |= bool(arguments.output and not file)
    show_result(arguments, result)
    if file:
        file.write_text(result.to_json() + "\n", encoding="utf-8")
    return OK if result.ok else WRONG


def _measured(arguments: argparse.Namespace) -> BenchResult:
    sizes = extents_of(arguments)
    with progress() as shown:
        return bench(
            arguments.ops, arguments.kernel, sizes, arguments.dtype,
            progress=shown, check=not arguments.no_check, options=arguments.options,
            **named(arguments, "l", "pad", "compute", "order", "rounds", "seed",
                    "against"),
        )  # fmt: skip


def _stored(arguments: argparse.Namespace) -> BenchResult:
    """Return the result of a file: the output of ``--json FILE``, or a run that contains one."""
    if others := given(arguments, *_MEASURING):
        names = {"ops": "OP", "options": "the options of kernels"}
        names |= {name: f"-{name}" for name in "lmnk"}
        words = ", ".join(names.get(x, f"--{x.replace('_', '-')}") for x in others)
        raise OptionError(f"--from reads a stored run and measures nothing; omit {words}")
    try:
        values = json.loads(Path(arguments.stored).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise OptionError(f"--from {arguments.stored!r} is not JSON: {error}") from error
    if isinstance(values, dict):
        values = values.get("result", values)
    return BenchResult.from_dict(values)
