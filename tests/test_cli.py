"""The command line: what it prints, what its JSON holds, and how it fails."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import cute_gemm as cg
from cute_gemm.commands import arguments as _arguments
from cute_gemm.commands import cli
from cute_gemm.commands.compile import _chosen_from
from cute_gemm.errors import OptionError
from cute_gemm.kernels import base
from cute_gemm.run.driver import why_no_gpu
from cute_gemm.toolchain.headers import include_paths

SIZES = ["-m", "96", "-n", "80", "-k", "64"]


@pytest.fixture
def run(capsys):
    """Return a function: words -> (exit status, standard output, standard error)."""

    def call(*words: str) -> tuple[int, str, str]:
        status = cli.main(list(words))
        out, err = capsys.readouterr()
        return status, out, err

    return call


def parsers(command: str):
    """The parser, and a command's, as ``cute-gemm`` makes them."""
    parser, commands = cli.parsers()
    importlib.import_module(f"cute_gemm.commands.{command}").add_arguments(commands[command])
    return parser, commands[command]


def compile_arch() -> list[str]:
    """An architecture to name where there is no GPU to take it from."""
    return ["--arch", "sm_80"] if why_no_gpu() else []


# -- words ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ([], {}),
        (["--stages", "4"], {"stages": 4}),
        (["--copy=mn_major"], {"copy": "mn_major"}),
        (["--tile", "128,128,32"], {"tile": (128, 128, 32)}),
        (["--tile", "(128, 64, 32)"], {"tile": (128, 64, 32)}),
        (["--tile", "128x64x32"], {"tile": (128, 64, 32)}),
        (["--copy", "x"], {"copy": "x"}),
        (["--flag-name", "true"], {"flag_name": True}),
        (["--swizzle", "-1"], {"swizzle": -1}),
    ],
)
def test_kernel_options(words, options):
    assert _arguments.kernel_options(words) == options


@pytest.mark.parametrize("words", [["--stages"], ["--stages", "--copy", "auto"]])
def test_a_kernel_option_needs_a_value(words):
    with pytest.raises(OptionError, match="--stages needs a value"):
        _arguments.kernel_options(words)


@pytest.mark.parametrize(
    "words",
    [
        ["emit", "TN", "-m", "5", "--json", "--stages", "4", "--copy=auto"],
        ["emit", "--stages", "4", "--copy=auto", "TN", "-m", "5", "--json"],
    ],
)
def test_kernel_options_may_stand_anywhere(words):
    known, options = _arguments.split_kernel_options(words, parsers("emit")[1])
    assert sorted(known) == sorted(["emit", "TN", "-m", "5", "--json"])
    assert options == ["--stages", "4", "--copy=auto"]


@pytest.mark.parametrize("text", ["-0.7", "-1e-3", "-inf", "2", "nan", "1+2j", "-2e-1j"])
def test_any_number_is_a_scalar(text, run):
    parser, _ = parsers("run")
    parsed = parser.parse_args(_arguments.join_negative_values(["run", "TN", "--alpha", text]))
    np.testing.assert_equal(complex(parsed.alpha), complex(text))


def test_a_number_is_of_the_simplest_kind():
    assert isinstance(_arguments.number("3"), int)
    assert isinstance(_arguments.number("3.0"), float)
    assert isinstance(_arguments.number("3+0j"), complex)
    with pytest.raises(ValueError, match="complex"):
        _arguments.number("three")


@pytest.mark.parametrize("command", ["bench", "copy", "kernels"])
def test_commands_without_a_kernel_take_no_options_of_one(command):
    words = [command, "--stages", "4"]
    assert _arguments.split_kernel_options(words, parsers(command)[1]) == (words, [])


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_help(command, run, capsys):
    with pytest.raises(SystemExit) as leaving:
        cli.main([command, "--help"])
    assert leaving.value.code == 0
    out = capsys.readouterr().out
    assert "--json" in out and cli.COMMANDS[command][1:] in " ".join(out.split())


