"""What every test shares: the markers' rules and a cache of their own."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator
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
    max(1, (os.cpu_count() or 1) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
)

from fake_tuning import device, place  # noqa: F401
from hypothesis import settings
from interpreted import Case, Emitted, of_few_ctas

from cute_gemm.plan.steps import Step

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
        help="run all cases of tests that compile or execute kernels, as -k does, not a tenth",
    )


def pytest_pycollect_makeitem(collector: pytest.Collector, obj: object) -> list[Any] | None:
    """Without ``--matrix`` collect nothing of a test of the matrix."""
    marks = getattr(obj, "pytestmark", ()) if isinstance(obj, FunctionType) else ()
    left_out = any(mark.name == "matrix" for mark in marks)
    return [] if left_out and not collector.config.getoption("--matrix") else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what other runs are for; skip cases for a GPU where there is none.

    Cases marked ``matrix`` are for ``--matrix``, nine tenths of those in `SPREAD` for
    ``--every-case``.
    """
    if not config.getoption("--matrix"):
        items[:] = [item for item in items if item.get_closest_marker("matrix") is None]
    chosen = config.getoption("--matrix") or config.getoption("--every-case")
    if not (chosen or config.option.keyword):
        left_out = _left_out(items)
        config.hook.pytest_deselected(items=left_out)
        others = set(left_out)
        items[:] = [item for item in items if item not in others]
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if on_gpu:
        from cute_gemm.run.driver import why_no_gpu

        reason = why_no_gpu()
        if reason is not None:
            for item in on_gpu:
                item.add_marker(pytest.mark.skip(reason=f"no GPU: {reason}"))


#: Modules whose cases each compile or execute kernels.
SPREAD = {
    f"test_{name}.py"
    for name in (
        "batch_invariant", "batched", "components", "cutlass_universal", "epilogue", "explain",
        "far_offsets", "fp8", "fused", "fused_calls", "grouped", "grouped_fp8", "jax", "ladder",
        "ladder_accesses", "pairs", "passes", "proofs", "ptx_gemm", "ptx_wgmma", "scoreboard",
        "sm80_pipeline", "sm90_wgmma", "steps", "sums", "thin", "torch", "torch_func",
        "torch_grouped", "unaligned",
    )
}  # fmt: skip


def _left_out(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return nine tenths, drawn by name, of the cases of tests in `SPREAD` with more than four.

    The first and the last case of each always run.
    """
    seen: dict[tuple[str, str], list[pytest.Item]] = {}
    for item in items:
        if item.path.name in SPREAD and item.path.parent.name == "tests":
            name = getattr(item, "originalname", item.name)
            seen.setdefault((item.path.name, name), []).append(item)
    return [
        item
        for cases in seen.values()
        if len(cases) > 4
        for item in cases[1:-1]
        if zlib.crc32(item.name.encode()) % 10
    ]


@pytest.fixture(scope="session", autouse=True)
def few_ctas() -> Iterator[None]:
    """What is executed here has few CTAs, each of which takes several tiles; no GPU is asked."""
    launch = cached_property(lambda step: of_few_ctas(step.on_gpu()))
    launch.__set_name__(Step, "launch")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Step, "launch", launch)
        yield


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
