"""Test batches: descriptors, checks, results and counts."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cases import problem_of
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

import cute_gemm as cg
from cute_gemm import errors
from cute_gemm.access import gmem, smem
from cute_gemm.access.accesses import GlobalAccess
from cute_gemm.arrays.base import Operand
from cute_gemm.kernels import registry
from cute_gemm.plan import select
from cute_gemm.problem.describe import from_operands, from_sizes
from cute_gemm.problem.matrix import Matrix
from cute_gemm.problem.overlap import matrices_overlap
from cute_gemm.problem.problem import GemmProblem

L = 3


# Descriptors --------------------------------------------------------------------------------------


def test_descriptors_have_a_third_mode() -> None:
    A, B = np.zeros((L, 5, 4), "f4"), np.zeros((L, 7, 4), "f4").swapaxes(1, 2)
    problem = problem_of("NN", A, B)
    assert str(problem.A) == "(5,4,3):(4,1,20)"
    assert str(problem.B) == "(7,4,3):(4,1,28)"
    assert str(problem.C) == "(5,7,3):(1,5,35)"
    assert (problem.m, problem.n, problem.k, problem.l) == (5, 7, 4, L)
    assert problem.flops == L * 2 * 5 * 7 * 4
    assert (problem.A.nbytes, problem.C.nbytes) == (L * 80, L * 140)
    assert problem_of("NN", A, B, order="C").C.batch_stride == 35


@pytest.mark.parametrize(
    "shared",
    [
        np.zeros((5, 4), "f4"),
        np.zeros((1, 5, 4), "f4"),
        np.broadcast_to(np.zeros((5, 4), "f4"), (L, 5, 4)),
        as_strided(np.zeros((5, 4), "f4"), (1, 5, 4), (99 * 4, 16, 4)),
    ],
    ids=["2-D", "of one", "broadcast", "of one with a stride"],
)
def test_an_operand_that_all_share(shared: np.ndarray) -> None:
    other = np.zeros((L, 4, 7), "f4")
    problem = problem_of("NN", shared, other)
    assert str(problem.A) == "(5,4,3):(4,1,0)" and problem.A.nbytes == 80
    assert problem.B.batch_stride == 28 and problem.C.shape == (5, 7)
    transposed = problem_of("TT", other, shared)
    assert str(transposed.B) == "(5,4,3):(4,1,0)" and str(transposed.A) == "(7,4,3):(1,7,28)"
    assert (transposed.l, problem.l) == (L, L)


def test_a_batch_of_one_is_a_matrix() -> None:
    A, B = np.zeros((5, 4), "f4"), np.zeros((4, 7), "f4")
    plain = problem_of("NN", A, B)
    assert plain == problem_of("NN", A[None], B) == problem_of("NN", A[None], B[None])
    C = np.zeros((5, 7), "f4")
    assert problem_of("NN", A, B, C) == problem_of("NN", A[None], B, C[None])
    assert str(plain.A) == "(5,4):(4,1)" and (plain.l, plain.A.l, plain.A.batch_stride) == (1, 1, 0)


@pytest.mark.parametrize("sizes", [(0, 7, 4), (5, 0, 4), (5, 7, 0)])
def test_matrices_without_elements_have_no_batch_stride(sizes: tuple[int, int, int]) -> None:
    m, n, k = sizes
    A, B = np.zeros((L, m, k), "f4"), np.zeros((L, k, n), "f4")
    problem = problem_of("NN", A, B)
    assert problem == problem_of("NN", A, B, np.zeros((L, n, m), "f4").swapaxes(1, 2))
    assert problem == replace(
        from_sizes("NN", m=m, n=n, k=k, l=L, dtype="float32"), A=problem.A, B=problem.B
    )
    for matrix in (problem.A, problem.B, problem.C):
        assert matrix.l == L and bool(matrix.batch_stride) == bool(matrix.nbytes)


def on_gpu(shape: Any, strides: Any, pointer: int = 0x10000) -> Operand:
    return Operand(pointer, shape, strides, "float16", 0, "torch", None, False)


@pytest.mark.parametrize(
    ("pointer", "step", "alignment", "first"),
    [
        (0x10000, 128, 256, 0), (0x10000, 64, 128, 256), (0x10000, 44, 8, 256),
        (0x10000, 45, 2, 256), (0x10010, 40, 16, 0), (0x10010, 44, 8, 16), (0x10008, 64, 8, 0),
        (0x10008, 0, 8, 0),
    ],
)  # fmt: skip
def test_alignment_is_that_of_every_matrix(
    pointer: int, step: int, alignment: int, first: int
) -> None:
    """Test alignments. A host array is copied to an aligned address, but keeps its batch stride."""
    A = from_operands("NN", on_gpu((L, 4, 8), (step, 8, 1), pointer), on_gpu((8, 5), (5, 1))).A
    assert (A.alignment, A.first_alignment, A.batch_stride) == (alignment, first, step)
    assert all((pointer + 2 * i * step) % alignment == 0 for i in range(L))
    host = as_strided(np.zeros(999, "f2"), (L, 4, 8), (2 * step, 16, 2))
    expected = 256 if not step else min(256, 2 * step & -2 * step)
    assert problem_of("NN", host, np.zeros((8, 5), "f2")).A.alignment == expected


def test_sizes_of_a_batch() -> None:
    sizes: dict[str, Any] = {"m": 5, "n": 7, "k": 4, "dtype": "float32", "l": L}
    problem = from_sizes("TN", **sizes, lda=6, batch_b=0, batch_c=100)
    assert str(problem.A) == "(5,4,3):(6,1,30)"
    assert str(problem.B) == "(7,4,3):(4,1,0)"
    assert str(problem.C) == "(5,7,3):(1,5,100)"
    A, B = np.zeros((L, 4, 5), "f4"), np.zeros((L, 4, 7), "f4")
    assert from_sizes("TN", **sizes, storage="C") == problem_of("TN", A, B)
    assert from_sizes("NN", **{**sizes, "l": 1}, batch_a=9) == from_sizes("NN", **{**sizes, "l": 1})
    assert from_sizes("NN", **{**sizes, "l": 0}).flops == 0
    most = from_sizes("NN", m=1, n=1, k=1, dtype="int8", l=2**31 - 1, batch_a=2**27)
    assert most.A.batch_bytes * most.l > 2**57


# Errors -------------------------------------------------------------------------------------------

A3, B3 = np.zeros((L, 4, 6), "f4"), np.zeros((L, 6, 5), "f4")
BAD = {
    "rank 4": (
        errors.ShapeError,
        r"A has shape \(1, 3, 4, 6\); expected a matrix or a batch.*is reshape\(-1, 4, 6\)",
        (A3[None], B3),
    ),
    "another l": (
        errors.ShapeError,
        r"A of shape \(3, 4, 6\) is a batch of 3 and B of shape \(2, 6, 5\) one of 2;.*B\[0\]",
        (A3, B3[:2]),
    ),
    "none and some": (errors.ShapeError, "a batch of 0 .* one of 3", (A3[:0], B3)),
    "C of rank 2": (
        errors.ShapeError, r"C has shape \(4, 5\); expected \(3, 4, 5\).* A of shape \(3, 4, 6\)",
        (A3, B3, np.zeros((4, 5), "f4")),
    ),
    "C of rank 3": (
        errors.ShapeError, r"C has shape \(3, 4, 5\); expected \(4, 5\)",
        (A3[0], B3[0], np.zeros((3, 4, 5), "f4")),
    ),
    "a larger C": (
        errors.ShapeError, r"C has shape \(3, 4, 5\); expected \(1, 4, 5\)",
        (A3[:1], B3[:1], np.zeros((3, 4, 5), "f4")),
    ),
    "k": (errors.ShapeError, r"A of shape \(3, 4, 6\) makes k = 6", (A3, B3[:, :5])),
    "unit batch": (
        errors.StrideError,
        r"A of shape \(3, 4, 6\) has strides \(1, 3, 12\).*one of the last two to be 1.*"
        r"np\.ascontiguousarray\(A\)",
        (np.zeros((3, 4, 6), "f4", order="F"), B3),
    ),
    "backwards": (
        errors.StrideError, r"B of shape \(3, 6, 5\) has strides \(-30, 5, 1\).*none negative",
        (A3, B3[::-1]),
    ),
    "shared C": (
        errors.OverlapError,
        r"C of shape \(3, 4, 5\) has strides \(0, 5, 1\).*its matrices share memory; expected a "
        r"batch stride of at least 20,.* not 0",
        (A3, B3, as_strided(np.zeros(20, "f4"), (3, 4, 5), (0, 20, 4))),
    ),
    "C that slides": (
        errors.OverlapError, r"strides \(19, 5, 1\).*batch stride of at least 20",
        (A3, B3, as_strided(np.zeros(99, "f4"), (3, 4, 5), (76, 20, 4))),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_batches(case: str) -> None:
    error, message, arrays = BAD[case]
    with pytest.raises(error, match=message):
        problem_of("NN", *arrays)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"l": -1}, errors.ShapeError, r"l = -1; expected 0 to 2\*\*31 - 1"),
        ({"l": 2**31}, errors.ShapeError, "l = 2147483648"),
        ({"batch_a": -5}, errors.StrideError, "batch_a = -5; expected 0 or more.* 4 x 6"),
        ({"batch_b": 0.5}, errors.StrideError, "batch_b = 0.5 is not an integer"),
        ({"batch_b": 2**59}, errors.StrideError, "batch_b = .*fit 64 bits, with l = 3 matrices"),
        ({"batch_c": 0}, errors.OverlapError, "C of shape .* its matrices share memory"),
        ({"batch_c": 19}, errors.OverlapError, "at least 20.* not 19"),
    ],
)
def test_bad_sizes(given: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        from_sizes("NN", **{"m": 4, "n": 5, "k": 6, "dtype": "float32", "l": L, **given})


@settings(max_examples=400, deadline=None)
@given(*(st.integers(0, most) for most in (5, 5, 6)), st.integers(0, 30), st.integers(0, 60))
def test_overlap_within_a_batch_is_exact(
    run: int, lines: int, batch: int, gap: int, step: int
) -> None:
    ld = max(1, run + gap)
    each = [{i * step + j * ld + e for j in range(lines) for e in range(run)} for i in range(batch)]
    shared = sum(map(len, each)) > len(set().union(*each))
    assert matrices_overlap(run, lines, ld, batch, step) == shared


def test_overlap_within_a_batch_is_quick_however_large() -> None:
    side, most = 2**20, 2**31 - 1
    assert not matrices_overlap(side, side, side * most, most, side)
    assert matrices_overlap(side, side, side * most, most, side - 1)
    # The ranges interleave, but the matrices are far apart: no search is needed.
    assert not matrices_overlap(2, most, 2**40 + 15, most, 2**41 + 2**20 + 7)


def test_matrices_of_a_batch_may_lie_between_each_others_columns() -> None:
    buffer = np.zeros((5, L, 4), "f4")
    C = buffer.transpose(1, 2, 0)  # columns of C[i] are L * 4 elements apart
    assert str(problem_of("NN", A3, B3, C).C) == "(4,5,3):(1,12,4)"
    with pytest.raises(errors.OverlapError, match="its matrices share memory"):
        problem_of("NN", A3, B3, as_strided(C, C.shape, (3 * 4, 4, 48)))


def test_overlap_with_an_operand() -> None:
    """Test that interleaved A and C do not overlap, and that one common element is an overlap."""
    buffer = np.zeros((L, 2, 4, 4), "f4")
    A, C = buffer[:, 0], buffer[:, 1]
    B = np.zeros((4, 4), "f4")
    assert problem_of("NN", A, B, C).C.batch_stride == 32
    with pytest.raises(errors.OverlapError, match="C shares memory with A"):
        problem_of("NN", A, B, buffer.reshape(-1, 4, 4)[1:4])
    with pytest.raises(errors.OverlapError, match="C shares memory with B"):
        problem_of("NN", A, C[2], C)


# Results ------------------------------------------------------------------------------------------


@st.composite
def laid_out(draw: st.DrawFn, shape: tuple[int, int], name: str, writable: bool = False) -> Any:
    """Draw integers in a batch of any layout. For C, also return its buffer and position."""
    order, pad = draw(st.sampled_from("FC")), draw(st.integers(0, 2))
    kinds = ["whole", "between"] + ([] if writable else ["shared", "one", "2-D", "sliding"])
    kind = draw(st.sampled_from(kinds))
    inner, outer = shape if order == "F" else shape[::-1]
    ld = inner + pad
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    if kind == "between":
        ld, step = ld * L, ld
    elif kind == "sliding":
        step = draw(st.integers(1, 4))
    else:
        step = ld * outer + draw(st.integers(0, 3))
    buffer = rng.integers(-4, 5, step * L + ld * (outer + 1) + 9).astype(name)
    if name == "complex64":
        buffer += 1j * rng.integers(-4, 5, buffer.size)
    strides = (1, ld) if order == "F" else (ld, 1)
    batch = {"2-D": (), "one": (1,)}.get(kind, (L,))
    steps = (0 if kind == "shared" else step,) * len(batch)
    view = as_strided(
        buffer[draw(st.integers(0, 3)) :],
        (*batch, *shape),
        [x * buffer.itemsize for x in (*steps, *strides)],
        writeable=writable,
    )
    return (view, buffer) if writable else view


@pytest.mark.parametrize("kernel", ["auto", "host"])
@settings(max_examples=60, deadline=None)
@given(
    data=st.data(),
    op=st.tuples(st.sampled_from("NTC"), st.sampled_from("NTH")).map("".join),
    sizes=st.tuples(*[st.integers(0, 5)] * 3),
    name=st.sampled_from(["float16", "float32", "float64", "complex64", "int8"]),
    beta=st.sampled_from([None, 0, 1, -2]),
    order=st.sampled_from("FC"),
)
def test_gemm_is_matmul(
    kernel: str,
    data: st.DataObject,
    op: str,
    sizes: tuple[int, int, int],
    name: str,
    beta: int | None,
    order: Any,
) -> None:
    m, n, k = sizes
    A = data.draw(laid_out((m, k) if op[0] == "N" else (k, m), name))
    B = data.draw(laid_out((k, n) if op[1] == "N" else (n, k), name))
    left = A if op[0] == "N" else A.swapaxes(-1, -2)
    right = B if op[1] == "N" else B.swapaxes(-1, -2)
    wide = complex if name == "complex64" else float
    left = (left.conj() if op[0] == "C" else left).astype(wide)
    right = (right.conj() if op[1] == "H" else right).astype(wide)
    expected = 3 * np.matmul(left, right)
    given: dict[str, Any] = {"alpha": 3, "kernel": kernel, "backend": "cpu"}
    if beta is None or expected.shape != (L, m, n):
        C = cg.gemm(op, A, B, order=order, **given)
        assert C.shape == expected.shape
        assert (C if order == "C" else C.swapaxes(-1, -2)).flags.c_contiguous
    else:
        out = "int32" if name == "int8" else name
        C, buffer = data.draw(laid_out((m, n), out, writable=True))
        expected = expected + (beta * C.astype(wide) if beta else 0)
        untouched = buffer.copy()
        if beta == 0 and name != "int8":
            C[...] = np.nan
        assert cg.gemm(op, A, B, C, beta=beta, **given) is C
        inside = np.zeros(buffer.size, bool)
        offset = (C.ctypes.data - buffer.ctypes.data) // buffer.itemsize
        as_strided(inside[offset:], C.shape, [x // buffer.itemsize for x in C.strides])[...] = True
        assert (buffer[~inside] == untouched[~inside]).all()
    np.testing.assert_array_equal(C.astype(wide), expected)


@pytest.mark.parametrize("kernel", ["auto", "host"])
def test_a_batch_of_none(kernel: str) -> None:
    C = cg.gemm("NN", A3[:0], B3[0], kernel=kernel, backend="cpu")
    assert C.shape == (0, 4, 5)
    assert cg.gemm("NN", A3[:0], B3[:1], C, kernel=kernel, backend="cpu") is C


def test_long_batches_of_small_matrices_are_computed_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Test blocks of matrices, which bound the memory."""
    from cute_gemm.problem import reference

    monkeypatch.setattr(reference, "_BLOCK", 8)
    calls: list[tuple[int, ...]] = []
    scale = reference.scale
    monkeypatch.setattr(
        reference, "scale", lambda total, C, *more: (calls.append(C.shape), scale(total, C, *more))
    )
    A, B = np.arange(50 * 12.0).reshape(50, 4, 3), np.ones((3, 4))
    np.testing.assert_array_equal(cg.gemm("NN", A, B, backend="cpu"), A @ B)
    assert calls == [(4, 4, 4)] * 12 + [(2, 4, 4)]


