"""Matrices of a benchmark: random factors, their product in float64, copies on the device.

op(A) and op(B) are the same for all ops and kernels of a size; only their storage differs. One
product in float64 is therefore sufficient to check all results.
"""

from __future__ import annotations

import functools
import os
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from cute_gemm.errors import LaunchError, OptionError
from cute_gemm.problem import verify
from cute_gemm.problem.epilogue.epilogue import EpilogueArguments
from cute_gemm.problem.values import random_values

if TYPE_CHECKING:
    from cute_gemm.problem.problem import GemmProblem
    from cute_gemm.run.memory import DeviceBuffer

#: Elements that a thread compares at a time: temporaries fit in its cache.
_BLOCK = 1 << 16


def stacked(problem: GemmProblem, shape: tuple[int, int]) -> tuple[int, ...]:
    """Return the shape of a batch of matrices, or of one."""
    return shape if problem.l == 1 else (problem.l, *shape)


def _transposed(matrices: np.ndarray) -> np.ndarray:
    return matrices.swapaxes(-1, -2)


def generator(seed: int) -> np.random.Generator:
    """Return the generator of the random matrices of a seed."""
    if not isinstance(seed, int) or seed < 0:
        raise OptionError(f"seed={seed!r}; expected an integer, 0 or more")
    return np.random.default_rng(seed)


class Factors:
    """Random op(A) (m, k) and op(B) (k, n), l of each in a batch, as each op stores them.

    They depend on extents and types of the problem, not on its op. ``pad`` is the number of
    elements of padding after each column as stored.
    """

    def __init__(self, problem: GemmProblem, seed: int, pad: int = 0) -> None:
        rng = generator(seed)
        self._pad = pad
        self._is_complex = problem.is_complex
        # Column-major, so that N needs no copy.
        left, right = (problem.k, problem.m), (problem.n, problem.k)
        self.left = _transposed(random_values(rng, stacked(problem, left), problem.A.dtype))
        self.right = _transposed(random_values(rng, stacked(problem, right), problem.B.dtype))

    def form(self, name: str, op: str) -> tuple[str, str]:
        """Return the stored matrix of an op for ``"A"`` or ``"B"``: name and letter."""
        letter = op["AB".index(name)]
        transposed = "C" if letter in "CH" and self._is_complex else "T"
        return name, "N" if letter == "N" else transposed

    def stored(self, name: str, letter: str) -> np.ndarray:
        """Return a matrix as stored for a letter of an op: column-major."""
        matrix = self.left if name == "A" else self.right
        if letter != "N":
            transposed = matrix.conj() if letter == "C" else matrix
            matrix = _transposed(np.ascontiguousarray(transposed))
        if not self._pad:
            return matrix
        columns = _transposed(matrix)
        *others, rows = columns.shape
        room = np.zeros((*others, rows + self._pad), matrix.dtype)
        room[..., :rows] = columns
        return _transposed(room[..., :rows])


@dataclass(frozen=True, slots=True)
class Check:
    """A result against float64: elements out of bound, largest error, the worst element."""

    wrong: int
    max_error: float
    worst: tuple[int, ...] | None


