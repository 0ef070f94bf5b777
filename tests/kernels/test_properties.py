"""Test properties of random products (``tests/product_properties.py``), CPU and interpreter."""

from itertools import islice

import pytest
from product_properties import BITS, PROPERTIES, Machine
from property_runs import Tally, runs

from cute_gemm.kernels import registry

COMPILED = ("auto", *(x for x in registry.names() if registry.get(x).runs_on == "gpu"))
INVARIANT = ("auto", *(x for x in COMPILED[1:] if registry.get(x).batch_invariant))


@pytest.mark.parametrize("first", range(4))
@pytest.mark.parametrize("name", [name for name in PROPERTIES if name != BITS])
def test_on_the_cpu(name: str, first: int) -> None:
    tally, machine = Tally(), Machine("cpu")
    for run in islice(runs(first, ("host", "host", "host", "auto"), [name]), 6):
        failure = run.check(machine, 4, 130, tally)
        assert not failure, f"{run}\n{failure}"
    assert tally.held, tally.refused


@pytest.mark.parametrize("first", range(3))
@pytest.mark.parametrize("name", PROPERTIES)
def test_in_the_interpreter(name: str, first: int) -> None:
    """Test the first supported kind. Hypothesis begins with extents of 1."""
    tally, machine = Tally(), Machine("interpreter")
    for run in islice(runs(1000 * first, INVARIANT if name == BITS else COMPILED, [name]), 12):
        failure = run.check(machine, 3, 33, tally)
        assert not failure, f"{run}\n{failure}"
        if tally.held:
            return
    raise AssertionError(f"all are refused: {tally.refused}")
