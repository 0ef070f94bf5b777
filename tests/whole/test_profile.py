"""Test predicted against counted accesses: ncu's output, classes, comparison, with a fake ncu."""

import argparse
import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_arrays import on_h200

import cute_gemm as cg
from cute_gemm.commands import profile as command
from cute_gemm.errors import OptionError, ToolError, UnsupportedError
from cute_gemm.gpus.table import gpu
from cute_gemm.kernels.candidate import Measured
from cute_gemm.measure import counters, profile
from cute_gemm.measure.counters import CLASSES, compare, parse, predicted
from cute_gemm.measure.profile import Case, CounterPermissionError, Profile, predict
from cute_gemm.plan import tuned
from cute_gemm.rendering.rows import make_row
from cute_gemm.run import driver

CASE = Case("TN", 256, 128, 64, "float16", kernel="sm80_pipeline", arch="sm_90a")
LDSM = "smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_ldsm.sum"
SECTORS = "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"

COLUMNS = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size",'
    '"Grid Size","Device","CC","Section Name","Metric Name","Metric Unit","Metric Value"'
)


def line(number: int, name: str, metric: str, value: str) -> str:
    """Return a line of ncu's output for a launch and a metric."""
    return (
        f'"{number}","466","python3.12","127.0.0.1","{name}","1","7","(128, 1, 1)","(8, 1, 1)",'
        f'"0","9.0","Command line profiler metrics","{metric}","","{value}"'
    )


# ncu's output -------------------------------------------------------------------------------------


def test_parse() -> None:
    text = "\n".join(
        [
            "==WARNING== Note: Running with unmodified GPU clocks.",
            "==PROF== Connected to process 466 (/usr/bin/python3.12)", '"a line of the program\'s"',
            "==PROF== Disconnected from process 466", COLUMNS,
            line(0, "first", SECTORS, "1,048,576"), line(0, "first", LDSM, "0"),
            line(2, "third", SECTORS, "n/a"), line(10, "last", SECTORS, "12.00"),
            "==PROF== the end",
        ]
    )  # fmt: skip
    assert parse(text) == [
        ("first", {SECTORS: 1048576, LDSM: 0}),
        ("third", {}),
        ("last", {SECTORS: 12}),
    ]


def test_parse_launches_in_their_order() -> None:
    rows = [line(number, f"kernel{number}", LDSM, "1") for number in (2, 10, 1)]
    found = parse("\n".join([COLUMNS, *rows]))
    assert [name for name, _ in found] == ["kernel1", "kernel2", "kernel10"]


@pytest.mark.parametrize("text", ["", "==WARNING== No kernels were profiled.\n", COLUMNS])
def test_parse_nothing(text: str) -> None:
    assert parse(text) == []


# The classes --------------------------------------------------------------------------------------


def rows_of(**options: Any) -> Any:
    sizes: dict[str, Any] = {"m": 256, "n": 128, "k": 64, "dtype": "float16", "arch": "sm_90a"}
    return cg.analyze("TN", **{**sizes, "kernel": "sm80_pipeline", **options}).rows


def test_totals_of_one_tile_by_hand() -> None:
    """Test fp16, 4 CTAs of 64 x 64, two k-tiles of 32, with all accesses 16 bytes wide."""
    options = {"tile": (64, 64, 32), "warps": (2, 2), "stages": 4}
    case = Case(
        "TN", 128, 128, 64, "float16", kernel="sm80_pipeline", arch="sm_90a", options=options
    )
    config = case.plan().config
    assert config.tile == (64, 64, 32) and config.operation.bytes == (16, 16, 16)
    found = predict(case)
    # A and B: a CTA loads 64 x 64 halves of each, 8 KiB: 16 requests of 512 bytes, 16 sectors each.
    assert found["global loads requests"] == 4 * 2 * 16
    assert found["global loads sectors"] == 4 * 2 * 16 * 16
    # C: 128 x 128 halves are 32 KiB.
    assert found["global stores sectors"] == 128 * 128 * 2 // 32
    assert found["stmatrix wavefronts"] == found["stmatrix conflicts"] == 0
    assert found["ldmatrix wavefronts"] > 0 == found["ldmatrix conflicts"]


