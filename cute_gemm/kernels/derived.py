"""Values derived from a kernel's config, and its transposition."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from cute_gemm.problem.operation import Operation

T = TypeVar("T")


class derived(Generic[T]):  # noqa: N801, as property
    """A property of a frozen config, cached for the last 4,096 different configs.

    Thousands of configs are kept, and most are only compared, so values are not stored in them.
    """

    def __init__(self, method: Callable[[Any], T]) -> None:
        self.__doc__ = method.__doc__
        self._value = lru_cache(maxsize=4096)(method)

    def __get__(self, config: Any, owner: type) -> T:
        return self._value(config)


class Transposable:
    """A config by which a kernel may compute C^T = B^T A^T, with A and B swapped.

    The config's fields describe the problem. `kernel_tile`, `product` and `turned` values describe
    it as the kernel sees it.
    """

    tile: tuple[int, int, int]
    operation: Operation
    swap_ab: Any

    def turned(self, pair: tuple[T, T]) -> tuple[T, T]:
        """Return a pair for M and N, or A and B, in the kernel's order or the problem's."""
        return pair[::-1] if self.swap_ab else pair

    @property
    def kernel_tile(self) -> tuple[int, int, int]:
        """Extents of the CTA tile, as the kernel sees it."""
        return (*self.turned(self.tile[:2]), self.tile[2])

    @property
    def product(self) -> Operation:
        """The operation, as the kernel sees it."""
        return self.operation.transposed if self.swap_ab else self.operation