# Plans --------------------------------------------------------------------------------------------


def test_a_plan_of_a_batch() -> None:
    plan = cg.plan("TN", m=4, n=5, k=6, l=L, dtype="float32", storage="C", backend="cpu")
    assert " l=3 " in repr(plan) and " l=" not in repr(cg.plan("TN", A3[0].T, B3[0], backend="cpu"))
    A = np.arange(L * 24, dtype="f4").reshape(L, 6, 4)
    B = np.ones((L, 6, 5), "f4")
    np.testing.assert_array_equal(plan(A, B), A.swapaxes(1, 2) @ B)
    for arrays, message in (
        ((A[:2], B[:2]), r"A is \(4,6,2\):\(1,4,24\) .*for \(4,6,3\):\(1,4,24\)"),
        ((A[0], B[0]), r"A is \(4,6\):\(1,4\) "),
        ((A[0], B), r"A is \(4,6,3\):\(1,4,0\) "),
    ):
        with pytest.raises(errors.ShapeError, match=message):
            plan(*arrays)


def test_a_plan_of_a_single_matrix_takes_a_batch_of_one() -> None:
    plan = cg.plan("NN", A3[0], B3[0], backend="cpu")
    assert plan(A3[:1], B3[:1]).shape == (1, 4, 5) and plan(A3[0], B3[0]).shape == (4, 5)


