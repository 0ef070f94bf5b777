"""Test epilogues of Python functions on a GPU: families of kernels, device arrays, graphs."""

from typing import Any

import pytest
import torch
from device_matrices import inside
from fused_cases import (
    CASES,
    FUNCTIONS,
    MANY_ACCUMULATORS,
    FusedCase,
    everything,
    run,
    run_function,
    run_many_accumulators,
)

import cute_gemm as cg


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_family(case: FusedCase) -> None:
    run(case, "cuda")


@pytest.mark.parametrize("case", MANY_ACCUMULATORS)
def test_a_vector_with_many_accumulators(case: Any, arch: str) -> None:
    if arch != "sm_90a":
        pytest.skip(f"sm90_wgmma does not run on {arch}")
    run_many_accumulators(case, "cuda")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function(name: str, dtype: str) -> None:
    run_function(name, dtype, "cuda")


@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_nothing_beside_the_results_is_written(beta: float) -> None:
    """Test a C in a wider matrix, operands and a number on the device, and NaN around inputs."""
    m, n, k = 200, 136, 96

    (_, A), (_, B), (_, both) = (inside(*shape) for shape in ((m, k), (n, k), (m, n)))
    whole, C = inside(m, n, 7.0)
    before = C.clone()
    row, column = torch.randn(n, device="cuda"), torch.randn(m, 1, device="cuda").bfloat16()
    number = torch.tensor(0.25, device="cuda")
    given = {"row": row, "column": column, "both": both, "turned": both, "number": number}
    for turn in range(3):  # the third call takes the fast path
        C.copy_(before)
        y, z, amax, _ = cg.gemm("NT", A, B, C, beta=beta, epilogue=everything, **given)
        acc = A.float() @ B.float().T + beta * before.float()
        exact_z = acc * column + row
        exact = torch.nn.functional.silu(exact_z) * both - both * 0.25
        assert y is C and amax.shape == ()
        torch.testing.assert_close(y.float(), exact, rtol=2e-2, atol=2e-2)
        torch.testing.assert_close(z.float(), exact_z, rtol=2e-2, atol=2e-2)
        torch.testing.assert_close(amax, exact.abs().max(), rtol=1e-2, atol=0)
        C[...] = 7
        assert bool((whole == 7).all()), turn


def test_graphs_and_streams() -> None:
    x, w = (torch.randn(size, 256, device="cuda", dtype=torch.float16) for size in (64, 128))
    bias = torch.randn(128, device="cuda", dtype=torch.float16)

    @cg.epilogue
    def forward(acc: Any, bias: Any) -> Any:
        return cg.relu(acc + bias), cg.amax(acc)

    def call() -> Any:
        return cg.gemm("NT", x, w, order="C", epilogue=forward, bias=bias)

    call()
    stream = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        call()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        y, amax = call()
    for scale in (1.0, 0.5):  # the maximum of an earlier replay is reset
        x.mul_(scale)
        graph.replay()
        torch.cuda.synchronize()
        acc = x.float() @ w.float().T
        torch.testing.assert_close(y.float(), torch.relu(acc + bias), rtol=1e-2, atol=1e-1)
        torch.testing.assert_close(amax, acc.abs().max(), rtol=1e-3, atol=0)


def test_inside_torch_compile() -> None:
    x, w = (torch.randn(size, 256, device="cuda", dtype=torch.float16) for size in (64, 128))
    bias = torch.randn(128, device="cuda", dtype=torch.float16)
    double = cg.epilogue(lambda acc, bias, factor: cg.silu(acc + bias) * factor)

    @torch.compile(fullgraph=True)
    def layer(x: Any) -> Any:
        y = cg.gemm("NT", x, w, order="C", epilogue="bias+gelu", bias=bias)
        return y + cg.gemm("NT", x, w, order="C", epilogue=double, bias=bias, factor=2.0)

    z = (x.float() @ w.float().T) + bias
    exact = torch.nn.functional.gelu(z) + 2 * torch.nn.functional.silu(z)
    torch.testing.assert_close(layer(x).float(), exact, rtol=1e-2, atol=1e-1)
