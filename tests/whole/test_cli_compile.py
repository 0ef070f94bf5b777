"""Test ``cute-gemm emit``, ``compile`` and ``prove``."""

import importlib
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import nullcontext

import pytest
from command_line import SIZES, compile_arch

import cute_gemm as cg
from cute_gemm._text import size
from cute_gemm.commands import compile as compile_command
from cute_gemm.commands.compile import _chosen_from
from cute_gemm.kernels import base
from cute_gemm.toolchain.headers import include_paths


def test_emit_ptx_and_sass(run, tmp_path):
    words = ("emit", "TN", *SIZES, "--arch", "sm_80")
    status, out, _ = run(*words, "--show", "ptx")
    assert status == 0 and ".target sm_80" in out and "#include" not in out
    file = tmp_path / "kernel.sass"
    status, out, _ = run(*words, "--show", "sass", "--output", str(file))
    assert (status, out) == (0, "")
    assert "HMMA" in file.read_text()
    report = json.loads(run(*words, "--show", "sass", "--json")[1])
    assert list(report) == ["format", "kernel", "arch", "symbol", "sass"]
    for kinds, part in (("ptx,sass", "names 2 kinds; expected one"), ("c", "'c' is not known")):
        status, out, err = run(*words, "--show", kinds)
        assert (status, out) == (2, "") and part in err


def test_the_environment_asks_for_messages(tmp_path):
    def said(level):
        words = ["compile", "NN", *SIZES, "--arch", "sm_80", "--kernel", "naive"]
        environment = {"CUTE_GEMM_LOG": level, "CUTE_GEMM_CACHE_DIR": str(tmp_path / "cache")}
        done = subprocess.run(
            [sys.executable, "-m", "cute_gemm", *words], capture_output=True, text=True,
            env=os.environ | environment,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stderr

    assert re.search(r"cute_gemm INFO: compiled naive\S+ for sm_80 in [.\d]+ s", said("info"))
    assert said("info") == ""
    assert re.search(r"DEBUG: read naive\S+ for sm_80 from the cache", said("debug"))
    assert "CUTE_GEMM_LOG='loud' is ignored; expected debug, info," in said("loud")


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
    assert "nvcc" not in run(*words, "--show", "ptx")[1]
    head = run(*words[:-1], "cutlass_universal")[1].splitlines()[:2]
    assert "not nvcc" in head[0] and "--device-as-default-execution-space" in head[1]
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
    assert run("analyze", "TN", *SIZES, "--arch", "sm_80", "--arch", "sm_90a")[0] == 2


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
    assert run("cache", "size")[1].startswith("1 build, ")
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


#: Uses kernels that were compiled ahead, where nothing can be compiled.
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
    words = ("compile", "--for", "NT", "--dtype", "float32", "--kernel", "naive",
             "--arch", "sm_80,sm_90a", "-o", str(place))  # fmt: skip
    status, out, err = run(*words)
    assert status == 0
    assert all(line.startswith("kernels compiled: ") for line in err.splitlines())
    lines = out.splitlines()
    count = int(lines[-1].split()[0])
    each = rf"{count // 2} kernels, [\d.]+ KiB of cubins"
    assert re.fullmatch(f"sm_80: {each}", lines[0]) and re.fullmatch(f"sm_90a: {each}", lines[1])
    taken = sum(path.stat().st_size for path in place.glob("*.build"))
    assert lines[-1] == f"{count} kernels, {size(taken)} in {place}"
    assert len(list(place.glob("*.build"))) == count >= 4 and not (tmp_path / "mine").exists()
    monkeypatch.setattr(base, "_builds", {})
    found = json.loads(run(*words, "--json")[1])
    assert (found["directory"], found["count"], found["bytes"]) == (str(place), count, taken)
    assert all(build["cached"] for build in found["builds"])

    # On a terminal, a progress bar counts selected problems, and then files.
    told: list[tuple[object, ...]] = []
    monkeypatch.setattr(compile_command, "progress", lambda: nullcontext(lambda *x: told.append(x)))
    planned, compiled = "problems planned", "kernels compiled"
    run(*words)
    assert told[0] == (planned, 0, told[0][2]) and told[-1] == (compiled, count, count)
    assert [one[0] for one in told] == [planned] * told[0][2] + [compiled] * (count + 1)

    place.chmod(0o500)
    before = {path: path.stat().st_mtime_ns for path in place.iterdir()}
    monkeypatch.setenv("CUTE_GEMM_CACHE_DIR", os.pathsep.join((str(tmp_path / "own"), str(place))))
    done = subprocess.run([sys.executable, "-c", SERVE], capture_output=True, text=True)
    assert (done.stdout.split(), done.stderr) == (["True"] * 4 + ["False"], "")
    assert {path: path.stat().st_mtime_ns for path in place.iterdir()} == before
    assert not list((tmp_path / "own").glob("*.build"))


@pytest.mark.parametrize(
    ("op", "dtype"),
    [
        # wgmma has many kernels.
        *(pytest.param(op, dtype, marks=pytest.mark.matrix)
          for op, dtype in (("NN", "float16"), ("NT", "float32/tf32"), ("TN", "int8"))),
        ("TT", "float32"), ("NT", "float64"), ("TN", "complex128"),
    ],
)  # fmt: skip
def test_what_is_compiled_ahead_is_all_that_is_chosen_from(op, dtype):
    """Test that all candidates are compiled, for other extents too, aligned or element-wise."""
    name, _, compute = dtype.partition("/")
    ahead = {each.symbol for each in _chosen_from([op], [dtype], ["sm_90a"], "auto", {})}
    aligned, odd = (16, 8192), (3, 4097)
    some = ((48, 1024, 8192), (1024, 48, 512), (63, 1023, 8193), (1023, 63, 513))
    pairs = (itertools.product(each, repeat=3) for each in (aligned, odd))
    for extents in (*itertools.chain(*pairs), *some):
        sizes = dict(zip("mnk", extents, strict=True))
        for order in "FC":
            made = cg.plan(op, **sizes, dtype=name, compute=compute or None, order=order,
                           arch="sm_90a", backend="cpu")  # fmt: skip
            assert made.symbol in ahead, made


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ([], "required: OP, --for or --layer"),
        (["TN", "--dtype", "float16,float32"], "float16,float32"),
        (["TN", "-o", "/nonexistent/a.cubin"], "is in a directory that does not exist"),
        (["TN", "--for", "NN"], "--for does not go with OP"),
        (["--for", "NN", "-m", "64", "--order", "C"], "--for does not go with m, order"),
        (["--for", "NX"], "expected two letters"),
        (["--for", "NN", "--dtype", "float12"], "float12"),
        (["--for", "NN", "-o", "a:b"], "expected a directory without ':'"),
        (["--for", "NN", "-o", __file__], "cannot be used"),
        (["--for", "NN", "-o", "-"], "--output - came with --for"),
        (["TN", "--layer", "64x64"], "--layer does not go with OP"),
        (["--layer", "64x64", "-m", "64", "--storage", "C"], "--layer does not go with m, storage"),
        (["--layer", "64x64", "-o", "-"], "--output - came with --layer"),
        (["--layer", "64x64", "--within", "2"], "--within 2; expected a fraction of 0 or more"),
        (["TN", "--tokens", "1:4"], "--tokens came without --layer"),
    ],
)
def test_what_cannot_be_compiled_ahead(run, words, part):
    status, _, err = run("compile", *words)
    assert status == 2 and part in err


