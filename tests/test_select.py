"""The choice of a config: what is kept for a class of problems is right for all of them."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from cute_gemm import select
from cute_gemm.errors import UnsupportedError
from cute_gemm.problem.problem import from_sizes


def chosen(kernel: str, op: str, **sizes: Any) -> Any:
    """The config, or that there is none."""
    try:
        return select.select(from_sizes(op, **sizes), "sm_80", kernel).config
    except UnsupportedError:
        return None


@pytest.mark.parametrize(
    ("kernel", "op", "dtype", "sizes"),
    [
        # What fits shared memory is a matter of K.
        ("smem_full_k", "NN", "float32", [{"k": 64}, {"k": 1000}, {"k": 100000}]),
        # CUTLASS guards a vector by its first element, and a sum of int8 can leave int32.
        ("cutlass_universal", "TN", "float16", [{"k": 40}, {"k": 36}, {"k": 33}]),
        ("cutlass_universal", "NT", "float16", [{"m": 40}, {"n": 37}]),
        ("cutlass_universal", "TN", "int8", [{"k": 131071}, {"k": 131072}, {"k": 64}]),
        ("sm80_pipeline", "NN", "float16", [{"m": 40}, {"m": 37}]),
        ("double_buffered", "NN", "float32", [{"k": 40}, {"k": 37}]),
    ],
)
def test_a_choice_does_not_depend_on_those_before(kernel, op, dtype, sizes, monkeypatch):
    same = {"m": 64, "n": 64, "k": 40, "lda": 131072, "ldb": 131072, "ldc": 64, "dtype": dtype}
    alone = []
    for one in sizes:
        monkeypatch.setattr(select, "_shelves", {})
        alone.append(chosen(kernel, op, **{**same, **one}))
    assert any(alone)
    for order in permutations(range(len(sizes))):
        monkeypatch.setattr(select, "_shelves", {})
        for place in order:
            assert chosen(kernel, op, **{**same, **sizes[place]}) == alone[place]
