"""Calibrations for kernel selection in tests, independent of the package's current ones.

``python tests/frozen.py`` stores the current calibrations of the package.
"""

import gzip
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path

from cute_gemm.cost_model import calibrated
from cute_gemm.cost_model.calibration import Calibration, decoded, shipped

STORED = Path(__file__).parent / "data" / "calibrations.json.gz"
#: GPUs whose kernels were measured.
MEASURED = ("H200", "H100 SXM")


@cache
def calibrations() -> dict[str, Calibration]:
    """Return the stored calibrations by the name of the GPU."""
    texts = json.loads(gzip.decompress(STORED.read_bytes()))
    return {name: decoded(json.dumps(text)) for name, text in texts.items()}


@contextmanager
def taking(shipped: Callable[[str], Calibration | None]) -> Iterator[None]:
    """Replace the package's calibrations by those that a function returns."""
    before = calibrated.shipped
    calibrated.shipped = shipped
    calibrated.forget()
    try:
        yield
    finally:
        calibrated.shipped = before
        calibrated.forget()


def frozen_calibrations() -> AbstractContextManager[None]:
    """Replace the package's calibrations by the stored ones."""
    return taking(calibrations().get)


def main() -> None:
    """Store the current calibrations of the package."""
    numbers = [shipped(name) for name in MEASURED]
    texts = {x.gpu: json.loads(x.encoded()) for x in numbers if x is not None}
    STORED.write_bytes(gzip.compress(json.dumps(texts, separators=(",", ":")).encode(), mtime=0))


if __name__ == "__main__":
    main()
