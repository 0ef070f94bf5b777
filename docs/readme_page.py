"""A hook of MkDocs: README.md is a page of the site; screenshots have dark variants.

Links between notebooks and pages lead to files, and on the site to pages.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

#: What a page has in place of README.md, for readers of the page itself.
_PART = re.compile(r"^<!-- include: README.md -->\n.*?^<!-- end -->\n", re.MULTILINE | re.DOTALL)
#: The target of a link or a picture, if it is a file of the repository.
_TARGET = re.compile(r"(?<=\]\()(?!https?:|#)(?P<path>[^)#]+)")
#: A screenshot; ``NAME-dark.png`` is its dark variant.
_SCREENSHOT = re.compile(r"!\[(?P<text>[^]]+)\]\((?P<path>[^)]+)\.png\)")
_BOTH = r"![\g<text>](\g<path>.png#only-light)![\g<text>](\g<path>-dark.png#only-dark)"
#: A link of a notebook to another or to a page.
_LINK = re.compile(r'(?<=href=")(?!https?:|#)(?P<path>[^"#]+)\.(?:md|ipynb)(?=["#])')


def on_page_content(html: str, *, page: Any, config: Any, files: Any) -> str:
    """Return a notebook with links to pages of the site."""
    return _LINK.sub(r"../\g<path>/", html) if page.file.src_uri.endswith(".ipynb") else html


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Return a page with README.md in place of the part that includes it, and dark screenshots."""
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

    return _SCREENSHOT.sub(_BOTH, _PART.sub(readme, markdown))
