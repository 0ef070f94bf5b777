"""Cases of the contract of BLAS's ``gemm``: results, and memory that must not change.

A case has a kernel, types, an op, a subject, extents, scalars and a layout. `regime` generates the
cases of one kernel, type and op in a stable order. `check` runs a case on a backend and raises
AssertionError with a sentence. All sums are exact in every type of accumulator. C is therefore
compared with the exact result, rounded once, without a tolerance.
"""

import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
from cases import NamedTypes
from contract_arrays import arrays, same_place, whole
from contract_backends import Backend

import cute_gemm as cg
from cute_gemm.dtypes import DTYPES
from cute_gemm.errors import UnsupportedError
from cute_gemm.kernels import registry
from cute_gemm.problem.values import saturated

#: Extents of the reference tests, and extents with partial tiles of 32 and 64.
EXTENTS = (0, 1, 2, 3, 5, 9, 33, 65)
#: ``"narrow"``: minimal leading dimensions, or one more, one element after an aligned address.
#: ``"wide"``: multiples of 16 bytes, and a row-major C.
LAYOUTS = ("narrow", "wide")
OPS, CONJUGATES = ("NN", "NT", "TN", "TT"), ("CN", "TC", "CC", "NH")


@dataclass(frozen=True)
class Kind(NamedTypes):
    """Types of the operands as a kernel names them (``"float32/tf32"``), and the type of C."""

    operands: str
    out: str

    def __str__(self) -> str:
        return f"{self.operands}->{self.out}".replace(" ", "")

    @property
    def integers(self) -> bool:
        """Whether the scalars are integers."""
        return self.out == "int32"

    @property
    def is_complex(self) -> bool:
        return DTYPES[self.a].is_complex


@dataclass(frozen=True)
class Case:
    """One call. ``subject``: what it tests; ``pad``: added to the minimal leading dimensions."""

    kernel: str
    kind: Kind
    op: str
    layout: str
    subject: str
    m: int
    n: int
    k: int
    alpha: complex
    beta: complex
    pad: int = 0

    def __str__(self) -> str:
        size = f"{self.m}x{self.n}x{self.k}"
        scalars = f"alpha={self.alpha} beta={self.beta}"
        words = (self.kernel, self.kind, self.op, self.layout, self.subject, size, scalars)
        return " ".join(map(str, (*words, f"pad={self.pad}")))

    @property
    def unread(self) -> bool:
        """Whether A and B must not be read."""
        return self.alpha == 0 or self.k == 0


def kinds(kernel: str, others: bool = True) -> list[Kind]:
    """Return the types of a kernel, first with the default type of C, then with ``others``."""
    names = registry.get(kernel).dtypes
    found = [
        Kind(name, DTYPES[name.partition("/")[0].split(" x ")[0]].outputs[0]) for name in names
    ]
    if others:
        found += [
            Kind(kind.operands, out) for kind in found for out in DTYPES[kind.a].outputs[1:]
            if "/" not in kind.operands and kind.a == kind.b
        ]  # fmt: skip
    return found


def ops(kernel: str, kind: Kind) -> tuple[str, ...]:
    """Return the ops of a kind. Non-default C, mixed types and fast_accum have one op."""
    fast = kind.a.startswith("float8") and kind.compute
    if kind.out != DTYPES[kind.a].outputs[0] or kind.a != kind.b or fast:
        return (OPS[zlib.crc32(f"{kernel} {kind}".encode()) % 4],)
    return OPS + CONJUGATES if kind.is_complex else OPS


# ---- cases --------------------------------------------------------------------------------------


def scalars(kind: Kind) -> tuple[tuple[complex, ...], tuple[complex, ...]]:
    """Return the values of alpha and of beta: 0, 1 and another one."""
    if kind.is_complex:
        return (0, 1, 1.5 - 0.5j), (0, 1, 2 + 1j)
    return ((0, 1, -7), (0, 1, 3)) if kind.integers else ((0, 1, -2.5), (0, 1, 0.5))


