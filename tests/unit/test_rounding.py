"""Test `round_to` in NumPy, PyTorch and JAX: the bits of a conversion there and back."""

import numpy as np
import pytest
import torch

import cute_gemm as cg
from cute_gemm.errors import OptionError
from cute_gemm.problem.epilogue.expression import trace
from cute_gemm.problem.epilogue.rounding import TYPES
from cute_gemm.problem.epilogue.rows import FUNCTIONS

pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in cast")

#: Types that PyTorch converts to. It does not saturate to 8-bit floats.
IN_TORCH = [name for name in TYPES if name != "tf32"]


def patterns(count: int = 200_000) -> np.ndarray:
    """Return float32 numbers of every kind: random bits, ties, subnormal, near range limits."""
    random = np.random.default_rng(0)
    bits = random.integers(0, 2**32, count, np.uint32)
    ties = random.integers(0, 2**32, (5, count // 10), np.uint32)
    for row, lost in zip(ties, (13, 16, 20, 21, 29), strict=True):
        row &= np.uint32(2**32 - 2**lost)
        row |= np.uint32(1 << lost - 1)
    ends = (448, 464, 57344, 61440, 65520)
    near = [sign * (x + d) for sign in (1, -1) for d in (-1, 0, 1) for x in ends]
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 3.4028235e38, 2**-149, 2**-134, 2**-25, *near]
    small = random.standard_normal(count // 10) * 2.0 ** random.integers(-40, 10, count // 10)
    whole = [bits.view("f4"), ties.ravel().view("f4"), np.array(special, "f4"), small.astype("f4")]
    return np.concatenate(whole)


def same(found: np.ndarray, expected: np.ndarray) -> bool:
    """Return whether both have the same bits, except those of NaN."""
    nan = np.isnan(expected)
    equal = found.view(np.uint32) == expected.view(np.uint32)
    return bool((np.isnan(found) == nan).all() and equal[~nan].all())


@pytest.mark.parametrize("name", IN_TORCH)
def test_numpy_rounds_as_pytorch_converts(name: str) -> None:
    x = patterns()
    tensor = torch.from_numpy(x)
    if name.startswith("float8"):
        largest = torch.finfo(getattr(torch, name)).max
        tensor = tensor.clamp(-largest, largest)
    expected = tensor.to(getattr(torch, name)).to(torch.float32).numpy()
    assert same(FUNCTIONS[f"round_to_{name}"].numpy(x), expected)


def test_tf32_is_the_nearest_and_of_two_the_even_one() -> None:
    x = patterns()
    x = x[np.isfinite(x) & (abs(x) >= 2.0**-126)]
    mantissa, exponent = np.frexp(x.astype(np.float64))
    expected = np.ldexp(np.rint(np.ldexp(mantissa, 11)), exponent - 11)
    with np.errstate(over="ignore"):
        assert same(FUNCTIONS["round_to_tf32"].numpy(x), expected.astype(np.float32))


@pytest.mark.parametrize("name", TYPES)
def test_pytorch_and_jax_round_as_numpy_and_have_derivative_1(name: str) -> None:
    x = patterns(2000)
    row = FUNCTIONS[f"round_to_{name}"]
    assert row.torch is not None and row.jax is not None
    given = torch.from_numpy(x).requires_grad_()
    result = row.torch(torch, given)
    assert same(result.detach().numpy(), row.numpy(x))
    result.backward(torch.full_like(result, 1.1))
    assert (given.grad[given.isfinite()] == 1.1).all()
    jax = pytest.importorskip("jax")
    whole = x[(abs(x) >= 2.0**-126) | (x == 0)]  # XLA's CPU backend flushes subnormal numbers to 0
    assert same(np.asarray(jax.jit(lambda x: row.jax(jax, x))(whole)), row.numpy(whole))
    assert jax.grad(lambda x: row.jax(jax, x))(jax.numpy.float32(1.2345)) == 1


def test_types_that_nothing_is_rounded_to() -> None:
    assert str(trace(lambda acc: cg.round_to(acc, torch.bfloat16))).count("round_to_bfloat16") == 1
    assert trace(lambda acc: cg.round_to(acc, "float64")) == trace(lambda acc: acc)
    with pytest.raises(OptionError, match=r"round_to\(..., dtype='int8'\); expected one of bfl"):
        trace(lambda acc: cg.round_to(acc, "int8"))
    assert trace(lambda acc, *, factor=2.0: acc * factor).operands == ()
    with pytest.raises(OptionError, match="bits='jax'; expected 'torch', or None"):
        trace(lambda acc: cg.gelu(acc, bits="jax"))
