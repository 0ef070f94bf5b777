"""Test files of the cache and of the user with any content: ignored, or a one-sentence error."""

import hashlib
import json
import os
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cute_gemm as cg
from cute_gemm.calibrate import times
from cute_gemm.commands import cli
from cute_gemm.cost_model import calibrated, calibration
from cute_gemm.errors import OptionError
from cute_gemm.gpus import table
from cute_gemm.gpus.own import of_file
from cute_gemm.kernels.candidate import Measured
from cute_gemm.measure.result import BenchResult
from cute_gemm.plan import tuned
from cute_gemm.plan.select import select
from cute_gemm.toolchain import cache, nvrtc
from cute_gemm.toolchain.cubin import Build, Resources
from cute_gemm.toolchain.unit import TranslationUnit

DEEP = "[" * 100_000
WRONG: tuple[Any, ...] = (None, "x", [], {}, True, float("nan"), float("inf"), 1e400, [[]], -1)


def test_selections() -> None:
    choice = Measured("naive", "config", "", 1, 1e-5, 3, "other", 2e-5)
    whole = json.loads(tuned._encode("GPU", {"key": choice}))
    assert tuned._decode(json.dumps(whole).encode()) == ("GPU", {"key": choice})
    for name in choice._fields:
        for value in WRONG:
            row = choice._asdict() | {name: value}
            changed = whole | {"configs": {"key": row}}
            data = json.dumps(changed).encode()
            if value == "x" and isinstance(getattr(choice, name), str):
                assert tuned._decode(data)[1]["key"] == choice._replace(**{name: value})
            else:
                with pytest.raises(ValueError, match="damaged"):
                    tuned._decode(data)
    for name, value in (("predicted", "\x1b[2J"), ("config", "x" * 5000), ("configs", 10**400)):
        row = choice._asdict() | {name: value}
        with pytest.raises(ValueError, match="damaged"):
            tuned._decode(json.dumps(whole | {"configs": {"key": row}}).encode())
    for text in (DEEP, "null", "[]", "NaN", "{}"):
        with pytest.raises(ValueError, match="damaged"):
            tuned._decode(text.encode())
    assert tuned._decode(json.dumps(whole | {"format": None}).encode()) == ("", {})


def test_a_file_that_is_not_used_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUTE_GEMM_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(cache, "_warned", set())
    monkeypatch.setattr(tuned, "_tuned", {})
    monkeypatch.setattr(calibrated, "_known", {})
    problem = cg.plan("TN", m=64, n=64, k=64, dtype="float64", arch="sm_80", backend="cpu").problem
    gpu = table.gpu("A100")
    for kind in ("tuned", "calibration"):
        cache.put_file(cache.file_of(kind, gpu.name), b'{"format": "\x1b[2J"' + b"x" * 5000)
    cache.put_file("k.build", b"damaged")

    def look() -> None:
        tuned._tuned.clear()
        calibrated._known.clear()
        assert tuned.find(gpu.name, problem, "sm_80", "auto", {}) is None
        assert not calibrated.provenance(gpu).startswith("predictions calibrated")
        assert cache.get("k") is None

    with pytest.warns(UserWarning, match="not used|damaged") as said:
        look()
    texts = [str(each.message) for each in said]
    ends = ("`cute-gemm tune` makes a new one.", "`cute-gemm calibrate` makes a new one.", "again.")
    assert all(text.endswith(end) for text, end in zip(texts, ends, strict=True))
    assert all(text.isprintable() and len(text) < 400 for text in texts)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        look()


def build(about: Any) -> bytes:
    body = (about if isinstance(about, str) else json.dumps(about)).encode() + b"\ncubin"
    return cache._MAGIC + hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def test_builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTE_GEMM_CACHE_DIR", str(tmp_path))
    resources = dict.fromkeys(
        ("registers", "shared_static", "spill_stores", "spill_loads", "stack"), 0
    )
    about = {"key": "k", "symbol": "s", "arch": "sm_80", "log": "", "resources": resources}
    place = cache.directory() / "k.build"
    place.parent.mkdir(parents=True, exist_ok=True)

    def found(about: Any) -> Any:
        place.write_bytes(build(about))
        listed = [entry.symbol for entry in cache.entries()]
        got = cache.get("k")
        assert (got is None) == (not listed)
        return got

    assert found(about) is not None
    for name in about:
        for value in WRONG:
            if not (value == "x" and name in ("symbol", "arch", "log")):
                assert found(about | {name: value}) is None
    for name in resources:
        for value in ("x", None, 1.5, float("nan"), True, -1):
            assert found(about | {"resources": resources | {name: value}}) is None
    for text in (DEEP, "null", "[]", "NaN", "3"):
        assert found(text) is None


