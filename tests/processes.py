"""Run tasks in several processes, and replace processes that end."""

from __future__ import annotations

import multiprocessing
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any

#: Errors after which a process cannot continue.
FATAL = ("CUDA error", "CUDA_ERROR", "LaunchError")
#: Seconds after the deadline in which tasks must end.
GRACE = 30


def _serve(connection: Connection, work: Callable[[Any], Any]) -> None:
    while (task := connection.recv()) is not None:
        connection.send(work(task))


def spread(
    work: Callable[[Any], tuple[Any, bool]], tasks: Iterable[Any], processes: int, deadline: float
) -> Iterator[tuple[Any, Any]]:
    """Yield each task that began before the deadline, and its result.

    ``work`` returns its result, and whether its process must be replaced. The result is None if the
    process ended, or if the task has not ended `GRACE` seconds after the deadline. ``deadline`` is
    a time of ``time.monotonic``. ``work`` is a function of a module.
    """
    context = multiprocessing.get_context("spawn")
    waiting = deque(tasks)
    running: dict[Connection, tuple[Any, Any]] = {}

    def start() -> Connection:
        own, other = context.Pipe()
        process = context.Process(target=_serve, args=(other, work), daemon=True)
        process.start()
        other.close()
        running[own] = process, None
        return own

    def give(connection: Connection) -> None:
        process, _ = running[connection]
        if waiting and time.monotonic() < deadline:
            task = waiting.popleft()
            connection.send(task)
            running[connection] = process, task
        else:
            connection.send(None)
            connection.close()
            del running[connection]

    for _ in range(min(processes, len(waiting))):
        give(start())
    while running:
        ready = wait(list(running), timeout=1)
        if not ready and time.monotonic() > deadline + GRACE:
            for process, task in running.values():
                process.terminate()
                yield task, None
            return
        for connection in ready:
            assert isinstance(connection, Connection)
            process, task = running[connection]
            try:
                result, fatal = connection.recv()
            except EOFError:
                result, fatal = None, True
            yield task, result
            if fatal:
                process.terminate()
                del running[connection]
                connection = start()
            give(connection)
