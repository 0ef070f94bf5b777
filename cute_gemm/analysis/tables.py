"""Tables, lists of pairs and of sentences as values, each with two renderers: rich text and HTML.

What is printed goes to ``rich`` as ``Text``, never as ``str``: it would read the brackets of a
config or a layout as markup. In HTML everything but ``Markup`` is escaped.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from textwrap import wrap
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console, ConsoleOptions, RenderResult


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


class Column(NamedTuple):
    """A column: its head, and whether it holds words (to the left) or numbers (to the right)."""

    head: str
    left: bool = False


class Cell(NamedTuple):
    """A cell that is more than a word.

    ``under`` is a second, smaller line; ``good`` makes it a verdict; ``code``, ``bold`` and
    ``link`` (an element's id) are of HTML alone.
    """

    text: str
    under: str = ""
    good: bool | None = None
    code: bool = False
    bold: bool = False
    link: str = ""

    def rich(self) -> Any:
        """Return rich's text."""
        from rich.text import Text

        style = "" if self.good is None else "green" if self.good else "bold red"
        return Text("\n ".join((self.text, *wrap(self.under, 16))), style=style)

    def html(self) -> Markup:
        """Return the cell's content as HTML; a verdict has a sign beside its colour."""
        out = markup(self.text)
        if self.good is not None:
            sign, kind = ("\u2713", "good") if self.good else ("\u2717", "bad")
            out = Markup(f'<span class="{kind}">{sign} {out}</span>')
        if self.link:
            out = Markup(f'<a href="#{self.link}">{out}</a>')
        for tag in ("code",) * self.code + ("b",) * self.bold:
            out = Markup(f"<{tag}>{out}</{tag}>")
        under = f'<small class="part">{markup(self.under)}</small>' if self.under else ""
        return Markup(out + under)


def markup(value: Any) -> Markup:
    """Return anything as HTML."""
    if isinstance(value, Cell):
        return value.html()
    return value if isinstance(value, Markup) else Markup(escape(str(value), quote=False))


@dataclass(frozen=True)
class Table:
    """A title, columns and lines of cells."""

    title: str
    columns: tuple[Column, ...]
    rows: Sequence[Sequence[str | Cell]]

    def __rich__(self) -> Any:
        from rich import box
        from rich.table import Table as RichTable
        from rich.text import Text

        out = RichTable(box=box.SIMPLE_HEAD, show_edge=False)
        out.title, out.title_justify, out.title_style = self.title or None, "left", "bold"
        for head, left in self.columns:
            out.add_column(head, justify="left" if left else "right", no_wrap=left)
        for row in self.rows:
            out.add_row(*(cell.rich() if isinstance(cell, Cell) else Text(cell) for cell in row))
        return out

    def html(self) -> str:
        """Return the table as HTML; nothing when there are no rows."""
        if not self.rows:
            return ""

        def line(tag: str, cells: Sequence[Any]) -> str:
            kinds = ["" if column.left else ' class="n"' for column in self.columns]
            inner = (f"<{tag}{k}>{markup(c)}</{tag}>" for k, c in zip(kinds, cells, strict=True))
            return f"<tr>{''.join(inner)}</tr>\n"

        head = line("th", [column.head for column in self.columns])
        body = "".join(line("td", row) for row in self.rows)
        # One that is longer than a page has to be broken; then its head is printed again.
        kind = ' class="short"' if len(self.rows) <= 25 else ""
        caption = f"<caption>{markup(self.title)}</caption>\n" if self.title else ""
        return (
            f'<div class="scroll"><table{kind}>{caption}<thead>\n{head}</thead>'
            f"<tbody>\n{body}</tbody></table></div>\n"
        )


@dataclass(frozen=True)
class Pairs:
    """Labels and what they stand for; ``compact`` ones, three abreast, are short."""

    pairs: Sequence[tuple[str, str | Cell]]
    title: str = ""
    compact: bool = False

    def __rich__(self) -> Any:
        from rich.table import Table as RichTable
        from rich.text import Text

        out = RichTable.grid(padding=(0, 2, 0, 1))
        out.title, out.title_justify, out.title_style = self.title, "left", "bold"
        for label, value in self.pairs:
            out.add_row(label, value.rich() if isinstance(value, Cell) else Text(value))
        return out

    def html(self) -> str:
        """Return a list of definitions; its title is that of the section that it stands in."""
        kind = ' class="compact"' if self.compact else ""
        inner = "".join(f"<dt>{markup(a)}</dt><dd>{markup(b)}</dd>\n" for a, b in self.pairs)
        return f"<dl{kind}>\n{inner}</dl>\n" if inner else ""


@dataclass(frozen=True)
class Findings:
    """Sentences, each with the mend that it may end in."""

    sentences: Sequence[str]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.table import Table as RichTable
        from rich.text import Text

        for sentence in self.sentences:
            grid = RichTable.grid(padding=(0, 1, 0, 0))  # further lines under the first
            grid.add_row("-", Text(sentence))
            yield grid

    def html(self) -> str:
        """Return a list; a sentence when there is nothing to be found."""
        items = []
        for sentence in self.sentences:
            says, mend, how = sentence.partition(" Mend: ")
            more = f" <b>Mend:</b> {markup(how)}" if mend else ""
            items.append(f"<li>{markup(says)}{more}</li>\n")
        if not items:
            return "<p>No finding: every access is as good as it can be.</p>\n"
        return f"<ul>\n{''.join(items)}</ul>\n"
