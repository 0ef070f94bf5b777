"""``cute-gemm cache``: the builds on disk, tuned configs and calibrations."""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict
from typing import Any

from cute_gemm._text import counted, size
from cute_gemm.commands.output import OK, print_json, say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``cute-gemm cache``."""
    parser.add_argument("action", choices=("list", "size", "clear"), nargs="?", default="list")


def command(arguments: argparse.Namespace) -> int:
    """List, size or clear builds, tuned configs and calibrations; return 0."""
    from cute_gemm.cost_model import calibrated
    from cute_gemm.plan import tuned
    from cute_gemm.toolchain import cache

    directory = str(cache.directory())
    tuned_configs = [{"gpu": gpu, "count": count} for gpu, count in tuned.stored().items()]
    others: dict[str, Any] = {"tuned": tuned_configs, "calibrations": calibrated.stored()}
    if arguments.action == "clear":
        done = cache.clear()
        tuned.clear()
        calibrated.clear()
        if arguments.json:
            print_json({"directory": directory, **done._asdict(), **others})
        else:
            more = f"; {done.left} could not be removed" * bool(done.left)
            builds = counted(done.removed, "build")
            say(f"{builds}, {size(done.bytes)} removed from {directory}{more}")
            _say(**others, done="removed ")
        return OK
    taken = cache.size()
    entries, listing = cache.entries(), arguments.action == "list"
    if arguments.json:
        about = {"directory": directory, "count": len(entries), "bytes": taken}
        listed = {"entries": [asdict(entry) for entry in entries]} if listing else {}
        print_json({**about, **others, "limit": cache.limit(), **listed})
        return OK
    if listing and entries:
        say(f"{'written':<16}  {'last used':<16}  {'bytes':>9}  {'arch':<10}  kernel")
    for entry in entries if listing else ():
        times = map(time.localtime, (entry.created, entry.used))
        written, used = (time.strftime("%Y-%m-%d %H:%M", moment) for moment in times)
        say(f"{written}  {used}  {entry.size:>9}  {entry.arch:<10}  {entry.symbol}")
    most = size(cache.limit())
    say(f"{counted(len(entries), 'build')}, {size(taken)} of at most {most} in {directory}")
    _say(**others)
    return OK


def _say(tuned: Any, calibrations: Any, done: str = "") -> None:
    for each in tuned:
        say(f"{done}{counted(each['count'], 'tuned config')} for {each['gpu']}")
    for gpu in calibrations:
        say(f"{done}calibration of {gpu}")
