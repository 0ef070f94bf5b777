"""``cute-gemm cache``: the cubins on disk, measured choices and calibrations."""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict
from typing import Any

from cute_gemm._text import counted, size
from cute_gemm.commands.output import OK, print_json, say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what ``cute-gemm cache`` takes."""
    parser.add_argument("action", choices=("list", "size", "clear"), nargs="?", default="list")


def command(arguments: argparse.Namespace) -> int:
    """List, size or clear cubins, choices and calibrations; return 0."""
    from cute_gemm.cost_model import calibrated
    from cute_gemm.plan import tuned
    from cute_gemm.toolchain import cache

    directory = str(cache.directory())
    choices = [{"gpu": gpu, "count": count} for gpu, count in tuned.stored().items()]
    own = calibrated.stored()
    if arguments.action == "clear":
        done = cache.clear()
        tuned.clear()
        calibrated.clear()
        if arguments.json:
            print_json(
                {"directory": directory, **done._asdict(), "choices": choices, "calibrations": own}
            )
        else:
            more = f"; {done.left} could not be removed" * bool(done.left)
            cubins = counted(done.removed, "cubin")
            say(f"{cubins}, {size(done.bytes)} removed from {directory}{more}")
            _say(choices, own, "removed ")
        return OK
    taken = cache.size()
    entries, listing = cache.entries(), arguments.action == "list"
    if arguments.json:
        listed = {"entries": [asdict(entry) for entry in entries]} if listing else {}
        about = {"directory": directory, "count": len(entries), "bytes": taken}
        about |= {"choices": choices, "calibrations": own}
        print_json({**about, "limit": cache.limit(), **listed})
        return OK
    if listing and entries:
        say(f"{'written':<16}  {'last used':<16}  {'bytes':>9}  {'arch':<8}  kernel")
    for entry in entries if listing else ():
        times = map(time.localtime, (entry.created, entry.used))
        written, used = (time.strftime("%Y-%m-%d %H:%M", moment) for moment in times)
        say(f"{written}  {used}  {entry.size:>9}  {entry.arch:<8}  {entry.symbol}")
    most = size(cache.limit())
    say(f"{counted(len(entries), 'cubin')}, {size(taken)} of at most {most} in {directory}")
    _say(choices, own)
    return OK


def _say(choices: list[dict[str, Any]], calibrations: list[str], done: str = "") -> None:
    for choice in choices:
        say(f"{done}{counted(choice['count'], 'measured choice')} for {choice['gpu']}")
    for gpu in calibrations:
        say(f"{done}calibration of {gpu}")