@pytest.mark.parametrize(
    ("options", "empty", "present"),
    [
        ({"lda": 68, "ldb": 68}, "stmatrix", "cp.async"),
        ({}, "cp.async", "ldmatrix"),  # 16-byte copies bypass the counted units
        ({"lda": 65, "ldb": 65}, "cp.async", "shared stores"),
        ({"dtype": "float32"}, "ldmatrix", "shared loads"),
        ({"kernel": "cutlass_universal", "dtype": "float32"}, "ldmatrix", "shared loads"),
    ],
)
def test_every_row_is_in_its_class(options: dict[str, Any], empty: str, present: str) -> None:
    rows = rows_of(**options)
    found = predicted(rows)
    assert found[f"{empty} wavefronts"] == 0 < found[f"{present} wavefronts"]
    for figure in ("requests", "sectors", "wavefronts", "conflicts"):
        # Requests are only compared for global memory.
        space = "global" if figure in ("requests", "sectors") else "shared"
        field = figure if space == "global" else f"counted_{figure}"
        expected = sum(getattr(row.launch, field) for row in rows if row.space == space)
        assert sum(found[one.name] for one in CLASSES if one.figure == figure) == expected


def test_an_access_without_a_counter() -> None:
    access = replace(rows_of()[0].access, instruction="red.global")
    with pytest.raises(UnsupportedError, match="A: no counter .* global load by red.global"):
        predicted([make_row(access)])


def test_tma_and_wgmma_are_counted_as_predicted() -> None:
    """Test launches of ``sm90_wgmma`` on an H200: a cluster, C that is read, C without TMA."""
    counted = json.loads((Path(__file__).parents[1] / "data" / "h200_tma.json").read_text())
    found = [predict(Case(**case, arch="sm_90a")) for case in counted["cases"]]
    # A counter of SASS instructions counted sectors of global memory.
    metrics = {one.name: one.metric.replace("l1tex__t_", "sm__sass_l1tex_t_") for one in CLASSES}
    compared = {name for name, metric in metrics.items() if metric in counted["counts"]}
    assert compared == {
        "TMA loads requests", "TMA loads arriving sectors", "TMA stores requests",
        "TMA stores sectors", "wgmma wavefronts", "wgmma conflicts", "ldmatrix wavefronts",
        "stmatrix wavefronts", "global stores sectors",
    }  # fmt: skip
    for name in compared:
        assert [one[name] for one in found] == counted["counts"][metrics[name]], name


def test_a_box_outside_of_the_matrix_is_an_instruction() -> None:
    """Test a cluster of 2 x 2 for one tile, and half a k-tile: all boxes are moved, as zeros."""
    options = {
        "tile": (64, 64, 128), "warp_groups": 1, "cluster": "2x2", "swap_ab": 0, "ping_pong": 0,
    }  # fmt: skip
    case = Case("TN", 64, 64, 64, "float16", kernel="sm90_wgmma", arch="sm_90a", options=options)
    found = predict(case)
    # A CTA loads half of the 64 rows of each, 64 elements at a time, and receives the other half.
    assert found["TMA loads requests"] == 4 * 2 * 2
    assert found["TMA loads arriving sectors"] == 4 * 2 * 64 * 128 * 2 // 32
    assert found["TMA stores requests"] == 4
    assert found["TMA stores sectors"] == 64 * 64 * 2 // 32


def test_metrics_are_distinct_and_names_too() -> None:
    metrics = [one.metric for one in CLASSES if one.metric]
    assert len(set(metrics)) == len(metrics)
    assert len({one.name for one in CLASSES}) == len(CLASSES)


# The comparison -----------------------------------------------------------------------------------


def counts(expected: dict[str, int], **changed: int) -> dict[str, int]:
    """Return the counts of an accurate model, with changes, by metric."""
    return {one.metric: expected[one.name] for one in CLASSES if one.metric} | changed


def test_agreement() -> None:
    expected = predict(CASE)
    found = Profile(CASE, "symbol", compare(expected, counts(expected)))
    assert not found.differences and "no difference" in str(found)
    assert len(found.figures) == len(CLASSES)
    assert json.loads(json.dumps(found.to_dict()))["agrees"] is True


def test_difference() -> None:
    expected = predict(CASE)
    number = expected["ldmatrix wavefronts"]
    found = Profile(CASE, "symbol", compare(expected, counts(expected, **{LDSM: number - 3})))
    [one] = found.differences
    assert (one.access, one.figure, one.difference) == ("ldmatrix", "wavefronts", -3)
    assert found.to_dict()["agrees"] is False
    shown = str(found)
    assert f"{number:,}" in shown and f"{number - 3:,}" in shown and "-3" in shown
    assert "stmatrix" not in shown  # neither predicted nor counted


def test_an_access_that_the_model_does_not_know_of() -> None:
    expected = predict(CASE)
    metric = next(one.metric for one in CLASSES if one.name == "stmatrix conflicts")
    found = Profile(CASE, "symbol", compare(expected, counts(expected, **{metric: 7})))
    assert [one.difference for one in found.differences] == [7]
    assert "stmatrix conflicts" in str(found)


