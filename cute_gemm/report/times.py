"""Pictures of a kernel's time: the roofline, and the terms of its prediction."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from cute_gemm._text import duration, short
from cute_gemm.rendering.pictures import svg

if TYPE_CHECKING:
    from cute_gemm.cost_model.prediction import Prediction
    from cute_gemm.report.performance import Performance

#: Size of a roofline plot in pixels, and the margins for numbers on the left, right and below.
_WIDE, _HIGH, _LEFT, _RIGHT, _BELOW = 246, 220, 56, 32, 40
_LINE = "#bbbbbb"
_SMALL = f'font-size="11" fill="{svg.GREY}"'
#: Lengths in pixels: a bar of the prediction, its label, and the distance between bars.
_BAR, _LABEL, _STEP = 136, 112, 24


def roofline(bounds: Performance, seconds: float | None = None) -> str:
    """Draw a kernel on the roofline of its GPU, logarithmic on both axes.

    ``bounds.roofline`` must be known. With ``seconds``, the compulsory and the requested intensity
    are points at the kernel's speed; without, lines.
    """
    roof, gpu = bounds.roofline, bounds.gpu
    if roof is None or gpu is None:
        raise ValueError("bounds has no roofline; expected one of a GPU whose peak rate is known")
    speed = bounds.flops / seconds / 1e12 if seconds else None
    intensities = [x for x in (bounds.intensity, bounds.requested_intensity) if x > 0]
    low = math.floor(math.log10(min(*intensities, roof.ridge / 10)))
    high = math.ceil(math.log10(max(*intensities, roof.ridge * 10)))
    slope = roof.bandwidth_gbs / 1e3
    top = math.ceil(math.log10(roof.peak_tflops * 1.2))
    least = min(slope * 10.0**low, speed or roof.peak_tflops)
    bottom = max(math.floor(math.log10(least)), top - 6)
    across, up = _WIDE / (high - low), _HIGH / (top - bottom)

    def at(intensity: float, rate: float) -> tuple[float, float]:
        x = (math.log10(intensity) - low) * across
        return _LEFT + x, _HIGH - (math.log10(rate) - bottom) * up

    grid, marks = [], []
    # Numbers that would run into each other are left out.
    every = math.ceil((len(_power(high)) + 1) * svg.SANS_EM * 11 / across)
    for power in range(low, high + 1):
        x = _LEFT + (power - low) * across
        grid.append(f"M{svg.number(x)} 0v{_HIGH}")
        if (high - power) % every == 0:
            marks.append(svg.text(x, _HIGH + 16, _power(power), 'text-anchor="middle"'))
    for power in range(bottom, top + 1):
        y = _HIGH - (power - bottom) * up
        grid.append(f"M{_LEFT} {svg.number(y)}h{_WIDE}")
        marks.append(svg.text(_LEFT - 6, y + 4, _power(power), 'text-anchor="end"'))
    marks.append(svg.text(_LEFT, _HIGH + 33, "operations per byte"))
    marks.append(svg.text(_LEFT + 6, 13, "TFLOP/s"))

    ridge = at(roof.ridge, roof.peak_tflops)
    # The roof begins at the left edge or at the lower edge.
    first = max(10.0**low, 10.0**bottom / slope)
    start, end = at(first, slope * first), (_LEFT + _WIDE, ridge[1])
    corners = ((*start, "M"), (*ridge, "L"), (*end, "L"))
    line = [f"{step}{svg.number(x)} {svg.number(y)}" for x, y, step in corners]
    body = [
        svg.path(grid, f'stroke="{_LINE}" stroke-width="0.6"'),
        svg.group(_SMALL, marks),
        svg.path(line, f'stroke="{svg.INK}" stroke-width="2"'),
        _vertical(ridge[0], ridge[1], _HIGH, f'stroke="{svg.GREY}" stroke-dasharray="3 3"'),
        svg.text(ridge[0] + 5, _HIGH - 6, f"ridge {short(roof.ridge)}", _SMALL),
    ]  # fmt: skip
    legend = []
    kinds = (("compulsory", bounds.intensity, svg.TINTS[6], False),
             ("requested", bounds.requested_intensity, "#ffffff", True))  # fmt: skip
    for name, intensity, fill, hatched in kinds:
        if intensity <= 0:
            continue
        legend.append(svg.Item(fill, f"{name}: {short(intensity)} per byte", hatched=hatched))
        if speed is None:
            x, _ = at(intensity, 10.0**bottom)
            body.append(_vertical(x, 0, _HIGH, f'stroke="{svg.BAD if hatched else svg.INK}"'))
            continue
        x, y = at(intensity, max(speed, 10.0**bottom))
        tip = f"{name} intensity {short(intensity)}, {short(speed)} TFLOP/s"
        body.append(svg.rect(x - 6, y - 6, 12, 12, f'fill="{fill}" stroke="{svg.INK}"', tip))
        body += [svg.hatch([(x - 6, y - 6, 12.0, 12.0)])] * hatched
    caption = f"{gpu.name}, {short(roof.peak_tflops)} TFLOP/s of the {roof.unit} and "
    caption += f"{short(roof.bandwidth_gbs)} GB/s of memory: at most "
    caption += f"{short(roof.attainable_tflops)} TFLOP/s"
    if speed is not None:
        caption += f", {short(speed)} predicted"
        caption += f" ({100 * speed / roof.attainable_tflops:.1f} % of it)"
    caption += ". Requested bytes that L1 and L2 serve may lie above the memory line."
    size = (_LEFT + _WIDE + _RIGHT + 0.0, _HIGH + _BELOW + 0.0)
    return svg.document("Roofline", [caption], body, size, legend)


def _vertical(x: float, top: float, bottom: int, look: str) -> str:
    return svg.path([f"M{svg.number(x)} {svg.number(top)}V{bottom}"], look)


def _power(exponent: int) -> str:
    return f"{10**exponent:,}" if exponent >= 0 else f"{10.0**exponent:g}"


def predicted_terms(prediction: Prediction) -> str:
    """Draw the terms of a prediction as bars, the longest first, and the predicted time as a line.

    The terms are times of units that work in parallel; they do not add up.
    """
    terms = [term for term in prediction.largest(len(prediction.terms)) if term[1] > 0]
    longest = max([prediction.seconds, *(seconds for _, seconds in terms)])
    scale = _BAR / longest if longest else 0.0
    body = []
    for row, (name, seconds) in enumerate(terms):
        y, wide = row * _STEP, max(1.0, seconds * scale)
        fill = svg.TINTS[7] if row == 0 else svg.TINTS[6]
        tip = f"{name}: {duration(seconds)}"
        body.append(svg.rect(_LABEL, y, wide, 16, f'fill="{fill}" stroke="{svg.INK}"', tip))
        body.append(svg.text(_LABEL - 8, y + 12, name, 'font-size="12" text-anchor="end"'))
        body.append(svg.text(_LABEL + wide + 6, y + 12, duration(seconds), 'font-size="12"'))
    at, high = _LABEL + prediction.seconds * scale, len(terms) * _STEP
    body.append(_vertical(at, -4, high, f'stroke="{svg.BAD}" stroke-dasharray="4 3"'))
    look = f'font-size="12" fill="{svg.BAD}" text-anchor="middle"'
    body.append(svg.text(at, high + 12, f"{duration(prediction.seconds)} predicted", look))
    caption = "The time of each unit if it were the only one. Units work in parallel: the terms do "
    caption += "not add up to the predicted time."
    size = (_LABEL + _BAR + 12 * svg.SANS_EM * 14, high + 16.0)
    return svg.document("Predicted time", [caption], body, size, [])
