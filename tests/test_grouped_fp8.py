"""``grouped_gemm`` of 8-bit floats, and its scales: every kind, by NumPy and by kernels' PTX."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from grouped_cases import OPS, GroupedCase, arrays, check, planned
from test_grouped import by, few_multiprocessors  # noqa: F401

import cute_gemm as cg
from cute_gemm.errors import DTypeError, GemmError, OptionError, ShapeError, UnsupportedError

E4M3, E5M2 = "float8_e4m3fn", "float8_e5m2"
PAIRS = ((E4M3, E4M3), (E4M3, E5M2), (E5M2, E4M3), (E5M2, E5M2))
#: Scales of the operand whose rows are ragged, and of the other, but for those of blocks.
RAGGED = ("", "number", "tensor", "group", "group 3", "flat", "row")
SHARED = (*RAGGED, "row of group", "row of group 3")
BLOCKS = ("1x128", "1x128 of group", "128x128", "128x128 of group")
OPTIONS = ("one", "swapped", "swapped turns", "cluster", "packed")
SIZES = ((3, 64, 0, 65, 1), (0, 0, 130, 1), (1, 1, 1, 17, 0, 63), (70,))


def spread(kernel: str, ragged: str, pairs: list[tuple[str, str]]) -> list[GroupedCase]:
    """A case for each pair of kinds, of the ragged operand and of the other one."""
    found = []
    for i, kinds in enumerate(pairs):
        dtype, dtype_b = PAIRS[i % 4]
        found.append(
            GroupedCase(
                ragged, OPS[(i + i // 4) % 4], "CF"[i // 2 % 2], SIZES[i % 4],
                ((72, 304), (136, 160))[i % 2], rest=(0, 5)[i % 3 > 0], dtype=dtype,
                dtype_b=dtype_b, scales=kinds if ragged != "N" else kinds[::-1],
                alpha=(1.0, -1.25)[i % 2], beta=(0.0, 0.5)[i // 2 % 2], kernel=kernel, pad=16,
                options=OPTIONS[i % len(OPTIONS)] if kernel == "sm90_wgmma" else "",
                fast_accum=True if i % 5 == 0 and not any("128" in x for x in kinds) else None,
            )
        )  # fmt: skip
    return found


_BLOCKS = [*product(("1x128", "row", ""), BLOCKS), ("1x128", ""), ("1x128", "row of group")]
_ROWS = [(RAGGED[i % 7], kind) for i, kind in enumerate(SHARED, 2)]
_BOTH = [(SHARED[(i + 4) % 9], kind) for i, kind in enumerate(SHARED)]
#: What is executed: the kinds of blocks are those of ``sm90_wgmma`` alone.
EXECUTED = (
    *spread("sm90_wgmma", "M", _BLOCKS),
    *spread("sm90_wgmma", "N", _BLOCKS[::2]),
    *spread("sm90_wgmma", "M", _ROWS[::2]),
    *spread("sm90_wgmma", "N", _ROWS[1::2]),
    *spread("double_buffered", "M", _ROWS[1::5]),
    *spread("double_buffered", "N", _ROWS[::5]),
    *spread("double_buffered", "K", _BOTH[::3]),
)  # fmt: skip


@pytest.mark.parametrize("case", EXECUTED, ids=str)
def test_interpreted(case: GroupedCase) -> None:
    check(case, by("interpreter"))


@pytest.mark.parametrize("ragged", "MNK")
def test_every_pair_of_kinds_on_the_cpu(ragged: str) -> None:
    pairs = [*product(RAGGED, SHARED), *_BLOCKS] if ragged != "K" else [*product(SHARED, SHARED)]
    kernel = "sm90_wgmma" if ragged != "K" else "double_buffered"  # the CPU computes
    for case in spread(kernel, ragged, pairs):
        check(case, by("cpu"))
