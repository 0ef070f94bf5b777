"""Run random calls of all kinds for a long time in one process, and check all results.

    python tests/gpu/soak.py --seconds 1800 [--backend cpu] [--problems 300] [--json FILE]

Problems are drawn once. They have random ops, types, extents, orders, batches and groups,
epilogues, split-K and packing, use NumPy, PyTorch, CuPy and JAX if they are installed, and run on
four streams. Elements are small integers, so that every result is exact. Each problem is first
computed once; then random ones are called until the time is over. On a GPU, all kernels are
unloaded and all caches between calls are cleared at the beginning of the fifth of ten parts of the
time. For each part the script prints the memory of the process, of the device and of each library's
allocator, and percentiles of a call's host time. It exits with 1 if a result is wrong, or if from
the third part to the last the memory grows by a tenth or the median time by a half.
"""

import gc
import importlib.util
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from graph_times import parsed, write

import cute_gemm as cg
from cute_gemm._kept import clear_all
from cute_gemm.errors import UnsupportedError

#: Parts of the time, and those that begin with unloading all kernels.
PARTS, UNLOADED = 10, (4,)
TYPES = ("float32", "float64", "float16", "bfloat16", "int8", "complex64")
#: Growth from the third part to the last that is reported: a factor, and an absolute value that is
#: ignored, in bytes or microseconds.
GROWTH = {"host": (1.1, 32 << 20), "device": (1.1, 32 << 20), "p50": (1.5, 5)}


class Soaked(NamedTuple):
    """A problem: ``run`` computes it, and ``right`` checks the result."""

    name: str
    run: Callable[[], Any]
    right: Callable[[Any], bool]
    plan: Callable[[], cg.Plan]