def test_conflicts_of_stores_follow_their_wavefronts() -> None:
    expected = dict.fromkeys((one.name for one in CLASSES), 0)
    expected |= {"shared stores wavefronts": 100, "shared stores conflicts": 60}
    metric = next(one.metric for one in CLASSES if one.name == "shared stores wavefronts")
    figures = compare(expected, counts(expected, **{metric: 110}))
    found = {one.figure: one for one in figures if one.access == "shared stores"}
    assert found["wavefronts"].difference == 10
    assert (found["conflicts"].predicted, found["conflicts"].counted) == (60, 70)


def test_counters_that_the_device_does_not_have() -> None:
    expected = predict(CASE)
    old = {name: value for name, value in counts(expected).items() if "stsm" not in name}
    assert {one.access for one in compare(expected, old)} == {
        one.access for one in CLASSES if one.access != "stmatrix"
    }
    del old[LDSM]
    with pytest.raises(ToolError, match=f"did not count {LDSM}"):
        compare(expected, old)


# Cases --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offset", "alignments"), [(0, (256, 256)), (1, (1, 4)), (16, (16, 64)), (512, (256, 256))]
)
def test_a_base_offset_is_in_the_problem(offset: int, alignments: tuple[int, int]) -> None:
    problem = replace(CASE, dtype="int8", base_offset=offset).plan().problem
    assert (problem.A.alignment, problem.C.alignment) == alignments  # C is int32
    assert problem.A.alignment == problem.B.alignment


def test_a_base_offset_costs_sectors() -> None:
    same = replace(CASE, options={"tile": (64, 64, 32), "warps": (2, 2)})
    wide, off = predict(same), predict(replace(same, base_offset=1))
    # One more word of each row is loaded, and rows are realigned in shared memory.
    assert off["global loads requests"] > wide["global loads requests"]
    assert off["global loads sectors"] > wide["global loads sectors"]
    assert off["shared stores wavefronts"] > wide["shared stores wavefronts"]
    assert off["cp.async wavefronts"] == wide["cp.async wavefronts"] == 0


@pytest.mark.parametrize("offset", [-1, 3, 6])
def test_other_base_offsets_are_refused(offset: int) -> None:
    with pytest.raises(OptionError, match=f"base_offset is {offset}; expected 0 or a power of two"):
        replace(CASE, base_offset=offset).plan()


def test_a_case_without_a_launch_is_refused() -> None:
    with pytest.raises(OptionError, match="m=0, n=128, l=1: no kernel is launched"):
        replace(CASE, m=0).plan()


def test_beta_reads_c() -> None:
    case = replace(CASE, kernel="cutlass_universal")
    without, with_c = predict(case), predict(replace(case, beta=1))
    extra = with_c["global loads sectors"] - without["global loads sectors"]
    assert extra == without["global stores sectors"]


def test_an_epilogue_loads_its_operands() -> None:
    plain, fused = predict(CASE), predict(replace(CASE, epilogue="bias+residual+relu"))
    loads = "global loads requests"
    more = replace(CASE, epilogue="residual")
    assert fused[loads] > predict(more)[loads] > plain[loads]
    assert len(replace(CASE, epilogue="bias+residual").plan().problem.matrices) == 5


def test_scales_load_what_their_recipe_says() -> None:
    case = Case("TN", 512, 512, 1024, "float8_e4m3fn", kernel="sm90_wgmma", arch="sm_90a",
                options={"tile": (128, 128, 128), "warp_groups": 2, "cluster": (1, 1)})  # fmt: skip
    loads = "global loads requests"
    each = 4 * 4 * 8  # tiles and k tiles
    counts = {
        (a, b): predict(replace(case, scale_a=a, scale_b=b))[loads]
        for a, b in ((None, None), ("1x128", None), ("128x128", None), ("1x128", "128x128"))
    }
    assert [*counts.values()] == [0, 4 * each, each, 5 * each]
    fast = replace(case, compute="fast_accum", scale_b="row")
    assert fast.plan().problem.compute == "fast_accum" and predict(fast)[loads]
    again = Case(**json.loads(json.dumps(profile.asdict(fast))))
    assert again.plan().config == fast.plan().config and "scale_b=row" in str(again)


