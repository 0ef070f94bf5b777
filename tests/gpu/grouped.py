"""Compare grouped GEMMs with ``torch._grouped_mm``, a loop of GEMMs and a dense GEMM.

    python tests/gpu/grouped.py --shapes 6144x7168 --groups 8,32 --json grouped.json

Ragged M is ``y = x @ w[g].T`` of the rows of each group, with row-major x (M, k) and w (G, n, k),
as in a layer of experts. Ragged K is the gradient of its weights, ``dy.T @ x`` of each group.
Groups have equal sizes, random sizes within 30 % of the mean, or sizes of a power law. They are
compared with PyTorch's grouped product, with a loop of ``gemm`` over the groups (whose sizes are
known on the host), and with dense GEMMs of the same number of operations, this package's and
cuBLAS's. Each is captured in a CUDA graph, and all are timed in turn in each round. The script
prints medians in microseconds, and medians of the rounds' ratios. ``--candidates N`` also times the
N configs that are predicted to be fastest. ``--tail 0.5`` adds rows without a group, half as many
as the groups have, and times ``tail="zero"``, the same with ``check="device"``, and a mask that is
applied after the product.

``--dtype float8_e4m3fn`` uses row scales, and compares with ``torch._scaled_grouped_mm`` and
``torch._scaled_mm``, by default and with ``fast_accum``. For ragged M, it also measures block
scales, 1x128 of x and 128x128 of w. For ragged K, it measures K-major dy and x (row-major
transposes, and group sizes that are multiples of 16, as PyTorch requires) and row-major ones.
"""

import argparse
import itertools
import random
import statistics
import sys
from collections.abc import Callable
from typing import Any

import torch
from graph_times import clocked, parsed, spread, write

import cute_gemm as cg

SHAPES = "6144x7168,7168x3072,4096x4096"
#: Mean rows of a group, by the number of groups.
ROWS = {4: 4096, 8: 1024, 32: 1024, 128: 256, 256: 128}
DISTRIBUTIONS = ("equal", "random", "power")


def sizes_of(distribution: str, groups: int, rows: int, rng: random.Random, step: int) -> list[int]:
    """Return sizes of groups with a sum of ``groups * rows``, multiples of ``step``."""
    if distribution == "equal":
        return [rows] * groups
    if distribution == "random":
        weights = [rng.uniform(0.7, 1.3) for _ in range(groups)]
    else:
        weights = [1 / (place + 1) for place in range(groups)]
        rng.shuffle(weights)
    whole, scale = groups * rows, groups * rows / sum(weights)
    ends = [step * round(scale * sum(weights[: place + 1]) / step) for place in range(groups)]
    ends[-1] = whole
    return [end - begin for begin, end in zip([0, *ends], ends, strict=False)]


def check(name: str, ours: torch.Tensor, theirs: torch.Tensor) -> None:
    """Raise if a result differs from PyTorch's by more than the rounding of bfloat16."""
    apart = (ours.float() - theirs.float()).abs().max().item()
    most = theirs.float().abs().max().item()
    if not apart <= 0.02 * most:
        raise AssertionError(f"{name} is wrong: {apart} apart, of {most}")


