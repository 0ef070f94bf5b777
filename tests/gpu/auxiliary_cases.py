"""Check auxiliary kernels on a GPU: unusual problems, and every byte that they write."""

from contextlib import ExitStack
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from cute_gemm.dtypes import DTYPES
from cute_gemm.kernels.auxiliary import PACK, REDUCE
from cute_gemm.problem.describe import from_sizes
from cute_gemm.problem.matrix import Matrix
from cute_gemm.problem.parts.packing import packed
from cute_gemm.problem.parts.slices import sliced
from cute_gemm.problem.scalars import scalar
from cute_gemm.run.memory import DeviceBuffer, download, upload

#: A type of each element size in bytes.
TYPES = {1: "int8", 2: "float16", 4: "float32", 8: "float64", 16: "complex128"}
#: The type of A and B, and the type of C.
REDUCED = (
    ("float16", "float16"), ("bfloat16", "float32"), ("float32", "float32"),
    ("float64", "float64"), ("int8", "int32"), ("complex64", "complex64"),
    ("complex128", "complex128"),
)  # fmt: skip
CANARY = 0x5A


def view(matrix: Matrix, memory: np.ndarray, byte: int = 0) -> np.ndarray:
    """Return the elements [l, rows, columns] of a matrix or batch that begins at ``byte``."""
    kind = np.dtype(f"V{DTYPES[matrix.dtype].bytes}")
    strides = (matrix.batch_bytes, *(x * kind.itemsize for x in matrix.stride))
    return np.ndarray((matrix.l, *matrix.shape), kind, memory, byte, strides)


def on_device(stack: ExitStack, memory: np.ndarray) -> DeviceBuffer:
    """Copy the bytes to an allocation that ends with them."""
    return stack.enter_context(upload(memory.reshape(-1, 1)))


def run(kernel: Any, problem: Any, arch: str, addresses: list[int], *scalars: Any) -> None:
    kernel.bind(kernel.configure(problem), problem, arch, 0, *scalars)(addresses)


def check_packing(size: int, op: str, k_major: bool, arch: str, margin: int) -> None:
    """Check the packing of matrices with extents near tile extents, at several alignments.

    ``margin``: bytes of canaries on both sides of the scratch buffer.
    """
    random = np.random.default_rng(size)
    places = product(((1, 2, 700), (301, 64, 129), (128, 777, 1030), (3, 1, 1)), (0, 1, 8), (0, 5))
    for number, ((m, n, k), pad, base) in enumerate(places):
        lda = (m if op[0] == "N" else k) + pad
        ldb = (k if op[1] == "N" else n) + pad
        l, which = (1, 3)[number % 2], ("AB", "A", "B")[number % 3]
        problem = from_sizes(op, m=m, n=n, k=k, l=l, dtype=TYPES[size], lda=lda, ldb=ldb)
        if number % 4 == 1:  # one matrix for the whole batch
            problem = replace(problem, B=replace(problem.B, batch_stride=0))
        with ExitStack() as stack:
            given, addresses = {}, []
            for one in (problem.A, problem.B):
                memory = random.integers(0, 256, base * size + one.span, np.uint8)
                addresses.append(on_device(stack, memory).pointer + base * size)
                given[one.name] = view(one, memory, base * size)
                problem = replace(problem, **{one.name: one.at(addresses[-1])})
            _, packing = packed(problem, which, k_major)
            scratch = np.full(packing.nbytes + 2 * margin, CANARY, np.uint8)
            target = on_device(stack, scratch)
            run(PACK, packing, arch, [*addresses, target.pointer + margin])
            download(target, scratch.reshape(-1, 1))
        for _, one, offset in packing.copies:
            count = 1 if one.batch_stride == 0 else l
            found = view(one, scratch, margin + offset)[:count]
            where = (number, one.name, problem)
            assert found.tobytes() == given[one.name][:count].tobytes(), where
        assert (scratch[:margin] == CANARY).all() and (
            scratch[len(scratch) - margin :] == CANARY
        ).all()


def check_reduction(types: tuple[str, str], arch: str, margin: int) -> None:
    """Check reductions of integers: C must be exact, and no other byte may change."""
    dtype, out = types
    random = np.random.default_rng(1)
    row, C_row = DTYPES[DTYPES[dtype].accumulator], DTYPES[out]

    def numbers(shape: tuple[int, ...]) -> np.ndarray:
        found = random.integers(-9, 10, shape)
        return found + 1j * random.integers(-9, 10, shape) if row.is_complex else found

    for number, ((m, n), slices, order, pad, base, beta) in enumerate(
        product(((300, 257), (1, 1000), (1000, 1)), (1, 3, 9), "FC", (0, 1, 8), (0, 1), (0, -2))
    ):
        l = (1, 3)[number // 3 % 2]
        ldc = (m if order == "F" else n) + pad
        problem = from_sizes(
            "NN", m=m, n=n, k=128 * slices, l=l, dtype=dtype, out_dtype=out, ldc=ldc,
            order="F" if order == "F" else "C",
        )  # fmt: skip
        begin = margin + base * C_row.bytes
        memory = np.full(begin + problem.C.span + margin, 0xFF, np.uint8)  # NaN
        C = view(problem.C, memory, begin).view(C_row.numpy)
        if beta:
            C[...] = numbers(C.shape)
        with ExitStack() as stack:
            target = on_device(stack, memory)
            problem = replace(problem, C=problem.C.at(target.pointer + begin))
            _, reduction = sliced(problem, slices, 128)
            scratch = np.full(reduction.nbytes, 0xFF, np.uint8)
            parts = view(reduction.partials, scratch).view(row.numpy)
            parts[...] = numbers(parts.shape)
            factors = [scalar(x, name, dtype, None) for x, name in ((3, "alpha"), (beta, "beta"))]
            addresses = [on_device(stack, scratch).pointer, target.pointer + begin]
            run(REDUCE, reduction, arch, addresses, *factors)
            wanted = 3 * parts.reshape(l, slices, *parts.shape[1:]).sum(axis=1)
            C[...] = wanted + beta * C if beta else wanted
            found = np.empty_like(memory)
            download(target, found.reshape(-1, 1))
        assert (found == memory).all(), (problem, slices, beta)