def test_a_plan_takes_arrays_that_are_aligned_as_all_its_matrices_are() -> None:
    """Test that a plan requires the alignment of all matrices, and not more of the first one."""
    plan = cg.plan(
        "NN", m=4, n=5, k=8, l=L, dtype="float16", batch_a=64, storage="C", backend="cpu"
    )
    assert (plan.problem.A.alignment, plan.problem.A.first_alignment) == (128, 256)
    B = on_gpu((L, 8, 5), (40, 5, 1))
    with pytest.raises(errors.DeviceError, match="the plan is for the CPU"):
        plan.executable._check(on_gpu((L, 4, 8), (64, 8, 1), 0x10080), B, None, {})
    with pytest.raises(errors.ShapeError, match="A starts at an address aligned to 64 bytes"):
        plan.executable._check(on_gpu((L, 4, 8), (64, 8, 1), 0x10040), B, None, {})


def test_sizes_and_arrays_do_not_mix() -> None:
    with pytest.raises(errors.OptionError, match="takes arrays or sizes; l, batch_b came with"):
        cg.plan("NN", A3, B3, l=3, batch_b=0)


# Counts -------------------------------------------------------------------------------------------

#: Kernel -> type, and remainders of A's leading dimension and batch stride modulo 8.
KERNELS = {
    "naive": ("float32", 1, 3), "smem_full_k": ("float32", 0, 2),
    "double_buffered": ("float32", 2, 3), "tensor_core": ("float16", 2, 2),
    "sm80_pipeline": ("float16", 0, 2), "cutlass_universal": ("float16", 0, 4),
    "thin": ("float16", 2, 2),
}  # fmt: skip


