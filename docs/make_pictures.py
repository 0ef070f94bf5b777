"""Make the pictures of the documentation: ``python docs/make_pictures.py``.

``report.png`` and ``report-dark.png`` are the upper part of the report that docs/report.md shows,
as Chromium draws it (``apt install chromium``); ``docs/data/report.txt`` has the text and figures
in it. Without Chromium all others are made. ``tests/whole/test_docs_pictures.py`` fails where a
picture is no longer what this makes, or ``report.txt`` no longer the text of the report.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from html.parser import HTMLParser
from pathlib import Path

from benchmark_charts import charts
from benchmarks_page import stored
from ladder_pictures import SCRIPT, Drawn, analyzed, drawn_by, ladder
from predicted_page import picture

from cute_gemm.cute.atoms import cp_async
from cute_gemm.cute.copies import gmem_tiled_copy
from cute_gemm.cute.layout import Layout, column_major
from cute_gemm.cute.notation import parse
from cute_gemm.rendering import pictures as draw
from cute_gemm.report import times

DOCS = Path(__file__).parent
AUTO = {"dtype": "float16", "kernel": "sm80_pipeline", "arch": "sm_80"}
#: The report of docs/report.md.
REFERENCE = AUTO | {"copy": "mn_major"}
ACCESSES = {
    "request_coalesced.svg": Drawn(AUTO, "B", "cp.async"),
    "request_strided.svg": Drawn(REFERENCE, "B", "ld.global"),
    "banks_conflict.svg": Drawn(REFERENCE, "A", "ldmatrix.x4.trans"),
    "banks_free.svg": Drawn(AUTO, "A", "ldmatrix.x4.trans"),
}
#: Screenshots of the report, and Chromium's number of the colour scheme.
REPORTS = {"report.png": 1, "report-dark.png": 0}
#: Their size in pixels, and the first section of the report that they do not show.
WIDTH, HEIGHT, AFTER = 900, 1180, "Problem"
#: On a dark page a picture gets the filter that the HTML report applies to its pictures.
DARK = (
    "<style>@media (prefers-color-scheme: dark)"
    "{svg{filter:invert(0.92) hue-rotate(180deg)}}</style>"
)


def pictures() -> dict[str, str]:
    """Return every SVG by its name."""
    reference = analyzed(**REFERENCE)
    copy = gmem_tiled_copy(cp_async(128), 16, column_major(16, 8), Layout((8, 1), (1, 0)))
    assert reference.predicted is not None
    made = {name: drawn.svg for name, drawn in ACCESSES.items()} | {
        "roofline.svg": times.roofline(reference.performance, reference.predicted.seconds),
        "predicted_terms.svg": times.predicted_terms(reference.predicted),
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
    made |= dict(charts())
    made |= {f"ladder_{name}.svg": svg for name, svg in ladder()}
    return {name: svg.replace(">", f">{DARK}", 1) for name, svg in made.items()}


def command(name: str) -> str:
    """Return the command that draws a picture: the one of its report, if a report has it."""
    if name.startswith("ladder_"):
        return drawn_by(name.removeprefix("ladder_").removesuffix(".svg"))
    if name in ("roofline.svg", "predicted_terms.svg", "report.png"):
        return Drawn(REFERENCE, "", "").command
    return ACCESSES[name].command if name in ACCESSES else SCRIPT


def upper() -> str:
    """Return the page of the report without the section ``AFTER`` and what follows it."""
    page = analyzed(**REFERENCE).to_html()
    head, mark, _ = page.partition(f'<section aria-labelledby="cg-{AFTER.lower()}">')
    assert mark, f"the report has no section {AFTER}"
    return f"{head}</main></div></body></html>"


class _Words(HTMLParser):
    """The text nodes of a page, a line each."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.feed(page.partition("</head>")[2])

    def handle_data(self, data: str) -> None:
        self.lines += [data.strip()] if data.strip() else []


def words(page: str) -> str:
    """Return the text of a page, which includes the figures in its pictures."""
    return "\n".join(_Words(page).lines) + "\n"


def take_screenshots(page: str) -> bool:
    """Write the screenshots of a page; return False where there is no Chromium."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        return False
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "report.html"
        source.write_text(page, encoding="utf-8")
        for name, scheme in REPORTS.items():
            options = (
                "--headless", "--no-sandbox", "--hide-scrollbars",
                f"--window-size={WIDTH},{HEIGHT}", f"--user-data-dir={folder}/profile",
                f"--blink-settings=preferredColorScheme={scheme}",
                f"--screenshot={DOCS / 'pictures' / name}", source.as_uri(),
            )  # fmt: skip
            subprocess.run([browser, *options], check=True, capture_output=True, timeout=120)
    return True


def main() -> int:
    """Write every picture; return 1 where that of the report could not be made."""
    for name, text in pictures().items():
        (DOCS / "pictures" / name).write_text(text, encoding="utf-8")
    page = upper()
    if not take_screenshots(page):
        print("report.png was not made: there is no Chromium (apt install chromium)")
        return 1
    (DOCS / "data/report.txt").write_text(words(page), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
