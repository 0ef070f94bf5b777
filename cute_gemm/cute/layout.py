"""CuTe layouts: shape:stride functions from coordinates to offsets, with a swizzle on top.

pycute provides the affine algebra. This module adds swizzled layouts, tables of offsets and their
inverse, and layouts as C++ text.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log2, prod
from typing import Union

import numpy as np
import pycute

IntTuple = Union[int, tuple["IntTuple", ...]]  # noqa: UP007 - a string in it needs Union


@dataclass(frozen=True, slots=True)
class Swizzle:
    """CuTe's ``Swizzle<B, M, S>``: B bits are XORed into those S below them, from bit M on."""

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

    def in_units(self, ratio: float) -> Swizzle | None:
        """Return the swizzle of offsets in units ``ratio`` times as large; None without one."""
        base = self.base - log2(ratio)
        return replace(self, base=int(base)) if base >= 0 and base.is_integer() else None

    def __str__(self) -> str:
        return f"Sw<{self.bits},{self.base},{self.shift}>"

    def cpp(self) -> str:
        """Return the C++ type."""
        return f"Swizzle<{self.bits},{self.base},{self.shift}>"


@dataclass(frozen=True, slots=True)
class Layout:
    """A CuTe layout, ``swizzle o offset o shape:stride``: ``Sw<3,3,3> o 0 o (8,64):(64,1)``.

    Parameters
    ----------
    shape, stride
        Congruent ints or nested tuples of ints, in elements.
    swizzle
        The swizzle of the affine offset, or None.
    offset
        The affine offset of the first element, if the layout is a part of a swizzled one.

    Raises
    ------
    ValueError
        For a stride that is not congruent with the shape.

    Examples
    --------
    >>> layout = Layout((8, (2, 4)), (8, (1, 2)))
    >>> print(layout, layout.coalesced(), layout(3, 5))
    (8,(2,4)):(8,(1,2)) (8,8):(8,1) 29
    """

    shape: IntTuple
    stride: IntTuple
    swizzle: Swizzle | None = None
    offset: int = 0

    def __post_init__(self) -> None:
        if not _congruent(self.shape, self.stride):
            raise ValueError(
                f"stride {_text(self.stride)} is not congruent with shape {_text(self.shape)}; "
                "expected the same nesting"
            )

    @property
    def affine(self) -> Layout:
        """Layout without its swizzle."""
        return Layout(self.shape, self.stride)

    @property
    def rank(self) -> int:
        """Number of top-level modes."""
        return len(self.shape) if isinstance(self.shape, tuple) else 1

    @property
    def extents(self) -> tuple[int, ...]:
        """Sizes of the top-level modes."""
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
        """Extents and strides of the innermost modes, in order."""
        return tuple(zip(pycute.flatten(self.shape), pycute.flatten(self.stride), strict=True))

    def __getitem__(self, modes: int | slice) -> Layout:
        """Return the layout of one or several top-level modes."""
        if not isinstance(self.shape, tuple) or not isinstance(self.stride, tuple):
            return self
        return replace(self, shape=self.shape[modes], stride=self.stride[modes])

    def __call__(self, *coordinate):  # type: ignore[no-untyped-def]
        """Return the offset of a coordinate: one linear index, or an index per top-level mode.

        Indices may be NumPy arrays; they broadcast against each other.
        """
        if len(coordinate) not in (1, self.rank):
            raise ValueError(
                f"coordinate {coordinate} has {len(coordinate)} entries; expected 1 or {self.rank}"
            )
        at = coordinate[0] if len(coordinate) == 1 else coordinate
        offset = pycute.crd2idx(at, self.shape, self.stride)
        return self.swizzle(self.offset + offset) if self.swizzle else offset

    def table(self) -> np.ndarray:
        """Return the offsets of all coordinates, an int64 array of shape ``extents``."""
        return self(*np.ogrid[tuple(slice(extent) for extent in self.extents)])

    def coalesced(self) -> Layout:
        """Return the layout with the inner modes of each top-level mode merged, by pycute."""
        if not isinstance(self.shape, tuple):
            return self
        merged = pycute.coalesce(pycute.Layout(self.shape, self.stride), (None,) * self.rank)
        return Layout(merged.shape, merged.stride, self.swizzle, self.offset)

    def __str__(self) -> str:
        affine = f"{_text(self.shape)}:{_text(self.stride)}"
        return f"{self.swizzle} o {self.offset} o {affine}" if self.swizzle else affine

    def cpp(self) -> str:
        """Return the C++ type, ``Layout<Shape<_8,_64>,Stride<_64,_1>>``."""
        affine = f"Layout<{tuple_cpp(self.shape, 'Shape')},{tuple_cpp(self.stride, 'Stride')}>"
        if self.swizzle is None:
            return affine
        return f"ComposedLayout<{self.swizzle.cpp()},{tuple_cpp(self.offset, '')},{affine}>"


