"""Products of 8-bit floats with every kind of scale, for any backend."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
from cases import OPS, placed, stored_shapes

import cute_gemm as cg
import cute_gemm.call
from cute_gemm.errors import UnsupportedError
from cute_gemm.problem.epilogue.fuse import read_operands
from cute_gemm.problem.verify import Verdict, verify

E4M3, E5M2 = "float8_e4m3fn", "float8_e5m2"
PAIRS = ((E4M3, E4M3), (E4M3, E5M2), (E5M2, E4M3), (E5M2, E5M2))
#: Kinds of scales. ``"flat"``: row scales in one dimension. `BOXED`: 1x128 scales with a layout
#: that TMA supports.
SCALES = ("", "number", "tensor", "row", "flat", "1x128", "128x128")
BLOCKS = ("1x128", "128x128")
BOXED, ALONG_K = "1x128 boxed", "1x128 along k"
#: Value around a matrix, and in its padding.
CANARY = -1.5
#: A function from a NumPy array to an array of another library.
Place = Callable[[np.ndarray], Any]


@dataclass(frozen=True)
class Case:
    """A call. Arrays of op(A), op(B) and C are views into larger ones."""

    kernel: str
    op: str = "TN"
    types: tuple[str, str] = (E4M3, E4M3)
    scales: tuple[str, str] = ("", "")
    m: int = 72
    n: int = 56
    k: int = 304
    l: int = 0
    out: str = "bfloat16"
    order: str = "F"
    fast_accum: bool = False
    #: Elements between rows of A, B and C. A multiple of 16 keeps them aligned.
    pad: int = 16
    epilogue: str = ""
    options: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        words = [self.kernel, self.op, "x".join(name[7:] for name in self.types), self.out]
        words += [f"{self.m}x{self.n}x{self.k}", self.order, *filter(None, self.scales)]
        words += [f"l={self.l}"] * bool(self.l) + ["fast"] * self.fast_accum
        words += [f"pad={self.pad}", self.epilogue, *(f"{x}={y}" for x, y in self.options)]
        return " ".join(filter(None, words))

    @property
    def seed(self) -> int:
        return zlib.crc32(str(self).encode())


def stored(
    case: Case, random: np.random.Generator, shape: tuple[int, int], dtype: str, order: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return matrices, and the buffer of canaries that surrounds them."""
    shape = (case.l, *shape) if case.l else shape
    step = 1 if case.pad % 16 else 16
    return placed(shape, dtype, order, case.pad, step, (1, 1), CANARY, random)


