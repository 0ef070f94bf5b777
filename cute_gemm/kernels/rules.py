"""Rules of configs that several kernels have, each stated once.

The rules of a kernel are a generator of sentences, one for each rule that a config breaks. Only the
first sentence is used, so a rule may assume that the previous rules hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from cute_gemm.errors import OptionError, UnsupportedError

if TYPE_CHECKING:
    from cute_gemm.arch import Arch
    from cute_gemm.cute.copies import TiledCopy
    from cute_gemm.problem.problem import GemmProblem


def first(broken: Iterator[str]) -> str:
    """Return the first sentence, or ``""`` if no rule is broken."""
    return next(broken, "")


def refuse(broken: Iterator[str]) -> None:
    """Raise OptionError with the first sentence, if a rule is broken."""
    if sentence := first(broken):
        raise OptionError(sentence)


def check_extents(
    kernel: str, problem: GemmProblem, tile: tuple[int, ...], below: tuple[int, ...]
) -> None:
    """Raise UnsupportedError for extents or tiles that a kernel cannot count in 32-bit integers.

    ``below``: numbers to subtract from 2**31 for the largest extent. A kernel has a CTA for each
    tile of each group.
    """
    sizes = f"m={problem.m}, n={problem.n}"
    if max(problem.m, problem.n, problem.k) > 2**31 - sum(below):
        most = " - ".join(map(str, ("2**31", *below)))
        raise UnsupportedError(
            f"{sizes}, k={problem.k}: kernel {kernel!r} counts in 32-bit integers and takes "
            f"extents up to {most}"
        )
    if not problem.groups or min(tile) < 1:  # another rule refuses such tiles
        return
    from cute_gemm.problem.parts.groups import tiles_at_most

    if (tiles := tiles_at_most(problem, tile)) >= 2**31:
        raise UnsupportedError(
            f"{sizes} in {problem.l} groups along {problem.groups.mode} may have {tiles} tiles, "
            f"and kernel {kernel!r} has a CTA for each, at most 2**31 - 1"
        )


def power_of_two(number: int) -> bool:
    """Return whether a number is 1, 2, 4, ..."""
    return number > 0 and number & (number - 1) == 0


def names_known(config: Any, choices: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    """Yield a sentence for each option whose value is not among its ``choices``."""
    for option, names in choices.items():
        if (value := getattr(config, option)) not in names:
            yield f"option {option}={value!r} is unknown; expected one of {', '.join(names)}"


def in_range(config: Any, option: str, least: int, most: int) -> Iterator[str]:
    """Yield a sentence if an option is outside of a range."""
    if not least <= (value := getattr(config, option)) <= most:
        yield f"option {option}={value} is out of range; expected {least} to {most}"


def positive(config: Any, *options: str) -> Iterator[str]:
    """Yield a sentence if one of the options is less than 1."""
    if min(getattr(config, option) for option in options) < 1:
        which = f"options {' and '.join(options)}" if options[1:] else f"option {options[0]}"
        yield f"{which} must be 1 or more"


def powers_of_two(config: Any, *options: str) -> Iterator[str]:
    """Yield a sentence for each option with an extent that is not a power of two."""
    for option in options:
        if not all(map(power_of_two, value := getattr(config, option))):
            yield f"option {option}={value}: each extent must be a power of two"


def tiles_filled(
    config: Any, copies: Iterable[tuple[str, TiledCopy, tuple[int, int]]], instead: str
) -> Iterator[str]:
    """Yield a sentence for each operand whose copy does not fill its tile.

    ``copies``: an operand's name, its copy and the extents of its tile.
    """
    for name, copy, extents in copies:
        if not copy.covers(extents):
            yield (
                f"option tile={config.tile}: {config.threads} threads copy {copy.tile[0]} x "
                f"{copy.tile[1]} elements of {name} at a time, which do not fill its tile "
                f"{extents[0]} x {extents[1]}; take {instead}"
            )


def memory_fits(what: str, need: int, arch: Arch, instead: str) -> Iterator[str]:
    """Yield a sentence if a CTA does not have ``need`` bytes of shared memory.

    ``what``: the options that need them; ``instead``: what to take.
    """
    if need > arch.shared_limit:
        yield (
            f"{what} needs {need} bytes of shared memory; {arch} has {arch.shared_limit}: "
            f"take {instead}"
        )
