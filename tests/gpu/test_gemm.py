"""Test every kernel, type, op and copy policy with unaligned sizes, element by element.

The reference is float64, with the bound of ``device_matrices.error_bound``. C is surrounded by
canaries, A and B by NaN, and a C that must not be read holds NaN.
"""

import itertools
import zlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from cases import LADDER, OPS, PLAIN, TYPES, Case, cutlass_takes, narrow, types_of, wide
from device_matrices import (
    DEVICE,
    Inputs,
    assert_canaries,
    assert_result,
    compute,
    error_bound,
    hold,
    inputs,
    new_c,
    reference,
)
from gemm_cases import (
    Builds,
    batches,
    cutlass_cases,
    cutlass_refuses,
    ladder_cases,
    pipeline_cases,
    small_cases,
    small_ladder,
    small_wgmma,
    thin_cases,
    wgmma_cases,
)

import cute_gemm as cg
from cute_gemm.errors import UnsupportedError
from cute_gemm.problem.verify import verify

PAIRS = list(itertools.product(range(3), range(3)))


def plan_of(case: Case, given: Inputs, C: torch.Tensor) -> cg.Plan:
    return cg.plan(case.op, given.A.view, given.B.view, C, **case.options)


@pytest.mark.parametrize(
    "case", [*pipeline_cases(), *cutlass_cases(), *ladder_cases(), *thin_cases(), *wgmma_cases()]
)
def test_awkward_sizes(case: Case, builds: Builds, arch: str) -> None:
    expected_plan = case.plan(arch)
    builds.wait(expected_plan)
    given = inputs(case)
    # (1, 0) and three of the nine pairs of alpha and beta, which depend on the case.
    first = zlib.crc32(str(case).encode())
    chosen = {PAIRS[(first + step) % len(PAIRS)] for step in (0, 2, 4)} | {(1, 0)}
    for i, j in sorted(chosen):
        alpha, beta = case.t.scalars[i], case.t.scalars[j]
        C, before = compute(given, alpha, beta)
        assert_result(given, C, before, alpha, beta)
    plan = plan_of(case, given, C.view)
    assert plan.backend == "cuda"
    # Sizes alone select the same kernel as arrays, which is already compiled.
    assert plan.symbol == expected_plan.symbol
    assert plan.build.cached


@pytest.mark.parametrize("case", [*small_cases([narrow]), *small_ladder([narrow]), *small_wgmma()])
def test_all_alpha_and_beta(case: Case, builds: Builds, arch: str) -> None:
    builds.wait(case.plan(arch))
    given = inputs(case)
    for alpha, beta in itertools.product(case.t.scalars, repeat=2):
        C, before = compute(given, alpha, beta)
        assert_result(given, C, before, alpha, beta)


@pytest.mark.parametrize("case", list(batches()))
def test_batches(case: Case, builds: Builds, arch: str) -> None:
    expected_plan = case.plan(arch)
    builds.wait(expected_plan)
    given = inputs(case)
    first = zlib.crc32(str(case).encode())
    for i, j in sorted({PAIRS[first % len(PAIRS)], (1, 0), (2, 2)}):
        alpha, beta = case.t.scalars[i], case.t.scalars[j]
        C, before = compute(given, alpha, beta)
        assert_result(given, C, before, alpha, beta)
    assert plan_of(case, given, C.view).symbol == expected_plan.symbol


@pytest.mark.parametrize("kernel", ["sm80_pipeline", "cutlass_universal", *LADDER])
def test_more_products_than_a_grid_has_layers(kernel: str) -> None:
    """Test batches of more than 65535 products, the limit of a grid's z dimension."""
    name = types_of(kernel)[0] if kernel in LADDER else "float32"
    case = replace(narrow(kernel, name, "NT"), m=3, n=2, k=5, l=200_003)
    given = inputs(case)
    C, before = compute(given, case.t.scalars[2], 1)
    assert_result(given, C, before, case.t.scalars[2], 1)


@pytest.mark.parametrize("case", [*small_cases(), *small_ladder()])
def test_integers_are_exact(case: Case, builds: Builds, arch: str) -> None:
    builds.wait(case.plan(arch))
    given = inputs(case, largest=2)
    C, before = compute(given, 2, -1, largest=50)
    assert_canaries(C)
    # Sums are exact in the accumulator. Only a 16-bit C is rounded, once.
    expected = reference(given, before, 2, -1)
    assert torch.equal(C.view, expected.to(C.view.dtype))
    assert expected.abs().max() > 50


