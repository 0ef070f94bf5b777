"""Layouts as text: what C++ CuTe, CuTe DSL and pycute print, read back."""

from __future__ import annotations

import re
from typing import NamedTuple

from cute_gemm.cute.layout import IntTuple, Layout, Swizzle
from cute_gemm.errors import NotationError


class Printed(NamedTuple):
    """A tensor or a layout as CuTe printed it."""

    layout: Layout
    space: str | None  # "global", "shared", or None where the text does not say
    bits: int | None  # of an element


def as_printed(layout: object) -> Printed:
    """Read a layout or a tensor, with what its text says of memory and element.

    ``layout`` is a ``Layout``, text in CuTe's notation, or any object that prints itself so, as
    pycute's and CuTe DSL's do. A swizzle in front of the layout acts on its offsets; one that
    belongs to a pointer (``Sw<3,4,3> o smem_ptr[16b](unset) o``, ``Sw<3,4,3>_smem_ptr[16b](0x..)``,
    ``ptr<f16, smem, align<1024>, S<3,4,3>>``) acts on bytes, as in CuTe, and comes out as the one
    that does the same to elements.

    ``NotationError`` names the column at which the text stops making sense, or that of what has no
    offsets to evaluate: a dynamic ``?``, a negative stride, a basis stride ``1@0``.
    """
    if isinstance(layout, Layout):
        return Printed(layout, None, None)
    return _Parser(str(layout)).printed()


def parse(layout: object) -> Layout:
    """Return the layout alone of what `as_printed` reads."""
    return as_printed(layout).layout


_SPACES = {"gmem": "global", "smem": "shared"}


class _Parser:
    _TRIPLE = r"(?:Swizzle|Sw|S)\s*<\s*(\d+)\s*,\s*(\d+)\s*,\s*(-?\d+)\s*>"
    _SWIZZLE = re.compile(rf"\s*{_TRIPLE}")
    _PYCUTE_SWIZZLE = re.compile(r"\s*SW_(\d+)_(\d+)_(-?\d+)")
    _COMPOSED = re.compile(r"\s*o\b")
    _OFFSET = re.compile(r"\s*_?(\d+)\s*o\b")
    _CPP_POINTER = re.compile(r"\s*_?(?:([a-z]+)_)?ptr\[(\d+)b\]\([\w.\s]*\)\s*o\b")
    _DSL_POINTER = re.compile(
        r"\s*(tensor\s*[<(]\s*)?(?:raw_)?ptr[<(](?:\s*0x[0-9a-f.]+\s*:)?\s*[a-z]+(\d+)\w*\s*,"
        rf"\s*(\w+)\s*(?:,\s*align<\d+>\s*)?(?:,\s*{_TRIPLE}\s*)?[>)]\s*o\b"
    )
    _INT = re.compile(r"\s*_?(\d+)")

    def __init__(self, text: str) -> None:
        self.text, self.at, self.depth = text, 0, 0

    def printed(self) -> Printed:
        space: str | None = None
        bits: int | None = None
        swizzle: Swizzle | None = None
        pointer = False
        closing = ""
        if match := self.match(self._DSL_POINTER):
            pointer = True
            closing = ">" if (match[1] or "").rstrip().endswith("<") else ""
            bits, space = int(match[2]), _SPACES.get(match[3])
            if match[4] is not None:
                swizzle = self.in_elements(self.swizzle(match, 4), bits, match.start(4))
        elif match := self.match(self._CPP_POINTER):
            pointer = True
            space, bits = _SPACES.get(match[1] or ""), int(match[2])
        if match := self.match(self._SWIZZLE) or self.match(self._PYCUTE_SWIZZLE):
            outer, start = self.swizzle(match, 1), match.start(1)
            composed = self.match(self._COMPOSED)
            if inner := not pointer and self.match(self._CPP_POINTER):
                pointer = True
                space, bits = _SPACES.get(inner[1] or ""), int(inner[2])
                swizzle = self.in_elements(outer, bits, start)
            elif swizzle is not None:
                raise self.unexpected("one swizzle only", start)
            else:
                offset = composed and self.match(self._OFFSET)
                if not offset or int(offset[1]):
                    self.at = composed.start() if composed else self.at
                    raise self.unexpected("'o 0 o' after the swizzle")
                swizzle = outer
        layout = self.affine(swizzle)
        rest = self.text[self.at :].lstrip()
        if closing and rest.startswith(closing):
            rest = rest[1:].lstrip()
        # A printed tensor may go on with its elements.
        if rest and not (pointer and rest[0] in ",="):
            raise self.unexpected("the end of the layout")
        return Printed(layout, space, bits)

    def affine(self, swizzle: Swizzle | None) -> Layout:
        shape = self.int_tuple()
        self.take(":")
        start = self.at
        stride = self.int_tuple()
        try:
            return Layout(shape, stride, swizzle)
        except ValueError as error:
            raise NotationError(str(error), column=start) from None

    def swizzle(self, match: re.Match[str], group: int) -> Swizzle:
        numbers = match.groups()[group - 1 : group + 2]
        try:
            return Swizzle(*map(int, numbers))
        except ValueError as error:
            raise NotationError(str(error), column=match.start(group)) from None

    def in_elements(self, swizzle: Swizzle, bits: int, column: int) -> Swizzle:
        """A swizzle of byte addresses as one of offsets in elements of ``bits``."""
        down = max(bits // 8, 1).bit_length() - 1
        if bits < 8 or swizzle.base < down:
            raise self.unexpected(f"a swizzle of bytes that leaves elements of {bits} bits", column)
        return Swizzle(swizzle.bits, swizzle.base - down, swizzle.shift)

    def int_tuple(self) -> IntTuple:
        if match := self.match(self._INT):
            if self.peek() == "@":
                raise self.unexpected(
                    "an integer: a basis stride such as 1@0 makes coordinates, not offsets",
                    match.start(1),
                )
            return int(match[1])
        if self.peek() == "?":
            raise self.unexpected("an integer: a dynamic '?' must be replaced by its value")
        if self.peek() == "-":
            raise self.unexpected("an integer of 0 or more: negative ones are not supported")
        self.depth += 1
        if self.depth > 32:
            raise self.unexpected("at most 32 parentheses within each other")
        self.take("(")
        modes = [self.int_tuple()]
        while self.peek() == ",":
            self.take(",")
            if self.peek() == ")" and len(modes) == 1:
                break  # Python's tuple of one
            modes.append(self.int_tuple())
        self.take(")")
        self.depth -= 1
        return tuple(modes)

    def match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        found = pattern.match(self.text, self.at)
        if found:
            self.at = found.end()
        return found

    def peek(self) -> str:
        return self.text[self.at :].lstrip()[:1]

    def take(self, symbol: str) -> None:
        if self.peek() != symbol:
            raise self.unexpected(f"'{symbol}'")
        self.at = self.text.index(symbol, self.at) + 1

    def unexpected(self, expected: str, column: int | None = None) -> NotationError:
        rest = self.text[self.at :]
        if column is None:
            column = self.at + len(rest) - len(rest.lstrip())
        return NotationError(
            f"layout {self.text!r} does not parse at column {column + 1}: expected {expected}",
            column=column,
        )
