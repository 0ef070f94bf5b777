"""A hook of MkDocs: README.md is a page, whose links lead from there; photographs are dark too."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

#: What a page has in place of README.md, for readers of the page itself.
_PART = re.compile(r"^<!-- include: README.md -->\n.*?^<!-- end -->\n", re.MULTILINE | re.DOTALL)
#: The target of a link or a picture, if it is a file of the repository.
_TARGET = re.compile(r"(?<=\]\()(?!https?:|#)(?P<path>[^)#]+)")
#: A photograph; the one for dark pages is beside it.
_PHOTOGRAPH = re.compile(r"!\[(?P<text>[^]]+)\]\((?P<path>[^)]+)\.png\)")
_BOTH = r"![\g<text>](\g<path>.png#only-light)![\g<text>](\g<path>-dark.png#only-dark)"


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Return a page with README.md in the place of the part that asks for it."""
    root = Path(config.config_file_path).parent

    def target(match: re.Match[str]) -> str:
        path = match["path"]
        if path.startswith("docs/"):
            return path.removeprefix("docs/")
        if files.get_file_from_path(path.lower()):  # CHANGELOG.md is a page: changelog.md
            return path.lower()
        return f"{config.repo_url.rstrip('/')}/blob/main/{path}" if config.repo_url else path

    def readme(match: re.Match[str]) -> str:
        return _TARGET.sub(target, (root / "README.md").read_text(encoding="utf-8"))

    return _PHOTOGRAPH.sub(_BOTH, _PART.sub(readme, markdown))
