"""The ladder as bars and speed over size as lines, drawn by matplotlib."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cute_gemm.errors import OptionError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from cute_gemm.measure.result import BenchResult, SizeResult

#: Okabe and Ito's colours (https://jfly.uni-koeln.de/color/): colour-blind readers tell them apart;
#: their yellow, which is too light for lines on white, left out.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000")
#: With the colours, for more lines than there are colours.
_MARKERS, _DASHES = "osD^vPX", ("-", "--", ":")
#: The same file for the same figures: ids come from this, and there is no date.
_STYLE: Any = {"svg.hashsalt": "cute_gemm", "font.size": 9, "font.family": "DejaVu Sans"}
_METADATA: dict[str, dict[str, Any]] = {".svg": {"Date": None}, ".png": {"Software": None}}


def check(file: str | Path) -> None:
    """Refuse a file that could not be drawn, with OptionError, before anything is measured for it.

    Its name must end in ``.svg`` or ``.png``, its directory exist, and matplotlib be installed.
    """
    path = Path(file)
    if path.suffix.lower() not in _METADATA:
        raise OptionError(f"plot={str(file)!r}; expected a file that ends in .svg or .png")
    if not path.absolute().parent.is_dir():
        raise OptionError(f"plot={str(file)!r} lies in no directory that exists")
    if importlib.util.find_spec("matplotlib") is None:
        raise OptionError(
            f"plot={str(file)!r} needs matplotlib, which is not installed: "
            "pip install 'cute-gemm[plot]'"
        )


def save(result: BenchResult, file: str | Path) -> None:
    """Draw a result to an ``.svg`` or ``.png``: what `draw` returns."""
    check(file)
    import matplotlib

    with matplotlib.rc_context(_STYLE):
        figure = draw(result)
        suffix = Path(file).suffix.lower()
        figure.savefig(file, format=suffix[1:], dpi=150, metadata=_METADATA[suffix])


def draw(result: BenchResult) -> Figure:
    """Return bars of the largest size and, if there are several, lines of speed over size.

    Of a single kernel beside cuBLAS there are bars alone, of all sizes.
    """
    from matplotlib.figure import Figure

    kernels = _beside_cublas(result.sizes)
    ops, several = result.ops, len(result.sizes) > 1 and len(kernels) != 1
    across = min(2, len(ops))
    down = -(-len(ops) // across) if several else 0
    figure = Figure(figsize=(11, 4.5 + 3.6 * down), layout="constrained", facecolor="white")
    where = "the CPU" if result.gpu is None else result.gpu
    figure.suptitle(f"gemm {result.dtype}, compute {result.compute}, on {where}", weight="bold")
    grid = figure.add_gridspec(1 + down, across, height_ratios=[4.5, *[3.6] * down])
    bars = figure.add_subplot(grid[0, :])
    if len(kernels) == 1:
        (kernel,) = kernels
        places = [(size.label, size, kernel) for size in result.sizes]
        _bars(bars, result.ops, places, True, kernel)
    else:
        size = max(result.sizes, key=lambda size: size.m * size.n * size.k)
        compared = _beside_cublas([size])  # cuBLAS is the line at 100 %
        drawn = compared or dict.fromkeys(entry.kernel for entry in size.entries if entry.speed)
        title = f"M={size.m} N={size.n} K={size.k}" + f" L={size.l}" * (size.l > 1)
        _bars(bars, result.ops, [(x, size, x) for x in drawn], bool(compared), title)
    first = None
    for index, op in enumerate(ops if several else ()):
        axes = figure.add_subplot(grid[1 + index // across, index % across], sharey=first)
        first = first or axes
        _lines(axes, result, op)
    if first is not None:
        handles = first.get_legend_handles_labels()
        figure.legend(*handles, loc="outside lower center", ncols=5, frameon=False)
    return figure


def _beside_cublas(sizes: Sequence[SizeResult]) -> dict[str, None]:
    """The kernels, other than cuBLAS itself, that were timed in turns with it."""
    return {
        entry.kernel: None
        for size in sizes
        for entry in size.entries
        if entry.kernel != "cublas" and entry.speed and entry.speed.of_cublas
    }


def _bars(
    axes: Axes, ops: Sequence[str], places: Sequence[tuple[str, SizeResult, str]],
    compared: bool, title: str,
) -> None:  # fmt: skip
    """Draw a group of bars, one for each op, for each label, size and kernel."""
    width = 0.84 / len(ops)
    for index, op in enumerate(ops):
        positions: list[float] = []
        heights: list[float] = []
        for place, (_, size, kernel) in enumerate(places):
            speed = next((x.speed for x in size.entries if (x.kernel, x.op) == (kernel, op)), None)
            if speed is None or (compared and speed.of_cublas is None):
                continue
            positions.append(place + (index - (len(ops) - 1) / 2) * width)
            heights.append(100 * (speed.of_cublas or 0.0) if compared else speed.gflops)
        bars = axes.bar(positions, heights, width, label=op, color=COLOURS[index % len(COLOURS)])
        texts = [f"{h:.0f}" if h >= 10 else f"{h:.2g}" for h in heights]
        axes.bar_label(bars, texts, rotation=90, padding=2, fontsize=6.5)
    labels = [label for label, _, _ in places]
    tilted: dict[str, Any] = {"rotation": 30, "ha": "right"} if sum(map(len, labels)) > 60 else {}
    axes.set_xticks(range(len(labels)), labels, **tilted)
    if compared:
        axes.axhline(100, color="#555555", linewidth=0.8, linestyle="--", zorder=0)
        axes.set_ylabel("% of cuBLAS in the same run")
    else:
        axes.set_ylabel("GFLOP/s")
    axes.margins(x=0.01, y=0.12)
    axes.set_title(title)
    axes.legend(frameon=False, ncols=len(ops), loc="lower right", bbox_to_anchor=(1, 1))
    _plain(axes)


def _lines(axes: Axes, result: BenchResult, op: str) -> None:
    """Draw one op: a line for each kernel, speed over size."""
    sizes = sorted(result.sizes, key=lambda size: size.m * size.n * size.k)
    drawn = {e.kernel: None for size in sizes for e in size.entries if e.speed}
    for index, kernel in enumerate(drawn):
        speeds = [size.find(kernel, op).speed for size in sizes]
        again, colour = divmod(index, len(COLOURS))
        axes.plot(
            range(len(sizes)), [speed.gflops if speed else float("nan") for speed in speeds],
            label=kernel, color=COLOURS[colour], marker=_MARKERS[(index + again) % len(_MARKERS)],
            linestyle=_DASHES[again % len(_DASHES)], markersize=4, linewidth=1.2,
        )  # fmt: skip
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.set_xticks(range(len(sizes)), [size.label for size in sizes])
    axes.set_title(op)
    axes.set_ylabel("GFLOP/s")
    _plain(axes)


def _plain(axes: Axes) -> None:
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
