"""Test tables, JSON and plots of a given result, without measurements."""

import json
from dataclasses import replace

import pytest
from cases import OPS

from cute_gemm.errors import OptionError
from cute_gemm.measure.result import BenchResult, Entry, SizeResult, Speed
from cute_gemm.problem.describe import from_sizes
from cute_gemm.report.performance import performance
from cute_gemm.toolchain.signature import Launch


def entry(kernel: str, op: str, gflops: float, share: float | None) -> Entry:
    milliseconds = 2 * 4096**3 / gflops / 1e6
    speed = Speed(milliseconds, (0.99 * milliseconds, 1.01 * milliseconds), gflops, share,
                  gflops / 66900, 9, 3)  # fmt: skip
    return Entry(kernel, op, "ok", "", f"{kernel}_config", 1e-4, speed)


def size(m: int, n: int, k: int, ops=OPS, entries=()) -> SizeResult:
    problem = from_sizes("NN", m=m, n=n, k=k, dtype="float32")
    roofline = performance(problem, Launch(0, 32, 0), "sm_90a", (), gpu="H200").roofline
    ours = [entry("cutlass_universal", op, 51234.0 + 100 * i, 0.987) for i, op in enumerate(ops)]
    slow = [entry("naive", op, 12.34, 0.00777) for op in ops]
    blas = [entry("cublas", op, 52000.0, 1.0) for op in ops]
    return SizeResult(m, n, k, 1, roofline, (*slow, *ours, *entries, *blas))


def result(*sizes: SizeResult, ops=OPS) -> BenchResult:
    return BenchResult("float32", "float32", "F", ops, "NVIDIA H200", "sm_90a", "13.1", True, 9, 0,
                       0, sizes)  # fmt: skip


def rows(text: str, kernel: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.split()[:1] == [kernel]]


def test_a_table_is_readable():
    text = str(result(size(4096, 4096, 4096)))
    assert max(map(len, text.splitlines())) <= 100
    [row] = rows(text, "cutlass_universal")
    assert row[1:3] == ["51,234", "98.7"] and row[7:] == ["51,534", "98.7", "76.6-77.0"]
    assert rows(text, "naive")[0][1:3] == ["12.3", "0.78"]
    assert rows(text, "naive")[0][-1] == "0.02"  # equal ends are printed as one number
    assert "66,900 GFLOP/s, bound by operations (66.9 TFLOP/s of the CUDA cores" in text
    assert "on NVIDIA H200 (sm_90a), next to cuBLAS: 13.1" in text
    assert "\x1b" not in text


def test_long_names_stay_within_the_line():
    name = "a_module_of_my_own.kernels:the_fastest_there_is"
    text = str(result(size(64, 64, 64, entries=[entry(name, op, 123456.7, 1.234) for op in OPS])))
    assert max(map(len, text.splitlines())) <= 100
    assert text.count("123,457") == 4


def test_more_than_four_ops_are_below_each_other():
    ops = (*OPS, "CN", "NC")
    text = str(result(size(64, 64, 64, ops), ops=ops))
    assert max(map(len, text.splitlines())) <= 100
    assert len(rows(text, "naive")) == 2
    assert len(rows(text, "naive")[1]) == 1 + 2 * 2 + 1


def test_what_has_no_speed_says_why():
    entries = [Entry("panels", op, "refused", "K of [64] is too large") for op in OPS]
    entries += [entry("bad", op, 1.0, 0.1) for op in OPS[:2]]
    entries += [Entry("bad", op, "wrong", "3 elements") for op in OPS[2:]]
    entries += [Entry("broken", op, "failed", "it spills") for op in OPS]
    found = result(size(64, 64, 64, entries=entries))
    text = str(found)
    assert rows(text, "panels") == [["panels", "-", "-", "-", "-"]]
    assert rows(text, "bad")[0][5:7] == ["WRONG", "WRONG"]
    assert rows(text, "broken")[0][1] == "FAILED"
    assert "- panels: K of [64] is too large\n" in text  # brackets are not interpreted as markup
    assert "- bad TN TT: WRONG: 3 elements\n" in text
    assert "- broken: FAILED: it spills\n" in text
    assert not found.ok
    assert result(size(64, 64, 64, entries=entries[:4])).ok


def test_copies_are_said():
    assert "11 copies of the matrices" in str(result(replace(size(64, 64, 64), copies=11)))


def test_json_has_everything():
    found = result(size(4096, 4096, 4096), size(1000, 1003, 1001))
    values = json.loads(found.to_json())
    assert values == json.loads(json.dumps(found.to_dict()))
    assert [(s["m"], s["n"], s["k"]) for s in values["sizes"]] == [(4096,) * 3, (1000, 1003, 1001)]
    assert values["sizes"][0]["roofline"]["attainable_tflops"] == 66.9
    first = values["sizes"][0]["entries"][0]
    assert first["speed"]["of_cublas"] == 0.00777
    assert len(first["speed"]["quartiles"]) == 2
    bare = replace(found, sizes=(replace(found.sizes[0], roofline=None),))
    assert bare.to_dict()["sizes"][0]["roofline"] is None


def test_a_result_is_read_from_its_json():
    batch = replace(size(8, 8, 8), l=3, copies=7, roofline=None)
    failed = [Entry("bad", op, "failed", "it spills") for op in OPS]
    found = result(size(4096, 4096, 4096, entries=failed), batch)
    again = BenchResult.from_dict(json.loads(found.to_json()))
    assert again == found and str(again) == str(found)
    values = json.loads(found.to_json())
    for wrong, part in (
        ({**values, "format": 2}, "format 2; expected 1"),
        ([], "format None"),
        ({name: x for name, x in values.items() if name != "gpu"}, "has no 'gpu'"),
        ({**values, "sizes": [{"m": 8}]}, "has no 'roofline'"),
        ({**values, "sizes": 3}, "does not fit: .*; expected what `cute-gemm bench --output FILE`"),
    ):
        with pytest.raises(OptionError, match=part):
            BenchResult.from_dict(wrong)


def test_an_entry_is_found():
    one = size(64, 64, 64)
    assert one.find("naive", "TN").op == "TN"
    with pytest.raises(KeyError, match="'fast'"):
        one.find("fast", "TN")
