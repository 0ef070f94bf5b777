"""What a pass costs: bytes over bandwidth."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cute_gemm.model.price import L2_BYTES, LAUNCH_US, START

if TYPE_CHECKING:
    from cute_gemm.gpus.gpu import Gpu

#: Part of DRAM's bandwidth that a pass has, which streams. (A GEMM has ``price.DRAM_PART``.)
STREAM_PART = 0.8
#: Part of L2 up to which scratch, with all else that moves, stays there between two launches.
KEPT = 0.8


def seconds(outside: int, scratch: Any, gpu: Gpu) -> Any:
    """Return the predicted time of a launch that moves these bytes outside and within scratch.

    ``scratch`` may be an array: of several launches.
    """
    clock = gpu.clock_ghz * 1e9
    near = outside + scratch
    far = outside + scratch * (near > KEPT * gpu.l2_bytes)
    l2 = near / (L2_BYTES * gpu.sms * clock)
    dram = far / (STREAM_PART * gpu.bandwidth_gbs * 1e9)
    return LAUNCH_US * 1e-6 + START / clock + (l2**3 + dram**3) ** (1 / 3)
