"""The generated parts of docs/ladder.md: ``rung(NAME)`` is what the page shows of one kernel.

``rung("next NAME")`` is what the rung after it changes, ``rung("overview")`` the table of all.

The measured speeds are those of the stored runs ``ladder`` and ``ladder_float16``. All other
figures are those of `cute-gemm explain`.
"""

from __future__ import annotations

from functools import cache
from itertools import groupby
from pathlib import Path
from textwrap import dedent, wrap
from typing import Any, NamedTuple

from benchmarks_page import LADDERS, _where, stored
from ladder_pictures import drawn_by

from cute_gemm.commands.explain import explain
from cute_gemm.kernels import registry
from cute_gemm.report.explain import Explanation

ROOT = Path(__file__).resolve().parents[1]
GPU, ARCH, SIZE, OPS = "H200", "sm_90a", 4096, ("NN", "TN")
#: From this rung on the type is float16.
FIRST_OF_HALVES = "tensor_core"
#: The rung whose shared memory limits K, and a K that fits.
WHOLE_K, SHORT_K = "smem_full_k", 1024
#: Lines of an excerpt, at most.
MOST_LINES = 16


class Excerpt(NamedTuple):
    """Lines of a file: from the only one that has ``start`` to the next that has ``end``.

    The lines that close what they open belong to them.
    """

    file: str
    start: str
    end: str

    def text(self) -> str:
        """Return the lines, without their common indentation."""
        lines = (ROOT / self.file).read_text(encoding="utf-8").splitlines()
        starts = [n for n, line in enumerate(lines) if self.start in line]
        if len(starts) != 1:
            raise ValueError(f"{self.file} has {len(starts)} lines with {self.start!r}; expected 1")
        ends = [n for n, line in enumerate(lines) if self.end in line and n >= starts[0]]
        if not ends:
            raise ValueError(f"{self.file} has no line with {self.end!r} after {self.start!r}")
        found, after = lines[starts[0] : ends[0] + 1], lines[ends[0] + 1 :]
        while after and after[0].strip() in ("}", "};") and _open(found):
            found.append(after.pop(0))
        if len(found) > MOST_LINES:
            raise ValueError(f"{self.file}: {len(found)} lines from {self.start!r} on")
        return dedent("\n".join(found))


def _open(lines: list[str]) -> bool:
    text = "".join(lines)
    return text.count("{") > text.count("}")


class Rung(NamedTuple):
    """What the page shows of a kernel in addition to its figures.

    ``pictures`` are names of ``docs/pictures/ladder_NAME.svg``, each with a text in its place.
    """

    excerpts: tuple[Excerpt, ...]
    pictures: tuple[tuple[str, str], ...]


def _simt(name: str, start: str, end: str) -> Excerpt:
    return Excerpt(f"templates/simt/{name}.cuh", start, end)


