"""Test ``tune="online"``: the kernels of calls, the selected one, and when timing stops."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import cute_gemm as cg
from cute_gemm.arch import Arch
from cute_gemm.call import Call
from cute_gemm.errors import CompileError, LaunchError, OptionError
from cute_gemm.gpus.table import gpu
from cute_gemm.plan import make, online, reused, select, tuned
from cute_gemm.plan.executable import Executable
from cute_gemm.plan.plan import Plan
from cute_gemm.problem.describe import from_sizes
from cute_gemm.problem.scalars import ONE, ZERO
from cute_gemm.run import launch
from cute_gemm.toolchain import workers


class Machine(SimpleNamespace):
    """An emulated H200: ``ran`` are the configs of launches, ``slow`` those of 2 us.

    Others take 1 us. ``late``: the device has not reached any event; ``broken``: configs that do
    not compile; ``waiting``: tasks of other threads that have not begun.
    """

    ran: list[str]
    slow: set[str]
    broken: set[str]
    waiting: list[tuple[Future, Callable[[], Any]]]
    late: bool
    capturing: bool
    now: float

    def work(self) -> None:
        """Run the tasks of the other threads."""
        while self.waiting:
            future, function = self.waiting.pop(0)
            try:
                future.set_result(function())
            except CompileError as error:
                future.set_exception(error)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, own_choices: Path) -> Machine:
    found = Machine(
        ran=[], slow=set(), broken=set(), waiting=[], late=False, capturing=False, now=0.0
    )

    class Event:
        def __init__(self, device: int) -> None:
            self.at = -1.0

        def record(self, stream: int) -> None:
            self.at = found.now

        def is_reached(self) -> bool:
            return not found.late

        def since(self, earlier: Any) -> float:
            return float(self.at - earlier.at)

    def submit(function: Any, *arguments: Any) -> Future:
        future: Future = Future()
        found.waiting.append((future, lambda: function(*arguments)))
        return future

    def bind(executable: Executable, *_: Any) -> Callable[..., None]:
        name = executable.config.name

        def start(at: Any, stream: int = 0) -> None:
            found.ran.append(name)
            found.now += 2e-3 if name in found.slow else 1e-3

        return start

    def build(plan: Plan) -> None:
        if plan.config.name in found.broken:
            raise CompileError("broken")

    monkeypatch.setattr(online, "CALLS", 3)
    monkeypatch.setattr(launch, "Event", Event)
    monkeypatch.setattr(launch, "is_capturing", lambda stream: found.capturing)
    monkeypatch.setattr(workers, "builders", lambda: SimpleNamespace(submit=submit))
    monkeypatch.setattr(Executable, "bind", bind)
    monkeypatch.setattr(Plan, "_build", build)
    monkeypatch.setattr(make, "resolved_backend", lambda *_: "cuda")
    monkeypatch.setattr("cute_gemm.run.driver.device_arch", lambda device: Arch("sm_90a"))
    monkeypatch.setattr("cute_gemm.run.driver.device_name", lambda device: "NVIDIA H200")
    monkeypatch.setattr(select, "gpu_of_device", lambda device: gpu("H200"))
    return found


PROBLEM = from_sizes("NT", m=1000, n=1024, k=1024, dtype="bfloat16")


def kept_plan(tune: Any = "online", **options: Any) -> Plan:
    return make.kept_plan(PROBLEM, 0, Call("NT", options=tuple(options.items())), tune)


def call(plan: Plan, times: int = 4) -> None:
    for _ in range(times):
        plan.executable.launch(ONE, ZERO)((1, 2, 3), 0)


def near(plan: Plan) -> list[str]:
    """Return the names of the candidates that are timed."""
    found = plan.candidates(within=online.WITHIN)[: online.CANDIDATES]
    return [x.config.name for x in found]


def test_candidates_run_in_turns_and_the_fastest_is_taken_and_stored(machine: Machine) -> None:
    plan = kept_plan()
    assert plan.online is not None
    names = near(plan)
    first = plan.candidates()[0].prediction.seconds
    assert 2 <= len(names) <= online.CANDIDATES and names[0] == plan.config.name
    assert all(x.prediction.seconds <= 1.15 * first for x in plan.candidates()[: len(names)])
    machine.slow |= {*names} - {names[1]}

    call(plan, 3)  # too few calls to build the others
    assert not machine.waiting and "the best configs are timed after 3 calls" in plan.why
    call(plan, 2)  # the others are not built yet
    assert machine.ran == [names[0]] * 5
    machine.work()
    assert f"time {len(names)} configs" in plan.why
    machine.ran.clear()
    machine.late = True
    turns = (1 + online.TIMED) * len(names)
    call(plan, turns + 3)  # no call waits for the device
    assert machine.ran == [*names * (1 + online.TIMED), *names[:1] * 3]
    assert not plan.executable.is_replaced()

    machine.late = False
    machine.ran.clear()
    call(plan, 3)
    assert machine.ran == [names[1]] * 3 and "the fastest that they timed" in plan.why
    assert kept_plan() is plan  # another thread stores it
    machine.work()
    assert plan.executable.is_replaced()
    taken = kept_plan()
    assert taken.config.name == names[1] and taken.online is None
    assert "1.00 us measured, the least of" in taken.why and "took 2.00 us" in taken.why
    # The same for calls without the option, also in other processes.
    assert kept_plan(False).config.name == names[1]
    reused.drop()
    tuned._tuned.clear()
    assert kept_plan(False).config.name == names[1]


def test_candidates_that_are_predicted_to_be_slow_are_not_timed(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(online, "WITHIN", 1.001)
    plan = kept_plan()
    first, *others = (x.prediction.seconds for x in plan.candidates() if x.prediction)
    close = sum(x <= 1.001 * first for x in others)
    assert close + 1 < online.CANDIDATES
    call(plan)
    machine.work()
    assert len(plan.online.plans) == close + 1


def test_one_candidate_is_taken_as_it_is(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(online, "CANDIDATES", 1)
    plan = kept_plan()
    call(plan)
    machine.work()
    call(plan)
    assert plan.online.fastest == 0 and not machine.waiting
    assert {*machine.ran} == {plan.config.name} and kept_plan() is plan


def test_candidates_that_cannot_be_planned_leave_the_plan_as_it_is(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def taking(*_: Any) -> Plan:
        raise CompileError("no scratch")

    plan = kept_plan()
    monkeypatch.setattr(Plan, "taking", taking)
    call(plan)
    machine.work()
    call(plan)
    assert plan.online.fastest == 0 and {*machine.ran} == {plan.config.name}


def test_what_does_not_compile_has_no_turn(machine: Machine) -> None:
    plan = kept_plan()
    names = near(plan)
    machine.broken.add(names[1])
    call(plan)
    machine.work()
    call(plan, 40)
    machine.work()
    assert names[1] not in machine.ran and kept_plan().measured.configs == len(names) - 1


def test_what_cannot_be_loaded_is_not_taken(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, bind = kept_plan(), Executable.bind
    bad, *good = near(plan)[1:]

    def broken(executable: Executable, *given: Any) -> Callable[..., None]:
        if executable.config.name == bad:
            raise LaunchError("too large")
        return bind(executable, *given)

    monkeypatch.setattr(Executable, "bind", broken)
    machine.slow |= {plan.config.name, *good[1:]}
    call(plan)
    machine.work()
    call(plan, 40)
    machine.work()
    assert bad not in machine.ran and kept_plan().config.name == good[0]


def test_a_captured_call_runs_what_was_predicted(machine: Machine) -> None:
    plan = kept_plan()
    call(plan)
    machine.work()
    machine.capturing = True
    machine.ran.clear()
    call(plan, 50)
    assert {*machine.ran} == {plan.config.name} and plan.online.fastest is None


def test_deterministic_algorithms_run_what_was_predicted(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = SimpleNamespace(are_deterministic_algorithms_enabled=lambda: True)
    monkeypatch.setitem(sys.modules, "torch", torch)
    plan = kept_plan()
    call(plan)
    machine.work()
    call(plan, 50)
    assert {*machine.ran} == {plan.config.name} and plan.online.fastest is None


def test_what_is_not_timed(machine: Machine) -> None:
    assert kept_plan(False).online is None
    assert kept_plan(batch_invariant=True).online is None
    groups = cg.plan("NT", m=64, n=64, k=64, l=2, ragged="M", dtype="bfloat16", tune="online")
    assert groups.online is None
    assert cg.plan("NT", m=0, n=64, k=64, dtype="bfloat16", tune="online").online is None
    with pytest.raises(OptionError, match="tune='offline' does not fit; expected True, False or"):
        kept_plan("offline")


def test_the_environment_asks_for_all_calls(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUTE_GEMM_TUNE", "online")
    assert kept_plan(False).online is not None


def test_a_selection_that_cannot_be_stored_is_run_all_the_same(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def store(*_: Any) -> None:
        raise OSError("read-only")

    monkeypatch.setattr(tuned, "store", store)
    plan = kept_plan()
    names = near(plan)
    machine.slow |= {*names} - {names[-1]}
    call(plan)
    machine.work()
    call(plan, 40)
    machine.work()
    machine.ran.clear()
    call(plan, 2)
    assert machine.ran == [names[-1]] * 2 and kept_plan() is plan
    assert "could not be stored: read-only" in caplog.text


def test_without_a_gpu_nothing_is_timed() -> None:
    plan = cg.plan("NT", m=64, n=64, k=64, dtype="float32", backend="cpu", tune="online")
    assert plan.online is None
