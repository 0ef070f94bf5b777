"""Predicted time of a pass: bytes over bandwidth."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cute_gemm.model.price import START

if TYPE_CHECKING:
    from cute_gemm.gpus.gpu import Gpu

#: Part of DRAM's bandwidth that a streaming pass reaches (a GEMM reaches ``price.DRAM_PART``), and
#: that of a pass whose accesses are narrower than 16 bytes. Scratch that is still in L2 is read no
#: faster: a pass has too few bytes in flight.
STREAM_PART, NARROW_PART = 0.8, 0.52
#: Microseconds of a launch whose successor is ready before it ends, as the kernel after packing is.
AHEAD_US = 1.0


def seconds(moved: Any, gpu: Gpu, launch: float, narrow: bool = False) -> Any:
    """Return the predicted time of a launch that reads and writes ``moved`` bytes.

    ``moved`` may be an array. ``launch``: microseconds before its first and after its last
    instruction.
    """
    part = NARROW_PART if narrow else STREAM_PART
    start = launch * 1e-6 + START / (gpu.clock_ghz * 1e9)
    return start + moved / (part * gpu.bandwidth_gbs * 1e9)
