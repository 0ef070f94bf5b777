"""The import of ``cuda.core``, by one thread at a time.

The package takes over the names of ``cuda.core.cu12`` or ``cu13`` while it is imported, among them
the spec by which Python knows that an import is over: another thread then takes it for whole, and
does not find in it what has not come yet.
"""

from __future__ import annotations

import os
import threading
from typing import Any

_IMPORT = threading.Lock()


def _forked() -> None:
    """Begin anew in a child: a thread of the parent may have had the lock."""
    global _IMPORT
    _IMPORT = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def cuda_core() -> Any:
    """``cuda.core``, whole; any thread may import its submodules then."""
    with _IMPORT:
        import cuda.core

        return cuda.core
