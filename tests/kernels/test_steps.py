"""Test plans of several launches: packed operands and split-K, selected, executed, reported."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from cases import OPS, placed, stored_shapes

import cute_gemm as cg
from cute_gemm.dtypes import DTYPES
from cute_gemm.errors import FaultError, LaunchError, OptionError, ShapeError
from cute_gemm.kernels.options import access_bytes
from cute_gemm.plan.steps import steps
from cute_gemm.problem.describe import from_sizes
from cute_gemm.problem.matrix import Matrix
from cute_gemm.problem.parts.packing import DIRECT, Algorithm, packed
from cute_gemm.problem.parts.slices import alike, sliced
from cute_gemm.problem.problem import GemmProblem
from cute_gemm.run import sequence
from cute_gemm.run.sequence import Launches


def matrix(*shape: int, pad: int = 1, dtype: str = "float16", rng: Any = None) -> np.ndarray:
    """Return column-major matrices of integers, with ``pad`` elements between columns."""
    found, _ = placed(shape, dtype, "F", pad, random=rng)
    found[...] = np.rint(found)
    return found


#: op, m, n, k, dtype, kernel, paddings of A and B, beta, order of C, options.
CASES: list[tuple[Any, ...]] = [
    ("NN", 100, 70, 130, "float16", "sm80_pipeline", (1, 3), 0, "F", {"pack": "AB"}),
    ("TN", 100, 70, 130, "float16", "sm80_pipeline", (1, 0), 0.5, "C", {"pack": "A"}),
    ("NT", 65, 70, 330, "float32", "double_buffered", (0, 0), 0.5, "F", {"split_k": 3}),
    ("TT", 33, 40, 330, "float32", "double_buffered", (1, 1), 0, "C", {"split_k": 2}),
    ("NN", 65, 70, 330, "float16", "sm80_pipeline", (1, 0), 0.5, "C", {"pack": "A", "split_k": 3}),
    ("NT", 65, 70, 130, "int8", "sm80_pipeline", (0, 1), 2, "F", {"pack": "AB"}),
    ("NN", 65, 30, 700, "int8", "tensor_core", (0, 0), 0, "F", {"split_k": 3}),
    ("NT", 65, 70, 330, "float32", "cutlass_universal", (0, 1), 0, "F",
     {"pack": "AB", "split_k": 2, "compute": "tf32"}),
    ("NT", 33, 40, 70, "float64", "sm80_pipeline", (1, 1), 0, "F", {"pack": "B", "split_k": 2}),
    ("CN", 40, 35, 90, "complex128", "sm80_pipeline", (1, 0), 0.5, "C",
     {"pack": "A", "split_k": 2}),
    ("TT", 65, 70, 600, "complex64", "warp_tiled", (0, 1), 1, "F", {"pack": "B", "split_k": 4}),
    ("TT", 40, 17, 65, "float16", "sm80_pipeline", (3, 8), 0, "C", {"split_k": 2}),
    ("NN", 64, 40, 17, "complex64", "double_buffered", (1, 3), 0, "F", {"split_k": 2}),
    ("NT", 17, 1, 600, "float32", "thin", (0, 0), 1, "C", {"split_k": 3}),
    ("NN", 33, 35, 200, "float32", "naive", (0, 0), 0.5, "F", {"split_k": 4}),
    ("NN", 33, 35, 64, "float32", "smem_full_k", (0, 0), 0, "F", {"split_k": 2}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("op", "m", "n", "k", "dtype", "kernel", "pads", "beta", "order", "options"), CASES
)
def test_executed_is_predicted_and_right(
    op: str, m: int, n: int, k: int, dtype: str, kernel: str, pads: tuple[int, int], beta: Any,
    order: Any, options: dict[str, Any],
) -> None:  # fmt: skip
    """Execute every launch in the interpreter, and check the accesses and the result."""
    rng = np.random.default_rng(k)
    A, B = (
        matrix(*shape, pad=pad, dtype=dtype, rng=rng)
        for shape, pad in zip(stored_shapes(op, m, n, k), pads, strict=True)
    )
    C = np.ones((m, n), DTYPES[dtype].outputs[0], order=order)
    if beta == 0:
        C[...] = -128 if dtype == "int8" else np.nan
    plan = cg.plan(op, A, B, C, kernel=kernel, backend="interpreter", arch="sm_80", **options)
    trace = plan.trace(A, B, C, alpha=2, beta=beta)
    assert trace.verdict.ok, trace.verdict
    assert not trace.differences
    names = ["pack"] * ("pack" in options) + [kernel] + ["reduce"] * ("split_k" in options)
    assert [step.kernel.name for step in plan.steps] == names
    assert plan.algorithm == Algorithm(options.get("pack", ""), options.get("split_k", 1))
    assert [name for name, _ in trace.auxiliary] == [name for name in names if name != kernel]
    assert all(figures for _, figures in trace.auxiliary)


def test_a_pass_that_goes_wrong_is_seen() -> None:
    """Test that wrong accesses of auxiliary kernels, and unwritten scratch, are detected."""
    rng = np.random.default_rng(0)
    A, B = matrix(64, 40, rng=rng), matrix(40, 32, rng=rng)
    plan = cg.plan(
        "NN", A, B, kernel="sm80_pipeline", backend="interpreter", arch="sm_80", pack="AB"
    )
    step = plan.steps.each[0]
    step.__dict__["ptx"] = step.ptx.replace("st.global", "// st.global")
    trace = plan.trace(A, B)
    assert not trace.verdict.ok and trace.differences
    assert {one.kind.operand for one in trace.differences} == {"scratch"}


@pytest.mark.parametrize("number", [0, 2])
def test_auxiliary_kernels_that_start_early_wait_for_the_launch_ahead(number: int) -> None:
    """Test dependent launches: a kernel must wait before it accesses earlier results."""
    rng = np.random.default_rng(0)
    A, B = matrix(64, 640, rng=rng), matrix(640, 544, rng=rng)

    def plan() -> cg.Plan:
        return cg.plan("NN", A, B, kernel="sm80_pipeline", backend="interpreter", arch="sm_90a",
                       pack="AB", split_k=2, tile=(64, 64, 32))  # fmt: skip

    early, late = plan(), cg.plan("NN", A, B, kernel="sm80_pipeline", backend="interpreter",
                                  arch="sm_80", pack="AB", split_k=2)  # fmt: skip
    assert [step.launch.dependent for step in late.steps] == [False] * 3
    assert [step.launch.dependent for step in early.steps] == [False, False, True]  # few CTAs pack
    step = early.steps.each[number]
    step.__dict__["launch"] = replace(step.launch, dependent=True)
    assert early.trace(A, B).agrees
    assert "griddepcontrol.wait;" in step.ptx
    step.__dict__["ptx"] = step.ptx.replace("griddepcontrol.wait;", "")
    with pytest.raises(FaultError, match="no griddepcontrol.wait before"):
        early.trace(A, B)


def test_many_ctas_that_pack_start_early() -> None:
    given = {"dtype": "bfloat16", "arch": "sm_90a", "backend": "cpu", "pack": "AB"}
    found = [
        cg.plan("NN", m=size, n=size, k=size, kernel="sm90_wgmma", **given).steps.each[0].launch
        for size in (511, 2047)
    ]
    assert [one.dependent for one in found] == [one.grid >= 256 for one in found] == [False, True]


def test_a_batch_is_packed_and_a_shared_operand_once() -> None:
    rng = np.random.default_rng(0)
    A = rng.integers(-9, 9, (3, 33, 21)).astype("float16")
    B = rng.integers(-9, 9, (17, 33)).astype("float16").T
    plan = cg.plan(
        "TN", A, B, kernel="sm80_pipeline", backend="interpreter", arch="sm_80", pack="AB"
    )
    assert plan.trace(A, B).agrees
    first = plan.steps.each[0].problem
    assert [one.batch_stride > 0 for one in first.targets] == [True, False]


#: op, l, m, n, k, dtype, kernel, elements between columns, order of C, the operand that all
#: products share, options.
BATCHES: list[tuple[Any, ...]] = [
    ("NN", 3, 33, 40, 330, "float16", "sm80_pipeline", 1, "F", "", {"split_k": 3}),
    ("TN", 2, 33, 40, 192, "float16", "sm80_pipeline", 0, "C", "B", {"split_k": 3}),
    ("NT", 3, 33, 40, 330, "float32", "double_buffered", 0, "F", "A", {"split_k": 4}),
    ("CN", 2, 20, 19, 70, "complex64", "double_buffered", 1, "C", "", {"split_k": 2}),
    ("TT", 3, 33, 35, 200, "float32", "naive", 0, "F", "", {"split_k": 4}),
    ("TN", 4, 3, 77, 600, "float32", "thin", 0, "C", "", {"split_k": 2}),
    ("NN", 3, 64, 64, 160, "float64", "cutlass_universal", 0, "F", "B", {"split_k": 3}),
    ("NT", 2, 65, 30, 300, "int8", "sm80_pipeline", 1, "F", "", {"split_k": 2, "pack": "AB"}),
    ("TN", 3, 72, 40, 328, "float16", "sm90_wgmma", 0, "F", "", {"split_k": 3}),
    ("NT", 3, 72, 40, 256, "float16", "sm90_wgmma", 0, "C", "A", {"split_k": 2}),
    ("NN", 2, 33, 40, 300, "float16", "sm90_wgmma", 1, "F", "", {"split_k": 4, "pack": "AB"}),
]


@pytest.mark.parametrize(
    ("op", "l", "m", "n", "k", "dtype", "kernel", "pad", "order", "shared", "options"), BATCHES
)
def test_each_product_of_a_batch_is_cut(
    op: str, l: int, m: int, n: int, k: int, dtype: str, kernel: str, pad: int, order: Any,
    shared: str, options: dict[str, Any],
) -> None:  # fmt: skip
    rng = np.random.default_rng(k)
    A, B = (
        matrix(*(l,) * (shared != name), *shape, pad=pad, dtype=dtype, rng=rng)
        for name, shape in zip("AB", stored_shapes(op, m, n, k), strict=True)
    )
    C = np.full((l, m, n) if order == "C" else (l, n, m), 3, DTYPES[dtype].outputs[0])
    C = C if order == "C" else C.swapaxes(1, 2)
    arch = "sm_90a" if kernel == "sm90_wgmma" else "sm_80"
    plan = cg.plan(op, A, B, C, kernel=kernel, backend="interpreter", arch=arch, **options)
    trace = plan.trace(A, B, C, alpha=2, beta=-1)
    assert trace.verdict.ok, trace.verdict
    assert not trace.differences
    main = plan.steps.main.problem
    assert main.slices > 1 and main.l == l * main.slices and plan.problem.l == l
    assert plan.steps.each[-1].launch.batch == l
    assert f"from {main.slices} slices of K" in str(plan.report())


# ---- problems of the launches --------------------------------------------------------------------


def some_problems(count: int) -> list[GemmProblem]:
    random = Random(5)
    found = []
    for _ in range(count):
        m, n, k = (random.randint(1, 300) for _ in "mnk")
        dtype = random.choice(("float16", "float32", "float64", "int8", "complex128"))
        op = random.choice(OPS)
        pad = random.choice((0, 1, 8))
        lda, ldb = (max(pair) + pad for pair in ((m, k), (k, n)))
        shared = {"batch_a": 0} if random.random() < 0.3 else {}
        l = random.choice((1, 1, 2, 5))
        found.append(from_sizes(op, m=m, n=n, k=k, l=l, lda=lda, ldb=ldb, dtype=dtype, **shared))
    return found


def test_packed_operands_are_aligned_and_apart() -> None:
    for problem in some_problems(100):
        for which in ("A", "B", "AB"):
            left, packing = packed(problem, which)
            end = 0
            for source, target, offset in packing.copies:
                assert target.shape == source.shape and target.name in which
                assert access_bytes(target, False)[0] == 16
                assert offset >= end and offset % 128 == 0
                end = offset + target.ld * target.shape[1 - target.unit] * (
                    DTYPES[target.dtype].bytes
                )
                assert getattr(left, source.name) == target
                if problem.dtype == "int8":
                    assert target.major == "K"
            assert end <= packing.nbytes
            assert (left.m, left.n, left.k, left.C) == (problem.m, problem.n, problem.k, problem.C)


def address(one: Matrix, element: int) -> int:
    """Return an element's address modulo 256, from the alignment of the descriptor."""
    base = one.first_alignment or one.alignment
    return (base + element * DTYPES[one.dtype].bytes) % 256


