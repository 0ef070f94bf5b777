"""Test calibrations: files, the fit to times of a known one, and ``cute-gemm calibrate``."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_tuning import Device

import cute_gemm as cg
from cute_gemm.calibrate import draw, fit, measure, times
from cute_gemm.calibrate.times import Contest, Times
from cute_gemm.commands.cli import main
from cute_gemm.cost_model import calibrated, calibration
from cute_gemm.cost_model.calibration import Calibration, decoded, shipped
from cute_gemm.dtypes import FAST_ACCUM
from cute_gemm.errors import OptionError
from cute_gemm.gpus.gpu import Gpu
from cute_gemm.gpus.table import gpu as gpu_called
from cute_gemm.run import graph
from cute_gemm.toolchain import cache

pytestmark = pytest.mark.usefixtures("shipped_calibrations")

H200 = gpu_called("H200")
SIZES: dict[str, Any] = {"m": 1000, "n": 1200, "k": 900, "dtype": "bfloat16"}


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Use a cache without calibrations of other tests or of the user."""
    monkeypatch.setenv("CUTE_GEMM_CACHE_DIR", str(tmp_path / "cache"))
    calibrated.forget()
    yield tmp_path / "cache"
    calibrated.forget()


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Return a function that runs a command, checks its status, and returns its output."""

    def run(*words: str, status: int = 0) -> Any:
        assert main(words) == status
        return capsys.readouterr()

    return run


def reference() -> Calibration:
    found = shipped("H200")
    assert found is not None
    return found


# -- files ------------------------------------------------------------------------------------


def test_a_calibration_is_the_same_from_its_file() -> None:
    for path in Path(calibration.__file__).parent.glob("calibrations/*.json"):
        text = path.read_text(encoding="utf-8")
        assert decoded(text).encoded() == text
        assert shipped(decoded(text).gpu) == decoded(text)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "null", '{"format": 0}', '{"format": 1, "gpu": "H200"}',
             '{"format": 1, "gpu": "H200", "source": "", "constants": {}, "paces": {}}'],
)  # fmt: skip
def test_another_content_is_no_calibration(
    text: str, own_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "_warned", set())
    with pytest.raises(ValueError, match="."):
        decoded(text)
    own_directory.mkdir(parents=True, mode=0o700)
    (own_directory / "calibration-H200.json").write_text(text)
    with pytest.warns(UserWarning, match=r"calibration-H200\.json .*not used"):
        assert calibrated.calibration(H200) == reference()


def test_the_users_own_counts_in_every_process(own_directory: Path, run) -> None:
    before = cg.plan("NT", **SIZES, arch="sm_90a", gpu="H200", backend="cpu")
    assert before.kernel == "sm90_wgmma" and before.why.endswith(
        "; predictions from times of the H200"
    )
    paces = reference().paces
    slow = {kind: pace._replace(slowdown=40.0) for kind, pace in paces["sm90_wgmma"].items()}
    own = replace(reference(), paces={**paces, "sm90_wgmma": slow}, source="a test")
    calibrated.store(own)
    for forget in (lambda: None, calibrated.forget):
        forget()
        plan = cg.plan("NT", **SIZES, arch="sm_90a", gpu="H200", backend="cpu")
        assert plan.kernel == "sm80_pipeline"
        assert plan.why.endswith("; predictions calibrated on this H200")
    assert "calibration of H200" in run("cache").out
    # Other GPUs have no measurements.
    other = cg.plan("NT", **SIZES, arch="sm_90a", gpu="H100 PCIe", backend="cpu")
    assert other.kernel == "sm90_wgmma"
    assert other.why.endswith("; predictions from the H100 PCIe's data sheet and times of the H200")
    assert "removed calibration of H200" in run("cache", "clear").out
    assert calibrated.calibration(H200) == reference()


# -- measurement ------------------------------------------------------------------------------


def test_contests_are_drawn_from_the_seed() -> None:
    first, again = (list(itertools.islice(draw.contests(H200, 4), 9)) for _ in range(2))
    assert first == again != list(itertools.islice(draw.contests(H200, 5), 9))
    assert {contest.sizes["dtype"] for contest in first} == {
        name.partition("/")[0] for name in draw.DTYPES
    }
    for contest in first:
        assert 2 <= len(contest.entries) <= 40
        assert list(contest.candidates(H200)) == list(contest.entries)


def test_types_without_a_kernel_are_left_out() -> None:
    kinds = draw.kinds(("float8_e4m3fn", "float32"), float8=False)
    assert {kind.dtype for kind in kinds} == {"float32"}


class FakeGraph:
    """A graph that runs immediately, on the clock of a fake device."""

    device: Device

    def __init__(self, calls: Any, device: int = 0) -> None:
        self.calls: list[Callable[[int], object]] = list(calls)

    def milliseconds(self) -> float:
        before = self.device.gpu.now
        for call in self.calls:
            call(7)
        return self.device.gpu.now - before

    def __enter__(self) -> FakeGraph:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def test_contests_are_measured(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeGraph, "device", device, raising=False)
    monkeypatch.setattr(graph, "Graph", FakeGraph)
    drawn = Contest({"op": "NT", **SIZES}, ())
    candidates = drawn.plan(H200).candidates()[:4]
    for number, candidate in enumerate(candidates):
        device.takes(candidate, 0.25 * (number + 1))
    contest = replace(drawn, entries=tuple(map(times.entry, candidates)))
    only = replace(contest, entries=contest.entries[:1])
    device.errors[candidates[2].config.name] = cg.errors.CompileError("it has too many registers")
    given = itertools.chain([only], itertools.repeat(contest))
    found = list(itertools.islice(measure.times(given, H200, 1e6), 2))
    kept = [contest.entries[number] for number in (0, 1, 3)]
    expected = [x._replace(microseconds=us) for x, us in zip(kept, (250, 500, 1000), strict=True)]
    assert [list(x.entries) for x in found] == [expected] * 2


# -- stored times -----------------------------------------------------------------------------


def timed(count: int, hidden: Calibration, noise: float = 0.04, seed: int = 1) -> Times:
    """Return problems with the times that a calibration predicts, plus noise."""
    rng = np.random.default_rng(seed)
    found = []
    for drawn in itertools.islice(draw.contests(H200, seed, ("bfloat16", "float32")), count):
        entries = [x._replace(microseconds=1.0) for x in drawn.entries]
        known = fit.samples([replace(drawn, entries=tuple(entries))], H200)[0]
        seconds = fit.SampleSet([known], H200).predicted(hidden)
        real = [float(x * math.exp(noise * rng.normal()) * 1e6) for x in seconds]
        pairs = zip(entries, real, strict=True)
        found.append(replace(drawn, entries=tuple(x._replace(microseconds=us) for x, us in pairs)))
    return Times("H200", "a test", found)


def test_times_are_the_same_from_their_file(tmp_path: Path) -> None:
    some = timed(3, reference())
    for name in ("a.gz", "b.gz"):
        some.write(tmp_path / name)
    assert times.read(tmp_path / "a.gz") == some
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()
    assert times.joined([some, some]).contests == some.contests * 2
    with pytest.raises(OptionError, match="H100, H200; expected those of one GPU"):
        times.joined([some, replace(some, gpu="H100")])
    (tmp_path / "c.gz").write_bytes(b"no times")
    for name in ("c.gz", "d.gz"):
        with pytest.raises(OptionError, match=f"{name}.*cannot be read: .*; expected a file that"):
            times.read(tmp_path / name)


def test_configs_that_there_are_no_more_are_dropped() -> None:
    contest = timed(1, reference()).contests[0]
    gone = contest.entries[0]._replace(config="of_last_year")
    assert gone not in replace(contest, entries=(gone, *contest.entries[1:])).candidates(H200)


# -- the fit ----------------------------------------------------------------------------------


def changed() -> Calibration:
    """Return a calibration of another GPU."""
    known = reference()
    paces = {
        kernel: {
            kind: pace._replace(slowdown=pace.slowdown * factor, latency=pace.latency * 2)
            for kind, pace in rows.items()
        }
        for (kernel, rows), factor in zip(
            known.paces.items(), itertools.cycle((1.7, 0.6, 1.3)), strict=False
        )
    }
    return replace(known, paces=paces, constants=known.constants._replace(dependent_us=3.0))


def test_the_fit_finds_the_numbers_behind_times() -> None:
    some = timed(20, changed())
    known, held = (fit.samples(part, H200) for part in times.divided(some.contests))
    before = fit.quality(held, reference(), H200)
    found = fit.fitted(known, reference(), H200, "a test")
    after = fit.quality(held, found, H200)
    assert before.rms > 0.1 and after.rms < 0.07 and after.regret <= before.regret + 0.02
    assert found.bases["sm90_wgmma"]["half"].times >= 12
    # Parameters without measurements do not change: these types were not measured.
    assert found.pace("sm90_wgmma", "int8") == reference().pace("sm90_wgmma", "int8")
    assert decoded(found.encoded()) == found


def test_without_times_nothing_changes() -> None:
    assert fit.fitted([], reference(), H200, reference().source) == replace(reference(), bases={})
    assert fit.quality([], reference(), H200) == (0.0, 0.0, 1.0)


@pytest.mark.parametrize(("name", "kind"), [("H200", "tf32"), ("H100 SXM", "float8")])
def test_the_packages_numbers_are_fitted_to_what_is_counted_now(name: str, kind: str) -> None:
    """Test that current counts give the errors of the stored fit."""
    gpu, numbers = gpu_called(name), shipped(name)
    assert numbers is not None
    file = f"{name.lower().replace(' ', '-')}-times.gz"
    stored = times.read(Path(__file__).parents[1] / "data" / file)
    assert (stored.gpu, stored.source) == (name, numbers.source)
    own = {None, FAST_ACCUM}  # products of the operands' own types
    words = (
        (x, x.sizes["dtype" if x.sizes.get("compute") in own else "compute"])
        for x in stored.contests
    )
    of = [x for x, word in words if word.startswith(kind)]
    by_kernel: dict[str, list[fit.Sample]] = {}
    for sample in itertools.chain.from_iterable(fit.samples(of, gpu)):
        by_kernel.setdefault(sample.kernel.name, []).append(sample)
    bases = {kernel: rows[kind] for kernel, rows in numbers.bases.items() if kind in rows}
    assert "sm90_wgmma" in bases
    for kernel, basis in bases.items():
        found = fit.quality([by_kernel[kernel]], numbers, gpu)
        assert (len(by_kernel[kernel]), float(f"{found.rms:.3g}")) == (basis.times, basis.rms)


# -- the command ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpu", "expected"), [("H200", "prior"), ("H100 SXM", "H200"), ("A100 SXM 80GB", "H200")]
)
def test_where_a_fit_starts(
    gpu: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run
) -> None:
    """Test that a fit never starts from the GPU's own calibration, so that it is reproducible."""
    calibrated.store(replace(changed(), gpu=gpu))
    replace(timed(8, reference()), gpu=gpu).write(tmp_path / "times.gz")
    starts: list[Calibration] = []

    def fitted(contests: Any, start: Calibration, *_: Any) -> Calibration:
        starts.append(start)
        return start

    monkeypatch.setattr(fit, "fitted", fitted)
    run("calibrate", "--fit", str(tmp_path / "times.gz"))
    assert starts == [shipped(expected)] * 2  # fitted to a part, and to all


