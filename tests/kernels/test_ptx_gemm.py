"""Test every kernel's PTX in the interpreter: C is right, accesses as reported.

The default sample has a few types, ops and kinds of problems of every kernel. ``--matrix`` runs all
of them.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from cases import COMPLEX, OPS, TYPES, Case, at_widths, cutlass_takes
from gemm_cases import awkward_cases, small_wgmma
from interpreted import arrays, check, plan_of, takes
from unity_build import together, unity_build

import cute_gemm as cg
from cute_gemm.errors import FaultError
from cute_gemm.kernels import registry
from cute_gemm.kernels.simt.kernel import SimtKernel
from cute_gemm.plan.interpreted import execute
from cute_gemm.problem.verify import verify
from cute_gemm.ptx.parser import parse
from cute_gemm.toolchain.nvrtc import ptx

#: All kernels except those without PTX, and sm90_wgmma, which has its own cases.
KERNELS = tuple(name for name in registry.KERNELS if name not in ("host", "cublas", "sm90_wgmma"))

#: Extents, order of C, products, and access widths of A, B and C in bytes.
KINDS: dict[str, tuple[tuple[int, int, int], str, int, tuple[int, int, int]]] = {
    "tails": ((37, 29, 23), "F", 1, (16, 8, 16)),
    "wide": ((48, 80, 144), "C", 1, (16, 16, 16)),
    "batch": ((33, 17, 40), "C", 3, (1, 4, 1)),
    "base": ((64, 48, 32), "F", 1, (1, 1, 1)),
    "tiles": ((150, 140, 65), "F", 1, (8, 2, 8)),
    "flat": ((1, 65, 9), "F", 1, (4, 1, 4)),
    "deep": ((70, 40, 350), "F", 1, (16, 4, 16)),
    "groups": ((300, 50, 9), "F", 1, (8, 2, 4)),  # more rows of tiles than a raster group
}


def case_of(kernel: str, type_: str, op: str, kind: str, **options: str) -> Case:
    (m, n, k), order, l, widths = KINDS[kind]
    more = tuple(options.items())
    case = Case(kernel, type_, op, None, m, n, k, order, widths, kind != "flat", more, l)
    return at_widths(case, *widths)


def types_of(kernel: str) -> list[str]:
    taken = registry.get(kernel).dtypes
    return [name for name, t in (TYPES | COMPLEX).items() if t.operands in taken]


def everything() -> Iterator[Case]:
    """Yield all problems that a kernel supports."""
    for kernel, op, kind in product(KERNELS, OPS, KINDS):
        for name in types_of(kernel):
            yield case_of(kernel, name, op, kind)
    yield from awkward_cases()
    yield from small_wgmma()


def spread() -> Iterator[Case]:
    """Yield two cases of each kernel, with varying types, ops and kinds, and other programs."""
    kinds = tuple(KINDS)
    simt = tuple(kernel for kernel in KERNELS if isinstance(registry.get(kernel), SimtKernel))
    for number, kernel in enumerate(KERNELS):
        if kernel in ("thin", "batched"):  # these have their own samples
            continue
        # Complex types of tensor cores are in CONJUGATES.
        types = [name for name in types_of(kernel) if kernel in simt or name in TYPES]
        for step in range(2):
            turn = number + step
            kind = kinds[(turn + number // 6) % len(kinds)]
            yield case_of(kernel, types[(2 * step + number) % len(types)], OPS[turn % 4], kind)
    for name in ("float16", "int8", "float64", "tf32"):
        yield case_of("sm80_pipeline", name, "NT", "wide", copy="mn_major")
    yield case_of("double_buffered", "float32", "TN", "tails", staging="registers")
    yield case_of("double_buffered", "float16", "NN", "wide", skew="xor")
    yield case_of("coalesced", "float32", "TT", "tails", warp_along="k")
    yield case_of("smem_tiled", "float32", "NN", "groups")
    yield case_of("naive", "float32", "NT", "batch")
    yield from list(small_wgmma())[::5]
    # test_ladder_accesses.py has more cases of the ladder's kernels, and test_cutlass_universal.py
    # has those of CUTLASS.
    others = (case for case in awkward_cases() if case.kernel != "cutlass_universal")
    yield from [case for case in others if case.more or case.kernel not in simt][::5]


SPREAD = list(dict.fromkeys(filter(cutlass_takes, spread())))
REST = list(dict.fromkeys(everything()))


@pytest.mark.parametrize("case", SPREAD)
@unity_build(plan_of)
def test_the_spread(case: Case) -> None:
    check(case)


@pytest.mark.matrix
@pytest.mark.parametrize("case", REST)
@unity_build(plan_of)
def test_everything(case: Case) -> None:
    if not takes(case):
        pytest.skip("the kernel does not take it")
    check(case)


def spelled(text: str, symbol: str) -> list[str]:
    """Return an entry's instructions, with registers and labels renumbered in order."""
    names: dict[str, str] = {}

    def name(found: re.Match[str]) -> str:
        return names.setdefault(found[0], f"{found[1]}{len(names)}")

    return [
        re.sub(r"(%[a-z]+|\$L__BB)[\d_]+", name, one.text)
        for one in parse(text, symbol).instructions
    ]


