"""Compare predicted with measured times, for random problems.

    python tests/gpu/predicted.py --count 24 --seed 1 [--classes "naive;coalesced"] [--json FILE]

The script runs ``count`` problems of each class, or of the given classes: ``kernel="auto"`` by
type, and with epilogues, scales, groups, batches and beta = 1; and each kernel by name. Extents are
uniform on a log scale. Half of the problems have extents and leading dimensions that are multiples
of 16, the others have any. Operands come from DRAM. The script prints a line for each problem, and
for each class the 10th, 50th and 90th percentile of predicted time over measured time. It exits
with 1 if a predicted or measured time is below the bound of the roofline.
"""

import itertools
import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from graph_times import TimedGraph, in_turns, numbers, parsed, places, write

import cute_gemm as cg
from cute_gemm.cost_model.roofline import least_seconds
from cute_gemm.errors import GemmError
from cute_gemm.kernels import registry

#: Types and compute modes of ``"auto"``.
TYPES = (
    "bfloat16", "float16", "float32", "float32/tf32", "float32/bf16x9", "float64", "complex64",
    "complex128", "int8", "float8_e4m3fn", "float8_e4m3fn/fast_accum",
)  # fmt: skip
#: Multiply-adds of a problem for tensor cores, CUDA cores and FP64, and the ladder's first steps.
FAST, SLOW, SLOWEST = (1e8, 4e11), (1e7, 2e10), (1e6, 1e9)
SLOW_TYPES = "float32", "float64", "complex64", "complex128"


class Problem(NamedTuple):
    """A call: ``make`` returns new operands, and ``run`` is called with them."""

    kind: str
    words: str
    nbytes: int
    make: Callable[[], Any]
    run: Callable[..., Any]
    plan: Callable[..., cg.Plan]
    reads_c: bool = False


def matrix(dtype: str, rows: int, columns: int, order: str, padding: int) -> torch.Tensor:
    """Return a matrix whose leading dimension has ``padding`` extra elements."""
    if order == "C":
        return numbers(dtype, rows, columns + padding)[:, :columns]
    return numbers(dtype, columns, rows + padding)[:, :rows].T


