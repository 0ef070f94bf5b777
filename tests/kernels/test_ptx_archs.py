"""Test the PTX that NVRTC emits for each architecture: C is right, accesses as reported."""

from typing import Any

import numpy as np
import pytest

import cute_gemm as cg
from cute_gemm.dtypes import DTYPES
from cute_gemm.ptx.parser import parse


def stored(rows: int, columns: int, dtype: str, pad: int = 0, l: int = 0) -> np.ndarray:
    """Return random numbers with contiguous rows and a padding of ``pad`` elements."""
    random, kind = np.random.default_rng(rows + columns), DTYPES[dtype].numpy
    size = (*((l,) if l else ()), rows, columns + pad)
    values = random.integers(-9, 9, size) if dtype == "int8" else random.standard_normal(size)
    return values.astype(kind)[..., :columns]


#: From sm_100 on, PTX has generic pointers, and results of mma in untyped registers.
KERNELS: list[tuple[str, str, str, dict[str, Any]]] = [
    ("sm_86", "naive", "float32", {}), ("sm_89", "thin", "float8_e4m3fn", {}),
    ("sm_90", "sm80_pipeline", "float64", {}),
    ("sm_100", "sm80_pipeline", "float16", {"pack": "AB", "split_k": 2}),
    ("sm_103", "batched", "bfloat16", {}), ("sm_103", "tensor_core", "int8", {}),
    ("sm_120", "sm80_pipeline", "float8_e4m3fn", {}), ("sm_120", "sm80_pipeline", "complex128", {}),
    ("sm_120", "sm80_pipeline", "float32", {"compute": "tf32"}),
    ("sm_120", "double_buffered", "float8_e5m2", {}),
    ("sm_120", "cutlass_universal", "float16", {}),
]  # fmt: skip


@pytest.mark.parametrize(("arch", "kernel", "dtype", "options"), KERNELS)
def test_kernels_of_every_architecture(arch, kernel, dtype, options) -> None:
    m, l = (7, 3) if kernel == "batched" else (7 if kernel == "thin" else 70, 0)
    A, B = stored(m, 40, dtype, l=l), stored(40, 48, dtype, l=l)
    trace = cg.plan("NN", A, B, kernel=kernel, arch=arch, backend="cpu", **options).trace(A, B)
    assert trace.verdict.ok, trace.verdict
    assert not trace.differences, trace.differences


def test_rows_that_are_not_stored_may_be_anything() -> None:
    """Test an odd n: the last pair of 8-bit floats converts an element beyond n."""
    A, B = stored(86, 43, "float8_e5m2", 1), stored(42, 43, "float8_e5m2")
    plan = cg.plan(
        "NT", A, B, kernel="double_buffered", arch="sm_89", backend="cpu", out_dtype="float32"
    )
    assert plan.trace(A, B).agrees


@pytest.mark.parametrize(
    "said", ["", ".ptr", ".ptr .align 1", ".ptr .global", ".ptr .global .align 16", ".ptr\t.shared"]
)
def test_what_is_said_of_pointers(said: str) -> None:
    kernel = parse(f".visible .entry k(.param .u64 {said} k_param_0, .param .u32 n) {{ ret; }}")
    assert list(kernel.parameters) == ["k_param_0", "n"]
    assert [x.offset for x in kernel.parameters.values()] == [0, 8]
