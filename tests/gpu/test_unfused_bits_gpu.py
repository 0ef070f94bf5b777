"""Test layers with ``unfused_bits=True`` on a GPU: the bits equal PyTorch's activation."""

from typing import Any

import pytest
import torch
from unfused_bits import ACTIVATIONS, bits, drawn

import cute_gemm as cg
import cute_gemm.torch as ct
from cute_gemm.problem.epilogue.rounding import TYPES
from cute_gemm.problem.epilogue.rows import FUNCTIONS

#: Rows, columns and k: `thin`, split-K, many tiles, unaligned operands.
SHAPES = ((1, 4096, 4096), (16, 1024, 8192), (96, 512, 8192), (1024, 2048, 512), (300, 194, 333))
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def same(name: str, found: Any, expected: Any) -> bool:
    """Return whether both have the same bits. For relu, -0 equals 0, as PyTorch versions differ."""
    if name.startswith("relu"):
        return torch.equal(found, expected)
    return torch.equal(bits(found), bits(expected.contiguous()))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_bits(name: str, dtype: torch.dtype) -> None:
    for place, shape in enumerate(SHAPES):
        for scale in (1.0, 4.0):
            x, w, b = drawn(*shape, dtype, scale)
            bias = (b, None)[place % 2]
            expected = ACTIVATIONS[name](ct.linear(x, w, bias))
            for _ in range(3):  # the second and third calls take the fast path
                found = ct.linear(x, w, bias, name, unfused_bits=True)
                assert same(name, found, expected), f"{shape}, magnitude {scale}"


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_where_gradients_are_recorded(name: str) -> None:
    x, w, b = (each.requires_grad_() for each in drawn(256, 512, 1024, torch.bfloat16))
    second = torch.randn(64, 256 if name in ("swiglu", "geglu") else 512, device="cuda").bfloat16()
    expected = ACTIVATIONS[name](ct.linear(x, w, b))
    for _ in range(2):
        assert same(name, ct.linear(x, w, b, name, unfused_bits=True), expected)
        found = ct.mlp(x, w, b, second, None, name, unfused_bits=True)
        assert same(name, found, ct.linear(expected, second))
    layer = ct.Linear(1024, 512, activation=name, device="cuda", dtype=torch.bfloat16,
                      batch_invariant=True, unfused_bits=True)  # fmt: skip
    program = ACTIVATIONS[name](ct.linear(x, layer.weight, layer.bias, batch_invariant=True))
    assert same(name, layer(x), program)
    with torch.no_grad():
        assert same(name, layer(x), program)


def test_three_dimensions_that_are_not_one_matrix() -> None:
    x, w, b = drawn(4 * 96, 512, 1024, torch.bfloat16)
    x = x.view(96, 4, 1024).transpose(0, 1)
    for name in ("gelu", "swiglu"):
        expected = ACTIVATIONS[name](ct.linear(x, w, b))
        assert same(name, ct.linear(x, w, b, name, unfused_bits=True), expected)


@pytest.mark.parametrize("name", TYPES)
def test_every_number_is_rounded_as_numpy_does(name: str) -> None:
    bits_of = torch.randint(-(2**31), 2**31, (1 << 20, 1), device="cuda", dtype=torch.int64)
    x = bits_of.to(torch.int32).view(torch.float32)
    one = torch.ones(1, 1, device="cuda")
    function = cg.epilogue(lambda acc: cg.round_to(acc, name))
    found = cg.gemm("NT", x, one, order="C", epilogue=function, kernel="naive").cpu()
    expected = torch.from_numpy(FUNCTIONS[f"round_to_{name}"].numpy(x.cpu().numpy()))
    nan = expected.isnan()
    assert torch.equal(found.isnan(), nan) and torch.equal(found[~nan], expected[~nan])
