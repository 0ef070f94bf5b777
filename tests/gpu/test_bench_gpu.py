"""Test the benchmark on a device: what it runs, checks and rejects, and cuBLAS's results.

No test depends on the measured speed.
"""

import itertools
import json

import numpy as np
import pytest
import torch
from cases import OPS

import cute_gemm as cg
from cute_gemm.arrays import read
from cute_gemm.commands import cli
from cute_gemm.dtypes import DTYPES
from cute_gemm.kernels.library.cublas import Cublas, CublasError
from cute_gemm.measure.bench import bench
from cute_gemm.measure.compare import compare
from cute_gemm.measure.matrices import DeviceMatrices, Factors
from cute_gemm.measure.result import SizeResult
from cute_gemm.measure.timed import time_plan
from cute_gemm.problem.describe import from_operands, from_sizes
from cute_gemm.problem.scalars import Scalar
from cute_gemm.problem.verify import verify
from cute_gemm.run import memory
from cute_gemm.run.driver import device_arch, device_name, entered
from cute_gemm.run.timing import l2_bytes

M, N, K = 72, 40, 56


def bench_one(*arguments, **more) -> SizeResult:
    """Bench with few rounds, and return the only size."""
    found = bench(*arguments, **{"rounds": 3, **more})
    assert found.ok, str(found)
    [size] = found.sizes
    for entry in size.entries:
        if entry.outcome == "ok":
            first, third = entry.speed.quartiles
            assert 0 < first <= entry.speed.milliseconds <= third
            assert entry.speed.gflops > 0
    return size


@pytest.mark.parametrize("order", ["F", "C"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_kernels_are_checked_and_timed(dtype, order):
    size = bench_one(OPS, "sm80_pipeline,cutlass_universal,auto", [(256, 136, 72)], dtype,
                     order=order)  # fmt: skip
    assert size.copies > 1
    assert size.kernels == ("sm80_pipeline", "cutlass_universal", "auto", "cublas")
    for op in OPS:
        assert size.find("sm80_pipeline", op).outcome == "ok"
        assert size.find("sm80_pipeline", op).max_error > 0
        blas = size.find("cublas", op)
        assert blas.outcome == "refused" or blas.speed.of_cublas == 1


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_the_whole_ladder_is_right(dtype):
    size = bench_one(OPS, "ladder", [(257, 131, 67)], dtype)
    assert "naive" in size.kernels and "double_buffered" in size.kernels
    for op in OPS:
        assert size.find("naive", op).outcome == size.find("host", op).outcome == "ok"


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_complex_ops(dtype):
    size = bench_one(["NN", "CN", "TC"], "double_buffered,auto", [(65, 66, 67)], dtype)
    assert all(entry.outcome == "ok" for entry in size.entries if entry.kernel != "cublas")


def test_a_panel_that_does_not_fit_is_refused():
    size = bench_one(["NN"], "smem_full_k", [(64, 64, 8192)])
    entry = size.find("smem_full_k", "NN")
    assert entry.outcome == "refused" and "8192" in entry.reason


def by_torch(op, A, B, C):
    """Compute the product, as a user's function would."""
    a, b, c = (torch.as_tensor(x, device="cuda") for x in (A, B, C))
    c.copy_((a if op[0] == "N" else a.T) @ (b if op[1] == "N" else b.T))


def test_a_function_of_ones_own():
    pytest.importorskip("torch")
    size = bench_one(OPS, [], [(96, 64, 80)], "float32", against=[by_torch], order="C")
    name = f"{__name__}:by_torch"
    assert all(size.find(name, op).max_error > 0 for op in OPS)


def test_a_function_that_leaves_c_alone_is_wrong():
    found = bench(["NN"], [], [64], against=[lambda op, A, B, C: None], rounds=1)
    [size] = found.sizes
    assert not found.ok
    assert size.entries[0].outcome == "wrong"
    assert "4,096 of 4,096" in size.entries[0].reason  # all elements were NaN


def test_matrices_on_the_device_and_back():
    problem = from_sizes("TN", m=M, n=N, k=K, dtype="float16")
    factors, C = Factors(problem, 0), np.zeros((M, N), np.float16, order="F")
    with entered(0), DeviceMatrices(factors, C, 2, device=0) as matrices:
        places, _ = matrices.of("TN")
        assert len({address for place in places for address in place}) == 6
        assert all(address % 256 == 0 for place in places for address in place)
        matrices.spoil()
        matrices.download()
    assert np.isnan(C).all()
    assert l2_bytes(0) >= 1 << 20


def test_one_plan_next_to_cublas():
    A, B = (np.ones((128, 128), np.float16, order="F") for _ in range(2))
    C = np.zeros((128, 128), np.float16, order="F")
    timing = time_plan(cg.plan("NT", A, B, C), A, B, C, rounds=3)
    assert timing.milliseconds > 0 and not C.any()
    assert (timing.ratio is None) == (timing.cublas_milliseconds is None)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ({"kernel": "sm80_pipeline"}, {"kernel": "cublas"}),
        ({"lda": 139, "base_offset": 2}, {"op": "NT", "dtype": "float32", "beta": 2}),
        ({"l": 3, "dtype": "int8"}, {"l": 5, "dtype": "complex128", "order": "C"}),
    ],
)
def test_two_plans_are_timed_in_turns(a, b):
    """Time plans of different layouts and types. Kernels would fault if the layouts were wrong."""
    beta = b.pop("beta", 0)
    given = {"op": "TN", "m": 136, "n": 72, "k": 96, "dtype": "float16", "backend": "cuda"}
    both = compare(*(cg.plan(**{**given, **x}) for x in (a, b)), time=True, rounds=3, beta=beta)
    ours, theirs = both.figures["measured.seconds"]
    assert ours > 0 and both.gpu == device_name()
    if both.b.plan.kernel != "cublas" or theirs is not None:  # cuBLAS may be missing
        assert both.ratio > 0 and theirs > 0


def test_the_command(capsys, tmp_path):
    words = ["bench", "NN", "--kernel", "sm80_pipeline", "--dtype", "float16", "--rounds", "2"]
    file = tmp_path / "found.json"
    assert cli.main([*words, "--sizes", "64,96x80x72", "--output", str(file)]) == 0
    out = capsys.readouterr().out
    assert "M=96 N=80 K=72" in out and device_name() in out
    found = json.loads(file.read_text())
    assert found["arch"] == device_arch() and len(found["sizes"]) == 2


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int8"])
@pytest.mark.parametrize("op", OPS)
def test_cublas_computes_the_same(op, dtype):
    rng = np.random.default_rng(0)
    numpy = DTYPES[dtype].numpy
    for orders in itertools.product("FC", repeat=3):
        A = np.asarray(3 * rng.standard_normal((M, K) if op[0] == "N" else (K, M))).astype(numpy)
        B = np.asarray(3 * rng.standard_normal((K, N) if op[1] == "N" else (N, K))).astype(numpy)
        A, B = np.asarray(A, order=orders[0]), np.asarray(B, order=orders[1])
        C = np.zeros((M, N), DTYPES[DTYPES[dtype].outputs[0]].numpy, order=orders[2])
        problem = from_operands(op, read(A, "A"), read(B, "B"), read(C, "C"))
        with entered(0), memory.upload(A) as a, memory.upload(B) as b, memory.upload(C) as c:
            try:
                launch = Cublas().launcher(problem, Scalar(1), Scalar(0))
                launch(a.pointer, b.pointer, c.pointer)
                memory.download(c, C)
            except CublasError as error:
                pytest.skip(str(error))
        assert verify(problem, A, B, C).ok
