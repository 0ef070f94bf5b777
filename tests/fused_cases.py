"""Calls whose epilogue reads operands of every broadcast and returns every kind of result."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from cases import placed, stored_shapes

import cute_gemm as cg
from cute_gemm.dtypes import DTYPES
from cute_gemm.problem.epilogue.expression import Expression, Result, fold
from cute_gemm.problem.epilogue.fused import Fused
from cute_gemm.problem.epilogue.rounding import TYPES
from cute_gemm.problem.epilogue.rows import ACTIVATIONS, row_of
from cute_gemm.problem.problem import GemmProblem
from cute_gemm.problem.verify import verify


@cg.epilogue
def everything(acc: Any, row: Any, column: Any, both: Any, turned: Any, number: Any) -> Any:
    z = acc * column + row
    y = cg.silu(z) * both - turned * number
    return y, z, cg.amax(y), cg.cast(z * 4, "int8")


def evaluated(expression: Expression, operands: dict[str, Any]) -> Any:
    """Return the first result of an expression, computed by NumPy."""
    return fold(expression, operands, lambda name: row_of(name).numpy)[0]


def of_result(problem: GemmProblem, name: str) -> GemmProblem:
    """Return a problem whose C is another result of this problem's epilogue."""
    place = 1 + [x.name for x in problem.results].index(name)
    epilogue, matrix = problem.epilogue, problem.results[place - 1]
    assert isinstance(epilogue, Fused)
    only = (Result(epilogue.expression.results[place].place),)
    return replace(
        problem, operands=problem.operands[: len(epilogue.operands)],
        C=replace(problem.C, dtype=matrix.dtype),
        epilogue=replace(
            epilogue, expression=replace(epilogue.expression, results=only), further=()
        ),
    )  # fmt: skip


