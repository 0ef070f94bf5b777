"""Test causes of a kernel's predicted time, their costs and fixes, and the first line."""

import json
from dataclasses import replace

import numpy as np
import pytest
from causes_search import searched

import cute_gemm as cg
from cute_gemm._text import duration, plain
from cute_gemm.access.ideal import Kind, kind_of
from cute_gemm.cost_model.footprint import DEPTH, sample, tally
from cute_gemm.cost_model.prediction import Predictions
from cute_gemm.kernels import registry
from cute_gemm.kernels.candidate import Candidate, labels
from cute_gemm.problem.describe import from_sizes
from cute_gemm.problem.matrix import Matrix
from cute_gemm.report.causes import Cause, Causes
from cute_gemm.report.report import Report, make_report
from cute_gemm.toolchain.signature import Launch

SQUARE = {"m": 4096, "n": 4096, "k": 4096, "dtype": "float16", "backend": "cpu"}
LOAD = Kind("B", "load", "global", "ld.global")


def planned(op: str, **more: object) -> cg.Plan:
    return cg.plan(op, **{**SQUARE, "arch": "sm_80", **more})


def time_of(op: str, **more: object) -> float:
    prediction = planned(op, **more).candidates()[0].prediction
    assert prediction is not None
    return prediction.seconds


@pytest.fixture(scope="module")
def plan() -> cg.Plan:
    return planned("NN", kernel="sm80_pipeline", copy="mn_major")


@pytest.fixture(scope="module")
def reference(plan: cg.Plan) -> Report:
    return plan.report()


def test_an_option_is_one_cause_of_all_that_it_fixes(reference):
    first, second = reference.causes
    assert first.what == 'copy="mn_major" copies along M or N, and B is K-major'
    assert (first.fix, dict(first.change)) == ('copy="auto"', {"copy": "auto"})
    assert first.accesses == (
        "A cp.async, A ldmatrix.x4.trans, B ldmatrix.x4.trans: 2-way conflict",
        "B ld.global: strided, 16 sectors where 2 would do",
        "B st.shared: 4-way conflict",
    )
    assert first.because == "B's ld.global is not coalesced"
    assert second.little and not second.fix and "staged accumulators" in second.what
    both = planned("TN", kernel="sm80_pipeline", copy="mn_major").report().causes[0]
    assert both.what.endswith("copies along M or N, and A is K-major and B is K-major")


def test_a_cost_is_the_time_less_that_with_ideal_counts(plan, reference):
    kernel = registry.get("sm80_pipeline")
    problem = plan.problem
    kinds = {kind_of(row.access) for row in reference.rows if not row.good}
    assert {kind.instruction for kind in kinds} == {
        "cp.async", "ldmatrix.x4.trans", "ld.global", "st.shared",
    }  # fmt: skip
    now = kernel.footprint(plan.config, problem, plan.gpu)
    assert now == kernel.footprint(plan.config, problem, plan.gpu, frozenset())
    ideal = kernel.footprint(plan.config, problem, plan.gpu, frozenset(kinds))
    clocks, ideal_clocks = dict(now.units), dict(ideal.units)
    assert ideal_clocks["shared memory"] < 0.5 * clocks["shared memory"]
    assert ideal_clocks["L1"] < clocks["L1"] and ideal.alone < 0.1 * now.alone
    assert ideal_clocks["tensor cores"] == clocks["tensor cores"]
    first = reference.causes[0]
    with_ideal = Predictions([ideal], plan.gpu).predict(problem, 0).seconds
    least = min(with_ideal, first.fixed_seconds)  # a fix may save more than the cost
    assert reference.predicted.seconds - first.seconds == pytest.approx(least)
    assert first.share == pytest.approx(first.seconds / reference.predicted.seconds)