def test_kernels_of_a_layer(run, tmp_path, monkeypatch):
    """Test that a process that compiles nothing uses the kernels."""
    place = tmp_path / "kernels"
    words = ("compile", "--layer", "96x64", "--tokens", "1:400:133", "--dtype", "float32", "--arch",
             "sm_80", "-o", str(place))  # fmt: skip
    status, out, _ = run(*words, "--json")
    found = json.loads(out)
    (layer,) = found["layers"]
    assert status == 0 and (layer["n"], layer["k"], found["tokens"]) == (96, 64, 4)
    assert 1 <= layer["kernels"] <= len(found["builds"]) and 1 <= layer["mean"] <= layer["worst"]
    assert layer["worst"] <= 1.02
    status, out, _ = run(*words)
    assert f"96 x 64, 4 numbers of tokens: {layer['kernels']} of " in out
    assert "CUTE_GEMM_PREFER_LOADED=0.02" in out
    symbols = {build["symbol"] for build in found["builds"]}
    for m in (1, 134, 267, 400):
        monkeypatch.setenv("CUTE_GEMM_CACHE_DIR", str(place))
        best = cg.plan("NT", m=m, n=96, k=64, dtype="float32", storage="C", order="C",
                       arch="sm_80", backend="cpu")  # fmt: skip
        built = [x for x in best.candidates() if best.taking(x).built]
        assert built[0].prediction.seconds <= 1.02 * best.candidates()[0].prediction.seconds
        assert best.taking(built[0]).symbol in symbols


def test_kernels_of_groups(run):
    words = ("NT", *SIZES, "--ragged", "N", "-l", "3", "--arch", "sm_80")
    status, out, _ = run("emit", *words)
    assert status == 0 and "groups_n" in out
    assert "groups_n" in json.loads(run("compile", *words, "--json")[1])["builds"][0]["symbol"]
    assert run("prove", *words)[0] == 0
    status, _, err = run("compile", "--for", "NT", "--ragged", "N")
    assert status == 2 and "--for does not go with ragged" in err


def test_prove(run, monkeypatch):
    words = (
        "prove", "TN", "NN", *SIZES, "--kernel", "naive", "--dtype", "float32", *compile_arch(),
    )  # fmt: skip
    status, out, _ = run(*words)
    assert (status, out.count(" facts hold, ")) == (0, 2)
    proofs = json.loads(run(*words, "--json")[1])["proofs"]
    assert len({proof["symbol"] for proof in proofs}) == 2
    assert proofs[0]["facts"][:3] == ["ElementA", "ElementB", "ElementC"]

    emitter = importlib.import_module("cute_gemm.kernels.simt.unit").EmitSimt
    facts = emitter.facts
    monkeypatch.setattr(emitter, "facts", lambda self: [*facts(self), ("1 == 2", "one is two")])
    status, _, err = run(*words)
    assert status == 2 and 'static assertion failed with "one is two"' in err
