"""How commands print: text as it comes, JSON, and what rich can show on a terminal."""

from __future__ import annotations

import argparse
import json
import math
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cute_gemm._text import FORMAT, WIDTH, named, plain, printable, wrapped, write
from cute_gemm.errors import OptionError

if TYPE_CHECKING:
    from cute_gemm.analysis.shown import Paged
    from cute_gemm.api import Plan
    from cute_gemm.toolchain.cubin import Build

#: Exit statuses.
OK, WRONG, BAD_INPUT = 0, 1, 2


def say(text: Any = "", end: str = "\n", hang: int = 9, at: int = 0) -> None:
    """Print text at once, or what rich can show.

    On a terminal lines are broken between words alone; what follows on a line that is not indented
    is, by ``hang``. The first begins after ``at`` characters that stand there already.
    """
    if not isinstance(text, str):
        show(text)
        return
    text = printable(text)
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
        *lines, last = (" " * at + text).split("\n")
        parts = [
            part
            for line in (*lines, *[last] * bool(end))
            for part in wrapped(line, width, 0 if line.startswith(" ") else hang)
        ]
        text = "\n".join((*parts, *[last] * (not end)))[at:]
    print(text, end=end, flush=True)


def silent(*_: Any, **__: Any) -> None:
    """Print nothing, in the place of ``say``."""


@contextmanager
def progress(after: float = 0.0) -> Iterator[Callable[[str, int, int], None] | None]:
    """Give what draws a bar on standard error, ``after`` seconds, if that is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from threading import Timer

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    clock = [TimeElapsedColumn()] if after else []
    bar = Progress(*columns, *clock, console=Console(stderr=True), transient=True)
    task = bar.add_task("", total=1)

    def tell(text: str, done: int, total: int) -> None:
        bar.update(task, description=text, completed=done, total=total)

    start = Timer(after, bar.start)
    start.daemon = True
    start.start()
    try:
        yield tell
    finally:
        start.cancel()
        start.join()
        bar.stop()


def print_json(value: dict[str, Any]) -> None:
    """Print a dict as JSON, its version first, and what JSON does not have by its name."""
    print(json.dumps(_named({"format": FORMAT, **value}), indent=2, default=str, allow_nan=False))


def _named(value: Any) -> Any:
    """Return a value with text in the place of infinities and NaN."""
    if isinstance(value, dict):
        return {key: _named(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_named(one) for one in value]
    return value if not isinstance(value, float) or math.isfinite(value) else str(value)


def show(found: Any) -> None:
    """Print what rich can show: in colour and as wide as the terminal, or as plain text."""
    if sys.stdout.isatty():
        from rich.console import Console

        write(found, Console())
    else:
        print(plain(found, getattr(found, "width", WIDTH)))


def check_html(arguments: argparse.Namespace) -> None:
    """Refuse no name of a file, and two texts on standard output, before anything is done."""
    if arguments.html == "":
        raise OptionError("--html '' names no file; expected --html FILE, or - for stdout")
    if arguments.html == "-" and arguments.json:
        raise OptionError("--html - and --json both print to stdout; expected --html FILE")


def show_report(arguments: argparse.Namespace, report: Paged) -> int:
    """Print a report in the form that was asked for, and return the exit status."""
    if arguments.html == "-":
        # Not print: a page says itself that it is UTF-8, whatever the terminal is.
        sys.stdout.flush()
        sys.stdout.buffer.write(report.to_html().encode())
        return OK
    if arguments.html:
        Path(arguments.html).write_text(report.to_html(), encoding="utf-8")
    if arguments.json:
        print(report.to_json())
    else:
        show(report)
    return OK


def build_dict(kernel: str, build: Build) -> dict[str, Any]:
    """Return what JSON says of the build of a kernel of this name."""
    return {
        "kernel": kernel, **named(build, "symbol", "arch", "seconds", "cached"),
        "bytes": len(build.cubin), "resources": asdict(build.resources),
    }  # fmt: skip


def build_time(plan: Plan) -> str:
    """Return how long a build took: ``"1.5 s"``, ``"cached, 3 ms"``."""
    build, seconds = plan.build, plan.build.seconds
    taken = f"{1e3 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
    return f"cached, {taken}" if build.cached else taken