def test_usage_errors_leave_with_2(capsys):
    for words in (
        [],
        ["frobnicate"],
        ["run"],
        ["run", "TN", "NN"],
        ["run", "TN", "-m", "many"],
        ["kernels", "--colour", "blue"],
        ["bench", "NN", "--stages", "4"],
        ["copy", "--tensor", "8:1"],
    ):
        with pytest.raises(SystemExit) as leaving:
            cli.main(words)
        assert leaving.value.code == 2


# -- run --------------------------------------------------------------------------------------


def test_run_says_what_it_did(run):
    status, out, _ = run("run", "TN", *SIZES, *compile_arch())
    assert status == 0
    for part in (
        "op TN, BLAS-equivalent TN",
        "A(M,K)  (96,64):(64,1)",
        "B(N,K)  (80,64):(64,1)",
        "C(M,N)  (96,80):(1,96)",
        "coalesced",
        "kernel ",
        "compile ",
        "7680 elements against float64",
        "all within",
    ):
        assert part in out
    place = "CPU" if why_no_gpu() else "GPU"
    assert f"on the {place}" in out
    assert ("TFLOP/s" in out) == (why_no_gpu() is None)


def test_the_fallback_is_said_once_in_a_process():
    if why_no_gpu() is None:
        pytest.skip("there is a GPU")
    words = [sys.executable, "-m", "cute_gemm", "run", "TN", *SIZES, *compile_arch()]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stderr.count("note:") == 1
    assert "CPU" in done.stderr


def test_run_json(run):
    status, out, _ = run("run", "TN", *SIZES, *compile_arch(), "--json", "--alpha", "-0.5")
    result = json.loads(out)
    assert status == 0
    assert (result["op"], result["m"], result["alpha"]) == ("TN", 96, -0.5)
    assert result["check"]["ok"] is True
    assert result["check"]["elements"] == 96 * 80
    assert result["report"]["operands"]["A"]["coalesced"] is True
    assert result["build"]["resources"]["spill_stores"] == 0
    assert result["backend"] == ("cpu" if why_no_gpu() else "cuda")


@pytest.mark.parametrize("alpha", ["nan", "-inf", "1e300", "2+1j"])
def test_json_of_any_number_is_json(run, alpha):
    words = ("TN", "-m", "4", "-n", "4", "-k", "4", "--dtype", "complex128", "--kernel", "host")
    _, out, _ = run("run", *words, "--alpha", alpha, "--json")
    found = json.loads(out, parse_constant=pytest.fail)
    assert complex(str(found["alpha"])) == complex(alpha) or alpha == "nan" == found["alpha"]


@pytest.mark.parametrize(
    "words",
    [
        ["NN", "--dtype", "float32", "--beta", "2", "--alpha", "-0.7"],
        ["TT", "--dtype", "float64", "--order", "C", "--storage", "C"],
        ["TN", "--dtype", "int8", "--alpha", "3", "--beta", "-2"],
        ["NT", "--dtype", "bfloat16", "--lda", "100", "--ldb", "97", "--ldc", "104"],
        ["NN", "--out-dtype", "float32"],
        ["TN", "--dtype", "float32", "--compute", "tf32"],
        ["CN", "--dtype", "complex64", "--alpha", "1+2j", "--beta", "-1j", "--kernel", "host"],
    ],
)
def test_run_of_every_kind_is_right(run, words):
    op, *more = words
    status, out, _ = run("run", op, "-m", "33", "-n", "47", "-k", "19", *compile_arch(), *more)
    assert status == 0
    assert "all within" in out


def test_run_and_analyze_take_batches(run):
    words = ("TN", "-m", "40", "-n", "24", "-k", "32", "-l", "3", "--dtype", "float32")
    loop = ("--kernel", "host", "--beta", "1")
    status, out, _ = run("run", *words, "--lda", "36", *loop)
    assert status == 0 and "all within" in out
    assert "C(40,24,3) <- A^T B + 1 C" in out and "check    2880 elements" in out
    assert "A(M,K,L)  (40,32,3):(36,1,1440)" in out
    found = json.loads(run("run", *words, *loop, "--json")[1])
    assert found["l"] == 3 and len(found["check"]["worst"]) == 3
    assert "M=40 N=24 K=32 L=3" in run("analyze", *words)[1]
    assert "--batch-a does not exist" in run("analyze", *words, "--batch-a", "0")[2]


