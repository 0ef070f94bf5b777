"""Compare the time of fused epilogues with PyTorch's.

    python tests/gpu/epilogues.py --dtypes bfloat16 --random 40 --seed 1

The product is ``y = epilogue(x @ w.T)`` with row-major x (M, K), w (N, K) and y, as in a linear
layer. The epilogues are: none; bias; bias and gelu; silu of the product plus a bias, then a
residual; silu(x @ w.T) * up; and swiglu of adjacent columns, whose y has half as many columns. They
are compared with cuBLAS's product (``torch.mm``), with PyTorch's fused operations from cuBLASLt
(``addmm``; ``_addmm_activation``, whose gelu is the tanh approximation), and with separate PyTorch
operations. For the first shapes, ``--autotune 2`` adds the operations compiled by
``torch.compile(mode="max-autotune-no-cudagraphs")``, and ``--quack 7`` adds QuACK's ``gemm_act``
with its default config (``pip install "quack-kernels[cu13]"``).
Each is captured in a CUDA graph with operands that are not in L2. All are timed in turn in each
round, and the script prints medians in microseconds. Results are compared with PyTorch's in
float32, and float32 results with float64.
"""

import logging
import math
import random
import statistics
import sys
from collections.abc import Callable
from itertools import product
from typing import Any

import torch
from graph_times import clocked, extent, in_turns, parsed, places, spread, write
from torch.nn import functional

import cute_gemm as cg

SHAPES = (
    (4096, 4096, 4096), (8192, 8192, 1024), (4096, 4096, 1024), (2048, 7168, 2112),
    (1024, 4096, 4096), (16, 4096, 4096), (64, 4096, 4096),
)  # fmt: skip


@cg.epilogue
def silu_residual(acc: Any, bias: Any, residual: Any) -> Any:
    return cg.silu(acc + bias) + residual


@cg.epilogue
def gated(acc: Any, up: Any) -> Any:
    return cg.silu(acc) * up


def swiglu(z: torch.Tensor) -> torch.Tensor:
    return functional.silu(z[:, 0::2]) * z[:, 1::2]


#: By name: the epilogue, its operands, PyTorch's operations, and PyTorch's fused operation.
EPILOGUES: dict[str, tuple[Any, str, Callable[..., Any], Callable[..., Any] | None]] = {
    "plain": (None, "", lambda x, w: x @ w.T, None),
    "bias": ("bias", "bias", lambda x, w, bias: x @ w.T + bias,
             lambda x, w, bias: torch.addmm(bias, x, w.T)),
    "bias+gelu_tanh": (
        "bias+gelu_tanh", "bias",
        lambda x, w, bias: functional.gelu(x @ w.T + bias, approximate="tanh"),
        lambda x, w, bias: torch._addmm_activation(bias, x, w.T, use_gelu=True),
    ),
    "bias+gelu": ("bias+gelu", "bias", lambda x, w, bias: functional.gelu(x @ w.T + bias), None),
    "bias+silu+residual": (
        silu_residual, "bias residual",
        lambda x, w, bias, residual: functional.silu(x @ w.T + bias) + residual, None,
    ),
    "gated": (gated, "up", lambda x, w, up: functional.silu(x @ w.T) * up, None),
    "swiglu": ("swiglu", "", lambda x, w: swiglu(x @ w.T), None),
}  # fmt: skip


def drawn(rng: random.Random) -> tuple[int, int, int]:
    """Return random extents, multiples of 8."""
    while True:
        m, n, k = (extent(rng, *x) for x in ((16, 8192), (256, 12288), (128, 8192)))
        if 1e8 <= 2 * m * n * k <= 3e11:
            return m, n, k


def wrong(y: torch.Tensor, exact: torch.Tensor, k: int) -> bool:
    """Return whether the error of a result exceeds the rounding of its type and of sums over k.

    Products of x and w are about 1 / sqrt(k), and a float32 accumulator rounds k partial sums of
    about 1. Random errors grow to sqrt(k) roundings; the bound is 8 times that.
    """
    unit, single = torch.finfo(y.dtype).eps, torch.finfo(torch.float32).eps
    slack = (2 * unit + 8 * math.sqrt(k) * single) * (exact.abs() + 2)
    return bool(((y.to(exact.dtype) - exact).abs() > slack).any())


def quack(name: str) -> Callable[..., Any]:
    """Return QuACK's function for an epilogue of the same name."""
    from quack.gemm_interface import gemm, gemm_act

    # QuACK 0.6.5 hashes all objects that an epilogue refers to, and cannot hash a logger.
    logging.Logger.__quack_semantic_key__ = lambda logger: logger.name  # type: ignore[attr-defined]
    options = {"store_preact": False, "tuned": False}
    if name == "bias":
        return lambda x, w, bias: gemm(x, w.T, bias=bias, tuned=False)
    if name == "swiglu":
        return lambda x, w: gemm_act(x, w.T, activation="swiglu", **options)[1]
    options["activation"] = "gelu_tanh_approx"
    return lambda x, w, bias: gemm_act(x, w.T, bias=bias, **options)[1]


