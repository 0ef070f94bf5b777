"""Primitives that `cute_gemm.jax` uses, with their derivatives and batching rules.

``product`` is linear in A and in B, so JAX derives forward and reverse gradients of every order
from its transposes here, which are also products. ``fused`` has an epilogue; its derivative is that
of the same functions in JAX after a product. All dimensions of arrays but the last two are batch
dimensions, and broadcast.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from inspect import signature
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import NamedSharding, PartitionSpec

from cute_gemm.jax.calls import TARGET, ProductCall, Shaped, results
from cute_gemm.problem.epilogue.expression import ACCUMULATOR, Expression, fold
from cute_gemm.problem.epilogue.fuse import EpilogueFunction, named
from cute_gemm.problem.epilogue.rows import functions_of
from cute_gemm.problem.layers import forward, gradient, keeps_argument, name_of
from cute_gemm.problem.values import saturated

#: The letter of the transpose.
_TURNED = {"N": "T", "T": "N"}

_product_p = Primitive("cute_gemm_product")
_fused_p = Primitive("cute_gemm_fused")
_fused_p.multiple_results = True


def shaped(x: Any) -> Shaped:
    """Return shape and type of an array or a tracer."""
    return Shaped(tuple(x.shape), x.dtype.name)


def _wide(dtype: str) -> str:
    """Return the type of sums of elements of a type: float32 for half types."""
    return "float32" if dtype in ("float16", "bfloat16") else dtype


def product(call: ProductCall, a: Any, b: Any) -> Any:
    """Return the product of A and B as stored, without an epilogue."""
    return _product_p.bind(*varying(a, b), call=call)


def varying(*arrays: Any) -> tuple[Any, ...]:
    """Return arrays that vary along the same manual axes, in ``jax.shard_map``.

    If an array did not, JAX sums its gradient over those axes.
    """
    axes = [_varies_along(x) for x in arrays]
    union = frozenset().union(*axes)
    return tuple(
        _made_varying(x, tuple(union - own)) if union - own else x
        for x, own in zip(arrays, axes, strict=True)
    )


def _varies_along(x: Any) -> frozenset[Any]:
    """Return the manual axes that an array varies along; older versions of JAX call them vma."""
    aval = jax.typeof(x)
    if hasattr(aval, "vma"):
        return frozenset(aval.vma)
    return frozenset(getattr(getattr(aval, "manual_axis_type", None), "varying", ()))


def _made_varying(x: Any, axes: tuple[Any, ...]) -> Any:
    if hasattr(jax.lax, "pcast"):
        return jax.lax.pcast(x, axes, to="varying")
    return jax.lax.pvary(x, axes)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def fused(call: ProductCall, a: Any, b: Any, *operands: Any) -> tuple[Any, ...]:
    """Return all results of a product with an epilogue."""
    return tuple(_fused_p.bind(a, b, *operands, call=call))


@partial(fused.defjvp, symbolic_zeros=True)
def _(call: ProductCall, primals: Any, tangents: Any) -> Any:
    # Only varying arguments take part in the derivative.
    varies = [not isinstance(tangent, SymbolicZero) for tangent in tangents]

    def of_varying(*given: Any) -> tuple[Any, ...]:
        others = iter(given)
        return composed(
            call, *(next(others) if own else x for own, x in zip(varies, primals, strict=True))
        )

    given = (
        [x for x, own in zip(each, varies, strict=True) if own] for each in (primals, tangents)
    )
    return jax.jvp(of_varying, *map(tuple, given))


def composed(call: ProductCall, a: Any, b: Any, *operands: Any) -> tuple[Any, ...]:
    """Compute the same as `fused` with the epilogue in JAX, which differentiates it."""
    shapes = results(call, tuple(map(shaped, (a, b, *operands))))
    acc = product(call.plain(_wide(shapes[0].dtype)), a, b)
    given = dict(zip(call.operands, operands, strict=True)) | dict(call.numbers)
    values = {name: jnp.asarray(x).astype(acc.dtype) for name, x in given.items()}
    assert call.epilogue is not None
    return _results(call.epilogue.expression, values | {ACCUMULATOR: acc}, shapes)


# ---- a layer ------------------------------------------------------------------------------------


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def layer(activation: str, x: Any, w: Any, *b: Any) -> Any:
    """Return ``activation(x w^T + b)`` of matrices; an empty text means no activation."""
    return fused(_layer_call(named(name_of(bool(b), activation)), b), x, w, *b)[0]


def _layer_call(function: EpilogueFunction, b: tuple[Any, ...]) -> ProductCall:
    return ProductCall("NT", epilogue=function, operands=("bias",) if b else ())


@partial(layer.defjvp, symbolic_zeros=True)
def _(activation: str, primals: Any, tangents: Any) -> Any:
    x, w, *b = primals
    dx, dw, *db = tangents
    function = forward(activation, bool(b), keeps_argument(activation))
    y, *z = fused(_layer_call(function, b), x, w, *b)
    call = ProductCall("NT")
    parts = [
        term(given)
        for given, term in (
            (dx, lambda given: product(call, given, w)),
            (dw, lambda given: product(call, x, given)),
            *((each, lambda given: _broadcast(given, y)) for each in db),
        )
        if not isinstance(given, SymbolicZero)
    ]
    dz = sum(parts[1:], parts[0]) if parts else jnp.zeros_like(y)
    return y, _activated(activation, dz, *(z or (y,))) if activation else dz


def _broadcast(b: Any, like: Any) -> Any:
    """Return a bias per row; its gradient is summed in float32 at least."""
    return jnp.broadcast_to(b.astype(_wide(b.dtype.name)), like.shape).astype(b.dtype)


@partial(jax.checkpoint, prevent_cse=False, static_argnums=0)  # keeps only ``kept``
def _activated(activation: str, dz: Any, kept: Any) -> Any:
    """Return ``dz`` times the derivative of an activation, in float32 at least."""
    wide = _wide(dz.dtype.name)
    values = {ACCUMULATOR: dz.astype(wide), "kept": kept.astype(wide)}
    return _evaluate(gradient(activation).expression, values)[0].astype(dz.dtype)


# ---- primitives ---------------------------------------------------------------------------------


@partial(jax.jit, static_argnames=("primitive", "call"))
def _compiled(*arrays: Any, primitive: Primitive, call: ProductCall) -> Any:
    return primitive.bind(*arrays, call=call)


def _abstract(*avals: Any, call: ProductCall) -> list[Any]:
    shapes = results(call, tuple(map(shaped, avals)))
    return [_aval(x.shape, jnp.dtype(x.dtype), avals[0]) for x in shapes]


def _aval(shape: tuple[int, ...], dtype: Any, like: Any) -> Any:
    """Return a result's abstract value, which varies as the arguments do in ``jax.shard_map``."""
    mesh = like.sharding.mesh
    if mesh.empty:
        return jax.core.ShapedArray(shape, dtype)
    sharding = NamedSharding(mesh, PartitionSpec(*(None,) * len(shape)))
    return like.update(shape=shape, dtype=dtype, weak_type=False, sharding=sharding)


