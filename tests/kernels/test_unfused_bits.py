"""Test epilogues that round like the unfused program: equal bits in the interpreter."""

from typing import Any

import numpy as np
import pytest
from cases import placed

import cute_gemm as cg
from cute_gemm.errors import OptionError, UnsupportedError
from cute_gemm.problem.epilogue.rounding import TYPES
from cute_gemm.problem.epilogue.rows import ACTIVATIONS, FUNCTIONS
from cute_gemm.problem.layers import GATED, biases, forward, pairs_of
from cute_gemm.ptx import Buffer, run
from cute_gemm.toolchain.nvrtc import ptx
from cute_gemm.toolchain.unit import TranslationUnit

M, N, K = 24, 48, 40


def bits(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x).view(f"u{x.dtype.itemsize}")


def computed(A: Any, B: Any, name: str, bias: Any = None, rounded: str = "", **options: Any) -> Any:
    """Return a layer's output in the interpreter, with an activation or none."""
    function = forward(name, bias is not None, False, rounded)
    given = {"order": "C", "backend": "interpreter", **options}
    return cg.gemm("NT", A, B, epilogue=function, **biases(pairs_of(name), bias), **given)


def layer(dtype: str, m: int = M, n: int = N, k: int = K) -> tuple[Any, Any, Any]:
    A, B = placed((m, k), dtype)[0], placed((n, k), dtype)[0]
    return A, B / B.dtype.type(4), placed((1, n), dtype)[0][0]


def unfused(z: Any, name: str, **options: Any) -> Any:
    """Return the activation of a stored product, which is multiplied by the identity, exactly.

    For pairs of columns, the gate is stored before the product.
    """
    if name not in GATED:
        return computed(z, np.eye(z.shape[1], dtype=z.dtype), name, rounded=z.dtype.name, **options)
    y = unfused(np.ascontiguousarray(z[:, 0::2]), GATED[name], **options)
    product = y.astype(np.float32) * z[:, 1::2].astype(np.float32)
    return product.astype(z.dtype)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("name", [*ACTIVATIONS, *GATED])
def test_bits_are_those_of_the_unfused_program(name: str, dtype: str) -> None:
    A, B, bias = layer(dtype)
    z = computed(A, B, "", bias, kernel="naive")
    found = computed(A, B, name, bias, dtype, kernel="naive")
    expected = unfused(z, name, kernel="naive")
    assert found.shape == expected.shape and (bits(found) == bits(expected)).all()
    if dtype != "float32" and name != "relu":
        other = computed(A, B, name, bias, kernel="naive")
        assert (bits(other) != bits(expected)).mean() > 0.05


WGMMA = {"kernel": "sm90_wgmma", "arch": "sm_90a", "tile": (64, 64, 64), "warp_groups": 1}


@pytest.mark.parametrize(
    "options",
    [{"kernel": "sm80_pipeline"}, {"kernel": "sm80_pipeline", "split_k": 3}, {"kernel": "thin"},
     WGMMA, WGMMA | {"split_k": 2}],
    ids=lambda x: " ".join((x["kernel"], *(["split_k"] if "split_k" in x else []))),
)  # fmt: skip
@pytest.mark.parametrize("name", ["gelu_tanh", "swiglu"])
def test_of_every_kind_of_kernel(name: str, options: dict[str, Any]) -> None:
    A, B, bias = layer("bfloat16", m=8 if options["kernel"] == "thin" else 72, k=256)
    z = computed(A, B, "", bias, **options)
    found = computed(A, B, name, bias, "bfloat16", **options)
    assert (bits(found) == bits(unfused(z, name, kernel="naive"))).all()


def of_pytorch(name: str, x: np.ndarray) -> np.ndarray:
    """Return PyTorch's float32 results of activations of maximum and minimum."""
    if name == "hardswish":
        clipped = np.minimum(np.maximum(x + np.float32(3), 0), 6).astype(np.float32)
        return x * clipped * np.float32(1 / 6)
    positive = np.where(x < 0, np.float32(0), x)
    return positive * positive if name == "relu2" else positive


@pytest.mark.parametrize("name", ["relu", "relu2", "hardswish"])
def test_functions_without_others_have_the_bits_of_pytorch(name: str) -> None:
    x = np.random.default_rng(0).standard_normal((M, N)).astype("f4") * 3
    found = computed(x, np.eye(N, dtype="f4"), name, rounded="float32", kernel="naive")
    assert (bits(found) == bits(of_pytorch(name, x))).all()


