"""Test that the excerpts, figures and pictures of docs/ladder.md are those of the current code."""

import importlib
import json
import re
from pathlib import Path
from types import ModuleType

import pytest

from cute_gemm.commands import cli
from cute_gemm.kernels import registry

pytestmark = pytest.mark.usefixtures("shipped_calibrations")

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/ladder.md").read_text(encoding="utf-8")


@pytest.fixture
def page(monkeypatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    return importlib.import_module("ladder_page")


def generated(name: str) -> str:
    found = re.search(rf"<!-- generated: rung: {name} -->\n(.*?)<!-- end -->", PAGE, re.DOTALL)
    assert found, name
    return found[1]


def test_every_rung_has_a_section_in_order(page):
    assert re.findall(r"^## (\w+)$", PAGE, re.MULTILINE) == list(registry.LADDER)
    assert list(page.RUNGS) == list(registry.LADDER)


STEPS = [f"next {name}" for name in registry.LADDER[:-1]]


@pytest.mark.parametrize("name", ["overview", *registry.LADDER, *STEPS])
def test_what_is_generated_is_present(page, name):
    assert generated(name).rstrip() == page.rung(name).rstrip()


@pytest.mark.parametrize("name", ["naive", "tensor_core", "sm80_pipeline", "sm90_wgmma"])
def test_the_command_that_the_page_names_prints_its_figures(page, name, capsys):
    [command] = re.findall(r"`(cute-gemm explain KERNEL OP .*?)`", PAGE)
    dtype, _ = page.problem(name)
    [row] = re.findall(rf"^\| \[{name}\]\(#{name}\) \| [^|]* \| (\w+) \|", PAGE, re.MULTILINE)
    assert row == dtype
    words = command.replace("KERNEL", name).replace("OP", "NN").replace("TYPE", row).split()
    assert cli.main([*words[1:], "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    shown = page.explained(name, "NN", dtype, page.SIZE).to_dict()
    assert found["dtype"] == dtype and found["per_result"] == shown["per_result"]


def test_the_pictures_are_those_of_the_folder(page):
    drawn = dict(importlib.import_module("ladder_pictures").ladder())
    folder = ROOT / "docs/pictures"
    assert {path.name for path in folder.glob("ladder_*")} == {f"ladder_{n}.svg" for n in drawn}
    shown = {name for rung in page.RUNGS.values() for name, _ in rung.pictures}
    assert shown == set(drawn)


def test_an_excerpt_that_is_not_found_or_not_unique_is_an_error(page, tmp_path, monkeypatch):
    monkeypatch.setattr(page, "ROOT", tmp_path)
    (tmp_path / "a.cuh").write_text("if (x) {\n  for (;;) {\n    one();\n  }\n}\none();\n")
    assert page.Excerpt("a.cuh", "for (", "one").text() == "for (;;) {\n  one();\n}"
    for start, end, said in (("one", "one", "2 lines"), ("two", "one", "0 lines"),
                             ("for (", "two", "no line")):  # fmt: skip
        with pytest.raises(ValueError, match=said):
            page.Excerpt("a.cuh", start, end).text()


def test_the_largest_cube_of_a_stored_run_is_shown(page, monkeypatch):
    def size(n: int, speed: dict[str, float | None] | None) -> dict[str, object]:
        return {
            "m": n, "n": n, "k": n, "entries": [{"kernel": "naive", "op": "NN", "speed": speed}],
        }  # fmt: skip

    fast, slow = {"gflops": 512.0, "of_cublas": 1.0304}, {"gflops": 99.0, "of_cublas": None}
    run = {"dtype": "float32", "compute": "float32"}
    monkeypatch.setattr(
        page, "runs", lambda: (run | {"sizes": [size(1024, slow), size(4096, fast)]},)
    )
    assert page.measured("naive", "NN", "float32") == "0.512, 103.0 %"
    assert page.measured("naive", "TN", "float32") == page.measured("naive", "NN", "float16") == ""
    monkeypatch.setattr(
        page, "runs", lambda: (run | {"sizes": [size(1024, slow), size(4096, None)]},)
    )
    assert page.measured("naive", "NN", "float32") == "0.099 (1024 x 1024 x 1024)"
    assert re.search(r"^\| NN \| .* \| 0.099 \(1024 x 1024 x 1024\) \|$", page.rung("naive"), re.M)
    assert "| 0.099 (1024 x 1024 x 1024) |" in page.rung("overview")
