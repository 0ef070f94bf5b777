"""``batch_invariant=True``: rows of C whose bits do not depend on the others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from cases import numbers

import cute_gemm as cg
import cute_gemm.torch as ct
from cute_gemm.errors import OptionError
from cute_gemm.frameworks.torch import CALLED

TYPES = {
    "float16": {}, "float32": {}, "float32/tf32": {"compute": "tf32"}, "float64": {},
    "complex64": {}, "complex128": {}, "float8_e4m3fn": {}, "float32/bf16x6": {"compute": "bf16x6"},
}  # fmt: skip
MANY = (1, 2, 33, 128, 5000)


def orders(arch: str, dtype: str, n: int, k: int, op: str = "NT", **given: Any) -> set[Any]:
    options = TYPES[dtype] | given
    name = dtype.partition("/")[0]
    plans = [
        cg.plan(op, m=m, n=n, k=k, dtype=name, arch=arch, batch_invariant=True, backend="cpu",
                **options)
        for m in MANY
    ]  # fmt: skip
    return {plan.order_of_sums for plan in plans}


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_one_order_for_every_m(arch: str, dtype: str) -> None:
    if dtype.endswith("bf16x6") and arch == "sm_80":
        pytest.skip("components are multiplied on sm_90a")
    for n, k, storage in ((512, 4096, "F"), (4096, 512, "C"), (96, 8192, "C"), (4096, 512, "F")):
        found = orders(arch, dtype, n, k, storage=storage, order=storage)
        single = dtype.startswith("complex") and storage == "F"  # a row, which is row-major too
        assert len(found) == 1 + single


def test_free_choices_differ() -> None:
    sizes = {"n": 512, "k": 8192, "dtype": "float16", "arch": "sm_90a", "backend": "cpu"}
    assert len({cg.plan("TN", m=m, **sizes).order_of_sums for m in MANY}) > 1


def test_what_the_order_does_not_depend_on() -> None:
    """An epilogue, and how A and C are aligned."""
    n, k = 512, 1024
    (plain,) = orders("sm_90a", "float16", n, k, storage="C", order="C")
    assert orders("sm_90a", "float16", n, k, storage="C", order="C", lda=1027, ldc=513) == {plain}
    assert orders("sm_90a", "float16", n, k, storage="C", order="C", epilogue="bias+relu") == {
        plain
    }


def test_slices_that_are_given_stay() -> None:
    (order,) = orders("sm_90a", "float16", 512, 4096, split_k=3)
    assert order.slices == 3 and "3 slices of 1,408 of k, added in order" in str(order)


@pytest.mark.parametrize(
    ("dtype", "arch"),
    [("float16", "sm_90a"), ("float16", "sm_80"), ("float32", "sm_80"), ("float64", "sm_80"),
     ("complex128", "sm_80"), ("float8_e4m3fn", "sm_90a"), ("float32/bf16x6", "sm_90a")],
)  # fmt: skip
def test_bits_in_the_interpreter(dtype: str, arch: str) -> None:
    name, _, compute = dtype.partition("/")
    random = np.random.default_rng(0)
    options = {"compute": compute or None, "order": "C", "arch": arch, "backend": "interpreter"}
    A, B = (numbers(random, (rows, 320), name) for rows in (150, 48))
    found = [cg.gemm("NT", A[:m], B, batch_invariant=True, **options) for m in (1, 5, 150)]
    for C in found:
        assert (C.view(np.uint8) == found[-1][: len(C)].view(np.uint8)).all()


#: Configs of which plans sum in one order, though their tiles differ, or A and B are swapped.
ALIKE: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "complex128": (
        {"arch": "sm_80", "kernel": "sm80_pipeline"},
        [{"tile": (16, 16, 16), "warps": (1, 2)}, {"tile": (32, 32, 16), "warps": (2, 2)}],
    ),
    **{
        f"float32/{compute}": (
            {"arch": "sm_90a", "kernel": "sm90_wgmma", "groups": 1, "stages": 2, "cluster": (1, 1)},
            [{"tile": (64, 32, 64), "swap_ab": 0}, {"tile": (32, 64, 64), "swap_ab": 1}],
        )
        for compute in ("bf16x6", "bf16x9")
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", ALIKE)
def test_tiles_of_one_order_in_the_interpreter(kind: str) -> None:
    """Equal orders of sums are equal bits, in every column of the tiles."""
    dtype, _, compute = kind.partition("/")
    random = np.random.default_rng(1)
    A, B = (numbers(random, (rows, 72), dtype) for rows in (40, 36))
    common, configs = ALIKE[kind]
    found, orders = [], set()
    for config in configs:
        plan = cg.plan(
            "NT", A, B, compute=compute or None, backend="interpreter", **common, **config
        )
        found.append(plan(A, B).tobytes())
        orders.add(plan.order_of_sums)
    assert len(orders) == 1 and found[0] == found[1]


def test_refused() -> None:
    sizes = {"m": 64, "n": 64, "k": 64, "dtype": "float32", "backend": "cpu"}
    with pytest.raises(OptionError, match="came with kernel 'thin', whose sums depend on m"):
        cg.plan("NN", **sizes, kernel="thin", batch_invariant=True)
    with pytest.raises(OptionError, match="batch_invariant='maybe' does not fit"):
        cg.plan("NN", **sizes, batch_invariant="maybe")


@pytest.mark.filterwarnings("ignore:no usable GPU")
def test_a_layer_asks_for_it() -> None:
    seen: list[dict[str, Any]] = []

    def spy(*given: Any, **keywords: Any) -> Any:
        seen.append(keywords)
        return cg.gemm(*given, **keywords)

    CALLED["gemm"] = spy
    try:
        layer = ct.Linear(24, 16, activation="gelu", batch_invariant=True)
        x = torch.randn(2, 5, 24).transpose(0, 1)
        with torch.no_grad():
            layer(x)
        layer(x).sum().backward()
        torch.compile(layer, backend="aot_eager", fullgraph=True)(x).sum().backward()
        forward = [keywords for keywords in seen if "epilogue" in keywords]
        assert len(forward) == 3
        assert all(keywords["batch_invariant"] is True for keywords in forward)
        expected = torch.nn.functional.gelu(torch.nn.functional.linear(x, layer.weight, layer.bias))
        torch.testing.assert_close(layer(x), expected)
    finally:
        CALLED["gemm"] = cg.gemm