def test_slices_cover_k_and_nothing_else() -> None:
    for problem in some_problems(100):
        for count in (2, 3, 16):
            parts, reduction = sliced(problem, count, 16)
            slices = parts.slices
            assert slices <= count and slices == reduction.slices
            assert parts.l == reduction.partials.l == slices * problem.l
            last = parts.k_last or parts.k
            assert 0 < last <= parts.k and (slices - 1) * parts.k + last == problem.k
            assert reduction.C == problem.C and reduction.partials.major == problem.C.major
            assert reduction.partials.dtype == problem.accumulator.name
            each = alike(parts)
            assert sum(one.l * one.k for one in each) == problem.l * problem.k
            for one in each:
                assert one.k_last == 0
                assert one.A.shape == (problem.m, one.k) and one.B.shape == (problem.n, one.k)
            # The last slice begins where the others end.
            for name in "AB":
                whole, end = getattr(problem, name), getattr(each[-1], name)
                first = (slices - 1) * parts.k if len(each) == 2 else 0
                assert address(end, 0) == address(whole, first * whole.stride[1])
                assert address(end, 0) % end.alignment == 0


# ---- selection -----------------------------------------------------------------------------------


def chosen(op: str = "TN", **given: Any) -> cg.Plan:
    sizes = {"m": 4096, "n": 4096, "k": 4096, "dtype": "bfloat16", "gpu": "H200", **given}
    return cg.plan(op, arch="sm_90a", backend="cpu", **sizes)


