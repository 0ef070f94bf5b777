"""``cute-gemm compare``: two configs, kernels, ops or layouts side by side."""

from __future__ import annotations

import argparse
from typing import Any

from cute_gemm.commands.arguments import (
    PROBLEM_WORDS,
    add,
    add_options,
    add_problem,
    kernel_options,
    planned,
)
from cute_gemm.commands.output import OK, show_result
from cute_gemm.errors import OptionError
from cute_gemm.kernels.options import assignments

#: Names that a side may set, in addition to options of kernels.
_OWN = ("op", *PROBLEM_WORDS, "kernel", "arch", "gpu", "base_offset")
_SIDE = (
    "options of side {} alone: NAME=VALUE of any option of the problem and of the kernel, "
    "separated by spaces or commas, where a comma that no NAME= follows is the value's: "
    '"kernel=sm90_wgmma tile=128x256x64 cluster=2,1", "op=TN lda=4097"'
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``cute-gemm compare``."""
    add_problem(parser, without_op="or op=OP in --a and --b")
    for name in "ab":
        add_options(parser, {f"--{name} WORDS": _SIDE.format(name)})
    add(parser, "--gpu", "--beta", "--base-offset")
    add(parser, "--build")
    add_options(parser, {"--sass": "count both kernels' machine instructions; needs nvdisasm"})
    add_options(parser, {"--no-time": "do not time on the GPU"})
    add(parser, "--rounds")


def command(arguments: argparse.Namespace) -> int:
    """Print the differences; return 0."""
    from cute_gemm.measure.compare import compare

    if arguments.a is None and arguments.b is None:
        raise OptionError("--a and --b are missing; expected one or both, as in --a stages=3")
    if arguments.rounds < 1:
        raise OptionError(f"--rounds {arguments.rounds}; expected 1 or more")
    given = arguments.a or "", arguments.b or ""
    sides = [_side(arguments, name, words) for name, words in zip("ab", given, strict=True)]
    timed = not arguments.no_time and all(map(_may_be_timed, sides))
    if timed:
        for side in sides:
            side.backend = "cuda"
    for name, side in zip("ab", sides, strict=True):
        if side.op is None:
            raise OptionError(f"OP is missing; expected NN, NT, TN or TT, or op=OP in --{name}")
    a, b = map(planned, sides)
    comparison = compare(
        a, b, given=given, build=arguments.build, sass=arguments.sass, time=timed,
        beta=arguments.beta, rounds=arguments.rounds,
    )  # fmt: skip
    show_result(arguments, comparison)
    return OK


def _side(arguments: argparse.Namespace, name: str, words: str) -> argparse.Namespace:
    """Return the command's arguments for one side."""
    side = argparse.Namespace(**vars(arguments))
    actions = {action.dest: action for action in arguments.parser._actions}
    others = []
    for own, value in assignments(words, f"--{name}").items():
        if own in _OWN:
            setattr(side, own, _converted(actions[own], value, f"--{name} {own}={value}"))
        else:
            others.append(f"--{own.replace('_', '-')}={value}")
    try:
        options = kernel_options(others, arguments.parser)
    except OptionError as error:
        raise OptionError(f"--{name}: {error}") from None
    side.options = {**arguments.options, **options}
    return side


def _converted(action: argparse.Action, value: str, what: str) -> Any:
    """Return an option's value, converted as argparse does."""
    try:
        converted = action.type(value) if callable(action.type) else value
    except ValueError:
        raise OptionError(f"{what} is not understood; expected a number") from None
    if action.choices is not None and converted not in action.choices:
        expected = ", ".join(map(str, action.choices))
        raise OptionError(f"{what} is not known; expected one of {expected}")
    return converted


def _may_be_timed(side: argparse.Namespace) -> bool:
    """Return whether this machine's GPU runs the side's kernel."""
    from cute_gemm.arch import Arch
    from cute_gemm.run.driver import device_arch, why_no_gpu
    from cute_gemm.toolchain.nvrtc import normalize_arch

    if side.gpu is not None or side.kernel == "host" or why_no_gpu() is not None:
        return False
    here = divmod(Arch(device_arch(0)).cc, 10)
    return side.arch is None or Arch(normalize_arch(side.arch)).runs_on(here)
