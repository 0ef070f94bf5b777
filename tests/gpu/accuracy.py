"""Compare the largest errors of all kernels, types and compute modes with cuBLAS's.

    python tests/gpu/accuracy.py [--m 64 --n 48] [--k 256,4096] [--json FILE]

The error of an element is divided by its bound from `cute_gemm.problem.verify`, so 1 is the bound.
Five kinds of data are used: normal; positive; wide (normal times powers of two from 2^-8 to 2^8);
cancelling (the second half of k cancels most of the first); and integers. Sums of these integers
are exact in every type, so the error must be 0. cuBLAS multiplies the same data. The script prints
a line for each type, kind of data and k, and then a table for the documentation with the largest
error of all kernels. It exits with 1 if an error is above 1, or not 0 for integers.
"""

import sys
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import torch
from graph_times import parsed, write

import cute_gemm as cg
from cute_gemm.dtypes import DTYPES
from cute_gemm.errors import GemmError
from cute_gemm.problem.verify import verify

TYPES = (
    "float16", "bfloat16", "float32", "float32/tf32", "float32/bf16x6", "float32/bf16x9",
    "float64", "complex64", "complex128", "int8", "float8_e4m3fn", "float8_e4m3fn/fast_accum",
    "float8_e5m2",
)  # fmt: skip
DATA = ("normal", "positive", "wide", "cancelling", "integers")


def numbers(kind: str, dtype: str, rows: int, columns: int) -> torch.Tensor:
    """Return random float64 or complex128 numbers of a kind, before rounding to the type."""
    shape = rows, columns
    if kind == "integers" or dtype == "int8":
        signs = torch.randint(-1, 2, shape, device="cuda").double()
        return signs * torch.randint(0, 2, shape, device="cuda")
    made = torch.complex128 if dtype.startswith("complex") else torch.float64
    x = torch.randn(shape, device="cuda", dtype=made)
    if kind == "positive":
        x = torch.complex(x.real.abs(), x.imag.abs()) if x.is_complex() else x.abs()
    elif kind == "wide":
        x = x * 2.0 ** torch.randint(-8, 9, shape, device="cuda")
    return x


def operands(kind: str, dtype: str, m: int, n: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a row-major A (m, k) and a K-major B (k, n)."""
    name = dtype.partition("/")[0]
    a, b = numbers(kind, name, m, k), numbers(kind, name, n, k)
    if kind == "cancelling":
        half = k // 2
        a[:, half:], b[:, half:] = a[:, :half], -b[:, :half] * (1 - 2**-5)
    if name.startswith("float8"):
        a, b = (x.clamp(-240, 240) for x in (a, b))
    return tuple(x.to(getattr(torch, name)) for x in (a, b.contiguous()))  # type: ignore[return-value]


def on_host(x: torch.Tensor) -> np.ndarray:
    """Return a NumPy array with the same bytes."""
    name = str(x.dtype)[6:]
    kind = DTYPES[name].numpy
    words = {1: torch.uint8, 2: torch.int16}.get(x.element_size())
    x = x.cpu().contiguous()
    return (x if words is None or name == "int8" else x.view(words)).numpy().view(kind)


class Case(NamedTuple):
    """A product, and the kernel that computes it."""

    dtype: str
    data: str
    k: int
    kernel: str
    m: int
    n: int

    @property
    def options(self) -> dict[str, Any]:
        """Return the keyword arguments of the call."""
        compute = self.dtype.partition("/")[2]
        return {"order": "C", "kernel": self.kernel} | ({"compute": compute} if compute else {})

    def operands(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return A and B. A has few rows for the kernel `thin`."""
        a, b = operands(self.data, self.dtype, self.m, self.n, self.k)
        return self.rows(a), b

    def rows(self, a: torch.Tensor) -> torch.Tensor:
        """Return the rows of A that the kernel supports."""
        return a[:16] if self.kernel == "thin" else a

    def plan(self, a: torch.Tensor, b: torch.Tensor) -> cg.Plan | None:
        """Return the plan, or None if the kernel does not support the product."""
        try:
            return cg.plan("NT", a, b, **self.options)
        except GemmError:
            return None

    def largest(self, a: torch.Tensor, b: torch.Tensor, result: Any = None) -> float | None:
        """Return the largest error over its bound, of ``result`` or else of the kernel's result."""
        a = self.rows(a)
        plan = self.plan(a, b)
        if plan is None:
            return None
        result = cg.gemm("NT", a, b, **self.options) if result is None else result
        return verify(plan.problem, on_host(a), on_host(b), on_host(result)).max_ratio


def cublas(a: torch.Tensor, b: torch.Tensor, compute: str) -> torch.Tensor | None:
    """Return PyTorch's product, or None if it does not support the type."""
    torch.backends.cuda.matmul.allow_tf32 = compute == "tf32"
    if a.dtype == torch.int8:
        return torch._int_mm(a, b.T)
    if a.element_size() == 1:
        one = torch.ones((), device="cuda")
        if a.dtype == torch.float8_e5m2:  # cuBLAS does not multiply two e5m2 matrices
            return None
        fast = compute == "fast_accum"
        return torch._scaled_mm(
            a, b.T, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=fast
        )
    return a @ b.T


def main() -> int:
    given = parsed(__doc__, rounds=None, m=64, n=48, k=("256,4096", "separated by commas"))
    for flag in (
        "allow_fp16_reduced_precision_reduction",
        "allow_bf16_reduced_precision_reduction",
    ):
        setattr(torch.backends.cuda.matmul, flag, False)
    torch.manual_seed(given.seed)
    kernels = ["auto", *(x.name for x in cg.kernels() if x.runs_on == "gpu")]
    depths = list(map(int, given.k.split(",")))
    every = [Case(*x, given.m, given.n) for x in product(TYPES, DATA[:1], depths, kernels)]
    cg.compile([plan for plan in (case.plan(*case.operands()) for case in every) if plan])
    found: list[dict[str, Any]] = []
    for dtype, data, k in product(TYPES, DATA, depths):
        a, b = operands(data, dtype, given.m, given.n, k)
        row: dict[str, Any] = {"dtype": dtype, "data": data, "k": k, "kernels": {}}
        for kernel in kernels:
            case = Case(dtype, data, k, kernel, given.m, given.n)
            if (ratio := case.largest(a, b)) is not None:
                row["kernels"][kernel] = ratio
        theirs = cublas(a, b, dtype.partition("/")[2])
        auto = Case(dtype, data, k, "auto", given.m, given.n)
        row["cuBLAS"] = None if theirs is None else auto.largest(a, b, theirs)
        found.append(row)
        each = "  ".join(f"{name} {x:.2g}" for name, x in row["kernels"].items())
        print(f"{dtype} {data} {k}: cuBLAS {row['cuBLAS']}  {each}", flush=True)
    write(given.json, found)
    print(f"| type | {' | '.join(DATA)} |\n|---|{'---:|' * len(DATA)}")
    bad = 0
    for dtype in TYPES:
        cells = []
        for data in DATA:
            rows = [x for x in found if (x["dtype"], x["data"]) == (dtype, data)]
            ours = max(x for row in rows for x in row["kernels"].values())
            theirs = [row["cuBLAS"] for row in rows if row["cuBLAS"] is not None]
            cells.append(f"{ours:.2g}" + (f" ({max(theirs):.2g})" if theirs else ""))
            bad += ours > (0 if data == "integers" else 1)
        print(f"| `{dtype}` | {' | '.join(cells)} |")
    print(f"{sum(len(x['kernels']) for x in found)} results, {bad} types and data out of bound")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