@pytest.mark.parametrize("empty", ["-m", "-k", "-l"])
def test_run_of_nothing(run, empty):
    status, _, _ = run("run", "TN", *SIZES, empty, "0", *compile_arch())
    assert status == 0


def test_run_of_the_loop_on_the_host(run):
    status, out, _ = run("run", "TN", *SIZES, "--kernel", "host", "--json")
    result = json.loads(out)
    assert (status, result["backend"], result["check"]["ok"]) == (0, "cpu", True)
    assert "report" not in result and "build" not in result and "timing" not in result


def test_leading_dimensions_show_in_the_descriptors(run):
    _, out, _ = run("analyze", "NT", *SIZES, "--lda", "100", "--arch", "sm_80", "--json")
    assert json.loads(out)["matrices"]["A"]["descriptor"] == "(96,64):(1,100)"


def test_a_wrong_result_is_status_1(run, monkeypatch):
    right = cg.Plan.__call__

    def wrong(self, A, B, C=None, **kwargs):
        result = right(self, A, B, C, **kwargs)
        C[3, 4] += 1
        return result

    monkeypatch.setattr(cg.Plan, "__call__", wrong)
    status, out, err = run("run", "TN", *SIZES, *compile_arch())
    assert status == 1
    assert "1 WRONG" in out
    assert "(3, 4)" in err
    assert run("run", "TN", *SIZES, *compile_arch(), "--no-check")[0] == 0


# -- the other commands -----------------------------------------------------------------------


def test_analyze(run):
    words = ("analyze", "TN", *SIZES, "--arch", "sm_80", "--kernel", "sm80_pipeline")
    status, out, _ = run(*words)
    assert status == 0
    assert "ldmatrix" in out
    status, out, _ = run(*words, "--copy", "mn_major", "--json")
    assert json.loads(out)["operands"]["A"]["coalesced"] is False


def test_analyze_on_a_gpu_of_ones_choice(run):
    words = ("analyze", "TN", *SIZES, "--arch", "sm_90", "--json")
    made = [json.loads(run(*words, *more)[1]) for more in ([], ["--gpu", "H200"])]
    names = [report["performance"]["gpu"]["name"] for report in made]
    assert names[0] != names[1] and names[1].startswith("H200")


def test_analyze_with_beta_reads_c(run):
    words = ("analyze", "TN", *SIZES, "--arch", "sm_80", "--kernel", "cutlass_universal", "--json")

    def loads_of_c(*more: str) -> int:
        rows = json.loads(run(*words, *more)[1])["accesses"]
        return sum(
            (r["operand"], r["space"], r["direction"]) == ("C", "global", "load") for r in rows
        )

    assert (loads_of_c(), loads_of_c("--beta", "-1")) == (0, 1)


def test_analyze_build_knows_the_registers(run):
    words = ("analyze", "TN", *SIZES, "--arch", "sm_80", "--json")
    report = json.loads(run(*words, "--build")[1])
    assert report["resources"]["registers"] > 0
    assert report["performance"]["occupancy"]["registers_known"] is True
    assert json.loads(run(*words)[1])["resources"] is None


def test_analyze_html(run, tmp_path):
    words = ("analyze", "TN", *SIZES, "--arch", "sm_80")
    file = tmp_path / "report.html"
    status, out, _ = run(*words, "--html", str(file))
    assert status == 0 and "ldmatrix" in out  # the text is printed too
    page = file.read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>")
    status, out, _ = run(*words, "--html", "-")
    assert (status, out) == (0, page)


COPY = ("copy", "--tensor", "(128,32):(4096,1)", "--threads", "(16,8):(1,16)",
        "--values", "(8,1):(1,8)", "--atom", "cp.async.128")  # fmt: skip


