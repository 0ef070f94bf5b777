"""Test the analysis of global memory against hand-derived counts and brute force over bytes."""

import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cute_gemm.access import gmem
from cute_gemm.access.accesses import GlobalAccess
from cute_gemm.dtypes import DTYPES
from cute_gemm.problem.matrix import Matrix


def copy_coords(
    tile: tuple[int, int], axis: int, width: int, threads: tuple[int, int], fast: int
) -> np.ndarray:
    """Return coordinates of a thread grid over a tile: ``threads`` per mode, ``fast`` first."""
    steps = [1, 1]
    steps[axis] = width
    number = threads[0] * threads[1]
    index = np.arange(number)
    lane = np.stack([index % threads[fast], index // threads[fast]], axis=-1)
    lane = lane if fast == 0 else lane[:, ::-1]
    origin = lane * steps
    cover = [threads[0] * steps[0], threads[1] * steps[1]]
    requests = []
    for j in range(0, tile[1], cover[1]):
        for i in range(0, tile[0], cover[0]):
            requests.append((origin + (i, j)).reshape(-1, 32, 2))
    return np.concatenate(requests)


def access(
    matrix: Matrix,
    tile: tuple[int, int],
    coords: np.ndarray,
    *,
    axis: int = 0,
    width: int = 1,
    sweeps: int = 1,
) -> GlobalAccess:
    bits = 8 * width * matrix.element.bytes
    return GlobalAccess("A", "load", "ld.global", bits, matrix, tile, coords, axis, sweeps)


def brute(given: GlobalAccess, base: int) -> tuple[dict[str, dict[str, int]], bool]:
    """Return the counts by definition, for every matrix from its address."""
    starts = [base + i * given.matrix.batch_bytes for i in range(given.matrix.l)]
    each = [brute_matrix(given, start) for start in starts]
    sums = {
        kind: {key: sum(one[kind][key] for one, _ in each) for key in each[0][0][kind]}
        for kind in ("interior", "edge")
    }
    return {"first": each[0][0]["first"], **sums}, all(aligned for _, aligned in each)


def brute_matrix(given: GlobalAccess, base: int) -> tuple[dict[str, dict[str, int]], bool]:
    """Return the counts of one matrix, with loops over tiles, lanes and bytes."""
    matrix, region = given.matrix, given.region
    size = matrix.element.bytes
    elements = given.tail == "elements"
    width = given.width if elements else given.bits // 8 // size
    keys = ("tiles", "requests", "off", "lanes", "sectors", "ideal_sectors", "lines", "bytes")
    sums = {kind: dict.fromkeys((*keys, "l2_sectors"), 0) for kind in ("first", "interior", "edge")}
    aligned = True
    bypass = given.targets is not None and given.instruction == "cp.async" and given.bits == 128
    for i0 in range(0, region[0], given.tile[0]):
        for j0 in range(0, region[1], given.tile[1]):
            full = i0 + given.tile[0] <= region[0] and j0 + given.tile[1] <= region[1]
            kinds = ["interior" if full else "edge"] + (["first"] if (i0, j0) == (0, 0) else [])
            for kind in kinds:
                sums[kind]["tiles"] += 1
            for number, element in (
                (r, e) for r in range(len(given.coords)) for e in range(width if elements else 1)
            ):
                used: set[int] = set()
                pairs: set[tuple[int, int]] = set()
                lanes = 0
                for lane, corner in enumerate(given.coords[number].tolist()):
                    if corner[0] < 0:
                        continue
                    offsets, inside = [], 0
                    for v in range(width):
                        at = list(corner)
                        at[given.axis] += v
                        in_tile = at[0] < given.tile[0] and at[1] < given.tile[1]
                        at = [at[0] + i0, at[1] + j0]
                        inside += in_tile and at[0] < region[0] and at[1] < region[1]
                        at = [at[0] + given.origin[0], at[1] + given.origin[1]]
                        element_at = at[0] * matrix.stride[0] + at[1] * matrix.stride[1]
                        offsets.append(base + size * element_at)
                    if given.tail == "cut":
                        moved = offsets[:inside]
                    elif given.tail == "whole":
                        moved = offsets if inside else []
                    elif given.tail == "full":
                        moved = offsets if inside == width else []
                    else:
                        moved = offsets[element : element + 1] if element < inside < width else []
                    if moved and moved[0] % (given.bits // 8):
                        aligned = False
                    lanes += bool(moved)
                    for offset in moved:
                        used.update(range(offset, offset + size))
                    if moved and bypass:
                        target = int(given.targets[number, lane]) // 32
                        pairs.update((byte, target) for byte in range(moved[0], moved[-1] + size))
                for kind in kinds:
                    row = sums[kind]
                    row["requests"] += bool(used)
                    row["off"] += not used
                    row["lanes"] += lanes
                    row["bytes"] += len(used)
                    row["sectors"] += (
                        len({(b // 128, t) for b, t in pairs})
                        if bypass
                        else len({b // 32 for b in used})
                    )
                    row["l2_sectors"] += (
                        len({(b // 32, t) for b, t in pairs})
                        if bypass
                        else len({b // 32 for b in used})
                    )
                    row["lines"] += len({b // 128 for b in used})
                    row["ideal_sectors"] += -(-len(used) // 32)
    return sums, aligned


def check(given: GlobalAccess, base: int | None = None) -> gmem.GlobalAnalysis:
    found = gmem.analyze(given, base)
    residue = gmem.base_residue(given.matrix) if base is None else base
    expected, aligned = brute(given, residue)
    if given.targets is not None and not aligned:  # it would fault, so the counts are undefined
        assert not found.aligned
        return found
    assert found.tile == gmem.GlobalCounts(**expected["first"])
    assert found.interior == gmem.GlobalCounts(**expected["interior"])
    assert found.edge == gmem.GlobalCounts(**expected["edge"])
    assert found.launch == (found.interior + found.edge).times(given.sweeps)
    assert found.aligned == aligned
    return found


LANE = np.arange(32)


def warp(step: tuple[int, int]) -> np.ndarray:
    """Return one request in which lane i accesses i * step."""
    return (LANE[:, None] * np.array(step))[None]


@pytest.mark.parametrize(
    ("name", "stride", "step", "width", "sectors", "ideal", "lines"),
    [
        ("float32", (1, 1024), (1, 0), 1, 4, 4, 1),  # 32 floats in a row
        ("float32", (1, 1024), (0, 1), 1, 32, 4, 32),  # 4 KB apart
        ("float32", (1, 1024), (4, 0), 4, 16, 16, 4),  # float4 in a row
        ("float16", (1, 1024), (8, 0), 8, 16, 16, 4),  # 16 bytes of half in a row
        ("float16", (1, 1024), (0, 1), 8, 32, 16, 32),  # the same, strided
        ("float16", (1, 1024), (1, 0), 1, 2, 2, 1),
        ("float16", (1, 1024), (0, 1), 1, 32, 2, 32),
        ("int8", (1, 1024), (1, 0), 1, 1, 1, 1),
        ("float64", (1, 1024), (1, 0), 1, 8, 8, 2),
    ],
)
def test_one_request(name, stride, step, width, sectors, ideal, lines):
    matrix = Matrix("A", (1024, 1024), stride, name, 256)
    found = check_counts(access(matrix, (1024, 1024), warp(step), width=width))
    assert (found.sectors, found.ideal_sectors, found.lines) == (sectors, ideal, lines)
    assert found.bytes == 32 * width * DTYPES[name].bytes
    assert found.coalesced == (sectors == ideal)


def check_counts(given: GlobalAccess) -> gmem.GlobalCounts:
    found = gmem.analyze(given)
    assert found.coalesced == found.tile.coalesced
    assert found.interior == found.launch == found.tile
    return found.tile


def test_broadcast_counts_its_bytes_once():
    matrix = Matrix("A", (32, 32), (1, 32), "float32", 256)
    found = check(access(matrix, (32, 32), np.zeros((1, 32, 2), int)))
    assert (found.tile.sectors, found.tile.bytes, found.tile.lanes) == (1, 4, 32)
    assert not found.worst.cause and found.coalesced


def test_reference_layout_loads_k_major_half_at_an_eighth():
    # A reference sm80 kernel: threads (16,8) along MN, single halves for the other major.
    tile = (128, 32)
    mn = Matrix("A", (256, 64), (1, 256), "float16", 256)
    good = check(access(mn, tile, copy_coords(tile, 0, 8, (16, 8), 0), width=8))
    assert good.coalesced
    assert good.tile.sectors / good.tile.requests == 16
    k = Matrix("A", (256, 64), (64, 1), "float16", 256)
    bad = check(access(k, tile, copy_coords(tile, 0, 1, (16, 8), 0)))
    assert not bad.coalesced
    # 16 rows with 2 adjacent elements of 2 bytes: 4 of 32 bytes.
    assert bad.tile.efficiency == 0.125
    assert bad.worst.cause == "strided"
    assert (bad.worst.runs, bad.worst.run_bytes, bad.worst.pitch) == (16, 4, 128)


def test_k_major_rows_of_64_bytes_are_coalesced():
    tile = (128, 32)
    matrix = Matrix("A", (256, 64), (64, 1), "float16", 256)
    found = check(access(matrix, tile, copy_coords(tile, 1, 8, (32, 4), 1), axis=1, width=8))
    assert found.coalesced
    assert (found.tile.requests, found.tile.sectors) == (16, 256)


def test_contiguous_but_off_the_sector_boundary():
    matrix = Matrix("A", (64, 4), (1, 64), "float32", 4)
    found = check(access(matrix, (32, 4), warp((1, 0))))
    assert not found.coalesced
    assert found.worst.cause == "offset"
    assert (found.worst.sectors, found.worst.ideal_sectors, found.worst.lines) == (5, 4, 2)


def test_odd_leading_dimension_averages_over_tiles():
    matrix = Matrix("A", (64, 64), (1, 65), "float16", 256)
    found = check(access(matrix, (64, 1), warp((1, 0))))
    # The first column begins on a sector, most others do not.
    assert found.tile.coalesced and not found.coalesced


def test_edges_are_told_apart():
    tile = (64, 8)
    matrix = Matrix("A", (100, 20), (1, 112), "float16", 256)
    found = check(access(matrix, tile, copy_coords(tile, 0, 8, (8, 4), 0), width=8, sweeps=3))
    assert (found.interior.tiles, found.edge.tiles) == (2, 4)
    assert found.edge.off > 0
    assert found.coalesced
    assert found.launch.tiles == 18


def test_a_vector_that_straddles_the_edge_moves_the_elements_inside():
    matrix = Matrix("A", (13, 1), (1, 16), "float16", 256)
    found = check(access(matrix, (64, 1), warp((8, 0)), width=8))
    assert (found.tile.bytes, found.tile.lanes, found.tile.sectors) == (26, 2, 1)
    assert found.interior.tiles == 0
    assert found.coalesced


def test_a_request_without_lanes_is_counted_apart():
    matrix = Matrix("A", (32, 1), (1, 32), "float32", 256)
    coords = np.concatenate([warp((1, 0)), warp((1, 0)) + (32, 0), np.full((1, 32, 2), -1)])
    found = check(access(matrix, (64, 1), coords))
    assert (found.tile.requests, found.tile.off) == (1, 2)


def test_a_tile_without_lanes_makes_no_request():
    matrix = Matrix("A", (32, 1), (1, 32), "float32", 256)
    found = gmem.analyze(access(matrix, (64, 1), np.full((2, 32, 2), -1))).tile
    assert (found.requests, found.off) == (0, 2)


def test_a_batch_begins_where_its_first_matrix_does():
    """Test a first matrix on a sector, with a lower alignment of all matrices."""
    matrix = Matrix("A", (32, 1), (1, 32), "float32", 4, l=2, batch_stride=1, first_alignment=256)
    found = check(access(matrix, (32, 1), warp((1, 0))))
    assert (found.tile.sectors, found.launch.sectors) == (4, 4 + 5)
    alone = check(access(replace(matrix, first_alignment=0), (32, 1), warp((1, 0))))
    assert (alone.tile.sectors, alone.launch.sectors) == (5, 5 + 5)


def test_an_unaligned_vector_is_a_finding():
    matrix = Matrix("A", (64, 4), (1, 64), "float32", 4)
    found = check(access(matrix, (64, 4), warp((2, 0)), width=2))
    assert not found.aligned and not found.coalesced
    assert check(access(matrix, (64, 4), warp((2, 0)), width=2), base=8).aligned
    # Also if the sectors are minimal: one lane, bytes 1 to 4.
    one = Matrix("A", (4, 1), (1, 4), "int8", 1)
    lane = np.full((1, 32, 2), -1)
    lane[0, 0] = 0
    found = check(access(one, (4, 1), lane, width=4))
    assert found.tile.sectors == found.tile.ideal_sectors and not found.coalesced


@pytest.mark.parametrize("shape", [(0, 8), (8, 0), (0, 0), "no matrices"])
def test_an_empty_matrix_is_never_touched(shape):
    matrix = Matrix("A", shape, (1, 8), "float32", 256)
    if shape == "no matrices":
        matrix = Matrix("A", (8, 8), (1, 8), "float32", 256, l=0)
    found = gmem.analyze(access(matrix, (8, 8), warp((1, 0))))
    assert found.launch == found.tile == gmem.GlobalCounts()
    assert found.worst is None and found.coalesced and found.launch.efficiency == 1


def test_nonsense_is_refused():
    matrix = Matrix("A", (64, 64), (64, 1), "float16", 256)
    with pytest.raises(ValueError, match="operand A: bits is 24"):
        gmem.analyze(GlobalAccess("A", "load", "x", 24, matrix, (8, 8), warp((1, 0)), 1, 1))
    with pytest.raises(ValueError, match="vector of 8 elements runs along mode 0.* stride is 64"):
        gmem.analyze(access(matrix, (8, 8), warp((1, 0)), axis=0, width=8))


def test_the_time_does_not_grow_and_totals_are_not_bounded():
    tile = (128, 64)
    coords = copy_coords(tile, 0, 1, (32, 4), 0)
    side = 2**31 - 1
    matrix = Matrix("A", (side, side), (1, side), "float16", 2)
    began = time.process_time()
    found = gmem.analyze(access(matrix, tile, coords, sweeps=2**24))
    assert time.process_time() - began < 2  # a loop over the tiles would take years
    assert found.launch.bytes == side * side * 2 * 2**24  # beyond 2**63


@given(
    count=st.integers(0, 300), step=st.integers(0, 10**12), modulus=st.sampled_from([1, 32, 128])
)
def test_residue_histogram(count, step, modulus):
    expected = np.zeros(modulus, int)
    for i in range(count):
        expected[i * step % modulus] += 1
    assert gmem.residue_histogram(count, step, modulus).tolist() == expected.tolist()


@given(
    st.lists(st.tuples(st.integers(0, 600), st.integers(1, 40)), min_size=1, max_size=32),
    st.sampled_from([1, 32, 128]),
)
def test_covered_and_runs(lanes, granule):
    lanes.sort()
    starts, lengths = (np.array(column) for column in zip(*lanes, strict=True))
    touched = {b for start, length in lanes for b in range(start, start + length)}
    assert gmem.covered(starts, lengths, granule) == len({b // granule for b in touched})
    found = gmem.runs(starts, lengths)
    assert {b for start, length in found for b in range(start, start + length)} == touched
    assert all(a + n < b for (a, n), (b, _) in zip(found, found[1:], strict=False))


@st.composite
def accesses(draw: st.DrawFn) -> GlobalAccess:
    name = draw(st.sampled_from(["int8", "float16", "float32", "float64"]))
    unit = draw(st.integers(0, 1))
    shape = (draw(st.integers(1, 40)), draw(st.integers(1, 40)))
    ld = shape[unit] + draw(st.integers(0, 20))
    stride = (1, ld) if unit == 0 else (ld, 1)
    alignment = draw(st.sampled_from([1, 2, 4, 8, 16, 32, 64, 128, 256]))
    alignment = max(alignment, DTYPES[name].bytes)
    batch, step = draw(st.integers(1, 3)), draw(st.integers(0, 300))
    matrix = Matrix("A", shape, stride, name, alignment, l=batch, batch_stride=step)
    width = draw(st.sampled_from([w for w in (1, 2, 4, 8) if w * DTYPES[name].bytes <= 16]))
    tile = (draw(st.integers(1, 4)) * 8, draw(st.integers(1, 4)) * 8)
    axis = unit if width > 1 else draw(st.integers(0, 1))
    requests = draw(st.integers(1, 3))
    flat = draw(
        st.lists(st.integers(-3, tile[0] * tile[1] - 1), min_size=32, max_size=32 * requests)
    )
    flat = np.array(flat[: len(flat) // 32 * 32])
    coords = np.stack([flat % tile[0], flat // tile[0]], axis=-1)
    coords[:, axis] -= coords[:, axis] % width
    coords[flat < 0] = -1
    sweeps = draw(st.integers(1, 5))
    coords = coords.reshape(-1, 32, 2)
    plain = access(matrix, tile, coords, axis=axis, width=width, sweeps=sweeps)
    origin = tuple(draw(st.integers(0, extent - 1)) for extent in shape)
    extents = tuple(draw(st.integers(1, e - o)) for e, o in zip(shape, origin, strict=True))
    region = replace(plain, origin=origin, extents=extents)
    if width > 1 and draw(st.booleans()):
        bits = 8 * DTYPES[name].bytes
        return replace(region, tail="elements", bits=bits, width=width)
    if plain.bits == 128 and draw(st.booleans()):
        chunks = draw(st.lists(st.integers(0, 127), min_size=32, max_size=32))
        targets = np.tile(16 * np.array(chunks), (len(coords), 1))
        region = replace(region, instruction="cp.async", targets=targets)
    return replace(region, tail=draw(st.sampled_from(["cut", "whole", "full"])))


@settings(max_examples=40, deadline=None)
@given(given_access=accesses(), base=st.none() | st.integers(0, 127))
def test_any_access_against_bytes_in_sets(given_access, base):
    check(given_access, base)


@settings(max_examples=25, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 40), st.integers(1, 40)), pad=st.integers(0, 9),
    unit=st.integers(0, 1), along=st.integers(0, 1), width=st.sampled_from([1, 2, 8]),
    alignment=st.sampled_from([2, 4, 16, 256]),
)  # fmt: skip
@example(shape=(33, 17), pad=0, unit=0, along=0, width=1, alignment=2)
@example(shape=(31, 40), pad=1, unit=1, along=0, width=1, alignment=256)
def test_tiled_copies_against_a_loop_over_tiles(shape, pad, unit, along, width, alignment):
    stride = (1, shape[0] + pad) if unit == 0 else (shape[1] + pad, 1)
    matrix = Matrix("B", shape, stride, "bfloat16", alignment)
    along = along if width == 1 else unit
    threads = (2, 16) if along == 1 else (16, 2)
    tile = (16, 16)
    coords = copy_coords(tile, unit, width, threads, along)
    check(access(matrix, tile, coords, axis=unit, width=width, sweeps=2))


def test_sixteen_byte_copies_take_the_sectors_that_were_counted():
    """Compare single requests of cp.async.cg with counts of Nsight Compute on an H200."""
    path = Path(__file__).parents[1] / "data" / "h200_requests.json"
    rows = [row for row in json.loads(path.read_text()) if row["kind"] == "cp.async.128"]
    differ = 0
    for row in rows:
        coords = np.stack([row["global"], np.zeros(32, np.int64)], axis=-1)[None]
        matrix = Matrix("A", (2**20, 1), (1, 2**20), "int8", 256)
        found = gmem.analyze(
            replace(
                access(matrix, (2**20, 1), coords, width=16),
                instruction="cp.async",
                targets=np.array([row["shared"]]),
            )
        )
        assert found.tile.sectors == row["sectors"], row
        # L2 may merge two sectors that arrive together, but never sends more.
        assert 0 <= found.tile.l2_sectors - row["l2_sectors"] <= 2
        differ += found.tile.sectors != found.tile.l2_sectors
    assert len(rows) > 60 and differ > 20


# -- fast code gives right results ----------------------------------------------------------------


def test_residues_add_up_few_or_many() -> None:
    rng = np.random.default_rng(0)
    for few in (1, 3, 8, 9, 128):
        a = rng.integers(0, 1000, (5, 128))
        b = np.zeros(128, np.int64)
        b[rng.choice(128, few, replace=False)] = rng.integers(1, 1000, few)
        for first in (a, a.astype(object) * 2**60):
            found = gmem.convolve(first, b)
            for row, sums in zip(first, found, strict=True):
                expected = [0] * 128
                for i, j in np.ndindex(128, 128):
                    expected[(i + j) % 128] += int(row[i]) * int(b[j])
                assert sums.tolist() == expected
    assert gmem.convolve(a * 2**40, b * 2**40).tolist() == (
        (gmem.convolve(a, b).astype(object) * 2**80).tolist()
    )
    one = gmem.one_residue(0)  # the least product beyond int64
    assert gmem.convolve(one * 2**31, one * 2**32).tolist()[0] == 2**63


def test_distinct_rows_come_in_order() -> None:
    rng = np.random.default_rng(1)
    for count, columns, values in ((1, 3, 2), (50, 2, 3), (200, 70, 2), (64, 5, 1)):
        rows = rng.integers(-1, values, (count, columns))
        rows[::3, 1:] = 0
        distinct, place = gmem._ordered(rows)
        expected = np.unique(rows, axis=0, return_inverse=True)
        np.testing.assert_array_equal(distinct, expected[0])
        np.testing.assert_array_equal(place, expected[1].reshape(-1))


@pytest.mark.parametrize(("count", "values"), [(0, 1), (1, 5), (40, 1), (40, 2), (300, 9)])
def test_distinct_rows_are_told_apart(count: int, values: int) -> None:
    rows = np.random.default_rng(1).integers(0, values, (count, 3))
    distinct, which = gmem.distinct_rows(rows)
    np.testing.assert_array_equal(distinct[which], rows)
    assert len(distinct) == len({tuple(row) for row in rows.tolist()})


def test_sums_of_huge_launches_are_exact() -> None:
    weights, values = np.array([[2**61, 3]]), np.array([[2**10, 7]])
    assert gmem.total(weights, values) == 2**71 + 21
    assert gmem.total(np.array([[2**60]]), np.array([[8]])) == 2**63  # the least beyond int64
    assert gmem.total(weights.astype(object) * 4, values) == 2**73 + 84
    assert gmem.total(np.array([[5, 0, 2]]), np.array([[3]])) == 21


@pytest.mark.parametrize("ld", [128, 96, 129])
def test_tiles_that_lie_as_the_first_does_are_counted_once(ld: int, monkeypatch) -> None:
    matrix = Matrix("A", (96, 40), (1, ld), "float32", 256)
    found = access(matrix, (32, 8), copy_coords((32, 8), 0, 1, (32, 4), 0))
    quick = gmem.analyze(found)
    monkeypatch.setattr(np, "array_equal", lambda *_: False)
    assert gmem.analyze(found) == quick
    calls, evaluate = [], gmem._evaluate
    monkeypatch.undo()
    monkeypatch.setattr(gmem, "_evaluate", lambda *given: calls.append(1) or evaluate(*given))
    assert gmem.analyze(found) == quick
    assert len(calls) == (1 if ld % 32 == 0 else 2)
