"""Make the pictures of the documentation: ``python docs/make_pictures.py``.

``report.png`` is the upper part of the report that docs/report.md shows, as Chromium draws it
(``apt install chromium``); ``docs/data/report.txt`` has the text of that report. Without Chromium
all others are made. ``tests/whole/test_docs_pictures.py`` fails where a picture is no longer what
this makes, or ``report.txt`` no longer the report's text.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks_page import stored
from ladder_pictures import access, ladder
from predicted_page import picture

import cute_gemm as cg
from cute_gemm.cute.atoms import cp_async
from cute_gemm.cute.copies import gmem_tiled_copy
from cute_gemm.cute.layout import Layout, column_major
from cute_gemm.cute.notation import parse
from cute_gemm.rendering import pictures as draw
from cute_gemm.report import times
from cute_gemm.report.report import Report

DOCS = Path(__file__).parent
SIZES = {"m": 4096, "n": 4096, "k": 4096, "dtype": "float16", "arch": "sm_80"}
#: Of ``report.png`` in pixels.
WIDTH, HEIGHT = 1120, 1240


def report() -> Report:
    """Return the report that ``report.png`` shows."""
    return cg.analyze("NN", **SIZES, kernel="sm80_pipeline", copy="mn_major")


def pictures() -> dict[str, str]:
    """Return every SVG by its name."""
    reference = report()
    auto = cg.analyze("NN", **SIZES, kernel="sm80_pipeline")
    copy = gmem_tiled_copy(cp_async(128), 16, column_major(16, 8), Layout((8, 1), (1, 0)))
    assert reference.predicted is not None
    made = {
        "roofline.svg": times.roofline(reference.performance, reference.predicted.seconds),
        "price_terms.svg": times.predicted_terms(reference.predicted),
        "request_coalesced.svg": access(auto, "B", "cp.async"),
        "request_strided.svg": access(reference, "B", "ld.global"),
        "banks_conflict.svg": access(reference, "A", "ldmatrix"),
        "banks_free.svg": access(auto, "A", "ldmatrix"),
        "tv_layout.svg": draw.tv_layout(
            copy.partition, copy.tile, "tiled copy: threads (16,8):(1,16), values (8,1):(1,0)"
        ),
        "shared_layout.svg": draw.shared_layout(
            parse("Sw<3,3,3> o 0 o (8,64):(64,1)"), (8, 64), 16, "a swizzled K-major atom"
        ),
    }
    timed = stored("predicted")
    if timed is not None:
        made["predicted.svg"] = picture(timed["result"]["entries"], timed["machine"]["gpu"])
    return made | {f"ladder_{name}.svg": picture for name, picture in ladder()}


def photographed(page: str, file: Path) -> bool:
    """Write the upper part of an HTML page as PNG; return False where there is no Chromium."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        return False
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "report.html"
        source.write_text(page, encoding="utf-8")
        words = (
            "--headless", "--no-sandbox", "--hide-scrollbars", f"--window-size={WIDTH},{HEIGHT}",
            f"--user-data-dir={folder}/profile", f"--screenshot={file}", source.as_uri(),
        )  # fmt: skip
        subprocess.run([browser, *words], check=True, capture_output=True, timeout=120)
    return True


def main() -> int:
    """Write every picture; return 1 where that of the report could not be made."""
    for name, text in pictures().items():
        (DOCS / "pictures" / name).write_text(text, encoding="utf-8")
    shown = report()
    if not photographed(shown.to_html(), DOCS / "pictures/report.png"):
        print("report.png was not made: there is no Chromium (apt install chromium)")
        return 1
    (DOCS / "data/report.txt").write_text(f"{shown}\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
