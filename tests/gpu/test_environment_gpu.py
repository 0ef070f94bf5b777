"""Test faults of the environment: memory, contexts, foreign kernels, processes, graphs, streams.

A fault that makes the GPU unusable for its process is tested in a process of its own. Later calls
must return a right result or raise a ``GemmError`` of one sentence, and the process must end.
"""

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from device_matrices import DEVICE

import cute_gemm as cg
from cute_gemm._kept import clear_all
from cute_gemm.errors import LaunchError, OutOfMemoryError
from cute_gemm.plan import tuned

#: Beginning of each process. Elements are integers, so that products are exact.
PRELUDE = """
import sys, numpy as np, torch, cute_gemm as cg
from cute_gemm.errors import GemmError
def operands(size=320, seed=0):
    torch.manual_seed(seed)
    return [torch.randint(-4, 5, (size, size), device="cuda").float() for _ in "AB"]
def right(C, A, B):
    return bool((C == (A.double() @ B.double()).float()).all())
def outcome(call):
    try:
        value = call()
    except torch.AcceleratorError as error:  # of the comparison: the launch was accepted
        return f"LaunchError: {error.args[0].splitlines()[0]}"
    except GemmError as error:
        text = str(error)
        assert "\\n" not in text and len(text) > 20, text
        return f"{type(error).__name__}: {text}"
    return "right" if value else "WRONG"
"""


def process(script: str, **environment: str) -> subprocess.Popen[str]:
    """Start a process that prints its results."""
    path = os.pathsep.join(filter(None, sys.path))
    return subprocess.Popen(
        [sys.executable, "-c", PRELUDE + script], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env={**os.environ, "PYTHONPATH": path, **environment},
    )  # fmt: skip


def lines(running: subprocess.Popen[str]) -> list[str]:
    """Return the lines that a process printed, and check that it exits with 0."""
    try:
        out, err = running.communicate(timeout=150)
    finally:
        running.kill()
    assert running.returncode == 0, err[-2000:]
    return out.splitlines()


def test_memory_that_there_is_not() -> None:
    """Test a scratch buffer that exceeds memory: A has overlapping rows. Later calls work."""
    rows = 1 << 21
    A = torch.ones(2 * rows, device=DEVICE).as_strided(
        (rows, rows), (1, 1)
    )  # (M, K), 16 TiB if packed
    B = torch.ones(16, rows, device=DEVICE).T
    small = torch.ones(64, 64, device=DEVICE)
    cg.gemm("NN", small, small)
    torch.cuda.synchronize()
    for _ in range(3):
        with pytest.raises(OutOfMemoryError, match=r"TiB\) were asked for on device"):
            cg.gemm("NN", A, B, pack="A", kernel="sm80_pipeline", compute="tf32")
        assert (cg.gemm("NN", small, small) == 64).all()


