"""Test unusual inputs and environments: one sentence each, no traceback, no hang."""

import io
import json
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

import cute_gemm as cg
from cute_gemm._text import printable
from cute_gemm.commands import cli
from cute_gemm.errors import GemmError, OptionError, StrideError
from cute_gemm.measure.bench import bench
from cute_gemm.toolchain import cache

A = np.ones((4, 4), np.float32)
ANALYZE = ["analyze", "TN", "-m", "64", "-n", "64", "-k", "64", "--arch", "sm_80"]


def shell(line: str, **environment: str) -> subprocess.CompletedProcess:
    """Run a shell command with this ``cute-gemm``."""
    line = line.replace("cute-gemm", f"{sys.executable} -m cute_gemm")
    return subprocess.run(
        ["bash", "-c", line], capture_output=True, check=False, timeout=60,
        env=os.environ | environment,
    )  # fmt: skip


# -- streams ----------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_any_encoding_of_stdout(encoding, monkeypatch):
    def printed(*words: str) -> bytes:
        out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", out)
            assert cli.main([*ANALYZE, *words]) == 0
        return out.buffer.getvalue()

    assert printed().isascii()
    page = printed("--html", "-").decode("utf-8")
    assert '<meta charset="utf-8">' in page and "\u2713" in page


def test_what_is_printed_is_ascii():
    found = cg.analyze("TN", m=64, n=64, k=64, dtype="float16", arch="sm_80")
    assert str(found).isascii() and repr(found).isascii()


@pytest.mark.parametrize(
    ("line", "status", "says"),
    [
        ("cute-gemm kernels >&-", 0, b""),
        ("cute-gemm kernels >&- 2>&-", 0, b""),
        (f"cute-gemm {' '.join(ANALYZE)} >&-", 0, b""),
        ("cute-gemm run XX 2>&-", 2, b""),
        ("cute-gemm kernels > /dev/full", 2, b"cute-gemm: [Errno 28] No space left on device\n"),
        ("cute-gemm --help | true", 0, b""),
    ],
)
def test_streams_that_are_closed_or_full(line, status, says):
    done = shell(line)
    assert (done.returncode, done.stdout, done.stderr) == (status, b"", says)


def test_control_characters_do_not_reach_the_terminal(capsys):
    evil = "\x1b[31mred\x07\x9b"
    for words in (["run", "TN", "--order", evil], ["run", "TN", evil], ["copy", "--tensor", evil,
                  "--atom", evil], ["emit", "TN", "--copy", evil, "--arch", "sm_80"],
                  ["analyze", "TN", "--gpu", evil]):  # fmt: skip
        assert cli.main(words) == 2
        out, err = capsys.readouterr()
        assert not {"\x1b", "\x07", "\x9b"} & {*out, *err}
        assert err.count("\n") == 1 + err.count("note:")
    assert printable("a\x1bb\x7f\nc\u00e9") == "a\\x1bb\\x7f\nc\u00e9"


# -- arguments --------------------------------------------------------------------------------

WORDS = ("kernel", "backend", "arch", "order", "out_dtype", "compute", "tile", "copy")


@pytest.mark.parametrize("value", [["naive"], {}, {"a": 1}, [[1]]], ids=repr)
@pytest.mark.parametrize("name", WORDS)
def test_words_without_a_hash(name, value):
    with pytest.raises(GemmError, match=name):
        cg.gemm("NN", A, A, **{name: value})
    with pytest.raises(GemmError, match=name):
        cg.plan("NN", m=4, n=4, k=4, **{"dtype": "float32", name: value})


@pytest.mark.parametrize("gpu", [3, ["H200"], {}, b"H200", ("H200",), 1.5], ids=repr)
def test_what_is_no_gpu(gpu):
    made = cg.plan("NN", m=4, n=4, k=4, dtype="float32", arch="sm_80")
    for asks in (lambda: made.report(gpu=gpu), lambda: cg.analyze("NN", A, A, gpu=gpu)):
        with pytest.raises(OptionError, match="gpu="):
            asks()


@pytest.mark.parametrize("seed", [-1, 1.5, "0"])
def test_a_seed_is_a_natural_number(seed, capsys):
    with pytest.raises(OptionError, match="seed="):
        bench(["NN"], "host", [8], seed=seed)
    if seed == -1:
        assert cli.main(["run", "TN", "-m", "8", "--seed", "-1", "--backend", "cpu"]) == 2
        assert "seed=-1; expected an integer, 0 or more" in capsys.readouterr().err


def test_values_that_are_no_values(capsys):
    for words, part in (
        (["bench", "NN", "--kernel", "host", "--sizes", "8", "-l", "0"], "l=0; expected 1 or more"),
        (["analyze", "TN", "--out-dtype", ""], "C of dtype  does not go with"),
    ):
        assert cli.main(words) == 2
        assert part in capsys.readouterr().err


def test_a_matrix_larger_than_memory_can_be():
    n = 2**31 - 1
    with pytest.raises(StrideError) as refused:
        cg.plan("TN", m=n, n=n, k=n, dtype="float16")
    assert "at least 2147483647" not in str(refused.value)
    assert "larger than memory can be" in str(refused.value)


def test_a_report_is_a_container_of_its_operands():
    found = cg.analyze("NN", A, A, arch="sm_80")
    assert list(found) == ["A", "B", "C"]
    assert "A" in found and "Z" not in found and 0 not in found
    assert repr(found).startswith("<Report: gemm NN m=4 n=4 k=4 float32") and "\n" not in repr(
        found
    )


def test_a_usage_error_is_one_line_and_json(capsys):
    for words in (["run", "TN", "-m", "many", "--json"], ["frobnicate", "--json"],
                  ["bench", "--rounds", "x", "--json"]):  # fmt: skip
        assert cli.main(words) == 2
        out, err = capsys.readouterr()
        assert err.count("\n") == 1
        failure = json.loads(out)["error"]
        assert failure["type"] == "OptionError" and failure["message"] in err
    assert cli.main(["bench", "--rounds", "x", "--output", "file.json"]) == 2
    assert capsys.readouterr().out == ""


# -- files ------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cache, "_warned", set())
    monkeypatch.setenv("CUTE_GEMM_CACHE_DIR", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["fifo", "directory"])
def test_what_is_no_file_in_the_cache(make, place):
    """Test files that are not regular. Reading a FIFO would block for ever."""
    from test_cache import BUILD

    make(place / "key.build")
    make(place / "headers.json")
    assert cache.get("key") is None and cache.entries() == []
    (place / "include").mkdir()
    with pytest.warns(UserWarning, match="cannot be used") if make is os.mkdir else nullcontext():
        cache.headers_digest([place / "include"])
    cache.put("other", BUILD)
    assert [entry.key for entry in cache.entries()] == ["other"]


def test_clear_says_what_it_removed(place, capsys):
    from test_cache import BUILD

    cache.put("one", BUILD)
    length = cache.size()
    (place / "held.build").mkdir()  # a directory, which unlink does not remove
    assert cli.main(["cache", "clear", "--json"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert (done["removed"], done["bytes"], done["left"]) == (1, length, 1)
    assert cli.main(["cache", "clear"]) == 0
    assert "0 builds, 0 bytes removed" in (said := capsys.readouterr().out)
    assert "1 could not be removed" in said
