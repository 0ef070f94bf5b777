"""Kernels of several plans, built at once: by processes, or by threads of this one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cute_gemm.plan import Plan


class Builds:
    """Kernels of plans that are being built, by processes if there are several, or by threads.

    ``futures``: of each plan's build. To be closed, which drops what has not begun.
    """

    def __init__(self, plans: Sequence[Plan]) -> None:
        from concurrent.futures import ThreadPoolExecutor

        from cute_gemm.toolchain.workers import Workers, at_once, builders

        kernels = {
            (step.kernel.name, step.config, step.arch)
            for plan in plans if plan.compiled for step in plan.steps
        }  # fmt: skip
        count = at_once(len(kernels))
        self._workers = Workers() if count > 1 else None
        # A thread for each process, which waits for it.
        self._own = ThreadPoolExecutor(count, "cute_gemm build") if self._workers else None
        pool = self._own or builders()
        compiler = self._workers.compile if self._workers else None
        self.futures = [pool.submit(plan._build, compiler) for plan in plans]

    def finish(self, tell: Callable[[int, int], None] | None = None) -> None:
        """Wait until all have ended, well or not, and close.

        ``tell`` is called with how many are done, of how many.
        """
        from concurrent.futures import FIRST_COMPLETED, wait

        pending, total = set(self.futures), len(self.futures)
        try:
            while pending:
                # Not for ever: a signal that another thread gets does not end the wait.
                ended, pending = wait(pending, 0.1, FIRST_COMPLETED)
                for number in range(len(ended)):
                    if tell is not None:
                        tell(total - len(pending) - len(ended) + number + 1, total)
        finally:
            self.close()

    def close(self) -> None:
        """End what compiles, and drop what has not begun."""
        for future in self.futures:
            future.cancel()
        if self._workers is not None and self._own is not None:
            self._workers.close()
            self._own.shutdown(wait=False)
