"""Every example runs on its own, without a GPU too, and prints something worth reading."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("[0-9]*.py"))

#: A line that shows that the example came to its point.
SHOWS = {
    "01_blas_flags.py": "TN  row       row       (192,64):(1,192)   (128,64):(1,128)",
    "02_layout_report.py": "TN    no",
    "03_sm80_pipeline.py": "of its bound",
}


def test_there_are_examples():
    assert [path.name for path in EXAMPLES] == sorted(SHOWS)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path, cache_directory, tmp_path):
    done = subprocess.run(
        [sys.executable, str(path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=os.environ | {"CUTE_GEMM_CACHE_DIR": str(cache_directory)},
    )
    assert done.returncode == 0, done.stderr
    assert SHOWS[path.name] in done.stdout


def test_the_reference_table_and_its_fix(tmp_path):
    """NT: A yes, B yes; NN: yes, no; TN: no, no; TT: no, yes; and then yes everywhere."""
    (path,) = (path for path in EXAMPLES if path.name == "02_layout_report.py")
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    rows = [
        line.split() for line in done.stdout.splitlines() if line[:2] in ("NT", "NN", "TN", "TT")
    ]
    verdicts = [(row[0], row[1], row[5]) for row in rows]
    assert verdicts == [
        ("NT", "yes", "yes"),
        ("NN", "yes", "no"),
        ("TN", "no", "no"),
        ("TT", "no", "yes"),
        ("NT", "yes", "yes"),
        ("NN", "yes", "yes"),
        ("TN", "yes", "yes"),
        ("TT", "yes", "yes"),
    ]
