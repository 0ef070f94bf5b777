"""How CUTLASS's epilogue passes sums through shared memory, a few rows of each warp at a time.

The iterators of ``cutlass/epilogue/warp/tile_iterator_{tensor_op,tensor_op_mixed,simt}.h`` (the
stores) and ``cutlass/epilogue/threadblock/shared_load_iterator{,_mixed}.h`` (the loads), evaluated
in Python. Rows and columns are the instance's.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cute_gemm.kernels.cutlass.config import CutlassUniversalConfig
from cute_gemm.kernels.cutlass.maps import WARP, StoreMap
from cute_gemm.kernels.cutlass.shared import VECTOR, Requests, simt_lanes

#: Rows of a warp that a tensor core kernel passes at a time.
TENSOR_OP_ROWS = 8


def iterations(config: CutlassUniversalConfig) -> int:
    """Return how often the epilogue of a CTA stores to shared memory and loads from it."""
    return config.store_map().count[4]


def is_mixed(config: CutlassUniversalConfig) -> bool:
    """Whether halves are made from floats eight at a time (CUTLASS's ``...Mixed`` iterators)."""
    return config.math == "half" and config.out_dtype == "float16" and config.align_c == 8


def check_staging(config: CutlassUniversalConfig) -> None:
    """Raise ``ValueError`` for sums that the loads would not find where the stores put them.

    CUTLASS exchanges the halves of a vector by the column where a warp begins, or by the column
    itself if a warp is 64 wide; reading, always by the column.
    """
    width = config.warp_tile[1]
    if is_mixed(config) and width != 64 and 32 % width:
        raise ValueError(
            f"a warp is {width} wide along {'M' if config.swap_ab else 'N'}; CUTLASS's float16 "
            f"epilogue takes 16, 32 or 64"
        )


def row_elements(config: CutlassUniversalConfig) -> int:
    """Return the elements from one row of sums in shared memory to the next."""
    columns = config.instance_tile[1]
    if config.is_simt:
        return columns + 4 * config.simt_elements[1] + 1
    return columns + 4 * (8 // config.sums.bytes)


def staged_rows(config: CutlassUniversalConfig) -> int:
    """Return the rows of each warp that are passed at a time."""
    return config.simt_grid[0] if config.is_simt else TENSOR_OP_ROWS


def load_elements(config: CutlassUniversalConfig) -> int:
    """Return the elements of a lane's vector when it reads sums."""
    return min(VECTOR // config.sums.bytes, config.align_c)


def compact_map(config: CutlassUniversalConfig) -> StoreMap:
    """Return ``CompactedThreadMap``: C's, without the rows that other iterations take."""
    return replace(config.store_map(), count=(1, 1, 1, 1, 1))


def staged_stores(config: CutlassUniversalConfig) -> Requests:
    """Return the requests of one iteration that write sums to shared memory."""
    size, (_, warp_n) = config.sums.bytes, config.warp_tile
    warps_m, warps_n = config.instance_warps
    lane, warp = np.arange(WARP), np.arange(warps_m * warps_n)[:, None]
    rows = staged_rows(config)
    if config.is_simt:
        columns, elements = config.simt_grid[1], config.simt_elements[1]
        lane_row, lane_column = simt_lanes(config)
        first, width = lane_column * elements, 1
        steps = [n + s for n in range(0, warp_n, columns * elements) for s in range(elements)]
    else:
        lane_row, first, width = lane // 4, lane % 4 * 2, 2
        steps = list(range(0, warp_n, 8))
    row = warp % warps_m * rows + lane_row
    start = warp // warps_m * warp_n
    column = np.array(steps)[:, None, None] + start + first
    if is_mixed(config):
        # Every other 32 columns the halves of a vector of 8 change places.
        block = start if warp_n != 64 else np.array(steps)[:, None, None]
        column = np.where(block // 32 % 2, column ^ 4, column)
    offsets = (row * row_elements(config) + column) * size
    return Requests("st.shared", 8 * size * width, offsets.reshape(-1, WARP))


def staged_loads(config: CutlassUniversalConfig) -> Requests:
    """Return the requests of one iteration that read sums from shared memory."""
    size, elements = config.sums.bytes, load_elements(config)
    parts = np.arange(config.align_c // elements)[None, :, None, None]
    lanes = compact_map(config).requests().reshape(-1, 1, config.threads // WARP, WARP, 2)
    row, column = lanes[..., 0], lanes[..., 1]
    if is_mixed(config):
        parts = (parts + lanes[:1, ..., 1] // 32) % 2
    offsets = (row * row_elements(config) + column + parts * elements) * size
    return Requests("ld.shared", 8 * size * elements, offsets.reshape(-1, WARP))