@pytest.mark.parametrize("ragged", ["M", "N", "K"])
def test_a_case_of_groups_is_the_problem_of_arrays(ragged: str) -> None:
    sizes = {"M": 160, "N": 72, "K": 40} | {ragged: 199}
    m, n, k = sizes.values()
    ends = [3, 3, 130, 199]
    case = Case("TN", m, n, k, "float16", kernel="sm80_pipeline", arch="sm_80", ragged=ragged,
                offsets=ends, order="C")  # fmt: skip
    A, B = np.empty((m, k), "f2").T, np.empty((n, k), "f2").T
    A, B = np.asfortranarray(A), np.asfortranarray(B)
    if ragged != "K":
        one = np.empty((4, *(B if ragged == "M" else A).shape[::-1]), "f2").swapaxes(1, 2)
        A, B = (A, one) if ragged == "M" else (one, B)
    plan = cg.plan("TN", A, B, offsets=np.array(ends, np.int32), kernel="sm80_pipeline",
                   arch="sm_80", backend="cpu", order="C")  # fmt: skip
    assert case.plan().problem == plan.problem and case.plan().config == plan.config
    again = Case(**json.loads(json.dumps(profile.asdict(case))))
    assert predict(again) == predict(case) and f"ragged={ragged}" in str(again)
    equal = predict(replace(case, offsets=[199] * 4))
    assert equal["global loads requests"] != predict(case)["global loads requests"]


def test_a_case_survives_json() -> None:
    case = replace(CASE, options={"tile": (64, 64, 64), "stages": 3}, beta=1, base_offset=1)
    again = Case(**json.loads(json.dumps(profile.asdict(case))))
    assert again.plan().config == case.plan().config and str(again.plan()) == str(case.plan())


# ncu ----------------------------------------------------------------------------------------------


def test_no_ncu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="not found at '.*nowhere'.*--ncu PATH"):
        profile.ncu(str(tmp_path / "nowhere"))
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CUDA_PATH", raising=False)
    tool = tmp_path / "bin" / "ncu"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert profile.ncu() == str(tool)


#: A fake ncu that prints given values for the launches in its last argument, and checks arguments.
FAKE = """#!{python}
import json, sys
told = json.load(open({told!r}))
words = sys.argv[1:]
assert words[words.index("--clock-control") + 1] == "none" and "--csv" in words
assert words[-3:-1] == ["-m", "cute_gemm.measure.profile"], words
metrics = words[words.index("--metrics") + 1].split(",")
cases = json.load(open(words[-1]))
print(told["says"])
print(told["warns"], file=sys.stderr)
print({columns!r})
for number, case in list(enumerate(cases))[: told["launches"]]:
    for metric in metrics:
        value = told["counts"].get(metric, "n/a")
        fields = dict.fromkeys({columns!r}.split(","), "")
        row = [str(number), *[""] * 3, told["name"], *[""] * 7, metric, "", str(value)]
        print(",".join('"' + field + '"' for field in row))
sys.exit(told["returns"])
"""


@pytest.fixture
def fake(tmp_path: Path) -> Callable[..., str]:
    """Return a function that makes a fake ncu with predicted or given values."""

    def make(**told: Any) -> str:
        answers = {
            "name": CASE.plan().config.name,
            "counts": {name: f"{value:,}" for name, value in counts(predict(CASE)).items()},
            "says": "==PROF== Connected to process 1", "warns": "", "launches": 1000, "returns": 0,
        }  # fmt: skip
        answers["counts"] = {**answers["counts"], **told.pop("counts", {})}  # type: ignore[dict-item]
        path = tmp_path / "told.json"
        path.write_text(json.dumps(answers | told))
        tool = tmp_path / "ncu"
        tool.write_text(FAKE.format(python=sys.executable, told=str(path), columns=COLUMNS))
        tool.chmod(0o755)
        return str(tool)

    return make


