"""Tables, lists of pairs and lists of sentences, each with two renderers: rich text and HTML.

``rich`` gets ``Text``, never ``str``, in which it would read the brackets of a config or layout as
markup. The text is ASCII and never cut: a table wider than the terminal continues below itself. In
HTML everything but ``Markup`` is escaped.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from textwrap import wrap
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from cute_gemm._text import bound, wrapped

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console, ConsoleOptions, RenderResult


#: Length in characters from which a symbol may break after an underscore.
LONG = 20


class Part(Protocol):
    """A part of a page."""

    def html(self) -> str:
        """Return the part as HTML, or "" if it is empty."""


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


class Column(NamedTuple):
    """A column: its head, and whether it is aligned to the ``left`` (words) or right (numbers).

    A ``joined`` column stays with the previous column when a table is divided.
    """

    head: str
    left: bool = False
    joined: bool = False


class Cell(NamedTuple):
    """A cell with a style.

    ``under`` is a second, smaller line. ``good`` makes the cell a verdict. ``code``, ``bold`` and
    ``link`` (the id of an element) apply to HTML only.
    """

    text: str
    under: str = ""
    good: bool | None = None
    code: bool = False
    bold: bool = False
    link: str = ""

    def rich(self) -> Any:
        """Return the cell for rich."""
        from rich.text import Text

        style = "" if self.good is None else "green" if self.good else "bold red"
        under = wrap(self.under, 16, break_long_words=False)
        return Text("\n ".join((self.text, *under)), style=style)

    def html(self) -> Markup:
        """Return the cell as HTML; a verdict has a sign in addition to its colour."""
        out = markup(self.text)
        if self.good is not None:
            sign, kind = ("\u2713", "good") if self.good else ("\u2717", "bad")
            out = Markup(f'<span class="{kind}">{sign} {out}</span>')
        if self.link:
            out = Markup(f'<a href="#{self.link}">{out}</a>')
        if self.code and len(self.text) > LONG:
            out = Markup(out.replace("_", "_<wbr>"))
        for tag in ("code",) * self.code + ("b",) * self.bold:
            out = Markup(f"<{tag}>{out}</{tag}>")
        under = f'<small class="part">{markup(self.under)}</small>' if self.under else ""
        return Markup(out + under)


def markup(value: Any) -> Markup:
    """Return a cell or a text as HTML."""
    if isinstance(value, Cell):
        return value.html()
    return value if isinstance(value, Markup) else Markup(escape(str(value), quote=False))


def styled(*parts: Any) -> Any:
    """Return a text for rich, of plain parts and pairs of a part and its style."""
    from rich.text import Text

    return Text.assemble(*parts)


def figure(svg: str) -> str:
    """Return a picture as a figure, which scrolls if it is too wide."""
    return f'<figure tabindex="0">{svg}</figure>\n'


def _line(text: Any) -> Any:
    """Return the line, set to be neither broken nor cut."""
    text.no_wrap, text.overflow = True, "ignore"
    text.rstrip()
    return text


def _width(text: Any) -> int:
    return max(len(line) for line in text.plain.split("\n"))


def _folded(text: Any, width: int) -> Any:
    """Return the wrapped text."""
    from rich.text import Text

    return Text("\n".join(wrapped(text.plain, max(width, 1))), text.style)


def _divided(groups: Sequence[list[int]], widths: Sequence[int], room: int) -> list[list[int]]:
    """Divide columns into as few parts as fit into ``room``, of about equal width."""

    def divided(width: int) -> list[list[int]]:
        parts: list[list[int]] = [[]]
        for group in groups:
            if parts[-1] and sum(widths[at] for at in (*parts[-1], *group)) > width:
                parts.append([])
            parts[-1] += group
        return parts

    fewest = len(divided(room))
    return next(x for width in range(max(room, 1) + 1) if len(x := divided(width)) <= fewest)


def table(title: str, heads: Sequence[str], rows: Sequence[Any], *left: str) -> Table:
    """Return a table with these heads; columns whose heads are in ``left`` are words."""
    return Table(title, tuple(Column(head, left=head in left) for head in heads), rows)


@dataclass(frozen=True)
class Table:
    """A title, columns and lines of cells."""

    title: str
    columns: tuple[Column, ...]
    rows: Sequence[Sequence[str | Cell]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        width = options.max_width
        for line in wrapped(self.title, width) if self.title else ():
            yield _line(Text(line, "bold"))
        heads = [Text(column.head, "bold") for column in self.columns]
        cells = [[c.rich() if isinstance(c, Cell) else Text(c) for c in row] for row in self.rows]
        for number, part in enumerate(self._parts([heads, *cells], width)):
            yield from map(_line, [Text(), *part] if number else part)

    def _parts(self, cells: list[list[Any]], width: int) -> Iterator[list[Any]]:
        """Yield the lines of the table, or of its parts if it is wider than ``width``.

        Before the table is divided, columns are brought closer and a last column of words is
        folded. Each part begins with the first columns of words, which identify its lines.
        """
        for gap in (3, 2, 1):
            widths = [max(map(_width, column)) for column in zip(*cells, strict=True)]
            folded, room = cells, width - 1 - gap * (len(widths) - 1)
            if gap == 1 and sum(widths) > room and self.columns[-1].left:
                least = widths[-1] - (sum(widths) - room)
                folded = [[*row[:-1], _folded(row[-1], least)] for row in cells]
                widths[-1] = max(_width(row[-1]) for row in folded)
            if sum(widths) <= room:
                yield self._lines(folded, range(len(widths)), widths, gap)
                return
        gap, widths = 2, [max(map(_width, column)) for column in zip(*cells, strict=True)]
        words = next((at for at, column in enumerate(self.columns) if not column.left), 1)
        room = width + 1 - sum(widths[:words]) - gap * words
        groups: list[list[int]] = []
        for at, column in enumerate(self.columns[words:], words):
            if column.left and widths[at] + gap > room:
                cells = [[*row[:at], _folded(row[at], room - gap), *row[at + 1 :]] for row in cells]
                widths[at] = max(_width(row[at]) for row in cells)
            groups = [*groups[:-1], [*groups[-1], at]] if column.joined else [*groups, [at]]
        for part in _divided(groups, [each + gap for each in widths], room):
            # Leave out lines that are empty in the columns of this part.
            filled = [row for row in cells if any(row[at].plain for at in part)]
            yield self._lines(filled, [*range(words), *part], widths, gap)

    def _lines(
        self, cells: list[list[Any]], chosen: Sequence[int], widths: list[int], gap: int
    ) -> list[Any]:
        """Yield the head, a rule and the rows as lines of text with some of the columns."""
        from rich.text import Text

        lines: list[Any] = []
        for row in cells:
            parts = [row[at].split("\n", allow_blank=True) for at in chosen]
            for height in range(max(map(len, parts))):
                line = Text(" ")
                for at, part in zip(chosen, parts, strict=True):
                    text = part[height] if height < len(part) else Text()
                    pad = " " * (widths[at] - len(text))
                    line.append(text if self.columns[at].left else Text.assemble(pad, text))
                    line.append(pad * self.columns[at].left + " " * gap)
                lines.append(line)
            if row is cells[0]:
                lines.append(Text("-" * (len(lines[0]) - gap + 1)))
        return lines

    def html(self) -> str:
        """Return the table as HTML, or "" if there are no rows."""
        if not self.rows:
            return ""

        def line(tag: str, cells: Sequence[Any]) -> str:
            kinds = ["" if column.left else ' class="n"' for column in self.columns]
            scope = ' scope="col"' * (tag == "th")
            inner = (
                f"<{tag}{scope}{kind}>{markup(cell)}</{tag}>"
                for kind, cell in zip(kinds, cells, strict=True)
            )
            return f"<tr>{''.join(inner)}</tr>\n"

        head = line("th", [column.head for column in self.columns])
        body = "".join(line("td", row) for row in self.rows)
        # A table longer than a page breaks, and its head is printed again.
        kinds = ["short"] * (len(self.rows) <= 25)
        kinds += ["words"] * all(column.left for column in self.columns)
        kind = f' class="{" ".join(kinds)}"' if kinds else ""
        label = escape(self.title or ", ".join(filter(None, (x.head for x in self.columns))))
        caption = f"<caption>{markup(self.title)}</caption>\n" if self.title else ""
        return (
            f'<div class="scroll" tabindex="0" role="region" aria-label="{label}">'
            f"<table{kind}>{caption}<thead>\n{head}</thead>"
            f"<tbody>\n{body}</tbody></table></div>\n"
        )


@dataclass(frozen=True)
class Pairs:
    """Labels and their values; ``compact`` ones are short and laid out side by side in HTML."""

    pairs: Sequence[tuple[str, str | Cell]]
    title: str = ""
    compact: bool = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.title:
            yield styled((self.title, "bold"))
        left = max((len(label) for label, _ in self.pairs), default=0) + 2
        for label, value in self.pairs:
            text = value.rich() if isinstance(value, Cell) else styled(value)
            lines = wrapped(text.plain, options.max_width - left)
            for start, line in zip((label, *[""] * len(lines)), lines, strict=False):
                yield _line(styled(start.ljust(left), (line, text.style)))

    def html(self) -> str:
        """Return a list of definitions without the title, which the page's section has."""
        kind = ' class="compact"' if self.compact else ""
        start, end = ("<div>", "</div>") if self.compact else ("", "")
        values = [b if isinstance(b, Cell) else bound(b) for _, b in self.pairs]
        inner = "".join(
            f"{start}<dt>{markup(label)}</dt><dd>{markup(value)}</dd>{end}\n"
            for (label, _), value in zip(self.pairs, values, strict=True)
        )
        return f"<dl{kind}>\n{inner}</dl>\n" if inner else ""


