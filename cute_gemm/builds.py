"""Kernels of several plans, built at once: by processes, or by threads of this one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from concurrent.futures import Future

    from cute_gemm.kernels.steps import Step, Steps
    from cute_gemm.toolchain.cubin import Build


class Planned(Protocol):
    """What is asked of a plan (`cute_gemm.plan.Plan`)."""

    @property
    def compiled(self) -> bool:
        """Whether anything is to be compiled."""

    @property
    def steps(self) -> Steps:
        """Its launches."""

    def keep(self, builds: list[Build]) -> Build:
        """Keep the builds of its launches and return that of its kernel."""


class Builds:
    """Kernels of plans that are being built, by processes if there are several, or by threads.

    ``futures``: of each kernel's build, that of several plans once. To be closed, which drops what
    has not begun.
    """

    def __init__(self, plans: Sequence[Planned]) -> None:
        from concurrent.futures import ThreadPoolExecutor

        from cute_gemm.toolchain.workers import Workers, at_once, builders

        self.steps = {_key(step): step for plan in plans if plan.compiled for step in plan.steps}
        count = at_once(len(self.steps))
        self._workers = Workers() if count > 1 else None
        # A thread for each process, which waits for it.
        self._own = ThreadPoolExecutor(count, "cute_gemm build") if self._workers else None
        pool = self._own or builders()
        compiler = self._workers.compile if self._workers else None
        self.futures: dict[Any, Future[Build]] = {
            key: pool.submit(step.build, compiler) for key, step in self.steps.items()
        }

    def finish(self, tell: Callable[[int, int], None] | None = None) -> None:
        """Wait until all have ended, well or not, and close.

        ``tell`` is called with how many kernels are done, of how many, at once and whenever one is.
        """
        from concurrent.futures import FIRST_COMPLETED, wait

        pending, total = set(self.futures.values()), len(self.futures)
        if tell is not None:
            tell(0, total)
        try:
            while pending:
                # Not for ever: a signal that another thread gets does not end the wait.
                ended, pending = wait(pending, 0.1, FIRST_COMPLETED)
                for number in range(len(ended)):
                    if tell is not None:
                        tell(total - len(pending) - len(ended) + number + 1, total)
        finally:
            self.close()

    def of(self, plan: Planned) -> Build:
        """Return the build of a plan's kernel, once all its launches are built.

        The error of the first that cannot be, and that of a plan of which nothing is compiled.
        """
        return plan.keep([self.futures[_key(step)].result() for step in plan.steps])

    def close(self) -> None:
        """End what compiles, and drop what has not begun."""
        for future in self.futures.values():
            future.cancel()
        if self._workers is not None and self._own is not None:
            self._workers.close()
            self._own.shutdown(wait=False)


def _key(step: Step) -> tuple[str, Any, str]:
    return step.kernel.name, step.config, step.arch
