"""What every test shares: the markers' rules and a cache of their own."""

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

# NumPy asks for pages of 2 MB, all of which an element takes where elements lie far apart.
os.environ["NUMPY_MADVISE_HUGEPAGE"] = "0"
# Processes that test at the same time share the cores: a thread of BLAS in each for each core would
# wait for the others. OpenBLAS and MKL read it too.
os.environ["OMP_NUM_THREADS"] = str(
    max(1, len(os.sched_getaffinity(0)) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
)

import choose_cases
from choose_cases import Chosen
from fake_tuning import device, place  # noqa: F401
from frozen import frozen_calibrations, taking
from hypothesis import settings
from interpreted import Case, Emitted, of_few_ctas

from cute_gemm.plan.steps import Step

HERE = Path(__file__).parent
# How long an example takes says more of the machine than of the code.
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
        help="run all tests of tests/kernels, whole and gpu, as -k does, not the chosen ones",
    )
    parser.addoption(
        "--slice",
        metavar="DAY",
        type=date.fromisoformat,
        help=f"run one of {SLICES} slices of the tests that are not chosen, by a date (2026-11-27)",
    )


#: Parts of the tests that do not run by default; one runs a day.
SLICES = 60


def pytest_pycollect_makeitem(collector: pytest.Collector, obj: object) -> list[Any] | None:
    """Without ``--matrix`` collect nothing of a test of the matrix."""
    marks = getattr(obj, "pytestmark", ()) if isinstance(obj, FunctionType) else ()
    left_out = any(mark.name == "matrix" for mark in marks)
    return [] if left_out and not collector.config.getoption("--matrix") else None


def _no_gpu() -> str | None:
    """Why the tests for a GPU cannot run."""
    from cute_gemm.run.driver import why_no_gpu

    return why_no_gpu()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Collect no tests for a GPU where there is none, unless ``-m gpu`` asks for them."""
    if collection_path != HERE / "gpu" or "gpu" in config.option.markexpr:
        return None
    return True if _no_gpu() else None


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say which tests are left out."""
    lines = []
    if "gpu" not in config.option.markexpr and (reason := _no_gpu()):
        lines.append(f"tests/gpu: not collected, no GPU: {reason}")
    if day := config.getoption("--slice"):
        lines.append(f"slice {_slice_of(day)} of {SLICES} of the tests that are not chosen, {day}")
    return lines


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what other runs are for; skip tests for a GPU where there is none.

    Of tests/kernels, tests/whole and tests/gpu what ``data/default_cases.txt`` says, unless tests
    are named (``-k``, ``file::test``) or ``--every-case``, ``--slice`` or ``--matrix`` is given.
    UsageError where the list has a test that is not there.
    """
    if not config.getoption("--matrix"):
        items[:] = [item for item in items if item.get_closest_marker("matrix") is None]
    named = config.option.keyword or any("::" in word or word[:1] == "@" for word in config.args)
    day = config.getoption("--slice")
    if day or not (config.getoption("--matrix") or config.getoption("--every-case") or named):
        chosen = choose_cases.read()
        _refuse_unknown(chosen, items)
        kept = [item for item in items if _runs(_id(item), chosen, day)]
        config.hook.pytest_deselected(items=sorted(set(items) - set(kept), key=str))
        items[:] = kept
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if on_gpu and (reason := _no_gpu()):
        for item in on_gpu:
            item.add_marker(pytest.mark.skip(reason=f"no GPU: {reason}"))


def _id(item: pytest.Item) -> str:
    """The id of a test, from tests/ on."""
    return item.nodeid.removeprefix("tests/")


def _slice_of(day: date) -> int:
    return day.toordinal() % SLICES


def _runs(case: str, chosen: Chosen, day: date | None) -> bool:
    """Whether a test runs by default, or in the slice of a day."""
    whole = chosen.runs(case) or not case.startswith(choose_cases.RINGS)
    return (
        whole if day is None else not whole and zlib.crc32(case.encode()) % SLICES == _slice_of(day)
    )


def _refuse_unknown(chosen: Chosen, items: list[pytest.Item]) -> None:
    """UsageError for chosen tests that collected files do not have."""
    ids = {_id(item) for item in items}
    files = {case.partition("::")[0] for case in ids}
    lost = sorted(case for case in chosen.cases - ids if case.partition("::")[0] in files)
    if lost:
        raise pytest.UsageError(
            f"tests/data/default_cases.txt names {len(lost)} tests that are not there, the first "
            f"of them {lost[0]}: remake it (docs/contributing.md)"
        )


#: Megabytes of a process above which what it has freed goes back to the system, and how many it
#: has grown by since: NVRTC frees 230 after a kernel, which take 0.2 s to get again.
MOST, GROWN = 800, 100
_after_trim = 0


def pytest_runtest_logfinish() -> None:
    """Give memory back where glibc keeps much that is free."""
    global _after_trim
    if _resident() > max(MOST, _after_trim + GROWN):
        with suppress(AttributeError, OSError):  # another C library
            ctypes.CDLL(None).malloc_trim(0)
        _after_trim = _resident()


def _resident() -> int:
    """Megabytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20