@dataclass(frozen=True)
class Figure:
    """A picture, for HTML pages only."""

    svg: str

    def html(self) -> str:
        """Return the picture as a figure."""
        return figure(self.svg)


@dataclass(frozen=True)
class Figures:
    """Pictures next to each other, for HTML pages only."""

    svgs: Sequence[str]

    def html(self) -> str:
        """Return the pictures as figures, or "" without any."""
        inner = "".join(map(figure, self.svgs))
        return f'<div class="figures">\n{inner}</div>\n' if inner else ""


@dataclass(frozen=True)
class Paragraph:
    """A text, indented by ``indent`` spaces, and by ``hang`` more from the second line on."""

    text: str
    indent: int = 0
    hang: int = 0

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in wrapped(" " * self.indent + self.text, options.max_width, self.hang):
            yield _line(styled(line))


@dataclass(frozen=True)
class Findings:
    """Sentences, each of which may end with a fix."""

    sentences: Sequence[str]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for sentence in self.sentences:
            yield Paragraph(f"- {sentence}", hang=2)

    def html(self) -> str:
        """Return a list, or a sentence if there are no findings."""
        items = []
        for sentence in self.sentences:
            finding, mark, fix = sentence.partition(" Fix: ")
            more = f" <b>Fix:</b> {markup(fix)}" if mark else ""
            items.append(f"<li>{markup(finding)}{more}</li>\n")
        if not items:
            return "<p>No finding: every access is as good as it can be.</p>\n"
        return f"<ul>\n{''.join(items)}</ul>\n"
