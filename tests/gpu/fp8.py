"""Compare the time of 8-bit float and int8 products with PyTorch's.

    python tests/gpu/fp8.py --random 30 --seed 1 --json fp8.json

There are four parts. TN (x @ w.T of row-major x and w) with tensor scales and row scales, by
default and with ``fast_accum``, is compared with ``torch._scaled_mm`` with both values of
``use_fast_accum``. The other ops are compared with TN, and block scales with row scales. int8 with
row scales is compared with ``torch._int_mm`` followed by a compiled multiplication by the scales,
and with bfloat16. C is row-major bfloat16. Each call is captured in a CUDA graph with A and B that
are not in L2. All calls of a shape are timed in turn, and the script prints medians in
microseconds. A ratio of two times is the median of the rounds' ratios. Calls that torch does not
support are omitted.
"""

import argparse
import math
import random
import statistics
import sys
from collections.abc import Callable
from typing import Any

import torch
from graph_times import clocked, extent, in_turns, parsed, places, spread, write

import cute_gemm as cg

SQUARES = tuple((n, n, n) for n in (1024, 2048, 4096, 8192, 16384))
THIN = tuple(
    (m, n, k)
    for n, k in ((2112, 7168), (7168, 2304), (24576, 1536), (7168, 16384))
    for m in (1, 16, 64, 128)
)
OPS_SHAPES = ((4096, 4096, 4096), (8192, 8192, 8192), (4096, 7168, 2048))
BLOCK_SHAPES = ((4096, 7168, 16384), (4096, 4096, 7168), (4096, 4096, 4096))
KIND = torch.float8_e4m3fn
#: Wrong results that `check` has reported.
WRONG: list[str] = []
Runs = dict[str, Callable[[], Any]]


def drawn(rng: random.Random) -> tuple[int, int, int]:
    """Return random extents. torch requires that n and k are multiples of 16."""
    while True:
        m, (n, k) = extent(rng, 1, 8192, 1), (extent(rng, 256, 16384, 16) for _ in "nk")
        if 1e8 <= 2 * m * n * k <= 2e12:
            return m, n, k


def matrix(rows: int, columns: int) -> torch.Tensor:
    """Return a row-major matrix of normal data."""
    return torch.randn(rows, columns, device="cuda").to(KIND)


def scales(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, device="cuda") + 0.5


def calls_of(flops: float, copies: int = 1) -> int:
    """Return the number of calls of a graph: fewer for long calls, at least one per copy."""
    return max(copies, 1, min(20, round(400 / max(4.0, flops / 1.2e9))))


