"""Test ``cute-gemm run``: its output, and that its results are right."""

import json
import subprocess
import sys

import pytest
from command_line import SIZES, compile_arch

import cute_gemm as cg
from cute_gemm.run.driver import why_no_gpu


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


@pytest.mark.parametrize("kind", ["tensor", "row", "1x128", "128x128"])
def test_run_of_scaled_8_bit_floats_is_right(run, kind):
    words = ("NT", "-m", "150", "-n", "64", "-k", "272", "--dtype", "float8_e4m3fn", "--arch",
             "sm_90a", "--scale-a", kind, "--scale-b", "row", "--backend", "cpu")  # fmt: skip
    status, out, _ = run("run", *words)
    assert status == 0 and "all within" in out
    assert "scale_b is read as a number for each row" in " ".join(out.split())
    found = json.loads(run("run", *words, "--json")[1])
    assert (found["scale_a"], found["scale_b"], found["check"]["ok"]) == (kind, "row", True)


def test_run_of_two_types_and_fast_accum(run):
    pair = ("--dtype", "float8_e4m3fn x float8_e5m2", "--out-dtype", "float8_e5m2")
    words = ("TN", *SIZES, *compile_arch(), *pair, "--compute", "fast_accum", "--json")
    status, out, _ = run("run", *words)
    found = json.loads(out)
    assert status == 0 and found["check"]["ok"] and found["compute"] == "fast_accum"
    assert found["scale_a"] is None


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
    assert "--batch-a is not known" in run("analyze", *words, "--batch-a", "0")[2]


@pytest.mark.parametrize("ragged", "MNK")
@pytest.mark.parametrize("backend", ["cpu", "interpreter"])
def test_run_of_groups_is_right(run, ragged, backend):
    words = ("run", "TN", "-m40", "-n24", "-k36", "--ragged", ragged, "--dtype", "float32")
    words = *words, "--beta", "2", "--arch", "sm_80", "--backend", backend
    status, out, err = run(*words, "-l", "3")
    extent = {"M": 40, "N": 24, "K": 36}[ragged]
    assert status == 0, err
    assert "all within" in out and f"3 groups of {(extent + 2) // 3 - ragged.count('M') * 2}" in out
    status, out, _ = run(*words, "--group-sizes", "5,0,19,1", "--json")
    found = json.loads(out)
    assert (status, found["check"]["ok"], found["l"]) == (0, True, 4)
    assert (found["ragged"], found["offsets"]) == (ragged, [5, 5, 24, 25])
    assert found[ragged.lower()] == 25 and found["report"]["groups"].startswith("4 groups of 0 to")


def test_run_of_groups_of_8_bit_floats_is_right(run):
    words = ("NT", "-n", "64", "-k", "272", "--dtype", "float8_e4m3fn", "--arch", "sm_90a")
    blocks = ("--scale-a", "1x128", "--scale-b", "128x128", "--backend", "cpu")
    status, out, err = run("run", *words, *blocks, "--ragged", "M", "--group-sizes", "70,0,9")
    assert status == 0 and "all within" in out, err


@pytest.mark.parametrize("empty", ["-m", "-k"])
def test_run_of_groups_of_nothing(run, empty):
    status, _, err = run("run", "TN", *SIZES, empty, "0", "--ragged", "M", *compile_arch())
    assert status == 0, err


@pytest.mark.parametrize("empty", ["-m", "-k", "-l"])
def test_run_of_nothing(run, empty):
    status, _, _ = run("run", "TN", *SIZES, empty, "0", *compile_arch())
    assert status == 0


def test_run_of_the_loop_on_the_host(run):
    status, out, _ = run("run", "TN", *SIZES, "--kernel", "host", "--json")
    result = json.loads(out)
    assert (status, result["backend"], result["check"]["ok"]) == (0, "cpu", True)
    assert "report" not in result and "build" not in result and "timing" not in result


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


@pytest.mark.skipif(why_no_gpu() is None, reason="there is a GPU")
def test_asking_for_a_gpu_without_one(run):
    status, _, err = run("run", "TN", *SIZES, "--backend", "cuda")
    assert status == 2
    assert "GPU" in err
