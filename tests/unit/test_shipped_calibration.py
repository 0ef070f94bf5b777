"""Test properties of the shipped calibrations. Other tests use stored ones."""

import random
from pathlib import Path

import numpy as np
import pytest
from cases import OPS
from frozen import MEASURED, calibrations

from cute_gemm.arch import Arch
from cute_gemm.calibrate import fit, times
from cute_gemm.cost_model import calibration
from cute_gemm.cost_model.prediction import Extents, Predictions
from cute_gemm.errors import GemmError
from cute_gemm.gpus.table import gpu as gpu_called
from cute_gemm.kernels import registry
from cute_gemm.problem.describe import from_sizes

#: Number of problems of the stored times that are checked. All of them take minutes.
CONTESTS = 12


pytestmark = pytest.mark.usefixtures("shipped_calibrations")


@pytest.mark.parametrize("name", MEASURED)
def test_what_is_chosen_is_nearly_the_fastest_that_was_measured(name: str) -> None:
    gpu, file = gpu_called(name), f"{name.lower().replace(' ', '-')}-times.gz"
    stored = times.read(Path(__file__).parents[1] / "data" / file)
    some = random.Random(name).sample(stored.contests, CONTESTS)
    ours, numbers = fit.samples(some, gpu), calibration.shipped(name)
    assert numbers is not None
    found = fit.quality(ours, numbers, gpu)
    assert found.regret < 0.04 and found.worst > 0.7 and found.rms < 0.25, found
    # Changes relative to the calibration for tests.
    before = fit.SampleSet(ours, gpu).predicted(calibrations()[name])
    now = fit.SampleSet(ours, gpu).predicted(numbers)
    ends = np.cumsum([len(contest) for contest in ours])[:-1]
    pairs = zip(np.split(before, ends), np.split(now, ends), strict=True)
    moved = sum(int(x.argmin()) != int(y.argmin()) for x, y in pairs if len(x))
    print(f"{name}: {moved} of {len(ours)} choices moved; {found}")


@pytest.mark.parametrize("name", MEASURED)
def test_more_work_takes_longer(name: str) -> None:
    """Test every config with twice the k, twice the rows, and a batch of two, uncorrected."""
    gpu, chance = gpu_called(name), random.Random(name)
    compared = 0
    for kind in ("bfloat16", "float32", "int8", "float64"):
        m, n, k = (64 * chance.randint(1, 40) for _ in range(3))
        problem = from_sizes(chance.choice(OPS), m=m, n=n, k=k, dtype=kind)
        for kernel in ("sm90_wgmma", "sm80_pipeline", "double_buffered"):
            one = registry.get(kernel)
            if kind not in one.dtypes:
                continue
            try:
                configs = one.footprints(problem, str(Arch("sm_90a")), {}, gpu)
            except GemmError:  # unsupported layouts of operands
                continue
            predictions = Predictions([x for _, x in configs if x is not None], gpu)
            extents = Extents.of(problem)
            first = predictions.seconds(extents)
            for more in ({"k": 2 * k}, {"m": 2 * m}, {"n": 2 * n}, {"l": 2}):
                greater = extents._replace(**more, moved=2 * extents.moved)
                assert (predictions.seconds(greater) >= 0.999 * first).all(), (kernel, kind, more)
                compared += len(first)
    assert compared > 500
