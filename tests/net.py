"""Compare configs, launches, units, reports and errors of random calls with stored ones.

``tests/data/net.json.gz`` has the stored results. A change that keeps the behavior must not change
them; any other change must describe which results it changes. Kernel selection uses the
calibrations of ``frozen.py``, so that new calibrations change nothing.

    python tests/net.py            # compare all, print differences, exit with 1 if there are any
    python tests/net.py 10         # compare every tenth call
    python tests/net.py --write    # draw new calls and store their results
"""

import gzip
import hashlib
import json
import os
import random
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from cases import LADDER, OPS
from frozen import frozen_calibrations

import cute_gemm as cg
from cute_gemm.errors import GemmError
from cute_gemm.kernels import registry

Call = dict[str, Any]
DATA = Path(__file__).parent / "data"
STORED = DATA / "net.json.gz"

GPUS = ("H200", "H200", "H200", "H100", "A100", "RTX 4090")
HALF, FLOAT8 = ("float16", "bfloat16"), ("float8_e4m3fn", "float8_e5m2")
REAL = (*HALF, "float32", "float64")
COMPLEX = ("complex64", "complex128")


# ---- calls ---------------------------------------------------------------------------------------


def draw_calls(count: int, seed: int = 54) -> list[Call]:
    """Return random calls of ``cute_gemm.plan`` that it accepts, as keyword arguments."""
    rng = random.Random(seed)
    kinds = (
        _dense, _dense, _dense, _layout, _layout, _named, _named, _batch, _epilogue, _epilogue,
        _pairs, _grouped, _grouped, _scaled, _scaled, _compute, _slices, _invariant, _thin,
    )  # fmt: skip
    calls: list[Call] = []
    while len(calls) < count:
        call = kinds[len(calls) % len(kinds)](rng)
        try:
            cg.plan(**call)
        except GemmError:
            continue  # draw again
        calls.append(call)
    return calls