def test_a_kernel_is_the_same_among_others() -> None:
    """Test that kernels compiled together are the same as those compiled alone."""
    kernels = ("smem_tiled", "double_buffered")
    units = [plan_of(case_of(name, "float32", "NN", "deep")).unit for name in kernels]
    among = ptx(together(units), "sm_80")
    for unit in units:
        assert spelled(ptx(unit, "sm_80"), unit.symbol) == spelled(among, unit.symbol)


def empty(kernel: str, k: int) -> Case:
    """Return a case of a family: with k, for alpha = 0, or with k = 0."""
    type_, kind = "complex64" if kernel == "naive" else "float16", "tails"
    case = case_of(kernel, type_, "TN", "wide" if kernel == "sm90_wgmma" else kind)
    return replace(case, k=k and case.k, m=9 if kernel == "thin" else case.m)


#: Kernels of each family, and of each of its stores to C.
FAMILIES = (
    "naive", "smem_full_k", "double_buffered", "sm80_pipeline", "tensor_core", "sm90_wgmma", "thin",
    "cutlass_universal", "batched",
)  # fmt: skip
EMPTY = [empty(kernel, k) for kernel in FAMILIES for k in (23, 0)]


@pytest.mark.parametrize("case", EMPTY)
@unity_build(plan_of)
def test_an_empty_product_and_alpha_zero_read_nothing(case: Case) -> None:
    """Test that A and B, which are NaN, are not read, and C is not read if beta is 0 too."""
    plan = plan_of(case)
    for beta in (0.75, 0):
        A, B, C = arrays(case, reads_c=beta != 0)
        before = C.copy()
        A[...], B[...] = np.nan, np.nan
        execute(plan, A, B, C, 0 if case.k else 1.5, beta)
        expected = np.zeros_like(C) if beta == 0 else before
        assert verify(plan.problem, A, B, C, C=expected, alpha=0, beta=beta).ok


@pytest.mark.parametrize("split", [1, 3])
def test_nothing_is_read_by_the_passes_either(split: int) -> None:
    """Test packing of A, and the reduction of slices of K."""
    options = {"kernel": "sm80_pipeline", "pack": "A", "backend": "cpu"}
    sizes = {"m": 37, "n": 29, "k": 300, "dtype": "float16", "lda": 301}
    plan = cg.plan("TN", **sizes, split_k=split, arch="sm_80", **options)
    A, B = (np.full((300, x), np.nan, "float16", order="F") for x in (37, 29))
    A = np.full((301, 37), np.nan, "float16", order="F")[:300]
    C = np.full((37, 29), np.nan, "float16", order="F")
    execute(plan, A, B, C, 0, 0)
    assert (C == 0).all()


@pytest.mark.parametrize("kernel", ["sm80_pipeline", "tensor_core", "sm90_wgmma"])
def test_tf32_is_rounded_to_nearest(kernel: str) -> None:
    """Test operands whose truncation has twice the error that rounding allows."""
    case = case_of(kernel, "tf32", "TN", "wide")
    A, B, C = arrays(case)
    A[...] = B[...] = np.float32(1 + 2**-10 - 2**-20)
    execute(plan := plan_of(case), A, B, C)
    assert verify(plan.problem, A, B, C).ok


@pytest.mark.parametrize("kernel", ["sm80_pipeline", "tensor_core", "sm90_wgmma", "thin"])
def test_tf32_keeps_what_is_no_number(kernel: str) -> None:
    """Test a NaN whose upper 19 bits are those of infinity."""
    case = case_of(kernel, "tf32", "TN", "wide")
    case = replace(case, n=16) if kernel == "thin" else case
    A, B, C = arrays(case)
    A[0, 0] = np.array(0x7F800001, np.uint32).view(np.float32)
    execute(plan_of(case), A, B, C)
    assert np.isnan(C[0]).all() and np.isfinite(C[1:]).all()


