"""What is kept between calls: dicts with a bound, so that no number of shapes fills the memory."""

from __future__ import annotations

from typing import Any, TypeVar

K = TypeVar("K")
V = TypeVar("V")
#: Those of the process, by name.
KEPT: dict[str, Kept[Any, Any]] = {}


class Kept(dict[K, V]):
    """A dict that is emptied before it would have more than ``most`` entries.

    What is read from it while other threads add to it may be gone: take it with ``get``. One that
    has a name stands in `KEPT`.
    """

    __slots__ = ("most",)

    def __init__(self, most: int, name: str = "") -> None:
        super().__init__()
        self.most = most
        if name:
            KEPT[name] = self

    def __setitem__(self, key: K, value: V) -> None:
        if len(self) >= self.most and key not in self:
            self.clear()
        super().__setitem__(key, value)
