"""Definitions of the operators of ``torch.ops.cute_gemm``, at PyTorch's dispatcher.

``torch.library.custom_op`` has no forward-mode derivatives, which are silently zero then, and no
derivatives within ``torch.func``. Here a dispatch key records its node for one level of transforms
and leaves the rest to the keys below, as PyTorch's C++ operators do.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch._functorch.autograd_function import enable_single_level_autograd_function
from torch.autograd import forward_ad
from torch.utils.flop_counter import register_flop_formula

from cute_gemm.arrays.torch import observes
from cute_gemm.torch.running import PLAIN, eager

_library = torch.library.Library("cute_gemm", "FRAGMENT")


def knows_dtensor() -> bool:
    """Register sharding rules once DTensor is imported, which takes half a second."""
    if "torch.distributed.tensor" in sys.modules:
        from cute_gemm.torch import sharding  # noqa: F401
    return True


knows_dtensor._dynamo_marked_constant = True  # type: ignore[attr-defined]  # as in `arrays.torch`


class Operator:
    """An operator of ``torch.ops.cute_gemm``, as functions of this package call it.

    If only autograd needs to see a call, it bypasses PyTorch's dispatcher, which takes 12 us, and
    as long again for a node of autograd.
    """

    def __init__(self, overload: Any, kernel: Callable[..., Any]) -> None:
        self.overload, self.kernel = overload, kernel
        self.name, self.arguments = overload._opname, overload._schema.arguments
        self._node: Any = None
        self._defaults = tuple(argument.default_value for argument in self.arguments)

    def __call__(self, *given: Any) -> Any:
        """Compute by the operator, or directly."""
        tensors = [x for x in given if isinstance(x, torch.Tensor)]
        # In backward, tensors of a batch of gradients have no memory.
        if not (eager() and all(type(x) in PLAIN and torch._C._has_storage(x) for x in tensors)):
            knows_dtensor()
            return self.overload(*given)
        if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
            return self.record(self.kernel, *given)
        return self.kernel(*given)

    def record(self, compute: Callable[..., Any], *given: Any) -> Any:
        """Compute by a function of the arguments, and record a node of autograd."""
        if self._node is None:
            return self.overload(*given)
        return self._node(compute, *self.whole(given))

    def whole(self, given: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arguments with defaults for the missing ones."""
        return *given, *self._defaults[len(given) :]


def define(
    schema: str, kernel: Callable[..., Any], shape: Callable[..., Any], conjugates: bool = False
) -> Operator:
    """Define an operator and return it.

    Parameters
    ----------
    schema
        ``name(arguments) -> results``.
    kernel
        The function that computes it, on the CPU and on GPUs.
    shape
        The same for fake tensors, which have only shapes, strides and types.
    conjugates
        Whether the kernel reads lazily conjugated tensors.
    """
    name = schema.partition("(")[0]
    _library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    _library.impl(name, torch._disable_dynamo(kernel), "CompositeExplicitAutograd")

    def without_data(first: Any, *given: Any) -> Any:
        # Tensors of the meta device get the checks of a call too.
        function = shape if observes(first) else kernel
        return function(first, *given)

    torch.library.register_fake(f"cute_gemm::{name}", without_data, lib=_library)
    if conjugates:
        _library.impl(name, torch.library.fallthrough_kernel, "Conjugate")
    return Operator(getattr(torch.ops.cute_gemm, name).default, kernel)


def differentiable(
    op: Operator,
    save: Callable[..., None],
    backward: Callable[..., Any],
    tangent: Callable[..., Any],
) -> None:
    """Register the derivatives of an operator.

    Parameters
    ----------
    op
        The operator. It takes at most one list of tensors, its last argument, which has no
        derivative.
    save
        Called with a context, the arguments and the results; keeps what the other functions read.
    backward
        Called with the context and the gradients of the results, at least one not None; returns
        the gradients of the arguments.
    tangent
        Called with the context and the tangents of the arguments, at least one not None; returns
        the tangents of the results.
    """
    arguments = op.arguments
    has_list = str(arguments[-1].type) == "List[Tensor]"

    class Node(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, keys: Any, *flat: Any) -> Any:
            given = _nested(flat, len(arguments)) if has_list else flat
            if callable(keys):  # the function that computes, without a transform
                results = keys(*given)
                save(ctx, given, results)
            else:
                with _recording():
                    results = _below(op, keys, given)
                    save(ctx, given, results)
                    ctx.save_for_forward(*map(_primal, ctx.to_save))
            ctx.set_materialize_grads(False)
            ctx.extent = len(flat)
            return results

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            of_arguments: tuple[Any, ...] = ()
            if any(each is not None for each in gradients):
                ctx.needs = ctx.needs_input_grad[1:]
                of_arguments = backward(ctx, *gradients)
            return None, *of_arguments, *(None,) * (ctx.extent - len(of_arguments))

        @staticmethod
        def jvp(ctx: Any, _: Any, *tangents: Any) -> Any:
            with _recording():
                return tangent(ctx, *tangents)

    Node.__name__ = f"{op.name}_of_cute_gemm"
    # `torch.autograd.Function.apply` would enter the transforms of torch.func again.
    record = super(torch.autograd.Function, Node).apply

    if not has_list:
        op._node = record

    def kernel(keys: Any, *given: Any) -> Any:
        given = op.whole(given)
        if not _is_recorded(given):
            return _below(op, keys, given)
        flat = (*given[:-1], *given[-1]) if has_list else given
        if not torch._C._are_functorch_transforms_active():
            return record(keys, *flat)
        with enable_single_level_autograd_function():
            return record(keys, *flat)

    _library.impl(op.name, torch._disable_dynamo(kernel), "Autograd", with_keyset=True)


