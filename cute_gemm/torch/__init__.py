"""Products for PyTorch: `matmul`, `linear`, `Linear`, `mlp` and `grouped_mm`, with gradients.

They call `cute_gemm.gemm`. Each is one operator for ``torch.compile``, ``torch.export``, autocast,
activation checkpointing, CUDA graphs and DTensor.
"""

from __future__ import annotations

from typing import Any, overload

import torch

from cute_gemm.api import gemm
from cute_gemm.arrays.torch import differentiates, refuse_layout, wants_gradient
from cute_gemm.errors import ArrayError, DTypeError, OptionError, ShapeError
from cute_gemm.problem.epilogue.fuse import EpilogueFunction, check_names
from cute_gemm.problem.layers import (
    biases,
    check_dtype,
    check_layer,
    check_product,
    check_real,
    forward,
    is_elementwise,
    keeps_argument,
    pairs_of,
    text_of,
)
from cute_gemm.problem.parts.groups import UNCHECKED, check_words
from cute_gemm.torch import (
    grouped,
    operators,  # noqa: F401  # programs of torch.export name them
    products,
)
from cute_gemm.torch.expressions import activated
from cute_gemm.torch.launches import find
from cute_gemm.torch.main_grad import check_main_grad, main_grad_of
from cute_gemm.torch.running import eager, layer_of, product_of, readable, recorded, rows_of

__all__ = ["Linear", "grouped_mm", "linear", "matmul", "mlp"]

_FLOAT8 = torch.float8_e4m3fn, torch.float8_e5m2
#: How a tensor is converted to another type.
_CONVERT = "{name}.to({dtype})"
#: An activation of layers: its name, or a function of the product.
Activation = str | EpilogueFunction | None