def single(problem: GemmProblem) -> GemmProblem:
    """Return one product of a batch."""
    matrices = {x.name: replace(x, l=1, batch_stride=0) for x in (problem.A, problem.B, problem.C)}
    return replace(problem, l=1, **matrices)


@pytest.mark.parametrize("shared", ["", "A", "B"])
@pytest.mark.parametrize("op", ["NN", "TT"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_counts_are_the_sums_over_the_matrices(
    monkeypatch: pytest.MonkeyPatch, kernel: str, op: str, shared: str
) -> None:
    """Compare with counts of each matrix alone, at its own address."""
    dtype, odd_ld, odd = KERNELS[kernel]
    batch = {"batch_a": 8000 + odd, "batch_b": 8008, "batch_c": 8001}
    batch |= {f"batch_{shared.lower()}": 0} if shared else {}
    n = 31 if kernel == "thin" else 41
    problem = from_sizes(
        op, m=66, n=n, k=37, l=7, dtype=dtype, lda=72 + odd_ld, ldb=72, ldc=70, **batch
    )
    config = select.select(problem, "sm_80", kernel).config
    family = registry.get(kernel)
    together = family.accesses(config, problem, reads_c=True)
    alone = family.accesses(config, single(problem), reads_c=True)
    assert len(together) == len(alone) > 0
    start: dict[str, int] = {}
    monkeypatch.setattr(gmem, "base_residue", lambda matrix: start.get(matrix.name, 0))
    for access, one in zip(together, alone, strict=True):
        start.clear()
        model = gmem if isinstance(access, GlobalAccess) else smem
        found = model.analyze(access)
        parts = []
        for i in range(problem.l):
            start.update(
                {x.name: i * x.batch_bytes % 128 for x in (problem.A, problem.B, problem.C)}
            )
            parts.append(model.analyze(one))
        for field in ("launch", "interior", "edge"):
            first, *others = (getattr(part, field) for part in parts)
            assert getattr(found, field) == sum(others, start=first), (access, field)
        if isinstance(access, GlobalAccess):
            assert found.tile == parts[0].tile and found.aligned == all(x.aligned for x in parts)


LANES = np.stack([np.arange(32), np.zeros(32, int)], axis=-1)[None]


@pytest.mark.parametrize(("step", "sectors"), [(64, 8), (4, 8), (0, 8), (65, 8.75), (66, 8.5)])
def test_figures_per_request_are_means_over_the_batch(step: int, sectors: float) -> None:
    """Test four matrices whose addresses differ by 8 bytes, so that one begins on a sector."""
    matrix = Matrix("A", (32, 1), (1, 32), "float64", 256, l=4, batch_stride=step)
    access = GlobalAccess("A", "load", "ld.global", 64, matrix, (32, 1), LANES, 0, 5)
    found = gmem.analyze(access)
    assert found.judged.requests == 4 and found.launch.requests == 20
    assert found.judged.sectors / found.judged.requests == sectors
    assert found.coalesced == (sectors == 8) and found.tile.sectors == 8


def test_totals_of_huge_batches_are_not_bounded() -> None:
    problem = from_sizes(
        "NN", m=2**20, n=1, k=2**31 - 1, l=2**31 - 1, dtype="int8", batch_a=3, batch_b=0
    )
    access = GlobalAccess("A", "load", "ld.global", 8, problem.A, (32, 1), LANES, 0, 1)
    found = gmem.analyze(access).launch
    assert found.requests == 2**15 * (2**31 - 1) ** 2
    assert found.bytes == 2**20 * (2**31 - 1) ** 2


def test_the_report_shows_the_batch() -> None:
    sizes: dict[str, Any] = {"m": 256, "n": 128, "k": 64, "dtype": "float16"}
    sizes |= {"kernel": "sm80_pipeline", "tile": (64, 64, 32), "warps": (2, 2), "stages": 3}
    report = cg.analyze("TN", **sizes, l=5, batch_b=0)
    text = str(report)
    assert "M=256 N=128 K=64 L=5" in text
    assert "A(M,K,L)  (256,64,5):(64,1,16384)" in text
    assert "B(N,K,L)  (128,64,5):(64,1,0)" in text
    found = report.to_dict()
    assert (found["l"], found["matrices"]["A"]["batch_stride"]) == (5, 16384)
    assert found["matrices"]["B"]["l"] == 5
    one = cg.analyze("TN", **sizes)
    assert "L" not in str(one).partition("\n")[0].replace("BLAS", "")
    for row, of_one in zip(report.rows, one.rows, strict=True):
        assert row.launch.requests == 5 * of_one.launch.requests
        assert (row.sectors, row.wavefronts) == (of_one.sectors, of_one.wavefronts)
    assert report.performance.per_result == one.performance.per_result
    compulsory = report.performance.traffic.compulsory
    assert compulsory["A"] == 5 * 256 * 64 * 2 and compulsory["B"] == 128 * 64 * 2


def test_a_report_of_no_matrices() -> None:
    report = cg.analyze("TN", m=256, n=128, k=64, l=0, dtype="float16")
    assert all(not row.launch.requests for row in report.rows)
    assert "L=0" in str(report)


# Arrays -------------------------------------------------------------------------------------------


def test_new_torch_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from cute_gemm.arrays.torch import TORCH

    def empty_strided(*given: Any, dtype: str, device: str) -> tuple[Any, ...]:
        return given

    torch = SimpleNamespace(float16="half", empty_strided=empty_strided)
    monkeypatch.setitem(sys.modules, "torch", torch)
    like = replace(on_gpu((4, 4), (4, 1)), owner=SimpleNamespace(device="cuda:0"))
    for order, strides in (("F", (20, 1, 4)), ("C", (20, 5, 1))):
        made = TORCH.new(like, (L, 4, 5), order, "float16")  # type: ignore[arg-type]
        assert made == ((L, 4, 5), strides)


def test_matrix_defaults() -> None:
    assert str(Matrix("A", (2, 3), (1, 2), "float32", 256)) == "(2,3):(1,2)"
