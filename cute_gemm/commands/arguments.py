"""Arguments that several commands share: a problem, a kernel, and the kernel's options."""

from __future__ import annotations

import argparse
import re
import shutil
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cute_gemm._text import WIDTH, hint_for, named, wrapped
from cute_gemm.dtypes import DTYPES
from cute_gemm.errors import OptionError
from cute_gemm.kernels import registry

if TYPE_CHECKING:
    from cute_gemm.plan.plan import Plan

#: Values of ``--dtype``.
TYPES = ", ".join(row.name for row in DTYPES.values() if row.outputs) + ", or f16, half, bf16, ..."
#: Values of ``--show``: a kernel's code, each an attribute of a plan.
CODE = ("source", "ptx", "sass")
#: End of the help of an option that a command takes several values of.
SEVERAL = "; several: with commas"
#: Arguments of ``add_problem`` in addition to op, kernel and arch; parameters of ``plan``.
PROBLEM_WORDS = (
    "m", "n", "k", "l", "dtype", "lda", "ldb", "ldc", "storage", "order", "out_dtype", "compute",
    "scale_a", "scale_b", "ragged",
)  # fmt: skip


#: Arguments of some commands that are parameters of ``plan``.
_OF_SOME = ("gpu", "base_offset", "epilogue")


def number(text: str) -> int | float | complex:
    """Return the simplest type that holds the number: int, else float, else complex."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return complex(text)


def integers(words: Sequence[str], what: str) -> tuple[int, ...]:
    """Read decimal digits; ``what`` names the option in errors, as in ``--grid``."""
    for word in words:
        if len(word) > 18:
            raise OptionError(
                f"{what} has an integer of {len(word):,} digits; expected one of 63 bits"
            )
    return tuple(map(int, words))


class _One(argparse.Action):
    """An option that may be given once, or several times with values joined by commas.

    ``const``: whether several values are allowed.
    """

    def __call__(
        self, parser: argparse.ArgumentParser, space: argparse.Namespace, values: Any, *_: Any
    ) -> None:
        before = getattr(space, self.dest)
        if before is not None and not self.const:
            raise argparse.ArgumentError(self, "expected one value, and several were given")
        joined = ",".join(filter(None, (before, values))) if self.const else values
        setattr(space, self.dest, joined)


_ORDERS: dict[str, Any] = {"choices": ("F", "C"), "default": "F"}
#: Options that several commands share: the value as it is typed, the help, and other arguments of
#: ``add_argument``. A command may replace the part of a help after its first ``(``, ``:`` or ``;``.
_SHARED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "--json": ("", "print JSON instead of text", {}),
    "-o,--output": ("FILE", "file to write to; - for stdout, the default", {"type": Path}),
    "-m": ("M", "rows of C (default %(default)s)", {"type": int, "default": 1024}),
    "-n": ("N", "columns of C (default %(default)s)", {"type": int, "default": 1024}),
    "-k": (
        "K", "columns of op(A), rows of op(B) (default %(default)s)",
        {"type": int, "default": 1024},
    ),
    "-l": (
        "L", "products of a batch, or groups with --ragged (default %(default)s)",
        {"type": int, "default": 1},
    ),
    "--sizes": (
        "LIST",
        "extents, N or MxNxK, with commas, in place of -m, -n and -k: 1024,1000x1003x1001", {},
    ),
    "--dtype": (
        "TYPE", f"type of the elements: {TYPES} (default %(default)s)", {"default": "float16"},
    ),
    "--kernel": (
        "NAME", "kernel: auto (default), or one that `cute-gemm kernels` lists",
        {"default": "auto"},
    ),
    "--arch": (
        "ARCH", "architecture: sm_80, sm_90a, ... (default: that of this GPU)",
        {"action": _One, "const": False},
    ),
    "--show": ("KIND", f"code to print: {', '.join(CODE)}", {"action": _One, "const": True}),
    "--build": ("", "compile too: for registers, shared memory and spills", {}),
    "--rounds": ("N", "rounds of timing (default %(default)s)", {"type": int, "default": 9}),
    "--alpha": (
        "ALPHA", "factor of the product (default %(default)s)", {"type": number, "default": 1},
    ),
    "--beta": (
        "BETA", "factor of C; 0 does not read C (default %(default)s)",
        {"type": number, "default": 0},
    ),
    "--gpu": (
        "NAME", "GPU to predict for: H200, A100, 4090, ..., or a FILE (.toml, .json) of one", {},
    ),
    "--base-offset": (
        "N", "elements from an aligned address (default %(default)s)", {"type": int, "default": 0},
    ),
    "--order": ("", "order of C (default %(default)s)", _ORDERS),
    "--epilogue": (
        "NAME", "epilogue: bias, residual, scale, relu, gelu, ..., joined by +", {},
    ),
    "--scale-a": ("OF", "scales of A: tensor, row, 1x128 or 128x128 (default: none)", {}),
    "--scale-b": ("OF", "scales of B", {}),
    "--group-sizes": ("LIST", "extents of groups, in place of -l: 100,0,300", {}),
    "--compute": (
        "COMPUTE", "tf32, bf16x9 or bf16x6 for float32; fast_accum for 8-bit floats", {},
    ),
    "--seed": (
        "N", "seed of the random matrices (default %(default)s)", {"type": int, "default": 0},
    ),
    "--no-check": ("", "skip the comparison with float64", {}),
    "--html": ("FILE", "write the report with pictures to FILE, - for stdout", {}),
}  # fmt: skip


def add(parser: argparse._ActionsContainer, *names: str, help: str = "", **more: Any) -> None:
    """Add shared options.

    ``help`` replaces the end of an option's help, and ``more`` has arguments of this command: a
    default, ``dest``.
    """
    for name in names:
        value, text, kind = _SHARED[name]
        if help:
            text = re.split(r"[:;(]", text, maxsplit=1)[0].rstrip() + help
        add_options(parser, {f"{name} {value}": text}, **kind | more)


def add_options(
    parser: argparse._ActionsContainer, options: Mapping[str, str], **more: Any
) -> None:
    """Add options as they are typed: ``"--pad N"``, or ``"--again"`` for a flag.

    ``options`` has the help of each; ``more`` are arguments of ``add_argument`` for all of them.
    """
    for typed, text in options.items():
        names, _, value = typed.partition(" ")
        kind: dict[str, Any] = {"metavar": value} if value else {"action": "store_true"}
        if "choices" in more:  # argparse lists them in place of a value
            kind = {}
        parser.add_argument(*names.split(","), help=text, **kind, **more)


def add_problem(
    parser: argparse.ArgumentParser, *, ops: str = "", kernel: bool = True, without_op: str = ""
) -> None:
    """Add the arguments of a problem and of a kernel.

    The command then also takes the fields of the kernel's config as options. ``ops``: ``"+"`` or
    ``"*"`` for a command of several ops; ``without_op``: when the op may be omitted. A command
    with its own argument for the ``kernel`` has defaults for op and type.
    """
    parser.set_defaults(options={})
    parser.epilog = "A kernel's config has options too, as --stages 4; --help-kernel lists them."
    options = {"--help-kernel NAME": "show the options of a kernel"}
    add_options(parser, options, action=Prints, const=kernel_help)
    text = "BLAS op, a letter for A and one for B (N as stored, T transposed): NN NT TN TT"
    many: dict[str, Any] = {"nargs": ops} if ops else {}
    if not kernel:
        many, text = {"nargs": "?", "default": "NN"}, f"{text} (default NN)"
    if without_op:
        many, text = {"nargs": "?"}, f"{text}; {without_op}"
    parser.add_argument("ops" if ops else "op", metavar="OP", help=text, **many)
    add(parser, "-m", "-n", "-k", "-l")
    ragged = {"--ragged": "mode of the groups of a grouped GEMM"}
    add_options(parser, ragged, choices=("M", "N", "K"))
    if kernel:
        add(parser, "--dtype", "--kernel")
    else:
        text = f": {TYPES} (default float32, or the first that the kernel takes)"
        add(parser, "--dtype", help=text, default=None)
    text = ": sm_80, sm_90a, ... (default: that of this GPU)"
    add(parser, "--arch", help=f"{text}{SEVERAL}, or --arch repeated" * bool(ops), const=bool(ops))
    lds = {f"--ld{name.lower()} N": f"leading dimension of {name} in elements" for name in "ABC"}
    add_options(parser, lds, type=int)
    add_options(parser, {"--storage": "order of A and B (default F, as in BLAS)"}, **_ORDERS)
    add(parser, "--order", "--compute", "--scale-a", "--scale-b")
    text = "type of C (default: that of A and B; int32 for int8, bfloat16 for 8-bit floats)"
    add_options(parser, {"--out-dtype TYPE": text})


class Prints(argparse.Action):
    """An option that prints the text of a function, ``const``, for its value, and exits."""

    def __call__(self, parser: argparse.ArgumentParser, space: Any, value: Any, *_: Any) -> None:
        """Print the text and exit."""
        print(self.const(value))
        parser.exit()


def kernel_help(name: str) -> str:
    """Return the options of a kernel's config with their values, a line each."""
    from cute_gemm.plan.select import PACKS

    kernel = registry.get(name)
    options = dict(sorted(kernel.values().items()))
    if kernel.runs_on == "gpu":
        options |= {"pack": " | ".join(PACKS), "split_k": "auto | slices of K"}
    width = min(shutil.get_terminal_size().columns, WIDTH)
    lines = [f"{name}: {kernel.summary}", ""]
    for option, values in options.items():
        lines += wrapped(f"  --{option.replace('_', '-')} {values}", width, hang=6)
    return "\n".join(lines)


