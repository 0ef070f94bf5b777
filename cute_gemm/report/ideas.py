"""The idea of a kernel: a paragraph of its template's header, or a class attribute."""

from __future__ import annotations

from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from cute_gemm.toolchain.headers import templates_path

if TYPE_CHECKING:
    from cute_gemm.kernels.base import Kernel

#: Start of that paragraph.
_MARK = "The idea: "


def idea(kernel: Kernel) -> str:
    """Return what a kernel adds to the previous one; LookupError if its template has no idea."""
    return kernel.idea or _of_template(kernel.compiled().template)


@cache
def _of_template(path: Path) -> str:
    lines = path.read_text(encoding="utf-8").splitlines()
    header = (line[2:].strip() for line in takewhile(lambda x: x.startswith("//"), lines))
    title, *paragraphs = "\n".join(header).split("\n\n")
    for paragraph in paragraphs:
        if paragraph.startswith(_MARK):
            text = " ".join(paragraph.split("\n"))[len(_MARK) :]
            # Unless it begins with the name of another kernel.
            named = any(templates_path().rglob(f"{text.split(',')[0]}.cuh"))
            return text if named else f"{text[0].upper()}{text[1:]}"
    raise LookupError(f"{path.name} has no paragraph {_MARK.strip()!r} in its header: {title}")