def _lowering(context: Any, *operands: Any, call: ProductCall) -> Any:
    """Lower to a custom call; a preceding transpose becomes a letter of op."""
    letters, given, avals = list(call.op), list(operands), list(context.avals_in)
    for place in (0, 1):
        while letters[place] in "NT" and (source := _transposed(given[place])) is not None:
            given[place] = source
            letters[place] = _TURNED[letters[place]]
            *lead, rows, columns = avals[place].shape
            avals[place] = avals[place].update(shape=(*lead, columns, rows))
    rule = jax.ffi.ffi_lowering(TARGET)
    text = replace(call, op="".join(letters)).text
    return rule(context.replace(avals_in=avals), *given, call=text)


def _transposed(value: Any) -> Any:
    """Return the value whose transpose, in the last two dimensions, a program's value is."""
    made_by = getattr(value.owner, "opview", value.owner)
    if getattr(made_by, "OPERATION_NAME", "") != "stablehlo.transpose":
        return None
    order = [int(x) for x in made_by.permutation]
    rank = len(order)
    swapped = [*range(rank - 2), rank - 1, rank - 2]
    return made_by.operand if order == swapped else None


# ---- gradients ----------------------------------------------------------------------------------


def _transpose(side: int, g: Any, *operands: Any, call: ProductCall) -> Any:
    """Return the transpose of a product in A (``side`` 0) or B (1), as the operand is stored.

    It is ``g op(B)^T`` or ``op(A)^T g``, or its transpose if op transposes the operand.
    """
    like, other = operands[side].aval, operands[1 - side]
    g = g.astype(like.dtype)
    own, letter = call.op[side], call.op[1 - side]
    # No letter means op(X)^T of a conjugate transpose: it is the conjugate as stored.
    other, letter = (other.conj(), "N") if letter == "C" else (other, _TURNED[letter])
    if side == 1 and call.op[0] == "N" and math.prod(like.shape[:-2]) == 1:
        # All matrices of the batch share B, so sums over the batch are sums over rows.
        batch = jnp.broadcast_shapes(other.shape[:-2], g.shape[:-2])
        other, g = (rows_of(jnp.broadcast_to(x, (*batch, *x.shape[-2:]))) for x in (other, g))
    letters = ("N", letter) if own == "N" else ("T", _TURNED[letter])
    factors = g, other
    if (side == 0) != (own == "N"):
        letters, factors = letters[::-1], factors[::-1]
    call = ProductCall("".join(letters), alpha=call.alpha, compute=call.compute)
    total = _summed(like, call, *factors)
    return total.conj() if own == "C" else total


