"""Cost of a kernel's shared-memory instructions: wavefronts by phase and bank.

Shared memory serves a request (one warp's instruction) in phases. A phase has the lanes whose
vectors make up at most 128 bytes: 32 lanes of 4 bytes, 16 of 8, 8 of 16, or the 8 rows of an
``ldmatrix`` matrix. It takes as many wavefronts as the busiest of the 32 banks has distinct 4-byte
words to serve; lanes that touch the same word share it.

Loads of 8 and 16 bytes join two phases if neighbouring lanes share their vectors (``joined``).
``cp.async`` has rules of its own (``copy_wavefronts``). Both were found on an H200.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from cute_gemm.access import gmem

if TYPE_CHECKING:
    from cute_gemm.access.accesses import GlobalAccess, SharedAccess, TileOrigin

#: Banks of shared memory.
BANKS = 32
#: Bytes of a bank's word.
WORD = 4
#: Lanes of a warp.
LANES = 32
#: Rows of an ldmatrix or stmatrix matrix, and the bytes of a row.
MATRIX_ROWS, MATRIX_ROW_BYTES = 8, 16

_MATRIX = re.compile(r"\b(?:ldmatrix|stmatrix)\b.*?\.x([124])\b")


def matrices(instruction: str) -> int:
    """Return the matrices, 8 rows of 16 bytes, that ``ldmatrix``/``stmatrix`` moves; else 0.

    A matrix of ``m16n16`` counts as two.
    """
    if "ldmatrix" not in instruction and "stmatrix" not in instruction:
        return 0
    match = _MATRIX.search(instruction)
    if match is None:
        raise ValueError(f"instruction {instruction!r} does not say .x1, .x2 or .x4")
    return int(match.group(1)) * (1 + ("m16n16" in instruction))


def phase_lanes(instruction: str, bits: int) -> int:
    """Return the lanes that are served together: 32 of 4 bytes or less, 16 of 8, 8 of 16."""
    if matrices(instruction):
        return MATRIX_ROWS
    if bits not in (8, 16, 32, 64, 128):
        raise ValueError(f"bits is {bits}, expected 8, 16, 32, 64 or 128 for {instruction}")
    return min(LANES, BANKS * WORD * 8 // bits)


def joined(instruction: str, bits: int, offsets: np.ndarray) -> np.ndarray:
    """Return which requests are served with two phases joined in one; bool [requests].

    A load of 8 or 16 bytes is, if every active lane ``i`` shares its vector with lane ``i ^ 1`` or
    that lane is inactive, or if this holds for all ``i`` and ``i ^ 2``. Stores never are.
    """
    offsets = np.asarray(offsets, np.int64).reshape(-1, LANES)
    if instruction != "ld.shared" or bits not in (64, 128):
        return np.zeros(len(offsets), bool)
    lane = np.arange(LANES)
    shares = [
        ((offsets < 0) | (partner < 0) | (offsets == partner)).all(axis=-1)
        for partner in (offsets[:, lane ^ 1], offsets[:, lane ^ 2])
    ]
    return shares[0] | shares[1]


def lane_phases(instruction: str, bits: int, offsets: np.ndarray) -> np.ndarray:
    """Return the phase that serves each lane; int64 [requests, 32]."""
    phase = np.arange(LANES) // phase_lanes(instruction, bits)
    pairs = joined(instruction, bits, offsets)[:, None]
    return np.where(pairs, phase // 2 * 2, phase)


def _active(instruction: str, offsets: np.ndarray) -> np.ndarray:
    """Return ``offsets`` [requests, 32] with -1 for lanes whose row of a matrix is not accessed."""
    number = matrices(instruction)
    return np.where(np.arange(LANES) < number * MATRIX_ROWS, offsets, -1) if number else offsets


def lane_words(instruction: str, bits: int, offsets: np.ndarray) -> np.ndarray:
    """Return the words that each lane touches; int64 [requests, 32, words], -1 if inactive."""
    offsets = _active(instruction, np.asarray(offsets, np.int64).reshape(-1, LANES))
    size = MATRIX_ROW_BYTES if matrices(instruction) else bits // 8
    words = offsets[..., None] // WORD + np.arange(max(1, size // WORD))
    return np.where(offsets[..., None] < 0, -1, words)


def phase_words(instruction: str, bits: int, offsets: np.ndarray) -> np.ndarray:
    """Return the index of each 4-byte word that a phase touches; int64 [requests, phases, words].

    ``offsets`` are bytes [requests, 32]. -1 marks an inactive lane, and its words in the result. If
    two phases are joined, the first has the words of both.
    """
    words = lane_words(instruction, bits, offsets)
    lanes = phase_lanes(instruction, bits)
    phases = matrices(instruction) or LANES // lanes
    phased = words[:, : phases * lanes].reshape(len(words), phases, lanes * words.shape[-1])
    pairs = joined(instruction, bits, offsets)
    if not pairs.any():
        return phased
    wide = np.full((*phased.shape[:2], 2 * phased.shape[2]), -1)
    wide[..., : phased.shape[2]] = phased
    wide[pairs, 0::2, phased.shape[2] :] = phased[pairs, 1::2]
    wide[pairs, 1::2] = -1
    return wide


def copy_wavefronts(bits: int, targets: np.ndarray, sources: np.ndarray) -> np.ndarray:
    """Return the counted wavefronts of 4- and 8-byte ``cp.async``; int64 [requests, phases].

    Such a copy reads words of lines in L1, which has banks as shared memory has, and writes words
    of shared memory. Each bank of L1 serves its vectors one after the other, in the order of their
    addresses; each takes the next wavefront in which its bank of shared memory is free.

    ``targets`` and ``sources``, int [requests, 32], are byte offsets in shared and (from any origin
    that is a multiple of 128 bytes) in global memory. -1 in ``targets`` is an inactive lane, -1 in
    ``sources`` a lane that writes zeros.

    On an H200 the rule predicted
    ``smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_ldgsts.sum`` of 196 of 201 patterns;
    the others have random vectors that conflict on both sides.
    """
    size, lanes = bits // 8, phase_lanes("cp.async", bits)
    slots = BANKS * WORD // size
    sides = [np.asarray(side, np.int64).reshape(-1, LANES) for side in (targets, sources)]
    kinds, which = gmem.distinct_rows(np.concatenate(sides, axis=-1))
    target, source = kinds.reshape(-1, 2, LANES // lanes, lanes).swapaxes(0, 1) // size
    order = np.argsort(source % slots * (source.max(initial=0) + 1) + source, axis=-1)
    target, source = (np.take_along_axis(side, order, axis=-1) for side in (target, source))

    def clashes(vectors: np.ndarray) -> np.ndarray:
        """Return which lanes' vectors differ but share banks; bool [kinds, phases, lane, lane]."""
        a, b = vectors[..., :, None], vectors[..., None, :]
        return (a >= 0) & (b >= 0) & (a != b) & (a % slots == b % slots)

    clash_target, clash_source, active = clashes(target), clashes(source), target >= 0
    wave = np.full(target.shape, -1)
    slot = np.arange(2 * lanes)
    in_wave = np.zeros((*target.shape, 2 * lanes), bool)  # one-hot of ``wave``
    for lane in range(lanes):
        before = (..., lane, slice(0, lane))
        after = np.where(clash_source[before], wave[..., :lane] + 1, 0).max(axis=-1, initial=0)
        taken = (in_wave[..., :lane, :] & clash_target[before][..., None]).any(axis=-2)
        first = (taken | (slot < after[..., None])).argmin(axis=-1)
        wave[..., lane] = np.where(active[..., lane], first, -1)
        in_wave[..., lane, :] = slot == wave[..., lane, None]
    used = np.sort(wave, axis=-1)
    return (np.diff(used, axis=-1, prepend=-1) > 0).sum(axis=-1)[which]


