"""Test the BLAS contract on the CPU and in the interpreter (``tests/blas_contract.py``)."""

import zlib
from dataclasses import replace

import blas_contract as contract
import pytest
from contract_backends import Backend

from cute_gemm.kernels import registry

#: Kernel, types and op. In the interpreter each kernel has one of its ops.
ON_CPU = [
    pytest.param(kernel, kind, op, id=f"{kernel}-{kind}-{op}")
    for kernel in ("host", "auto")
    for kind in contract.kinds("host")
    for op in contract.ops("host", kind)
]
EXECUTED = [
    pytest.param(kernel, kind, ops[zlib.crc32(f"{kernel} {kind}".encode()) % len(ops)],
                 id=f"{kernel}-{kind}")
    for kernel in registry.names() if registry.get(kernel).runs_on == "gpu"
    for kind in contract.kinds(kernel)
    for ops in [contract.ops(kernel, kind)]
]  # fmt: skip


def check(cases: list[contract.Case], backend: Backend) -> list[str]:
    """Check all cases, and return the messages of unsupported ones."""
    refused = []
    for case in cases:
        try:
            refused.append(contract.check(case, backend))
        except AssertionError as error:
            raise AssertionError(f"{case}: {error}") from error
    return refused


@pytest.mark.parametrize(("kernel", "kind", "op"), ON_CPU)
def test_on_the_cpu(kernel: str, kind: contract.Kind, op: str) -> None:
    cases = contract.regime("host", kind, op, "narrow", 20)
    cases += contract.regime("host", kind, op, "wide", 20)
    refused = check([replace(case, kernel=kernel) for case in cases], Backend("cpu", "sm_90a"))
    listed = kind in contract.kinds("host", others=False)
    assert not listed or not any(refused), refused


@pytest.mark.parametrize(("kernel", "kind", "op"), EXECUTED)
def test_in_the_interpreter(kernel: str, kind: contract.Kind, op: str) -> None:
    """Test a case of each subject, and three products, with varying layouts."""
    layout = contract.LAYOUTS[zlib.crc32(f"{kind} {kernel}".encode()) % 2]
    special = contract.special(kernel, kind, op, layout, long=False)
    subjects: dict[str, contract.Case] = {}
    for case in special:
        subjects.setdefault(case.subject, case)
    cases = [*subjects.values(), *contract.products(kernel, kind, op, layout)[:3]]
    refused = check(cases, Backend("interpreter", "sm_90a"))
    listed = kind in contract.kinds(kernel, others=False)
    assert not listed or not all(refused), refused
