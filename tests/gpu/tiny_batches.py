"""Compare batches of thousands of small products with PyTorch: times in CUDA graphs, and errors.

    python tests/gpu/tiny_batches.py [--count 60] [--seed 1] [--rounds 7] [--kernels auto,batched]
        [--json FILE]

Batches have random m, n and k of 1 to 64, l of 1,000 to 50,000, ops, types and layouts: contiguous
matrices, rows with a pitch of 12, 98 or 394 bytes, odd base addresses, interleaved heads, and one
operand for the whole batch. For each batch the script prints the microseconds of each kernel, and
the time that DRAM needs for the bytes. `torch` is `torch.matmul` with the same strides.
"""

import random
import statistics
from typing import Any

import torch
from graph_times import clocked, parsed, spread, write

import cute_gemm as cg

TYPES = {
    "float16": 2e-3, "bfloat16": 1.6e-2, "float32": 1e-5, "float64": 1e-12, "complex64": 1e-5,
}  # fmt: skip
#: Layouts of the matrices. Repeated ones are drawn more often. PITCHES: bytes from row to row.
LIES = ("dense", "dense", "dense", "pitch", "heads", "odd base", "shared")
PITCHES = (12, 98, 394)
#: Bytes per second of DRAM, by substring of the GPU's name.
BANDWIDTHS = {"H200": 4.8e12, "H100": 3.35e12}
#: Most bytes of an operand.
MOST = 1 << 29


def drawn_lie(rng: random.Random, how: str, rows: int, run: int, l: int, size: int) -> Any:
    """Return random strides (batch, row) and offset of a layout, in elements."""
    if how == "pitch":
        fitting = [x // size for x in PITCHES if x % size == 0 and x >= run * size]
        ld = rng.choice(fitting) if fitting else run + 1
        return ld * rows, ld, 0
    if how == "heads":
        return run, run * l, 0
    if how == "shared":
        return 0, run, 0
    return run * rows, run, rng.choice((1, 3)) * (how == "odd base")


def made(lie: Any, rows: int, run: int, l: int, dtype: torch.dtype) -> torch.Tensor:
    """Return random matrices (l, rows, run) with the given layout."""
    batch, ld, offset = lie
    length = offset + (l - 1) * batch + (rows - 1) * ld + run
    if dtype.is_complex:
        whole = torch.randn(length, device="cuda", dtype=dtype)
    else:
        whole = torch.randn(length, device="cuda").to(dtype)
    return torch.as_strided(whole, (l, rows, run), (batch, ld, 1), offset)


def entry(rng: random.Random, kernels: list[str], rounds: int, bandwidth: float) -> dict[str, Any]:
    """Draw a batch, check its results and time it."""
    name = rng.choice(list(TYPES))
    dtype = getattr(torch, name)
    size = torch.empty(0, dtype=dtype).element_size()
    m, n, k = (rng.choice((1, 3, 4, 8, 12, 16, 32, 49, 64, rng.randint(1, 64))) for _ in "mnk")
    l = round(1000 * 50 ** rng.random())
    l = max(1000, min(l, MOST // (size * max(m * k, k * n, m * n))))
    op = rng.choice(("NN", "NT", "TN", "TT"))
    shapes = [(m, k) if op[0] == "N" else (k, m), (k, n) if op[1] == "N" else (n, k)]
    ways = [rng.choice(LIES), rng.choice(LIES)]
    lies = [drawn_lie(rng, way, *shape, l, size) for way, shape in zip(ways, shapes, strict=True)]
    A, B = (made(lie, *shape, l, dtype) for lie, shape in zip(lies, shapes, strict=True))
    left = A if op[0] == "N" else A.transpose(1, 2)
    right = B if op[1] == "N" else B.transpose(1, 2)
    C = torch.empty(l, m, n, device="cuda", dtype=dtype)
    out = torch.empty_like(C)
    runs: dict[str, Any] = {"torch": lambda: torch.matmul(left, right, out=out)}
    plans = {}
    for kernel in kernels:
        plans[kernel] = plan = cg.plan(op, A, B, C, kernel=kernel)
        runs[kernel] = lambda plan=plan: plan(A, B, C)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    some = slice(0, l, max(1, l // 500))
    exact = left[some].to(wide) @ right[some].to(wide)
    bound = left[some].to(wide).abs() @ right[some].to(wide).abs()
    right_ = {}
    for kernel, plan in plans.items():
        C.fill_(float("nan"))
        plan(A, B, C)
        error = ((C[some].to(wide) - exact).abs() / (bound + 1e-30)).max().item()
        right_[kernel] = error <= TYPES[name] and bool(torch.isfinite(C.abs().double()).all())
    nbytes = C.numel() * size + sum(
        size * rows * run * (l if lie[0] else 1)
        for lie, (rows, run) in zip(lies, shapes, strict=True)
    )
    ideal = nbytes / bandwidth * 1e6
    reps = max(1, min(20, round(2000 / (ideal + 5))))
    us = {which: statistics.median(x) for which, x in clocked(runs, reps, rounds).items()}
    auto = plans[kernels[0]]
    predicted = auto.candidates()[0].prediction
    line = f"{op} {m}x{n}x{k} l={l} {name} A {ways[0]} B {ways[1]}"
    print(f"{line:58} bytes {ideal:7.1f} us", end="")
    for which, time in us.items():
        print(f"  {which} {time:7.1f}", end="")
    prediction = f"{predicted.seconds * 1e6:.1f}" if predicted else "-"
    wrong = [kernel for kernel, fine in right_.items() if not fine]
    print(f"  predicted {prediction} {auto.kernel}{'  WRONG ' + ' '.join(wrong) if wrong else ''}",
          flush=True)  # fmt: skip
    return {
        "op": op, "shape": (m, n, k, l), "dtype": name, "lies": ways, "bytes": nbytes,
        "ideal": ideal, "us": us, "predicted": prediction, "kernel": auto.kernel, "right": right_,
        "config": getattr(auto.config, "name", ""),
    }  # fmt: skip


def main() -> None:
    given = parsed(__doc__, count=60, kernels="auto,batched")
    torch.backends.cuda.matmul.allow_tf32 = False
    gpu = torch.cuda.get_device_name()
    bandwidth = next((x for name, x in BANDWIDTHS.items() if name in gpu), 3e12)
    rng = random.Random(given.seed)
    kernels = given.kernels.split(",")
    found = [entry(rng, kernels, given.rounds, bandwidth) for _ in range(given.count)]
    for which in found[0]["us"]:
        slower = [x["us"][which] / (x["ideal"] + 3) for x in found]
        faster = [x["us"]["torch"] / x["us"][which] for x in found]
        print(f"{which:10} time / (bytes + 3 us): {spread(slower)}; torch / this: {spread(faster)}")
    wrong = sum(not all(x["right"].values()) for x in found)
    print(f"{len(found)} batches on {gpu}, {wrong} wrong")
    write(given.json, {"gpu": gpu, "entries": found})


if __name__ == "__main__":
    main()
