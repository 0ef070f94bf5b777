"""What a kernel's shared-memory instructions cost: wavefronts by phase and bank.

Shared memory serves a request (one warp's instruction) in phases, each with the lanes whose
vectors make up at most 128 bytes: 32 lanes of 4 bytes, 16 of 8, 8 of 16, or the 8 rows of an
``ldmatrix`` matrix. A phase takes as many wavefronts as the busiest of the 32 banks has distinct
4-byte words to serve; lanes that touch the same word share it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from cute_gemm.kernels.base import SharedAccess

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
    """Number of 8x8 matrices that an ``ldmatrix``/``stmatrix`` moves; 0 for other instructions.

    Examples
    --------
    >>> matrices("ldmatrix.x4"), matrices("ldmatrix.sync.aligned.m8n8.x2.trans.b16")
    (4, 2)
    >>> matrices("ld.shared")
    0
    """
    if "ldmatrix" not in instruction and "stmatrix" not in instruction:
        return 0
    found = _MATRIX.search(instruction)
    if found is None:
        raise ValueError(f"instruction {instruction!r} does not say .x1, .x2 or .x4")
    return int(found.group(1))


def phase_lanes(instruction: str, bits: int) -> int:
    """Lanes that shared memory serves together.

    Examples
    --------
    >>> phase_lanes("ld.shared", 32), phase_lanes("ld.shared", 64), phase_lanes("cp.async", 128)
    (32, 16, 8)
    """
    if matrices(instruction):
        return MATRIX_ROWS
    if bits not in (8, 16, 32, 64, 128):
        raise ValueError(f"bits is {bits}, expected 8, 16, 32, 64 or 128 for {instruction}")
    return min(LANES, BANKS * WORD * 8 // bits)


def phase_words(instruction: str, bits: int, offsets: np.ndarray) -> np.ndarray:
    """Words that each phase of each request touches.

    Parameters
    ----------
    offsets
        int [requests, 32]: bytes, -1 for an inactive lane.

    Returns
    -------
    int64 [requests, phases, words]
        Index of each 4-byte word; -1 where a lane is inactive. For loads and stores that is the
        plain rule: fixed groups of consecutive lanes, none merged with another.
    """
    offsets = np.asarray(offsets, np.int64).reshape(-1, LANES)
    number = matrices(instruction)
    if number:
        offsets, size = offsets[:, : number * MATRIX_ROWS], MATRIX_ROW_BYTES
    else:
        size = bits // 8
    lanes = phase_lanes(instruction, bits)
    phased = offsets.reshape(len(offsets), offsets.shape[1] // lanes, lanes)
    words = phased[..., None] // WORD + np.arange(max(1, size // WORD))
    words = np.where(phased[..., None] < 0, -1, words)
    return words.reshape(*phased.shape[:2], lanes * words.shape[-1])


def phase_wavefronts(words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Wavefronts that each phase takes, and how many distinct words it touches.

    Parameters
    ----------
    words
        int64 [requests, phases, words], as ``phase_words`` returns them.

    Returns
    -------
    (int64 [requests, phases], int64 [requests, phases])
        Both 0 for a phase without an active lane.

    Notes
    -----
    Of a word that several lanes touch, one access is counted: loads broadcast it, and of stores one
    lane's value is kept (CUDA C++ Programming Guide, "Shared Memory" of compute capability 5.x on).
    """
    requests, phases, _ = words.shape
    ordered = np.sort(words, axis=-1)
    distinct = np.ones(ordered.shape, bool)
    distinct[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
    distinct &= ordered >= 0
    # One bin for each bank of each phase.
    phase = np.arange(requests * phases).reshape(requests, phases, 1)
    bins = (phase * BANKS + ordered % BANKS)[distinct]
    per_bank = np.bincount(bins, minlength=requests * phases * BANKS)
    per_bank = per_bank.reshape(requests, phases, BANKS)
    return per_bank.max(axis=-1, initial=0), per_bank.sum(axis=-1)


@dataclass(frozen=True, slots=True)
class SharedCounts:
    """Sums over the requests of some executions.

    Attributes
    ----------
    requests
        Requests with at least one active lane.
    off
        Requests without one.
    lanes
        Lanes that take part (of ldmatrix and stmatrix: row addresses).
    wavefronts, ideal_wavefronts
        Passes through shared memory, and the fewest that could carry the words of each phase.
    bytes
        Distinct words of each phase, summed, in bytes.
    """

    requests: int = 0
    off: int = 0
    lanes: int = 0
    wavefronts: int = 0
    ideal_wavefronts: int = 0
    bytes: int = 0

    def times(self, factor: int) -> SharedCounts:
        """Return these sums taken ``factor`` times."""
        return SharedCounts(
            self.requests * factor,
            self.off * factor,
            self.lanes * factor,
            self.wavefronts * factor,
            self.ideal_wavefronts * factor,
            self.bytes * factor,
        )

    @property
    def conflicts(self) -> int:
        """Wavefronts above the ideal."""
        return self.wavefronts - self.ideal_wavefronts


@dataclass(frozen=True, slots=True)
class SharedAnalysis:
    """What one ``SharedAccess`` costs.

    Attributes
    ----------
    once
        One execution: a k-tile, or a CTA.
    launch
        Every execution of the launch.
    worst_wavefronts, worst_ideal
        Of the request with most conflicts.
    ways
        Wavefronts of the worst phase: 2 for a 2-way conflict, 1 without one.
    """

    once: SharedCounts
    launch: SharedCounts
    worst_wavefronts: int
    worst_ideal: int
    ways: int

    @property
    def conflict_free(self) -> bool:
        """Whether every request takes the fewest wavefronts possible."""
        return self.once.conflicts == 0


def analyze(access: SharedAccess) -> SharedAnalysis:
    """Count the wavefronts of one shared-memory instruction.

    Parameters
    ----------
    access
        The instruction; offsets in bytes.

    Returns
    -------
    SharedAnalysis

    Raises
    ------
    ValueError
        When ``bits`` is not a width that the instruction has.

    Examples
    --------
    ``ldmatrix.x4`` on rows 128 bytes apart takes 32 wavefronts where 4 would do; with a
    ``Swizzle<3,3,3>`` on 16-bit elements it takes 4.
    """
    offsets = np.asarray(access.offsets, np.int64).reshape(-1, LANES)
    number = matrices(access.instruction)
    if number:
        offsets = offsets.copy()
        offsets[:, number * MATRIX_ROWS :] = -1
    words = phase_words(access.instruction, access.bits, offsets)
    wavefronts, distinct = phase_wavefronts(words)
    ideal = -(-distinct // BANKS)
    per_request, per_request_ideal = wavefronts.sum(axis=-1), ideal.sum(axis=-1)
    active = (offsets >= 0).any(axis=-1)
    once = SharedCounts(
        requests=int(active.sum()),
        off=int((~active).sum()),
        lanes=int((offsets >= 0).sum()),
        wavefronts=int(per_request.sum()),
        ideal_wavefronts=int(per_request_ideal.sum()),
        bytes=int(distinct.sum()) * WORD,
    )
    worst = int((per_request - per_request_ideal).argmax()) if len(offsets) else -1
    return SharedAnalysis(
        once=once,
        launch=once.times(access.executions),
        worst_wavefronts=int(per_request[worst]) if worst >= 0 else 0,
        worst_ideal=int(per_request_ideal[worst]) if worst >= 0 else 0,
        ways=int(wavefronts.max(initial=0)),
    )
