"""``Fix``: one change that fixes an access."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cute_gemm._text import named
from cute_gemm.access.accesses import GlobalAccess


@dataclass(frozen=True, slots=True)
class Fix:
    """One change that fixes an access.

    ``what`` is the change: ``"threads (32,4):(4,1), values (1,8), cp.async of 128 bits"``.
    ``reading`` is the text of the report after it: ``"16 sectors per request, ideal 16, 100 %"``.
    ``figures`` has the same as numbers, by the names of ``AccessRow``'s attributes.
    """

    what: str
    reading: str
    figures: dict[str, float] = field(hash=False)
    #: For the user's own copy: the arguments of ``analyze_copy`` that change.
    change: dict[str, Any] = field(default_factory=dict, hash=False)
    #: For a global access: the access after the change.
    access: GlobalAccess | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.what} ({self.reading})"

    def to_dict(self) -> dict[str, Any]:
        """Return the change and the figures of the report with it, by name."""
        return named(self, "what", "reading", "figures", "change")
