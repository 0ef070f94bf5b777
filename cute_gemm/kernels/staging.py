"""Helpers that list accesses of kernels: copies of tiles, and operands of epilogues."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import lcm
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from cute_gemm.access import gmem
from cute_gemm.access.accesses import Access, GlobalAccess, Limit, Option, SharedAccess, Tail
from cute_gemm.cute.copies import LANES
from cute_gemm.dtypes import DTYPES
from cute_gemm.kernels.options import tiles_of
from cute_gemm.problem.parts.scales import BLOCK, SCALES

if TYPE_CHECKING:
    from cute_gemm.cute.copies import TiledCopy
    from cute_gemm.cute.layout import Layout
    from cute_gemm.problem.matrix import Matrix
    from cute_gemm.problem.problem import GemmProblem

#: Bytes of the widest access.
_WIDEST = 16
#: Part of accesses that load ahead.
UNUSED_PREFETCH = "unused prefetch after the last k-tile"


def unused_prefetch(executions: int) -> dict[str, Any]:
    """Return fields of an access that each CTA executes ahead once more than its result is used."""
    return {"executions": executions, "unit": "CTA", "part": UNUSED_PREFETCH}


def read_ahead(read: SharedAccess, columns: int, executions: int) -> SharedAccess:
    """Return the loads of the first columns of k that are repeated after the last k-tile."""
    assert read.coords is not None
    first = read.coords[:, 0, 1] < columns
    ahead = unused_prefetch(executions)
    return replace(read, offsets=read.offsets[first], coords=read.coords[first], **ahead)


def by_last_tile(load: GlobalAccess) -> list[GlobalAccess]:
    """Return the load of A or B with the last k-tile, the only one that K's end can cut, separate.

    The last k-tile leaves out elements outside the matrix and vectors that straddle K's end, or the
    last row in the last column (`cut_vectors`). In other columns, vectors that straddle the last
    row are read whole. If nothing is cut, return one load.
    """
    (rows, k), (tile_rows, step) = load.matrix.shape, load.tile
    last = replace(load, tail="full", only_last=load.axis == 0)
    rest = (-(-k // step) - 1) * step
    if rest <= 0 or not (k % step or rows % tile_rows):
        return [last]
    return [
        replace(load, tail="whole", extents=(rows, rest), part="all but the last k-tile"),
        replace(last, origin=(0, rest), extents=(rows, k - rest), part="last k-tile"),
    ]


def cut_vectors(load: GlobalAccess, part: str = "") -> list[GlobalAccess]:
    """Return the loads of elements of the vectors of A or B that straddle an end, if any.

    ``part``: by default the part of ``load`` and "cut vectors".
    """
    part = part or f"{load.part}, cut vectors".lstrip(", ")
    mode = "k" if load.axis else {"A": "m", "B": "n"}[load.operand]
    limit = "a vector that straddles the matrix's end goes element by element"
    fix = f"pad {mode} to a multiple of {load.vector[1]}, with zeros"
    load = replace(load, instruction="ld.global", targets=None, limit=limit, fix=fix, part=part)
    return element_by_element(load)


def element_by_element(access: GlobalAccess) -> list[GlobalAccess]:
    """Return the accesses of the vectors that straddle the end, if any."""
    element, width = access.vector
    cut = replace(access, bits=8 * element, tail="elements", width=width)
    some = width > 1 and any(cut.straddling(valid).any() for valid in cut.tile_extents())
    return [cut] if some else []


def shared(
    operand: str,
    direction: Literal["load", "store"],
    copy: TiledCopy,
    layout: Layout,
    extents: tuple[int, int],
    **more: Any,
) -> SharedAccess:
    """Return a tiled copy's access of a tile of ``extents`` in shared memory."""
    atom, offsets = copy.atom, copy.vector_offsets(layout, extents)
    more |= {"layout": layout, "coords": copy.requests(extents), "element_bits": copy.element_bits}
    return SharedAccess(operand, direction, atom.name, atom.bits, offsets, **more)


