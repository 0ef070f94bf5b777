"""Test grouped GEMMs on a GPU: random groups, canaries, NaN around inputs, streams, graphs."""

from itertools import product

import numpy as np
import pytest
import torch
from device_matrices import on_device
from grouped_cases import (
    BLOCK_PAIRS,
    BOXED_PAIRS,
    EPILOGUES,
    OPS,
    OTHERS,
    RAGGED,
    SHARED,
    ZERO_TAILS,
    Arrays,
    GroupedCase,
    cases,
    check,
    other_cases,
    scaled_cases,
    zero_tails,
)

import cute_gemm as cg
from cute_gemm.errors import OffsetsError


def by_device(case: GroupedCase, given: Arrays) -> None:
    """Call three times. The last call takes the fast path, and its C is returned."""
    A, B = (on_device(x)[0] for x in (given.A, given.B))
    ends = torch.from_numpy(given.offsets).cuda()
    operands = {
        name: on_device(x)[0] if isinstance(x, np.ndarray) else x
        for name, x in given.operands.items()
    }
    epilogue = {"epilogue": EPILOGUES[case.epilogue]} if case.epilogue else {}
    for _ in range(3):
        C, back = on_device(given.C)
        result = cg.grouped_gemm(
            case.op, A, B, ends, C, alpha=case.alpha, beta=case.beta, **epilogue, **operands,
            **case.chosen,
        )  # fmt: skip
        assert result is C
    back()


@pytest.mark.parametrize("case", cases(240, 2), ids=str)
def test_small(case: GroupedCase) -> None:
    check(case, by_device)


def by_host(case: GroupedCase, given: Arrays) -> None:
    """Call with NumPy arrays. C is a view into an array with canaries."""
    epilogue = {"epilogue": EPILOGUES[case.epilogue]} if case.epilogue else {}
    result = cg.grouped_gemm(
        case.op, given.A, given.B, given.offsets, given.C, alpha=case.alpha, beta=case.beta,
        backend="cuda", **epilogue, **given.operands, **case.chosen,
    )  # fmt: skip
    assert result is given.C


@pytest.mark.parametrize("case", cases(36, 8, dtype="float16"), ids=str)
def test_host_arrays(case: GroupedCase) -> None:
    """Test that rows without a group keep their values, also if beta is 0 and C is not read."""
    check(case, by_host)


@pytest.mark.parametrize("ragged", "MN")
def test_rows_around_groups_of_host_arrays(ragged: str) -> None:
    """Test rows before the first group and after the last, with beta = 0 and a C that is a view."""
    rows, n, k, ends = 96, 64, 40, np.array([0, 33, 33, 70], np.int32)
    random = np.random.default_rng(3)
    x = random.standard_normal((rows, k)).astype(np.float32)
    w = random.standard_normal((4, k, n)).astype(np.float32)
    whole = np.full((rows + 24, n), -99, np.float32)
    C = whole[8 : rows + 8]
    if ragged == "M":
        cg.grouped_gemm("NN", x, w, ends, C, backend="cuda")
    else:
        cg.grouped_gemm("TT", w, x, ends, C.T, backend="cuda")
    begin = 0
    for g, end in enumerate(ends.tolist()):
        np.testing.assert_allclose(C[begin:end], x[begin:end] @ w[g], rtol=1e-4, atol=1e-4)
        begin = end
    for outside in (whole[:8], C[begin:], whole[rows + 8 :]):
        assert (outside == -99).all()


@pytest.mark.parametrize(
    "case",
    [
        *ZERO_TAILS, *zero_tails(cases(60, 9)), *zero_tails(other_cases(2 * len(OTHERS), 7)),
        *(case._replace(kernel="auto", options="") for case in zero_tails(cases(24, 10, times=6))),
    ],
    ids=str,
)  # fmt: skip
def test_zeros_behind_the_last_group(case: GroupedCase) -> None:
    check(case, by_device)


@pytest.mark.parametrize("case", ZERO_TAILS[:6], ids=str)
def test_zeros_behind_the_last_group_of_host_arrays(case: GroupedCase) -> None:
    check(case, by_host)


