"""The pictures of docs/benchmarks.md: a chart of stored runs for each question of the page."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from benchmarks_page import OPS, TYPES, by_class, of_auto, over_ours, stored

from cute_gemm.rendering.pictures.svg import (
    GREY,
    INK,
    TINTS,
    Item,
    document,
    group,
    number,
    path,
    rect,
    text,
)

#: Pixels of the plot and of a row, and of the room for names at the left and numbers at the right.
SIDE, ROW, LEFT, RIGHT = 380, 20, 196, 44
FASTER = "Right of 1, cute_gemm is faster."
LAYOUTS = ("bfloat16", "float32", "float64", "complex64", "complex128")


class Row(NamedTuple):
    """Ratios of a row, by the name of the series; ``ends`` is the range of a single ratio."""

    name: str
    ratios: dict[str, float]
    ends: tuple[float, float] | None = None


def charts() -> Iterator[tuple[str, str]]:
    """Yield each chart by its name."""
    for name, made in {
        "cublas": _cublas(), "layouts": _layouts(), "epilogues": _epilogues(),
        "scales": _scales(), "batches": _batches(), "host": _host(),
    }.items():  # fmt: skip
        if made:
            yield f"benchmark_{name}.svg", made


def chart(title: str, caption: Sequence[str], rows: Sequence[Row]) -> str:
    """Draw ratios on a logarithmic axis, a row for each name and a color for each series."""
    known = [x for row in rows for x in (*row.ratios.values(), *(row.ends or ()))]
    low = math.floor(math.log2(min(0.9, *known)))
    high = math.ceil(math.log2(max(1.1, *known)))
    step, height = SIDE / (high - low), len(rows) * ROW

    def at(ratio: float) -> float:
        return LEFT + (math.log2(ratio) - low) * step

    powers = [2.0**power for power in range(low, high + 1)]
    grid = [f"M{number(at(power))} 0v{height}" for power in powers]
    axis = [text(at(x), height + 15, f"{x:g}", 'text-anchor="middle"') for x in powers]
    series = [*dict.fromkeys(name for row in rows for name in row.ratios)]
    tints = dict(zip(series, TINTS, strict=False))
    names, ranges, marks = [], [], []
    for place, row in enumerate(rows):
        middle = (place + 0.5) * ROW
        names.append(text(LEFT - 10, middle + 4, row.name, 'text-anchor="end"'))
        if row.ends is not None:
            first, last = map(at, row.ends)
            ranges.append(f"M{number(first)} {number(middle)}H{number(last)}")
        for name, ratio in row.ratios.items():
            attributes = f'fill="{tints[name]}" stroke="{INK}" stroke-width="0.8"'
            tip = f"{row.name}, {name}: {ratio:.2f}"
            marks.append(rect(at(ratio) - 4.5, middle - 4.5, 9, 9, attributes, tip))
        if len(row.ratios) == 1:
            marks.append(text(LEFT + SIDE + 10, middle + 4, f"{ratio:.2f}", 'font-size="11"'))
    body = [
        path(grid, 'stroke="#bbbbbb" stroke-width="0.6"'),
        path([f"M{number(at(1))} 0v{height}"], f'stroke="{INK}" stroke-width="1.4"'),
        path(ranges, f'stroke="{GREY}" stroke-width="2"') if ranges else "",
        group('font-size="11"', names), group(f'font-size="11" fill="{GREY}"', axis), *marks,
    ]  # fmt: skip
    legend = [Item(tints[name], name) for name in series]
    return document(title, caption, body, (LEFT + SIDE + RIGHT, height + 20.0), legend)


def _mean(name: str, ratios: Sequence[float | None], series: str = "geometric mean") -> Row:
    """A row with the geometric mean of ratios, and their range."""
    known = [ratio for ratio in ratios if ratio is not None]
    return Row(name, {series: statistics.geometric_mean(known)}, (min(known), max(known)))


def _cublas() -> str:
    rows, gpu = [], ""
    for name in TYPES:
        for run, speeds in of_auto(name, 4096):
            rows.append(Row(name, {op: speeds[op]["of_cublas"] for op in OPS if op in speeds}))
            gpu = run["machine"]["gpu"]
    caption = [f"4096 x 4096 x 4096, {gpu}. {FASTER}"]
    return chart("Speed over that of cuBLAS", caption, rows) if rows else ""


def _layouts() -> str:
    runs = [(name, run) for name in LAYOUTS if (run := stored(f"layouts-{name}"))]
    rows = [
        _mean(f"{name}, {kind}", ratios)
        for name, run in runs
        for kind, ratios in by_class(run).items()
    ]
    caption = [f"Means and ranges of drawn problems, {runs[0][1]['machine']['gpu']}. {FASTER}"]
    return chart("cuBLAS's time over cute_gemm's, by layout", caption, rows)


def _epilogues() -> str:
    run = stored("epilogues-bfloat16")
    if run is None:
        return ""
    found = run["result"]["bfloat16"]
    pairs = {
        "PyTorch's separate operations": ", unfused", "cuBLASLt, fused": ", cuBLASLt",
    }  # fmt: skip
    rows = []
    for name in found[0]["us"]:
        if "," in name or name in ("cuBLAS", "plain"):
            continue
        ratios = {}
        for series, suffix in pairs.items():
            both = [us[name + suffix] / us[name] for us in (x["us"] for x in found)
                    if name + suffix in us]  # fmt: skip
            if both:
                ratios[series] = statistics.geometric_mean(both)
        ratios["the plain product"] = statistics.geometric_mean(
            [x["us"]["plain"] / x["us"][name] for x in found]
        )
        rows.append(Row(name, ratios))
    caption = [
        f"Geometric means of {len(found)} shapes, bfloat16, {run['machine']['gpu']}. {FASTER}"
    ]
    return chart("Time over that of the fused launch of cute_gemm", caption, rows)


def _scales() -> str:
    runs = [run for name in ("deepgemm", "deepgemm-h100") if (run := stored(name))]
    rows = [
        _mean(f"{run['machine']['gpu'].split()[1]}, {name}", ratios)
        for run in runs
        for name, ratios in over_ours(run["result"]).items()
    ]
    return chart("DeepGEMM's time over cute_gemm's, fp8 with block scales",
                 [f"Geometric means and ranges. {FASTER}"], rows)  # fmt: skip


def _batches() -> str:
    rows, gpu = [], ""
    for name in ("float16", "float32"):
        for run, speeds in of_auto(f"batch-{name}", 512):
            rows.append(_mean(f"{name}, 64 of 512 x 512 x 512",
                              [speed["of_cublas"] for speed in speeds.values()]))  # fmt: skip
            gpu = run["machine"]["gpu"]
    for name in LAYOUTS:
        run = stored(f"layouts-{name}")
        if run is not None:
            rows.append(_mean(f"{name}, drawn batches", by_class(run)["batch"]))
    caption = [f"Means and ranges over ops or drawn problems, {gpu}. {FASTER}"]
    return chart("cuBLAS's time over cute_gemm's, batches", caption, rows)


def _host() -> str:
    run = stored("host")
    if run is None:
        return ""
    rows = [
        Row(name, {"PyTorch's host time over cute_gemm's": 1 / ratio})
        for name, (_, _, ratio) in run["result"]["beside PyTorch"].items()
    ]
    return chart("Host time of a call against PyTorch's",
                 [f"{run['machine']['gpu']}. {FASTER}"], rows)  # fmt: skip
