"""Kept launches of products.

A call on tensors with the layout of a previous call, which passed all checks, only allocates the
result and launches the kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch

from cute_gemm.api import recent_call
from cute_gemm.plan import reused
from cute_gemm.problem.scalars import ONE, ZERO

#: Addresses of new tensors are multiples of this many bytes.
_ALIGNMENT = 256


class _Launch(NamedTuple):
    """A launch on the addresses of A, B, C, other operands and a second result, and a stream.

    ``stream`` returns PyTorch's current stream. ``shape`` and ``dtype`` are those of the results.
    ``order``: indices of the other operands among the tensors after A and B.
    """

    bound: Callable[..., None]
    stream: Callable[[], int]
    shape: torch.Size
    dtype: torch.dtype
    two_results: bool
    order: tuple[int, ...]


def _run(launch: _Launch, a: torch.Tensor, at: list[int], *_: Any) -> Any:
    """Compute on tensors at these addresses, A among them; return one or two results."""
    bound, stream, shape, dtype, two_results, order = launch
    y = a.new_empty(shape, dtype=dtype)
    if not two_results:
        bound((at[0], at[1], y.data_ptr(), *[at[place] for place in order]), stream())
        return y
    z = torch.empty_like(y)
    others = [at[place] for place in order]
    bound((at[0], at[1], y.data_ptr(), *others, z.data_ptr()), stream())
    return y, z


def find(what: tuple[Any, ...], *tensors: Any) -> Callable[..., Any] | None:
    """Return a function that computes a product of tensors, or None, by a kept launch, or None.

    ``what``: everything that the product depends on besides the tensors, of which A and B are the
    first. The returned function ignores its arguments.
    """
    try:
        launch = reused.torch_launches.get(_key(what, tensors))
        if launch is None:
            return None
        at = []
        for x in tensors:
            if x is not None:
                address = x.data_ptr()
                if not address or address % _ALIGNMENT or x.is_neg():
                    return None
                at.append(address)
    except RuntimeError:  # a tensor without strides or memory
        return None
    return partial(_run, launch, tensors[0], at)


def kept(what: tuple[Any, ...], *tensors: Any, compute: Callable[[list[Any]], Any]) -> Any:
    """Return a product of tensors, or None: by the kept launch, or by ``compute``.

    ``what``: as for `find`. ``compute`` gets a list to which it appends a call of `gemm`: the
    argument of `recent_call`, and the result. It returns one or two tensors.
    """
    if not _on_gpu(tensors[0]) or tensors[0].dtype.is_complex:
        return compute([])
    launch = find(what, *tensors)
    if launch is not None:
        return launch()
    calls: list[Any] = []
    results = compute(calls)
    if len(calls) == 1:
        _keep(_key(what, tensors), calls[0], tensors, results)
    return results


def _on_gpu(x: Any) -> bool:
    return bool(x.is_cuda)


def _key(what: tuple[Any, ...], tensors: tuple[Any, ...]) -> tuple[Any, ...]:
    key: list[Any] = [what]
    for x in tensors:
        if x is None:
            key.append(None)
        else:
            key += x.shape, x.stride(), x.dtype, x.get_device()
    return tuple(key)


def _keep(key: Any, call: tuple[Any, ...], tensors: tuple[Any, ...], results: Any) -> None:
    """Keep the launch of a call of `gemm` if new tensors can lie in the same way.

    ``results``: views of the results of the call.
    """
    words, A, B, keywords, product = call
    given = [x for x in tensors if x is not None]
    others = [x for x in keywords.values() if isinstance(x, torch.Tensor)]
    addresses, of_call = ([x.data_ptr() for x in some] for some in (given, (A, B, *others)))
    if any(x % _ALIGNMENT for x in addresses) or any(x.is_neg() for x in given):
        return
    if addresses[:2] != of_call[:2] or sorted(addresses) != sorted(of_call):
        return
    if len(set(addresses)) < len(addresses):  # one tensor for two, unlike later calls
        return
    new, made = (x if isinstance(x, tuple) else (x,) for x in (results, product))
    if [x.data_ptr() for x in new] != [x.data_ptr() for x in made] or len(new) > 2:
        return
    if any(not x.numel() or not x.is_contiguous() for x in new):
        return
    recent = recent_call(words, A, B, keywords)
    if recent is None or len(new) != 1 + len(recent.executable.results):
        return
    if recent.executable.is_replaced is not None:  # after another kernel is built
        return
    bound = recent.executable.launch(ONE, ZERO, recent.numbers)
    # Operands of the call, in order, among the tensors.
    order = tuple(addresses.index(of_call[2 + place]) for place in recent.order)
    reused.torch_launches[key] = _Launch(
        bound, recent.stream, new[0].shape, new[0].dtype, len(new) == 2, order
    )
