"""``Launches``: several launches on one stream, with scratch between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from cute_gemm.run.driver import entered, is_current
from cute_gemm.run.memory import give_back, scratch

#: Place of an operand of a launch: its index in the plan's operands, the last of which is the
#: scratch, and bytes from its start.
Location = tuple[int, int]


class Launches:
    """Several launches called as one `BoundLaunch`: ``launches(addresses, stream)``.

    Each call allocates and frees scratch in the order of the stream, so that calls on several
    streams and from several threads do not share it.
    """

    __slots__ = ("_bytes", "_device", "_launches")

    def __init__(
        self,
        launches: Iterable[tuple[Callable[..., None], Sequence[Location]]],
        nbytes: int,
        device: int,
    ) -> None:
        self._launches = tuple((bound, tuple(places)) for bound, places in launches)
        self._bytes = nbytes
        self._device = device

    def __call__(self, addresses: Sequence[int], stream: int = 0) -> None:
        """Start the launches on the operands at these device addresses, in stream order."""
        if is_current(self._device):
            self._start(addresses, stream)
        else:
            with entered(self._device):
                self._start(addresses, stream)

    def _start(self, addresses: Sequence[int], stream: int) -> None:
        allocated = scratch(self._bytes, self._device, stream) if self._bytes else 0
        pointers = *addresses, allocated
        try:
            for bound, places in self._launches:
                bound([pointers[where] + offset for where, offset in places], stream)
        finally:
            if allocated:
                give_back(allocated, stream)
