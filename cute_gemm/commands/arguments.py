"""The words of the command line: the parsers, and a kernel's options as ``--name value``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cute_gemm.errors import OptionError
from cute_gemm.problem.dtypes import DTYPES

#: Commands that take the fields of a kernel's config as options.
_WITH_KERNEL_OPTIONS = frozenset(("run", "analyze", "profile", "explain", "emit", "compile"))
#: Parameters of ``plan`` that are no fields of a config; the words for them are others.
_TAKEN = frozenset(
    ("op", "a", "b", "c", "m", "n", "k", "kernel", "stream", "backend", "alpha", "beta")
)


def parsers() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """Return the parser, and those of the commands, by name.

    What ``profile``, ``bench`` and ``explain`` take, their modules add.
    """
    parser = argparse.ArgumentParser(
        prog="cute-gemm",
        description="Dense GEMM on NVIDIA GPUs that knows its layouts.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    commands: dict[str, argparse.ArgumentParser] = {}

    def command(name: str, text: str, json: bool = True) -> argparse.ArgumentParser:
        description = f"{text[0].upper()}{text[1:]}."
        sub = subparsers.add_parser(name, help=text, description=description, allow_abbrev=False)
        if json:
            sub.add_argument("--json", action="store_true", help="print JSON instead of text")
        sub.set_defaults(command=name)
        commands[name] = sub
        return sub

    run = command("run", "compute one GEMM on random matrices, check it and time it")
    add_problem(run)
    run.add_argument("--alpha", type=number, default=1, help="default 1")
    run.add_argument("--beta", type=number, default=0, help="default 0")
    run.add_argument("--backend", choices=("auto", "cuda", "cpu"), default="auto")
    run.add_argument("--seed", type=int, default=0, help="of the random matrices (default 0)")
    run.add_argument("--no-check", action="store_true", help="skip the comparison with float64")

    analyze = command("analyze", "report every memory access of a kernel")
    add_problem(analyze)
    analyze.add_argument(
        "--gpu", metavar="NAME", help="place it on this GPU: H200, A100, 4090, ..."
    )
    analyze.add_argument(
        "--beta", type=number, default=0, help="with another than 0, C is read (default 0)"
    )
    analyze.add_argument(
        "--build", action="store_true", help="compile it too, for registers and occupancy"
    )
    _add_html(analyze)

    copy = command("copy", "report a tiled copy of one's own, from its layouts alone")
    _add_copy(copy)

    profile = command("profile", "compare the report with what Nsight Compute counts on the GPU")
    add_problem(profile)

    command("bench", "check and time kernels side by side, next to cuBLAS", json=False)
    command("explain", "say what a kernel's one idea is, counted and predicted")

    emit = command("emit", "print the CUDA C++ translation unit of a kernel, its PTX or its SASS")
    add_problem(emit)
    text = emit.add_mutually_exclusive_group()
    text.add_argument("--ptx", action="store_true", help="print PTX instead")
    text.add_argument("--sass", action="store_true", help="print machine code instead, by nvdisasm")
    emit.add_argument("-o", "--output", type=Path, metavar="FILE", help="write it to FILE")

    compile_ = command("compile", "compile kernels to cubin and keep them in the cache")
    add_problem(compile_, several=True)
    compile_.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="write the cubin to FILE"
    )

    command("kernels", "list the kernels and what each supports")
    command("doctor", "check headers, compiler, driver, GPUs and cache")

    cache = command("cache", "list, size or clear the cubins on disk")
    cache.add_argument("action", choices=("list", "size", "clear"), nargs="?", default="list")
    return parser, commands


def _add_html(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--html", metavar="FILE", help="write the report with its pictures to FILE, - for stdout"
    )


def _add_copy(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``analyze_copy``, under its names."""
    parser.epilog = (
        "Layouts in CuTe's notation, as C++ CuTe and CuTe DSL print them: --tensor "
        '"(128,32):(4096,1)" --threads "(16,8):(1,16)" --values "(8,1):(1,8)" --atom cp.async.128.'
    )
    layouts = (
        ("tensor", "layout of the tile that is copied, in elements", True),
        ("threads", "(m, n) -> thread, as make_tiled_copy takes it", False),
        ("values", "(m, n) -> value (default: one vector along the contiguous mode)", False),
        ("smem", "layout of the same tile in shared memory, for a copy into it", False),
        ("tile", "with --tv: extents of the tile that one copy covers, 128x32", False),
        ("tv", "instead of --threads and --values: (thread, value) -> coordinate", False),
    )
    for name, what, required in layouts:
        parser.add_argument(f"--{name}", metavar="LAYOUT", required=required, help=what)
    parser.add_argument(
        "--atom", required=True, help="cp.async.128, ld.global, ldmatrix.x4.trans, ..., CuTe's name"
    )
    parser.add_argument("--dtype", default="float16", help="of an element (default float16)")
    parser.add_argument("--space", choices=("global", "shared"), help="where the tensor is")
    parser.add_argument("--direction", choices=("load", "store"), help="of a plain copy")
    parser.add_argument(
        "--base-alignment", type=int, default=256, metavar="BYTES", help="of its address (256)"
    )
    _add_html(parser)


