"""Matrices in guarded device buffers, a float64 reference on the device, and the comparison."""

import threading
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from cases import Buffer, Case, in_threads

import cute_gemm as cg
from cute_gemm.problem.verify import verify

DEVICE = torch.device("cuda")

#: Unit roundoff of C's type.
ROUNDOFF = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
#: Half the smallest subnormal number.
UNDERFLOW = {"float16": 2.0**-25, "bfloat16": 2.0**-134, "float32": 2.0**-150, "float64": 0.0}

_SENTINEL = 0x5A


def on_device(view: np.ndarray) -> tuple[torch.Tensor, Callable[[], None]]:
    """Copy a view and its buffer to the device. Return the copy and a function that copies back."""
    whole = view
    while isinstance(whole.base, np.ndarray):
        whole = whole.base
    host = whole.reshape(-1).view(np.uint8)
    flat = torch.from_numpy(host.copy()).to(DEVICE).view(getattr(torch, view.dtype.name))
    strides = [step // view.itemsize for step in view.strides]
    offset = (view.ctypes.data - whole.ctypes.data) // view.itemsize

    def back() -> None:
        host[...] = flat.view(torch.uint8).cpu().numpy()

    return torch.as_strided(flat, view.shape, strides, offset), back


def inside(
    rows: int, columns: int, around: float = torch.nan, dtype: torch.dtype = torch.bfloat16
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a matrix filled with ``around``, and a view into it with random numbers."""
    whole = torch.full((rows + 2, columns + 16), around, device=DEVICE, dtype=dtype)
    part = whole[1:-1, 8:-8]
    part.copy_(torch.randn(rows, columns, device=DEVICE))
    return whole, part


@dataclass
class Held:
    """A matrix that is a view of a buffer."""

    view: torch.Tensor
    buffer: torch.Tensor
    place: Buffer

    def inside(self, buffer: torch.Tensor) -> torch.Tensor:
        """Return the same view of another buffer."""
        return torch.as_strided(buffer, self.place.shape, self.place.strides, self.place.offset)


def hold(place: Buffer, dtype: str) -> Held:
    """Return an operand surrounded by NaN (or 127), which changes the result if it is read."""
    kind = getattr(torch, dtype)
    around = torch.nan if kind.is_floating_point else complex(torch.nan, torch.nan)
    around = around if kind.is_floating_point or kind.is_complex else 127
    buffer = torch.full((place.length,), around, dtype=kind, device=DEVICE)
    held = Held(buffer, buffer, place)
    return replace(held, view=held.inside(buffer))


def guarded(place: Buffer, dtype: str) -> Held:
    """Return a C surrounded by canaries."""
    held = hold(place, dtype)
    held.buffer.view(torch.uint8).fill_(_SENTINEL)
    return held


def assert_canaries(C: Held) -> None:
    """Check that no byte around C has changed."""
    outside = torch.ones(C.place.length, dtype=torch.bool, device=DEVICE)
    C.inside(outside).fill_(False)
    written = (C.buffer.view(torch.uint8).view(len(outside), -1) != _SENTINEL).any(dim=1)
    changed = (written & outside).nonzero()
    assert not len(changed), (
        f"{len(changed)} elements around C were written, the first at {changed[0].item()}; C of "
        f"shape {C.place.shape} begins at {C.place.offset}, its ld is {C.place.ld}"
    )


def generator(case: Case, salt: str = "") -> torch.Generator:
    """Return a random generator seeded by the case."""
    return torch.Generator(DEVICE).manual_seed(zlib.crc32(f"{case}{salt}".encode()))


def fill(view: torch.Tensor, random: torch.Generator, largest: int | None = None) -> None:
    """Fill with normal data, or with integers of magnitude up to ``largest``."""
    if not view.numel():
        return
    if view.dim() == 3 and view.stride(0) == 0:  # one matrix for the whole batch
        view = view[0]
    view = torch.view_as_real(view) if view.is_complex() else view
    if largest is None and view.dtype.is_floating_point:
        values = torch.randn(view.shape, generator=random, device=DEVICE, dtype=torch.float32)
    else:
        low, high = (-128, 128) if largest is None else (-largest, largest + 1)
        values = torch.randint(low, high, view.shape, generator=random, device=DEVICE)
    view.copy_(values)


@dataclass
class Inputs:
    """A and B of a case, their product in float64 and the product of their magnitudes."""

    case: Case
    A: Held
    B: Held
    product: torch.Tensor
    magnitude: torch.Tensor


def inputs(case: Case, largest: int | None = None) -> Inputs:
    """Return random operands, or integers of magnitude up to ``largest``."""
    random = generator(case)
    a, b, _ = case.places
    A, B = hold(a, case.t.dtype), hold(b, case.t.dtype)
    fill(A.view, random, largest)
    fill(B.view, random, largest)
    wide = torch.complex128 if A.view.is_complex() else torch.float64
    left, right = (
        {"N": x, "T": x.mT}.get(letter, x.mH)
        for x, letter in zip((A.view.to(wide), B.view.to(wide)), case.op, strict=True)
    )
    return Inputs(case, A, B, left @ right, left.abs() @ right.abs())


def rounded(x: Any, case: Case) -> Any:
    """Return alpha or beta, rounded as by the kernel."""
    if case.t.dtype.startswith("complex"):
        return complex(np.dtype(case.t.dtype).type(x))
    return float(x) if case.t.dtype == "float64" else float(np.float32(x))


def reference(given: Inputs, C: torch.Tensor | None, alpha: float, beta: float) -> torch.Tensor:
    """Return ``alpha * op(A) @ op(B) + beta * C`` in float64, which is exact for int8."""
    alpha, beta = rounded(alpha, given.case), rounded(beta, given.case)
    result = torch.zeros_like(given.product) if alpha == 0 else alpha * given.product
    return result if beta == 0 else result + beta * C  # type: ignore[operator]


def error_bound(
    given: Inputs, C: torch.Tensor | None, alpha: float, beta: float, expected: torch.Tensor
) -> torch.Tensor:
    """Return the error bound of each element.

    The bound is ``u_out |ref| + |alpha| k u sum|a||b|``, where u is the unit roundoff of the
    accumulators: 2**-24, and for float64 2 x 2**-53, because the reference is rounded as well.
    tf32 rounds each factor by up to 2**-11, which adds ``2**-10 |alpha| sum|a||b|``. With alpha or
    beta, the multiplications and additions add ``2 u (|alpha| sum|a||b| + |beta C|)``. The least
    error of a rounding is half the smallest subnormal number.
    """
    case = given.case
    alpha, beta = abs(rounded(alpha, case)), abs(rounded(beta, case))
    unit = 2 * 2.0**-53 if case.t.dtype == "float64" else 2.0**-24
    factors = 2.0**-10 if case.t.compute == "tf32" else 0.0
    bound = (case.k * unit + factors) * alpha * given.magnitude
    if alpha != 1 or beta != 0:
        scaled = alpha * given.magnitude
        bound = bound + 2 * unit * (scaled if beta == 0 else scaled + beta * C.abs())  # type: ignore[union-attr]
    out = ROUNDOFF[case.t.out]
    # The last rounding is applied to the computed value, which has the error bounded so far.
    return out * expected.abs() + (1 + out) * bound + UNDERFLOW[case.t.out]


def assert_result(
    given: Inputs, C: Held, before: torch.Tensor | None, alpha: float, beta: float
) -> None:
    """Check C element by element, and the canaries around it."""
    assert_canaries(C)
    if not C.view.numel():
        return
    if C.view.is_complex():
        verdict = verify(
            given.case.problem, *(x.view.cpu().numpy() for x in (given.A, given.B, C)),
            C=None if before is None else before.cpu().numpy(),
            alpha=rounded(alpha, given.case), beta=rounded(beta, given.case),
        )  # fmt: skip
        assert C.view.isfinite().all() and verdict.ok, f"alpha={alpha}, beta={beta}: {verdict}"
        return
    got = C.view.double()
    expected = reference(given, before, alpha, beta)
    assert torch.isfinite(got).all(), f"{(~torch.isfinite(got)).sum()} elements are not finite"
    if given.case.t.integer:
        bound = torch.zeros_like(expected)
    else:
        bound = error_bound(given, before, alpha, beta, expected)
    error = (got - expected).abs()
    wrong = error > bound
    if wrong.any():
        worst = int((error - bound).argmax())
        where = tuple(int(i) for i in np.unravel_index(worst, expected.shape))
        raise AssertionError(
            f"{int(wrong.sum())} of {wrong.numel()} elements are out of bound with alpha={alpha}, "
            f"beta={beta}; C[{', '.join(map(str, where))}] is {got[where].item()}, expected "
            f"{expected[where].item()} +- {bound[where].item():.3g}"
        )


def spoiled(operand: Held) -> torch.Tensor:
    """Return a copy of the operand with all elements NaN (or 127)."""
    return hold(operand.place, str(operand.view.dtype).rpartition(".")[2]).view


def new_c(case: Case, beta: float, largest: int | None = None) -> tuple[Held, torch.Tensor | None]:
    """Return a guarded C and its content in float64; NaN and None if beta is 0."""
    C = guarded(case.places[2], case.t.out)
    if beta == 0:
        C.view.fill_(2**31 - 1 if case.t.integer else hold(C.place, case.t.out).buffer[0])
        return C, None
    if case.t.integer:
        largest = 1000
    fill(C.view, generator(case, "C"), largest)
    return C, C.view.clone() if C.view.is_complex() else C.view.double().clone()


def compute(
    given: Inputs, alpha: Any, beta: Any, largest: int | None = None
) -> tuple[Held, torch.Tensor | None]:
    """Call ``gemm`` with a new C. Return C and its previous content."""
    case = given.case
    C, before = new_c(case, beta, largest)
    A, B = (given.A.view, given.B.view) if alpha != 0 else (spoiled(given.A), spoiled(given.B))
    result = cg.gemm(case.op, A, B, C.view, alpha=alpha, beta=beta, **case.options)
    assert result is C.view
    return C, before


def assert_threads_share_a_plan(case: Case) -> None:
    """Call one plan from several threads, each with its own stream, C and scalars."""
    given, held = inputs(case), [new_c(case, 1) for _ in range(4)]
    plan = cg.plan(case.op, given.A.view, given.B.view, held[0][0].view, **case.options)
    torch.cuda.synchronize()
    start = threading.Barrier(len(held))
    # Two threads have the same scalars, so they share a bound launch as well.
    scalars = [(-0.7, 1.0), (1.5, -0.25)] * 2

    def work(index: int) -> None:
        C, before = held[index]
        alpha, beta = scalars[index]
        start.wait(timeout=60)
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(200):
                C.view.copy_(before)
                plan(given.A.view, given.B.view, C.view, alpha=alpha, beta=beta)
            torch.cuda.current_stream().synchronize()

    in_threads(work, range(len(held)))
    for (C, before), (alpha, beta) in zip(held, scalars, strict=True):
        assert_result(given, C, before, alpha, beta)
