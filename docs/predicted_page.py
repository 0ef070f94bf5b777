"""Predicted and measured times of `tests/gpu/predicted.py`: a table, and a picture."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from typing import Any

from benchmarks_page import MISSING, _table, _where, stored

from cute_gemm.rendering.pictures.svg import (
    BAD,
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

#: Pixels of the plot, and of the room for numbers at its left and below.
SIDE, LEFT, BELOW = 420, 56, 40
#: Microseconds at the ends of both axes, as powers of ten.
LOW, HIGH = 0, 4
KINDS = {"auto": TINTS[6], "auto, with more than a product": TINTS[2], "by name": "#ffffff"}


def kind(entry: dict[str, Any]) -> str:
    """Which of the kinds of the picture a class is."""
    name = entry["class"]
    if name.startswith("auto, "):
        return "auto"
    return "by name" if name == entry["kernel"] else "auto, with more than a product"


def predicted(name: str) -> str:
    """Return the table of a stored run: percentiles of predicted over measured time, by class."""
    run = stored(name)
    if run is None:
        return MISSING
    classes: dict[str, list[float]] = {}
    for entry in run["result"]["entries"]:
        ratio = entry["predicted"] / entry["measured"]
        classes.setdefault(entry["class"], []).append(ratio)
    rows = []
    for words, ratios in classes.items():
        cuts = statistics.quantiles(ratios, n=20, method="inclusive")
        share = sum(0.9 <= x <= 1 / 0.9 for x in ratios) / len(ratios)
        rows.append([words, *(f"{cuts[place]:.2f}" for place in (1, 9, 17)), f"{share:.0%}",
                     str(len(ratios))])  # fmt: skip
    heads = ["class", "10th percentile", "median", "90th", "within 10 %", "problems"]
    return "\n\n".join([f"`{run['command']}`", _where(run), _table(heads, rows)]) + "\n"


def picture(entries: Iterable[dict[str, Any]], gpu: str) -> str:
    """Draw each problem by its measured and its predicted time, logarithmic on both axes."""
    step = SIDE / (HIGH - LOW)

    def at(microseconds: float) -> float:
        return (min(max(math.log10(microseconds), LOW), HIGH) - LOW) * step

    grid, marks = [], []
    for power in range(LOW, HIGH + 1):
        place = (power - LOW) * step
        grid += [f"M{number(LEFT + place)} 0v{SIDE}", f"M{LEFT} {number(SIDE - place)}h{SIDE}"]
        words = f"{10**power:,} us"
        marks.append(text(LEFT + place, SIDE + 16, words, 'text-anchor="middle"'))
        marks.append(text(LEFT - 6, SIDE - place + 4, words, 'text-anchor="end"'))
    marks.append(text(LEFT + SIDE / 2, SIDE + 33, "measured", 'text-anchor="middle"'))
    marks.append(text(LEFT + 6, 13, "predicted"))
    body = [
        path(grid, 'stroke="#bbbbbb" stroke-width="0.6"'),
        group(f'font-size="11" fill="{GREY}"', marks),
        path([f"M{LEFT} {SIDE}L{LEFT + SIDE} 0"], f'stroke="{INK}"'),
    ]
    shift = math.log10(1.25) * step
    lines = (
        f"M{LEFT} {number(SIDE - shift)}L{number(LEFT + SIDE - shift)} 0",
        f"M{number(LEFT + shift)} {SIDE}L{LEFT + SIDE} {number(shift)}",
    )
    body.append(path(lines, f'stroke="{BAD}" stroke-dasharray="3 3"'))
    for entry in sorted(entries, key=kind, reverse=True):
        x, y = LEFT + at(entry["measured"]), SIDE - at(entry["predicted"])
        tip = f"{entry['problem']}: {entry['kernel']}, {entry['measured']:.1f} us measured, "
        tip += f"{entry['predicted']:.1f} predicted"
        attributes = f'fill="{KINDS[kind(entry)]}" stroke="{INK}" stroke-width="0.5"'
        body.append(rect(x - 2.5, y - 2.5, 5, 5, attributes, tip))
    legend = [Item(tint, words) for words, tint in KINDS.items()]
    caption = f"{gpu}. The dashed lines are 25 % off."
    size = LEFT + SIDE + 24.0, SIDE + BELOW + 0.0
    return document("Predicted and measured times", [caption], body, size, legend)
