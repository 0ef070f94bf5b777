"""Ctrl-C while NVRTC compiles: KeyboardInterrupt when the unit is done, not the end of the process.

NVRTC's compiler takes the process's handler of SIGINT over while it works, and its own ends the
process with status 4. It cannot be asked not to, and a mask would have to be that of all threads:
so Python's handler is put back as soon as it is gone, by a thread that looks.
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

#: Seconds between two looks: NVRTC's handler is there from the start, which the first ones await.
_FIRST, _LATER, _MANY = 0.0002, 0.005, 500
#: Bytes that hold a ``struct sigaction``, which begins with the handler's address.
_ACTION = 256
#: What nobody but the program itself sets.
_DEFAULT, _IGNORED = (number.to_bytes(8, sys.byteorder) for number in (0, 1))

_lock = threading.Lock()
_compiling = 0


def _forked() -> None:
    """Begin anew in a child: what compiled when it was forked does so in the parent alone."""
    global _lock, _compiling
    _lock, _compiling = threading.Lock(), 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


@contextmanager
def interruptible() -> Iterator[None]:
    """Keep SIGINT's handler what it is while the body runs, in any number of threads."""
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
    """Put the handler back whenever another is there, until nothing compiles."""
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
    """The C library, where it has ``sigaction`` and a pointer is 8 bytes."""
    if not sys.platform.startswith("linux") or sys.maxsize < 2**32:
        return None
    return ctypes.CDLL(None)
