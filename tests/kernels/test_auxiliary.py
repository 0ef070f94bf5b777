"""Test packing and reduction in the interpreter, with the PTX that NVRTC emits, bitwise."""

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np
import pytest
from gpu.auxiliary_cases import TYPES, view

from cute_gemm.access.accesses import GlobalAccess, SharedAccess
from cute_gemm.access.analyze import analyze
from cute_gemm.cost_model.calibrated import calibration
from cute_gemm.dtypes import DTYPES
from cute_gemm.gpus.table import gpu as gpu_called
from cute_gemm.kernels.auxiliary import PACK, REDUCE
from cute_gemm.kernels.base import Compiled
from cute_gemm.problem.describe import from_sizes
from cute_gemm.problem.parts.packing import Packing, packed
from cute_gemm.problem.parts.slices import Reduction, sliced
from cute_gemm.problem.problem import GemmProblem
from cute_gemm.problem.scalars import ONE, ZERO, Scalar, scalar
from cute_gemm.ptx.launch import Buffer, Execution, parsed, run
from cute_gemm.rendering.rows import AccessRow
from cute_gemm.report.executed import compare, executed
from cute_gemm.toolchain import sass
from cute_gemm.toolchain.nvrtc import build, ptx


@lru_cache
def emitted(kernel: Compiled, config: Any) -> str:
    return ptx(kernel.unit(config), "sm_80")


def execute(
    kernel: Compiled, problem: Any, buffers: list[Buffer], alpha: Scalar = ONE,
    beta: Scalar = ZERO, places: dict[str, np.ndarray] | None = None,
) -> Execution:  # fmt: skip
    """Execute a kernel with these buffers as operands."""
    config = kernel.configure(problem)  # type: ignore[attr-defined]
    text = emitted(kernel, config)
    block = kernel.signature(config).arguments(problem, alpha, beta).block.raw
    sizes = [one.size or 0 for one in parsed(text, config.name).parameters.values()]
    given: list[Any] = [
        block[x : x + n] for x, n in zip(kernel.signature(config).offsets, sizes, strict=True)
    ]
    given[: len(buffers)] = buffers
    for at, parameter in enumerate(kernel.signature(config).parameters):
        if parameter.name in (places or {}):
            given[at] = Buffer(places[parameter.name], parameter.name, 0)
    launch = kernel.launch(config, problem)
    return run(
        text, config.name, launch.dimensions, (launch.block,), launch.smem, given, record=True
    )


def differences(kernel: Compiled, problem: Any, execution: Execution, **more: Any) -> list[str]:
    """Return the differences between executed and predicted accesses."""
    accesses = kernel.accesses(kernel.configure(problem), problem, **more)  # type: ignore[attr-defined]
    rows = [AccessRow(access, analyze(access)) for access in accesses]
    return [str(one) for one in compare(rows, execution) if one.difference]


# Packing ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A (M, K) and B (N, K) of one element type, and which of them are packed."""

    bytes: int
    op: str
    mnk: tuple[int, int, int] = (75, 141, 139)
    pad: int = 1
    which: str = "AB"
    k_major: bool = False
    l: int = 1
    shared: bool = False
    #: Elements from an aligned address to the first element.
    base: int = 0
    gap: int = 0  #: Elements between matrices of a batch.

    def __str__(self) -> str:
        extents = "x".join(map(str, self.mnk))
        transposed = "-transposed" * self.k_major
        more = f"-l{self.l}{'s' * self.shared}" * (self.l > 1)
        which = f"{self.which}{transposed}{more}"
        return f"{self.bytes}-{self.op}-{extents}+{self.pad}-{which}-{self.base}"

    def problem(self) -> GemmProblem:
        m, n, k = self.mnk
        lda = (m if self.op[0] == "N" else k) + self.pad
        ldb = (k if self.op[1] == "N" else n) + self.pad
        batch = {
            "batch_a": lda * (k if self.op[0] == "N" else m) + self.gap,
            "batch_b": 0 if self.shared else ldb * (n if self.op[1] == "N" else k) + self.gap,
        }
        problem = from_sizes(
            self.op, m=m, n=n, k=k, dtype=TYPES[self.bytes], lda=lda, ldb=ldb, l=self.l,
            **(batch if self.l > 1 else {}),
        )  # fmt: skip
        first = self.base * self.bytes
        return replace(problem, A=problem.A.at(first), B=problem.B.at(first))