RUNGS = {
    "host": Rung(
        (Excerpt("cute_gemm/kernels/host.py", "left = a[i", "total += product"),),
        (("host", "An element of C with its row of A and its column of B"),),
    ),
    "naive": Rung(
        (_simt("naive", "Accumulator sum[1][1]", "write(gemm"),),
        (("naive", "A request for B that touches 32 sectors of 32 lines"),),
    ),
    "coalesced": Rung(
        (_simt("coalesced", "int const whole", "if (lane == 0) write"),),
        (("coalesced", "A request for A that touches the 4 sectors of one line"),),
    ),
    "smem_full_k": Rung(
        (_simt("smem_full_k", "auto* panel_a", "__syncthreads();"),),
        (("smem_full_k", "A panel of A, a panel of B and their tile of C"),),
    ),
    "smem_tiled": Rung(
        (_simt("mainloop", "for (int first = 0;", "multiply_tile<Config, kUnroll>"),),
        (("smem_tiled", "The panels of A and B, cut into steps along K"),),
    ),
    "register_rows": Rung(
        (_simt("register_rows", "enum : int {", "using ValuesM"),),
        (
            ("smem_tiled_products", "Loads and products of a thread in smem_tiled"),
            ("register_rows_products", "Loads and products of a thread in register_rows"),
        ),
    ),
    "thread_tile_1d": Rung(
        (_simt("thread_tile_1d", "enum : int {", "using Threads"),),
        (
            ("register_rows_products", "Loads and products of a thread in register_rows"),
            ("thread_tile_1d_products", "Loads and products of a thread in thread_tile_1d"),
        ),
    ),
    "thread_tile_2d": Rung(
        (
            _simt("thread_tile_2d", "// The next result of a thread", "using ValuesN"),
            _simt("mainloop", "for (int k = 0;", "outer_product<Config>"),
        ),
        (
            ("thread_tile_1d_products", "Loads and products of a thread in thread_tile_1d"),
            ("thread_tile_2d_products", "Loads and products of a thread in thread_tile_2d"),
        ),
    ),
    "vectorized": Rung(
        (_simt("vectorized", "// `count` adjacent", "using ValuesN"),),
        (
            ("thread_tile_2d_products", "Loads and products of a thread in thread_tile_2d"),
            ("vectorized_products", "Loads and products of a thread in vectorized"),
            ("vectorized_banks", "A load from shared memory with 2-way bank conflicts"),
        ),
    ),
    "bank_free": Rung(
        (_simt("bank_free", "// The columns of a thread's vector", "using Swizzled"),),
        (("bank_free_banks", "The same load without conflicts"),),
    ),
    "warp_tiled": Rung(
        (_simt("warp_tiled", "// The bits of a lane's number", "using ValuesN"),),
        (
            ("bank_free_warp", "The results of a warp in bank_free"),
            ("warp_tiled_warp", "The results of a warp in warp_tiled"),
            ("warp_tiled_banks", "A load in two wavefronts, each word shared by two lanes"),
        ),
    ),
    "double_buffered": Rung(
        (
            _simt("double_buffered", "// With cp.async a tile is copied", "cp_async_fence();"),
            _simt("double_buffered", "rows.read(row_parts[(k + 1)", "outer_product<Config>"),
        ),
        (
            ("warp_tiled_time", "Copies and products one after the other"),
            ("double_buffered", "Copies and products at the same time"),
        ),
    ),
    "tensor_core": Rung(
        (
            Excerpt(
                "templates/sm80/tensor_core.cuh", "for (int k_tile = 0;", "blocks.multiply(block"
            ),
        ),
        (
            ("tensor_core", "The elements of A that each lane holds for mma.sync"),
            ("tensor_core_banks", "An ldmatrix from swizzled shared memory, without conflicts"),
        ),
    ),
    "sm80_pipeline": Rung(
        (
            Excerpt("templates/sm80/sm80_pipeline.cuh", "for (int stage = 0;", "cp_async_fence();"),
            Excerpt("templates/sm80/sm80_pipeline.cuh", "blocks.load((block + 1)", "write = write"),
        ),
        (
            ("tensor_core_time", "One tile at a time"),
            ("sm80_pipeline", "Copies to a ring of stages during products"),
        ),
    ),
    "sm90_wgmma": Rung(
        (
            Excerpt(
                "templates/sm90/sm90_wgmma.cuh", "uint64_t* const full", "Cluster::mask_b(rank));"
            ),
            Excerpt("templates/sm90/mainloop.cuh", "int previous = 0;", "previous = state.stage;"),
        ),
        (("sm90_wgmma", "Loads by the producer; products and epilogues by the consumers"),),
    ),
}