def test_auto_packs_what_is_slow_and_splits_what_is_long() -> None:
    assert chosen().algorithm == DIRECT
    assert chosen(m=4095, n=4097, k=4093).algorithm.pack
    assert chosen(lda=4097).algorithm.pack in ("", "A")
    assert chosen(m=1280, n=1280, k=65536).algorithm.split_k > 1
    # wgmma reads int8 only along K, or one operand from registers.
    assert chosen("NT", dtype="int8").algorithm.pack == "AB"
    # A named kernel is not packed or split.
    assert chosen(m=4095, n=4097, k=4093, kernel="sm80_pipeline").algorithm == DIRECT
    assert chosen(m=1280, n=1280, k=65536, kernel="sm80_pipeline").algorithm == DIRECT
    asked = chosen(m=4095, n=4097, k=4093, kernel="sm80_pipeline", pack="auto", split_k="auto")
    assert asked.algorithm.pack
    assert chosen(m=4095, n=4097, k=4093, pack="none").algorithm.pack == ""
    assert chosen(m=256, n=256, k=16384, l=4).algorithm.split_k > 1
    assert chosen(m=256, n=256, k=16384, l=400).algorithm.split_k == 1
    assert chosen(m=1280, n=1280, k=65536, split_k=1).algorithm == DIRECT
    assert chosen(m=1280, n=1280, k=65536, split_k=5).algorithm.split_k == 5
    assert chosen(pack="B").algorithm.pack == "B"


