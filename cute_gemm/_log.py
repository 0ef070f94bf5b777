"""Messages of the package: `logging` under the name ``cute_gemm``.

Builds, removals from the cache and measured configs are INFO, kernels read from the cache DEBUG.
Nothing is printed unless a program configures `logging`, or ``CUTE_GEMM_LOG`` is set to a level
(``info``), which prints to standard error.
"""

from __future__ import annotations

import logging
import os

from cute_gemm.errors import warn

LEVELS = ("debug", "info", "warning", "error")

logger = logging.getLogger("cute_gemm")


def _configure(level: str) -> None:
    """Print messages of a level and above to standard error."""
    if level.lower() not in LEVELS:
        warn(f"CUTE_GEMM_LOG={level!r} is ignored; expected {', '.join(LEVELS)}")
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s cute_gemm %(levelname)s: %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(level.upper())


if os.environ.get("CUTE_GEMM_LOG"):
    _configure(os.environ["CUTE_GEMM_LOG"])
