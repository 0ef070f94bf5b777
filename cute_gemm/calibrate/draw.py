"""Problems drawn from a seed, with configs of each that may be the fastest."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any, NamedTuple

from cute_gemm.calibrate.times import Contest, entry
from cute_gemm.dtypes import FAST_ACCUM
from cute_gemm.errors import GemmError
from cute_gemm.gpus.gpu import Gpu

#: Types that CUDA cores, or FP64 tensor cores, multiply.
_SLOW = "float32", "float64", "complex64", "complex128"
#: Multiply-adds of a problem, the most of slow types, bytes of its matrices, and extents.
_WORK, _WORK_OF_SLOW = (1e7, 6e11), 2e10
_BYTES = 1 << 29
_EXTENTS = 16, 16384
#: For problems with few tiles of C: most rows and columns, and the least k.
_FEW, _LONG = 2048, 2048
#: For batches of small products: the largest extent, and products.
_SMALL, _PRODUCTS = 64, (1000, 50_000)
#: Layers of models: hidden sizes are multiples of the first up to the second, and the other extent
#: of the weight is a hidden size times one of these; numbers of tokens are drawn, or multiples of
#: one of these (of patches of images, and of sequences).
_HIDDEN, _TIMES = (128, 8192), (1, 1, 3, 4, 8 / 3, 7 / 2)
_TOKENS, _MULTIPLES = (1, 12_000), (1, 1, 49, 64, 196, 197, 256)
#: Configs of a problem: the fastest predicted ones, and some of those after them.
_CHEAPEST, _OTHERS, _AMONG = 30, 10, 100


class Kind(NamedTuple):
    """A class of problems: types, op, whether rows are aligned to 16 bytes, small products, layers.

    All matrices are column-major, so that the problems of a class share kernels.
    """

    dtype: str
    compute: str | None
    op: str
    aligned: bool
    small: bool = False
    layer: bool = False


def kinds(dtypes: tuple[str, ...], float8: bool) -> list[Kind]:
    """Return the classes of these types, in turns over the types.

    ``float8``: whether tensor cores multiply 8-bit floats.
    """
    every: list[list[Kind]] = []
    for dtype in dtypes:
        name, _, compute = dtype.partition("/")
        if name.startswith("float8"):
            if float8:
                rows = [Kind(name, compute, "TN", True) for compute in (None, FAST_ACCUM)]
                every.append([*rows, Kind(name, None, "NN", True)])
            continue
        pairs = (("NT", True), ("NN", False), ("TN", True), ("NN", True), ("TT", False))
        rows = [Kind(name, compute or None, op, aligned) for op, aligned in pairs]
        if not compute:  # batches of small products have their own kernel
            rows.insert(2, Kind(name, None, "TN", False, small=True))
        if name in ("float16", "bfloat16"):  # forward, and the gradients of x and of the weight
            layers = (Kind(name, None, op, True, layer=True) for op in ("TN", "NN", "TN", "NT"))
            rows = [x for pair in zip_longest(rows, layers) for x in pair if x]
        every.append(rows)
    most = max(map(len, every), default=0)
    return [rows[place] for place in range(most) for rows in every if place < len(rows)]


#: Default types: those for which "auto" has kernels.
DTYPES = (
    "bfloat16", "float32", "float8_e4m3fn", "float64", "float32/tf32", "complex64", "int8",
    "complex128",
)  # fmt: skip


def contests(gpu: Gpu, seed: int, dtypes: tuple[str, ...] = DTYPES) -> Iterator[Contest]:
    """Yield contests endlessly, the classes in turn."""
    rng = random.Random(seed)
    every = kinds(dtypes, gpu.peak("float8") is not None)
    while True:
        for kind in every:
            drawn = _batch if kind.small else _layer if kind.layer else _sizes
            contest = Contest(drawn(kind, rng), ())
            try:
                candidates = contest.plan(gpu).candidates()
            except GemmError:  # a type without a kernel on this GPU
                continue
            others = candidates[_CHEAPEST : _CHEAPEST + _AMONG]
            taken = [*candidates[:_CHEAPEST], *rng.sample(others, min(_OTHERS, len(others)))]
            entries = dict.fromkeys(map(entry, taken))
            yield Contest(contest.sizes, tuple(entries))


def _element(kind: Kind) -> int:
    """Return the bytes of an element of the largest type of a class."""
    return {"float64": 8, "complex64": 8, "complex128": 16, "int8": 1}.get(kind.dtype, 4)


def _drawn(rng: random.Random, least: float, most: float, unit: int) -> int:
    """Draw a multiple of a unit, whose logarithm is distributed evenly."""
    return unit * max(1, round(math.exp(rng.uniform(math.log(least), math.log(most))) / unit))


def _batch(kind: Kind, rng: random.Random) -> dict[str, Any]:
    """Draw a batch of small products."""
    m, n, k = (rng.choice((4, 8, 16, 32, 49, 64, rng.randint(1, _SMALL))) for _ in "mnk")
    least, most = _PRODUCTS
    bound = _BYTES // (_element(kind) * (m * k + n * k + m * n))
    l = min(bound, round(least * (most / least) ** rng.random()))
    return {"op": kind.op, "m": m, "n": n, "k": k, "l": l, "dtype": kind.dtype}


def _layer(kind: Kind, rng: random.Random) -> dict[str, Any]:
    """Draw a product of a linear layer: tokens times a weight, or a gradient of either."""
    unit, most = _HIDDEN
    while True:
        hidden = unit * rng.randint(2, most // unit)
        other = unit * round(hidden * rng.choice(_TIMES) / unit)
        tokens = _drawn(rng, *_TOKENS, rng.choice(_MULTIPLES))
        if kind.op == "NT":
            tokens = 8 * -(-tokens // 8)  # rows begin at multiples of 16 bytes
        outputs, inputs = rng.choice(((hidden, other), (other, hidden)))
        if _WORK[0] <= hidden * other * tokens <= _WORK[1]:
            break
    # Column-major, y^T = w x^T, dx^T = w^T dy^T and dw^T = x^T dy of row-major y, x and w.
    m, n, k = {
        "TN": (outputs, tokens, inputs), "NN": (inputs, tokens, outputs),
        "NT": (inputs, outputs, tokens),
    }[kind.op]  # fmt: skip
    return {"op": kind.op, "m": m, "n": n, "k": k, "dtype": kind.dtype}


def _sizes(kind: Kind, rng: random.Random) -> dict[str, Any]:
    """Draw extents.

    About every third problem has few rows, few columns, or a short k, and every sixth few tiles of
    C and a long k.
    """
    size, unit = _element(kind), 16 if kind.aligned else 1
    slow = kind.dtype in _SLOW and kind.compute is None
    while True:
        least, most = [_EXTENTS[0]] * 3, [_EXTENTS[1]] * 3
        which = rng.random()
        if which < 1 / 3:
            most[rng.randrange(3)] = 128
        elif which < 1 / 2:
            most[:2], least[2] = [_FEW, _FEW], _LONG
        m, n, k = (_drawn(rng, x, y, unit) for x, y in zip(least, most, strict=True))
        moved = size * (m * k + n * k + m * n)
        work = _WORK_OF_SLOW if slow else _WORK[1]
        if _WORK[0] <= m * n * k <= work and moved <= _BYTES:
            break
    sizes: dict[str, Any] = {"op": kind.op, "m": m, "n": n, "k": k, "dtype": kind.dtype}
    sizes |= {} if kind.compute is None else {"compute": kind.compute}
    return sizes
