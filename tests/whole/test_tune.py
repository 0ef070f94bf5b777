"""Test tuning on a fake GPU whose kernels take given times, and tuned configs on disk."""

import builtins
import json
import os
import sys
import threading
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fake_gpu
import ml_dtypes
import numpy as np
import pytest
from fake_arrays import FakeCupy
from fake_tuning import FILE, SQUARE, Device, anew, fastest

import cute_gemm as cg
from cute_gemm.commands import tune as tune_command
from cute_gemm.errors import CompileError, LaunchError, NoGpuError, OptionError
from cute_gemm.kernels.candidate import label
from cute_gemm.plan import reused, tuned
from cute_gemm.plan import tune as tuning
from cute_gemm.plan.tune import Tuning
from cute_gemm.problem.describe import from_sizes
from cute_gemm.problem.parts.packing import DIRECT
from cute_gemm.run import driver
from cute_gemm.toolchain import cache

# -- selection --------------------------------------------------------------------------------


def test_the_fastest_of_the_cheapest_is_taken_from_then_on(device: Device, monkeypatch) -> None:
    predicted = cg.plan("TN", **SQUARE)
    best = fastest(device, 3)
    device.takes(predicted.candidates()[8], 0.5)  # not among the eight measured candidates
    found = cg.plan("TN", **SQUARE, tune=True)
    assert found.config == best.config != predicted.config
    assert found.measured == (
        best.kernel.name, best.config.name, "", 1, pytest.approx(1e-3), 8,
        label(predicted.candidates()[0]), pytest.approx(2e-3),
    )  # fmt: skip
    measured = len(device.ran)
    for again in (lambda: None, lambda: anew(monkeypatch)):
        again()
        for tune in (False, True):
            one = cg.plan("TN", **SQUARE, tune=tune)
            assert (one.config, one.measured) == (best.config, found.measured)
    assert len(device.ran) == measured


def test_why_and_report_say_that_it_was_measured(device: Device) -> None:
    first = cg.plan("TN", **SQUARE).candidates()[0]
    best = fastest(device, 3)
    plan = cg.plan("TN", **SQUARE, tune=True)
    said = f"1 ms measured, the least of 8 configs; {label(first)}, which was predicted to be "
    said += "the fastest, took"
    assert plan.why.startswith(f"{said} 2 ms; ") and " predicted (" in plan.why
    order = plan.candidates()
    assert order[0].config == best.config and order[1] == first
    assert len(order) == len({(one.config, one.algorithm) for one in order})
    report = plan.report()
    assert f"selection {said} 2 ms" in " ".join(str(report).split())
    assert said in report.to_html().replace("\u00a0", " ")
    row = report.to_dict()["measured"]
    assert row["config"] == best.config.name and row["configs"] == 8
    assert cg.plan("TN", m=8, n=8, k=8, dtype="float16").report().to_dict()["measured"] is None
    assert cg.analyze("TN", **SQUARE).config == best.config


def test_what_calls_kept_is_dropped_where_a_selection_is_measured(
    device: Device, monkeypatch
) -> None:
    """Test caches of calls, which would keep the predicted config."""
    for name in ("plans", "recent_calls", "torch_launches"):
        monkeypatch.setattr(reused, name, type(reused.plans)(64))
        getattr(reused, name)["key"] = "of a call before"
    cg.plan("TN", **SQUARE, tune=True)
    assert not (reused.plans or reused.recent_calls or reused.torch_launches)


def test_a_prediction_that_was_right_is_said_to_be(device: Device) -> None:
    predicted = cg.plan("TN", **SQUARE)
    device.takes(predicted.candidates()[0], 1.0)
    plan = cg.plan("TN", **SQUARE, tune=True)
    assert plan.config == predicted.config
    assert plan.why.startswith("1 ms measured, the least of 8 configs, as predicted; ")
    only = cg.plan("TN", **SQUARE, tune=Tuning(candidates=1, again=True))
    assert only.why.startswith("1 ms measured, the only config that ran, as predicted; ")


