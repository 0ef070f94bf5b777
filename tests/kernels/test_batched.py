"""Test ``batched``: every program in the interpreter, unsupported problems, kernel selection."""

import re
from dataclasses import replace
from typing import Any

import pytest
from altered import altered
from batched_cases import KINDS, BatchedCase, Lie, drawn
from unity_build import unity_build

import cute_gemm as cg
from cute_gemm.cute.layout import Layout
from cute_gemm.errors import CompileError, OptionError, UnsupportedError
from cute_gemm.kernels.batched.unit import EmitBatched
from cute_gemm.plan.interpreted import execute
from cute_gemm.problem.verify import verify
from cute_gemm.rendering.rows import make_row
from cute_gemm.report.executed import compare
from cute_gemm.toolchain.nvrtc import prove


def checked(case: BatchedCase) -> None:
    """Check C, that the bytes between its elements do not change, and the reported accesses."""
    plan = case.plan()
    buffers = case.buffers()
    A, B, C = case.views(buffers)
    before, around = C.copy(), buffers[2].copy()
    alpha = {"c": 1.5 - 0.5j, "i": 3}.get(C.dtype.kind, -1.5)
    beta = int(case.beta) if C.dtype.kind == "i" else case.beta
    (execution,) = execute(plan, A, B, C, alpha, beta, record=True)
    verdict = verify(plan.problem, A, B, C, C=before, alpha=alpha, beta=beta)
    assert verdict.ok, verdict
    C[...] = before
    same = (buffers[2] == around) | ((buffers[2] != buffers[2]) & (around != around))
    assert same.all(), "bytes around C have changed"
    rows = [make_row(access) for access in plan.steps.each[0].accesses(beta != 0)]
    different = [one for one in compare(rows, execution) if one.difference]
    assert not different, "\n".join(map(str, different))
    assert all(row.analysis.aligned for row in rows)


SPREAD = [drawn(seed, kind) for seed, kind in enumerate(sorted(KINDS) * 3)]
#: Extents near those of MMAs.
SPREAD += [drawn(100 + seed, kind, most=40, l=5) for seed, kind in enumerate(
    ("float16", "bfloat16", "float16-float32", "bfloat16-float32") * 3
)]  # fmt: skip


@pytest.mark.parametrize("case", SPREAD, ids=str)
@unity_build(lambda case: case.plan())
def test_every_program_computes_and_accesses_what_it_says(case: BatchedCase) -> None:
    checked(case)


@pytest.mark.matrix
@pytest.mark.parametrize("seed", range(1000, 1300))
def test_many_more(seed: int) -> None:
    checked(drawn(seed))


def test_a_batch_ends_within_a_cta() -> None:
    """Test one product, one less and one more than a CTA has, and several CTAs."""
    case = BatchedCase("float16", "TN", "FFC", (5, 6, 7, 1), (), 0.0)  # type: ignore[arg-type]
    for l in (1, 7, 8, 9, 17):
        lies = Lie(7, 35, 8, 35 * l + 32), Lie(7, 42, 8, 42 * l + 32), Lie(6, 30, 0, 30 * l)
        extents = (5, 6, 7, l)
        checked(replace(case, extents=extents, lies=lies, options=(("products", 8),)))


def test_what_is_contiguous_is_copied_in_wide_vectors() -> None:
    """Test contiguous rows of 98 bytes, which are copied in runs of 16 bytes across rows."""
    plan = planned(m=49, n=49, k=49, l=64, products=8)
    assert plan.config.operation.bytes[:2] == (16, 16) and plan.config.orders[:2] == ("run", "run")
    plan = planned(m=49, n=49, k=49, l=64, ldb=52, batch_b=52 * 49, products=8)
    assert plan.config.operation.bytes[:2] == (16, 2) and plan.config.orders[1] == "rows"
    plan = planned(m=8, n=49, k=7, l=64, batch_a=64)  # matrices without gaps, and gaps between them
    assert plan.config.operation.bytes[0] == 16 and plan.config.orders[0] == "matrices"
    plan = planned(m=8, n=16, k=16, l=64, batch_b=0)
    assert plan.config.shared == (False, True)
    plan = planned(m=16, n=16, k=16, l=64, lda=64 * 16, batch_a=16)
    assert plan.config.orders[0] == "interleaved"


def planned(op: str = "TN", **given: Any) -> cg.Plan:
    sizes = {"dtype": "float16", "arch": "sm_90a", "kernel": "batched", **given}
    return cg.plan(op, backend="cpu", **sizes)