def test_copy(run):
    status, out, _ = run(*COPY)
    assert status == 0  # findings are no failure
    assert "12.5 %" in out and "threads (32,4):(4,1), values (1,8)" in " ".join(out.split())
    report = json.loads(run(*COPY, "--json")[1])
    assert (report["coalesced"], report["bits"], report["dtype"]) == (False, 16, "float16")
    assert report["mends"][0][0]["what"].startswith("threads (32,4):(4,1)")


def test_every_argument_of_copy_arrives(run):
    words = ["copy", "--tensor", "Sw<3,3,3> o 0 o (64,64):(64,1)", "--tile", "32x8", "--tv"]
    words += ["(32,8):(1,32)", "--atom", "ld.shared", "--dtype", "float32", "--json"]
    report = json.loads(run(*words)[1])
    (row,) = report["accesses"]
    assert (row["space"], report["tile"], report["dtype"]) == ("shared", [32, 8], "float32")
    words = [*COPY[:-1], "universal", "--space", "global", "--direction", "store", "--json"]
    words[words.index("universal")] = "UniversalCopy<half_t>"
    report = json.loads(run(*words, "--base-alignment", "32")[1])
    assert report["base_alignment"] == 32
    assert report["accesses"][0]["instruction"] == "st.global"
    report = json.loads(run(*COPY, "--smem", "(128,32):(32,1)", "--json")[1])
    assert [row["space"] for row in report["accesses"]] == ["global", "shared"]


def test_copy_html(run, tmp_path):
    file = tmp_path / "copy.html"
    assert run(*COPY, "--html", str(file))[0] == 0
    assert "12.5 %" in file.read_text(encoding="utf-8")


def test_profile_takes_its_own_arguments(run, monkeypatch):
    from cute_gemm.commands import profile

    seen = []
    monkeypatch.setattr(profile, "command", lambda arguments: seen.append(arguments) or 1)
    words = ("profile", "TN", *SIZES, "--beta", "-1", "--base-offset", "8", "--copy", "mn_major")
    assert run(*words)[0] == 1
    (arguments,) = seen
    assert (arguments.op, arguments.m, arguments.beta, arguments.base_offset) == ("TN", 96, -1, 8)
    assert arguments.options == {"copy": "mn_major"}


def test_emit_ptx_and_sass(run, tmp_path):
    words = ("emit", "TN", *SIZES, "--arch", "sm_80")
    status, out, _ = run(*words, "--ptx")
    assert status == 0 and ".target sm_80" in out and "#include" not in out
    file = tmp_path / "kernel.sass"
    status, out, _ = run(*words, "--sass", "--output", str(file))
    assert (status, out) == (0, "")
    assert "HMMA" in file.read_text()
    report = json.loads(run(*words, "--sass", "--json")[1])
    assert list(report) == ["format", "kernel", "arch", "symbol", "sass"]
    with pytest.raises(SystemExit) as leaving:
        run(*words, "--ptx", "--sass")
    assert leaving.value.code == 2


def test_emit(run, tmp_path):
    words = ("emit", "TN", *SIZES, "--arch", "sm_80")
    status, out, _ = run(*words)
    assert status == 0
    assert "#include" in out
    assert 'extern "C"' in out
    file = tmp_path / "unit.cu"
    status, out, _ = run(*words, "--output", str(file), "--json")
    assert json.loads(out)["source"] == file.read_text()


def test_emit_to_stdout_and_how_nvcc_builds_it(run, tmp_path):
    words = ("emit", "TN", *SIZES, "--arch", "sm_80", "--kernel", "naive")
    status, out, _ = run(*words, "-o", "-")
    assert (status, out) == (0, run(*words)[1])
    first, second, *_ = out.splitlines()
    assert first.startswith("// nvcc -cubin ") and "-arch=sm_80" in first
    assert first.endswith(" unit.cu") and second.startswith("// C(M,N) = ")
    assert all(f"-I{path}" in first for path in include_paths())
    run(*words, "-o", str(tmp_path / "naive.cu"))
    assert (tmp_path / "naive.cu").read_text().splitlines()[0].endswith(" naive.cu")
    assert "nvcc" not in run(*words, "--ptx")[1]
    head = run(*words[:-1], "cutlass_universal")[1].splitlines()[:2]
    assert "nvcc does not" in head[0] and "--device-as-default-execution-space" in head[1]
    assert "expected --output FILE" in run(*words, "-o", "-", "--json")[2]


