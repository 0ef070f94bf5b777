"""Test 8-bit floats: types, kernels in the interpreter, all kinds of scales, saturation, errors."""

import re
from collections import Counter
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from fp8_cases import (
    ALONG_K,
    BLOCKS,
    BOXED,
    E4M3,
    E5M2,
    K_TILES,
    PAIRS,
    SCALES,
    Call,
    Case,
    block_scaled,
    boxed,
    execute,
    k_tiles,
    loaded,
    packed,
    planned,
    spread,
)
from unity_build import unity_build

import cute_gemm as cg
from cute_gemm.dtypes import DTYPES
from cute_gemm.errors import (
    DTypeError,
    GemmError,
    OptionError,
    ShapeError,
    StrideError,
    UnsupportedError,
)
from cute_gemm.problem.values import saturated
from cute_gemm.problem.verify import PROMOTED, truncation, verify

#: A sample of the cases. The GPU tests run all of them.
HERE = [*list(spread())[::5], *list(block_scaled())[::4], *list(packed())[::4]]
HERE += list(boxed())[::4]
#: Cases with mma.sync of 8-bit floats, which sm_89 has.
ON_ADA = [case for case in spread() if case.kernel == "sm80_pipeline"]
ON_ADA = [ON_ADA[place] for place in (0, 2, 5, 7)]


def arch_of(case: Case) -> str:
    """Return the architecture of a case of `loaded`."""
    return "sm_89" if case.kernel == "sm80_pipeline" else "sm_80"


@pytest.mark.parametrize("case", HERE, ids=str)
@unity_build(lambda case: planned(case, "sm_90a")[0])
def test_kernels_in_the_interpreter(case: Case) -> None:
    execute(case, "sm_90a")


@pytest.mark.parametrize("case", ON_ADA, ids=str)
@unity_build(lambda case: planned(case, "sm_89")[0])
def test_on_ada_in_the_interpreter(case: Case) -> None:
    execute(case, "sm_89")


@pytest.mark.parametrize("case", list(loaded())[::3], ids=str)
@unity_build(lambda case: planned(case, arch_of(case))[0])
def test_scales_that_threads_load(case: Case) -> None:
    """Check results, and the counts of every access."""
    execute(case, arch_of(case))
    plan, call = planned(case, arch_of(case))
    trace = plan.trace(call.A, call.B, call.C, beta=0.5, **call.operands)
    assert trace.agrees, [x for x in trace.figures if x.difference]


def test_mma_sync_is_chosen_where_tensor_cores_have_it() -> None:
    sizes = {"m": 1024, "n": 1024, "k": 1024, "dtype": E4M3, "backend": "cpu"}
    chosen = {arch: cg.plan("NN", **sizes, arch=arch).kernel
              for arch in ("sm_80", "sm_89", "sm_90a", "sm_120a")}  # fmt: skip
    assert chosen == {"sm_80": "double_buffered", "sm_89": "sm80_pipeline",
                      "sm_90a": "sm90_wgmma", "sm_120a": "sm80_pipeline"}  # fmt: skip
    message = f"kernel 'sm80_pipeline' needs sm_89 or newer for {E4M3}; arch is 'sm_86'"
    with pytest.raises(UnsupportedError, match=message):
        cg.plan("NN", **sizes, arch="sm_86", kernel="sm80_pipeline")
    assert cg.plan("NN", **sizes, kernel="sm80_pipeline").arch == "sm_89"