def test_one_process_at_a_time_measures_on_a_device(device: Device) -> None:
    measured = len(device.ran)
    waiting = threading.Thread(target=lambda: cg.plan("TN", **SQUARE, tune=True))
    with cache.locked(f"timing-{driver.bus_id(0)}"):
        waiting.start()
        waiting.join(1)
        assert waiting.is_alive() and len(device.ran) == measured
    waiting.join(60)
    assert len(device.ran) > measured


def test_an_epilogue_is_measured_with_its_operands(device: Device) -> None:
    found = cg.plan(
        "TN", **SQUARE, tune=True, epilogue="bias+residual+scale", bias=(512,), scale=(512, 1)
    )
    assert found.measured
    assert {len(addresses) for _, addresses in device.ran} == {6}
    assert all(len(set(addresses)) == 6 for _, addresses in device.ran)
    assert cg.plan("TN", **SQUARE, epilogue="bias").measured is None


FP8: dict[str, Any] = {**SQUARE, "dtype": "float8_e4m3fn"}


def test_scales_are_measured_and_part_of_the_question(device: Device) -> None:
    best = fastest(device, 2, **FP8, scale_a="1x128", scale_b="128x128")
    scales = {"scale_a": "1x128", "scale_b": "128x128"}
    found = cg.plan("TN", **FP8, **scales, tune=True)
    assert found.config == best.config and found.measured
    assert {len(addresses) for _, addresses in device.ran} == {5}
    assert cg.plan("TN", **FP8, **scales).measured
    for kind in (None, "tensor", "row", "128x128"):
        assert cg.plan("TN", **FP8, scale_a=kind, scale_b="128x128").measured is None
    assert cg.plan("TN", **FP8, compute="fast_accum").measured is None
    # The two results have separate keys.
    cg.plan("TN", **FP8, scale_a="128x128", scale_b="128x128", tune=True)
    assert cg.plan("TN", **FP8, **scales).measured


def test_a_call_with_scales_is_measured(device: Device) -> None:
    A, B = (np.ones((512, 512), np.float32).astype(ml_dtypes.float8_e4m3fn) for _ in "AB")
    plan = cg.plan("NT", A, B, scale_a=0.5, scale_b=np.ones((512, 1), np.float32), tune=True)
    assert plan.measured and plan.problem.epilogue.numbers == ("scale_a",)
    assert {len(addresses) for _, addresses in device.ran} == {4}


def test_again_measures_again(device: Device) -> None:
    best = fastest(device, 3)
    assert cg.plan("TN", **SQUARE, tune=True).config == best.config
    device.takes(best, 3.0)
    better = fastest(device, 6)  # in the order after the first measurement
    assert cg.plan("TN", **SQUARE, tune=True).config == best.config
    assert cg.plan("TN", **SQUARE, tune=Tuning(again=True)).config == better.config
    assert cg.plan("TN", **SQUARE).config == better.config


@pytest.mark.parametrize(
    "other",
    [{"m": 520}, {"dtype": "bfloat16"}, {"out_dtype": "float32"}, {"order": "C"}, {"lda": 520},
     {"storage": "C"}, {"l": 2}, {"kernel": "sm80_pipeline"}, {"stages": 3}, {"split_k": 1}],
    ids=str,
)  # fmt: skip
def test_another_question_has_its_own_answer(device: Device, other: dict[str, Any]) -> None:
    cg.plan("TN", **SQUARE, tune=True)
    assert cg.plan("TN", **{**SQUARE, **other}).measured is None