def behind_bias(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of the sum of the accumulator and a bias."""
    return lambda acc, b: function(acc + b)


#: Epilogues of one function each, with a bias along N.
BOTH: dict[str, Callable[..., Any]] = {
    **{name: behind_bias(row.function) for name, row in ACTIVATIONS.items()},
    "add": lambda acc, b: acc + b, "silu": lambda acc, b: cg.silu(4 * acc + b),
    "relu": lambda acc, b: cg.relu(acc - b), "sigmoid": lambda acc, b: cg.sigmoid(40 * acc * b),
    "tanh": lambda acc, b: np.tanh(acc) - b, "exp": lambda acc, b: np.exp(acc / 8) + b,
    "log": lambda acc, b: cg.log(abs(acc) + 1 + b * b),
    "sqrt": lambda acc, b: cg.sqrt(abs(acc)) * b,
    "rsqrt": lambda acc, b: cg.rsqrt(acc * acc + 0.5) + b,
    "erf": lambda acc, b: cg.erf(acc / 4) - b,
    "where": lambda acc, b: cg.where(acc < b, -acc, 2 * b),
    "clamp": lambda acc, b: cg.minimum(cg.maximum(acc, -1), b) / 3,
    "logic": lambda acc, b: cg.where((acc < b) & (acc != 0) | ~(b <= 1), acc, 2 * acc),
    "xor": lambda acc, b: cg.where((acc < b) ^ (acc > 0), acc, -b),
    "mask": lambda acc, b: acc * (acc == acc) + b * (acc > 0),
    "powers": lambda acc, b: cg.relu(acc) ** 2 + abs(b) ** 0.5 + (acc**2 + 1) ** -1,
    **{
        f"{name} of PyTorch": behind_bias(partial(row.function, bits="torch"))
        for name, row in ACTIVATIONS.items()
        if name != "relu2"  # relu2 has these bits anyway
    },
    **{f"round to {name}": behind_bias(partial(cg.round_to, dtype=name)) for name in TYPES},
}  # fmt: skip
FUNCTIONS = {name: cg.epilogue(function) for name, function in BOTH.items()}


class FusedCase(NamedTuple):
    """A call with NumPy arrays of these extents, in a batch of ``l``."""

    kernel: str
    dtype: str
    order: Any = "C"
    op: str = "NT"
    m: int = 70
    n: int = 48
    k: int = 64
    l: int = 1
    out_dtype: str | None = None
    options: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        words = (f"{name}={value}" for name, value in self.options)
        kinds = (self.kernel, self.dtype, *filter(None, (self.out_dtype,)), self.op, self.order)
        return " ".join((*kinds, f"l={self.l}", *words))


_WGMMA = (("tile", (64, 64, 64)), ("warp_groups", 1))
CASES = (
    FusedCase("naive", "float32"), FusedCase("double_buffered", "float64", "F", "NN"),
    FusedCase("double_buffered", "float32", "F", "TN", m=71, n=45, l=3),
    FusedCase("vectorized", "float16", "C", "TT"), FusedCase("tensor_core", "bfloat16", "F"),
    FusedCase("sm80_pipeline", "float16", "C"),
    FusedCase("sm80_pipeline", "bfloat16", "F", "NN", m=71, n=45, out_dtype="float32"),
    FusedCase("sm80_pipeline", "float64", "C", "TN"),
    FusedCase("sm80_pipeline", "float16", "C", k=200, options=(("split_k", 3),)),
    FusedCase("sm80_pipeline", "bfloat16", "F", k=200, l=2, options=(("split_k", 2),)),
    FusedCase("thin", "bfloat16", "C", m=5), FusedCase("thin", "float32", "F", "NN", n=3),
    FusedCase("batched", "bfloat16", "C", m=13, n=16, k=24, l=21),
    FusedCase("batched", "float32", "F", "TN", m=9, n=7, k=5, l=40),
    FusedCase("batched", "float64", "C", "NN", m=8, n=4, k=6, l=9),
    *(
        FusedCase("sm90_wgmma", dtype, order, m=72, n=56, out_dtype=out,
                  options=(*_WGMMA, ("swap_ab", swap_ab)))
        for dtype, order, out in (("bfloat16", "C", None), ("float16", "F", None),
                                  ("bfloat16", "C", "float32"))
        for swap_ab in (0, 1)
    ),
    FusedCase("sm90_wgmma", "bfloat16", "C", m=71, n=57, options=(*_WGMMA, ("pack", "AB"))),
    FusedCase("sm90_wgmma", "bfloat16", "C", m=136, n=72, l=2,
              options=(("tile", (64, 64, 64)), ("warp_groups", 2), ("ping_pong", 1))),
    FusedCase("sm90_wgmma", "float16", "F", m=64, n=48, k=256,
              options=(("split_k", 2), ("pack", "AB"))),
    # Integer accumulators, and an epilogue of floating-point numbers.
    FusedCase("tensor_core", "int8", "F", "TT", out_dtype="float32"),
    FusedCase("sm80_pipeline", "int8", "C", out_dtype="bfloat16"),
    FusedCase("sm80_pipeline", "int8", "F", "NN", k=200, l=2, out_dtype="float32",
              options=(("split_k", 2),)),
    FusedCase("thin", "int8", "C", m=5, out_dtype="bfloat16"),
    FusedCase("batched", "int8", "F", "TN", m=9, n=7, k=20, l=40, out_dtype="float32"),
    FusedCase("sm90_wgmma", "int8", "C", m=72, n=56, out_dtype="bfloat16",
              options=(("tile", (64, 64, 128)), ("warp_groups", 1), ("pack", "AB"))),
)  # fmt: skip


def planned(case: FusedCase, backend: Any, arch: str | None = None) -> tuple[Any, ...]:
    """Return the plan of a case, A, B, C, and the operands of the epilogue."""
    m, n, k, l = case.m, case.n, case.k, case.l
    batch = (l,) if l > 1 else ()
    of_a, of_b = stored_shapes(case.op, m, n, k)
    A, B = placed((*batch, *of_a), case.dtype)[0], placed(of_b, case.dtype)[0]
    out = case.out_dtype or case.dtype
    C = placed((*batch, m, n), out, case.order)[0]
    operands = {
        "row": placed((1, n), "float32")[0][0], "column": placed((m, 1), case.dtype)[0],
        "both": placed((m, n), out, pad=3)[0], "number": -0.75,
        "turned": placed((*batch, m, n), case.dtype, "F")[0],
    }  # fmt: skip
    options = dict(case.options) | ({"arch": arch} if arch else {})
    plan = cg.plan(
        case.op, A, B, C, epilogue=everything, kernel=case.kernel, backend=backend, **operands,
        **options,
    )  # fmt: skip
    return plan, A, B, C, operands


def run(case: FusedCase, backend: Any, arch: str | None = None) -> None:
    """Raise AssertionError if a result is wrong, or NaN was read where nothing must be read."""
    plan, A, B, C, operands = planned(case, backend, arch)
    out = case.out_dtype or case.dtype
    for beta in (0.5, 0.0):
        before = C.copy(order="K")
        if not beta:
            C[...] = np.nan
        scaling = {"alpha": -1.25, "beta": beta}
        y, z, amax, quantized = plan(A, B, C, **scaling, **operands)
        assert y is C
        problem = plan.problem
        arrays = operands | {"number": np.asarray(operands["number"])}
        given: dict[str, Any] = {"C": before, "operands": arrays, **scaling}
        verdict = verify(problem, A, B, y, **given)
        assert verdict.ok, f"{case}: {verdict}"
        verdict = verify(of_result(problem, "result_1"), A, B, z, **given)
        assert verdict.ok, f"{case}, its second result: {verdict}"
        # The maximum is that of values before rounding.
        greatest, unit = abs(y.astype(float)).max(), 2.0 * DTYPES[out].roundoff
        assert abs(float(amax) - greatest) <= unit * greatest, f"{case}: amax"
        # A value between two integers may be rounded to either.
        exact = np.clip(4 * z.astype(float), -128, 127)
        slack = 4 * DTYPES[out].roundoff * abs(z.astype(float)) + 0.51
        assert quantized.dtype == np.int8 and (abs(quantized - exact) <= slack).all(), (
            f"{case}: int8"
        )
        C[...] = before


def run_function(name: str, dtype: str, backend: Any) -> None:
    """Raise AssertionError if a function exceeds its bound."""
    m, n, k = 40, 72, 64
    A, B, b = placed((m, k), dtype)[0], placed((n, k), dtype)[0], placed((1, n), "float32")[0][0]
    A /= 8
    plan = cg.plan("NT", A, B, epilogue=FUNCTIONS[name], b=b, backend=backend, order="C")
    verdict = verify(plan.problem, A, B, plan(A, B, b=b), operands={"b": b})
    assert verdict.ok, f"{name} of {dtype}: {verdict}"


#: Configs with so many accumulators per thread that vectors are loaded where they are used: type,
#: order, and the mode of the vector.
MANY_ACCUMULATORS = tuple(
    (dtype, order, mode, {"tile": tile, "warp_groups": 2, "ping_pong": 1, "swap_ab": swap_ab,
                          "cluster": (1, 1)})
    for dtype, order, mode, tile, swap_ab in (
        ("bfloat16", "C", "N", (128, 192, 64), 0), ("bfloat16", "C", "N", (192, 128, 64), 1),
        ("float16", "F", "M", (128, 160, 64), 0),
    )
)  # fmt: skip


def run_many_accumulators(
    case: tuple[str, Any, str, dict[str, Any]], backend: Any, arch: str | None = None
) -> None:
    """Raise AssertionError if a result of such a config is wrong. Both warp groups have tiles."""
    (dtype, order, mode, options), m, n, k = case, 264, 328, 136
    shapes = ((k, m), "F"), ((k, n), "F"), ((m, n), order), ((1, n) if mode == "N" else (m, 1), "C")
    A, B, C, b = (placed(shape, dtype, lies)[0] for shape, lies in shapes)
    b = b[0] if mode == "N" else b
    asked = {"kernel": "sm90_wgmma", "backend": backend, "arch": arch, **options}
    plan = cg.plan("TN", A, B, C, epilogue=FUNCTIONS["gelu"], b=b, **asked)
    for beta in (0.0, 0.5):
        before = C.copy(order="K")
        if not beta:
            C[...] = np.nan
        plan(A, B, C, beta=beta, b=b)
        given: dict[str, Any] = {"C": before, "beta": beta, "operands": {"b": b}}
        verdict = verify(plan.problem, A, B, C, **given)
        assert verdict.ok, f"{case}: {verdict}"
