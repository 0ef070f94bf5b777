"""The pictures of the documentation are what their commands make."""

import re
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))

import make_pictures  # noqa: E402
import update  # noqa: E402

pytestmark = pytest.mark.usefixtures("shipped_calibrations")

HOW = "python docs/make_pictures.py makes it"
PICTURES = sorted(path.name for path in (ROOT / "docs/pictures").iterdir())


@cache
def made() -> dict[str, str]:
    return make_pictures.pictures()


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_what_its_command_makes(name: str) -> None:
    file = ROOT / "docs/pictures" / name
    if name == "report.png":  # its pixels depend on the browser; the text of the report does not
        stored = (ROOT / "docs/data/report.txt").read_text(encoding="utf-8")
        assert stored == f"{make_pictures.report()}\n", HOW
    else:
        assert made()[name] == file.read_text(encoding="utf-8"), HOW


def test_every_picture_is_shown_and_every_shown_one_is_there() -> None:
    shown = set()
    for path in update.files():
        shown |= set(re.findall(r"pictures/([\w.]+\.(?:png|svg))\)", path.read_text()))
    assert shown == set(PICTURES)


def test_the_report_is_drawn_by_a_browser(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With none the others are made, the report's text stays, and a sentence says so."""
    before = (ROOT / "docs/data/report.txt").read_text(encoding="utf-8")
    monkeypatch.setattr(make_pictures, "DOCS", tmp_path)
    monkeypatch.setattr(make_pictures, "pictures", lambda: {"one.svg": "<svg/>"})
    monkeypatch.setattr(make_pictures.shutil, "which", lambda name: None)
    (tmp_path / "pictures").mkdir()
    assert make_pictures.main() == 1
    assert "there is no Chromium (apt install chromium)" in capsys.readouterr().out
    assert [path.name for path in tmp_path.rglob("*.*")] == ["one.svg"]
    assert before == (ROOT / "docs/data/report.txt").read_text(encoding="utf-8")
