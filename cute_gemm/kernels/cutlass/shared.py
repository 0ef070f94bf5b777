"""Where CUTLASS's main loop touches shared memory: its layouts, and the lanes of each instruction.

The layouts of ``cutlass/layout/tensor_op_multiplicand_sm{75,80}.h`` and the iterators of
``cutlass/gemm/warp/mma_{tensor_op,simt}_tile_iterator*.h``, evaluated in Python. CUTLASS's
iterators step pointers, with XORs between them; what they visit is the layout at the coordinates
that the matrix instruction wants, which is how they are written here. Coordinates are pitch-linear
(contiguous, strided) in the operand as it lies in global memory, or (m or n, k) where that is said.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from cute_gemm.kernels.cutlass.config import CutlassUniversalConfig
from cute_gemm.kernels.cutlass.maps import WARP

#: Bytes of the vectors that tensor core layouts permute, and of the line within which they do.
VECTOR, LINE = 16, 128


class Requests(NamedTuple):
    """Shared-memory requests of one kind."""

    instruction: str
    bits: int  # of each lane
    #: int array [..., requests, 32]: byte offset of each lane's vector from the first byte of the
    #: operand's buffer; all warps in a row.
    offsets: np.ndarray


class Lanes(NamedTuple):
    """Loads of one warp's fragments for a step along K."""

    instruction: str
    bits: int
    #: (m or n, k) of each lane: int arrays [requests, 32], or what broadcasts to that.
    mn: np.ndarray
    k: np.ndarray