def add_problem(
    parser: argparse.ArgumentParser, *, several: bool = False, kernel: bool = True
) -> None:
    """Add the arguments that name a problem and, unless it has one of its own, a kernel."""
    parser.epilog = (
        "Every field of the kernel's config is an option too: --copy mn_major, --stages 4, "
        "--tile 128x128x32. `cute-gemm kernels` lists them."
    )
    text = "BLAS op: first letter A, second B (N as stored, T transposed): NN NT TN TT"
    if several:
        parser.add_argument("ops", nargs="+", metavar="OP", help=text)
    else:
        parser.add_argument("op", metavar="OP", help=text)
    for name, what in (("m", "rows of C"), ("n", "columns of C"), ("k", "length of the sums")):
        parser.add_argument(f"-{name}", type=int, default=1024, help=f"{what} (default 1024)")
    types = ", ".join(row.name for row in DTYPES.values() if row.outputs)
    parser.add_argument("--dtype", default="float16", help=f"of A and B: {types} (default float16)")
    if kernel:
        parser.add_argument("--kernel", default="auto", help="a name from `cute-gemm kernels`")
    several_text = "; several, with commas, to compile for each" if several else ""
    parser.add_argument("--arch", help=f"sm_80, sm_90a, ... (default: this GPU's){several_text}")
    for name in ("lda", "ldb", "ldc"):
        parser.add_argument(
            f"--{name}", type=int, help=f"leading dimension of {name[2].upper()} in elements"
        )
    parser.add_argument(
        "--storage",
        choices=("F", "C"),
        default="F",
        help="order of A and B (default F, as in BLAS)",
    )
    parser.add_argument("--order", choices=("F", "C"), default="F", help="order of C (default F)")
    parser.add_argument("--compute", help="float32 or tf32, for float32 matrices")
    parser.add_argument("--out-dtype", help="of C (default: that of A and B; int32 for int8)")


class _Version(argparse.Action):
    """Read the version only when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from importlib.metadata import version

        print(f"cute-gemm {version('cute-gemm')}")
        parser.exit()


def join_negative_values(words: list[str]) -> list[str]:
    """Write ``--alpha -1e-3`` as ``--alpha=-1e-3``: argparse takes the value for an option."""
    joined: list[str] = []
    for word in words:
        if joined and joined[-1] in ("--alpha", "--beta") and word.startswith("-"):
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def number(text: str) -> int | float | complex:
    """Read an integer as one: integer types take no fraction, and real ones no imaginary part."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return complex(text)


def split_kernel_options(
    words: Sequence[str], commands: dict[str, argparse.ArgumentParser]
) -> tuple[list[str], list[str]]:
    """Return the words that the command's parser knows, and the options that it does not.

    argparse's own ``parse_known_args`` would take the value of an unknown option for the op.
    """
    if not words or words[0] not in _WITH_KERNEL_OPTIONS:
        return list(words), []
    parser = commands[words[0]]
    known: list[str] = []
    others: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--") or word.partition("=")[0] in parser._option_string_actions:
            known.append(word)
            continue
        others.append(word)
        if "=" not in word and rest and not rest[0].startswith("--"):
            others.append(rest.pop(0))
    return known, others


def kernel_options(words: Sequence[str]) -> dict[str, Any]:
    """Read ``--stages 4 --copy=mn_major`` as fields of a kernel's config.

    Examples
    --------
    >>> kernel_options(["--stages", "4", "--copy=mn_major", "--tile", "128x128x32"])
    {'stages': 4, 'copy': 'mn_major', 'tile': (128, 128, 32)}
    """
    options: dict[str, Any] = {}
    rest = list(words)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        if name[2:].lower() in _TAKEN:
            raise OptionError(f"option {name} does not exist here; see cute-gemm COMMAND --help")
        if not equals:
            if not rest or rest[0].startswith("--"):
                raise OptionError(f"option {name} needs a value, as in {name} VALUE")
            value = rest.pop(0)
        options[name[2:].replace("-", "_")] = _option_value(value)
    return options


def _option_value(text: str) -> Any:
    """Return an int, a bool, a tuple of them, or the text itself."""
    extents = text.replace("x", ",") if text.replace("x", "").isdigit() else text  # 128x128x32
    if "," in extents:
        return tuple(_option_value(part) for part in extents.strip("()").split(",") if part)
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return int(text)
    except ValueError:
        return text
