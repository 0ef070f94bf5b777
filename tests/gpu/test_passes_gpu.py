"""Packing and reduction on a GPU: bit by bit, with canaries around what they write."""

from __future__ import annotations

from dataclasses import replace

import pytest
from passes_cases import PACK, REDUCED, TYPES, check_packing, check_reduction, run

from cute_gemm.problem.passes import packed
from cute_gemm.problem.problem import from_sizes

pytestmark = pytest.mark.gpu

MARGIN = 4096


@pytest.mark.parametrize("size", TYPES)
@pytest.mark.parametrize("k_major", [False, True])
@pytest.mark.parametrize("op", ["NN", "NT", "TN", "TT"])
def test_packing(size, k_major, op, arch):
    check_packing(size, op, k_major, arch, MARGIN)


@pytest.mark.parametrize("types", REDUCED, ids="-".join)
def test_reduction(types, arch):
    check_reduction(types, arch, MARGIN)


@pytest.mark.parametrize("turned", [False, True])
def test_more_elements_than_32_bits_count(turned, arch):
    """An int8 matrix of more than 2**31 elements, off a word."""
    torch = pytest.importorskip("torch")
    rows, extent = 46341, 46349
    if torch.cuda.mem_get_info()[0] < 12 * rows * extent:
        pytest.skip("too little memory is free")
    op, m, k = ("NN", extent, rows) if turned else ("TN", rows, extent)
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
