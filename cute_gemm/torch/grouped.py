"""The operator below `cute_gemm.torch.grouped_mm`, with its gradients, which are grouped too."""

from __future__ import annotations

from typing import Any

import torch

from cute_gemm.frameworks.torch import CALLED
from cute_gemm.torch.products import as_stored, readable, wide


def run_grouped(a: Any, b: Any, offs: Any, bias: Any) -> Any:
    """Return the row-major product of groups, which a bias is added to in the epilogue."""
    letters, operands = as_stored(a, b)
    epilogue = {} if bias is None else {"epilogue": "bias", "bias": _by_group(bias)}
    with torch.no_grad():
        return CALLED["grouped_gemm"](
            letters, *map(readable, operands), offs, order="C", **epilogue
        )


def _by_group(bias: Any) -> Any:
    """Return (G, N) as (G, 1, N), which is a row for each group whatever M is."""
    return bias if bias.dim() == 1 else bias[:, None]


@torch.library.custom_op(
    "cute_gemm::grouped_mm",
    mutates_args=(),
    schema="(Tensor a, Tensor b, Tensor offs, Tensor? bias) -> Tensor",
)
def grouped_mm(a: Any, b: Any, offs: Any, bias: Any) -> Any:
    """Compute ``a @ b`` of each group, row-major: two and three dimensions, or two each."""
    return run_grouped(a, b, offs, bias)


@grouped_mm.register_fake
def _(a: Any, b: Any, offs: Any, bias: Any) -> Any:
    batch = (offs.shape[0],) if a.dim() == b.dim() else ()
    kind = torch.int32 if a.dtype == torch.int8 else a.dtype
    return a.new_empty((*batch, a.shape[-2], b.shape[-1]), dtype=kind)


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    a, b, offs, bias = inputs
    ctx.bias_shape = None if bias is None else bias.shape
    ctx.save_for_backward(a, b, offs)


def _backward(ctx: Any, g: Any) -> Any:
    """Return gradients: of what is ragged along M one along N or K, and so on."""
    a, b, offs = ctx.saved_tensors
    needs = ctx.needs_input_grad
    da = grouped_mm(g, b.mH, offs, None) if needs[0] else None
    db = grouped_mm(a.mH, g, offs, None) if needs[1] else None
    return da, db, None, _bias_gradient(g, offs, ctx.bias_shape) if needs[3] else None


def _bias_gradient(g: Any, offs: Any, shape: Any) -> Any:
    """Return the sums of the rows of each group, or of all groups."""
    groups = offs.shape[0]
    rows = torch.arange(g.shape[0], device=g.device, dtype=offs.dtype)
    # Rows behind the last group are summed apart: nobody knows what they hold.
    numbers = torch.searchsorted(offs, rows, right=True)
    values = g.to(wide(g.dtype))
    sums = values.new_zeros((groups + 1, g.shape[1])).index_add(0, numbers, values)[:groups]
    return (sums if len(shape) == 2 else sums.sum(0)).to(g.dtype)


torch.library.register_autograd("cute_gemm::grouped_mm", _backward, setup_context=_save)

_library = torch.library.Library("cute_gemm", "IMPL")
_library.impl("grouped_mm", torch.library.fallthrough_kernel, "Conjugate")