def scale(case: Case, kind: str, rows: int, random: np.random.Generator) -> Any:
    """Return a scale of a kind, with positive and negative values and its own strides."""
    lead = (case.l,) if case.l else ()
    across, down = -(-case.k // 128), -(-rows // 128)

    def numbers(*shape: int) -> np.ndarray:
        signs = np.where(random.random(shape) < 0.3, -1, 1)
        return ((random.random(shape) + 0.5) * signs).astype(np.float32)

    if kind == "number":
        return 0.75
    return {
        "tensor": lambda: numbers(1, 1),
        "row": lambda: numbers(*lead, rows, 3)[..., 1:2],
        "flat": lambda: numbers(2 * rows)[::2],
        "1x128": lambda: numbers(*lead, 2 * across, rows + 3).swapaxes(-1, -2)[..., :rows, ::2],
        BOXED: lambda: numbers(*lead, 2 * across, -(-rows // 4) * 4).swapaxes(-1, -2)[
            ..., :rows, ::2
        ],
        ALONG_K: lambda: numbers(*lead, rows, across + 1)[..., :across],
        "128x128": lambda: numbers(*lead, down, across + 1)[..., :across],
    }[kind]()


@dataclass(frozen=True, eq=False)
class Call:
    """NumPy arrays of a case, and the keyword arguments of the call."""

    case: Case
    A: np.ndarray
    B: np.ndarray
    C: np.ndarray
    whole: np.ndarray  #: The buffer of C.
    operands: dict[str, Any]

    @classmethod
    def of(cls, case: Case) -> Call:
        random = np.random.default_rng(case.seed)
        A, B = (
            stored(case, random, shape, dtype, "F")[0]
            for shape, dtype in zip(
                stored_shapes(case.op, case.m, case.n, case.k), case.types, strict=True
            )
        )
        C, whole = stored(case, random, (case.m, case.n), case.out, case.order)
        kinds = zip(("scale_a", "scale_b"), case.scales, (case.m, case.n), strict=True)
        operands = {name: scale(case, kind, rows, random) for name, kind, rows in kinds if kind}
        if case.epilogue:
            operands["bias"] = random.standard_normal(case.n).astype(np.float32)
        return cls(case, A, B, C, whole, operands)

    @property
    def keywords(self) -> dict[str, Any]:
        case = self.case
        words = dict(case.options) | {"kernel": case.kernel}
        words |= {"compute": "fast_accum"} if case.fast_accum else {}
        return words | ({"epilogue": case.epilogue} if case.epilogue else {})

    def assert_canaries(self) -> None:
        """Raise AssertionError if elements around C have changed."""
        held, self.C[...] = self.C.copy(order="K"), CANARY
        wrong = (self.whole.astype(np.float32) != CANARY).sum()
        assert not wrong, f"{self.case}: {wrong} elements around C are written"
        self.C[...] = held

    def judged(
        self, plan: Any, result: np.ndarray, before: np.ndarray, **scaling: float
    ) -> Verdict:
        """Return the verdict of a result. ``before``: the previous C."""
        function = cute_gemm.call.Call.like(plan.problem).epilogue
        arrays = {}
        if function is not None:
            arrays = read_operands(function, self.operands, plan.problem, None).on_host()
        return verify(plan.problem, self.A, self.B, result, C=before, operands=arrays, **scaling)


def planned(case: Case, arch: str, backend: Any = "cpu") -> tuple[cg.Plan, Call]:
    """Return the plan of a case, and its operands."""
    call = Call.of(case)
    words = {"backend": backend, "arch": arch, **call.operands, **call.keywords}
    return cg.plan(case.op, call.A, call.B, call.C, **words), call


def execute(case: Case, arch: str, backend: str = "interpreter") -> None:
    """Raise AssertionError if a result is wrong, or elements outside the operands are accessed."""
    plan, call = planned(case, arch, backend)
    for beta in (0.5, 0.0):
        before = call.C.copy(order="K")
        if not beta:
            call.C[...] = np.nan
        scaling = {"alpha": -1.25, "beta": beta}
        result = plan(call.A, call.B, call.C, **scaling, **call.operands)
        assert result is call.C
        verdict = call.judged(plan, call.C, before, **scaling)
        assert verdict.ok, f"{case}: {verdict}"
        call.assert_canaries()
        call.C[...] = before


_WGMMA = (("warp_groups", 1), ("cluster", (1, 1)))


def spread() -> Iterator[Case]:
    """Yield a sample of kernels, ops, pairs of types, types of C, orders and kinds of scale."""
    outs = ("bfloat16", E4M3, "float32", E5M2, "float16")
    for i, (kernel, op) in enumerate(product(("naive", "coalesced", "double_buffered"), OPS)):
        kinds = SCALES[i % 5], SCALES[(i + 2) % 5]
        yield Case(kernel, op, PAIRS[i % 4], kinds, 37, 45, 130, out=outs[i % 5],
                   order="FC"[i % 2], pad=3, fast_accum=bool(i % 3))  # fmt: skip
    for i, op in enumerate(OPS):
        for thin in "mn":
            sizes = (5, 72) if thin == "m" else (72, 9)
            yield Case("thin", op, PAIRS[i], (SCALES[i + 1], "row"), *sizes, 200,
                       out=outs[i + (thin == "n")], order="FC"[i % 2], pad=16 * (i % 2) + i // 2,
                       fast_accum=thin == "n")  # fmt: skip
    for i, (op, fast_accum) in enumerate(product(OPS, (False, True))):
        kinds = SCALES[i % 5], SCALES[(i + 3) % 5]
        yield Case("sm80_pipeline", op, PAIRS[(i + i // 4) % 4], kinds, 72, 56, 208,
                   l=3 * (i % 4 == 1), out=outs[i % 5], order="FC"[i // 2 % 2],
                   pad=(16, 3)[i % 3 == 2], fast_accum=fast_accum,
                   epilogue="bias+relu" * (i % 4 == 2))  # fmt: skip
    for i, (op, swap_ab) in enumerate(product(("TN", "NN", "TT"), (0, 1))):
        if (op, swap_ab) in (("NN", 1), ("TT", 0)):
            continue  # only the kernel's A may be contiguous along M or N
        for j, out in enumerate(outs):
            tile = (64, 32, 128) if not swap_ab else (32, 64, 128)
            yield Case("sm90_wgmma", op, PAIRS[(i + j) % 4], (SCALES[j + 1], SCALES[j]), 80, 64,
                       272, out=out, order="FC"[(i + j) % 2], fast_accum=(i + j) % 3 == 0 and j < 4,
                       options=(*_WGMMA, ("tile", tile), ("swap_ab", swap_ab)))  # fmt: skip


def block_scaled() -> Iterator[Case]:
    """Yield block scales of every kind for A and B, with partial blocks, warp groups, batches."""
    kinds = [pair for pair in product(("", *BLOCKS, "row"), repeat=2) if {*pair} & {*BLOCKS}]
    for i, pair in enumerate(kinds):
        op, swap_ab = (("TN", 0), ("TN", 1), ("NN", 0), ("TT", 1))[i % 4]
        tile = (64, 32, 128) if not swap_ab else (32, 64, 128)
        yield Case("sm90_wgmma", op, PAIRS[i % 4], pair, 80, 144, 304, l=2 * (i % 3 == 2),
                   order="FC"[i % 2], out=("bfloat16", E4M3)[i % 5 == 4],
                   options=(*_WGMMA, ("tile", tile), ("swap_ab", swap_ab)))  # fmt: skip
    shapes = (((64, 160), 1), ((64, 96), 1), ((128, 96), 2), ((256, 64), 2))
    for i, (((bm, bn), groups), swap_ab) in enumerate(product(shapes, (0, 1))):
        pair = BLOCKS if (groups, bn) != (1, 96) else BLOCKS[1:] * 2
        tile = (bn, bm, 128) if swap_ab else (bm, bn, 128)
        yield Case("sm90_wgmma", "TN", PAIRS[i % 4], pair[:: -1 if swap_ab else 1], 296, 200, 272,
                   options=(("warp_groups", groups), ("cluster", (1, 1)), ("tile", tile),
                            ("swap_ab", swap_ab)))  # fmt: skip
    yield Case("sm90_wgmma", "TN", scales=BLOCKS, k=560, l=2,
               options=(*_WGMMA, ("tile", (64, 64, 128)), ("split_k", 2)))  # fmt: skip
    yield Case("sm90_wgmma", "NT", scales=BLOCKS, m=71, n=57, k=300, pad=5,
               options=(*_WGMMA, ("tile", (64, 64, 128)), ("pack", "AB")))  # fmt: skip
    for kinds in ((ALONG_K, "128x128"), (ALONG_K, ALONG_K)):
        yield Case("sm90_wgmma", "TN", scales=kinds, k=560, l=2,
                   options=(*_WGMMA, ("tile", (64, 64, 128)), ("pack", "scales")))  # fmt: skip
    yield Case("sm90_wgmma", "TN", scales=("row", "128x128"), epilogue="bias+relu",
               options=(*_WGMMA, ("tile", (64, 64, 128))))  # fmt: skip


def loaded() -> Iterator[Case]:
    """Yield block scales in the kernels whose threads load the scales of their own results."""
    kinds = [pair for pair in product(("", *BLOCKS, ALONG_K, "row"), repeat=2)
             if {*pair} & {*BLOCKS, ALONG_K}]  # fmt: skip
    for i, (pair, kernel) in enumerate(product(kinds, ("sm80_pipeline", "double_buffered"))):
        yield Case(kernel, OPS[i // 2 % 4], PAIRS[i % 4], pair, 80, 144, (304, 200, 129)[i % 3],
                   l=2 * (i % 3 == 2), order="FC"[i // 3 % 2], pad=(16, 3)[i // 2 % 2],
                   epilogue="bias+relu" * (i % 7 == 3))  # fmt: skip
    for tile, warps in (((128, 64, 64), (2, 2)), ((64, 64, 128), (2, 2))):
        yield Case("sm80_pipeline", "TN", scales=("1x128", "128x128"), m=200, k=560, order="C",
                   options=(("tile", tile), ("warps", warps), ("split_k", 2)))  # fmt: skip


def boxed() -> Iterator[Case]:
    """Yield cases of `block_scaled` with 1x128 scales that TMA loads."""
    for case in block_scaled():
        if "1x128" in case.scales and case.pad % 16 == 0:
            yield replace(case, scales=tuple(
                BOXED if kind == "1x128" else kind for kind in case.scales
            ))  # fmt: skip


#: Values of k: one k tile, two, four and five.
K_TILES = (112, 240, 400, 608)


def k_tiles(*ks: int) -> Iterator[Case]:
    """Yield cases of double-buffered accumulators, with A in shared memory and in registers."""
    for i, (k, op) in enumerate(product(ks or K_TILES, ("TN", "NN"))):
        options = (*_WGMMA, ("tile", (64, 64, 128)), ("swap_ab", 0), ("stages", 2))
        yield Case("sm90_wgmma", op, PAIRS[i % 4], BLOCKS, k=k, options=options)


def packed() -> Iterator[Case]:
    """Yield packed operands: unaligned rows, and both operands contiguous along M and N."""
    for i, (op, fast_accum) in enumerate(product(OPS, (False, True))):
        yield Case("sm90_wgmma", op, PAIRS[i % 4], ("tensor", "row"), 71, 57, 300, pad=5,
                   order="FC"[i % 2], fast_accum=fast_accum,
                   options=(*_WGMMA, ("tile", (64, 64, 128)), ("pack", "AB")))  # fmt: skip


def takes(case: Case, arch: str) -> bool:
    """Return whether a kernel supports a case."""
    call = Call.of(case)
    try:
        cg.plan(case.op, call.A, call.B, call.C, backend="interpreter", arch=arch,
                **call.operands, **call.keywords)  # fmt: skip
    except UnsupportedError:
        return False
    return True
