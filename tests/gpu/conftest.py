"""What the GPU tests share: kernels are compiled by many processes while the tests run."""

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

# JAX would take three quarters of the memory that all the libraries here share.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


def pytest_itemcollected(item: pytest.Item) -> None:
    """All tests of this folder are for a GPU."""
    item.add_marker(pytest.mark.gpu)


@pytest.fixture(scope="session")
def arch() -> str:
    """What kernels are compiled for: the first GPU."""
    from cute_gemm.run.driver import device_arch
    from cute_gemm.toolchain.nvrtc import loaded_nvrtc_version

    loaded_nvrtc_version()  # before a test makes PyTorch load that of another CUDA release
    return device_arch(0)


@pytest.fixture(autouse=True)
def kernel_of_this_arch(request: pytest.FixtureRequest, arch: str) -> None:
    """Skip cases that the GPU has no instructions for: TMA and wgmma."""
    case = request.node.callspec.params.get("case") if hasattr(request.node, "callspec") else None
    if getattr(case, "kernel", "") == "sm90_wgmma" and not Arch(arch).has("wgmma"):
        pytest.skip(f"the case does not run on {arch}")


@pytest.fixture(scope="session")
def builds(request: pytest.FixtureRequest, cache_directory: Path, arch: str) -> Iterator[Builds]:
    """The kernels of the selected tests: of ``Case`` parameters, and of a module's ``KERNELS``.

    Where other processes test at the same time each builds what it waits for: about as many compile
    as there are cores, and none makes the plans of all tests.
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


#: Bytes that a test of large matrices takes at most, and how many such tests run at a time at most.
LARGE, AT_ONCE = 24 << 30, 4


@pytest.fixture
def large_matrices(cache_directory: Path) -> Iterator[None]:
    """For tests that take gigabytes of the GPU's memory: few of all processes' run at a time.

    What PyTorch keeps is given back, for the next one and for the other libraries.
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
