"""Predicted time of a pass: bytes over bandwidth."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cute_gemm.cost_model.calibration import Constants
    from cute_gemm.gpus.gpu import Gpu


def seconds(moved: Any, gpu: Gpu, constants: Constants, launch: float, narrow: bool = False) -> Any:
    """Return the predicted time of a launch that reads and writes ``moved`` bytes.

    ``moved`` may be an array. ``launch``: microseconds before its first and after its last
    instruction.
    """
    part = constants.stream_part * (constants.narrow_part if narrow else 1.0)
    start = launch * 1e-6 + constants.start / (gpu.clock_ghz * 1e9)
    return start + moved / (part * gpu.bandwidth_gbs * 1e9)
