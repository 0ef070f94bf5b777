"""Test the parts of pages that are generated from stored runs, and the recording of runs."""

import importlib
import json
import re
import shlex
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from cute_gemm.commands import cli
from cute_gemm.measure.result import BenchResult, Entry, SizeResult, Speed

DOCS = Path(__file__).parents[2] / "docs"
HOST = "cute-gemm bench NN TT --kernel host --sizes 8,4x5x6 --rounds 1"


@pytest.fixture
def docs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Return a function: name -> a module of docs/, with its own data."""
    monkeypatch.syspath_prepend(str(DOCS))

    def load(name: str) -> ModuleType:
        module = importlib.import_module(name)
        if hasattr(module, "DATA"):
            monkeypatch.setattr(module, "DATA", tmp_path)
        return module

    return load


def store(directory: Path, name: str, result: Any, **more: Any) -> None:
    machine = {"gpu": "NVIDIA H200", "driver": "580.1", "cuda": "13.0", "cublas": "13.1"}
    run = {"command": f"cute-gemm bench {name}", "machine": machine, "commit": "abc1234",
           "date": "2026-01-02", "text": "", "result": result, **more}  # fmt: skip
    (directory / f"{name}.json").write_text(json.dumps(run))


def bench_result(shares: dict[str, float | None], n: int = 4096) -> dict[str, Any]:
    """Return a result with these shares of cuBLAS's 500 TFLOP/s; None: not supported."""

    def entry(kernel: str, op: str, share: float | None) -> Entry:
        if share is None:
            return Entry(kernel, op, "refused", "no")
        speed = Speed(1.0, (1.0, 1.0), 5e5 * share, share, None, 5, 3)
        return Entry(kernel, op, "ok", "", "config", None, speed)

    entries = [entry("auto", op, share) for op, share in shares.items()]
    entries += [entry("cublas", op, 1.0) for op in shares]
    size = SizeResult(n, n, n, 1, None, tuple(entries))
    return BenchResult("float16", "float32", "F", tuple(shares), "NVIDIA H200", "sm_90a", "13.1",
                       False, 5, 0, 0, (size,)).to_dict()  # fmt: skip


