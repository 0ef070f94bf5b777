"""A trace of CUTLASS's iterators: the unit that makes it, and what Python expects it to say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from cute_gemm.kernels.cutlass import epilogue
from cute_gemm.kernels.cutlass.config import CutlassUniversalConfig
from cute_gemm.kernels.cutlass.shared import Requests, fragment_loads, shared_stores
from cute_gemm.kernels.cutlass.universal import CutlassUniversal
from cute_gemm.problem.problem import from_sizes
from cute_gemm.toolchain.unit import TranslationUnit

KERNEL = CutlassUniversal()
HEADER = Path(__file__).parent / "gpu" / "cutlass_trace.cuh"
SYMBOL = "trace_cutlass"
#: Parts of the output (stores of A and B, fragments of A and B, staged sums written and read), and
#: the words of each.
SECTIONS, SECTION = 6, 1 << 17

#: dtype, compute, output type.
TYPES = (
    ("float16", None, "float16"),
    ("bfloat16", None, "bfloat16"),
    ("float16", None, "float32"),
    ("float32", "tf32", "float32"),
    ("float32", "float32", "float32"),
    ("float64", None, "float64"),
    ("int8", None, "int32"),
)


def configs() -> Iterator[CutlassUniversalConfig]:
    """Every math with every layout, wide and narrow, with large and small tiles."""
    for dtype, compute, out in TYPES:
        for op in ("NN", "NT", "TN", "TT"):
            for size, order in ((4096, "F"), (4096, "C"), (4092, "F"), (100, "C"), (101, "F")):
                if dtype == "int8" and op != "TN" and size % 4:
                    continue
                problem = from_sizes(
                    op, m=size, n=size, k=size, dtype=dtype, compute=compute, out_dtype=out,
                    order=order,
                )  # fmt: skip
                yield KERNEL.configure(problem, "sm_80")


def unit(config: CutlassUniversalConfig) -> TranslationUnit:
    """The translation unit that traces ``config``: ``trace_cutlass(int* out)``."""
    types = KERNEL.unit(config).source.split('extern "C"')[0]
    return TranslationUnit(
        f"{types}\n"
        f"constexpr int kWord = {word_bytes(config)}, kStages = {config.stages};\n"
        f"constexpr int kSection = {SECTION};\n"
        f"{HEADER.read_text()}\n"
        f'extern "C" __global__ void __launch_bounds__({config.threads}) {SYMBOL}(int* out) {{\n'
        "  extern __shared__ __align__(128) char space[];\n"
        "  trace::steps(space, threadIdx.x, out);\n}\n",
        SYMBOL,
    )


def word_bytes(config: CutlassUniversalConfig) -> int:
    """Bytes of the words that fragments are told by: what ldmatrix transposes, or a bank's."""
    return 2 if config.math in ("half", "int8") else 4


def check(config: CutlassUniversalConfig, out: np.ndarray) -> None:
    """Hold a trace, int32 [SECTIONS, SECTION], against Python's offsets."""
    operands = ("B", "A") if config.exchange else ("A", "B")
    for part, operand in enumerate(operands):
        stores = shared_stores(config, operand)
        if config.stages > 2:
            found = out[part][: stores.offsets.size].reshape(config.threads, -1)
            np.testing.assert_array_equal(
                found, _by_thread(config, stores.offsets[..., None])[..., 0]
            )
        else:
            _check_numbered(config, stores, out[part])
        _check_fragments(config, fragment_loads(config, operand), out[2 + part])
    _check_numbered(config, epilogue.staged_stores(config), out[4])
    loads = epilogue.staged_loads(config)
    expected = _by_thread(config, _words(loads, 4))
    found = out[5][: expected.size].reshape(expected.shape)
    np.testing.assert_array_equal(found, expected)


def _by_thread(config: CutlassUniversalConfig, values: np.ndarray) -> np.ndarray:
    """[requests of all warps, 32, ...] -> [threads, requests of a warp, ...]."""
    warps = config.threads // 32
    split = values.reshape(-1, warps, 32, *values.shape[2:])
    return np.moveaxis(split, 0, 2).reshape(config.threads, -1, *values.shape[2:])


def _words(requests: Requests, size: int) -> np.ndarray:
    """Numbers of the words of each lane's vector: [requests, 32, words]."""
    offsets = requests.offsets.reshape(-1, 32, 1)
    return offsets // size + np.arange(requests.bits // 8 // size)


def _check_numbered(config: CutlassUniversalConfig, stores: Requests, memory: np.ndarray) -> None:
    """What numbered fragments leave in memory: each word where its lane puts it, -1 elsewhere."""
    where = _by_thread(config, _words(stores, 4)).reshape(config.threads, -1)
    expected = np.full(memory.shape, -1)
    expected[where] = np.arange(where.size).reshape(where.shape)
    end = where.max() + 1
    np.testing.assert_array_equal(memory[:end], expected[:end])


def _check_fragments(config: CutlassUniversalConfig, loads: Requests, found: np.ndarray) -> None:
    """What the lanes' fragments hold, of memory that holds the numbers of its words."""
    size = word_bytes(config)
    rows = loads.offsets
    if loads.instruction == "ld.shared":
        words = _words(loads, size).reshape(*rows.shape, -1)
    else:
        # Lane i names row i % 8 of matrix i // 8. Lane i gets four bytes of row i // 4 of each, or,
        # transposed, column i // 4 of rows 2 * (i % 4) and the next.
        lane = np.arange(32)
        matrices = rows.reshape(*rows.shape[:2], 4, 8)
        if loads.instruction.endswith(".trans"):
            row = lane[:, None] % 4 * 2 + np.arange(2)
            column = lane[:, None] // 4 * 2
        else:
            row = lane[:, None] // 4
            column = lane[:, None] % 4 * 4 + np.arange(0, 4, size)
        words = (matrices[..., row] + column) // size  # [groups, requests, matrices, 32, words]
        words = np.moveaxis(words, 2, 3).reshape(*rows.shape, -1)
    expected = np.stack([_by_thread(config, group) for group in words], axis=1)
    found = found[: expected.size].reshape(expected.shape)
    # float64 exchanges the two elements of a vector in registers, every other group.
    np.testing.assert_array_equal(np.sort(found, axis=-1), np.sort(expected, axis=-1))
