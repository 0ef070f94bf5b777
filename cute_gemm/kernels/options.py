"""Helpers for the selection of a config: a user's options, access widths that memory allows."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any, TypeVar

from cute_gemm.access.accesses import OfMatrix
from cute_gemm.arch import REGISTERS, REGISTERS_PER_THREAD
from cute_gemm.dtypes import integer
from cute_gemm.errors import OptionError
from cute_gemm.toolchain.signature import Launch

if TYPE_CHECKING:
    from cute_gemm.problem.matrix import Matrix
    from cute_gemm.problem.problem import GemmProblem

Config = TypeVar("Config")


def with_options(config: Config, options: dict[str, Any]) -> Config:
    """Return ``config`` with these fields changed; values may be text, as on the command line.

    Raise OptionError for a value that is not of the type of the field's default.
    """
    return replace(config, **parsed(config, options))  # type: ignore[type-var]


def parsed(config: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Return the values of the fields that the options set; see `with_options`."""
    return {key: _value(config, key, value) for key, value in options.items()}


def _value(config: Any, key: str, value: Any) -> Any:
    default = getattr(config, key)
    try:
        if isinstance(default, tuple):
            numbers = value.replace("x", ",").split(",") if isinstance(value, str) else value
            numbers = tuple(_integer(number) for number in numbers)
            if len(numbers) != len(default):
                raise ValueError
            return numbers
        if isinstance(default, int):
            return _integer(int(value) if isinstance(value, bool) and key in _FLAGS else value)
    except (TypeError, ValueError):
        kind = f"{len(default)} integers" if isinstance(default, tuple) else "an integer"
        raise OptionError(f"option {key}={value!r} does not fit; expected {kind}") from None
    if not isinstance(value, str):
        raise OptionError(f"option {key}={value!r} does not fit; expected a name")
    return value


#: Options that are 0 or 1.
_FLAGS = frozenset(("ping_pong", "swap_ab"))


def _integer(value: Any) -> int:
    """Return an integer or the integer that a text spells; fractions and bools raise ValueError."""
    return int(value) if isinstance(value, str) else integer(value)


def option_value(text: str) -> Any:
    """Return the value of an option's text on the command line.

    It is an int, a bool, a tuple of them, or the text itself.

    >>> option_value("4"), option_value("128x64x32"), option_value("2,1"), option_value("auto")
    (4, (128, 64, 32), (2, 1), 'auto')
    """
    extents = text.replace("x", ",") if text.replace("x", "").isdigit() else text
    if "," in extents:
        return tuple(option_value(part) for part in extents.strip("()").split(",") if part)
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return int(text)
    except ValueError:
        return text


def spelled(value: Any) -> str:
    """Return a value as `option_value` reads it: ``"128x64x32"``."""
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


def assignments(text: str, what: str) -> dict[str, str]:
    """Return the values in ``"NAME=VALUE NAME=VALUE"`` as text, by name.

    Spaces or commas separate them; a comma without a following ``NAME=`` belongs to the value.
    ``what`` names their owner in errors.

    >>> assignments("tile=128x128x32,cluster=2,1 min-ctas=2", "--a")
    {'tile': '128x128x32', 'cluster': '2,1', 'min_ctas': '2'}
    """
    values: dict[str, str] = {}
    for word in re.split(r"[\s,]+(?=[A-Za-z][\w-]*=)|\s+", text.strip()) if text.strip() else ():
        name, equals, value = word.partition("=")
        name = name.replace("-", "_")
        if not equals or not name or not value:
            raise OptionError(f"{what} has {word!r}; expected NAME=VALUE, as in tile=128x128x32")
        if name in values:
            raise OptionError(f"{what} has {name} twice; expected it once")
        values[name] = value
    return values


def registers(threads: int, min_ctas: int) -> int:
    """Return the most registers of a thread with which ``min_ctas`` CTAs fit a multiprocessor."""
    return min(REGISTERS // max(1, threads * min_ctas), REGISTERS_PER_THREAD)


def most_ctas(ctas: Iterable[int], threads: int, need: int) -> int:
    """Return the first number of CTAs whose threads have the registers they need, or 1."""
    return next((n for n in ctas if registers(threads, n) >= need), 1)


def tiles_of(problem: GemmProblem, tile: tuple[int, ...]) -> tuple[int, int]:
    """Return the tiles of C along M and N."""
    return -(-problem.m // tile[0]), -(-problem.n // tile[1])


def launch_of_tiles(
    problem: GemmProblem, tile: tuple[int, int, int], threads: int, smem: int
) -> Launch:
    """Return a launch of a CTA for each tile of C; for groups, for the most possible tiles."""
    from cute_gemm.problem.parts.groups import tiles_at_most

    if problem.groups:
        return Launch(tiles_at_most(problem, tile), threads, smem)
    return Launch(prod(tiles_of(problem, tile)), threads, smem, problem.l)


def limit_of(matrix: Matrix, extent_counts: bool) -> OfMatrix | str:
    """Return the limit of `access_bytes` with the name of the matrix."""
    limit = access_bytes(matrix, extent_counts)[1]
    words = f"{matrix.name}'s {limit}"
    return limit._replace(words=words) if isinstance(limit, OfMatrix) else words


def access_bytes(matrix: Matrix, extent_counts: bool) -> tuple[int, OfMatrix | str]:
    """Return the widest power-of-two access of a matrix, at most 16 bytes, and its limit.

    ``extent_counts``: whether vectors must not straddle the end of a row (stores), instead of being
    cut short (loads).
    """
    element = matrix.element.bytes
    pitch = matrix.ld * element if matrix.shape[1 - matrix.unit] > 1 else 0
    row = matrix.shape[matrix.unit] * element if extent_counts else 0
    # Rows without elements, and a row that is repeated (ld 0), set no limit.
    all_bits = matrix.alignment | pitch | row
    if all_bits % 16 == 0:
        return 16, ""
    limits = (
        ("base", matrix.alignment, f"base address aligned to {matrix.alignment} B"),
        ("ld", pitch, f"ld{matrix.name.lower()}={matrix.ld} ({pitch} B)"),
        ("extent", row, f"extent {matrix.shape[matrix.unit]} ({row} B)"),
    )
    width = all_bits & -all_bits
    limit = next(x for x in limits if x[1] & width)
    return max(width, element), OfMatrix(matrix.name, *limit)
