"""Calls whose epilogue computes a column of C from two columns of the product."""

from typing import Any, NamedTuple

import numpy as np
from cases import OPS, placed, stored_shapes
from fused_cases import of_result

import cute_gemm as cg
from cute_gemm.dtypes import DTYPES
from cute_gemm.plan.plan import Plan
from cute_gemm.plan.select import Selection
from cute_gemm.problem.verify import verify


@cg.epilogue
def of_pairs(acc: Any, row: Any, column: Any, both: Any, number: Any) -> Any:
    gate, up = cg.pairs(acc)
    y = cg.silu(gate + row) * up * column + both * number
    return y, gate, cg.cast(up * 4, "int8"), cg.amax(y)


@cg.epilogue
def of_halves(acc: Any, row: Any, column: Any, both: Any, number: Any) -> Any:
    gate, up = cg.halves(acc)
    y = cg.silu(gate + row) * up * column + both * number
    return y, gate, cg.cast(up * 4, "int8"), cg.amax(y)


EPILOGUES = {"pairs": of_pairs, "halves": of_halves}


class PairsCase(NamedTuple):
    """A call with NumPy arrays of these extents, in a batch of ``l``. n is the product's."""

    kernel: str
    dtype: str
    op: str = "NT"
    order: Any = "C"
    m: int = 70
    n: int = 112
    k: int = 72
    l: int = 1
    out_dtype: str | None = None
    compute: str | None = None
    pad: int = 16  #: Factor of the leading dimensions, in elements.
    options: tuple[tuple[str, Any], ...] = ()
    #: Kinds of pairs that need a separate launch after the kernel.
    apart: tuple[str, ...] = ()

    def __str__(self) -> str:
        words = (f"{name}={value}" for name, value in self.options)
        kinds = self.dtype, *filter(None, (self.out_dtype, self.compute))
        sizes = f"{self.m}x{self.n}x{self.k}"
        return " ".join((self.kernel, *kinds, self.op, self.order, sizes, f"l={self.l}", *words))


BOTH = "pairs", "halves"
_SMALL = ("tile", (64, 64, 64)), ("warp_groups", 1)
_BYTES = ("tile", (64, 64, 128)), ("warp_groups", 1)
_WORDS = ("tile", (64, 64, 32)), ("warp_groups", 1)

#: Cases of ``sm90_wgmma``: every type, op and order, tails, warp groups, clusters, stores, batches.
WGMMA = (
    *(
        # TMA cannot load adjacent columns as rows of B if N is its unit-stride mode.
        PairsCase("sm90_wgmma", dtype, op, order, options=_SMALL,
                  apart=("pairs",) if op[1] == "N" else ())
        for dtype, order in (("bfloat16", "C"), ("float16", "F"))
        for op in OPS
    ),
    *(
        PairsCase("sm90_wgmma", "float32", op, order, compute="tf32",
                  options=(*_WORDS, *((("pack", "B"),) if op[1] == "N" else ())))
        for op, order in zip(OPS, "CFCF", strict=True)
    ),
    *(
        PairsCase("sm90_wgmma", "float8_e4m3fn", op, order, n=144, k=160, out_dtype=out,
                  options=(*_BYTES, *((("pack", "B"),) if op[1] == "N" else ())))
        for op, order, out in (("NN", "C", None), ("NT", "F", "float32"),
                               ("NT", "C", "float8_e4m3fn"), ("TN", "F", None), ("TT", "C", None))
    ),
    PairsCase("sm90_wgmma", "float8_e5m2", compute="fast_accum", options=_BYTES),
    PairsCase("sm90_wgmma", "float32", compute="bf16x9", k=40,
              options=(("tile", (64, 64, 64)), ("warp_groups", 1))),
    PairsCase("sm90_wgmma", "bfloat16", out_dtype="float32", l=2, options=_SMALL),
    # C is stored by elements: n / 2 is not a multiple of 16 bytes.
    PairsCase("sm90_wgmma", "bfloat16", n=114, pad=8, options=_SMALL),
    PairsCase("sm90_wgmma", "float16", order="F", m=71, n=114, pad=1, k=64, options=_SMALL),
    *(
        PairsCase("sm90_wgmma", "bfloat16", m=200, n=336, k=136, l=l,
                  options=(("tile", tile), ("warp_groups", groups), ("ping_pong", turns),
                           ("cluster", cluster)))
        for tile, groups, turns, cluster, l in (
            ((128, 128, 64), 2, 0, (2, 1), 1), ((128, 64, 64), 2, 0, (4, 2), 1),
            ((128, 128, 64), 2, 1, (1, 2), 2), ((64, 256, 64), 1, 0, (2, 2), 1),
            ((192, 96, 64), 3, 0, (1, 1), 1),
        )
    ),
    PairsCase("sm90_wgmma", "float16", "TN", m=136, n=288, apart=("pairs",),
              options=(("tile", (128, 128, 64)), ("warp_groups", 2), ("cluster", (2, 1)))),
)  # fmt: skip
#: Cases of the other kernels: the product, and a separate launch.
APART = tuple(
    case._replace(apart=BOTH)
    for case in (
        PairsCase("naive", "float32", n=54, pad=1),
        PairsCase("naive", "float64", "NN", "F", n=54, pad=1),
        PairsCase("naive", "float32", m=3, n=1204, k=8, pad=4),  # more columns than threads
        PairsCase("double_buffered", "float32", "TN", "C", m=71, n=62, l=3, pad=1),
        PairsCase("sm80_pipeline", "bfloat16", "NT", "C"),
        PairsCase("sm80_pipeline", "float16", "TT", "F", n=62, pad=1, out_dtype="float32"),
        PairsCase("sm80_pipeline", "float16", "NN", "C", n=60, k=200, options=(("split_k", 3),)),
        PairsCase("sm80_pipeline", "bfloat16", "NT", "F", k=200, l=2, options=(("split_k", 2),)),
        PairsCase("sm80_pipeline", "float64", "NT", "C", n=58),
        PairsCase("thin", "bfloat16", m=5),
        PairsCase("batched", "float16", m=13, n=18, k=24, l=21, pad=1),
        PairsCase("sm90_wgmma", "bfloat16", options=(*_SMALL, ("swap_ab", 1))),
        PairsCase("sm90_wgmma", "float16", k=256, options=(*_SMALL, ("split_k", 2))),
    )
)


