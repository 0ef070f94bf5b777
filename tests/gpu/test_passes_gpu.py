"""Packing and reduction on a GPU: bit by bit, with canaries around what they write."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from cute_gemm.kernels.passes.pack import Pack
from cute_gemm.kernels.passes.reduce import Reduce
from cute_gemm.problem.dtypes import DTYPES
from cute_gemm.problem.passes import Packing, Reduction, packed, sliced
from cute_gemm.problem.problem import Matrix, from_sizes
from cute_gemm.problem.scalars import scalar

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.gpu

PACK, REDUCE = Pack(), Reduce()
CANARY, MARGIN = 0x5A, 4096
TYPES = {1: "int8", 2: "float16", 4: "float32", 8: "float64", 16: "complex128"}


def held(nbytes: int, shift: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Bytes off an address of all alignments, and all of their buffer, which is canaries."""
    buffer = torch.full((nbytes + 2 * MARGIN,), CANARY, dtype=torch.uint8, device="cuda")
    return buffer[MARGIN + shift : MARGIN + shift + nbytes], buffer


def view(matrix: Matrix, memory: torch.Tensor, byte: int = 0) -> torch.Tensor:
    """The bytes of a matrix or of a batch: [l, rows, columns, bytes]."""
    size = DTYPES[matrix.dtype].bytes
    strides = (matrix.batch_bytes, *(x * size for x in matrix.stride), 1)
    begin = memory.storage_offset() + byte
    return torch.as_strided(memory, (matrix.l, *matrix.shape, size), strides, begin)


def span(matrix: Matrix) -> int:
    last = sum((n - 1) * s for n, s in zip(matrix.shape, matrix.stride, strict=True))
    return (last + (matrix.l - 1) * matrix.batch_stride + 1) * DTYPES[matrix.dtype].bytes


def lies(matrix: Matrix, address: int) -> Matrix:
    """The matrix as it is described at this address."""
    first = address | 256
    first &= -first
    every = first | matrix.batch_bytes
    every &= -every
    return replace(matrix, alignment=every, first_alignment=first if first > every else 0)


def run(kernel: Any, problem: Any, arch: str, addresses: list[int], *scalars: Any) -> None:
    stream = torch.cuda.current_stream().cuda_stream
    kernel.bind(kernel.configure(problem), problem, arch, 0, *scalars)(*addresses, stream)


def pack(packing: Packing, sources: dict[str, torch.Tensor], arch: str) -> None:
    """Pack and compare."""
    scratch, buffer = held(packing.nbytes)
    where = {name: memory.data_ptr() for name, memory in sources.items()}
    addresses = [where.get("A", 0), where.get("B", 0), scratch.data_ptr()]
    run(PACK, packing, arch, addresses)
    for source, target, offset in zip(
        packing.sources, packing.targets, packing.offsets, strict=True
    ):
        given, found = view(source, sources[source.name]), view(target, scratch, offset)
        count = 1 if source.batch_stride == 0 else source.l
        assert torch.equal(found[:count], given[:count]), source.name
    assert (buffer[:MARGIN] == CANARY).all() and (buffer[-MARGIN:] == CANARY).all()


@pytest.mark.parametrize("size", TYPES)
@pytest.mark.parametrize("k_major", [False, True])
@pytest.mark.parametrize("op", ["NN", "NT", "TN", "TT"])
def test_packing(size, k_major, op, arch):
    """Extents around tiles, odd leading dimensions and bases of every alignment."""
    random = torch.Generator("cuda").manual_seed(size)
    places = product(((1, 2, 700), (301, 64, 129), (128, 777, 1030), (3, 1, 1)), (0, 1, 8), (0, 5))
    for number, ((m, n, k), pad, base) in enumerate(places):
        l, which = (1, 3)[number % 2], ("AB", "A", "B")[number % 3]
        lda = (m if op[0] == "N" else k) + pad
        ldb = (k if op[1] == "N" else n) + pad
        problem = from_sizes(op, m=m, n=n, k=k, l=l, dtype=TYPES[size], lda=lda, ldb=ldb)
        if l > 1:  # B is shared
            problem = replace(problem, B=replace(problem.B, batch_stride=0))
        sources = {}
        for one in (problem.A, problem.B):
            memory, _ = held(span(one), base * size)
            memory.copy_(
                torch.randint(0, 256, memory.shape, generator=random, device="cuda").byte()
            )
            sources[one.name] = memory
            problem = replace(problem, **{one.name: lies(one, memory.data_ptr())})
        pack(packed(problem, which, k_major)[1], sources, arch)


