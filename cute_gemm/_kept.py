"""Caches between calls: dicts with a limit, so that memory use is bounded for any shapes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from threading import RLock
from typing import Any, TypeVar

K = TypeVar("K")
V = TypeVar("V")
#: Caches of the process, by name.
KEPT: dict[str, Kept[Any, Any]] = {}


class Kept(OrderedDict[K, V]):
    """A dict that drops the least recently used entries when their weight exceeds a limit.

    An entry weighs 1, or ``weigh`` of its value; together at most ``most``, except for a single
    heavier entry. Other threads may drop an entry at any time: read it with
    ``get``, which counts as a use. A cache with a name is in `KEPT`.
    """

    def __init__(self, most: int, name: str = "", weigh: Callable[[V], int] | None = None) -> None:
        super().__init__()
        self.most, self.weigh, self.weight = most, weigh or _one, 0
        self._lock = RLock()  # dropping a value may run code that adds others
        if name:
            KEPT[name] = self

    def get(self, key: K, default: Any = None) -> Any:
        """Return the value of a key, or ``default``."""
        value = super().get(key, default)
        if value is not default and 2 * self.weight > self.most:  # else nothing is dropped soon
            with suppress(KeyError):  # dropped meanwhile
                self.move_to_end(key)
        return value

    def __setitem__(self, key: K, value: V) -> None:
        with self._lock:
            before = super().get(key)
            self.weight += self.weigh(value) - (0 if before is None else self.weigh(before))
            super().__setitem__(key, value)
            while self.weight > self.most and len(self) > 1:
                self.weight -= self.weigh(self.popitem(last=False)[1])

    def clear(self) -> None:
        """Drop all entries."""
        with self._lock:
            super().clear()
            self.weight = 0


def clear_all() -> None:
    """Empty all caches of the process, for example when predicted times change."""
    for kept in KEPT.values():
        kept.clear()


def _one(value: object) -> int:
    return 1