def test_a_question_has_all_that_a_selection_depends_on() -> None:
    given = {"op": "CN", "m": 64, "n": 64, "k": 64, "l": 2, "dtype": "complex64"}
    others: list[dict[str, Any]] = [
        {"op": "TN"}, {"op": "NN"}, {"op": "CT"}, {"m": 65}, {"n": 65}, {"k": 65}, {"l": 1},
        {"l": 3}, {"dtype": "complex128"}, {"dtype": "float32"}, {"lda": 65}, {"ldb": 66},
        {"ldc": 68}, {"batch_a": 0}, {"batch_b": 0}, {"order": "C"}, {"storage": "C"},
        {"dtype": "float32", "compute": "tf32"}, {"dtype": "float16"},
        {"dtype": "float16", "out_dtype": "float32"},
    ]  # fmt: skip
    first = from_sizes(**given)
    problems = [first, *(from_sizes(**{**given, **other}) for other in others)]
    problems += [replace(first, **{x.name: x.at(8)}) for x in (first.A, first.B, first.C)]
    asked = [tuned.question(problem, "sm_90a", "auto", {}) for problem in problems]
    asked += [
        tuned.question(first, *words)
        for words in (
            ("sm_80", "auto", {}), ("sm_90a", "thin", {}), ("sm_90a", "auto", {"stages": 3}),
            ("sm_90a", "auto", {"stages": 4}), ("sm_90a", "auto", {"pack": "A"}),
        )
    ]  # fmt: skip
    assert len(set(asked)) == len(asked) == 1 + 20 + 3 + 5
    alike = from_sizes(**{**given, "lda": 80}), from_sizes(**{**given, "lda": 96})
    assert len({tuned.question(one, "sm_90a", "auto", {}) for one in (first, *alike)}) == 1


def test_a_shared_operand_is_another_question(device: Device) -> None:
    cg.plan("TN", **SQUARE, l=4, tune=True)
    assert (
        cg.plan("TN", **SQUARE, l=4).measured
        and not cg.plan("TN", **SQUARE, l=4, batch_b=0).measured
    )


def test_a_kernel_by_name_has_its_own_fastest_config(device: Device) -> None:
    given = {**SQUARE, "kernel": "sm80_pipeline"}
    best = fastest(device, 2, **given)
    plan = cg.plan("TN", **given, tune=True)
    assert (plan.kernel, plan.config) == ("sm80_pipeline", best.config)
    assert plan.why.startswith("asked for by name; 1 ms measured")
    assert cg.plan("TN", **given).config == best.config and not cg.plan("TN", **SQUARE).measured


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"m": 4095, "n": 4097, "k": 4093, "dtype": "bfloat16"}, "pack"),
        ({"m": 64, "n": 64, "k": 65536, "dtype": "float16"}, "split_k"),
    ],
)
def test_an_algorithm_is_part_of_the_selection(
    device: Device, monkeypatch, given: dict[str, Any], field: str
) -> None:
    monkeypatch.setattr(tuning, "copies_past_l2", lambda *_: 1)
    _, *others = cg.plan("TN", **given).candidates()
    number = next(i for i, one in enumerate(others, 1) if one.algorithm != DIRECT)
    assert number < 8
    best = fastest(device, number, **given)
    for tune in (True, False):
        plan = cg.plan("TN", **given, tune=tune)
        assert (plan.config, plan.algorithm) == (best.config, best.algorithm)
        assert getattr(plan.algorithm, field) and plan.algorithm == plan.candidates()[0].algorithm
        anew(monkeypatch)
    (row,) = json.loads((cache.directory() / FILE).read_text())["configs"].values()
    assert (row["pack"], row["split_k"]) == best.algorithm


# -- measurement ------------------------------------------------------------------------------


def test_what_fails_is_left_out(device: Device) -> None:
    predicted, second, third, *_ = cg.plan("TN", **SQUARE).candidates()
    device.errors = {
        predicted.config.name: CompileError("it spills"),
        second.config.name: LaunchError("too much shared memory"),
    }
    device.takes(third, 1.0)
    plan = cg.plan("TN", **SQUARE, tune=True)
    assert plan.config == third.config and plan.measured.configs == 6
    assert f"{label(predicted)}, which was predicted to be the fastest, failed" in plan.why


def test_where_nothing_runs_nothing_is_stored(device: Device, place: Path) -> None:
    for one in cg.plan("TN", **SQUARE).candidates()[:3]:
        device.errors[one.config.name] = LaunchError(f"no {one.config.name}")
    with pytest.raises(LaunchError, match="^no "):
        cg.plan("TN", **SQUARE, tune=Tuning(candidates=3))
    assert not (place / FILE).exists() and cg.plan("TN", **SQUARE).measured is None


