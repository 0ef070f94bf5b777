"""What the GPU tests share: kernels are compiled by many processes while the tests run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from cases import Case
from gemm_cases import Builds

# JAX would take three quarters of the memory that all the libraries here share.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


@pytest.fixture(scope="session")
def arch() -> str:
    """What kernels are compiled for: the first GPU."""
    from cute_gemm.run.driver import device_arch

    return device_arch(0)


@pytest.fixture(scope="session")
def builds(request: pytest.FixtureRequest, cache_directory: Path, arch: str) -> Iterator[Builds]:
    """The kernels of the selected tests: of ``Case`` parameters, and of a module's ``KERNELS``."""
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
