"""Test operations of Python, NumPy and PyTorch on an epilogue's values: traced, or an error."""

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from fused_cases import evaluated

import cute_gemm as cg
from cute_gemm.errors import OptionError
from cute_gemm.problem.epilogue.expression import trace
from cute_gemm.problem.epilogue.value import Value


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (
            lambda acc: np.add(acc, 1, where=[True]),
            "numpy.add with arguments that are not",
        ),
        (
            lambda acc: np.max(acc),
            "calls numpy.max, which is not known; expected cute_gemm.maximum",
        ),
        (lambda acc: np.maximum.reduce(acc), "numpy.maximum.reduce, which is not known"),
        (lambda acc: np.asarray(acc), "makes an array of a value"),
        (lambda acc: acc * np.ones(3), "an array of shape (3,); expected it as an operand"),
        (lambda acc: torch.sin(acc), "calls torch.sin, which is not known; expected one of add"),
        (lambda acc: torch.add(acc, 1, alpha=2), "torch.add with arguments that are not known"),
        (lambda acc: acc.max(), "takes .max of a value; expected cute_gemm.maximum(a, b)"),
        (lambda acc: acc.to("float16"), "takes .to of a value; expected cute_gemm.round_to"),
        (lambda acc: acc.shape, "takes .shape of a value; a value stands for one number"),
        (lambda acc: acc.unheard, "takes .unheard of a value"),
        (lambda acc: acc if acc == 1 else 0, "in place of if, and, or, not"),
        (lambda acc: cg.where(0 < acc < 1, acc, 0), "(0 < x) & (x < 1) in place of 0 < x < 1"),
        (lambda acc: cg.where((acc > 0) or (acc < 1), acc, 0), "joins conditions by and, by or"),
        (lambda acc: max(acc, 0), "cute_gemm.maximum, minimum or where(condition, a, b)"),
        (lambda acc: bool(acc), "calls a function that asks whether a value is true"),
        (lambda acc: acc if acc in (1, 2) else 0, "asks by 'in' whether a value is among others"),
        (lambda acc: acc if acc in {1, 2} else 0, "looks up a value in a dict or a set"),
        (lambda acc: 1 if 1 in acc else 0, "asks by 'in' what is in a value"),
        (lambda acc: hash(acc), "looks up a value in a dict or a set"),
        (lambda acc: acc % 2, "writes % with a value; expected + - * /, ** with a number"),
        (lambda acc: 2 // acc, "writes // with a value"),
        (lambda acc: divmod(acc, 2), "calls divmod() with a value"),
        (lambda acc: acc @ acc, "writes @ with a value"),
        (lambda acc: acc << 1, "writes << with a value"),
        (lambda acc: 1 >> acc, "writes >> with a value"),
        (lambda acc: acc & 1, "gives & a number; expected a condition"),
        (lambda acc: ~acc, "gives ~ a number; expected a condition"),
        (lambda acc: -(acc > 0), "gives negative a condition; expected a number"),
        (lambda acc: +(acc > 0), "gives positive a condition; expected a number"),
        (lambda acc: acc**acc, "an exponent that is a value; expected a number: x ** y is cute"),
        (lambda acc: 2**acc, "2 ** y is cute_gemm.exp(y * cute_gemm.log(2))"),
        (lambda acc: acc**0.3, "** 0.3; expected a multiple of 0.5"),
        (lambda acc: pow(acc, 2, 3), "calls pow() with three arguments"),
        (lambda acc: round(acc), "calls round() with a value"),
        (lambda acc: math.floor(acc), "calls math.floor() with a value"),
        (lambda acc: math.ceil(acc), "calls math.ceil() with a value"),
        (lambda acc: math.trunc(acc), "calls math.trunc() with a value"),
        (lambda acc: float(acc), "calls float(), or a function of math, with a value"),
        (lambda acc: math.sqrt(acc), "calls float(), or a function of math, with a value"),
        (lambda acc: int(acc), "calls int() with a value"),
        (lambda acc: complex(acc), "calls complex() with a value"),
        (lambda acc: [1, 2][acc], "takes a value for an index or a size"),
        (lambda acc: len(acc), "calls len() with a value"),
        (lambda acc: list(acc), "loops over a value, or unpacks it"),
        (lambda acc: acc[0], "takes elements of a value by [...]"),
        (lambda acc: operator.setitem(acc, 0, 1), "takes elements of a value by [...]"),
        (lambda acc: acc(1), "calls a value"),
        (lambda acc: f"{acc:.2f}", "formats a value as a number"),
        (lambda acc: acc + 10**400, "a number beyond float64's"),
        (
            lambda acc: cg.cast(acc, "int8") * 2,
            "writes * with what cast returns; cast(...) can only",
        ),
        (lambda acc: acc + cg.cast(acc, "int8"), "computes with what cast returns; cast(...)"),
        (lambda acc: cg.relu(cg.amax(acc)), "computes with what amax returns; amax(...)"),
        (lambda acc: 1 if cg.amax(acc) == 1 else 0, "writes == with what amax returns"),
        (lambda acc: cg.cast(acc, [1]), "cast(..., dtype=[1]); expected a real type"),
        (torch.relu, "epilogue relu has no signature"),
    ],
)  # fmt: skip
def test_what_is_refused(function: Callable[..., Any], said: str) -> None:
    with pytest.raises(OptionError) as caught:
        trace(function)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value) and "Value(" not in str(caught.value)


