"""Test batches, rounds and their order, with a clock that the functions advance."""

import itertools

import pytest

from cute_gemm.run.timing import Samples, host_clock, interleave


class Machine:
    """A machine whose calls take known times, and which slows down."""

    def __init__(self, drift: float = 0.0) -> None:
        self.now = 0.0
        self.drift = drift
        self.batches: list[tuple[str, int]] = []  # name, calls
        self._called = ""

    def work(self, name: str, milliseconds: float):
        def call() -> None:
            self.now += milliseconds * (1 + self.drift * len(self.batches))
            self._called = name

        return call

    def clock(self, function, calls: int) -> float:
        start = self.now
        for _ in range(calls):
            function()
        self.batches.append((self._called, calls))
        return (self.now - start) / calls

    def rounds(self, names: int, rounds: int) -> list[list[str]]:
        """Return the names that were timed in each round, if none is skipped."""
        timed = [name for name, _ in self.batches[-names * rounds :]]
        return [timed[i : i + names] for i in range(0, len(timed), names)]


def test_a_batch_takes_ten_milliseconds_and_has_a_call():
    machine = Machine()
    group = {name: machine.work(name, ms) for name, ms in
             (("quick", 1e-4), ("plain", 2.5), ("slow", 40.0))}  # fmt: skip
    found = interleave([group], 3, machine.clock)
    assert {name: samples.calls for name, samples in found.items()} == {
        "quick": 2000, "plain": 4, "slow": 1,
    }  # fmt: skip
    assert found["plain"].median == pytest.approx(2.5)
    assert found["plain"].times == pytest.approx((2.5,) * 3)


def test_the_ratio_is_of_neighbours_in_time():
    machine = Machine(drift=0.01)
    group = {"ours": machine.work("ours", 20.0), "theirs": machine.work("theirs", 10.0)}
    found = interleave([group], 40, machine.clock)
    ours, theirs = found["ours"], found["theirs"]
    assert ours.times[-1] > 1.5 * ours.times[0]  # although it slowed down
    assert ours.ratio(theirs) == pytest.approx(0.5, rel=0.02)


def test_a_slow_one_sits_rounds_out_but_not_the_last():
    machine = Machine()
    group = {"slow": machine.work("slow", 300.0), "slower": machine.work("slower", 5000.0),
             "plain": machine.work("plain", 10.0)}  # fmt: skip
    found = interleave([group], 9, machine.clock)
    part = {name: [time is not None for time in one.times] for name, one in found.items()}
    assert sum(part["plain"]) == 9
    assert [i for i, took in enumerate(part["slow"]) if took] == [2, 5, 8]
    assert [i for i, took in enumerate(part["slower"]) if took] == [4, 8]
    assert found["slow"].ratio(found["slower"]) == pytest.approx(5000 / 300)  # of the last round
    # One call of each warms up. A second one would take as long again.
    assert [calls for name, calls in machine.batches if name == "slower"] == [1, 1, 1]


def test_every_second_round_is_the_reverse_and_others_differ():
    machine = Machine()
    names = "abcdef"
    groups = [{n: machine.work(n, 10.0) for n in "abc"}, {n: machine.work(n, 10.0) for n in "def"}]
    interleave(groups, 9, machine.clock)
    rounds = machine.rounds(6, 9)
    assert all(sorted(order) == list(names) for order in rounds)
    assert all(b == a[::-1] for a, b in zip(rounds[0::2], rounds[1::2], strict=False))
    assert len(set(map(tuple, rounds[0::2]))) > 1
    for order in rounds:  # groups stay together
        assert set(order[:3]) in ({"a", "b", "c"}, {"d", "e", "f"})


def test_steps_are_reported():
    machine = Machine()
    steps = itertools.count()
    group = {"slow": machine.work("slow", 5000.0), "plain": machine.work("plain", 10.0)}
    interleave([group], 9, machine.clock, lambda: next(steps))
    assert next(steps) == 2 * (1 + 9)


def test_one_round_has_no_spread():
    machine = Machine()
    found = interleave([{"a": machine.work("a", 10.0)}], 1, machine.clock)
    assert found["a"].quartiles == (found["a"].median,) * 2


def test_quartiles_and_median_are_of_the_rounds_taken():
    samples = Samples(1, (None, 4.0, 1.0, None, 3.0, 2.0, 5.0))
    assert (samples.median, samples.quartiles) == (3.0, (2.0, 4.0))


def test_the_hosts_clock_counts_calls():
    calls = itertools.count()
    assert host_clock(lambda: next(calls), 5) >= 0
    assert next(calls) == 5
