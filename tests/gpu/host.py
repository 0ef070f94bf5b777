"""Compare the host time of calls and layers with PyTorch's: ``python tests/gpu/host.py``.

Each row is a median over rounds. In each round, this package and PyTorch are called in turn, and
the GPU is synchronized at the end only. Products are small, so that the GPU finishes before the
host.
"""

import argparse
import gc
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import torch

import cute_gemm as cg
import cute_gemm.torch as ct

#: Calls of a round, and rounds.
CALLS, ROUNDS = 100, 30


def microseconds(function: Callable[[], Any], calls: int = CALLS) -> float:
    """Return the host time of a call, in microseconds."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        function()
    spent = time.perf_counter() - start
    torch.cuda.synchronize()
    return spent / calls * 1e6


def in_turn(ours: Callable[[], Any], theirs: Callable[[], Any]) -> tuple[float, float, float]:
    """Return the medians of both times, and the median of the ratios of ours to theirs."""
    for function in (ours, theirs) * 3:
        microseconds(function)
    pairs = [(microseconds(ours), microseconds(theirs)) for _ in range(ROUNDS)]
    mine, other = (statistics.median(x) for x in zip(*pairs, strict=True))
    return mine, other, statistics.median(x / y for x, y in pairs)


def pair(rows: int, k: int, n: int, **given: Any) -> tuple[Any, Any, torch.Tensor]:
    """Return this package's layer, PyTorch's with the same parameters, and an input."""
    kind: Any = {"device": "cuda", "dtype": torch.bfloat16}
    ours, theirs = ct.Linear(k, n, **given, **kind), torch.nn.Linear(k, n, **kind)
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs, torch.randn(rows, k, **kind)


def step(layer: Any, x: torch.Tensor) -> Callable[[], None]:
    """Return a function that computes a training step, forward and backward."""
    parameters = list(layer.parameters())
    g = torch.ones_like(layer(x))

    def run() -> None:
        torch.autograd.grad(layer(x), parameters, g)

    return run


class Block(torch.nn.Module):
    """A transformer block with linear layers of the given class."""

    def __init__(self, linear: Any, width: int, heads: int = 4) -> None:
        super().__init__()
        kind: Any = {"device": "cuda", "dtype": torch.bfloat16}
        self.heads = heads
        self.first, self.second = (torch.nn.LayerNorm(width, **kind) for _ in range(2))
        self.qkv, self.out = linear(width, 3 * width, **kind), linear(width, width, **kind)
        self.up, self.down = linear(width, 4 * width, **kind), linear(4 * width, width, **kind)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        qkv = self.qkv(self.first(x)).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = torch.nn.functional.scaled_dot_product_attention(*qkv)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.down(torch.nn.functional.gelu(self.up(self.second(x))))


def rows() -> Iterator[tuple[str, tuple[float, ...]]]:
    """Yield the name of a row, this package's and PyTorch's microseconds, and their ratio."""
    a, b = (torch.randn(256, 256, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    c = cg.gemm("NN", a, b)
    yield (
        "gemm into C, torch.mm into C",
        in_turn(lambda: cg.gemm("NN", a, b, c), lambda: torch.mm(a, b, out=c)),
    )
    yield "gemm, torch.mm", in_turn(lambda: cg.gemm("NN", a, b), lambda: torch.mm(a, b))
    yield "matmul, torch.matmul", in_turn(lambda: ct.matmul(a, b), lambda: torch.matmul(a, b))
    ours, theirs, x = pair(64, 512, 512)
    yield "Linear, weights with grad", in_turn(lambda: ours(x), lambda: theirs(x))
    yield "Linear, forward and backward", in_turn(step(ours, x), step(theirs, x))
    with torch.no_grad():
        yield "Linear, no_grad", in_turn(lambda: ours(x), lambda: theirs(x))
    fused, theirs, x = pair(64, 512, 512, activation="gelu")
    yield (
        "Linear with gelu, F.gelu of Linear",
        in_turn(lambda: fused(x), lambda: torch.nn.functional.gelu(theirs(x))),
    )
    with torch.no_grad():
        yield (
            "the same, no_grad",
            in_turn(lambda: fused(x), lambda: torch.nn.functional.gelu(theirs(x))),
        )
    w1, w2 = ours.weight, theirs.weight
    yield (
        "mlp, two Linear and gelu",
        in_turn(
            lambda: ct.mlp(x, w1, None, w2, None, "gelu"),
            lambda: torch.nn.functional.linear(
                torch.nn.functional.gelu(torch.nn.functional.linear(x, w1)), w2
            ),
        ),
    )
    blocks = [
        torch.nn.Sequential(*(Block(linear, 256) for _ in range(4)))
        for linear in (ct.Linear, torch.nn.Linear)
    ]
    blocks[1].load_state_dict(blocks[0].state_dict())
    x = torch.randn(1, 64, 256, device="cuda", dtype=torch.bfloat16)
    yield "transformer's step, 4 layers of 256", in_turn(*(step(each, x) for each in blocks))


def new_shapes() -> list[float]:
    """Return the sorted microseconds of plans of new shapes, of a class that is cached."""
    spent = []
    for number in range(400):
        m = 1024 + 8 * number
        a = torch.empty(m, 1024, device="cuda", dtype=torch.bfloat16)
        b = torch.empty(1024, 1024, device="cuda", dtype=torch.bfloat16)
        start = time.perf_counter()
        cg.plan("NN", a, b)
        spent.append((time.perf_counter() - start) * 1e6)
    return sorted(spent[20:])


def known_shapes(shapes: int) -> float:
    """Return the microseconds of a call of `gemm` over ``shapes`` known shapes in turn."""
    room = torch.zeros(1 << 20, device="cuda", dtype=torch.bfloat16)
    sizes = ((8 + 8 * (i % 100), 8 + 8 * (i // 100)) for i in count())
    pairs = [
        (room[: m * 64].view(m, 64), room[: 64 * n].view(64, n))
        for m, n in (next(sizes) for _ in range(shapes))
    ]
    given: dict[str, Any] = {"kernel": "sm90_wgmma", "tile": (64, 64, 64), "cluster": (1, 1)}
    given |= {"warp_groups": 1, "ping_pong": 0, "swap_ab": 0, "stages": 2, "order": "C"}
    calls = [lambda a=a, b=b: cg.gemm("NN", a, b, **given) for a, b in pairs]
    for call in calls:
        call()
    start = time.perf_counter()
    repeats = max(1, 2000 // shapes)
    for _ in range(repeats):
        for call in calls:
            call()
    spent = (time.perf_counter() - start) / (repeats * shapes) * 1e6
    torch.cuda.synchronize()
    return spent


def seconds_of(code: str) -> float:
    """Return the least seconds of a process that runs this code, minus those of its baseline."""

    def least(text: str) -> float:
        spent = []
        for _ in range(3):
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", text], check=True)
            spent.append(time.perf_counter() - start)
        return min(spent)

    before, _, own = code.partition("; ")
    return least(code) - least(before if own else "pass")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--short", action="store_true", help="skip the loop over 10,000 shapes")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    given = parser.parse_args()
    gc.disable()
    found: dict[str, dict[str, Any]] = {"beside PyTorch": {}, "us": {}, "s": {}}
    print(f"{'microseconds of the host':42} {'ours':>8} {'PyTorch':>8} {'ratio':>6}")
    for name, values in rows():
        found["beside PyTorch"][name] = values
        print(f"{name:42} {values[0]:8.1f} {values[1]:8.1f} {values[2]:6.2f}", flush=True)
    spent = new_shapes()
    for name, at in {"median": 50, "90th percentile": 90, "99th percentile": 99}.items():
        found["us"][f"plan of a new shape, {name}"] = spent[len(spent) * at // 100]
    for shapes in (10, 200, 1000) if given.short else (10, 200, 1000, 10000):
        found["us"][f"gemm over {shapes:,} known shapes in turn"] = known_shapes(shapes)
    for name, each in found["us"].items():
        print(f"{name}: {each:.1f}", flush=True)
    for code in ("import numpy; import cute_gemm", "import torch; import cute_gemm.torch"):
        found["s"][code] = seconds_of(code)
        print(f"{code}: {found['s'][code]:.2f} s more than the first alone")
    if given.json:
        given.json.write_text(json.dumps(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