def test_the_cheapest_candidate_is_first_and_counts_its_auxiliary_kernels() -> None:
    plan = chosen(m=1023, n=511, k=20001)
    predictions = [one.prediction.seconds for one in plan.candidates() if one.prediction]
    assert predictions == sorted(predictions)
    first = plan.candidates()[0]
    assert (first.kernel.name, first.config, first.algorithm) == (
        plan.kernel,
        plan.config,
        plan.algorithm,
    )
    for one in plan.candidates():
        assert one.prediction is not None
        assert ("packing" in one.prediction.terms) == bool(one.algorithm.pack)
        assert ("reduction" in one.prediction.terms) == (one.algorithm.split_k > 1)
    assert {one.algorithm.pack for one in plan.candidates()} == {"", "AB"}


def test_why_says_what_passes_cost_and_save() -> None:
    why = chosen(m=4095, n=4097, k=4093, pack="AB", split_k=2).why
    assert "packing A and B takes" in why and "adding 2 slices of K takes" in why
    why = chosen(m=1280, n=1280, k=65536).why
    assert "slices of K takes" in why and "of it; without, " in why


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"pack": "C"}, "option pack='C' is unknown; expected one of auto, none, A, B, AB"),
        ({"split_k": 0}, "option split_k=0 does not fit; expected 'auto' or 1 or more"),
        ({"split_k": "many"}, "option split_k='many' does not fit"),
        (
            {"split_k": 1000, "m": 1, "n": 1, "k": 1000, "l": 2**22},
            "expected 511 slices or fewer, for 2147483647",
        ),
        ({"pack": "A", "kernel": "cublas"}, "'cublas' is not one of them: leave them out"),
        ({"split_k": 2, "kernel": "host"}, "'host' is not one of them: leave them out"),
    ],
)
def test_what_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(OptionError, match=sentence):
        chosen(**{"m": 64, "n": 64, "k": 64, **options})