def column_major(*extents: int) -> Layout:
    """Return the compact layout with the first mode fastest."""
    return Layout(extents, pycute.prefix_product(extents))


def row_major(*extents: int) -> Layout:
    """Return the compact layout with the last mode fastest."""
    return Layout(extents, pycute.prefix_product(extents[::-1])[::-1])


def compact(axis: int, along: int, across: int = 1) -> Layout:
    """Return the compact layout of two modes whose fastest is ``axis``, with ``along`` elements."""
    return row_major(across, along) if axis else column_major(along, across)


def tile_to_shape(atom: Layout, shape: tuple[int, ...]) -> Layout:
    """Repeat ``atom`` over ``shape``, first mode fastest: CuTe's function of that name."""
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
    return Layout(tuple(shapes), tuple(strides), atom.swizzle, atom.offset)


def from_map(table: np.ndarray) -> Layout:
    """Return the layout, coalesced by mode, with the offsets ``table``, which has an axis per mode.

    ``ValueError`` if no affine layout has these offsets, or the first offset is not 0.
    """
    corner = (0,) * (table.ndim - 1)
    modes = [_factor(np.moveaxis(table, axis, -1)[corner]) for axis in range(table.ndim)]
    layout = Layout(tuple(mode.shape for mode in modes), tuple(mode.stride for mode in modes))
    if not np.array_equal(layout.table(), table):
        raise ValueError("the offsets are not those of a layout: a mode depends on another")
    return layout


def composes(modes: Layout, extent: int, stride: int) -> bool:
    """Return whether CuTe composes one mode of a layout with ``extent:stride``: its shapes divide.

    ``(6,4):(1,8)`` composes with ``12:1`` and ``3:2``, but not ``4:1``, which would end within a 6.
    A layout that merges into one mode, such as ``(6,4):(1,6)``, composes with all.
    """
    flat = pycute.coalesce(pycute.Layout(modes.shape, modes.stride))
    for size in pycute.flatten(flat.shape)[:-1]:
        if extent == 1:
            return True
        if stride % size and size % stride:
            return False
        here = max(1, size // stride)
        if extent % here and here % extent:
            return False
        extent = max(1, extent // here)
        stride = max(1, stride // size)
    return True


def _congruent(shape: IntTuple, stride: IntTuple) -> bool:
    if isinstance(shape, tuple) and isinstance(stride, tuple):
        return len(shape) == len(stride) and all(map(_congruent, shape, stride))
    return not isinstance(shape, tuple) and not isinstance(stride, tuple)


def _factor(rest: np.ndarray) -> pycute.Layout:
    """Return the coalesced mode that has these offsets."""
    shape: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    if rest[0] != 0:
        raise ValueError(f"the first offset is {rest[0]}; expected 0")
    while rest.size > 1:
        straight = np.arange(rest.size) * rest[1] == rest
        extent = rest.size if straight.all() else int(np.argmin(straight))
        if rest.size % extent:
            raise ValueError(f"{rest.size} offsets do not split into runs of {extent}")
        shape, stride = (*shape, extent), (*stride, int(rest[1]))
        rest = rest[::extent]
    return pycute.coalesce(pycute.Layout(shape, stride))


def _text(value: IntTuple) -> str:
    if isinstance(value, tuple):
        return "(" + ",".join(map(_text, value)) + ")"
    return str(value)


def tuple_cpp(value: IntTuple, kind: str) -> str:
    """Return the C++ type of an integer or a tuple; ``kind``: ``"Shape"`` or ``"Stride"``."""
    if isinstance(value, tuple):
        return f"{kind}<" + ",".join(tuple_cpp(mode, kind) for mode in value) + ">"
    # CuTe names the common constants _0 ... _16384; Int<N> is the same type.
    return f"_{value}" if value in _NAMED else f"Int<{value}>"


_NAMED = {*range(11), 12, *(1 << bit for bit in range(4, 20))}
