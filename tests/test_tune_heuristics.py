"""Choices that are measured with nvidia-matmul-heuristics as a second opinion."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import fake_heuristics
import pytest
from fake_tuning import FILE, SQUARE, Device, anew, fastest

import cute_gemm as cg
from cute_gemm.errors import CompileError, OptionError
from cute_gemm.gpus.table import gpu as gpu_called
from cute_gemm.kernels.candidate import Candidate, label
from cute_gemm.plan import select
from cute_gemm.plan.tune import Tuning


def advise(monkeypatch: pytest.MonkeyPatch, *numbers: int) -> list[Candidate]:
    """Let nvidia-matmul-heuristics recommend candidates of these numbers, and return them."""
    order = cg.plan("TN", **SQUARE).candidates()
    found = [order[number] for number in numbers]
    rows = [(*one.config.tile[:2], *one.config.cluster, one.route.split_k) for one in found]
    # Each is the cheapest of its tile and cluster, and so the one that is taken.
    assert [next(one for one in order if seen(one) == row) for row in rows] == found
    fake_heuristics.install(monkeypatch, *rows)
    return found


def seen(one: Candidate) -> tuple[int, ...]:
    return (*one.config.tile[:2], *getattr(one.config, "cluster", ()), one.route.split_k)


def beyond(count: int) -> list[int]:
    """Numbers of candidates that are not among the cheapest eight, each with its own tile."""
    order, found = cg.plan("TN", **SQUARE).candidates(), {}
    for number, one in enumerate(order):
        if hasattr(one.config, "cluster"):
            found.setdefault(seen(one), number)
    return [number for number in found.values() if number >= 8][:count]


ADVISED = Tuning(heuristics=True)


def test_what_heuristics_recommend_is_measured_beside_the_cheapest(
    device: Device, monkeypatch
) -> None:
    first, *_ = cg.plan("TN", **SQUARE).candidates()
    best, other = advise(monkeypatch, *beyond(2))
    device.takes(best, 1.0)
    device.takes(other, 3.0)
    plan = cg.plan("TN", **SQUARE, tune=ADVISED)
    assert (plan.config, plan.route) == (best.config, best.route)
    assert plan.measured.configs == 10 and plan.measured.advice_won
    assert plan.measured.advised == {
        label(best, whole=True): pytest.approx(1e-3), label(other, whole=True): pytest.approx(3e-3),
    }  # fmt: skip
    said = "1 ms measured, the least of 10 configs, recommended by nvidia-matmul-heuristics alone; "
    assert plan.why.startswith(f"{said}{label(first)}, which was predicted to be, took 2 ms; ")
    assert len({name for name, _ in device.ran}) == 10
    anew(monkeypatch)
    monkeypatch.setitem(sys.modules, "nvMatmulHeuristics", None)  # which is needed no more
    for tune in (False, True, ADVISED):
        assert cg.plan("TN", **SQUARE, tune=tune).measured == plan.measured
    assert cg.plan("TN", **SQUARE).report().to_dict()["measured"]["advice_won"] is True


def test_what_heuristics_recommend_may_lose(device: Device, monkeypatch) -> None:
    best = fastest(device, 2)
    found = advise(monkeypatch, *beyond(3))
    device.errors[found[1].config.name] = CompileError("it spills")
    plan = cg.plan("TN", **SQUARE, tune=ADVISED)
    assert plan.config == best.config and not plan.measured.advice_won
    assert list(plan.measured.advised) == [label(one, whole=True) for one in found[::2]]
    assert plan.measured.configs == 10 and "heuristics" not in plan.why


def test_what_is_among_the_cheapest_is_measured_once(device: Device, monkeypatch) -> None:
    order = cg.plan("TN", **SQUARE).candidates()
    numbers = [order.index(one) for one in order[:8] if one.kernel.name == "sm90_wgmma"]
    cheapest = [i for i in numbers if seen(order[i]) not in map(seen, order[:i])]
    new = beyond(2)
    advise(monkeypatch, *cheapest, *new)
    assert cheapest
    told: list[tuple[str, int, int]] = []
    tuning = Tuning(heuristics=True, tell=lambda *words: told.append(words))
    found = cg.plan("TN", **SQUARE, tune=tuning).measured
    # The first eight recommendations count, and of those the ones that are not there.
    taken = new[: 8 - len(cheapest)]
    assert list(found.advised) == [label(order[i], whole=True) for i in taken]
    assert found.configs == 8 + len(taken) and told[0] == ("compile", 0, 8 + len(taken))
    advise(monkeypatch, *cheapest)
    again = cg.plan("TN", **SQUARE, tune=tuning._replace(again=True)).measured
    assert again.advised == {} and again.configs == 8


def test_a_choice_that_was_measured_without_heuristics_is_measured_again(
    device: Device, monkeypatch
) -> None:
    assert cg.plan("TN", **SQUARE, tune=True).measured.advised is None
    count = len(device.ran)
    (best,) = advise(monkeypatch, *beyond(1))
    device.takes(best, 1.0)
    assert cg.plan("TN", **SQUARE, tune=True).measured.advised is None
    assert len(device.ran) == count
    assert cg.plan("TN", **SQUARE, tune=ADVISED).config == best.config
    count = len(device.ran)
    assert cg.plan("TN", **SQUARE, tune=ADVISED).config == best.config
    assert len(device.ran) == count


def test_a_recommended_route_is_part_of_the_choice(device: Device, monkeypatch) -> None:
    monkeypatch.setattr("cute_gemm.plan.tune.copies_past_l2", lambda *_: 1)
    given = {"m": 64, "n": 64, "k": 65536, "dtype": "float16"}
    order = cg.plan("TN", **given).candidates()
    best = next(
        one for one in order[8:]
        if one.kernel.name == "sm90_wgmma" and one.route.split_k > 1
        and seen(one) not in map(seen, order[: order.index(one)])
    )  # fmt: skip
    fake_heuristics.install(monkeypatch, seen(best))
    device.takes(best, 1.0)
    plan = cg.plan("TN", **given, tune=ADVISED)
    anew(monkeypatch)
    assert plan.route == best.route == cg.plan("TN", **given).route
    (name,) = plan.measured.advised
    assert name == f"{best.config.name} in {best.route.split_k} slices of K"


@pytest.mark.parametrize("what", ["the package", "the GPU"])
def test_where_heuristics_cannot_be_asked_nothing_is_measured(
    device: Device, place: Path, monkeypatch, run, what: str
) -> None:
    fake_heuristics.install(monkeypatch, (128, 128, 1, 1, 1))
    sentence = "heuristics=True asks nvidia-matmul-heuristics, which does not know the GPU GH200"
    if what == "the package":
        monkeypatch.setitem(sys.modules, "nvMatmulHeuristics", None)
        sentence = "heuristics=True needs nvidia-matmul-heuristics, which is not installed: pip"
    else:
        monkeypatch.setattr(select, "gpu_of_device", lambda device: gpu_called("GH200"))
    with pytest.raises(OptionError, match=sentence):
        cg.plan("TN", **SQUARE, tune=ADVISED)
    status, out, err = run("tune", "TN", "--sizes", "512", "--heuristics")
    assert (status, out) == (2, "") and " ".join(err.split()).startswith(f"cute-gemm: {sentence}")
    assert not device.ran and not (place / FILE).exists()
    assert cg.plan("TN", **SQUARE, tune=True).measured


def test_the_command_says_what_heuristics_recommended(device: Device, monkeypatch, run) -> None:
    words = "tune", "TN", "--sizes", "512", "--heuristics"
    best, other = advise(monkeypatch, *beyond(2))
    device.takes(best, 1.0)
    lines = run(*words)[1].splitlines()
    assert lines[0] == f"TN 512 x 512 x 512 float16 -> float16, compute float32: {label(best)}"
    assert lines[1].startswith("  1 ms measured, the least of 10 configs, recommended by nvidia-m")
    assert lines[-3:] == [
        "  nvidia-matmul-heuristics alone recommended 2 of them (the fastest is among them):",
        f"    1 ms  {best.config.name}",
        f"    2 ms  {other.config.name}",
    ]
    (row,) = json.loads(run(*words, "--json")[1])["tuned"]
    assert row["measured"]["advised"] == {
        best.config.name: pytest.approx(1e-3), other.config.name: pytest.approx(2e-3),
    }  # fmt: skip
    assert row["measured"]["advice_won"] is True and row["config_name"] == best.config.name

    fake_heuristics.install(monkeypatch, seen(best))
    device.takes(best, 3.0)
    assert run(*words, "--again")[1].splitlines()[-2:] == [
        "  nvidia-matmul-heuristics alone recommended 1 of them (the fastest is another):",
        f"    3 ms  {best.config.name}",
    ]
    fake_heuristics.install(monkeypatch)
    last = run(*words, "--again")[1].splitlines()[-1]
    assert last == "  nvidia-matmul-heuristics recommended no others that ran"
    (row,) = json.loads(run(*words, "--json")[1])["tuned"]
    assert (row["measured"]["advised"], row["measured"]["advice_won"]) == ({}, False)
    run(*words[:-1], "--again")
    (row,) = json.loads(run(*words[:-1], "--json")[1])["tuned"]
    assert row["measured"]["advised"] is None