def rows_of(x: Any) -> Any:
    """Return the rows of all matrices of a batch as one matrix."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def _summed(like: Any, call: ProductCall, a: Any, b: Any) -> Any:
    """Return a product with an operand's type, summed over the dimensions that share it."""
    batch = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    lead = (*(1,) * (len(batch) + 2 - like.ndim), *like.shape[:-2])
    shared = [axis for axis, extent in enumerate(batch) if extent != 1 and lead[axis] == 1]
    name = like.dtype.name
    total = product(replace(call, out_dtype=_wide(name) if shared else name), a, b)
    total = total.sum(shared).astype(name) if shared else total
    return total.reshape(like.shape)


ad.defbilinear(_product_p, partial(_transpose, 0), partial(_transpose, 1))


# ---- vmap ---------------------------------------------------------------------------------------


def _batched(
    arrays: Sequence[Any], axes: Sequence[int | None], *, bind: Callable[..., Any],
    call: ProductCall,
) -> tuple[Any, Any]:  # fmt: skip
    """Put the mapped dimension before the batch; arrays without it stay as they are."""
    given = [(x, axis, x.ndim - (axis is not None)) for x, axis in zip(arrays, axes, strict=True)]
    rank = max(2, *(own for _, _, own in given))
    moved = []
    for x, axis, own in given:
        if axis is not None:
            x = jnp.moveaxis(x, axis, 0)
            x = x.reshape(x.shape[0], *(1,) * (rank - own), *x.shape[1:])
        moved.append(x)
    returned = bind(*moved, call=call)
    return returned, (0,) * len(returned) if isinstance(returned, (list, tuple)) else 0


def _fused_batched(arrays: Any, axes: Any, *, call: ProductCall) -> Any:
    """Map an epilogue; JAX computes each product's greatest magnitude from all elements."""
    function = call.epilogue
    assert function is not None
    expression = function.expression
    if not any(x.amax for x in expression.results):
        return _batched(arrays, axes, bind=_fused_p.bind, call=call)
    sums = _wide(arrays[0].dtype.name)
    further = tuple(x._replace(amax=False, dtype=sums) if x.amax else x for x in expression.results)
    whole = replace(function, expression=replace(expression, results=further))
    values, _ = _batched(arrays, axes, bind=_fused_p.bind, call=replace(call, epilogue=whole))
    returned = tuple(
        jnp.abs(value).max(tuple(range(1, value.ndim)), initial=0) if result.amax else value
        for value, result in zip(values, expression.results, strict=True)
    )
    return returned, (0,) * len(returned)


batching.primitive_batchers[_product_p] = partial(_batched, bind=_product_p.bind)
batching.primitive_batchers[_fused_p] = _fused_batched

# If a lowering is cached and called as a function, it sees no transpose before the call.
_FLAGS: dict[str, Any] = (
    {"cacheable": False} if "cacheable" in signature(mlir.register_lowering).parameters else {}
)
for _primitive, _abstract_of in (
    (_product_p, lambda *avals, call: _abstract(*avals, call=call)[0]),
    (_fused_p, _abstract),
):
    _primitive.def_impl(partial(_compiled, primitive=_primitive))
    _primitive.def_abstract_eval(_abstract_of)
    for _platform in ("cpu", "cuda"):
        mlir.register_lowering(_primitive, _lowering, platform=_platform, **_FLAGS)


# ---- epilogues by JAX ---------------------------------------------------------------------------

_FUNCTIONS = functions_of(jax, jnp, jax.lax, jax.nn)


def _evaluate(expression: Expression, values: dict[str, Any]) -> list[Any]:
    """Return the results of an expression of arrays by name, including the accumulator."""
    dtype = values[ACCUMULATOR].dtype
    return fold(
        expression, values, _FUNCTIONS.__getitem__, lambda number: jnp.asarray(number, dtype)
    )


def _results(
    expression: Expression, values: dict[str, Any], shapes: Sequence[Shaped]
) -> tuple[Any, ...]:
    """Return all results of an expression of arrays by name, in their types."""
    returned = []
    computed = _evaluate(expression, values)
    for result, value, (_, dtype) in zip(expression.results, computed, shapes, strict=True):
        value = jnp.broadcast_to(value, shapes[0].shape)
        value = jnp.abs(value).max(initial=0) if result.amax else saturated(value, dtype, jnp)
        returned.append(value.astype(dtype))
    return tuple(returned)
