"""Test operands with unaligned rows, which are copied as the aligned words that cover them."""

from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import replace as changed
from itertools import product
from typing import Any

import numpy as np
import pytest
from cases import OPS, configure, numbers, stored_shapes
from unity_build import unity_build

from cute_gemm import plan
from cute_gemm.access.accesses import GlobalAccess, SharedAccess
from cute_gemm.access.analyze import analyze
from cute_gemm.arch import Arch
from cute_gemm.dtypes import DTYPES
from cute_gemm.gpus.table import nearest
from cute_gemm.kernels import registry
from cute_gemm.plan.interpreted import execute
from cute_gemm.plan.plan import Plan
from cute_gemm.plan.select import select
from cute_gemm.problem.describe import from_sizes
from cute_gemm.problem.verify import verify

TYPES = ("float16", "bfloat16", "int8")


@dataclass(frozen=True)
class Case:
    """A problem, and offsets in elements of each base from a multiple of 256 bytes."""

    op: str
    dtype: str
    mnk: tuple[int, int, int]
    pads: tuple[int, int, int] = (1, 1, 1)
    bases: tuple[int, int, int] = (0, 0, 0)
    order: str = "F"
    l: int = 1
    apart: int = 0  # elements between the matrices of a batch
    beta: float = 0.0
    kernel: str = "sm80_pipeline"
    options: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        return "-".join(
            str(part)
            for part in (
                self.kernel, self.dtype, self.op, "x".join(map(str, self.mnk)),
                "p" + "".join(map(str, self.pads)), "b" + "_".join(map(str, self.bases)),
                self.order, self.l,
            )
        )  # fmt: skip

    def arrays(self) -> list[np.ndarray]:
        """Return A, B and C that end with their last element, with NaN between rows."""
        (m, n, k), random = self.mnk, np.random.default_rng(sum(self.mnk))
        kinds = [DTYPES[self.dtype]] * 2 + [DTYPES["int32" if self.dtype == "int8" else self.dtype]]
        found = []
        orders = ("F", "F", self.order)
        for shape, pad, kind, order in zip(
            (*stored_shapes(self.op, m, n, k), (m, n)), self.pads, kinds, orders, strict=True
        ):
            rows, columns = shape if order == "C" else shape[::-1]
            ld = columns + pad
            one = (rows - 1) * ld + columns
            step = rows * ld + self.apart
            memory = np.full((self.l - 1) * step + one, 113 if kind.roundoff == 0 else np.nan)
            memory = memory.astype(kind.numpy)
            size = memory.itemsize
            array = np.lib.stride_tricks.as_strided(
                memory, (self.l, rows, columns), (step * size, ld * size, size)
            )
            array[...] = numbers(random, array.shape, kind.name)
            array = array if order == "C" else array.swapaxes(-1, -2)
            found.append(array if self.l > 1 else array[0])
        return found

    def plan(self) -> Plan:
        """Return the plan of matrices with known alignments."""
        (A, B, C), more = self.arrays(), {"kernel": self.kernel, "backend": "cpu"}
        made = plan(self.op, A, B, C, arch="sm_90a", **more, **dict(self.options))
        problem = made.problem
        for name, base in zip("ABC", self.bases, strict=True):
            matrix = getattr(problem, name)
            at = base * DTYPES[matrix.dtype].bytes
            aligned = at & -at or 256
            if self.l > 1:
                aligned = min(aligned, matrix.alignment)
            placed = changed(matrix, alignment=aligned, first_alignment=at)
            problem = changed(problem, **{name: placed})
        arch = made.arch
        selection = select(problem, arch, self.kernel, dict(self.options), nearest(Arch(arch)))
        return Plan(problem, "cpu", None, arch, selection)


def cases() -> Iterator[Case]:
    """Yield cases of each op and type: odd rows and bases, tails, batches; tiny matrices."""
    for number, (dtype, op) in enumerate(product(TYPES, OPS)):
        base = 1 + number % (7 if dtype != "int8" else 15)
        yield Case(op, dtype, (70, 41, 103 + number), bases=(base, base + 1, 1))
        if number % 2:
            yield Case(op, dtype, (33, 9, 35), (0, 3, 1), (2 * number % 7, 1, 0), "C", 3, number, 2)
    for op, other in (("NN", "TT"), ("NT", "TN")):
        yield Case(op, "float16", (37, 21, 70), bases=(3, 6, 5), kernel="tensor_core")
        yield Case(other, "float16", (1, 1, 1), (0, 0, 0), (1, 3, 1))
        yield Case(op, "int8", (1, 3, 130), (0, 0, 0), (15, 1, 0))
        yield Case(other, "int8", (2, 1, 65), (0, 0, 0), (7, 9, 0), l=4)
    tile = (("tile", (128, 128, 32)), ("warps", (2, 2)), ("stages", 2))
    yield Case("NN", "bfloat16", (130, 135, 167), bases=(1, 0, 0), options=tile)


