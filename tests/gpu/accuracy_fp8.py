"""Measure the errors of products of 8-bit floats, for several k, data and accumulations.

    python tests/gpu/accuracy_fp8.py --json accuracy_fp8.json

The product is x @ w.T of row-major e4m3 matrices into float32. It is computed with ``fast_accum``,
with the default accumulation, with block scales (1x128 of x, 128x128 of w), and by
``torch._scaled_mm`` with both values of ``use_fast_accum``. Data are normal, wide (normal times
powers of two from 2^-6 to 2^6), and positive. An error is the difference from float64, divided by
the root mean square of the results. The script prints a table for the documentation with the
largest error and the root mean square error. With ``--device cpu``, the interpreter executes the
package's kernels, for small k.
"""

import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from graph_times import parsed, write

import cute_gemm as cg

KIND = torch.float8_e4m3fn
DATA: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "normal": lambda normal, uniform: normal,
    "wide": lambda normal, uniform: normal * torch.exp2(torch.round(12 * uniform - 6)),
    "positive": lambda normal, uniform: normal.abs(),
}


class Errors(NamedTuple):
    """Errors of a product, over the root mean square of the results."""

    worst: float
    rms: float


def matrix(data: str, rows: int, k: int, device: str) -> torch.Tensor:
    """Return a row-major matrix, clamped to the finite range of the type."""
    normal, uniform = (draw(rows, k, device=device) for draw in (torch.randn, torch.rand))
    return DATA[data](normal, uniform).clamp(-448, 448).to(KIND)


def expanded(scales: torch.Tensor, rows: int) -> torch.Tensor:
    """Return the scale of each element."""
    return scales.double().repeat_interleave(rows, 0).repeat_interleave(128, 1)


def errors(found: torch.Tensor, exact: torch.Tensor) -> Errors:
    """Return the errors of a result, compared with float64."""
    off, size = (found.double() - exact).abs(), exact.square().mean().sqrt()
    return Errors((off.max() / size).item(), (off.square().mean().sqrt() / size).item())


def measured(data: str, m: int, n: int, k: int, device: str) -> Iterator[tuple[str, Errors]]:
    """Yield the name and the errors of each product, except those that torch does not support."""
    x, w = matrix(data, m, k, device), matrix(data, n, k, device)
    exact = x.double() @ w.double().T
    where: dict[str, Any] = {"backend": "interpreter", "arch": "sm_90a"} if device == "cpu" else {}
    where |= {"order": "C", "out_dtype": "float32", "kernel": "sm90_wgmma"}
    for name, compute in (("fast_accum", "fast_accum"), ("default", None)):
        yield name, errors(cg.gemm("NT", x, w, compute=compute, **where), exact)
    a = torch.rand(m, k // 128, device=device) + 0.5
    b = torch.rand(n // 128, k // 128, device=device) + 0.5
    scaled = (x.double() * expanded(a, 1)) @ (w.double() * expanded(b, 128)).T
    yield "block scales", errors(cg.gemm("NT", x, w, scale_a=a, scale_b=b, **where), scaled)
    one = torch.ones((), device=device)
    for fast in (True, False):
        name = f"torch, use_fast_accum={fast}"
        try:
            theirs = torch._scaled_mm(
                x, w.t(), scale_a=one, scale_b=one, out_dtype=torch.float32, use_fast_accum=fast
            )
        except RuntimeError as error:
            print(
                f"torch does not support {name}: {str(error).splitlines()[0][:90]}", file=sys.stderr
            )
            continue
        yield name, errors(theirs, exact)


def main() -> int:
    given = parsed(
        __doc__, m=(512, "rows"), n=(512, "columns, a multiple of 128"), seed=0, rounds=None,
        k=("512,1024,2048,4096,8192,16384,32768,65536", "multiples of 128, separated by commas"),
        device=("cuda", "cuda or cpu"),
    )  # fmt: skip
    torch.manual_seed(given.seed)
    found = []
    for data in DATA:
        for k in map(int, given.k.split(",")):
            ways = dict(measured(data, given.m, given.n, k, given.device))
            if not found:
                print(f"| data | k | {' | '.join(ways)} |\n|---|---:|{'---:|' * len(ways)}")
            cells = (f"{way.worst:.1e}, {way.rms:.1e}" for way in ways.values())
            print(f"| {data} | {k} | {' | '.join(cells)} |", flush=True)
            each = {name: way._asdict() for name, way in ways.items()}
            found.append({"data": data, "k": k, "errors": each})
    write(given.json, {"m": given.m, "n": given.n, "entries": found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