def without_k(kernel: str, name: str, order: str, op: str = "TN") -> Case:
    sizes = (64, 48, 0) if kernel == "cutlass_universal" else (63, 65, 0)
    return replace(narrow(kernel, name, op, None, order), m=sizes[0], n=sizes[1], k=sizes[2])


@pytest.mark.parametrize(
    "case",
    [
        without_k(kernel, name, order, op)
        for kernel in ("sm80_pipeline", "cutlass_universal")
        for name in PLAIN
        for order, op in zip("FCFC", OPS, strict=True)
    ]
    + [
        without_k(kernel, name, "FC"[LADDER.index(kernel) % 2], OPS[LADDER.index(kernel) % 4])
        for kernel in LADDER
        for name in types_of(kernel)
    ],
)
def test_k_of_0_scales_c(case: Case, builds: Builds, arch: str) -> None:
    builds.wait(case.plan(arch))
    given = inputs(case)
    for alpha, beta in itertools.product(case.t.scalars, repeat=2):
        C, before = compute(given, alpha, beta)
        assert_result(given, C, before, alpha, beta)


@pytest.mark.parametrize(
    "case",
    [
        without_k(kernel, name, "F")
        for kernel in ("sm80_pipeline", "cutlass_universal", *LADDER)
        for name in (types_of(kernel)[:2] if kernel in LADDER else PLAIN)
        if name != "int8"
    ],
)
def test_k_of_0_makes_nothing_of_an_infinite_alpha(case: Case, builds: Builds, arch: str) -> None:
    builds.wait(case.plan(arch))
    given = inputs(case)
    for alpha in (float("inf"), float("nan")):
        C, before = compute(given, alpha, 1)
        assert torch.equal(C.view.double(), before)


@pytest.mark.parametrize("sizes", [(0, 65, 63), (65, 0, 63), (0, 0, 0), (0, 65, 0)], ids=str)
@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        *itertools.product(["sm80_pipeline", "cutlass_universal"], PLAIN),
        *((kernel, types_of(kernel)[0]) for kernel in LADDER),
    ],
)
def test_m_or_n_of_0_does_nothing(kernel: str, name: str, sizes: tuple[int, int, int]) -> None:
    m, n, k = sizes
    case = replace(wide(kernel, name, "TN"), m=m, n=n, k=k)
    a, b, _ = case.places
    A, B = hold(a, case.t.dtype), hold(b, case.t.dtype)
    C, _ = new_c(case, 0)
    if (kernel, name) == ("cutlass_universal", "int8"):
        # An empty matrix is column-major with an ld of 1. The kernel does not support that.
        with pytest.raises(UnsupportedError, match="loads 4 elements at a time"):
            cg.gemm(case.op, A.view, B.view, C.view, beta=1, **case.options)
        return
    assert cg.gemm(case.op, A.view, B.view, C.view, beta=1, **case.options) is C.view
    assert_canaries(C)
    fresh = cg.gemm(case.op, A.view, B.view, **case.options)
    assert tuple(fresh.shape) == (m, n) and fresh.device.type == DEVICE.type


@pytest.mark.parametrize("order", ["F", "C"])
@pytest.mark.parametrize("name", TYPES)
def test_a_new_c(name: str, order: str, builds: Builds, arch: str) -> None:
    case = narrow("sm80_pipeline", name, "TN", None, order)
    builds.wait(case.plan(arch))
    given = inputs(case)
    C = cg.gemm(
        case.op, given.A.view, given.B.view, order=order, out_dtype=case.t.out, **case.options
    )
    assert C.dtype == getattr(torch, case.t.out) and C.shape == (case.m, case.n)
    assert C.stride() == ((1, case.m) if order == "F" else (case.n, 1))
    expected = reference(given, None, 1, 0)
    bound = 0 if case.t.integer else error_bound(given, None, 1, 0, expected)
    assert ((C.double() - expected).abs() <= bound).all()


