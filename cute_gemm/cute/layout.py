"""CuTe layouts: shape:stride functions from coordinates to offsets, with a swizzle on top.

The affine algebra (coalesce, composition, ...) is pycute's; what pycute lacks is here: swizzled
layouts, evaluation over whole arrays, CuTe's printed notation, and the same layout as C++ text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import NamedTuple, Union

import numpy as np
import pycute

from cute_gemm.errors import NotationError

IntTuple = Union[int, tuple["IntTuple", ...]]  # noqa: UP007 - a string in it needs Union


@dataclass(frozen=True, slots=True)
class Swizzle:
    """CuTe's ``Swizzle<B, M, S>``: B bits are XORed into those S below them, from bit M on.

    Examples
    --------
    >>> Swizzle(3, 3, 3)(64)
    72
    """

    bits: int
    base: int
    shift: int

    def __post_init__(self) -> None:
        if self.bits < 0 or self.base < 0 or abs(self.shift) < self.bits:
            raise ValueError(
                f"swizzle <{self.bits},{self.base},{self.shift}> is not one: "
                "expected B >= 0, M >= 0 and |S| >= B"
            )

    def __call__(self, offset):  # type: ignore[no-untyped-def]
        """Apply to an offset, or to an array of them."""
        mask = (1 << self.bits) - 1
        if self.shift >= 0:
            return offset ^ ((offset >> self.shift) & (mask << self.base))
        return offset ^ ((offset & (mask << self.base)) << -self.shift)

    def __str__(self) -> str:
        return f"Sw<{self.bits},{self.base},{self.shift}>"

    def cpp(self) -> str:
        """Return the C++ type."""
        return f"Swizzle<{self.bits},{self.base},{self.shift}>"


@dataclass(frozen=True, slots=True)
class Layout:
    """A CuTe layout, ``swizzle o shape:stride``; shapes may be hierarchical.

    Parameters
    ----------
    shape, stride
        Congruent ints or nested tuples of ints; strides in elements.
    swizzle
        Applied to the affine offset, or None.

    Examples
    --------
    >>> layout = Layout((8, 64), (64, 1), Swizzle(3, 3, 3))
    >>> print(layout)
    Sw<3,3,3> o 0 o (8,64):(64,1)
    >>> layout(1, 0)
    72
    """

    shape: IntTuple
    stride: IntTuple
    swizzle: Swizzle | None = None

    def __post_init__(self) -> None:
        if not _congruent(self.shape, self.stride):
            raise ValueError(
                f"stride {_text(self.stride)} is not congruent with shape {_text(self.shape)}; "
                "expected the same nesting"
            )

    @property
    def affine(self) -> Layout:
        """The layout without its swizzle."""
        return Layout(self.shape, self.stride)

    @property
    def rank(self) -> int:
        """Number of top-level modes."""
        return len(self.shape) if isinstance(self.shape, tuple) else 1

    @property
    def extents(self) -> tuple[int, ...]:
        """Size of every top-level mode."""
        shape = self.shape if isinstance(self.shape, tuple) else (self.shape,)
        return tuple(pycute.product(mode) for mode in shape)

    @property
    def size(self) -> int:
        """Number of coordinates."""
        return prod(self.extents)

    @property
    def cosize(self) -> int:
        """One more than the largest offset."""
        return int(self.table().max()) + 1

    @property
    def leaves(self) -> tuple[tuple[int, int], ...]:
        """Extent and stride of every innermost mode, in order.

        Examples
        --------
        >>> Layout(((4, 8), 2), ((32, 1), 16)).leaves
        ((4, 32), (8, 1), (2, 16))
        """
        return tuple(_leaves(self.shape, self.stride))

    def __call__(self, *coordinate):  # type: ignore[no-untyped-def]
        """Offset of a coordinate: one linear index, or an index per top-level mode.

        Indices may be NumPy arrays; they broadcast against each other.
        """
        if len(coordinate) == 1:
            offset = _evaluate(coordinate[0], self.shape, self.stride)
        elif len(coordinate) == self.rank:
            assert isinstance(self.shape, tuple) and isinstance(self.stride, tuple)
            offset = sum(map(_evaluate, coordinate, self.shape, self.stride))
        else:
            raise ValueError(
                f"coordinate {coordinate} has {len(coordinate)} entries; expected 1 or {self.rank}"
            )
        return self.swizzle(offset) if self.swizzle else offset

    def table(self) -> np.ndarray:
        """Offsets of all coordinates, an int64 array of shape ``extents``."""
        return self(*np.ogrid[tuple(slice(extent) for extent in self.extents)])

    def coalesced(self) -> Layout:
        """Every top-level mode with its inner modes merged as far as they go, by pycute."""
        if not isinstance(self.shape, tuple) or not isinstance(self.stride, tuple):
            return self
        modes = [
            pycute.coalesce(pycute.Layout(s, d))
            for s, d in zip(self.shape, self.stride, strict=True)
        ]
        return Layout(tuple(m.shape for m in modes), tuple(m.stride for m in modes), self.swizzle)

    def __str__(self) -> str:
        affine = f"{_text(self.shape)}:{_text(self.stride)}"
        return f"{self.swizzle} o 0 o {affine}" if self.swizzle else affine

    def cpp(self) -> str:
        """Return the same layout as a C++ type.

        Examples
        --------
        >>> Layout((8, 64), (64, 1)).cpp()
        'Layout<Shape<_8,_64>,Stride<_64,_1>>'
        """
        affine = f"Layout<{_cpp(self.shape, 'Shape')},{_cpp(self.stride, 'Stride')}>"
        return f"ComposedLayout<{self.swizzle.cpp()},_0,{affine}>" if self.swizzle else affine


def column_major(*extents: int) -> Layout:
    """Compact layout, first mode fastest."""
    strides = [1]
    for extent in extents[:-1]:
        strides.append(strides[-1] * extent)
    return Layout(tuple(extents), tuple(strides))


def row_major(*extents: int) -> Layout:
    """Compact layout, last mode fastest."""
    reverse = column_major(*extents[::-1])
    assert isinstance(reverse.stride, tuple)
    return Layout(tuple(extents), reverse.stride[::-1])


def tile_to_shape(atom: Layout, shape: tuple[int, ...]) -> Layout:
    """Repeat ``atom`` over ``shape``, first mode fastest: CuTe's function of that name.

    Examples
    --------
    >>> print(tile_to_shape(Layout((8, 32), (32, 1)), (128, 32, 3)))
    ((8,16),(32,1),(1,3)):((32,256),(1,0),(0,4096))
    """
    assert isinstance(atom.shape, tuple) and isinstance(atom.stride, tuple)
    shapes: list[IntTuple] = []
    strides: list[IntTuple] = []
    step = atom.size
    padding = len(shape) - atom.rank
    atom_shape = atom.shape + (1,) * padding
    atom_stride = atom.stride + (0,) * padding
    for extent, inner, stride in zip(shape, atom_shape, atom_stride, strict=True):
        if extent % pycute.product(inner):
            raise ValueError(f"extent {extent} is not a multiple of the atom's {_text(inner)}")
        repeats = extent // pycute.product(inner)
        shapes.append((inner, repeats))
        strides.append((stride, step if repeats > 1 else 0))
        step *= repeats
    return Layout(tuple(shapes), tuple(strides), atom.swizzle)


def from_map(table: np.ndarray) -> Layout:
    """Return the layout, coalesced by mode, whose offsets are ``table``.

    Parameters
    ----------
    table
        int array; one axis per top-level mode.

    Raises
    ------
    ValueError
        When no affine layout gives these offsets, or the first offset is not 0.
    """
    modes = []
    for axis in range(table.ndim):
        index: list[int | slice] = [0] * table.ndim
        index[axis] = slice(None)
        modes.append(_factor(table[tuple(index)]))
    layout = Layout(tuple(m[0] for m in modes), tuple(m[1] for m in modes))
    if not np.array_equal(layout.table(), table):
        raise ValueError("the offsets are not those of a layout: a mode depends on another")
    return layout


class Printed(NamedTuple):
    """A tensor or a layout as CuTe printed it."""

    layout: Layout
    space: str | None  # "global", "shared", or None where the text does not say
    bits: int | None  # of an element


def parse(text: str) -> Layout:
    """Read a layout in CuTe's notation, as C++ CuTe, CuTe DSL or this package print it.

    A printed tensor is taken too. A swizzle in front of the layout acts on its offsets; one that
    belongs to a pointer (``Sw<3,4,3> o smem_ptr[16b](unset) o``, ``Sw<3,4,3>_smem_ptr[16b](0x..)``,
    ``ptr<f16, smem, align<1024>, S<3,4,3>>``) acts on bytes, as in CuTe, and comes out as the one
    that does the same to elements.

    Raises
    ------
    NotationError
        With the column at which the text stops making sense, or of what has no offsets to evaluate:
        a dynamic ``?``, a negative stride, a basis stride ``1@0``.

    Examples
    --------
    >>> parse("Sw<3,3,3> o _0 o (_8,_64):(_64,_1)") == Layout((8, 64), (64, 1), Swizzle(3, 3, 3))
    True
    >>> print(parse("gmem_ptr[16b](0x7f2c00000000) o (_128,_32):(_1,4096)"))
    (128,32):(1,4096)
    >>> print(parse("tensor<ptr<f16, smem, align<1024>, S<3,4,3>> o (8,64):(64,1)>"))
    Sw<3,3,3> o 0 o (8,64):(64,1)
    """
    return parse_printed(text).layout


def parse_printed(text: str) -> Printed:
    """Read what ``parse`` reads, with what the text says of memory and element.

    Examples
    --------
    >>> parse_printed("smem_ptr[16b](0x7f2c00000000) o (_8,_64):(_64,_1)")[1:]
    ('shared', 16)
    """
    return _Parser(text).printed()


def as_layout(layout: object) -> Layout:
    """Return a layout of any library, or its text, as one of ours.

    Parameters
    ----------
    layout
        A ``Layout``, text, or any object that prints itself in CuTe's notation, as pycute's and
        CuTe DSL's do.

    Raises
    ------
    NotationError
        When its text does not parse.

    Examples
    --------
    >>> print(as_layout(pycute.Layout((8, 64), (64, 1))))
    (8,64):(64,1)
    """
    return as_printed(layout).layout


def as_printed(layout: object) -> Printed:
    """Return ``as_layout(layout)`` with what its text says of memory and element."""
    if isinstance(layout, Layout):
        return Printed(layout, None, None)
    return parse_printed(str(layout))


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


def _evaluate(index, shape: IntTuple, stride: IntTuple):  # type: ignore[no-untyped-def]
    """Offset of a linear (colexicographic) index, an int or an array, in one mode."""
    total = 0
    modes = list(_leaves(shape, stride))
    for extent, step in modes[:-1]:
        total = total + index % extent * step
        index = index // extent
    return total + index * modes[-1][1]


def _leaves(shape: IntTuple, stride: IntTuple) -> Iterator[tuple[int, int]]:
    if isinstance(shape, tuple) and isinstance(stride, tuple):
        for inner_shape, inner_stride in zip(shape, stride, strict=True):
            yield from _leaves(inner_shape, inner_stride)
    else:
        assert isinstance(shape, int) and isinstance(stride, int)
        yield shape, stride


def _congruent(shape: IntTuple, stride: IntTuple) -> bool:
    if isinstance(shape, tuple) and isinstance(stride, tuple):
        return len(shape) == len(stride) and all(map(_congruent, shape, stride))
    return not isinstance(shape, tuple) and not isinstance(stride, tuple)


def _factor(offsets: np.ndarray) -> tuple[IntTuple, IntTuple]:
    """One mode's offsets -> its coalesced shape and stride."""
    shapes: list[int] = []
    strides: list[int] = []
    rest = np.asarray(offsets, dtype=np.int64)
    if rest[0] != 0:
        raise ValueError(f"the first offset is {rest[0]}; expected 0")
    while rest.size > 1:
        step = rest[1]
        straight = np.arange(rest.size) * step == rest
        extent = rest.size if straight.all() else int(np.argmin(straight))
        if rest.size % extent:
            raise ValueError(f"{rest.size} offsets do not split into runs of {extent}")
        shapes.append(extent)
        strides.append(int(step))
        rest = rest[::extent]
    if not shapes:
        return 1, 0
    return (shapes[0], strides[0]) if len(shapes) == 1 else (tuple(shapes), tuple(strides))


def _text(value: IntTuple) -> str:
    if isinstance(value, tuple):
        return "(" + ",".join(map(_text, value)) + ")"
    return str(value)


def _cpp(value: IntTuple, kind: str) -> str:
    if isinstance(value, tuple):
        return f"{kind}<" + ",".join(_cpp(mode, kind) for mode in value) + ">"
    # CuTe names the common constants _0 ... _16384; Int<N> is the same type.
    return f"_{value}" if value in _NAMED else f"Int<{value}>"


_NAMED = {*range(11), 12, *(1 << bit for bit in range(4, 20))}
