"""Tables of the runs that `record.py` stored in ``docs/data``, as Markdown."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

DATA = Path(__file__).resolve().parent / "data"
#: What records the run of host times.
RECORD = "python docs/record.py docs/data host"
#: What stands in the place of a table without its run.
MISSING = "*not recorded yet*"
#: The runs of the README's table, with what their types are called.
TYPES = (
    "float16", "bfloat16", "float32", "tf32", "float64", "complex64", "complex128", "int8",
)  # fmt: skip
OPS = ("NN", "NT", "TN", "TT")
#: Types that the ladder has, and its runs, which docs/ladder.md shows too.
LADDERS = {"float16": "ladder_float16", "float32": "ladder"}


def stored(name: str) -> dict[str, Any] | None:
    """Return a stored run, or None if it is not stored."""
    file = DATA / f"{name}.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None


def _all_stored(names: str) -> list[dict[str, Any]]:
    """Return the runs of these words, or an empty list if one of them is not stored."""
    runs = [run for run in map(stored, names.split()) if run is not None]
    return runs if len(runs) == len(names.split()) else []


def by_class(run: dict[str, Any]) -> dict[str, list[float | None]]:
    """Return the ratios of a run of ``tests/gpu/layouts.py``, by class."""
    found: dict[str, list[float | None]] = {}
    for entry in run["result"]:
        found.setdefault(entry["class"], []).append(entry["ratio"])
    return found


def of_auto(name: str, extent: int) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return the run that has the kernel `auto` at a cube, and its speeds by op.

    ``name`` is a type or a run. A type's cube of 4096 is in the run of the ladder if it has one.
    """
    for run in filter(None, map(stored, (LADDERS.get(name, name), name))):
        for size in run["result"]["sizes"]:
            found = {x["op"]: x["speed"] for x in size["entries"] if x["kernel"] == "auto"}
            if found and {size["m"], size["n"], size["k"]} == {extent}:
                return [(run, {op: speed for op, speed in found.items() if speed})]
    return []


def benchmarks(name: str) -> str:
    """Return the tables of a run of ``cute-gemm bench``, one for each size.

    Kernels are rows and ops columns: TFLOP/s, and the part of cuBLAS's speed in the same run.
    """
    run = stored(name)
    if run is None:
        return MISSING
    result = run["result"]
    parts = [f"`{run['command']}`", _where(run)]
    for size in result["sizes"]:
        entries = {(x["kernel"], x["op"]): x for x in size["entries"]}
        rows = [
            [f"`{kernel}`", *(_speed(entries.get((kernel, op))) for op in result["ops"])]
            for kernel in dict.fromkeys(x["kernel"] for x in size["entries"])
        ]
        heads = [f"{_size(size)}: TFLOP/s, of cuBLAS", *result["ops"]]
        parts.append(_table(heads, rows))
    return "\n\n".join(parts) + "\n"


def geomeans(name: str) -> str:
    """Return what `tests/gpu/layouts.py` measured, by class: cuBLAS's time over ours."""
    run = stored(name)
    if run is None:
        return MISSING
    found = by_class(run)
    rows = [_mean(kind, ratios) for kind, ratios in found.items()]
    rows.append(_mean("**all**", [x for ratios in found.values() for x in ratios]))
    heads = ["class", "geometric mean", "worst", "best", "below 0.97", "problems"]
    return "\n\n".join([f"`{run['command']}`", _where(run), _table(heads, rows)]) + "\n"


