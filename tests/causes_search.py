"""Check random reports: bounds, the first line, costs of causes, and times after fixes.

``python tests/causes_search.py --reports 400`` prints all contradictions.
"""

import random
from collections import Counter
from collections.abc import Iterator

from report_search import KERNELS, Question, main, question_of, random_report

import cute_gemm as cg
from cute_gemm.errors import GemmError
from cute_gemm.gpus.table import GPUS
from cute_gemm.report.causes import Cause
from cute_gemm.report.report import Report

#: Relative difference of two predictions of one config due to rounding.
_ROUNDING = 1e-6


def asked(rng: random.Random) -> Question:
    """Return arguments of a report: a kernel or "auto", on a GPU of the table."""
    question = question_of(rng) | {"kernel": rng.choice((*KERNELS, "batched", *["auto"] * 6))}
    question.pop("copy", None)
    if question["kernel"] in ("sm80_pipeline", "tensor_core", "auto") and rng.random() < 0.3:
        question["copy"] = "mn_major"
    if rng.random() < 0.1:
        question["dtype"] = "float8_e4m3fn"
    if rng.random() < 0.3:
        question |= {"gpu": rng.choice(GPUS).name, "arch": None}
    if rng.random() < 0.2:
        question["base_offset"] = rng.choice((1, 2, 4))
    if rng.random() < 0.3:
        question["l"] = rng.choice((2, 7, 64))
    if rng.random() < 0.15:
        question |= {"ragged": rng.choice("MNK"), "l": rng.choice((2, 4)), "beta": 0}
        for name in ("lda", "ldb", "ldc", "split_k", "pack"):
            question.pop(name, None)
    return question


def faults(question: Question, report: Report) -> Iterator[str]:
    """Yield a sentence for each contradiction in a report."""
    prediction, roof = report.predicted, report.performance.roofline
    if prediction is None:
        return
    if roof is not None and prediction.seconds < roof.seconds:
        yield f"{prediction.seconds} s predicted, and the bound is {roof.seconds} s"
    named = [cause for cause in report.causes if cause.because in report.headline]
    if " because " in report.headline and not any(x.fault or x.seconds for x in named):
        yield f"the first line names a cause without cost: {report.headline}"
    for cause in report.causes:
        yield from _of_cause(question, report, cause, prediction.seconds)


def _of_cause(question: Question, report: Report, cause: Cause, predicted: float) -> Iterator[str]:
    if cause.seconds is None or cause.seconds < 0:
        yield f"{cause.what} has no cost"
    if cause.fixed_seconds is None:
        return
    saved = predicted - cause.fixed_seconds
    if cause.seconds is not None and cause.seconds < saved * (1 - _ROUNDING):
        yield f"{cause.what} costs {cause.seconds} s, and {cause.fix} saves {saved} s"
    if "no access costs 1 %" in report.headline and saved > 0.01 * predicted:
        yield f"{cause.fix} saves {saved / predicted:.1%}: {report.headline}"
    if not cause.change:
        return
    try:
        again = cg.analyze(**question | dict(cause.change))
    except GemmError as error:
        yield f"{cause.fix} of {cause.what} raises an error: {error}"
        return
    assert again.predicted is not None
    if abs(again.predicted.seconds / cause.fixed_seconds - 1) > _ROUNDING:
        yield f"{cause.fix} takes {again.predicted.seconds} s, not {cause.fixed_seconds} s"


def searched(reports: int, seed: str) -> tuple[Counter[str], list[str]]:
    """Return the numbers of causes and of changes, and all contradictions."""
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    for number in range(reports):
        question, report = random_report(random.Random(f"{seed} {number}"), asked)
        wrong += (f"{sentence}: {question}" for sentence in faults(question, report))
        counts["causes"] += len(report.causes)
        counts["changes"] += sum(bool(cause.change) for cause in report.causes)
    return counts, wrong


if __name__ == "__main__":
    main(__doc__, searched)
