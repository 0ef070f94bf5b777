"""DTensor's sharding of the operators of `products`, along each mesh dimension separately.

A rule is a set of placements of the results and the arguments. DTensor redistributes arguments that
fit no rule to the nearest one.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding

Rules = list[tuple[list[Any], list[Any]]]

_ops = torch.ops.cute_gemm
_REPLICATED = Replicate()


def summed(x: Any) -> Any:
    """Return a DTensor with its partial values summed."""
    return x.redistribute(placements=[_REPLICATED if p.is_partial() else p for p in x.placements])


@register_sharding(_ops.matmul.default)
def _matmul(a: Any, b: Any, dtype: Any = None, compute: Any = None) -> Rules:
    """Shard M, N or a batch dimension; with a sharded K the result is partial."""
    rest = [None, None]
    last = max(a.ndim, b.ndim)
    rules: Rules = [
        ([_REPLICATED], [_REPLICATED, _REPLICATED, *rest]),
        ([Shard(last - 2)], [Shard(a.ndim - 2), _REPLICATED, *rest]),
        ([Shard(last - 1)], [_REPLICATED, Shard(b.ndim - 1), *rest]),
        ([Partial()], [Shard(a.ndim - 1), Shard(b.ndim - 2), *rest]),
        ([Partial()], [Partial(), _REPLICATED, *rest]),
        ([Partial()], [_REPLICATED, Partial(), *rest]),
    ]
    for dim in range(last - 2):
        own = [_batch_dim(x, dim - last) for x in (a, b)]
        rules.append(([Shard(dim)], [*own, *rest]))
    return rules


def _batch_dim(x: Any, dim: int) -> Any:
    """Return the placement of an operand if the result is sharded in a batch dimension."""
    at = x.ndim + dim
    return _REPLICATED if at < 0 or x.shape[at] == 1 else Shard(at)


@register_sharding(_ops.weight_gradient.default)
def _weight_gradient(g: Any, x: Any, compute: Any = None) -> Rules:
    """Shard N or K; if a summed dimension is sharded, the result is partial."""
    rules: Rules = [
        ([_REPLICATED], [_REPLICATED, _REPLICATED, None]),
        ([Shard(0)], [Shard(g.ndim - 1), _REPLICATED, None]),
        ([Shard(1)], [_REPLICATED, Shard(x.ndim - 1), None]),
        ([Partial()], [Partial(), _REPLICATED, None]),
        ([Partial()], [_REPLICATED, Partial(), None]),
    ]
    return rules + [([Partial()], [Shard(i), Shard(i), None]) for i in range(g.ndim - 1)]


def _linear(results: int, x: Any, w: Any, b: Any, *_: Any) -> Rules:
    """Shard N or a leading dimension of x; never K, since partial sums precede the activation."""
    n = x.ndim - 1
    bias = [] if b is None else [_REPLICATED]
    placed: list[tuple[Any, list[Any]]] = [
        (_REPLICATED, [_REPLICATED, _REPLICATED, *bias]),
        (Shard(n), [_REPLICATED, Shard(0), *([Shard(0)] if bias else [])]),
    ]
    placed += [(Shard(i), [Shard(i), _REPLICATED, *bias]) for i in range(n)]
    rest = [None] * (3 - len(bias))
    return [([result] * results, [*given, *rest]) for result, given in placed]


register_sharding(_ops.linear.default)(partial(_linear, 1))
register_sharding(_ops.linear_with_preactivation.default)(partial(_linear, 2))
