"""PyTorch's tensors, read through their own attributes; PyTorch is not imported here.

Calls that PyTorch traces or differentiates are put into its graph by `cute_gemm.torch`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from cute_gemm.arrays.base import (
    ALIGNMENT,
    META,
    Adapter,
    Fingerprint,
    Operand,
    Order,
    dtype_name,
)
from cute_gemm.dtypes import DTYPES
from cute_gemm.errors import ArrayError

#: Function that puts a call into PyTorch's graph, set when `cute_gemm.torch` is imported.
_operator: Callable[..., Any] | None = None
#: Function that imports `cute_gemm.torch`, set by the package.
_load: Callable[[], Any] = bool


def _imported() -> bool:
    return "torch" in sys.modules


#: What `torch.compiler.assume_constant_result` sets. PyTorch's compiler would look at every module
#: in `sys.modules`, which takes long and fails where another thread imports one meanwhile.
_imported._dynamo_marked_constant = True  # type: ignore[attr-defined]


def traced() -> bool:
    """Return whether PyTorch's compiler traces the caller instead of running it."""
    if not _imported():
        return False
    import torch

    return bool(torch.compiler.is_compiling())


def hand_over(operator: Callable[..., Any]) -> None:
    """Set the function that `as_operator` calls."""
    global _operator
    _operator = operator


def loaded_by(load: Callable[[], Any]) -> None:
    """Set the function that imports `cute_gemm.torch` for the first call as an operator."""
    global _load
    _load = load


def as_operator(*call: Any) -> Any:
    """Compute a call that PyTorch traces or differentiates, as a PyTorch operator."""
    _has_operator()
    assert _operator is not None
    return _operator(*call)


def _has_operator() -> bool:
    if _operator is None:
        _load()
    return True


_has_operator._dynamo_marked_constant = True  # type: ignore[attr-defined]


def wants_gradient(*values: Any) -> bool:
    """Return whether PyTorch records a gradient for a call with these arguments."""
    if not _imported():
        return False
    import torch

    return torch.is_grad_enabled() and any(
        isinstance(x, torch.Tensor) and x.requires_grad for x in values
    )


def has_tangent(*values: Any) -> bool:
    """Return whether an argument is a tensor with a tangent of PyTorch's forward mode."""
    if not _imported():
        return False
    import torch

    forward = torch.autograd.forward_ad
    return forward._current_level >= 0 and any(
        isinstance(x, torch.Tensor) and forward.unpack_dual(x).tangent is not None for x in values
    )


def differentiates(*values: Any) -> bool:
    """Return whether PyTorch differentiates a call with these arguments, or transforms it."""
    if not _imported():
        return False
    import torch

    transformed = torch._C._are_functorch_transforms_active()
    return transformed or wants_gradient(*values) or has_tangent(*values)


def observes(*values: Any) -> bool:
    """Return whether a tracer, a dispatch mode or a tensor subclass must see a call."""
    if not _imported():
        return False
    import torch

    if torch._C._len_torch_dispatch_stack() > 0 or torch._C._get_tracing_state() is not None:
        return True
    own = torch.Tensor.__torch_dispatch__
    return any(
        isinstance(x, torch.Tensor) and type(x).__torch_dispatch__ is not own for x in values
    )


def is_operator(A: Any, B: Any, C: Any, others: Mapping[str, Any]) -> bool:
    """Return whether a call of `gemm` must, and can, be a PyTorch operator."""
    if not _imported():
        return False
    import torch

    if not (isinstance(A, torch.Tensor) and isinstance(B, torch.Tensor)):
        return False
    if differentiates(A, B, *others.values()):
        return C is None
    return observes(A, B, C, *others.values())


def refuse_grad(tensor: Any, name: str) -> None:
    """Refuse a PyTorch tensor that needs a derivative."""
    call = (
        "a call that has no gradient (gemm differentiates A, B and an epilogue's operands, if all "
        "are tensors and no C is given)"
    )
    if tensor.requires_grad and sys.modules["torch"].is_grad_enabled():
        raise ArrayError(
            f"{name} requires grad in {call}: pass {name}.detach(), or call it under "
            "torch.no_grad()"
        )
    if has_tangent(tensor):
        raise ArrayError(
            f"{name} has a tangent in {call}: pass "
            f"torch.autograd.forward_ad.unpack_dual({name}).primal"
        )


def refuse_layout(tensor: Any, name: str) -> None:
    """Refuse a PyTorch tensor that is sparse, nested, or otherwise not strided."""
    if tensor.is_nested:
        raise ArrayError(
            f"{name} is a nested tensor; expected a dense one, as {name}.to_padded_tensor(0.0) "
            f"makes, or, of a jagged one, {name}.values()"
        )
    if str(tensor.layout) != "torch.strided":
        raise ArrayError(
            f"{name} is a tensor of layout {tensor.layout}; expected a strided one, as "
            f"{name}.to_dense() makes"
        )


def is_watched() -> bool:
    """Return whether a mode, a tracer or a level of dual numbers may have to see a call."""
    torch = sys.modules.get("torch")
    return torch is not None and (
        torch._C._len_torch_dispatch_stack() > 0
        or torch._C._get_tracing_state() is not None
        or torch.autograd.forward_ad._current_level >= 0
    )