#: Of `Explanation.figures`, what the line above a rung's table has, and its words there.
SHAPE = {
    "CTA tile": "CTA tile: {}",
    "results of a thread": "results per thread: {}",
    "threads of a CTA": "threads: {}",
    "bytes of shared memory of a CTA": "bytes of shared memory: {}",
}
#: Counts per result, and the heads of their columns.
COUNTS = {
    "gmem loads, elements": "global elements", "gmem loads, requests": "global requests",
    "gmem loads, sectors": "global sectors", "smem stores, wavefronts": "shared store wavefronts",
    "smem loads, wavefronts": "shared load wavefronts", "bank conflicts": "bank conflicts",
}  # fmt: skip
PER_FMA, SPEED = "shared loads per warp FMA", "TFLOP/s, of cuBLAS"


@cache
def explained(name: str, op: str, dtype: str, k: int) -> Explanation:
    """Explain a rung on the page's problem."""
    return explain(name, op, m=SIZE, n=SIZE, k=k, dtype=dtype, arch=ARCH, gpu=GPU)


def problem(*names: str) -> tuple[str, int]:
    """Return the type and K of a rung's figures, or those that two rungs are compared by."""
    order = registry.LADDER
    halves = any(order.index(name) >= order.index(FIRST_OF_HALVES) for name in names)
    return "float16" if halves else "float32", SHORT_K if WHOLE_K in names else SIZE


def rung(name: str) -> str:
    """Return the Markdown of a rung, of the step after it (``"next NAME"``) or ``"overview"``."""
    if name == "overview":
        return f"\n{_overview()}\n"
    if name.startswith("next "):
        return f"\n{_next(name.partition(' ')[2])}\n"
    parts = [*_code(RUNGS[name]), *_pictures(RUNGS[name]), _table(name)]
    return "\n" + "\n\n".join(part for part in parts if part) + "\n"


# ---- code and pictures --------------------------------------------------------------------------


def _code(of: Rung) -> list[str]:
    """The excerpts, those of a file in one block."""
    blocks: dict[str, list[str]] = {}
    for excerpt in of.excerpts:
        blocks.setdefault(excerpt.file, []).append(excerpt.text())
    parts = []
    for file, texts in blocks.items():
        language, comment = ("python", "#") if file.endswith(".py") else ("cpp", "//")
        text = f"\n{comment} ...\n".join(texts)
        parts += [f"From `{file}`:", f"```{language}\n{text}\n```"]
    return parts


def _pictures(of: Rung) -> list[str]:
    """The pictures, each with the command that draws it; those of one command side by side."""
    parts = []
    for command, pictures in groupby(of.pictures, key=lambda picture: drawn_by(picture[0])):
        parts.append("\n".join(f"![{text}](pictures/ladder_{name}.svg)" for name, text in pictures))
        parts.append(f"Drawn by `{command}`.")
    return parts


# ---- figures ------------------------------------------------------------------------------------


def _shape(found: list[Explanation]) -> str:
    """Tile, threads and shared memory in a sentence, of each op where they differ."""
    parts = []
    for name, words in SHAPE.items():
        figures = [x.figures.get(name, "0") for x in found]
        if len(set(figures)) > 1:
            each = zip(figures, OPS, strict=True)
            figures = [", ".join(f"{figure} ({op})" for figure, op in each)]
        parts += [words.format(figures[0])] if figures[0] != "0" else []
    return "\n".join(wrap("; ".join(parts) + ".", 120)) if parts else ""


def _counts(found: Explanation) -> dict[str, str]:
    """The counts per result, by the heads of their columns."""
    cells = {head: found.figures.get(f"{name} per result", "-") for name, head in COUNTS.items()}
    return {head: figure for head, figure in cells.items() if figure != "-"}


def _cells(found: Explanation, speed: str) -> dict[str, str]:
    """The row of an op in a rung's table, by the heads of its columns."""
    cells = _counts(found)
    loads = [
        count for count in found.counts
        if (count.space, count.direction, count.operand) == ("shared", "load", "AB")
    ]  # fmt: skip
    if loads and found.kernel in registry.LADDER[: registry.LADDER.index(FIRST_OF_HALVES)]:
        per_fma = (loads[0].wavefronts or 0) * 32 / found.problem.k
        cells[PER_FMA] = f"{per_fma:.3g}"
    return cells | ({SPEED: speed} if speed else {})


