"""Test the command line: arguments, help, JSON, and errors."""

import importlib
import importlib.metadata
import inspect
import json
import re
import subprocess
import sys
import warnings
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from command_line import SIZES

import cute_gemm as cg
from cute_gemm.commands import arguments as _arguments
from cute_gemm.commands import cli
from cute_gemm.errors import OptionError
from cute_gemm.kernels import registry
from cute_gemm.plan import backend


def parsers(command: str):
    """Return the main parser, and that of a command."""
    parser, commands = cli.parsers()
    importlib.import_module(f"cute_gemm.commands.{command}").add_arguments(commands[command])
    return parser, commands[command]


def read_options(words):
    parser = parsers("run")[1]
    known, others = _arguments.split_kernel_options(words, parser)
    assert not known
    return _arguments.kernel_options(others, parser)


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ([], {}), (["--stages", "4"], {"stages": 4}), (["--copy=mn_major"], {"copy": "mn_major"}),
        (["--tile", "128,128,32"], {"tile": (128, 128, 32)}),
        (["--tile", "(128, 64, 32)"], {"tile": (128, 64, 32)}),
        (["--tile", "128x64x32"], {"tile": (128, 64, 32)}), (["--copy", "x"], {"copy": "x"}),
        (["--min-ctas", "2"], {"min_ctas": 2}), (["--ping-pong", "true"], {"ping_pong": True}),
        (["--swizzle", "-1"], {"swizzle": -1}),
    ],
)  # fmt: skip
def test_kernel_options(words, options):
    assert read_options(words) == options


@pytest.mark.parametrize("words", [["--stages"], ["--stages", "--copy", "auto"]])
def test_a_kernel_option_needs_a_value(words):
    with pytest.raises(OptionError, match="--stages needs a value"):
        read_options(words)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["run", "--stage", "3"], "--stage is not known; did you mean --stages?"),
        (["emit", "--outptu=f"], "--outptu is not known; did you mean --output?"),
        (["run", "--splitk", "2"], "--splitk is not known; did you mean --split-k?"),
        (["run", "--trans-a", "1"], "--trans-a is not known; the letters of op say"),
        (["compile", "--bias"], "--bias is not known; see cute-gemm compile --help"),
        (["run", "--tune", "true"], "--tune is not known; see cute-gemm run --help"),
    ],
)
def test_an_unknown_option_has_a_hint(words, hint, run):
    status, out, err = run(words[0], "NN", *words[1:])
    assert (status, out) == (2, "") and err.startswith(f"cute-gemm: option {hint}")


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
    assert options == ["--stages=4", "--copy=auto"]


@pytest.mark.parametrize(
    "words",
    [
        ["explain", "naive", "-m", "32", "TN"], ["explain", "-m", "32", "naive", "--json", "TN"],
        ["emit", "-m", "32", "--kernel", "naive", "TN"], ["emit", "--tile=16x16x16", "TN"],
        ["compile", "TN", "--arch", "sm_80", "-m", "32", "--kernel", "naive", "NN"],
    ],
)  # fmt: skip
def test_the_op_may_stand_behind_options(words, run, monkeypatch):
    asked = []

    def seen(op, *_, **arguments):
        asked.append(op)
        raise OptionError("seen")

    monkeypatch.setattr("cute_gemm.api.plan", seen)
    status, _, err = run(*words)
    assert (status, asked, err) == (2, ["TN"], "cute-gemm: seen\n")


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_warning_that_is_an_error_is_one_line(more, no_gpu, run):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        status, out, err = run("run", "NN", *SIZES, *more)
    assert status == 2 and err.count("\n") == 1
    assert err.startswith("cute-gemm: no usable GPU (there is none); computing on the CPU")
    assert not more or json.loads(out)["error"]["type"] == "UserWarning"


@pytest.mark.parametrize("words", [["analyze", "NN"], ["trace", "NN"]])
def test_an_empty_name_is_no_file(words, run):
    status, out, err = run(*words, *SIZES, "--html", "")
    assert (status, out) == (2, "")
    assert err == "cute-gemm: --html '' is not a file name; expected --html FILE, or - for stdout\n"


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr("cute_gemm.run.driver.why_no_gpu", lambda: "there is none")
    monkeypatch.setattr(backend, "_warned", False)


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