@pytest.fixture(scope="session", autouse=True)
def calibrations() -> Iterator[None]:
    """Choices come of the calibrations in ``data``, so that new ones change no test."""
    with frozen_calibrations():
        yield


@pytest.fixture
def shipped_calibrations() -> Iterator[None]:
    """For tests of what the package ships and the pages print: choices come of its calibrations."""
    from cute_gemm.cost_model import calibration

    with taking(calibration.shipped):
        yield


@pytest.fixture(scope="session", autouse=True)
def few_ctas() -> Iterator[None]:
    """What is executed here has few CTAs, each of which takes several tiles; no GPU is asked."""
    launch = cached_property(lambda step: of_few_ctas(step.on_gpu()))
    launch.__set_name__(Step, "launch")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Step, "launch", launch)
        yield


@pytest.fixture
def own_choices(
    tmp_path: Path, cache_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """For tests that store choices: no other test sees them, and cubins are still found."""
    from cute_gemm.plan import reused, tuned

    monkeypatch.setenv("CUTE_GEMM_CACHE_DIR", f"{tmp_path}{os.pathsep}{cache_directory}")
    monkeypatch.setattr(tuned, "_tuned", {})
    reused.drop()
    yield tmp_path
    reused.drop()


@pytest.fixture(scope="session", autouse=True)
def cache_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One cubin cache for the whole run, so that tests neither use nor fill the user's.

    ``CUTE_GEMM_TEST_CACHE`` names one that outlives the run.
    """
    kept = os.environ.get("CUTE_GEMM_TEST_CACHE")
    here = tmp_path_factory.getbasetemp()
    if os.environ.get("PYTEST_XDIST_WORKER"):  # which all have one above their own
        here = here.parent
    directory = Path(kept) if kept else here / "cubins"
    directory.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUTE_GEMM_CACHE_DIR", str(directory))
        yield directory


@pytest.fixture(scope="session")
def emitted(request: pytest.FixtureRequest) -> Emitted:
    """The kernels of the selected tests' ``Case`` parameters, in PTX."""
    mine = (item for item in request.session.items if "emitted" in item.fixturenames)
    chosen = (item for item in mine if not item.get_closest_marker("skip"))
    parameters = (getattr(item, "callspec", None) for item in chosen)
    values = (value for one in parameters if one for value in one.params.values())
    return Emitted(value for value in values if isinstance(value, Case))


@pytest.fixture
def run(capsys: pytest.CaptureFixture) -> Callable[..., tuple[int, str, str]]:
    """Return a function: words -> (exit status, standard output, standard error)."""
    from cute_gemm.commands.cli import main

    def call(*words: str) -> tuple[int, str, str]:
        status = main(list(words))
        out, err = capsys.readouterr()
        return status, out, err

    return call


def pytest_make_parametrize_id(val: object) -> str | None:
    """Call a case by its name."""
    return str(val) if isinstance(val, Case) else None
