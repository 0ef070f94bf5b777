"""Execute cases of ``gemm_cases`` in the interpreter, with the PTX that NVRTC emits.

The name of a case determines its architecture and whether C is read.
"""

import zlib
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from cases import Buffer, Case, numbers

from cute_gemm.arch import Arch
from cute_gemm.dtypes import DTYPES
from cute_gemm.errors import GemmError
from cute_gemm.gpus.table import nearest
from cute_gemm.plan.interpreted import execute
from cute_gemm.plan.plan import Plan
from cute_gemm.plan.steps import Step
from cute_gemm.problem.verify import Verdict, verify
from cute_gemm.ptx import Execution
from cute_gemm.rendering.rows import AccessRow, make_row
from cute_gemm.report.executed import Compared, compare
from cute_gemm.toolchain.signature import Launch


def arch_of(case: Case) -> str:
    """Return the architecture of a case, the same for all sizes, which may share a kernel."""
    program = replace(case, m=0, n=0, k=0, l=1, shared="")
    known = [arch for arch in ("sm_80", "sm_90a") if case.runs_on(arch)]
    return known[zlib.crc32(str(program).encode()) % len(known)]


def plan_of(case: Case) -> Plan:
    """Return the plan, or raise ``GemmError`` if the kernel does not support the case."""
    arch = arch_of(case)
    return case.plan(arch, nearest(Arch(arch)))


def takes(case: Case) -> bool:
    try:
        plan_of(case)
    except GemmError:
        return False
    return True


def main(plan: Plan) -> Step:
    """Return the launch of the GEMM kernel."""
    return plan.steps.main


def of_few_ctas(launch: Launch) -> Launch:
    """Return the launch of a persistent kernel with CTAs that compute about four tiles each.

    On a GPU a CTA computes a second tile only after more than a hundred others. Errors in a phase
    parity, or in what a tile leaves behind, occur only then.
    """
    if not launch.places:
        return launch
    clusters = launch.tiles // launch.cluster
    return replace(launch, grid=min(launch.grid, max(1, clusters // 4) * launch.cluster))


# -- a run ----------------------------------------------------------------------------------------


def view(place: Buffer, dtype: str) -> np.ndarray:
    """Return matrices with the given layout in a new buffer."""
    kind = DTYPES[dtype].numpy
    buffer = np.zeros(place.length, kind)
    steps = [stride * buffer.itemsize for stride in place.strides]
    return np.lib.stride_tricks.as_strided(buffer[place.offset :], place.shape, steps)


def fill(matrices: np.ndarray, random: np.random.Generator, dtype: str) -> None:
    """Fill with random numbers. A matrix that a batch shares is filled once."""
    first = matrices[0] if matrices.ndim == 3 and matrices.strides[0] == 0 else matrices
    first[...] = numbers(random, first.shape, dtype)


@dataclass(frozen=True, eq=False)
class Run:
    """An execution of a case's kernel, and the previous content of C."""

    plan: Plan
    execution: Execution
    A: np.ndarray
    B: np.ndarray
    C: np.ndarray
    before: np.ndarray
    alpha: complex
    beta: complex

    @property
    def verdict(self) -> Verdict:
        given = {"C": self.before, "alpha": self.alpha, "beta": self.beta}
        return verify(self.plan.problem, self.A, self.B, self.C, **given)

    @cached_property
    def rows(self) -> list[AccessRow]:
        """The rows of the report."""
        return [make_row(access) for access in main(self.plan).accesses(self.beta != 0)]

    @property
    def differences(self) -> list[Compared]:
        """Differences between the executed accesses and the report."""
        return [one for one in compare(self.rows, self.execution) if one.difference]


def arrays(case: Case, reads_c: bool = True) -> list[np.ndarray]:
    """Return the stored A, B and C with random numbers. C is NaN if it must not be read."""
    random = np.random.default_rng(zlib.crc32(str(case).encode()))
    types = (case.t.dtype, case.t.dtype, case.t.out)
    found = [view(place, dtype) for place, dtype in zip(case.places, types, strict=True)]
    for matrices, dtype in zip(found, types, strict=True):
        fill(matrices, random, dtype)
    if not reads_c:
        found[2][...] = -99 if case.t.integer else np.nan
    return found


def run(case: Case, reads_c: bool | None = None) -> Run:
    """Execute a case. By default, every other case reads C."""
    plan = plan_of(case)
    if reads_c is None:
        reads_c = bool(zlib.crc32(str(case).encode()) % 2)
    A, B, C = arrays(case, reads_c)
    before = C.copy()
    alpha, beta = {"i": (3, -2), "c": (1.5 - 0.5j, 2 + 1j)}.get(C.dtype.kind, (-1.5, 0.75))
    beta *= reads_c
    execution = execute(plan, A, B, C, alpha, beta, record=True)[plan.steps.index]
    return Run(plan, execution, A, B, C, before, alpha, beta)


def check(case: Case, reads_c: bool | None = None) -> Run:
    """Check C, and that all accesses equal those of the report."""
    found = run(case, reads_c)
    assert found.verdict.ok, found.verdict
    if found.plan.problem.accumulator.roundoff == 0:
        assert found.verdict.max_error == 0
    assert not found.differences, "\n".join(map(str, found.differences))
    return found
