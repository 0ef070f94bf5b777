"""A hook of MkDocs: CHANGELOG.md and SECURITY.md at the root of the repository are pages too."""

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

NAMES = ("CHANGELOG.md", "SECURITY.md")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages; links are relative to the root in the files, and to docs in the pages."""
    for name in NAMES:
        text = (Path(config.config_file_path).parent / name).read_text(encoding="utf-8")
        text = text.replace("](docs/", "](")
        for other in NAMES:
            text = text.replace(f"]({other}", f"]({other.lower()}")
        files.append(File.generated(config, name.lower(), content=text))
    return files