def entries(
    shape: tuple[int, int, int], dtype: torch.dtype, rounds: int, autotune: bool, peers: bool
) -> dict[str, Any]:
    """Measure all calls of one shape, in microseconds. ``peers``: measure QuACK too."""
    m, n, k = shape
    shapes = {"x": (m, k), "w": (n, k), "bias": (n,), "residual": (m, n), "up": (m, n)}

    def made() -> dict[str, torch.Tensor]:
        found = {name: torch.randn(shape, device="cuda") for name, shape in shapes.items()}
        found["w"] /= k**0.5
        return {name: tensor.to(dtype) for name, tensor in found.items()}

    copies = places(made, dtype.itemsize * (m * k + n * k))
    runs: dict[str, Callable[[], Any]] = {}

    def add(name: str, words: str, run: Callable[..., Any]) -> None:
        operands = [[copy[word] for word in ("x", "w", *words.split())] for copy in copies]
        runs[name] = in_turns(run, operands)

    add("cuBLAS", "", lambda x, w: torch.mm(x, w.T))
    for name, (epilogue, words, unfused, fused) in EPILOGUES.items():
        names = words.split()

        def ours(x: Any, w: Any, *rest: Any, epilogue: Any = epilogue, names: Any = names) -> Any:
            operands = dict(zip(names, rest, strict=True))
            return cg.gemm("NT", x, w, order="C", epilogue=epilogue, **operands)

        operands = [copies[0][word] for word in ("x", "w", *names)]
        wider = torch.float64 if dtype == torch.float32 else torch.float32
        exact = unfused(*(each.to(wider) for each in operands))
        if wrong(ours(*operands), exact, k):
            raise AssertionError(f"{name} of {shape} is wrong")
        add(name, words, ours)
        if epilogue is not None:
            add(f"{name}, unfused", words, unfused)
        if autotune:
            tuned = torch.compile(unfused, mode="max-autotune-no-cudagraphs", dynamic=False)
            add(f"{name}, max-autotune", words, tuned)
        if fused is not None:
            add(f"{name}, cuBLASLt", words, fused)
        if peers and name in ("bias", "bias+gelu_tanh", "swiglu"):
            add(f"{name}, QuACK", words, quack(name))
    calls = max(len(copies), 1, min(20, round(300 / max(3.0, 2 * m * n * k / 6e8))))
    times = clocked(runs, calls, rounds)
    return {"shape": shape, "us": {name: statistics.median(x) for name, x in times.items()}}


def compiled(shapes: list[tuple[int, int, int]], dtypes: list[str]) -> None:
    """Compile all kernels in parallel."""
    plans = []
    for (m, n, k), dtype, (epilogue, words, *_) in product(shapes, dtypes, EPILOGUES.values()):
        shaped = {word: (n,) if word == "bias" else (m, n) for word in words.split()}
        sizes: dict[str, Any] = {"m": m, "n": n, "k": k, "dtype": dtype}
        sizes |= {"order": "C", "storage": "C"}
        plans.append(cg.plan("NT", **sizes, epilogue=epilogue, **shaped))
    cg.compile(plans)


def ratios(found: list[dict[str, Any]], name: str, other: str) -> list[float]:
    """Return the time of ``other`` over that of ``name``, for every shape that has both."""
    both = [each["us"] for each in found if name in each["us"] and other in each["us"]]
    return [us[other] / us[name] for us in both]


def main() -> int:
    given = parsed(
        __doc__, dtypes="bfloat16", random=(40, "number of random shapes"),
        shapes=("", "4096x4096x4096,...: replace the seven default shapes"),
        autotune=(0, "number of first shapes that torch.compile tunes"),
        quack=(0, "number of first shapes that QuACK computes, in 16-bit types"),
    )  # fmt: skip
    torch.manual_seed(given.seed)
    torch.backends.cuda.matmul.allow_tf32 = False
    rng = random.Random(given.seed)
    named = [tuple(map(int, text.split("x"))) for text in given.shapes.split(",") if text]
    shapes: list[Any] = named or [*SHAPES]
    shapes += [drawn(rng) for _ in range(given.random)]
    everything = {}
    compiled(shapes, given.dtypes.split(","))
    for dtype in given.dtypes.split(","):
        found = []
        for place, shape in enumerate(shapes):
            torch._dynamo.reset()
            tuned, peers = place < given.autotune, place < given.quack and dtype != "float32"
            found.append(entries(shape, getattr(torch, dtype), given.rounds, tuned, peers))
            us = found[-1]["us"]
            print(f"{dtype} {'x'.join(map(str, shape))}", flush=True)
            for name, time in us.items():
                print(
                    f"  {name:30s} {time:9.2f} us  {time / us['plain']:.3f} of the plain product "
                    f" {us['cuBLAS'] / time:.3f} of cuBLAS's speed"
                )
        print()
        for name in EPILOGUES:
            for other in (
                "plain",
                f"{name}, cuBLASLt",
                f"{name}, unfused",
                f"{name}, max-autotune",
                f"{name}, QuACK",
                "cuBLAS",
            ):
                known = ratios(found, name, other)
                if known and name != other and (name == "plain" or other != "cuBLAS"):
                    said = f"{dtype} {name}: time of {other} over ours"
                    print(f"{said}: geometric mean {spread(known)}")
        everything[dtype] = found
    write(given.json, everything)
    return 0


if __name__ == "__main__":
    sys.exit(main())
