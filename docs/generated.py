"""What `docs/update.py` writes between ``<!-- generated: NAME -->`` and ``<!-- end -->``."""

from __future__ import annotations

from collections.abc import Callable

from ladder_page import rung

#: By the word before ``:`` of the comment; called with what stands behind it.
GENERATORS: dict[str, Callable[[str], str]] = {"rung": rung}


def content(name: str) -> str:
    """Return the Markdown of a generated part."""
    generator, _, argument = name.partition(": ")
    return GENERATORS[generator](argument)
