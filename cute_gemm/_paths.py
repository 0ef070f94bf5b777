"""Where the files that ship beside the code are."""

from __future__ import annotations

from pathlib import Path


def templates_path() -> Path:
    """Return the absolute directory of the CUDA C++ templates, which units include from.

    In a wheel it is ``cute_gemm/templates``; in a checkout, and so in an editable install, it is
    ``templates`` at the root of the repository. FileNotFoundError where there is neither.
    """
    package = Path(__file__).resolve().parent
    for directory in (package / "templates", package.parent / "templates"):
        if directory.is_dir():
            return directory
    raise FileNotFoundError(
        f"the CUDA templates are missing: expected a directory {package / 'templates'}; "
        "install cute-gemm again"
    )