FAULTS = {
    # A kernel of another library accesses unallocated memory.
    "illegal address": """
import cupy
A, B = operands()
print(outcome(lambda: right(cg.gemm("NN", A, B), A, B)))
bad = cupy.RawKernel('extern "C" __global__ void bad(float* p) { p[1ull << 44] = 1; }', "bad")
bad((1,), (1,), (cupy.zeros(1, "f4"),))
for _ in range(3):
    print(outcome(lambda: right(cg.gemm("NN", A, B), A, B)))
print(outcome(lambda: bool((cg.gemm("NN", *(np.ones((64, 64), "f4"),) * 2) == 64).all())))
sys.stdout.flush()
""",
    # The primary context is reset, which unloads every kernel.
    "device reset": """
ones = np.ones((192, 192), "f4")
def call():
    return bool((cg.gemm("NN", ones, ones, backend="cuda") == 192).all())
print(outcome(call))
from cuda.bindings import runtime
runtime.cudaDeviceReset()
for _ in range(3):
    print(outcome(call))
sys.stdout.flush()
""",
    # The user's own context is current, and then destroyed.
    "context destroyed": """
from cuda.bindings import driver
ones = np.ones((192, 192), "f4")
def call():
    return bool((cg.gemm("NN", ones, ones, backend="cuda") == 192).all())
driver.cuInit(0)
new = (None,) if driver.CUDA_VERSION >= 13000 else ()  # CUDA 13 takes parameters first
code, context = driver.cuCtxCreate(*new, 0, 0)
assert not int(code), code
print(outcome(call))
driver.cuCtxDestroy(context)
for _ in range(3):
    print(outcome(call))
sys.stdout.flush()
""",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_after_a_fault(fault: str) -> None:
    first, *after = lines(process(FAULTS[fault]))
    assert first == "right"
    for said in after:
        assert said == "right" or said.startswith(("LaunchError: ", "CubinError: ")), after
    if fault == "illegal address":
        assert all("llegal" in said for said in after), after
        assert "CUDA_ERROR_ILLEGAL_ADDRESS" in after[-1], after
    if fault == "context destroyed":
        assert after == ["right"] * 3


SHARES = """
wrong = 0
for turn in range(200):
    A, B = operands(256 + 64 * (turn % 5), turn)
    wrong += not right(cg.gemm("NN", A, B), A, B)
print(wrong)
"""


def test_processes_share_a_device_and_a_cold_cache(tmp_path: Path) -> None:
    place = str(tmp_path / "cache")
    running = [process(SHARES, CUTE_GEMM_CACHE_DIR=place) for _ in range(3)]
    assert [lines(each) for each in running] == [["0"]] * 3


TUNES = """
A, B = operands(1024)
print(right(cg.gemm("NN", A, B, tune=True), A, B))
"""


def test_processes_tune_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Test that processes measure in turn, and that one config is stored for each problem."""
    place = str(tmp_path / "cache")
    scripts = [TUNES.replace("1024)", f"{size})", 1) for size in (1024, 1024, 768)]
    running = [process(script, CUTE_GEMM_CACHE_DIR=place) for script in scripts]
    assert [lines(each) for each in running] == [["True"]] * 3
    monkeypatch.setenv("CUTE_GEMM_CACHE_DIR", place)
    assert list(tuned.stored().values()) == [2]


def test_a_graph_outlives_what_it_was_captured_of() -> None:
    """Test a graph whose scratch, plans and cached calls are gone. It replays with new numbers."""
    torch.manual_seed(3)
    A, B, C = (torch.zeros(512, 512, device=DEVICE) for _ in "ABC")
    calls: tuple[dict[str, Any], ...] = (
        {}, {"split_k": 4}, {"pack": "AB", "kernel": "sm80_pipeline", "compute": "tf32"},
    )  # fmt: skip
    for options in calls:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            cg.gemm("NN", A, B, C, **options)
            graph = torch.cuda.CUDAGraph()
            stream.synchronize()
            with torch.cuda.graph(graph, stream=stream):
                cg.gemm("NN", A, B, C, **options)
        del stream
        clear_all()
        gc.collect()
        torch.cuda.empty_cache()
        others = [torch.full((1 << 22,), torch.nan, device=DEVICE) for _ in range(8)]
        for _ in range(3):
            for x in (A, B):
                x.copy_(torch.randint(-4, 5, x.shape, device=DEVICE))
            C.fill_(torch.nan)
            graph.replay()
            assert torch.equal(C.double(), A.double() @ B.double())
        assert all(bool(x.isnan().all()) for x in others)
        del graph


def test_streams_that_are_gone() -> None:
    """Test handles of destroyed streams, which CUDA reuses, with cached launches."""
    from cuda.bindings import driver

    A, B = (torch.randint(-4, 5, (256, 256), device=DEVICE).float() for _ in "AB")
    expected = (A.double() @ B.double()).float()
    torch.cuda.synchronize()
    for turn in range(60):
        _, stream = driver.cuStreamCreate(1)
        C = torch.full((256, 256), torch.nan, device=DEVICE)
        torch.cuda.synchronize()
        cg.gemm("NN", A, B, C, stream=int(stream), split_k=1 + turn % 3)
        driver.cuStreamSynchronize(stream)
        driver.cuStreamDestroy(stream)
        assert torch.equal(C, expected)


def test_threads_share_plans_on_streams() -> None:
    """Test eight threads with four streams each, and plans with and without scratch."""
    A, B = (torch.randint(-4, 5, (384, 384), device=DEVICE).float() for _ in "AB")
    product = A.double() @ B.double()
    C = torch.empty(384, 384, device=DEVICE)
    plans = [cg.plan("NN", A, B, C, **x) for x in ({}, {"split_k": 3}, {"split_k": 2})]
    for plan in plans:
        plan(A, B, C)
    torch.cuda.synchronize()
    failures: list[str] = []

    def work(number: int) -> None:
        streams = [torch.cuda.Stream() for _ in range(4)]
        results = [torch.full_like(C, torch.nan) for _ in range(12)]
        torch.cuda.synchronize()
        for _ in range(40):
            for place, result in enumerate(results):
                with torch.cuda.stream(streams[place % 4]):
                    alpha = 1 + number + place
                    plans[place % 3](A, B, result, alpha=alpha, stream=streams[place % 4])
        torch.cuda.synchronize()
        for place, result in enumerate(results):
            if not torch.equal(result.double(), (1 + number + place) * product):
                failures.append(f"thread {number}, result {place}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_two_gpus_at_once() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip(f"needs two GPUs; there is {torch.cuda.device_count()}")
    wrong: list[int] = []

    def work(device: int) -> None:
        where = f"cuda:{device}"
        for size in range(128, 640, 64):
            A, B = (torch.randint(-4, 5, (size, size), device=where).float() for _ in "AB")
            for options in ({}, {"split_k": 2}):
                C = cg.gemm("NN", A, B, **options)
                if C.device != A.device or not torch.equal(C.double(), A.double() @ B.double()):
                    wrong.append(size)

    threads = [threading.Thread(target=work, args=(turn % 2,)) for turn in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    with pytest.raises((LaunchError, ValueError), match="device"):
        cg.gemm("NN", torch.ones(8, 8, device="cuda:0"), torch.ones(8, 8, device="cuda:1"))