@pytest.mark.matrix
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc")
@pytest.mark.parametrize("kernel", ["naive", "double_buffered", "tensor_core", "sm80_pipeline"])
def test_nvcc_builds_what_is_emitted(run, tmp_path, kernel):
    run("emit", "TN", *SIZES, "--arch", "sm_80", "--kernel", kernel, "-o", str(tmp_path / "a.cu"))
    line = (tmp_path / "a.cu").read_text().splitlines()[0].removeprefix("// ")
    subprocess.run(line, shell=True, check=True, cwd=tmp_path)
    assert (tmp_path / "a.cubin").read_bytes()[:4] == b"\x7fELF"


def test_several_archs(run):
    words = ("compile", "TN", *SIZES, "--kernel", "naive", "--json")
    for given in (["--arch", "sm_80,sm_90a"], ["--arch", "sm_80", "--arch", "sm_90a"]):
        assert [one["arch"] for one in json.loads(run(*words, *given)[1])["builds"]] == [
            "sm_80", "sm_90a",
        ]  # fmt: skip
    with pytest.raises(SystemExit):
        run("analyze", "TN", *SIZES, "--arch", "sm_80", "--arch", "sm_90a")


COMMANDS_WITH_JSON = {
    "analyze": ["TN", *SIZES], "emit": ["TN", *SIZES], "explain": ["naive", "TN", *SIZES],
    "compile": ["TN", *SIZES, "--arch", "sm_80", "--kernel", "naive"],
    "run": ["TN", *SIZES, "--kernel", "host"], "kernels": [], "doctor": [], "cache": [],
    "copy": ["--tensor", "(32,8):(8,1)", "--threads", "(32,1):(1,32)", "--atom", "ld.global"],
    "bench": ["NN", "--kernels", "host", "--sizes", "8"],
    "trace": ["TN", *SIZES, "--kernel", "smem_tiled", "--dtype", "float32"],
}  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS_WITH_JSON)
def test_json_says_its_version_and_every_key_is_documented(run, command):
    status, out, _ = run(command, *COMMANDS_WITH_JSON[command], "--json")
    found = json.loads(out)
    assert status == 0 and next(iter(found)) == "format" and found["format"] == 1
    page = Path(__file__).parents[1] / "docs" / "json.md"
    documented = set(re.findall(r"`([A-Za-z0-9_]+)`", page.read_text(encoding="utf-8")))
    assert keys(found) - documented == set()


#: Keys below which are names that users chose, or that depend on a kernel.
FREE = {"config", "terms", "options", "limits", "values", "source", "worst", "counts"}


def keys(value) -> set[str]:
    """Every key of JSON, however deep."""
    if isinstance(value, list):
        return set().union(*map(keys, value))
    if not isinstance(value, dict):
        return set()
    below = (keys(inner) for key, inner in value.items() if key not in FREE)
    return set(value).union(*below)


def test_every_option_says_what_it_takes(run):
    listed = json.loads(run("kernels", "--json")[1])["kernels"]
    out = run("kernels")[1]
    for info in listed:
        assert list(info["values"]) == list(info["options"])
        for option, values in info["values"].items():
            assert values != "see its config", (info["name"], option)
            assert f"--{option.replace('_', '-')}" in out and values in out
    by_name = {info["name"]: info["values"] for info in listed}
    assert by_name["sm80_pipeline"]["copy"] == "auto | mn_major"
    assert by_name["double_buffered"]["staging"] == "cp.async | registers"


