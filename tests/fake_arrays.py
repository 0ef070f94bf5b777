"""Fakes of PyTorch tensors, CuPy arrays and ``torch``, with the attributes that are read."""

from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cute_gemm.arch import Arch
from cute_gemm.gpus.gpu import Gpu
from cute_gemm.plan import make, select
from cute_gemm.run import driver


@lru_cache
def torch_dtype(name: str) -> Any:
    """Return a fake dtype. Calls with the same name return the same object."""
    facts = {"__str__": lambda _: f"torch.{name}", "is_complex": name.startswith("complex")}
    return type("dtype", (), facts)()


class FakeTensor:
    """The attributes of ``torch.Tensor`` that are read. ``more`` replaces or adds attributes."""

    is_nested, requires_grad, batched = False, False, False
    layout, lazy = "torch.strided", ""

    def __init__(
        self, at: int = 0x7000, shape: tuple[int, ...] = (4, 6), strides: tuple[int, ...] = (1, 4),
        dtype: str = "float16", place: str = "cuda", ordinal: int = 0, **more: Any,
    ) -> None:  # fmt: skip
        self.at, self.shape, self.strides, self.ordinal = at, shape, strides, ordinal
        self.dtype, self.device = torch_dtype(dtype), SimpleNamespace(type=place, index=ordinal)
        self.is_cuda, self.is_cpu = place == "cuda", place == "cpu"
        vars(self).update(more)

    def get_device(self) -> int:
        return self.ordinal

    def data_ptr(self) -> int:
        if self.layout != "torch.strided" or self.batched:
            raise RuntimeError("Cannot access data pointer of Tensor that doesn't have storage")
        return self.at

    def size(self) -> tuple[int, ...]:
        return self.shape

    def stride(self) -> tuple[int, ...]:
        if self.layout != "torch.strided":
            raise RuntimeError("sparse tensors do not have strides")
        return self.strides

    def is_conj(self) -> bool:
        return self.lazy == "conj"

    def is_neg(self) -> bool:
        return self.lazy == "neg"


class FakeCupy:
    """The attributes of a column-major ``cupy.ndarray`` that are read. ``step``: batch stride."""

    def __init__(
        self, at: int = 0x9000, shape: tuple[int, ...] = (4, 6), dtype: str = "float16",
        device: int = 0, step: int = 0,
    ) -> None:  # fmt: skip
        self.data = SimpleNamespace(ptr=at, device_id=device)
        self.dtype = np.dtype(dtype)
        self.itemsize = self.dtype.itemsize
        self.shape, self.strides = shape, (self.itemsize, self.itemsize * shape[-2])
        if len(shape) == 3:
            self.strides = (step, *self.strides)


FakeTensor.__module__, FakeTensor.__name__ = "torch", "Tensor"
FakeCupy.__module__, FakeCupy.__name__ = "cupy", "ndarray"


def fake_torch(stream: Any = None, **more: Any) -> SimpleNamespace:
    """Return a fake module ``torch``. ``stream`` returns the current stream of a device."""
    return SimpleNamespace(
        Tensor=(),  # no object is an instance
        autograd=SimpleNamespace(forward_ad=SimpleNamespace(_current_level=-1)),
        _C=SimpleNamespace(
            _len_torch_dispatch_stack=lambda: 0,
            _get_tracing_state=lambda: None,
            _are_functorch_transforms_active=lambda: False,
            _cuda_getCurrentRawStream=stream,
        ),
        **more,
    )


def on_h200(monkeypatch: pytest.MonkeyPatch, gpu: Gpu | None = None) -> None:
    """Plan calls with device arrays for an H200. ``gpu``: its row of the table, if needed."""
    monkeypatch.setattr(make, "resolved_backend", lambda *_: "cuda")
    monkeypatch.setattr(driver, "device_arch", lambda device: Arch("sm_90a"))
    monkeypatch.setattr(driver, "device_name", lambda device: "NVIDIA H200")
    monkeypatch.setattr(select, "gpu_of_device", lambda device: gpu)
