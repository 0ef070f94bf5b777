"""Test operands that span 2**31 elements or more, in 4.3 GB each, on a GPU."""

import pytest
import torch
from far_cases import Far, cases, values

import cute_gemm as cg
from cute_gemm.arrays import read
from cute_gemm.problem.describe import from_operands
from cute_gemm.problem.verify import verify


@pytest.mark.parametrize("case", cases(), ids=str)
def test_offsets_beyond_32_bits(case: Far, large_matrices: None) -> None:
    hosts, views = [], []
    for number, (shape, strides) in enumerate(case.places):
        span = 1 + sum((extent - 1) * step for extent, step in zip(shape, strides, strict=True))
        memory = torch.empty(span, dtype=torch.float16, device="cuda")
        hosts.append(values(shape, number))
        views.append(torch.as_strided(memory, shape, strides))
        views[-1].copy_(torch.from_numpy(hosts[-1]))
    options = {"kernel": case.kernel, **dict(case.options)}
    cg.gemm(case.op, *views, alpha=1.5, beta=0.5, **options)
    found = views[2].cpu().numpy()
    problem = from_operands(case.op, *map(read, hosts, "ABC"))
    assert verify(problem, *hosts[:2], found, C=hosts[2], alpha=1.5, beta=0.5).ok
