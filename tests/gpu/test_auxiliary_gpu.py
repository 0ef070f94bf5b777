"""Test packing and reduction on a GPU, bitwise, with canaries around the output."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from auxiliary_cases import PACK, REDUCE, REDUCED, TYPES, check_packing, check_reduction, run
from cases import OPS

from cute_gemm.problem.describe import from_sizes
from cute_gemm.problem.matrix import Matrix
from cute_gemm.problem.parts.packing import packed
from cute_gemm.problem.parts.slices import sliced

MARGIN = 4096


@pytest.mark.parametrize("size", TYPES)
@pytest.mark.parametrize("k_major", [False, True])
@pytest.mark.parametrize("op", OPS)
def test_packing(size, k_major, op, arch):
    check_packing(size, op, k_major, arch, MARGIN)


@pytest.mark.parametrize("types", REDUCED, ids="-".join)
def test_reduction(types, arch):
    check_reduction(types, arch, MARGIN)


@pytest.mark.parametrize("transposed", [False, True])
def test_more_elements_than_32_bits_count(transposed, arch, large_matrices):
    """Pack an int8 matrix of more than 2**31 elements at an unaligned address."""
    rows, extent = 46341, 46349
    op, m, k = ("NN", extent, rows) if transposed else ("TN", rows, extent)
    problem = from_sizes(op, m=m, n=1, k=k, dtype="int8", lda=extent + 2)
    memory = torch.randint(0, 256, (problem.A.span + 1,), dtype=torch.uint8, device="cuda")[1:]
    problem = replace(problem, A=problem.A.at(memory.data_ptr()))
    _, packing = packed(problem, "A", k_major=True)
    scratch = torch.zeros(packing.nbytes, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    run(PACK, packing, arch, [memory.data_ptr(), 0, scratch.data_ptr()])
    (target,) = packing.targets
    torch.cuda.synchronize()
    given = torch.as_strided(memory, problem.A.shape, problem.A.stride, memory.storage_offset())
    assert torch.equal(torch.as_strided(scratch, target.shape, target.stride), given)


def memory(elements: int, dtype: str) -> Any:
    return torch.empty(elements, dtype=getattr(torch, dtype), device="cuda")


def strided(flat: Any, one: Matrix) -> Any:
    """Return a view of the elements of a batch."""
    return flat.as_strided((one.l, *one.shape), (one.batch_stride, *one.stride))


@pytest.mark.parametrize("transposed", [False, True])
def test_packed_matrices_far_apart(transposed, arch, large_matrices):
    """Pack a batch whose packed matrices span more than 2**31 elements."""
    problem = from_sizes("NT", m=40, n=24, k=32, l=3, dtype="float16")
    _, packing = packed(problem, "A", transposed)
    packing = replace(packing, targets=(replace(packing.targets[0], batch_stride=2**30 + 64),))
    (target,) = packing.targets
    found, given = memory(target.span // 2, "float16"), memory(problem.A.span // 2, "float16")
    given.normal_()
    run(PACK, packing, arch, [given.data_ptr(), 0, found.data_ptr()])
    assert strided(found, target).equal(strided(given, problem.A))


@pytest.mark.parametrize("far", ["slices", "C"])
def test_sums_far_apart(far, arch, large_matrices):
    """Reduce slices, or into matrices of C, that span more than 2**31 elements."""
    batch = {"l": 3, "batch_c": 2**30 + 64} if far == "C" else {}
    problem = from_sizes("NN", m=40, n=24, k=384, dtype="float16", **batch)
    reduction = sliced(problem, 3, 128)[1]
    if far == "slices":
        reduction = replace(
            reduction, partials=replace(reduction.partials, batch_stride=2**30 + 64)
        )
    sums = memory(reduction.partials.span // 4, "float32")
    C = memory(reduction.C.span // 2, "float16")
    parts = strided(sums, reduction.partials)
    parts.random_(-9, 9)
    run(REDUCE, reduction, arch, [sums.data_ptr(), C.data_ptr()])
    wanted = parts.reshape(problem.l, 3, 40, 24).sum(dim=1)
    assert strided(C, reduction.C).float().equal(wanted)
