"""Check the fixes of random copies, and compare them with those of an exhaustive search.

``python tests/copy_search.py --copies 5000`` prints how many fixes are wrong, and how many bad rows
a search over swizzles, pitches and thread layouts fixes but the report does not.
"""

import argparse
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from cute_gemm.access import smem
from cute_gemm.copies.arguments import Copy, understood
from cute_gemm.copies.evaluate import evaluated
from cute_gemm.copies.partners import named_partners
from cute_gemm.copies.report import CopyReport, analyze_copy
from cute_gemm.cute.atoms import BYTE_ATOMS
from cute_gemm.cute.layout import Layout, Swizzle
from cute_gemm.cute.notation import parse
from cute_gemm.errors import GemmError
from cute_gemm.rendering.rows import AccessRow, make_row

Question = dict[str, Any]
SIZES = {"int8": 1, "float16": 2, "float32": 4, "float64": 8}
_ASKED = ("tensor", "threads", "values", "atom", "dtype", "space", "direction", "base_alignment",
          "tile", "tv", "smem", "let", "extents", "arch")  # fmt: skip


# -- random copies --------------------------------------------------------------------------------


def random_question(rng: random.Random) -> Question:
    """Return a random copy that `analyze_copy` accepts: global, shared, or global to shared."""
    while True:
        question = _random(rng)
        try:
            rows_of(asked(question), question)
        except GemmError:
            continue
        return question


def _random(rng: random.Random) -> Question:
    question = _alone(rng)
    if rng.random() < 0.3:  # (rejected without a tile in shared memory that fits)
        name = rng.choice(["reader", "writer"])
        verb = "ld" if name == "reader" else "st"
        width = rng.choice([1, 2, 4])
        value = rng.choice([(width, 1), (1, width)])
        threads = Layout((8, 4), rng.choice([(1, 8), (4, 1)]))
        plain = f"{verb}.shared threads {threads} values ({value[0]},{value[1]})"
        question[name] = rng.choice([plain, f"{verb}matrix.x4", f"{verb}matrix.x2.trans"])
    return question


