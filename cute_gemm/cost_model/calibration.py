"""The numbers of predictions, fitted to times measured on a GPU.

A `Calibration` is a JSON file. Those of the package are in ``calibrations/``; ``cute-gemm
calibrate`` writes one for the user's GPU (`cute_gemm.cost_model.calibrated`).
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from cute_gemm.cost_model.correction import FEATURES, LEVELS, Correction, Tree

#: Format of files; files of another format are not read.
_FORMAT = 7
#: Greatest number in a file, and least number that times are divided by: times stay finite.
_MOST, _LEAST = 1e6, 1e-6
_DIVISORS = ("slowdown", "dram", "l2", "cold_mb", "stream_part", "narrow_part")
#: Greatest sum of the trees of a file, a logarithm.
_MOST_CORRECTION = 20.0
#: Fields of a `Pace` that a file always has; it has other fields only if not the default.
_ALWAYS = "slowdown", "latency", "serial"


class Constants(NamedTuple):
    """The constants of a GPU that the predictions of all kernels depend on."""

    #: Microseconds of a launch before its first and after its last instruction; the same for a
    #: launch that may start before the previous one has ended; the same for one whose successor is
    #: ready before it ends, such as the kernel after a packing kernel.
    launch_us: float
    dependent_us: float
    ahead_us: float
    #: Further microseconds of a launch with clusters, and for each 128 threads of a CTA.
    cluster_us: float
    group_us: float
    #: Most further microseconds of a launch whose matrices are read from DRAM, and the megabytes at
    #: which it takes 63 % of them.
    cold_us: float
    cold_mb: float
    #: Clocks that a CTA of an auxiliary kernel takes to start.
    start: float
    #: Clocks in the epilogue of a wavefront, of an L1 tag pass, and of a line that TMA stores.
    end: float
    #: Clocks of a wavefront in the main loop.
    wavefront: float
    #: Clocks of a load whose latency is not hidden.
    wait: float
    #: Clocks of a load of an epilogue's operand, in addition to those of its lines.
    operand_load: float
    #: Clocks of a sector of L2 that the epilogue reads or writes partially.
    partial: float
    #: Clocks of the TMA unit for a line of L2 that a row of a box touches; the parts of these
    #: clocks for each line and each sector in excess of those that its bytes fill; and clocks for a
    #: row outside the matrix.
    tma_line: float
    straddled: float
    unaligned: float
    outside: float
    #: Further DRAM time, as a part of the last round times the empty part of its places.
    idle: float
    #: Part of DRAM's bandwidth that an auxiliary kernel reaches, and a factor on it for accesses
    #: narrower than 16 bytes. Scratch that is still in L2 is not read faster: auxiliary kernels
    #: have too few bytes in flight.
    stream_part: float
    narrow_part: float

    def launch(self, dependent: bool, block: int = 128, clusters: bool = False) -> float:
        """Return the microseconds of a launch, with ``block`` threads of a CTA."""
        alone = self.dependent_us if dependent else self.launch_us
        return alone + self.group_us * (block / 128 - 1) + self.cluster_us * clusters


class Pace(NamedTuple):
    """How fast a kernel runs on the units of a multiprocessor.

    Fields are fitted to measured times, except those after ``box``, which the config determines.
    The defaults are guesses, for kernels without times.
    """

    #: Ratio of the clocks of the products to those at the peak rate of the kernel's instruction.
    slowdown: float = 1.5
    #: Lower bound of the slowdown if products keep a unit busy.
    least_slowdown: float = 0.0
    #: Clocks of a k-tile that are not overlapped in a single CTA.
    latency: float = 450.0
    #: Part of a warp's work that the other warps of its CTA do not overlap.
    serial: float = 0.6
    #: Part of DRAM's bandwidth that the kernel reaches.
    dram: float = 0.63
    #: Clocks of an L1 tag pass.
    passes: float = 1.14
    #: Clocks that a CTA takes to start.
    start: float = 250.0
    #: Clocks from global to shared memory under load, which the k-tiles in flight must cover.
    memory: float = 1180.0
    #: Bytes of L2 per clock and multiprocessor.
    l2: float = 54.5
    #: Clocks of a box of C that TMA moves.
    box: float = 0.0
    #: Loads of a k-tile whose latencies add up.
    waits: float = 0.0
    #: k-tiles in flight at a time; 0 if a CTA waits for each.
    ahead: int = 0
    #: Instructions issued for an access, including those for its address and predicate.
    issue: float = 1.0
    #: Whether wgmma multiplies: its rate includes its reads of shared memory.
    wgmma: bool = False
    #: Part of a tile's start and end that the products of the next tile do not hide.
    exposed: float = 1.0
    #: Factor on the clocks of k-tiles if a multiprocessor has a single tile.
    lone: float = 1.0
    #: Instructions that add the products of a k-tile to an accumulator outside the tensor cores.
    adds: float = 0.0
    #: Factor on the clocks of the TMA unit.
    tma: float = 1.0
    #: Factor on the clocks of sectors that the epilogue reads or writes partially.
    partial: float = 1.0


class Basis(NamedTuple):
    """The times that numbers were fitted to."""

    #: Number of times, and the root mean squared relative error of the predicted times.
    times: int = 0
    rms: float = 0.0


@dataclass(frozen=True)
class Calibration:
    """The fitted numbers of one GPU.

    ``gpu``: name of the GPU; ``source``: source of the times; ``paces``: by kernel and type of the
    products, ``"half"`` for both 16-bit types; ``factors``: further numbers of a kernel's
    prediction, by kernel; ``bases``: times that a `Pace` was fitted to, by kernel and type;
    ``correction``: correction of the predicted times, if any.
    """

    gpu: str
    source: str
    constants: Constants
    paces: Mapping[str, Mapping[str, Pace]]
    factors: Mapping[str, Mapping[str, float]]
    bases: Mapping[str, Mapping[str, Basis]] = field(default_factory=dict)
    correction: Correction | None = None

    def pace(self, kernel: str, *kinds: str) -> Pace | None:
        """Return the pace of a kernel for the first of these types that has one."""
        paces = self.paces.get(kernel, {})
        return next((paces[kind] for kind in kinds if kind in paces), None)

    def on_another_chip(self) -> Calibration:
        """Return the numbers for a GPU of another chip without measured times.

        A slowdown below 1 means that the measured chip overlapped products with other work. On
        another chip products take at least the time that its data sheet implies.
        """
        paces = {
            kernel: {kind: pace._replace(least_slowdown=1.0) for kind, pace in rows.items()}
            for kernel, rows in self.paces.items()
        }
        return replace(self, paces=paces)

    def encoded(self) -> str:
        """Return the content of a file, with a line for each pace."""
        defaults = Pace()._asdict()
        rows = {
            kernel: {
                kind: {
                    name: x
                    for name, x in pace._asdict().items()
                    if name in _ALWAYS or x != defaults[name]
                }
                | self._basis(kernel, kind)
                for kind, pace in paces.items()
            }
            for kernel, paces in self.paces.items()
        }
        content = {
            "format": _FORMAT, "gpu": self.gpu, "source": self.source,
            "constants": self.constants._asdict(), "factors": self.factors, "paces": rows,
        }  # fmt: skip
        if self.correction is not None:
            content["correction"] = list(self.correction.trees)
        return _lines(content) + "\n"

    def _basis(self, kernel: str, kind: str) -> dict[str, Any]:
        basis = self.bases.get(kernel, {}).get(kind)
        return {} if basis is None else {"fitted_to": basis._asdict()}


def decoded(text: str | bytes) -> Calibration:
    """Return the calibration in a file's content; raise ValueError for invalid content."""
    try:
        content = json.loads(text)
        if content["format"] != _FORMAT:
            raise ValueError(f"format {content['format']}")
        paces: dict[str, dict[str, Pace]] = {}
        bases: dict[str, dict[str, Basis]] = {}
        for kernel, rows in content["paces"].items():
            for kind, row in rows.items():
                basis = row.pop("fitted_to", None)
                paces.setdefault(kernel, {})[kind] = Pace(**_numbers(row))
                if basis is not None:
                    bases.setdefault(kernel, {})[kind] = Basis(**_numbers(basis))
        constants = Constants(**_numbers(content["constants"]))
        if min(constants.launch(dependent, 32) for dependent in (False, True)) < 0:
            raise ValueError(f"not a calibration: group_us is {constants.group_us!r}")
        for row in content["factors"].values():
            _numbers(row, tuple(row))
        trees = tuple(Tree(*map(tuple, tree)) for tree in content.get("correction", ()))
        for tree in trees:
            _finite(dict(enumerate((*tree.features, *tree.thresholds, *tree.values))))
            sizes = len(tree.features), len(tree.thresholds), len(tree.values)
            places = all(type(x) is int and 0 <= x < len(FEATURES) for x in tree.features)
            if sizes != (LEVELS, LEVELS, 1 << LEVELS) or not places:
                raise ValueError("a tree of the correction has wrong levels or features")
        if sum(max(map(abs, tree.values)) for tree in trees) > _MOST_CORRECTION:
            raise ValueError("the correction exceeds the largest allowed factor")
        return Calibration(
            str(content["gpu"]), str(content["source"]), constants, paces, content["factors"],
            bases, Correction(trees) if trees else None,
        )  # fmt: skip
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"not a calibration: {error}") from error


