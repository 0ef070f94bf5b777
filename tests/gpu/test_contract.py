"""Test the BLAS contract with device arrays: errors before any write, device scalars, plans."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from cases import PLAIN, narrow, wide
from device_matrices import (
    DEVICE,
    assert_canaries,
    assert_result,
    assert_threads_share_a_plan,
    error_bound,
    inputs,
    new_c,
    reference,
)
from gemm_cases import Builds

import cute_gemm as cg
from cute_gemm.errors import (
    AlignmentError,
    ArrayError,
    CubinError,
    DeviceError,
    DTypeError,
    GemmError,
    OpError,
    OptionError,
    OutOfMemoryError,
    OverlapError,
    ReadOnlyError,
    ScalarError,
    ShapeError,
    StrideError,
    UnknownKernelError,
    UnsupportedError,
)
from cute_gemm.plan import reused

KERNEL_NAMES = ("sm80_pipeline", "cutlass_universal")

#: Kernels of tests that have no ``case`` parameter.
KERNELS = [
    *(narrow(kernel, name, "TN") for kernel in KERNEL_NAMES for name in PLAIN),
    wide("sm80_pipeline", "float32", "TN"),
]

M, N, K = 65, 63, 127
NAN, INF = math.nan, math.inf


def matrix(rows: int, columns: int, dtype: str = "float32", device: Any = None) -> torch.Tensor:
    """Return a column-major matrix of ones."""
    kind = getattr(torch, dtype)
    return torch.ones(columns, rows, dtype=kind, device=DEVICE if device is None else device).T


# Bad input ----------------------------------------------------------------------------------------


def numpy(tensor: torch.Tensor) -> np.ndarray:
    return tensor.cpu().numpy()


def shares(C: torch.Tensor, shift: int) -> torch.Tensor:
    """Return an A (K, M) of op TN that overlaps C, ``shift`` elements from its beginning."""
    buffer = C._base if C._base is not None else C
    return torch.as_strided(buffer, (K, M), (1, K), shift)


#: name: (error, part of the message, arguments that differ from a valid call)
BAD: dict[str, tuple[type[GemmError], str, Callable[..., dict[str, Any]]]] = {
    "A on the host, NumPy": (DeviceError, "A is on the host", lambda A, B, C: {"A": numpy(A)}),
    "A on the host, PyTorch": (DeviceError, "A is on the host", lambda A, B, C: {"A": A.cpu()}),
    "B on the host": (DeviceError, "B is on the host", lambda A, B, C: {"B": numpy(B)}),
    "A and B on the host, C not": (
        DeviceError, "C is on CUDA device 0", lambda A, B, C: {"A": numpy(A), "B": numpy(B)},
    ),
    "alpha on the device, A not": (
        DeviceError, "alpha is on CUDA device 0",
        lambda A, B, C: {
            "A": numpy(A), "B": numpy(B), "C": numpy(C).copy(order="F"),
            "alpha": torch.ones((), device=DEVICE),
        },
    ),
    "backend='cpu'": (DeviceError, "cannot read A", lambda A, B, C: {"backend": "cpu"}),
    "op": (OpError, "'NX'", lambda A, B, C: {"op": "NX"}),
    "k of A and B": (ShapeError, r"k = 127.*k = 126", lambda A, B, C: {"B": B[:-1]}),
    "shape of C": (ShapeError, r"\(64, 63\).*\(65, 63\)", lambda A, B, C: {"C": C[:-1]}),
    "one dimension": (ShapeError, "two dimensions", lambda A, B, C: {"A": A[:, 0]}),
    "four dimensions": (ShapeError, "a matrix or a batch", lambda A, B, C: {"B": B[None, None]}),
    "a batch into a matrix": (ShapeError, "expected .1, 65, 63", lambda A, B, C: {"B": B[None]}),
    "no unit stride in A": (
        StrideError, "expected one of them to be 1", lambda A, B, C: {"A": matrix(2 * K, M)[::2]},
    ),
    "no unit stride in C": (
        StrideError, "expected one of them to be 1", lambda A, B, C: {"C": matrix(2 * M, N)[::2]},
    ),
    "C of stride 0": (
        OverlapError, "share memory", lambda A, B, C: {"C": torch.as_strided(C, (M, N), (1, 0))},
    ),
    "C of too small a stride": (
        OverlapError, "share memory",
        lambda A, B, C: {"C": torch.as_strided(C, (M, N), (1, M - 1))},
    ),
    "C is A": (OverlapError, "C shares memory with A", lambda A, B, C: {"A": shares(C, 0)}),
    "C begins in A": (OverlapError, "with A", lambda A, B, C: {"A": shares(C, 200)}),
    "C begins in B": (
        OverlapError, "with B",
        lambda A, B, C: {"B": torch.as_strided(C._base, (K, N), (1, K), 100)},
    ),
    "dtypes of A and B": (DTypeError, "float64.*float32", lambda A, B, C: {"A": A.double()}),
    "dtype of C": (DTypeError, "C of dtype", lambda A, B, C: {"C": matrix(M, N, "float16")}),
    "unsupported dtype": (
        DTypeError, "not supported",
        lambda A, B, C: {"A": A.to(torch.int16), "B": B.to(torch.int16)},
    ),
    "alpha's dtype on the device": (
        DTypeError, "alpha is a device array of dtype complex64",
        lambda A, B, C: {"alpha": torch.ones((), device=DEVICE, dtype=torch.complex64)},
    ),
    "alpha with a dimension": (
        ScalarError, "alpha", lambda A, B, C: {"alpha": torch.ones(1, device=DEVICE)},
    ),
    "complex alpha": (ScalarError, "alpha is 1j", lambda A, B, C: {"alpha": 1j}),
    "out_dtype": (DTypeError, "out_dtype", lambda A, B, C: {"out_dtype": "float64"}),
    "compute": (OptionError, "compute", lambda A, B, C: {"compute": "float64"}),
    "requires grad": (
        ArrayError, "requires grad", lambda A, B, C: {"A": A.clone().requires_grad_()},
    ),
    "unknown kernel": (
        UnknownKernelError, "sm80_pipeline, sm90_wgmma", lambda A, B, C: {"kernel": "sm80"},
    ),
    "unknown option": (OptionError, "'stagess'", lambda A, B, C: {"stagess": 3}),
    "arch before sm_80": (UnsupportedError, "sm_75", lambda A, B, C: {"arch": "sm_75"}),
    "no stream": (OptionError, "not a CUDA stream", lambda A, B, C: {"stream": "0"}),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_bad_input_leaves_c_alone(what: str, builds: Builds, arch: str) -> None:
    builds.wait(narrow("sm80_pipeline", "float32", "TN").plan(arch))
    error, message, changes = BAD[what]
    A, B = matrix(K, M), matrix(K, N)
    # The buffer is large enough for operands that overlap C.
    buffer = torch.arange(4.0 * M * K, device=DEVICE)
    C = torch.as_strided(buffer, (M, N), (1, M))
    before = buffer.clone()
    good = {"op": "TN", "A": A, "B": B, "C": C, "beta": 1.0}
    with pytest.raises(error, match=message):
        cg.gemm(**{**good, **changes(A, B, C)})
    assert torch.equal(buffer, before)
    # Without the change the call is valid.
    cg.gemm(**good)
    assert torch.equal(C.reshape(-1), (before[: M * N].view(N, M).T + K).reshape(-1))


def test_errors_come_before_a_quick_return() -> None:
    C = matrix(0, N)
    for arguments, error in (
        ({"A": matrix(K, 0)[:-1]}, ShapeError),
        ({"alpha": "2"}, ScalarError),
        ({"kernel": "none"}, UnknownKernelError),
        ({"B": numpy(matrix(K, N))}, DeviceError),
    ):
        given = {"A": matrix(K, 0), "B": matrix(K, N), **arguments}
        with pytest.raises(error):
            cg.gemm("TN", given.pop("A"), given.pop("B"), C, **given)
    assert cg.gemm("TN", matrix(K, 0), matrix(K, N), C) is C


def test_a_fractional_scalar_of_integers() -> None:
    A, B, C = matrix(K, M, "int8"), matrix(K, N, "int8"), matrix(M, N, "int32")
    for name, value in itertools.product(("alpha", "beta"), (0.5, NAN, INF, 2**31)):
        with pytest.raises(ScalarError, match=f"{name} is .*integer of 32 bits"):
            cg.gemm("TN", A, B, C, **{name: value})
    assert (C == 1).all()


def test_beta_without_c() -> None:
    A, B = matrix(K, M), matrix(K, N)
    with pytest.raises(ScalarError, match="no C is given"):
        cg.gemm("TN", A, B, beta=1)
    with pytest.raises(ScalarError, match="beta on the device"):
        cg.gemm("TN", A, B, beta=torch.zeros((), device=DEVICE))


def test_a_read_only_c() -> None:
    A, B, C = (np.ones(shape, "f4", order="F") for shape in ((K, M), (K, N), (M, N)))
    C.flags.writeable = False
    with pytest.raises(ReadOnlyError, match="C .numpy. is read-only"):
        cg.gemm("TN", A, B, C)
    assert (C == 1).all()


def test_an_address_between_elements() -> None:
    """Test an address that ``__cuda_array_interface__`` can express, but no PyTorch tensor."""

    class Shifted:
        def __init__(self, tensor: torch.Tensor) -> None:
            self.kept = tensor
            self.__cuda_array_interface__ = {
                "version": 3, "shape": (K - 1, M), "strides": (4, 4 * K), "typestr": "<f4",
                "data": (tensor.data_ptr() + 2, False),
            }  # fmt: skip

    with pytest.raises(AlignmentError, match="multiple of 2 only"):
        cg.gemm("TN", Shifted(matrix(K, M)), matrix(K - 1, N), matrix(M, N))


def test_a_cubin_for_another_arch(arch: str) -> None:
    other = "sm_80" if not arch.startswith("sm_8") else "sm_90"
    A, B, C = matrix(K, M), matrix(K, N), matrix(M, N)
    with pytest.raises(CubinError, match=f"is for {other}, and device 0 .* is {arch.rstrip('a')}"):
        cg.gemm("TN", A, B, C, arch=other)
    assert (C == 1).all()
    # A plan that is not launched can be for any arch.
    assert cg.plan("TN", A, B, C, arch=other).cubin


def test_out_of_memory_names_the_size(builds: Builds, arch: str) -> None:
    """Test a NumPy array of three columns that are 4 TiB apart, and need no host memory."""
    builds.wait(narrow("sm80_pipeline", "float32", "TN").plan(arch))
    column, ld = np.ones(K, "f4"), 2**40 + 1
    A = np.lib.stride_tricks.as_strided(column, (K, 3), (4, 4 * ld), writeable=False)
    B = np.ones((K, 3), "f4", order="F")
    expected = 4 * (2 * ld + K)
    with pytest.raises(OutOfMemoryError, match=f"^{expected:,} bytes .* were asked for on"):
        cg.gemm("TN", A, B)
    with pytest.raises(MemoryError):
        cg.gemm("TN", A, B)
    # Later calls work.
    assert (cg.gemm("TN", np.ones((K, 3), "f4", order="F"), B) == K).all()


# Scalars ------------------------------------------------------------------------------------------


def device_number(library: str, value: float, dtype: str) -> Any:
    if library == "torch":
        return torch.tensor(value, dtype=getattr(torch, dtype), device=DEVICE)
    cupy = pytest.importorskip("cupy")
    return cupy.asarray(np.array(value, dtype))


def set_number(number: Any, value: float) -> None:
    """Change the number in place, in the current stream."""
    if isinstance(number, torch.Tensor):
        number.fill_(value)
    else:
        number.set(np.array(value, number.dtype))


@pytest.mark.parametrize("library", ["torch", "cupy"])
@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("kernel", KERNEL_NAMES)
def test_device_scalars(kernel: str, name: str, library: str, builds: Builds, arch: str) -> None:
    """Test scalars that the kernel reads, and that change between calls of one plan and of gemm."""
    case = narrow(kernel, name, "TN")
    builds.wait(case.plan(arch))
    given = inputs(case)
    kind = {"float64": "float64", "int8": "int32"}.get(name, "float32")
    alpha, beta = device_number(library, 1, kind), device_number(library, 0, kind)
    C, _ = new_c(case, 0)
    plan = cg.plan(case.op, given.A.view, given.B.view, C.view, **case.options)
    assert plan.symbol == case.plan(arch).symbol
    kept: int | None = None
    for a, b in itertools.product(case.t.scalars, repeat=2):
        set_number(alpha, a)
        set_number(beta, b)
        for call in ("plan", "gemm"):
            C, before = new_c(case, b)  # C holds NaN if beta is 0 on the device
            if call == "plan":
                plan(given.A.view, given.B.view, C.view, alpha=alpha, beta=beta)
            else:
                cg.gemm(
                    case.op, given.A.view, given.B.view, C.view, alpha=alpha, beta=beta,
                    **case.options,
                )  # fmt: skip
                kept = kept or len(reused.plans)
                assert len(reused.plans) == kept
            assert_result(given, C, before, a, b)
    # One launch is bound for all values.
    assert len(plan.executable._bound) == 1


@pytest.mark.parametrize("side", [False, True])
@pytest.mark.parametrize("library", ["torch", "cupy"])
@pytest.mark.parametrize("kind", ["float64", "float16", "int64", "int32"])
def test_device_scalars_of_another_type(kind: str, library: str, side: bool) -> None:
    """Test scalars that are converted in stream order, after pending work."""
    A, B = (torch.randint(-4, 5, (40, 40), device=DEVICE).float() for _ in "AB")
    C = torch.ones(40, 40, device=DEVICE)
    alpha, beta = device_number(library, 2, kind), device_number(library, 3, kind)
    stream = torch.cuda.Stream() if side else None
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        if library == "torch":
            alpha.fill_(5)
    if library == "cupy" and side:
        with pytest.importorskip("cupy").cuda.ExternalStream(stream.cuda_stream):
            set_number(alpha, 5)
    elif library == "cupy":
        set_number(alpha, 5)
    plan = cg.plan("NN", A, B, C)
    if library == "cupy" and not side:
        torch.cuda.synchronize()
    plan(A, B, C, alpha=alpha, beta=beta, stream=stream)
    torch.cuda.synchronize()
    assert torch.equal(C, 5 * (A @ B) + 3)


def test_int8_takes_no_device_scalars_that_need_not_be_whole() -> None:
    A = torch.ones(8, 8, dtype=torch.int8, device=DEVICE)
    for kind in (torch.float32, torch.int64):
        with pytest.raises(DTypeError, match="expected int32"):
            cg.gemm("NN", A, A, alpha=torch.ones((), device=DEVICE, dtype=kind))
    narrow_one = torch.full((), 3, device=DEVICE, dtype=torch.int16)
    assert (cg.gemm("NN", A, A, alpha=narrow_one) == 24).all()


@pytest.mark.parametrize("kernel", KERNEL_NAMES)
def test_a_device_alpha_of_0_does_not_read_a_and_b(kernel: str, builds: Builds, arch: str) -> None:
    case = narrow(kernel, "float32", "TN")
    builds.wait(case.plan(arch))
    given = inputs(case)
    given.A.buffer.fill_(NAN)
    given.B.buffer.fill_(NAN)
    C, before = new_c(case, 1)
    alpha = torch.zeros((), device=DEVICE)
    cg.gemm(case.op, given.A.view, given.B.view, C.view, alpha=alpha, beta=1, **case.options)
    assert torch.equal(C.view.double(), before)
    assert_canaries(C)


@pytest.mark.parametrize("on_device", [False, True], ids=["host", "device"])
@pytest.mark.parametrize("name", [name for name in PLAIN if name != "int8"])
@pytest.mark.parametrize("kernel", KERNEL_NAMES)
def test_nan_and_inf_are_numbers(
    kernel: str, name: str, on_device: bool, builds: Builds, arch: str
) -> None:
    case = narrow(kernel, name, "TN")
    builds.wait(case.plan(arch))
    given = inputs(case, largest=2)

    def call(alpha: float, beta: float) -> tuple[torch.Tensor, torch.Tensor | None]:
        kind = "float64" if name == "float64" else "float32"
        given_scalars = [device_number("torch", x, kind) if on_device else x for x in (alpha, beta)]
        C, before = new_c(case, beta, largest=50)
        cg.gemm(
            case.op, given.A.view, given.B.view, C.view, alpha=given_scalars[0],
            beta=given_scalars[1], **case.options,
        )  # fmt: skip
        assert_canaries(C)
        return C.view.double(), before

    products = given.product
    assert (products == 0).any() and (products > 0).any() and (products < 0).any()
    got, _ = call(NAN, 0)
    assert torch.isnan(got).all()
    got, _ = call(INF, 0)  # exact sums: infinity times 0 is NaN, else the product's sign
    assert torch.equal(got.nan_to_num(nan=0.0), (products * INF).nan_to_num(nan=0.0))
    assert torch.equal(torch.isnan(got), products == 0)
    got, before = call(1, -INF)
    assert before is not None
    assert torch.equal(torch.isnan(got), before == 0)
    assert torch.equal(got[before != 0], -torch.inf * before[before != 0])
    got, _ = call(1, NAN)
    assert torch.isnan(got).all()


# Plans --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", KERNEL_NAMES)
def test_a_plan_serves_arrays_like_those_planned_for(
    kernel: str, builds: Builds, arch: str
) -> None:
    case = narrow(kernel, "float32", "TN")
    builds.wait(case.plan(arch))
    first = inputs(case)
    C, _ = new_c(case, 0)
    plan = cg.plan(case.op, first.A.view, first.B.view, C.view, **case.options)
    other = inputs(case, largest=3)
    for given in (first, other, first):
        C, before = new_c(case, 1)
        assert plan(given.A.view, given.B.view, C.view, alpha=-0.7, beta=1) is C.view
        assert_result(given, C, before, -0.7, 1)
    # A new C has another leading dimension.
    with pytest.raises(ShapeError, match="C is .*, and the plan was made for"):
        plan(first.A.view, first.B.view)


def test_a_plan_refuses_other_arrays(builds: Builds, arch: str) -> None:
    case = wide("sm80_pipeline", "float32", "TN")
    builds.wait(case.plan(arch))
    given = inputs(case)
    C, before = new_c(case, 1)
    A, B = given.A.view, given.B.view
    plan = cg.plan(case.op, A, B, C.view, **case.options)
    longer = torch.ones(case.m, case.k + 1, device=DEVICE).T
    shifted = torch.as_strided(given.A.buffer, A.shape, A.stride(), A.storage_offset() + 1)
    for message, arguments in (
        (r"A starts at an address aligned to 4 bytes, .* made for 16", (shifted, B, C.view)),
        (r"A is \(63,65\):\(65,1\).*made for", (A.T.contiguous().T, B, C.view)),
        (r"A is \(62,65\)", (A[:, 1:], B, C.view[1:])),
        (r"k = 66", (longer, B, C.view)),
        (r"float64", (A.double(), B.double(), C.view.double())),
    ):
        with pytest.raises(GemmError, match=message):
            plan(*arguments, beta=1)
    assert torch.equal(C.view.double(), before)
    plan(A, B, C.view, beta=1)
    assert_result(given, C, before, 1, 1)


def test_threads_share_a_plan(builds: Builds, arch: str) -> None:
    """Test threads with their own streams and Cs. A launch with another's would fail."""
    case = narrow("sm80_pipeline", "float32", "TN")
    builds.wait(case.plan(arch))
    assert_threads_share_a_plan(case)


