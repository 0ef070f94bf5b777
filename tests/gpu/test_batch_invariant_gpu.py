"""Test ``batch_invariant=True`` on a GPU: equal orders of summation give equal bits."""

from typing import Any

import pytest
import torch
from graph_times import numbers

import cute_gemm as cg

TYPES = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128", "int8",
         "float8_e4m3fn", "float32/tf32", "float32/bf16x9")  # fmt: skip
#: n and k of the products.
SIZES = ((512, 4096), (3000, 512), (96, 8192), (260, 1032))


def bits(x: Any) -> Any:
    return x.contiguous().view(torch.uint8)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("dtype", TYPES)
def test_rows_have_the_same_bits(dtype: str, size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    name, _, compute = dtype.partition("/")
    n, k = size
    A, B = numbers(name, 2000, k), numbers(name, n, k)
    given = {"compute": compute or None, "order": "C", "batch_invariant": True}
    whole = cg.gemm("NT", A, B, **given)
    for m in (1, 3, 17, 64, 129, 700, 1999):
        for begin in (0, 2000 - m):
            part = cg.gemm("NT", A[begin : begin + m], B, **given)
            assert torch.equal(bits(part), bits(whole[begin : begin + m])), (m, begin)
    others = numbers(name, 2000, k)
    others[5] = A[5]
    assert torch.equal(bits(cg.gemm("NT", others, B, **given)[5]), bits(whole[5]))


@pytest.mark.parametrize("dtype", TYPES)
def test_equal_orders_give_equal_bits(dtype: str) -> None:
    """Test configs with the same order of summation, of every kernel that supports the option."""
    torch.manual_seed(0)
    name, _, compute = dtype.partition("/")
    A, B = numbers(name, 200, 1000), numbers(name, 136, 1000)
    plan = cg.plan("NT", A, B, compute=compute or None, order="C")
    plans: dict[Any, list[cg.Plan]] = {}
    for candidate in plan.candidates():
        if not candidate.kernel.batch_invariant:
            continue
        options = {x: getattr(candidate.config, x) for x in candidate.kernel.options}
        options |= {
            "pack": candidate.algorithm.pack or "none",
            "split_k": candidate.algorithm.split_k,
        }
        made = cg.plan("NT", A, B, compute=compute or None, order="C",
                       kernel=candidate.kernel.name, **options)  # fmt: skip
        same = plans.setdefault(made.order_of_summation, [])
        if len(same) < 12:
            same.append(made)
    cg.compile([made for same in plans.values() for made in same])
    for order, (first, *others) in plans.items():
        expected = bits(first(A, B))
        for made in others:
            found = bits(made(A, B))
            assert torch.equal(found, expected), f"{order}: {made.symbol} and {first.symbol}"
    assert plans


def test_calls_repeat_to_the_bit() -> None:
    torch.manual_seed(0)
    for m, n, k in ((64, 512, 8192), (1000, 1000, 1000)):
        A, B = torch.randn(m, k, device="cuda"), torch.randn(k, n, device="cuda")
        assert len({bits(cg.gemm("NN", A, B)).cpu().numpy().tobytes() for _ in range(5)}) == 1
