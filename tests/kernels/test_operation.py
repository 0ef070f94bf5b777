"""Test `Operation` in symbols and units, with A and B of one type and of two types."""

from dataclasses import fields, replace

import pytest
from cases import configure

from cute_gemm.errors import DTypeError, UnsupportedError
from cute_gemm.kernels import refusals
from cute_gemm.kernels.registry import get
from cute_gemm.problem.describe import from_sizes
from cute_gemm.problem.epilogue.epilogue import LinearCombination
from cute_gemm.problem.operation import Operation
from cute_gemm.toolchain.nvrtc import prove, ptx

BASE = from_sizes("TN", m=64, n=64, k=64, dtype="float16").operation(16, 16, 16)


class Named(LinearCombination):
    name = "named"


@pytest.mark.parametrize(
    "change",
    [
        *(
            {"dtypes": x}
            for x in [("bfloat16", "bfloat16", "float16"), ("float16",) * 2 + ("float32",)]
        ),
        *(
            {"dtypes": x}
            for x in [("float16", "bfloat16", "float16"), ("bfloat16", "float16", "float16")]
        ),
        {"dtypes": ("float32",) * 3, "compute": "float32"},
        {"dtypes": ("float32",) * 3, "compute": "tf32"},
        *({"majors": x} for x in [("MN", "K", "M"), ("K", "MN", "M"), ("K", "K", "N")]),
        *({"conj": x} for x in [(True, False), (False, True), (True, True)]),
        *({"bytes": x} for x in [(8, 16, 16), (16, 8, 16), (16, 16, 8)]),
        {"epilogue": Named()},
        *({"scales": x} for x in [(1, 0), (0, 1), (128, 0), (0, 128)]),
        {"groups": "M"},
        {"zero_tail": True},
    ],
    ids=str,
)
def test_every_field_is_in_the_symbol(change: dict) -> None:
    other = replace(BASE, **change)
    assert (BASE.name, BASE.access_name) != (other.name, other.access_name)


def test_no_field_is_forgotten_above() -> None:
    names = [field.name for field in fields(Operation)]
    assert names == [
        "dtypes", "compute", "majors", "conj", "bytes", "epilogue", "scales", "groups", "zero_tail",
    ]  # fmt: skip


# -- A and B of two types --------------------------------------------------------------------------


SIZES = {"m": 256, "n": 256, "k": 256}


@pytest.mark.parametrize("swap_ab", [0, 1])
def test_a_problem_of_two_types_is_emitted_and_compiles(swap_ab: int) -> None:
    asked = from_sizes("TN", dtype="float8_e4m3fn", dtype_b="float8_e5m2", **SIZES)
    assert (asked.A.dtype, asked.B.dtype) == ("float8_e4m3fn", "float8_e5m2")
    assert asked.types == "float8_e4m3fn x float8_e5m2 -> bfloat16, compute float32"
    kernel = get("sm90_wgmma").compiled()
    options = {"tile": (128, 128, 128), "swap_ab": swap_ab, "cluster": (1, 1), "ping_pong": 0}
    config = configure(kernel, asked, "sm_90a", **options)
    assert "_e4m3_e5m2_f32_bf16_tn_col_" in config.name
    text = kernel.unit(config).source
    tags = ("E4M3E5M2", "E5M2E4M3")[swap_ab]
    assert f"MMA_64x128x32_F32{tags}_SS_TN" in text
    assert "sizeof" not in text.partition("extern")[2]
    kinds = ("e4m3.e5m2", "e5m2.e4m3")[swap_ab]
    assert f"wgmma.mma_async.sync.aligned.m64n128k32.f32.{kinds}" in ptx(
        kernel.unit(config), "sm_90a"
    )
    assert {"ElementA", "ElementB", "box B"} <= set(prove(kernel.proof(config), "sm_90a").facts)


def test_the_other_way_round_is_another_symbol() -> None:
    names = {
        from_sizes("TN", dtype=a, dtype_b=b, **SIZES).operation(16, 16, 16).name
        for a, b in [("float8_e4m3fn", "float8_e5m2"), ("float8_e5m2", "float8_e4m3fn")]
    }
    assert len(names) == 2


def test_kernels_of_one_type_refuse_two() -> None:
    asked = from_sizes("TN", dtype="float8_e4m3fn", dtype_b="float8_e5m2", **SIZES)
    for name in ("vectorized", "tensor_core", "cutlass_universal"):
        with pytest.raises(
            UnsupportedError, match="does not take float8_e4m3fn x float8_e5m2 with"
        ):
            refusals.check(get(name), asked, "sm_90a")


def test_types_that_nothing_multiplies_with_each_other_are_refused() -> None:
    with pytest.raises(DTypeError, match="A has dtype float16 and B has dtype bfloat16; expected"):
        from_sizes("NN", dtype="float16", dtype_b="bfloat16", **SIZES)
