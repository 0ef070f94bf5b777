"""Test ``sm90_wgmma``'s PTX in the interpreter: C against float64, accesses against the report."""

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from cases import OPS, placed, stored_shapes
from unity_build import unity_build

from cute_gemm.arch import Arch
from cute_gemm.errors import FaultError
from cute_gemm.gpus.table import nearest
from cute_gemm.plan import select
from cute_gemm.plan.interpreted import execute
from cute_gemm.plan.plan import Plan
from cute_gemm.problem.describe import from_sizes
from cute_gemm.problem.problem import GemmProblem
from cute_gemm.problem.verify import verify
from cute_gemm.report.executed import compare

ARCH = Arch("sm_90a")


@dataclass(frozen=True)
class Case:
    """A problem of ``sm90_wgmma``, with options of the config and arguments of the call."""

    op: str
    dtype: str
    order: str
    options: tuple[tuple[str, Any], ...]
    mnk: tuple[int, int, int] = (200, 136, 150)
    pad: int = 0
    l: int = 1
    beta: float = 0.75
    out: str | None = None
    #: Number of CTAs. By default each computes about four tiles.
    grid: int = 0

    def __str__(self) -> str:
        tile = "x".join(map(str, dict(self.options)["tile"]))
        return "-".join((self.op, self.dtype, self.order, tile))

    @property
    def alpha(self) -> float:
        return -3 if self.dtype == "int8" else -1.5

    def problem(self) -> GemmProblem:
        m, n, k = self.mnk
        inner = [m if self.op[0] == "N" else k, k if self.op[1] == "N" else n]
        inner.append(m if self.order == "F" else n)
        step = 16 if self.dtype == "int8" else 8
        ld = [-(-extent // step) * step + step for extent in inner]
        tf32 = self.dtype == "tf32"
        return from_sizes(
            self.op, m=m, n=n, k=k, dtype="float32" if tf32 else self.dtype, l=self.l, lda=ld[0],
            ldb=ld[1], ldc=ld[2] + self.pad, order=self.order, out_dtype=self.out,
            compute="tf32" if tf32 else None,
        )  # fmt: skip

    def plan(self) -> Plan:
        gpu = nearest(ARCH)
        selection = select.select(self.problem(), ARCH, "sm90_wgmma", dict(self.options), gpu)
        plan = Plan(self.problem(), "cpu", None, ARCH, selection)
        (step,) = plan.steps
        if self.grid:
            assert self.grid <= step.on_gpu().grid
            step.__dict__["launch"] = replace(step.launch, grid=self.grid)
        return plan

    def arrays(self) -> list[np.ndarray]:
        problem, random = self.problem(), np.random.default_rng(sum(self.mnk))
        shapes = *stored_shapes(self.op, *self.mnk), self.mnk[:2]
        matrices, lead = (problem.A, problem.B, problem.C), (self.l,) * (self.l > 1)
        return [
            placed((*lead, *shape), x.dtype, order, x.ld - shape[order == "C"], random=random)[0]
            for shape, order, x in zip(shapes, ("F", "F", self.order), matrices, strict=True)
        ]


def of(tile: tuple[int, int, int], groups: int, **more: Any) -> tuple[tuple[str, Any], ...]:
    plain = {"cluster": (1, 1), "swap_ab": 0, "ping_pong": 0}
    return (("tile", tile), ("warp_groups", groups), *{**plain, **more}.items())


CASES = [
    Case("NN", "float16", "F", of((64, 64, 64), 1, stages=2), grid=5),
    Case("NT", "bfloat16", "F", of((128, 32, 64), 2, stages=3), (150, 70, 200), beta=0),
    Case("TN", "float16", "C", of((128, 128, 64), 2, cluster=(2, 1)), (300, 136, 150), grid=2),
    Case("TT", "bfloat16", "C", of((64, 16, 64), 1, stages=3), (70, 40, 130), l=3),
    Case("NN", "bfloat16", "C", of((128, 128, 64), 1, swap_ab=1, stages=3), (130, 144, 100)),
    Case("NT", "float16", "C", of((192, 128, 64), 3, stages=2), (200, 150, 72), 1),
    Case("TN", "bfloat16", "F", of((128, 192, 64), 2, cluster=(2, 1), stages=2), (300, 136, 400)),
    Case("TT", "float16", "F", of((32, 128, 64), 2, swap_ab=1, stages=4), (40, 136, 330), beta=0),
    Case("NN", "float16", "F", of((128, 64, 128), 1, stages=2), (136, 72, 300), 1, 2, 0, grid=3),
    Case("TT", "bfloat16", "C", of((64, 64, 64), 1, cluster=(2, 1), stages=2), (64, 200, 64),
         out="float32", grid=2),
    Case("TN", "float16", "F", of((64, 32, 64), 1, stages=4), (600, 90, 100), out="float32",
         beta=0, grid=8),
    # Warp groups side by side: three blocks of 64 rows, and more columns than a wgmma has.
    Case("TN", "bfloat16", "F", of((192, 96, 64), 2, stages=3), (200, 136, 200), 1),
    Case("TN", "float16", "C", of((320, 64, 64), 2, stages=2), (330, 72, 130)),
    # Ping-pong: many, few and odd numbers of tiles, more and fewer k tiles than stages.
    Case("NN", "bfloat16", "C", of((64, 64, 64), 2, ping_pong=1, stages=3), (500, 136, 136),
         grid=4),
    Case("TT", "float16", "F", of((128, 48, 64), 2, ping_pong=1, stages=2), (136, 136, 300), 1, 2,
         grid=1),
    Case("TN", "bfloat16", "F", of((64, 32, 64), 2, ping_pong=1, stages=4, cluster=(2, 1)),
         (400, 72, 100), out="float32", grid=4, beta=0),
    # Clusters with multicast of both operands, and with tiles beyond M and N.
    Case("TN", "float16", "F", of((64, 64, 64), 1, cluster=(2, 2), stages=2), (200, 136, 200)),
    Case("NT", "bfloat16", "C", of((64, 64, 64), 1, cluster=(4, 2), stages=3), (72, 264, 150),
         grid=8),
    Case("NN", "bfloat16", "F", of((64, 64, 64), 1, cluster=(2, 4), swap_ab=1, stages=2),
         (100, 272, 264), l=2, grid=8),
]  # fmt: skip


#: A in registers: of either operand, to C of either order, by TMA and by elements; warp groups
#: along M, along N and with ping-pong; k tiles of four steps and of eight, and partial ones.
CASES += [
    Case("NN", "tf32", "F", of((128, 32, 32), 2, stages=2), (200, 72, 100), grid=3),
    Case("NN", "tf32", "C", of((64, 64, 32), 1, stages=3), (136, 72, 200), l=2, beta=0),
    Case("TT", "tf32", "F", of((32, 128, 32), 1, swap_ab=1, stages=2), (40, 200, 130), beta=0),
    Case("TT", "tf32", "C", of((48, 64, 64), 1, swap_ab=1, stages=2), (100, 72, 75)),
    Case("NN", "tf32", "F", of((64, 64, 32), 1, stages=2), (72, 72, 40), pad=1),
    Case("NN", "tf32", "C", of((192, 64, 32), 2, stages=2), (200, 72, 70), 1),
    Case("NN", "tf32", "F", of((128, 64, 32), 2, ping_pong=1, stages=2, cluster=(2, 1)),
         (500, 72, 136), grid=2),
    Case("TT", "tf32", "F", of((64, 64, 32), 1, swap_ab=1, stages=3, cluster=(1, 2)),
         (136, 200, 72), l=3, grid=4),
    # 8-bit types.
    Case("NN", "int8", "F", of((128, 32, 128), 2, stages=2), (208, 72, 300), grid=3, beta=2),
    Case("TT", "int8", "C", of((64, 128, 128), 2, swap_ab=1, ping_pong=1, stages=2),
         (200, 300, 272), pad=1, beta=0, grid=3),
    Case("NN", "int8", "C", of((128, 64, 128), 1, stages=2, cluster=(2, 1)), (208, 72, 400),
         beta=2),
    Case("TT", "int8", "F", of((32, 128, 256), 2, swap_ab=1, stages=2), (72, 144, 400), l=2,
         beta=2),
]  # fmt: skip


#: All ops, types and orders of C, with other properties varying.
CASES += [
    Case(op, dtype, order, of((64, 96, 64), 1, cluster=(1 + number % 3 // 2, 1 + number % 5 // 4),
         stages=2),
         (72, 104, 200), pad=number % 7 // 5, l=1 + number // 4 % 2, beta=0.75 * (number % 5 > 1),
         out=("float32", None, None)[number % 3])
    for number, (op, dtype, order) in enumerate(
        product(OPS, ("float16", "bfloat16"), "FC")
    )
]  # fmt: skip


#: k = 0: C by TMA and by elements, ping-pong, swapped. These are separate kernels.
EMPTY = [replace(CASES[i], mnk=(*CASES[i].mnk[:2], 0)) for i in (0, 4, 11, 13)]


def plan_of(case: Case, **_: Any) -> Plan:
    return case.plan()


@lru_cache(maxsize=32)
def emitted(case: Case) -> tuple[Plan, str]:
    """Return the plan with its PTX."""
    plan = case.plan()
    (step,) = plan.steps
    return plan, step.ptx


def alter(case: Case, old: str, new: str, count: int = -1) -> Plan:
    """Return the plan with a modified PTX text."""
    plan, code = case.plan(), emitted(case)[1]
    assert old in code
    steps = list(plan.steps)
    steps[0].__dict__["ptx"] = code.replace(old, new, count)
    return plan


def computed(case: Case, plan: Plan | None = None, **options: Any) -> Any:
    """Execute the case, and return its verdict and the execution."""
    plan = emitted(case)[0] if plan is None else plan
    A, B, C = case.arrays()
    before = C.copy()
    if case.beta == 0:
        C[...] = 99 if case.dtype == "int8" else np.nan  # C must not be read
    (done,) = execute(plan, A, B, C, case.alpha, case.beta, **options)
    return verify(plan.problem, A, B, C, C=before, alpha=case.alpha, beta=case.beta), done


@pytest.mark.parametrize("case", CASES, ids=str)
@unity_build(plan_of)
def test_the_family(case):
    verdict, done = computed(case, record=True)
    assert verdict.ok, verdict
    plan, text = emitted(case)
    assert before_ldmatrix(text) <= {"bar.warp.sync"}
    figures = compare(plan.report(beta=case.beta).rows, done)
    assert not [one for one in figures if one.difference]
    compared = {(x.kind.operand, x.kind.instruction, x.figure) for x in figures}
    assert compared >= {("A", "TMA", "sectors"), ("B", "TMA", "requests"), ("", "wgmma", "lanes")}


@pytest.mark.parametrize("number", [0, 13, 14, 15])
def test_one_cluster_takes_all_tiles(number):
    """Test phase parities of stages that other tiles used, and C in shared memory after a tile."""
    case = CASES[number]
    case = replace(case, grid=dict(case.options)["cluster"][0])
    verdict, _ = computed(case)
    assert verdict.ok, verdict


def test_a_cluster_at_a_time_and_unwatched():
    """Test that C does not depend on the number of CTAs that run together, or on race detection."""
    case = replace(CASES[6], grid=4)
    found = []
    for options in ({}, {"lanes": 1}, {"watch": False}):
        A, B, C = case.arrays()
        (done,) = execute(emitted(case)[0], A, B, C, -1.5, case.beta, **options)
        found.append((C.tobytes(), done.steps))
    assert len({c for c, _ in found}) == 1 and found[1][1] > found[0][1]


@pytest.mark.parametrize("case", [0, 11, 13])
def test_nothing_is_read_where_nothing_is_summed(case):
    case = CASES[case]
    plan = emitted(case)[0]
    A, B, C = case.arrays()
    A[...], B[...] = np.nan, np.nan
    before = C.copy()
    execute(plan, A, B, C, 0, 0.75)
    assert verify(plan.problem, A, B, C, C=before, alpha=0, beta=0.75).ok


def before_ldmatrix(text: str) -> set[str]:
    """Return the waits directly before an ldmatrix."""
    found = re.findall(r"^\s*(mbarrier\.try_wait|bar\.\w*\.?sync|ldmatrix)", text, re.MULTILINE)
    return {wait for wait, then in pairwise(found) if then == "ldmatrix"} - {"ldmatrix"}


def test_a_warp_meets_again_before_its_lanes_load_c_together():
    """Test that a bar.warp.sync is between waits of single lanes and ldmatrix of the whole warp.

    The interpreter runs lanes that can continue together, so it does not detect a missing one.
    """
    assert before_ldmatrix(emitted(CASES[0])[1]) == {"bar.warp.sync"}


@pytest.mark.parametrize("beta", [0, 0.75])
@pytest.mark.parametrize("case", EMPTY, ids=str)
@unity_build(plan_of)
def test_where_k_is_0_the_report_has_c_alone(case, beta):
    case = replace(case, beta=beta)
    verdict, done = computed(case, record=True)
    assert verdict.ok, verdict
    figures = compare(emitted(case)[0].report(beta=beta).rows, done)
    assert figures and not [one for one in figures if one.difference]


def test_scalars_in_memory():
    case = CASES[0]
    plan = emitted(case)[0]
    A, B, C = case.arrays()
    before = C.copy()
    places = {"alpha_ptr": np.float32([2.5]), "beta_ptr": np.float32([-0.5])}
    execute(plan, A, B, C, 7, 9, places=places)
    assert verify(plan.problem, A, B, C, C=before, alpha=2.5, beta=-0.5).ok


@pytest.mark.parametrize(
    ("case", "old", "new", "kind"),
    [
        (0, "wgmma.wait_group.sync.aligned 1;", "", "in flight"),
        (0, "wgmma.wait_group.sync.aligned 0;", "", "in flight"),
        (0, "wgmma.fence.sync.aligned;", "", "fence"),
        (0, "fence.proxy.async.shared::cta;", "", "proxy"),
        (0, "cp.async.bulk.wait_group.read 0;", "", "in flight"),
        (0, "fence.mbarrier_init.release.cluster;", "", "race"),
        (0, ", 128;", ", 256;", "deadlock"),
        (0, "griddepcontrol.wait;", "", "race"),
        (2, "barrier.cluster.wait.aligned;", "", "race"),
        (14, "bar.arrive", "//", "deadlock"),
        (17, "barrier.cluster.wait.aligned;", "", "race"),
        (19, "wgmma.wait_group.sync.aligned 2;", "", "in flight"),
        (19, "wgmma.fence.sync.aligned;", "", "fence"),
    ],
)
def test_what_is_missing_is_found(case, old, new, kind):
    with pytest.raises(FaultError) as caught:
        computed(CASES[case], alter(CASES[case], old, new))
    assert caught.value.kind == kind, caught.value