def test_a_kernel_that_fails_while_it_runs_is_named(device: Device, monkeypatch) -> None:
    def fail(_: int) -> None:
        device.gpu.code = 700  # then memory cannot be freed
        raise LaunchError("waiting for device 0 failed")

    monkeypatch.setattr(driver, "synchronize", fail)
    first = cg.plan("TN", **SQUARE)
    with pytest.raises(LaunchError, match=f"{first.symbol}: waiting for device 0 failed"):
        cg.plan("TN", **SQUARE, tune=True)
    device.gpu.memory.clear()


def test_matrices_are_its_own_and_past_l2(device: Device) -> None:
    arrays = FakeCupy(1 << 20, (64, 96)), FakeCupy(2 << 20, (64, 80)), FakeCupy(3 << 20, (96, 80))
    cg.gemm("TN", *arrays, tune=True)
    *measured, last = [place for _, place in device.ran]
    each = 2 * (96 * 64 + 80 * 64 + 96 * 80)
    assert len(set(measured)) == 2 * fake_gpu.L2_BYTES // each + 1
    assert not {1 << 20, 2 << 20, 3 << 20} & {at for place in measured for at in place}
    assert last == (1 << 20, 2 << 20, 3 << 20)


def test_matrices_are_as_aligned_as_the_callers_and_no_more(device: Device, monkeypatch) -> None:
    held: list[int] = []
    upload = device.gpu.upload

    def noted(array: np.ndarray, at: int) -> Any:
        buffer = upload(array, at)
        held.append(buffer.pointer)
        return buffer

    monkeypatch.setattr("cute_gemm.run.memory.upload", noted)
    monkeypatch.setattr(tuning, "copies_past_l2", lambda *_: 1)
    given = FakeCupy(0x10002, (64, 96)), FakeCupy(0x20010, (64, 80)), FakeCupy(0x30000, (96, 80))
    cg.gemm("TN", *given, tune=True)
    places = {place for _, place in device.ran[:-1]}
    assert places == {(held[0] + 2, held[1] + 16, held[2])}
    device.ran.clear()
    # The first matrix of a batch determines the alignment, although the others are less aligned.
    steps = 2 * 64 * 96 + 2, 2 * 64 * 80, 2 * 96 * 80
    batch = [
        FakeCupy(x.data.ptr, (3, *x.shape), step=step) for x, step in zip(given, steps, strict=True)
    ]
    batch[0].data.ptr = 0x10040
    cg.gemm("TN", *batch, tune=True)
    places = {place for _, place in device.ran[:-1]}
    assert places == {(held[3] + 64, held[4] + 16, held[5])}


def test_random_numbers_fill_all_that_a_matrix_spans(device: Device, monkeypatch) -> None:
    filled = []
    monkeypatch.setattr(tuning, "_NUMBERS", 1000)
    upload = device.gpu.upload
    monkeypatch.setattr(
        "cute_gemm.run.memory.upload", lambda x, at: filled.append(x) or upload(x, at)
    )
    monkeypatch.setattr(tuning, "copies_past_l2", lambda *_: 1)
    problem = cg.plan("NN", m=70, n=50, k=30, lda=99, dtype="bfloat16", tune=True).problem
    for matrix, values in zip((problem.A, problem.B, problem.C), filled, strict=True):
        assert values.nbytes == matrix.span and np.isfinite(values.astype("f4")).all()
        assert values.astype("f4").std() == pytest.approx(1, abs=0.1)


def test_what_is_done_is_reported(device: Device) -> None:
    told: list[tuple[str, int, int]] = []
    tuning = Tuning(candidates=3, tell=lambda *words: told.append(words))
    cg.plan("TN", **SQUARE, tune=tuning)
    assert [one for one in told if one[0] == "compile"] == [("compile", i, 3) for i in (0, 1, 2, 3)]
    assert told[4:] == [("time", i, 30) for i in range(1, 31)]