#: Activations as in PyTorch's kernels, for a float x. The compiler contracts them to FMAs.
PLAIN = {
    "tanh": "tanhf(x)",
    "sigmoid": "1.0f / (1.0f + expf(-x))",
    "silu": "x / (1.0f + expf(-x))",
    "gelu": "x * 0.5f * (1.0f + erff(x * 0.70710678118654752440f))",
    "gelu_tanh": "0.5f * x * (1.0f + tanhf(beta * (x + 0.044715f * (x * x * x))))",
}
BETA = "constexpr float beta = float(1.41421356237309504880 * 1.12837916709551257390 * 0.5f);"


def test_what_is_fused_is_what_the_compiler_fuses() -> None:
    """Test all bfloat16 values, and random float32 numbers: the same bits as the plain text."""
    entries = [
        f'extern "C" __global__ void {name}(float const* in, float* out, unsigned) {{\n'
        f"  int const i = blockIdx.x * blockDim.x + threadIdx.x;\n"
        f"  float const x = in[i];\n  out[i] = {text};\n}}\n"
        for name, text in (
            *((f"plain_{name}", text) for name, text in PLAIN.items()),
            *((f"own_{name}", f"cute_gemm::torch::{name}(x)") for name in PLAIN),
        )
    ]
    source = f'#include "common/functions.cuh"\n{BETA}\n{"".join(entries)}'
    code = ptx(TranslationUnit(source, "own_tanh"), "sm_90a")
    random = np.random.default_rng(0)
    every = np.arange(1 << 16, dtype=np.uint32) << np.uint32(16)
    drawn = random.standard_normal(1 << 14) * 4
    x = np.concatenate([every.view("f4"), drawn.astype("f4")])
    for name in PLAIN:
        found, expected = (np.zeros_like(x) for _ in range(2))
        for kind, out in (("own", found), ("plain", expected)):
            arguments = [Buffer(x, "in"), Buffer(out, "out"), np.uint32(0)]
            run(code, f"{kind}_{name}", (x.size // 1024,), (1024,), 0, arguments)
        nan = np.isnan(expected)
        assert (np.isnan(found) == nan).all() and (bits(found) == bits(expected))[~nan].all(), name
        assert np.isfinite(found).sum() > x.size // 2


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", TYPES)
def test_a_gpu_rounds_as_numpy(name: str, arch: str) -> None:
    random = np.random.default_rng(0)
    x = random.integers(0, 2**32, (256, 1), np.uint32)
    x[:64] &= np.uint32(0xFFF00000)
    x[:64] |= random.choice(np.array([0, 0x1000, 0x8000, 0x80000], np.uint32), (64, 1))
    x = x.view("f4")
    x[64:128] = random.standard_normal((64, 1)) * 2.0 ** random.integers(-30, 20, (64, 1))
    x[-4:, 0] = np.inf, -np.inf, np.nan, 0
    one = np.ones((1, 1), "f4")
    given = {"order": "C", "kernel": "naive", "backend": "interpreter", "arch": arch}
    found = cg.gemm("NT", x, one, epilogue=lambda acc: cg.round_to(acc, name), **given)
    with np.errstate(all="ignore"):
        expected = FUNCTIONS[f"round_to_{name}"].numpy(x)
    nan = np.isnan(expected)
    assert (np.isnan(found) == nan).all() and (bits(found) == bits(expected))[~nan].all()


# ---- the order of summation ---------------------------------------------------------------------


@pytest.mark.parametrize("epilogue", ["bias+gelu", "swiglu"])
def test_a_plan_sums_in_the_order_of_another(epilogue: str) -> None:
    for m, n, k, dtype, gpu in (
        (1, 4096, 4096, "bfloat16", "H200"), (1, 968, 1764, "float32", "H200"),
        (3855, 5572, 62, "bfloat16", "H200"), (1, 608, 1402, "float32", "H200"),
        (128, 4096, 16384, "bfloat16", "H200"),
    ):  # fmt: skip
        given: dict[str, Any] = {
            "m": m, "n": n, "k": k, "dtype": dtype, "gpu": gpu, "order": "C", "storage": "C",
            "backend": "cpu",
        }  # fmt: skip
        order = cg.plan("NT", **given, epilogue="bias").order_of_summation
        plan = cg.plan("NT", **given, epilogue=epilogue, order_of_summation=order)
        assert plan.order_of_summation == order
        assert {x.config.name for x in plan.candidates()} >= {plan.config.name}


def test_orders_of_summation_that_do_not_fit() -> None:
    given: dict[str, Any] = {"m": 64, "n": 64, "k": 64, "arch": "sm_90a", "backend": "cpu"}
    order = cg.plan("NT", **given, dtype="float16").order_of_summation
    with pytest.raises(
        OptionError, match="order_of_summation='fast' does not fit; expected plan.ord"
    ):
        cg.plan("NT", **given, dtype="float16", order_of_summation="fast")
    with pytest.raises(UnsupportedError, match="no config has the order sm90_wgmma: wgmma of 16"):
        cg.plan("NT", **given, dtype="float32", order_of_summation=order)
