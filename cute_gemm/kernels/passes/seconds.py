"""What a pass costs: bytes over bandwidth."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cute_gemm.model.price import L2_BYTES, LAUNCH_US, START

if TYPE_CHECKING:
    from cute_gemm.gpus.gpu import Gpu

#: Part of DRAM's bandwidth that a pass has, which streams. (A GEMM has ``price.DRAM_PART``.)
STREAM_PART = 0.8
#: Part of L2 up to which scratch stays there from the launch that writes it to that which reads it.
KEPT = 0.7


def seconds(read: int, write: int, scratch: int, gpu: Gpu) -> float:
    """Return the predicted time of a launch that moves these bytes from, to and within scratch."""
    clock = gpu.clock_ghz * 1e9
    l2 = (read + write + scratch) / (L2_BYTES * gpu.sms * clock)
    far = read + write + (scratch if scratch > KEPT * gpu.l2_bytes else 0)
    dram = far / (STREAM_PART * gpu.bandwidth_gbs * 1e9)
    return LAUNCH_US * 1e-6 + START / clock + float((l2**3 + dram**3) ** (1 / 3))
