"""Test the bits of ``batch_invariant=True``, or compare its time with the default and ``torch.mm``.

    python tests/gpu/batch_invariant.py --bits 400 [--seed 1] [--workers 16]
    python tests/gpu/batch_invariant.py [--dtype bfloat16] [--random 12 --seed 1] [--rounds 7]
        [--json FILE]

With ``--bits``, the products have random types, ops, extents (most of them odd), alignments,
epilogues, batches and groups. Each is computed with hundreds of rows, and then with some of these
rows alone, in several processes. The script prints a line for each product. The last line is the
number of rows that differ, which must be 0.

Without ``--bits``, the script measures calls in a CUDA graph, in turn, with operands that are not
in L2. The shapes are projections of open models, and random ones. The ratios are geometric means
for m >= 256 and for m < 256.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import statistics
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

import torch
from graph_times import clocked, in_turns, numbers, parsed, places, spread, write

import cute_gemm as cg

#: n and k of layers.
LAYERS = (
    (2112, 7168), (7168, 2304), (24576, 1536), (7168, 16384), (4096, 4096), (28672, 4096),
    (6144, 4096), (1024, 8192),
)  # fmt: skip
ROWS = (1, 8, 32, 128, 256, 512, 2048, 4096)


def entry(m: int, n: int, k: int, dtype: torch.dtype, rounds: int) -> dict[str, Any]:
    """Measure one shape, in microseconds."""
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


# ---- bits ---------------------------------------------------------------------------------------

#: Types, with ``compute``. Repeated types are drawn more often.
TYPES = (
    "bfloat16", "bfloat16", "float16", "float16", "float32", "float32", "float32/tf32", "float64",
    "complex64", "complex128", "int8", "float8_e4m3fn", "float32/bf16x9", "float32/bf16x6",
)  # fmt: skip


@cg.epilogue
def affine(acc: Any, bias: Any, residual: Any) -> Any:
    """An epilogue with products of columns, and of rows and columns. FMAs may contract them."""
    return acc * bias + bias * (1 - bias) + residual * bias


@dataclass(frozen=True)
class Drawn:
    """A random product: A (m, k) and B (k, n), or a batch or groups, stored with padded rows.

    ``turned``: whether A and B are stored in the order opposite to their letters of the op.
    """

    dtype: str
    op: str
    m: int
    n: int
    k: int
    pads: tuple[int, int]
    turned: tuple[bool, bool]
    order: str
    epilogue: str = ""
    kernel: str = "auto"
    l: int = 0  #: matrices of a batch, or groups of a grouped GEMM
    groups: str = ""  #: the mode that the groups split

    @classmethod
    def number(cls, number: int, seed: int) -> Drawn:
        if number == 0:  # A and B are packed for m = 1500, but not for fewer rows
            return cls("bfloat16", "NT", 1500, 397, 171, (0, 0), (False, False), "C")
        draw = random.Random(f"{seed} {number}")
        dtype = draw.choice(TYPES)
        components = "/bf16" in dtype
        m, n, k = draw.randint(600, 2000), draw.randint(20, 1200), draw.randint(20, 1500)
        if draw.random() < 0.75:
            n, k = n | 1, k | 1
        kind = draw.choice(("", "", "", "", "batch", "groups")) if not components else ""
        epilogue = draw.choice(("", "", "bias", "bias+gelu", "relu", "residual", "affine"))
        if dtype.startswith(("complex", "int8")) or kind:
            epilogue = ""
        pads = tuple(draw.choice((0, 0, 1, 3, 8)) for _ in "AB")
        named = dtype not in ("complex64", "float32/bf16x6", "float32/bf16x9")
        return cls(
            dtype, draw.choice("NT") + draw.choice("NT"), m, n, k, pads,
            (draw.random() < 0.25, draw.random() < 0.25), draw.choice("FC"), epilogue,
            "sm80_pipeline" if named and draw.random() < 0.2 else "auto",
            draw.choice((2, 3)) if kind else 0, draw.choice("MNK") if kind == "groups" else "",
        )  # fmt: skip


def bits(x: torch.Tensor) -> torch.Tensor:
    parts = torch.view_as_real(x) if x.is_complex() else x
    return parts.clone(memory_format=torch.contiguous_format).view(torch.uint8)


def rows_that_differ(number: int, seed: int, device: str) -> tuple[str, int, int]:
    """Return the printed line, the number of rows that differ, and how many launches pack."""
    torch.manual_seed(seed * 1000 + number)
    drawn = Drawn.number(number, seed)
    name, _, compute = drawn.dtype.partition("/")
    m, n, k = drawn.m, drawn.n, drawn.k

    def stored(shape: tuple[int, ...], letter: str, pad: int, turned: bool) -> torch.Tensor:
        """Return a view of random numbers, stored as the letter of the op requires."""
        *lead, rows, columns = shape
        if (letter == "T") != turned:
            return numbers(name, *lead, columns, rows + pad, device=device)[..., :rows].mT
        return numbers(name, *lead, rows, columns + pad, device=device)[..., :columns]

    several = (drawn.l,) if drawn.l else ()
    a = stored((*several * (drawn.groups in ("", "N")), m, k), drawn.op[0], drawn.pads[0],
               drawn.turned[0])  # fmt: skip
    b = stored((*several * (drawn.groups in ("", "M")), k, n), drawn.op[1], drawn.pads[1],
               drawn.turned[1])  # fmt: skip
    given: dict[str, Any] = {
        "compute": compute or None, "order": drawn.order, "batch_invariant": True,
        "kernel": drawn.kernel,
    }  # fmt: skip
    bias = numbers("float32", n, device=device)
    residual = numbers("float32", m, n, device=device)
    ends = torch.tensor(
        sorted(random.Random(number).choices(range({"M": m, "N": n}.get(drawn.groups, k) + 1),
                                             k=drawn.l)), dtype=torch.int32, device=device,
    )  # fmt: skip
    packed = 0

    def compute_rows(begin: int, end: int, copied: bool) -> torch.Tensor:
        nonlocal packed
        part = a[..., begin:end, :]
        part = part.clone() if copied else part
        first = part if drawn.op[0] == "N" else part.mT
        second = b if drawn.op[1] == "N" else b.mT
        words, operands = dict(given), {}
        if drawn.epilogue:
            words["epilogue"] = affine if drawn.epilogue == "affine" else drawn.epilogue
            if drawn.epilogue in ("bias", "bias+gelu", "affine"):
                operands["bias"] = bias
            if drawn.epilogue in ("residual", "affine"):
                operands["residual"] = residual[begin:end]
        if drawn.groups:
            own = (ends - begin).clamp(0, end - begin) if drawn.groups == "M" else ends
            operands["offsets"] = own.int()
        plan = cg.plan(drawn.op, first, second, **words, **operands)
        packed += bool(plan.compiled and plan.algorithm.pack)
        return plan(first, second, **operands)

    # Rows or columns after the last offset are in no group, and are not written.
    written = int(ends[-1]) if drawn.groups == "N" else n
    whole = compute_rows(0, m, False)
    if drawn.groups == "M":
        whole = whole[: int(ends[-1])]
    differ = 0
    draw = random.Random(number)
    for count in (1, draw.randint(2, 60), draw.randint(61, m - 1), min(1024, m - 1)):
        begin = draw.randint(0, m - count)
        part = compute_rows(begin, begin + count, draw.random() < 0.5)
        wanted = whole[..., begin : begin + count, :]
        part = part[..., : wanted.shape[-2], :]
        unlike = bits(part[..., :written]) != bits(wanted[..., :written])
        differ += int(unlike.flatten(-1).any(-1).sum())
    line = f"{drawn.dtype} {drawn.op} {m}x{n}x{k} pads {drawn.pads} C order {drawn.order}"
    line += " A turned" * drawn.turned[0] + " B turned" * drawn.turned[1]
    line += f" {drawn.epilogue}" * bool(drawn.epilogue) + f" {drawn.kernel}"
    line += f" l={drawn.l}" * bool(drawn.l) + f" groups along {drawn.groups}" * bool(drawn.groups)
    return f"{line}: packed {packed} of 5, rows that differ {differ}", differ, packed


def compare_bits(count: int, seed: int, workers: int, device: str) -> None:
    """Print a line for each of ``count`` random products, and the total of rows that differ."""
    start, differ, packed, failed = time.monotonic(), 0, 0, 0
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context) as pool:
        asked = {pool.submit(rows_that_differ, x, seed, device): x for x in range(count)}
        for done in as_completed(asked):
            try:
                line, rows, launches = done.result()
            except cg.GemmError as error:
                failed += 1
                line = f"{Drawn.number(asked[done], seed)}: {type(error).__name__}: {error}"
                rows = launches = 0
            differ, packed = differ + rows, packed + launches
            print(f"{asked[done]:3d}  {line}", flush=True)
    seconds = time.monotonic() - start
    print(f"{count} products in {seconds:.0f} s, {failed} not supported; ", end="")
    print(f"{packed} of {5 * count} launches pack")
    print(f"rows that differ: {differ}")


# ---- time ---------------------------------------------------------------------------------------


def main() -> None:
    given = parsed(
        __doc__, dtype="bfloat16", random=0, bits=(0, "products whose bits are compared"),
        workers=os.cpu_count() or 1, device=("cuda", "device of --bits"),
    )  # fmt: skip
    if given.bits:
        compare_bits(given.bits, given.seed, given.workers, given.device)
        return
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
            print(f"{name}: {other} / invariant {spread(ratios)}")
    write(given.json, found)


if __name__ == "__main__":
    main()