def test_more_elements_than_32_bits_count(arch):
    """An int8 matrix of more than 2**31 elements, as it lies and turned round."""
    free, _ = torch.cuda.mem_get_info()
    m, k = 46341, 46349
    if free < 5 * m * k:
        pytest.skip(f"{free} bytes are free")
    problem = from_sizes("TN", m=m, n=1, k=k, dtype="int8", lda=k + 2)
    memory, _ = held(span(problem.A), 1)
    memory.copy_(torch.arange(memory.numel(), device="cuda") * 2654435761 >> 13 & 255)
    source = lies(problem.A, memory.data_ptr())
    for op, k_major in (("TN", False), ("NN", True)):
        one = source
        if op == "NN":  # the same memory as an MN-major operand
            one = replace(source, shape=source.shape[::-1], stride=source.stride[::-1])
            shape = {"m": k, "n": 1, "k": m}
        else:
            shape = {"m": m, "n": 1, "k": k}
        problem = replace(from_sizes(op, dtype="int8", **shape), A=one)
        pack(packed(problem, "A", k_major)[1], {"A": memory}, arch)


@pytest.mark.parametrize(
    "types",
    [("float16", "float16"), ("bfloat16", "float32"), ("float32", "float32"),
     ("float64", "float64"), ("int8", "int32"), ("complex64", "complex64"),
     ("complex128", "complex128")],
    ids="-".join,
)  # fmt: skip
def test_reduction(types, arch):
    """Whole numbers: each element of C is exactly what it should be."""
    dtype, out = types
    sums_type = getattr(torch, DTYPES[dtype].accumulator)
    random = torch.Generator("cuda").manual_seed(1)
    for (m, n), slices, order, pad, base, beta in product(
        ((300, 257), (1, 1000), (1000, 1)), (1, 3, 9), "FC", (0, 1, 8), (0, 1), (0, -2)
    ):
        ldc = (m if order == "F" else n) + pad
        problem = from_sizes(
            "NN", m=m, n=n, k=128 * slices, dtype=dtype, out_dtype=out, ldc=ldc, order=order
        )
        kind = getattr(torch, out)
        C, buffer = held(span(problem.C), base * kind.itemsize)
        problem = replace(problem, C=lies(problem.C, C.data_ptr()))
        reduction: Reduction = sliced(problem, slices, 128)[1]
        scratch, _ = held(reduction.nbytes)
        shape = (reduction.sums.l, *reduction.sums.shape)
        given = torch.randint(-9, 10, shape, generator=random, device="cuda").to(sums_type)
        view(reduction.sums, scratch).copy_(given.view(torch.uint8).view(*shape, -1))
        wanted = 3 * given.sum(0)
        if beta:
            old = torch.randint(-9, 10, shape[1:], generator=random, device="cuda").to(kind)
            view(problem.C, C)[0].copy_(old.view(torch.uint8).view(*shape[1:], -1))
            wanted = wanted + beta * old.to(wanted.dtype)
        before = buffer.clone()
        factors = (scalar(x, name, dtype, 0) for x, name in ((3, "alpha"), (beta, "beta")))
        run(REDUCE, reduction, arch, [scratch.data_ptr(), 0, C.data_ptr()], *factors)
        found = view(problem.C, C)[0]
        bits = wanted.to(kind).contiguous().view(torch.uint8).view(*shape[1:], -1)
        assert torch.equal(found, bits), (m, n, slices, order, pad, base, beta)
        found.zero_()
        view(problem.C, before[MARGIN + base * kind.itemsize :])[0].zero_()
        assert torch.equal(buffer, before)  # what lies between and around C's rows
