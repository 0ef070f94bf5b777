"""Compare ``compute="bf16x9"`` and ``"bf16x6"`` with cuBLAS's SGEMM: time and errors.

    python tests/gpu/components.py [--sizes 4096,8192] [--random 12 --seed 1] [--rounds 7]
        [--parts times,errors] [--json FILE]

Times are measured in a CUDA graph, in turn, and include the conversion kernels. The error of an
element is its difference from float64, divided by ``sum |a||b|``.
"""

import random
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import torch
from graph_times import clocked, parsed, spread, write

import cute_gemm as cg
from cute_gemm.dtypes import COMPONENT_PRODUCTS

OPS = ("NN", "NT", "TN", "TT")
KINDS = ("normal", "positive", "wide", "cancelling", "large")
#: m and n of the products whose errors are measured, and their k.
ROWS, COLUMNS, DEEP = 512, 256, (64, 512, 4096, 65536)


def times(op: str, m: int, n: int, k: int, rounds: int) -> dict[str, Any]:
    """Measure one shape, in microseconds."""
    A = torch.randn((m, k) if op[0] == "N" else (k, m), device="cuda")
    B = torch.randn((k, n) if op[1] == "N" else (n, k), device="cuda")
    left, right = A if op[0] == "N" else A.T, B if op[1] == "N" else B.T
    runs: dict[str, Callable[[], Any]] = {"cuBLAS": lambda: torch.mm(left, right)}
    for compute in ("float32", *COMPONENT_PRODUCTS):
        runs[compute] = lambda x=compute: cg.gemm(op, A, B, order="C", compute=x)
        if compute != "float32":
            plan = cg.plan(op, A, B, order="C", compute=compute)
            packed = plan.pack(B, "B")
            runs[f"{compute}, B packed"] = lambda p=plan, b=packed: p(A, b)
    reps = max(1, min(20, round(2e4 / max(3.0, 2 * m * n * k / 5e7))))
    us = {name: statistics.median(x) for name, x in clocked(runs, reps, rounds).items()}
    print(f"{op} {m}x{n}x{k}", flush=True)
    for name, time in us.items():
        speed = 2e-6 * m * n * k / time
        print(f"  {name:18} {time:10.1f} us {speed:7.1f} TFLOP/s  {us['cuBLAS'] / time:5.2f}")
    return {"op": op, "shape": (m, n, k), "us": us}


def drawn(kind: str, rows: int, columns: int, large: float) -> torch.Tensor:
    """Return a random float32 matrix. Kind "large" is normal data times ``large``."""
    x = torch.randn(rows, columns, device="cuda", dtype=torch.float64)
    if kind == "positive":
        x = x.abs()
    elif kind == "wide":
        x *= 2.0 ** torch.randint(-16, 17, x.shape, device="cuda")
    elif kind == "large":
        x *= large
    return x.float()


def errors() -> Iterator[dict[str, Any]]:
    """Yield the largest error and the root mean square error of each kind, k and compute mode."""
    ways: dict[str, Callable[[Any, Any], Any]] = {
        "cuBLAS": torch.mm,
        "float32": lambda a, b: cg.gemm("NN", a, b, kernel="double_buffered"),
        **{x: lambda a, b, x=x: cg.gemm("NN", a, b, compute=x) for x in COMPONENT_PRODUCTS},
        "tf32": lambda a, b: cg.gemm("NN", a, b, compute="tf32"),
    }
    for kind in KINDS:
        for k in DEEP:
            torch.manual_seed(0)
            a, b = drawn(kind, ROWS, k, 1e30), drawn(kind, k, COLUMNS, 1e-30)
            if kind == "cancelling":  # the second half of k cancels most of the first
                a[:, k // 2 :], b[k // 2 :] = a[:, : k // 2], -b[: k // 2] * (1 + 2**-12)
            wide = a.double(), b.double()
            exact, size = wide[0] @ wide[1], wide[0].abs() @ wide[1].abs()
            found = {"kind": kind, "k": k}
            for name, way in ways.items():
                off = ((way(a, b).double() - exact) / size).abs()
                found[name] = off.max().item(), off.square().mean().sqrt().item()
            print(f"{kind:10} k {k:6}  " + "  ".join(
                f"{name} {found[name][0]:.1e} {found[name][1]:.1e}" for name in ways
            ), flush=True)  # fmt: skip
            yield found


def main() -> None:
    given = parsed(__doc__, sizes="4096,8192", random=0, parts="times,errors")
    torch.backends.cuda.matmul.allow_tf32 = False
    result: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "times": [], "errors": []}
    if "times" in given.parts:
        cubes = [(op, x, x, x) for x in map(int, given.sizes.split(",")) for op in OPS]
        rng = random.Random(given.seed)
        others = [
            (rng.choice(OPS), *(8 * round(2 ** rng.uniform(4, 10.3)) for _ in "mnk"))
            for _ in range(given.random)
        ]
        for shape in (*cubes, *others):
            result["times"].append(times(*shape, given.rounds))
        for name in result["times"][0]["us"]:
            ratios = [x["us"]["cuBLAS"] / x["us"][name] for x in result["times"]]
            print(f"{name:18} cuBLAS / this: {spread(ratios)}")
    if "errors" in given.parts:
        result["errors"] = list(errors())
    write(given.json, result)


if __name__ == "__main__":
    main()