def test_stored_times_are_fitted_again(tmp_path: Path, run) -> None:
    timed(8, replace(changed(), correction=None)).write(tmp_path / "h200.gz")
    words = ("calibrate", "--fit", str(tmp_path / "h200.gz"), "--output", str(tmp_path / "h.json"))
    said = run(*words).out
    assert "times of 8 problems" in said and "On 2 problems that the numbers were not" in said
    first = (tmp_path / "h.json").read_text()
    assert decoded(first).source == "a test"
    assert calibrated.calibration(H200) == reference()  # the calibration of --output is not in use
    row = json.loads(run(*words, "--json").out)
    assert (tmp_path / "h.json").read_text() == first
    assert row["held_out"]["after"]["rms"] < row["held_out"]["before"]["rms"]


def test_a_gpu_is_calibrated(device: Device, monkeypatch: pytest.MonkeyPatch, run) -> None:
    def of_seconds(contests: Iterator[Contest], gpu: Gpu, seconds: float, *_: Any) -> Any:
        assert (gpu.name, seconds) == ("H200", 90.0)
        yield from timed(12, replace(changed(), correction=None)).contests

    monkeypatch.setattr(measure, "times", of_seconds)
    said = run("calibrate", "--minutes", "2").out
    assert "Kept: selection on this GPU uses it from now on" in said
    assert calibrated.provenance(H200) == "predictions calibrated on this H200"
    assert calibrated.calibration(H200).source.startswith("cute-gemm calibrate --seed 0, 20")


