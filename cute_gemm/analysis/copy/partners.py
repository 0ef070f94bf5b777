"""What else accesses the shared memory that a copy of one's own fills or reads."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from cute_gemm.access import GlobalAccess, SharedAccess
from cute_gemm.analysis.copy.arguments import Copy, fits_elements
from cute_gemm.analysis.copy.atoms import Direction, atom_name
from cute_gemm.analysis.copy.partition import bijection, read_values
from cute_gemm.analysis.copy.tiles import shared_access
from cute_gemm.cute import choose
from cute_gemm.cute.atoms import universal
from cute_gemm.cute.choose import VECTOR
from cute_gemm.cute.copies import TiledCopy, contiguous, gmem_tiled_copy
from cute_gemm.cute.layout import Layout
from cute_gemm.errors import OptionError
from cute_gemm.model import smem

_PLAIN = re.compile(
    r"(?P<atom>\S+)\s+threads\s+(?P<threads>\S+?),?(?:\s+values\s+(?P<values>\S+))?"
)


class Partner(NamedTuple):
    """The other side of a buffer; ``named`` by the user, or assumed."""

    copy: TiledCopy
    direction: Direction
    named: bool

    def access(self, layout: Layout) -> SharedAccess | None:
        """Its access of a tile in ``layout``; None where it does not fit there."""
        if not self.copy.covers(layout.extents) or not contiguous(self.copy.offsets(layout)):
            return None
        return shared_access(self.copy, layout, self.direction)


def buffer_of(copy: Copy) -> Layout | None:
    """The tile in shared memory, if the copy has one."""
    return copy.layout if copy.space == "shared" else copy.smem


def partner(text: str, copy: Copy, way: Direction) -> Partner:
    """The partner that ``reader=`` or ``writer=`` names; OptionError for one that does not fit."""
    argument = "reader" if way == "load" else "writer"
    layout = buffer_of(copy)
    if layout is None:
        raise OptionError(f"{argument}={text!r} is of a tile in shared memory; expected smem too")
    found = _PLAIN.fullmatch(text.strip())
    atom = atom_name(found["atom"] if found else text)
    ways = "load" if atom.direction is None else atom.direction
    if atom.kind == "cp.async":
        ways = "store"
    if ways != way:
        raise OptionError(f"{argument}={text!r} is a {ways}; expected a {way}")
    if copy.packing:
        fits_elements(atom, "shared", copy.dtype, copy.packing.bits)
    if atom.matrix is not None:
        axis = choose.contiguous_axis(layout)
        tiled = choose.matrix_copy(
            atom.matrix, copy.size, layout.extents, 1 if axis is None else axis
        )
    elif found is None:
        raise OptionError(
            f"{argument}={text!r}; expected an ldmatrix or stmatrix, or an atom with its threads, "
            "such as 'ld.shared.64 threads (8,4):(4,1) values (1,2)'"
        )
    else:
        threads = bijection("threads", found["threads"])
        values = bijection("values", read_values(found["values"] or "(1,1)"))
        if copy.packing:
            values = copy.packing.layout("values", values)
        bits = atom.bits or 8 * copy.size * values.size
        name = "cp.async" if atom.kind == "cp.async" else f"{way[:2]}.shared".replace("lo", "ld")
        tiled = gmem_tiled_copy(universal(name, bits), 8 * copy.size, threads, values)
    if tiled is None or not tiled.covers(layout.extents):
        raise OptionError(
            f"{argument}={text!r} does not divide the tile {layout}; expected a copy that does"
        )
    return Partner(tiled, way, True)


def assumed_partners(copy: Copy, accesses: Sequence[GlobalAccess | SharedAccess]) -> list[Partner]:
    """What a buffer of which one side is known is likely to have on the other.

    What 16-byte ``cp.async`` stores, ldmatrix reads, and what ldmatrix reads, 16-byte vectors
    stored. Of plain accesses nothing is assumed.
    """
    layout, known = buffer_of(copy), accesses[-1]
    if layout is None or not isinstance(known, SharedAccess):
        return []
    if copy.packing and copy.packing.bits == 6:  # which no matrix has
        return []
    axis = choose.contiguous_axis(layout)
    if axis is None:
        return []
    if known.instruction == "cp.async" and known.bits == 8 * VECTOR:
        atom = choose.reader(copy.size, axis)
        if atom.destination is None:
            return []
        found = choose.matrix_copy(atom, copy.size, layout.extents, axis)
        return [Partner(found, "load", False)] if found else []
    if not smem.matrices(known.instruction) or known.direction != "load":
        return []
    for count in (len(copy.tiled.partition), 32):
        store = choose.vector_copy(
            "cp.async", copy.size, layout.extents, axis, VECTOR // copy.size, count
        )
        if store.covers(layout.extents):
            return [Partner(store, "store", False)]
    return []
