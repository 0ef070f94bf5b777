"""The ``cute-gemm`` command; ``cute-gemm --help`` lists what it does."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any, TextIO

from cute_gemm.commands.arguments import join_negative_values, kernel_options, split_kernel_options
from cute_gemm.commands.output import BAD_INPUT, OK
from cute_gemm.errors import GemmError

#: The commands. The module of the same name, imported when the command is asked for, has
#: ``add_arguments(parser)`` and ``command(arguments)``, which returns the exit status.
COMMANDS = {
    "run": "compute one GEMM on random matrices, check it and time it",
    "analyze": "report every memory access of a kernel",
    "copy": "report a tiled copy of one's own, from its layouts alone",
    "profile": "compare the report with what Nsight Compute counts on the GPU",
    "bench": "check and time kernels side by side, next to cuBLAS",
    "explain": "say what a kernel's one idea is, counted and predicted",
    "emit": "print the CUDA C++ translation unit of a kernel, its PTX or its SASS",
    "compile": "compile kernels to cubin and keep them in the cache",
    "prove": "compile the proof that C++ CuTe computes a kernel's layouts",
    "kernels": "list the kernels and what each supports",
    "doctor": "check headers, compiler, driver, GPUs and cache",
    "cache": "list, size or clear the cubins on disk",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, by default that of the process's words, and return its exit status.

    0; 1 when a result is wrong, ``profile`` counted something else than the report says, or
    ``doctor`` found something missing; 2 for bad input and for every other `GemmError`, which is
    one line on standard error.
    """
    words, kernel_words = sys.argv[1:] if argv is None else list(argv), list[str]()
    parser, commands = parsers()
    if name := next((word for word in words if word in COMMANDS), None):
        module: Any = importlib.import_module(f"cute_gemm.commands.{name}")
        module.add_arguments(commands[name])
        words, kernel_words = split_kernel_options(words, commands[name])
    arguments = parser.parse_args(join_negative_values(words))  # leaves where none is named
    try:
        arguments.options = kernel_options(kernel_words)
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            status: int = module.command(arguments)
            return status
    except GemmError as error:
        if arguments.json in (True, "-"):  # --json of bench may name a file
            failure = {"type": type(error).__name__, "message": str(error)}
            log = getattr(error, "log", "")
            print(json.dumps({"error": failure | ({"log": log} if log else {})}, indent=2))
        print(f"cute-gemm: {_one_line(error)}", file=sys.stderr)
        return BAD_INPUT
    except BrokenPipeError:  # `cute-gemm emit ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except (MemoryError, OSError) as error:  # matrices of a terabyte, --output without permission
        print(f"cute-gemm: {_one_line(error)}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        return 130


def parsers() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """Return the parser, and those of the commands by name, which have no arguments yet."""
    says = "Dense GEMM on NVIDIA GPUs that knows its layouts."
    parser = argparse.ArgumentParser("cute-gemm", description=says, allow_abbrev=False)
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    commands = {}
    for name, text in COMMANDS.items():
        commands[name] = command = subparsers.add_parser(
            name, help=text, description=f"{text[0].upper()}{text[1:]}.", allow_abbrev=False
        )
        if name != "bench":  # whose --json may name a file
            command.add_argument("--json", action="store_true", help="print JSON instead of text")
    return parser, commands


class _Version(argparse.Action):
    """Read the version only when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from importlib.metadata import version

        print(f"cute-gemm {version('cute-gemm')}")
        parser.exit()


def _one_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _show_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int,
    file: TextIO | None = None, line: str | None = None,
) -> None:  # fmt: skip
    """Print a warning as one line, without the place in the source it came from."""
    print(f"note: {message}", file=sys.stderr, flush=True)
