"""Products for JAX: `gemm`, `matmul` and `linear`, under jit, grad and vmap.

On a GPU, each is one custom call of XLA, which launches the kernels of `cute_gemm.gemm` on XLA's
stream. On the CPU, NumPy computes it.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, overload

import jax
import jax.numpy as jnp
import numpy as np

from cute_gemm.arrays.base import dtype_name
from cute_gemm.call import check_names
from cute_gemm.dtypes import DTYPES, scalar_of
from cute_gemm.errors import ArrayError, DTypeError, OptionError, ScalarError, ShapeError
from cute_gemm.jax.calls import ProductCall, results
from cute_gemm.jax.products import fused, layer, product, rows_of, shaped, varying
from cute_gemm.plan.backend import runs_on
from cute_gemm.problem.describe import checked_op
from cute_gemm.problem.epilogue.fuse import EpilogueFunction, as_function, with_scales
from cute_gemm.problem.epilogue.fuse import check_names as check_operands
from cute_gemm.problem.layers import (
    check_activation,
    check_batches,
    check_layer,
    check_matrix,
    check_product,
    check_real,
)
from cute_gemm.problem.scalars import scalar

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from cute_gemm.signatures import JaxWords

__all__ = ["gemm", "linear", "matmul"]

#: How an array is converted to the type of another one.
_CONVERT = "{name}.astype({other}.dtype)"


@overload
def gemm(
    op: str, A: Any, B: Any, *, epilogue: str | None = None, **words: Unpack[JaxWords]
) -> jax.Array: ...


@overload
def gemm(
    op: str, A: Any, B: Any, *, epilogue: EpilogueFunction | Callable[..., Any], **words: Any
) -> Any: ...


def gemm(
    op: str, A: Any, B: Any, *, alpha: Any = 1.0, out_dtype: Any = None,
    compute: str | None = None, scale_a: Any = None, scale_b: Any = None,
    epilogue: Any = None, kernel: str = "auto",
    **kernel_options: Any,
) -> Any:  # fmt: skip
    """Compute ``epilogue(alpha * op(A) @ op(B))``, as `cute_gemm.gemm` does.

    The letters of op say which operands are transposed. Under ``jax.jit`` this makes no copy.

    Parameters
    ----------
    op
        Two letters, for A and for B: ``N`` takes the matrix as it is stored, ``T`` its transpose,
        ``C`` or ``H`` its conjugate transpose.
    A, B
        A is (..., M, K), or (..., K, M) if it is transposed. B is (..., K, N), or (..., N, K) if it
        is transposed. Batch dimensions broadcast. A matrix that a batch shares is not copied.
    alpha
        A number. Pass a traced number as an operand of an epilogue: ``epilogue="scale"``.
    out_dtype, compute, kernel, **kernel_options
        As for `cute_gemm.gemm`. Kernels and their options apply on a GPU.
    scale_a, scale_b
        Factors of op(A) and op(B), in float32: a number or () as a tensor scale, (..., M, 1) and
        (..., N, 1) as row scales. Block scales are not supported.
    epilogue
        A name (``"bias+gelu"``) or a function that `cute_gemm.epilogue` traces. Its operands
        are keyword arguments, numbers or arrays that broadcast to the result.

    Returns
    -------
    jax.Array
        (..., M, N), row-major; a tuple if the epilogue has further results. The result is
        differentiable in A, B and the operands of the epilogue (``jax.grad``, ``jax.jvp``).

    Raises
    ------
    GemmError
        A subclass for each cause, when the call is traced.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> A, B = jnp.arange(6.0).reshape(2, 3), jnp.ones((4, 3))
    >>> gemm("NT", A, B, epilogue="bias+relu", bias=-4 * jnp.arange(4.0)).tolist()
    [[3.0, 0.0, 0.0, 0.0], [12.0, 8.0, 4.0, 0.0]]
    """
    A, B = _array("A", A), _array("B", B)
    for name, x in (("A", A), ("B", B)):
        check_matrix(name, x)
    function = None if epilogue is None else as_function(epilogue)
    if function is not None and function.expression.pairs:
        raise OptionError(
            f"epilogue {function.name!r} takes {function.expression.pairs} of columns, which "
            "cute_gemm.jax does not have: return the product, and compute on its columns afterwards"
        )
    given = {}
    if function is not None:
        names = function.expression.operands
        given = {name: kernel_options.pop(name) for name in names if name in kernel_options}
        check_operands(function, given)
    factors = {"scale_a": scale_a, "scale_b": scale_b}
    scales = {name: _scale(name, x) for name, x in factors.items() if x is not None}
    if scales:
        function = function or with_scales(None, tuple(scales))
        expression = function.expression.scaled(tuple(scales))
        function, given = EpilogueFunction(function.name, expression), scales | given
    for name in ("C", "beta"):
        if name in kernel_options:
            raise OptionError(
                f"gemm() of cute_gemm.jax has no argument {name!r}, because arrays of JAX are "
                "immutable: add one with epilogue='residual', residual=C"
            )
    check_names(gemm, kernel_options)
    runs_on(kernel)  # checks
    out = None if out_dtype is None else dtype_name(out_dtype)
    call = ProductCall(
        _op(op, A), alpha=_factor(alpha, A, out), out_dtype=out, compute=compute, kernel=kernel,
        options=tuple(sorted(kernel_options.items())),
    )  # fmt: skip
    arrays = _called(call, function, A, B, given)
    return arrays[0] if len(arrays) == 1 else arrays


def matmul(a: Any, b: Any, *, out_dtype: Any = None) -> jax.Array:
    """Compute ``a @ b``, as `jax.numpy.matmul` does of two dimensions or more.

    A transpose of the last two dimensions (``w.T``, ``w.mT``) in the same program is read in place.
    A matrix that is broadcast over a batch is read once.

    Parameters
    ----------
    a, b
        (..., M, K) and (..., K, N), whose batch dimensions broadcast. float16, bfloat16, float32,
        float64, complex64, complex128, or int8, which has no gradient.
    out_dtype
        Type of the result: that of a and b or, for half types, float32; int32 for int8. The
        gradient of a float32 result of half types is converted to their type first.

    Returns
    -------
    jax.Array
        (..., M, N). Gradients are products, and can be differentiated again. Gradients of half
        types are summed over a batch in float32.

    Raises
    ------
    ShapeError
        For an array of less than two dimensions, and for shapes that do not fit each other.
    DTypeError
        For types that differ from each other or are not supported.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> a, w = jnp.arange(6.0).reshape(2, 3), jnp.ones((4, 3))
    >>> jax.jit(lambda a, w: matmul(a, w.T))(a, w)[:, 0].tolist()
    [3.0, 12.0]
    >>> jax.grad(lambda a: matmul(a, w.T).sum())(a).tolist()
    [[4.0, 4.0, 4.0], [4.0, 4.0, 4.0]]
    """
    a, b = _array("a", a), _array("b", b)
    check_product(a, b, _CONVERT)
    return gemm("NN", a, b, out_dtype=out_dtype)


def linear(x: Any, w: Any, b: Any = None, activation: str | None = None) -> jax.Array:
    """Compute ``activation(x @ w.T + b)``, the bias and activation fused into the product.

    Parameters
    ----------
    x
        (..., K), of a type that `matmul` supports.
    w
        (N, K), of x's type.
    b
        (N,), of x's type, or None. For int8 it is added to the int32 result.
    activation
        A name that ``epilogue=`` of `cute_gemm.gemm` takes (``"relu"``, ``"gelu"``, ...), or None.
        It needs real floating-point types.

    Returns
    -------
    jax.Array
        (..., N). For the derivative, relu, sigmoid and tanh save their result, and other
        activations save ``x @ w.T + b``.

    Raises
    ------
    ShapeError
        For shapes that do not fit each other.
    DTypeError
        For types that differ from each other or are not supported.
    OptionError
        If the activation is not known.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> x, w = jnp.arange(6.0).reshape(2, 3), jnp.ones((4, 3))
    >>> linear(x, w, -4 * jnp.arange(4.0), activation="relu").tolist()
    [[3.0, 0.0, 0.0, 0.0], [12.0, 8.0, 4.0, 0.0]]
    """
    x, w = _array("x", x), _array("w", w)
    b = None if b is None else _array("b", b)
    check_activation(activation)
    check_layer(x, w, b, _CONVERT)
    real = jnp.issubdtype(x.dtype, jnp.floating)
    check_real(activation, x, real)
    rows = rows_of(x)
    if not real or (b is None and activation is None):
        y = gemm("NT", rows, w)
        y = y if b is None else y + b
    else:
        results(ProductCall("NT"), (shaped(rows), shaped(w)))  # checks
        y = layer(activation or "", *varying(rows, w, *(() if b is None else (b,))))
    return y.reshape(*x.shape[:-1], w.shape[0])


def _array(name: str, x: Any) -> Any:
    if not isinstance(x, (jax.Array, np.ndarray)):
        raise ArrayError(
            f"{name} is of type {type(x).__name__}; expected an array of JAX or NumPy: "
            f"jnp.asarray({name}) makes one"
        )
    return jnp.asarray(x)


def _scale(name: str, x: Any) -> Any:
    """Return a scale of the tensor or of rows as it broadcasts to the result."""
    if _is_number(x):
        return x
    x = _array(name, x)
    if x.ndim and (x.ndim == 1 or x.shape[-1] != 1):
        mode = "M" if name == "scale_a" else "N"
        raise ShapeError(
            f"{name} has shape {x.shape}; expected () for the tensor or ({mode}, 1) for rows: "
            "scales of blocks are those of cute_gemm.gemm, outside of jax.jit"
        )
    if x.dtype != jnp.float32:
        raise DTypeError(f"{name} has dtype {x.dtype}; expected float32: {name}.astype('float32')")
    return x.mT if name == "scale_b" and x.ndim else x


def _op(op: str, A: Any) -> str:
    """Return op in upper case, of the letters N, T and, of complex types, C."""
    letters = checked_op(op).replace("H", "C")
    return letters if jnp.issubdtype(A.dtype, jnp.complexfloating) else letters.replace("C", "T")


def _factor(alpha: Any, A: Any, out: str | None) -> Any:
    """Return alpha, a number that sums of A are multiplied by for a result of type ``out``."""
    if isinstance(alpha, jax.core.Tracer):
        raise ScalarError(
            "alpha is traced by JAX (jit, grad, vmap, ...); expected a number: multiply by an "
            "array with epilogue='scale', scale=alpha"
        )
    if isinstance(alpha, jax.Array):
        alpha = np.asarray(alpha)
    row = DTYPES.get(A.dtype.name)  # of another type the product is refused
    if row is None:
        return alpha
    sums = DTYPES[row.accumulator]
    kind = scalar_of(sums, DTYPES.get(out or "", sums)).name
    return scalar(alpha, "alpha", kind, None).value


def _is_number(x: Any) -> bool:
    return isinstance(x, numbers.Number) or (isinstance(x, np.ndarray) and not x.ndim)


def _called(
    call: ProductCall, function: EpilogueFunction | None, A: Any, B: Any, given: dict[str, Any]
) -> tuple[Any, ...]:
    """Compute all results of a call; its batch dimensions, and those of operands, broadcast."""
    check_batches("A", A, "B", B)
    arrays = {name: _array(name, x) for name, x in given.items() if not _is_number(x)}
    numbers_given = {name: x for name, x in given.items() if name not in arrays}
    batch = jnp.broadcast_shapes(A.shape[:-2], B.shape[:-2])
    for name, x in arrays.items():
        lead = zip(x.shape[:-2][::-1], batch[::-1], strict=False)
        if x.ndim > len(batch) + 2 or any(i not in (1, j) for i, j in lead):
            raise ShapeError(
                f"{name} has shape {x.shape}, and the result's batch dimensions are {batch}; "
                "expected a shape that broadcasts to the result"
            )
    if function is None:
        results(call, (shaped(A), shaped(B)))  # checks
        return (product(call, A, B),)
    values = sorted((name, float(np.asarray(x).item())) for name, x in numbers_given.items())
    call = replace(call, epilogue=function, operands=tuple(arrays), numbers=tuple(values))
    results(call, tuple(map(shaped, (A, B, *arrays.values()))))
    return fused(call, *varying(A, B, *arrays.values()))