def copy_counts(
    bits: int, targets: np.ndarray, sources: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the counted wavefronts and conflicts of ``cp.async``; int64 [requests, phases].

    Arguments are those of `copy_wavefronts`. Conflicts are wavefronts above the fewest that could
    carry the vectors. A copy of 16 bytes bypasses the data pipe, and none of its wavefronts count;
    but if some of its lanes write zeros, the conflicts of the other lanes count.

    On an H200 the rule for 16 bytes predicted
    ``smsp__sass_l1tex_data_bank_conflicts_pipe_lsu_mem_shared_op_ldgsts.sum`` of 62 of 62 patterns
    with zeros, and of 9 launches.
    """
    targets, sources = (
        np.asarray(side, np.int64).reshape(-1, LANES) for side in (targets, sources)
    )

    def ideal(offsets: np.ndarray) -> np.ndarray:
        distinct = phase_wavefronts(phase_words("cp.async", bits, offsets))[1]
        return np.asarray(-(-distinct // BANKS))

    if not gmem.bypasses_l1("cp.async", bits):
        wavefronts = copy_wavefronts(bits, targets, sources)
        return wavefronts, wavefronts - ideal(targets)
    read = np.where(sources >= 0, targets, -1)
    some_zeros = (read >= 0).any(axis=-1) & ((targets >= 0) & (sources < 0)).any(axis=-1)
    conflicts = np.zeros((len(targets), LANES // phase_lanes("cp.async", bits)), np.int64)
    if some_zeros.any():
        read = read[some_zeros]
        conflicts[some_zeros] = copy_wavefronts(bits, read, sources[some_zeros]) - ideal(read)
    return np.zeros_like(conflicts), conflicts


def phase_wavefronts(words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the wavefronts of each phase and its number of distinct words, by `phase_words`.

    Both are int64 [requests, phases], and 0 for a phase without active lanes. A word that several
    lanes touch counts as one access: loads broadcast it, and stores keep one lane's value (CUDA C++
    Programming Guide, "Shared Memory" of compute capability 5.x on).
    """
    requests, phases, _ = words.shape
    ordered = np.sort(words, axis=-1)
    distinct = np.ones(ordered.shape, bool)
    distinct[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
    distinct &= ordered >= 0
    # One bin per bank and phase.
    phase = np.arange(requests * phases).reshape(requests, phases, 1)
    bins = (phase * BANKS + ordered % BANKS)[distinct]
    per_bank = np.bincount(bins, minlength=requests * phases * BANKS)
    per_bank = per_bank.reshape(requests, phases, BANKS)
    return per_bank.max(axis=-1, initial=0), per_bank.sum(axis=-1)


@dataclass(frozen=True, slots=True)
class SharedCounts(gmem.Sums):
    """Sums over the requests of some executions.

    ``requests`` have at least one active lane, ``off`` have none. ``lanes`` are active (for
    ldmatrix and stmatrix, row addresses). ``wavefronts`` go through shared memory one after the
    other; ``ideal_wavefronts`` are the fewest that could carry the words of each phase; ``bytes``
    are the distinct words of each phase, summed.

    ``counted_wavefronts`` and ``counted_conflicts`` are those of the hardware's counters. They
    differ from ``wavefronts`` and ``conflicts`` only for ``cp.async``: copies of 16 bytes bypass
    the counted unit and have none; narrower ones also depend on the banks of L1
    (``copy_wavefronts``).
    """

    requests: int = 0
    off: int = 0
    lanes: int = 0
    wavefronts: int = 0
    ideal_wavefronts: int = 0
    bytes: int = 0
    counted_wavefronts: int = 0
    counted_conflicts: int = 0

    @property
    def conflicts(self) -> int:
        """Wavefronts above the ideal."""
        return self.wavefronts - self.ideal_wavefronts


@dataclass(frozen=True, slots=True)
class SharedAnalysis:
    """Cost of one ``SharedAccess``.

    ``once``: one execution, a k-tile or a CTA; with a guard, one visit of the first tile.
    ``launch``: every execution of the launch. ``worst_wavefronts``, ``worst_ideal``: counts of the
    request with most conflicts. ``ways``: wavefronts of the worst phase, 2 for a 2-way conflict, 1
    without conflicts. ``interior``, ``edge``: the parts of ``launch`` in full and in edge tiles;
    without a guard all is interior. ``aligned``: whether every lane's address is a multiple of its
    vector. If not, the hardware faults.
    """

    once: SharedCounts
    launch: SharedCounts
    worst_wavefronts: int
    worst_ideal: int
    ways: int
    interior: SharedCounts
    edge: SharedCounts
    aligned: bool = True

    @property
    def conflict_free(self) -> bool:
        """Whether every request is legal and takes the fewest possible wavefronts."""
        counts = self.launch if self.launch.requests else self.once
        return self.aligned and counts.conflicts == 0


def _visit(access: SharedAccess, offsets: np.ndarray) -> tuple[SharedCounts, int, int, int]:
    """Count one execution; return also wavefronts and ideal of the worst request, and ways."""
    offsets = _active(access.instruction, offsets)
    wavefronts, distinct = phase_wavefronts(phase_words(access.instruction, access.bits, offsets))
    ideal = -(-distinct // BANKS)
    per_request, per_request_ideal = wavefronts.sum(axis=-1), ideal.sum(axis=-1)
    active = (offsets >= 0).any(axis=-1)
    total, fewest = int(per_request.sum()), int(per_request_ideal.sum())
    counted = 0 if gmem.bypasses_l1(access.instruction, access.bits) else total
    counts = SharedCounts(
        requests=int(active.sum()),
        off=int((~active).sum()),
        lanes=int((offsets >= 0).sum()),
        wavefronts=total,
        ideal_wavefronts=fewest,
        bytes=int(distinct.sum()) * WORD,
        counted_wavefronts=counted,
        counted_conflicts=max(0, counted - fewest),
    )
    if not len(offsets):
        return counts, 0, 0, 0
    worst = int((per_request - per_request_ideal).argmax())
    return counts, int(per_request[worst]), int(per_request_ideal[worst]), int(wavefronts.max())


def guarded_offsets(
    access: SharedAccess, valid: tuple[int, ...], place: TileOrigin | None = None
) -> np.ndarray:
    """Return ``access.offsets``, with -1 if the guard disables a lane in a tile of ``valid``."""
    guard = access.guard
    offsets = np.asarray(access.offsets, np.int64).reshape(-1, LANES)
    if guard is None:
        return offsets
    takes_part = guard.lanes(valid, place)[1] > 0
    if access.zero_fill:
        cut = guard.straddling(valid)
        if guard.tail == "elements":
            takes_part = np.repeat(cut, guard.width, axis=0)
        elif guard.tail == "full":
            takes_part = ~cut
        else:
            takes_part = np.ones_like(takes_part)
    return np.where(takes_part, offsets, -1)


def analyze(access: SharedAccess) -> SharedAnalysis:
    """Count the wavefronts of one shared-memory instruction.

    ValueError if the instruction does not have the width ``bits``. ``ldmatrix.x4`` on rows 128
    bytes apart takes 32 wavefronts instead of 4; with a ``Swizzle<3,3,3>`` on 16-bit elements it
    takes 4.
    """
    guard, source = access.guard, access.source
    if guard is None:
        offsets = guarded_offsets(access, (0, 0))
        once, worst, ideal, ways = _visit(access, offsets)
        launch = once.times(access.executions)
        if source is not None:
            visits = sum((tiled.tiles for tiled in gmem.classes(source)), np.zeros(gmem.LINE, int))
            shares = access.executions, int(visits.sum())
            launch = _recounted(launch, access, offsets, source, source.tile, visits, *shares)
        none = SharedCounts()
        return SharedAnalysis(once, launch, worst, ideal, ways, launch, none, _aligned(access))
    interior, edge, first = SharedCounts(), SharedCounts(), SharedCounts()
    worst, ideal, ways = 0, 0, 0
    for number, (valid, tiles, full, place) in enumerate(gmem.classes(guard)):
        offsets = guarded_offsets(access, valid, place)
        visit = _visit(access, offsets)
        counts = visit[0].times(int(tiles.sum()) * guard.sweeps)
        counts = _recounted(counts, access, offsets, guard, valid, tiles, guard.sweeps)
        interior, edge = (interior + counts, edge) if full else (interior, edge + counts)
        first = first if number else visit[0]
        if visit[1] - visit[2] >= worst - ideal:
            worst, ideal = visit[1:3]
        ways = max(ways, visit[3])
    together, fits = interior + edge, _aligned(access)
    return SharedAnalysis(first, together, worst, ideal, ways, interior, edge, fits)


def _aligned(access: SharedAccess) -> bool:
    """Return whether the addresses of all active lanes are multiples of their vectors."""
    number, offsets = matrices(access.instruction), access.offsets.reshape(-1, LANES)
    if number:
        offsets = offsets[:, : number * MATRIX_ROWS]
    size = MATRIX_ROW_BYTES if number else access.bits // 8
    return not bool((offsets[offsets >= 0] % size).any())


def _recounted(
    counts: SharedCounts, access: SharedAccess, offsets: np.ndarray, source: GlobalAccess,
    valid: tuple[int, ...], tiles: np.ndarray, times: int, over: int = 1,
) -> SharedCounts:  # fmt: skip
    """Return counts with the counted wavefronts and conflicts of ``cp.async``.

    ``tiles``: numbers of tiles by base residue. The counts are those of ``times`` / ``over`` visits
    of each tile.
    """
    if access.instruction != "cp.async" or not tiles.any():
        return counts
    starts, lengths = source.lanes(valid)
    wavefronts = conflicts = 0
    for residue in np.flatnonzero(tiles).tolist():
        sources = np.where(lengths > 0, starts + residue, -1)
        counted = copy_counts(access.bits, offsets, sources)
        wavefronts += int(tiles[residue]) * int(counted[0].sum())
        conflicts += int(tiles[residue]) * int(counted[1].sum())
    wavefronts, conflicts = wavefronts * times // over, conflicts * times // over
    return replace(counts, counted_wavefronts=wavefronts, counted_conflicts=conflicts)