def test_nothing_is_not_measured(device: Device) -> None:
    assert cg.plan("TN", m=0, n=4, k=4, dtype="float16", tune=True).measured is None
    assert not device.ran


# -- calls ------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = SimpleNamespace(get_current_stream=lambda device: SimpleNamespace(ptr=7))
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=stream))


def test_calls_that_were_kept_do_not_hide_the_selection(device: Device) -> None:
    best = fastest(device, 3)
    arrays = [FakeCupy(at << 20, (512, 512)) for at in (1, 2, 3)]
    ran = lambda: device.ran[-1]  # noqa: E731
    for _ in range(2):
        cg.gemm("TN", *arrays)
        assert ran()[0] != best.config.name
    cg.gemm("TN", *arrays, tune=True)
    assert ran() == (best.config.name, (1 << 20, 2 << 20, 3 << 20))
    count = len(device.ran)
    for tune in (True, False, True, False):
        cg.gemm("TN", *arrays, tune=tune)
        assert ran()[0] == best.config.name
    assert len(device.ran) == count + 4 and len(reused.plans) == 1


def test_a_selection_of_plan_is_that_of_calls_that_were_kept(device: Device) -> None:
    best = fastest(device, 3)
    arrays = [FakeCupy(at << 20, (512, 512)) for at in (1, 2, 3)]
    cg.gemm("TN", *arrays)
    cg.plan("TN", **SQUARE, tune=True)
    cg.gemm("TN", *arrays)
    assert device.ran[-1] == (best.config.name, (1 << 20, 2 << 20, 3 << 20))


@pytest.mark.parametrize("stored", [False, True])
def test_no_call_looks_for_a_file_again(device: Device, monkeypatch, stored: bool) -> None:
    best = fastest(device, 3)
    if stored:
        cg.plan("TN", **SQUARE, tune=True)
        anew(monkeypatch)
    cg.plan("NN", m=8, n=8, k=8, dtype="float16")  # reads the file, if there is one

    def forbidden(*_: Any, **__: Any) -> Any:
        raise AssertionError("the file system was asked")

    for module, names in ((os, ("open", "stat", "scandir", "listdir")), (builtins, ("open",))):
        for name in names:
            monkeypatch.setattr(module, name, forbidden)
    assert (cg.plan("TN", **SQUARE).config == best.config) == stored
    for size in range(8, 80, 8):
        cg.gemm("TN", *(FakeCupy(at << 20, (size, size)) for at in (1, 2, 3)))


