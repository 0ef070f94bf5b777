"""Pytest plugin that measures tests: ``pytest -p costs`` writes the time and memory of each test.

``CUTE_GEMM_TEST_COSTS=FILE`` names the file of JSON lines. A line has a test's ``id``, whether it
``failed``, its wall time (``seconds``), CPU seconds of its process and of child processes (``cpu``,
``children``), CPU seconds in NVRTC and in the interpreter, and the megabytes of the process at the
end of the test (``rss``) and at most so far (``peak``). Processes of one run write to one file.
"""

import functools
import json
import os
import resource
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

#: Functions that are timed: cause, module, name.
TIMED = (
    ("nvrtc", "cute_gemm.toolchain.nvrtc", "ptx"),
    ("nvrtc", "cute_gemm.toolchain.nvrtc", "_compile"),
    ("interpreter", "cute_gemm.plan.interpreted", "run"),
    ("interpreter", "cute_gemm.ptx", "run"),
)

#: Whether a test or one of its fixtures failed.
FAILED = pytest.StashKey[bool]()

_seconds: dict[str, float] = defaultdict(float)


def _timed(cause: str, function: Callable) -> Callable:
    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        start = time.process_time()
        try:
            return function(*args, **options)
        finally:
            _seconds[cause] += time.process_time() - start

    return call


def pytest_configure() -> None:
    """Wrap the functions before a test module imports them."""
    import importlib

    for cause, module, name in TIMED:
        place = importlib.import_module(module)
        setattr(place, name, _timed(cause, getattr(place, name)))


def _memory() -> tuple[int, int]:
    """Return the current and the peak megabytes of this process."""
    words = Path("/proc/self/statm").read_text().split()
    now = int(words[1]) * os.sysconf("SC_PAGE_SIZE") >> 20
    return now, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def _cpu(who: int) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Record whether a phase of the test failed."""
    report = yield
    item.stash[FAILED] |= report.failed
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Write a line for each test, including its fixtures."""
    item.stash[FAILED] = False
    own, children = _cpu(resource.RUSAGE_SELF), _cpu(resource.RUSAGE_CHILDREN)
    _seconds.clear()
    start = time.perf_counter()
    try:
        return (yield)
    finally:
        now, peak = _memory()
        row = {
            "id": item.nodeid, "failed": item.stash[FAILED], "seconds": time.perf_counter() - start,
            "cpu": _cpu(resource.RUSAGE_SELF) - own,
            "children": _cpu(resource.RUSAGE_CHILDREN) - children, **_seconds, "rss": now,
            "peak": peak,
        }  # fmt: skip
        rounded = {k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()}
        with Path(os.environ["CUTE_GEMM_TEST_COSTS"]).open("a") as file:
            file.write(json.dumps(rounded) + "\n")
