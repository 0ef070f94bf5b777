"""Ctrl-C while NVRTC compiles: KeyboardInterrupt after the unit, not the end of the process.

NVRTC's compiler replaces the process's handler of SIGINT while it works, with one that ends the
process with status 4. It has no option against that, and a mask would have to cover all threads.
A thread therefore restores Python's handler as soon as it is replaced.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

#: Seconds between two checks: NVRTC replaces the handler at the start, so the first are shorter.
_FIRST, _LATER, _MANY = 0.0002, 0.005, 500
#: Bytes of a ``struct sigaction``, which begins with the handler's address.
_ACTION = 256
#: Handlers that only the program itself sets.
_DEFAULT, _IGNORED = (number.to_bytes(8, sys.byteorder) for number in (0, 1))

_lock = threading.Lock()
_compiling = 0


def _forked() -> None:
    """Reset the state in a child: compilations run in the parent alone."""
    global _lock, _compiling
    _lock, _compiling = threading.Lock(), 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


@contextmanager
def interruptible() -> Iterator[None]:
    """Keep SIGINT's handler while the body runs, in any number of threads."""
    global _compiling
    libc = _libc()
    if libc is None:
        yield
        return
    with _lock:
        _compiling += 1
        if _compiling == 1:
            kept = ctypes.create_string_buffer(_ACTION)
            libc.sigaction(signal.SIGINT, None, kept)
            threading.Thread(target=_watch, args=(libc, kept), daemon=True).start()
    try:
        yield
    finally:
        with _lock:
            _compiling -= 1


def _watch(libc: ctypes.CDLL, kept: ctypes.Array[ctypes.c_char]) -> None:
    """Restore the handler whenever it was replaced, until nothing compiles."""
    now = ctypes.create_string_buffer(_ACTION)
    for looks in itertools.count():
        with _lock:
            if not _compiling:
                return
            libc.sigaction(signal.SIGINT, None, now)
            if now.raw[:8] not in (kept.raw[:8], _DEFAULT, _IGNORED):
                libc.sigaction(signal.SIGINT, kept, None)
        time.sleep(_FIRST if looks < _MANY else _LATER)


def _libc() -> ctypes.CDLL | None:
    """Return the C library if it has ``sigaction`` and pointers have 8 bytes, otherwise None."""
    if not sys.platform.startswith("linux") or sys.maxsize < 2**32:
        return None
    return ctypes.CDLL(None)
