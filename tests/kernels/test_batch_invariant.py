"""Test ``batch_invariant=True``: the bits of a row of C do not depend on the other rows."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from cases import numbers

import cute_gemm as cg
import cute_gemm.torch as ct
from cute_gemm.dtypes import DTYPES
from cute_gemm.errors import OptionError, UnsupportedError
from cute_gemm.torch import running

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
    return {plan.order_of_summation for plan in plans}


def bits(C: np.ndarray) -> bytes:
    return np.ascontiguousarray(C).tobytes()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_one_order_for_every_m(arch: str, dtype: str) -> None:
    if dtype.endswith("bf16x6") and arch == "sm_80":
        pytest.skip("components are multiplied on sm_90a")
    for n, k, storage in ((512, 4096, "F"), (4096, 512, "C"), (96, 8192, "C"), (4096, 512, "F")):
        assert len(orders(arch, dtype, n, k, storage=storage, order=storage)) == 1


class Drawn(NamedTuple):
    """A random product of any m: the arguments of `cg.plan` except m, lda and arrays."""

    op: str
    n: int
    k: int
    dtype: str
    pad: int
    options: dict[str, Any]
    groups: str = ""

    @classmethod
    def by(cls, seed: int) -> Drawn:
        draw = random.Random(seed)
        dtype = draw.choice((*TYPES, "bfloat16", "float32/bf16x9", "int8"))
        archs = ["sm_90a"]
        if "/bf16x" not in dtype:
            archs += ["sm_89"] + ["sm_80"] * (not dtype.startswith("float8"))
        options = {"arch": draw.choice(archs), "order": draw.choice("FC"), "backend": "cpu"}
        computed = dtype.partition("/")[2]
        options |= {"compute": computed} if computed else {}
        if draw.random() < 0.3 and not dtype.startswith(("complex", "int8")):
            options["epilogue"] = draw.choice(("relu", "bias+gelu"))
        if draw.random() < 0.3 and computed == "" and dtype not in ("int8", "complex64"):
            options["kernel"] = "sm80_pipeline"
        groups = draw.choice("MNK") if draw.random() < 0.3 and "/bf16x" not in dtype else ""
        if groups:
            options.pop("epilogue", "")
        op = draw.choice("NT") + draw.choice("NT")
        sizes = [draw.choice(range(1, 700)) for _ in "nk"]
        return cls(op, *sizes, dtype.partition("/")[0], draw.choice((0, 1, 8)), options, groups)

    def plan(self, m: int) -> cg.Plan:
        stored_k = self.op[0] == "N"  # row-major
        sizes = {"m": m, "n": self.n, "k": self.k}
        if not self.groups:
            lda = (self.k if stored_k else m) + self.pad
            return cg.plan(self.op, **sizes, dtype=self.dtype, storage="C", lda=lda,
                           batch_invariant=True, **self.options)  # fmt: skip
        shapes = [(m, self.k) if stored_k else (self.k, m)]
        shapes.append((self.k, self.n) if self.op[1] == "N" else (self.n, self.k))
        A, B = (np.empty((*shape[:-1], shape[-1] + self.pad), DTYPES[self.dtype].numpy)
                for shape in shapes)  # fmt: skip
        A, B = A[:, : shapes[0][1]], B[:, : shapes[1][1]]
        if self.groups == "N":
            A = np.stack([A, A])
        if self.groups == "M":
            B = np.stack([B, B])
        extent = sizes[self.groups.lower()]
        ends = np.array([extent // 3, extent], np.int32)
        return cg.plan(self.op, A, B, offsets=ends, batch_invariant=True, **self.options)


@pytest.mark.parametrize("seed", range(40))
def test_one_order_for_every_m_of_drawn_products(seed: int) -> None:
    drawn = Drawn.by(seed)
    assert len({drawn.plan(m).order_of_summation for m in (1, 3, 40, 300, 1500)}) == 1, drawn


def test_free_selections_differ() -> None:
    sizes = {"n": 512, "k": 8192, "dtype": "float16", "arch": "sm_90a", "backend": "cpu"}
    assert len({cg.plan("TN", m=m, **sizes).order_of_summation for m in MANY}) > 1


def test_what_the_order_does_not_depend_on() -> None:
    """Test that the order does not depend on the epilogue, or the alignment of A and C."""
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
    ("dtype", "arch", "order"),
    [("float16", "sm_90a", "C"), ("float16", "sm_80", "C"), ("float32", "sm_80", "C"),
     ("float64", "sm_80", "C"), ("float8_e4m3fn", "sm_90a", "C"),
     ("float32/bf16x6", "sm_90a", "C"), ("complex128", "sm_80", "F")],
)  # fmt: skip
def test_bits_in_the_interpreter(dtype: str, arch: str, order: str) -> None:
    name, _, compute = dtype.partition("/")
    random = np.random.default_rng(0)
    options = {"compute": compute or None, "order": order, "arch": arch, "backend": "interpreter"}
    A, B = (numbers(random, (rows, 320), name) for rows in (150, 48))
    found = [cg.gemm("NT", A[:m], B, batch_invariant=True, **options) for m in (1, 5, 150)]
    for C in found:
        assert bits(C) == bits(found[-1][: len(C)])


#: Configs with one order of summation, but different tiles, or with A and B swapped.
ALIKE: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "complex128": (
        {"arch": "sm_80", "kernel": "sm80_pipeline"},
        [{"tile": (16, 16, 16), "warps": (1, 2)}, {"tile": (32, 32, 16), "warps": (2, 2)},
         {"tile": (16, 16, 16), "warps": (1, 2), "order": "C"}],
    ),
    **{
        f"float32/{compute}": (
            {"arch": "sm_90a", "kernel": "sm90_wgmma", "warp_groups": 1, "stages": 2,
             "cluster": (1, 1)},
            [{"tile": (64, 32, 64), "swap_ab": 0}, {"tile": (32, 64, 64), "swap_ab": 1}],
        )
        for compute in ("bf16x6", "bf16x9")
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", ALIKE)
def test_tiles_of_one_order_in_the_interpreter(kind: str) -> None:
    """Test that configs with equal orders of summation give equal bits in all columns."""
    dtype, _, compute = kind.partition("/")
    random = np.random.default_rng(1)
    A, B = (numbers(random, (rows, 72), dtype) for rows in (40, 36))
    common, configs = ALIKE[kind]
    found, orders = set(), set()
    for config in configs:
        plan = cg.plan(
            "NT", A, B, compute=compute or None, backend="interpreter", **common, **config
        )
        found.add(bits(plan(A, B)))
        orders.add(plan.order_of_summation)
    assert len(orders) == len(found) == 1


def test_rows_that_are_put_in_place_have_an_order_of_their_own() -> None:
    """Test that packing changes the bits: unpacked rows are loaded in another order of k tiles."""
    random = np.random.default_rng(2)
    A, B = (numbers(random, (rows, 171), "bfloat16") for rows in (40, 24))
    found, orders = [], []
    for pack in ("none", "A", "AB"):
        plan = cg.plan("NT", A, B, kernel="sm80_pipeline", pack=pack, out_dtype="float32",
                       arch="sm_80", backend="interpreter")  # fmt: skip
        found.append(bits(plan(A, B)))
        orders.append(plan.order_of_summation)
    assert orders[0] == orders[1] != orders[2]
    assert found[0] == found[1] != found[2]


def test_imaginary_parts_of_single_columns_have_an_order_of_their_own() -> None:
    """Test thread tiles. Threads with several columns first add products with B's real parts."""
    found = {
        cg.plan("NT", m=32, n=32, k=40, dtype="complex64", kernel="double_buffered", arch="sm_80",
                tile=(32, 32, 16), thread_tile=thread_tile, backend="cpu").order_of_summation
        for thread_tile in ((2, 2), (4, 1))
    }  # fmt: skip
    assert len(found) == 2


