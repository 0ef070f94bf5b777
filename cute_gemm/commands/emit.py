"""``cute-gemm emit``: a kernel's translation unit, its PTX or its SASS."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from cute_gemm._text import named
from cute_gemm.commands.arguments import add, add_options, add_problem, planned
from cute_gemm.commands.output import OK, print_json
from cute_gemm.errors import HeaderError, OptionError
from cute_gemm.kernels import registry

if TYPE_CHECKING:
    from cute_gemm.api import Plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what ``cute-gemm emit`` takes."""
    add_problem(parser)
    add(parser, "--epilogue")
    text = parser.add_mutually_exclusive_group()
    add_options(text, {"--ptx": "print PTX instead"})
    add_options(text, {"--sass": "print machine code, disassembled by nvdisasm, instead"})
    add_options(parser, {"-o,--output FILE": "file to write to, - for stdout (default)"})


def command(arguments: argparse.Namespace) -> int:
    """Print or write the text; return 0."""
    if arguments.output == "-" and arguments.json:
        raise OptionError("--output - and --json both print to stdout; expected --output FILE")
    file = Path(arguments.output) if arguments.output not in (None, "-") else None
    plan = planned(arguments)
    kind = "ptx" if arguments.ptx else "sass" if arguments.sass else "source"
    text: str = getattr(plan, kind)
    if kind == "source" and plan.compiled:
        text = f"{_built_by(plan, file.name if file else 'unit.cu')}\n{text}"
    if file:
        file.write_text(text, encoding="utf-8")
    if arguments.json:
        print_json({**named(plan, "kernel", "arch", "symbol"), kind: text})
    elif not file:
        print(text, end="" if text.endswith("\n") else "\n")
    return OK


def _built_by(plan: Plan, file: str) -> str:
    """Return a comment with the command that builds the unit outside this package."""
    from cute_gemm.toolchain.headers import include_paths

    try:
        folders = list(map(str, (*plan.unit.folders, *include_paths())))
    except HeaderError:  # emitting needs none of them
        folders = ["TEMPLATES", "CUTLASS/include", "CUDA/include", "CUDA/include/cccl"]
    words = [f"-arch={plan.arch}", "-std=c++17", "-DNDEBUG"]
    words += [f'-I"{folder}"' if " " in folder else f"-I{folder}" for folder in folders]
    if registry.get(plan.kernel).compiled().nvcc:
        return f"// nvcc -cubin --expt-relaxed-constexpr {' '.join(words)} {file}"
    comment = "// Only NVRTC builds it, not nvcc: device code calls host functions here."
    return f"{comment}\n// NVRTC: --device-as-default-execution-space {' '.join(words)}"