@pytest.mark.parametrize(
    ("op", "order", "fast_accum"), [("TN", "F", False), ("NT", "C", True), ("TT", "F", False)]
)
def test_mma_sync_compiles_without_spills(op: str, order: Any, fast_accum: bool) -> None:
    """Test spills, and that sm_89's machine code has as many 8-bit MMAs as the tile requires."""
    tile = (128, 256, 64) if fast_accum else (128, 128, 64)
    plan = cg.plan(op, m=512, n=512, k=512, dtype=f"{E4M3} x {E5M2}", order=order, arch="sm_89",
                   backend="cpu", kernel="sm80_pipeline", tile=tile, warps=(2, 4),
                   compute="fast_accum" if fast_accum else None)  # fmt: skip
    assert plan.resources.spill_stores == plan.resources.spill_loads == 0
    pair = "E4M3.E5M2" if order == "F" else "E5M2.E4M3"
    products = [line for line in plan.sass.splitlines() if f"QMMA.16832.F32.{pair}" in line]
    assert len(products) == tile[0] * tile[1] * tile[2] // (16 * 8 * 32 * 8)
    # The first MMA of a k tile starts from 0, and each thread adds its accumulators.
    added = sum("FADD" in line for line in plan.sass.splitlines())
    begun = sum(", RZ ;" in line for line in products)
    sums = 0 if fast_accum else tile[0] * tile[1] // 256
    assert (added, begun) == (sums, sums // 4)


@pytest.mark.parametrize("k", K_TILES)
def test_double_buffered_accumulators(k: int) -> None:
    for case in k_tiles(k):
        call = Call.of(case)
        plan = cg.plan(case.op, call.A, call.B, call.C, backend="cpu", arch="sm_90a",
                       **call.operands, **call.keywords)  # fmt: skip
        assert plan.config.product_sets == 2 and plan.config.register_a == (case.op == "NN")
        trace = plan.trace(call.A, call.B, call.C, beta=0.5, **call.operands)
        assert trace.agrees, [x for x in trace.figures if x.difference]


@pytest.mark.parametrize(
    "given",
    [
        {"scale_a": "1x128", "scale_b": "128x128", "l": 3},
        {"epilogue": "bias+gelu", "bias": (512,)},
        {"ragged": "N", "l": 3},
        {"ragged": "K", "l": 3},  # threads write zeros into k tiles: one set
    ],
    ids=lambda given: next(iter(given)),
)
def test_ptxas_follows_double_buffered_accumulators(given: dict[str, Any]) -> None:
    """Test double buffering. Otherwise ptxas would wait for each wgmma, which is an error."""
    sizes = {"m": 256, "n": 512, "k": 1024, "dtype": E4M3, "arch": "sm_90a", "backend": "cpu"}
    options = {"kernel": "sm90_wgmma", "tile": (64, 64, 128), "warp_groups": 1, "swap_ab": 0}
    for op in ("TN", "NN"):
        plan = cg.plan(op, **sizes, **options, **given)
        assert plan.config.product_sets == (1 if given.get("ragged") == "K" else 2)
        assert plan.build.resources.spill_loads == 0


@pytest.mark.parametrize(
    ("op", "out", "tile", "cluster"),
    [("NN", "float32", (128, 176, 128), (2, 1)), ("TT", "bfloat16", (192, 128, 128), (1, 2))],
)
def test_a_k_tile_reads_little_of_what_is_spilled(
    op: str, out: str, tile: tuple[int, ...], cluster: tuple[int, int]
) -> None:
    """Test spills of tiles with the fewest registers besides accumulators and rows of A."""
    plan = cg.plan(op, m=704, n=640, k=384, dtype=E4M3, out_dtype=out, arch="sm_90a",
                   backend="cpu", kernel="sm90_wgmma", tile=tile, warp_groups=2, cluster=cluster,
                   swap_ab=int(op == "TT"))  # fmt: skip
    assert plan.config.register_a and plan.config.product_sets == 1
    lines = plan.sass.splitlines()
    starts = ((i, re.match(r"(\.L_\w+):", line)) for i, line in enumerate(lines))
    places = {start[1]: i for i, start in starts if start}
    ends = ((i, re.search(r"BRA.*`\((\.L_\w+)\)", line)) for i, line in enumerate(lines))
    loops = [lines[places[end[1]] : i] for i, end in ends if end and places[end[1]] < i]
    k_tile = min((loop for loop in loops if sum("QGMMA" in x for x in loop) == 4), key=len)
    assert sum("LDL" in line for line in k_tile) <= 4 and sum("STL" in line for line in k_tile) <= 4
    assert plan.resources.spill_loads <= 256


@pytest.mark.parametrize("kernel", ["naive", "double_buffered", "thin"])
def test_kernels_before_there_were_instructions_for_it(kernel: str) -> None:
    m = 5 if kernel == "thin" else 37
    execute(Case(kernel, "TN", (E4M3, E5M2), ("row", "row"), m, 45, 130, pad=3), "sm_80")


def test_nan_before_there_were_instructions_for_it() -> None:
    A, B = (np.ones((3, 16), np.float32).astype(DTYPES[E4M3].numpy) for _ in range(2))
    A[1, 5] = np.nan
    C = cg.gemm("NT", A, B, kernel="naive", arch="sm_80", backend="interpreter")
    found = C.astype(np.float32)
    assert np.isnan(found[1]).all() and (found[[0, 2]] == 16).all()


@pytest.mark.parametrize("kind_a", SCALES)
@pytest.mark.parametrize("further", [0, 1, 4])  # each kind with itself and two others
def test_scales_on_the_cpu(kind_a: str, further: int) -> None:
    kind_b = SCALES[(SCALES.index(kind_a) + further) % len(SCALES)]
    pair = PAIRS[SCALES.index(kind_a) % 4]
    execute(Case("auto", "NT", pair, (kind_a, kind_b), 130, 56, 300), "sm_90a", "cpu")


@pytest.mark.parametrize("backend", ["cpu", "interpreter"])
@pytest.mark.parametrize("words", [{}, {"kernel": "sm90_wgmma"}, {"pack": "AB"}], ids=str)
def test_block_scales_of_no_products(words: dict[str, Any], backend: Any) -> None:
    A, B = (np.ones((rows, 0), DTYPES[E4M3].numpy) for rows in (70, 30))
    words = words | {"scale_a": np.ones((70, 0), "f4"), "scale_b": np.ones((1, 0), "f4")}
    C = np.arange(2100, dtype=np.float32).reshape(70, 30)
    expected = C * np.float32(0.5)
    cg.gemm("NT", A, B, C, beta=0.5, arch="sm_90a", backend=backend, **words)
    np.testing.assert_array_equal(C, expected)


@pytest.mark.parametrize("kind", ["row", "1x128", "128x128"])
def test_batches_of_scales_on_the_cpu(kind: str) -> None:
    execute(Case("auto", "TN", scales=(kind, kind), m=130, l=3), "sm_90a", "cpu")


def of_wgmma(scales: tuple[str, str], sizes: tuple[int, int, int], tile: tuple[int, int],
             groups: int = 1, cluster: tuple[int, int] = (1, 1), op: str = "TN", **more: Any,
             ) -> Case:  # fmt: skip
    own = {name: more.pop(name) for name in ("l", "order") if name in more}
    options = {"warp_groups": groups, "cluster": cluster, "tile": (*tile, 128), **more}
    return Case("sm90_wgmma", op, (E4M3, E5M2), scales, *sizes, options=tuple(options.items()),
                **own)  # fmt: skip


#: Partial blocks of 64 and 128, warp groups along M, along N and with ping-pong, clusters with
#: tiles outside of C, A and B swapped, A in registers, batches and split-K, narrow epilogue tiles.
TRACED = [
    of_wgmma(("1x128", "128x128"), (300, 330, 200), (128, 160), 2, (2, 1)),
    of_wgmma(("128x128", "1x128"), (330, 130, 200), (64, 96), 1, (2, 2)),
    of_wgmma(("128x128", "128x128"), (130, 400, 300), (64, 160), 2),
    of_wgmma(("1x128", "1x128"), (130, 400, 300), (64, 160), 2, order="C"),
    of_wgmma(("1x128", "128x128"), (200, 400, 300), (64, 96), 2, ping_pong=1, stages=2),
    of_wgmma(("1x128", "128x128"), (200, 400, 300), (96, 128), 2, (1, 2), swap_ab=1),
    of_wgmma(("128x128", "1x128"), (208, 160, 300), (128, 48), 2, op="NN", stages=2),
    of_wgmma(("1x128", "128x128"), (208, 304, 272), (64, 192), 2, op="NN"),
    of_wgmma(("row", "1x128"), (208, 96, 272), (32, 64), 1, op="TT", swap_ab=1, l=2),
    of_wgmma(("1x128", "128x128"), (72, 56, 1000), (64, 64), 1, l=2, split_k=3),
    of_wgmma(("", "128x128"), (260, 560, 130), (192, 96), 3),
    of_wgmma(("1x128", "128x128"), (300, 140, 300), (256, 128), 2, stages=4),
    of_wgmma(("1x128", "128x128"), (300, 140, 130), (256, 128), 2, stages=4, order="C", swap_ab=0),
    *(
        of_wgmma(scales, *sizes, **given)
        for scales, sizes, given in (
            ((BOXED, "128x128"), ((200, 400, 300), (64, 96), 1, (2, 2)), {}),
            ((BOXED, "128x128"), ((300, 130, 200), (64, 96), 1, (4, 1)), {"swap_ab": 0}),
            ((BOXED, BOXED), ((130, 400, 300), (64, 160), 2), {"order": "C"}),
            ((BOXED, "1x128"), ((330, 130, 200), (96, 64), 1, (2, 2)), {"swap_ab": 1}),
            ((BOXED, "128x128"), ((72, 56, 1000), (64, 64), 1), {"l": 2, "split_k": 3}),
            ((BOXED, "128x128"), ((300, 140, 300), (256, 128), 2), {"stages": 4}),
            (("row", BOXED), ((208, 96, 272), (32, 64), 1), {"op": "TT", "swap_ab": 1, "l": 2}),
        )
    ),
    *(
        of_wgmma(scales, *sizes, pack="scales", **given)
        for scales, sizes, given in (
            ((ALONG_K, "128x128"), ((200, 140, 300), (64, 96), 1, (2, 1)), {}),
            ((ALONG_K, ALONG_K), ((130, 90, 1000), (64, 64), 1), {"l": 2, "split_k": 3}),
            ((BOXED, ALONG_K), ((72, 56, 300), (64, 64), 1), {"op": "NN"}),
        )
    ),
    of_wgmma(("tensor", "row"), (208, 96, 272), (64, 32), 1, op="NN"),
    of_wgmma(("tensor", "row"), (208, 96, 272), (128, 32), 1, op="NN", swap_ab=0),
]


@pytest.mark.parametrize("case", TRACED, ids=str)
@unity_build(lambda case: planned(case, "sm_90a")[0])
def test_rows_are_what_is_executed(case: Case) -> None:
    plan, call = planned(case, "sm_90a")
    trace = plan.trace(call.A, call.B, call.C, beta=0.5, **call.operands)
    assert trace.agrees, [x for x in trace.figures if x.difference]
    scales = {x.name for x in plan.problem.scales}
    assert scales == {row.operand for row in trace.rows} - {"A", "B", "C"} - {
        x.name for x in plan.problem.operands
    }


def test_scales_whose_rows_meet_in_l1_are_packed() -> None:
    """Test K-major scales whose rows are multiples of 128 bytes apart. Packing saves time."""

    def pack(m: int, n: int, k: int, **words: Any) -> tuple[str, str]:
        words = {"scale_a": (m, k // 128), "scale_b": "128x128", "gpu": "H200"} | words
        plan = cg.plan("TN", m=m, n=n, k=k, dtype=E4M3, backend="cpu", **words)
        return plan.algorithm.pack, plan.why

    packed, why = pack(4096, 4096, 4096)
    assert packed == "scales" and "packing scales takes" in why
    for other in (
        pack(4096, 4096, 4096, kernel="sm90_wgmma"), pack(4096, 4096, 4096, pack="none"),
        pack(4096, 4096, 4224), pack(128, 4096, 4096), pack(4096, 4096, 4096, scale_a="tensor"),
    ):  # fmt: skip
        assert other[0] == ""
    with pytest.raises(
        OptionError, match="pack='scales' came without block scales in rows along K"
    ):
        pack(256, 256, 256, scale_a="128x128", pack="scales")


def test_a_scale_of_rows_along_k_is_strided_in_the_report() -> None:
    sizes = {"m": 512, "n": 512, "k": 1024, "dtype": E4M3, "arch": "sm_90a"}
    report = cg.analyze("TN", **sizes, scale_a=(512, 8), scale_b=(4, 8), kernel="sm90_wgmma",
                        tile=(128, 128, 128), warp_groups=2)  # fmt: skip
    rows, blocks = report["scale_a"].rows[0], report["scale_b"].rows[0]
    assert (rows.sectors, rows.ideal_sectors, rows.verdict) == (32, 4, "strided")
    assert "scale_a M-major" in rows.fix
    # One warp loads 128 scales, 32 at a time, and one scale of 128 columns.
    assert (rows.requests, blocks.requests) == (4, 1)
    stored, read = report["scale_a"].rows[1:]
    # Two groups of four warps: each thread has 2 rows.
    assert (stored.instruction, stored.requests) == ("cp.async", 4)
    assert (read.instruction, read.requests, read.conflicts) == ("ld.shared", 16, 0)
    assert (blocks.sectors, blocks.bytes, blocks.good) == (1, 4, True)
    assert "scale_a(M,K)" in str(report)


@pytest.mark.parametrize(
    ("scales", "tile", "op"),
    [
        (("", ""), (64, 64), "TN"),
        (("1x128", ""), (64, 64), "TN"),
        (("1x128", "1x128"), (64, 64), "TN"),
        (("1x128", "128x128"), (64, 96), "TN"),
        (("128x128", "128x128"), (64, 96), "NN"),
    ],
)
def test_the_prediction_has_the_instructions_that_add_products(
    scales: tuple[str, str], tile: tuple[int, int], op: str
) -> None:
    counted = Counter[str]()
    for k, sign in ((512, -1), (1024, 1)):
        case = of_wgmma(scales, (*tile, k), tile, op=op, swap_ab=0)
        call = Call.of(case)
        plan = cg.plan(op, call.A, call.B, call.C, backend="cpu", arch="sm_90a", **call.operands,
                       **call.keywords)  # fmt: skip
        for name, count in plan.trace(call.A, call.B, call.C, **call.operands).counts.items():
            counted[name] += sign * count
    each = 4 * tile[0] * tile[1] / 32  # k tiles, and accumulators per warp instruction
    executed = sum(counted[name] for name in ("add.f32", "mul.f32", "fma.rn.f32", "selp.f32"))
    assert executed / each == pytest.approx(plan.config.adds_per_product, rel=0.03)


# -- numbers ---------------------------------------------------------------------------------------


def arrays(m: int = 64, n: int = 32, k: int = 256) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    A, B = random.standard_normal((m, k)), random.standard_normal((n, k))
    return A.astype(ml_dtypes.float8_e4m3fn), B.astype(ml_dtypes.float8_e4m3fn)


@pytest.mark.parametrize("backend", ["cpu", "interpreter"])
@pytest.mark.parametrize("out", [E4M3, E5M2])
def test_results_saturate_and_nan_stays(out: str, backend: Any) -> None:
    A, B = arrays(8, 8, 16)
    A[...], B[...] = 0, 0
    A[:, 0] = [0, 1, -1, 448, -448, 0.5, np.nan, 2]
    B[:, 0] = [1, 448, -448, 0, 1.5, 2.0**-7, 2.0**-9, 300]
    C = cg.gemm("NT", A, B, out_dtype=out, backend=backend, kernel="naive", arch="sm_90a")
    exact = np.outer(A[:, 0].astype(np.float32), B[:, 0].astype(np.float32))
    largest = DTYPES[out].saturates
    expected = np.clip(exact, -largest, largest).astype(DTYPES[out].numpy).astype(np.float32)
    np.testing.assert_array_equal(C.astype(np.float32), expected)
    assert abs(C[3, 1].astype(np.float32)) == largest and np.isnan(C[6].astype(np.float32)).all()


def test_infinities_of_e5m2_multiply() -> None:
    A = np.ones((4, 16), ml_dtypes.float8_e5m2)
    A[1, 3], A[2, 4], A[3, :2] = np.inf, np.nan, (np.inf, -np.inf)
    C = cg.gemm("NT", A, A[:1], out_dtype="float32", backend="interpreter", kernel="naive")
    assert C[0, 0] == 16 and np.isposinf(C[1, 0]) and np.isnan(C[2:, 0]).all()


def test_saturated() -> None:
    numbers = np.array([1e9, -1e9, np.inf, np.nan, 3.0])
    np.testing.assert_array_equal(saturated(numbers, E4M3), [448, -448, 448, np.nan, 3])
    np.testing.assert_array_equal(saturated(numbers, "int8"), [127, -128, 127, 0, 3])
    assert saturated(numbers, "float32") is numbers


def test_a_new_c_is_bfloat16_by_default() -> None:
    A, B = arrays()
    assert cg.gemm("NT", A, B, backend="cpu").dtype == ml_dtypes.bfloat16
    for out in ("float16", "float32", E4M3, E5M2):
        assert cg.gemm("NT", A, B, backend="cpu", out_dtype=out).dtype.name == out


def test_a_cast_to_an_8_bit_float_saturates() -> None:
    A, B = arrays()

    def function(acc: Any) -> Any:
        return acc, cg.cast(acc * 40, E4M3)

    C, small = cg.gemm("NT", A, B, epilogue=function, backend="interpreter", out_dtype="float32",
                       arch="sm_90a")  # fmt: skip
    expected = np.clip(C * np.float32(40), -448, 448).astype(ml_dtypes.float8_e4m3fn)
    assert (small == expected).all() and (abs(small.astype(np.float32)) == 448).any()


# -- bounds ----------------------------------------------------------------------------------------


def truncated(A: np.ndarray, B: np.ndarray, promoted: int, bits: int = 13) -> np.ndarray:
    """Return a product as tensor cores add it, truncated after every 32 products."""
    total = np.zeros((len(A), len(B)), np.float32)
    sums = np.zeros((len(A), len(B)))
    for start in range(0, A.shape[1], 32):
        if promoted and start % promoted == 0:
            total += sums.astype(np.float32)
            sums[...] = 0
        parts = A[:, None, start : start + 32] * B[None, :, start : start + 32]
        parts = np.concatenate([parts, sums[..., None]], axis=-1)
        top = np.floor(np.log2(abs(parts).max(axis=-1, keepdims=True)))
        unit = 2.0 ** (top - bits)
        sums = (np.trunc(parts / unit) * unit).sum(axis=-1)
        unit = 2.0 ** (np.floor(np.log2(abs(sums) + 1e-30)) - bits)
        sums = np.trunc(sums / unit) * unit
    return total + sums.astype(np.float32)


@pytest.mark.parametrize("fast_accum", [False, True])
def test_the_bound_holds_for_sums_that_are_cut_off(fast_accum: bool) -> None:
    random = np.random.default_rng(1)
    A, B = (abs(random.standard_normal((16, 4096))).astype(ml_dtypes.float8_e4m3fn) for _ in "AB")
    compute = "fast_accum" if fast_accum else None
    plan = cg.plan("NT", A, B, out_dtype="float32", backend="cpu", compute=compute)
    wide = A.astype(float), B.astype(float)
    result = truncated(*wide, 0 if fast_accum else PROMOTED)
    verdict = verify(plan.problem, A, B, result)
    assert verdict.ok and verdict.max_ratio > 0.02
    if not fast_accum:  # the result of raw accumulation exceeds the bound of promoted accumulation
        assert not verify(plan.problem, A, B, truncated(*wide, 0)).ok


def test_the_bound_of_promoted_sums_grows_with_k_and_no_faster() -> None:
    random = np.random.default_rng(2)
    A, B = abs(random.standard_normal((4, 2048))), abs(random.standard_normal((2048, 4)))
    half, whole = (truncation(A[:, :k], B[:k], PROMOTED).mean() for k in (1024, 2048))
    assert 1.9 < whole / half < 2.1
    assert truncation(A, B, 0).mean() > 4 * whole


# -- errors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        ({"scale_a": (63, 1)}, ShapeError, r"scale_a has shape \(63, 1\); expected .*\(64, 1\)"),
        ({"scale_b": (32, 3)}, ShapeError, r"\(32, 2\) for 128 of k of each or \(1, 2\)"),
        ({"scale_a": (2, 64, 1)}, ShapeError, "scale_a has shape"),
        ({"scale_a": (64, 2), "compute": "fast_accum"}, OptionError,
         "compute='fast_accum' came with"),
        ({"scale_a": (64, 2), "kernel": "thin"}, UnsupportedError, "take kernel='auto'"),
        ({"scale_a": (64, 2), "arch": "sm_80", "kernel": "naive"}, UnsupportedError,
         "take kernel='double_buffered'"),
        ({"scale_a": "128x128", "kernel": "double_buffered", "tile": (256, 64, 32)}, OptionError,
         "expected extents up to 128"),
        ({"fast_accum": True}, OptionError, "no argument 'fast_accum'; .*compute=.fast_accum"),
        ({"use_fast_accum": True}, OptionError, "expected compute=.fast_accum"),
        ({"kernel": "sm90_wgmma", "tile": (128, 128, 256)}, OptionError, "must be 128, after"),
        ({"kernel": "cublas"}, GemmError, "does not take float8_e4m3fn"),
    ],
)  # fmt: skip
def test_refusals(words: dict[str, Any], error: type[Exception], message: str) -> None:
    words = {"arch": "sm_90a"} | words
    with pytest.raises(error, match=message):
        cg.plan("NT", m=64, n=32, k=256, dtype=E4M3, storage="C", backend="cpu", **words)


def test_scales_of_another_type_or_of_other_operands_are_refused() -> None:
    A, B = arrays()
    with pytest.raises(DTypeError, match="scale_a has dtype float64; expected float32"):
        cg.gemm("NT", A, B, scale_a=np.ones((64, 1)), backend="cpu")
    wide = A.astype(np.float16), B.astype(np.float16)
    with pytest.raises(DTypeError, match="a number for each 1x128 block, and A has dtype float16"):
        cg.gemm("NT", *wide, scale_a=np.ones((64, 2), np.float32), backend="cpu")
    with pytest.raises(OptionError, match="compute = 'fast_accum' does not go with dtype float16"):
        cg.gemm("NT", *wide, compute="fast_accum", backend="cpu")
    rows = np.arange(1, 65, dtype=np.float32)[:, None]
    scaled = cg.gemm("NT", *wide, scale_a=rows, backend="cpu", out_dtype="float32")
    np.testing.assert_allclose(scaled, rows * cg.gemm("NT", *wide, backend="cpu",
                                                      out_dtype="float32"), rtol=1e-6)  # fmt: skip


@pytest.mark.parametrize("name", ["scale_a", "scale_b"])
def test_scales_with_negative_strides_are_refused(name: str) -> None:
    """Test row scales and block scales, along either mode. C must not change."""
    A, B = arrays()
    rows = {"scale_a": 64, "scale_b": 32}[name]
    C = np.full((64, 32), -7, np.float32)
    for shape in ((rows, 1), (rows, 2), (1, 2)):
        scale = np.ones(shape, np.float32)
        for mode in (mode for mode in (0, 1) if shape[mode] > 1):
            turned = np.flip(scale, mode)
            with pytest.raises(StrideError, match=f"{name} has strides .* to be negative"):
                cg.gemm("NT", A, B, C, **{name: turned}, backend="cpu")
    assert (C == -7).all()


def test_a_plan_refuses_scales_of_another_recipe() -> None:
    A, B = arrays()
    rows, blocks = np.ones((64, 1), np.float32), np.ones((64, 2), np.float32)
    plan = cg.plan("NT", A, B, scale_a=blocks, backend="cpu", arch="sm_90a")
    assert plan(A, B, scale_a=blocks).shape == (64, 32)
    with pytest.raises(ShapeError, match="the plan was made for"):
        plan(A, B, scale_a=rows)
    with pytest.raises(OptionError, match="scale_a"):
        plan(A, B)


@pytest.mark.parametrize(
    ("shapes", "said"),
    [
        (((256, 1), (128, 1)), "scale_a is read as a number for each row and scale_b"),
        (((256, 2), (1, 2)), "scale_a is read as 1x128, a number for 128 of k of each row and "),
        (((2, 2), ()), "scale_a is read as 128x128, a number for 128 of k of 128 rows and scale_b "
                       "is read as one number"),
    ],
)  # fmt: skip
def test_a_plan_says_what_was_read(shapes: Any, said: str) -> None:
    plan = cg.plan("TN", m=256, n=128, k=256, dtype=E4M3, arch="sm_90a", backend="cpu",
                   scale_a=shapes[0], scale_b=shapes[1])  # fmt: skip
    assert plan.why.startswith(said), plan.why


def test_blocks_are_all_in_the_symbol() -> None:
    names = {
        cg.plan("TN", m=256, n=256, k=512, dtype=E4M3, arch="sm_90a", backend="cpu",
                kernel="sm90_wgmma", scale_a=a, scale_b=b).symbol
        for a in (None, (256, 4), (2, 4)) for b in (None, (256, 4), (2, 4))
    }  # fmt: skip
    assert len(names) == 9 and len(BLOCKS) == 2


def test_torch_tensors_on_the_host() -> None:
    torch = pytest.importorskip("torch")
    A, B = arrays()
    a, b = (torch.from_numpy(x.astype(np.float32)).to(torch.float8_e4m3fn) for x in (A, B))
    scales = torch.rand(64, 1), torch.rand(32, 1)
    C = cg.gemm("NT", a, b, backend="cpu", scale_a=scales[0], scale_b=scales[1])
    assert C.dtype == torch.bfloat16
    numpys = cg.gemm("NT", A, B, backend="cpu", scale_a=scales[0].numpy(),
                     scale_b=scales[1].numpy())  # fmt: skip
    assert (C.float().numpy() == numpys.astype(np.float32)).all()