class Reference:
    """``op(A) @ op(B)`` in float64 or complex128, and the error bound of each element of a C.

    The bound is that of `cute_gemm.problem.verify.verify` with alpha = 1 and beta = 0.
    """

    def __init__(self, problem: GemmProblem, factors: Factors) -> None:
        wide = np.complex128 if problem.C.element.is_complex else np.float64
        # NumPy's products are row-major; C's transpose is, where C is not.
        self._column_major = problem.C.unit == 0
        first, second = factors.left.astype(wide), factors.right.astype(wide)
        if self._column_major:
            first, second = _transposed(second), _transposed(first)
        product = first @ second
        self._shape = product.shape
        self._product = product.reshape(-1, product.shape[-1])
        sums = (abs(first) @ abs(second)).reshape(self._product.shape)
        self._bound = np.empty_like(sums)
        lost = np.broadcast_to(verify.lost_of(problem, first, second), self._shape)
        lost = lost.reshape(sums.shape)
        self._each(lambda rows: self._set_bound(problem, rows, sums[rows], lost[rows]))

    def _set_bound(
        self, problem: GemmProblem, rows: slice, sums: np.ndarray, lost: np.ndarray
    ) -> None:
        products = self._product[rows]
        if problem.C.element.roundoff == 0:  # integers of 32 bits, which wrap
            self._product[rows] = products.astype(np.int64).astype(np.int32)
            self._bound[rows] = 0.0
            return
        arguments = EpilogueArguments(None, 1.0, 0.0, {})
        _, self._bound[rows], _ = verify.compare_floats(
            problem, products, sums, products, arguments, lost
        )

    def check(self, result: np.ndarray) -> Check:
        """Compare a C (m, n), or (l, m, n), with the reference, element by element."""
        lying = _transposed(result) if self._column_major else result
        lying = lying.reshape(self._product.shape)
        checks = self._each(lambda rows: self._check(lying[rows], rows))
        wrong, errors, ratios, places = zip(*checks, strict=True)
        ratio, (row, column) = max(zip(ratios, places, strict=True))
        flat = row * self._shape[-1] + column
        worst = [int(index) for index in np.unravel_index(flat, self._shape)]
        if self._column_major:
            worst[-2:] = worst[-1], worst[-2]
        return Check(sum(wrong), max(errors), tuple(worst) if ratio else None)

    def _check(self, got: np.ndarray, rows: slice) -> tuple[int, float, float, tuple[int, int]]:
        """Return wrong elements, the largest error, the largest that is over its bound, where."""
        with np.errstate(all="ignore"):
            error = abs(got.astype(self._product.dtype) - self._product[rows])
            good = error <= self._bound[rows]  # False for NaN
            if good.all():
                return 0, float(error.max()), 0.0, (0, 0)
            ratio = error / np.maximum(self._bound[rows], 1e-300)
            ratio[good] = 0.0
            ratio[np.isnan(ratio)] = np.inf
        i, j = np.unravel_index(int(np.argmax(ratio)), ratio.shape)
        largest = float(error[np.isfinite(error)].max(initial=0.0))
        return int((~good).sum()), largest, float(ratio[i, j]), (int(i) + rows.start, int(j))

    def _each(self, work: Any) -> list[Any]:
        """Apply a function to blocks of rows on all cores: NumPy releases the GIL."""
        from concurrent.futures import ThreadPoolExecutor

        count, length = self._product.shape
        step = max(1, _BLOCK // max(1, length))
        blocks = [slice(start, min(start + step, count)) for start in range(0, count, step)]
        with ThreadPoolExecutor(min(32, os.cpu_count() or 1)) as pool:
            return list(pool.map(work, blocks))


class DeviceMatrices:
    """Copies of A, B and C on a device, each in its own allocation; a context manager.

    A and B are stored in every form that the ops need. All ops share C; `download` writes its host
    matrix. OutOfMemoryError is raised if they do not fit.
    """

    def __init__(self, factors: Factors, C: np.ndarray, copies: int, device: int) -> None:
        self._factors = factors
        self._copies = copies
        self._device = device
        self._C = C
        self._stack = ExitStack()
        self._held: dict[tuple[str, str], tuple[np.ndarray, list[DeviceBuffer]]] = {}

    def __enter__(self) -> DeviceMatrices:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # After a failed kernel memory cannot be freed; the error of the kernel is the useful one.
        with suppress(*([LaunchError] if kind is not None else [])):
            self._stack.close()

    def _hold(self, form: tuple[str, str]) -> tuple[np.ndarray, list[DeviceBuffer]]:
        from cute_gemm.run import memory

        if form not in self._held:
            matrix = self._C if form[0] == "C" else self._factors.stored(*form)
            upload = functools.partial(memory.upload, matrix, self._device)
            buffers = [self._stack.enter_context(upload()) for _ in range(self._copies)]
            self._held[form] = matrix, buffers
        return self._held[form]

    def of(self, op: str) -> tuple[list[tuple[int, ...]], list[np.ndarray]]:
        """Return the addresses of A, B and C of an op for each copy, and the host matrices."""
        forms = self._factors.form("A", op), self._factors.form("B", op), ("C", "N")
        matrices = [self._hold(form) for form in forms]
        pointers = [[buffer.pointer for buffer in buffers] for _, buffers in matrices]
        return list(zip(*pointers, strict=True)), [matrix for matrix, _ in matrices]

    def spoil(self) -> None:
        """Fill the first C with NaN, which a kernel must neither read nor leave in C."""
        from cute_gemm.run.driver import checked, entered, load_driver

        _, (buffer, *_) = self._hold(("C", "N"))
        with entered(self._device):
            done = load_driver().cuMemsetD8(buffer.pointer, 0xFF, buffer.nbytes)
            checked(done, f"setting {buffer.nbytes} bytes")

    def download(self) -> None:
        """Wait for the device and copy the first C to the host matrix."""
        from cute_gemm.run import memory

        _, (buffer, *_) = self._hold(("C", "N"))
        memory.download(buffer, self._C)
