"""What `docs/update.py` writes between ``<!-- generated: NAME -->`` and ``<!-- end -->``."""

from __future__ import annotations

from importlib import import_module

#: By the word before ``:`` of the comment: a module beside this one, and its function, which is
#: called with what stands behind it.
GENERATORS = {
    "rung": ("ladder_page", "rung"),
    "benchmark": ("benchmarks_page", "benchmarks"),
    "classes": ("benchmarks_page", "classes"),
    "fused": ("benchmarks_page", "fused"),
    "blocks": ("benchmarks_page", "blocks"),
    "layouts": ("benchmarks_page", "geomeans"),
    "epilogues": ("benchmarks_page", "epilogues"),
    "deepgemm": ("benchmarks_page", "deepgemm"),
    "host": ("benchmarks_page", "host"),
    "predicted": ("predicted_page", "predicted"),
    "speed": ("benchmarks_page", "speed"),
    "support": ("support_page", "support"),
}


def content(name: str) -> str:
    """Return the Markdown of a generated part."""
    generator, _, argument = name.partition(": ")
    module, function = GENERATORS[generator]
    text: str = getattr(import_module(module), function)(argument)
    return text
