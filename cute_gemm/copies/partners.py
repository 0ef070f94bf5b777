"""Other accesses of the shared memory that a user's copy fills or reads."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from math import gcd, prod
from typing import NamedTuple

from cute_gemm.access import smem
from cute_gemm.access.accesses import Direction, GlobalAccess, SharedAccess
from cute_gemm.copies.arguments import Copy, fits_elements
from cute_gemm.copies.atoms import atom_name
from cute_gemm.copies.evaluate import evaluated
from cute_gemm.copies.partition import bijection, value_layout
from cute_gemm.cute import choose
from cute_gemm.cute.atoms import universal
from cute_gemm.cute.choose import VECTOR
from cute_gemm.cute.copies import TiledCopy, gmem_tiled_copy
from cute_gemm.cute.layout import Layout
from cute_gemm.errors import OptionError
from cute_gemm.fixes.tiles import Partner, assumed_partner
from cute_gemm.rendering.rows import AccessRow

_PLAIN = re.compile(
    r"(?P<atom>\S+)\s+threads\s+(?P<threads>\S+?),?(?:\s+values\s+(?P<values>\S+))?"
)


class NamedPartner(NamedTuple):
    """The other side of a buffer, named by the user; ``alone`` is that copy by itself."""

    argument: str  #: ``"reader"`` or ``"writer"``.
    alone: Copy

    @property
    def copy(self) -> TiledCopy:
        """Return the partner's tiled copy."""
        return self.alone.tiled

    def row(self, copy: Copy) -> SharedAccess:
        """Return its access of the tile of ``copy``, equal to that of the partner by itself."""
        layout, alignment = copy.sides[-1]
        access = evaluated(replace(self.alone, layout=layout, alignment=alignment))[0][0]
        assert isinstance(access, SharedAccess)
        extents = zip(copy.extents or layout.extents, layout.extents, strict=True)
        tiles = prod(-(-extent // tile) for extent, tile in extents)
        return replace(access, part=self.argument, executions=tiles)

    def transposed(self, layout: Layout) -> bool:
        """Return whether a layout would transpose the matrices of an ldmatrix or stmatrix."""
        matrix = self.alone.atom.matrix is not None
        return matrix and choose.unit_mode(layout) != choose.unit_mode(self.alone.layout)

    def fits(self, access: AccessRow) -> bool:
        """Return whether an access uses the named instruction, at its width if it has one."""
        atom, named = self.alone.atom, self.copy.atom
        any_width = atom.matrix is None and atom.bits is None
        return any_width or (access.instruction, access.bits) == (named.name, named.bits)


def buffer_of(copy: Copy) -> Layout | None:
    """Return the tile in shared memory, if the copy has one."""
    return copy.layout if copy.space == "shared" else copy.smem


def named_partners(copy: Copy, reader: str | None, writer: str | None) -> list[NamedPartner]:
    """Return the partners ``reader=`` and ``writer=``; raise OptionError if one does not fit."""
    given = {"reader": reader, "writer": writer}
    return [_partner(text, copy, argument) for argument, text in given.items() if text]


def _partner(text: str, copy: Copy, argument: str) -> NamedPartner:
    way: Direction = "load" if argument == "reader" else "store"
    layout = buffer_of(copy)
    if layout is None:
        raise OptionError(f"{argument}={text!r} needs a tile in shared memory; expected smem too")
    plain = _PLAIN.fullmatch(text.strip())
    atom = atom_name(plain["atom"] if plain else text)
    direction = "store" if atom.kind == "cp.async" else atom.direction or "load"
    if direction != way:
        raise OptionError(f"{argument}={text!r} is a {direction}; expected a {way}")
    if atom.kind in ("bulk", "tma") or (atom.space == "global" and atom.kind != "cp.async"):
        verb = "ld" if way == "load" else "st"
        raise OptionError(
            f"{argument}={text!r} does not move vectors of threads from or to shared memory; "
            f"expected {verb}.shared or {verb}matrix"
        )
    fits_elements(atom, "shared", copy.dtype, copy.packing.bits if copy.packing else 8 * copy.size)
    if atom.matrix is not None:
        tiled = choose.matrix_copy(atom.matrix, copy.size, layout.extents, choose.unit_mode(layout))
    elif plain is None:
        raise OptionError(
            f"{argument}={text!r}; expected an ldmatrix or stmatrix, or an atom with its threads, "
            "such as 'ld.shared.64 threads (8,4):(4,1) values (1,2)'"
        )
    else:
        threads = bijection("threads", plain["threads"])
        values = value_layout(plain["values"] or "(1,1)", copy.packing)
        bits = 8 * copy.size * gcd(atom.asked(copy.size), values.size)
        by = universal(atom.instruction("shared", way, bits), bits)
        tiled = gmem_tiled_copy(by, 8 * copy.size, threads, values)
    if tiled is None or not tiled.covers(layout.extents):
        raise OptionError(
            f"{argument}={text!r} does not divide the tile {layout}; expected a copy that does"
        )
    alone = replace(
        copy, atom=atom, space="shared", direction=way, layout=layout, smem=None, tiled=tiled,
        extents=None,
    )  # fmt: skip
    return NamedPartner(argument, alone)


def assumed_partners(copy: Copy, accesses: Sequence[GlobalAccess | SharedAccess]) -> list[Partner]:
    """Return the assumed partners of a buffer, if the user names none.

    16-byte ``cp.async`` is assumed to be read by ldmatrix, and tiles that ldmatrix reads to be
    stored by 16-byte vectors. Plain accesses and elements of 6 bits have no assumed partner.
    """
    layout, known = buffer_of(copy), accesses[-1]
    of_6_bits = copy.packing and copy.packing.bits == 6
    if layout is None or not isinstance(known, SharedAccess) or of_6_bits:
        return []
    stored = known.instruction == "cp.async" and known.bits == 8 * VECTOR
    if not stored and (not smem.matrices(known.instruction) or known.direction != "load"):
        return []
    threads = len(copy.tiled.partition)
    partner = assumed_partner(layout, copy.size, "store" if stored else "load", threads)
    return [partner] if partner else []
