"""Checks of the ends of groups: on the host at once, on a device by a flag of a later call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np

from cute_gemm.errors import OffsetsError
from cute_gemm.kernels.auxiliary import CHECK_ENDS
from cute_gemm.kernels.auxiliary.ends import Ends
from cute_gemm.problem.problem import GemmProblem
from cute_gemm.run.flags import flag_of

#: Numbers of products in flags, by their texts. Products after the first `_MOST` share a number.
_numbers: dict[str, int] = {}
_MOST, _ANOTHER = 4096, "another product of groups"
_lock = threading.Lock()


def check_on_host(problem: GemmProblem, ends: np.ndarray) -> None:
    """Refuse ends that decrease or exceed the extent of all groups."""
    mode = problem.groups.mode
    whole, before = problem.extents[mode], 0
    for group, end in enumerate(ends.tolist()):
        if not before <= end <= whole:
            raise OffsetsError(
                f"offsets[{group}]={end} does not fit; expected an end of {before}, where the "
                f"group begins, to {mode.lower()}={whole}"
            )
        before = end


class CheckedLaunch:
    """A launch of a product of groups, after one warp that checks their ends.

    The warp sets the device's flag if they decrease or exceed the extent. The next call raises
    before it starts anything, so that no call waits for the device.
    """

    __slots__ = ("_bound", "_check", "_device", "_flag", "_place")

    def __init__(
        self, bound: Callable[..., None], problem: GemmProblem, arch: str, device: int
    ) -> None:
        ends = Ends(problem.l, problem.extents[problem.groups.mode], _number(problem))
        self._bound, self._device, self._flag = bound, device, flag_of(device)
        self._check = CHECK_ENDS.bind(CHECK_ENDS.configure(ends), ends, arch, device)
        self._place = 3 + len(problem.scales)  # of the ends among the operands

    def __call__(self, addresses: Sequence[int], stream: int = 0) -> None:
        """Start both on the operands at these addresses; raise OffsetsError for an earlier call."""
        number = self._flag.take()
        if number:
            text = next(text for text, its in _numbers.items() if its == number)
            raise OffsetsError(
                f"an earlier call with check='device' on CUDA device {self._device}, of "
                f"{text}, had offsets that decrease or exceed the extent, so that "
                "its result is not defined; this call has computed nothing"
            )
        self._check((addresses[self._place], self._flag.pointer), stream)
        self._bound(addresses, stream)


def _number(problem: GemmProblem) -> int:
    """Return the number of a product's text."""
    extents = ", ".join(f"{mode.lower()}={size}" for mode, size in problem.extents.items())
    text = f"{problem.l} groups along {problem.groups.mode}, {extents}, {problem.dtype}"
    with _lock:
        if text not in _numbers and len(_numbers) >= _MOST:
            text = _ANOTHER
        return _numbers.setdefault(text, len(_numbers) + 1)
