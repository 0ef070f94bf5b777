"""What is kept between calls: dicts with a bound, so that no number of shapes fills the memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

K = TypeVar("K")
V = TypeVar("V")
#: Those of the process, by name.
KEPT: dict[str, Kept[Any, Any]] = {}


class Kept(dict[K, V]):
    """A dict that is emptied before its entries would weigh more than ``most`` together.

    An entry weighs 1, or what ``weigh`` says of its value. What is read from it while other threads
    add to it may be gone: take it with ``get``. One that has a name stands in `KEPT`.
    """

    __slots__ = ("most", "weigh", "weight")

    def __init__(self, most: int, name: str = "", weigh: Callable[[V], int] | None = None) -> None:
        super().__init__()
        self.most, self.weigh, self.weight = most, weigh, 0
        if name:
            KEPT[name] = self

    def __setitem__(self, key: K, value: V) -> None:
        weigh, before = self.weigh or _one, self.get(key)
        self.weight += weigh(value) - (0 if before is None else weigh(before))
        if self.weight > self.most:
            self.clear()
            self.weight = weigh(value)
        super().__setitem__(key, value)

    def clear(self) -> None:
        """Drop all."""
        super().clear()
        self.weight = 0


def clear_all() -> None:
    """Empty those of the process, as where what was chosen by predicted times no longer holds."""
    for kept in KEPT.values():
        kept.clear()


def _one(value: object) -> int:
    return 1
