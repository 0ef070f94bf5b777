"""Compare products with block scales with DeepGEMM.

    python tests/gpu/deepgemm.py --deepgemm DIR --json deepgemm.json

DIR is a checkout of https://github.com/deepseek-ai/DeepGEMM at 03d0be3, the last pure Python
version, with CUTLASS's headers as ``deep_gemm/include/cutlass`` and ``cute``. It needs nvcc.

The products ``y = x @ w.T`` are those of DeepGEMM's tests: e4m3 to bfloat16, with M-major 1x128
scales of x and 128x128 scales of w. This package also takes K-major scales of x, the default of
PyTorch. Grouped products have groups of multiples of 128 rows, of equal or random sizes within 30 %
of the mean. Each call is captured in a CUDA graph, and all are timed in turn in each round. The
script prints medians in microseconds for every shape. It also compares the results: without split-K
they must be bitwise equal.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from graph_times import clocked

import cute_gemm as cg

ROWS = (64, 128, 512, 4096)
WEIGHTS = ((2112, 7168), (24576, 1536), (32768, 512), (7168, 16384), (4096, 7168), (7168, 2048))
#: Number of groups, rows per group, n and k.
GROUPS = tuple(
    (groups, rows, n, k)
    for groups, rows in ((4, 8192), (8, 4096), (32, 256))
    for n, k in ((4096, 7168), (7168, 2048))
)
PEER, OURS, TURNED = "DeepGEMM", "ours", "ours, K-major scales"


class Product:
    """The operands of one product, or of groups of ``sizes`` rows, and the timed calls."""

    def __init__(self, m: int, n: int, k: int, sizes: list[int] | None = None) -> None:
        from deep_gemm import get_col_major_tma_aligned_tensor

        kind, groups = torch.float8_e4m3fn, () if sizes is None else (len(sizes),)
        self.x = torch.randn(m, k, device="cuda").to(kind)
        self.w = torch.randn(*groups, n, k, device="cuda").to(kind)
        self.turned = torch.rand(m, k // 128, device="cuda") + 0.5
        self.of_x = get_col_major_tma_aligned_tensor(self.turned)
        self.of_w = torch.rand(*groups, -(-n // 128), k // 128, device="cuda") + 0.5
        self.y, self.theirs = torch.empty(2, m, n, dtype=torch.bfloat16, device="cuda")
        self.ends = self.group_of_row = None
        if sizes is not None:
            of = torch.tensor(sizes, device="cuda")
            self.ends = of.cumsum(0).int()
            self.group_of_row = torch.repeat_interleave(of).int()

    def plan(self, of_x: torch.Tensor) -> cg.Plan:
        """Return this package's plan for the given scales of x."""
        given = {} if self.ends is None else {"offsets": self.ends}
        return cg.plan("NT", self.x, self.w, self.y, scale_a=of_x, scale_b=self.of_w, **given)

    def runs(self) -> dict[str, Callable[[], Any]]:
        """Return the timed calls by name."""
        import deep_gemm

        x, w, given = (self.x, self.of_x), (self.w, self.of_w), {}
        if self.ends is None:
            runs = {PEER: lambda: deep_gemm.gemm_fp8_fp8_bf16_nt(x, w, self.theirs)}
        else:
            given = {"offsets": self.ends}
            grouped = deep_gemm.m_grouped_gemm_fp8_fp8_bf16_nt_contiguous
            runs = {PEER: lambda: grouped(x, w, self.theirs, self.group_of_row)}
        for name, of_x in ((OURS, self.of_x), (TURNED, self.turned)):
            plan = self.plan(of_x)

            def run(plan: cg.Plan = plan, of_x: torch.Tensor = of_x) -> None:
                plan(self.x, self.w, self.y, scale_a=of_x, scale_b=self.of_w, **given)

            runs[name] = run
        return runs

    def check(self, runs: dict[str, Callable[[], Any]]) -> None:
        """Raise if a result differs from DeepGEMM's: in any bit, or by 1 % with split-K."""
        runs[PEER]()
        for name, of_x in ((OURS, self.of_x), (TURNED, self.turned)):
            self.y.zero_()
            runs[name]()
            if self.plan(of_x).algorithm.split_k == 1:
                same = torch.equal(self.y, self.theirs)
            else:
                apart = (self.y.float() - self.theirs.float()).abs().max()
                same = bool(apart <= 0.01 * self.theirs.float().abs().max())
            if not same:
                raise AssertionError(f"{name} is not DeepGEMM's result")


def products() -> Iterator[tuple[str, dict[str, Any], Callable[[], Product]]]:
    """Yield the kind, a description and a factory of each product."""
    for m in ROWS:
        for n, k in WEIGHTS:
            yield "dense", {"shape": [m, n, k]}, lambda m=m, n=n, k=k: Product(m, n, k)
    drawn = random.Random(0)
    for groups, rows, n, k in GROUPS:
        for kind in ("equal", "drawn"):
            sizes = [rows] * groups
            if kind == "drawn":
                sizes = [-(-int(rows * drawn.uniform(0.7, 1.3)) // 128) * 128 for _ in sizes]
            said = {"shape": [groups, rows, n, k], "sizes": kind}
            yield "groups", said, lambda n=n, k=k, of=sizes: Product(sum(of), n, k, of)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--deepgemm", type=Path, required=True, metavar="DIR")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    sys.path.insert(0, str(given.deepgemm))
    builds = []
    for _, _, make in products():
        product = make()
        builds += [product.plan(of_x).prepare() for of_x in (product.of_x, product.turned)]
    for build in builds:
        build.result()
    found: dict[str, list[dict[str, Any]]] = {"dense": [], "groups": []}
    for kind, said, make in products():
        product = make()
        runs = product.runs()
        product.check(runs)
        times = clocked(runs, 5 if said["shape"][-3] >= 4096 else 20, given.rounds)
        us = {name: statistics.median(all_) for name, all_ in times.items()}
        found[kind].append(said | {"us": us, "config": product.plan(product.of_x).config.name})
        size = "x".join(map(str, said["shape"])) + f" {said.get('sizes', '')}"
        figures = ", ".join(f"{name} {time:.1f} us" for name, time in us.items())
        print(f"{size}: {figures}; {us[PEER] / us[OURS]:.2f}", flush=True)
    for kind, entries in found.items():
        for name in (OURS, TURNED):
            ratios = [each["us"][PEER] / each["us"][name] for each in entries]
            mean = math.exp(statistics.mean(map(math.log, ratios)))
            print(f"{kind}: DeepGEMM's time over {name}: {mean:.3f}, worst {min(ratios):.2f}")
    if given.json:
        given.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