def test_a_calibration_that_chooses_worse_is_not_kept(
    device: Device, monkeypatch: pytest.MonkeyPatch, run
) -> None:
    monkeypatch.setattr(measure, "times", lambda *_: iter(timed(8, reference()).contests))
    monkeypatch.setattr(fit, "fitted", lambda *_: changed())
    worse = itertools.cycle((fit.Quality(0.1, 0.02, 0.9), fit.Quality(0.08, 0.03, 0.9)))
    monkeypatch.setattr(fit, "quality", lambda *_: next(worse))
    row = json.loads(run("calibrate", "--minutes", "2", "--json").out)
    assert row["held_out"]["before"]["regret"] < row["held_out"]["after"]["regret"]
    assert not row["kept"] and calibrated.calibration(H200) == reference()
    assert "Not kept, since it selects slower configs" in run("calibrate", "--minutes", "2").out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--minutes", "0"), "--minutes 0.0 does not fit; expected more than 0"),
        (("--dtype", "float12"), "--dtype 'float12' does not fit; expected some of bfloat16,"),
        (("--dtype", ","), "--dtype ',' does not fit; expected some of bfloat16,"),
        (("--fit", "nothing.gz"), "cannot be read: .*; expected a file that"),
    ],
)
def test_what_does_not_fit_is_said(
    words: tuple[str, ...], message: str, device: Device, run
) -> None:
    failed = run("calibrate", *words, status=2)
    assert re.search(message, failed.err)


def test_too_few_times_are_refused(tmp_path: Path, run) -> None:
    timed(3, reference()).write(tmp_path / "few.gz")
    failed = run("calibrate", "--fit", str(tmp_path / "few.gz"), status=2)
    assert "3 problems were measured; expected 8 or more: give it more --minutes" in failed.err
