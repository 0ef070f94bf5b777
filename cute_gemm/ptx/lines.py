"""Lines of PTX -> lines of the source (``.loc``, PTX ISA 11.5.3)."""

from __future__ import annotations

import re
from bisect import bisect_right
from typing import NamedTuple

_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"\n]*)"', re.MULTILINE)
#: A place, and the place of the call that was inlined there.
_LOC = re.compile(
    r"^[ \t]*\.loc\s+(\d+)\s+(\d+)\s+(\d+)(?:[^\n]*\binlined_at\s+(\d+)\s+(\d+)\s+(\d+))?"
    r"|\.entry\b",
    re.MULTILINE,
)


class SourceLine(NamedTuple):
    """A line of a file."""

    file: str
    line: int


class Sources:
    """The source places of the instructions of a text that was compiled with line numbers.

    ``unit``: the compiler's name of the source text, which is reported as ``name``.
    """

    def __init__(self, text: str, unit: str, name: str) -> None:
        self._files = dict(_FILE.findall(text))
        self._unit, self._name = unit, name
        self._marks = list(_LOC.finditer(text))
        breaks = [match.start() for match in re.finditer("\n", text)]
        self._lines = [bisect_right(breaks, mark.start()) + 1 for mark in self._marks]

    def _own(self, file: str) -> bool:
        return re.split(r"[/\\]", self._files.get(file, ""))[-1] == self._unit

    def place(self, line: int) -> SourceLine | None:
        """Return the source of a line of the PTX; None if the text does not give it.

        For an inlined function of another file, return the line that calls it.
        """
        index = bisect_right(self._lines, line) - 1
        if index < 0 or not self._marks[index][1]:
            return None
        file, number, *_ = where = self._marks[index].groups()
        while not self._own(file) and where[3]:
            caller = where[3:]
            file, number = caller[0], caller[1]
            index = next(
                (i for i in range(index - 1, -1, -1) if self._marks[i].groups()[:3] == caller), -1
            )
            if index < 0:
                break
            where = self._marks[index].groups()
        path = self._files.get(file, "")
        name = self._name if self._own(file) else re.split(r"[/\\]", path)[-1]
        return SourceLine(name, int(number)) if name else None

    def with_places(self, message: str) -> str:
        """Return a message with source places next to lines of the PTX."""

        def with_place(match: re.Match[str]) -> str:
            place = self.place(int(match[1]))
            return match[0] if place is None else f"{place.file}({place.line}), PTX {match[0]}"

        return re.sub(r"\bline (\d{1,9})\b(?=:)", with_place, message)
