"""Mends of a copy: each is asked about again, and a search beside them finds nothing they lack."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from copy_search import aliases, asked, compared, paid, random_question, refutations

from cute_gemm.analysis.copy.report import CopyReport, analyze_copy


def again(question: dict[str, Any], report: CopyReport, place: int = 0) -> list[CopyReport]:
    """What the public entry point says after each mend of a row; none may be refuted."""
    assert refutations(question, report) == []
    return [analyze_copy(**question | mend.change) for mend in report.mends[place]]


def test_a_tensor_that_a_mend_names_does_not_alias() -> None:
    question = {
        "tensor": "(128,32):(32,1)", "threads": "(16,8):(1,16)", "values": "(8,1):(1,8)",
        "atom": "st.global.128",
    }  # fmt: skip
    report = analyze_copy(**question)
    mended = again(question, report)
    assert [found.coalesced for found in mended] == [True, True]
    # (128,32):(1,32), which was offered, has (32,0) and (0,1) at one place.
    assert report.mends[0][1].change["tensor"] == "(128,32):(1,128)"
    assert "tensor (128,32):(1,128)" in report.mends[0][1].what


def test_a_tile_is_no_longer_than_its_pitch() -> None:
    question = {"tensor": "(64,4):(5,1)", "threads": "(64,1):(1,0)", "values": "(1,1)",
                "atom": "ld.global", "dtype": "int32"}  # fmt: skip
    report = analyze_copy(**question)
    again(question, report)
    for mend in report.mends[0]:
        assert "a tile of (64,8)" not in mend.what or not aliases(
            asked(question | mend.change).layout
        )


def test_no_mend_costs_more_than_it_saves() -> None:
    question = {
        "tensor": "(64,6):(1,64)", "smem": "(64,6):(1,65)", "dtype": "float64",
        "threads": "(32,3):(3,1)", "atom": "ld.global.64",
    }  # fmt: skip
    report = analyze_copy(**question)
    now = [paid(row) for row in report.rows]
    for place in (0, 1):
        mended = again(question, report, place)
        assert mended
        for found in mended:
            # 128-bit loads, which were offered, do not fit a pitch of 65.
            assert all(paid(row) <= cost for row, cost in zip(found.rows, now, strict=True))
    assert any(found.coalesced for found in again(question, report))


def test_nothing_is_assumed_beside_plain_accesses() -> None:
    question = {"tensor": "(64,32):(32,1)", "dtype": "float32", "threads": "(32,1):(1,32)",
                "atom": "st.shared.32"}  # fmt: skip
    report = analyze_copy(**question)
    assert all(found.rows[0].wavefronts == 1 for found in again(question, report)[:3])
    whats = [mend.what for mend in report.mends[0]]
    assert whats[0] == "a swizzle: Sw<5,0,5> o 0 o (64,32):(32,1)"
    assert "(64,32):(33,1), rows padded by 4 bytes" in whats  # of the given major
    # A reader that is named is served too.
    beside = question | {"reader": "ldmatrix.x4"}
    best = analyze_copy(**beside).mends[0][0]
    assert best.what == "a swizzle: Sw<3,2,3> o 0 o (64,32):(32,1)"
    assert best.reading == "4 wavefronts per request, ideal 1; ldmatrix.x4 4, ideal 4"
    named = question | {"reader": "ld.shared.32 threads (1,32):(0,1)"}
    first = analyze_copy(**named).mends[0][0]
    assert first.reading == "1 wavefront per request, ideal 1; ld.shared 1, ideal 1"
    assert first.what == "a swizzle: Sw<5,0,5> o 0 o (64,32):(32,1)"


def test_padding_makes_ldmatrix_legal() -> None:
    question = {"tensor": "(128,64):(65,1)", "atom": "ldmatrix.x4"}
    report = analyze_copy(**question)
    assert report.rows[0].verdict == "misaligned" and not report.conflict_free
    again(question, report)
    padded = [mend for mend in report.mends[0] if mend.change["tensor"] == "(128,64):(72,1)"]
    assert padded[0].figures == {"wavefronts": 4, "ideal_wavefronts": 4, "conflicts": 0}


def test_a_tensor_without_a_unit_stride() -> None:
    question = {"tensor": "(64,64):(128,2)", "threads": "(32,4):(1,32)", "atom": "ld.global"}
    report = analyze_copy(**question)
    (best,) = again(question, report)[:1]
    assert (report.rows[0].sectors, best.rows[0].sectors) == (32, 4)  # of 64 bytes in 128


# -- at random ------------------------------------------------------------------------------------


def counted(copies: int, seed: str) -> tuple[Counter[str], list[str]]:
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    for number in range(copies):
        question = random_question(random.Random(f"{seed} {number}"))
        report = analyze_copy(**question)
        wrong += refutations(question, report)
        counts["mends"] += sum(map(len, report.mends))
        for kind, text in compared(question, report):
            counts[kind] += 1
            wrong += [f"{kind}: {text}"] if text else []
    return counts, wrong


def test_random_copies() -> None:
    counts, wrong = counted(30, "everywhere")
    assert wrong == []
    assert counts["mends"] > 30 and counts["bad rows"] > 10


@pytest.mark.matrix
def test_five_thousand_random_copies() -> None:
    counts, wrong = counted(5000, "matrix")
    assert wrong == []
    assert counts["mends"] > 5000 and counts["bad rows"] > 2000