def _nested(flat: tuple[Any, ...], count: int) -> tuple[Any, ...]:
    return *flat[: count - 1], list(flat[count - 1 :])


def _is_recorded(given: tuple[Any, ...]) -> bool:
    """Return whether a call needs a derivative in either mode."""
    if torch.is_grad_enabled() and torch._C._any_requires_grad(*given):
        return True
    if torch._C._are_functorch_transforms_active():
        return True
    # A compiled graph enters the level of dual numbers without `forward_ad`, which misses it.
    looked_at = forward_ad._current_level >= 0 or torch._C._len_torch_dispatch_stack() > 0
    flat = (*given, *given[-1]) if isinstance(given[-1], list) else given
    return any(
        isinstance(x, torch.Tensor) and (looked_at or not observes(x)) and _tangent(x) is not None
        for x in flat
    )


def _tangent(x: Any) -> Any:
    """Return the forward-mode tangent, or None, without a tracer seeing it.

    The graph would have an ``alias``, which inductor refuses next to an operator that writes.
    """
    with torch._C._DisableTorchDispatch():
        return torch._unpack_dual(x, level=0)[1]


def _recording() -> Any:
    """Return a context that records derivatives for the levels of transforms below.

    PyTorch stops recording for all of them when it calls a node of one level.
    """
    stack = ExitStack()
    if torch._C._are_functorch_transforms_active():
        stack.enter_context(torch.enable_grad())
        stack.enter_context(forward_ad._set_fwd_grad_enabled(True))
    return stack


def _primal(x: Any) -> Any:
    """Return a tensor without its tangent of this level."""
    if x is None or not torch._C._are_functorch_transforms_active():
        return x
    return torch._unpack_dual(x, level=0)[0]


def _below(op: Operator, keys: Any, given: tuple[Any, ...]) -> Any:
    """Call an operator below the key that records gradients."""
    with torch._C._AutoDispatchBelowAutograd():
        return op.overload.redispatch(keys & torch._C._after_autograd_keyset, *given)


def differentiated_as(
    op: Operator, function: Callable[..., Any], written: int | None = None
) -> None:
    """Differentiate an operator as a function of other operators.

    ``written``: the index of the argument to which the operator writes.
    """

    def kernel(keys: Any, *given: Any) -> Any:
        if _is_recorded(given):
            return function(*given)
        results = _below(op, keys, given)
        if written is not None:
            torch.autograd.graph.increment_version(given[written])
        return results

    _library.impl(op.name, torch._disable_dynamo(kernel), "Autograd", with_keyset=True)


def batched(op: Operator, rule: Callable[..., Any] | None = None) -> None:
    """Register the computation of an operator on a batch, within ``torch.func.vmap``.

    Parameters
    ----------
    op
        The operator.
    rule
        Called with flags that say which arguments have a batch, and the arguments with the batch
        first. Returns the results with the batch first, or None if it does not apply; the entries
        are then computed one after the other.
    """

    def vmap(info: Any, dims: Any, *given: Any) -> Any:
        given = op.whole(given)
        dims = *dims, *(None,) * (len(given) - len(dims))
        front = tuple(_in_front(x, dim) for x, dim in zip(given, dims, strict=True))
        own = tuple(_has_batch(dim) for dim in dims)
        results = None if rule is None else rule(own, *front)
        if results is None:
            each = [
                op.overload(*(_entry(x, dim, place) for x, dim in zip(front, dims, strict=True)))
                for place in range(info.batch_size)
            ]
            several = isinstance(each[0], tuple)
            results = (
                tuple(map(torch.stack, zip(*each, strict=True))) if several else torch.stack(each)
            )
        return results, (0,) * len(results) if isinstance(results, tuple) else 0

    torch.library.register_vmap(f"cute_gemm::{op.name}", vmap, lib=_library)


def _has_batch(dim: Any) -> bool:
    return any(map(_has_batch, dim)) if isinstance(dim, list) else dim is not None


def _in_front(x: Any, dim: Any) -> Any:
    """Return a tensor, or the tensors of a list, with the batch dimension first.

    Matrices then have a unit stride if those of the batch have one.
    """
    if isinstance(x, list):
        return [_in_front(each, of_it) for each, of_it in zip(x, dim, strict=True)]
    return x if dim is None else x.movedim(dim, 0).contiguous() if dim else x


def _entry(x: Any, dim: Any, place: int) -> Any:
    """Return an argument's value for one entry of the batch."""
    if isinstance(x, list):
        return [_entry(each, of_it, place) for each, of_it in zip(x, dim, strict=True)]
    return x if dim is None else x[place]


def counted(op: Operator, flops: Callable[..., int]) -> None:
    """Register the floating-point operations of an operator: a function of shapes."""
    packet = getattr(torch.ops.cute_gemm, op.name)
    register_flop_formula(packet)(lambda *given, out_shape=None, **_: flops(*given))