def products(kernel: str, kind: Kind, op: str, layout: str) -> list[Case]:
    """Return all extents, scalars and leading dimensions of the subject ``values``, shuffled."""
    alphas, betas = scalars(kind)
    every = product(EXTENTS, EXTENTS, EXTENTS, alphas, betas, (0, 1))
    cases = [Case(kernel, kind, op, layout, "values", *drawn) for drawn in every]
    random.Random(f"{kernel} {kind} {op} {layout}").shuffle(cases)
    return cases


def special(kernel: str, kind: Kind, op: str, layout: str, long: bool = True) -> Iterator[Case]:
    """Yield the cases of all other subjects. ``long``: including k = 2^17."""
    case = Case(kernel, kind, op, layout, "values", 9, 5, 3, 1, 1, 1)
    yield replace(case, subject="errors")
    sizes = ((9, 5, 3), (5, 33, 33))
    exact = kind.compute not in ("tf32", "bf16x6", "bf16x9")
    for number, (m, n, k) in enumerate(sizes):
        case = replace(case, m=m, n=n, k=k, pad=number)
        for alpha, beta in ((0, 0), (0, 1), (0, -1), (0, scalars(kind)[1][2])):
            yield replace(case, subject="no products", alpha=alpha, beta=beta)
            if not kind.integers:
                yield replace(case, subject="no products", k=0, alpha=float("nan"), beta=beta)
        if DTYPES[kind.a].roundoff:
            yield replace(case, subject="nan", beta=0)
            yield replace(case, subject="nan", beta=1)
            if exact:
                yield replace(case, subject="subnormal", beta=0)
                yield replace(case, subject="subnormal", alpha=-1, beta=1)
        if DTYPES[kind.a].roundoff and kind.a == kind.b != "float8_e4m3fn":
            yield replace(case, subject="infinity", beta=0)
            yield replace(case, subject="infinity", alpha=-1, beta=1)
        if kind.integers:
            for alpha, beta in ((1, 1), (2**27, -3), (-(2**31), 2**31 - 1)):
                yield replace(case, subject="wrapping", alpha=alpha, beta=beta)
        else:
            for alpha in overflowing(kind.out):
                yield replace(case, subject="overflow", alpha=alpha, beta=0)
                yield replace(case, subject="overflow", alpha=-alpha, beta=0)
    if kind.integers and long:
        for k in (2**17 - 1, 2**17):
            yield replace(case, subject="limit", m=2, n=3, k=k, beta=0)


def regime(kernel: str, kind: Kind, op: str, layout: str, count: int, **given: bool) -> list[Case]:
    """Return all special cases, and the first ``count`` of the products."""
    return [
        *special(kernel, kind, op, layout, **given),
        *products(kernel, kind, op, layout)[:count],
    ]


def overflowing(out: str) -> tuple[float, ...]:
    """Return alphas for which 4 * alpha is the greatest number, rounds to it, and exceeds it."""
    row = DTYPES[out]
    if row.saturates:
        return row.saturates / 4, row.saturates / 2
    part = np.dtype({"complex64": "f4", "complex128": "f8"}.get(out, row.numpy))
    exponent = {"float16": 16, "float64": 1024}.get(part.name, 128)
    digits = round(-np.log2(row.roundoff))  # 11 for float16
    greatest = (2.0 - 2.0 ** (1 - digits)) * 2.0 ** (exponent - 3)
    step = 2.0 ** (exponent - 2 - digits)  # a quarter of the distance to the next number
    if part.name in ("float16", "bfloat16"):  # alpha has more digits than C
        return greatest, greatest + step / 4, greatest + step / 2
    return greatest, 2.0 ** (exponent - 2)


# ---- numbers ------------------------------------------------------------------------------------


def integers(
    rng: np.random.Generator, shape: tuple[int, int], largest: int, is_complex: bool
) -> np.ndarray:
    """Return integers up to ``largest`` in magnitude, as float64 or complex128."""
    real = rng.integers(-largest, largest + 1, shape).astype(float)
    return real + 1j * rng.integers(-largest, largest + 1, shape) if is_complex else real


