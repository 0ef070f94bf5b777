"""``grouped_gemm``: groups of any size along M, N and K, by NumPy and by every kernel's PTX."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from grouped_cases import Arrays, GroupedCase, arrays, cases, check, planned

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


#: Empty groups between others, in the turns of both warp groups; groups that end anywhere in
#: columns of C that TMA would take.
OTHERS = (
    GroupedCase("K", "TN", "C", (0, 70, 130, 0, 0, 3, 65, 0), (128, 256), options="turns"),
    GroupedCase("K", "NT", "F", (0, 3, 0, 0, 65, 130, 0, 2), (128, 256), beta=0.5, options="turns"),
    GroupedCase("M", "NT", "F", (3, 64, 65, 28), (72, 64)),
    GroupedCase("N", "NT", "C", (3, 64, 65, 28), (72, 64)),
)


@pytest.mark.parametrize("case", [*OTHERS, *cases(30)], ids=str)
def test_interpreted(case: GroupedCase) -> None:
    check(case, by("interpreter"))


@pytest.mark.parametrize("ends", [[90, 20, 400, -7], [10**9] * 4, [-1] * 4, [3, 2, 1, 0]])
@pytest.mark.parametrize("ragged", ["M", "N", "K"])
def test_ends_are_not_trusted(ends: list[int], ragged: str) -> None:
    """No element beyond the arrays is touched, and of a ragged M or N none is written twice."""
    case = GroupedCase(ragged, "NN", "C" if ragged != "N" else "F", (40, 0, 61, 27), (72, 64))
    given, expected = arrays(case), arrays(case)
    for each, backend in ((given, "interpreter"), (expected, "cpu")):
        each.offsets[...] = ends
        plan = planned(case, each, backend=backend)
        plan(each.A, each.B, each.C, offsets=each.offsets)
    if ragged != "K" or ends == sorted(ends):
        np.testing.assert_allclose(given.C, expected.C, rtol=2e-3, atol=2e-3)


def test_bound_of_tiles() -> None:
    """Groups of one row have a tile each."""
    case = GroupedCase("M", "NN", "C", (1,) * 9, (40, 24))
    launch = planned(case, arrays(case), backend="cpu").launch
    assert launch.grid >= 9
