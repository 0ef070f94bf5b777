"""Test the minimal set of kernels for a layer: each is close enough, and none is redundant."""

from __future__ import annotations

import pytest

import cute_gemm as cg
from cute_gemm.commands.layers import Layer, layer, shapes, tokens
from cute_gemm.errors import OptionError
from cute_gemm.plan.plan import Plan

NUMBERS = (1, 64, 100, 300, 777, 1024, 3000)


def chosen(within: float) -> Layer:
    given = {"dtype": "bfloat16", "arch": "sm_90a", "kernel": "auto"}
    return layer(1024, 512, NUMBERS, within, lambda *_: None, **given)


def kernels(plans: list[Plan]) -> set[object]:
    return {(x.kernel, x.config.name, x.algorithm) for x in plans}


def test_every_number_of_tokens_is_served_within_the_part() -> None:
    best = [
        cg.plan("NT", m=m, n=1024, k=512, dtype="bfloat16", storage="C", order="C", arch="sm_90a",
                backend="cpu")
        for m in NUMBERS
    ]  # fmt: skip
    for within in (0.0, 0.02, 0.2):
        found = chosen(within)
        ratios = []
        for one, other in zip(found.plans, best, strict=True):
            assert one.problem.m == other.problem.m
            seconds = {
                (x.kernel.name, x.config.name, x.algorithm): x.prediction.seconds
                for x in other.candidates(within=1.25)
                if x.prediction is not None
            }
            ratios.append(
                seconds[one.kernel, one.config.name, one.algorithm] / min(seconds.values())
            )
        assert max(ratios) <= 1 + within and found.worst == pytest.approx(max(ratios))
        assert found.mean == pytest.approx(sum(ratios) / len(ratios))
        assert found.kernels >= len(kernels(found.plans))
        if not within:
            assert kernels(found.plans) == kernels(best)
    assert chosen(0.2).kernels < chosen(0.02).kernels <= len(kernels(best))


def test_ranges_and_shapes() -> None:
    assert shapes("4096x1024,7x5") == [(4096, 1024), (7, 5)]
    assert list(tokens("1:4")) == [1, 2, 3, 4] and list(tokens("8:24:8")) == [8, 16, 24]
    for text in ("", "4096", "4096x", "1x2x3", "0x4", "axb"):
        with pytest.raises(OptionError, match="--layer .*expected N x K of weights"):
            shapes(text)
    for text in ("", "5", "4:1", "0:4", "1:4:0", "4:1:-1", "a:b", "1:2:3:4"):
        with pytest.raises(OptionError, match="--tokens .*expected FIRST:LAST"):
            tokens(text)