@pytest.mark.parametrize("name", ["copy", "skew", "staging", "warp_along", "mma", "swizzle"])
def test_names_that_options_take_are_those_that_are_accepted(name):
    """Each is accepted by some problem, and the refusal of another lists them."""
    for info in cg.kernels():
        if name not in info.values:
            continue
        for value in info.values[name].split(" | "):
            accepted = []
            for dtype in info.dtypes:
                kind, _, compute = dtype.partition("/")
                given = {"dtype": kind, "compute": compute or None, "kernel": info.name}
                for tile in ({}, {"tile": (64, 64, 32)}):
                    with suppress(cg.GemmError):
                        sizes = {"m": 256, "n": 256, "k": 256, "arch": "sm_90a", "backend": "cpu"}
                        plan = cg.plan("NN", **sizes, **given, **{name: value}, **tile)
                        accepted.append(str(getattr(plan.config, name)) == value)
            assert accepted and all(accepted), (info.name, name, value)


def test_help_has_the_values_of_options(capsys):
    with pytest.raises(SystemExit):
        cli.main(["analyze", "--help"])
    out = " ".join(capsys.readouterr().out.split())
    assert "--copy auto | mn_major (tensor_core, sm80_pipeline)" in out


def test_the_package_says_what_it_has():
    assert cg.__version__ == importlib.metadata.version("cute-gemm")
    assert all(hasattr(cg, name) for name in cg.__all__)
    shown, planned = (inspect.signature(one).parameters for one in (cg.analyze, cg.plan))
    assert [*shown] == [*[*shown][:4], "beta", *[*planned][4:]]
    assert all(shown[name].default == each.default for name, each in planned.items()
               if name != "backend")  # fmt: skip
    report = cg.analyze("TN", m=64, n=64, k=64, dtype="half", arch="sm_80")
    assert isinstance(report, cg.Report) and isinstance(cg.Layout((8, 8), (8, 1)), cg.Layout)


def test_compile_fills_the_cache(run, tmp_path, monkeypatch):
    monkeypatch.setenv("CUTE_GEMM_CACHE_DIR", str(tmp_path / "cubins"))
    monkeypatch.setattr(base, "_builds", {})
    words = ("compile", "TN", *SIZES, "--arch", "sm_80", "--json")
    (first,) = json.loads(run(*words)[1])["builds"]
    (second,) = json.loads(run(*words)[1])["builds"]
    assert (first["cached"], second["cached"]) == (False, True)
    assert first["arch"] == "sm_80"

    listed = json.loads(run("cache", "--json")[1])
    assert listed["count"] == 1
    assert listed["entries"][0]["symbol"] == first["symbol"]
    assert "1 cubins" in run("cache", "size")[1]
    assert json.loads(run("cache", "clear", "--json")[1])["removed"] == 1
    assert json.loads(run("cache", "size", "--json")[1])["count"] == 0


def test_compile_writes_one_cubin(run, tmp_path):
    file = tmp_path / "a.cubin"
    status, _, _ = run("compile", "TN", *SIZES, *compile_arch(), "-o", str(file))
    assert status == 0
    assert file.read_bytes()[:4] == b"\x7fELF"
    status, _, err = run("compile", "TN", "NN", "--arch", "sm_80", "-o", str(file))
    assert status == 2
    assert "--output" in err


#: Takes what was compiled ahead, where nothing compiles.
SERVE = """
import sys
sys.modules["cuda.core"] = sys.modules["cuda.bindings.nvrtc"] = None
import cute_gemm as cg
for arch in ("sm_80", "sm_90a"):
    for order, m in (("F", 100), ("C", 37)):
        sizes = {"m": m, "n": 60, "k": 9, "dtype": "float32", "arch": arch, "order": order}
        print(cg.plan("NT", **sizes, kernel="naive", backend="cpu").build.cached)
print(cg.plan("NN", **sizes, kernel="naive", backend="cpu").built)
"""


