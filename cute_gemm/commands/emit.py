"""``cute-gemm emit``: a kernel's translation unit, its PTX or its SASS."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from cute_gemm._text import named
from cute_gemm.commands.arguments import CODE, add, add_problem, codes, planned
from cute_gemm.commands.output import OK, output_file, print_json
from cute_gemm.errors import HeaderError, OptionError
from cute_gemm.kernels import registry

if TYPE_CHECKING:
    from cute_gemm.plan.plan import Plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``cute-gemm emit``."""
    add_problem(parser)
    add(parser, "--epilogue")
    add(parser, "--show", help=f": {', '.join(CODE)}, which nvdisasm disassembles (default source)")
    add(parser, "-o,--output")


def command(arguments: argparse.Namespace) -> int:
    """Print or write the text; return 0."""
    file = output_file(arguments)
    kinds = codes(arguments) or ["source"]
    if len(kinds) > 1:
        raise OptionError(f"--show {arguments.show} names {len(kinds)} kinds; expected one")
    [kind] = kinds
    plan = planned(arguments)
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
    except HeaderError:  # emitting does not need headers
        folders = ["TEMPLATES", "CUTLASS/include", "CUDA/include", "CUDA/include/cccl"]
    words = [f"-arch={plan.arch}", "-std=c++17", "-DNDEBUG"]
    words += [f'-I"{folder}"' if " " in folder else f"-I{folder}" for folder in folders]
    if registry.get(plan.kernel).compiled().nvcc:
        return f"// nvcc -cubin --expt-relaxed-constexpr {' '.join(words)} {file}"
    comment = "// Only NVRTC builds it, not nvcc: device code calls host functions here."
    return f"{comment}\n// NVRTC: --device-as-default-execution-space {' '.join(words)}"