@pytest.mark.parametrize("op", ["NN", "TT"])
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_groups_along_k_in_the_interpreter(arch: str, op: str) -> None:
    """Test each row of each group's product, with groups that begin at any k."""
    random = np.random.default_rng(4)
    A, B = (numbers(random, (rows, 171), "bfloat16") for rows in (70, 24))
    ends = np.array([37, 37, 120, 171], np.int32)
    found, orders = [], set()
    for m in (1, 5, 70):
        given = A[:m] if op[0] == "N" else np.ascontiguousarray(A[:m].T)
        other = np.ascontiguousarray(B.T) if op[1] == "N" else B
        plan = cg.plan(op, given, other, offsets=ends, batch_invariant=True, out_dtype="float32",
                       order="C", arch=arch, backend="interpreter")  # fmt: skip
        found.append(plan(given, other, offsets=ends))
        orders.add(plan.order_of_summation)
    assert len(orders) == 1
    for C in found:
        assert bits(C) == bits(found[-1][:, : C.shape[1]])


def test_refused() -> None:
    sizes = {"m": 64, "n": 64, "k": 64, "dtype": "float32", "backend": "cpu"}
    with pytest.raises(OptionError, match="came with kernel 'thin', whose order of summation"):
        cg.plan("NN", **sizes, kernel="thin", batch_invariant=True)
    with pytest.raises(OptionError, match="batch_invariant='maybe' does not fit"):
        cg.plan("NN", **sizes, batch_invariant="maybe")
    odd = {"m": 33, "n": 64, "k": 171, "dtype": "float16", "arch": "sm_80", "backend": "cpu",
           "storage": "C"}  # fmt: skip
    with pytest.raises(UnsupportedError, match=r"batch_invariant=True came with .* leave out pack"):
        cg.plan("TN", **odd, kernel="sm80_pipeline", pack="none", batch_invariant=True)
    assert cg.plan("TN", **odd, kernel="sm80_pipeline", batch_invariant=True).algorithm.pack == "A"


@pytest.mark.filterwarnings("ignore:no usable GPU")
def test_a_layer_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []

    def spy(*given: Any, **keywords: Any) -> Any:
        seen.append(keywords)
        return cg.gemm(*given, **keywords)

    monkeypatch.setattr(running, "gemm", spy)
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
