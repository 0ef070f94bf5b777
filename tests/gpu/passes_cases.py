"""What the passes are checked with on a GPU: awkward problems, and every byte that they write."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from cute_gemm.dtypes import DTYPES
from cute_gemm.kernels.passes import PACK, REDUCE, SUM
from cute_gemm.problem.matrix import Matrix
from cute_gemm.problem.passes import packed, sliced
from cute_gemm.problem.problem import from_sizes
from cute_gemm.problem.scalars import scalar
from cute_gemm.problem.sums import Sum, Summation, sums_dtype
from cute_gemm.run.memory import DeviceBuffer, download, upload

#: A type of elements of so many bytes.
TYPES = {1: "int8", 2: "float16", 4: "float32", 8: "float64", 16: "complex128"}
#: Types of A and B and of C.
REDUCED = (
    ("float16", "float16"), ("bfloat16", "float32"), ("float32", "float32"),
    ("float64", "float64"), ("int8", "int32"), ("complex64", "complex64"),
    ("complex128", "complex128"),
)  # fmt: skip
#: Types of matrices that are added up.
SUMMED = ("float16", "bfloat16", "float32", "float64", "int8", "int32")
CANARY = 0x5A


def view(matrix: Matrix, memory: np.ndarray, byte: int = 0) -> np.ndarray:
    """The elements of a matrix, or of a batch, that begins at this byte: [l, rows, columns]."""
    kind = np.dtype(f"V{DTYPES[matrix.dtype].bytes}")
    strides = (matrix.batch_bytes, *(x * kind.itemsize for x in matrix.stride))
    return np.ndarray((matrix.l, *matrix.shape), kind, memory, byte, strides)


def on_device(stack: ExitStack, memory: np.ndarray) -> DeviceBuffer:
    """A copy of these bytes, in an allocation that ends with them."""
    return stack.enter_context(upload(memory.reshape(-1, 1)))


def run(kernel: Any, problem: Any, arch: str, addresses: list[int], *scalars: Any) -> None:
    kernel.bind(kernel.configure(problem), problem, arch, 0, *scalars)(addresses)


class Summed(NamedTuple):
    """A matrix, or a batch, that is added up over M (0) or N (1)."""

    dtype: str
    mode: int
    order: str = "F"
    mn: tuple[int, int] = (41, 37)
    pad: int = 0
    base: int = 0  #: Elements from an address of all alignments to the first.
    l: int = 1
    gap: int = 0  #: Elements between matrices of a batch.

    def __str__(self) -> str:
        lies = f"{'x'.join(map(str, self.mn))}+{self.pad}{self.order}-{self.base}"
        return f"{self.dtype}-{'MN'[self.mode]}-{lies}-l{self.l}+{self.gap}"

    @property
    def source(self) -> Matrix:
        """The matrix."""
        unit = self.order == "C"
        ld, size = max(self.mn[unit], 1) + self.pad, DTYPES[self.dtype].bytes
        step = (ld * self.mn[1 - unit] + self.gap) * (self.l > 1)
        stride = (ld, 1) if unit else (1, ld)
        one = Matrix("C", self.mn, stride, self.dtype, 256, l=self.l, batch_stride=step)
        return one.at(self.base * size)

    @property
    def asked(self) -> Sum:
        """Its sums, those of one matrix behind those of the other."""
        other, kind = self.mn[1 - self.mode], sums_dtype(self.dtype)
        shape, stride = ((other, 1), (1, 0)) if self.mode else ((1, other), (0, 1))
        step = other * (self.l > 1)
        one = Matrix("result_1", shape, stride, kind, 256, l=self.l, batch_stride=step)
        return Sum("C", self.mode, one.at(0))

    @property
    def launches(self) -> tuple[Summation, ...]:
        """What computes them."""
        return SUM.launches(self.source, self.asked)


def summed_cases(dtype: str) -> list[Summed]:
    """Awkward extents, off words, in batches; of one launch and of two."""
    size = DTYPES[dtype].bytes
    found = [
        Summed(dtype, mode, order, mn, pad)
        for mode, order, mn, pad in (
            *product((0, 1), "FC", ((41, 37), (1, 300), (300, 1), (1, 1), (128, 64)), (0, 3)),
            *product((0, 1), "FC", ((1500, 5), (5, 1500), (1040, 24)), (0,)),
        )
    ]
    for mode, order in product((0, 1), "FC"):
        found += [
            Summed(dtype, mode, order, (64, 96), 16, base=4 // size or 1),
            Summed(dtype, mode, order, (39, 42), 1, base=1, l=3, gap=1),
            Summed(dtype, mode, order, (32, 2500) if mode else (2500, 32), l=2),
        ]
    return found


def check_sums(dtype: str, arch: str, margin: int) -> None:
    """Add up whole numbers: each sum is exactly what it should be, and nothing else is written."""
    kind, random = DTYPES[sums_dtype(dtype)].numpy, np.random.default_rng(2)
    for case in summed_cases(dtype):
        source, target = case.source, case.asked.target
        begin = margin + case.base * DTYPES[dtype].bytes
        memory = np.full(begin + source.span + margin, 0xFF, np.uint8)  # NaN
        elements = view(source, memory, begin).view(DTYPES[dtype].numpy)
        elements[...] = random.integers(-9, 10, elements.shape)
        exact = elements.astype(float).sum(axis=1 + case.mode).astype(kind)
        sums = np.full(2 * margin + target.span, CANARY, np.uint8)
        wanted = sums.copy()
        wanted[margin : margin + target.span] = np.frombuffer(exact.tobytes(), np.uint8)
        scratch = np.full(sum(x.nbytes for x in case.launches) or 1, 0xFF, np.uint8)
        with ExitStack() as stack:
            at, between = (on_device(stack, each).pointer for each in (memory, scratch))
            buffer = on_device(stack, sums)
            at += begin
            for launch in case.launches:
                to = buffer.pointer + margin if launch.whole else between
                run(SUM, launch, arch, [at, to])
                at = to
            download(buffer, sums.reshape(-1, 1))
        assert (sums == wanted).all(), case


def check_packing(size: int, op: str, k_major: bool, arch: str, margin: int) -> None:
    """Pack matrices of extents around those of tiles, that begin and go on anywhere.

    ``margin``: bytes of canaries on both sides of scratch.
    """
    random = np.random.default_rng(size)
    places = product(((1, 2, 700), (301, 64, 129), (128, 777, 1030), (3, 1, 1)), (0, 1, 8), (0, 5))
    for number, ((m, n, k), pad, base) in enumerate(places):
        lda = (m if op[0] == "N" else k) + pad
        ldb = (k if op[1] == "N" else n) + pad
        l, which = (1, 3)[number % 2], ("AB", "A", "B")[number % 3]
        problem = from_sizes(op, m=m, n=n, k=k, l=l, dtype=TYPES[size], lda=lda, ldb=ldb)
        if number % 4 == 1:  # one that all share
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
        for one, offset in zip(packing.targets, packing.offsets, strict=True):
            count = 1 if one.batch_stride == 0 else l
            found = view(one, scratch, margin + offset)[:count]
            where = (number, one.name, problem)
            assert found.tobytes() == given[one.name][:count].tobytes(), where
        assert (scratch[:margin] == CANARY).all() and (
            scratch[len(scratch) - margin :] == CANARY
        ).all()


def check_reduction(types: tuple[str, str], arch: str, margin: int) -> None:
    """Add up whole numbers: each element of C is exactly what it should be, and nothing else."""
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
            parts = view(reduction.sums, scratch).view(row.numpy)
            parts[...] = numbers(parts.shape)
            factors = [scalar(x, name, dtype, None) for x, name in ((3, "alpha"), (beta, "beta"))]
            addresses = [on_device(stack, scratch).pointer, target.pointer + begin]
            run(REDUCE, reduction, arch, addresses, *factors)
            wanted = 3 * parts.reshape(l, slices, *parts.shape[1:]).sum(axis=1)
            C[...] = wanted + beta * C if beta else wanted
            found = np.empty_like(memory)
            download(target, found.reshape(-1, 1))
        assert (found == memory).all(), (problem, slices, beta)