def pack(case: Case) -> tuple[Packing, Execution]:
    """Pack, and compare all bytes of the scratch buffer."""
    problem = case.problem()
    _, packing = packed(problem, case.which, case.k_major)
    random = np.random.default_rng(len(str(case)))
    buffers, sources = {}, {}
    for one in (problem.A, problem.B):
        memory = random.integers(0, 256, one.span, np.uint8)
        buffers[one.name] = Buffer(memory, one.name, case.base * case.bytes % 256)
        sources[one.name] = view(one, memory)
    scratch = np.full(packing.nbytes, 0xA5, np.uint8)
    execution = execute(PACK, packing, [buffers["A"], buffers["B"], Buffer(scratch, "scratch", 0)])
    for source, target, offset in packing.copies:
        given, found = sources[source.name], view(target, scratch, offset)
        if source.batch_stride == 0:
            given, found = given[:1], found[:1]
        assert found.tobytes() == given.tobytes(), source.name
    return packing, execution


def pack_cases() -> list[Case]:
    found = [
        Case(size, op, k_major=transposed)
        for size, op, transposed in product(TYPES, ("NT", "TN"), (0, 1))
    ]
    for size in TYPES:
        found += [
            # Aligned, with and without tails; one operand that is transposed and one that is not.
            Case(size, "TT", (64, 130, 64), 64, k_major=True),
            Case(size, "NN", (33, 128, 96), 128 - 96, "A"),
            # Unaligned bases, with rows of all alignments.
            Case(size, "TN", (70, 40, 300), 3, base=1),
            Case(size, "NT", (257, 140, 37), 5, "AB", True, base=2),
            # A batch whose matrices have different alignments, and one with a shared matrix.
            Case(size, "NN", (37, 29, 41), 2, l=3, gap=1),
            Case(size, "NT", (37, 29, 41), 0, k_major=True, l=3, shared=True, gap=3),
            # More rows of tiles than a raster group; the last group lacks one.
            Case(size, "NN", (20, 1, {1: 4174, 2: 4174, 4: 2092}.get(size, 1046)), 1, "A", True),
            # One row, one column, one element; rows shorter than two words.
            Case(size, "NT", (1, 50, 300), 0, "AB", True),
            Case(size, "TN", (1, 2, 300), 1),
            Case(size, "NN", (50, 1, 1), 2, k_major=True, base=1),
            Case(size, "TT", (3, 1, 1), 0),
        ]
    return found


@pytest.mark.parametrize("case", pack_cases(), ids=str)
def test_packing(case):
    """Check that all elements are packed, and that the accesses equal the predicted ones."""
    packing, execution = pack(case)
    assert differences(PACK, packing, execution) == []


