"""Rules of undefined bits: from the operands of an instruction to its result.

A rule gets each operand as a pair, its value and its undefined bits, both as integers of the type
that the instruction reads, and returns the undefined bits of the result. A bit is undefined if
other values of the operands' undefined bits could change it. Rules are exact for bitwise
operations, comparisons and moves of bits. Sums and products use their least and greatest possible
values, or the lowest bit that can change (J. Seward and N. Nethercote, section 2.4).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from cute_gemm.ptx.memory import Array

#: A value and its undefined bits.
Pair = tuple[Array, Array]
Rule = Callable[..., Array]


def unsigned(dtype: Any) -> Any:
    """Return the dtype of the undefined bits of a dtype."""
    dtype = np.dtype(dtype)
    return np.bool_ if dtype == np.bool_ else np.dtype(f"uint{8 * dtype.itemsize}").type


def every(bad: Array, dtype: Any) -> Array:
    """Set all bits of each value that has an undefined bit."""
    ones = np.array(-1).astype(unsigned(dtype))
    return np.asarray(np.where(bad != 0, ones, ones ^ ones))


def whole(dtype: Any) -> Rule:
    """Return the rule of a result that is undefined as a whole if a bit of an operand is."""
    return lambda *pairs: every(reduce(np.logical_or, (lost for _, lost in pairs)), dtype)


def bounds(pair: Pair) -> Pair:
    """Return the least and the greatest possible value."""
    value, lost = pair
    top = lost & np.array(np.iinfo(lost.dtype).min, lost.dtype)  # 0 for unsigned types
    return (value & ~lost) | top, (value | lost) & ~top


def moved(function: Callable[..., Any]) -> Rule:
    """Return the rule of a function that moves bits: undefined bits move in the same way."""
    return lambda *pairs: function(*(lost for _, lost in pairs))


def bitwise(table: int, count: int) -> Rule:
    """Return the rule of a bitwise function: bit 4 a + 2 b + c of the table is its value."""

    def follow(*pairs: Pair) -> Array:
        can: list[Any] = [False, False]
        for index in range(1 << count):
            possible: Any = None
            for place, (value, lost) in enumerate(reversed(pairs)):
                may = lost | (value if index >> place & 1 else ~value)
                possible = may if possible is None else possible & may
            result = table >> index & 1
            can[result] = possible if can[result] is False else can[result] | possible
        if can[0] is False or can[1] is False:  # a constant
            return np.zeros_like(pairs[0][1])
        return np.asarray(can[0] & can[1])

    return follow


def added(a: Pair, b: Pair) -> Array:
    """Propagate through a sum: bits in which the least and greatest differ, and the operands'."""
    (a_least, a_most), (b_least, b_most) = map(bounds, map(_plain, (a, b)))
    return np.asarray(((a_least + b_least) ^ (a_most + b_most)) | _plain(a)[1] | _plain(b)[1])


def subtracted(a: Pair, b: Pair) -> Array:
    """Propagate through a difference."""
    (a_least, a_most), (b_least, b_most) = map(bounds, map(_plain, (a, b)))
    return np.asarray(((a_least - b_most) ^ (a_most - b_least)) | _plain(a)[1] | _plain(b)[1])


def negated(a: Pair) -> Array:
    """Propagate through a negation."""
    zero = np.zeros_like(a[0])
    return subtracted((zero, zero), a)


def multiplied(a: Pair, b: Pair) -> Array:
    """Propagate through a product: from the lowest bit on that can change.

    It is that of one operand's undefined bits, times the lowest possible bit of the other operand.
    """
    (x, x_lost), (y, y_lost) = _plain(a), _plain(b)
    lowest = _lowest(x_lost) * _lowest(y | y_lost) | _lowest(y_lost) * _lowest(x | x_lost)
    return np.asarray(lowest | np.negative(lowest))


def _plain(pair: Pair) -> Pair:
    """Return a pair without signs, whose sums and products wrap."""
    value, lost = pair
    return value.view(unsigned(value.dtype)), lost.view(unsigned(lost.dtype))


def _lowest(x: Array) -> Array:
    return np.asarray(x & np.negative(x))


def compared(name: str) -> Rule:
    """Return the rule of an integer comparison, which is undefined if it could be either."""

    def follow(a: Pair, b: Pair) -> Array:
        (x, x_lost), (y, y_lost) = _plain(a), _plain(b)
        lost = x_lost | y_lost
        some = lost != 0
        if name in ("eq", "ne"):
            return np.asarray(some & ((x ^ y) & ~lost == 0))
        (a_least, a_most), (b_least, b_most) = bounds(a), bounds(b)
        if name in ("lt", "ge"):
            return np.asarray(some & (a_least < b_most) & (a_most >= b_least))
        return np.asarray(some & (a_least <= b_most) & (a_most > b_least))

    return follow


def chosen(a: Pair, b: Pair, choice: Pair) -> Array:
    """Propagate through ``selp``: the selected value, or both if the selection is undefined."""
    either = (a[0] ^ b[0]) | a[1] | b[1]
    return np.asarray(np.where(choice[1], either, np.where(choice[0], a[1], b[1])))


def extreme(least: bool) -> Rule:
    """Return the rule of ``min`` and ``max`` of integers."""

    def follow(a: Pair, b: Pair) -> Array:
        (a_least, a_most), (b_least, b_most) = bounds(a), bounds(b)
        first, second = a_most <= b_least, b_most <= a_least
        if not least:
            first, second = second, first
        either = (a[0] ^ b[0]) | a[1] | b[1]
        return np.asarray(np.where(first, a[1], np.where(second, b[1], either)))

    return follow


def steered(function: Callable[..., Any], *counted: int) -> Rule:
    """Return the rule of a function that moves bits by the given bits of its last operands."""

    def follow(*pairs: Pair) -> Array:
        given, steering = pairs[: -len(counted)], pairs[-len(counted) :]
        result = np.asarray(function(*(x for _, x in given), *(value for value, _ in steering)))
        unknown: Any = False
        for (_, lost), bits in zip(steering, counted, strict=True):
            unknown = unknown | (lost & np.array(bits).astype(lost.dtype) != 0)
        for value, lost in given[:1] if len(given) == 1 else ():
            unknown = unknown & (value | lost != 0)  # zeros stay zeros wherever they move
        return np.where(unknown, np.array(-1).astype(result.dtype), result)

    return follow


def counted(function: Callable[[Array], Array]) -> Rule:
    """Return the rule of a number that grows, or falls, with every bit of the operand."""

    def follow(pair: Pair) -> Array:
        value, lost = pair
        differ: Any = function(value & ~lost) ^ function(value | lost)
        for step in (1, 2, 4, 8):
            differ = differ | differ >> differ.dtype.type(step)
        return np.asarray(differ)

    return follow


def in_parts(count: int, width: int, bits: int, dtype: Any) -> Rule:
    """Return the rule of parts of ``bits`` bits, each computed from one part of ``width`` bits.

    The parts are those of one operand, or one operand each, the last one lowest.
    """

    def follow(*pairs: Pair) -> Array:
        words = [lost for _, lost in reversed(pairs)]
        result: Any = dtype(0)
        for place in range(count):
            part = (
                words[place] if len(words) > 1 else words[0] >> words[0].dtype.type(width * place)
            )
            bad = part & part.dtype.type((1 << width) - 1) != 0
            result = result | np.where(bad, dtype((1 << bits) - 1 << bits * place), dtype(0))
        return np.asarray(result)

    return follow