def test_where_nothing_was_measured_no_question_is_put(device: Device, monkeypatch) -> None:
    monkeypatch.setattr(tuned, "question", lambda *_: pytest.fail("a question"))
    cg.plan("TN", **SQUARE)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {"backend": "cpu"},
            r"tune=True measures .* came with backend='cpu': leave one of the two",
        ),
        ({"backend": "interpreter"}, "came with backend='interpreter'"),
        ({"kernel": "host"}, "came with kernel='host'"),
        ({"kernel": "cublas"}, "came with kernel='cublas'"),
        ({"gpu": "A100"}, "came with gpu="),
        ({"tune": 8}, "tune=8 does not fit; expected True, False or 'online'"),
        ({"tune": Tuning(), "kernel": "host"}, "^tuning measures .* kernel='host': leave that out"),
        ({"tune": Tuning(candidates=0)}, "candidates=0; expected 1 or more configs"),
        ({"tune": [True]}, r"tune=\[True\] does not fit"),
    ],
)
def test_what_is_refused(device: Device, given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(OptionError, match=sentence):
        cg.plan("TN", **SQUARE, **{"tune": True, **given})
    assert not device.ran


def test_without_a_gpu_it_is_an_error(place: Path, monkeypatch) -> None:
    monkeypatch.setattr(driver, "why_no_gpu", lambda: "there is no NVIDIA driver")
    A = np.ones((8, 8), "f2")
    for call in (lambda: cg.gemm("NN", A, A, tune=True), lambda: cg.plan("NN", A, A, tune=True)):
        with pytest.raises(NoGpuError, match="tune=True measures on a GPU: there is no NVIDIA dr"):
            call()


# -- the file ---------------------------------------------------------------------------------


def damaged(found: dict[str, Any], how: str) -> str:
    """Return the file's text with an error."""
    (row,) = found["configs"].values()
    if how == "cut":
        return json.dumps(found)[:-20]
    if how == "a list":
        return "[]"
    if how in ("version", "format", "gpu"):
        found[how] = "NVIDIA A100" if how == "gpu" else "0"
    elif how == "kernel":
        row["kernel"] = "no_such_kernel"
    elif how == "config":
        row["config"] = "no_such_config"
    elif how == "slices":
        row["split_k"] = 7
    elif how == "seconds":
        row["seconds"] = "a while"
    elif how == "endless":
        row["configs"] = float("inf")
    elif how == "nested":
        return "[" * 100_000
    else:
        del row["pack"]
    return json.dumps(found)


@pytest.mark.parametrize(
    "how",
    [
        "cut", "a list", "version", "format", "gpu", "kernel", "config", "slices", "seconds",
        "endless", "nested", "field",
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("error")
def test_what_is_damaged_or_foreign_counts_as_not_there(
    device: Device, place: Path, monkeypatch, how: str
) -> None:
    """Test damaged files. Files of another version are ignored without a warning."""
    monkeypatch.setattr(cache, "_warned", set())
    predicted, best = cg.plan("TN", **SQUARE), fastest(device, 3)
    cg.plan("TN", **SQUARE, tune=True)
    file = place / FILE
    file.write_text(damaged(json.loads(file.read_text()), how))
    anew(monkeypatch)
    is_foreign = how in ("version", "format", "gpu", "kernel", "config", "slices")
    note = nullcontext() if is_foreign else pytest.warns(UserWarning, match=f"{FILE} .*not used")
    with note:
        plan = cg.plan("TN", **SQUARE)
    assert plan.config == predicted.config and plan.measured is None
    assert "measured" not in plan.why
    assert cg.plan("TN", **SQUARE, tune=True).config == best.config
    anew(monkeypatch)
    assert cg.plan("TN", **SQUARE).config == best.config


def test_each_gpu_has_a_file(device: Device, place: Path, monkeypatch) -> None:
    cg.plan("TN", **SQUARE, tune=True)
    monkeypatch.setattr(driver, "device_name", lambda device: "NVIDIA H100 80GB HBM3")
    assert cg.plan("TN", **SQUARE).measured is None
    cg.plan("NN", **SQUARE, tune=True)
    assert sorted(one.name for one in place.iterdir()) == [
        "tuned-NVIDIA-H100-80GB-HBM3.json", FILE,
    ]  # fmt: skip
    assert tuned.stored() == {"NVIDIA H100 80GB HBM3": 1, "NVIDIA H200": 1}


def test_what_others_stored_meanwhile_stays(device: Device, monkeypatch) -> None:
    cg.plan("TN", **SQUARE, tune=True)
    for known in ({}, {"NVIDIA H200": {}}):  # two processes, with and without the file's content
        monkeypatch.setattr(tuned, "_tuned", known)
        cg.plan("NN" if known else "NT", **SQUARE, tune=True)
    anew(monkeypatch)
    assert [bool(cg.plan(op, **SQUARE).measured) for op in ("TN", "NT", "NN", "TT")] == [
        True, True, True, False,
    ]  # fmt: skip


def test_other_directories_are_read_and_this_one_first(
    device: Device, place: Path, monkeypatch
) -> None:
    theirs, mine = cg.plan("TN", **SQUARE).candidates()[2:4]
    device.takes(theirs, 1.0)
    cg.plan("TN", **SQUARE, tune=True)
    anew(monkeypatch)
    here = place.with_name("here")
    monkeypatch.setenv("CUTE_GEMM_CACHE_DIR", f"{here}{os.pathsep}{place}")
    assert cg.plan("TN", **SQUARE).config == theirs.config
    device.takes(mine, 0.5)
    cg.plan("TN", **SQUARE, tune=Tuning(again=True))
    anew(monkeypatch)
    assert cg.plan("TN", **SQUARE).config == mine.config
    assert (here / FILE).exists()


def test_where_nothing_can_be_stored_it_is_known_to_the_process(
    device: Device, place: Path, monkeypatch
) -> None:
    monkeypatch.setattr(cache, "_warned", set())
    place.write_text("a file, where a directory should be")
    best = fastest(device, 3)
    with pytest.warns(UserWarning, match="the kernel cache cannot be used"):
        assert cg.plan("TN", **SQUARE, tune=True).config == best.config
    cg.plan("NN", **SQUARE, tune=True)
    assert cg.plan("TN", **SQUARE).config == best.config


# -- the command line -------------------------------------------------------------------------


def test_the_command_measures_and_says_what_is_taken(device: Device, run) -> None:
    best = fastest(device, 3)
    status, out, err = run("tune", "TN", "NN", "--sizes", "512,96x80x64", "--candidates", "5")
    assert status == 0 and not err
    lines = out.splitlines()
    assert lines[0] == f"TN 512 x 512 x 512 float16 -> float16, compute float32: {label(best)}"
    assert lines[1].startswith("  1 ms measured, the least of 5 configs; ")
    assert [line.partition(" float16")[0] for line in lines[2::2]] == [
        "NN 512 x 512 x 512", "TN 96 x 80 x 64", "NN 96 x 80 x 64",
    ]  # fmt: skip
    assert cg.plan("TN", **SQUARE).config == best.config

    count = len(device.ran)
    words = "tune", "TN", "-m", "512", "-n", "512", "-k", "512", "--json"
    (row,) = json.loads(run(*words)[1])["tuned"]
    assert len(device.ran) == count and row["config_name"] == best.config.name
    assert row["measured"]["configs"] == 5 and row["kernel"] == best.kernel.name
    run(*words, "--again")
    assert len(device.ran) > count


def test_the_command_takes_what_gemm_takes(device: Device, run) -> None:
    words = "--sizes", "256", "--order", "C", "-l", "3", "--dtype", "float32", "--compute", "tf32"
    status, out, _ = run("tune", "NT", *words, "--kernel", "sm80_pipeline", "--stages", "3")
    assert status == 0 and out.startswith("NT 256 x 256 x 256, 3 times float32 -> float32, compute")
    assert cg.plan("NT", m=256, n=256, k=256, l=3, order="C", dtype="float32", compute="tf32",
                   kernel="sm80_pipeline", stages=3).measured  # fmt: skip
    assert run("run", "NT", "--tune", "True")[0] == 2


def test_the_command_without_a_gpu(place: Path, run, monkeypatch) -> None:
    monkeypatch.setattr(driver, "why_no_gpu", lambda: "there is no NVIDIA driver")
    status, _, err = run("tune", "TN", "--sizes", "64")
    assert status == 2
    assert err == "cute-gemm: tuning measures on a GPU: there is no NVIDIA driver\n"


def test_the_bar_says_which_problem(device: Device, monkeypatch, run) -> None:
    told = []
    bar = fake_gpu.nullcontext(lambda *words: told.append(words))
    monkeypatch.setattr(tune_command, "progress", lambda: bar)
    run("tune", "TN", "--sizes", "64", "--candidates", "2")
    assert told[0] == ("TN 64 x 64 x 64: compile", 0, 2)
    assert told[-1] == ("TN 64 x 64 x 64: time", 20, 20)


def test_the_cache_lists_and_clears_selections(device: Device, run, place: Path) -> None:
    cg.plan("TN", **SQUARE, tune=True)
    assert "1 tuned config for NVIDIA H200" in run("cache")[1]
    listed = json.loads(run("cache", "--json")[1])
    assert listed["tuned"] == [{"gpu": "NVIDIA H200", "count": 1}]
    assert "removed 1 tuned config for NVIDIA H200" in run("cache", "clear")[1]
    assert not (place / FILE).exists() and cg.plan("TN", **SQUARE).measured is None
    assert json.loads(run("cache", "size", "--json")[1])["tuned"] == []
