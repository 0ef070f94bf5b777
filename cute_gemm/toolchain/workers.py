"""Processes that compile units for this one, which keeps the cache, the locks and the errors.

NVRTC serialises a part of each build among the threads of a process: they gain a factor of 1.5,
however many there are, where processes gain one per core. A worker is this Python with an import of
this module, not a copy of the program (as ``multiprocessing`` would start one): a script needs no
``if __name__ == "__main__"`` for it. It reads units from a pipe and writes builds to another, and
touches no file, so that it may be killed at any time.
"""

from __future__ import annotations

import os
import pickle
import queue
import select
import subprocess
import sys
import threading
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cute_gemm.toolchain.nvrtc import Built, compile_here

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from cute_gemm.toolchain.unit import TranslationUnit

#: Most that compile at a time: each takes 150 to 300 MB.
_MOST = 32
_START = (
    "import sys; sys.path[:] = sys.argv[1:]; from cute_gemm.toolchain.workers import main; main()"
)


def cores() -> int:
    """Return the cores that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return cores or 1


@cache
def builders() -> ThreadPoolExecutor:
    """Return the threads that build for this process."""
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(cores(), "cute_gemm build")


if hasattr(os, "register_at_fork"):  # a child has the pool, and none of its threads
    os.register_at_fork(after_in_child=builders.cache_clear)


def at_once(builds: int) -> int:
    """Return how many of so many units are to be compiled at a time."""
    return min(builds, cores(), _MOST)


class Workers:
    """Processes that compile, started as they are needed: as many as threads ask at a time."""

    def __init__(self) -> None:
        self._idle: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
        self._all: list[subprocess.Popen[bytes]] = []
        self._closed = False

    def compile(
        self, unit: TranslationUnit, arch: str, paths: tuple[Path, ...], start: float
    ) -> Built:
        """Compile in one that is free or new; in this process where none starts, or one dies."""
        try:
            try:
                worker = self._idle.get_nowait()
            except queue.Empty:
                worker = self._started()
            answer = _asked(worker, (unit, arch, paths))
        except (OSError, EOFError, pickle.UnpicklingError):
            if self._closed:
                raise
            return compile_here(unit, arch, paths, start)
        self._idle.put(worker)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _started(self) -> subprocess.Popen[bytes]:
        # A session of its own: Ctrl-C is for this process, which ends the workers.
        worker = subprocess.Popen(
            [sys.executable, "-c", _START, *sys.path],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        self._all.append(worker)
        if self._closed:
            self.close()
        return worker

    def close(self) -> None:
        """End the processes, whatever they do."""
        self._closed = True
        for worker in self._all:
            worker.kill()
            worker.wait()
            with suppress(OSError):  # what it was not told any more
                worker.stdin.close()  # type: ignore[union-attr]


def _asked(worker: subprocess.Popen[bytes], question: Any) -> Any:
    assert worker.stdin is not None and worker.stdout is not None
    pickle.dump(question, worker.stdin)
    worker.stdin.flush()
    return pickle.load(worker.stdout)


def _end_with_parent() -> None:
    """End this process when nobody holds the other end of standard input, whatever it compiles."""
    if hasattr(select, "poll"):
        parent = select.poll()
        parent.register(0, 0)  # that it is closed is always told
        parent.poll()
        os._exit(0)


def main() -> None:
    """Answer until there is nobody who asks: what a worker does."""
    questions, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what anybody prints is no answer
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            unit, arch, paths = pickle.load(questions)
        except EOFError:
            return
        answer: Any
        try:
            answer = compile_here(unit, arch, paths, time.perf_counter())
        except Exception as error:
            answer = error
        try:
            pickle.dump(answer, answers)
            answers.flush()
        except BrokenPipeError:  # who asked has ended
            os._exit(0)
