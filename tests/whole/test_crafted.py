"""Files of the cache and of the user with any content: ignored, or refused in one sentence."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cute_gemm.calibrate import times
from cute_gemm.commands import cli
from cute_gemm.cost_model import calibration
from cute_gemm.errors import OptionError
from cute_gemm.gpus.own import of_file
from cute_gemm.kernels.candidate import Measured
from cute_gemm.measure.result import BenchResult
from cute_gemm.plan import tuned
from cute_gemm.toolchain import cache

DEEP = "[" * 100_000
WRONG: tuple[Any, ...] = (None, "x", [], {}, True, float("nan"), float("inf"), 1e400, [[]], -1)


def test_choices() -> None:
    choice = Measured("naive", "config", "", 1, 1e-5, 3, "other", 2e-5)
    whole = json.loads(tuned._encode("GPU", {"key": choice}))
    assert tuned._decode(json.dumps(whole).encode()) == ("GPU", {"key": choice})
    for name in choice._fields:
        for value in WRONG:
            row = choice._asdict() | {name: value}
            changed = whole | {"choices": {"key": row}}
            _, found = tuned._decode(json.dumps(changed).encode())
            for each in found.values():
                fits = isinstance(value, type(getattr(choice, name)))
                assert fits and str(each) and "nan" not in str(each)
    for text in (DEEP, "null", "[]", "NaN", '{"format": null}'):
        assert tuned._decode(text.encode()) == ("", {})


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
        for value in ("x", None, 1.5, float("nan"), True):
            assert found(about | {"resources": resources | {name: value}}) is None
    for text in (DEEP, "null", "[]", "NaN", "3"):
        assert found(text) is None


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
    tree = whole["correction"][0]
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
