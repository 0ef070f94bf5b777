"""CuTe layouts: shape:stride functions from coordinates to offsets, with a swizzle on top.

The affine algebra (coalesce, composition, ...) is pycute's; what pycute lacks is here: swizzled
layouts, evaluation over whole arrays, CuTe's printed notation, and the same layout as C++ text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Union

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
        return int(np.prod(self.extents, dtype=np.int64))

    @property
    def cosize(self) -> int:
        """One more than the largest offset."""
        return int(self.table().max()) + 1

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


def parse(text: str) -> Layout:
    """Read a layout in CuTe's notation, as C++ CuTe, CuTe DSL or this package print it.

    Raises
    ------
    NotationError
        With the column at which the text stops making sense.

    Examples
    --------
    >>> parse("Sw<3,3,3> o _0 o (_8,_64):(_64,_1)") == Layout((8, 64), (64, 1), Swizzle(3, 3, 3))
    True
    """
    return _Parser(text).layout()


class _Parser:
    _SWIZZLE = re.compile(r"\s*(?:Swizzle|Sw|S)\s*<\s*(\d+)\s*,\s*(\d+)\s*,\s*(-?\d+)\s*>")
    _OFFSET = re.compile(r"\s*o\s*_?(\d+)\s*o")
    _INT = re.compile(r"\s*_?(\d+)")

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def layout(self) -> Layout:
        swizzle = None
        if match := self._SWIZZLE.match(self.text):
            self.at = match.end()
            try:
                swizzle = Swizzle(*map(int, match.groups()))
            except ValueError as error:
                raise NotationError(str(error), column=match.start(1)) from None
            offset = self._OFFSET.match(self.text, self.at)
            if offset is None or int(offset[1]):
                raise self.unexpected("'o 0 o' after the swizzle")
            self.at = offset.end()
        shape = self.int_tuple()
        self.take(":")
        start = self.at
        stride = self.int_tuple()
        if self.text[self.at :].strip():
            raise self.unexpected("the end of the layout")
        try:
            return Layout(shape, stride, swizzle)
        except ValueError as error:
            raise NotationError(str(error), column=start) from None

    def int_tuple(self) -> IntTuple:
        if match := self._INT.match(self.text, self.at):
            self.at = match.end()
            return int(match[1])
        self.take("(")
        modes = [self.int_tuple()]
        while self.peek() == ",":
            self.take(",")
            modes.append(self.int_tuple())
        self.take(")")
        return tuple(modes)

    def peek(self) -> str:
        return self.text[self.at :].lstrip()[:1]

    def take(self, symbol: str) -> None:
        if self.peek() != symbol:
            raise self.unexpected(f"'{symbol}'")
        self.at = self.text.index(symbol, self.at) + 1

    def unexpected(self, expected: str) -> NotationError:
        rest = self.text[self.at :]
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