def table(text: str) -> list[list[str]]:
    """Return the cells of a Markdown table, its head first."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [rows[0], *rows[2:]]


def test_a_benchmark_is_a_table(docs, tmp_path):
    store(tmp_path, "float16", bench_result({"NN": 1.1, "TT": 0.0712, "NT": None}))
    text = docs("benchmarks_page").benchmarks("float16")
    command, where, *_ = [line for line in text.splitlines() if line]
    assert command == "`cute-gemm bench float16`"
    assert where == (
        "NVIDIA H200, driver 580.1, CUDA 13.0, cuBLAS 13.1; commit abc1234, 2026-01-02; "
        "results not all checked."
    )
    assert table(text) == [
        ["4096: TFLOP/s, of cuBLAS", "NN", "TT", "NT"],
        ["`auto`", "550, 110 %", "35.6, 7.1 %", "-"],
        ["`cublas`", "500", "500", "500"],
    ]


def test_layouts_are_means_by_class(docs, tmp_path):
    ratios = {"odd ld": [0.5, 2.0, 1.0], "batch": [4.0, None], "small": [None]}
    entries = [{"class": kind, "ratio": x} for kind, several in ratios.items() for x in several]
    store(tmp_path, "layouts-x", entries)
    assert table(docs("benchmarks_page").geomeans("layouts-x"))[1:] == [
        ["odd ld", "1.00", "0.50", "2.00", "1", "3"],
        ["batch", "4.00", "4.00", "4.00", "0", "1"],
        ["small", "-", "-", "-", "-", "0"],
        ["**all**", "1.41", "0.50", "4.00", "1", "4"],
    ]


def test_means_of_classes_by_type(docs, tmp_path):
    for name, ratios in (
        ("layouts-x", {"odd": [0.5, 2.0], "few": [1.5]}),
        ("layouts-y", {"odd": [4.0, None]}),
    ):
        entries = [{"class": kind, "ratio": x} for kind, several in ratios.items() for x in several]
        store(tmp_path, name, entries)
    page = docs("benchmarks_page")
    assert table(page.classes("layouts-x layouts-y")) == [
        ["mean (worst)", "x", "y"],
        ["odd", "1.00 (0.50)", "4.00 (4.00)"],
        ["few", "1.50 (1.50)", ""],
        ["**all**", "1.14 (0.50)", "4.00 (4.00)"],
        ["below 0.97", "1 of 3", "0 of 1"],
    ]
    assert page.classes("layouts-x layouts-z") == page.MISSING


def test_means_of_epilogues(docs, tmp_path):
    us = {"plain": 2.0, "cuBLAS": 2.5, "bias": 2.5, "bias, cuBLASLt": 5.0, "bias, unfused": 10.0}
    more = {"plain": 1.0, "bias": 1.25, "bias, unfused": 5.0, "gated": 2.0}
    store(tmp_path, "e", {"bfloat16": [{"us": us}, {"us": more}]})
    assert table(docs("benchmarks_page").fused("e"))[1:] == [
        ["`bias`", "1.25", "2.00", "4.00"], ["`gated`", "2.00", "-", "-"],
    ]  # fmt: skip


def test_means_of_block_scales(docs, tmp_path):
    def entries(*several: float) -> list[dict[str, Any]]:
        return [{"us": {"DeepGEMM": x, "ours": 2.0, "ours, K-major scales": 4.0}} for x in several]

    store(tmp_path, "d", {"dense": entries(1.0, 4.0), "groups": entries(2.0)})
    assert table(docs("benchmarks_page").blocks("d"))[1:] == [
        ["dense", "1.00 (0.50)"], ["dense, K-major scales", "0.50 (0.25)"],
        ["grouped", "1.00 (1.00)"], ["grouped, K-major scales", "0.50 (0.50)"],
    ]  # fmt: skip


def test_speed_by_type(docs, tmp_path):
    page = docs("benchmarks_page")
    ops = ("NN", "NT", "TN", "TT")
    store(tmp_path, "tf32", bench_result(dict(zip(ops, (1, 1.004, 0.9, None), strict=True))))
    store(tmp_path, "float16", bench_result(dict.fromkeys(ops, 1.25)))
    text = page.speed()
    assert table(text) == [
        ["", *ops],
        ["float16", *["625 (1.25)"] * 4],
        ["tf32", "500 (1.00)", "502 (1.00)", "450 (0.90)", "-"],
    ]
    assert "NVIDIA H200" in text and page.speed("1024") == page.MISSING


def test_the_speed_of_a_type_is_in_the_run_of_the_ladder(docs, tmp_path):
    """Test that README and the ladder show the same run."""
    page = docs("benchmarks_page")
    store(tmp_path, "float16", bench_result({"NN": 1.25}))
    assert table(page.speed())[1] == ["float16", "625 (1.25)", "-", "-", "-"]
    store(tmp_path, "ladder_float16", bench_result({"NN": 1.5}))
    assert table(page.speed())[1] == ["float16", "750 (1.50)", "-", "-", "-"]


def test_host_times(docs, tmp_path):
    page = docs("benchmarks_page")
    assert page.host("host") == f"There is no stored run. `{page.RECORD}` records one."
    pairs = {"gemm, torch.mm": [10.0, 12.5, 0.8]}
    alone = {"plan of a new shape, median": 123.4}
    store(tmp_path, "host", {"beside PyTorch": pairs, "us": alone, "s": {"import numpy": 0.256}})
    text = page.host("host")
    assert table(text)[1] == ["gemm, torch.mm", "10.0", "12.5", "0.80"]
    assert "| plan of a new shape, median | 123.4 |" in text and "| `import numpy` | 0.26 |" in text
    assert "pictures/benchmark_host.svg" in text


def test_what_is_not_recorded_says_so(docs, tmp_path):
    page, content = docs("benchmarks_page"), docs("generated").content
    assert page.benchmarks("x") == page.geomeans("x") == page.speed() == page.MISSING
    assert {content(name) for name in ("benchmark: x", "layouts: x", "speed: 4096")} == {
        page.MISSING
    }


def test_generated_parts_are_of_runs_that_are_recorded(docs):
    """Test that `record.py` has every name in the pages, and that every recorded run is shown."""
    summaries = {"speed", "classes", "fused", "blocks"}  # of runs that are also shown in full
    other = {"rung", "families", "support"}
    shown = []
    for page in DOCS.glob("*.md"):
        named = re.findall(r"^<!-- generated: (\w+): (.+) -->$", page.read_text(), re.MULTILINE)
        for kind, names in named:
            if kind in {"classes", "fused", "blocks"}:
                assert set(names.split()) <= set(docs("record").RUNS)
            shown += [names] if kind not in summaries | other else []
    assert sorted(shown) == sorted(docs("record").RUNS)
    assert set(docs("benchmarks_page").TYPES) <= set(shown)


def test_a_stored_run_of_the_repository_is_current():
    """Test that all files in docs/data can be read."""
    for file in sorted((DOCS / "data").glob("*.json")):
        stored = json.loads(file.read_text(encoding="utf-8"))
        if stored["command"].startswith("cute-gemm bench"):
            assert str(BenchResult.from_dict(stored["result"])).splitlines()[0] in stored["text"]


def test_the_home_page_is_the_readme(docs):
    """Test that links of the README lead to pages and pictures relative to the home page."""
    made = "changelog.md", "security.md"  # made by docs/root_pages.py
    files = SimpleNamespace(get_file_from_path=lambda path: path in made)
    config = SimpleNamespace(config_file_path=str(DOCS.parent / "mkdocs.yml"), repo_url="")
    text = (DOCS / "index.md").read_text(encoding="utf-8")
    shown = docs("readme_page").on_page_markdown(text, page=None, config=config, files=files)
    links = re.findall(r"\]\(([^)#]+)", shown)
    assert "](pictures/report.png#only-light)" in shown
    assert "](pictures/report-dark.png#only-dark)" in shown
    assert shown.startswith("# cute_gemm\n") and "<!-- ci: run -->" in shown and len(links) > 20
    others = [x for x in links if x not in made and not x.startswith("https://")]
    assert set(made) < set(links) and [x for x in others if not (DOCS / x).is_file()] == []


def test_links_of_the_readme_lead_to_pages_or_to_the_repository(docs, tmp_path):
    readme = "[a](docs/a.md#b) [c](C.md) [d](D.md) [e](https://e) [f](#f)"
    (tmp_path / "README.md").write_text(readme)
    files = SimpleNamespace(get_file_from_path={"c.md": 1}.get)
    config = SimpleNamespace(config_file_path=str(tmp_path / "mkdocs.yml"), repo_url="https://r/")
    text = "<!-- include: README.md -->\nelsewhere\n<!-- end -->\n"
    shown = docs("readme_page").on_page_markdown(text, page=None, config=config, files=files)
    assert shown == "[a](a.md#b) [c](c.md) [d](https://r/blob/main/D.md) [e](https://e) [f](#f)"


def test_links_of_a_notebook_lead_to_pages(docs):
    html = '<a href="ladder.ipynb">a</a> <a href="../a.md#b">b</a> <a href="https://e/c.md">c</a>'
    content = docs("readme_page").on_page_content
    for uri, shown in {
        "notebooks/x.ipynb": '<a href="../ladder/">a</a> <a href="../../a/#b">b</a> '
        '<a href="https://e/c.md">c</a>',
        "x.md": html,
    }.items():
        page = SimpleNamespace(file=SimpleNamespace(src_uri=uri))
        assert content(html, page=page, config=None, files=None) == shown


# -- recording --------------------------------------------------------------------------------


def test_runs_are_recorded(docs, tmp_path, monkeypatch, capsys):
    record = docs("record")
    script = tmp_path / "script.py"
    script.write_text(
        "import json, sys\nprint('said')\n"
        "json.dump([{'class': 'odd', 'ratio': float('nan')}], open(sys.argv[-1], 'w'))\n"
    )
    monkeypatch.setattr(record, "RUNS", {
        "host": HOST, "broken": "cute-gemm bench --kernel nave", "script": f"python {script}",
    })  # fmt: skip
    out = tmp_path / "out"
    assert record.main([str(out), "--commit", "abc1234"]) == 1
    printed = capsys.readouterr().out
    assert "broken: FAILED after" in printed and printed.endswith("failed: broken\n")
    assert sorted(file.name for file in out.iterdir()) == ["host.json", "script.json"]
    host = json.loads((out / "host.json").read_text())
    assert [*host] == ["command", "machine", "commit", "date", "text", "result"]
    assert (host["command"], host["commit"]) == (HOST, "abc1234")
    assert [*host["machine"]] == ["gpu", "driver", "cuda", "cublas"]
    result = BenchResult.from_dict(host["result"])
    assert [size.label for size in result.sizes] == ["8", "4x5x6"] and result.ops == ("NN", "TT")
    assert host["text"] == f"{result}\n"
    script_run = json.loads((out / "script.json").read_text())
    assert (script_run["text"], script_run["result"]) == (
        "said\n",
        [{"class": "odd", "ratio": None}],
    )

    page = docs("benchmarks_page")
    monkeypatch.setattr(page, "DATA", out)
    assert [row[0] for row in table(page.benchmarks("host"))] == [
        "8: TFLOP/s, of cuBLAS", "`host`", "4x5x6: TFLOP/s, of cuBLAS", "---", "`host`",
    ]  # fmt: skip
    assert table(page.geomeans("script"))[-1] == ["**all**", "-", "-", "-", "-", "0"]
    assert cli.main(["bench", "--from", str(out / "host.json")]) == 0
    assert capsys.readouterr().out == host["text"]


def test_some_runs_are_recorded(docs, tmp_path, monkeypatch, capsys):
    record = docs("record")
    monkeypatch.setattr(record, "RUNS", {"one": HOST, "two": HOST})
    assert record.main([str(tmp_path / "out"), "two"]) == 0
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["two.json"]
    with pytest.raises(SystemExit):
        record.main([str(tmp_path / "out"), "three"])
    assert "no run is called three" in capsys.readouterr().err


def test_what_takes_too_long_is_stopped(docs, tmp_path, monkeypatch):
    record = docs("record")
    monkeypatch.setattr(record, "LIMIT", 0.5)
    script = tmp_path / "script.py"
    script.write_text("import time\ntime.sleep(60)\n")
    assert record.record(f"python {script}", tmp_path / "a.json") == (124, None)


def test_the_runs_are_commands_that_are_understood(docs, monkeypatch):
    """Test that bench commands parse, and that all scripts exist."""
    from cute_gemm.commands import bench

    asked = []

    def instead(ops: Any, kernels: str, sizes: Any, dtype: str, **more: Any) -> Any:
        asked.append((kernels, len(sizes), dtype, more["compute"], more["check"]))
        raise cli.GemmError("enough")

    monkeypatch.setattr(bench, "bench", instead)
    for name, command in docs("record").RUNS.items():
        program, *words = shlex.split(command)
        if program == "cute-gemm":
            assert cli.main(words) == 2
            if name in docs("benchmarks_page").TYPES:
                kind = "float32" if name == "tf32" else name
                assert asked[-1][0] == "auto,cublas" and asked[-1][2] == kind
                assert (asked[-1][3] == "tf32") is (name == "tf32")
        else:
            drawn = dict(zip(words[1::2], words[2::2], strict=True))
            assert (DOCS.parent / words[0]).exists()
            if name.startswith("deepgemm"):
                assert drawn == {"--deepgemm": "DeepGEMM"}
            elif name == "host":
                assert not drawn
            elif name == "predicted":
                assert drawn == {"--count": "10", "--seed": "11"}
            elif name == "epilogues-quack":  # of the named shapes
                assert drawn["--quack"] == "7"
            elif name.startswith("epilogues"):
                assert int(drawn["--random"]) > 10 and drawn["--seed"] == "1"
            else:  # counts of each class, for the type in its name
                counts = [int(x.partition(":")[2]) for x in drawn["--classes"].split(",")]
                assert sum(counts) > 30 and name == f"layouts-{drawn['--dtypes']}"
    assert len(asked) == 14