def classes(names: str) -> str:
    """Return the runs of `layouts`, by words of ``names``: classes are rows and types columns.

    A cell is the geometric mean of cuBLAS's time over ours, and the least ratio.
    """
    runs = _all_stored(names)
    if not runs:
        return MISSING
    by_type: list[dict[str, list[float | None]]] = []
    for run in runs:
        ratios = by_class(run)
        ratios["**all**"] = [x for several in ratios.values() for x in several]
        by_type.append(ratios)
    kinds = dict.fromkeys(kind for ratios in by_type for kind in [*ratios][:-1])
    rows = []
    for kind in [*kinds, "**all**"]:
        means = [_mean(kind, ratios.get(kind, [])) for ratios in by_type]
        rows.append([kind, *(f"{x[1]} ({x[2]})" if x[1] != "-" else "" for x in means)])
    below = (_mean("", ratios["**all**"]) for ratios in by_type)
    rows.append(["below 0.97", *(f"{x[4]} of {x[5]}" for x in below)])
    heads = ["mean (worst)", *(name.removeprefix("layouts-") for name in names.split())]
    return f"{_table(heads, rows)}\n\n{_where(*runs)}\n"


def fused(names: str) -> str:
    """Return geometric means of the runs of `epilogues`, by words of ``names``."""
    runs = _all_stored(names)
    if not runs:
        return MISSING
    peers = {
        "plain": "time over the plain product's",
        "cuBLASLt": "cuBLASLt's time over ours",
        "unfused": "PyTorch's unfused time over ours",
    }
    heads, columns = [""], []
    for run in runs:
        for kind, found in run["result"].items():
            for peer, words in peers.items():
                heads.append(f"{kind}: {words}")
                columns.append(_column(found, peer))
    named = dict.fromkeys(name for column in columns for name in column)
    rows = [[f"`{name}`", *(column.get(name, "-") for column in columns)] for name in named]
    return f"{_table(heads, rows)}\n\n{_where(*runs)}\n"


def _column(found: list[dict[str, Any]], peer: str) -> dict[str, str]:
    """By epilogue the geometric mean of a peer's time over ours, or of ours over ``"plain"``."""
    all_names = dict.fromkeys(name for each in found for name in each["us"])
    fused = [x for x in all_names if "," not in x and x not in ("cuBLAS", "plain")]
    if peer == "plain":
        return {name: _ratio(found, "plain", name) for name in fused}
    return {name: _ratio(found, name, f"{name}, {peer}") for name in fused}


def epilogues(name: str) -> str:
    """Return what `tests/gpu/epilogues.py` measured: ratios of times, of each shape and of all."""
    run = stored(name)
    if run is None:
        return MISSING
    tables = [f"`{run['command']}`", _where(run)]
    peers = {
        "cuBLASLt": "cuBLASLt's time over ours",
        "unfused": "PyTorch's unfused time over ours",
        "max-autotune": "torch.compile's (max-autotune) time over ours",
        "QuACK": "QuACK's time over ours",
    }
    for found in run["result"].values():
        named = dict.fromkeys(name.partition(",")[0] for each in found for name in each["us"])
        fused = [name for name in named if name not in ("cuBLAS", "plain")]
        heads = ["M x N x K", "plain product, us", *(f"`{name}`" for name in fused)]
        rows = []
        for each in found:
            us = each["us"]
            size = " x ".join(map(str, each["shape"]))
            cells = (f"{us[name] / us['plain']:.2f}" for name in fused)
            rows.append([size, f"{us['plain']:.1f}", *cells])
        timed = [
            x
            for x in peers
            if any(name.endswith(f", {x}") for each in found for name in each["us"])
        ]
        means = [
            [f"`{name}`", *(_ratio(found, name, f"{name}, {other}") for other in timed)]
            for name in fused
        ]
        tables += [
            _table(["geometric mean", *(peers[other] for other in timed)], means),
            _table(heads, rows),
        ]
        if "QuACK" in timed:
            tables.append(_beside(found, "QuACK"))
    return "\n\n".join(tables) + "\n"