def test_ideal_counts_are_those_of_the_same_bytes(plan):
    typical = sample(plan.problem, plan.config.tile)
    accesses = registry.get("sm80_pipeline").all_accesses(plan.config, typical)
    (load,) = (x for x in accesses if kind_of(x) == LOAD)
    now, ideal = (tally([load], 1, kinds)["k-tile"] for kinds in ((), {LOAD}))
    halves = 128 * 32  # of B's tile, 2 bytes each; DEPTH k-tiles
    requests = load.coords.shape[0]
    assert (now.moves, now.sectors) == (requests, 1.5 * halves * 2 / 32)  # L1 holds the others
    assert (ideal.moves, ideal.sectors, ideal.partial) == (halves * 2 / 512, halves * 2 / 32, 0)
    assert ideal.passes == halves * 2 / 512 < now.passes and DEPTH == 4
    stores = [x for x in accesses if kind_of(x)[:3] == ("B", "store", "shared")]
    kinds = {kind_of(x) for x in stores}
    waves = [tally(stores, 1, of)["k-tile"].waves for of in ((), kinds)]
    assert waves[0] == 4 * waves[1]


def test_what_a_fix_takes_is_the_time_with_it(reference):
    with_fix = time_of("NN", kernel="sm80_pipeline", copy="auto")
    assert reference.causes[0].fixed_seconds == with_fix
    assert reference.headline == (
        "15.6 ms predicted on A100 SXM 80GB; its bound is 441 us (tensor cores); 35 times slower "
        f'because B\'s ld.global is not coalesced; copy="auto" takes {duration(with_fix)}'
    )


def test_the_first_line_is_printed_first_and_is_in_json(reference):
    first = " ".join(str(reference).split())[: len(reference.headline)]
    assert first == reference.headline
    said = json.loads(reference.to_json())
    assert said["headline"] == reference.headline
    assert said["predicted_seconds"] == reference.predicted.seconds
    assert [cause["fix"] for cause in said["causes"]] == ['copy="auto"', ""]
    assert said["causes"][0]["change"] == {"copy": "auto"}
    lines = str(reference).splitlines()
    assert "Causes" in lines[:25] and any(x.strip().startswith('fix: copy="') for x in lines[:25])


@pytest.mark.parametrize(
    ("name", "words", "fix", "change"),
    [
        ("c", "C's ldc of 4097 (8,194 bytes) is not a multiple of 16 bytes", "ldc=4112", 4112),
        ("a", "A's lda of 4104 (8,208 bytes) is not a multiple of 32 bytes", "lda=4112", 4112),
    ],
)
def test_a_leading_dimension_is_a_cause(name, words, fix, change):
    ld = int(words.split()[3])
    arch = "sm_90a" if name == "c" else "sm_80"
    report = planned("NT", arch=arch, **{f"ld{name}": ld}).report()
    cause = next(x for x in report.causes if x.what == words)
    better = time_of("NT", arch=arch, **{f"ld{name}": change})
    assert (cause.fix, cause.fixed_seconds) == (fix, better) and better < report.predicted.seconds
    assert dict(cause.change) == {f"ld{name}": change}
    assert cause.seconds >= report.predicted.seconds - better
    if name == "c":
        assert cause.seconds > 0 and f"{fix} takes {duration(better)}" in report.headline


def test_a_base_address_is_a_cause():
    report = planned("NT", kernel="sm80_pipeline", base_offset=1).report()
    causes = {cause.what: cause for cause in report.causes}
    for name in "ABC":
        cause = causes[f"{name}'s base address is aligned to 2 bytes only"]
        assert cause.fix == "base_offset=0" and dict(cause.change) == {"base_offset": 0}
        better = planned("NT", kernel="sm80_pipeline").candidates()[0].prediction
        assert cause.fixed_seconds == better.seconds