@pytest.mark.parametrize(
    ("function", "same"),
    [
        (lambda acc: acc * (acc != 1), lambda acc: cg.where(~(acc == 1), 1, 0) * acc),
        (lambda acc: acc.clamp(-1, 1), lambda acc: cg.minimum(cg.maximum(acc, -1), 1)),
        (lambda acc: np.clip(acc, -1, 1), lambda acc: cg.minimum(cg.maximum(acc, -1), 1)),
        (lambda acc: np.clip(acc, a_min=None, a_max=1), lambda acc: cg.minimum(acc, 1)),
        (lambda acc: np.maximum(acc, 0), cg.relu),
        (lambda acc: np.where(np.greater(acc, 1), 1, acc), lambda acc: cg.where(acc > 1, 1, acc)),
        (lambda acc: np.square(+acc), lambda acc: acc * acc),
        (lambda acc: np.float32(2) * acc / np.array(4.0), lambda acc: 2 * acc / 4),
        (torch.nn.ReLU(), cg.relu),
        (lambda acc: torch.relu(acc), cg.relu),
        (lambda acc: torch.nn.functional.gelu(acc, approximate="tanh"),
         lambda acc: cg.gelu(acc, "tanh")),
        (lambda acc: torch.nn.functional.sigmoid(acc), cg.sigmoid),
        (lambda acc: torch.where(acc > 0, acc, 0), lambda acc: cg.where(acc > 0, acc, 0)),
        (lambda acc: acc**3, lambda acc: acc * (acc * acc)),
        (lambda acc: acc**-1, lambda acc: 1 / acc),
        (lambda acc: acc**1.5, lambda acc: cg.sqrt(acc) * acc),
        (lambda acc: acc**-0.5, cg.rsqrt),
        (lambda acc: acc**0 * acc**1, lambda acc: 1 * acc),
        (lambda acc: cg.where((acc > 0) * (acc < 1), 1, 0),
         lambda acc: cg.where((acc > 0) & (acc < 1), 1, 0)),
    ],
)  # fmt: skip
def test_what_python_numpy_and_torch_write_is_traced(
    function: Callable[..., Any], same: Callable[..., Any]
) -> None:
    of = {"acc": np.array([-2.0, -1.0, -0.3, 0.0, 0.3, 1.0, 3.0])}
    with np.errstate(all="ignore"):
        found = evaluated(trace(lambda acc: function(acc)), of)
        np.testing.assert_array_equal(found, evaluated(trace(same), of))


def test_masks_are_of_nan_as_in_numpy() -> None:
    of = {"acc": np.array([-1.0, 0.0, 1.0, np.nan])}
    for function in (
        lambda acc: np.where(acc != acc, 7.0, 3.0),
        lambda acc: np.where((acc > 0) ^ (acc != 1), 1.0, 2.0),
        lambda acc: np.where((acc > 0) == (acc < 2), 1.0, 2.0),
        lambda acc: np.where(~(acc >= 0), 1.0, 2.0),
    ):
        assert np.array_equal(evaluated(trace(function), of), function(of["acc"]))


def test_an_epilogue_of_many_steps() -> None:
    def long(acc: Value) -> Value:
        for _ in range(3000):
            acc = acc * 0.5 + acc
        return acc

    assert len(trace(long).steps) == 2 + 2 * 3000
