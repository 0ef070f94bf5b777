"""A self-contained page of HTML: its style sheet and its sections."""

from __future__ import annotations

import re
from html import escape
from pathlib import Path
from string import Template

_HERE = Path(__file__).parent
#: All rules are for elements in .cute-gemm; they do not change the other tables of a notebook.
_STYLE = "\n" + (_HERE / "page.css").read_text(encoding="utf-8")
_PAGE = Template((_HERE / "page.html").read_text(encoding="utf-8"))


def section(title: str, body: str, prefix: str = "cg") -> str:
    """Return a section and its heading, whose id begins with ``prefix``; "" for an empty body."""
    anchor = f"{prefix}-" + re.sub(r"\W+", "-", title.lower()).strip("-")
    head = f'<h2 id="{anchor}">{escape(title)}</h2>\n'
    return f'<section aria-labelledby="{anchor}">{head}{body}</section>\n' if body else ""


def contents(body: str) -> str:
    """Return the navigation to the sections of a page."""
    heads = re.findall(r'<h2 id="([^"]*)">(.*?)</h2>', body)
    items = "".join(f'<li><a href="#{anchor}">{title}</a></li>\n' for anchor, title in heads)
    return f'<nav aria-label="Contents"><ol>\n{items}</ol></nav>\n' if items else ""


def page_html(title: str, body: str, head: str = "") -> str:
    """Return a self-contained HTML page with sections; ``title`` is the title of the tab.

    ``head`` is the part above the table of contents and the sections.
    """
    parts = f"<header>\n{head}</header>\n" * bool(head), contents(body)
    body = f"{''.join(parts)}<main>\n{body}</main>"
    return _PAGE.substitute(title=escape(title), style=_STYLE, body=body)


def fragment(body: str) -> str:
    """Return sections as one ``<div>`` with its style sheet, for ``_repr_html_``."""
    return f'<div class="cute-gemm">\n<style>{_STYLE}</style>\n{body}</div>\n'