@pytest.mark.parametrize("case", cases(60, 3, times=6, dtype="bfloat16"), ids=str)
def test_large(case: GroupedCase) -> None:
    check(case, by_device)


@pytest.mark.parametrize("case", other_cases(8 * len(OTHERS), 5, times=3), ids=str)
def test_without_tma(case: GroupedCase) -> None:
    check(case, by_device)


@pytest.mark.parametrize("case", other_cases(4 * len(OTHERS), 6, times=6), ids=str)
def test_every_type_as_chosen(case: GroupedCase) -> None:
    check(case._replace(kernel="auto"), by_device)


@pytest.mark.parametrize("case", cases(36, 4, times=8, options=""), ids=str)
def test_as_chosen(case: GroupedCase) -> None:
    check(case._replace(kernel="auto"), by_device)


#: Scales of the ragged operand, and of the other operand.
PAIRS_OF_KINDS = [*BLOCK_PAIRS, *product(RAGGED, SHARED), *BOXED_PAIRS]


@pytest.mark.parametrize(
    "case",
    [
        *scaled_cases("sm90_wgmma", "M", PAIRS_OF_KINDS),
        *scaled_cases("sm90_wgmma", "N", PAIRS_OF_KINDS),
        *scaled_cases(
            "double_buffered", "M", [*[*product(RAGGED, SHARED)][::5], *BLOCK_PAIRS[::2]]
        ),
        *scaled_cases("sm80_pipeline", "M", BLOCK_PAIRS[1::2]),
        *scaled_cases("sm80_pipeline", "N", BLOCK_PAIRS[::3]),
        *scaled_cases("double_buffered", "N", [*product(RAGGED, SHARED)][1::5]),
        *scaled_cases("double_buffered", "K", [*product(SHARED, SHARED)][::3]),
        *scaled_cases("sm90_wgmma", "K", [*product(SHARED, SHARED)][1::3]),
    ],
    ids=str,
)
def test_scales(case: GroupedCase) -> None:
    check(case, by_device)


@pytest.mark.parametrize(
    "case",
    [
        *scaled_cases("auto", "M", PAIRS_OF_KINDS, 7),
        *scaled_cases("auto", "N", BLOCK_PAIRS, 7),
        *scaled_cases("auto", "K", [*product(SHARED, SHARED)][2::3], 7),
    ],
    ids=str,
)
def test_scales_as_chosen(case: GroupedCase) -> None:
    check(case._replace(pad=(16, 3)[case.fast_accum is None]), by_device)


@pytest.mark.parametrize("fast_accum", [False, True])
def test_beside_scaled_grouped_mm(fast_accum: bool, arch: str) -> None:
    """Compare row scales with ``torch._scaled_grouped_mm``."""
    if arch != "sm_90a" or not hasattr(torch, "_scaled_grouped_mm"):
        pytest.skip("torch._scaled_grouped_mm is for Hopper, from PyTorch 2.8 on")
    groups, rows, n, k = 6, 1024, 512, 1024
    ends = torch.tensor([0, 128, 144, 512, 512, rows], device="cuda").int()
    x = torch.randn(rows, k, device="cuda").to(torch.float8_e4m3fn)
    w = torch.randn(groups, n, k, device="cuda").to(torch.float8_e4m3fn)
    a, b = (torch.rand(*shape, device="cuda") + 0.5 for shape in ((rows,), (groups, n)))
    compute = "fast_accum" if fast_accum else None
    y = cg.grouped_gemm("NT", x, w, ends, order="C", scale_a=a, scale_b=b, compute=compute)
    theirs = torch._scaled_grouped_mm(
        x, w.transpose(1, 2), a, b, offs=ends, out_dtype=torch.bfloat16, use_fast_accum=fast_accum
    )
    torch.testing.assert_close(y, theirs, rtol=2e-2, atol=1.0)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_beside_torch(op: str, dtype: str) -> None:
    """Compare ragged M and K of a layer's sizes with ``torch._grouped_mm``."""
    kind, groups, rows, n, k = getattr(torch, dtype), 8, 3000, 1024, 2048
    if not hasattr(torch, "_grouped_mm") or kind is not torch.bfloat16:
        pytest.skip("torch._grouped_mm takes bfloat16, from PyTorch 2.8 on")
    ends = torch.tensor([0, 400, 401, 1000, 1000, 1777, 2500, rows], device="cuda").int()
    x = torch.randn(rows, k, device="cuda", dtype=kind)
    w = torch.randn(groups, k, n, device="cuda", dtype=kind) / k**0.5
    stored_x = x if op[0] == "N" else x.t().contiguous()
    stored_w = w if op[1] == "N" else w.transpose(1, 2).contiguous()
    y = cg.grouped_gemm(op, stored_x, stored_w, ends, order="C")
    torch.testing.assert_close(y, torch._grouped_mm(x, w, offs=ends), rtol=2e-2, atol=2e-2)
    dy = torch.randn(rows, n, device="cuda", dtype=kind)
    stored_x = x.t() if op[0] == "N" else x
    stored_dy = dy if op[1] == "N" else dy.t()
    dw = cg.grouped_gemm(op, stored_x, stored_dy, ends, order="C")
    expected = torch._grouped_mm(x.t(), dy, offs=ends)
    torch.testing.assert_close(dw, expected, rtol=2e-2, atol=0.5)


