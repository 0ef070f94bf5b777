"""What follows from a kernel's config: values that are kept apart from it, its transposition."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from cute_gemm.problem.operation import Operation

T = TypeVar("T")


class derived(Generic[T]):  # noqa: N801, as property
    """A property of a frozen config that is kept for equal configs: those of the last 4,096.

    Configs are kept by the thousands, most of which are only compared: they stay as small as their
    fields.
    """

    def __init__(self, method: Callable[[Any], T]) -> None:
        self.__doc__ = method.__doc__
        self._value = lru_cache(maxsize=4096)(method)

    def __get__(self, config: Any, owner: type) -> T:
        return self._value(config)


class Transposable:
    """A config by which a kernel may compute C^T = B^T A^T, with A and B swapped.

    What the config says is of the problem. What the kernel sees is `kernel_tile`, `product` and
    what is `turned`: of one orientation.
    """

    tile: tuple[int, int, int]
    operation: Operation
    swap_ab: Any

    def turned(self, pair: tuple[T, T]) -> tuple[T, T]:
        """Return what is of M and N, or of A and B, in the kernel's order, or back in ours."""
        return pair[::-1] if self.swap_ab else pair

    @property
    def kernel_tile(self) -> tuple[int, int, int]:
        """Extents of the CTA tile as the kernel sees it."""
        return (*self.turned(self.tile[:2]), self.tile[2])

    @property
    def product(self) -> Operation:
        """The operation as the kernel sees it."""
        return self.operation.transposed if self.swap_ab else self.operation