@pytest.mark.parametrize("command", ["copy", "doctor", "kernels"])
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
    assert len(out.splitlines()) <= 60


def test_usage_errors_leave_with_2(capsys):
    for words in (
        [],
        ["frobnicate"],
        ["run"],
        ["run", "TN", "NN"],
        ["run", "TN", "-m", "many"],
        ["kernels", "--colour", "blue"],
        ["doctor", "--stages", "4"],
        ["copy", "--tensor", "8:1"],
    ):
        assert cli.main(words) == 2


COMMANDS_WITH_JSON = {
    "analyze": ["TN", *SIZES], "emit": ["TN", *SIZES], "explain": ["naive", "TN", *SIZES],
    "compile": ["TN", *SIZES, "--arch", "sm_80", "--kernel", "naive"],
    "run": ["TN", *SIZES, "--kernel", "host"], "kernels": [], "doctor": [], "cache": [],
    "copy": ["--tensor", "(32,8):(8,1)", "--threads", "(32,1):(1,32)", "--atom", "ld.global"],
    "bench": ["NN", "--kernel", "host", "--sizes", "8"],
    "compare": ["TN", *SIZES, "--arch", "sm_80", "--a", "kernel=naive dtype=float32"],
    "trace": ["TN", *SIZES, "--kernel", "smem_tiled", "--dtype", "float32"],
}  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS_WITH_JSON)
def test_json_says_its_version_and_every_key_is_documented(run, command):
    status, out, _ = run(command, *COMMANDS_WITH_JSON[command], "--json")
    found = json.loads(out)
    assert status == 0 and next(iter(found)) == "format" and found["format"] == 1
    page = Path(__file__).parents[2] / "docs" / "json.md"
    documented = set(re.findall(r"`([A-Za-z0-9_]+)`", page.read_text(encoding="utf-8")))
    assert keys(found) - documented == set()


#: Keys whose values have names chosen by users, or by a kernel.
FREE = {"config", "terms", "options", "limits", "values", "source", "worst", "counts", "figures"}


def keys(value) -> set[str]:
    """Return all keys of JSON, at any depth."""
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
    """Test that each listed value is accepted by some problem, and that errors list the values."""
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
    for kernel in registry.names():
        with pytest.raises(SystemExit) as leaving:
            cli.main(["analyze", "--help-kernel", kernel])
        assert leaving.value.code == 0
        out = " ".join(capsys.readouterr().out.split())
        for option, values in registry.get(kernel).values().items():
            assert f"--{option.replace('_', '-')} {values}" in out
    assert cli.main(["run", "NN", "--help-kernel", "sm81"]) == 2
    assert "kernel 'sm81' is not known" in capsys.readouterr().err


def test_the_package_says_what_it_has():
    assert cg.__version__ == importlib.metadata.version("cute-gemm")
    assert all(hasattr(cg, name) for name in cg.__all__)
    shown, planned = (inspect.signature(one).parameters for one in (cg.analyze, cg.plan))
    assert [*shown] == [*[*shown][:4], "beta", *[*planned][4:]]
    assert all(shown[name].default == each.default for name, each in planned.items()
               if name != "backend")  # fmt: skip
    report = cg.analyze("TN", m=64, n=64, k=64, dtype="half", arch="sm_80")
    assert isinstance(report, cg.Report) and isinstance(cg.Layout((8, 8), (8, 1)), cg.Layout)


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


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["run", "XY"], "XY"), (["run", "TN", "--dtype", "float12"], "float12"),
        (["run", "TN", "-m", "-1"], "-1"), (["run", "NN", "-m", "64", "--lda", "5"], "lda"),
        (["analyze", "TN", "--kernel", "nothing"], "sm80_pipeline"),
        (["emit", "TN", "--arch", "sm_12345"], "sm_12345"),
        (["emit", "TN", "--colour", "blue"], "colour"), (["emit", "TN", "--m", "5"], "--m"),
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
)  # fmt: skip
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
    names = ("arguments", "cache", "cli", "interrupt", "output")
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
