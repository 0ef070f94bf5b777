"""Test complex types on the GPU: conjugation, complex alpha and beta, arrays of every library.

Results are compared on the host by ``verify``; its docstring derives the bound of complex sums. C
is surrounded by canaries, A and B by NaN, and a C that must not be read holds NaN.
"""

import itertools
import zlib
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from cases import COMPLEX, LADDER, SIZES, Case, complex_of, operands
from device_matrices import DEVICE, assert_canaries, assert_result, compute, inputs, new_c
from foreign_arrays import Capsule, Interface, assert_product
from gemm_cases import Builds

import cute_gemm as cg
from cute_gemm.dtypes import DTYPES
from cute_gemm.errors import ArrayError, DTypeError, ScalarError

OPS = ("NN", "NT", "TN", "TT", "CN", "NC", "CC", "CT", "TC", "HT", "NH")
SCALARS = (0, 1, -0.7 + 0.4j, 1j)


def case_of(
    kernel: str, name: str, op: str, order: str, width: int, sizes: tuple[int, int, int], i: int = 0
) -> Case:
    return Case(kernel, name, op, None, *sizes, order, (width,) * 3, i % 2 == 0)


def cases(kernel: str, ops: tuple[str, ...] = OPS) -> Iterator[Case]:
    """Yield every type, op, order of C and access width, with unaligned m, n and k."""
    number = 0
    sizes = SIZES[:10]
    for name, op, order in itertools.product(complex_of(kernel), ops, "FC"):
        # A row-major C requires a conjugate without a transpose, which BLAS does not have.
        if kernel == "cublas" and order == "C" and set(op) & set("CH"):
            continue
        for width in (8, 16) if name == "complex64" else (16,):
            for _ in range(3):
                m, n, k = (sizes[(number + step) % len(sizes)] for step in (0, 3, 7))
                yield case_of(kernel, name, op, order, width, (m, n, k), number)
                number += 1


def ladder_cases() -> Iterator[Case]:
    """Yield cases of the other tutorial kernels: four ops of each type, varying order and width."""
    number, sizes = 0, SIZES[:8]  # all of k fits in shared memory
    for kernel in LADDER:
        if kernel == "double_buffered":
            continue
        for name in complex_of(kernel):
            for _ in range(4):
                m, n, k = (sizes[(number + step) % len(sizes)] for step in (0, 3, 6))
                order, width = (
                    "FC"[number % 2],
                    16 if name == "complex128" else (8, 16)[number % 3 > 0],
                )
                yield case_of(kernel, name, OPS[number % len(OPS)], order, width, (m, n, k), number)
                number += 1


def pairs_of(case: Case) -> list[tuple[complex, complex]]:
    """Return (1, 0) and three of the 16 pairs of alpha and beta, which depend on the case."""
    pairs = list(itertools.product(SCALARS, repeat=2))
    first = zlib.crc32(str(case).encode())
    return [(1, 0), *(pairs[(first + step) % len(pairs)] for step in (0, 5, 10))]


# The contract -------------------------------------------------------------------------------------

SMALL = {name: case_of("double_buffered", name, "CN", "F", 16, (65, 63, 127)) for name in COMPLEX}
#: Kernels of tests that have no ``case`` parameter.
KERNELS = [
    *SMALL.values(),
    *(
        case_of("double_buffered", name, op, "F", DTYPES[name].bytes, (65, 63, 127), 1)
        for name in COMPLEX
        for op in ("CN", "NC", "TN")
    ),
]


def batches(found: Iterator[Case]) -> list[Case]:
    """Return every fifth case with a batch of three."""
    return [replace(case, l=3) for case in list(found)[::5]]


@pytest.mark.parametrize(
    "case",
    [
        *cases("double_buffered"), *cases("sm80_pipeline"), *ladder_cases(),
        *batches(cases("double_buffered")), *batches(cases("sm80_pipeline")),
        *batches(ladder_cases()),
    ],
)  # fmt: skip
def test_awkward_sizes(case: Case, builds: Builds, arch: str) -> None:
    builds.wait(case.plan(arch))
    given = inputs(case)
    for alpha, beta in pairs_of(case):
        C, before = compute(given, alpha, beta)
        assert_result(given, C, before, alpha, beta)


@pytest.mark.parametrize("case", [*cases("cublas"), *batches(cases("cublas"))])
def test_awkward_sizes_by_cublas(case: Case, cublas: None) -> None:
    given = inputs(case)
    for alpha, beta in pairs_of(case):
        C, before = compute(given, alpha, beta)
        assert_result(given, C, before, alpha, beta)


