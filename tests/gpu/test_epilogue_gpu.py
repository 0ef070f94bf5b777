"""Test an epilogue with an operand of its own in every kernel family, on a GPU."""

import pytest
from epilogue_cases import CASES, on_gpu


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case[:5])))
def test_every_kernel_takes_it(case, arch):
    if case[1] == "sm_90a" and arch != "sm_90a":
        pytest.skip(f"{case[0]} does not run on {arch}")
    assert on_gpu(case, arch).ok
