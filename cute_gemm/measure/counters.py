"""Hardware counters of each class of accesses, compared with the figures of the model.

The names are Nsight Compute's metrics. Each of these metrics equals the model exactly on an H200;
similar metrics do not.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal

from cute_gemm.errors import ToolError, UnsupportedError

if TYPE_CHECKING:
    from cute_gemm.rendering.rows import AccessRow


@dataclass(frozen=True, slots=True)
class Class:
    """One figure of a class of accesses, and the hardware counter that measures it.

    ``metric`` is the counter's name in ncu. It is "" for conflicts without a counter; they are the
    counted wavefronts minus the fewest possible ones. ``total`` is the attribute of a row that
    predicts the figure. ``space``, ``direction`` and ``instruction`` (a regular expression) select
    the rows of a report that belong to the class. ``ccs`` are the compute capabilities that have
    the counter.
    """

    access: str
    figure: str
    metric: str
    total: str
    space: Literal["global", "shared"]
    direction: Literal["load", "store"]
    instruction: str
    ccs: range = range(80, 1000)

    @property
    def name(self) -> str:
        """``"ldmatrix wavefronts"``."""
        return f"{self.access} {self.figure}"

    def has(self, row: AccessRow) -> bool:
        """Return whether a row of a report belongs to the class."""
        return (row.space, row.direction) == (self.space, self.direction) and bool(
            re.fullmatch(self.instruction, row.instruction)
        )


_GLOBAL = "l1tex__t_{}_pipe_lsu_mem_global_op_{}.sum"
# Counters of SASS instructions. The counters of the data pipe (l1tex__data_...) count ldmatrix as
# loads, and also count wavefronts that wait for other warps.
_WAVEFRONTS = "smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_{}.sum"
_CONFLICTS = "smsp__sass_l1tex_data_bank_conflicts_pipe_lsu_mem_shared_op_{}.sum"


def _of_global(access: str, op: str, *rows: Any) -> Iterator[Class]:
    for figure in ("requests", "sectors"):
        metric = _GLOBAL.format(figure, op)
        yield Class(access, figure, metric, f"launch.{figure}", "global", *rows)


def _of_shared(access: str, op: str, conflicts: str, *rows: Any) -> Iterator[Class]:
    metrics = _WAVEFRONTS.format(op), _CONFLICTS.format(conflicts) if conflicts else ""
    for figure, metric in zip(("wavefronts", "conflicts"), metrics, strict=True):
        yield Class(access, figure, metric, f"launch.counted_{figure}", "shared", *rows)


def _of_hopper(
    access: str, space: Any, direction: Any, instruction: str, *figures: tuple[str, str, str]
) -> Iterator[Class]:
    """Yield classes whose metrics exist only on compute capability 9.0."""
    for figure, total, metric in figures:
        yield Class(
            access, figure, f"{metric}.sum", total, space, direction, instruction, range(90, 91)
        )


#: The compared figures. Conflicts without a metric follow their wavefronts.
CLASSES = (
    *_of_global("global loads", "ld", "load", r"ld\.global|cp\.async"),
    *_of_global("global stores", "st", "store", r"st\.global"),
    *_of_shared("shared loads", "ld", "", "load", r"ld\.shared"),
    *_of_shared("shared stores", "st", "", "store", r"st\.shared"),
    *_of_shared("ldmatrix", "ldsm", "ldsm", "load", r"ldmatrix.*"),
    *_of_shared("stmatrix", "stsm", "stsm", "store", r"stmatrix.*", range(90, 1000)),
    # Copies of 16 bytes bypass the data pipe, and take no wavefront of it.
    *_of_shared("cp.async", "ldgsts_cache_access", "ldgsts", "store", r"cp\.async"),
    # No counter has the L2 requests of TMA loads; one has the bytes that arrive in shared memory.
    *_of_hopper(
        "TMA loads", "global", "load", "TMA",
        ("requests", "launch.requests", "smsp__inst_executed_op_tma_ld_pred_on_any"),
        ("arriving sectors", "analysis.arriving",
         "l1tex__m_xbar2l1tex_read_sectors_mem_global_op_tma_ld"),
    ),
    *_of_hopper(
        "TMA stores", "global", "store", "TMA",
        ("requests", "launch.requests", "smsp__inst_executed_op_tma_st_pred_on_any"),
        ("sectors", "launch.sectors", "l1tex__m_l1tex2xbar_write_sectors_mem_global_op_tma_st"),
    ),
    *_of_hopper(
        "wgmma", "shared", "load", "wgmma",
        ("wavefronts", "launch.counted_wavefronts",
         "sm__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_gmma"),
        ("conflicts", "launch.counted_conflicts",
         "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_gmma"),
    ),
)  # fmt: skip


def predicted(rows: Iterable[AccessRow]) -> dict[str, int]:
    """Return the predicted total of each of ``CLASSES`` for a launch, by name.

    ``rows`` are all rows of a report, or ``make_row`` of all accesses of a kernel. Raise
    UnsupportedError for a row that belongs to no class.
    """
    totals = dict.fromkeys((entry.name for entry in CLASSES), 0)
    for row in rows:
        fitting = [entry for entry in CLASSES if entry.has(row)]
        if not fitting:
            raise UnsupportedError(
                f"{row.operand}: no counter is known for a {row.space} {row.direction} by "
                f"{row.instruction}, so it cannot be compared"
            )
        for entry in fitting:
            totals[entry.name] += attrgetter(entry.total)(row)
    return totals


@dataclass(frozen=True, slots=True)
class Comparison:
    """One figure of a class of accesses, predicted by the model and counted by ``metric``."""

    access: str
    figure: str
    predicted: int
    counted: int
    metric: str

    @property
    def difference(self) -> int:
        """Counted minus predicted."""
        return self.counted - self.predicted


def compare(expected: Mapping[str, int], metrics: Mapping[str, int]) -> tuple[Comparison, ...]:
    """Compare the result of `predicted` with the counts of the same launch.

    A metric may be missing if the device does not have the counter. Raise ToolError if a count of a
    missing metric is predicted.
    """
    figures: list[Comparison] = []
    for entry in CLASSES:
        units = expected[entry.name]
        if not entry.metric:  # conflicts; their wavefronts are the previous figure
            counted = figures[-1].counted - (figures[-1].predicted - units)
        elif entry.metric in metrics:
            counted = metrics[entry.metric]
        elif units:
            raise ToolError(f"ncu did not count {entry.metric}, of which {units} are predicted")
        else:
            continue
        figures.append(Comparison(entry.access, entry.figure, units, counted, entry.metric))
    return tuple(figures)


def parse(text: str) -> list[tuple[str, dict[str, int]]]:
    """Return the kernel name and the counts by metric of each launch in ``ncu --csv``'s output.

    Messages of ncu and of the program come before the line of column names. A value that is not a
    number (``n/a``) is left out.
    """
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID",')), len(lines))
    launches: dict[int, tuple[str, dict[str, int]]] = {}
    for row in csv.DictReader(line for line in lines[start:] if line.startswith('"')):
        _, counters = launches.setdefault(int(row["ID"]), (row["Kernel Name"], {}))
        value = row["Metric Value"].replace(",", "")
        if re.fullmatch(r"\d+(\.0+)?", value):
            counters[row["Metric Name"]] = int(value.partition(".")[0])
    return [launches[number] for number in sorted(launches)]
