"""``batch_invariant=True`` beside the free choice and ``torch.mm``: time.

    python tests/gpu/batch_invariant.py [--dtype bfloat16] [--random 12 --seed 1] [--rounds 7]
        [--json FILE]

Times are those of calls in a CUDA graph, in turns, on operands from past L2. Shapes are projections
of open models, and drawn ones; ratios are geometric means over m from 256 on, and below.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from pathlib import Path
from typing import Any

import torch
from graph_times import clocked, in_turns, places

import cute_gemm as cg

#: n and k of layers, and m.
LAYERS = (
    (2112, 7168), (7168, 2304), (24576, 1536), (7168, 16384), (4096, 4096), (28672, 4096),
    (6144, 4096), (1024, 8192),
)  # fmt: skip
ROWS = (1, 8, 32, 128, 256, 512, 2048, 4096)


def entry(m: int, n: int, k: int, dtype: torch.dtype, rounds: int) -> dict[str, Any]:
    """Microseconds of one shape."""
    copies = places(
        lambda: [torch.randn(rows, k, device="cuda", dtype=dtype) for rows in (m, n)],
        dtype.itemsize * (m + n) * k,
    )
    runs = {
        "invariant": lambda x, w: cg.gemm("NT", x, w, order="C", batch_invariant=True),
        "free": lambda x, w: cg.gemm("NT", x, w, order="C"),
        "torch": lambda x, w: torch.mm(x, w.T),
    }
    calls = max(len(copies), min(50, round(500 / max(3.0, 2 * m * n * k / 5e8))))
    times = clocked({name: in_turns(run, copies) for name, run in runs.items()}, calls, rounds)
    us = {name: statistics.median(x) for name, x in times.items()}
    print(f"{m}x{n}x{k}  " + "  ".join(f"{name} {time:.1f} us" for name, time in us.items())
          + f"  free / invariant {us['free'] / us['invariant']:.2f}", flush=True)  # fmt: skip
    return {"shape": (m, n, k), "us": us}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--random", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rng = random.Random(given.seed)
    drawn = [tuple(8 * round(2 ** rng.uniform(5, 11)) for _ in "nk") for _ in range(given.random)]
    dtype = getattr(torch, given.dtype)
    found = [
        entry(m, n, k, dtype, given.rounds) for n, k in (*LAYERS, *drawn) for m in ROWS
    ]  # fmt: skip
    for name, some in (
        ("m >= 256", [x for x in found if x["shape"][0] >= 256]),
        ("m < 256", [x for x in found if x["shape"][0] < 256]),
    ):
        for other in ("free", "torch"):
            ratios = [x["us"][other] / x["us"]["invariant"] for x in some]
            mean = statistics.geometric_mean(ratios)
            print(f"{name}: {other} / invariant {mean:.3f}, {min(ratios):.2f} to {max(ratios):.2f}")
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
