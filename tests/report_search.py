"""Check the fixes of random reports by applying them.

``python tests/report_search.py --reports 400`` prints how many fixes are wrong.
"""

import argparse
import random
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

from cases import OPS

import cute_gemm as cg
from cute_gemm.access import gmem
from cute_gemm.errors import GemmError
from cute_gemm.kernels import registry
from cute_gemm.rendering.rows import AccessRow
from cute_gemm.report.report import Report

Question = dict[str, Any]
#: Kernels whose reports have accesses.
KERNELS = tuple(name for name in registry.names() if name not in ("host", "cublas", "batched"))
TYPES = ("float16", "bfloat16", "float32", "float64", "int8", "complex64", "complex128")


def random_report(
    rng: random.Random, ask: Callable[[random.Random], Question] | None = None
) -> tuple[Question, Report]:
    """Return a random report of a supported problem. ``ask`` returns random questions."""
    while True:
        question = (ask or question_of)(rng)
        try:
            return question, cg.analyze(**question)
        except GemmError:
            continue


def question_of(rng: random.Random) -> Question:
    """Return random arguments of ``analyze``, which may reject them."""

    def extent() -> int:
        return rng.choice([rng.randint(1, 600), 16 * rng.randint(1, 40), rng.randint(1, 5000)])

    dtype = rng.choice(TYPES)
    question: Question = {
        "op": rng.choice(OPS), "m": extent(), "n": extent(), "k": extent(),
        "dtype": dtype, "order": rng.choice("FC"), "kernel": rng.choice(KERNELS),
        "arch": rng.choice(["sm_80", "sm_90a"]), "beta": rng.choice([0, 1]),
    }  # fmt: skip
    for name in "ABC":
        if rng.random() < 0.4:
            more = rng.choice([rng.randint(1, 40), 8, 16])
            question[f"ld{name.lower()}"] = _rows(question, name) + more
    if rng.random() < 0.15:
        question["split_k"] = rng.randint(2, 8)
    if rng.random() < 0.15:
        question["pack"] = rng.choice(["A", "B", "AB"])
    if question["kernel"] in ("sm80_pipeline", "tensor_core") and rng.random() < 0.3:
        question["copy"] = "mn_major"
    return question


def _rows(question: Question, name: str) -> int:
    """Return the length of the unit-stride mode of a stored matrix."""
    m, n, k = (question[extent] for extent in "mnk")
    if name == "C":
        return m if question["order"] == "F" else n
    letter = question["op"]["AB".index(name)]
    return {"A": {"N": m, "T": k}, "B": {"N": k, "T": n}}[name][letter]


def refutations(question: Question, report: Report) -> list[str]:
    """Return a text for each wrong fix of a report."""
    wrong = []
    for row in report.rows:
        for fix in row.fixes:
            if why := refuted(question, report, row, fix):
                wrong.append(f"{why}: {row.operand} {row.name}: {fix} of {question}")
    return wrong


def applied(question: Question, row: AccessRow, what: str) -> Question | None:
    """Return a fix as arguments of ``analyze``, or None if it has no argument for it."""
    name = f"ld{row.operand.lower()}"
    for pattern, change in (
        (r"leading dimension (\d+), a multiple of \d+ bytes", lambda x: {name: int(x)}),
        (r"op (\w\w), [AB] \w-major", lambda x: {"op": x, name: 0}),
        (r"op (\w\w, [AB] \w-major, leading dimension \d+)",
         lambda x: {"op": x[:2], name: last(x)}),
        (r'order="(\w)", C \w-major', lambda x: {"order": x, name: 0}),
        (r'order="(\w", C \w-major, leading dimension \d+)',
         lambda x: {"order": x[0], name: last(x)}),
    ):  # fmt: skip
        if found := re.fullmatch(pattern, what):
            return change(found[1])
    return None


def last(text: str) -> int:
    """Return the number at the end of a text."""
    return int(text.split()[-1])


def refuted(question: Question, report: Report, row: AccessRow, fix: Any) -> str:
    """Return why a fix is wrong, or ``""``."""
    if fix.access is not None:  # compare with the model
        matrix, found = fix.access.matrix, gmem.analyze(fix.access)
        if matrix.shape[1 - matrix.unit] > 1 and matrix.ld < matrix.shape[matrix.unit]:
            return f"leading dimension {matrix.ld} of rows of {matrix.shape[matrix.unit]}"
        sectors = found.judged.sectors / found.judged.requests
        if not found.aligned or fix.figures["sectors"] != sectors:
            return f"sectors are {sectors}"
    if row.space == "global" and fix.figures["efficiency"] < row.efficiency:
        return f"shown as worse than {row.efficiency}"
    if row.space == "shared" and row.verdict != "misaligned":
        ratios = [x.wavefronts / x.ideal_wavefronts for x in (row, _Figures(fix.figures))]
        if ratios[1] >= ratios[0]:
            return f"shown as no better than {ratios[0]}"
    change = fix.change or applied(question, row, fix.what)
    if not change:
        return ""
    try:
        again = cg.analyze(**{name: x for name, x in (question | change).items() if x != 0})
    except GemmError as error:
        return f"refused ({error})"
    rows = [x for x in again[row.operand].of(row.space) if x.direction == row.direction]
    same = [x for x in rows if (x.name, x.bits) == (row.name, row.bits)]
    if any(all(getattr(x, name) == figure for name, figure in fix.figures.items()) for x in same):
        return ""
    # With other rows, the kernel may select another copy, which must be at least as good.
    vectors = [x for x in rows if row.space == "global" and x.access.tail != "elements"]
    inside = [x for x in vectors if x.interior_tiles]
    good = [x.good or x.efficiency >= fix.figures["efficiency"] for x in inside or vectors]
    if all(good) if inside else any(good):
        return ""
    return f"read then are {[(x.name, x.bits, x.sectors, x.efficiency) for x in rows]}"


class _Figures:
    def __init__(self, figures: dict[str, float]) -> None:
        self.__dict__.update(figures)


def counted(reports: int, seed: str) -> tuple[Counter[str], list[str]]:
    """Return the numbers of fixes and of applicable fixes, and all wrong ones."""
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    for number in range(reports):
        question, report = random_report(random.Random(f"{seed} {number}"))
        wrong += refutations(question, report)
        for row in report.rows:
            counts["fixes"] += len(row.fixes)
            changes = (fix.change or applied(question, row, fix.what) for fix in row.fixes)
            counts["applied"] += sum(map(bool, changes))
    return counts, wrong


def main(doc: str | None, search: Callable[[int, str], tuple[Counter[str], list[str]]]) -> None:
    """Print the results of a search with ``--reports`` reports."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--reports", type=int, default=100)
    parser.add_argument("--seed", default="0")
    given = parser.parse_args()
    counts, wrong = search(given.reports, given.seed)
    print(*wrong, sep="\n")
    print(dict(counts), "wrong:", len(wrong))


if __name__ == "__main__":
    main(__doc__, counted)