def test_nothing_is_not_packed_or_cut() -> None:
    for empty in "mnkl":
        given = {"m": 65, "n": 65, "k": 65, "l": 1, empty: 0}
        named = {"pack": "AB", "split_k": 2, "kernel": "sm80_pipeline", "arch": "sm_80"}
        assert len(cg.plan("NN", **given, dtype="float16", **named).steps.each) == 1
        assert chosen(**given).algorithm == DIRECT
        assert chosen(**{**given, "k": 4096 * (empty != "k")}).algorithm == DIRECT


@pytest.mark.parametrize("kernel", ["naive", "smem_tiled", "sm80_pipeline"])
@pytest.mark.parametrize("k", [1, 16, 65])
def test_more_slices_than_k_has_make_no_part_without_any(kernel: str, k: int) -> None:
    made = chosen(m=16, n=16, k=k, split_k=12, kernel=kernel)
    parts = [part for step in made.steps for part in alike(step.problem)]
    assert all(part.l for part in parts if isinstance(part, GemmProblem))
    assert str(made.report(beta=1.0))


def test_words_of_the_command_line() -> None:
    assert chosen(split_k="3").algorithm.split_k == 3
    assert chosen(split_k=1, pack="none", kernel="cublas").algorithm == DIRECT


# ---- report --------------------------------------------------------------------------------------


def test_the_report_has_a_section_for_each_launch() -> None:
    given = {"kernel": "sm80_pipeline", "pack": "AB", "split_k": 2}
    report = chosen(m=129, n=67, k=201, **given).report(beta=1.0)
    pack, reduce = report.auxiliary
    assert (pack.kernel, reduce.kernel) == ("pack", "reduce")
    assert pack.what[0].startswith("A  (129,201):(201,1) to (129,201):(256,1) in scratch")
    assert "from 2 slices of K" in reduce.what[0]
    read = ("C", "global", "load")
    assert any((row.operand, row.space, row.direction) == read for row in reduce.rows)
    assert not any((row.operand, row.space, row.direction) == read for row in report.rows)
    shown = str(report)
    assert shown.index("pack  config") < shown.index("reduce  config")
    found = json.loads(report.to_json())["auxiliary"]
    assert [one["kernel"] for one in found] == ["pack", "reduce"]
    assert found[0]["nbytes"] == pack.problem.nbytes and found[0]["accesses"]
    assert report["A"].coalesced  # as the kernel accesses it