def test_a_batch_stride_is_a_cause():
    sizes = {"m": 1001, "n": 1003, "k": 1005, "dtype": "bfloat16", "arch": "sm_90a"}
    report = cg.plan("NT", l=3, backend="cpu", **sizes).report()
    cause = next(x for x in report.causes if x.what.startswith("C's ldc of 1001 (2,002 bytes)"))
    assert cause.what.endswith(f"its batch stride of {1001 * 1003} is not a multiple of 32 bytes")
    assert cause.fix == f"ldc=1008 and batch_c={1008 * 1003}"
    better = cg.plan("NT", l=3, backend="cpu", ldc=1008, batch_c=1008 * 1003, **sizes)
    assert better.candidates()[0].prediction.seconds == cause.fixed_seconds
    assert dict(cause.change) == {"ldc": 1008, "batch_c": 1008 * 1003}


def grouped(ragged: str, order: str, kernel: str, m: int = 1000) -> cg.Plan:
    """Return a plan of four groups along M or N, of row-major arrays."""
    A, B = (np.zeros(shape, "float16") for shape in ((m, 256), (256, 512)))
    A, B = (np.stack([x] * 4) if ragged == no else x for x, no in ((A, "N"), (B, "M")))
    options = {"order": order, "kernel": kernel, "arch": "sm_90a", "backend": "cpu"}
    return cg.plan("NN", A, B, offsets=np.full(4, m, np.int32), **options)


@pytest.mark.parametrize(("ragged", "order", "other"), [("M", "F", "C"), ("N", "C", "F")])
def test_groups_along_the_unit_stride_mode_begin_anywhere(ragged, order, other):
    kernel = "sm90_wgmma" if ragged == "M" else "sm80_pipeline"
    report = grouped(ragged, order, kernel).report()
    cause = next(x for x in report.causes if x.what.startswith("C's "))
    assert cause.what == (
        f"C's groups begin at any element, since {ragged} is ragged and its unit-stride mode"
    )
    assert (cause.fix, dict(cause.change)) == (f'order="{other}"', {"order": other})
    assert cause.fixed_seconds == grouped(ragged, other, kernel).candidates()[0].prediction.seconds
    assert not any("batch stride" in x.what for x in report.causes)


def test_groups_across_begin_where_rows_do():
    report = grouped("N", "F", "sm80_pipeline").report()
    cause = next(x for x in report.causes if x.what.startswith("C's "))
    assert cause.what == "C's ldc of 1000 (2,000 bytes) is not a multiple of 32 bytes"
    assert cause.fix == "ldc=1008" and dict(cause.change) == {"ldc": 1008}
    packed = next(x for x in report.causes if x.what.startswith("B's groups begin at any element"))
    assert packed.fix in ("", 'pack="B"')


def test_a_launch_that_packs_is_named():
    report = cg.plan(
        "NN", m=1000, n=1001, k=513, dtype="float16", arch="sm_80", backend="cpu"
    ).report()
    cause = next(x for x in report.causes if x.what.startswith("B's ldb of 513"))
    assert cause.accesses[0].startswith("pack B ld.global: off sector")
    assert cause.because == "B's ld.global of the pack launch is not coalesced"
    assert cause.seconds == pytest.approx(report.predicted.seconds - cause.fixed_seconds)
    assert report.auxiliary and any(x.startswith("pack: B: ld.global") for x in report.findings)


def test_each_access_is_reported_once_and_the_costliest_cause_first(plan):
    report = planned("TN", kernel="sm80_pipeline", lda=4097).report()
    told = [x for cause in report.causes for x in cause.accesses]
    assert len(told) == len(set(told))
    costs = [cause.seconds for cause in report.causes]
    assert costs == sorted(costs, reverse=True) and report.causes[0].fix == "lda=4112"


def test_a_kernel_without_a_finding_is_measured_by_its_bound():
    report = planned("TN", arch="sm_90a").report()
    assert not [cause for cause in report.causes if not cause.little]
    assert "times that: most of it is tensor cores" in report.headline
    assert report.headline.endswith("and no access costs 1 %")