def _alone(rng: random.Random) -> Question:
    dtype = rng.choice(list(SIZES))
    extents = rng.choice([8, 16, 24, 32, 64, 128]), rng.choice([4, 6, 8, 16, 32, 64])
    extents = extents if rng.random() < 0.6 else extents[::-1]
    kind = rng.choice(["ld.global", "st.global", "cp.async", "cp.async", "ld.shared", "st.shared",
                       "ldmatrix", "both", "red.global", "atom.shared", "bulk"])  # fmt: skip
    question: Question = {"dtype": dtype, "tensor": str(_layout(rng, extents, kind))}
    if kind == "ldmatrix":
        trans = ".trans" * (dtype in ("int8", "float16") and rng.random() < 0.4)
        question["atom"] = f"{rng.choice(['ld', 'st'])}matrix.x{rng.choice([1, 2, 4])}{trans}"
        if dtype == "int8" and rng.random() < 0.5:
            atom = rng.choice(BYTE_ATOMS)
            question["atom"] = atom.cpp or atom.name
        return question
    if kind == "bulk":
        question["atom"] = rng.choice(["cp.async.bulk", "cp.async.bulk.store"])
        at = rng.randint(0, 1)
        question["tile"] = (1, extents[1]) if at else (extents[0], 1)
        if rng.random() < 0.4:
            question["base_alignment"] = rng.choice([8, 16, 32])
        return question
    threads = rng.choice([1, 2, 4, 8, 16, 32]), rng.choice([1, 2, 3, 4, 8, 16])
    order = (1, threads[0]) if rng.random() < 0.5 else (threads[1], 1)
    vector = rng.choice([1, 1, 2, 4, 8, 16 // SIZES[dtype]])
    value = rng.choice([(vector, 1), (1, vector)])
    question["threads"] = str(Layout(threads, order))
    question["values"] = str(Layout(value, (1, value[0])))
    width = rng.choice(["", "", f".{8 * vector * SIZES[dtype]}", ".128"])
    if kind in ("ld.global", "st.global") and rng.random() < 0.2:
        width = ".256"
        question["values"] = str(Layout((1, 32 // SIZES[dtype]), (0, 1)))
    question["atom"] = ("ld.global" if kind == "both" else kind) + width
    if kind in ("both", "cp.async") and rng.random() < 0.7:
        question["smem"] = str(_layout(rng, extents, "smem"))
    if "shared" not in kind and rng.random() < 0.25:
        question["extents"] = [extent * rng.randint(0, 3) + rng.randint(1, extent)
                               for extent in extents]  # fmt: skip
    if rng.random() < 0.2:
        question["base_alignment"] = rng.choice([8, 16, 32])
    if rng.random() < 0.1:
        question["arch"] = rng.choice(["sm_80", "sm_90a", "sm_100a"])
    return question


def _layout(rng: random.Random, extents: tuple[int, int], kind: str) -> Layout:
    rows = rng.random() < 0.5
    shared = kind in ("smem", "ld.shared", "st.shared", "ldmatrix", "atom.shared")
    step = 2 if rng.random() < 0.06 else 1
    padding = rng.choice([0, 0, 1, 2, 4, 5, 8, 16] if shared else [0, 1, 3, 4, 8, 40, 4096])
    pitch = step * extents[rows] + padding
    pitch = 5 if rng.random() < 0.03 else pitch
    stride: Any = (pitch, step) if rows else (step, pitch)
    shape: Any = extents
    if rng.random() < 0.1 and extents[0] % 4 == 0:  # split the first mode in two
        apart = extents[0] // 4 * stride[0] + rng.choice([0, 8])
        if rows or apart * 4 <= stride[1]:
            shape, stride = ((extents[0] // 4, 4), extents[1]), ((stride[0], apart), stride[1])
    swizzle = None
    if shared and rng.random() < 0.3:
        bits = rng.randint(1, 3)
        swizzle = Swizzle(bits, rng.randint(0, 4), rng.randint(bits, 5))
    return Layout(shape, stride, swizzle)


def asked(question: Question) -> Copy:
    """Return the copy of a question."""
    given = {name: question.get(name) for name in _ASKED}
    return understood(**given | {"dtype": question.get("dtype", "float16")})


def elements(copy: Copy) -> int:
    """Return the number of elements that a copy moves."""
    return prod(copy.extents or copy.layout.extents)


def aliases(layout: Layout) -> bool:
    """Return whether two elements have the same offset."""
    return len(np.unique(layout.table())) != layout.size


def aliasing(copy: Copy, change: Question) -> str:
    """Return the name of a changed layout that is not injective, or ``""``."""
    if "smem" in change and copy.smem is not None and aliases(copy.smem):
        return "smem"
    # If tiles of a matrix are copied, the tile itself may alias at its edge.
    alias = overlaps(copy) if copy.extents else aliases(copy.layout)
    return "tensor" * ("tensor" in change and alias)


def overlaps(copy: Copy) -> bool:
    """Return whether rows of the matrix whose tiles are copied overlap."""
    extents: Any = copy.extents
    table = copy.layout.table()
    stride = int(table[1, 0]), int(table[0, 1])
    axis = stride.index(1)
    return bool(extents[1 - axis] > 1 and stride[1 - axis] < extents[axis])


def past_the_end(copy: Copy, change: Question) -> str:
    """Return why a changed layout exceeds the memory that C++ CuTe reserves for it, or ``""``."""
    name = "smem" if "smem" in change else "tensor" if "tensor" in change else ""
    layout = copy.smem if name == "smem" else copy.layout
    if not name or layout is None or layout.swizzle is None:
        return ""
    size = layout.offset + 1 + sum((extent - 1) * stride for extent, stride in layout.leaves)
    last = int(layout.table().max())
    return f"{name} reaches element {last} of the {size} of its cosize" * (last >= size)


def rows_of(copy: Copy, question: Question | None = None) -> list[AccessRow]:
    """Return the access rows of a copy, without fixes."""
    given = question or {}
    named = named_partners(copy, given.get("reader"), given.get("writer"))
    return [make_row(access) for access in (*evaluated(copy)[0], *(x.row(copy) for x in named))]


# -- checks of fixes ------------------------------------------------------------------------------


def costs(row: AccessRow) -> tuple[int, ...]:
    """Return the sectors of L1 and L2, or the wavefronts and counted wavefronts, of a launch."""
    total = row.launch
    if row.space == "global":
        return total.sectors or 0, total.l2_sectors or 0
    return total.wavefronts or 0, max(total.wavefronts or 0, total.counted_wavefronts or 0)


def paid(row: AccessRow) -> int:
    """Return the cost that the row shows for the whole copy: sectors, or wavefronts."""
    return sum(costs(row)) if row.space == "global" else row.launch.wavefronts or 0


def faulty(rows: Sequence[AccessRow], *indices: int) -> bool:
    """Return whether an access of the copy, or one of ``indices``, is misaligned."""
    judged = (row for at, row in enumerate(rows) if at in indices or not row.part)
    return any(row.verdict == "misaligned" for row in judged)


def together(rows: Sequence[AccessRow], index: int) -> int:
    """Return the cost that fixes of a row are ranked by, including a reader or writer."""
    named = any(row.part for row in rows)
    others = [row for row in rows if named and row is not rows[index] and row.space == "shared"]
    return paid(rows[index]) + sum(map(paid, others))


def shown(row: AccessRow) -> float:
    """Return sectors or wavefronts per request, relative to the ideal."""
    least = row.ideal_sectors if row.space == "global" else row.ideal_wavefronts
    most = max(row.sectors or 0, row.l2_sectors or 0) or row.wavefronts or 0
    return most / (least or 1)


def dearer(new: list[AccessRow], old: Sequence[AccessRow], more: int, fewer: int) -> bool:
    """Return whether an access costs more per element than before.

    ``more`` and ``fewer``: elements of the new and of the old tile.
    """
    rows = zip(new, old, strict=True)
    pairs = [pair for a, b in rows for pair in zip(costs(a), costs(b), strict=True)]
    return any(after * fewer > before * more for after, before in pairs)


def refutations(question: Question, report: CopyReport | None = None) -> list[str]:
    """Return a text for each wrong fix of a copy."""
    report = report or analyze_copy(**question)
    found = []
    for index, fixes in enumerate(report.fixes):
        for fix in fixes:
            wrong = refuted(question, report, index, fix)
            if wrong:
                found.append(f"{wrong}: {fix} of {question}")
    return found


def refuted(question: Question, report: CopyReport, index: int, fix: Any) -> str:
    """Return why a fix is wrong, or ``""``."""
    try:
        copy = asked(question | fix.change)
    except GemmError as error:
        return f"refused ({error})"
    again = rows_of(copy, question)  # as analyze_copy(**question | fix.change), without fixes
    row = again[index]
    if wrong := aliasing(copy, fix.change):
        return f"{wrong} is not injective"
    if faulty(again, index):
        return "misaligned"
    for name, figure in fix.figures.items():
        if getattr(row, name) != figure:
            return f"{name} is {getattr(row, name)}, not {figure}"
    for text in fix.change.values():
        if text and ":" in str(text) and parse(text) != parse(str(text)):
            return f"{text} does not parse"
    if any(row.verdict == "misaligned" for row in report.rows):
        return ""
    size, before = elements(copy), elements(asked(question))
    if dearer(again, report.rows, size, before):
        return f"worse than before: {[*map(costs, again)]}"
    now = report.rows[index]
    if (paid(row) * before, row.launch.requests * before) >= (
        paid(now) * size, now.launch.requests * size,
    ):  # fmt: skip
        return f"no cheaper: {paid(row)}"
    if shown(row) > shown(now):
        return f"shown as worse: {shown(row)}, not {shown(now)}"
    return past_the_end(copy, fix.change)


# -- an exhaustive search -------------------------------------------------------------------------


def variants(question: Question) -> Iterator[Question]:
    """Yield other thread layouts, other swizzles and pitches in shared memory, other pitches."""
    copy = asked(question)
    home = copy.layout if copy.space == "shared" else copy.smem
    name = "tensor" if copy.space == "shared" else "smem"
    if home is not None:
        for bits in range(1, 6):
            for base in range(5):
                for shift in range(bits, 6):
                    swizzle = Swizzle(bits, base, shift)
                    yield {name: str(Layout(home.shape, home.stride, swizzle))}
        for axis in (0, 1):
            for pitch in range(home.extents[axis], home.extents[axis] + 33):
                yield {name: str(Layout(home.extents, (pitch, 1) if axis else (1, pitch)))}
    flat = all(isinstance(step, int) for step in copy.layout.stride)  # type: ignore[union-attr]
    if copy.space == "global" and flat and 1 in copy.layout.stride:  # type: ignore[operator]
        axis = copy.layout.stride.index(1)
        pitch: Any = copy.layout.stride[1 - axis]
        for more in range(65):
            at = max(pitch, (copy.extents or copy.layout.extents)[axis]) + more
            yield {"tensor": str(Layout(copy.layout.shape, (at, 1) if axis else (1, at)))}
    if copy.atom.kind not in ("matrix", "bulk"):
        most = max(128, copy.atom.bits or 0)
        if copy.atom.kind == "reduce":
            most = copy.atom.bits or 8 * copy.size
        count = len(copy.tiled.partition)
        way = "cp.async" if copy.atom.kind == "cp.async" else question["atom"].rsplit(".", 1)[0]
        way = question["atom"] if question["atom"].count(".") < 2 and way != "cp.async" else way
        for first in range(1, count + 1):
            if count % first:
                continue
            for order in ((1, first), (count // first, 1)):
                for axis in (0, 1):
                    for width in (1, 2, 4, 8, 16, 32):
                        bits = 8 * width * copy.size
                        if bits > most:
                            continue
                        value = (
                            Layout((width, 1), (1, width))
                            if axis == 0
                            else Layout((1, width), (width, 1))
                        )
                        atom = way if bits >= 32 or way != "cp.async" else "ld.global"
                        yield {
                            "threads": str(Layout((first, count // first), order)),
                            "values": str(value), "atom": f"{atom}.{bits}",
                        }  # fmt: skip


def searched(question: Question, index: int) -> tuple[Question | None, tuple[float, bool]]:
    """Return the change that fixes a row best, its cost per element, and whether it is bad."""
    copied = asked(question)
    old = rows_of(copied, question)
    faults = faulty(old, index)
    best, best_key = None, (together(old, index) / elements(copied), False)
    for change in variants(question):
        try:
            copy = asked(question | change)
            rows = rows_of(copy, question)
        except GemmError:
            continue
        if aliasing(copy, change) or past_the_end(copy, change):
            continue
        if len(rows) != len(old) or faulty(rows, index):
            continue
        if "atom" in change and rows[0].bits != copy.atom.bits:
            continue
        pairs = [(new, now) for new, now in zip(rows, old, strict=True) if now.part]
        if any((new.name, new.bits) != (now.name, now.bits) for new, now in pairs):
            continue  # the named reader or writer does not fit there
        if any(
            smem.matrices(now.instruction)
            and not np.array_equal(now.access.coords, new.access.coords)
            for new, now in pairs
        ):  # its rows would have the other direction
            continue
        if not faults and dearer(rows, old, elements(copy), elements(copied)):
            continue
        if paid(rows[index]) * elements(copied) >= paid(old[index]) * elements(copy) and not faults:
            continue
        key = together(rows, index) / elements(copy), not rows[index].good
        if (faults and best is None) or key < best_key:
            best, best_key = change, key
    return best, best_key


def compared(question: Question, report: CopyReport) -> Iterator[tuple[str, str]]:
    """Yield an outcome of each bad row: its kind, and what the search returned."""
    for index, row in enumerate(report.rows):
        if row.good:
            continue
        yield "bad rows", ""
        least = float("inf")
        for fix in report.fixes[index]:
            copy = asked(question | fix.change)
            fixed = rows_of(copy, question)
            least = min(least, together(fixed, index) / elements(copy))
            if fixed[index].good:
                break
        else:
            found, (cost, bad) = searched(question, index)
            if found is not None and not report.fixes[index]:
                yield "fixed only by the search", f"{question} {found}"
            elif found is not None and not bad and cost < least:
                text = f"{question} {found} {report.fixes[index][0]}"
                yield "made good only by the search", text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--copies", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-search", action="store_true")
    parser.add_argument("--show", type=int, default=20)
    given = parser.parse_args()
    counts: Counter[str] = Counter()
    shown = 0
    for number in range(given.copies):
        question = random_question(random.Random(f"{given.seed} {number}"))
        report = analyze_copy(**question)
        wrong = refutations(question, report)
        counts["fixes"] += sum(map(len, report.fixes))
        counts["fixes refuted"] += len(wrong)
        lines = wrong
        if not given.no_search:
            for kind, text in compared(question, report):
                counts[kind] += 1
                lines = [*lines, f"{kind}: {text}"] if text else lines
        for line in lines[: max(0, given.show - shown)]:
            print(line, flush=True)
        shown += len(lines)
    print(dict(counts))


if __name__ == "__main__":
    main()
