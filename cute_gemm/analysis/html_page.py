"""A self-contained page of HTML: its style sheet and its sections."""

from __future__ import annotations

from html import escape

# Everything is under .cute-gemm, so that a notebook's own tables stay as they are.
_STYLE = """
.cute-gemm { color-scheme: light; background: #fff; color: #1b1b1b; max-width: 1100px; padding: 4px;
  font: 14px/1.45 Helvetica, Arial, "Liberation Sans", sans-serif; }
.cute-gemm h1 { font-size: 22px; margin: 0 0 2px; color: inherit; }
.cute-gemm h2 { font-size: 17px; margin: 26px 0 8px; padding-bottom: 3px; color: inherit;
  border-bottom: 1px solid #999; }
.cute-gemm p { margin: 4px 0 8px; }
.cute-gemm .scroll { overflow-x: auto; }
.cute-gemm table { border-collapse: collapse; margin: 4px 0 12px; font-size: 13px; color: inherit;
  font-variant-numeric: tabular-nums; background: #fff; }
.cute-gemm caption { text-align: left; font-weight: bold; padding: 2px 0 5px; color: inherit; }
.cute-gemm th, .cute-gemm td { padding: 3px 9px; border-bottom: 1px solid #ddd; text-align: left;
  vertical-align: baseline; white-space: nowrap; background: #fff; color: inherit; }
.cute-gemm thead th { border-bottom: 1.5px solid #666; font-weight: 600; }
.cute-gemm .n { text-align: right; }
.cute-gemm small.part { display: block; white-space: normal; max-width: 13em; }
.cute-gemm td.wide { white-space: normal; overflow-wrap: anywhere; }
.cute-gemm code { font-size: 0.93em; color: inherit;
  font-family: "DejaVu Sans Mono", Menlo, Consolas, monospace;
  background: none; padding: 0; }
.cute-gemm .good { color: #00573f; }
.cute-gemm .bad { color: #9c2f00; font-weight: bold; }
.cute-gemm dl { display: grid; grid-template-columns: max-content 1fr; gap: 3px 16px; margin: 4px 0;
  font-size: 13px; font-variant-numeric: tabular-nums; }
.cute-gemm dl.compact { grid-template-columns: repeat(3, max-content 1fr); }
.cute-gemm dt { font-weight: 600; }
.cute-gemm dd { margin: 0; overflow-wrap: anywhere; }
.cute-gemm li { margin: 3px 0; }
.cute-gemm a { color: #004f86; }
.cute-gemm details { border-top: 1px solid #ccc; padding: 7px 0; }
.cute-gemm summary { cursor: pointer; }
.cute-gemm figure { margin: 6px 0; overflow-x: auto; }
.cute-gemm figure svg { display: block; }
@media print {
  .cute-gemm { max-width: none; padding: 0; font-size: 11px; }
  .cute-gemm table, .cute-gemm dl { font-size: 10.5px; }
  .cute-gemm tr, .cute-gemm li, .cute-gemm figure, .cute-gemm dl { break-inside: avoid; }
  .cute-gemm table.short { break-inside: avoid; }
  .cute-gemm thead { display: table-header-group; }
  .cute-gemm h2, .cute-gemm caption, .cute-gemm summary { break-after: avoid; }
  .cute-gemm figure, .cute-gemm .scroll { overflow: visible; }
  .cute-gemm figure svg { max-width: 90%; max-height: 168mm; height: auto; }
  .cute-gemm details::details-content { content-visibility: visible; display: block; }
  .cute-gemm * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
"""

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
html {{ background: #fff; color-scheme: light; }}
body {{ margin: 20px auto; max-width: 1110px; }}
@page {{ size: A4 landscape; margin: 10mm; }}
@media print {{ body {{ margin: 0; max-width: none; }} }}
{style}</style>
</head>
<body>
<div class="cute-gemm">
{body}
</div>
</body>
</html>
"""


def section(title: str, body: str) -> str:
    """Return a section with its heading; nothing when it is empty."""
    return f"<section><h2>{escape(title)}</h2>\n{body}</section>\n" if body else ""


def page_html(title: str, body: str) -> str:
    """Return a self-contained HTML page around sections; ``title`` is what the tab says."""
    return _PAGE.format(title=escape(title), style=_STYLE, body=body)


def fragment(body: str) -> str:
    """Return sections as one ``<div>`` with its style sheet, for ``_repr_html_``."""
    return f'<div class="cute-gemm">\n<style>{_STYLE}</style>\n{body}</div>\n'