def integers(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Return random integers from -2 to 2."""
    return rng.integers(-2, 3, shape).astype(np.float64)


def convert(x: np.ndarray, dtype: str, library: str, device: str) -> Any:
    """Return an array of a library, on the device. NumPy arrays stay on the host."""
    if library == "numpy":
        return x.astype(cg.dtypes.DTYPES[dtype].numpy)
    tensor = torch.from_numpy(x).to(getattr(torch, dtype)).to(device)
    if library == "torch":
        return tensor
    module = __import__("cupy" if library == "cupy" else "jax.dlpack", fromlist=["from_dlpack"])
    return module.from_dlpack(tensor.contiguous())


def exact(result: Any, expected: np.ndarray) -> bool:
    """Return whether a result has exactly the expected elements."""
    if not isinstance(result, np.ndarray):
        found = result if isinstance(result, torch.Tensor) else torch.from_dlpack(result)
        found = found.cpu()
        result = (found.to(torch.complex128) if found.is_complex() else found.double()).numpy()
    return bool((result.astype(expected.dtype) == expected).all())


def drawn(rng: random.Random, device: str, libraries: list[str]) -> Soaked:
    """Return a random problem. Sums stay below 256, so that results of 16-bit types are exact."""
    numbers = np.random.default_rng(rng.getrandbits(32))
    dtype, library = rng.choice(TYPES), rng.choice(libraries)
    if library == "jax" and dtype == "float64":
        dtype = "float32"  # JAX converts float64 to float32
    if library == "cupy" and dtype == "bfloat16":
        dtype = "float16"
    op, order = rng.choice(("NN", "NT", "TN", "TT")), rng.choice("CF")
    m, n = (rng.choice((1, 8, 40, 63, 128, 200, 256)) for _ in "mn")
    k = rng.choice((1, 8, 24, 33, 60))
    words: dict[str, Any] = {"order": order}
    kind = rng.choice(("plain", "plain", "batch", "groups", "epilogue", "slices", "packed"))
    l = rng.choice((2, 5)) if kind in ("batch", "groups") else 1
    stored_a, stored_b = (m, k) if op[0] == "N" else (k, m), (k, n) if op[1] == "N" else (n, k)
    if kind == "groups":
        op, words["order"] = "NT", "C"
        a, b = integers(numbers, l * m, k), integers(numbers, l, n, k)
        ends = np.arange(1, l + 1, dtype=np.int32) * m
        expected = np.concatenate([a[g * m : (g + 1) * m] @ b[g].T for g in range(l)])
        A, B = (convert(x, dtype, library, device) for x in (a, b))
        offsets = ends if library == "numpy" else convert(ends, "int32", library, device)
        run = partial(cg.grouped_gemm, op, A, B, offsets, **words, **where(device))
        plan = partial(cg.plan, op, A, B, offsets=offsets, **words, **where(device))
    else:
        shape = (l,) if kind == "batch" else ()
        a, b = integers(numbers, *shape, *stored_a), integers(numbers, *shape, *stored_b)
        left, right = (
            np.swapaxes(x, -1, -2) if letter == "T" else x
            for x, letter in zip((a, b), op, strict=True)
        )
        expected = left @ right
        A, B = (convert(x, dtype, library, device) for x in (a, b))
        if kind == "epilogue" and dtype in ("float32", "float16", "bfloat16", "float64"):
            bias = integers(numbers, n)
            expected = np.maximum(expected + bias, 0)
            words |= {"epilogue": "bias+relu", "bias": convert(bias, dtype, library, device)}
        elif kind == "slices" and device == "cuda":
            words["split_k"] = 2
        elif kind == "packed" and device == "cuda" and dtype != "complex64":
            words |= {"pack": "AB", "kernel": "sm80_pipeline"}
        run = partial(cg.gemm, op, A, B, **words, **where(device))
        plan = partial(cg.plan, op, A, B, **words, **where(device))
    if dtype == "complex64":
        expected = expected.astype(np.complex128)
    name = f"{library} {kind} {op} {dtype} {l}x{m}x{n}x{k} {words}"
    return Soaked(name, run, lambda result: exact(result, expected), plan)


def where(device: str) -> dict[str, Any]:
    """Return the arguments that select the backend."""
    return {"backend": "cpu" if device == "cpu" else "cuda"}


def first_calls(problems: list[Soaked], device: str) -> list[Soaked]:
    """Return the supported problems, after checking their first results."""
    able, plans = [], []
    for problem in problems:
        try:
            plans.append(problem.plan())
        except UnsupportedError as error:
            print(f"{problem.name} is not supported: {error}")
            continue
        able.append(problem)
    if device == "cuda":  # in as many threads as there are cores
        cg.compile(list({plan.symbol: plan for plan in plans}.values()))
    for problem in able:
        if not problem.right(problem.run()):
            raise AssertionError(f"{problem.name} is wrong in its first call")
    return able


def memory(device: str) -> tuple[int, int]:
    """Return the bytes of the process, and the used bytes of the device."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    used = 0
    if device == "cuda":
        free, total = torch.cuda.mem_get_info()
        used = total - free
    return pages * 4096, used


def pools(device: str, libraries: list[str]) -> dict[str, int]:
    """Return the bytes of the device that each library's allocator keeps."""
    kept: dict[str, int] = {}
    if device == "cuda":
        kept["torch"] = torch.cuda.memory_reserved()
        if "cupy" in libraries:
            kept["cupy"] = __import__("cupy").get_default_memory_pool().total_bytes()
        if "jax" in libraries:
            stats = __import__("jax").devices()[0].memory_stats() or {}
            kept["jax"] = stats.get("pool_bytes", 0)
    return kept


def streams(device: str) -> list[Any]:
    """Return context managers that make each of four streams current."""
    if device == "cpu":
        return [nullcontext]
    return [partial(torch.cuda.stream, torch.cuda.Stream()) for _ in range(4)]


def soak(
    problems: list[Soaked], device: str, libraries: list[str], seconds: float, rng: random.Random
) -> Iterator[dict[str, Any]]:
    """Yield the figures of each part of the time."""
    from cute_gemm.run import launch

    places = streams(device)
    begin = time.monotonic()
    for part in range(PARTS):
        times: list[float] = []
        wrong: list[str] = []
        if device == "cuda" and part in UNLOADED:
            torch.cuda.synchronize()
            clear_all()
            launch.unload()
        while not times or time.monotonic() - begin < seconds * (part + 1) / PARTS:
            problem = rng.choice(problems)
            with rng.choice(places)():
                start = time.perf_counter()
                result = problem.run()
                took = time.perf_counter() - start
                if device == "cuda":
                    torch.cuda.synchronize()
                if not problem.right(result):
                    wrong.append(problem.name)
            times.append(took * 1e6)
        gc.collect()
        host, used = memory(device)
        times.sort()
        at = {
            f"p{p}": times[min(len(times) - 1, int(len(times) * p / 100))] for p in (50, 99, 99.9)
        }
        yield {
            "calls": len(times), "wrong": wrong, "host": host, "device": used, **at,
            "most": times[-1], "mean": statistics.fmean(times), "pools": pools(device, libraries),
        }  # fmt: skip


def main() -> int:
    given = parsed(
        __doc__, rounds=None, seconds=(1800.0, "duration"), backend=("cuda", "cuda or cpu"),
        problems=300,
    )  # fmt: skip
    rng, device = random.Random(given.seed), given.backend
    libraries = ["numpy", "torch"]
    if device == "cuda":
        libraries += [x for x in ("cupy", "jax") if importlib.util.find_spec(x)]
    begin = time.monotonic()
    drawn_ones = [drawn(rng, device, libraries) for _ in range(given.problems)]
    problems = first_calls(drawn_ones, device)
    print(f"{len(problems)} problems computed once in {time.monotonic() - begin:.0f} s", flush=True)
    parts = []
    for part in soak(problems, device, libraries, given.seconds, rng):
        parts.append(part)
        print(
            f"{part['calls']:8} calls, {len(part['wrong'])} wrong; "
            f"process {part['host'] >> 20} MiB, device {part['device'] >> 20} MiB"
            f"{''.join(f', {name} {kept >> 20}' for name, kept in part['pools'].items())}; "
            f"host us: median {part['p50']:.0f}, "
            f"99 % {part['p99']:.0f}, 99.9 % {part['p99.9']:.0f}, most {part['most']:.0f}",
            flush=True,
        )
    write(given.json, parts)
    failures = [name for part in parts for name in part["wrong"]]
    third, last = parts[2], parts[-1]
    failures += [
        f"{what} grew from {third[what]:.0f} to {last[what]:.0f}"
        for what, (factor, noise) in GROWTH.items()
        if last[what] > third[what] * factor + noise
    ]
    for failure in failures[:50]:
        print(failure)
    print(f"{sum(part['calls'] for part in parts)} calls, {len(failures)} failures")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