def expected(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the product of a (M, K) and b (N, K) in float32."""
    return a.float() @ b.float().T


def check(
    name: str, y: torch.Tensor, exact: torch.Tensor, k: int, scale: float | torch.Tensor = 1.0
) -> None:
    """Report a result whose error exceeds that of tensor cores. ``exact`` is unscaled."""
    typical = exact.abs().mean()
    off = ((y.float() / scale - exact).abs() / (exact.abs() + typical)).max().item()
    if not off < 2.0**-7 + 2.0**-9 * math.sqrt(k) / 8:
        WRONG.append(f"{name} is off by {off:.3e}")
        print(f"  WRONG: {WRONG[-1]}", flush=True)


def beside_torch(shape: tuple[int, int, int], given: argparse.Namespace) -> dict[str, Any]:
    """Measure TN with tensor scales and row scales, and PyTorch's."""
    m, n, k = shape
    copies = places(lambda: (matrix(m, k), matrix(n, k)), (m + n) * k)
    one, rows, columns = scales(1), scales(m, 1), scales(n, 1)
    exact = expected(*copies[0])
    runs: Runs = {}
    for kind, a, b in (("tensor", one, one), ("row", rows, columns)):
        for fast in (False, True):
            suffix = ", fast_accum" * fast

            def ours(x: Any, w: Any, a: Any = a, b: Any = b, fast: bool = fast) -> Any:
                compute = "fast_accum" if fast else None
                return cg.gemm("NT", x, w, order="C", scale_a=a, scale_b=b, compute=compute)

            def theirs(x: Any, w: Any, a: Any = a, b: Any = b, fast: bool = fast) -> Any:
                return torch._scaled_mm(
                    x, w.t(), scale_a=a, scale_b=b.t() if b.dim() == 2 else b,
                    out_dtype=torch.bfloat16, use_fast_accum=fast,
                )  # fmt: skip

            check(f"{shape} {kind}{suffix}", ours(*copies[0]), exact, k, a * b.T)
            runs[f"{kind}{suffix}"] = in_turns(ours, copies)
            try:
                theirs(*copies[0])
                torch.cuda.synchronize()
            except RuntimeError as error:
                print(f"  not in torch: {shape} {kind}{suffix}: {str(error).splitlines()[0][:90]}")
                continue
            runs[f"torch {kind}{suffix}"] = in_turns(theirs, copies)
    return entry("TN beside torch", shape, runs, given.rounds, len(copies))


def ops(shape: tuple[int, int, int], given: argparse.Namespace) -> dict[str, Any]:
    """Measure all ops of BLAS (column-major). They differ only in the layouts of A and B."""
    m, n, k = shape
    a, b = matrix(m, k), matrix(n, k)
    exact = expected(a, b)
    stored = {  # op(A) is (M, K); the letter is BLAS's for the storage
        "T": (a, b.t()),
        "N": (a.t().contiguous().t(), b.t().contiguous()),
    }
    runs: Runs = {}
    for op in ("TN", "NN", "NT", "TT"):
        x = stored[op[0]][0]
        y = stored["T" if op[1] == "N" else "N"][1]
        for fast in (False, True):

            def ours(x: Any = x, y: Any = y, fast: bool = fast) -> Any:
                return cg.gemm("NN", x, y, order="C", compute="fast_accum" if fast else None)

            check(f"{shape} {op}", ours(), exact, k)
            runs[f"{op}{', fast_accum' * fast}"] = ours
    return entry("ops", shape, runs, given.rounds)


def blocks(shape: tuple[int, int, int], given: argparse.Namespace) -> dict[str, Any]:
    """Measure block scales and row scales."""
    m, n, k = shape
    x, w = matrix(m, k), matrix(n, k)
    deep, down, across = (-(-extent // 128) for extent in (k, m, n))
    a, turned, b = scales(m, deep), scales(deep, m).t(), scales(across, deep)
    kinds = {
        "row": (scales(m, 1), scales(n, 1)),
        "1x128 x 128x128": (a, b),
        "1x128 (M-major) x 128x128": (turned, b),
        "1x128 x 1x128": (a, scales(n, deep)),
        "128x128 x 128x128": (scales(down, deep), b),
    }
    runs: Runs = {}
    for name, (of_a, of_b) in kinds.items():

        def ours(a: Any = of_a, b: Any = of_b) -> Any:
            return cg.gemm("NT", x, w, order="C", scale_a=a, scale_b=b)

        wide = [
            each.float()
            * scale.repeat_interleave(-(-each.shape[0] // scale.shape[0]), 0)[
                : each.shape[0]
            ].repeat_interleave(-(-k // scale.shape[1]), 1)[:, :k]
            for each, scale in ((x, of_a), (w, of_b))
        ]
        check(f"{shape} {name}", ours(), wide[0] @ wide[1].T, k)
        runs[name] = ours
    return entry("blocks", shape, runs, given.rounds)


def integers(shape: tuple[int, int, int], given: argparse.Namespace) -> dict[str, Any]:
    """Measure int8 with row scales, in one launch and in PyTorch's two, and bfloat16."""
    m, n, k = shape

    def drawn_integers(rows: int) -> torch.Tensor:
        return torch.randint(-128, 128, (rows, k), dtype=torch.int8, device="cuda")

    copies = places(lambda: (drawn_integers(m), drawn_integers(n)), (m + n) * k)
    halves = places(
        lambda: tuple(torch.randn(x, k, device="cuda", dtype=torch.bfloat16) for x in (m, n)),
        2 * (m + n) * k,
    )
    a, b = scales(m, 1), scales(n, 1)
    scaled = torch.compile(lambda y, a, b: (y * a * b.T).to(torch.bfloat16))

    def ours(x: Any, w: Any) -> Any:
        return cg.gemm("NT", x, w, order="C", scale_a=a, scale_b=b, out_dtype=torch.bfloat16)

    exact = (copies[0][0].double() @ copies[0][1].double().T * a.double() * b.double().T).float()
    off = ((ours(*copies[0]).float() - exact).abs() / exact.abs().clamp(min=1.0)).max().item()
    if not off < 2.0**-8 + 2.0**-20:
        WRONG.append(f"{shape} int8 is off by {off:.3e}")
        print(f"  WRONG: {WRONG[-1]}", flush=True)
    runs: Runs = {
        "int8": in_turns(ours, copies),
        "bfloat16": in_turns(lambda x, w: cg.gemm("NT", x, w, order="C"), halves),
    }
    if m > 16:  # torch._int_mm requires it
        runs["torch int8"] = in_turns(
            lambda x, w: scaled(torch._int_mm(x, w.t()), a, b), copies
        )  # fmt: skip
    return entry("int8", shape, runs, given.rounds, max(len(copies), len(halves)))


def entry(
    what: str, shape: tuple[int, int, int], runs: Runs, rounds: int, copies: int = 1
) -> dict[str, Any]:
    """Measure all calls of one shape, in microseconds, and print the medians."""
    flops = 2.0 * math.prod(shape)
    times = clocked(runs, calls_of(flops, copies), rounds)
    us = {name: statistics.median(found) for name, found in times.items()}
    print(f"{what} {'x'.join(map(str, shape))}", flush=True)
    for name, time in us.items():
        print(f"  {name:32s} {time:9.2f} us  {flops / time / 1e6:7.0f} TFLOP/s")
    return {"what": what, "shape": shape, "us": us, "rounds": times}


def ratios(found: list[dict[str, Any]], what: str, name: str, other: str) -> list[float]:
    """Return the time of ``other`` over that of ``name``, for each shape that has both."""
    return [
        statistics.median(b / a for a, b in zip(x["rounds"][name], x["rounds"][other], strict=True))
        for x in found if x["what"] == what and {name, other} <= {*x["rounds"]}
    ]  # fmt: skip


def summary(found: list[dict[str, Any]]) -> list[str]:
    """Return lines with the geometric mean, least and greatest ratios."""
    fast = ", fast_accum"
    pairs = [
        ("TN beside torch", f"{kind}{end}", f"torch {kind}{end}")
        for kind in ("tensor", "row") for end in ("", fast)
    ]  # fmt: skip
    pairs += [("ops", f"{op}{end}", f"TN{end}") for op in ("NN", "NT", "TT") for end in ("", fast)]
    pairs += [("int8", "int8", "torch int8"), ("int8", "int8", "bfloat16")]
    names = dict.fromkeys(name for x in found if x["what"] == "blocks" for name in x["us"])
    pairs += [("blocks", name, "row") for name in names if name != "row"]
    lines = []
    for what, name, other in pairs:
        known = ratios(found, what, name, other)
        if known:
            said = f"{what}: time of {other} over that of {name}"
            lines.append(f"{said}: geometric mean {spread(known)}")
    return lines


def compiled(shapes: list[tuple[int, int, int]]) -> None:
    """Compile in parallel the kernels that are compared with torch."""
    plans = [
        cg.plan("NT", m=m, n=n, k=k, dtype="float8_e4m3fn", order="C", storage="C",
                compute=compute, scale_a=a, scale_b=b)
        for m, n, k in shapes for compute in (None, "fast_accum")
        for a, b in (((1,), (1,)), ((m, 1), (n, 1)))
    ]  # fmt: skip
    cg.compile(plans)


def main() -> int:
    given = parsed(
        __doc__, parts=("torch,ops,blocks,int8", "parts to run, separated by commas"),
        random=(30, "number of random shapes that are compared with torch"), rounds=15,
    )  # fmt: skip
    torch.manual_seed(given.seed)
    # The products that results are compared with are in full precision.
    torch.backends.cuda.matmul.allow_tf32 = False
    rng = random.Random(given.seed)
    shapes = [*SQUARES, *THIN, *(drawn(rng) for _ in range(given.random))]
    found = []
    parts = given.parts.split(",")
    if "torch" in parts:
        compiled(shapes)
        found += [beside_torch(shape, given) for shape in shapes]
    if "ops" in parts:
        found += [ops(shape, given) for shape in OPS_SHAPES]
    if "blocks" in parts:
        found += [blocks(shape, given) for shape in BLOCK_SHAPES]
    if "int8" in parts:
        found += [integers(shape, given) for shape in shapes]
    lines = summary(found)
    print("\n".join(lines))
    write(given.json, {"entries": found, "summary": lines, "wrong": WRONG})
    return len(WRONG) > 0


if __name__ == "__main__":
    sys.exit(main())
