"""Options, hooks and fixtures of all tests, with a cubin cache of their own."""

import ctypes
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import date
from functools import cached_property
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

# NumPy requests pages of 2 MB. One element would use all of it in sparse arrays.
os.environ["NUMPY_MADVISE_HUGEPAGE"] = "0"
# Parallel test processes share the cores. With one BLAS thread per core in each process, threads
# would wait for each other. OpenBLAS and MKL read this variable too.
os.environ["OMP_NUM_THREADS"] = str(
    max(1, len(os.sched_getaffinity(0)) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
)

import choose_cases
from choose_cases import Chosen
from fake_tuning import device, place  # noqa: F401
from frozen import frozen_calibrations, taking
from hypothesis import settings
from interpreted import Case, of_few_ctas
from unity_build import UnityBuilds

from cute_gemm.plan.steps import Step
from cute_gemm.toolchain import nvrtc

HERE = Path(__file__).parent
# The time of an example depends on the machine.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--matrix",
        action="store_true",
        help="also compile the full matrix of kernels x ops x dtypes (long)",
    )
    parser.addoption(
        "--every-case",
        action="store_true",
        help="run all cases of tests/kernels, whole and gpu, not only the default cases",
    )
    parser.addoption(
        "--slice",
        metavar="DAY",
        type=date.fromisoformat,
        help=f"run one of {SLICES} slices of the non-default cases, and of those whose kernels are "
        "compiled together by default, each alone, by a date (2026-11-27)",
    )


#: Slices of the tests. One runs per day.
SLICES = 60


def pytest_pycollect_makeitem(collector: pytest.Collector, obj: object) -> list[Any] | None:
    """Do not collect tests of the matrix without ``--matrix``."""
    marks = getattr(obj, "pytestmark", ()) if isinstance(obj, FunctionType) else ()
    left_out = any(mark.name == "matrix" for mark in marks)
    return [] if left_out and not collector.config.getoption("--matrix") else None


def _no_gpu() -> str | None:
    """Return the reason why the tests for a GPU cannot run, or None."""
    from cute_gemm.run.driver import why_no_gpu

    return why_no_gpu()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not collect tests for a GPU if there is none, unless ``-m gpu`` is given."""
    if collection_path != HERE / "gpu" or "gpu" in config.option.markexpr:
        return None
    return True if _no_gpu() else None


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Report which tests are not collected."""
    lines = []
    if "gpu" not in config.option.markexpr and (reason := _no_gpu()):
        lines.append(f"tests/gpu: not collected, no GPU: {reason}")
    if day := config.getoption("--slice"):
        lines.append(f"slice {_slice_of(day)} of {SLICES}, {day}")
    return lines


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect non-default cases, and skip tests for a GPU if there is none.

    ``data/default_cases.txt`` selects the cases of tests/kernels, tests/whole and tests/gpu, unless
    tests are named (``-k``, ``file::test``) or ``--every-case``, ``--slice`` or ``--matrix`` is
    given. Raise UsageError if the list has a test that does not exist.
    """
    if not config.getoption("--matrix"):
        items[:] = [item for item in items if item.get_closest_marker("matrix") is None]
    named = config.option.keyword or any("::" in word or word[:1] == "@" for word in config.args)
    day = config.getoption("--slice")
    if day or not (config.getoption("--matrix") or config.getoption("--every-case") or named):
        chosen = choose_cases.read()
        _refuse_unknown(chosen, items)
        kept = [item for item in items if _runs(item, chosen, day)]
        config.hook.pytest_deselected(items=sorted(set(items) - set(kept), key=str))
        items[:] = kept
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if on_gpu and (reason := _no_gpu()):
        for item in on_gpu:
            item.add_marker(pytest.mark.skip(reason=f"no GPU: {reason}"))


def _id(item: pytest.Item) -> str:
    """Return the id of a test, relative to tests/."""
    return item.nodeid.removeprefix("tests/")


def _slice_of(day: date) -> int:
    return day.toordinal() % SLICES


def _runs(item: pytest.Item, chosen: Chosen, day: date | None) -> bool:
    """Return whether a test runs by default, or in the slice of a day.

    Slices have the other tests, and those whose kernels are compiled together by default.
    """
    case = _id(item)
    default = chosen.runs(case) or not case.startswith(choose_cases.RINGS)
    if day is None:
        return default
    among = not default or item.get_closest_marker("unity_build") is not None
    return among and zlib.crc32(case.encode()) % SLICES == _slice_of(day)


def _refuse_unknown(chosen: Chosen, items: list[pytest.Item]) -> None:
    """Raise UsageError if the list has tests that the collected files do not have."""
    ids = {_id(item) for item in items}
    files = {case.partition("::")[0] for case in ids}
    lost = sorted(case for case in chosen.cases - ids if case.partition("::")[0] in files)
    if lost:
        raise pytest.UsageError(
            f"tests/data/default_cases.txt names {len(lost)} tests that do not exist, the first "
            f"of them {lost[0]}: write it again (docs/contributing.md)"
        )


#: Megabytes of a process above which it returns freed memory to the system, and its growth since
#: the last time. NVRTC frees 230 MB after a kernel, and allocating them again takes 0.2 s.
MOST, GROWN = 800, 100
_after_trim = 0


def pytest_runtest_logfinish() -> None:
    """Return freed memory to the system if glibc keeps much of it."""
    global _after_trim
    if _resident() > max(MOST, _after_trim + GROWN):
        with suppress(AttributeError, OSError):  # another C library
            ctypes.CDLL(None).malloc_trim(0)
        _after_trim = _resident()


def _resident() -> int:
    """Return the resident megabytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20