@pytest.fixture
def nothing_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip builds, so that neither a GPU nor a compiler is needed."""
    monkeypatch.setattr(profile, "_prepared", predict)


def arguments(**changed: Any) -> argparse.Namespace:
    """Return the parsed arguments of ``profile TN ...``."""
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    values = {name: getattr(CASE, name) for name in CASE.__dataclass_fields__}
    own = vars(parser.parse_args([CASE.op]))
    return argparse.Namespace(**{**own, **values, "json": False, **changed})


@pytest.mark.usefixtures("nothing_built")
def test_the_command_agrees(fake: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    assert command.command(arguments(ncu=fake())) == 0
    shown = capsys.readouterr().out
    assert "no difference" in shown and CASE.plan().config.name in shown


@pytest.mark.usefixtures("nothing_built")
def test_the_command_differs(fake: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    sectors = predict(CASE)["global loads sectors"]
    tool = fake(counts={SECTORS: f"{sectors + 1:,}"})
    assert command.command(arguments(ncu=tool, json=True)) == 1
    found = json.loads(capsys.readouterr().out)
    [one] = [one for one in found["figures"] if one["difference"]]
    assert (one["metric"], one["predicted"], one["counted"]) == (SECTORS, sectors, sectors + 1)


@pytest.mark.usefixtures("nothing_built")
def test_cases_keep_their_order(fake: Callable[..., str]) -> None:
    found = profile.profile([CASE, replace(CASE, m=128), CASE], fake())
    assert [one.case.m for one in found] == [256, 128, 256]
    assert [bool(one.differences) for one in found] == [False, True, False]


@pytest.mark.parametrize("where", ["says", "warns"])
def test_refused_counters(fake: Callable[..., str], where: str) -> None:
    text = "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access counters"
    with pytest.raises(CounterPermissionError, match="RestrictProfilingToAdminUsers=0") as caught:
        profile.count([CASE], fake(**{where: text}, launches=0, returns=1))
    assert isinstance(caught.value, PermissionError)
    assert "root" in str(caught.value) and "SYS_ADMIN" in str(caught.value)


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"launches": 1}, "counted 1 of 2 launches"),
        ({"returns": 9, "warns": "TN: out of memory"}, "returned 9: TN: out of memory"),
        ({"launches": 0, "says": "==ERROR== Failed to access"}, "==ERROR== Failed to access"),
        ({"name": "memset"}, "counted a kernel memset where sm80_pipeline"),
        ({"counts": {LDSM: "n/a"}}, f"no number for {LDSM}"),
    ],
)
def test_what_ncu_does_wrong(fake: Callable[..., str], told: dict[str, Any], message: str) -> None:
    with pytest.raises(ToolError) as caught:
        profile.count([CASE, CASE], fake(**told))
    assert message in str(caught.value)


def test_the_program_under_ncu_names_the_case(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = tmp_path / "cases.json"
    listed.write_text(json.dumps([profile.asdict(replace(CASE, base_offset=3))]))
    assert profile.main([str(listed)]) == 1
    assert (
        "sm80_pipeline TN 256x128x64 float16 base=+3: base_offset is 3" in capsys.readouterr().err
    )


def test_what_a_device_lacks_is_not_asked_of_it(fake: Callable[..., str]) -> None:
    case = replace(CASE, arch="sm_80")
    [found] = profile.count([case], fake(name=case.plan().config.name))
    asked = {one.metric for one in counters.CLASSES if one.metric and 80 in one.ccs}
    assert set(found) == asked and not re.search("stsm|tma|gmma", " ".join(found))


def test_a_batch_counts_each_matrix_from_where_it_begins() -> None:
    case = Case("TN", 128, 64, 64, "float16", kernel="sm80_pipeline", arch="sm_90a",
                options={"tile": (64, 64, 32)}, l=3, batch_a=128 * 64 + 8, batch_b=0)  # fmt: skip
    problem = case.plan().problem
    assert (problem.A.alignment, problem.A.first_alignment) == (16, 256)
    assert str(problem.B) == "(64,64,3):(64,1,0)" and problem.C.batch_stride == 128 * 64
    assert str(case).endswith("l=3 batch_a=8200 batch_b=0")
    one = replace(case, l=1, batch_a=None, batch_b=None)
    together, alone = predict(case), predict(one)
    # The second A begins 16 bytes into a sector; all other counts are three times the same.
    assert together["global loads sectors"] > 3 * alone.pop("global loads sectors")
    assert all(together[name] == 3 * count for name, count in alone.items())
    moved = replace(case, base_offset=4).plan().problem.A
    assert (moved.alignment, moved.first_alignment) == (8, 0)
    with pytest.raises(OptionError, match="l=0: no kernel is launched"):
        replace(case, l=0).plan()


def test_what_was_measured_is_profiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Test that a tuned config is profiled for this machine's GPU, but not for another arch."""
    on_h200(monkeypatch, gpu("H200"))
    monkeypatch.setattr(driver, "why_no_gpu", lambda: None)
    case = Case("TN", 512, 512, 512, "bfloat16")
    first, second = (case.plan().candidates()[i] for i in (0, 1))
    known = Measured(second.kernel.name, second.config.name, *second.algorithm, 1e-5, 8)
    monkeypatch.setattr(tuned, "find", lambda *asked: known)
    assert case.plan().symbol == second.config.name != first.config.name
    assert replace(case, arch="sm_80").plan().measured is None
