"""A self-contained page of HTML: its style sheet and its sections."""

from __future__ import annotations

from html import escape
from pathlib import Path
from string import Template

_HERE = Path(__file__).parent
#: Everything in it is under .cute-gemm, so that a notebook's own tables stay as they are.
_STYLE = "\n" + (_HERE / "page.css").read_text(encoding="utf-8")
_PAGE = Template((_HERE / "page.html").read_text(encoding="utf-8"))


def section(title: str, body: str) -> str:
    """Return a section with its heading; nothing when it is empty."""
    return f"<section><h2>{escape(title)}</h2>\n{body}</section>\n" if body else ""


def page_html(title: str, body: str) -> str:
    """Return a self-contained HTML page around sections; ``title`` is what the tab says."""
    return _PAGE.substitute(title=escape(title), style=_STYLE, body=body)


def fragment(body: str) -> str:
    """Return sections as one ``<div>`` with its style sheet, for ``_repr_html_``."""
    return f'<div class="cute-gemm">\n<style>{_STYLE}</style>\n{body}</div>\n'
