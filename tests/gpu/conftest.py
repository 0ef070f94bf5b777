"""Fixtures of the GPU tests. Many processes compile kernels while the tests run."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import Case
from gemm_cases import Builds

from cute_gemm.arch import Arch

# JAX would reserve three quarters of the memory, which the other libraries need too.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark all tests of this folder as ``gpu``."""
    item.add_marker(pytest.mark.gpu)


@pytest.fixture(scope="session")
def arch() -> str:
    """Return the architecture of the first GPU, for which kernels are compiled."""
    from cute_gemm.run.driver import device_arch
    from cute_gemm.toolchain.nvrtc import loaded_nvrtc_version

    loaded_nvrtc_version()  # before a test makes PyTorch load that of another CUDA release
    return device_arch(0)


@pytest.fixture(autouse=True)
def kernel_of_this_arch(request: pytest.FixtureRequest, arch: str) -> None:
    """Skip cases if the GPU has no TMA or wgmma."""
    case = request.node.callspec.params.get("case") if hasattr(request.node, "callspec") else None
    if getattr(case, "kernel", "") == "sm90_wgmma" and not Arch(arch).has("wgmma"):
        pytest.skip(f"the case does not run on {arch}")


@pytest.fixture(scope="session")
def builds(request: pytest.FixtureRequest, cache_directory: Path, arch: str) -> Iterator[Builds]:
    """Compile the kernels of the selected tests: of ``Case`` parameters and a module's ``KERNELS``.

    Under pytest-xdist each process compiles only the kernels that it waits for. So about as many
    compilations run as there are cores, and no process creates the plans of all tests.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:
        yield Builds()
        return
    cases: dict[Case, None] = {}
    for item in request.session.items:
        if "builds" not in getattr(item, "fixturenames", ()):
            continue
        parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
        cases.update(dict.fromkeys(value for value in parameters if isinstance(value, Case)))
        cases.update(dict.fromkeys(getattr(item.module, "KERNELS", ())))
    some = (case for case in cases if case.m and case.n and case.runs_on(arch))
    found = Builds(case.plan(arch) for case in some)
    yield found
    found.close()


#: Most bytes of a test with large matrices, and most such tests at the same time.
LARGE, AT_ONCE = 24 << 30, 4


@pytest.fixture
def large_matrices(cache_directory: Path) -> Iterator[None]:
    """Limit how many tests with large matrices run at the same time, over all processes.

    The fixture frees PyTorch's cached memory afterwards, for the next test and other libraries.
    """
    _, total = torch.cuda.mem_get_info()
    if total < LARGE:
        pytest.skip(f"the GPU has {total >> 30} GiB of memory; the test takes {LARGE >> 30}")
    places = range(min(AT_ONCE, total * 3 // 4 // LARGE) or 1)  # a quarter is for other tests
    with ExitStack() as stack:
        paths = (cache_directory.parent / f"large-matrices-{place}" for place in places)
        files = [stack.enter_context(path.open("w")) for path in paths]
        while not any(map(_locked, files)):
            time.sleep(0.05)
        try:
            yield
        finally:
            torch.cuda.empty_cache()


def _locked(file: Any) -> bool:
    with suppress(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False