@pytest.fixture(scope="session", autouse=True)
def calibrations() -> Iterator[None]:
    """Select kernels with the calibrations in ``data``, so that new calibrations change no test."""
    with frozen_calibrations():
        yield


@pytest.fixture
def shipped_calibrations() -> Iterator[None]:
    """Select kernels with the package's calibrations, for tests of them and of the pages."""
    from cute_gemm.cost_model import calibration

    with taking(calibration.shipped):
        yield


@pytest.fixture(scope="session", autouse=True)
def few_ctas() -> Iterator[None]:
    """Execute few CTAs that compute several tiles each, without using a GPU."""
    launch = cached_property(lambda step: of_few_ctas(step.on_gpu()))
    launch.__set_name__(Step, "launch")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Step, "launch", launch)
        yield


@pytest.fixture
def own_choices(
    tmp_path: Path, cache_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """Store tuned configs in a folder that only this test uses, with the shared cubin cache."""
    from cute_gemm.plan import reused, tuned

    monkeypatch.setenv("CUTE_GEMM_CACHE_DIR", f"{tmp_path}{os.pathsep}{cache_directory}")
    monkeypatch.setattr(tuned, "_tuned", {})
    reused.drop()
    yield tmp_path
    reused.drop()


@pytest.fixture(scope="session", autouse=True)
def cache_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Use one cubin cache for the whole run, separate from the user's.

    ``CUTE_GEMM_TEST_CACHE`` names a cache that is kept after the run.
    """
    kept = os.environ.get("CUTE_GEMM_TEST_CACHE")
    here = tmp_path_factory.getbasetemp()
    if os.environ.get("PYTEST_XDIST_WORKER"):  # all workers share the parent directory
        here = here.parent
    directory = Path(kept) if kept else here / "cubins"
    directory.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUTE_GEMM_CACHE_DIR", str(directory))
        yield directory


@pytest.fixture(scope="session", autouse=True)
def unity_builds(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compile the kernels of marked tests together, but alone in slices."""
    with pytest.MonkeyPatch.context() as patch:
        if not request.config.getoption("--slice"):
            patch.setattr(nvrtc, "ptx", UnityBuilds(request.session.items))
        yield


@pytest.fixture
def run(capsys: pytest.CaptureFixture) -> Callable[..., tuple[int, str, str]]:
    """Return a function: arguments -> (exit status, standard output, standard error)."""
    from cute_gemm.commands.cli import main

    def call(*words: str) -> tuple[int, str, str]:
        status = main(list(words))
        out, err = capsys.readouterr()
        return status, out, err

    return call


def pytest_make_parametrize_id(val: object) -> str | None:
    """Use the name of a case as its id."""
    return str(val) if isinstance(val, Case) else None
