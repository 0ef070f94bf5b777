"""Test corrections of predicted times: trees, their fit, and kernel selection with them."""

import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import cute_gemm as cg
from cute_gemm.calibrate import draw, fit
from cute_gemm.calibrate.boost import boosted
from cute_gemm.cost_model import calibrated
from cute_gemm.cost_model.calibration import Calibration, decoded, shipped
from cute_gemm.cost_model.correction import FEATURES, LEVELS, Correction, Tree
from cute_gemm.cost_model.prediction import Extents, Predictions
from cute_gemm.cost_model.roofline import least_seconds
from cute_gemm.gpus.table import gpu as gpu_called

H200 = gpu_called("H200")
SHAPE = {"m": 1000, "n": 1200, "k": 900, "dtype": "bfloat16", "arch": "sm_90a", "backend": "cpu"}


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Use a cache without calibrations of other tests or of the user."""
    monkeypatch.setenv("CUTE_GEMM_CACHE_DIR", str(tmp_path / "cache"))
    calibrated.forget()
    yield
    calibrated.forget()


def calibration(*trees: Tree) -> Calibration:
    """Return the H200's calibration with only these trees."""
    found = shipped("H200")
    assert found is not None
    return replace(found, correction=Correction(trees) if trees else None)


def tree(feature: str, threshold: float, above: float, below: float = 0.0) -> Tree:
    """Return a tree that tests one feature on all levels."""
    values = [below] * (1 << LEVELS)
    values[-1] = above
    return Tree((FEATURES.index(feature),) * LEVELS, (threshold,) * LEVELS, tuple(values))


# -- trees ------------------------------------------------------------------------------------


def test_trees_are_looked_up_level_by_level() -> None:
    random = np.random.default_rng(3)
    trees = tuple(
        Tree(
            tuple(random.integers(0, 5, LEVELS).tolist()),
            tuple(random.normal(size=LEVELS).tolist()),
            tuple(random.normal(size=1 << LEVELS).tolist()),
        )
        for _ in range(7)
    )
    rows = random.normal(size=(9000, 5))  # more than one block of rows
    found = Correction(trees).logarithms(rows)
    for row in (0, 4095, 4096, 8999):
        sums = 0.0
        for of, thresholds, values in trees:
            bits = [rows[row, x] > limit for x, limit in zip(of, thresholds, strict=True)]
            sums += values[sum(bit << level for level, bit in enumerate(bits))]
        assert found[row] == pytest.approx(sums)
    assert Correction(trees).factors(rows[:3]) == pytest.approx(np.exp(found[:3]))
    assert Correction(trees).logarithms(rows[:0]).shape == (0,)


def test_trees_find_what_errors_depend_on() -> None:
    random = np.random.default_rng(4)
    rows = random.normal(size=(4000, 6))
    errors = 0.3 * (rows[:, 1] > 0.2) - 0.2 * (rows[:, 4] > -0.5) * (rows[:, 0] > 0)
    noisy = errors + 0.02 * random.normal(size=len(rows))
    weights = np.ones(len(rows))
    trees = boosted(rows[:3000], noisy[:3000], weights[:3000], 40)
    assert len(trees) == 40
    left = errors[3000:] - Correction(tuple(trees)).logarithms(rows[3000:])
    # The nearest of 31 thresholds is at most half of 1/32 of the samples away.
    assert np.sqrt(np.mean(left**2)) < math.hypot(0.3, 0.2) * math.sqrt(1 / 64)
    assert trees == boosted(rows[:3000], noisy[:3000], weights[:3000], 40)  # bitwise equal
    # Samples with weight 0 change nothing.
    wrong, light = noisy.copy(), weights.copy()
    wrong[:1000], light[:1000] = 5.0, 0.0
    trees = boosted(rows, wrong, light, 40)
    assert Correction(tuple(trees)).logarithms(rows).max() < 0.5


@pytest.mark.parametrize("count", [0, 3])
def test_without_a_difference_there_are_no_trees(count: int) -> None:
    rows = np.ones((50, 4)) if count else np.random.default_rng(5).normal(size=(50, 4))
    assert boosted(rows, np.linspace(-1, 1, 50), np.ones(50), count) == []


def test_trees_are_the_same_from_a_file() -> None:
    found = calibration(tree("rounds", 1.5, 0.25), tree("DRAM", 0.123, -0.0313, 0.001))
    assert decoded(found.encoded()) == found
    damaged = json.loads(found.encoded()) | {"correction": [[[0], [1.0]]]}
    with pytest.raises(ValueError, match="not a calibration"):
        decoded(json.dumps(damaged))


# -- kernel selection -------------------------------------------------------------------------


def test_a_selection_is_the_least_corrected_time() -> None:
    calibrated.take(calibration(), own=False)
    plain = cg.plan("NT", **SHAPE, gpu="H200").candidates()
    assert {x.prediction.correction for x in plain} == {1.0}
    taken = plain[0].config.tile
    # A tile M of 64 takes a fifth of the time, all others a tenth more.
    calibrated.take(calibration(tree("tile M", 64.5, 0.1, math.log(0.2))), own=False)
    plan = cg.plan("NT", **SHAPE, gpu="H200")
    found = plan.candidates()
    assert taken[0] > 64 and found[0].config.tile[0] <= 64
    assert (plan.kernel, plan.config) == (found[0].kernel.name, found[0].config)
    seconds = [x.prediction.seconds for x in found]
    assert seconds == sorted(seconds)
    before = {(x.kernel.name, x.config, x.algorithm): x.prediction for x in plain}
    corrected = 0
    for x in found:
        prediction = before[x.kernel.name, x.config, x.algorithm]
        least = least_seconds(plan.gpu, plan.problem)
        assert x.prediction.seconds == pytest.approx(
            max(least, prediction.seconds * x.prediction.correction)
        )
        assert x.prediction.terms == prediction.terms
        if x.prediction.correction != 1.0:
            corrected += 1
            expected = math.exp(0.1) if x.config.tile[0] > 64 else 0.2
            assert x.prediction.correction == pytest.approx(expected)
    assert found[0].prediction.correction == pytest.approx(0.2)
    assert corrected % 8 == 0 and corrected < len(found)
    assert f"{1e6 * seconds[0]:.3g} us predicted" in plan.why


