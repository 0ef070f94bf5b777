"""Test that every example runs, also without a GPU, and prints its main result."""

import doctest
import importlib
import os
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import pytest

import cute_gemm

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("[0-9]*.py"))

#: A line of output that shows the main result of the example.
SHOWS = {
    "01_blas_flags.py": "TN  row       row       (192,64):(1,192)   (128,64):(1,128)",
    "02_layout_report.py": "TN    no",
    "03_sm80_pipeline.py": "of its bound",
    "04_ladder.py": "vectorized         16   16       264      43     17   16   16 ",
    "05_epilogue.py": "executed instruction by instruction: right, accesses as predicted",
    "06_own_kernel.py": "right: True   as reported: True",
    "07_fp8.py": "sm90_wgmma, executed instruction by instruction: right",
    "08_grouped.py": "executed instruction by instruction: right, accesses as predicted",
}


@lru_cache
def show(path: Path, cache_directory: Path) -> str:
    """Run an example in another directory, and return its output."""
    environment = os.environ | {
        "CUTE_GEMM_CACHE_DIR": str(cache_directory),
        "PYTHONPATH": str(Path(cute_gemm.__file__).parents[1]),
    }
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, check=False,
        cwd=cache_directory.parent, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_there_are_examples():
    assert [path.name for path in EXAMPLES] == sorted(SHOWS)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path, cache_directory):
    assert SHOWS[path.name] in show(path, cache_directory)


def test_the_reference_table_and_its_fix(cache_directory):
    """Test NT: A yes, B yes; NN: yes, no; TN: no, no; TT: no, yes; then yes everywhere."""
    (path,) = (path for path in EXAMPLES if path.name == "02_layout_report.py")
    lines = show(path, cache_directory).splitlines()
    rows = [line.split() for line in lines if line[:2] in ("NT", "NN", "TN", "TT")]
    verdicts = [(row[0], row[1], row[5]) for row in rows]
    assert verdicts == [
        ("NT", "yes", "yes"), ("NN", "yes", "no"), ("TN", "no", "no"), ("TT", "no", "yes"),
        ("NT", "yes", "yes"), ("NN", "yes", "yes"), ("TN", "yes", "yes"), ("TT", "yes", "yes"),
    ]  # fmt: skip


MODULES = sorted(
    path.relative_to(Path(cute_gemm.__file__).parents[1]).with_suffix("").as_posix()
    for path in Path(cute_gemm.__file__).parent.rglob("*.py")
    if ">>>" in path.read_text(encoding="utf-8")
)


@pytest.mark.filterwarnings("ignore:no usable GPU")
@pytest.mark.parametrize("module", MODULES)
def test_what_docstrings_show(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = doctest.testmod(importlib.import_module(module.replace("/", ".")))
    assert found.attempted and not found.failed, capsys.readouterr().out