def deepgemm(name: str) -> str:
    """Return what `tests/gpu/deepgemm.py` measured: DeepGEMM's time over ours."""
    run = stored(name)
    if run is None:
        return MISSING
    dense, groups = run["result"]["dense"], run["result"]["groups"]
    peer, ours, *_ = dense[0]["us"]

    def cells(entries: list[dict[str, Any]]) -> list[str]:
        return [f"{x['us'][peer] / x['us'][ours]:.2f}" for x in entries]

    means = [_mean(name, ratios) for name, ratios in over_ours(run["result"]).items()]
    rows = dict.fromkeys(x["shape"][0] for x in dense)
    columns = dict.fromkeys(tuple(x["shape"][1:]) for x in dense)
    of_rows = [[str(m), *cells([x for x in dense if x["shape"][0] == m])] for m in rows]
    shapes = dict.fromkeys(tuple(x["shape"]) for x in groups)
    of_groups = [
        [f"{shape[0]} groups of {' x '.join(map(str, shape[1:]))}",
         *cells([x for x in groups if tuple(x["shape"]) == shape])]
        for shape in shapes
    ]  # fmt: skip
    kinds = dict.fromkeys(x["sizes"] for x in groups)
    return "\n\n".join([
        f"`{run['command']}`", _where(run),
        _table(["DeepGEMM's time over ours", "geometric mean", "worst", "best", "below 0.97",
                "products"], means),
        _table(["M, by N x K", *(" x ".join(map(str, x)) for x in columns)], of_rows),
        _table(["sizes of groups", *kinds], of_groups),
    ]) + "\n"  # fmt: skip


def blocks(names: str) -> str:
    """Return the means of the runs of `deepgemm`, by words of ``names``."""
    runs = _all_stored(names)
    if not runs:
        return MISSING
    rows: dict[str, list[str]] = {}
    for run in runs:
        for name, ratios in over_ours(run["result"]).items():
            _, mean, worst, *_ = _mean(name, ratios)
            rows.setdefault(name, []).append(f"{mean} ({worst})")
    heads = [f"{run['machine']['gpu']}: mean (worst)" for run in runs]
    table = _table(["DeepGEMM's time over ours", *heads], [[x, *y] for x, y in rows.items()])
    return f"{table}\n\n{' '.join(_where(run) for run in runs)}\n"


def over_ours(result: dict[str, Any]) -> dict[str, list[float | None]]:
    """Return DeepGEMM's time over ours, by what was multiplied and where the scales of A lie."""
    ratios: dict[str, list[float | None]] = {}
    for kind, words in (("dense", "dense"), ("groups", "grouped")):
        peer, *ways = result[kind][0]["us"]
        for way in ways:
            name = ", ".join([words, *way.split(", ")[1:]])
            ratios[name] = [x["us"][peer] / x["us"][way] for x in result[kind]]
    return ratios


def host(name: str) -> str:
    """Return what `tests/gpu/host.py` measured, and its chart."""
    run = stored(name)
    if run is None:
        return f"There is no stored run. `{RECORD}` records one."
    result = run["result"]
    pairs = _table(
        ["host time, us", "cute_gemm", "PyTorch", "ratio"],
        [[words, f"{ours:.1f}", f"{theirs:.1f}", f"{ratio:.2f}"]
         for words, (ours, theirs, ratio) in result["beside PyTorch"].items()],
    )  # fmt: skip
    alone = _table(["cute_gemm alone", "us"], [[k, f"{v:.1f}"] for k, v in result["us"].items()])
    imports = _table(["import", "s"], [[f"`{k}`", f"{v:.2f}"] for k, v in result["s"].items()])
    return "\n\n".join([
        "![Host time of a call against PyTorch's](pictures/benchmark_host.svg)",
        "Drawn by `python docs/make_pictures.py`.", '<details markdown="1">',
        "<summary>Each call</summary>", f"`{run['command']}`", _where(run), pairs, alone, imports,
        "</details>",
    ]) + "\n"  # fmt: skip