def _table(name: str) -> str:
    """The figures of a rung, with a row for each op."""
    dtype, k = problem(name)
    found = [explained(name, op, dtype, k) for op in OPS]
    rows = [_cells(x, measured(name, op, dtype)) for x, op in zip(found, OPS, strict=True)]
    if not any(rows):
        return ""
    lines = [_shape(found), ""] if _shape(found) else []
    heads = [*dict.fromkeys((*rows[0], *rows[1]))]
    first = f"{SIZE} x {SIZE} x {k}, {dtype}"
    lines += [f"| {first} | {' | '.join(heads)} |", "|---|" + "---:|" * len(heads)]
    for op, row in zip(OPS, rows, strict=True):
        lines.append(f"| {op} | {' | '.join(row.get(head, '-') for head in heads)} |")
    return "\n".join(lines)


def _next(name: str) -> str:
    """What the next rung changes, in a line."""
    following = registry.LADDER[registry.LADDER.index(name) + 1]
    dtype, k = problem(name, following)
    this, other = (explained(kernel, OPS[0], dtype, k) for kernel in (name, following))
    start = f"**Next: [`{following}`](#{following})**"
    if this.report is None or other.report is None:
        return f"{start}."
    before = _counts(this)
    changes = [
        f"{head} {before.get(head, '0')} → {figure}"
        for head, figure in _counts(other).items()
        if figure != before.get(head, "0")
    ]
    of = f"{OPS[0]}, {dtype}" + f", K = {k}" * (k != SIZE)
    lines = [f"{start} ({of})", *changes]
    return ",\n".join(lines).replace(",\n", ":\n", 1) + "."


# ---- stored runs --------------------------------------------------------------------------------


@cache
def runs() -> tuple[dict[str, Any], ...]:
    """Return the results of the stored runs of the ladder, as `cute-gemm bench --json` has them."""
    return tuple(run["result"] for run in map(stored, LADDERS.values()) if run)


def measured(name: str, op: str, dtype: str) -> str:
    """Return TFLOP/s and per cent of cuBLAS's at the largest cube that a rung ran, if it did."""
    found: list[tuple[int, dict[str, Any]]] = []
    for run in runs():
        for size in run["sizes"]:
            cube = size["m"] == size["n"] == size["k"] <= SIZE
            if not cube or run["dtype"] != dtype or run["compute"] != "float32":
                continue
            found += [
                (size["m"], entry["speed"]) for entry in size["entries"]
                if (entry["kernel"], entry["op"]) == (name, op) and entry["speed"]
            ]  # fmt: skip
    if not found:
        return ""
    size, speed = max(found, key=lambda entry: entry[0])
    text = f"{speed['gflops'] / 1e3:.3g}"
    if speed["of_cublas"] is not None:
        text += f", {speed['of_cublas'] * 100:.1f} %"
    return text + f" ({size} x {size} x {size})" * (size != SIZE)


def _overview() -> str:
    """The table of all rungs."""
    rows = []
    for name in registry.LADDER:
        dtype, k = problem(name)
        found = explained(name, OPS[0], dtype, k)
        speed = measured(name, OPS[0], dtype)
        rows.append([f"[{name}](#{name})", found.summary, dtype, speed])
    heads = ["kernel", "what it does", "type", SPEED]
    width = len(heads) if any(row[-1] for row in rows) else len(heads) - 1
    lines = [heads, ["---"] * 3 + ["---:"], *rows]
    table = "\n".join(f"| {' | '.join(line[:width])} |" for line in lines)
    return f"{table}\n\n{_where(*filter(None, map(stored, LADDERS.values())))}"
