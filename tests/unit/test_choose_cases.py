"""Test the list of default cases: its content, and how cases are selected."""

from typing import get_args

import choose_cases
import kill_matrix
from mutants import MUTANTS

from cute_gemm.dtypes import DTYPES
from cute_gemm.kernels import registry
from cute_gemm.kernels.base import Part

STORED = choose_cases.read()


def test_every_kernel_type_and_part_has_a_case() -> None:
    """Test coverage. A new kernel, type or part needs a case and an updated list."""
    words = set().union(*map(choose_cases.words, STORED.cases))
    # The host's loop needs no compiler: its tests are in tests/unit.
    assert {name for name in registry.KERNELS if ("kernel", name) not in words} <= {"host"}
    assert not {name for name, row in DTYPES.items() if row.outputs and ("type", name) not in words}
    for part in get_args(Part):
        assert any(part.removesuffix("s") in case for case in STORED.cases), part


def test_the_matrix_is_of_mutants_that_there_are() -> None:
    assert kill_matrix.read().keys() <= {mutant.name for mutant in MUTANTS}


def test_nearly_all_mutants_of_the_matrix_are_noticed_by_cases_of_the_list() -> None:
    known = [kills.noticed for kills in kill_matrix.read().values() if kills.noticed]
    noticed = [
        any(case in STORED.cases or case.startswith("unit/") for case in cases) for cases in known
    ]
    assert len(known) > 400 and sum(noticed) >= 0.97 * len(noticed)


def test_a_cover_takes_what_has_most_for_its_seconds() -> None:
    wanted = {"a": {1, 2}, "b": {2, 3}, "c": {1, 2, 3}}
    seconds = {"a": 0.1, "b": 0.1, "c": 9.0}
    assert choose_cases.cover(wanted, 1, seconds) == ["b", "a"]
    assert choose_cases.cover(wanted, 2, seconds) == ["b", "a", "c"]


def test_functions_that_the_list_does_not_know_run() -> None:
    chosen = choose_cases.Chosen(frozenset({"kernels/a.py::f[1]"}), frozenset({"kernels/a.py::g"}))
    runs = {
        x: chosen.runs(f"kernels/a.py::{x}") for x in ("f[1]", "f[2]", "g", "g[1]", "h", "h[1]")
    }
    assert runs == {"f[1]": True, "f[2]": False, "g": False, "g[1]": False, "h": True, "h[1]": True}