CONJUGATES = [
    case_of(kernel, "complex64", op, "tails")
    for kernel in ("naive", "warp_tiled")
    for op in ("CN", "NC", "CC", "CT")
]
#: Cases of tensor cores with varying kinds, and both policies.
CONJUGATES += [
    case_of(kernel, "complex128", op, kind, **options)
    for kernel, op, kind, options in (
        ("sm80_pipeline", "NN", "deep", {}), ("sm80_pipeline", "CN", "tiles", {}),
        ("sm80_pipeline", "NC", "batch", {}),
        ("sm80_pipeline", "CC", "tails", {"copy": "mn_major"}), ("sm80_pipeline", "TC", "wide", {}),
        ("tensor_core", "TN", "groups", {}), ("tensor_core", "CT", "wide", {}),
        ("tensor_core", "NC", "flat", {}), ("tensor_core", "CC", "batch", {}),
    )
]  # fmt: skip


@pytest.mark.parametrize("case", CONJUGATES)
@unity_build(plan_of)
def test_the_conjugate_is_of_the_operand_that_is_meant(case: Case) -> None:
    check(case)


@pytest.mark.parametrize(
    ("m", "n", "order", "options"),
    [(78, 27, "C", {}), (27, 130, "F", {"tile": (128, 128, 16)})],
)  # fmt: skip
def test_sums_in_float64_that_nobody_stores_stay_in_shared_memory(m, n, order, options) -> None:
    """Test the predicates of CUTLASS's loads of accumulators, with and without a C that is read."""
    A, B = np.ones((m, 20)), np.ones((20, n))
    made = cg.plan("NN", A, B, order=order, kernel="cutlass_universal", arch="sm_80", backend="cpu",
                **options)  # fmt: skip
    for beta in (0, 1):
        C = np.ones((m, n), order=order)
        assert not made.trace(A, B, C if beta else None, beta=beta).differences


@pytest.mark.parametrize("kernel", ["naive", "sm80_pipeline"])
def test_scalars_are_read_where_they_are(kernel: str) -> None:
    """Test BLAS's device pointer mode: pointers override the arguments."""
    case = case_of(kernel, "float32", "NT", "tails")
    A, B, C = arrays(case)
    before = C.copy()
    places = {"alpha_ptr": np.float32([2.5]), "beta_ptr": np.float32([-0.5])}
    execute(plan := plan_of(case), A, B, C, 7, 9, places=places)
    assert verify(plan.problem, A, B, C, C=before, alpha=2.5, beta=-0.5).ok


@pytest.mark.parametrize("kernel", ["smem_tiled", "double_buffered", "sm80_pipeline"])
def test_a_barrier_that_is_missing_is_found(kernel: str) -> None:
    """Remove each barrier from the emitted text in turn."""
    tile = {"tile": "64x64x64"} if kernel == "sm80_pipeline" else {}
    case = case_of(kernel, "float16", "NN", "deep", **tile)
    plan = plan_of(case)
    pieces = plan.ptx.split("bar.sync \t0;")
    assert len(pieces) > 1
    found = set()
    for gone in range(1, len(pieces)):
        without = [*pieces[: gone - 1], pieces[gone - 1] + pieces[gone], *pieces[gone + 1 :]]
        plan.steps.each[0].__dict__["ptx"] = "bar.sync \t0;".join(without)
        with pytest.raises(FaultError) as caught:
            execute(plan, *arrays(case))
        found.add(caught.value.kind)
    assert found <= {"race", "in flight"}


def test_a_wait_that_is_missing_is_found() -> None:
    case = case_of("sm80_pipeline", "float16", "TN", "wide")
    plan = plan_of(case)
    waits = plan.ptx.count("cp.async.wait_group")
    assert waits
    without = plan.ptx.replace("cp.async.wait_group", "cp.async.wait_group 9; //")
    plan.steps.each[0].__dict__["ptx"] = without
    with pytest.raises(FaultError, match="asynchronous copy, not waited for"):
        execute(plan, *arrays(case))


def test_an_operand_that_is_read_in_place_of_another_is_found() -> None:
    """Read B through A's pointer: there is no fault, but the result is wrong."""
    case = case_of("smem_tiled", "float32", "NN", "base")
    plan = plan_of(case)
    plan.steps.each[0].__dict__["ptx"] = plan.ptx.replace("_param_1]", "_param_0]", 1)
    A, B, C = arrays(case)
    before = C.copy()
    execute(plan, A, B, C)
    assert not verify(plan.problem, A, B, C, C=before).ok
    # The other way round, B ends before A does.
    plan.steps.each[0].__dict__["ptx"] = plan.ptx.replace("_param_0]", "_param_1]")
    with pytest.raises(FaultError, match="after the end of B"):
        execute(plan, A, B, C)
