"""Compare the time of unaligned layouts and unusual shapes with cuBLAS's, for random problems.

    python tests/gpu/layouts.py --dtypes bfloat16,float32 --count 60 --seed 1

Classes are: aligned (extents that are multiples of 8), odd leading dimensions, odd base addresses,
both, odd extents, few rows, few columns, few tiles with a long k, small, batches, few rows by a
long n, a short k, and slightly more tiles than multiprocessors; each with the four ops. "DeepBench"
is that benchmark's list, in order. "models" are projections of open models, with K-major weights
and 1 to 12,000 tokens. ``--classes aligned:40,models:20`` sets the number of problems of each
class. The script prints the median of the rounds' ratios, time of cuBLAS over time of this package.
Both are CUDA graphs that are timed in turn, with matrices that are not in L2. Results are compared
with cuBLAS's.
"""

import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from cases import configure
from graph_times import TimedGraph, clocked, extent, in_turns, parsed, write

import cute_gemm as cg
from cute_gemm.dtypes import DTYPES
from cute_gemm.errors import GemmError
from cute_gemm.kernels import registry
from cute_gemm.kernels.candidate import label
from cute_gemm.problem.describe import from_sizes
from cute_gemm.problem.problem import GemmProblem

CLASSES = (
    "odd ld", "odd base", "both", "odd extents", "thin m", "thin n", "long k", "small", "batch",
)  # fmt: skip
OPS = ("NN", "NT", "TN", "TT")
#: Op, m, n and k of recurrent layers and speech models: baidu-research/DeepBench.
DEEP_BENCH = (
    *((op, width, n, width) for width in (1760, 2048, 2560, 4096)
      for op, n in (("NN", 16), ("NN", 32), ("TN", 64), ("NN", 128), ("NN", 7000), ("NT", 7133))),
    *((op, 5124, 9124, k) for op, k in (("NN", 1760), ("TN", 2048), ("NN", 2560), ("TN", 4096))),
    *(("NN", 35, 8457, k) for k in (1760, 4096)),
    ("NN", 7680, 16, 2560), ("TN", 7680, 128, 2560), ("NT", 7680, 5481, 2560),
    ("NN", 3072, 32, 1024), ("TN", 3072, 128, 1024), ("NT", 3072, 7435, 1024),
)  # fmt: skip
#: Outputs and inputs of projections: Llama 3 8B and 70B, Qwen 2.5 7B, DeepSeek V3.
MODELS = (
    (6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (10240, 8192), (8192, 8192),
    (57344, 8192), (8192, 28672), (4608, 3584), (3584, 3584), (37888, 3584), (3584, 18944),
    (2112, 7168), (24576, 1536), (32768, 512), (7168, 16384), (4096, 7168), (7168, 2048),
)  # fmt: skip
#: Most operations of a problem, by type: about 10 ms of the slow types.
MOST = {"float64": 2e11, "complex64": 1e11, "float32": 3e11}
L2 = 2**27
#: Most copies of matrices, and microseconds of a graph.
COPIES, GRAPH = 100, 2000.0


def draw(rng: random.Random, kind: str, dtype: str, number: int) -> dict[str, Any]:
    """Return op, extents, leading dimensions and the offset of base addresses, in elements.

    ``number``: index of this problem in its class.
    """
    some = partial(extent, rng)
    while True:
        op = ""
        m, n, k = (some(512, 6000) for _ in "mnk")
        batch = 1
        if kind == "DeepBench":
            op, m, n, k = DEEP_BENCH[number % len(DEEP_BENCH)]
        elif kind == "models":
            op, (m, k), n = "TN", rng.choice(MODELS), some(1, 12000, 1)
        elif kind == "aligned":
            m, n, k = (some(32, 12000) for _ in "mnk")
        elif kind == "few rows":
            m, n, k = some(40, 200), some(10000, 40000), some(1000, 8000)
        elif kind == "short k":
            k = some(40, 130)
        elif kind == "one round":
            m, n, k = some(680, 900), some(1400, 1900), some(4000, 10000)
        elif kind == "odd extents":
            m, n, k = m | 1, n | 1, k | 1
        elif kind == "thin m":
            m = rng.randint(1, 32)
        elif kind == "thin n":
            n = rng.randint(1, 32)
        elif kind == "long k":
            m, n, k = some(128, 1300), some(128, 1300), some(8000, 65536, 64)
        elif kind == "small":
            m, n, k = (some(48, 800) for _ in "mnk")
        elif kind == "batch":
            m, n, k, batch = some(64, 700), some(64, 700), some(64, 700), rng.randint(4, 64)
        most = MOST.get(dtype.partition("/")[0], 4e11)
        if kind == "DeepBench" or 2 * m * n * k * batch <= most * (8 if kind == "models" else 1):
            break
    odd = kind in ("odd ld", "both")
    base = rng.choice((1, 3)) if kind in ("odd base", "both") else 0
    op = op or rng.choice(OPS)
    return {
        "op": op, "m": m, "n": n, "k": k, "l": batch, "base": base,
        "lda": (m if op[0] == "N" else k) + odd * rng.choice((1, 3)),
        "ldb": (k if op[1] == "N" else n) + odd * rng.choice((1, 3)),
        "ldc": m + odd * rng.choice((0, 1)),
    }  # fmt: skip


def described(given: dict[str, Any], dtype: str) -> GemmProblem:
    """Return the problem, with the alignments of its addresses."""
    name, _, compute = dtype.partition("/")
    sizes = {key: value for key, value in given.items() if key != "base"}
    problem = from_sizes(**sizes, dtype=name, compute=compute or None)
    A, B, C = (
        one.at(given["base"] * DTYPES[one.dtype].bytes) for one in (problem.A, problem.B, problem.C)
    )
    return replace(problem, A=A, B=B, C=C)


def planned(problem: GemmProblem, kernel: str, options: dict[str, Any]) -> cg.Plan:
    from cute_gemm.plan import select
    from cute_gemm.run.driver import device_arch

    arch, gpu = device_arch(0), select.gpu_of_device(0)
    selection = select.select(problem, arch, kernel, options, gpu)
    return cg.Plan(problem, "cuda", 0, arch, selection)


def filled(dtype: str, elements: int) -> torch.Tensor:
    if dtype == "int8":
        return torch.randint(-127, 128, (elements,), dtype=torch.int8, device="cuda")
    if DTYPES[dtype].is_complex or dtype == "float64":
        return torch.randn(elements, dtype=getattr(torch, dtype), device="cuda")
    return torch.randn(elements, device="cuda").to(getattr(torch, dtype))


def copies(problem: GemmProblem, base: int) -> Iterator[tuple[tuple[int, int, int], Any]]:
    """Yield addresses of A, B and C with their memory, in enough copies to exceed L2."""
    held, sizes = [], []
    for one in (problem.A, problem.B, problem.C):
        elements = one.ld * one.shape[1 - one.unit] + (one.l - 1) * one.batch_stride + base
        sizes.append(-(-elements // 256) * 256)
    each = sum(s * DTYPES[problem.A.dtype].bytes for s in sizes)
    count = max(1, min(COPIES, -(-L2 // each)))
    for one, size in zip((problem.A, problem.B, problem.C), sizes, strict=True):
        if one.name == "C":
            held.append(torch.zeros(size * count, dtype=getattr(torch, one.dtype), device="cuda"))
        else:
            held.append(filled(one.dtype, size * count))
    for i in range(count):
        parts = [x[i * size : (i + 1) * size] for x, size in zip(held, sizes, strict=True)]
        a, b, c = (x.data_ptr() + base * x.element_size() for x in parts)
        yield (a, b, c), parts


def library(problem: GemmProblem, arch: str, place: tuple[int, int, int]) -> Any:
    """Return a launch of cuBLAS, or None if it does not support the problem, maybe at run time."""
    cublas = registry.get("cublas")
    try:
        bound = cublas.bind(configure(cublas, problem, arch), problem, arch, 0)
        bound(place, 0)
    except GemmError:
        return None
    return bound


def measured(
    problem: GemmProblem, plan: cg.Plan, base: int, rounds: int
) -> tuple[float, float, float]:
    """Return median microseconds of this package and cuBLAS, and of their ratio (or nan)."""
    places = list(copies(problem, base))
    runs: dict[str, Callable[[], None]] = {}
    results = []
    every = {"ours": plan.bind(0), "cuBLAS": library(problem, plan.arch, places[0][0])}
    for name, bound in every.items():
        if bound is None:
            continue
        run = in_turns(lambda *place, bound=bound: bound(place, stream()), [at for at, _ in places])
        result = places[0][1][2]
        result.zero_()
        run()
        results.append(result.clone())
        runs[name] = run
    if len(results) == 2:
        ours, theirs = (x.to(torch.complex128 if x.is_complex() else torch.float64)
                        for x in results)  # fmt: skip
        worst, scale = float((ours - theirs).abs().max()), float(theirs.abs().max())
        if not worst <= 0.02 * scale:
            raise AssertionError(f"{problem}: off by {worst} of {scale}")
    slowest = max(TimedGraph(run, 2).microseconds() for run in runs.values())
    times = clocked(runs, max(len(places), min(50, round(GRAPH / slowest))), rounds)
    ours = statistics.median(times["ours"])
    if "cuBLAS" not in times:
        return ours, math.nan, math.nan
    ratio = statistics.median(b / a for a, b in zip(*times.values(), strict=True))
    return ours, statistics.median(times["cuBLAS"]), ratio


def stream() -> int:
    """Return the handle of PyTorch's current stream."""
    return torch.cuda.current_stream().cuda_stream


def counts(classes: list[str], count: int) -> dict[str, int]:
    """Return the number of problems of each class. Classes without one share ``count`` evenly."""
    split = [one.partition(":") for one in classes]
    free = [kind for kind, colon, _ in split if not colon]
    shares = {kind: len(range(i, count, len(free))) for i, kind in enumerate(free)}
    return {kind: int(number) if colon else shares[kind] for kind, colon, number in split}


def summary(ratios: list[float]) -> str:
    known = [x for x in ratios if not math.isnan(x)]
    if not known:
        return "cuBLAS supports none"
    mean = statistics.geometric_mean(known)
    refused = f", {len(ratios) - len(known)} not in cuBLAS" * (len(known) < len(ratios))
    below = sum(ratio < 0.97 for ratio in known)
    worst = f"worst {min(known):.2f}, {below} below 0.97 of {len(known)}"
    return f"geometric mean {mean:.2f}, {worst}{refused}"


def main() -> int:
    given = parsed(
        __doc__, dtypes="bfloat16,float32", classes=(",".join(CLASSES), "KIND[:COUNT],..."),
        count=(60, "problems of all classes without a number"), kernel="auto", pack="",
    )  # fmt: skip
    options = {"pack": given.pack} if given.pack else {}
    entries: list[dict[str, Any]] = []
    work = []
    kinds = counts(given.classes.split(","), given.count)
    for dtype in given.dtypes.split(","):
        rng = random.Random(f"{given.seed} {dtype}")
        for number in range(max(kinds.values())):
            for kind in (kind for kind, count in kinds.items() if number < count):
                drawn = draw(rng, kind, dtype, number)
                work.append((dtype, kind, drawn, described(drawn, dtype)))
    plans = [planned(problem, given.kernel, options) for *_, problem in work]
    began = time.perf_counter()
    cg.compile(plans)
    print(f"{len(work)} problems; compiled in {time.perf_counter() - began:.0f} s", flush=True)
    for (dtype, kind, drawn, problem), plan in zip(work, plans, strict=True):
        ours, theirs, ratio = measured(problem, plan, drawn["base"], given.rounds)
        chosen = label(plan.candidates()[0])
        flops = problem.flops / ours / 1e6
        sizes = " ".join(f"{name}={drawn[name]}" for name in drawn if name != "op")
        print(
            f"{dtype:12} {kind:11} {drawn['op']} {sizes:64} {ours:9.1f} us "
            f"{flops:6.1f} TFLOP/s  cuBLAS {theirs:9.1f} us  {ratio:5.2f}  {chosen}",
            flush=True,
        )
        entries.append({"dtype": dtype, "class": kind, **drawn, "us": ours, "cublas_us": theirs,
                        "ratio": ratio, "chosen": chosen})  # fmt: skip
        torch.cuda.empty_cache()
    print()
    for dtype in given.dtypes.split(","):
        mine = [one for one in entries if one["dtype"] == dtype]
        for kind in kinds:
            ratios = [one["ratio"] for one in mine if one["class"] == kind]
            print(f"{dtype:12} {kind:12} {summary(ratios)}")
        print(f"{dtype:12} {'all':12} {summary([one['ratio'] for one in mine])}")
    write(given.json, entries)
    return 0


if __name__ == "__main__":
    sys.exit(main())