class _Memory:
    """A host tensor's memory for NumPy, whose array keeps this object and so the tensor alive.

    `torch.Tensor.numpy` would prevent later resizes of the tensor's storage, as FSDP does.
    """

    def __init__(self, operand: Operand, dtype: np.dtype) -> None:
        self.operand = operand
        self.__array_interface__ = {
            "version": 3, "data": (operand.pointer, False), "shape": operand.shape,
            "strides": tuple(stride * dtype.itemsize for stride in operand.strides),
            "typestr": f"|V{dtype.itemsize}",  # as NumPy has no name for types of ml_dtypes
        }  # fmt: skip


class _PyTorch(Adapter):
    name = "torch"

    def read(self, array: Any, name: str) -> Operand:
        refuse_grad(array, name)
        if array.is_conj() or array.is_neg():
            lazy = "conj" if array.is_conj() else "neg"
            raise ArrayError(
                f"{name} is a view whose {lazy} bit is set, which PyTorch applies on reads, "
                f"but not to the memory: pass {name}.resolve_{lazy}()"
            )
        if array.is_cuda:
            device = array.get_device()
        elif array.is_cpu:
            device = None
        elif array.device.type == "meta":
            device = META
        else:
            raise ArrayError(
                f"{name} is a tensor on {array.device}; expected one on a CUDA device or the CPU: "
                f"{name}.cuda() or {name}.cpu()"
            )
        try:
            operand = Operand(
                array.data_ptr(), tuple(array.shape), array.stride(), dtype_name(array.dtype),
                device, "torch", array, False,
            )  # fmt: skip
        except RuntimeError:  # it is not one block of memory
            operand = None
        if operand is None or not (operand.pointer or device == META or 0 in operand.shape):
            refuse_layout(array, name)
            raise ArrayError(
                f"{name} is a tensor without its own memory, as in torch.vmap and torch.func, "
                "of a fake mode, or with a storage that was freed: call gemm outside; a batch of "
                "matrices has three dimensions"
            )
        return operand

    def fingerprint(self, A: Any, B: Any, C: Any) -> Fingerprint | None:
        if not A.is_cuda or is_watched():
            return None
        # `resize_`, `t_` and others change the object itself, `x.data = y` also its type and bits.
        if A.is_neg() or B.is_neg():
            return None
        grad = A.requires_grad or B.requires_grad or (C is not None and C.requires_grad)
        if grad and sys.modules["torch"].is_grad_enabled():
            return None
        kind = A.dtype
        # PyTorch sets that bit for complex types only, and operands are all real or all complex.
        if (lazy := kind.is_complex) and (A.is_conj() or B.is_conj()):
            return None
        a, b = A.data_ptr(), B.data_ptr()
        if not (a and b):  # empty, or its storage was freed
            return None
        layouts = (
            a % ALIGNMENT, A.shape, A.stride(), kind, A.get_device(),
            b % ALIGNMENT, B.shape, B.stride(), B.dtype, B.get_device(),
        )  # fmt: skip
        if C is None:
            return layouts, (a, b, 0)
        if C.is_neg() or (lazy and C.is_conj()):
            return None
        c = C.data_ptr()
        if not c:
            return None
        return (layouts, c % ALIGNMENT, C.shape, C.stride(), C.dtype, C.get_device()), (a, b, c)

    def fingerprint_of(self, array: Any) -> Fingerprint | None:
        kind = array.dtype
        wanted = array.requires_grad and sys.modules["torch"].is_grad_enabled()
        if wanted or array.is_neg() or kind.is_complex:
            return None
        at, layout = array.data_ptr(), (array.shape, array.stride(), kind, array.get_device())
        if not at:
            return None
        return (at % ALIGNMENT, *layout), (at,)

    def stream(self, operand: Operand) -> Callable[[], int]:
        if operand.device is None:
            return int
        return partial(sys.modules["torch"]._C._cuda_getCurrentRawStream, operand.device)

    def new(self, like: Operand, shape: tuple[int, ...], order: Order, dtype: str) -> Any:
        torch = sys.modules["torch"]
        rows, columns = shape[-2:]
        batch = (rows * columns,) * (len(shape) - 2)
        strides = (*batch, *((1, max(rows, 1)) if order == "F" else (max(columns, 1), 1)))
        device = {None: "cpu", META: "meta"}.get(like.device, like.device)
        return torch.empty_strided(shape, strides, dtype=getattr(torch, dtype), device=device)

    def maker(
        self, like: Operand, shape: tuple[int, ...], order: Order, dtype: str
    ) -> Callable[[], tuple[Any, int]]:
        def make() -> tuple[Any, int]:
            array = self.new(like, shape, order, dtype)
            return array, array.data_ptr()

        return make

    def to_numpy(self, operand: Operand) -> np.ndarray:
        row = DTYPES.get(operand.dtype)
        dtype = np.dtype(operand.dtype if row is None else row.numpy)
        return np.asarray(_Memory(operand, dtype)).view(dtype)

    def converted(self, array: Any, dtype: str, stream: int | None) -> Any:
        torch = sys.modules["torch"]
        if stream is None:
            return array.to(getattr(torch, dtype))
        with torch.cuda.stream(torch.cuda.ExternalStream(stream, array.device)):
            return array.to(getattr(torch, dtype))

    def cast(self, name: str, dtype: str) -> str:
        return f"{name}.to(torch.{dtype})"

    def copy(self, name: str, batched: bool) -> str:
        return f"{name}.contiguous()"


TORCH = _PyTorch()
