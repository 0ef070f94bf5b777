"""Gradients of weights that are added to the caller's tensor: Megatron's ``main_grad``.

The product of the gradient takes it as C with beta 1. This keeps the bits that half types lose when
gradients of many batches are added, and saves one write and one read of the gradient.
"""

from __future__ import annotations

from typing import Any

import torch

from cute_gemm.errors import ArrayError, DTypeError, OptionError, ShapeError, StrideError
from cute_gemm.torch.expressions import wide


def check_main_grad(name: str, main_grad: Any, w_name: str, w: Any) -> None:
    """Refuse a tensor, but not None, to which the gradient of a weight cannot be added."""
    if main_grad is None:
        return
    if not isinstance(main_grad, torch.Tensor):
        kind = type(main_grad).__name__
        raise ArrayError(f"{name} is of type {kind}; expected a torch.Tensor")
    if hasattr(w, "placements") or hasattr(main_grad, "placements"):
        raise ArrayError(
            f"{name} came with a DTensor; expected tensors of this process: leave {name} out"
        )
    if main_grad.shape != w.shape:
        raise ShapeError(
            f"{name} has shape {tuple(main_grad.shape)}; expected that of {w_name}, "
            f"{tuple(w.shape)}"
        )
    if main_grad.dtype not in (wide(w.dtype), w.dtype) or not w.dtype.is_floating_point:
        raise DTypeError(
            f"{name} has dtype {main_grad.dtype} and {w_name} is multiplied in {w.dtype}; expected "
            f"{wide(w.dtype)}"
        )
    if main_grad.device != w.device:
        raise ArrayError(
            f"{name} is on {main_grad.device} and {w_name} on {w.device}; expected one device"
        )
    if main_grad.requires_grad:
        raise ArrayError(f"{name} requires grad, and is written to: pass {name}.detach()")
    if 1 not in main_grad.stride()[-2:] and main_grad.numel():
        raise StrideError(
            f"{name} has strides {main_grad.stride()}; expected one of the last two to be 1: pass "
            "a contiguous tensor"
        )


def main_grad_of(weight: Any) -> Any:
    """Return the ``main_grad`` of a parameter; OptionError without one."""
    main_grad = getattr(weight, "main_grad", None)
    if main_grad is None:
        raise OptionError(
            "accumulate_main_grad=True came with a weight without main_grad; expected a float32 "
            "tensor of its shape: weight.main_grad = torch.zeros_like(weight, dtype=torch.float32)"
        )
    return main_grad


def added(w: Any, main_grad: Any, add: Any, *factors: Any) -> Any:
    """Add the gradient of w, a product of factors, to ``main_grad``; return the value of w.grad.

    It is None, except for a parameter with Megatron's attribute ``grad_added_to_main_grad``. Then
    the attribute becomes True and the value is an unused tensor, so that hooks of the parameter run
    in the same thread as other hooks.
    """
    if torch.is_grad_enabled():
        refuse_second_derivative()
    add(main_grad, *factors)
    if not hasattr(w, "grad_added_to_main_grad"):
        return None
    w.grad_added_to_main_grad = True
    zeros = getattr(w, "zero_out_wgrad", False)
    return torch.zeros_like(w) if zeros else torch.empty_like(w)


def refuse_second_derivative(*_: Any) -> None:
    """Refuse to differentiate a gradient that is added in place."""
    raise ArrayError(
        "a gradient that is added to main_grad has no gradient: leave main_grad out to "
        "differentiate it"
    )


def refuse_batch(*main_grads: Any) -> None:
    """Refuse to add a gradient for each entry of a batch of ``torch.func.vmap``."""
    if any(x is not None for x in main_grads):
        raise ArrayError("main_grad came within torch.func.vmap: leave it out")