@dataclass(frozen=True)
class SharedTile:
    """The first stage of one operand in shared memory."""

    #: CUTLASS's name of the layout, without its major-ness: ``"Crosswise"`` (K contiguous),
    #: ``"Congruous"`` (M or N contiguous), their ``"64b"`` forms, ``"Plain"`` (SIMT: M or N
    #: contiguous, whatever the source) or ``"Interleaved"`` (dp4a: groups of 4 along K).
    layout: str
    #: Bytes of an element.
    size: int
    #: Elements along the contiguous mode that stay together; 0 where the layout has none.
    crosswise: int
    #: Elements from one step of the strided mode to the next; of one group of 4 for dp4a.
    stride: int
    #: Elements along M or N, with padding.
    extent: int

    def cpp(self, major: str) -> str:
        """Return CUTLASS's type in ``cutlass::layout``: ``RowMajorTensorOp...Crosswise<16, 32>``.

        ``major`` is how a matrix with a contiguous M or N is called: ``"ColumnMajor"`` for the
        instance's first operand, ``"RowMajor"`` for its second.
        """
        if self.layout == "Plain":
            return major
        if self.layout == "Interleaved":
            return f"{major}Interleaved<4>"
        if self.layout.endswith("wise"):
            major = "RowMajor" if major == "ColumnMajor" else "ColumnMajor"
        numbers = f"<{8 * self.size}, {self.crosswise}>" if self.crosswise else ""
        return f"{major}TensorOpMultiplicand{self.layout}{numbers}"

    @property
    def factor(self) -> int:
        """Rows of the strided mode that share a line of 128 bytes (CUTLASS's ``kFactor``)."""
        return LINE // self.size // self.crosswise

    def offsets(self, contiguous: np.ndarray, strided: np.ndarray) -> np.ndarray:
        """Return the byte offset of an element."""
        if self.layout == "Plain":
            return (contiguous + strided * self.stride) * self.size
        if self.layout == "Interleaved":
            return (contiguous * 4 + strided // 4 * self.stride + strided % 4) * self.size
        if self.layout == "Congruous64b":
            return self._congruous_64b(contiguous, strided)
        if self.layout == "64bCrosswise":
            return self._crosswise_64b(contiguous, strided)
        if self.layout == "Congruous" and self.size == 4:
            # TensorOpMultiplicandCongruous<32, Crosswise>
            vector = contiguous % 32 // 4 ^ 2 * (strided % 4)
            return (vector * 4 + contiguous % 4 + contiguous // 32 * 32 + strided * self.stride) * 4
        return self._tensor_op(contiguous, strided)

    def _tensor_op(self, contiguous: np.ndarray, strided: np.ndarray) -> np.ndarray:
        """``TensorOpMultiplicand::operator()``, which is both of its forms."""
        elements, across = VECTOR // self.size, 8 // self.factor
        vector, line = contiguous // elements, strided // self.factor
        residual = vector % across + strided % self.factor * across
        row = line % max(across, 4)
        permuted = (residual // 4 ^ row // 4 % 2) * 4 + (residual % 4 ^ row % 4)
        element = (vector // across * 8 + permuted) * elements + contiguous % elements
        return (element + line * self.stride * self.factor) * self.size

    def _congruous_64b(self, contiguous: np.ndarray, strided: np.ndarray) -> np.ndarray:
        c, s = contiguous % 16, strided % 4
        row = (c & 6) // 2
        bank = (((c & 1) * 4 + row) ^ (s & 1)) * 2 + c // 8 ^ (s & 2) * 2
        column = contiguous // 16 * 16 + bank
        return (column + (strided // 4 * 4 + row) * self.stride) * self.size

    def _crosswise_64b(self, contiguous: np.ndarray, strided: np.ndarray) -> np.ndarray:
        c, s = contiguous % 16, strided % 16
        group = c // 4
        # Sums before exclusive ors, as in C++.
        bank = (group & 2) << 2 ^ (s % 2 << 3) + c % 4 * 2 + s // 8 ^ group & 1
        row = contiguous // 16 * 16 + group * 4 + s // 2 % 4
        return (row * self.stride + strided // 16 * 16 + bank) * self.size


def shared_tile(config: CutlassUniversalConfig, operand: str) -> SharedTile:
    """Return the layout of ``"A"`` or ``"B"`` in shared memory (default_mma_core_*.h).

    ``ValueError`` when CUTLASS has no such layout.
    """
    extent, k_major, _, mode = config.side(operand)
    k, size = config.tile[2], config.element.bytes
    if config.math == "float32":
        # CUTLASS pads the rows of an operand that it transposes, by bK / 32 elements.
        pad = k // 32 if k_major else 0
        if pad % config.simt_elements[mode]:
            raise ValueError(f"bK is {k}; CUTLASS's padding takes bK below 32 here")
        return SharedTile("Plain", size, 0, extent + pad, extent + pad)
    if config.math == "dp4a":
        pad = WARP // k * 4 if k_major else 0
        return SharedTile("Interleaved", size, 0, 4 * (extent + pad), extent + pad)
    if config.math == "float64":
        width = config.warp_tile[mode]
        if width % 16:
            raise ValueError(f"a warp has {width} rows of {operand}; CUTLASS takes multiples of 16")
        layout = "64bCrosswise" if k_major else "Congruous64b"
        return SharedTile(layout, size, 0, extent, extent)
    crosswise = k if k_major else min(LINE // size, extent)
    if (LINE // size) % crosswise:
        raise ValueError(f"bK is {k}; CUTLASS takes {LINE // 2 // size} or {LINE // size} here")
    if k_major:
        # Stages lie side by side along K.
        return SharedTile("Crosswise", size, crosswise, k * config.stages, extent)
    if size == 4 and crosswise < 32:
        raise ValueError(f"operand {operand}: a tile {extent} wide; CUTLASS takes 32 at least")
    return SharedTile("Congruous", size, crosswise, extent, extent)


def shared_stores(config: CutlassUniversalConfig, operand: str) -> Requests:
    """Return the requests that write one k-tile of ``"A"`` or ``"B"``.

    Those of ``cp.async`` are, request by request, those of the loads from global memory; a pipeline
    of two stages stores whole vectors, however narrow it loads.
    """
    tile, loads, side = shared_tile(config, operand), config.load_map(operand), config.side(operand)
    asynchronous = config.stages > 2
    width = side.alignment if asynchronous else loads.vector
    # dp4a: the four rows of a thread's 4x4 tile become one vector.
    coords = replace(loads, rows=1).requests(width)
    contiguous, strided = coords[..., 0], coords[..., 1]
    instruction = "cp.async" if asynchronous else "st.shared"
    if config.is_simt and side.k_major:
        contiguous, strided = strided, contiguous
    bits = 8 * width * loads.rows * tile.size
    return Requests(instruction, bits, tile.offsets(contiguous, strided))


def fragment_loads(config: CutlassUniversalConfig, operand: str) -> Requests:
    """Return the requests that read one k-tile of ``"A"`` or ``"B"``, group by group along K.

    Offsets int [groups, requests, 32]; a group is what a warp loads for one step of its matrix
    instructions along K.
    """
    tile, (_, k_major, _, mode) = shared_tile(config, operand), config.side(operand)
    if config.is_simt:
        lanes = _simt_fragments(config, mode)
    elif config.math == "float64":
        lanes = _double_fragments(config, mode)
    elif config.math == "tf32" and not k_major:
        lanes = _word_fragments(config, mode)
    else:
        lanes = _matrix_fragments(config, mode, k_major)
    # Rows and columns of a CTA's warps: the instance counts them along its rows first.
    warps_m, warps_n = config.instance_warps
    warp = np.arange(warps_m * warps_n)
    base = (warp // warps_m if mode else warp % warps_m) * config.warp_tile[mode]
    groups = np.arange(0, config.tile[2], config.k_step)
    # (groups, requests of a warp, warps, lanes)
    mn, k = np.broadcast_arrays(
        lanes.mn[None, :, None, :] + base[None, None, :, None],
        lanes.k[None, :, None, :] + groups[:, None, None, None],
    )
    contiguous, strided = (k, mn) if k_major and tile.layout.endswith("wise") else (mn, k)
    offsets = tile.offsets(contiguous, strided)
    if config.math == "float64":
        offsets = offsets & -VECTOR  # The layouts pair the elements 8 rows apart.
    return Requests(lanes.instruction, lanes.bits, offsets.reshape(len(groups), -1, WARP))


def _matrix_fragments(config: CutlassUniversalConfig, mode: int, k_major: bool) -> Lanes:
    """``ldmatrix``: matrices of 8 rows of 16 bytes, 2 by 2."""
    lane = np.arange(WARP)
    row, matrix = lane % 8, lane // 8
    # The first operand's matrices run along M first, the second's along K.
    along_mn, along_k = matrix % 2, matrix // 2
    if mode:
        along_mn, along_k = along_k, along_mn
    if k_major:
        mn, k = along_mn * 8 + row, along_k * (VECTOR // config.element.bytes)
    else:
        mn, k = along_mn * 8, along_k * 8 + row
    steps = np.arange(0, config.warp_tile[mode], 16)[:, None]
    return Lanes("ldmatrix.x4" if k_major else "ldmatrix.x4.trans", 128, mn + steps, k[None])


def _word_fragments(config: CutlassUniversalConfig, mode: int) -> Lanes:
    """tf32 whose M or N is contiguous: words, because ``ldmatrix`` transposes only halves."""
    lane, rows = np.arange(WARP), (16, 8)[mode]
    steps = [
        (mn + inner, k)
        for mn in range(0, config.warp_tile[mode], rows)
        for k in (0, 4)
        for inner in range(0, rows, 8)
    ]
    mn, k = np.array(steps).T[..., None]
    return Lanes("ld.shared", 32, mn + lane // 4, k + lane % 4)


def _double_fragments(config: CutlassUniversalConfig, mode: int) -> Lanes:
    """float64: a lane reads two elements 8 rows apart, which the layouts put side by side."""
    lane = np.arange(WARP)
    steps = np.arange(0, config.warp_tile[mode], 16)[:, None]
    return Lanes("ld.shared", 128, lane // 4 + steps, lane[None] % 4)


def _simt_fragments(config: CutlassUniversalConfig, mode: int) -> Lanes:
    """SIMT: lanes in a grid, each with vectors of up to 4 elements, of one k (dp4a: of four)."""
    lanes, elements = config.simt_grid[mode], config.simt_elements[mode]
    steps = np.arange(0, config.warp_tile[mode], lanes * elements)[:, None]
    # Four bytes either way: a float, or four int8 along K.
    mn = simt_lanes(config)[mode] * elements + steps
    return Lanes("ld.shared", 32 * elements, mn, np.zeros_like(mn))


def simt_interleave(config: CutlassUniversalConfig) -> int:
    """Rows (columns, for dp4a) that neighbouring lanes interleave: 2 if threads have enough."""
    tile, lanes = config.warp_tile, config.simt_grid
    return 2 if tile[0] // lanes[0] > 4 and tile[1] // lanes[1] > 4 else 1


def simt_lanes(config: CutlassUniversalConfig) -> tuple[np.ndarray, np.ndarray]:
    """Row and column of each lane in the grid of a SIMT warp (``LaneLayout``), int [32]."""
    rows, columns = config.simt_grid
    pair = simt_interleave(config)
    across = rows if config.math == "dp4a" else columns
    outer, rest = np.divmod(np.arange(WARP), across * pair)
    along, other = rest // pair, outer * pair + rest % pair
    return (along, other) if config.math == "dp4a" else (other, along)
