"""Test the output of commands on terminals of any width: every word is complete at each width."""

import io
import re
import sys
from types import SimpleNamespace

import pytest
from test_bench_result import result, size

from cute_gemm._text import plain, wrapped
from cute_gemm.commands import cli, output
from cute_gemm.measure.counters import Comparison
from cute_gemm.measure.profile import Case, Profile

WIDTHS = (60, 80, 100, 120)
WIDE = 400
SIZES = ["-m", "4104", "-n", "4096", "-k", "4100", "--arch", "sm_80"]
COMMANDS = {
    "analyze": ["analyze", "NN", *SIZES, "--kernel", "sm80_pipeline", "--copy", "mn_major"],
    "analyze of the ladder": ["analyze", "TT", *SIZES, "--kernel", "double_buffered"],
    "copy": ["copy", "--tensor", "(128,32):(4096,1)", "--threads", "(16,8):(1,16)", "--values",
             "(8,1):(1,8)", "--atom", "cp.async.128", "--smem", "(128,32):(32,1)"],
    "copy of tiles": ["copy", "--tensor", "(128,32):(4096,1)", "--threads", "(32,4):(4,1)",
                      "--atom", "cp.async.128", "--smem", "(128,32):(40,1)", "--extents",
                      "1000x100", "--arch", "sm_80"],
    "copy of bytes": ["copy", "--tensor", "(16,16):(16,1)", "--atom", "SM100_U8x8_LDSM_T",
                      "--dtype", "int8"],
    "copy in bulk": ["copy", "--tensor", "(128,40):(4100,1)", "--tile", "1x40", "--atom",
                     "cp.async.bulk"],
    "reduction": ["copy", "--tensor", "(128,32):(0,1)", "--threads", "(4,32):(32,1)", "--atom",
                  "atom.global.add.f32", "--dtype", "float32"],
    "explain": ["explain", "smem_tiled", "NN", *SIZES, "--dtype", "float32"],
    "explain, refused": ["explain", "coalesced", "NN", *SIZES, "--dtype", "float32"],
    "run": ["run", "TN", "-m", "96", "-n", "80", "-k", "64", "--backend", "cpu", "--arch", "sm_80"],
    "compile": ["compile", "TN", "-m", "96", "-n", "80", "-k", "64", "--arch", "sm_80"],
    "kernels": ["kernels"],
    "doctor": ["doctor"],
    "cache": ["cache", "size"],
}  # fmt: skip
PROFILE = Profile(
    Case("NN", 512, 512, 256, "float16", options={"tile": "128x128x32"}),
    "sm80_pipeline_of_a_long_name",
    tuple(
        Comparison(f"{what} stores", "conflicts", 1234567890, 1234567890, metric)
        for what, metric in (("shared", ""), ("global", "a metric"))
    ),
)


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def printed(monkeypatch):
    """Return a function: (function that prints, width of the terminal) -> output."""

    def call(prints, width: int) -> str:
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setattr(sys, "stdout", Terminal())
        prints()
        return re.sub(r"\x1b\[[0-9;]*m", "", sys.stdout.getvalue())

    return call


def words(text: str) -> set[str]:
    """Return all words of a text except rules, and without times of builds."""
    text = re.sub(r"(cached, )?[\d.]+ m?s(: |, )", "", text)
    return {word for word in text.split() if set(word) != {"-"}}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_cuts_nothing(command, printed, monkeypatch, tmp_path):
    if command in ("doctor", "cache"):  # they count builds: use a cache without other tests
        monkeypatch.setenv("CUTE_GEMM_CACHE_DIR", str(tmp_path))
    whole = printed(lambda: cli.main(COMMANDS[command]), WIDE)
    for width in WIDTHS:
        check(printed(lambda: cli.main(COMMANDS[command]), width), whole, width)


@pytest.mark.parametrize(
    "found",
    [result(size(4096, 4096, 4096), size(1000, 1003, 1001)), PROFILE],
    ids=lambda x: type(x),
)
def test_what_a_gpu_found_is_not_cut(found, printed):
    whole = printed(lambda: output.show(found), WIDE)
    for width in WIDTHS:
        check(printed(lambda: output.show(found), width), whole, width)


def check(text: str, whole: str, width: int) -> None:
    """Check that every word is present, and that only single words exceed the width."""
    assert text.isascii()
    assert words(text) == words(whole)
    for number in re.findall(r"[\d.,]+ (?:%|us|[kMGT]B|bits)(?![\w/])", whole):
        assert number in text, number
    for line in text.splitlines():
        assert len(line) <= width or " " not in line.strip().removeprefix("-> "), line


def test_a_line_is_broken_between_words_alone():
    text = "at least 441 us, Sw<3,3,3> o 0 o (8,64):(64,1), of 12.5 % in 16 bytes/request, 9 MB"
    for width in range(1, 90):
        lines = wrapped(text, width)
        assert " ".join(lines) == text
        for bound in ("441 us,", "Sw<3,3,3> o 0 o (8,64):(64,1),", "12.5 %", "9 MB"):
            assert any(bound in line for line in lines)
    assert wrapped("  a b c", 4, hang=1) == ["  a", "   b", "   c"]


def test_a_table_of_any_width_has_every_cell():
    from test_tables import TABLE

    shown = SimpleNamespace(__rich_console__=TABLE.__rich_console__)
    whole = words(plain(TABLE, WIDE))
    for width in range(1, 60):
        assert words(plain(shown, width)) == whole
