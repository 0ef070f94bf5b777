"""Test the HTML report: well-formed, self-contained, complete, and safe against hostile text."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from types import SimpleNamespace

import numpy as np
import pytest

import cute_gemm as cg
from cute_gemm.access.accesses import SharedAccess, TmaAccess
from cute_gemm.cute.layout import Layout, Swizzle
from cute_gemm.kernels.config import NothingToChoose
from cute_gemm.problem.matrix import Matrix
from cute_gemm.rendering import html
from cute_gemm.rendering.html_page import fragment, page_html
from cute_gemm.rendering.pictures import svg
from cute_gemm.rendering.rows import AccessRow, make_row
from cute_gemm.report.causes import Cause

VOID = {"meta", "link", "img", "br", "hr", "input", "wbr"}


class Page(HTMLParser):
    """A parser that checks nesting, and collects ids, links, tags, text and cells of tables."""

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.links, self.tags, self.tables = [], [], [], [], []
        self.text = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.tags.append((tag, attributes))
        if "id" in attributes:
            self.ids.append(attributes["id"])
        if "href" in attributes:
            self.links.append(attributes["href"])
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.text.append(data)
        if "td" in self.open or "th" in self.open:
            self.tables[-1][-1][-1] += data

    def count(self, tag):
        return sum(name == tag for name, _ in self.tags)


def analyze(op="NN", size=(4096, 4096, 4096), **more):
    m, n, k = size
    settings = {"dtype": "float16", "arch": "sm_80", "kernel": "sm80_pipeline", **more}
    return cg.analyze(op, m=m, n=n, k=k, **settings)


REPORTS = {
    "reference": {"copy": "mn_major"},
    "auto": {"op": "TN"},
    "odd": {"size": (4095, 4097, 4093), "dtype": "bfloat16"},
    "float64": {"op": "TT", "dtype": "float64"},
    "int8": {"dtype": "int8"},
    "cutlass": {"op": "NT", "kernel": "cutlass_universal", "size": (1000, 999, 998)},
    "tiny": {"size": (5, 3, 2)},
}


@pytest.fixture(scope="module", params=REPORTS)
def report(request):
    return analyze(**REPORTS[request.param])


@pytest.fixture(scope="module")
def reference():
    return analyze(**REPORTS["reference"])


def test_a_report_is_one_balanced_page_with_nothing_from_outside(report):
    text = report.to_html()
    page = Page(text)
    assert text.startswith("<!DOCTYPE html>")
    assert len(page.ids) == len(set(page.ids))
    assert set(re.findall(r"https?:[^\"]*", text)) <= {"http://www.w3.org/2000/svg"}
    assert all(link.startswith("#") and link[1:] in page.ids for link in page.links)
    for forbidden in ("script", "link", "img", "iframe", "object"):
        assert not page.count(forbidden)
    assert "url(" not in text
    assert "@import" not in text
    assert page.count("html") == page.count("style") == page.count("h1") == 1
    assert len(text) < 1_500_000


def traced(A):
    options = {"kernel": "smem_tiled", "arch": "sm_80", "backend": "interpreter"}
    return cg.plan("NT", A, A, **options).trace(A, A)


#: ``Name(field=``, ``Name("``, ``Name((``, ``Name()``, ``<Name object at``, ``True``, ``(1, 2``.
REPR = re.compile(
    r"""\b[A-Za-z_]\w*\((?:\w+=|['"(\[{]|\))|<\w+[ .]|\b(?:True|False|None|nan)\b|\bnp\."""
    r"""|'\w*',|\(\d+, |[\[{]['"\w]"""
)
PAGES = {
    **{name: lambda settings=settings: analyze(**settings) for name, settings in REPORTS.items()},
    "fused": lambda: analyze("TN", arch="sm_90a", kernel="sm90_wgmma", epilogue="bias+gelu"),
    "packed": lambda: analyze(arch="sm_90a", kernel="auto", lda=4097, pack="A"),
    "split": lambda: analyze("TN", (64, 64, 65536), arch="sm_90a", kernel="auto", split_k=8),
    "ladder": lambda: analyze(dtype="float32", kernel="warp_tiled"),
    "complex": lambda: analyze("CN", dtype="complex64", kernel="auto"),
    "copy": lambda: cg.analyze_copy(
        tensor="(128,64):(64,1)", threads="(16,8):(8,1)", values="(1,8)", atom="cp.async.128",
        dtype="float16", smem="Sw<3,3,3> o 0 o (128,64):(64,1)", reader="ldmatrix.x4",
    ),
    "trace": lambda: traced(np.ones((32, 16), np.float32, order="F")),
}  # fmt: skip


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_no_repr_of_an_object(name):
    page = Page(PAGES[name]().to_html())
    labels = [attributes.get("aria-label") or "" for _, attributes in page.tags]
    assert [text for text in (*page.text, *labels) if REPR.search(text)] == []


@pytest.mark.parametrize(
    "value", [Layout((8, 1), (1, 0)), np.dtype("float16"), object(), np.float64(1.5), (1, 2),
              {"a": 1}, ["a"], None, True, analyze, NothingToChoose("x")],
)  # fmt: skip
def test_a_repr_is_noticed(value):
    assert REPR.search(repr(value))


def test_every_access_is_in_the_tables_and_in_a_picture(report):
    page = Page(report.to_html())
    launch = next(t for t in page.tables if {"sectors", "wavefronts"} <= {*t[0]})
    launch = [launch[0], *(line for line in launch[1:] if line[0])]  # without the rows "of L2"
    assert [line[0] for line in launch[1:]] == [str(n + 1) for n in range(len(report.rows))]
    for line, row in zip(launch[1:], report.rows, strict=True):
        assert line[1] == row.operand
        assert line[2].startswith(row.instruction)
        assert f"{row.launch.requests:,}" in line
    assert page.count("svg") == page.count("figure")
    assert page.count("svg") >= len({(r.operand, r.instruction, r.space) for r in report.rows})


def test_figures_of_the_rows_are_the_cells(reference):
    page = Page(reference.to_html())
    of_global = next(t for t in page.tables if "efficiency" in t[0])
    of_shared = next(t for t in page.tables if "conflicts" in t[0] and "bits" in t[0])
    row = next(row for row in reference.rows if row.operand == "B" and row.space == "global")
    line = next(line for line in of_global if line[1] == "B")
    cells = dict(zip(of_global[0], line, strict=True))
    assert (float(cells["sectors"]), float(cells["ideal"])) == (row.sectors, row.ideal_sectors)
    assert cells["efficiency"] == "12.5 %"
    assert cells["verdict"] == f"\u2717 {row.verdict}"
    assert len(of_global) + len(of_shared) - 2 == len(reference.rows)
    shared = [line[of_shared[0].index("wavefronts")] for line in of_shared[1:]]
    assert shared == [f"{r.wavefronts:g}" for r in reference.rows if r.space == "shared"]


def test_numbers_are_to_the_right_and_words_to_the_left(reference):
    text = reference.to_html()
    assert re.search(r'<td class="n">1,024</td>|<td class="n">[\d,]{7,}</td>', text)
    assert re.search(r"<td><code>cp.async</code></td>", text)
    assert "tabular-nums" in text


def test_edge_columns_only_with_edge_tiles(reference):
    assert "edge tiles</th>" not in reference.to_html()
    assert "edge tiles</th>" in analyze(**REPORTS["odd"]).to_html()


def test_findings_and_fixes_are_reported(reference):
    text = reference.to_html()
    assert text.count('<ol class="causes">') == text.count("<li><p>") == 1
    said = text.replace("\u00a0", " ")  # between numbers and units
    assert f'<p class="lead">{reference.headline}</p>' in said
    assert '<b>Fix:</b> <code>copy="auto"</code> (605 us predicted)' in said
    assert re.search(r"<dt>predicted</dt><dd>15.6 ms</dd>", said)
    assert '<dt>with copy="auto"</dt><dd>605 us</dd>' in said
    assert "Less than 1 %, no fix known: 128-bit reads of the staged accumulators" in text
    without = replace(reference)
    without.__dict__["causes"] = ()
    assert "No finding" in without.to_html()
    page = Page(text)
    summary = next(t for t in page.tables if "global memory" in t[0])
    assert [line[0] for line in summary[1:]] == ["A", "B", "C"]
    assert summary[2][1] == "\u2717 not coalesced: 12.5 % of the bytes are used"
    assert summary[3][1:] == ["\u2713 coalesced", "\u2713 conflict-free"]


def test_descriptors_launch_and_build_are_reported(reference):
    built = SimpleNamespace(registers=168, shared_static=16, spill_stores=4, spill_loads=8)
    text = replace(reference, resources=built).to_html().replace("\u00a0", " ")
    problem = reference.problem
    assert all(f"<code>{m}</code>" in text for m in (problem.A, problem.B, problem.C))
    assert f"{reference.launch.grid:,} CTAs x {reference.launch.block} threads" in text
    assert "168 registers per thread, 16 bytes of static shared memory, 12 bytes spilled" in text
    assert f"<dt>stages</dt><dd><code>{reference.config.stages}</code></dd>" in text
    built.spill_stores = built.spill_loads = 0
    assert "no spills" in replace(reference, resources=built).to_html()


def test_performance_is_shown(reference):
    text = reference.to_html()
    assert all(f"<dt>{label}</dt>" in text for label, _ in reference.performance.lines())
    performance = SimpleNamespace(lines=lambda: [("bound <by>", "memory & more")], roofline=None)
    assert text.count('aria-label="Roofline"') == text.count('aria-label="Predicted time"') == 1
    text = replace(reference, performance=performance).to_html()
    assert 'aria-label="Roofline"' not in text
    assert "<dt>bound &lt;by&gt;</dt><dd>memory &amp; more</dd>" in text


def test_requests_that_are_the_same_share_a_picture(reference):
    rows = reference.rows[:2]
    text = html.accesses_html([*rows, *rows])
    assert Page(text).count("svg") == 2
    assert "#1, #3 A" in text and "#2, #4 A" in text
    assert text.count('href="#cg-access-1"') == 4  # two rows, in two tables


def test_hostile_text_is_text(reference):
    bad = "<script>alert('x')</script>&\"]]>"

    class Hostile(AccessRow):
        verdict = why = fix = bad
        good = False

    first = replace(reference.accesses[0], instruction=bad, part=bad)
    hostile = replace(
        reference, kernel=bad, arch=bad, config=NothingToChoose(bad),
        rows=(Hostile(first, reference.rows[0].analysis), *reference.rows[1:]),
    )  # fmt: skip
    hostile.__dict__.update(causes=(Cause(bad, bad, (bad,), fix=bad),), headline=bad)
    for text in (hostile.to_html(), hostile._repr_html_()):
        page = Page(text)
        assert not page.count("script")
        assert "<script" not in text
        assert "&lt;script&gt;" in text
    assert "<title>&lt;b&gt;</title>" in page_html("<b>", "")


def test_a_fragment_is_one_div_with_its_own_style(reference):
    text = reference._repr_html_()
    page = Page(text)
    assert not page.count("html") and not page.count("body")
    assert page.tags[0] == ("div", {"class": "cute-gemm"})
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)[1]
    selectors = re.findall(r"([^{}]+)\{", style)
    rules = [s for rule in selectors if "@media" not in rule for s in rule.split(",")]
    assert rules and all(".cute-gemm" in rule.split(" *")[0] for rule in rules)


def luminance(colour):
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return sum(weight * x for weight, x in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def mixed(one, part, other):
    """Return ``color-mix(in srgb, one part, other)``."""
    pairs = zip((one, other), (part, 1 - part), strict=True)
    shares = [[w * int(c[at : at + 2], 16) for at in (1, 3, 5)] for c, w in pairs]
    return "#" + "".join(f"{round(a + b):02x}" for a, b in zip(*shares, strict=True))


#: Background and text of JupyterLab's themes: --jp-layout-color0, --jp-content-font-color0.
JUPYTER = {"jupyter light": ("#ffffff", "#000000"), "jupyter dark": ("#111111", "#ffffff")}


@pytest.mark.parametrize("scheme", ["light", "dark", *JUPYTER])
def test_words_have_contrast_in_each_scheme(reference, scheme):
    """Test WCAG's AA, 4.5:1, for all text colors, on the page and on panels."""
    style = re.search(r"<style>(.*?)</style>", reference._repr_html_(), re.DOTALL)[1]
    light, dark = style.split("@media (prefers-color-scheme: dark)")
    assert "var(--jp-layout-color0," in light and "var(--jp-content-font-color0," in light
    of = dark if scheme == "dark" else light
    ground, ink = JUPYTER.get(scheme) or (
        re.search(rf"--scheme-{name}: (#\w{{6}});", of)[1] for name in ("bg", "ink")
    )
    mixes = dict(re.findall(r"--(\w+): color-mix\(in srgb, ([^;]*)\);", light))
    assert set(mixes) == {"quiet", "line", "panel", "good", "bad", "accent"}
    names = {"var(--ink)": ink, "var(--bg)": ground}
    colours = {}
    for name, mix in mixes.items():
        first, part, second = re.fullmatch(r"(\S+) (\d+)%, (\S+)", mix).groups()
        first, second = names.get(first, first), names.get(second, second)
        colours[name] = mixed(first, int(part) / 100, second)
    for name in ("quiet", "good", "bad", "accent"):
        assert min(contrast(colours[name], on) for on in (ground, colours["panel"])) >= 4.5, name
    assert contrast(ink, ground) > 12 and contrast(colours["line"], ground) > 1.2


def filtered(colour):
    """Return ``invert(0.92) hue-rotate(180deg)``, as in the Filter Effects specification."""
    part = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    inverted = 0.92 - 0.84 * part
    luma = inverted @ (0.213, 0.715, 0.072)
    turned = np.clip(2 * luma - inverted, 0, 1)
    return "#" + "".join(f"{round(255 * x):02x}" for x in turned)


def test_words_have_contrast_in_pictures():
    """Test also dark pages, where pictures are filtered."""
    words = [(svg.INK, fill) for fill in (*svg.TINTS, svg.BAD_TINT, "#ffffff")]
    for word, ground in [*words, (svg.GREY, "#ffffff"), (svg.BAD, "#ffffff")]:
        assert contrast(word, ground) >= 4.5, (word, ground)
        assert contrast(filtered(word), filtered(ground)) >= 4.5, (word, ground)


def test_a_page_has_landmarks_and_a_table_of_contents(reference):
    text = reference.to_html()
    page = Page(text)
    assert [page.count(tag) for tag in ("header", "nav", "main", "h1")] == [1, 1, 1, 1]
    heads = re.findall(r'<h2 id="([^"]*)">', text)
    linked = re.search(r"<nav.*?</nav>", text, re.DOTALL)[0]
    assert heads and re.findall(r'href="#([^"]*)"', linked) == heads
    assert re.findall(r'<section aria-labelledby="([^"]*)">', text) == heads
    # Scrollable regions are accessible by keyboard, and have a name.
    regions = [a for tag, a in page.tags if tag == "div" and a.get("class") == "scroll"]
    assert len(regions) == page.count("table")
    assert all((a["tabindex"], a["role"]) == ("0", "region") and a["aria-label"] for a in regions)
    assert all(a.get("scope") == "col" for tag, a in page.tags if tag == "th")
    assert "overflow-x: auto" in text and "<nav" not in reference._repr_html_()


def test_a_symbol_is_broken_after_underscores_alone(reference):
    text = reference.to_html()
    assert reference.config.name.replace("_", "_<wbr>") in text
    assert "overflow-wrap: anywhere" not in text


def test_fragments_of_two_reports_fit_on_one_page(reference):
    other = analyze(**REPORTS["auto"])
    page = Page(reference._repr_html_() + other._repr_html_())
    assert len(page.ids) == len(set(page.ids)) > 10


def test_the_same_report_gives_the_same_page(reference):
    again = analyze(**REPORTS["reference"])
    assert reference.to_html() == again.to_html()
    assert reference._repr_html_() == again._repr_html_()


def test_details_are_open_and_print_whole(reference):
    page = Page(reference.to_html())
    details = [attributes for tag, attributes in page.tags if tag == "details"]
    assert details and all("open" in attributes for attributes in details)


def test_some_accesses_alone(reference):
    some = slice(0, 2)
    text = html.accesses_html(reference.rows[some], "mine")
    page = Page(page_html("some", text))
    assert [i for i in page.ids if "-access-" in i] == ["mine-access-1", "mine-access-2"]
    assert all(i.startswith("mine-") for i in page.ids)
    assert page.count("svg") == 2
    assert Page(fragment(text)).count("svg") == 2


def test_accesses_without_lanes_have_no_picture():
    matrix = Matrix("A", (64, 64), (1, 64), "float16", 256)
    tma = TmaAccess("A", "load", matrix, (64, 32), 1)
    off = SharedAccess("A", "store", "st.shared", 32, np.full((1, 32), -1))
    page = Page(html.accesses_html([make_row(tma), make_row(off)]))
    assert not page.count("svg") and not page.links
    assert "A" in page.tables[0][1]


def test_tiles_in_shared_memory_are_drawn_once(reference):
    layout = Layout((64, 32), (32, 1), Swizzle(2, 3, 3))
    accesses = [
        replace(a, layout=layout if a.operand == "A" else None, element_bits=16)
        if isinstance(a, SharedAccess)
        else a
        for a in reference.accesses
    ]
    assert sum(a.operand == "A" for a in accesses if isinstance(a, SharedAccess)) > 1
    rows = [replace(r, access=a) for r, a in zip(reference.rows, accesses, strict=True)]
    text = replace(reference, rows=tuple(rows)).to_html()
    assert text.count('aria-label="A: tile in shared memory"') == 1
    assert "Sw&lt;2,3,3&gt; o 0 o (64,32):(32,1), 16-bit elements." in text
    assert text.count(": gmem tiled copy, threads") >= 2


def test_a_part_of_the_launch_is_named(reference):
    first = reference.rows[0]
    row = replace(first, access=replace(first.access, part="last k-tile"))
    text = html.accesses_html([row])
    assert 'cp.async</code><small class="part">last k-tile</small>' in text


@pytest.mark.parametrize("smem", [None, "(128,32):(32,1)"])
def test_a_copy_of_ones_own_is_a_page_too(smem):
    report = cg.analyze_copy(
        tensor="(128,32):(4096,1)", threads="(16,8):(1,16)", values="(8,1):(1,8)",
        atom="cp.async.128", smem=smem,
    )  # fmt: skip
    text, part = report.to_html(), report._repr_html_()
    page, cell = Page(text), Page(part)
    assert page.count("html") == page.count("h1") == 1 and not page.count("script")
    assert cell.tags[0] == ("div", {"class": "cute-gemm"})
    assert page.count("svg") == cell.count("svg") == len(report.rows)
    listed = re.search(r"<main>.*", text, re.DOTALL)[0]
    assert listed.count("<li>") == len(report.findings) + len(report.alternatives)
    assert "<dd><code>(128,32):(4096,1)</code></dd>" in text
    assert ("<dt>smem</dt>" in text) is (smem is not None)
    assert "12.5 %" in text
    assert not {i for i in page.ids if i in cell.ids}  # ids are derived from the content