def _numbers(row: dict[Any, Any], divisors: tuple[str, ...] = _DIVISORS) -> dict[Any, Any]:
    """Return the row if its numbers can predict times; else raise ValueError."""
    for name, value in _finite(row).items():
        if not (_LEAST if name in divisors else 0) <= value <= _MOST:
            raise ValueError(f"not a calibration: {name} is {value!r}")
    return row


def _finite(row: dict[Any, Any]) -> dict[Any, Any]:
    """Return the row if its numbers are finite floats; else raise ValueError."""
    for name, value in row.items():
        if type(value) not in (int, float) or not abs(value) <= sys.float_info.max:
            raise ValueError(f"not a calibration: {name} is {value!r}")
    return row


def _lines(value: Any, depth: int = 0) -> str:
    """Return JSON with each table of numbers and each item of a list on one line."""
    if isinstance(value, list):
        return "[\n" + ",\n".join(" " + json.dumps(x) for x in value) + "\n" + " " * depth + "]"
    if not isinstance(value, Mapping) or not any(isinstance(x, Mapping) for x in value.values()):
        return json.dumps(value)
    if set(value) & {"fitted_to"}:
        return json.dumps(value)
    indent = " " * (depth + 1)
    rows = (f"{indent}{json.dumps(name)}: {_lines(x, depth + 1)}" for name, x in value.items())
    return "{\n" + ",\n".join(rows) + "\n" + " " * depth + "}"


#: The GPU whose calibration is used for GPUs without one.
REFERENCE = "H200"


#: File of the initial numbers of the `REFERENCE`'s fit.
_PRIOR = "prior"


def prior() -> Calibration:
    """Return the initial numbers of the fit of the `REFERENCE`."""
    numbers = shipped(_PRIOR)
    assert numbers is not None
    return numbers


def start(gpu: str) -> Calibration:
    """Return the initial numbers of the fit of a GPU; numbers that no time depends on stay.

    They are the package's numbers of the `REFERENCE`, which has the most times, and `prior` for the
    `REFERENCE` itself; never those of the GPU, so that the same times give the same numbers.
    """
    numbers = prior() if gpu == REFERENCE else shipped(REFERENCE)
    assert numbers is not None
    return numbers


@cache
def shipped(gpu: str) -> Calibration | None:
    """Return the package's calibration of a GPU, or None."""
    name = gpu.lower().replace(" ", "-")
    if re.fullmatch("[a-z0-9-]+", name) is None:  # a name from a GPU's file, such as ../../x
        return None
    path = files(__package__) / "calibrations" / f"{name}.json"
    return decoded(path.read_text(encoding="utf-8")) if path.is_file() else None