def numbers(case: Case) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return op(A), op(B) and C of a case, as float64 or complex128."""
    m, n, k, kind = case.m, case.n, case.k, case.kind
    rng = np.random.default_rng(zlib.crc32(str(case).encode()))
    A, B = (integers(rng, x, 3, kind.is_complex) for x in ((m, k), (k, n)))
    C = integers(rng, (m, n), 4, kind.is_complex)
    subject = case.subject
    if subject == "nan":
        A[m // 2, k // 2] = B[0, n - 1] = np.nan
    elif subject == "infinity":
        A[m // 2, k // 2], B[0, n - 1] = np.inf, -np.inf
    elif subject == "subnormal":
        A *= 2 * max(DTYPES[kind.a].underflow, 2.0**-1075) if kind.a != "complex64" else 2.0**-149
        if kind.a in ("float64", "complex128"):
            A = A * 0 + integers(rng, A.shape, 3, kind.is_complex) * 2.0**-1074
        C = C * (2 * DTYPES[kind.out].underflow or 2.0**-1074) if kind.out != "complex64" else C * 0
    elif subject == "overflow":
        A[...], B[...] = 0, 0
        A[:, 0], B[0, :] = 2, 2
        A[::2] *= -1
    elif subject == "wrapping":
        C = rng.integers(-(2**31), 2**31, C.shape).astype(float)
        C[0, 0], A[0], B[:, 0] = 2**31 - 1, 3, 3
    elif subject == "limit":
        A[...], B[...] = -128, -128
    elif subject == "no products" and case.beta in (0, 1) and not kind.integers:
        C[0, 0], C[1, 1] = -0.0, 2 * DTYPES[kind.out].underflow
        if not DTYPES[kind.out].saturates:
            C[2, 2], C[3, 3] = np.inf, np.nan
    return A, B, C


def expected(case: Case, A: np.ndarray, B: np.ndarray, C: np.ndarray) -> np.ndarray:
    """Return the exact result, rounded once to C's type."""
    kind, row = case.kind, DTYPES[case.kind.out]
    if kind.integers:
        ints = [x.astype(np.int64) for x in (A, B, C)]
        sums = np.zeros_like(ints[2]) if case.unread else int(case.alpha) * (ints[0] @ ints[1])
        return (sums + int(case.beta) * ints[2]).astype(np.int32)
    with np.errstate(all="ignore"):
        result = None if case.unread else A @ B
        if result is not None and case.alpha != 1:
            result = case.alpha * result
        if case.beta != 0:
            old = C if case.beta == 1 else case.beta * C
            result = old if result is None else result + old
        if result is None:
            return np.zeros(C.shape, row.numpy)
        return (saturated(result, kind.out) if row.saturates else result).astype(row.numpy)


# ---- the check ----------------------------------------------------------------------------------


def check(case: Case, backend: Backend) -> str:
    """Compute a case, and raise AssertionError if it fails.

    Return the package's error message if the kernel does not support the case, otherwise ``""``.
    """
    try:
        if case.subject == "errors":
            check_errors(case, backend)
        else:
            check_result(case, backend)
    except UnsupportedError as error:
        return str(error)
    except AssertionError:
        raise
    except cg.GemmError as error:
        raise AssertionError(f"{type(error).__name__}: {error}") from error
    return ""


def check_result(case: Case, backend: Backend) -> None:
    A, B, C = numbers(case)
    given = arrays(case, A, B, C)
    C = C if case.beta == 0 else given[2].astype(C.dtype)  # the stored values
    before = [whole(x).copy() for x in given]
    wanted = expected(case, A, B, C)
    backend.run(case, *given)
    for name, array, old in zip("AB", given, before, strict=False):
        assert (whole(array) == old).all(), f"{name} was written to"
    outside = before[2].copy()
    same_place(given[2], outside)[...] = same_place(given[2], whole(given[2]))
    touched = np.flatnonzero(outside != whole(given[2]))
    assert not touched.size, f"bytes {touched[:3]} of C's buffer were written, which are not C"
    compare(case, given[2], wanted)