@pytest.mark.parametrize("name", COMPLEX)
def test_all_alpha_and_beta(name: str, builds: Builds, arch: str) -> None:
    builds.wait(SMALL[name].plan(arch))
    given = inputs(SMALL[name])
    for alpha, beta in itertools.product(SCALARS, repeat=2):
        C, before = compute(given, alpha, beta)
        assert_result(given, C, before, alpha, beta)


@pytest.mark.parametrize(
    "case",
    [
        *(
            case_of(kernel, name, op, "F", 16, (65, 63, 31))
            for kernel in ("double_buffered", "sm80_pipeline")
            for name in complex_of(kernel)
            for op in OPS
        ),
        *(
            case_of(kernel, name, op, "F", 16, (65, 63, 31))
            for kernel in LADDER
            if kernel != "double_buffered"
            for name, op in zip(COMPLEX, ("CT", "NC"), strict=True)
            if name in complex_of(kernel)
        ),
    ],
)
def test_gaussian_integers_are_exact(case: Case, builds: Builds, arch: str) -> None:
    """Test Gaussian integers, where a wrong sign of one part of one product changes the result."""
    builds.wait(case.plan(arch))
    given = inputs(case, largest=9)
    C, before = new_c(case, 1, largest=9)
    cg.gemm(case.op, given.A.view, given.B.view, C.view, alpha=2 - 1j, beta=1j, **case.options)
    assert_canaries(C)
    expected = (2 - 1j) * given.product + 1j * before
    assert torch.equal(C.view, expected.to(C.view.dtype)) and expected.imag.abs().max() > 50


def test_auto_takes_complex_types() -> None:
    plan = cg.plan("CN", m=65, n=63, k=31, dtype="complex64")
    assert (plan.kernel, plan.backend) == ("double_buffered", "cuda")


def without_k(kernel: str) -> list[Case]:
    return [
        case_of(kernel, name, op, "F", 16, (63, 65, 0))
        for name in complex_of(kernel)
        for op in ("NN", "CT")
    ]


def check_k_of_0(case: Case) -> None:
    given = inputs(case)
    for alpha, beta in itertools.product((*SCALARS, complex(np.inf, 1)), SCALARS):
        C, before = new_c(case, beta)
        cg.gemm(case.op, given.A.view, given.B.view, C.view, alpha=alpha, beta=beta, **case.options)
        assert_result(given, C, before, 1, beta)


@pytest.mark.parametrize("case", [*without_k("double_buffered"), *without_k("sm80_pipeline")])
def test_k_of_0_scales_c(case: Case, builds: Builds, arch: str) -> None:
    builds.wait(case.plan(arch))
    check_k_of_0(case)


@pytest.mark.parametrize("case", without_k("cublas"))
def test_k_of_0_scales_c_by_cublas(case: Case, cublas: None) -> None:
    check_k_of_0(case)


@pytest.mark.parametrize("sizes", [(0, 65, 63), (65, 0, 63), (0, 0, 0)], ids=str)
@pytest.mark.parametrize("kernel", ["double_buffered", "cublas"])
def test_m_or_n_of_0_does_nothing(kernel: str, sizes: tuple[int, int, int]) -> None:
    case = case_of(kernel, "complex64", "CH", "F", 16, sizes)
    given = inputs(case)
    C, _ = new_c(case, 0)
    assert cg.gemm("CH", given.A.view, given.B.view, C.view, beta=1j, kernel=kernel) is C.view
    assert_canaries(C)


# Scalars on the device ----------------------------------------------------------------------------


def device_number(library: str, value: complex, name: str) -> Any:
    if library == "torch":
        return torch.tensor(value, dtype=getattr(torch, name), device=DEVICE)
    return pytest.importorskip("cupy").asarray(np.array(value, name))


@pytest.mark.parametrize("library", ["torch", "cupy"])
@pytest.mark.parametrize("name", COMPLEX)
def test_device_scalars(name: str, library: str, builds: Builds, arch: str) -> None:
    """Test alpha, beta or both on the device, changed between calls of one plan."""
    case = SMALL[name]
    builds.wait(case.plan(arch))
    given = inputs(case)
    C, _ = new_c(case, 0)
    plan = cg.plan(case.op, given.A.view, given.B.view, C.view, **case.options)
    for alpha, beta in itertools.product(SCALARS, repeat=2):
        there = device_number(library, alpha, name), device_number(library, beta, name)
        for a, b in ((there[0], there[1]), (there[0], beta), (alpha, there[1])):
            C, before = new_c(case, beta)
            plan(given.A.view, given.B.view, C.view, alpha=a, beta=b)
            assert_result(given, C, before, alpha, beta)


