"""The operator that `cute_gemm.torch.grouped_mm` calls, with its gradients, also grouped."""

from __future__ import annotations

from typing import Any

import torch

from cute_gemm.api import grouped_gemm
from cute_gemm.arrays.base import dtype_name
from cute_gemm.dtypes import DTYPES, FAST_ACCUM
from cute_gemm.errors import ArrayError
from cute_gemm.problem.parts.groups import UNCHECKED, UNWRITTEN
from cute_gemm.torch.definitions import batched, counted, define, differentiable, differentiated_as
from cute_gemm.torch.expressions import wide
from cute_gemm.torch.launches import kept
from cute_gemm.torch.main_grad import added, refuse_second_derivative
from cute_gemm.torch.products import of_factors, sum_of
from cute_gemm.torch.running import as_stored, readable


def run_grouped(
    a: Any, b: Any, offs: Any, bias: Any, scale_a: Any = None, scale_b: Any = None,
    dtype: Any = None, fast_accum: bool = False, tail: str = UNWRITTEN, main_grad: Any = None,
    check: str = UNCHECKED,
) -> Any:  # fmt: skip
    """Return the row-major product of groups, to which the epilogue adds a bias."""
    compute = FAST_ACCUM if fast_accum else None

    def run(calls: list[Any]) -> Any:
        letters, operands = as_stored(a, b)
        A, B = map(readable, operands)
        # (G, 1, N) is a row per group for any M.
        added = bias if bias is None or bias.dim() == 1 else bias[:, None]
        epilogue = None if bias is None else "bias"
        operands_of = {"bias": added, "scale_a": scale_a, "scale_b": scale_b, "offsets": offs}
        given = {name: x for name, x in operands_of.items() if x is not None}
        with torch.no_grad():
            product = grouped_gemm(
                letters, A, B, order="C", out_dtype=dtype, compute=compute,
                epilogue=epilogue, tail=tail, check=check, **given,
            )  # fmt: skip
        words = letters, "C", dtype, compute, epilogue, "auto", "auto", None, tail, check
        calls.append((words, A, B, given, product))
        return product

    what = "grouped_mm", dtype, compute, tail, check
    return kept(what, a, b, offs, bias, scale_a, scale_b, compute=run)


def _shape(
    a: Any, b: Any, offs: Any, bias: Any, scale_a: Any = None, scale_b: Any = None,
    dtype: Any = None, *_: Any,
) -> Any:  # fmt: skip
    batch = (offs.shape[0],) if a.dim() == b.dim() else ()
    kind = dtype or getattr(torch, DTYPES[dtype_name(a.dtype)].outputs[0])
    return a.new_empty((*batch, a.shape[-2], b.shape[-1]), dtype=kind)


#: ``a @ b`` of each group, row-major: two and three dimensions, or two each.
grouped_mm = define(
    "grouped_mm(Tensor a, Tensor b, Tensor offs, Tensor? bias, Tensor? scale_a=None, "
    "Tensor? scale_b=None, ScalarType? dtype=None, bool fast_accum=False, "
    f"str tail='{UNWRITTEN}', Tensor? main_grad=None, str check='{UNCHECKED}') -> Tensor",
    run_grouped,
    _shape,
    conjugates=True,
)


def _add(main_grad: Any, a: Any, b: Any, offs: Any) -> None:
    letters, operands = as_stored(a, b)
    A, B = map(readable, operands)
    with torch.no_grad():
        grouped_gemm(letters, A, B, offs, main_grad, beta=1.0)


#: ``main_grad += a @ b`` of each group.
grouped_mm_add_ = define(
    "grouped_mm_add_(Tensor(a!) main_grad, Tensor a, Tensor b, Tensor offs) -> ()",
    _add,
    lambda *_: None,
    conjugates=True,
)
differentiated_as(grouped_mm_add_, refuse_second_derivative, written=0)
counted(grouped_mm_add_, lambda _, a, b, *__: 2 * a[-2] * a[-1] * b[-1])


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    a, b, offs, bias, scale_a, scale_b, *ctx.how, ctx.main_grad, _ = inputs
    ctx.kind = output.dtype
    ctx.scaled = scale_a is not None or scale_b is not None
    ctx.bias_shape = None if bias is None else bias.shape
    ctx.save_for_backward(a, b, scale_a, scale_b, offs)


def _backward(ctx: Any, g: Any) -> Any:
    """Return gradients: operands ragged along M have one that is ragged along N or K, and so on."""
    if ctx.scaled:
        raise ArrayError(
            "grouped_mm with scales has no gradient: detach the tensors that require grad, or "
            "call it under torch.no_grad()"
        )
    a, b, _, _, offs = ctx.saved_tensors
    needs = ctx.needs
    g = g.to(a.dtype)
    how = None, None, None, None, False, ctx.how[2]  # the same tail, and nothing else
    da = grouped_mm(g, b.mH, offs, *how) if needs[0] else None
    db = None
    if needs[1] and ctx.main_grad is not None:
        db = added(b, ctx.main_grad, grouped_mm_add_, a.mH, g, offs)
    elif needs[1]:
        db = grouped_mm(a.mH, g, offs, *how)
    of_bias = _bias_gradient(g, offs, ctx.bias_shape) if needs[3] else None
    return da, db, None, of_bias


def _tangent(
    ctx: Any, da: Any, db: Any, _: Any, dbias: Any, of_a: Any, of_b: Any, *__: Any
) -> Any:  # fmt: skip
    *factors, offs = ctx.saved_tensors

    def product(a: Any, b: Any, scale_a: Any, scale_b: Any) -> Any:
        return grouped_mm(a, b, offs, None, scale_a, scale_b, *ctx.how)

    total = of_factors(product, factors, (da, db, of_a, of_b))
    if dbias is None:
        return total
    rows, groups = factors[0].shape[0], offs.shape[0]
    numbers = _groups(offs, rows)
    if dbias.dim() == 2:
        dbias = dbias[numbers.clamp(max=groups - 1)]
    if ctx.how[2] != UNWRITTEN:
        dbias = torch.where(numbers[:, None] < groups, dbias, 0)
    return sum_of(total, dbias.to(ctx.kind).expand(rows, dbias.shape[-1]))


def _groups(offs: Any, rows: int) -> Any:
    """Return the group of each row; after the last group, the number of groups."""
    places = torch.arange(rows, device=offs.device, dtype=offs.dtype)
    return torch.searchsorted(offs, places, right=True)


def _bias_gradient(g: Any, offs: Any, shape: Any) -> Any:
    """Return the sums of the rows of each group, or of all groups."""
    groups = offs.shape[0]
    # Rows after the last group, whose contents are undefined, are summed separately.
    numbers = _groups(offs, g.shape[0])
    values = g.to(wide(g.dtype))
    sums = values.new_zeros((groups + 1, g.shape[1])).index_add(0, numbers, values)[:groups]
    return (sums if len(shape) == 2 else sums.sum(0)).to(g.dtype)


differentiable(grouped_mm, _save, _backward, _tangent)
batched(grouped_mm)
counted(grouped_mm, lambda a, b, *_: 2 * a[-2] * a[-1] * b[-1])