def matmul(
    a: torch.Tensor, b: torch.Tensor, *, out_dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Compute ``a @ b``, as `torch.matmul` does of two dimensions or more.

    Transposed, expanded and lazily conjugated views are read in place. Matrices without a stride
    of 1 are copied. A matrix that is broadcast over a batch is read once.

    Parameters
    ----------
    a, b
        (..., M, K) and (..., K, N), whose batch dimensions broadcast. float16, bfloat16, float32,
        float64, complex64, complex128, or int8, which has no gradient. Under autocast, float16,
        bfloat16 and float32 are converted to its type.
    out_dtype
        Type of the result: that of a and b or, for half types, float32; int32 for int8. The
        gradient of a float32 result of half types is converted to their type first.

    Returns
    -------
    torch.Tensor
        (..., M, N), row-major. Gradients have the layouts of a and b, and can be differentiated
        again. Gradients of half types are summed over a batch in float32.

    Raises
    ------
    ShapeError
        For a tensor of less than two dimensions, and for shapes that do not fit each other.
    DTypeError
        For types that differ from each other or are not supported.

    Examples
    --------
    >>> import torch
    >>> a = torch.arange(6.0).reshape(2, 3).requires_grad_()
    >>> c = matmul(a, torch.ones(4, 3).T)
    >>> c[:, 0]
    tensor([ 3., 12.], grad_fn=<SelectBackward0>)
    >>> c.sum().backward()
    >>> a.grad
    tensor([[4., 4., 4.],
            [4., 4., 4.]])
    """
    if eager(a, b) and not recorded(a, b) and not torch.is_autocast_enabled("cuda"):
        launch = find(product_of(out_dtype, None), a, b)
        if launch is not None:
            return launch()
    _check_tensors(a=a, b=b)
    a, b = _autocast(a, b)
    check_product(a, b, _CONVERT)
    return products.matmul(a, b, out_dtype)


@overload
def linear(
    x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None = None, activation: str | None = None,
    *, batch_invariant: bool = False, unfused_bits: bool = False,
    main_grad: torch.Tensor | None = None,
) -> torch.Tensor: ...  # fmt: skip


@overload
def linear(
    x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None, activation: EpilogueFunction,
    *, batch_invariant: bool = False, unfused_bits: bool = False,
    main_grad: torch.Tensor | None = None, **operands: Any,
) -> torch.Tensor: ...  # fmt: skip


@overload
def linear(
    x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None = None, *,
    activation: EpilogueFunction, batch_invariant: bool = False, unfused_bits: bool = False,
    main_grad: torch.Tensor | None = None, **operands: Any,
) -> torch.Tensor: ...  # fmt: skip


def linear(
    x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None = None, activation: Activation = None,
    *, batch_invariant: bool = False, unfused_bits: bool = False,
    main_grad: torch.Tensor | None = None, **operands: Any,
) -> torch.Tensor:  # fmt: skip
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
        A name that ``epilogue=`` of `cute_gemm.gemm` takes (``"relu"``, ``"gelu"``, ...), a
        function of ``x @ w.T + b`` that `cute_gemm.epilogue` traced, or None. It needs real
        floating-point types. ``"swiglu"`` and ``"geglu"`` take columns 2 j and 2 j + 1, the gate
        and up.
    batch_invariant
        On a GPU, a row of the result has the same bits whatever the other rows of x are, and
        however many; see ``plan.order_of_summation``.
    unfused_bits
        On a GPU the result has the bits of PyTorch's activation of ``linear(x, w, b)``: sums are
        added in its order, and values are rounded where that program stores them. If activation
        is a function, only its argument is rounded; use `cute_gemm.round_to` in the function.
    main_grad
        A tensor (N, K). The product that computes the gradient of w adds it to this tensor, and
        ``w.grad`` stays None. Its type is float32, or float64 if w is float64.
    **operands
        The operands of a function, by name: numbers, or tensors that broadcast to the result.

    Returns
    -------
    torch.Tensor
        (..., N), row-major; (..., N / 2) for an activation that takes two columns. If a gradient
        is recorded, relu, sigmoid and tanh save their result, and other activations save
        ``x @ w.T + b``. PyTorch then computes functions, and activations of two columns, after
        the product.

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
    >>> import torch
    >>> x, w = torch.arange(6.0).reshape(2, 3), torch.ones(4, 3)
    >>> linear(x, w, -4 * torch.arange(4.0), activation="relu")
    tensor([[ 3.,  0.,  0.,  0.],
            [12.,  8.,  4.,  0.]])
    """
    name = text_of(activation)
    unfused_bits = unfused_bits and bool(name)
    plain = not operands and is_elementwise(name)
    if plain and eager(x, w, b) and not torch.is_autocast_enabled("cuda"):
        # What lies as tensors of a call before passes the checks as they did.
        wanted = recorded(x, w, b)
        with_argument = wanted and keeps_argument(name)
        launch = find(layer_of(name, batch_invariant, with_argument, unfused_bits), x, w, b)
        if launch is not None:
            if not wanted:
                return launch()
            check_main_grad("main_grad", main_grad, "w", w)
            given = x, w, b, name, batch_invariant, unfused_bits, main_grad
            if with_argument:
                return products.linear_with_preactivation.record(launch, *given)[0]
            return products.linear.record(launch, *given)
    _check_tensors(x=x, w=w, **({} if b is None else {"b": b}))
    x, w, b = _autocast(x, w, b)
    check_layer(x, w, b, _CONVERT)
    further = () if main_grad is None else (main_grad,)
    check_main_grad("main_grad", main_grad, "w", w)
    if x.dim() == 1:
        words: Any = {"batch_invariant": batch_invariant, "unfused_bits": unfused_bits}
        return linear(x[None], w, b, activation, main_grad=main_grad, **words, **operands)[0]
    check_real(activation, x, x.is_floating_point())
    if not x.is_floating_point():
        y = products.matmul(x, w.mT)
        return y if b is None else y + b
    if _splits_k(x, w):
        y = products.matmul(x, w.mT)
        y = y if b is None else y + b
        from cute_gemm.torch.sharding import summed

        return y if activation is None else activated(activation, summed(y), operands)
    if not plain:
        return _composed(x, w, b, activation, batch_invariant, unfused_bits, main_grad, operands)
    if keeps_argument(name) and wants_gradient(x, w, b):
        given = x, w, b, name, batch_invariant, unfused_bits, *further
        return products.linear_with_preactivation(*given)[0]
    return products.linear(x, w, b, name, batch_invariant, unfused_bits, *further)


def _composed(
    x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None, activation: Activation,
    batch_invariant: bool, unfused_bits: bool, main_grad: torch.Tensor | None,
    operands: dict[str, Any],
) -> Any:  # fmt: skip
    """Return a layer whose activation takes two columns, or is a function, maybe with operands.

    PyTorch computes the activation after the product if it is differentiated, and for DTensors.
    """
    if isinstance(activation, EpilogueFunction):
        check_names(activation, operands)
        if b is not None and "bias" in operands:
            raise OptionError(
                f"activation={activation.name!r} has an operand called bias, and b is given: call "
                "it otherwise, or pass b=None"
            )
    elif operands:
        raise OptionError(
            f"linear() has no argument {min(operands)!r}, and activation={activation!r} no "
            "operand: leave it out, or name it in a function that cute_gemm.epilogue traces"
        )
    tensors = [t for t in (x, w, b, *operands.values()) if isinstance(t, torch.Tensor)]
    if differentiates(*tensors) or any(hasattr(t, "placements") for t in tensors):
        z = linear(x, w, b, batch_invariant=batch_invariant, main_grad=main_grad)
        return activated(activation, z, operands)
    name = text_of(activation)
    if not operands:
        return products.linear(x, w, b, name, batch_invariant, unfused_bits)
    if unfused_bits:
        raise OptionError(
            "unfused_bits=True came with operands of the activation; expected one without: compute "
            "with them on the result"
        )
    lead = x.shape[:-1]
    given = {
        key: t.expand(*lead, t.shape[-1]).reshape(-1, t.shape[-1])
        if isinstance(t, torch.Tensor) and t.dim() > 2
        else t
        for key, t in operands.items()
    }
    if batch_invariant:
        given["batch_invariant"] = True
    given |= biases(_pairs(name), b)
    function = _forward(name, b is not None)
    y = gemm("NT", readable(rows_of(x)), readable(w), order="C", epilogue=function, **given)
    return y.view(*lead, y.shape[-1])


def _forward(name: str, has_bias: bool) -> EpilogueFunction:
    return forward(name, has_bias, False)


def _pairs(name: str) -> str:
    return pairs_of(name)


_forward._dynamo_marked_constant = True  # type: ignore[attr-defined]  # as in `arrays.torch`
_pairs._dynamo_marked_constant = True  # type: ignore[attr-defined]


def mlp(
    x: torch.Tensor, w1: torch.Tensor, b1: torch.Tensor | None, w2: torch.Tensor,
    b2: torch.Tensor | None, activation: Activation, *, unfused_bits: bool = False,
    main_grad1: torch.Tensor | None = None, main_grad2: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """Compute ``linear(linear(x, w1, b1, activation), w2, b2)``.

    The result is that of two calls of `linear`. In the backward pass, the derivative of the
    activation is fused into the product with w2.

    Parameters
    ----------
    x
        (..., K).
    w1, b1
        (H, K), and (H,) or None.
    w2, b2
        (N, H), and (N,) or None; (N, H / 2) for an activation that takes two columns.
    activation, unfused_bits
        As for `linear`.
    main_grad1, main_grad2
        As ``main_grad`` of `linear`, for w1 and for w2.

    Returns
    -------
    torch.Tensor
        (..., N), row-major.

    Raises
    ------
    GemmError
        A subclass for each cause, as for `linear`.

    Examples
    --------
    >>> import torch
    >>> x, w1, w2 = torch.ones(2, 3), torch.ones(4, 3), torch.ones(1, 4)
    >>> mlp(x, w1, None, w2, None, "relu")
    tensor([[12.],
            [12.]])
    """
    tensors = {"x": x, "w1": w1, "b1": b1, "w2": w2, "b2": b2}
    given = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    _check_tensors(**given)
    name = text_of(activation)
    if (
        not (name and is_elementwise(name))
        or x.dim() < 2
        or any(hasattr(tensor, "placements") for tensor in given.values())
        or not wants_gradient(*given.values())
    ):
        h = linear(x, w1, b1, activation, unfused_bits=unfused_bits, main_grad=main_grad1)
        return linear(h, w2, b2, main_grad=main_grad2)
    x, w1, b1, w2, b2 = _autocast(x, w1, b1, w2, b2)
    check_layer(x, w1, b1, _CONVERT, ("x", "w1", "b1"))
    check_layer(w1.T, w2, b2, _CONVERT, ("w1.T", "w2", "b2"))
    check_main_grad("main_grad1", main_grad1, "w1", w1)
    check_main_grad("main_grad2", main_grad2, "w2", w2)
    main_grads = () if main_grad1 is main_grad2 is None else (main_grad1, main_grad2)
    return products.mlp(x, w1, b1, w2, b2, name, unfused_bits, *main_grads)[0]


def grouped_mm(
    x: torch.Tensor, w: torch.Tensor, offs: torch.Tensor, bias: torch.Tensor | None = None, *,
    scale_a: torch.Tensor | None = None, scale_b: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None, fast_accum: bool = False, tail: str = "unwritten",
    check: str = "none", main_grad: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """Compute ``x @ w`` of groups whose ends are on the device, as ``torch._grouped_mm`` does.

    Pointers, strides and sizes of groups need not be aligned. Nothing is padded.

    Parameters
    ----------
    x, w
        (M, K) and (G, K, N): groups are rows of x, each with a matrix of w. (G, M, K) and (K, N):
        groups are columns of w. (M, K) and (K, N): groups are columns of x and rows of w. Types
        are those of `matmul`.
    offs
        int32 (G,), on the device of x: the end of each group. The first group begins at 0.
    bias
        (N,), or (G, N), a row for each group, in the type of the result. Only if x is (M, K) and w
        is (G, K, N).
    scale_a, scale_b
        Factors of x and of w in float32, as for `cute_gemm.grouped_gemm`: for example (M,) for
        x's rows and (G, N) for w's columns. A call with them has no gradient.
    out_dtype, fast_accum
        As for `cute_gemm.gemm`; 8-bit floats give bfloat16 by default.
    tail
        What the result and the gradients hold in rows or columns after ``offs[-1]``. With
        ``"zero"`` the same launch stores zeros. With ``"unwritten"`` they are uninitialized, as
        with ``torch._grouped_mm``, and may hold NaN.
    check
        As for `cute_gemm.grouped_gemm`. Gradients are not checked.
    main_grad
        A tensor with the shape of w, to which the gradient of w is added, as for `linear`. For
        ``w.mT`` pass ``main_grad.mT``. Rows or columns of no group do not change.

    Returns
    -------
    torch.Tensor
        (M, N), or (G, M, N) if the groups lie along K; row-major. Gradients are grouped products,
        and can be differentiated again.

    Raises
    ------
    ShapeError
        For shapes that do not fit each other.
    DTypeError
        For types that differ from each other or are not supported, and if offs is not int32.
    OptionError
        If ``tail`` or ``check`` is not known.

    Examples
    --------
    >>> import torch
    >>> x, w = torch.ones(5, 3), torch.ones(2, 3, 4) * torch.tensor([1.0, 10.0])[:, None, None]
    >>> grouped_mm(x, w, torch.tensor([2, 5], dtype=torch.int32))[:, 0]
    tensor([ 3.,  3., 30., 30., 30.])
    """
    others = {"bias": bias, "scale_a": scale_a, "scale_b": scale_b}
    given_others = {name: other for name, other in others.items() if other is not None}
    _check_tensors(x=x, w=w, offs=offs, **given_others)
    x, w, bias = _autocast(x, w, bias)
    dimensions = x.dim(), w.dim()
    if dimensions not in ((2, 3), (3, 2), (2, 2)) or x.shape[-1] != w.shape[-2]:
        raise ShapeError(
            f"x has shape {tuple(x.shape)} and w {tuple(w.shape)}; expected (M, K) and (G, K, N), "
            "(G, M, K) and (K, N), or (M, K) and (K, N), with one K"
        )
    groups = {(2, 3): w.shape[0], (3, 2): x.shape[0]}.get(dimensions, offs.shape[:1].numel())
    if offs.dim() != 1 or offs.shape[0] != groups:
        raise ShapeError(
            f"offs has shape {tuple(offs.shape)}; expected ({groups},): the end of each group"
        )
    if offs.dtype != torch.int32:
        raise DTypeError(f"offs has dtype {offs.dtype}; expected torch.int32: pass offs.int()")
    eight_bits = x.dtype in _FLOAT8 and w.dtype in _FLOAT8
    if not eight_bits:
        check_dtype("w", w, "x", x, _CONVERT)
    if bias is not None:
        n = w.shape[-1]
        if dimensions != (2, 3) or tuple(bias.shape) not in ((n,), (groups, n)):
            raise ShapeError(
                f"bias has shape {tuple(bias.shape)} and x {tuple(x.shape)}, w {tuple(w.shape)}; "
                "expected (N,) or (G, N), with x (M, K) and w (G, K, N)"
            )
        if not eight_bits:
            check_dtype("bias", bias, "x", x, _CONVERT)
    check_words(tail, check)
    check_main_grad("main_grad", main_grad, "w", w)
    further = () if main_grad is None and check == UNCHECKED else (main_grad, check)
    return grouped.grouped_mm(
        x, w, offs, bias, scale_a, scale_b, out_dtype, fast_accum, tail, *further
    )


class Linear(torch.nn.Linear):
    """A linear layer with an activation, as `torch.nn.Linear`: ``act(x @ weight.T + bias)``.

    It has the parameters and the initial values of `torch.nn.Linear`, so that state dicts of
    either load into the other, and ``parallelize_module`` takes it as ``ColwiseParallel`` and
    ``RowwiseParallel``.

    Parameters
    ----------
    in_features, out_features
        K and N. The input is (..., K). The result is (..., N), or (..., N / 2) for an activation
        that takes two columns.
    bias
        Whether there is a bias (N,).
    activation, batch_invariant, unfused_bits
        As for `linear`.
    device, dtype
        The device and the type of the parameters.
    accumulate_main_grad
        The gradient of the weight is added to ``weight.main_grad``, a float32 tensor of its shape,
        and ``weight.grad`` stays None, as with Megatron's ``gradient_accumulation_fusion``. If
        the weight has the attribute ``grad_added_to_main_grad``, it becomes True, and
        ``weight.grad`` is a tensor of any values, or zeros with ``zero_out_wgrad``.

    Raises
    ------
    OptionError
        If the activation is not known, or, in a call, if the weight has no ``main_grad``.

    Examples
    --------
    >>> import torch
    >>> layer = Linear(3, 4, activation="gelu")
    >>> layer
    Linear(in_features=3, out_features=4, bias=True, activation='gelu')
    >>> layer(torch.ones(2, 5, 3)).shape
    torch.Size([2, 5, 4])
    """

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True,
        activation: Activation = None, device: Any = None, dtype: Any = None, *,
        batch_invariant: bool = False, unfused_bits: bool = False,
        accumulate_main_grad: bool = False,
    ) -> None:  # fmt: skip
        text_of(activation)  # checks
        super().__init__(in_features, out_features, bias, device, dtype)
        self.activation, self.batch_invariant = activation, batch_invariant
        self.unfused_bits, self.accumulate_main_grad = unfused_bits, accumulate_main_grad

    def forward(self, input: torch.Tensor, **operands: Any) -> Any:
        """Return the layer's result for an input (..., K) and operands of its activation."""
        weight = self.weight
        wanted = self.accumulate_main_grad and torch.is_grad_enabled() and weight.requires_grad
        return linear(
            input, weight, self.bias, self.activation, batch_invariant=self.batch_invariant,
            unfused_bits=self.unfused_bits, main_grad=main_grad_of(weight) if wanted else None,
            **operands,
        )  # fmt: skip

    def extra_repr(self) -> str:
        """Return the arguments, as in `torch.nn.Linear`."""
        activation = getattr(self.activation, "name", self.activation)
        return (
            super().extra_repr()
            + f", activation={activation!r}" * bool(activation)
            + ", unfused_bits=True" * self.unfused_bits
            + ", accumulate_main_grad=True" * self.accumulate_main_grad
        )


def _check_tensors(**tensors: Any) -> None:
    for name, x in tensors.items():
        if not isinstance(x, torch.Tensor):
            raise ArrayError(f"{name} is of type {type(x).__name__}; expected a torch.Tensor")
        if x.layout is not torch.strided or x.is_nested:
            refuse_layout(x, name)


def _autocast(*tensors: Any) -> list[Any]:
    """Return tensors in the type of autocast, if it is enabled; float64 stays, as in PyTorch."""
    device = tensors[0].device.type
    if device == "meta" or not torch.is_autocast_enabled(device):
        return list(tensors)
    to = torch.get_autocast_dtype(device)
    half_or_single = (torch.float16, torch.bfloat16, torch.float32)
    return [x.to(to) if x is not None and x.dtype in half_or_single else x for x in tensors]


def _splits_k(x: Any, w: Any) -> bool:
    """Return whether x or w is a DTensor whose K is sharded, or that holds partial sums.

    The bias and the activation may then be applied only after the sum over processes.
    """
    return any(
        placement.is_shard(tensor.dim() - 1) or placement.is_partial()
        for tensor in (x, w)
        for placement in getattr(tensor, "placements", ())
    )