@pytest.mark.parametrize("case", list(cutlass_refuses()))
def test_what_cutlass_does_not_take(case: Case) -> None:
    assert not cutlass_takes(case)
    given = inputs(case)
    C, before = new_c(case, 1)
    with pytest.raises(UnsupportedError, match='use kernel="sm80_pipeline"'):
        cg.gemm(case.op, given.A.view, given.B.view, C.view, beta=1, **case.options)
    assert torch.equal(C.view.double(), before)
    assert_canaries(C)


# Tests of the comparison --------------------------------------------------------------------------

CHECKED = [narrow("sm80_pipeline", name, "TN", "auto") for name in TYPES]


@pytest.mark.parametrize("case", CHECKED)
def test_the_reference_is_numpys(case: Case, builds: Builds, arch: str) -> None:
    """Compare the reference with NumPy's on the host, and the verdict with that of `verify`."""
    builds.wait(case.plan(arch))
    given = inputs(case)
    alpha, beta = case.t.scalars[2], case.t.scalars[2]
    C, before = compute(given, alpha, beta)
    expected = reference(given, before, alpha, beta).cpu().numpy()

    def host(tensor: torch.Tensor) -> np.ndarray:  # float32 and float64 hold every type's values
        return tensor.double().cpu().numpy()

    A, B, old, got = host(given.A.view), host(given.B.view), host(before), host(C.view)
    scale = [float(x) if case.t.dtype == "float64" else float(np.float32(x)) for x in (alpha, beta)]
    numpys = scale[0] * (A.T @ B) + scale[1] * old
    tolerance = 1e-13 * (abs(A).T @ abs(B) + abs(old))
    assert (abs(numpys - expected) <= tolerance).all()
    assert abs(numpys).max() > 1

    out = case.problem.C.dtype
    if out != "bfloat16":
        got = got.astype(out)
        verdict = verify(case.problem, A, B, got, C=old, alpha=scale[0], beta=scale[1])
        assert verdict.ok, verdict


@pytest.mark.parametrize("case", CHECKED)
def test_the_comparison_sees_a_wrong_element(case: Case, builds: Builds, arch: str) -> None:
    builds.wait(case.plan(arch))
    given = inputs(case)
    C, before = compute(given, 1, 1)
    assert_result(given, C, before, 1, 1)
    for i, j in ((0, 0), (case.m - 1, case.n - 1), (17, 40)):
        right = C.view[i, j].clone()
        expected = reference(given, before, 1, 1)
        if case.t.integer:
            C.view[i, j] += 1
        else:
            # An error as large as that of a wrong predicate.
            C.view[i, j] += 4 * error_bound(given, before, 1, 1, expected)[i, j].to(C.view.dtype)
        with pytest.raises(AssertionError, match=f"1 of .* out of bound.*C.{i}, {j}"):
            assert_result(given, C, before, 1, 1)
        C.view[i, j] = torch.nan if C.view.dtype.is_floating_point else right - 1
        with pytest.raises(AssertionError, match="not finite|out of bound"):
            assert_result(given, C, before, 1, 1)
        C.view[i, j] = right
    assert_result(given, C, before, 1, 1)


def test_the_comparison_sees_a_write_around_c() -> None:
    case = narrow("sm80_pipeline", "float32", "TN", "auto")
    place = case.places[2]
    assert place.ld >= case.m + 2
    last = place.offset + (case.n - 1) * place.ld + case.m - 1
    for position in (0, place.offset - 1, place.offset + case.m, last + 1, place.length - 1):
        C, _ = new_c(case, 0)
        assert_canaries(C)
        C.buffer[position] = 0
        with pytest.raises(AssertionError, match=f"1 elements around C.* first at {position};"):
            assert_canaries(C)


def test_the_bound_sees_one_product_too_few() -> None:
    """Test that the bound detects a missing product of k, unlike a bound by the matrix's norm."""
    for name in ("float32", "tf32", "float64"):
        case = narrow("sm80_pipeline", name, "TN", "auto")
        given = inputs(case)
        expected = reference(given, None, 1, 0)
        last = torch.outer(given.A.view[-1].double(), given.B.view[-1].double())
        bound = error_bound(given, None, 1, 0, expected)
        assert (last.abs() > bound).double().mean() > 0.7


#: Kernels of tests that have no ``case`` parameter.
KERNELS = [
    narrow("sm80_pipeline", name, "TN", None, order) for name in TYPES for order in ("F", "C")
]
