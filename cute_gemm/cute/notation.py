"""Layouts as text: the notation that C++ CuTe, CuTe DSL and pycute print."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from cute_gemm.cute.layout import IntTuple, Layout, Swizzle, tile_to_shape
from cute_gemm.errors import NotationError, OptionError


class Printed(NamedTuple):
    """A tensor or a layout as CuTe prints it."""

    layout: Layout
    space: str | None  # "global", "shared", or None if the text does not say
    bits: int | None  # per element
    #: The largest power of two that divides the pointer's address or, without an address, the
    #: alignment of the pointer's type, in bytes; None without both.
    alignment: int | None


def as_printed(layout: object, let: Sequence[int] = ()) -> Printed:
    """Read a layout or a tensor, with the memory and element that its text names.

    ``layout`` is a ``Layout``, text in CuTe's notation, or any object that prints in it, such as
    those of pycute and CuTe DSL. A swizzle in front of the layout acts on its offsets. One that
    belongs to a pointer (``Sw<3,4,3> o smem_ptr[16b](unset) o``, ``Sw<3,4,3>_smem_ptr[16b](0x..)``,
    ``ptr<f16, smem, align<1024>, S<3,4,3>>``) acts on bytes, as in CuTe, and is returned as the
    equivalent swizzle of elements. As in fixes of this package, ``, tiled to (128,64)`` may follow
    an atom, and ``, rows padded by 16 bytes`` a layout. ``let``: the values of dynamic ``?``, in
    order; a single value serves all.

    ``NotationError`` names the column of the first error, or of an unsupported part: a dynamic
    ``?`` without a value, a negative stride, a basis stride ``1@0``.
    """
    if isinstance(layout, Layout):
        return Printed(layout, None, None, None)
    return _Parser(str(layout), let).printed()


def as_indexed(tensor: object, matrix: Printed, let: Sequence[int] = ()) -> tuple[Printed, int]:
    """Read a tensor of coordinates, ``ArithTuple(0,64) o (128,64):(1@1,1@0)``, over a matrix.

    The layout has the matrix's offsets at the coordinates, relative to the first, whose offset is
    also returned; everything else is the matrix's. A basis is read as CuTe prints it, from the
    inside: ``2@1@0`` is two steps in mode 1 of mode 0. ``NotationError`` if the text is not such a
    tensor, ``OptionError`` if the tensor does not lie in the matrix.
    """
    parser = _Parser(str(tensor), let, matrix)
    return parser.printed(), parser.start


def parse(layout: object, let: Sequence[int] = ()) -> Layout:
    """Return only the layout that `as_printed` reads."""
    return as_printed(layout, let).layout


_SPACES = {"gmem": "global", "smem": "shared"}


class _Parser:
    _TRIPLE = r"(?:Swizzle|Sw|S)\s*<\s*(\d+)\s*,\s*(\d+)\s*,\s*(-?\d+)\s*>"
    _SWIZZLE = re.compile(rf"\s*{_TRIPLE}")
    _PYCUTE_SWIZZLE = re.compile(r"\s*SW_(\d+)_(\d+)_(-?\d+)")
    _COMPOSED = re.compile(r"\s*o\b")
    _OFFSET = re.compile(r"\s*_?(\d+)\s*o\b")
    _CPP_POINTER = re.compile(
        r"\s*_?(?:(?P<space>[a-z]+)_)?(?:sub)?ptr(?:\[|_)(?P<bits>\d+)b\]?"
        r"\((?P<address>[\w.\s]*)\)\s*o\b"
    )
    _DSL_POINTER = re.compile(
        r"\s*(?P<tensor>tensor\s*[<(]\s*)?(?:raw_)?ptr[<(](?:\s*(?P<address>0x[0-9a-f.]+)\s*:)?"
        r"\s*[a-z]+(?P<bits>\d+)\w*\s*,\s*(?P<space>\w+)\s*(?:,\s*align<(?P<align>\d+)>\s*)?"
        rf"(?:,\s*{_TRIPLE}\s*)?[>)]\s*o\b"
    )
    _COORDINATES = re.compile(
        r"\s*(?P<tensor>tensor\s*<\s*)?(?:ArithTuple\w*\s*)?(?=\([^:]*\)\s*o\b)"
    )
    _BASIS = re.compile(r"(?:\s*@\s*_?\d+)+")
    _INT = re.compile(r"\s*_?(\d+)")
    _DYNAMIC = re.compile(r"\s*\?(?:\{[^{}]*\})?")
    _PADDED = re.compile(r"\s*,\s*rows padded by \d+ bytes")
    _TILED = re.compile(r"\s*,\s*tiled\s+to\s*\(([\d,\s]+)\)")

    def __init__(self, text: str, let: Sequence[int], matrix: Printed | None = None) -> None:
        self.text, self.at, self.depth = text, 0, 0
        self.let, self.bound = tuple(let), 0
        self.matrix, self.bases = matrix, list[tuple[tuple[int, ...], int]]()
        self.start = 0  # for coordinates: the offset of the first
        if long := re.search(r"\d{40,}", text):  # int() has a limit, too
            raise NotationError(
                f"layout has an integer of {len(long[0]):,} digits at column {long.start() + 1}; "
                "expected one of 63 bits",
                column=long.start(),
            )

    def printed(self) -> Printed:
        if coordinates := self.match(self._COORDINATES):
            return self.coordinates(coordinates)
        swizzle: Swizzle | None = None
        offset, closing = 0, ""
        if pointer := self.match(self._DSL_POINTER):
            closing = ">" if (pointer["tensor"] or "").rstrip().endswith("<") else ""
            first = self._DSL_POINTER.groupindex["align"] + 1
            if pointer[first] is not None:
                at = pointer.start(first)
                swizzle = self.in_elements(self.swizzle(pointer, first), int(pointer["bits"]), at)
        else:
            pointer = self.match(self._CPP_POINTER)
        if match := self.match(self._SWIZZLE) or self.match(self._PYCUTE_SWIZZLE):
            outer, start = self.swizzle(match, 1), match.start(1)
            composed = self.match(self._COMPOSED)
            if inner := None if pointer else self.match(self._CPP_POINTER):
                pointer = inner
                swizzle = self.in_elements(outer, int(inner["bits"]), start)
            elif swizzle is not None:
                raise self.unexpected("one swizzle only", start)
            else:
                offset_match = composed and self.match(self._OFFSET)
                if not offset_match:
                    self.at = composed.start() if composed else self.at
                    raise self.unexpected("'o 0 o' after the swizzle")
                swizzle, offset = outer, int(offset_match[1])
        layout = self.affine(swizzle, offset)
        if self.matrix is not None:
            self.ended("", "")
            return self.indexed(layout, ())
        if match := self.match(self._TILED):
            layout = self.tiled(layout, match)
        self.match(self._PADDED)
        self.ended(closing, ",=" if pointer else "")
        if pointer is None:
            return Printed(layout, None, None, None)
        # C++ CuTe's pointer to elements of 4 bits, 0x7f00.4, has bits after its address.
        fraction = re.search(r"\.(\d+)", pointer["address"] or "")
        if fraction and int(fraction[1]) % 8:
            raise self.unexpected("a pointer that is not amid a byte", pointer.start("address"))
        space = _SPACES.get(pointer["space"] or "")
        return Printed(layout, space, int(pointer["bits"]), _alignment(pointer))

    def ended(self, closing: str, more: str) -> None:
        """Refuse text other than ``closing``; elements of a printed tensor may follow."""
        rest = self.text[self.at :].lstrip()
        if closing and rest.startswith(closing):
            rest = rest[1:].lstrip()
        if rest and rest[0] not in more:
            raise self.unexpected("the end of the layout")

    def coordinates(self, opening: re.Match[str]) -> Printed:
        """Read a tensor of coordinates that begins with its start."""
        start = self.int_tuple()
        self.match(self._COMPOSED)
        if self.matrix is None and "@" not in self.text:
            raise self.unexpected("a layout of basis strides such as 1@0 after coordinates")
        layout = self.affine(None, 0)
        self.ended(">" * bool(opening["tensor"]), ":,=")
        return self.indexed(layout, start)

    def indexed(self, layout: Layout, start: IntTuple) -> Printed:
        """Return coordinates from ``start``; strides of the layout are already the matrix's."""
        assert self.matrix is not None
        whole = self.matrix.layout
        steps = list(zip(layout.leaves, self.bases, strict=True))
        first = dict(_leaves(start))
        for path, extent, stride in _modes(whole):
            at = first.pop(path, 0)
            reach = at + sum((n - 1) * by for (n, _), (where, by) in steps if where == path)
            if reach >= extent:
                raise OptionError(
                    f"tensor {self.text!r} reaches coordinate {reach} where matrix {whole} has "
                    f"{extent}; expected a tile that lies in it"
                )
            self.start += at * stride
        if first:
            raise OptionError(
                f"tensor {self.text!r} begins at other coordinates than matrix {whole} has modes; "
                "expected one of each"
            )
        return self.matrix._replace(layout=layout)

    def affine(self, swizzle: Swizzle | None, offset: int) -> Layout:
        shape = self.int_tuple()
        self.take(":")
        start = self.at
        stride = self.int_tuple(self.step)
        try:
            return Layout(shape, stride, swizzle, offset)
        except ValueError as error:
            raise NotationError(str(error), column=start) from None

    def tiled(self, atom: Layout, match: re.Match[str]) -> Layout:
        extents = tuple(map(int, match[1].replace(" ", "").strip(",").split(",")))
        if len(extents) != atom.rank or not isinstance(atom.shape, tuple):
            raise self.unexpected(f"an extent for each mode of {atom}", match.start(1))
        try:
            return tile_to_shape(atom, extents)
        except ValueError as error:
            raise NotationError(str(error), column=match.start(1)) from None

    def swizzle(self, match: re.Match[str], group: int) -> Swizzle:
        numbers = match.groups()[group - 1 : group + 2]
        try:
            return Swizzle(*map(int, numbers))
        except ValueError as error:
            raise NotationError(str(error), column=match.start(group)) from None

    def in_elements(self, swizzle: Swizzle, bits: int, column: int) -> Swizzle:
        """Convert a swizzle of byte addresses to offsets in elements of ``bits``."""
        of_elements = swizzle.in_units(bits / 8)
        if of_elements is None:
            raise self.unexpected(f"a swizzle of bytes that leaves elements of {bits} bits", column)
        return of_elements

    def step(self, value: int, column: int) -> int:
        """Return a stride; in a tensor of coordinates, the stride of the matrix for its basis."""
        basis = self.match(self._BASIS)
        if self.matrix is None:
            if basis:
                raise self.unexpected(
                    "an integer: a basis stride such as 1@0 makes coordinates, not offsets",
                    column,
                )
            return value
        path = tuple(map(int, re.findall(r"\d+", basis[0])))[::-1] if basis else ()
        strides = {where: stride for where, _, stride in _modes(self.matrix.layout)}
        if path not in strides and (basis or value):
            raise self.unexpected(
                f"0, or a basis of one of the modes of matrix {self.matrix.layout}, such as "
                f"1@{'@'.join(map(str, [*strides][-1][::-1]))}",
                column,
            )
        self.bases.append((path, value))
        return value * strides.get(path, 0)

    def int_tuple(self, leaf: Callable[[int, int], int] = lambda value, _: value) -> IntTuple:
        if match := self.match(self._INT):
            return leaf(int(match[1]), match.start(1))
        if self.peek() == "?":
            return leaf(self.value(), self.at)
        if self.peek() == "-":
            raise self.unexpected("an integer of 0 or more: negative ones are not supported")
        self.depth += 1
        if self.depth > 32:
            raise self.unexpected("at most 32 nested parentheses")
        self.take("(")
        modes = [self.int_tuple(leaf)]
        while self.peek() == ",":
            self.take(",")
            if self.peek() == ")" and len(modes) == 1:
                break  # Python's tuple of one
            modes.append(self.int_tuple(leaf))
        self.take(")")
        self.depth -= 1
        return tuple(modes)

    def value(self) -> int:
        """Return the value of a dynamic '?'."""
        place = self.bound if len(self.let) > 1 else 0
        if place >= len(self.let):
            wanted = "its value" if not self.let else f"a value, and there are {len(self.let)}"
            raise self.unexpected(f"an integer: a dynamic '?' must be replaced by {wanted}")
        self.match(self._DYNAMIC)
        self.bound += 1
        return self.let[place]

    def match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        match = pattern.match(self.text, self.at)
        if match:
            self.at = match.end()
        return match

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


def _leaves(value: IntTuple, path: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yield the integers of a tuple, each with the path of modes to it."""
    if isinstance(value, tuple):
        for mode, inner in enumerate(value):
            yield from _leaves(inner, (*path, mode))
    else:
        yield path or (0,), value


def _modes(layout: Layout) -> list[tuple[tuple[int, ...], int, int]]:
    """Return the innermost modes of a layout: the path to each, its extent and its stride."""
    paths = _leaves(layout.shape)
    return [(path, *mode) for (path, _), mode in zip(paths, layout.leaves, strict=True)]


def _alignment(pointer: re.Match[str]) -> int | None:
    """Return the alignment of a printed pointer's address, or of its type without an address."""
    address = re.fullmatch(r"\s*0x([0-9a-f]+)(?:\.(\d+))?\s*", pointer["address"] or "")
    if address and (value := int(address[1], 16) + int(address[2] or 0) // 8):
        return value & -value
    align = pointer.groupdict().get("align")
    return int(align) if align else None