def of_tile(
    operand: str, direction: Literal["load", "store"], instruction: str, bits: int, layout: Layout,
    coords: np.ndarray, size: int, **more: Any,
) -> SharedAccess:  # fmt: skip
    """Return an access of elements of ``size`` bytes at coordinates of a tile in shared memory."""
    offsets = np.asarray(layout(coords[..., 0], coords[..., 1])) * size
    more |= {"layout": layout, "coords": coords, "element_bits": 8 * size}
    return SharedAccess(operand, direction, instruction, bits, offsets, **more)


def load_by(
    copy: TiledCopy, store: SharedAccess, matrix: Matrix, tile: tuple[int, int], sweeps: int,
    limit: Limit, fix: Option | str = "", tail: Tail = "cut",
) -> GlobalAccess:  # fmt: skip
    """Return the load of a tile of A or B by a tiled copy; ``store`` is its store."""
    asynchronous = copy.atom.name == "cp.async"
    return GlobalAccess(
        matrix.name, "load", copy.atom.name, copy.atom.bits, matrix, tile, copy.requests(tile),
        matrix.unit, sweeps, limit, fix, tail=tail, targets=store.offsets if asynchronous else None,
    )  # fmt: skip


def store_of_cut(store: SharedAccess, cut: GlobalAccess) -> SharedAccess:
    """Return the store of each element of vectors that are loaded element by element."""
    vectors, (size, _) = store.offsets[:, None, :], cut.vector
    each = np.where(vectors < 0, -1, vectors + (np.arange(cut.width) * size)[None, :, None])
    return replace(
        store, instruction="st.shared", bits=cut.bits, offsets=each.reshape(-1, LANES),
        executions=0, layout=None, coords=None, guard=cut, part=cut.part,
    )  # fmt: skip


def stored(
    store: SharedAccess, loads: Sequence[GlobalAccess], cuts: Sequence[GlobalAccess]
) -> list[SharedAccess]:
    """Return the store of each of these loads: with its predicate, and zeros outside the matrix.

    ``store`` is the store of a whole tile. ``loads`` are vector by vector (`by_last_tile`), and
    only the last k-tile needs zeros; ``cuts`` are element by element (`cut_vectors`).
    """
    stores = [
        replace(store, executions=0, guard=load, zero_fill=load.tail == "full", part=load.part)
        for load in loads
    ]
    stores += (replace(store_of_cut(store, cut), zero_fill=True) for cut in cuts)
    return stores


