"""What is kept between calls: dicts with a bound, so that no number of shapes fills the memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from threading import RLock
from typing import Any, TypeVar

K = TypeVar("K")
V = TypeVar("V")
#: Those of the process, by name.
KEPT: dict[str, Kept[Any, Any]] = {}


class Kept(OrderedDict[K, V]):
    """A dict that drops entries, the least recently used first, before they weigh too much.

    An entry weighs 1, or what ``weigh`` says of its value; all together at most ``most``, or one
    that weighs more. What is read from it while other threads add to it may be gone: take it with
    ``get``, which counts as a use. One that has a name stands in `KEPT`.
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
        """Drop all."""
        with self._lock:
            super().clear()
            self.weight = 0


def clear_all() -> None:
    """Empty those of the process, as where what was chosen by predicted times no longer holds."""
    for kept in KEPT.values():
        kept.clear()


def _one(value: object) -> int:
    return 1
