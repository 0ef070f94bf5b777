"""Test plans of several launches on a GPU: results, graphs, streams, packed operands."""

from typing import Any

import numpy as np
import pytest
import torch
from cases import OPS, in_threads, stored_shapes

import cute_gemm as cg
from cute_gemm.problem.verify import verify

ROUTES: list[dict[str, Any]] = [{"pack": "AB"}, {"split_k": 4}, {"pack": "B", "split_k": 3}]


def operands(op: str, m: int, n: int, k: int, dtype: Any, pad: int = 1) -> tuple[Any, Any]:
    """Return column-major device matrices with ``pad`` elements between columns."""
    found = []
    for rows, columns in stored_shapes(op, m, n, k):
        held = torch.randn(columns, rows + pad, device="cuda").to(dtype)
        found.append(held[:, :rows].t())
    return found[0], found[1]


def right(plan: Any, A: Any, B: Any, C: Any, **scales: Any) -> bool:
    a, b, c = (x.float().cpu().numpy() for x in (A, B, C))
    return verify(plan.problem, a, b, c, **scales).ok


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("algorithm", ROUTES, ids=str)
def test_right_into_new_and_given(op: str, algorithm: dict[str, Any]) -> None:
    A, B = operands(op, 1021, 517, 2003, torch.bfloat16)
    plan = cg.plan(op, A, B, kernel="sm80_pipeline", **algorithm)
    for _ in range(2):
        assert right(plan, A, B, plan(A, B))
    C = torch.full((517, 1021), float("nan"), device="cuda", dtype=torch.bfloat16).t()
    assert right(plan, A, B, cg.gemm(op, A, B, C, kernel="sm80_pipeline", **algorithm))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("shared", ["", "A", "B"])
def test_each_product_of_a_batch_is_cut(op: str, shared: str) -> None:
    l, m, n, k = 5, 264, 136, 2008
    A, B = (torch.stack([operands(op, m, n, k, torch.bfloat16, 0)[i].t() for _ in range(l)]).mT
            for i in range(2))  # fmt: skip
    A, B = A[0] if shared == "A" else A, B[0] if shared == "B" else B
    for options in (
        {"kernel": "sm90_wgmma", "split_k": 4},
        {"kernel": "sm90_wgmma", "split_k": 3, "cluster": (2, 1), "tile": (64, 64, 64)},
        {"kernel": "sm80_pipeline", "split_k": 5},
        {"kernel": "double_buffered", "split_k": 2, "pack": "AB"},
        {"kernel": "auto", "split_k": 7},
    ):
        plan = cg.plan(op, A, B, **options)
        assert plan.algorithm.split_k > 1
        for C in (None, torch.full((l, n, m), float("nan"), device="cuda").bfloat16().mT):
            assert right(plan, A, B, cg.gemm(op, A, B, C, **options)), options


def test_auto_with_odd_layouts_is_right() -> None:
    for m, n, k in ((4095, 4097, 1021), (333, 222, 30001), (7, 4001, 4003)):
        A, B = operands("TN", m, n, k, torch.float16)
        assert right(cg.plan("TN", A, B), A, B, cg.gemm("TN", A, B))


def test_in_a_graph() -> None:
    A, B = operands("TN", 1021, 517, 2003, torch.float16)
    plan = cg.plan("TN", A, B, kernel="sm80_pipeline", pack="AB", split_k=2)
    C = plan(A, B)
    expected = C.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan(A, B, C)
    for _ in range(3):
        C.zero_()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(C, expected)


def test_on_streams_and_threads() -> None:
    A, B = operands("NN", 513, 511, 4099, torch.float16)
    plan = cg.plan("NN", A, B, kernel="sm80_pipeline", pack="AB", split_k=4)
    expected = plan(A, B)
    torch.cuda.synchronize()
    wrong: list[int] = []

    def work(number: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(20):
                C = plan(A, B)
            torch.cuda.current_stream().synchronize()
            wrong.extend([number] * (not torch.equal(C, expected)))

    in_threads(work, range(4))
    assert not wrong


def test_an_operand_kept_packed() -> None:
    _, B = operands("TN", 8, 517, 2003, torch.float16)
    weights = None
    for m in (16, 1021):
        A, _ = operands("TN", m, 517, 2003, torch.float16)
        plan = cg.plan("TN", A, B, kernel="sm80_pipeline", pack="AB")
        weights = weights or plan.pack(B)
        assert torch.equal(plan(A, weights), plan(A, B))


def test_host_arrays() -> None:
    rng = np.random.default_rng(0)
    A = np.asfortranarray(rng.standard_normal((201, 303)).astype("f4"))
    B = np.asfortranarray(rng.standard_normal((303, 107)).astype("f4"))
    plan = cg.plan("NN", A, B, kernel="double_buffered", pack="AB", split_k=2)
    assert plan.backend == "cuda"
    C = plan(A, B)
    assert verify(plan.problem, A, B, C).ok
    assert np.array_equal(plan(A, plan.pack(B)), C)


@pytest.mark.parametrize("kernel", ["sm90_wgmma", "sm80_pipeline", "double_buffered"])
def test_a_thread_without_a_context(kernel: str, arch: str) -> None:
    """Test new launches, and known ones with other addresses, in a thread without a context."""
    if kernel == "sm90_wgmma" and arch != "sm_90a":
        pytest.skip(f"{kernel} does not run on {arch}")
    (A, B), (other, _) = (operands("TN", 256, 128, 192, torch.float32, 0) for _ in range(2))
    options = {"compute": "tf32"} if kernel == "sm90_wgmma" else {}
    results = [torch.full((128, 256), float("nan"), device="cuda").t() for _ in range(2)]
    plan = cg.plan("TN", A, B, results[0], kernel=kernel, **options)
    torch.cuda.synchronize()

    def work(_: int) -> None:
        bound = plan.bind(0)
        for a, C in zip((A, other), results, strict=True):
            bound((a.data_ptr(), B.data_ptr(), C.data_ptr()))

    in_threads(work, (0,))
    torch.cuda.synchronize()
    assert all(right(plan, a, B, C) for a, C in zip((A, other), results, strict=True))