def by_words(load: GlobalAccess, store: SharedAccess, copy: TiledCopy, pitch: int) -> list[Access]:
    """Return the copies of the aligned words that cover a tile's rows.

    ``load`` and ``store`` are those of ``copy``, as if rows began with words. Rows are ``pitch``
    bytes apart, and one more word follows each: of the lanes that copy rows, the first copies this
    word of their first row, the second that of their second row. Words across the matrix's ends are
    copied element by element.
    """
    assert load.targets is not None
    axis, (size, width), extent = load.axis, load.vector, load.tile[load.axis]
    along, across = (copy.partition[:, 0, mode].reshape(-1, LANES) for mode in (axis, 1 - axis))
    steps, words = load.tile[1 - axis] // copy.tile[1 - axis], extent // width
    which = np.concatenate([along // width + turn for turn in range(0, steps, words)])
    row = np.tile(across, (len(which) // len(across), 1)) + which * copy.tile[1 - axis]
    end = np.stack((row, np.full_like(row, extent)), axis=-1)[..., :: 1 if axis else -1]
    end = np.where((which < steps)[..., None], end, -1)
    places = np.where(which < steps, row * pitch + extent * size, -1)
    accesses: list[Access] = []
    for coords, targets, part in (
        (load.coords, load.targets, ""), (end, places, "after the rows")
    ):  # fmt: skip
        copied = replace(load, coords=coords, targets=targets, part=part, words=True)
        cut = replace(
            copied, instruction="ld.global", bits=8 * size, tail="elements", width=width,
            targets=None, part="at the ends",
            limit="words across the matrix's ends go element by element",
        )  # fmt: skip
        put = replace(store, offsets=targets, layout=None, coords=None, executions=0)
        accesses += [copied, replace(put, guard=copied, part=part)]
        if any(cut.lanes(own.valid, own.place)[1].any() for own in gmem.classes(cut)):
            accesses += [cut, store_of_cut(put, cut)]
    return accesses


def in_place(
    operand: str, copy: TiledCopy, layout: Layout, extents: tuple[int, int], axis: int, **more: Any
) -> list[SharedAccess]:
    """Return the accesses that put words of a tile in place: loads (also of row ends), stores."""
    store = shared(operand, "store", copy, layout, extents, **more)
    load = replace(store, direction="load", instruction="ld.shared")
    assert store.coords is not None
    last = store.coords[..., axis] == extents[axis] - copy.values
    some = last.any(axis=-1)
    next_word = np.where(last, store.offsets + copy.bits // 8, -1)[some]
    return [load, replace(load, offsets=next_word, layout=None, coords=None), store]


def along_unit(matrix: Matrix, along: np.ndarray, across: np.ndarray) -> np.ndarray:
    """Return coordinates of lanes from those along the unit-stride mode, and across it."""
    pair = np.stack(np.broadcast_arrays(along, across), axis=-1).reshape(-1, LANES, 2)
    return pair[..., ::-1] if matrix.unit else pair


def load_of_rows(
    operand: str, bits: int, matrix: Matrix, tile: tuple[int, int], coords: np.ndarray, **more: Any
) -> GlobalAccess:
    """Return the load of a tile of a CTA; ``tile``: extents along the unit-stride mode, across."""
    tile = tile[::-1] if matrix.unit else tile
    return GlobalAccess(
        operand, "load", "ld.global", bits, matrix, tile, coords, matrix.unit, 1, unit="CTA", **more
    )


def store_of_c(
    C: Matrix, bits: int, tile: tuple[int, int], coords: np.ndarray, limit: Limit, **more: Any
) -> GlobalAccess:
    """Return the store of a tile of C; ``limit``: why it is narrower than 128 bits."""
    return GlobalAccess(
        "C", "store", "st.global", bits, C, tile, coords, C.unit, 1, limit if bits < 128 else "",
        unit="CTA", **more,
    )  # fmt: skip


def with_cut_vectors(store: GlobalAccess) -> list[GlobalAccess]:
    """Return a store of vectors of C, and that of the elements of vectors that straddle its end."""
    limit = "a vector that straddles C's end goes element by element"
    fix = f"pad {'mn'[store.axis]} to a multiple of {store.vector[1]}"
    return [store, *element_by_element(replace(store, limit=limit, fix=fix, part="cut vectors"))]


def loads_of_c(stores: Sequence[GlobalAccess], reads_c: bool) -> list[GlobalAccess]:
    """Return the loads of the stored elements if beta is not 0."""
    loads = [replace(x, direction="load", instruction="ld.global") for x in stores]
    return loads if reads_c else []


def loads_of_scales(
    problem: GemmProblem, config: Any, name: str, instruction: str, lanes: np.ndarray, sweeps: int
) -> Iterator[GlobalAccess]:
    """Yield the loads of a tile's block scales, one by each lane, for 128 of k.

    ``lanes``: rows of the tile that the lanes' scales belong to, int [requests, 32], -1 for none.
    If several rows share a scale, loads are those of tiles that together begin and end with a
    scale: tiles in the matrix, and those after its end.
    """
    side = SCALES.index(name)
    matrix = next(matrix for matrix in problem.scales if matrix.name == name)
    rows, extent, tile = config.operation.scales[side], problem.rows_of(name), config.tile[side]
    together = lcm(tile, rows)
    row = np.where(lanes < 0, -1, np.arange(0, together, tile)[:, None, None] + lanes)
    blocks = np.where(lanes < 0, -1, row // rows)
    whole = extent // together * together if rows > 1 else extent
    rest = np.where(row < extent - whole, blocks, -1)
    for begin, end, each in ((0, whole, blocks), (whole, extent, rest)):
        requests = each[(each >= 0).any(axis=-1)][..., None]
        if begin < end:
            yield GlobalAccess(
                matrix.name, "load", instruction, 32, matrix, (together // rows, 1),
                np.where(requests < 0, -1, requests * (1, 0)), 1, sweeps,
                limit="strides of scales are those of the call", origin=(begin // rows, 0),
                extents=(-(-end // rows) - begin // rows, matrix.shape[1]),
                part=f"rows from {begin} on" if begin else "",
                tiles=len(requests) // len(lanes),
            )  # fmt: skip


def scales_of_threads(
    problem: GemmProblem, config: Any, lanes: Mapping[str, np.ndarray]
) -> Iterator[GlobalAccess]:
    """Yield the loads of block scales from global memory by the threads that multiply.

    ``lanes``: as in `loads_of_scales`, by the name of the scales.
    """
    tiles = tiles_of(problem, config.tile)
    for name, rows in lanes.items():
        sweeps = tiles[1 - SCALES.index(name)]
        loads = loads_of_scales(problem, config, name, "ld.global", rows, sweeps)
        yield from by_k_tiles(loads, problem.k, config.tile[2])


def by_k_tiles(loads: Iterable[GlobalAccess], k: int, tile_k: int) -> Iterator[GlobalAccess]:
    """Yield loads of block scales with the executions of all k tiles in 128 of k."""
    tiles, each = -(-k // tile_k), BLOCK // tile_k
    whole, rest = divmod(tiles, each)
    for load in loads:
        down = load.region[0]
        if whole:
            yield replace(load, sweeps=load.sweeps * each, extents=(down, whole))
        if rest:
            origin = load.origin[0], whole
            part = ", ".join(filter(None, (load.part, "last 128 of k")))
            last = replace(load, sweeps=load.sweeps * rest, extents=(down, 1), part=part)
            yield replace(last, origin=origin) if whole else last


class Block(NamedTuple):
    """Elements of C whose operands a thread loads together, as in ``common/epilogue.cuh``.

    ``shape``: elements along M and N; ``steps``: from one element to the next.
    """

    shape: tuple[int, int]
    steps: tuple[int, int] = (1, 1)


def epilogue_loads(
    problem: GemmProblem, stores: Sequence[tuple[GlobalAccess, Block]]
) -> list[GlobalAccess]:
    """Return the loads of the epilogue's operands, and the stores of its results other than C.

    ``stores``: stores of C; a request stands for a block of every lane, with its coordinates. If a
    vector of C straddles the end, the block is one of its elements at a time.
    """
    loads = []
    epilogue = problem.epilogue
    tensors = zip((*epilogue.operands, *epilogue.results), problem.operands, strict=True)
    for (store, block), (spec, matrix) in product(stores, tensors):
        if spec.amax:
            continue
        shape = [
            extent if mode in spec.modes else 1
            for mode, extent in zip("MN", block.shape, strict=True)
        ]
        axis = "MN".index(spec.unit) if spec.unit else 0
        width = min(spec.vector, shape[axis]) if block.steps[axis] == 1 and spec.unit else 1
        strides = [width if mode == axis else 1 for mode in (0, 1)]
        first_elements = list(product(*map(range, (0, 0), shape, strides)))
        step = (np.array(first_elements) * block.steps)[:, None, :]
        first = np.asarray(store.coords).reshape(-1, 1, LANES, 2)
        coords = np.where(first < 0, -1, first + step).reshape(-1, LANES, 2)
        products = store.products
        if products is not None:
            products = np.repeat(products, len(first_elements), axis=0)
        written = spec in epilogue.results
        widest = _WIDEST // DTYPES[spec.dtype].bytes
        limit, least = "", None
        tail: Tail = "cut"
        if store.tail == "full" and store.vector[1] > 1:
            axis = store.axis if width == 1 else axis
            least = np.tile(store.vector[1] - step[:, 0, store.axis], len(first))
        elif store.tail == "elements":
            axis, tail = store.axis, "elements"
        if width < widest and "MN"[axis] in spec.modes:
            apart = "a thread's elements are not neighbours"
            limit = apart if width < spec.vector else "addresses and extents allow no wider vector"
        loads.append(
            replace(
                store, operand=spec.name, direction="store" if written else "load",
                instruction="st.global" if written else "ld.global",
                bits=8 * DTYPES[spec.dtype].bytes * width, matrix=matrix, coords=coords, axis=axis,
                limit=limit, fix="", tail=tail, products=products, least=least,
            )
        )  # fmt: skip
    return loads