def test_compile_for_another_machine(run, tmp_path, monkeypatch):
    monkeypatch.setattr(base, "_builds", {})
    monkeypatch.setenv("CUTE_GEMM_CACHE_DIR", str(tmp_path / "mine"))
    place = tmp_path / "kernels"
    words = ("compile", "--for", "NT", "--dtypes", "float32", "--kernel", "naive",
             "--arch", "sm_80,sm_90a", "-o", str(place))  # fmt: skip
    status, out, err = run(*words)
    assert (status, err) == (0, "")
    lines = out.splitlines()
    count = int(lines[-1].split()[0])
    each = rf"{count // 2} kernels, \d+ bytes of cubins"
    assert re.fullmatch(f"sm_80: {each}", lines[0]) and re.fullmatch(f"sm_90a: {each}", lines[1])
    size = sum(path.stat().st_size for path in place.glob("*.build"))
    assert lines[-1] == f"{count} kernels, {size} bytes in {place}"
    assert len(list(place.glob("*.build"))) == count >= 4 and not (tmp_path / "mine").exists()
    monkeypatch.setattr(base, "_builds", {})
    found = json.loads(run(*words, "--json")[1])
    assert (found["directory"], found["count"], found["bytes"]) == (str(place), count, size)
    assert all(build["cached"] for build in found["builds"])

    place.chmod(0o500)
    before = {path: path.stat().st_mtime_ns for path in place.iterdir()}
    monkeypatch.setenv("CUTE_GEMM_CACHE_DIR", os.pathsep.join((str(tmp_path / "own"), str(place))))
    done = subprocess.run([sys.executable, "-c", SERVE], capture_output=True, text=True)
    assert (done.stdout.split(), done.stderr) == (["True"] * 4 + ["False"], "")
    assert {path: path.stat().st_mtime_ns for path in place.iterdir()} == before
    assert not list((tmp_path / "own").glob("*.build"))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float32/tf32", "float64", "int8"])
@pytest.mark.parametrize("op", ["NN", "NT", "TN", "TT"])
def test_what_is_compiled_ahead_is_all_that_is_chosen_from(op, dtype):
    """Of other extents too, if the matrices are aligned, or read by elements."""
    name, _, compute = dtype.partition("/")
    ahead = {each.symbol for each in _chosen_from([op], [dtype], ["sm_90a"], "auto", {})}
    aligned, odd = (16, 48, 8192), (3, 63, 4097)
    for extents in (*itertools.product(aligned, repeat=3), *itertools.product(odd, repeat=3)):
        sizes = dict(zip("mnk", extents, strict=True))
        for order in "FC":
            made = cg.plan(op, **sizes, dtype=name, compute=compute or None, order=order,
                           arch="sm_90a", backend="cpu")  # fmt: skip
            assert made.symbol in ahead, made


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ([], "required: OP, or --for"),
        (["TN", "--dtypes", "float16"], "--dtypes goes with --for"),
        (["TN", "--for", "NN"], "OP came with --for"),
        (["--for", "NN", "-m", "64", "--order", "C"], "m, order came with --for"),
        (["--for", "NX"], "expected two letters"),
        (["--for", "NN", "--dtypes", "float12"], "float12"),
        (["--for", "NN", "-o", "a:b"], "expected a directory without ':'"),
        (["--for", "NN", "-o", __file__], "cannot be used"),
    ],
)
def test_what_cannot_be_compiled_ahead(run, words, part):
    status, _, err = run("compile", *words)
    assert status == 2 and part in err


def test_prove(run, monkeypatch):
    words = (
        "prove",
        "TN",
        "NN",
        *SIZES,
        "--kernel",
        "naive",
        "--dtype",
        "float32",
        *compile_arch(),
    )
    status, out, _ = run(*words)
    assert (status, out.count(" facts hold, ")) == (0, 2)
    proofs = json.loads(run(*words, "--json")[1])["proofs"]
    assert len({proof["symbol"] for proof in proofs}) == 2
    assert proofs[0]["facts"][:3] == ["Element", "ElementC", "Threads: extents"]

    emitter = importlib.import_module("cute_gemm.kernels.simt.unit").EmitSimt
    facts = emitter.facts
    monkeypatch.setattr(emitter, "facts", lambda self: [*facts(self), ("1 == 2", "one is two")])
    status, _, err = run(*words)
    assert status == 2 and 'static assertion failed with "one is two"' in err


