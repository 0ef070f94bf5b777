"""Keep what the documentation prints true: ``python docs/update.py [--check] [FILE...]``.

In README.md and docs/*.md a block of ``text`` is the output of the block of ``sh`` or ``python``
above it. This script runs those blocks and writes what they print. With ``--check`` it changes
nothing, shows the differences, and exits with 1 if there are any. A ``...`` in a block stands for
anything, as in doctest: for times that differ from run to run, say.

Comments above a block say more of it:

``<!-- gpu -->``
    The block needs a GPU or PyTorch: ``--gpu`` runs those blocks, and those alone.
``<!-- not run -->``
    The block is not run: it installs something, or needs another machine. It has no output.
``<!-- stored: NAME -->``
    The ``text`` block is a part of ``text`` in ``docs/data/NAME.json``, a run on a GPU.
``<!-- example -->``
    The ``text`` block is no output.
``<!-- generated: NAME -->`` ... ``<!-- end -->``
    What stands between is what ``NAME`` of `docs/generated.py` returns.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "docs"))

#: Comments, fenced blocks of code, and generated parts.
_PART = re.compile(
    r"^<!-- generated: (?P<generator>[^\n]+?) -->\n(?P<content>.*?)^<!-- end -->\n"
    r"|^(?:<!-- (?P<comment>[^\n]+?) -->\n+)?"
    r"(?P<indent> *)```(?P<language>\w+)\n(?P<code>.*?)^ *```\n",
    re.MULTILINE | re.DOTALL,
)
_RUN = ("sh", "python")
#: What stands between a command and its output.
_OUTPUT = "```\n\n```text"


@dataclass(frozen=True)
class Block:
    """A fenced block: where its code stands in the page, and what the comment above it says."""

    start: int
    end: int
    language: str
    code: str
    comment: str


def files() -> list[Path]:
    """Return every page."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(text: str) -> Iterator[Block]:
    """Yield a page's fenced blocks in order."""
    for match in _PART.finditer(text):
        if match["language"]:
            comment = match["comment"] or ""
            yield Block(match.start("code"), match.end("code"), match["language"], match["code"],
                        comment)  # fmt: skip


class Page:
    """One page, whose Python blocks share a namespace, in a directory of its own."""

    def __init__(self, path: Path, gpu: bool) -> None:
        self.path, self.gpu = path, gpu
        self.text = path.read_text(encoding="utf-8")
        self.names: dict[str, object] = {"__name__": "__docs__"}

    def updated(self) -> str:
        """Return the page with every output as it is printed now."""
        text = _PART.sub(self._generated, self.text) if not self.gpu else self.text
        found = list(blocks(text))
        before = os.getcwd()
        with tempfile.TemporaryDirectory() as directory:
            os.chdir(directory)
            os.symlink(ROOT / "examples", "examples")
            try:
                replacements = [*self._outputs(found, text)]
            finally:
                os.chdir(before)
        for start, end, output in reversed(replacements):
            text = text[:start] + output + text[end:]
        return text

    def _generated(self, match: re.Match[str]) -> str:
        if match["generator"] is None:
            return match[0]
        import generated

        content = generated.content(match["generator"])
        return f"<!-- generated: {match['generator']} -->\n{content.rstrip()}\n<!-- end -->\n"

    def _outputs(self, found: list[Block], text: str) -> Iterator[tuple[int, int, str]]:
        """Run the blocks; yield the place of each output and what it is now."""
        above = Block(0, 0, "", "", "")
        printed = ""
        for block in found:
            if block.language == "text" and block.comment.startswith("stored: "):
                self._check_stored(block, text)
            elif block.language == "text" and not block.comment:
                if above.language not in _RUN or above.comment.startswith("not run"):
                    raise SystemExit(f"{self._place(block, text)}: no command above this output")
                if self._runs(above) and not same(block.code, printed):
                    yield block.start, block.end, printed
            elif block.language in _RUN and self._runs(block):
                printed = self._run(block, text)
                if printed.startswith("cute-gemm: ") and not text.startswith(_OUTPUT, block.end):
                    raise SystemExit(f"{self._place(block, text)}: {printed.strip()}")
            above = block

    def _check_stored(self, block: Block, text: str) -> None:
        stored = ROOT / "docs/data" / f"{block.comment.partition(': ')[2]}.json"
        if not same(f"...{block.code}...", json.loads(stored.read_text(encoding="utf-8"))["text"]):
            raise SystemExit(f"{self._place(block, text)}: not in {stored.relative_to(ROOT)}")

    def _runs(self, block: Block) -> bool:
        word = block.comment.partition(":")[0]
        return word not in ("not run", "ci") and (word == "gpu") == self.gpu

    def _place(self, block: Block, text: str) -> str:
        return f"{self.path.relative_to(ROOT)}:{text.count(chr(10), 0, block.start) + 1}"

    def _run(self, block: Block, text: str) -> str:
        if block.language == "sh":
            return shell(block.code)
        code = compile("\n" * text.count("\n", 0, block.start) + block.code, str(self.path), "exec")
        with contextlib.redirect_stdout(io.StringIO()) as out:
            try:
                exec(code, self.names)
            except Exception:
                traceback.print_exc()
                raise SystemExit(f"{self._place(block, text)}: the block raises") from None
        return out.getvalue()


def shell(command: str) -> str:
    """Return what commands print, on both streams, to a pipe, at a width of 112 columns."""
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
        "COLUMNS": "112",
    }  # fmt: skip
    program = 'cute-gemm() { python -m cute_gemm "$@"; }'
    done = subprocess.run(
        ["bash", "-c", f"{program}\n{command}"], stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, check=False, env=environment,
    )  # fmt: skip
    return "".join(line.rstrip() + "\n" for line in done.stdout.rstrip("\n").split("\n"))


def same(expected: str, printed: str) -> bool:
    """Return whether an output is that of the page, where ``...`` stands for anything."""
    parts = [re.escape(part) for part in expected.strip().split("...")]
    return re.fullmatch(".*?".join(parts), printed.strip(), re.DOTALL) is not None


def main(arguments: list[str] | None = None) -> int:
    """Update or check the pages; return 1 if one differs and was not written."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--check", action="store_true", help="show differences, and write nothing")
    parser.add_argument("--gpu", action="store_true", help="run the blocks that need a GPU, alone")
    given = parser.parse_args(arguments)
    differing = 0
    for path in [file.resolve() for file in given.files] or files():
        page = Page(path, given.gpu)
        text = page.updated()
        if text == page.text:
            continue
        name = str(path.relative_to(ROOT))
        differing += 1
        if given.check:
            lines = difflib.unified_diff(page.text.splitlines(), text.splitlines(), name, name,
                                         lineterm="")  # fmt: skip
            print("\n".join(lines))
        else:
            path.write_text(text, encoding="utf-8")
            print(f"{name}: written")
    return int(given.check and differing > 0)


if __name__ == "__main__":
    sys.exit(main())