@pytest.mark.parametrize(("given", "error", "words"), [
    ({"m": 65}, UnsupportedError, "m, n and k up to 64"),
    ({"k": 100}, UnsupportedError, "m, n and k up to 64"),
    ({"split_k": 2}, UnsupportedError, "takes no slices of K"),
    ({"products": 0}, OptionError, "products=0; expected 1 to 1024"),
    ({"products": 512}, OptionError, "threads; expected 1024 or fewer"),
    ({"products": 4, "min_ctas": 0}, OptionError, "min_ctas must be 1 or more"),
    ({"min_ctas": 24}, OptionError, "registers each"),
    ({"thread_tile": (32, 32), "unit": "fma"}, OptionError, "the accumulators of a thread"),
    ({"thread_tile": (0, 4)}, OptionError, "each extent must be 1 or more"),
    ({"products": 60, "thread_tile": (8, 8), "m": 60, "n": 60, "unit": "fma"}, OptionError,
     "1024 or fewer"),
    ({"m": 64, "n": 64, "k": 64, "dtype": "float64", "products": 3, "thread_tile": (8, 8),
      "arch": "sm_80"}, OptionError, "bytes of shared memory"),
    ({"unit": "wgmma"}, OptionError, "expected one of fma, mma"),
    ({"unit": "mma", "dtype": "float32"}, OptionError, "expected float16 or bfloat16"),
    ({"dtype": "float32", "compute": "tf32"}, UnsupportedError, "does not take"),
])  # fmt: skip
def test_what_is_refused(given: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        planned(**{"m": 16, "n": 16, "k": 16, "l": 100, **given})


@pytest.mark.parametrize(("m", "n", "k", "l", "dtype", "more"), [
    (3, 3, 3, 50000, "float32", {}),
    (4, 4, 4, 20000, "complex64", {}),
    (64, 1, 64, 10000, "float16", {}),
    (1, 64, 49, 10000, "bfloat16", {"order": "C"}),
    (3, 8, 3, 50000, "float64", {"batch_a": 0}),
    (12, 16, 12, 20000, "bfloat16", {"lda": 12 * 20000, "batch_a": 12}),
])  # fmt: skip
def test_a_batch_costs_little_more_than_its_bytes(m, n, k, l, dtype, more) -> None:
    plan = planned("NN", m=m, n=n, k=k, l=l, dtype=dtype, kernel="auto", gpu="H200", **more)
    assert plan.kernel == "batched"
    bytes_ = sum(matrix.nbytes for matrix in plan.problem.matrices)
    seconds = plan.candidates()[0].prediction.seconds
    assert seconds < 3e-6 + 1.8 * bytes_ / 4.8e12


def test_it_contends_for_large_batches_of_small_products_alone() -> None:
    for sizes in ({"l": 8}, {"m": 65}, {"k": 65}, {"l": 1}):
        plan = planned(**{"m": 16, "n": 16, "k": 16, "l": 1000, **sizes}, kernel="auto")
        assert "batched" not in {each.kernel.name for each in plan.candidates()}


def test_no_more_ctas_than_a_grid_has_along_y() -> None:
    """Test that the batch is along x, which has 2**31 - 1 CTAs."""
    plan = planned(m=2, n=2, k=2, l=2**31 - 1)
    launch = plan.steps.each[0].launch
    assert launch.batch == 1 and launch.dimensions[1:] == (1, 1)
    assert launch.grid == -(-(2**31 - 1) // plan.config.products)


def test_a_report_and_an_explanation() -> None:
    report = planned(m=7, n=5, k=3, l=1000, batch_b=0).report()
    assert {row.operand for row in report.rows} == {"A", "B", "C"}
    assert "batched" in str(report)


@pytest.mark.parametrize("seed", range(4))
def test_reports_of_matrices_that_lie_anyhow(seed: int) -> None:
    report = drawn(seed).plan().report()
    assert report.to_html() and report.to_json() and str(report)


@pytest.mark.parametrize("seed", range(6))
def test_its_proof_holds(seed: int) -> None:
    """Test that C++ CuTe computes the same offsets as Python."""
    plan = drawn(seed, ("float16", "float32", "complex128")[seed % 3]).plan()
    assert len(plan.proof.facts) == 23


def test_a_wrong_layout_does_not_prove() -> None:
    config = planned(m=16, n=16, k=16, l=64).config
    a, *others = config.operands
    turned = replace(a, smem=Layout(a.smem.shape, tuple(x + 1 for x in a.smem.stride)))
    unit = EmitBatched(config).unit().source
    proof = EmitBatched(altered(config, operands=(turned, *others))).proof()
    right = EmitBatched(config).proof()
    assert proof.source != right.source and unit
    broken = re.sub(r"using SmemA = .*?;", re.search(r"using SmemA = .*?;", right.source)[0],
                    proof.source)  # fmt: skip
    with pytest.raises(CompileError, match="SmemA: offsets"):
        prove(replace(proof, source=broken), "sm_80")
