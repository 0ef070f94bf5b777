"""The import of ``cuda.core``, by one thread at a time.

While the package is imported, it replaces itself by ``cuda.core.cu12`` or ``cu13``, including
the spec by which Python knows that an import is complete: another thread then takes it for
complete, and misses names that are not yet defined.
"""

from __future__ import annotations

import os
import threading
from typing import Any

_IMPORT = threading.Lock()


def _forked() -> None:
    """Reset the lock in a child: a thread of the parent may have held it."""
    global _IMPORT
    _IMPORT = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def cuda_core() -> Any:
    """Return ``cuda.core``, fully imported; any thread may then import its submodules."""
    with _IMPORT:
        import cuda.core

        return cuda.core