def test_the_least_of_all_is_always_a_corrected_one() -> None:
    """Test that further candidates are corrected if corrections make the first ones slower."""
    calibrated.take(calibration(tree("tile M", 0.5, 1.0)), own=False)
    found = cg.plan("NT", **SHAPE, gpu="H200").candidates()
    assert found[0].prediction.correction == pytest.approx(math.e)
    assert sum(x.prediction.correction == 1.0 for x in found) < len(found) - 8


def test_only_the_gpu_that_was_measured_is_corrected() -> None:
    assert (shipped("H200") or calibration()).correction is not None
    for gpu, corrected in (("H200", True), ("H100 PCIe", False)):
        predictions = [x.prediction for x in cg.plan("NT", **SHAPE, gpu=gpu).candidates()]
        assert any(prediction.correction != 1.0 for prediction in predictions) is corrected


def test_groups_and_empty_products_are_not_corrected() -> None:
    calibrated.take(calibration(tree("tile M", 0.5, 1.0)), own=False)
    groups = cg.plan("NT", **SHAPE, gpu="H200", ragged="M", l=8).candidates()
    empty = cg.plan("NT", **{**SHAPE, "k": 0}, gpu="H200").candidates()
    assert {x.prediction.correction for x in (*groups, *empty)} == {1.0}


def test_one_order_of_summation_is_kept() -> None:
    """Test that corrections do not select a config with another order of summation."""
    for trees in ((), (tree("slices", 1.5, -2.0),)):
        calibrated.take(calibration(*trees), own=False)
        orders = {
            cg.plan(
                "NN", **{**SHAPE, "m": m, "k": 8192}, gpu="H200", batch_invariant=True
            ).order_of_summation
            for m in (1, 40, 700, 5000)
        }
        assert len(orders) == 1


def test_what_an_access_costs_is_corrected_too() -> None:
    """Test that the seconds of causes are parts of the corrected time."""
    given = {**SHAPE, "kernel": "vectorized", "gpu": "H200"}
    costs = []
    for trees in ((), (tree("tile M", 0.5, math.log(3)),)):
        calibrated.take(calibration(*trees), own=False)
        report = cg.plan("TN", **given).report()
        costs.append(next(cause.seconds for cause in report.causes if cause.seconds))
    assert costs[1] == pytest.approx(3 * costs[0])


# -- the fit ----------------------------------------------------------------------------------


def test_the_fit_corrects_what_numbers_cannot_say() -> None:
    """Test times that are a fifth longer than the model if the last round is nearly empty."""
    hidden = calibration(tree("last round", -0.5, 0.0, 0.2))
    contests = []
    for drawn in itertools.islice(draw.contests(H200, 2, ("bfloat16",)), 24):
        entries = [x._replace(microseconds=1.0) for x in drawn.entries]
        known = fit.samples([replace(drawn, entries=tuple(entries))], H200)[0]
        seconds = fit.SampleSet([known], H200).predicted(hidden)
        timed = zip(known, seconds, strict=True)
        contests.append([replace(sample, seconds=float(x)) for sample, x in timed])
    known, held = contests[:16], contests[16:]
    found = fit.SampleSet(known, H200).corrected(calibration())
    assert found.correction is not None and len(found.correction.trees) == 2
    plain = fit.quality(held, calibration(), H200)
    assert fit.quality(held, found, H200).rms < 0.9 * plain.rms
    # The fit of another GPU starts with these trees.
    more = fit.SampleSet(known[:8], H200).corrected(found)
    assert more.correction is not None and len(more.correction.trees) == 3
    assert more.correction.trees[:2] == found.correction.trees


def test_features_are_those_that_are_named() -> None:
    plan = cg.plan("NT", **SHAPE, kernel="sm90_wgmma", tile="128x96x64", cluster="2x1", gpu="H200")
    candidate, extents = plan.candidates()[0], Extents.of(plan.problem)
    predictions = Predictions(
        [candidate.kernel.footprint(plan.config, plan.problem, H200)] * 2, H200
    )
    slices = np.array([1, 4])
    rows = predictions.features(extents, slices, predictions.times(extents, slices))
    assert rows.shape == (2, len(FEATURES))
    first, cut = (dict(zip(FEATURES, row, strict=True)) for row in rows.tolist())
    assert [first[x] for x in ("tile M", "tile N", "tile K")] == [128, 96, 64]
    assert [first[x] for x in ("cluster M", "cluster N")] == [2, 1]
    assert (first["slices"], cut["slices"]) == (1, 4)
    assert (first["k tiles"], cut["k tiles"]) == (15, 4)
    assert first["rounds"] == pytest.approx(8 * 13 / 132)
    assert first["last round"] == pytest.approx(8 * 13 / 132 - 1)
    assert first["inside M"] == pytest.approx(1000 / 1024)
    assert first["inside N"] == pytest.approx(1200 / 1248)
    assert first["seconds"] == predictions.seconds(extents)[0]
    terms = predictions.predict(plan.problem, 0).terms
    for name, term in (("L2", "L2"), ("DRAM", "DRAM"), ("launch", "launch overhead")):
        assert first[name] == pytest.approx(terms[term] / first["seconds"])