class Draw:
    """Random problems of each class, from a seed."""

    def __init__(self, seed: str) -> None:
        self.rng = random.Random(seed)

    def extent(self, low: int, high: int, step: int) -> int:
        """Return a random multiple of ``step``, uniform on a log scale."""
        return step * max(
            1, round(math.exp(self.rng.uniform(math.log(low), math.log(high))) / step)
        )

    def sizes(
        self, work: tuple[float, float], step: int, most: int = 16384
    ) -> tuple[int, int, int]:
        """Return m, n and k with ``work`` multiply-adds. A third of them has one short extent."""
        while True:
            high = [most] * 3
            if self.rng.random() < 1 / 3:
                high[self.rng.randrange(3)] = 128
            m, n, k = (self.extent(8, x, step) for x in high)
            if work[0] <= m * n * k <= work[1] and max(m * k, n * k, m * n) < 2**27:
                return m, n, k

    def dense(self, kind: str, dtype: str, work: tuple[float, float], **more: Any) -> Problem:
        """Return a product of matrices with random op, order and leading dimension."""
        name, _, compute = dtype.partition("/")
        float8 = name.startswith("float8")
        step = 16 if float8 or self.rng.random() < 0.5 else 1
        m, n, k = self.sizes(work, step, more.pop("most", 16384))
        op = "TN" if float8 else self.rng.choice(("NN", "NT", "TN", "TT"))
        padding = 0 if step == 16 else self.rng.choice((0, 0, 1, 8))
        options = {"compute": compute} if compute else {}
        options |= {"order": "F" if float8 else self.rng.choice("FC")} | more
        beta = options.pop("beta", 0)
        epilogue = options.pop("operands", ())

        def make() -> list[Any]:
            A = matrix(name, *((m, k) if op[0] == "N" else (k, m)), "F", padding)
            B = matrix(name, *((k, n) if op[1] == "N" else (n, k)), "F", padding)
            C = [matrix(name, m, n, options["order"], 0)] if beta else []
            others = [numbers(name, *((n,) if x == "bias" else (m, n))) for x in epilogue]
            return [A, B, *C, *others]

        def call(function: Callable[..., Any], *given: Any, **words: Any) -> Any:
            arrays, others = given[: 2 + bool(beta)], given[2 + bool(beta) :]
            taken = dict(zip(epilogue, others, strict=True))
            without = {x: y for x, y in options.items() if not (beta and x == "order")}
            return function(op, *arrays, **without, **taken, **words)

        scalars = {"beta": beta} if beta else {}
        words = f"{op} {m}x{n}x{k} {dtype} {options.get('order', '')} +{padding}"
        size = getattr(torch, name).itemsize
        return Problem(
            kind, words, size * (m * k + n * k), make,
            lambda *x: call(cg.gemm, *x, **scalars), lambda *x: call(cg.plan, *x), bool(beta),
        )  # fmt: skip

    def scaled(self, kind: str, dtype: str, blocks: bool) -> Problem:
        """Return a product with row scales, or with block scales: 1x128 of A and 128x128 of B."""
        m, n, k = self.sizes(FAST, 16)
        n, k = (128 * -(-x // 128) for x in (n, k)) if blocks else (n, k)
        shapes = ((m, k // 128), (n // 128, k // 128)) if blocks else ((m, 1), (n, 1))
        options = {"order": "C", "out_dtype": "bfloat16"}

        def make() -> list[Any]:
            scales = (torch.rand(x, device="cuda") + 0.5 for x in shapes)
            return [numbers(dtype, m, k), numbers(dtype, n, k), *scales]

        def call(function: Callable[..., Any], x: Any, w: Any, a: Any, b: Any) -> Any:
            return function("NT", x, w, scale_a=a, scale_b=b, **options)

        return Problem(
            kind, f"NT {m}x{n}x{k} {dtype}", m * k + n * k, make,
            lambda *x: call(cg.gemm, *x), lambda *x: call(cg.plan, *x),
        )  # fmt: skip

    def batch(self, kind: str, dtype: str, most: int) -> Problem:
        """Return a batch of products with extents up to ``most``."""
        step = self.rng.choice((1, 8))
        m, n, k = (self.extent(min(8, most), most, step) for _ in "mnk")
        l = min(20_000, max(2, 2**27 // (4 * (m * k + k * n + m * n))))
        l = self.extent(max(2, l // 16), l, 1)
        shapes = (l, m, k), (l, k, n)

        def make() -> list[Any]:
            return [numbers(dtype, *shape) for shape in shapes]

        size = getattr(torch, dtype).itemsize * l * (m * k + k * n)
        return Problem(
            kind, f"NN {l}x{m}x{n}x{k} {dtype}", size, make,
            lambda *x: cg.gemm("NN", *x, order="C"), lambda *x: cg.plan("NN", *x, order="C"),
        )  # fmt: skip

    def groups(self, kind: str, dtype: str, ragged: str) -> Problem:
        """Return groups of equal sizes. A prediction without offsets assumes them."""
        count, rows = self.rng.choice((4, 8, 32, 64)), self.extent(16, 2048, 16)
        n, k = self.extent(256, 8192, 16), self.extent(256, 8192, 16)
        while count * n * k > 2**30 or count * rows * max(n, k) > 2**28:
            n, k, rows = n // 2 // 16 * 16, k // 2 // 16 * 16, max(16, rows // 32 * 16)
        ends = torch.arange(rows, rows * count + 1, rows, device="cuda", dtype=torch.int32)
        if ragged == "M":
            op, shapes, options = "NT", ((count * rows, k), (count, n, k)), {"order": "C"}
        else:
            op, shapes, options = "TN", ((count * rows, n), (count * rows, k)), {"order": "C"}

        def make() -> list[Any]:
            return [numbers(dtype, *shape) for shape in shapes]

        size = getattr(torch, dtype).itemsize * sum(map(math.prod, shapes))
        return Problem(
            kind, f"{op} {count} groups of {rows}, {n}x{k} {dtype}", size, make,
            lambda A, B: cg.grouped_gemm(op, A, B, ends, **options),
            lambda A, B: cg.plan(op, A, B, offsets=ends, **options),
        )  # fmt: skip


def classes(draw: Draw) -> Iterator[tuple[str, Callable[[str], Problem]]]:
    """Yield each class, and a function that returns a random problem of it."""
    for dtype in TYPES:
        work = SLOW if dtype in SLOW_TYPES else FAST
        yield f"auto, {dtype}", lambda kind, x=dtype, w=work: draw.dense(kind, x, w)
    silu = {"epilogue": "bias+silu+residual", "operands": ("bias", "residual")}
    gelu = {"epilogue": "bias+gelu", "operands": ("bias",)}
    for name, given in (
        ("bias+gelu", gelu),
        ("bias+silu+residual", silu),
        ("beta = 1", {"beta": 1}),
    ):
        yield name, lambda kind, x=given: draw.dense(kind, "bfloat16", FAST, **x)
    yield "float32, bias+gelu", lambda kind: draw.dense(kind, "float32", SLOW, **gelu)
    yield "scales of rows", lambda kind: draw.scaled(kind, "float8_e4m3fn", False)
    yield "int8, scales of rows", lambda kind: draw.scaled(kind, "int8", False)
    yield "block scales", lambda kind: draw.scaled(kind, "float8_e4m3fn", True)
    yield "batches", lambda kind: draw.batch(kind, "bfloat16", 1024)
    yield (
        "small batches",
        lambda kind: draw.batch(kind, draw.rng.choice(("float32", "float16")), 64),
    )
    yield "groups, ragged M", lambda kind: draw.groups(kind, "bfloat16", "M")
    yield "groups, ragged K", lambda kind: draw.groups(kind, "bfloat16", "K")
    for kernel in registry.names():
        info = next(x for x in cg.kernels() if x.name == kernel)
        # Peers have no predicted times. The others that are skipped are in the classes above.
        if info.runs_on != "gpu" or kernel in ("cutlass_universal", "batched", "sm90_wgmma"):
            continue
        dtypes = [x for x in ("bfloat16", "float32", "float32/tf32", "float64") if x in info.dtypes]

        def named(kind: str, kernel: str = kernel, dtypes: Any = tuple(dtypes)) -> Problem:
            rung = kernel not in ("sm80_pipeline", "thin", "double_buffered", "tensor_core")
            most = 96 if kernel == "smem_full_k" else 16384
            work = SLOWEST if rung else SLOW
            return draw.dense(kind, draw.rng.choice(dtypes), work, kernel=kernel, most=most)

        yield kernel, named


def planned(count: int, seed: int, names: list[str]) -> list[tuple[Problem, cg.Plan]]:
    """Return problems of the classes with their plans. Unsupported ones are drawn again.

    ``names``: the classes, or all if empty.
    """
    found = []
    for kind, make in classes(Draw(str(seed))):
        if names and kind not in names:
            continue
        for _ in range(count):
            for _ in range(200):
                problem = make(kind)
                try:
                    arrays = problem.make()
                    found.append((problem, problem.plan(*arrays)))
                    break
                except GemmError as error:
                    refusal = error
            else:
                print(f"{kind}: no random problem was supported: {refusal}", file=sys.stderr)
            arrays = None
        torch.cuda.empty_cache()
    return found


def microseconds(problem: Problem, predicted: float, rounds: int) -> float:
    """Return the median microseconds of a call."""
    copies = places(problem.make, max(1, problem.nbytes))
    calls = max(2, min(50, round(1000 / max(1.0, predicted))))
    graph = TimedGraph(in_turns(problem.run, copies), calls)
    graph.microseconds()
    return statistics.median(graph.microseconds() for _ in range(rounds))


def percentiles(ratios: list[float]) -> tuple[float, float, float]:
    """Return the 10th, 50th and 90th percentile."""
    if len(ratios) < 2:
        return (ratios[0],) * 3
    cuts = statistics.quantiles(ratios, n=20, method="inclusive")
    return cuts[1], cuts[9], cuts[17]


def main() -> int:
    given = parsed(
        __doc__, count=(12, "problems of a class"), rounds=5, seconds=(1e9, "time limit"),
        classes=("", "names of classes, separated by ;"),
    )  # fmt: skip
    begin = time.monotonic()
    torch.manual_seed(given.seed)
    every = planned(given.count, given.seed, given.classes.split(";") if given.classes else [])
    print(f"{len(every)} problems, {time.monotonic() - begin:.0f} s", flush=True)
    plans = {plan.symbol: plan for _, plan in every}
    cg.compile(list(plans.values()))
    print(f"{len(plans)} kernels, {time.monotonic() - begin:.0f} s", flush=True)
    entries: list[dict[str, Any]] = []
    for problem, plan in every:
        if time.monotonic() - begin > given.seconds:
            print(f"stopped after {given.seconds:.0f} s")
            break
        prediction = plan.candidates(reads_c=problem.reads_c)[0].prediction
        if prediction is None:
            print(f"{problem.kind}: {problem.words}: no predicted time")
            continue
        bound = least_seconds(plan.gpu, plan.problem, problem.reads_c)
        us, predicted = (
            microseconds(problem, prediction.seconds * 1e6, given.rounds),
            prediction.seconds * 1e6,
        )
        torch.cuda.empty_cache()
        entries.append({
            "class": problem.kind, "problem": problem.words, "kernel": plan.kernel,
            "symbol": plan.symbol, "predicted": predicted, "measured": us, "bound": bound * 1e6,
            "terms": {name: x * 1e6 for name, x in prediction.terms.items()},
        })  # fmt: skip
        print(
            f"{problem.kind:22} {problem.words:44} {plan.kernel:15} predicted {predicted:9.1f} us, "
            f"measured {us:9.1f}, ratio {predicted / us:.2f}, bound {bound * 1e6:.1f}", flush=True,
        )  # fmt: skip
    write(given.json, {"gpu": torch.cuda.get_device_name(), "seed": given.seed, "entries": entries})
    print("class: problems; predicted over measured at the 10th, 50th, 90th percentile")
    for kind, some in itertools.groupby(entries, key=lambda x: x["class"]):
        ratios = [x["predicted"] / x["measured"] for x in some]
        low, middle, high = percentiles(ratios)
        print(f"{kind:26} {len(ratios):3}  {low:.2f} {middle:.2f} {high:.2f}")
    below = [x for x in entries if min(x["predicted"], x["measured"]) < x["bound"]]
    for entry in below:
        print(f"below its bound: {entry['class']} {entry['problem']}")
    return int(bool(below))


if __name__ == "__main__":
    sys.exit(main())
