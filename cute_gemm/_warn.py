"""Warnings that point at the line of the program that called the package."""

from __future__ import annotations

import functools
import os
import sys
import warnings
from pathlib import Path


def warn(message: str) -> None:
    """Warn with the first line outside this package, PyTorch and what its compiler wrote."""
    torch = getattr(sys.modules.get("torch"), "__file__", None)
    packages = [Path(__file__).parent, *([Path(torch).parent] if torch else [])]
    passed = (*(f"{path}{os.sep}" for path in packages), functools.__file__, "<eval_with_key>")
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and _is_passed(frame.f_code.co_filename, passed):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, UserWarning, stacklevel=level)


def _is_passed(file: str, passed: tuple[str, ...]) -> bool:
    return file.startswith(passed) or f"{os.sep}torchinductor_" in file