def test_without_a_prediction_the_bound_is_reported():
    report = planned("NT", kernel="cutlass_universal", base_offset=1).report()
    assert report.predicted is None
    assert report.headline == (
        "time not predicted; on A100 SXM 80GB its bound is 441 us (tensor cores); "
        "A's ld.global is not coalesced"
    )
    assert all(cause.seconds is None and not cause.cost for cause in report.causes)


def test_without_a_prediction_the_change_is_that_of_the_fix():
    problem = from_sizes("TN", m=256, n=256, k=64, dtype="float16")
    rows = planned("TN", m=256, n=256, k=64, kernel="sm80_pipeline").report().accesses
    store = next(x for x in rows if x.operand == "C" and x.space == "global")
    across = replace(
        store, matrix=problem.C, axis=0, bits=16, coords=store.coords[..., ::-1], tile=(128, 128)
    )
    (cause,) = make_report(problem, "k", None, "sm_80", [across], Launch(4, 128, 0)).causes
    assert cause.fix.startswith("threads ") and not cause.change


def test_a_fault_comes_first():
    problem = from_sizes("TN", m=256, n=256, k=64, dtype="float16")
    good = planned("TN", m=256, n=256, k=64, kernel="sm80_pipeline").report().accesses
    load = next(x for x in good if x.operand == "B" and x.instruction == "cp.async")
    odd = replace(load, matrix=Matrix("B", (256, 64), (65, 1), "float16", 256), targets=None)
    report = make_report(problem, "k", None, "sm_80", [*good, odd], Launch(4, 128, 0))
    assert report.causes[0].fault and report.causes[0].because == "B's cp.async would fault"


def test_a_fix_that_does_not_help_is_not_told():
    sizes = {"m": 100, "n": 4, "k": 100, "kernel": "naive"}
    assert time_of("TN", ldc=112, **sizes) == time_of("TN", **sizes)
    causes = planned("TN", **sizes).report().causes
    assert causes[0].fix == 'kernel="coalesced"'
    assert not any("ldc=" in cause.fix or "lda=" in cause.fix for cause in causes)


def test_causes_are_a_list():
    causes = [
        Cause("one [x]", "a", ("A ld.global: strided",), False, 2.5e-3, 0.5, "lda=8", (), 1.5e-3),
        Cause("two", "b", ("B ld.global: 32 bits",), False, 1e-6, 1e-3),
        Cause("three", "c", ("C st.global: 16 bits",), False, 1e-6, 1e-3),
    ]
    assert plain(Causes(causes), 60).splitlines() == [
        "Causes",
        " 1. one [x]: 2.50 ms, 50.0 % of the time",
        "    A ld.global: strided",
        "    fix: lda=8 (1.50 ms predicted)",
        " -  less than 1 % each, no fix known: two (B ld.global:",
        "    32 bits); three (C st.global: 16 bits)",
    ]
    page = Causes(causes).html()
    assert page.count("<li>") == 1 and "<b>Fix:</b> <code>lda=8</code> (1.50\u00a0ms pre" in page


def test_configs_with_equal_tiles_say_what_differs():
    kernel = registry.get("sm80_pipeline")
    first = planned("TN", kernel="sm80_pipeline")
    candidates = [
        Candidate(kernel, replace(first.config, stages=stages, raster=raster), None)
        for stages, raster in ((3, 8), (4, 8), (4, 4))
    ]
    names = labels(candidates)
    assert len(set(names)) == 3
    assert [name.partition(" s")[2] for name in names] == ["3", "4 raster 8", "4 raster 4"]
    cluster = planned("TN", arch="sm_90a").candidates()
    assert len(set(labels(cluster))) == len(cluster)


def test_causes_of_random_reports_hold():
    counts, wrong = searched(12, "default")
    assert not wrong and counts["changes"] > 12


