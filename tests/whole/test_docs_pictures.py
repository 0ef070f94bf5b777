"""Test that the pictures of the documentation are those that their commands draw."""

import re
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))

import make_pictures  # noqa: E402
import update  # noqa: E402

from cute_gemm.commands import cli  # noqa: E402

pytestmark = pytest.mark.usefixtures("shipped_calibrations")

HOW = "python docs/make_pictures.py makes it"
PICTURES = sorted(path.name for path in (ROOT / "docs/pictures").iterdir())


@cache
def made() -> dict[str, str]:
    return make_pictures.pictures()


@pytest.mark.parametrize("name", [name for name in PICTURES if name.endswith(".svg")])
def test_a_picture_is_what_its_command_makes(name: str) -> None:
    assert made()[name] == (ROOT / "docs/pictures" / name).read_text(encoding="utf-8"), HOW


def test_the_text_of_the_screenshots_is_that_of_the_report() -> None:
    """Test the text of screenshots. Their pixels depend on the browser."""
    screenshots = {name for name in PICTURES if name.endswith(".png")}
    assert screenshots == set(make_pictures.REPORTS)
    kept = (ROOT / "docs/data/report.txt").read_text(encoding="utf-8")
    assert kept == make_pictures.words(make_pictures.upper()), HOW
    report = make_pictures.analyzed(**make_pictures.REFERENCE)
    figures = [figure for pair in report.page().figures for figure in pair]
    assert figures and set(figures) <= set(kept.replace("\u00a0", " ").splitlines())


#: The pictures of a paragraph, and the command below them.
DRAWN = re.compile(r"((?:^!\[[^]\n]+\]\([^)\n]+\)\n)+)\n^Drawn by `([^`]+)`\.$", re.MULTILINE)


def shown() -> dict[str, str]:
    """Return every picture on the pages, and the command next to it."""
    commands = {}
    for path in update.files():
        page = path.read_text(encoding="utf-8")
        beside = {
            name: " ".join(command.split())
            for pictures, command in DRAWN.findall(page)
            for name in re.findall(r"pictures/([\w.-]+)", pictures)
        }
        assert set(beside) == set(re.findall(r"pictures/([\w.-]+\.(?:png|svg))", page)), path.name
        commands |= beside
    return commands


#: On dark pages the site replaces a screenshot with its dark variant.
SHOWN = {name: make_pictures.command(name) for name in PICTURES if name != "report-dark.png"}


def test_every_picture_is_shown_beside_its_command() -> None:
    assert shown() == SHOWN


REPORTS = sorted({command for command in SHOWN.values() if command.startswith("cute-gemm ")})


@pytest.mark.parametrize("command", REPORTS)
def test_a_picture_is_in_the_report_of_its_command(
    command: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    words = command.removesuffix("report.html").split()
    assert cli.main([*words[1:], "-"]) == 0
    page = capfdbinary.readouterr().out.decode()
    if command == SHOWN["report.png"]:
        assert page.startswith(make_pictures.upper().removesuffix("</main></div></body></html>"))
    drawn = [svg for name, svg in made().items() if SHOWN[name] == command]
    assert drawn and all(svg.replace(make_pictures.DARK, "") in page for svg in drawn)


def test_text_of_pictures_has_at_least_10_pixels() -> None:
    for svg in made().values():
        assert min(map(float, re.findall(r'font-size="([^"]*)"', svg))) >= 10


def test_the_filter_of_dark_pages_is_that_of_the_report() -> None:
    style = (ROOT / "cute_gemm/rendering/page.css").read_text(encoding="utf-8")
    [dark] = re.findall(r"filter:([^}]*)", make_pictures.DARK)
    assert set(re.findall(r"--picture: (invert[^;]*);", style)) == {dark}


def test_the_report_is_drawn_by_a_browser(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Test a machine without a browser: other pictures are drawn, and a message is printed."""
    before = (ROOT / "docs/data/report.txt").read_text(encoding="utf-8")
    monkeypatch.setattr(make_pictures, "DOCS", tmp_path)
    monkeypatch.setattr(make_pictures, "pictures", lambda: {"one.svg": "<svg/>"})
    monkeypatch.setattr(make_pictures.shutil, "which", lambda name: None)
    (tmp_path / "pictures").mkdir()
    assert make_pictures.main() == 1
    assert "there is no Chromium (apt install chromium)" in capsys.readouterr().out
    assert [path.name for path in tmp_path.rglob("*.*")] == ["one.svg"]
    assert before == (ROOT / "docs/data/report.txt").read_text(encoding="utf-8")
