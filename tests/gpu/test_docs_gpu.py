"""Test the output on the pages that needs a GPU or PyTorch."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))

import update

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("own_choices")]  # some pages tune
pytest.importorskip("torch")

PAGES = {
    path.name: path
    for path in update.files()
    if any(block.comment == "gpu" for block in update.blocks(path.read_text(encoding="utf-8")))
}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_shows_what_its_commands_print(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert update.main([str(PAGES[name]), "--check", "--gpu"]) == 0, capsys.readouterr().out
