"""Test tables: printed text and HTML have the same values."""

from test_html import Page

from cute_gemm._text import counted, plain, size
from cute_gemm.rendering.tables import Cell, Column, Findings, Markup, Pairs, Table

TABLE = Table(
    "A title",
    (Column("", left=True), Column("what", left=True), Column("how many")),
    [
        ["A", Cell("cp.async", "the last k-tile, cut vectors", code=True), "1,024"],
        ["B", Cell("<b>[bold]", good=False), "-"],
        ["C", Cell("free", good=True, link="there"), Markup("<i>7</i>")],
    ],
)


def test_text():
    title, head, rule, *lines = plain(TABLE, 60).splitlines()
    assert title == "A title" and head.split() == ["what", "how", "many"] and set(rule) == {"-"}
    assert [line.split() for line in lines[:3]] == [
        ["A", "cp.async", "1,024"], ["the", "last", "k-tile,"], ["cut", "vectors"],
    ]  # fmt: skip
    # Brackets are not markup. Text is left-aligned, numbers are right-aligned.
    assert lines[3].split() == ["B", "<b>[bold]", "-"]
    assert lines[0].index("cp") == lines[3].index("<b>")


def test_a_table_moves_together_before_it_is_divided():
    wide = Table(
        "",
        (
            Column("", left=True),
            *(Column(f"figure {n}") for n in range(5)),
            Column("said", left=True),
        ),
        [["A", *"12345", "conflict-free"], ["B", *"12345", "two words more"]],
    )
    widths = [1, *[len("figure 0")] * 5, len("two words more")]
    for width, gap in ((sum(widths) + 19, 3), (sum(widths) + 13, 2), (sum(widths) + 7, 1)):
        lines = plain(wide, width).splitlines()
        assert len(lines) == 4 and f"figure 0{' ' * gap}figure 1" in lines[0]
    folded = plain(wide, sum(widths) + 6).splitlines()
    assert len(folded) == 5 and [line.split()[-1] for line in folded[3:]] == ["words", "more"]
    assert sum("figure 0" in line for line in plain(wide, 45).splitlines()) == 1
    assert len(plain(wide, 45).splitlines()) > 8  # wrapped within the column


def test_colours_are_of_verdicts():
    assert [str(cell.rich().style) for cell in (Cell("x", good=True), Cell("x", good=False))] == [
        "green", "bold red",
    ]  # fmt: skip
    assert str(Cell("x").rich().style) == ""


def test_html_has_the_same_cells():
    text = TABLE.html()
    [table] = Page(text).tables
    assert table[0] == ["", "what", "how many"]
    assert table[1] == ["A", "cp.asyncthe last k-tile, cut vectors", "1,024"]
    assert table[2] == ["B", "\u2717 <b>[bold]", "-"] and table[3] == ["C", "\u2713 free", "7"]
    assert '<a href="#there">' in text and '<span class="bad">\u2717 &lt;b&gt;[bold]</span>' in text
    assert text.count(' class="n"') == 4  # the head and the cells of one column
    assert "<code>cp.async</code><small" in text and "<caption>A title</caption>" in text
    assert Table("none", TABLE.columns, []).html() == ""


def test_pairs_and_findings():
    pairs = Pairs([("one <", "a [b]"), ("two", Cell("c", code=True))], "Pairs", compact=True)
    assert [line.split() for line in plain(pairs, 60).splitlines()] == [
        ["Pairs"], ["one", "<", "a", "[b]"], ["two", "c"],
    ]  # fmt: skip
    assert "<dt>one &lt;</dt><dd>a [b]</dd>" in pairs.html() and 'class="compact"' in pairs.html()
    assert "<dd><code>c</code></dd>" in pairs.html()
    found = Findings(["bad [x]. Fix: y & z.", "worse " * 20])
    first, second, third = plain(found, 70).splitlines()
    assert first == "- bad [x]. Fix: y & z."
    assert second.startswith("- worse") and third.startswith("  worse")
    assert "<li>bad [x]. <b>Fix:</b> y &amp; z.</li>" in found.html()
    assert "No finding" in Findings([]).html()


def test_counts_have_their_nouns() -> None:
    said = [counted(n, "cubin") for n in (0, 1, 2, 4000)]
    assert said == ["0 cubins", "1 cubin", "2 cubins", "4,000 cubins"]
    assert (
        counted(1, "entry", "entries") == "1 entry"
        and counted(3, "entry", "entries")[2:] == "entries"
    )


def test_bytes_have_a_unit() -> None:
    sizes = (0, 1, 1023, 1024, 1536, 2**20 - 1, 2**30, 150_754_822_144, 2**70)
    assert [size(n) for n in sizes] == [
        "0 bytes", "1 byte", "1,023 bytes", "1 KiB", "1.5 KiB", "1 MiB", "1 GiB", "140.4 GiB",
        "1,024 EiB",
    ]  # fmt: skip
