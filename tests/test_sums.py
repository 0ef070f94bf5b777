"""Sums over M and N: the pass that adds a stored matrix up, and epilogues that return sums."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from gpu.passes_cases import Summed
from test_passes import differences, execute, view

import cute_gemm as cg
from cute_gemm.access.analyze import analyze
from cute_gemm.cost_model.calibrated import calibration
from cute_gemm.dtypes import DTYPES
from cute_gemm.errors import OptionError
from cute_gemm.gpus.table import gpu
from cute_gemm.kernels.passes import SUM
from cute_gemm.problem.matrix import Matrix
from cute_gemm.problem.sums import Sum, sums_dtype
from cute_gemm.problem.verify import verify_sum
from cute_gemm.ptx.launch import Buffer
from cute_gemm.toolchain.nvrtc import build

M, N, K = 40, 48, 64


@dataclass(frozen=True)
class Case:
    """A matrix, or a batch, how it lies, and the mode that it is summed over."""

    dtype: str
    mode: int
    mn: tuple[int, int] = (45, 70)
    unit: int = 1
    pad: int = 0
    l: int = 1
    base: int = 0  #: Elements from an address of all alignments to the first.

    def __str__(self) -> str:
        lies = f"{'x'.join(map(str, self.mn))}+{self.pad}{'MN'[self.unit]}-{self.base}"
        return f"{self.dtype}-over{'MN'[self.mode]}-{lies}-l{self.l}"

    def asked(self) -> tuple[Matrix, Sum]:
        size = DTYPES[self.dtype].bytes
        ld = self.mn[self.unit] + self.pad
        stride = (1, ld) if self.unit == 0 else (ld, 1)
        step = ld * self.mn[1 - self.unit] + 3 * self.pad if self.l > 1 else 0
        every = (self.base * size) | (step * size) | 256
        source = Matrix("C", self.mn, stride, self.dtype, every & -every, l=self.l,
                        batch_stride=step)  # fmt: skip
        shape = tuple(1 if mode == self.mode else each for mode, each in enumerate(self.mn))
        stride = (0, 1) if self.mode == 0 else (1, 0)
        other = self.mn[1 - self.mode] if self.l > 1 else 0
        every = other * DTYPES[sums_dtype(self.dtype)].bytes | 256
        target = Matrix("result_1", shape, stride, sums_dtype(self.dtype), every & -every,
                        l=self.l, batch_stride=other)  # fmt: skip
        return source, Sum("C", self.mode, target)


CASES = [
    *(Case(name, mode, unit=unit) for name in ("bfloat16", "float32") for mode in (0, 1)
      for unit in (0, 1)),
    Case("float64", 0, pad=2), Case("float64", 1, pad=2), Case("int8", 0, pad=3),
    Case("float16", 0, (1200, 24), pad=8, l=2), Case("float16", 1, (24, 4104), pad=8, l=2),
    Case("float16", 1, (1200, 24), unit=0), Case("bfloat16", 0, (24, 4100), unit=0, pad=1),
    Case("bfloat16", 0, (600, 520), base=1, pad=7), Case("float32", 1, (520, 301), base=1),
    Case("float32", 0, (1, 9)), Case("float32", 1, (1, 9)), Case("bfloat16", 1, (9, 1)),
    Case("bfloat16", 0, (2048, 9), pad=5),
]  # fmt: skip


def add_up(case: Case, numbers: str = "whole") -> tuple[np.ndarray, np.ndarray, list[str]]:
    """The sums, the matrices that were added up, and how the accesses differ from predicted."""
    source, asked = case.asked()
    element = DTYPES[case.dtype]
    random = np.random.default_rng(len(str(case)))
    memory = np.full(source.span, 0xFF, np.uint8)  # NaN, in what lies between rows
    matrices = view(source, memory).view(element.numpy)
    if numbers == "whole":
        matrices[...] = random.integers(-4, 5, matrices.shape)
    else:
        matrices[...] = random.standard_normal(matrices.shape) * 10.0 ** random.integers(-6, 6)
    target = np.full(asked.target.span + 64, 0x5A, np.uint8)
    found: list[str] = []
    at = Buffer(memory, "C", case.base * element.bytes % 256)
    for launch in SUM.launches(source, asked):
        where = target[: asked.target.span] if launch.whole else np.full(launch.nbytes, 255, "u1")
        to = Buffer(where, launch.target.name, 0)
        found += differences(SUM, launch, execute(SUM, launch, [at, to]))
        at = to
    assert (target[asked.target.span :] == 0x5A).all()
    sums = view(asked.target, target).view(DTYPES[asked.target.dtype].numpy)
    return sums, matrices, found


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_pass(case: Case) -> None:
    """Sums of whole numbers are exact, and the accesses those that are predicted."""
    sums, matrices, found = add_up(case)
    wanted = matrices.astype(np.float64).sum(axis=case.mode + 1, keepdims=True)
    assert (sums.astype(np.float64) == wanted).all()
    assert found == []


def test_long_ones_take_two_launches_and_keep_their_order() -> None:
    case = Case("float32", 0, (1200, 40))
    source, asked = case.asked()
    parts, whole = SUM.launches(source, asked)
    assert not parts.whole and whole.whole and parts.target.shape[0] > 1
    one, other = (add_up(case, "any")[0] for _ in range(2))
    assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_no_spills(arch: str) -> None:
    for case in CASES:
        for launch in SUM.launches(*case.asked()):
            found = build(SUM.unit(SUM.configure(launch, arch)), arch).resources
            assert found.spill_stores == found.spill_loads == 0 and found.registers <= 128, case


@pytest.mark.parametrize("order", "FC")
@pytest.mark.parametrize("mode", [0, 1])
def test_every_access_of_an_aligned_matrix_is_wide_and_coalesced(mode: int, order: str) -> None:
    for dtype in ("bfloat16", "float32", "float64", "int8"):
        for launch in Summed(dtype, mode, order, (4096, 1024)).launches:
            load, store = (analyze(x) for x in SUM.accesses(SUM.configure(launch), launch))
            assert load.coalesced and store.coalesced, (dtype, launch)
            assert SUM.configure(launch).nbytes == 16


def test_a_pass_costs_what_its_bytes_do() -> None:
    for mode in (0, 1):
        launches = Summed("bfloat16", mode, "C", (4096, 14336)).launches
        h200 = gpu("H200")
        constants = calibration(h200).constants
        assert 25e-6 < sum(SUM.seconds(launch, h200, constants) for launch in launches) < 45e-6


@pytest.mark.parametrize("far", ["rows", "matrices", "chunks"])
def test_matrices_beyond_32_bits(far: str) -> None:
    """Rows, matrices of a batch, and sums of chunks, 2**31 elements from the first to the last."""
    case = Summed("float16", 0, "C", (1500, 24), l=3 if far == "matrices" else 1)
    source, (first, second) = case.source, case.launches
    if far == "rows":
        source = replace(source, stride=(2**32 // 1499 // 8 * 8 + 8, 1))
    elif far == "matrices":
        source = replace(source, batch_stride=2**30 + 64)
    first = replace(first, source=source)
    if far == "chunks":
        ld = 2**31 // (first.target.shape[0] - 1) // 32 * 32 + 32
        first = replace(first, target=replace(first.target, stride=(ld, 1)))
    second = replace(second, source=first.target)
    elements = view(source, np.zeros(source.span, np.uint8)).view(np.float16)
    parts = view(first.target, np.zeros(first.target.span, np.uint8)).view(np.float32)
    elements[...] = np.random.default_rng(0).integers(-9, 10, elements.shape)
    sums = np.full((case.l, 24), np.nan, np.float32)
    execute(SUM, first, [Buffer(elements, "C", 0), Buffer(parts, "scratch", 0)])
    execute(SUM, second, [Buffer(parts, "scratch", 0), Buffer(sums, "result_1", 0)])
    assert (sums == elements.astype(np.float32).sum(axis=1)).all()


# Epilogues ----------------------------------------------------------------------------------------


@cg.epilogue
def layer(acc: Any, bias: Any) -> Any:
    y = cg.relu(acc + bias)
    return y, cg.sum_m(y), cg.sum_n(y)


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype("f4")


@pytest.mark.parametrize("backend", ["cpu", "interpreter"])
@pytest.mark.parametrize(
    ("order", "batch", "options"),
    [("C", (), {}), ("F", (), {}), ("C", (3,), {}), ("F", (), {"split_k": 2})],
)
def test_sums_of_what_is_returned(backend: Any, order: Any, batch: Any, options: Any) -> None:
    A, B, bias = random(*batch, M, K), random(*batch, N, K), random(N)
    plan = cg.plan("NT", A, B, order=order, epilogue=layer, bias=bias, backend=backend, **options)
    y, over_m, over_n = plan(A, B, bias=bias)
    exact = np.maximum(A.astype("f8") @ B.swapaxes(-1, -2).astype("f8") + bias, 0)
    np.testing.assert_allclose(y, exact, rtol=1e-4, atol=1e-4)
    assert over_m.shape == (*batch, N) and over_n.shape == (*batch, M)
    np.testing.assert_allclose(over_m, y.astype("f8").sum(-2), rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(over_n, y.astype("f8").sum(-1), rtol=1e-5, atol=1e-4)


@cg.epilogue
def mixed(acc: Any) -> Any:
    """Sums before what they are of, of casts, and two of one matrix."""
    z, q = cg.relu(acc), cg.cast(acc * 4, "int8")
    return acc, cg.sum_n(z), q, cg.amax(acc), z, cg.sum_m(q), cg.sum_m(z), cg.sum_n(acc)


@pytest.mark.parametrize("backend", ["cpu", "interpreter"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_sums_come_where_they_are_returned(dtype: str, backend: Any) -> None:
    A, B = (random(extent, K).astype(DTYPES[dtype].numpy) for extent in (M, N))
    y, z_n, q, amax, z, q_m, z_m, y_n = cg.gemm("NT", A, B, epilogue=mixed, backend=backend)
    assert z.shape == (M, N) and q.dtype == np.int8 and amax.shape == ()
    for sums, of, axis in ((z_n, z, 1), (z_m, z, 0), (y_n, y, 1)):
        assert sums.dtype == sums_dtype(dtype)
        np.testing.assert_allclose(sums, of.astype(float).sum(axis), rtol=1e-5, atol=1e-4)
    assert q_m.dtype == np.float32 and (q_m == q.astype(int).sum(0)).all()


def fine(*shape: int) -> np.ndarray:
    """Numbers whose sums are exact in float64, and not in float32."""
    return 1 + 2.0**-40 * np.random.default_rng(sum(shape)).integers(0, 1024, shape)


@pytest.mark.parametrize("mode", [0, 1])
def test_float64_is_added_in_float64(mode: int) -> None:
    source, asked = Case("float64", mode).asked()
    assert asked.target.dtype == "float64"
    elements, found = fine(*source.shape), np.zeros(asked.target.span // 8)
    at = Buffer(elements.reshape(-1), "C", 0)
    for launch in SUM.launches(source, asked):
        parts = found if launch.whole else np.full(launch.nbytes // 8, np.nan)
        to = Buffer(parts, launch.target.name, 0)
        execute(SUM, launch, [at, to])
        at = to
    assert (found == elements.sum(mode)).all()


@pytest.mark.parametrize("backend", ["cpu", "interpreter", "torch"])
def test_sums_of_float64_are_float64(backend: Any) -> None:
    A, B = fine(M, 8), np.eye(N, 8)
    plain = cg.epilogue(lambda acc: (acc, cg.sum_m(acc), cg.sum_n(acc)))
    if backend == "torch":  # as a graph that is differentiated has it
        given = [torch.from_numpy(x).requires_grad_() for x in (A, B)]
        found = [x.detach().numpy() for x in cg.gemm("NT", *given, epilogue=plain)]
    else:
        found = cg.gemm("NT", A, B, epilogue=plain, backend=backend)
    y, over_m, over_n = found
    assert (y[:, :8] == A).all() and {x.dtype for x in found} == {np.dtype(np.float64)}
    assert (over_m == y.sum(0)).all() and (over_n == y.sum(1)).all()


@pytest.mark.parametrize("backend", ["cpu", "interpreter"])
def test_a_batch_of_one_is_a_batch(backend: Any) -> None:
    returned = cg.gemm("NT", random(1, M, K), random(N, K), epilogue=layer, bias=random(N),
                       backend=backend)  # fmt: skip
    assert [x.shape for x in returned] == [(1, M, N), (1, N), (1, M)]


def test_a_matrix_within_a_larger_one() -> None:
    """Nothing beside the elements is read, which is NaN, nor written."""
    whole = np.full((M + 2, N + 9), np.nan, np.float32)
    C = whole[1 : M + 1, 8 : N + 8]
    y, over_m, over_n = cg.gemm("NT", random(M, K), random(N, K), C, epilogue=layer,
                                bias=random(N), backend="interpreter")  # fmt: skip
    assert y is C
    np.testing.assert_allclose(over_m, y.sum(0), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(over_n, y.sum(1), rtol=1e-4, atol=1e-4)
    C[...] = np.nan
    assert np.isnan(whole).all()


def test_launches_are_executed_as_they_are_reported() -> None:
    A, B, bias = random(800, K), random(N, K), random(N)
    plan = cg.plan("NT", A, B, epilogue=layer, bias=bias, order="C", backend="cpu", arch="sm_80")
    trace = plan.trace(A, B, bias=bias)
    assert trace.agrees and trace.verdict.ok and len(trace.passes) == 3
    first, second, third = plan.report().passes
    assert {each.kernel for each in (first, second, third)} == {"sum"} and first.coalesced
    assert first.what[0].startswith("scratch  (") and "sums over M of C: (800,48)" in first.what[0]
    assert second.what[0].startswith("result_1  (1,48):(0,1), sums over M of scratch")


def test_other_sums_are_out_of_bound() -> None:
    A, B, bias = random(M, K), random(N, K), random(N)
    plan = cg.plan("NT", A, B, epilogue=layer, bias=bias, backend="cpu")
    y, over_m, _ = plan(A, B, bias=bias)
    given: dict[str, Any] = {"operands": {"bias": bias}}
    assert verify_sum(plan.problem, "result_1", A, B, over_m, **given).ok
    verdict = verify_sum(plan.problem, "result_1", A, B, over_m + 1e-2 * y.max(), **given)
    assert not verdict.ok and verdict.elements == verdict.wrong == N


def test_the_kernel_that_multiplies_is_the_same_without_sums() -> None:
    sizes: dict[str, Any] = {"m": 64, "n": 64, "k": 64, "dtype": "float16", "arch": "sm_80"}
    plain = cg.epilogue(lambda acc, bias: cg.relu(acc + bias))
    plans = [cg.plan("NT", **sizes, epilogue=x, bias=(64,)) for x in (plain, layer)]
    assert plans[0].source == plans[1].source


def test_sums_are_in_the_report_and_the_price() -> None:
    sizes: dict[str, Any] = {"m": 4096, "n": 14336, "k": 4096, "dtype": "bfloat16", "order": "C"}
    plan = cg.plan("NN", **sizes, epilogue=layer, arch="sm_90a", gpu="H200")
    assert [step.kernel.name for step in plan.steps] == ["sm90_wgmma", "sum", "sum", "sum"]
    assert "adding up results takes" in plan.why
    assert "sum" in str(plan.report())


def test_empty_matrices_have_sums_of_0() -> None:
    for m, n in ((0, N), (M, 0)):
        y, over_m, over_n = cg.gemm(
            "NT", random(m, K), random(n, K), epilogue=layer, bias=random(n), backend="cpu"
        )
        assert y.shape == (m, n) and (over_m == np.zeros(n)).all() and (over_n == np.zeros(m)).all()


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            lambda acc: (acc, cg.sum_m(acc * 2)),
            "expected it among the results too: return y, sum_m",
        ),
        (lambda acc: (acc, cg.sum_n(cg.amax(acc))), "gives sum_n what amax returns"),
        (lambda acc: cg.sum_m(acc), "sum_m"),
    ],
)
def test_what_has_no_sum(function: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        cg.epilogue(function)