class Layer:
    """Arrays of one problem (G, n, k), and the timed calls.

    ``words``: keyword arguments of a call, by ragged mode.
    """

    words: dict[str, dict[str, Any]]

    def __init__(self, groups: int, rows: int, n: int, k: int, tail: float = 0) -> None:
        self.groups, self.n, self.k, self.tail = groups, n, k, tail
        self.rows = groups * rows
        kind: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
        every = self.rows + round(self.rows * tail)
        self.x = torch.randn(every, k, **kind)
        self.w = torch.randn(groups, n, k, **kind) / k**0.5
        self.dy = torch.randn(every, n, **kind)
        self.y = torch.empty(every, n, **kind)
        self.dw = torch.empty(groups, n, k, **kind)
        self.flops = 2 * self.rows * n * k
        self.words = {}

    def runs(self, ragged: str, sizes: list[int], loop: bool) -> dict[str, Callable[[], Any]]:
        """Return the timed calls by name."""
        ends = torch.tensor(sizes, device="cuda").cumsum(0).int()
        x, w, dy, y, dw = self.x, self.w, self.dy, self.y, self.dw
        begins = [0, *itertools.accumulate(sizes)]
        parts = [slice(a, b) for a, b in itertools.pairwise(begins)]
        runs: dict[str, Callable[[], Any]] = {}
        if ragged == "M":
            runs["ours"] = lambda: cg.grouped_gemm("NT", x, w, ends, y)
            turned = w.transpose(1, 2)
            runs["torch"] = lambda: torch._grouped_mm(x, turned, offs=ends)
            if loop:
                runs["loop"] = lambda: [
                    cg.gemm("NT", x[p], w[g], y[p]) for g, p in enumerate(parts) if sizes[g]
                ]
            if self.tail:
                zero: dict[str, Any] = {"tail": "zero"}
                runs["zero tail"] = lambda: cg.grouped_gemm("NT", x, w, ends, y, **zero)
                zero_checked = zero | {"check": "device"}
                runs["zero tail, checked"] = lambda: cg.grouped_gemm(
                    "NT", x, w, ends, y, **zero_checked
                )
                behind = (torch.arange(len(y), device="cuda") >= ends[-1])[:, None]
                runs["and a mask"] = lambda: cg.grouped_gemm("NT", x, w, ends, y).masked_fill_(
                    behind, 0
                )
            some, result = x[: self.rows], y[: self.rows]
            runs["dense"] = lambda: cg.gemm("NT", some, w[0], result)
            runs["dense, cuBLAS"] = lambda: torch.mm(some, w[0].T, out=result)
        else:
            runs["ours"] = lambda: cg.grouped_gemm("TN", dy, x, ends, dw)
            runs["torch"] = lambda: torch._grouped_mm(dy.t(), x, offs=ends)
            if loop:
                runs["loop"] = lambda: [
                    cg.gemm("TN", dy[p], x[p], dw[g]) for g, p in enumerate(parts) if sizes[g]
                ]
            runs["dense"] = lambda: cg.gemm("TN", dy, x, dw[0])
            runs["dense, cuBLAS"] = lambda: torch.mm(dy.T, x, out=dw[0])
        return runs

    def call(self, ragged: str) -> tuple[str, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return op, A, B and C of this package's call."""
        return ("NT", self.x, self.w, self.y) if ragged == "M" else ("TN", self.dy, self.x, self.dw)

    def plan(self, ragged: str, sizes: list[int]) -> cg.Plan:
        """Return this package's plan."""
        ends = torch.tensor(sizes, device="cuda").cumsum(0).int()
        return cg.plan(*self.call(ragged), offsets=ends, **self.words.get(ragged, {}))

    def candidates(self, ragged: str, sizes: list[int], count: int) -> dict[str, Any]:
        """Return calls with the configs that are predicted to be fastest."""
        ends = torch.tensor(sizes, device="cuda").cumsum(0).int()
        op, A, B, C = self.call(ragged)
        runs = {}
        for candidate in self.plan(ragged, sizes).candidates()[:count]:
            options = {name: getattr(candidate.config, name) for name in candidate.kernel.options}
            options |= {"kernel": candidate.kernel.name} | self.words.get(ragged, {})

            def run(options: Any = options) -> Any:
                return cg.grouped_gemm(op, A, B, ends, C, **options)

            name = "x".join(map(str, options["tile"]))
            name += f" g{options['groups']}" + "p" * options["ping_pong"]
            name += f" c{'x'.join(map(str, options['cluster']))}" + " x" * options["swap_ab"]
            runs[f"  {name}"] = run
        return runs


class ScaledLayer(Layer):
    """The same problem with 8-bit floats: row scales, and block scales with a ragged M."""

    def __init__(self, groups: int, rows: int, n: int, k: int, dtype: str) -> None:
        super().__init__(groups, rows, n, k)
        kind = getattr(torch, dtype)
        self.x = self.x.to(kind)
        self.w = torch.randn(groups, n, k, device="cuda").to(kind)

        def scales(*shape: int) -> torch.Tensor:
            return torch.rand(*shape, device="cuda") + 0.5

        deep, down = -(-k // 128), -(-n // 128)
        self.dy = self.dy.to(kind)
        self.deep_x, self.deep_dy = self.x.t().contiguous(), self.dy.t().contiguous()
        self.words = {
            "M": {"scale_a": scales(self.rows), "scale_b": scales(groups, n)},
            "K": {"scale_a": scales(groups, n), "scale_b": scales(groups, k)},
        }
        self.blocks = {"scale_a": scales(self.rows, deep), "scale_b": scales(groups, down, deep)}

    def call(self, ragged: str) -> tuple[str, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return op, A, B and C of this package's call. A ragged K has unit stride in A and B."""
        if ragged == "M":
            return "NT", self.x, self.w, self.y
        return "NT", self.deep_dy, self.deep_x, self.dw

    def runs(self, ragged: str, sizes: list[int], loop: bool) -> dict[str, Callable[[], Any]]:
        """Return the timed calls by name, except those that PyTorch does not support."""
        ends = torch.tensor(sizes, device="cuda").cumsum(0).int()
        runs: dict[str, Callable[[], Any]] = {}
        for end, fast in (("", False), (", fast_accum", True)):
            runs |= (
                self.products(end, fast, ends) if ragged == "M" else self.gradients(end, fast, ends)
            )
        if ragged == "M":
            runs["blocks"] = lambda: cg.grouped_gemm(
                "NT", self.x, self.w, ends, self.y, **self.blocks
            )
        for name in [name for name in runs if "torch" in name or "cuBLAS" in name]:
            try:
                runs[name]()
                torch.cuda.synchronize()
            except (AttributeError, RuntimeError) as error:
                print(f"  {name}: not supported: {str(error).splitlines()[0][:90]}", flush=True)
                del runs[name]
        return runs

    def products(self, end: str, fast: bool, ends: torch.Tensor) -> dict[str, Callable[[], Any]]:
        """Return calls of ``y = x @ w[g].T``. The dense product uses the first matrix of w."""
        x, w, y = self.x, self.w, self.y
        compute = "fast_accum" if fast else None
        a, b = self.words["M"].values()
        kind = {"out_dtype": torch.bfloat16}
        one = {"scale_a": a[:, None], "scale_b": b[0][:, None]}
        turned = {"scale_a": a[:, None], "scale_b": b[:1]}
        return {
            f"ours{end}": lambda: cg.grouped_gemm(
                "NT", x, w, ends, y, **self.words["M"], compute=compute
            ),
            f"torch{end}": lambda: torch._scaled_grouped_mm(
                x, w.transpose(1, 2), a, b, offs=ends, use_fast_accum=fast, **kind
            ),
            f"dense{end}": lambda: cg.gemm("NT", x, w[0], y, **one, compute=compute),
            f"dense, cuBLAS{end}": lambda: torch._scaled_mm(
                x, w[0].t(), **turned, use_fast_accum=fast, **kind
            ),
        }

    def gradients(self, end: str, fast: bool, ends: torch.Tensor) -> dict[str, Callable[[], Any]]:
        """Return calls of ``dy.T @ x`` of the rows of each group."""
        x, dy, dw, deep_x, deep_dy = self.x, self.dy, self.dw, self.deep_x, self.deep_dy
        words, compute = self.words["K"], "fast_accum" if fast else None
        a, b = words.values()
        kind = {"out_dtype": torch.bfloat16}
        return {
            f"ours{end}": lambda: cg.grouped_gemm(
                "NT", deep_dy, deep_x, ends, dw, **words, compute=compute
            ),
            f"ours, row-major{end}": lambda: cg.grouped_gemm(
                "TN", dy, x, ends, dw, **words, compute=compute
            ),
            f"torch{end}": lambda: torch._scaled_grouped_mm(
                deep_dy, deep_x.t(), a.flatten(), b.flatten(), offs=ends, use_fast_accum=fast,
                **kind,
            ),
            f"dense{end}": lambda: cg.gemm(
                "NT", deep_dy, deep_x, dw[0], scale_a=a[0][:, None], scale_b=b[0][:, None],
                compute=compute,
            ),
            f"dense, cuBLAS{end}": lambda: torch._scaled_mm(
                deep_dy, deep_x.t(), scale_a=a[0][:, None], scale_b=b[:1], use_fast_accum=fast,
                **kind,
            ),
        }  # fmt: skip


def entry(
    layer: Layer, ragged: str, distribution: str, sizes: list[int], given: argparse.Namespace
) -> dict[str, Any]:
    """Time one distribution of groups, and print the times."""
    runs = layer.runs(ragged, sizes, layer.groups <= given.loop)
    result = runs["ours"]()
    if "torch" in runs:
        rows = slice(layer.rows if ragged == "M" else None)  # the other rows are in no group
        check(f"ragged {ragged}, {distribution}", result[rows], runs["torch"]()[rows])
    if given.candidates:
        runs |= layer.candidates(ragged, sizes, given.candidates)
    reps = max(1, min(10, round(2e-2 / (layer.flops / 6e14))))
    times = clocked(runs, reps, given.rounds)
    us = {name: statistics.median(found) for name, found in times.items()}
    ratios = {
        name: statistics.median(b / a for a, b in zip(times["ours"], found, strict=True))
        for name, found in times.items()
    }
    where = f"{layer.groups} groups of {layer.rows // layer.groups}, {layer.n}x{layer.k}"
    print(f"ragged {ragged}, {where}, {distribution}: {min(sizes)} to {max(sizes)} rows")
    print(f"  {layer.plan(ragged, sizes).symbol}")
    for name, time in us.items():
        print(
            f"  {name:28s} {time:10.2f} us {layer.flops / time / 1e6:8.1f} TFLOP/s "
            f" {ratios[name]:.3f} of ours' time", flush=True,
        )  # fmt: skip
    return {
        "ragged": ragged, "groups": layer.groups, "rows": layer.rows, "n": layer.n, "k": layer.k,
        "distribution": distribution, "sizes": sizes, "us": us, "ratios": ratios,
        "symbol": layer.plan(ragged, sizes).symbol,
    }  # fmt: skip


def main() -> int:
    given = parsed(
        __doc__, shapes=(SHAPES, "n x k"), groups=",".join(map(str, ROWS)),
        rows=(0, "mean rows of a group"), ragged=("MK", "M, K or MK (default)"),
        dtype=("bfloat16", "bfloat16, float8_e4m3fn or float8_e5m2"),
        distributions=",".join(DISTRIBUTIONS), loop=(32, "most groups for the loop of gemm"),
        candidates=0, tail=(0.0, "rows without a group, relative to those of groups"),
    )  # fmt: skip
    scaled = given.dtype.startswith("float8")
    if given.dtype != "bfloat16" and not scaled:
        sys.exit(f"--dtype {given.dtype}: expected bfloat16 or an 8-bit float")
    step = 16 if scaled and "K" in given.ragged else 1
    torch.manual_seed(given.seed)
    rng = random.Random(given.seed)
    entries = []
    for shape, groups in itertools.product(
        given.shapes.split(","), map(int, given.groups.split(","))
    ):
        n, k = map(int, shape.split("x"))
        rows = given.rows or ROWS[groups]
        layer = (
            ScaledLayer(groups, rows, n, k, given.dtype) if scaled
            else Layer(groups, rows, n, k, given.tail)
        )  # fmt: skip
        for distribution in given.distributions.split(","):
            sizes = sizes_of(distribution, groups, layer.rows // groups, rng, step)
            for ragged in given.ragged:
                entries.append(entry(layer, ragged, distribution, sizes, given))
        del layer
        torch.cuda.empty_cache()
        write(given.json, entries)
    # Names of candidates begin with spaces.
    every = dict.fromkeys(name for each in entries for name in each["ratios"])
    names = [name for name in every if name != "ours" and not name.startswith(" ")]
    for ragged, name in itertools.product(given.ragged, names):
        for distribution in given.distributions.split(","):
            found = [
                each["ratios"][name] for each in entries
                if each["ragged"] == ragged and each["distribution"] == distribution
                and name in each["ratios"]
            ]  # fmt: skip
            if found:
                print(f"ragged {ragged}, {distribution}: time of {name} over ours: geometric mean "
                      f"{spread(found)}")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