def _extent(rng: random.Random, most: int = 8192) -> int:
    size = int(2 ** rng.uniform(3, np.log2(most)))
    return rng.choice((size, -(-size // 8) * 8, -(-size // 64) * 64))


def _problem(rng: random.Random, dtypes: tuple[str, ...], most: int = 8192) -> Call:
    call = {
        "op": rng.choice(OPS), "m": _extent(rng, most), "n": _extent(rng, most),
        "k": _extent(rng, most), "dtype": rng.choice(dtypes), "gpu": rng.choice(GPUS),
    }  # fmt: skip
    return call | rng.choice(({}, {"order": "C"}, {"storage": "C"}, {"storage": "C", "order": "C"}))


def _dense(rng: random.Random) -> Call:
    return _problem(rng, (*REAL, *COMPLEX, "int8", *HALF, *FLOAT8))


def _layout(rng: random.Random) -> Call:
    """Return a call with padded and odd leading dimensions, and unaligned base addresses."""
    call = _problem(rng, (*HALF, "float32", "float64", "complex64"))
    pad = rng.choice((1, 2, 3, 8, 64))
    largest = max(call["m"], call["n"], call["k"])
    call |= dict.fromkeys(rng.sample(("lda", "ldb", "ldc"), rng.randint(1, 3)), largest + pad)
    return call | rng.choice(({}, {"base_offset": rng.choice((1, 2, 4))}))


def _named(rng: random.Random) -> Call:
    kernel = rng.choice((*LADDER, "sm80_pipeline", "sm90_wgmma", "thin", "cutlass_universal"))
    call = _problem(rng, ("float16", "float32", "float64", "int8", "complex64"), 2048)
    call |= {"kernel": kernel}
    options: dict[str, Any] = {
        "copy": "mn_major", "stages": rng.randint(2, 5), "raster": rng.choice((1, 4, 16)),
        "min_ctas": rng.choice((1, 2)), "pack": rng.choice(("A", "B", "AB")), "skew": "padding",
        "staging": "registers", "warp_along": rng.choice("mnk"), "swap_ab": 1, "ping_pong": 1,
    }  # fmt: skip
    taken = [name for name in registry.get(kernel).options if name in options]
    return call | {name: options[name] for name in rng.sample(taken, min(len(taken), 1))}


def _batch(rng: random.Random) -> Call:
    call = _problem(rng, (*REAL, "complex64", "int8"), rng.choice((32, 64, 1024)))
    call["l"] = rng.choice((2, 3, 17, 256, 1000))
    return call | rng.choice(({}, {"batch_a": 0}, {"batch_b": 0}))


def _epilogue(rng: random.Random) -> Call:
    call = _problem(rng, (*REAL, *HALF, "float8_e4m3fn"))
    call["epilogue"] = rng.choice(
        ("bias", "relu", "bias+gelu", "bias+silu", "gelu_tanh", "residual")
    )
    return call | rng.choice(({}, {"split_k": rng.choice((2, 5))}, {"out_dtype": "float32"}))


def _pairs(rng: random.Random) -> Call:
    call = _problem(rng, (*HALF, "float32"))
    call["n"] = -(-call["n"] // 2) * 2
    return call | {"epilogue": rng.choice(("swiglu", "geglu"))}


def _grouped(rng: random.Random) -> Call:
    call = _problem(rng, (*HALF, *HALF, "float32", "float8_e4m3fn"))
    call["dtype"] = rng.choice((call["dtype"], "bfloat16"))
    call |= {"ragged": rng.choice("MNKM"), "l": rng.choice((1, 4, 7, 32))}
    return call | rng.choice(({}, {}, {"epilogue": "bias"}))


def _scaled(rng: random.Random) -> Call:
    call = _problem(rng, FLOAT8) | {"out_dtype": rng.choice((*HALF, "float32"))}
    call["gpu"] = rng.choice(("H200", "H200", "H100", "RTX 4090"))
    scale = rng.choice(("tensor", "row", "1x128", "128x128"))
    other = "128x128" if scale == "1x128" else scale
    call |= {"scale_a": scale, "scale_b": rng.choice((scale, other))}
    return call | rng.choice(({}, {"compute": "fast_accum"} if scale in ("tensor", "row") else {}))


def _compute(rng: random.Random) -> Call:
    call = _problem(rng, ("float32",))
    return call | {"compute": rng.choice(("tf32", "tf32", "bf16x9", "bf16x6"))}


def _slices(rng: random.Random) -> Call:
    call = _problem(rng, (*REAL, "int8", "complex64"), 512)
    call["k"] = rng.choice((4096, 10000, 65536, 33333))
    return call | rng.choice(({}, {}, {"split_k": rng.choice((2, 3, 7, 16))}))


def _invariant(rng: random.Random) -> Call:
    return _problem(rng, (*HALF, "float32")) | {"batch_invariant": True}


def _thin(rng: random.Random) -> Call:
    call = _problem(rng, (*REAL, "int8"))
    return call | {rng.choice("mn"): rng.randint(1, 32)}


# ---- results -------------------------------------------------------------------------------------


def outcome(call: Call) -> Call:
    """Return the launches of a call's plan, with hashes of their units and of parts of the report.

    CUTLASS's kernel has no report here, because its accesses are recorded by executing it.
    """
    plan = cg.plan(**call)
    launches = []
    for step in plan.steps:
        launch = step.on_gpu()
        launches.append({
            "symbol": step.config.name, "grid": launch.dimensions, "threads": launch.block,
            "shared_memory": launch.smem, "unit": _hash(step.unit.source),
        })  # fmt: skip
    algorithm = {"pack": plan.algorithm.pack, "split_k": plan.algorithm.split_k}
    values: Call = {"kernel": plan.kernel, **algorithm, "launches": launches}
    if plan.kernel != "cutlass_universal":
        report = json.loads(plan.report().to_json())
        values["report"] = {name: _hash(_rounded(value)) for name, value in report.items()}
    return values


def _hash(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _rounded(value: Any) -> Any:
    """Round numbers to seven digits. The last digits depend on the machine."""
    if isinstance(value, float):
        return float(f"{value:.7g}")
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list) else value


# ---- error messages ------------------------------------------------------------------------------

#: Invalid arguments, which replace those of a valid call.
WRONG: tuple[Call, ...] = (
    {"op": "NX"}, {"op": "N"}, {"op": "TNT"}, {"op": ""}, {"m": -1}, {"n": -3}, {"k": -7},
    {"m": None}, {"k": None}, {"dtype": None}, {"m": 2.5}, {"m": "12"}, {"l": -1}, {"l": 0},
    {"dtype": "float20"}, {"dtype": "int32"}, {"dtype": "float16 x float32"}, {"lda": 1},
    {"ldb": 1}, {"ldc": 1}, {"lda": 0}, {"ldc": -4}, {"batch_a": -1, "l": 3},
    {"batch_c": 1, "l": 3}, {"batch_c": 0, "l": 3}, {"ragged": "X", "l": 3}, {"ragged": "M"},
    {"ragged": "M", "l": 3, "split_k": 4}, {"ragged": "K", "l": 3, "kernel": "sm80_pipeline"},
    {"base_offset": 3}, {"base_offset": -1}, {"storage": "X"}, {"order": "K"}, {"order": "c"},
    {"out_dtype": "float64"}, {"out_dtype": "int8"}, {"out_dtype": "complex64"},
    {"compute": "tf32"}, {"compute": "bf16x9"}, {"compute": "fp4"}, {"compute": "fast_accum"},
    {"fast_accum": True}, {"scale_a": "row"}, {"scale_a": "1x128", "scale_b": "128x128"},
    {"scale_b": "column"}, {"scale_a": 3.0}, {"epilogue": "bias+geluu"}, {"epilogue": "relu6"},
    {"epilogue": "bias", "bias": (3,)}, {"epilogue": "swiglu", "n": 7}, {"epilogue": 12},
    {"epilogue": "residual", "residual": (3, 3)}, {"bias": (5,)}, {"kernel": "sm75"},
    {"kernel": "sm90_wgmm"}, {"kernel": "thin"}, {"kernel": "batched"}, {"kernel": "sm90_wgmma"},
    {"kernel": "tensor_core"}, {"kernel": "cutlass_universal"}, {"kernel": "smem_full_k"},
    {"kernel": "cublas", "epilogue": "relu"}, {"kernel": "cublas", "split_k": 3},
    {"kernel": "host", "pack": "A"}, {"kernel": "naive", "batch_invariant": True},
    {"kernel": "naive", "stages": 3}, {"kernel": "naive", "epilogue": "gelu"},
    {"kernel": "sm80_pipeline", "tile": (100, 128, 32)}, {"kernel": "sm80_pipeline", "stages": 1},
    {"kernel": "sm80_pipeline", "stages": 99}, {"kernel": "sm80_pipeline", "copy": "k_major"},
    {"kernel": "sm80_pipeline", "warps": (3, 1)}, {"kernel": "sm80_pipeline", "mma": "SM70"},
    {"kernel": "sm80_pipeline", "tile": (512, 512, 64)}, {"kernel": "sm90_wgmma", "warp_groups": 5},
    {"kernel": "sm90_wgmma", "cluster": (3, 1)}, {"kernel": "sm90_wgmma", "tile": (128, 300, 64)},
    {"kernel": "sm90_wgmma", "ping_pong": 1, "warp_groups": 1}, {"kernel": "sm90_wgmma",
     "stages": 40},
    {"kernel": "sm90_wgmma", "swap_ab": 2}, {"kernel": "double_buffered", "skew": "zigzag"},
    {"kernel": "double_buffered", "thread_tile": (8, 7)}, {"kernel": "thin", "warps": 3},
    {"backend": "cuda"}, {"backend": "tpu"}, {"arch": "sm_70"}, {"arch": "sm_91x"},
    {"gpu": "H300"}, {"gpu": "A100", "arch": "sm_90a"}, {"gpu": 7}, {"pack": "C"}, {"pack": "BA"},
    {"split_k": 0}, {"split_k": "many"}, {"split_k": 1.5}, {"batch_invariant": "maybe"},
    {"stagess": 3}, {"tile": "128"}, {"raster": 0}, {"raster": -2}, {"min_ctas": 99},
    {"copy": "mn_major", "cluster": (2, 1)}, {"tune": True}, {"tune": "yes"}, {"alpha": 2},
)  # fmt: skip

#: The types of invalid calls.
WRONG_TYPES = (
    "float16", "float32", "float64", "int8", "complex64", "float8_e4m3fn", "bfloat16",
    "complex128", "float8_e5m2", "bfloat16 x float32",
)  # fmt: skip


def refused_calls() -> list[Call]:
    """Return invalid calls of each type, one for each error message."""
    valid: Call = {"op": "TN", "m": 512, "n": 384, "k": 256, "gpu": "H200"}
    calls: list[Call] = []
    seen = set()
    for dtype in WRONG_TYPES:
        for wrong in WRONG:
            call = valid | {"dtype": dtype} | wrong
            sentence = refusal(call)
            if sentence is not None and sentence not in seen:
                seen.add(sentence)
                calls.append(call)
    return calls


def refusal(call: Call) -> str | None:
    """Return the class and message of the error of a call, or None."""
    try:
        cg.plan(**call)
    except GemmError as error:
        return f"{type(error).__name__}: {error}"
    return None


def as_arguments(call: Call) -> Call:
    """Return a stored call with tuples, which are lists in JSON."""
    return {name: tuple(x) if isinstance(x, list) else x for name, x in call.items()}


# ---- stored --------------------------------------------------------------------------------------


def stored() -> dict[str, list[Any]]:
    """Return the stored pairs of calls and outcomes, and of calls and error messages."""
    read: dict[str, list[Any]] = json.loads(gzip.decompress(STORED.read_bytes()))
    return read


def differences(expected: Any, actual: Any, path: str = "") -> Iterator[str]:
    """Yield a line for each difference between two outcomes."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        for name in sorted(expected.keys() | actual.keys()):
            yield from differences(expected.get(name), actual.get(name), f"{path}.{name}")
    elif isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
        for number, (one, other) in enumerate(zip(expected, actual, strict=True)):
            yield from differences(one, other, f"{path}[{number}]")
    elif expected != actual:
        yield f"{path.lstrip('.')}: {expected} -> {actual}"


def compared(every: int = 1, first: int = 0) -> Iterator[str]:
    """Yield differences from the stored results, for every ``every``-th call."""
    read = stored()
    for call, expected in read["calls"][first::every]:
        actual = json.loads(json.dumps(outcome(as_arguments(call))))
        for line in differences(expected, actual):
            yield f"{json.dumps(call)}\n    {line}"
    for call, expected in read["refused"][first::every]:
        sentence = refusal(as_arguments(call))
        if sentence != expected:
            yield f"{json.dumps(call)}\n    {expected}\n -> {sentence}"


def _share(share: tuple[int, int]) -> list[str]:
    """Return the differences of one worker's share: interval and first call."""
    with frozen_calibrations():
        return list(compared(*share))


def _write() -> None:
    with frozen_calibrations():
        drawn = draw_calls(300)
        refused = [(call, refusal(call)) for call in refused_calls()]
    with ProcessPoolExecutor() as pool:
        calls = list(zip(drawn, pool.map(_frozen_outcome, drawn, chunksize=10), strict=True))
    text = json.dumps({"calls": calls, "refused": refused}, indent=1, default=str)
    STORED.write_bytes(gzip.compress(text.encode(), mtime=0))
    print(f"{len(calls)} calls, {len(refused)} error messages")


def _frozen_outcome(call: Call) -> Call:
    with frozen_calibrations():
        return outcome(call)


def _main() -> int:
    if "--write" in sys.argv[1:]:
        _write()
        return 0
    every = int(sys.argv[1]) if sys.argv[1:] else 1
    workers = os.cpu_count() or 1
    count = 0
    with ProcessPoolExecutor(workers) as pool:
        for lines in pool.map(_share, [(every * workers, every * n) for n in range(workers)]):
            count += len(lines)
            for line in lines:
                print(line, flush=True)
    print(f"{count} differences")
    return min(count, 1)


if __name__ == "__main__":
    sys.exit(_main())
