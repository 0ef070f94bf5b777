"""The calibration for predictions on a GPU: the user's, the package's, or another GPU's.

The user's calibrations are one file per GPU next to the cubins; ``cute-gemm calibrate`` writes
them. A damaged file, or one of another format, counts as missing, with a warning.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from cute_gemm._kept import clear_all
from cute_gemm.cost_model.calibration import REFERENCE, Calibration, decoded, shipped
from cute_gemm.gpus import table
from cute_gemm.gpus.gpu import Gpu
from cute_gemm.toolchain import cache

if TYPE_CHECKING:
    from cute_gemm.cost_model.correction import Correction
    from cute_gemm.problem.problem import GemmProblem

#: Prefix of file names.
_KIND = "calibration"
#: Calibrations by name of the GPU, read at first use, and whether they are the user's.
_known: dict[str, tuple[Calibration, bool]] = {}


def calibration(gpu: Gpu) -> Calibration:
    """Return the calibration for a GPU; that of the `REFERENCE` if the GPU was not measured."""
    return (_known.get(gpu.name) or _found(gpu))[0]


def correction(gpu: Gpu, problem: GemmProblem) -> Correction | None:
    """Return the correction of predicted times of a problem on a GPU.

    None if the GPU was not measured; for groups, whose sizes are on the device; for block scales,
    to whose times no tree was fitted; and for empty products.
    """
    numbers = calibration(gpu)
    measured = numbers.gpu == gpu.name
    known = not (problem.groups.mode or problem.scales or problem.is_empty)
    return numbers.correction if measured and known else None


def provenance(gpu: Gpu) -> str:
    """Return the source of the predictions for a GPU, in words.

    Examples
    --------
    >>> from cute_gemm.gpus.table import gpu
    >>> provenance(gpu("A100"))
    "predictions from the A100 SXM 80GB's data sheet and times of the H200"
    """
    numbers, own = _known.get(gpu.name) or _found(gpu)
    if own:
        return f"predictions calibrated on this {gpu.name}"
    if numbers.gpu == gpu.name:
        return f"predictions from times of the {gpu.name}"
    return f"predictions from the {gpu.name}'s data sheet and times of the {numbers.gpu}"


def stored() -> list[str]:
    """Return the GPUs with calibrations of the user in the first directory of the cache."""
    names = []
    for path in cache.files(f"{_KIND}-*.json"):
        with suppress(OSError, ValueError):
            names.append(decoded(cache.read(path)).gpu)
    return names


def clear() -> None:
    """Delete the user's calibrations."""
    cache.remove(_KIND)
    forget()


def store(calibration: Calibration) -> None:
    """Store a calibration of the user, on disk and in this process."""
    cache.put_file(cache.file_of(_KIND, calibration.gpu), calibration.encoded().encode())
    take(calibration)


def take(calibration: Calibration, own: bool = True) -> None:
    """Use a calibration for its GPU in this process."""
    _known[calibration.gpu] = calibration, own
    clear_all()


def forget() -> None:
    """Discard calibrations in memory, so that they are read again."""
    _known.clear()
    clear_all()


def _found(gpu: Gpu) -> tuple[Calibration, bool]:
    file = cache.file_of(_KIND, gpu.name)
    for data in cache.contents(file):
        try:
            own = decoded(data)
        except ValueError as error:
            cache.warn_damaged(file, error, "calibrate")
            continue
        if own.gpu == gpu.name:
            return _known.setdefault(gpu.name, (own, True))
    numbers = shipped(gpu.name) or shipped(REFERENCE)
    assert numbers is not None
    if table.gpu(numbers.gpu).cc != gpu.cc:
        numbers = numbers.on_another_chip()
    return _known.setdefault(gpu.name, (numbers, False))
