"""Test bulk tensor copies against brute force over bytes, known layouts and the driver's rules."""

import time
from dataclasses import replace
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cute_gemm.access import gmem, tma
from cute_gemm.access.accesses import TmaAccess
from cute_gemm.problem.matrix import Matrix


def k_major(rows: int, k: int, name: str = "float16", ld: int = 0, alignment: int = 256) -> Matrix:
    return Matrix("A", (rows, k), (ld or k, 1), name, alignment)


def load(matrix: Matrix, box: tuple[int, int], **options: object) -> TmaAccess:
    return TmaAccess("A", "load", matrix, box, **{"sweeps": 1, **options})


def brute(access: TmaAccess, base: int) -> dict[str, dict[str, int]]:
    """Return the counts by definition, for every matrix from its address."""
    starts = [base + i * access.matrix.batch_bytes for i in range(access.matrix.l)]
    first, *others = [brute_matrix(access, start) for start in starts]
    for kind in ("interior", "edge"):
        for key in first[kind]:
            first[kind][key] += sum(one[kind][key] for one in others)
    return first


def brute_matrix(access: TmaAccess, base: int) -> dict[str, dict[str, int]]:
    """Return the counts of one matrix, with loops over boxes, rows and bytes."""
    matrix, (b0, b1) = access.matrix, access.box
    size, unit = matrix.element.bytes, matrix.unit
    keys = ("tiles", "requests", "sectors", "l2_sectors", "ideal_sectors", "lines", "bytes")
    sums = {kind: dict.fromkeys(keys, 0) for kind in ("first", "interior", "edge")}
    starts: list[list[int]] = []
    for mode, (extent, side) in enumerate(zip(matrix.shape, access.box, strict=True)):
        pitch = access.pitch if access.pitch and mode == unit else side
        inside = range(0, pitch, side)
        starts.append([t + j for t in range(0, extent, pitch) for j in inside if t + j < extent])
    for i0 in starts[0]:
        for j0 in starts[1]:
            full = i0 + b0 <= matrix.shape[0] and j0 + b1 <= matrix.shape[1]
            rows: dict[int, set[int]] = {}
            for i in range(i0, min(i0 + b0, matrix.shape[0])):
                for j in range(j0, min(j0 + b1, matrix.shape[1])):
                    at = base + size * (i * matrix.stride[0] + j * matrix.stride[1])
                    rows.setdefault(j if unit == 0 else i, set()).update(range(at, at + size))
            used = sum(map(len, rows.values()))
            for kind in [*(["first"] if i0 == j0 == 0 else []), "interior" if full else "edge"]:
                row = sums[kind]
                row["tiles"] += 1
                row["requests"] += 1
                row["bytes"] += used
                row["ideal_sectors"] += -(-used // 32)
                sectors = sum(len({b // 32 for b in run}) for run in rows.values())
                row["sectors"] += sectors
                row["l2_sectors"] += sectors
                row["lines"] += sum(len({b // 128 for b in run}) for run in rows.values())
    return sums


@st.composite
def accesses(draw: st.DrawFn) -> TmaAccess:
    shape = (draw(st.integers(1, 40)), draw(st.integers(1, 40)))
    unit = draw(st.integers(0, 1))
    ld = shape[unit] + draw(st.integers(0, 9))
    name = draw(st.sampled_from(["int8", "float16", "float32", "float64"]))
    stride = (1, ld) if unit == 0 else (ld, 1)
    batch, step = draw(st.integers(1, 3)), draw(st.integers(0, 99))
    matrix = Matrix("A", shape, stride, name, 256, l=batch, batch_stride=step)
    box = (draw(st.integers(1, 20)), draw(st.integers(1, 20)))
    beyond = st.tuples(*(st.integers(extent, extent + 40) for extent in shape))
    pitch = draw(st.just(0) | st.integers(box[matrix.unit], box[matrix.unit] + 30))
    return load(
        matrix, box, sweeps=draw(st.integers(1, 5)), multicast=draw(st.integers(1, 3)),
        extents=draw(st.none() | beyond), pitch=pitch,
    )  # fmt: skip


@settings(max_examples=120, deadline=None)
@given(accesses(), st.integers(0, 127))
def test_counts_are_those_of_bytes_in_sets(access, base):
    found, expected = tma.analyze(access, base), brute(access, base)
    assert found.tile == gmem.GlobalCounts(**expected["first"])
    assert found.interior == gmem.GlobalCounts(**expected["interior"])
    assert found.edge == gmem.GlobalCounts(**expected["edge"])
    fetches = -(-access.sweeps // access.multicast)
    extents = access.extents or access.matrix.shape
    steps = list(access.box)
    unit = access.matrix.unit
    steps[unit] = access.pitch or steps[unit]
    both = [len(range(0, extent, step)) for extent, step in zip(extents, steps, strict=True)]
    boxes = access.matrix.l * prod(both) * len(range(0, steps[unit], access.box[unit]))
    inside = found.interior + found.edge
    assert found.launch == replace(inside.times(fetches), requests=boxes * fetches)
    assert boxes == inside.requests or access.extents or access.pitch


def test_a_box_of_lines():
    found = tma.analyze(load(k_major(4096, 4096), (128, 64), sweeps=16, swizzle=128))
    assert found.tile == gmem.GlobalCounts(
        tiles=1, requests=1, sectors=512, l2_sectors=512, ideal_sectors=512, lines=128, bytes=16384
    )
    assert found.coalesced and found.judged.efficiency == 1 and found.edge.tiles == 0
    assert found.launch.requests == 32 * 64 * 16
    assert found.legal and found.findings == ()


def test_a_multicast_is_fetched_once_and_written_everywhere():
    alone = tma.analyze(load(k_major(512, 512), (128, 64), sweeps=4, swizzle=128))
    shared = tma.analyze(load(k_major(512, 512), (128, 64), sweeps=4, swizzle=128, multicast=2))
    assert 2 * shared.launch.sectors == alone.launch.sectors
    assert 2 * shared.launch.requests == alone.launch.requests
    assert shared.arriving == alone.arriving == 4 * 512 * 512 * 2 // 32


def test_bytes_outside_the_matrix_are_not_fetched_and_written_as_zeros():
    found = tma.analyze(load(k_major(100, 72), (64, 64), swizzle=128))
    assert (found.interior.tiles, found.edge.tiles) == (1, 3)
    assert found.launch.bytes == 100 * 72 * 2
    assert found.arriving > found.launch.sectors


def test_a_box_outside_of_the_matrix_is_an_instruction_and_asks_for_nothing():
    inside = tma.analyze(load(k_major(100, 72), (64, 64), swizzle=128))
    beyond = tma.analyze(load(k_major(100, 72), (64, 64), swizzle=128, extents=(256, 128)))
    assert beyond.launch == replace(inside.launch, requests=8)
    assert (beyond.interior, beyond.edge) == (inside.interior, inside.edge)
    # 100 rows of 128 bytes, of which every other begins within a sector; 100 rows of 16 bytes with
    # trailing zeros; and 2 x 28 rows of zeros.
    assert inside.arriving == 50 * (4 + 5) + 100 * (1 + 4) + 56 * 4
    assert beyond.arriving - inside.arriving == 4 * 64 * 64 * 2 // 32


def test_rows_off_their_sectors_are_told_from_rows_too_short():
    off = tma.analyze(load(k_major(256, 256, ld=264), (64, 64), swizzle=128))
    assert not off.coalesced and off.legal
    assert off.tile.sectors == 32 * 4 + 32 * 5  # every second row begins 16 bytes into a sector
    assert "leading dimension 264 x 2 bytes" in off.findings[0]
    short = tma.analyze(load(k_major(256, 256), (64, 8)))
    assert (short.tile.sectors, short.tile.ideal_sectors) == (64, 32)
    assert short.judged.efficiency == 0.5
    assert "its rows of 16 bytes do not fill sectors" in short.findings[0]


@pytest.mark.parametrize(
    ("matrix", "box", "swizzle", "printed", "ways"),
    [
        (k_major(256, 256), (128, 64), 128, "Sw<3,3,3> o 0 o (128,64):(64,1)", 1),
        (k_major(256, 256), (128, 64), 0, "(128,64):(64,1)", 8),
        (k_major(256, 256), (128, 32), 64, "Sw<2,3,3> o 0 o (128,32):(32,1)", 1),
        (k_major(256, 256), (128, 32), 0, "(128,32):(32,1)", 4),
        (k_major(256, 256), (128, 16), 32, "Sw<1,3,3> o 0 o (128,16):(16,1)", 1),
        (k_major(256, 256), (128, 8), 0, "(128,8):(8,1)", 1),
        (k_major(256, 256), (128, 32), 128, "Sw<3,3,3> o 0 o (128,32):(64,1)", 1),
        (k_major(256, 256, "int8"), (64, 128), 128, "Sw<3,4,3> o 0 o (64,128):(128,1)", 1),
        (k_major(256, 256, "float32"), (64, 32), 128, "Sw<3,2,3> o 0 o (64,32):(32,1)", 1),
        (k_major(256, 256, "float64"), (64, 16), 128, "Sw<3,1,3> o 0 o (64,16):(16,1)", 1),
        (
            Matrix("A", (256, 256), (1, 256), "float16", 256),
            *((64, 32), 128, "Sw<3,3,3> o 0 o (64,32):(1,64)", 1),
        ),
    ],
)
def test_what_is_written_to_shared_memory(matrix, box, swizzle, printed, ways):
    found = tma.analyze(load(matrix, box, swizzle=swizzle))
    assert (str(found.layout), found.ways) == (printed, ways)
    assert found.conflict_free == (ways == 1)
    assert any("wavefronts where 1 would do" in text for text in found.findings) == (ways > 1)


def test_a_conflict_names_the_swizzle_that_fixes_it():
    access = load(k_major(256, 256), (128, 64))
    (text,) = tma.analyze(access).findings
    assert text.endswith("rows of 128 bytes, swizzle 128, take 1.")
    assert tma.analyze(replace(access, swizzle=128)).findings == ()


def test_rows_shorter_than_the_span_are_padded():
    found = tma.analyze(load(k_major(256, 256), (128, 32), swizzle=128))
    assert "padded" in found.findings[0]


@pytest.mark.parametrize(
    ("access", "word"),
    [
        (load(k_major(64, 64, alignment=8), (32, 64), swizzle=128), "aligned to 8"),
        (load(k_major(64, 64, ld=65), (32, 64), swizzle=128), "130; pad it to 72"),
        (load(k_major(64, 64, ld=2**39), (32, 64), swizzle=128), f"{2**40}; split the matrix"),
        (
            load(replace(k_major(64, 64), l=2, batch_stride=2**39), (32, 64), swizzle=128),
            f"the batch stride {2**39} x 2 bytes is {2**40}; split the matrix",
        ),
        (load(k_major(512, 64), (512, 64), swizzle=128), "between 1 and 256"),
        (load(k_major(64, 64), (32, 12)), "multiples of 16 bytes, and those of (32, 12) are 24"),
        (load(k_major(64, 64), (32, 64), swizzle=64), "no longer than the span"),
        (
            TmaAccess("C", "store", k_major(64, 64), (32, 64), 1, swizzle=128, multicast=2),
            "cannot be multicast",
        ),
    ],
)
def test_what_the_driver_refuses_is_a_finding(access, word):
    found = tma.analyze(access)
    assert not found.legal
    assert any(word in text for text in found.findings)


@pytest.mark.parametrize(
    ("step", "words"),
    [(0, ""), (64 * 64, ""), (4100, "the batch stride 4100 x 2 bytes is 8200; pad it to 4104.")],
)
def test_a_batch_is_a_third_mode_of_the_map(step, words):
    alignment = 2 * step & -2 * step or 256
    matrix = replace(
        k_major(64, 64), l=3, batch_stride=step, alignment=alignment, first_alignment=256
    )
    found = tma.analyze(load(matrix, (32, 64), swizzle=128))
    assert found.legal == (not words)
    assert sum(words in text for text in found.findings) == bool(words)
    assert not any("base address" in text for text in found.findings[:1])


def test_the_largest_legal_box_is_legal():
    assert tma.analyze(load(k_major(256, 64, ld=72), (256, 64), swizzle=128)).legal
    assert tma.analyze(load(k_major(1, 64, ld=65), (1, 64), swizzle=128)).legal  # unused stride
    assert tma.analyze(load(k_major(64, 64, ld=2**39 - 8), (32, 64), swizzle=128)).legal


@pytest.mark.parametrize("options", [{"swizzle": 16}, {"multicast": 0}, {"sweeps": -1}])
def test_what_is_no_access(options):
    with pytest.raises(ValueError, match="expected"):
        tma.analyze(load(k_major(64, 64), (32, 64), **options))


def test_time_and_totals_do_not_depend_on_the_extents():
    start = time.perf_counter()
    found = tma.analyze(load(k_major(2**31, 2**31), (128, 64), sweeps=2**24, swizzle=128))
    assert time.perf_counter() - start < 1
    assert found.launch.bytes == 2**62 * 2 * 2**24


def test_an_empty_matrix_moves_nothing():
    for matrix in (k_major(0, 64), replace(k_major(64, 64), l=0)):
        found = tma.analyze(load(matrix, (32, 64), swizzle=128))
        assert found.launch == found.tile == gmem.GlobalCounts() and found.coalesced
