"""The largest error of every kernel, type and compute mode over its bound, beside cuBLAS's.

    python tests/gpu/accuracy.py [--m 96 --n 80] [--k 256,8192] [--json FILE]

An error is that of an element, over the bound of `cute_gemm.problem.verify` for this element; 1 is
the bound. Data are normal; positive; wide, normal times powers of two from 2^-8 to 2^8; cancelling,
where the second half of k takes most of the first away; and integers, whose sums every type has
exactly, so that the error must be 0. cuBLAS computes the same data. Prints a line for each kernel,
and a table of the largest of all kernels for the documentation. Exits with 1 if one is above 1, or
not 0 for integers.
"""

import sys
from typing import Any

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
    """Float64 or complex128 numbers of a kind, that are then rounded to the type."""
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
    """Row-major A (m, k), and B (k, n) that is K-major."""
    name = dtype.partition("/")[0]
    a, b = numbers(kind, name, m, k), numbers(kind, name, n, k)
    if kind == "cancelling":
        half = k // 2
        a[:, half:], b[:, half:] = a[:, :half], -b[:, :half] * (1 - 2**-5)
    if name.startswith("float8"):
        a, b = (x.clamp(-240, 240) for x in (a, b))
    return tuple(x.to(getattr(torch, name)) for x in (a, b.contiguous()))  # type: ignore[return-value]


def on_host(x: torch.Tensor) -> np.ndarray:
    """The same bytes as a NumPy array."""
    name = str(x.dtype)[6:]
    kind = DTYPES[name].numpy
    words = {1: torch.uint8, 2: torch.int16}.get(x.element_size())
    x = x.cpu().contiguous()
    return (x if words is None or name == "int8" else x.view(words)).numpy().view(kind)


def cublas(a: torch.Tensor, b: torch.Tensor, compute: str) -> torch.Tensor | None:
    """PyTorch's product, None where it has none."""
    torch.backends.cuda.matmul.allow_tf32 = compute == "tf32"
    if a.dtype == torch.int8:
        return torch._int_mm(a, b.T)
    if a.element_size() == 1:
        one = torch.ones((), device="cuda")
        if a.dtype == torch.float8_e5m2:  # of two of which cuBLAS has no product
            return None
        fast = compute == "fast_accum"
        return torch._scaled_mm(
            a, b.T, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=fast
        )
    return a @ b.T


def main() -> int:
    given = parsed(__doc__, rounds=None, m=96, n=80, k=("256,8192", "with commas"))
    for flag in (
        "allow_fp16_reduced_precision_reduction",
        "allow_bf16_reduced_precision_reduction",
    ):
        setattr(torch.backends.cuda.matmul, flag, False)
    torch.manual_seed(given.seed)
    kernels = [x.name for x in cg.kernels() if x.runs_on == "gpu"]
    found: list[dict[str, Any]] = []
    for dtype in TYPES:
        compute = dtype.partition("/")[2]
        options = {"compute": compute} if compute else {}
        for data in DATA:
            for k in map(int, given.k.split(",")):
                a, b = operands(data, dtype, given.m, given.n, k)
                A, B = on_host(a), on_host(b)
                problem = cg.plan("NT", a, b, order="C", **options).problem

                def largest(
                    result: torch.Tensor, A: Any = A, B: Any = B, x: Any = problem
                ) -> float:
                    return verify(x, A, B, on_host(result)).max_ratio

                row: dict[str, Any] = {"dtype": dtype, "data": data, "k": k, "kernels": {}}
                for kernel in ("auto", *kernels):
                    few = given.m if kernel != "thin" else 16
                    try:
                        C = cg.gemm("NT", a[:few], b, order="C", kernel=kernel, **options)
                    except GemmError:
                        continue
                    if few < given.m:
                        part = cg.plan("NT", a[:few], b, order="C", **options).problem
                        row["kernels"][kernel] = largest(C, A[:few], B, part)
                    else:
                        row["kernels"][kernel] = largest(C)
                theirs = cublas(a, b, compute)
                row["cuBLAS"] = None if theirs is None else largest(theirs)
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