def _beside(found: list[dict[str, Any]], peer: str) -> str:
    """A table of a peer's time over ours, of each shape."""
    suffix = f", {peer}"
    fused = [name.removesuffix(suffix) for name in found[0]["us"] if name.endswith(suffix)]
    rows = [
        [" x ".join(map(str, each["shape"])),
         *(f"{each['us'][name + suffix] / each['us'][name]:.2f}" for name in fused)]
        for each in found
    ]  # fmt: skip
    return _table([f"{peer}'s time over ours", *(f"`{name}`" for name in fused)], rows)


def _ratio(found: list[dict[str, Any]], name: str, other: str) -> str:
    """The geometric mean of another's time over that of one, where both are; "-" where none is."""
    both = [each["us"] for each in found if other in each["us"]]
    return _mean("", [us[other] / us[name] for us in both])[1] if both else "-"


def speed(extent: str = "4096") -> str:
    """Return a row for each type: TFLOP/s of the four ops, and the ratio to cuBLAS's speed."""
    rows, runs = [], []
    for name in TYPES:
        for run, found in of_auto(name, int(extent)):
            rows.append([name, *(_with_ratio(found.get(op)) for op in OPS)])
            runs.append(run)
    return f"{_table(['', *OPS], rows)}\n\n{_where(*runs)}\n" if rows else MISSING


def _with_ratio(found: dict[str, Any] | None) -> str:
    """A cell: ``"612 (1.02)"``."""
    if found is None:
        return "-"
    ratio = found["of_cublas"]
    return _number(found["gflops"] / 1e3) + (f" ({ratio:.2f})" if ratio is not None else "")


def _where(*runs: dict[str, Any]) -> str:
    """The machine of runs, their commits, and the date of the last."""
    machine = runs[0]["machine"]
    words = [machine["gpu"] or "no GPU"]
    called = {"driver": "driver", "cuda": "CUDA", "cublas": "cuBLAS"}
    words += [f"{text} {machine[name]}" for name, text in called.items() if machine[name]]
    commits = ", ".join(dict.fromkeys(run["commit"] for run in runs if run["commit"]))
    results = [run["result"] for run in runs]
    unchecked = any(isinstance(result, dict) and not result.get("checked", 1) for result in results)
    return (
        f"{', '.join(words)}{f'; commit {commits}' if commits else ''}, "
        f"{max(run['date'] for run in runs)}{'; results not all checked' * unchecked}."
    )


def _size(size: dict[str, Any]) -> str:
    extents = [size[name] for name in "mnk"]
    text = str(extents[0]) if len(set(extents)) == 1 else "x".join(map(str, extents))
    return text if size["l"] == 1 else f"batch of {size['l']}, {text}"


def _speed(entry: dict[str, Any] | None) -> str:
    """A cell: ``"612, 98 %"``, or why there is no speed, in a word."""
    if entry is None or entry["speed"] is None:
        return "-" if entry is None or entry["outcome"] == "refused" else entry["outcome"]
    found = entry["speed"]
    of_cublas = found["of_cublas"]
    text = _number(found["gflops"] / 1e3)
    if of_cublas is None or entry["kernel"] == "cublas":
        return text
    share = 100 * of_cublas
    return f"{text}, {share:.0f} %" if share >= 9.5 else f"{text}, {share:.2g} %"


def _number(value: float) -> str:
    """A number with three digits."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _mean(kind: str, ratios: list[float | None]) -> list[str]:
    """A row; ratios to what was refused are None."""
    known = [ratio for ratio in ratios if ratio is not None]
    if not known:
        return [kind, "-", "-", "-", "-", "0"]
    mean, below = statistics.geometric_mean(known), sum(ratio < 0.97 for ratio in known)
    ratios_of = (f"{x:.2f}" for x in (mean, min(known), max(known)))
    return [kind, *ratios_of, str(below), str(len(known))]


def _table(heads: list[str], rows: list[list[str]]) -> str:
    """A table of Markdown, whose first column is words and whose others are numbers."""
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
