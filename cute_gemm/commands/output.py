"""Output of the commands: text, JSON, and rich renderables on a terminal."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cute_gemm._text import FORMAT, WIDTH, named, plain, printable, wrapped, write
from cute_gemm.errors import OptionError

if TYPE_CHECKING:
    from cute_gemm.plan.plan import Plan
    from cute_gemm.rendering.shown import Paged, Shown
    from cute_gemm.toolchain.cubin import Build

#: Seconds until the first line of progress without a terminal, and between lines.
_FIRST_LINE, _NEXT_LINE = 2.0, 10.0
#: Exit statuses.
OK, WRONG, BAD_INPUT = 0, 1, 2


def say(text: Any = "", hang: int = 9) -> None:
    """Print text, or a rich renderable, and flush.

    On a terminal, lines are broken between words, and continuations of an unindented line
    are indented by ``hang``.
    """
    if not isinstance(text, str):
        show(text)
        return
    text = printable(text)
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
        hangs = ((line, 0 if line.startswith(" ") else hang) for line in text.split("\n"))
        text = "\n".join(part for line, more in hangs for part in wrapped(line, width, more))
    print(text, flush=True)


def silent(*_: Any, **__: Any) -> None:
    """Print nothing; a replacement for ``say``."""


@contextmanager
def progress(after: float = 0.0) -> Iterator[Callable[[str, int, int], None]]:
    """Yield a function that shows progress on standard error: what, how much is done, of how much.

    On a terminal it is a bar, which appears after ``after`` seconds; otherwise lines at intervals,
    for work that takes seconds.
    """
    if not sys.stderr.isatty():
        yield _lines()
        return
    from threading import Timer

    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    times = [TimeElapsedColumn() if after else TimeRemainingColumn()]
    bar = Progress(*columns, *times, console=Console(stderr=True), transient=True)
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


def _lines() -> Callable[[str, int, int], None]:
    """Return a function that prints a line after a few seconds, and then at intervals."""
    begun: dict[str, float] = {}
    due = time.monotonic() + _FIRST_LINE

    def tell(text: str, done: int, total: int) -> None:
        nonlocal due
        now = time.monotonic()
        start = begun.setdefault(text, now)
        if now < due or done >= total or total == 1:
            return
        due = now + _NEXT_LINE
        left = f", about {clock((now - start) * (total - done) / done)} left" if done else ""
        print(f"{printable(text)}: {done:,} of {total:,}{left}", file=sys.stderr, flush=True)

    return tell


def clock(seconds: float) -> str:
    """Return a waiting time as text: ``"40 s"``, ``"12 min"``, ``"2.5 h"``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"


def print_json(value: dict[str, Any]) -> None:
    """Print a dict as JSON, the version of its format first; infinities and NaN as strings."""
    text = json.dumps({"format": FORMAT, **value}, default=str)
    finite = json.loads(text, parse_constant=lambda name: str(float(name)))
    print(json.dumps(finite, indent=2))


def show(renderable: Any) -> None:
    """Print a rich renderable, in colour and as wide as the terminal, or as plain text."""
    if sys.stdout.isatty():
        from rich.console import Console

        write(renderable, Console())
    else:
        print(plain(renderable, getattr(renderable, "width", WIDTH)))


def output_file(arguments: argparse.Namespace) -> Path | None:
    """Return the file of ``--output``, None for standard output."""
    file: Path | None = arguments.output
    if file is None:
        return None
    if str(file) == "-":
        if arguments.json:
            raise OptionError("--output - and --json both print to stdout; expected --output FILE")
        return None
    if file.is_dir():  # '' too
        raise OptionError(f"--output {str(file)!r} is a directory; expected --output FILE")
    if not file.absolute().parent.is_dir():
        raise OptionError(f"--output {str(file)!r} is in a directory that does not exist")
    return file


def write_output(file: Path | None, data: bytes) -> None:
    """Write to the file of ``--output``, or unchanged to standard output."""
    if file is not None:
        file.write_bytes(data)
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(data)


def check_html(arguments: argparse.Namespace) -> None:
    """Refuse an empty file name, and two texts on standard output."""
    if arguments.html == "":
        raise OptionError("--html '' is not a file name; expected --html FILE, or - for stdout")
    if arguments.html == "-" and arguments.json:
        raise OptionError("--html - and --json both print to stdout; expected --html FILE")


def show_report(arguments: argparse.Namespace, report: Paged) -> None:
    """Print a report as the arguments ask."""
    if arguments.html == "-":
        # Not print: the page declares UTF-8, also if the terminal has another encoding.
        write_output(None, report.to_html().encode())
        return
    if arguments.html:
        Path(arguments.html).write_text(report.to_html(), encoding="utf-8")
    show_result(arguments, report)


def show_result(arguments: argparse.Namespace, result: Shown) -> None:
    """Print a result as text, or with ``--json`` as JSON."""
    if arguments.json:
        print_json(result.to_dict())
    else:
        show(result)


def build_dict(kernel: str, build: Build) -> dict[str, Any]:
    """Return the JSON of a build of the kernel of this name."""
    return {
        "kernel": kernel, **named(build, "symbol", "arch", "seconds", "cached"),
        "bytes": len(build.cubin), "resources": asdict(build.resources),
    }  # fmt: skip


def build_time(plan: Plan) -> str:
    """Return the time of a build as text: ``"1.5 s"``, ``"cached, 3 ms"``."""
    build, seconds = plan.build, plan.build.seconds
    taken = f"{1e3 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
    return f"cached, {taken}" if build.cached else taken
