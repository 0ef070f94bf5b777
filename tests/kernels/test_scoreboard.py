"""Test that machine code waits for the accumulators of FP64 MMAs, unlike faulty code of ptxas.

An instruction has 128 bits. From bit 105 on they encode how it is issued: clocks until the next
one (4 bits), a hint, the barrier that is set when the result is ready, and the one when the
operands are read (3 bits each, 7 for none), and the barriers to wait for (6 bits). If the first
FP64 MMA of a loop adds to the accumulators of the last one, and no MMA is between them, ptxas 13.0
omits the wait, and an H200 adds to the previous content. No PTX interpreter can detect this.
"""

import re
import shutil
import subprocess
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from cases import OPS, configure
from cuda.pathfinder import find_nvidia_binary_utility

from cute_gemm.errors import OptionError
from cute_gemm.kernels.sm80.pipeline import _TILES, Sm80Pipeline, Tile
from cute_gemm.problem.describe import from_sizes
from cute_gemm.toolchain.nvrtc import build

PIPELINE = Sm80Pipeline()
#: Clocks after which a result is ready without a wait. The faulty distances were 15 to 27.
LATENCY = 40
FP64 = [(dtype, row) for dtype in ("float64", "complex128") for row in _TILES[dtype, "float64"]]

_LINE = re.compile(
    r"(?:^(\.L_x_\d+):|/\*[0-9a-f]{4,5}\*/ +(.*?) *;).*?(?:\n\s+/\* 0x([0-9a-f]{16}) \*/|$)", re.M
)
_MMA = re.compile(r"DMMA\.\S+ R(\d+), R\d+[^,]*, R\d+[^,]*, R(\d+)")


def decoded(cubin: bytes, folder: Path) -> list[tuple[str, int]]:
    """Return instructions with their issue bits. Labels have 0."""
    tool = find_nvidia_binary_utility("nvdisasm") or shutil.which("nvdisasm")
    assert tool is not None
    path = folder / "kernel.cubin"
    path.write_bytes(cubin)
    words = [tool, "--print-code", "--print-instruction-encoding", str(path)]
    text = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    return [
        (label or line, int(upper or "0", 16) >> 41) for label, line, upper in _LINE.findall(text)
    ]


def unwaited(cubin: bytes, folder: Path) -> float:
    """Return the least clocks between dependent MMAs of consecutive iterations without a wait."""
    lines, least = decoded(cubin, folder), float("inf")
    place = {text: index for index, (text, _) in enumerate(lines) if text.startswith(".L")}
    for end, (text, _) in enumerate(lines):
        target = re.search(r"BRA .*?(\.L_x_\d+)", text)
        begin = place[target[1]] if target else end + 1
        clock, pending = 0, dict[str, tuple[int, int]]()  # issue time and barrier
        for line, bits in lines[begin : end + 1] * 2:
            wait = bits >> 11 & 63
            pending = {sums: one for sums, one in pending.items() if not wait >> one[1] & 1}
            if mma := _MMA.search(line):
                if mma[2] in pending:
                    least = min(least, clock - pending[mma[2]][0])
                pending[mma[1]] = clock, bits >> 5 & 7
            clock += max(bits & 15, 1)
    return least


def machine_code(dtype: str, row: Tile, op: str, arch: str, pad: int = 0) -> bytes:
    m, n, k = 200 + pad, 64 + pad, 96 + pad
    tile, warps, stages, ctas = row
    options = {"tile": tile, "warps": warps, "stages": stages, "min_ctas": ctas}
    problem = from_sizes(op, m=m, n=n, k=k, dtype=dtype)
    config = configure(PIPELINE, problem, arch, **options)
    return build(PIPELINE.unit(config), arch).cubin


@pytest.mark.parametrize(("dtype", "row", "op"), [
    (dtype, row, OPS[index % 4]) for index, (dtype, row) in enumerate(FP64)
], ids=str)  # fmt: skip
def test_sums_are_waited_for(dtype: str, row: Tile, op: str, tmp_path: Path) -> None:
    assert unwaited(machine_code(dtype, row, op, "sm_90a"), tmp_path) >= LATENCY


@pytest.mark.matrix
@pytest.mark.parametrize(("dtype", "row"), FP64, ids=str)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_all_sums_are_waited_for(dtype: str, row: Tile, arch: str, tmp_path: Path) -> None:
    for op, pad in product(OPS, (0, 1)):
        if pad == 0 or dtype == "float64":
            assert unwaited(machine_code(dtype, row, op, arch, pad), tmp_path) >= LATENCY, op


def test_a_lone_mma_is_refused(tmp_path: Path) -> None:
    problem = from_sizes("NT", m=200, n=64, k=96, dtype="float64")
    options = {"warps": (1, 2), "stages": 4, "min_ctas": 2}
    with pytest.raises(
        OptionError, match=r"tile=\(16, 16, 32\) .* one SM90_16x8x4_F64F64F64F64_TN"
    ):
        configure(PIPELINE, problem, "sm_90a", tile=(16, 16, 32), **options)
    config = configure(PIPELINE, problem, "sm_90a", tile=(16, 32, 32), **options)
    # If this fails, ptxas waits, and the rule is unnecessary.
    cubin = build(PIPELINE.unit(replace(config, tile=(16, 16, 32))), "sm_90a").cubin
    assert unwaited(cubin, tmp_path) < LATENCY
