"""Launches of products that are kept.

On tensors that lie as those of a call before, which passed every check, a call takes memory for the
result and starts the kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch

from cute_gemm._kept import Kept
from cute_gemm.api import recent_call
from cute_gemm.problem.scalars import ONE, ZERO

#: What addresses are multiples of, as those of new tensors are.
_ALIGNMENT = 256


class _Launch(NamedTuple):
    """A launch on the addresses of A, B, C, a bias and a second result, and a stream.

    ``stream`` returns PyTorch's current one; ``shape`` and ``dtype`` are those of the results.
    """

    bound: Callable[..., None]
    stream: Callable[[], int]
    shape: torch.Size
    dtype: torch.dtype
    two_results: bool


def _run(launch: _Launch, a: torch.Tensor, at: tuple[int, ...], *_: Any) -> Any:
    """Compute on tensors at these addresses, of which A is one; return the result, or both."""
    bound, stream, shape, dtype, two_results = launch
    y = a.new_empty(shape, dtype=dtype)
    if not two_results:
        bound((*at[:2], y.data_ptr(), *at[2:]), stream())
        return y
    z = torch.empty_like(y)
    bound((*at[:2], y.data_ptr(), *at[2:], z.data_ptr()), stream())
    return y, z


#: By what is computed, and how the tensors lie.
_launches: Kept[Any, _Launch] = Kept(1 << 14, "torch_launches")


def find(what: tuple[Any, ...], a: Any, b: Any, bias: Any = None) -> Callable[..., Any] | None:
    """Return what computes a product of these tensors by a kept launch, or None.

    ``what``: all that the product depends on beside the tensors. What is returned ignores its
    arguments.
    """
    try:
        key = _key(what, a, b, bias)
        launch = _launches.get(key)
        if launch is None or a.is_neg() or b.is_neg():
            return None
        at_a, at_b, at = a.data_ptr(), b.data_ptr(), 0
        if bias is not None:
            at = bias.data_ptr()
            if not at or bias.is_neg():
                return None
    except RuntimeError:  # a tensor that has no strides, or no memory
        return None
    if (at_a | at_b | at) % _ALIGNMENT or not (at_a and at_b):
        return None
    return partial(_run, launch, a, (at_a, at_b) if bias is None else (at_a, at_b, at))


def kept(
    what: tuple[Any, ...], a: Any, b: Any, bias: Any, compute: Callable[[list[Any]], Any]
) -> Any:
    """Return a product of tensors: by the launch that is kept, or by ``compute``.

    ``what``: as of `find`. ``compute`` is called with a list that it appends the call of `gemm` to,
    as `recent_call` takes it. The result is a tensor, or two, new and contiguous.
    """
    if not _on_gpu(a) or a.dtype.is_complex:
        return compute([])
    launch = find(what, a, b, bias)
    if launch is not None:
        return launch()
    calls: list[Any] = []
    results = compute(calls)
    if len(calls) == 1:
        _keep(_key(what, a, b, bias), calls[0], (a, b) if bias is None else (a, b, bias), results)
    return results


def _on_gpu(x: Any) -> bool:
    return bool(x.is_cuda)


def _key(what: tuple[Any, ...], a: Any, b: Any, bias: Any) -> tuple[Any, ...]:
    lies = a.shape, a.stride(), a.dtype, b.shape, b.stride(), b.dtype, a.get_device()
    if bias is None:
        return what, *lies, b.get_device()
    return what, *lies, b.get_device(), bias.shape, bias.stride(), bias.dtype, bias.get_device()


def _keep(key: Any, call: tuple[Any, ...], given: tuple[Any, ...], results: Any) -> None:
    """Keep the launch of a call of `gemm` on tensors as they lie, at addresses that new ones have.

    ``call``: as `recent_call` takes it; ``given``: the tensors of the product.
    """
    words, A, B, keywords = call
    others = [x for x in keywords.values() if isinstance(x, torch.Tensor)]
    if [x.data_ptr() for x in (A, B, *others)] != [x.data_ptr() for x in given]:
        return
    if any(x.data_ptr() % _ALIGNMENT or x.is_neg() for x in given):
        return
    recent = recent_call(words, A, B, keywords)
    if recent is None:
        return
    executable, tensors = recent.executable, results if isinstance(results, tuple) else (results,)
    size = executable.problem.l * executable.problem.m * executable.problem.columns
    if not size or len(tensors) != 1 + len(executable.results):
        return
    if any(x.numel() != size or not x.is_contiguous() for x in tensors):
        return
    bound = executable.launch(ONE, ZERO, recent.numbers)
    first = tensors[0]
    _launches[key] = _Launch(bound, recent.stream, first.shape, first.dtype, len(tensors) == 2)