# ---- launches ------------------------------------------------------------------------------------


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a record of the requests for a scratch buffer, whose address is 1000."""
    seen: list[Any] = []

    def scratch(nbytes: int, device: int, stream: int) -> int:
        seen.append(("scratch", nbytes, device, stream))
        return 1000

    monkeypatch.setattr(sequence, "scratch", scratch)
    monkeypatch.setattr(sequence, "give_back", lambda *given: seen.append(("back", *given)))
    monkeypatch.setattr(sequence, "is_current", lambda device: True)
    return seen


def test_launches_share_scratch_in_the_order_of_a_stream(pool: list[Any]) -> None:
    def launch(name: str) -> Callable[..., None]:
        return lambda addresses, stream: pool.append((name, *addresses, stream))

    places = [((0, 0), (1, 0), (3, 0)), ((3, 0), (3, 128), (3, 512)), ((3, 512), (1, 0), (2, 0))]
    both = Launches(zip(map(launch, ("pack", "gemm", "reduce")), places, strict=True), 640, 1)
    both((1, 2, 3), 7)
    assert pool == [
        ("scratch", 640, 1, 7), ("pack", 1, 2, 1000, 7), ("gemm", 1000, 1128, 1512, 7),
        ("reduce", 1512, 2, 3, 7), ("back", 1000, 7),
    ]  # fmt: skip


def test_launches_enter_their_context_where_another_is_current(
    pool: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def entered(device: int) -> Iterator[None]:
        pool.append(("in", device))
        yield
        pool.append(("out",))

    monkeypatch.setattr(sequence, "is_current", lambda device: device == 0)
    monkeypatch.setattr(sequence, "entered", entered)
    Launches([(lambda *_: None, ((0, 0), (1, 0), (2, 0)))], 64, 1)((1, 2, 3))
    assert [name for name, *_ in pool] == ["in", "scratch", "back", "out"]


def test_scratch_is_given_back_when_a_launch_fails(pool: list[Any]) -> None:
    def failing(*_: Any) -> None:
        raise LaunchError("no")

    with pytest.raises(LaunchError):
        Launches([(failing, ((0, 0), (1, 0), (2, 0)))], 64, 0)((1, 2, 3))
    assert [name for name, *_ in pool] == ["scratch", "back"]


# ---- a packed operand that is kept ---------------------------------------------------------------


def test_a_packed_operand_serves_plans_of_other_extents() -> None:
    rng = np.random.default_rng(0)
    B = matrix(33, 40, rng=rng)
    given: dict[str, Any] = {"kernel": "sm80_pipeline", "backend": "cpu", "pack": "B"}
    weights = None
    for m in (5, 64):
        A = matrix(m, 33, pad=0, rng=rng)
        plan = cg.plan("NN", A, B, **given)
        weights = weights or plan.pack(B)
        assert np.array_equal(plan(A, weights), plan(A, B))
    assert weights is not None and weights.target.stride == (64, 1)
    both = cg.plan("NN", A, B, **{**given, "pack": "AB"})
    assert np.array_equal(both(both.pack(A, "A"), weights), plan(A, B))
    with pytest.raises(OptionError, match="this plan reads it unpacked: make the plan with pack"):
        cg.plan("NN", A, B, **{**given, "pack": "A"})(A, weights)
    other = matrix(33, 40, pad=3, rng=rng)
    with pytest.raises(ShapeError, match="B is .* and the plan was made for"):
        cg.plan("NN", A, other, **given)(A, weights)
    with pytest.raises(ShapeError, match="and the plan was made for"):
        plan.pack(other)
    # The transposed matrix, which is packed to the same layout, and a matrix of another type.
    transposed = cg.plan("NT", A, B.T.copy("F"), **given)
    assert transposed.problem.B.shape == plan.problem.B.shape
    wide = cg.plan("NN", A.astype("float32"), B.astype("float32"), **given)
    for another in (transposed, wide):
        with pytest.raises(ShapeError, match="B was packed from .*: pack it for this plan"):
            weights.check(another.problem, "B")
    with pytest.raises(OptionError, match="name='A', and this plan packs B"):
        plan.pack(A, "A")


def test_what_is_kept_is_not_packed_again() -> None:
    """Test the remaining launches, and the addresses of kept operands."""
    sizes = {"m": 65, "n": 67, "k": 201, "lda": 203, "ldb": 203, "dtype": "float16"}
    plan = cg.plan("TN", **sizes, kernel="sm80_pipeline", backend="cpu", pack="AB", split_k=2)
    whole = plan.steps
    for kept, names in (("", 3), ("B", 3), ("AB", 2)):
        left = steps(
            plan._kernel.compiled(), plan.config, plan.problem, plan.arch, plan.algorithm, kept
        )
        assert len(left.each) == names
        assert left.main.problem == whole.main.problem
        places = [place.name for place in left.main.places]
        assert places == ["A" if "A" in kept else "scratch", "B" if kept else "scratch", "scratch"]
        assert left.scratch <= whole.scratch
