"""Matrices of PyTorch with any layout in a buffer, and small random integers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from cute_gemm.dtypes import DTYPES


@dataclass
class Held:
    """A matrix, or a batch of them, and its buffer."""

    view: torch.Tensor
    buffer: torch.Tensor

    def within(self, buffer: torch.Tensor) -> torch.Tensor:
        """Return the same view of another buffer."""
        view = self.view
        return torch.as_strided(buffer, view.shape, view.stride(), view.storage_offset())

    def poison(self) -> None:
        """Fill the matrix with values that must not be read."""
        self.view.fill_(unread(self.view.dtype))

    def wide(self) -> torch.Tensor:
        """Return a copy in float64 or complex128."""
        return self.view.to(torch.complex128 if self.view.is_complex() else torch.float64)

    def assert_untouched(self, before: torch.Tensor, name: str) -> None:
        """Check that the buffer did not change: all of A and B, and the elements around C."""
        now = self.buffer.clone()
        if name == "C":
            self.within(now).copy_(self.within(before))
        changed = (bits(now) != bits(before)).flatten().nonzero()
        where = "was written to" if name != "C" else "was written around"
        assert not len(changed), f"{name} {where}, first at byte {changed[0].item()} of its buffer"


def bits(x: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor, with those of an element along the last dimension."""
    x = torch.view_as_real(x.resolve_conj()) if x.is_complex() else x
    return x.clone(memory_format=torch.contiguous_format).view(torch.uint8)


def unread(kind: torch.dtype) -> Any:
    """Return a value that changes every result that reads it."""
    if kind.is_complex:
        return complex(torch.nan, torch.nan)
    return torch.nan if kind.is_floating_point else 99


def place(
    values: torch.Tensor, dtype: str, order: str, aligned: int, pad: int = 0, shared: bool = False
) -> Held:
    """Return matrices whose address and strides are odd multiples of ``aligned`` bytes.

    So all such matrices have accesses of the same width. The elements around them must not be read.
    ``shared``: one matrix for the whole batch.
    """
    kind = getattr(torch, dtype)
    step = max(1, aligned // DTYPES[dtype].bytes)
    *several, rows, columns = values.shape
    run, count = (rows, columns) if order == "F" else (columns, rows)
    ld = step * (-(-run // step) + pad | 1)
    batch = 0 if shared else step * (ld // step * count + pad | 1)
    strides = [batch] * len(several) + ([1, ld] if order == "F" else [ld, 1])
    length = step + batch * (several[0] if several else 0) + ld * count + 16
    narrow = torch.float32 if DTYPES[dtype].bytes < 4 and kind.is_floating_point else kind
    buffer = torch.full((length,), unread(kind), dtype=narrow, device=values.device).to(kind)
    view = torch.as_strided(buffer, values.shape, strides, step)
    (view[0] if shared else view).copy_((values[0] if shared else values).to(narrow))
    return Held(view, buffer)


def stored(values: torch.Tensor, letter: str) -> torch.Tensor:
    """Return op(X) as stored for the letter."""
    turned = values if letter == "N" else values.mT
    return turned.conj().resolve_conj() if letter in "CH" else turned


def fill_operands(
    seed: int, device: str, a: tuple[int, ...], b: tuple[int, ...], c: tuple[int, ...],
    few: int | None, is_complex: bool,
) -> list[torch.Tensor]:  # fmt: skip
    """Return integers for op(A), op(B) and C in float64 or complex128.

    ``few``: most nonzero elements in a row of op(A), which are 1 or -1, so that the magnitude of a
    sum is at most twice that.
    """
    random = torch.Generator().manual_seed(seed)

    def integers(shape: tuple[int, ...], largest: int) -> torch.Tensor:
        real = torch.randint(-largest, largest + 1, shape, generator=random).double()
        if not is_complex:
            return real
        return torch.complex(real, torch.randint(-largest, largest + 1, shape, generator=random)
                             .double())  # fmt: skip

    if few is None:
        return [integers(x, y).to(device) for x, y in ((a, 3), (b, 3), (c, 8))]
    signs = 2 * torch.randint(0, 2, a, generator=random).double() - 1
    ranks = torch.rand(a, generator=random).argsort(-1).argsort(-1)
    A = signs * (ranks < few)
    return [A.to(device), integers(b, 2).to(device), integers(c, 8).to(device)]