def test_device_scalars_are_real_for_real_matrices() -> None:
    A = torch.ones(8, 8, dtype=torch.complex64, device=DEVICE)
    alpha = torch.full((), 3.0, device=DEVICE)
    assert (cg.gemm("NN", A, A, alpha=alpha) == 24).all()
    with pytest.raises(DTypeError, match=r"complex64; expected float32.*torch\.float32"):
        cg.gemm("NN", A.real.contiguous(), A.real.contiguous(), alpha=alpha.to(A.dtype))
    with pytest.raises(ScalarError, match="expected a real number"):
        cg.gemm("NN", A.real.contiguous(), A.real.contiguous(), alpha=1j)


# Arrays of every library --------------------------------------------------------------------------


host_pair = partial(operands, mnk=(65, 63, 127))


@pytest.mark.parametrize("name", COMPLEX)
def test_numpy(name: str) -> None:
    for op in ("CN", "NH"):
        A, B = host_pair(op, name)
        C = cg.gemm(op, A, B, backend="cuda")
        assert type(C) is np.ndarray and C.dtype == name
        assert_product(op, A, B, C)
        before = C.copy()
        assert cg.gemm(op, A, B, C, alpha=1j, beta=-0.5j, backend="cuda") is C
        assert_product(op, A, B, C, C=before, alpha=1j, beta=-0.5j)


@pytest.mark.parametrize("name", COMPLEX)
def test_torch(name: str) -> None:
    A, B = host_pair("CN", name)
    a, b = (torch.from_numpy(x.T.copy()).cuda().T for x in (A, B))
    C = cg.gemm("CN", a, b)
    assert C.dtype == getattr(torch, name) and C.stride() == (1, 65)
    assert_product("CN", A, B, C.cpu().numpy())


def test_lazy_conjugates_of_torch_are_not_taken_for_what_they_view() -> None:
    A, B = host_pair("TN", "complex64")
    a, b = (torch.from_numpy(x.T.copy()).cuda().T for x in (A, B))
    C = torch.zeros(63, 65, dtype=torch.complex64, device=DEVICE).T
    plan = cg.plan("TN", a, b, C)
    plan(a, b, C)
    plan(a, b, C)
    for call in (plan, lambda *given: cg.gemm("TN", *given)):
        with pytest.raises(ArrayError, match=r"A is a view whose conj bit.*A\.resolve_conj\(\)"):
            call(a.conj(), b, C)
        with pytest.raises(ArrayError, match=r"C\.resolve_conj"):
            call(a, b, C.conj())
    assert_product("TN", A, B, C.cpu().numpy())
    plan(a.conj().resolve_conj(), b, C)
    assert_product("TN", A.conj(), B, C.cpu().numpy())
    imaginary = torch.ones(4, 1, dtype=torch.complex64, device=DEVICE).conj().imag
    assert imaginary.is_neg()
    with pytest.raises(ArrayError, match=r"neg bit.*resolve_neg"):
        cg.gemm("NN", imaginary, torch.ones(1, 4, device=DEVICE))


@pytest.mark.parametrize("name", COMPLEX)
def test_cupy(name: str) -> None:
    cupy = pytest.importorskip("cupy")
    A, B = host_pair("NC", name)
    C = cg.gemm("NC", cupy.array(A, order="F"), cupy.array(B, order="F"), alpha=1 - 2j)
    assert isinstance(C, cupy.ndarray) and C.dtype == name
    assert_product("NC", A, B, cupy.asnumpy(C), alpha=1 - 2j)


def test_jax() -> None:
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip("JAX was installed without CUDA")
    A, B = host_pair("CN", "complex64", "C")
    C = cg.gemm("CN", jax.numpy.asarray(A), jax.numpy.asarray(B))
    assert isinstance(C, jax.Array) and C.dtype == "complex64"
    assert_product("CN", A, B, np.asarray(C))


@pytest.mark.parametrize("wrap", [Capsule, Interface])
@pytest.mark.parametrize("name", COMPLEX)
def test_other_libraries(name: str, wrap: Any) -> None:
    A, B = host_pair("CN", name)
    a, b = (torch.from_numpy(x.T.copy()).cuda().T for x in (A, B))
    c = torch.zeros(63, 65, dtype=getattr(torch, name), device=DEVICE).T
    C = wrap(c)
    assert cg.gemm("CN", wrap(a), wrap(b), C) is C
    assert_product("CN", A, B, c.cpu().numpy())


# cuBLAS -------------------------------------------------------------------------------------------


def has_cublas() -> bool:
    from cute_gemm.kernels.library.cublas import Cublas, CublasError
    from cute_gemm.run.driver import entered

    try:
        with entered(0):
            Cublas()
            return True
    except CublasError:
        return False


@pytest.fixture(scope="module")
def cublas() -> None:
    """Skip the test if cuBLAS is missing."""
    if not has_cublas():
        pytest.skip("no cuBLAS")
