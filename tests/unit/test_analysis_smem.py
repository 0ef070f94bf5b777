"""Test the analysis of shared memory against hand-derived counts and brute force over words."""

import json
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cute_gemm as cg
from cute_gemm.access import smem
from cute_gemm.access.accesses import SharedAccess

LANE = np.arange(32)


def access(instruction: str, bits: int, offsets: np.ndarray, executions: int = 1) -> SharedAccess:
    direction = "store" if "st" in instruction else "load"
    return SharedAccess("A", direction, instruction, bits, offsets, executions)


def once(instruction: str, bits: int, offsets: np.ndarray) -> smem.SharedCounts:
    return smem.analyze(access(instruction, bits, np.asarray(offsets))).once


def swizzle(offset: np.ndarray, bits: int, base: int, shift: int, size: int = 2) -> np.ndarray:
    """Apply CuTe's Swizzle<bits, base, shift> to byte offsets of elements of ``size`` bytes."""
    element = offset // size
    return (element ^ ((element >> shift) & (((1 << bits) - 1) << base))) * size


def rows(pitch: int, row_bytes: int = 16) -> np.ndarray:
    """Return row offsets of ldmatrix.x4 on a 16 x 16 tile of halves: matrices down, then across."""
    return (LANE % 16) * pitch + (LANE // 16) * row_bytes


def test_ldmatrix_on_a_128_byte_pitch():
    plain = once("ldmatrix.x4", 128, rows(128))
    assert (plain.wavefronts, plain.ideal_wavefronts, plain.conflicts) == (32, 4, 28)
    fixed = once("ldmatrix.x4", 128, swizzle(rows(128), 3, 3, 3))
    assert (fixed.wavefronts, fixed.ideal_wavefronts, fixed.conflicts) == (4, 4, 0)


@pytest.mark.parametrize(("instruction", "number"), [("x1", 1), ("x2", 2), ("x4", 4)])
@pytest.mark.parametrize("name", ["ldmatrix", "stmatrix"])
@pytest.mark.parametrize("suffix", ["", ".trans"])
def test_matrices_beyond_the_instruction_are_ignored(name, instruction, number, suffix):
    found = once(f"{name}.{instruction}{suffix}", 32 * number, LANE * 16)
    assert (found.wavefronts, found.lanes, found.bytes) == (number, 8 * number, 128 * number)
    assert smem.matrices(f"{name}.sync.aligned.m8n8.{instruction}{suffix}.shared.b16") == number


def test_known_good_layouts_of_half():
    # K-major, bK = 32: Swizzle<2,3,3> on (8,32):(32,1); rows of 64 bytes.
    assert once("ldmatrix.x4", 128, swizzle(rows(64), 2, 3, 3)).conflicts == 0
    assert once("ldmatrix.x4", 128, rows(64)).wavefronts == 16
    # 16-byte stores of threads (32,4):(4,1), values (1,8).
    store = (LANE // 4) * 64 + (LANE % 4) * 16
    assert once("cp.async", 128, swizzle(store, 2, 3, 3)).conflicts == 0
    # MN-major: Swizzle<3,3,3> on (64,8):(1,64), transposing ldmatrix: a row is 8 elements along M.
    trans = (LANE % 8) * 128 + (LANE // 8) * 16
    assert once("ldmatrix.x4.trans", 128, swizzle(trans, 3, 3, 3)).conflicts == 0
    assert once("ldmatrix.x4.trans", 128, trans).wavefronts == 32


def test_reference_swizzle_is_two_way_conflicted():
    # Swizzle<3,3,4> on (32,8):(1,32), tiled to (128,32): 64 bytes per k, 8 k's in 512 bytes.
    def at(m, k):
        return swizzle((m % 32) * 2 + (k % 8) * 64 + (m // 32) * 512 + (k // 8) * 2048, 3, 3, 4)

    load = smem.analyze(access("ldmatrix.x4.trans", 128, at(8 * (LANE // 8), LANE % 8)))
    assert (load.once.wavefronts, load.once.conflicts, load.ways) == (8, 4, 2)
    # Stores of threads (16,8) with 8-wide values.
    store = smem.analyze(access("cp.async", 128, at(8 * (LANE % 16), LANE // 16)))
    assert (store.once.conflicts, store.ways) == (4, 2)


@pytest.mark.parametrize(
    ("bits", "offsets", "wavefronts", "ideal"),
    [
        (32, LANE * 4, 1, 1),
        (32, LANE * 8, 2, 1),
        (32, LANE * 128, 32, 1),
        (32, LANE * 132, 1, 1),
        (32, LANE * 0, 1, 1),  # broadcast
        (32, (LANE % 2) * 128, 2, 1),  # two words of one bank
        (16, LANE * 2, 1, 1),  # two lanes per word
        (8, LANE, 1, 1),
        (16, LANE * 128, 32, 1),
        (64, LANE * 8, 2, 2),
        (64, LANE * 128, 32, 2),
        (128, LANE * 16, 4, 4),
        (128, LANE * 32, 8, 4),
        (128, LANE * 128, 32, 4),
    ],
)
@pytest.mark.parametrize("instruction", ["ld.shared", "st.shared"])
def test_one_request(instruction, bits, offsets, wavefronts, ideal):
    found = once(instruction, bits, offsets)
    assert (found.wavefronts, found.ideal_wavefronts) == (wavefronts, ideal)


def test_inactive_lanes_and_requests():
    offsets = np.stack([np.where(LANE < 8, LANE * 16, -1), np.full(32, -1)])
    found = smem.analyze(access("st.shared", 128, offsets, executions=7))
    assert (found.once.requests, found.once.off, found.once.lanes) == (1, 1, 8)
    assert (found.once.wavefronts, found.once.bytes) == (1, 128)
    assert found.launch == found.once.times(7)
    assert found.conflict_free


def test_no_request():
    found = smem.analyze(access("st.shared", 128, np.zeros((0, 32), int)))
    assert found.once == smem.SharedCounts() and found.ways == 0


def test_the_worst_request_is_named():
    found = smem.analyze(access("ld.shared", 32, np.stack([LANE * 4, LANE * 8, LANE * 4])))
    assert (found.worst_wavefronts, found.worst_ideal, found.ways) == (2, 1, 2)
    assert not found.conflict_free


def test_nonsense_is_refused():
    with pytest.raises(ValueError, match="does not say .x1, .x2 or .x4"):
        once("ldmatrix", 128, LANE * 16)
    with pytest.raises(ValueError, match="bits is 48"):
        once("ld.shared", 48, LANE * 16)


def brute(instruction: str, bits: int, offsets: list[int]) -> tuple[int, int, int]:
    """Return wavefronts, the ideal, and bytes of distinct words of the phases, by definition."""
    number = smem.matrices(instruction)
    size = 16 if number else bits // 8
    group = 8 if number or bits == 128 else 16 if bits == 64 else 32
    lanes = offsets[: 8 * number] if number else offsets
    if instruction == "ld.shared" and bits >= 64:
        for partner in (1, 2):
            pairs = [(offsets[i], offsets[i ^ partner]) for i in range(32)]
            if all(a == b or a < 0 or b < 0 for a, b in pairs):
                group = 32 if bits == 64 else 16
    wavefronts = ideal = words_all = 0
    for begin in range(0, len(lanes), group):
        banks: dict[int, set[int]] = defaultdict(set)
        for offset in lanes[begin : begin + group]:
            if offset >= 0:
                for byte in range(offset, offset + size):
                    banks[byte // 4 % 32].add(byte // 4)
        wavefronts += max((len(words) for words in banks.values()), default=0)
        words = sum(len(words) for words in banks.values())
        ideal += -(-words // 32)
        words_all += words
    return wavefronts, ideal, 4 * words_all


@settings(max_examples=60, deadline=None)
@given(
    what=st.sampled_from(
        [("ldmatrix.x4", 128), ("ldmatrix.x2.trans", 64), ("stmatrix.x1", 32)]
        + [(name, bits) for name in ("ld.shared", "st.shared") for bits in (8, 16, 32, 64, 128)]
    ),
    span=st.sampled_from([3, 16, 64, 1000]),
    data=st.data(),
)
def test_any_request_against_words_in_sets(what, span, data):
    instruction, bits = what
    size = 16 if smem.matrices(instruction) else bits // 8
    lane = st.integers(-1, span)
    warps = data.draw(st.lists(st.lists(lane, min_size=32, max_size=32), min_size=1, max_size=3))
    offsets = [[size * x if x >= 0 else -1 for x in lanes] for lanes in warps]
    share = data.draw(st.sampled_from([0, 1, 2]))  # lanes that share a vector with a neighbor
    offsets = [[lanes[i & ~share] for i in range(32)] for lanes in offsets]
    expected = [brute(instruction, bits, lanes) for lanes in offsets]
    found = once(instruction, bits, np.array(offsets))
    assert found.wavefronts == sum(row[0] for row in expected)
    assert found.ideal_wavefronts == sum(row[1] for row in expected)
    assert found.bytes == sum(row[2] for row in expected)


def counted(kinds: tuple[str, ...]) -> list[dict]:
    """Return requests of single warps with counts of Nsight Compute on an H200."""
    path = Path(__file__).parents[1] / "data" / "h200_requests.json"
    return [row for row in json.loads(path.read_text()) if row["kind"] in kinds]


@pytest.mark.parametrize("bits", [64, 128])
def test_loads_that_share_vectors_take_what_was_counted(bits):
    rows = counted((f"ld.shared.{bits}",))
    for row in rows:
        found = once("ld.shared", bits, np.array([row["shared"]]))
        assert found.conflicts == row["conflicts"], row
    assert len(rows) > 40


@pytest.mark.parametrize("bits", [32, 64])
def test_narrow_copies_take_what_was_counted(bits):
    rows = counted((f"cp.async.{bits}",))
    for row in rows:
        targets, sources = (np.array([row[side]]) for side in ("shared", "global"))
        assert smem.copy_wavefronts(bits, targets, sources).sum() == row["wavefronts"], row
    assert len(rows) > 40


def test_copies_beside_zeros_conflict_as_was_counted():
    rows = counted(("cp.async.128.zeros",))
    for row in rows:
        targets, sources = (np.array([row[side]]) for side in ("shared", "global"))
        wavefronts, conflicts = smem.copy_counts(128, targets, sources)
        assert (wavefronts.sum(), conflicts.sum()) == (0, row["conflicts"]), row
    assert len(rows) > 60 and sum(row["conflicts"] > 0 for row in rows) > 30


@pytest.mark.parametrize(
    ("k", "lda", "conflicts"),
    [
        (512, 760, 0), (520, 760, 0), (528, 760, 376), (536, 760, 376), (544, 760, 0),
        (520, 768, 376),
    ],
)  # fmt: skip
def test_launches_whose_last_k_tile_has_zeros(k, lda, conflicts):
    """Compare with counts of Nsight Compute for ``thin`` on an H200."""
    plan = cg.plan(
        "TT", m=752, n=11, k=k, lda=lda, dtype="bfloat16", kernel="thin", order="C",
        arch="sm_90a", backend="cpu",
    )  # fmt: skip
    rows = plan.report().rows
    found = sum(
        row.launch.counted_conflicts
        for row in rows
        if row.space == "shared" and row.instruction == "cp.async"
    )
    assert found == conflicts


def test_zeros_of_narrow_copies_are_vectors_too():
    """Compare with counts of Nsight Compute for ``sm80_pipeline`` on an H200."""
    plan = cg.plan(
        "TT", m=300, n=260, k=200, dtype="bfloat16", kernel="sm80_pipeline", copy="mn_major",
        arch="sm_90a", backend="cpu",
    )  # fmt: skip
    copies = [
        row for row in plan.report().rows if (row.space, row.instruction) == ("shared", "cp.async")
    ]
    assert sum(row.launch.counted_conflicts for row in copies) == 5280