def test_kernels(run):
    status, out, _ = run("kernels")
    assert status == 0
    assert "sm80_pipeline" in out
    assert "sm80_pipeline" in [
        info["name"] for info in json.loads(run("kernels", "--json")[1])["kernels"]
    ]


def test_doctor(run):
    status, out, _ = run("doctor", "--json")
    names = [check["name"] for check in json.loads(out)["checks"]]
    assert status == 0
    assert len(names) >= 8
    assert run("doctor")[0] == 0


# -- failures ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["run", "XY"], "XY"),
        (["run", "TN", "--dtype", "float12"], "float12"),
        (["run", "TN", "-m", "-1"], "-1"),
        (["run", "NN", "-m", "64", "--lda", "5"], "lda"),
        (["analyze", "TN", "--kernel", "nothing"], "sm80_pipeline"),
        (["emit", "TN", "--arch", "sm_12345"], "sm_12345"),
        (["emit", "TN", "--colour", "blue"], "colour"),
        (["emit", "TN", "--m", "5"], "--m"),
        (["run", "TN", "--dtype", "int8", "--alpha", "0.5"], "alpha"),
        (["emit", "TN", "--output", "/nonexistent/directory/x.cu"], "/nonexistent"),
        (["analyze", "TN", "--html", "/nonexistent/directory/x.html"], "/nonexistent"),
        (["analyze", "TN", "--html", "-", "--json"], "expected --html FILE"),
        (["analyze", "TN", "--gpu", "Voodoo"], "Voodoo"),
        (["analyze", "TN", "--arch", "sm_80", "--gpu", "H200"], "does not run kernels of sm_80"),
        (["copy", "--tensor", "(8,8):(8,1", "--atom", "ld.global"], "column 11"),
        (["copy", "--tensor", "(8,8):(8,1)", "--atom", "ld.locally"], "'ld.locally' is unknown"),
        (["copy", "--tensor", "(8,8):(8,1)", "--atom", "ld.global", "--dtype", "x1"], "x1"),
    ],
)
def test_an_error_is_one_line(run, words, part):
    status, _, err = run(*words)
    assert status == 2
    lines = [line for line in err.splitlines() if not line.startswith("note:")]
    assert len(lines) == 1
    assert lines[0].startswith("cute-gemm: ")
    assert part in lines[0]


def test_an_error_in_json(run):
    status, out, err = run("run", "XY", "--json")
    assert status == 2
    assert json.loads(out)["error"]["type"] == "OpError"
    assert err.count("\n") == 1


@pytest.mark.skipif(why_no_gpu() is None, reason="there is a GPU")
def test_asking_for_a_gpu_without_one(run):
    status, _, err = run("run", "TN", *SIZES, "--backend", "cuda")
    assert status == 2
    assert "GPU" in err


def test_a_closed_pipe_is_no_error():
    words = f"{sys.executable} -m cute_gemm emit TN --arch sm_80 | true"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {words}"], capture_output=True, text=True, check=False
    )
    assert "Traceback" not in done.stderr
    assert done.returncode == 0


def test_only_the_command_that_is_asked_for_is_imported():
    code = (
        "import sys, cute_gemm.commands.cli as c; c.main(['cache', 'size'])\n"
        "print(*sorted(n for n in sys.modules if n.startswith('cute_gemm.commands.')))\n"
        "sys.exit('cute_gemm.measure' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names = ("arguments", "cache", "cli", "output")
    assert done.stdout.splitlines()[-1].split() == [f"cute_gemm.commands.{n}" for n in names]


def test_nothing_of_cuda_is_imported_for_help():
    code = (
        "import sys, cute_gemm.commands.cli as c\n"
        "try: c.main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'cuda', 'cutlass_library', 'rich', 'scipy', 'torch', 'cupy', 'ml_dtypes'}\n"
        "sys.exit(str(heavy & set(sys.modules)) if heavy & set(sys.modules) else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