def planned(case: PairsCase, kind: str, backend: Any, arch: str | None = None) -> tuple[Any, ...]:
    """Return the plan of a case, A, B, C, the buffer of C, and the operands."""
    m, n, k, l = case.m, case.n, case.k, case.l
    batch = (l,) if l > 1 else ()
    out = case.out_dtype or DTYPES[case.dtype].outputs[0]
    plain = "float32" if DTYPES[case.dtype].bytes == 1 else case.dtype
    lies: dict[str, Any] = {"pad": case.pad * (case.pad > 1), "step": case.pad, "rows": (1, 1)}
    of_a, of_b = stored_shapes(case.op, m, n, k)
    (A, _), (B, _) = (placed(x, case.dtype, **lies) for x in ((*batch, *of_a), of_b))
    C, whole = placed((*batch, m, n // 2), out, case.order, around=7.0, **lies)
    operands = {
        "row": placed((1, n // 2), "float32")[0][0], "column": placed((m, 1), plain)[0],
        "both": placed((m, n // 2), plain, pad=4, step=4)[0], "number": -0.75,
    }  # fmt: skip
    plan = cg.plan(
        case.op, A, B, C, epilogue=EPILOGUES[kind], kernel=case.kernel, backend=backend,
        compute=case.compute, **operands, **dict(case.options), **({"arch": arch} if arch else {}),
    )  # fmt: skip
    if kind not in case.apart:  # for small products, two launches may be predicted to be faster
        fused = next(
            x for x in plan.candidates() if x.prediction and "reduction" not in x.prediction.terms
        )
        selection = Selection(
            fused.kernel, fused.config, plan.gpu, plan.candidates, fused.algorithm
        )
        plan = Plan(plan.problem, plan.backend, plan.device, plan.arch, selection)
    return plan, A, B, C, whole, operands


def run(case: PairsCase, kind: str, backend: Any, arch: str | None = None) -> Plan:
    """Raise AssertionError if a result is wrong, or elements outside of C are accessed."""
    plan, A, B, C, whole, operands = planned(case, kind, backend, arch)
    C[...] = np.nan
    y, gate, quantized, amax = plan(A, B, C, alpha=-1.25, **operands)
    assert y is C
    assert_results(case, kind, A, B, operands, y, gate, quantized, amax)
    given: dict[str, Any] = {"alpha": -1.25}
    given["operands"] = operands | {"number": np.asarray(operands["number"])}
    verdict = verify(plan.problem, A, B, y, **given)
    assert verdict.ok, f"{case}, {kind}: {verdict}"
    verdict = verify(of_result(plan.problem, "result_1"), A, B, gate, **given)
    assert verdict.ok, f"{case}, {kind}, the gate: {verdict}"
    C[...] = 7.0
    assert (whole == 7).all(), f"{case}, {kind}: elements around C have changed"
    return plan


def assert_results(
    case: PairsCase, kind: str, A: Any, B: Any, operands: dict[str, Any], y: Any, gate: Any,
    quantized: Any, amax: Any,
) -> None:  # fmt: skip
    """Raise AssertionError if results differ from NumPy in float64 by more than a tolerance."""
    A, B, y, gate = (x.astype(np.float64) for x in (A, B, y, gate))
    left = A if case.op[0] == "N" else A.swapaxes(-1, -2)
    product = -1.25 * left @ (B if case.op[1] == "N" else B.swapaxes(-1, -2))
    half = case.n // 2
    first, second = (
        (product[..., 0::2], product[..., 1::2])
        if kind == "pairs"
        else (product[..., :half], product[..., half:])
    )
    row, column, both = (operands[name].astype(np.float64) for name in ("row", "column", "both"))
    with np.errstate(over="ignore"):
        exact = (first + row) / (1 + np.exp(-first - row)) * second * column - 0.75 * both
    kinds = case.dtype, case.out_dtype or DTYPES[case.dtype].outputs[0]
    off = 2.0**-3 if min(DTYPES[x].bytes for x in kinds) == 1 else 2.0**-6
    np.testing.assert_allclose(gate, first, rtol=off, atol=off * 16)
    # A result beyond the range of an 8-bit float is saturated.
    most = 448.0 if kinds[1] == "float8_e4m3fn" else np.inf
    np.testing.assert_allclose(y, np.clip(exact, -most, most), rtol=off, atol=off * 64)
    np.testing.assert_allclose(float(amax), abs(exact).max(), rtol=off)
    whole = np.clip(np.round(4 * second), -128, 127)
    assert quantized.dtype == np.int8 and (abs(quantized - whole) <= 1 + 64 * off).all()