# More than 2**31 elements -------------------------------------------------------------------------

LONG, SHORT = 2**17 + 1, 2**14 + 1


def ends(extent: int, count: int = 40) -> torch.Tensor:
    """Return the first and the last indices."""
    return torch.cat((torch.arange(count), torch.arange(extent - count, extent))).to(DEVICE)


@pytest.mark.parametrize("letter", ["N", "T"])
@pytest.mark.parametrize("side", ["A", "B"])
def test_an_operand_of_more_than_2_to_the_31_elements(
    side: str, letter: str, large_matrices: None
) -> None:
    random = torch.Generator(DEVICE).manual_seed(7)

    def integers(rows: int, columns: int) -> torch.Tensor:
        shape = (columns, rows)
        return torch.randint(-128, 128, shape, generator=random, device=DEVICE, dtype=torch.int8).T

    k, few = SHORT, 3
    if side == "A":
        op = letter + "N"
        A, B = integers(LONG, k) if letter == "N" else integers(k, LONG), integers(k, few)
    else:
        op = "T" + letter
        A, B = integers(k, few), integers(k, LONG) if letter == "N" else integers(LONG, k)
    assert max(A.numel(), B.numel()) > 2**31
    C = cg.gemm(op, A, B)
    left, right = A if op[0] == "N" else A.T, B if op[1] == "N" else B.T
    if side == "A":  # all of it in float64 would take 17 GB
        left, C = left[ends(LONG)], C[ends(LONG)]
    else:
        right, C = right[:, ends(LONG)], C[:, ends(LONG)]
    expected = left.double() @ right.double()
    assert torch.equal(C.double(), expected)
    assert expected.abs().max() > 1000