def sizes(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return extents, types, leading dimensions and orders, as keyword arguments of ``plan``."""
    words, ends = named(arguments, *PROBLEM_WORDS), group_ends(arguments)
    if ends:
        words |= {"l": len(ends), arguments.ragged.lower(): ends[-1]}
    return words


def codes(arguments: argparse.Namespace) -> list[str]:
    """Return the kinds of code of ``--show``; raise OptionError for an unknown one."""
    kinds = [kind for kind in (arguments.show or "").split(",") if kind]
    for kind in kinds:
        if kind not in CODE:
            raise OptionError(f"--show {kind!r} is not known; expected {', '.join(CODE)}")
    return kinds


def given(arguments: argparse.Namespace, *names: str) -> list[str]:
    """Return the arguments whose values are not the defaults."""
    default = arguments.parser.get_default
    return [name for name in names if getattr(arguments, name) != default(name)]


def extents_of(arguments: argparse.Namespace) -> list[tuple[int, int, int]]:
    """Return the extents of ``--sizes``, otherwise those of -m, -n and -k."""
    if arguments.sizes is None:
        return [(arguments.m, arguments.n, arguments.k)]
    typed = ", ".join(f"-{name}" for name in given(arguments, *"mnk"))
    if typed:
        raise OptionError(f"--sizes came with {typed}, which it replaces: omit one")
    return parse_sizes(arguments.sizes)


def parse_sizes(text: str) -> list[tuple[int, int, int]]:
    """Read the value of ``--sizes``: ``"1024,1000x1003x1001"``."""
    from cute_gemm.measure.bench import extents

    sizes = []
    for part in text.split(","):
        words = part.strip().lower().split("x")
        if len(words) not in (1, 3) or not all(word.isdecimal() for word in words):
            raise OptionError(f"size {part!r}; expected N or MxNxK, as in 4096 or 1000x1003x1001")
        m, n, k = integers(words if len(words) == 3 else words * 3, "--sizes")
        sizes.append(extents((m, n, k)))
    return sizes


def group_ends(arguments: argparse.Namespace) -> list[int] | None:
    """Return the ends of ``--group-sizes``; None without it."""
    text = getattr(arguments, "group_sizes", None)
    if text is None:
        return None
    if arguments.ragged is None:
        raise OptionError(
            f"--group-sizes {text} came without the mode of the groups; expected --ragged "
            "M, N or K too"
        )
    words = text.split(",")
    if not all(word.isdecimal() for word in words):
        raise OptionError(
            f"--group-sizes {text!r} is not understood; expected extents with commas, as in "
            "100,0,300"
        )
    ends = list(accumulate(integers(words, "--group-sizes")))
    if arguments.l not in (1, len(ends)):
        raise OptionError(
            f"-l {arguments.l} came with --group-sizes of {len(ends)} groups: leave -l out"
        )
    return ends


def planned(
    arguments: argparse.Namespace, *, op: str | None = None, arch: str | None = None
) -> Plan:
    """Return the plan of the problem that the arguments describe, without matrices."""
    from cute_gemm.api import plan

    return plan(
        op or arguments.op, **sizes(arguments), kernel=arguments.kernel,
        backend=getattr(arguments, "backend", "cpu"), arch=arch or arguments.arch,
        **named(arguments, *(name for name in _OF_SOME if name in arguments)),
        **arguments.options,
    )  # fmt: skip


def join_negative_values(words: list[str]) -> list[str]:
    """Write ``--alpha -1e-3`` as ``--alpha=-1e-3``, whose value argparse takes for an option."""
    joined: list[str] = []
    for word in words:
        if joined and joined[-1] in ("--alpha", "--beta") and word.startswith("-"):
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def split_kernel_options(
    words: Sequence[str], parser: argparse.ArgumentParser
) -> tuple[list[str], list[str]]:
    """Return the words that the command's parser knows, and the unknown options, ``--NAME=VALUE``.

    The ``parse_known_args`` of argparse takes the value of an unknown option for the op.
    """
    if parser.get_default("options") is None:
        return list(words), []
    known: list[str] = []
    others: list[str] = []
    lacks_value = False
    for word in words:
        name, equals, _ = word.partition("=")
        unknown = name.startswith("--") and name not in parser._option_string_actions
        if lacks_value and not word.startswith("--"):
            others[-1] += f"={word}"
        else:
            (others if unknown else known).append(word)
        lacks_value = unknown and not equals
    return known, others


def kernel_options(words: Sequence[str], parser: argparse.ArgumentParser) -> dict[str, Any]:
    """Read options that are unknown to the command's parser as fields of a kernel's config.

    ``--stages=4 --copy=mn_major --tile=128x128x32`` is
    ``{"stages": 4, "copy": "mn_major", "tile": (128, 128, 32)}``.
    """
    if not words:
        return {}
    from cute_gemm.kernels.options import option_value

    options: dict[str, Any] = {}
    known = registry.options()
    for word in words:
        name, equals, value = word.partition("=")
        option = name[2:].replace("-", "_")
        if option not in known:
            names = [option.replace("_", "-") for option in known]
            names += [word[2:] for word in parser._option_string_actions if word[:2] == "--"]
            near = hint_for(name[2:], names, "--") or f"see {parser.prog} --help"
            raise OptionError(f"option {name} is not known; {near}")
        if not equals:
            raise OptionError(f"option {name} needs a value, as in {name} VALUE")
        options[option] = option_value(value)
    return options
