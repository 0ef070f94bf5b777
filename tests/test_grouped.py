"""``grouped_gemm``: groups of any size along M, N and K, by NumPy and by every kernel's PTX."""

from __future__ import annotations

from typing import Any

import pytest
from grouped_cases import Arrays, GroupedCase, cases, check, planned

from cute_gemm.kernels.sm90.wgmma import Sm90Wgmma

#: Multiprocessors of the launches here: CTAs take several tiles, of several groups.
SMS = 8


@pytest.fixture(autouse=True)
def few_multiprocessors(monkeypatch: pytest.MonkeyPatch) -> None:
    def launch(self: Sm90Wgmma, config: Any, problem: Any) -> Any:
        return self.launch_on(config, problem, SMS)

    monkeypatch.setattr(Sm90Wgmma, "launch", launch)


def by(backend: str) -> Any:
    def call(case: GroupedCase, given: Arrays) -> None:
        plan = planned(case, given, backend=backend)
        result = plan(
            given.A, given.B, given.C, offsets=given.offsets, alpha=case.alpha, beta=case.beta,
            **given.operands,
        )  # fmt: skip
        assert result is given.C

    return call


@pytest.mark.parametrize("case", cases(36), ids=str)
def test_on_the_cpu(case: GroupedCase) -> None:
    check(case, by("cpu"))


@pytest.mark.parametrize("case", cases(30), ids=str)
def test_interpreted(case: GroupedCase) -> None:
    check(case, by("interpreter"))