def compare(case: Case, got: np.ndarray, wanted: np.ndarray) -> None:
    """Check that every element is the expected one, or +0 if alpha or k is 0 and beta is 0."""
    with np.errstate(all="ignore"):
        if wanted.dtype.kind == "c":  # BLAS does not specify which part is infinite or NaN
            right = np.where(np.isfinite(wanted), got == wanted, ~np.isfinite(got))
        else:
            wide = [x.astype(float) for x in (got, wanted)]
            right = (wide[0] == wide[1]) | (np.isnan(wide[0]) & np.isnan(wide[1]))
            if case.unread and case.beta == 0:
                right &= ~np.signbit(wide[0])
    if right.all():
        return
    i, j = np.argwhere(~right)[0]
    raise AssertionError(
        f"{np.count_nonzero(~right)} of {right.size} elements of C are wrong: C[{i}, {j}] is "
        f"{got[i, j]}, expected {wanted[i, j]}"
    )


#: Arguments of ``plan`` in BLAS's order, each with an invalid value.
ARGUMENTS = {
    "op": "NX", "m": -1, "n": -1, "k": -1, "lda": 0, "ldb": 0, "ldc": 0,
}  # fmt: skip


def check_errors(case: Case, backend: Backend) -> None:
    """Check that errors name the first wrong argument, also of an empty C, and keep C unchanged."""
    kind = case.kind
    words = {"kernel": case.kernel, "dtype": kind.operands.partition("/")[0], "out_dtype": kind.out,
             "compute": kind.compute, "backend": "cpu", "arch": backend.arch}  # fmt: skip
    good = {"op": case.op, "m": 9, "n": 5, "k": 3, "lda": 9, "ldb": 9, "ldc": 9}
    for extents in ({}, {"m": 0}, {"n": 0}, {"k": 0}):
        names = [name for name in ARGUMENTS if name not in extents]
        for number, name in enumerate(names):
            wrong = {x: ARGUMENTS[x] for x in names[number:]}
            given = {**good, **extents, **wrong}
            try:
                cg.plan(given.pop("op"), **given, **words)
            except UnsupportedError:
                raise
            except cg.GemmError as error:
                said = str(error)
            else:
                raise AssertionError(f"{name}={wrong[name]!r} is accepted")
            assert said.startswith(f"{name} "), (
                f"{', '.join(wrong)} are wrong, and the error is of another than the first: {said}"
            )
    for changes in ({"m": 0}, {"k": 0}, {"alpha": 0}, {"alpha": 0, "beta": 1}):
        small = replace(case, **changes)
        for what, change in WRONG.items():
            given = arrays(small, *numbers(small))
            C = given[2]
            before = whole(C).copy()
            try:
                backend.run(small, *given, change=change)
            except UnsupportedError:
                raise
            except cg.GemmError:
                pass
            else:
                raise AssertionError(f"{what} is accepted with {changes}")
            assert (whole(C) == before).all(), f"C has changed, but {what} is an error"


def _thinner(A: Any, B: Any, C: Any, words: dict[str, Any]) -> tuple[Any, ...]:
    return A, B, C[:, :-1], words


#: Invalid calls for any extents: functions from A, B, C and options of a valid call to theirs.
WRONG = {
    "a letter": lambda A, B, C, words: (A, B, C, words | {"op": "NX"}),
    "a shape of C": _thinner,
    "a scalar": lambda A, B, C, words: (A, B, C, words | {"alpha": "2"}),
    "a kernel": lambda A, B, C, words: (A, B, C, words | {"kernel": "none"}),
    "an option": lambda A, B, C, words: (A, B, C, words | {"stagess": 3}),
    "a type": lambda A, B, C, words: (A, B, C, words | {"out_dtype": "int16"}),
}