def test_a_graph_takes_other_groups() -> None:
    """Test a graph whose offsets change between replays. The kernel reads them."""
    groups, rows, n, k = 6, 500, 256, 192
    x = torch.randn(rows, k, device="cuda", dtype=torch.bfloat16)
    w = torch.randn(groups, n, k, device="cuda", dtype=torch.bfloat16)
    ends = torch.tensor([100, 200, 300, 400, 450, 500], device="cuda").int()
    y = torch.empty(rows, n, device="cuda", dtype=torch.bfloat16)

    def call() -> None:
        cg.grouped_gemm("NT", x, w, ends, y)

    call()
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        call()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        call()
    for sizes in ((0, 0, 500, 0, 0, 0), (1, 2, 3, 4, 5, 6), (83, 83, 83, 83, 83, 85)):
        ends.copy_(torch.tensor(sizes).cumsum(0).int())
        y.fill_(7)
        graph.replay()
        torch.cuda.synchronize()
        begin = 0
        for g, size in enumerate(sizes):
            part = slice(begin, begin + size)
            exact = x[part].float() @ w[g].float().T
            torch.testing.assert_close(y[part].float(), exact, rtol=2e-2, atol=0.3)
            begin += size
        assert bool((y[begin:] == 7).all())


@pytest.mark.parametrize("ends", [[500, 100, 900, -7], [10**9] * 4, [-1] * 4, [3, 2, 1, 0]])
@pytest.mark.parametrize("ragged", "MK")
def test_ends_that_are_none(ends: list[int], ragged: str) -> None:
    """Test that invalid offsets do not cause accesses outside of the arrays."""
    rows, n, k = 320, 128, 64
    offsets = torch.tensor(ends, device="cuda").int()
    x = torch.randn(rows, k, device="cuda", dtype=torch.bfloat16)
    if ragged == "M":
        w = torch.randn(4, k, n, device="cuda", dtype=torch.bfloat16)
        whole = torch.full((rows + 64, n), 7.0, device="cuda", dtype=torch.bfloat16)
        cg.grouped_gemm("NN", x, w, offsets, whole[32 : rows + 32])
        assert bool((whole[:32] == 7).all() and (whole[rows + 32 :] == 7).all())
    else:
        dy = torch.randn(rows, n, device="cuda", dtype=torch.bfloat16)
        whole = torch.full((6, k, n), 7.0, device="cuda", dtype=torch.bfloat16)
        cg.grouped_gemm("TN", x, dy, offsets, whole[1:5])
        assert bool((whole[0] == 7).all() and (whole[5] == 7).all())
    torch.cuda.synchronize()


