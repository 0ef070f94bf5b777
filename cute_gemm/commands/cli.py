"""The ``cute-gemm`` command; ``cute-gemm --help`` lists its commands."""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any, NoReturn, TextIO

from cute_gemm._text import hint_for, printable
from cute_gemm.commands import interrupt
from cute_gemm.commands.arguments import (
    Prints,
    add,
    join_negative_values,
    kernel_options,
    split_kernel_options,
)
from cute_gemm.commands.output import BAD_INPUT, OK, print_json
from cute_gemm.errors import GemmError, HeaderError, OptionError

#: The commands. The module of the same name, imported when the command is asked for, has
#: ``add_arguments(parser)`` and ``command(arguments)``, which returns the exit status.
COMMANDS = {
    "run": "compute one GEMM on random matrices, check it and time it",
    "analyze": "report every memory access of a kernel",
    "copy": "report the accesses of a tiled copy given by its layouts",
    "trace": "execute a kernel without a GPU and compare it with its report",
    "profile": "compare the report with the counters of Nsight Compute",
    "bench": "check kernels and time them in turns with cuBLAS",
    "compare": "show two configs, kernels, ops or layouts side by side",
    "tune": "measure which kernel is the fastest and store it for later calls",
    "calibrate": "measure kernels on this GPU and fit the cost model to them",
    "explain": "explain the idea of a kernel, with counts and predicted times",
    "emit": "print the CUDA C++ translation unit of a kernel, its PTX or its SASS",
    "compile": "compile kernels to cubin and keep them in the cache",
    "prove": "compile the proof that C++ CuTe computes a kernel's layouts",
    "kernels": "list the kernels and what each supports",
    "doctor": "check headers, compiler, driver, GPUs and cache",
    "cache": "list, size or clear the cubins and tuned configs on disk",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, by default from the process's arguments, and return its exit status.

    It is 0; 1 if a result is wrong, a figure of ``profile`` differs from the report, or
    ``doctor`` finds something missing; 2 for bad input and for every other `GemmError`,
    which is printed as one line on standard error.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # a closed stream
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):  # its encoding may lack characters
            stream.reconfigure(errors="backslashreplace")
    words = sys.argv[1:] if argv is None else list(argv)
    if argv is None:
        interrupt.while_running()
    try:
        try:
            return _run(words)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # `cute-gemm emit ... | head`
        _leave_stdout()
        return OK
    except OSError as error:  # a full disk
        _leave_stdout()
        return _fail(error)
    except KeyboardInterrupt:
        return interrupt.STATUS


def _run(words: list[str]) -> int:
    """Run the command that the words name, and return its exit status."""
    parser, commands = parsers()
    kernel_words: list[str] = []
    name = next((word for word in words if word in COMMANDS), None)
    as_json = "--json" in words
    try:
        if name:
            module: Any = importlib.import_module(f"cute_gemm.commands.{name}")
            module.add_arguments(commands[name])
            words, kernel_words = split_kernel_options(words, commands[name])
        elif words and not words[0].startswith("-"):
            near = hint_for(words[0], COMMANDS) or f"expected one of {', '.join(COMMANDS)}"
            raise OptionError(f"command {words[0]!r} is not known; {near}")
        words = join_negative_values(words)
        if name and words[0] == name:  # its OP may come after options
            arguments = commands[name].parse_intermixed_args(words[1:])
        else:  # an error without a command; --help and --version exit
            arguments = parser.parse_args(words)
        if name:
            arguments.options = kernel_options(kernel_words, commands[name])
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            status: int = module.command(arguments)
            return status
    except BrokenPipeError:
        raise
    # No permission to write, a terabyte, python -W error.
    except (GemmError, MemoryError, OSError, Warning) as error:
        return _fail(error, as_json)
    except ImportError as error:
        missing = f"the Python package {error.name} is missing" if error.name else str(error)
        return _fail(HeaderError(missing), as_json)


def _fail(error: Exception, as_json: bool = False) -> int:
    """Print an error as one line, and with ``as_json`` as JSON too; return the exit status."""
    message = str(error).strip() or type(error).__name__
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        message = f"{str(error.filename)!r} cannot be read or written: {error.strerror}"
    if isinstance(error, HeaderError):
        message = f"{message}; run `cute-gemm doctor`"
    if as_json:
        failure = {"type": type(error).__name__, "message": message}
        log = getattr(error, "log", "")
        print_json({"error": failure | ({"log": log} if log else {})})
    line = message.partition("\n")[0]
    if not as_json:  # the exception is not available
        line = line.replace("the whole log is in .log", "--json prints the whole log")
    print(f"cute-gemm: {printable(line)}", file=sys.stderr)
    return BAD_INPUT


def _leave_stdout() -> None:
    """Send all further output, also at exit, to the null device."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one sentence."""

    def format_help(self) -> str:
        """Return the help; for a command with a kernel, with a usage of one line."""
        if self.get_default("options") is not None:
            operands = [action.metavar for action in self._actions if not action.option_strings]
            self.usage = " ".join(["%(prog)s", *map(str, operands), "[options]"])
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        raise OptionError(f"{message}; see {self.prog} --help")


def parsers() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """Return the parser, and the commands' parsers by name, without arguments yet."""
    says = "Dense, layout-aware GEMM on NVIDIA GPUs."
    parser = _Parser("cute-gemm", description=says, allow_abbrev=False)
    parser.add_argument(
        "--version", action=Prints, const=_version, nargs=0, help="print the version"
    )
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    commands: dict[str, argparse.ArgumentParser] = {}
    for name, text in COMMANDS.items():
        commands[name] = command = subparsers.add_parser(
            name, help=text, description=f"{text[0].upper()}{text[1:]}.", allow_abbrev=False
        )
        command.set_defaults(parser=command)
        add(command, "--json")
    return parser, commands


def _version(_: object) -> str:
    from importlib.metadata import version

    return f"cute-gemm {version('cute-gemm')}"


def _show_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int,
    file: TextIO | None = None, line: str | None = None,
) -> None:  # fmt: skip
    """Print a warning as one line, without its location in the source."""
    print(f"note: {printable(str(message))}", file=sys.stderr, flush=True)
