"""Builds of the kernels of several plans at once, in processes or in threads of this one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from concurrent.futures import Future

    from cute_gemm.plan.plan import Plan
    from cute_gemm.plan.steps import Step
    from cute_gemm.toolchain.cubin import Build


class Builds:
    """Builds of the kernels of plans, in processes if there are several, otherwise in threads.

    ``futures``: the build of each kernel; a kernel that plans share is built once. `close` drops
    builds that have not begun.
    """

    def __init__(self, plans: Sequence[Plan]) -> None:
        from concurrent.futures import ThreadPoolExecutor

        from cute_gemm.toolchain.workers import Workers, at_once, builders

        self.steps = {_key(step): step for plan in plans if plan.compiled for step in plan.steps}
        count = at_once(len(self.steps))
        self._workers = Workers() if count > 1 else None
        # One thread waits for each process.
        self._own = ThreadPoolExecutor(count, "cute_gemm build") if self._workers else None
        pool = self._own or builders()
        compiler = self._workers.compile if self._workers else None
        self.futures: dict[Any, Future[Build]] = {
            key: pool.submit(step.build, compiler) for key, step in self.steps.items()
        }

    def finish(self, tell: Callable[[int, int], None] | None = None) -> None:
        """Wait until all builds have ended, with or without an error, and close.

        ``tell`` is called with the number of kernels that are done and their total, at the start
        and after each kernel.
        """
        from concurrent.futures import FIRST_COMPLETED, wait

        pending, total = set(self.futures.values()), len(self.futures)
        if tell is not None:
            tell(0, total)
        try:
            while pending:
                # The wait has a timeout, since a signal to another thread does not end it.
                ended, pending = wait(pending, 0.1, FIRST_COMPLETED)
                for number in range(len(ended)):
                    if tell is not None:
                        tell(total - len(pending) - len(ended) + number + 1, total)
        finally:
            self.close()

    def of(self, plan: Plan) -> Build:
        """Return the build of a plan's kernel, once all its launches are built.

        Raises the error of the first launch that cannot be built, or of a plan that compiles
        nothing.
        """
        return plan.keep([self.futures[_key(step)].result() for step in plan.steps])

    def close(self) -> None:
        """Stop the builds that are running, and drop those that have not begun."""
        for future in self.futures.values():
            future.cancel()
        if self._workers is not None and self._own is not None:
            self._workers.close()
            self._own.shutdown(wait=False)


def _key(step: Step) -> tuple[str, Any, str]:
    return step.kernel.name, step.config, step.arch