@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize("transposed", [False, True])
def test_packing_from_any_address(size, transposed):
    for base in range(3, 16 // size, 2):
        pack(Case(size, "TN", (40, 35, 45), 1, k_major=transposed, base=base))
        pack(Case(size, "NT", (5, 3, 45), base, k_major=transposed, base=base))


# Reduction ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sums:
    """A GEMM cut into slices of 128 of K, and the layout of its C."""

    types: tuple[str, str]
    mn: tuple[int, int] = (41, 37)
    slices: int = 3
    pad: int = 0
    order: Any = "F"
    base: int = 0  #: Elements from an aligned address to C's first element.
    alpha: float = 1.5
    beta: float = -0.75

    def __str__(self) -> str:
        lies = f"{'x'.join(map(str, self.mn))}+{self.pad}{self.order}-{self.base}"
        return f"{'-'.join(self.types)}-{lies}-{self.slices}-{self.alpha}-{self.beta}"

    def reduction(self) -> Reduction:
        (m, n), (dtype, out) = self.mn, self.types
        ldc = (m if self.order == "F" else n) + self.pad
        problem = from_sizes(
            "NN", m=m, n=n, k=128 * self.slices, dtype=dtype, out_dtype=out, ldc=ldc,
            order=self.order,
        )  # fmt: skip
        first = (self.base * DTYPES[out].bytes) | 256
        problem = replace(problem, C=replace(problem.C, alignment=first & -first))
        return sliced(problem, self.slices, 128)[1]


def reduce(
    case: Sums, places: dict[str, np.ndarray] | None = None
) -> tuple[Reduction, Execution, np.ndarray, np.ndarray]:
    """Reduce integers. Return the reduction, its execution, C and the expected C."""
    reduction, random = case.reduction(), np.random.default_rng(len(str(case)))
    sums, C = DTYPES[reduction.partials.dtype], DTYPES[reduction.C.dtype]
    scratch = np.full(reduction.nbytes, 0xFF, np.uint8)  # NaN between rows
    memory = np.full(reduction.C.span, 0xFF, np.uint8)
    parts = view(reduction.partials, scratch).view(sums.numpy)
    old = view(reduction.C, memory).view(C.numpy)[0]

    def numbers(shape: tuple[int, ...]) -> np.ndarray:
        found = random.integers(-9, 10, shape)
        return found + 1j * random.integers(-9, 10, shape) if sums.is_complex else found

    parts[...] = numbers(parts.shape)
    if case.beta:
        old[...] = numbers(old.shape)
    alpha, beta = (scalar(x, name, case.types[0], None)
                   for x, name in ((case.alpha, "alpha"), (case.beta, "beta")))  # fmt: skip
    wanted = case.alpha * parts.sum(axis=0) if case.alpha else np.zeros(old.shape)
    wanted = wanted + case.beta * old if case.beta else wanted
    buffers = [Buffer(scratch, "scratch", 0), Buffer(old, "C", case.base * C.bytes % 256)]
    execution = execute(REDUCE, reduction, buffers, alpha, beta, places)
    return reduction, execution, old, wanted.astype(C.numpy)


REDUCED = [
    *(Sums(types) for types in (("float16", "float16"), ("bfloat16", "float32"))),
    *(Sums((name, name), pad=pad, order=order)
      for name in ("float32", "float64", "complex64", "complex128")
      for pad, order in ((3, "C"), (8, "F"))),
    Sums(("int8", "int32"), alpha=3, beta=-2, pad=7),
    Sums(("int8", "int32"), alpha=-1, beta=0, slices=19, order="C"),
    Sums(("bfloat16", "bfloat16"), (64, 200), 9, 8, beta=0),
    Sums(("float32", "float32"), (64, 300), 8, 1, "C", beta=0),
    Sums(("float16", "float16"), (70, 9), 2, 2, base=2),
    Sums(("float32", "float32"), (1, 300), 5, base=1),
    Sums(("float32", "float32"), (300, 1), 1),
    Sums(("float32", "float32"), (1, 1), 70, order="C"),
]  # fmt: skip


@pytest.mark.parametrize("case", REDUCED, ids=str)
def test_reduction(case):
    """Check that each element is exact, and that the accesses equal the predicted ones."""
    reduction, execution, found, wanted = reduce(case)
    assert found.tobytes() == wanted.tobytes()
    assert differences(REDUCE, reduction, execution, reads_c=case.beta != 0) == []


def test_nothing_is_read_where_alpha_is_zero():
    for beta in (0.0, 0.5):
        _, execution, found, wanted = reduce(Sums(("float32", "float32"), alpha=0.0, beta=beta))
        assert (found == wanted).all()
        touched = {kind.operand for kind in executed(execution)}
        assert touched == {"C"}


def test_scalars_are_read_where_they_are():
    case = Sums(("float32", "float32"), alpha=2.0, beta=-3.0)
    places = {"alpha_ptr": np.float32([2.0]), "beta_ptr": np.float32([-3.0])}
    wanted = reduce(case)[3]
    spoilt = replace(case, alpha=2.0, beta=-3.0)
    found = reduce(spoilt, places)[2]
    assert (found == wanted).all()


def test_slices_are_added_in_their_order():
    """Test numbers for which any other order gives another sum."""
    case = Sums(("float32", "float32"), (4, 1), 9, alpha=1.0, beta=0.0)
    reduction = case.reduction()
    scratch, C = np.zeros(reduction.nbytes, np.uint8), np.zeros((4, 1), np.float32)
    parts = view(reduction.partials, scratch).view(np.float32)
    parts[:, :, 0] = np.random.default_rng(1).standard_normal((9, 4)) * 10.0 ** np.arange(4)
    wanted = np.zeros(4, np.float32)
    for part in parts[:, :, 0]:
        wanted = wanted + part
    execute(REDUCE, reduction, [Buffer(scratch, "scratch", 0), Buffer(C, "C", 0)])
    assert (C[:, 0] == wanted).all()


# Beyond 32 bits -----------------------------------------------------------------------------------


@pytest.mark.parametrize("transposed", [False, True])
def test_packed_matrices_far_apart(transposed):
    """Pack into a sparse scratch buffer, of which only a few pages are touched."""
    problem = from_sizes("NT", m=40, n=24, k=32, l=3, dtype="float16")
    _, packing = packed(problem, "A", transposed)
    (target,) = packing.targets
    packing = replace(packing, targets=(replace(target, batch_stride=2**30 + 64),))
    given = np.random.default_rng(0).integers(0, 256, problem.A.span, np.uint8)
    found = view(packing.targets[0], np.zeros(packing.targets[0].span, np.uint8)).view(np.uint16)
    unused = Buffer(np.zeros(0, np.uint8), "unused", 0)
    execute(PACK, packing, [Buffer(given, "A", 0), unused, Buffer(found, "scratch", 0)])
    assert found.tobytes() == view(problem.A, given).tobytes()


@pytest.mark.parametrize("far", ["slices", "matrices", "rows", "C"])
def test_sums_far_apart(far):
    """Reduce slices, matrices of a batch, and rows and matrices of C that span 2**31 elements."""
    batch = {"l": 3, "batch_c": 2**30 + 64 if far == "C" else 40 * 24} if far != "rows" else {}
    ldc = 2**31 // 23 // 8 * 8 + 8 if far == "rows" else 40
    sizes = {"m": 40, "n": 24, "k": 384 if far == "slices" else 256, "ldc": ldc}
    problem = from_sizes("NN", **sizes, dtype="float16", **({} if far == "slices" else batch))
    reduction = sliced(problem, 3 if far == "slices" else 2, 128)[1]
    step = {"slices": 2**30 + 64, "matrices": 2**29 + 64}.get(far)
    if step is not None:
        reduction = replace(reduction, partials=replace(reduction.partials, batch_stride=step))
    sums = view(reduction.partials, np.zeros(reduction.partials.span, np.uint8)).view(np.float32)
    C = view(reduction.C, np.zeros(reduction.C.span, np.uint8)).view(np.float16)
    sums[...] = np.random.default_rng(0).integers(-9, 9, sums.shape)
    execute(REDUCE, reduction, [Buffer(sums, "sums", 0), Buffer(C, "C", 0)])
    wanted = sums.reshape(problem.l, -1, 40, 24).sum(axis=1)
    assert np.array_equal(C, wanted)


# Accesses and predicted times ---------------------------------------------------------------------


@pytest.mark.parametrize("size", TYPES)
def test_no_bank_conflicts_and_whole_sectors(size):
    """Test aligned, transposed operands: accesses are coalesced and conflict-free."""
    _, packing = packed(Case(size, "NT", (256, 256, 256), 0).problem(), "AB", True)
    accesses = PACK.accesses(PACK.configure(packing), packing)
    assert {type(one) for one in accesses} == {GlobalAccess, SharedAccess}
    for one in accesses:
        found = analyze(one)
        if isinstance(one, SharedAccess):
            assert found.conflict_free, one
        elif one.tail != "elements":
            assert found.coalesced and one.bits == 128, one


@pytest.mark.parametrize("size", TYPES)
def test_two_sectors_more_a_row_where_rows_are_off_a_word(size):
    """Test unaligned rows: a request for a line of a row takes five sectors instead of four."""
    case = Case(size, "TN", (512, 512, 1000), 1, which="A")
    _, packing = packed(case.problem(), "A")
    accesses = PACK.accesses(PACK.configure(packing), packing)
    loads = [x for x in accesses if x.direction == "load" and x.tail != "elements"]
    worst = max(analyze(one).launch.sectors / analyze(one).launch.ideal_sectors for one in loads)
    assert worst <= 1.27


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_everything_compiles_without_spills(arch):
    for size in TYPES:
        shifted, aligned = Case(size, "TN", base=1), Case(size, "TN", (64, 64, 64), 64)
        for case, transposed in product((shifted, aligned), (False, True)):
            _, packing = packed(case.problem(), "AB", transposed)
            found = build(PACK.unit(PACK.configure(packing)), arch)
            assert found.resources.spill_stores == found.resources.spill_loads == 0
            assert found.resources.registers <= 64
    for case in REDUCED:
        found = build(REDUCE.unit(REDUCE.configure(case.reduction())), arch)
        assert found.resources.spill_stores == found.resources.spill_loads == 0


@pytest.mark.parametrize("size", [1, 2, 4])
def test_words_are_loaded_whole(size):
    """Test the widths of loads. ptxas narrows a load if some of its bytes are unused."""
    for k_major in (False, True):
        problem = Case(size, "NT", k_major=k_major).problem()
        config = PACK.configure(packed(problem, "AB", k_major)[1])
        found = sass.instructions(sass.disassemble(PACK.build(config, "sm_90a").cubin))
        loads = {name.partition(".E")[2] for name in found if name.startswith(("LD.E", "LDG.E"))}
        assert loads == {".128", {1: ".U8", 2: ".U16", 4: ""}[size]}


def test_a_turned_tile_is_of_the_shape_that_fewer_tiles_have():
    lines = {}
    for m, k in ((4096, 64), (64, 4096), (4096, 4096)):
        source = from_sizes("NN", m=m, n=1, k=k, dtype="float16")
        lines[m, k] = PACK.configure(packed(source, "A", True)[1]).A.lines
    assert lines == {(4096, 64): 1, (64, 4096): 0, (4096, 4096): 0}


def test_seconds_are_bytes_over_bandwidth():
    gpu = gpu_called("H200")
    small, large = (
        packed(from_sizes("NT", m=m, n=64, k=4096, dtype="float16"), "A")[1] for m in (4096, 262144)
    )
    times = [PACK.seconds(one, gpu, calibration(gpu).constants) for one in (small, large)]
    assert 2 * 262144 * 4096 * 2 / times[1] < 1e9 * gpu.bandwidth_gbs < 3 * 2**32 / times[1]
    assert times[0] < times[1] / 64 + 4e-6
    # Partial sums are loaded in vectors as wide as those of C.
    times = [
        REDUCE.seconds(
            from_sizes("NN", m=1024, n=1024, k=8192, dtype="float32", ldc=ldc),
            8,
            gpu,
            calibration(gpu).constants,
        )
        for ldc in (1024, 1025)
    ]
    assert 3e-6 < times[0] < 40e-6
    # The ratio is smaller than that of the bandwidths, because the launch time is equal.
    assert 1.3 < times[1] / times[0] < 1.6