@pytest.mark.parametrize("change", [{"symbol": "another"}, {"arch": "sm_90a"}], ids=str)
def test_a_build_of_another_kernel_is_built_anew(
    change: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test that the key in the file is compared, although its checksum and name are right."""
    monkeypatch.setenv("CUTE_GEMM_CACHE_DIR", str(tmp_path))
    unit = TranslationUnit("source", "entry")
    right = Build(b"right", "entry", "sm_80", Resources(1, 0, 0, 0, 0), 0.0, False, "")
    monkeypatch.setattr(nvrtc, "_compile", lambda *_: right)
    assert nvrtc.build(unit, "sm_80").cubin == b"right"
    [path] = tmp_path.glob("*.build")
    path.write_bytes(cache._encode(path.stem, replace(right, cubin=b"wrong", **change)))
    again = nvrtc.build(unit, "sm_80")
    assert (again.cubin, again.cached) == (b"right", False)
    assert nvrtc.build(unit, "sm_80").cached


@pytest.mark.parametrize(
    "change",
    [{"kernel": "cublas"}, {"kernel": "naive"}, {"kernel": "no such"}, {"config": "no such"},
     {"config": ""}, {"split_k": 0}, {"split_k": 3}, {"split_k": 10**30}, {"pack": "C"},
     {"pack": "AB"}],
    ids=str,
)  # fmt: skip
def test_a_selection_that_is_not_legal_is_not_taken(change: dict[str, Any]) -> None:
    """Test a stored config that is not among the candidates, because it is packed or split."""
    problem = cg.plan("TN", m=64, n=64, k=64, dtype="float64", arch="sm_80", backend="cpu").problem
    predicted = select(problem, "sm_80", "sm80_pipeline", {"pack": "none", "split_k": 1})
    other = predicted.candidates()[1].config
    choice = Measured("sm80_pipeline", other.name, "", 1, 1e-5, 3)
    options = {"pack": "none", "split_k": 1}
    taken = select(problem, "sm_80", "sm80_pipeline", options, measured=choice)
    assert taken.config == other and taken.measured == choice
    crafted = choice._replace(**change)
    found = select(problem, "sm_80", "sm80_pipeline", options, measured=crafted)
    assert found.config == predicted.config and found.measured is None


@pytest.mark.parametrize("value", [0, -1, 1e-300, 1e300, 10**30])
def test_numbers_that_no_time_can_be_predicted_with(value: float) -> None:
    whole = json.loads(calibration.shipped("H200").encoded())  # type: ignore[union-attr]
    row = whole["paces"]["sm80_pipeline"]["half"]
    tree = whole["correction"][0]
    changes = [
        {"paces": {"sm80_pipeline": {"half": row | {"dram": value}}}},
        {"paces": {"sm80_pipeline": {"half": row | {"slowdown": value}}}},
        {"constants": whole["constants"] | {"cold_mb": value}},
        {"factors": {"sm90_wgmma": whole["factors"]["sm90_wgmma"] | {"by_turns": value}}},
    ]
    if abs(value) > 1:
        changes.append({"correction": [[*tree[:2], [value, *tree[2][1:]]]]})
    for change in changes:
        with pytest.raises(ValueError, match="."):
            calibration.decoded(json.dumps(whole | change))


GPU = {"name": "X", "cc": 90, "sms": 132, "clock_ghz": 1.7, "bandwidth_gbs": 4000.0,
       "l2_bytes": 2**25, "cuda_cores": {"float32": 60.0}}  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [{"sms": 10**30}, {"clock_ghz": 1e-300}, {"clock_ghz": 1e300}, {"bandwidth_gbs": 5e-324},
     {"cuda_cores": {"float32": 1e-300}}, {"l2_bytes": -1}, {"name": "x" * 1000},
     {"name": "\x1b[31m"}, {"tensor_cores": {"float16": 1e300}}],
    ids=lambda change: next(iter(change)),
)  # fmt: skip
def test_a_gpu_that_nobody_has(change: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    path.write_text(json.dumps(GPU))
    assert of_file(path).name == "X"
    path.write_text(json.dumps(GPU | change))
    with pytest.raises(OptionError, match=f"has {next(iter(change))}") as caught:
        of_file(path)
    assert len(str(caught.value)) < 400 and str(caught.value).isprintable()


def test_a_file_of_a_gpu_that_is_too_long(tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    with path.open("wb") as file:
        file.truncate(2**40)  # sparse: no bytes on the disk
    with pytest.raises(OptionError, match="has more than 1048576 bytes"):
        of_file(path)


def test_the_name_of_a_gpu_is_no_path(tmp_path: Path) -> None:
    """Test that the name of a GPU finds only calibrations in the package's folder."""
    place = Path(calibration.__file__).parent / "calibrations"
    (tmp_path / "theirs.json").write_text((place / "h200.json").read_text())
    assert calibration.shipped("H200") is not None
    assert calibration.shipped(os.path.relpath(tmp_path / "theirs", place)) is None


def test_calibrations() -> None:
    whole = json.loads(calibration.shipped("H200").encoded())  # type: ignore[union-attr]
    assert calibration.decoded(json.dumps(whole)).gpu == "H200"

    def refused(changed: Any) -> None:
        text = changed if isinstance(changed, str) else json.dumps(changed)
        with pytest.raises(ValueError, match="."):
            calibration.decoded(text)

    for value in (None, "x", True, float("nan"), 1e400, [1]):
        refused(whole | {"constants": whole["constants"] | {"wait": value}})
        kernel, rows = next(iter(whole["paces"].items()))
        kind, row = next(iter(rows.items()))
        refused(whole | {"paces": {kernel: {kind: row | {"slowdown": value}}}})
        refused(whole | {"factors": {"naive": {"x": value}}})
        refused(whole | {"correction": value} if value is not None else DEEP)
    late = whole["constants"] | {"launch_us": 1.0, "group_us": 1e3}  # few threads would end early
    refused(whole | {"constants": late})
    tree = whole["correction"][0]
    for part in (1, 2):
        huge = [*tree[:part], [10**400, *tree[part][1:]], *tree[part + 1 :]]
        refused(whole | {"correction": [huge]})
    refused(whole | {"correction": [[[99] * len(tree[0]), *tree[1:]]]})
    refused(whole | {"correction": [[tree[0], tree[1], tree[2][:-1]]]})


def test_files_of_the_user(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = tmp_path / "missing" / "file"
    for call in (
        lambda: of_file(missing),
        lambda: times.read(missing),
        lambda: times.read(tmp_path),
    ):
        with pytest.raises(OptionError) as caught:
            call()
        assert "Errno" not in str(caught.value)
    for values in (None, [], {"format": 1}, {"format": np.nan}):
        with pytest.raises(OptionError):
            BenchResult.from_dict(values)  # type: ignore[arg-type]
    deep = tmp_path / "deep.json"
    deep.write_text(DEEP)
    sizes = ["NN", "-m", "8", "-n", "8", "-k", "8", "--kernel", "naive", "--arch", "sm_80"]
    for words in (
        ["bench", "--from", str(missing)], ["bench", "--from", str(deep)],
        ["bench", "--from", str(tmp_path)], ["analyze", *sizes, "--html", str(missing)],
        ["emit", *sizes, "--output", str(missing)], ["emit", *sizes, "--output", str(tmp_path)],
        ["calibrate", "--fit", str(missing)], ["analyze", *sizes, "--gpu", str(missing)],
        ["analyze", *sizes, "--gpu", str(deep)],
    ):  # fmt: skip
        assert cli.main(words) == 2
        said = capsys.readouterr().err.strip()
        assert "Errno" not in said and "\n" not in said and str(tmp_path) in said
