"""Base classes of reports, which are printed, written as JSON and shown as HTML pages."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from cute_gemm._text import WIDTH, counted, named, plain, write
from cute_gemm.rendering.tables import styled

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console, ConsoleOptions, RenderResult

    from cute_gemm.access.accesses import Access
    from cute_gemm.access.fix import Fix
    from cute_gemm.problem.problem import GemmProblem
    from cute_gemm.problem.verify import Verdict
    from cute_gemm.rendering.html import Page
    from cute_gemm.rendering.rows import AccessRow
    from cute_gemm.toolchain.cubin import Resources


def size_text(problem: GemmProblem) -> str:
    """Return the text after the op: ``" (BLAS-equivalent TN)  M=8 N=8 K=8  float16 -> ..."``."""
    size = f"M={problem.m} N={problem.n} K={problem.k}"
    if problem.groups:
        size += f" in {counted(problem.l, 'group')} along {problem.groups.mode}"
        size += ", zeros after the last" * problem.groups.zero_tail
    elif problem.l != 1:
        size += f" L={problem.l}"
    return f" (BLAS-equivalent {problem.blas_op})  {size}  {problem.types}"


def verdict_dict(verdict: Verdict) -> dict[str, Any]:
    """Return a comparison with float64 for JSON, in which an infinite ratio is None."""
    ratio = verdict.max_ratio
    return {
        **named(verdict, "ok", "elements", "wrong", "max_error"),
        "max_error_over_bound": ratio if ratio < float("inf") else None,
        **named(verdict, "worst", "bound"),
    }


def spilled(resources: Resources) -> str:
    """Return the spills of a build as text: ``"no spills"``."""
    count = resources.spill_stores + resources.spill_loads
    return f"{count} bytes spilled" if count else "no spills"


def differing(figures: Sequence[Any], all_figures: int) -> str:
    """Return how many of ``all_figures`` differ; ``figures`` are those that do."""
    return f"{len(figures)} of {all_figures} figures differ" if figures else "no difference"


class Shown(ABC):
    """A result that is printed, with or without colours, and returned as JSON."""

    #: Characters per line of ``str(...)``.
    width = WIDTH

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return the result as strings, numbers, lists and dicts, with stable keys."""

    @abstractmethod
    def _printed(self) -> Iterator[Any]:
        """Yield lines of text, and tables and texts for ``rich``."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for part in self._printed():
            yield styled(part) if isinstance(part, str) else part

    def to_json(self, indent: int | None = 2) -> str:
        """Return ``to_dict()`` as JSON text."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)

    def __str__(self) -> str:
        return plain(self, self.width)

    def show(self, console: Console | None = None) -> None:
        """Print with colours to ``console``, by default a new one on standard output."""
        if console is None:
            from rich.console import Console

            console = Console()
        write(self, console)


class Paged(Shown):
    """A report on the accesses of ``rows``, also shown as an HTML page."""

    rows: tuple[AccessRow, ...]

    @property
    def accesses(self) -> tuple[Access, ...]:
        """The access of each row."""
        return tuple(row.access for row in self.rows)

    @property
    def fixes(self) -> tuple[tuple[Fix, ...], ...]:
        """Fixes of each access; the one with the fewest changes is first."""
        return tuple(row.fixes for row in self.rows)

    @abstractmethod
    def page(self) -> Page:
        """Return the page that ``to_html`` writes."""

    def to_html(self) -> str:
        """Return the report with its pictures as one self-contained HTML file.

        HTML5 in UTF-8, with inline style sheet and pictures, without scripts or references to the
        network. It prints on A4, landscape.

        Examples
        --------
        ``Path("report.html").write_text(report.to_html(), encoding="utf-8")``
        """
        from cute_gemm.rendering.html import page_html

        return page_html(self.page())

    def _repr_html_(self) -> str:
        """Return the report for a notebook; ids are hashes, so that cells do not collide."""
        from cute_gemm.rendering.html import cell_html

        return cell_html(self.page(), "cg-" + sha256(self.to_json().encode()).hexdigest()[:8])