@pytest.mark.parametrize("name", ["B200", "A100", "RTX 4090", "L40S", "H200"])
def test_what_costs_nothing_is_not_named(name):
    """Test the reduction kernel, whose accesses are as wide as possible."""
    report = cg.analyze("NN", m=256, n=4096, k=4096, dtype="float16", gpu=name)
    assert " because " not in report.headline and "no access costs 1 %" in report.headline
    assert all(cause.seconds is not None for cause in report.causes)


def test_tiles_at_edges_count_where_no_other_are():
    report = cg.analyze(
        "NN", m=512, n=16, k=512, l=64, dtype="float16", arch="sm_80", copy="mn_major"
    )
    first = report.causes[0]
    assert first.because == "B's ld.global is not coalesced" and first.fix == 'copy="auto"'
    assert first.share > 0.9 and first.because in report.headline


def test_a_cause_costs_what_its_fix_saves_at_least():
    sizes = {"m": 2048, "n": 3456, "k": 1024, "dtype": "float32", "arch": "sm_86"}
    report = cg.analyze("TN", **sizes, kernel="naive")
    first = report.causes[0]
    fixed = cg.analyze("TN", **sizes, kernel="coalesced").predicted.seconds
    assert (first.fix, first.fixed_seconds) == ('kernel="coalesced"', fixed)
    assert first.seconds == report.predicted.seconds - fixed


ODD = {"m": 4599, "n": 1024, "k": 1024, "dtype": "bfloat16", "arch": "sm_90a"}


def test_rows_of_c_that_end_anywhere_are_a_cause():
    """Test rows of C with odd lengths. Another leading dimension alone would not help."""
    asked = {**ODD, "lda": 4601, "ldc": 4600}
    report = cg.analyze("NT", **asked)
    cause = next(x for x in report.causes if x.what.startswith("C's "))
    assert cause.what == "C's rows of 4,599 elements (9,198 bytes) are not multiples of 16 bytes"
    assert (cause.fix, dict(cause.change)) == ('order="C"', {"order": "C"})
    assert cause.fixed_seconds == cg.analyze("NT", **asked, order="C").predicted.seconds
    wider = cg.analyze("NT", **{**asked, "ldc": 4608}).predicted.seconds
    assert wider == report.predicted.seconds


@pytest.mark.parametrize(("ragged", "op"), [("M", "NN"), ("N", "NN"), ("K", "TN")])
def test_an_option_and_not_groups_is_to_blame_for_its_threads(ragged, op):
    sizes = {"m": 1000, "n": 512, "k": 1024, "l": 4, "dtype": "float16", "arch": "sm_80"}
    given = {"ragged": ragged, "order": "C", "kernel": "sm80_pipeline"}
    report = cg.analyze(op, **sizes, **given, copy="mn_major")
    first = report.causes[0]
    assert first.what.startswith('copy="mn_major"') and first.fix == 'copy="auto"'
    assert first.fixed_seconds == cg.analyze(op, **sizes, **given).predicted.seconds
    assert not any("groups" in x.what for x in report.causes if x.share > 0.05)


def test_operands_that_are_packed_stay_so_in_a_fix():
    sizes = {"m": 512, "n": 512, "k": 1024, "l": 4, "dtype": "float16", "arch": "sm_80"}
    given = {"ragged": "K", "kernel": "sm80_pipeline"}
    cause = next(
        x for x in cg.analyze("TN", **sizes, **given, pack="A").causes if x.what.startswith("B's")
    )
    assert cause.fix in ("", 'pack="AB"')


def test_a_fix_with_an_address_is_in_its_change():
    sizes = {"m": 1001, "n": 1024, "k": 512, "dtype": "float16", "arch": "sm_80"}
    report = cg.analyze("TN", **sizes, kernel="sm80_pipeline", lda=516, base_offset=4)
    cause = next(x for x in report.causes if x.what.startswith("A's lda"))
    assert cause.what.endswith("and its base address is aligned to 8 bytes only")
    assert dict(cause.change) == {"lda": 528, "base_offset": 0}
    assert cause.fix == "lda=528 and base_offset=0"
