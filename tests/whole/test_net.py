"""Test that random calls give the stored configs, units, reports and error messages."""

import pytest
from net import compared, draw_calls, stored


def test_nothing_differs_from_what_is_stored(pytestconfig: pytest.Config) -> None:
    every = 1 if pytestconfig.getoption("--every-case") else 25
    assert not list(compared(every)), "see tests/net.py"


def test_stored_calls_are_those_that_are_drawn() -> None:
    calls = [call for call, _ in stored()["calls"]]
    assert len(calls) == 300
    assert draw_calls(19) == calls[:19]


def test_a_difference_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("net.refusal", lambda call: "another")
    monkeypatch.setattr("net.outcome", lambda call: {"kernel": "another"})
    assert len(list(compared(100))) > 6
