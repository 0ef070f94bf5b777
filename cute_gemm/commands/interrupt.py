"""Ctrl-C in a process of the command ``cute-gemm``: it ends at once, with status 130.

Python raises KeyboardInterrupt between two of its instructions. That may be in the imports at the
start of a command, where nothing catches it, or seconds later, after a product of BLAS or after
the threads of a pool, for which the end of a process waits.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

#: Exit status of a program that Ctrl-C ended.
STATUS = 130
#: Seconds that a command has to end by KeyboardInterrupt and to clean up.
_GRACE = 0.5


def while_starting() -> None:
    """End the process on Ctrl-C until `while_running`, if it is the command."""
    name = os.path.basename(sys.argv[0]) if sys.argv else ""
    module = name == "-m" and "cute_gemm" in getattr(sys, "orig_argv", ())
    if (name == "cute-gemm" or module) and sys.platform != "win32" and _is_pythons():
        signal.signal(signal.SIGINT, _end)


def while_running() -> None:
    """Let Ctrl-C raise KeyboardInterrupt, and end the process if that does not end it soon."""
    if signal.getsignal(signal.SIGINT) is not _end:
        return
    source, target = os.pipe()
    os.set_blocking(target, False)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.set_wakeup_fd(target, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(source,), daemon=True).start()


def _is_pythons() -> bool:
    """Return whether the handler is Python's default one, and may be set here."""
    main = threading.current_thread() is threading.main_thread()
    return main and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def _watch(source: int) -> None:
    """Wait for the number of the signal, which is written as soon as the signal arrives."""
    while signal.SIGINT not in os.read(source, 64):
        pass
    time.sleep(_GRACE)
    _end()


def _end(*_: object) -> None:
    if sys.stderr is not None and sys.stderr.isatty():
        os.write(sys.stderr.fileno(), b"\x1b[?25h")  # the cursor, which a progress bar hides
    os._exit(STATUS)