@pytest.mark.parametrize("order", ["F", "C"])
def test_a_c_of_more_than_2_to_the_31_elements(order: str, large_matrices: None) -> None:
    random = torch.Generator(DEVICE).manual_seed(8)
    A = torch.randint(-2, 3, (3, LONG), generator=random, device=DEVICE).half()
    B = torch.randint(-2, 3, (SHORT, 3), generator=random, device=DEVICE).half().T
    shape = (LONG, SHORT) if order == "C" else (SHORT, LONG)
    C = torch.full(shape, NAN, dtype=torch.float16, device=DEVICE)
    C = C if order == "C" else C.T
    assert C.numel() > 2**31
    assert cg.gemm("TN", A, B, C) is C
    left, right = A.T.double(), B.double()
    for start in range(0, SHORT, 1024):  # small integers: exact
        part = slice(start, start + 1024)
        assert torch.equal(C[:, part], (left @ right[:, part]).half())


def test_a_leading_dimension_of_2_to_the_25(
    builds: Builds, arch: str, large_matrices: None
) -> None:
    """Test offsets above 2**31 elements in the last column, and 2**32 bytes from half way."""
    case = narrow("sm80_pipeline", "float32", "TN")
    builds.wait(case.plan(arch))
    given = inputs(case)
    ld = 2**25 + 1
    buffer = torch.full((ld * (case.m - 1) + case.k + 1,), NAN, device=DEVICE)
    A = torch.as_strided(buffer, (case.k, case.m), (1, ld), 1)
    A.copy_(given.A.view)
    C, _ = new_c(case, 0)
    cg.gemm(case.op, A, given.B.view, C.view)
    expected = reference(given, None, 1, 0)
    error = (C.view.double() - expected).abs()
    assert (error <= error_bound(given, None, 1, 0, expected)).all()
    assert_canaries(C)
