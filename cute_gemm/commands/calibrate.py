"""``cute-gemm calibrate``: measure kernels on this GPU and fit the cost model to them."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cute_gemm.calibrate import draw
from cute_gemm.calibrate.times import Times, divided, joined, read
from cute_gemm.commands.arguments import SEVERAL, add, add_options
from cute_gemm.commands.output import OK, output_file, print_json, progress, say, write_output
from cute_gemm.cost_model import calibrated
from cute_gemm.cost_model.calibration import Calibration, start
from cute_gemm.errors import OptionError
from cute_gemm.gpus.gpu import Gpu
from cute_gemm.gpus.table import gpu as gpu_called

_MINUTES = 9.0
#: Smallest number of problems to fit.
_LEAST = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``cute-gemm calibrate``."""
    text = f"total time in minutes (default {_MINUTES:g})"
    add_options(parser, {"--minutes N": text}, type=float, default=_MINUTES)
    text = f": types to measure, {', '.join(draw.DTYPES)} (default: all){SEVERAL}"
    add(parser, "--dtype", help=text, default=",".join(draw.DTYPES))
    add(parser, "--seed")
    add_options(parser, {"--times FILE": "also write the measured times to this file"}, type=Path)
    text = "measure nothing: fit to the times of these files, and print the result"
    parser.add_argument("--fit", metavar="FILE", nargs="+", type=Path, help=text)
    add(parser, "-o,--output", help=": the calibration, without using it; - for stdout")


def command(arguments: argparse.Namespace) -> int:
    """Measure, fit, print the changes, and keep a fit that selects configs as fast; return 0."""
    if not 0 < arguments.minutes < 1e4:
        raise OptionError(f"--minutes {arguments.minutes} does not fit; expected more than 0")
    file = output_file(arguments)
    with progress() as shown:
        tell: Callable[[str, int, int], None] = shown
        if arguments.fit:
            times = joined([read(path) for path in arguments.fit])
            gpu = gpu_called(times.gpu)
        else:
            gpu = _gpu_here()
            times = _measured(arguments, gpu, tell)
            if arguments.times:
                times.write(arguments.times)
        calibration, summary = _fit(times, gpu, tell)
    if arguments.output:
        write_output(file, calibration.encoded().encode())
    elif not arguments.fit:
        held = summary["held_out"]
        summary["kept"] = held["after"]["regret"] <= held["before"]["regret"]
        if summary["kept"]:
            calibrated.store(calibration)
    if arguments.json:
        print_json(summary)
    elif not arguments.output or file:
        _say(summary, arguments)
    return OK


def _gpu_here() -> Gpu:
    from cute_gemm.plan.select import gpu_of_device
    from cute_gemm.run.driver import synchronize

    synchronize(0)  # NoGpuError without a GPU
    return gpu_of_device(0)


def _measured(
    arguments: argparse.Namespace, gpu: Gpu, tell: Callable[[str, int, int], None]
) -> Times:
    """Measure contests for most of the time."""
    from cute_gemm.calibrate import measure

    dtypes = tuple(filter(None, arguments.dtype.split(",")))
    unknown = [name for name in dtypes if name not in draw.DTYPES]
    if unknown or not dtypes:
        raise OptionError(
            f"--dtype {arguments.dtype!r} does not fit; expected some of {','.join(draw.DTYPES)}"
        )
    drawn = draw.contests(gpu, arguments.seed, dtypes)
    seconds = arguments.minutes * 60 * _SHARE
    contests = list(measure.times(drawn, gpu, seconds, 0, tell))
    source = f"cute-gemm calibrate --seed {arguments.seed}, {time.strftime('%Y-%m-%d')}"
    return Times(gpu.name, source, contests)


#: Share of the time for measuring; the rest is for the fit.
_SHARE = 0.75


def _fit(
    times: Times, gpu: Gpu, tell: Callable[[str, int, int], None]
) -> tuple[Calibration, dict[str, Any]]:
    """Return the calibration fitted to all times, and the gain of one fitted to a part on the rest.

    The fit that is judged does not use the problems that are held out.
    """
    from cute_gemm.calibrate.fit import fitted, quality, samples

    if len(times.contests) < _LEAST:
        raise OptionError(
            f"{len(times.contests)} problems were measured; expected {_LEAST} or more: give it "
            "more --minutes"
        )
    before, begin = calibrated.calibration(gpu), start(gpu.name)
    known, held = (samples(part, gpu) for part in divided(times.contests))
    judged = fitted(known, begin, gpu, times.source, tell)
    calibration = fitted([*known, *held], begin, gpu, times.source, tell)
    count = sum(map(len, (*known, *held)))
    summary = {
        "gpu": gpu.name,
        "before": calibrated.provenance(gpu),
        "problems": len(times.contests),
        "times": count,
        "dropped": times.count - count,
        "held_out": {
            "problems": len(held),
            "before": quality(held, before, gpu)._asdict(),
            "after": quality(held, judged, gpu)._asdict(),
        },
        "paces": {
            f"{kernel} {kind}": basis._asdict()
            for kernel, bases in calibration.bases.items()
            for kind, basis in bases.items()
        },
    }
    return calibration, summary


def _say(summary: dict[str, Any], arguments: argparse.Namespace) -> None:
    say(f"{summary['gpu']}: {summary['times']} times of {summary['problems']} problems")
    if summary["dropped"]:
        say(f"  {summary['dropped']} times of configs that no longer exist")
    for name, basis in summary["paces"].items():
        say(f"  {name}: {basis['times']} times, rms error {100 * basis['rms']:.1f} %")
    held = summary["held_out"]
    say(f"On {held['problems']} problems that the numbers were not fitted to:")
    for when, of in (("before", summary["before"]), ("after", "fitted to the other problems")):
        row = held[when]
        say(
            f"  {when} ({of}): rms error {100 * row['rms']:.1f} %, the selected config "
            f"{100 * row['regret']:.1f} % slower than the fastest on average, "
            f"{row['worst']:.2f} of its speed at worst"
        )
    if arguments.output:
        say(f"Written to {arguments.output}")
    elif summary.get("kept"):
        say("Kept: selection on this GPU uses it from now on; cute-gemm cache clear drops it")
    elif "kept" in summary:
        say(
            "Not kept, since it selects slower configs for these: the calibration in use stays; "
            "measure more, with --minutes"
        )
