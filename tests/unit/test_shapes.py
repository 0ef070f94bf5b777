"""Test ``tests/gpu/shapes.py``, which times calls with new shapes, without a GPU."""

import sys
from types import SimpleNamespace

import numpy as np
from fake_arrays import on_h200
from gpu import shapes

from cute_gemm import api
from cute_gemm.run import driver


def test_shapes_are_drawn_from_the_seed():
    drawn = shapes.draw(200, 7, ("NN", "TN"))
    assert drawn == shapes.draw(200, 7, ("NN", "TN")) != shapes.draw(200, 8, ("NN", "TN"))
    assert len(set(drawn)) == 200 and {shape.op for shape in drawn} == {"NN", "TN"}
    extents = [extent for shape in drawn for extent in shape[1:]]
    assert 1 <= min(extents) < 4 and 2048 < max(extents) <= shapes.LARGEST


def test_without_a_gpu_calls_end_before_their_launch(capsys, monkeypatch):
    monkeypatch.setattr(driver, "why_no_gpu", lambda: "no driver")
    shapes.main(["--count", "40", "--kernels", "naive", "--ops", "TN", "--dtype", "f16"])
    first, heads, *rows, kept = capsys.readouterr().out.splitlines()
    assert first == "without a launch: no driver" and heads.split()[2:4] == ["calls", "median"]
    calls = {row[20:32].strip(): int(row[32:40]) for row in rows}
    assert calls["new kernel"] >= 1 and calls["new kernel"] + calls["new shape"] == 40
    assert calls["repeated"] == 40 and " plans" in kept
    for row in rows:
        median, p90, worst = map(float, row[40:].replace(",", "").split())
        assert 0 < median <= p90 <= worst


def test_on_a_gpu_they_are_calls_of_gemm(monkeypatch):
    calls, ahead = [], []
    torch = SimpleNamespace(float32="f4", empty=lambda count, dtype, device: np.empty(count, dtype))
    monkeypatch.setitem(sys.modules, "torch", torch)
    on_h200(monkeypatch)
    monkeypatch.setattr(driver, "synchronize", lambda device: calls.append("wait"))
    monkeypatch.setattr(
        api, "gemm", lambda op, A, B, C, **_: calls.append((op, A.shape, B.shape, C.shape))
    )
    monkeypatch.setattr(api, "compile", lambda plans: ahead.extend(p.symbol for p in plans))
    drawn = shapes.draw(5, 0, ("TN",))
    times = shapes.measure(shapes.Gpu("float32"), "auto", drawn)
    assert len(set(ahead)) == len(ahead) == len(times["new kernel"])
    expected = [("TN", (k, m), (k, n), (m, n)) for _, m, n, k in drawn]
    assert calls == [step for call in expected for step in (call, call, "wait")]
