"""Sums over M and N: the pass that adds a stored matrix up, and epilogues that return sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from test_passes import differences, execute, view

import cute_gemm as cg
from cute_gemm.dtypes import DTYPES
from cute_gemm.errors import OptionError
from cute_gemm.kernels.passes import SUM
from cute_gemm.problem.matrix import Matrix
from cute_gemm.problem.sums import Sum, sums_dtype
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
