"""Worker processes that compile units; this process keeps the cache, the locks and the errors.

NVRTC serializes a part of each build among the threads of a process: threads gain a factor of 1.5
at most, while processes gain one per core. A worker is this Python with an import of
this module, not a copy of the program (as ``multiprocessing`` would start): a script needs no
``if __name__ == "__main__"`` for it. It reads units from a pipe and writes builds to another, and
uses no file, so it may be killed at any time.
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

#: Largest number of workers: each takes 150 to 300 MB.
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


if hasattr(os, "register_at_fork"):  # a child has the pool without its threads
    os.register_at_fork(after_in_child=builders.cache_clear)


def at_once(builds: int) -> int:
    """Return how many of so many units to compile at a time."""
    return min(builds, cores(), _MOST)


class Workers:
    """Processes that compile, started on demand: as many as threads ask at a time."""

    def __init__(self) -> None:
        self._idle: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
        self._all: list[subprocess.Popen[bytes]] = []
        self._closed = False

    def compile(
        self, unit: TranslationUnit, arch: str, paths: tuple[Path, ...], start: float
    ) -> Built:
        """Compile in a free or new worker; in this process if none starts, or it dies."""
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
        # A separate session: Ctrl-C is for this process, which ends the workers.
        worker = subprocess.Popen(
            [sys.executable, "-c", _START, *sys.path],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        self._all.append(worker)
        if self._closed:
            self.close()
        return worker

    def close(self) -> None:
        """End the processes at once."""
        self._closed = True
        for worker in self._all:
            worker.kill()
            worker.wait()
            with suppress(OSError):  # data that was not sent
                worker.stdin.close()  # type: ignore[union-attr]


def _asked(worker: subprocess.Popen[bytes], question: Any) -> Any:
    assert worker.stdin is not None and worker.stdout is not None
    pickle.dump(question, worker.stdin)
    worker.stdin.flush()
    return pickle.load(worker.stdout)


def _end_with_parent() -> None:
    """End this process, even while it compiles, when the other end of standard input closes."""
    if hasattr(select, "poll"):
        parent = select.poll()
        parent.register(0, 0)  # a closed pipe is always reported
        parent.poll()
        os._exit(0)


def main() -> None:
    """Compile units until standard input ends: the program of a worker."""
    questions, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # printed text must not mix with answers
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
        except BrokenPipeError:  # the parent has ended
            os._exit(0)