def test_gradients_beside_a_loop() -> None:
    """Compare the gradients of ``grouped_mm`` in bfloat16 with float64, group by group."""
    from cute_gemm.torch import grouped_mm

    ends, kind = torch.tensor([0, 33, 300, 301, 500], device="cuda").int(), torch.bfloat16
    x = torch.randn(500, 136, device="cuda", dtype=kind, requires_grad=True)
    w = torch.randn(5, 72, 136, device="cuda", dtype=kind, requires_grad=True)
    b = torch.randn(5, 72, device="cuda", dtype=kind, requires_grad=True)
    y = grouped_mm(x, w.mT, ends, b)
    g = torch.randn_like(y)
    found = torch.autograd.grad(y, (x, w, b), g)
    wide = [t.detach().double().requires_grad_() for t in (x, w, b)]
    parts = zip([0, *ends.tolist()], ends.tolist(), strict=False)
    expected = torch.cat(
        [wide[0][i:j] @ wide[1][n].T + wide[2][n] for n, (i, j) in enumerate(parts)]
    )
    torch.testing.assert_close(y.double(), expected, rtol=2e-2, atol=0.2)
    for ours, theirs in zip(found, torch.autograd.grad(expected, wide, g.double()), strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=2e-2, atol=0.3)


def test_training_with_padding_rows() -> None:
    """Test that results and gradients after the last group are zeros, without synchronization."""
    from cute_gemm.torch import grouped_mm

    kind = torch.bfloat16
    w = torch.randn(4, 72, 136, device="cuda", dtype=kind, requires_grad=True)
    b = torch.randn(4, 72, device="cuda", dtype=kind, requires_grad=True)
    given = []
    for step in range(6):
        sizes = torch.tensor([step * 30, 0, 100, 17])
        x = torch.randn(500, 136, device="cuda", dtype=kind)
        given.append((x.requires_grad_(), sizes.cumsum(0).int().cuda()))
    results = []
    for number, (x, ends) in enumerate(given):
        if number == 2:  # kernels are compiled and launches cached
            torch.cuda.synchronize()
            torch.cuda.set_sync_debug_mode("error")
        try:
            y = grouped_mm(x, w.mT, ends, b, tail="zero")
            results.append((y, *torch.autograd.grad(y.square().mean(), (x, w, b))))
        finally:
            torch.cuda.set_sync_debug_mode("default")
    for (x, ends), (y, dx, *others) in zip(given, results, strict=True):
        last = int(ends[-1])
        expected = grouped_mm(x[:last], w.mT, ends, b)
        torch.testing.assert_close(y[:last], expected, rtol=2e-2, atol=0.2)
        assert not y[last:].any() and not dx[last:].any()
        assert all(bool(other.isfinite().all()) for other in (dx, *others))


@pytest.mark.parametrize("quick", [False, True])
def test_a_later_call_says_that_ends_are_none(quick: bool) -> None:
    """Test that the call after one with wrong offsets raises, and that later calls work."""
    from cute_gemm.torch import grouped_mm

    kind = torch.bfloat16
    x, w = torch.randn(300, 64, device="cuda", dtype=kind), torch.randn(3, 64, 72, device="cuda")
    w = w.to(kind)
    good, wrong = (
        torch.tensor(ends, device="cuda").int() for ends in ([100, 100, 300], [100, 90, 301])
    )

    def call(ends: torch.Tensor) -> None:
        if quick:
            grouped_mm(x, w, ends, check="device")
        else:
            cg.grouped_gemm("NN", x, w, ends, check="device")
        torch.cuda.synchronize()

    for _ in range(3):
        call(good)
    for _ in range(2):
        call(wrong)  # not detected yet
        with pytest.raises(OffsetsError, match="of 3 groups along M, m=300, n=72, k=64, bfloat16"):
            call(good)
        call(good)
    for _ in range(3):  # not checked without the option
        cg.grouped_gemm("NN", x, w, wrong)
    call(good)
    torch.cuda.set_sync_debug_mode("error")
    try:
        grouped_mm(x, w, good, check="device")
    finally:
        torch.cuda.set_sync_debug_mode("default")
