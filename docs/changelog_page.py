"""A hook of MkDocs: the page of the changelog is CHANGELOG.md at the root of the repository."""

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files


def on_files(files: Files, config: Any) -> Files:
    """Add the page; links of CHANGELOG.md are relative to the root, and the page lies in docs."""
    text = (Path(config.config_file_path).parent / "CHANGELOG.md").read_text(encoding="utf-8")
    files.append(File.generated(config, "changelog.md", content=text.replace("](docs/", "](")))
    return files
