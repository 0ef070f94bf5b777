"""Text of results: numbers with units, and ``rich`` renderables as plain text."""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

#: Version of the keys of all JSON; raised when a key changes its meaning.
FORMAT = 1
#: Characters per line without a terminal.
WIDTH = 112
#: Spaces at which no line breaks: between a number and its unit, and around a swizzle's ``o``.
_BOUND = re.compile(
    r"(?<=\d) (?=(?:%|[mu]?s|bits|bytes|[kMGTPE]?(?:B|FLOP)?(?:/[sB])?)(?!\w))| (?=o )|(?<= o) "
)


def wrapped(text: str, width: int, hang: int = 0) -> list[str]:
    """Return lines, broken only between words; a word longer than a line is not broken.

    No number, unit, name or layout is cut. Further lines begin ``hang`` spaces to the
    right of the first, which keeps its own indentation.
    """
    indent = " " * (len(text) - len(text.lstrip()))
    lines = textwrap.wrap(
        _BOUND.sub("\0", text.strip()), width, initial_indent=indent,
        subsequent_indent=indent + " " * hang, break_long_words=False, break_on_hyphens=False,
        expand_tabs=False, replace_whitespace=False,
    )  # fmt: skip
    return [line.replace("\0", " ") for line in lines] or [""]


def bound(text: str) -> str:
    """Return text whose numbers stay on a line with their units, for HTML."""
    return _BOUND.sub("\u00a0", text)


def write(content: Any, console: Any) -> None:
    """Print with ``rich``: what ``content`` yields, each paragraph `wrapped`."""
    from rich.text import Text

    shown = getattr(content, "__rich_console__", None)
    for part in shown(console, console.options) if shown else (content,):
        if not isinstance(part, Text):
            console.print(part, crop=False)
            continue
        at = 0
        for line in wrapped(part.plain, console.width, 2):
            said = line.lstrip()
            # A slice of the paragraph, so that what is bold there is bold here.
            at = part.plain.index(said, at)
            indented = Text.assemble(" " * (len(line) - len(said)), part[at : at + len(said)])
            console.print(indented, no_wrap=True, overflow="ignore", crop=False)
            at += len(said)


def plain(content: Any, width: int) -> str:
    """Return the output of ``write`` without colours and trailing spaces."""
    from rich.console import Console

    out = io.StringIO()
    # no_color would still write bold and dim; without a terminal rich writes no codes at all.
    # In a notebook rich would display the parts and leave the file empty.
    console = Console(
        file=out, width=width, force_terminal=False, force_jupyter=False, color_system=None
    )
    write(content, console)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def printable(text: str) -> str:
    """Return text with control characters, which a terminal would obey, escaped."""
    return re.sub(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", lambda match: f"\\x{ord(match[0]):02x}", text)


def named(thing: Any, *names: str) -> dict[str, Any]:
    """Return some attributes by their names."""
    return {name: getattr(thing, name) for name in names}


def short(value: float) -> str:
    """Return a number with three to four digits: ``1.23``, ``45.6``, ``1,365``."""
    if value >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


def si(value: float) -> str:
    """Return a number with its decimal prefix and a space: ``"137 G"``, ``"0 "``."""
    prefixes = ["", "k", "M", "G", "T", "P", "E"]
    while value >= 999.5 and len(prefixes) > 1:
        value /= 1e3
        del prefixes[0]
    return f"{short(value)} {prefixes[0]}"


def counted(count: int, thing: str, things: str = "") -> str:
    """Return a count with its noun; ``things`` is the plural if it is not ``thing`` with an ``s``.

    >>> counted(1, "cubin"), counted(2048, "cubin"), counted(0, "entry", "entries")
    ('1 cubin', '2,048 cubins', '0 entries')
    """
    return f"{count:,} {thing if count == 1 else things or thing + 's'}"


def size(count: int) -> str:
    """Return a number of bytes in the largest fitting unit, in steps of 1024.

    >>> size(1), size(900), size(1536), size(2**30)
    ('1 byte', '900 bytes', '1.5 KiB', '1 GiB')
    """
    units = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"]
    value: float = count
    while round(value, 1) >= 1024 and len(units) > 1:
        value /= 1024
        del units[0]
    if units[0] == "bytes":
        return counted(count, "byte")
    return f"{round(value, 1):,.1f}".removesuffix(".0") + f" {units[0]}"


def duration(seconds: float) -> str:
    """Return a time: ``"1.50 s"``, ``"441 us"``."""
    for scale, unit in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= scale:
            return f"{short(seconds / scale)} {unit}"
    return f"{short(seconds * 1e6)} us"


def number(value: float | None) -> str:
    """Return an integer as one, another number with one decimal, None as a dash.

    Examples
    --------
    >>> number(16.0), number(2.94), number(None), number(1234567), number(2**60)
    ('16', '2.9', '-', '1,234,567', '1.1529e+18')
    """
    if value is None:
        return "-"
    if value >= 1e13:  # wider than a column of the tables; to_dict() has every digit
        return f"{value:.4e}"
    return f"{int(value):,}" if value == int(value) else f"{value:,.1f}"


def percent(fraction: float | None) -> str:
    """Return a fraction in percent with one decimal, 100 without; never rounded up to 100."""
    if fraction is None:
        return "-"
    return "100 %" if fraction == 1 else f"{min(fraction * 100, 99.9):.1f} %"


_TRANSPOSED = re.compile("(trans|transpose|transposed|adj|adjoint|conj|op|t)[-_]?[ab]")


def hint_for(word: str, known: Iterable[str], prefix: str = "") -> str:
    """Return a suggestion for an unknown word, ``""`` if no known word is similar.

    >>> hint_for("stage", ("stages", "copy"), "--")
    'did you mean --stages?'
    """
    if re.fullmatch("(use[-_])?fast[-_]accum", word.lower()):
        return f'expected {prefix}compute="fast_accum"'
    if _TRANSPOSED.fullmatch(word.lower()):
        return "the letters of op say what is transposed, as in TN"
    near = get_close_matches(word.lower(), known, 1, 0.7)
    return f"did you mean {prefix}{near[0]}?" if near else ""
