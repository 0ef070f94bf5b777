"""Test that the output on the pages is that of their commands."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))

import update  # noqa: E402

pytestmark = pytest.mark.usefixtures("shipped_calibrations")

PAGES = {str(path.relative_to(ROOT)): path for path in update.files()}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_shows_what_its_commands_print(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert update.main([str(PAGES[name]), "--check"]) == 0, capsys.readouterr().out


PAGE = """
```sh
printf '%s sectors\\n' 16
```

```text
16 sectors
```

```python
print(6 * 7, "in 0.25 s")
```

```text
42 in ... s
```
"""


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(update, "ROOT", tmp_path)
    path = tmp_path / "page.md"
    path.write_text(PAGE)
    return path


def test_a_changed_number_is_seen_and_mended(
    page: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert update.main([str(page), "--check"]) == 0
    for right, wrong in (("16 sectors", "17 sectors"), ("42 in", "43 in")):
        page.write_text(PAGE.replace(f"\n{right}", f"\n{wrong}"))
        assert update.main([str(page), "--check"]) == 1
        assert re.search(rf"^-{wrong}.*^\+{right}", capsys.readouterr().out, re.M | re.S)
    page.write_text(PAGE.replace("\n16 sectors", "\n17 sectors"))
    assert update.main([str(page)]) == 0
    assert page.read_text() == PAGE


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("\n```text\n42\n```\n", "page.md:3: no command above this output"),
        ("\n<!-- not run -->\n```sh\nmake\n```\n\n```text\n42\n```\n", "page.md:8: no command"),
        ("\n```python\n1 / 0\n```\n", "page.md:3: the block raises"),
        ("\n```sh\necho cute-gemm: no\n```\n", "page.md:3: cute-gemm: no"),
    ],
)
def test_what_nobody_can_produce_is_refused(page: Path, text: str, said: str) -> None:
    page.write_text(text)
    with pytest.raises(SystemExit, match=re.escape(said)):
        update.main([str(page), "--check"])


def test_a_stored_output_is_a_part_of_its_run(page: Path) -> None:
    stored = page.parent / "docs/data/run.json"
    stored.parent.mkdir(parents=True)
    stored.write_text('{"text": "TFLOP/s\\n  663\\n  700\\n"}')
    page.write_text("\n<!-- stored: run -->\n```text\n  663\n```\n")
    assert update.main([str(page), "--check"]) == 0
    page.write_text("\n<!-- stored: run -->\n```text\n  664\n```\n")
    with pytest.raises(SystemExit, match="not in docs/data/run.json"):
        update.main([str(page), "--check"])
