"""Elements of 4 and 6 bits, which share bytes: conversions between layouts of elements and bytes.

As with ``recast<uint8_t>`` of C++ CuTe, the copy of 2 neighbouring elements of 4 bits, or 4 of 6
bits, is that of the bytes that they share. Layouts that begin or end within a byte raise an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Any

import numpy as np

from cute_gemm._text import counted
from cute_gemm.cute import choose
from cute_gemm.cute.layout import Layout, from_map
from cute_gemm.cute.notation import parse
from cute_gemm.errors import OptionError


class _TornError(Exception):
    """A byte whose elements are not neighbours; the argument is its coordinate."""


@dataclass(frozen=True, slots=True)
class Packing:
    """How elements share bytes: ``elements`` share ``bytes`` along mode ``axis`` of a tile."""

    dtype: str
    elements: int
    bytes: int
    axis: int

    @classmethod
    def of(cls, dtype: str, bits: int, layout: Layout) -> Packing | None:
        """Return the packing of elements of ``bits`` in a tile; None if they share no bytes."""
        if bits % 8 == 0:
            return None
        many = 8 // gcd(8, bits)
        return cls(dtype, many, many * bits // 8, choose.unit_mode(layout))

    def pitched(self, layout: Layout) -> None:
        """Raise OptionError for a tile of a matrix whose rows begin within a byte."""
        pitch = layout[1 - self.axis].stride
        if isinstance(pitch, int) and pitch % self.elements:
            raise self._refused("tensor", layout, _TornError((1, 0) if self.axis else (0, 1)))

    @property
    def bits(self) -> int:
        """Bits of an element."""
        return 8 * self.bytes // self.elements

    @property
    def what(self) -> str:
        """Description, as in ``"2 elements of int4 share 1 byte"``."""
        shared = counted(self.bytes, "byte")
        return f"{self.elements} elements of {self.dtype} share {shared}"

    def layout(self, argument: str, layout: Layout) -> Layout:
        """Return a layout of elements as a layout of bytes."""
        try:
            return _recast(layout, self.axis, self.elements, self.bytes)
        except _TornError as torn:
            raise self._refused(argument, layout, torn) from None

    def extents(self, argument: str, given: tuple[int, int]) -> tuple[int, int]:
        """Return extents in bytes."""
        if given[self.axis] % self.elements:
            raise OptionError(
                f"{argument}=({given[0]},{given[1]}) ends within a byte: {self.what}; expected a "
                f"multiple of {self.elements} in mode {self.axis}"
            )
        return self._scaled(given, self.elements, self.bytes)

    def in_elements(self, extents: tuple[int, int]) -> tuple[int, int]:
        """Return extents of a tile of bytes in elements."""
        return self._scaled(extents, self.bytes, self.elements)

    def _scaled(self, given: tuple[int, int], old: int, new: int) -> tuple[int, int]:
        along = given[self.axis] // old * new
        return (given[0], along) if self.axis else (along, given[1])

    def partition(self, tv: Layout, places: np.ndarray, tile: tuple[int, int]) -> np.ndarray:
        """Return coordinates [threads, values, 2] of elements in a tile as those of bytes."""
        along, across = places[..., self.axis], places[..., 1 - self.axis]
        try:
            many = tile[self.axis]
            if many % self.elements:
                raise _TornError((0, 0))
            row = many // self.elements * self.bytes
            at = _cut_anew(along + many * across, 1, self.elements, self.bytes)
        except _TornError as torn:
            raise self._refused("tv", tv, torn) from None
        both = (at // row, at % row) if self.axis else (at % row, at // row)
        return np.stack(both, axis=-1)

    def _refused(self, argument: str, layout: Layout, torn: _TornError) -> OptionError:
        place = ",".join(map(str, torn.args[0]))
        return OptionError(
            f"{argument} {layout} begins or ends within a byte at ({place}): {self.what}; expected "
            f"each {self.elements} side by side along mode {self.axis}, from a multiple of "
            f"{self.elements} on (or, if each has a separate byte, dtype='uint8')"
        )

    def spelled(self, change: dict[str, Any]) -> tuple[tuple[str, ...], dict[str, Any]] | None:
        """Return a fix of bytes as one of elements, in words and arguments; None if impossible."""
        out, words = dict(change), []
        for name, word in (
            ("threads", "threads {}"), ("values", "values ({},{})"), ("atom", "{0} of {1} bits"),
            ("tensor", "tensor {}"), ("smem", "into shared memory {}"),
            ("base_alignment", "base address aligned to {} bytes"),
        ):  # fmt: skip
            given = change.get(name)
            if given is None:
                continue
            values: tuple[Any, ...] = (given,)
            if name in ("values", "tensor", "smem"):
                layout = parse(given)
                if name != "values" and choose.contiguous_axis(layout) == 1 - self.axis:
                    return None
                try:
                    recast = _recast(layout, self.axis, self.bytes, self.elements)
                except _TornError:
                    return None
                out[name] = str(recast)
                values = recast.extents if name == "values" else (recast,)
            elif name == "atom":
                values = tuple(given.rsplit(".", 1))
            words.append(word.format(*values))
        return tuple(words), out


def _recast(layout: Layout, axis: int, old: int, new: int) -> Layout:
    """Return the layout with ``new`` units in place of each ``old`` units along ``axis``."""
    swizzle = layout.swizzle and layout.swizzle.in_units(old / new)
    if layout.swizzle and (swizzle is None or layout.offset % old):
        raise _TornError((0, 0))
    try:
        recast = from_map(_cut_anew(layout.affine.table(), axis, old, new))
    except ValueError:
        raise _TornError((0, 0)) from None
    strides = [recast[mode].stride for mode in range(recast.rank)]
    # A mode of one element keeps its stride: the pitch of a tile of a matrix.
    for mode, extent in enumerate(recast.extents):
        given = layout[mode].stride
        if extent == 1 and isinstance(given, int):
            strides[mode] = 1 if mode == axis else given // old * new
    return Layout(recast.shape, tuple(strides), swizzle, layout.offset // old * new)


def _cut_anew(table: np.ndarray, axis: int, old: int, new: int) -> np.ndarray:
    """Return a table with ``new`` numbers along ``axis`` for each ``old`` consecutive ones."""
    lines = np.moveaxis(table, axis, -1)
    whole = lines.shape[-1] // old * old
    if whole < lines.shape[-1]:
        raise _TornError((0, whole) if axis else (whole, 0))
    lines = lines.reshape(*lines.shape[:-1], -1, old)
    first = lines[..., :1]
    torn = ((lines != first + np.arange(old)) | (first % old != 0)).any(axis=-1)
    if torn.any():
        across, group = np.argwhere(torn)[0].tolist()
        raise _TornError((across, group * old) if axis else (group * old, across))
    out = first // old * new + np.arange(new)
    return np.moveaxis(out.reshape(*out.shape[:-2], -1), -1, axis)