@pytest.mark.parametrize("case", list(cases()), ids=str)
@unity_build(lambda case: case.plan())
def test_what_was_executed_is_right_and_predicted(case: Case) -> None:
    made = case.plan()
    A, B, C = case.arrays()
    trace = made.trace(A, B, C, beta=case.beta)
    assert trace.verdict.ok, trace.verdict
    assert not trace.differences


@pytest.mark.parametrize(("op", "dtype", "bases"), [("NT", "float16", 8), ("TN", "int8", 16)])
def test_every_base(op: str, dtype: str, bases: int) -> None:
    """Test that the guards of each matrix are not accessed, for all bases within a word."""
    for base in range(1, bases, bases // 8):
        case = Case(op, dtype, (18, 17, 40 + base % 3), bases=(base, bases - base, 0))
        (A, B, C), made = case.arrays(), case.plan()
        before = C.copy()
        execute(made, A, B, C)
        assert verify(made.problem, A, B, C, C=before, alpha=1, beta=0).ok, base


def test_the_words_are_those_of_an_aligned_row_and_one_more() -> None:
    """Test words counted by hand: rows of 32 halves, shifted by 2 bytes, need one more word."""
    kernel = registry.get("sm80_pipeline").compiled()
    problem = from_sizes("TN", m=128, n=128, k=64, dtype="float16", lda=65, ldb=64)
    config = configure(kernel, problem, "sm_90a", tile=(128, 128, 32), warps=(2, 2))
    a, b = config.operands
    assert (a.place is None, b.place is None) == (False, True)
    far = [x for x in kernel.accesses(config, problem) if isinstance(x, GlobalAccess)]
    main, behind, end = (x for x in far if x.operand == "A")
    assert (main.instruction, main.bits, end.instruction, end.bits) == (
        "cp.async", 128, "ld.global", 16,
    )  # fmt: skip
    # 128 rows x 2 k-tiles of 4 words. One of 8 rows begins on a word and needs no more, and the
    # word after the last row is only partly in the matrix.
    assert analyze(main).launch.lanes == 128 * 2 * 4
    assert analyze(behind).launch.lanes == 112 * 2 - 1
    # The last row begins 127 * 130 = 14 bytes after a word: its last word has 7 halves.
    assert analyze(end).launch.lanes == 7


def test_they_are_put_in_place_once_for_each_tile() -> None:
    kernel = registry.get("sm80_pipeline").compiled()
    problem = from_sizes("NT", m=256, n=256, k=320, dtype="bfloat16", lda=257, ldb=263)
    config = configure(kernel, problem, "sm_90a", tile=(128, 128, 64), warps=(2, 2))
    puts = [
        x
        for x in kernel.accesses(config, problem)
        if isinstance(x, SharedAccess) and x.instruction == "st.shared" and x.operand != "C"
        and x.bits == 128
    ]  # fmt: skip
    words = sum(analyze(x).launch.lanes for x in puts)
    # 4 CTAs, 5 k-tiles and one in vain, both operands, 16 words for each of 64 columns.
    assert words == 4 * 6 * 2 * 16 * 64


def seconds_of_large(pad: int) -> float:
    """Return the predicted time of a product with ``pad`` elements between rows."""
    made = plan(
        op="TN", m=4096, n=4096, k=4096, lda=4096 + pad, ldb=4096 + pad, dtype="bfloat16",
        kernel="sm80_pipeline", arch="sm_90a", gpu="H200", backend="cpu",
    )  # fmt: skip
    first = made.candidates()[0]
    assert first.config == made.config
    assert made.config.tile[0] * made.config.tile[1] == 128 * 256
    return first.prediction.seconds


def test_large_tiles_are_offered_and_predicted() -> None:
    """Test that unaligned rows are predicted to be slower than words, by less than 10 times."""
    assert 1.5 < seconds_of_large(1) / seconds_of_large(0) < 10


def test_rows_that_begin_anywhere_cost_up_to_three_times_what_words_take() -> None:
    assert seconds_of_large(1) / seconds_of_large(0) < 3


def test_a_bank_serves_no_two_rows_at_a_time() -> None:
    """Test bank conflicts of the loads of unaligned rows for the tensor cores: there are none."""
    kernel = registry.get("sm80_pipeline").compiled()
    for op, tile in product(OPS, ((128, 256, 64), (128, 128, 32), (64, 64, 64))):
        problem = from_sizes(op, m=256, n=256, k=256, dtype="float16", lda=257, ldb=257)
        config = configure(
            kernel, problem, "sm_90a", tile=tile, warps=(2, 4 if tile[1] > 128 else 2)
        )
        reads = [
            x for x in kernel.accesses(config, problem)
            if isinstance(x, SharedAccess) and x.instruction.startswith("ldmatrix")
        ]  # fmt: skip
        assert reads and all(analyze(x).conflict_free for x in reads)
