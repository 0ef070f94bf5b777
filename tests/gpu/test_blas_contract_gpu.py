"""Test some cases of the BLAS contract on a GPU. ``tests/gpu/contract.py`` computes all."""

import blas_contract as contract
import pytest
from contract import Cuda

from cute_gemm.kernels import registry
from cute_gemm.kernels.refusals import runs_on

KINDS = [
    pytest.param(kernel, kind, id=f"{kernel}-{kind}")
    for kernel in registry.CONTENDERS
    for kind in contract.kinds(kernel, others=False)
    if kind.operands in ("float16", "float32", "complex64", "int8")
]


@pytest.mark.parametrize(("kernel", "kind"), KINDS)
def test_contract(kernel: str, kind: contract.Kind, arch: str) -> None:
    if not runs_on(registry.get(kernel), kind.operands, arch):
        pytest.skip(f"{kernel} does not run on {arch}")
    backend = Cuda()
    refused = [
        contract.check(case, backend) for case in contract.regime(kernel, kind, "TN", "narrow", 3)
    ]
    assert not all(refused), refused
