"""Test predicted times against times measured on an H200, and kernel selection by them."""

import random
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from cases import OPS

import cute_gemm as cg
from cute_gemm.cost_model.roofline import least_seconds, roofline
from cute_gemm.dtypes import DTYPES
from cute_gemm.errors import GemmError
from cute_gemm.gpus.table import GPUS, gpu
from cute_gemm.kernels import registry
from cute_gemm.plan.select import select
from cute_gemm.problem.describe import from_sizes

#: Microseconds; kernel and options; op, m, n, k, dtype and other arguments of the problem, with
#: ``base``, an offset of the matrices from an aligned address in elements.
MEASURED: tuple[tuple[float, str, dict[str, Any], tuple[Any, ...], dict[str, Any]], ...] = (
    # Copies of the thin operand wait for those of the large one, in each k-tile.
    (46.7, "thin", {"tile": (16, 4, 128)}, ("TT", 1152, 4, 8648, "float32"), {}),
    (64.7, "thin", {"tile": (16, 4, 128)}, ("NN", 4488, 8, 4328, "float32"), {}),
    (32.9, "thin", {"tile": (64, 4, 128)}, ("NN", 4488, 8, 4328, "float32"), {}),
    (39.8, "thin", {"tile": (32, 4, 128)}, ("NT", 1248, 16, 3128, "complex64"), {}),
    (297.0, "thin", {"tile": (32, 8, 32)}, ("TT", 2160, 32, 3504, "complex128"), {}),
    (31.7, "thin", {"tile": (32, 32, 128)}, ("NT", 25, 1984, 5272, "bfloat16"), {}),
    (15.5, "thin", {"tile": (8, 16, 128), "warps": 4}, ("NN", 8, 4664, 2264, "float16"), {}),
    # Both are copied together, or the thin operand is small, and the large one binds.
    (10.4, "thin", {"tile": (32, 32, 128)}, ("TT", 32, 1608, 2064, "bfloat16"), {"order": "C"}),
    (38.8, "thin", {"tile": (8, 32, 128)}, ("TN", 1, 8192, 8192, "bfloat16"), {}),
    (67.2, "thin", {"tile": (1, 64, 128)}, ("TT", 1, 8192, 8192, "float32"), {}),
    # TMA and wgmma: bound by tensor cores, by lines, by a short launch, with few stages.
    (175.7, "sm90_wgmma", {"tile": (128, 256, 64)}, ("TN", 4096, 4096, 4096, "bfloat16"), {}),
    (421.9, "sm90_wgmma", {"tile": (128, 256, 64), "cluster": (1, 1), "swap_ab": 0},
     ("TN", 6448, 2776, 5928, "bfloat16"), {}),
    (315.9, "sm90_wgmma", {"tile": (192, 192, 64), "cluster": (1, 1)},
     ("NN", 8104, 2760, 4864, "bfloat16"), {}),
    (3.1, "sm90_wgmma", {"tile": (64, 32, 64)}, ("TN", 512, 512, 512, "bfloat16"), {}),
    (343.7, "sm90_wgmma", {"tile": (256, 128, 32), "warp_groups": 2, "ping_pong": 0, "swap_ab": 1,
                           "cluster": (1, 1)},
     ("TN", 4096, 4096, 4096, "float32"), {"compute": "tf32"}),
    (9.7, "sm90_wgmma", {"tile": (128, 64, 32), "warp_groups": 2, "ping_pong": 0, "swap_ab": 0,
                         "cluster": (1, 1)},
     ("TN", 1024, 1024, 1024, "float32"), {"compute": "tf32"}),
    (41.5, "sm90_wgmma", {"tile": (96, 64, 32), "warp_groups": 1, "swap_ab": 1, "cluster": (2, 4)},
     ("TN", 1040, 432, 7408, "float32"), {"compute": "tf32"}),
    (94.2, "sm90_wgmma", {"tile": (128, 128, 128), "warp_groups": 2, "ping_pong": 1, "swap_ab": 0,
                          "cluster": (1, 1)},
     ("TN", 4096, 4096, 4096, "int8"), {}),
    (679.5, "sm90_wgmma", {"tile": (192, 128, 128), "warp_groups": 2, "ping_pong": 1, "swap_ab": 1,
                           "cluster": (1, 1)},
     ("TN", 8192, 8192, 8192, "int8"), {}),
    (6.2, "sm90_wgmma", {"tile": (64, 96, 128), "warp_groups": 1, "swap_ab": 0, "cluster": (4, 2)},
     ("TN", 3344, 144, 1424, "int8"), {}),
    # Clusters, more columns than a wgmma has, ping-pong.
    (293.4, "sm90_wgmma", {"tile": (192, 192, 64), "warp_groups": 2, "cluster": (2, 1)},
     ("TN", 6448, 2776, 5928, "bfloat16"), {}),
    (35.4, "sm90_wgmma", {"tile": (160, 128, 64), "warp_groups": 2, "ping_pong": 0,
     "cluster": (2, 4),
                          "swap_ab": 1}, ("NT", 288, 5944, 5128, "bfloat16"), {"order": "C"}),
    (46.8, "sm90_wgmma", {"tile": (288, 128, 64), "warp_groups": 2, "cluster": (1, 1),
     "swap_ab": 1},
     ("TN", 1704, 2792, 3488, "bfloat16"), {}),
    (83.3, "sm90_wgmma", {"tile": (128, 128, 64), "warp_groups": 2, "ping_pong": 1,
     "cluster": (1, 1)},
     ("TN", 2048, 7168, 2112, "bfloat16"), {}),
    (8.9, "sm90_wgmma", {"tile": (128, 128, 64), "warp_groups": 2, "ping_pong": 0,
     "cluster": (2, 4),
                         "swap_ab": 1}, ("NN", 208, 6064, 840, "bfloat16"), {}),
    # Few k tiles, and narrow accesses.
    (21.7, "sm80_pipeline", {"tile": (64, 64, 8), "warps": (2, 2)},
     ("TN", 256, 248, 104, "float64"), {"l": 48}),
    (2297.2, "double_buffered", {"tile": (64, 64, 16)},
     ("TN", 5488, 744, 3416, "complex64"), {"base": 1}),
    # Split-K and the reduction.
    (13.1, "sm90_wgmma", {"tile": (192, 96, 64), "split_k": 8},
     ("TN", 1456, 168, 3472, "bfloat16"), {}),
    (63.9, "sm90_wgmma", {"tile": (192, 192, 64), "split_k": 2},
     ("TN", 576, 4096, 7168, "bfloat16"), {}),
    (124.9, "double_buffered", {"tile": (64, 128, 16), "split_k": 3},
     ("TN", 1552, 1688, 768, "float32"), {"lda": 769, "ldb": 771, "ldc": 1553, "base": 1}),
    # C is stored to parts of sectors, which cost a quarter as much in double_buffered.
    (446.5, "double_buffered", {"tile": (128, 64, 16), "pack": "AB"},
     ("NN", 4160, 3544, 728, "float32"), {"lda": 4163, "ldb": 731, "ldc": 4163, "base": 3}),
    (702.8, "double_buffered", {"tile": (64, 128, 16), "pack": "AB"},
     ("TT", 5440, 5680, 536, "float32"), {"lda": 539, "ldb": 5683, "ldc": 5441}),
    (55.5, "sm90_wgmma", {"tile": (128, 256, 64), "pack": "AB"},
     ("NN", 2849, 4017, 633, "bfloat16"), {}),
    (43.8, "sm90_wgmma", {"tile": (128, 256, 64), "pack": "AB"},
     ("TT", 2024, 3280, 864, "bfloat16"), {"lda": 867, "ldb": 3281, "base": 1}),
)  # fmt: skip


@pytest.mark.parametrize(
    ("us", "kernel", "options", "sizes", "more"), MEASURED,
    ids=["-".join(map(str, (row[1], *row[3]))) for row in MEASURED],
)  # fmt: skip
def test_predicted_is_near_measured(us, kernel, options, sizes, more) -> None:
    """Test single times. The rms error of 6,650 times is 13 %, and of none of these over 25 %."""
    op, m, n, k, dtype = sizes
    base = more.get("base", 0) * DTYPES[dtype].bytes
    given = {name: value for name, value in more.items() if name != "base"}
    problem = from_sizes(op, m=m, n=n, k=k, dtype=dtype, **given)
    moved = {x.name: x.at(base) for x in (problem.A, problem.B, problem.C)}
    found = select(replace(problem, **moved), "sm_90a", kernel, options, gpu("H200"))
    prediction = found.candidates()[0].prediction
    assert prediction is not None
    assert 1 / 1.25 < prediction.seconds * 1e6 / us < 1.25, prediction


def chosen(op: str, m: int, n: int, k: int, dtype: str = "bfloat16", **more: Any) -> cg.Plan:
    return cg.plan(
        op, m=m, n=n, k=k, dtype=dtype, arch="sm_90a", gpu="H200", backend="cpu", **more
    )  # fmt: skip


def test_slices_of_k_are_taken_where_they_pay() -> None:
    """Test split-K: two slices were measured at 63.9 us, one at 46.4 us."""
    assert chosen("TN", 576, 4096, 7168).algorithm.split_k == 1
    # 50 tiles for 132 multiprocessors: in five slices they fill 95 % of two rounds.
    plan = chosen("TN", 1280, 1280, 65536)
    prediction = plan.candidates()[0].prediction
    assert plan.algorithm.split_k == 5 and sorted(plan.config.tile) == [64, 128, 256]
    assert prediction.ctas / (132 * prediction.rounds) > 0.94


def test_a_cluster_pays_where_tma_asks_for_more_lines() -> None:
    """Test TMA boxes whose rows straddle lines, and take two. A cluster shares half of them."""
    for op, *extents in (("NT", 4096, 4096, 4096), ("TN", 6448, 2776, 5928)):
        assert sorted(chosen(op, *extents).config.cluster) == [1, 2]
    assert chosen("TN", 288, 5944, 5128).config.cluster == (2, 2)


def test_the_way_to_c_is_hidden_where_k_is_short() -> None:
    assert chosen("TN", 2048, 7168, 2112).config.ping_pong == 1
    assert chosen("TN", 4096, 4096, 4096).config.ping_pong == 0


def test_tiles_fill_the_last_round() -> None:
    """Test rounds: 154 tiles of 128x256 take two on 132 multiprocessors, 132 of 256x144 one."""
    plan = chosen("TN", 1704, 2792, 3488)
    assert plan.candidates()[0].prediction.rounds == 1


def test_thin_is_left_where_others_are_faster() -> None:
    packed = chosen("NT", 25, 1984, 5272)
    assert packed.kernel == "sm90_wgmma" and packed.algorithm.pack == "A"
    assert chosen("NT", 11696, 32, 1376).kernel == "sm90_wgmma"
    assert chosen("TT", 8192, 32, 8192, "complex64").kernel == "double_buffered"
    assert chosen("TT", 8192, 32, 8192, "float32").kernel == "sm80_pipeline"


def test_complex_doubles_go_to_the_tensor_cores() -> None:
    for op, extent in product(("NN", "CT", "NH"), (64, 512, 4096)):
        assert chosen(op, extent, extent, extent, "complex128").kernel == "sm80_pipeline"
        assert chosen(op, extent, extent, extent, "complex64").kernel == "double_buffered"


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("name", ["RTX 3090", "RTX 4090"])
def test_tensor_cores_are_no_faster_than_a_gpu_is_at_all(name: str, dtype: str) -> None:
    """Test GeForce GPUs, whose float64 tensor cores have the rate of their few FP64 units."""
    plan = cg.plan("TN", m=2048, n=2048, k=2048, dtype=dtype, gpu=name, backend="cpu",
                   kernel="sm80_pipeline")  # fmt: skip
    (peak,) = (each for each in gpu(name).peaks if each.key == "float64")
    prediction = plan.candidates()[0].prediction
    assert prediction is not None and prediction.seconds > 0.9 * plan.problem.flops / (
        peak.tflops * 1e12
    )


def prediction_of_groups(m: int, groups: int, ragged: str = "M") -> Any:
    A = np.empty((m, 512), "f2")
    B = np.empty((groups, 512, 512) if ragged == "M" else (m, 512), "f2")
    plan = cg.plan("NN" if ragged == "M" else "TN", A, B, offsets=np.zeros(groups, np.int32),
                   kernel="sm90_wgmma", tile=(128, 64, 64), warp_groups=2, cluster=(1, 1),
                    order="C",
                   arch="sm_90a", gpu="H200", backend="cpu")  # fmt: skip
    prediction = plan.candidates()[0].prediction
    assert prediction is not None
    return prediction


def test_groups_of_sizes_that_are_not_known_fill_half_a_tile_more() -> None:
    assert prediction_of_groups(8192, 16).ctas == 16 * 4.5 * 8
    assert prediction_of_groups(8192 + 16, 16).ctas == 577  # and not five tiles of each group
    assert prediction_of_groups(64, 16).ctas == 16 * 8  # some groups have a row
    along_k = [prediction_of_groups(m, 16, "K").terms["tensor cores"] for m in (8192, 16384)]
    assert along_k[1] / along_k[0] == pytest.approx(16.5 / 8.5)


def test_block_scales_cost_what_their_loads_and_products_do() -> None:
    sizes = {"m": 4096, "n": 4096, "k": 4096, "dtype": "float8_e4m3fn", "arch": "sm_90a"}
    sizes |= {"kernel": "sm90_wgmma", "tile": (128, 128, 128), "warp_groups": 2, "cluster": (1, 1)}

    def terms(**scales: Any) -> dict[str, float]:
        plan = cg.plan("TN", **sizes, **scales, gpu="H200", backend="cpu")
        prediction = plan.candidates()[0].prediction
        assert prediction is not None
        return {"all": prediction.seconds, **prediction.terms}

    plain, rows = terms(), terms(scale_a=(4096, 1))
    blocks, both = terms(scale_b=(32, 32)), terms(scale_a=(4096, 32), scale_b=(4096, 32))
    assert rows["instruction issue"] == plain["instruction issue"]
    # Without scales there is an addition, with both a multiplication and an FMA.
    assert both["instruction issue"] > 2 * plain["instruction issue"] > 0
    assert plain["L2"] < blocks["L2"] < both["L2"]
    assert plain["all"] < blocks["all"] < both["all"] < 1.75 * plain["all"]


KINDS = ("float16", "bfloat16", "float32", "float64", "int8", "float8_e4m3fn", "complex64",
         "complex128")  # fmt: skip


@pytest.mark.parametrize("name", [row.name for row in GPUS])
def test_no_predicted_time_is_below_the_bound(name: str) -> None:
    """Test every kernel and type of a GPU. Unmeasured GPUs must not exceed their data sheet."""
    row, rng, priced = gpu(name), random.Random(name), 0
    for kernel, dtype in product(registry.names(), KINDS):
        given = {"kernel": kernel, "dtype": dtype, "gpu": name, "backend": "cpu"}
        m, n, reads_c = 8 * rng.randint(1, 800), 8 * rng.randint(1, 800), rng.random() < 0.2
        sizes = {"m": m, "n": n, "k": 8 << rng.randint(0, 9)}
        small = {"m": 32, "n": 32, "k": 32, "l": 4096}
        try:
            plan = cg.plan(rng.choice(OPS), **(small if kernel == "batched" else sizes), **given)
        except GemmError:
            continue
        bound = roofline(row, plan.problem, reads_c)
        for prediction in (x.prediction for x in plan.candidates(reads_c=reads_c)[:8]):
            if prediction is None or bound is None:
                continue
            assert prediction.seconds >= bound.seconds == least_seconds(row, plan.problem, reads_c)
            products = sum(prediction.terms.get(x, 0.0) for x in ("tensor cores", "CUDA cores"))
            if row.cc != 90:
                assert products >= 0.999 * bound.compute_seconds, (kernel, dtype)
            priced += 1
    assert priced > 50


def test_products_take_what_the_data_sheet_says_on_chips_without_times() -> None:
    """Test that the H200's slowdown of 0.48 is not used for the RTX 5090."""
    plan = cg.plan("TN", m=8192, n=8192, k=8192, dtype="float16", gpu="RTX 5090", backend="cpu")
    prediction, (peak, *_) = plan.candidates()[0].prediction, gpu("RTX 5090").peaks
    assert prediction is not None and prediction.binding == "tensor cores"
    assert prediction.seconds > 1.02 * plan.problem.flops / (peak.tflops * 1e12)


@pytest.mark.parametrize("split", [1, 4])
@pytest.mark.parametrize("name", ["H200", "A100"])
def test_reads_of_c_are_predicted(name: str, split: int) -> None:
    sizes = {"m": 8192, "n": 8192, "k": 64, "dtype": "float16", "gpu": name, "split_k": split}
    sizes |= {"kernel": "sm80_pipeline"}
    plain, with_beta = (cg.analyze("TN", **sizes, beta=beta) for beta in (0, 1))
    assert (plain.config, plain.kernel) == (with_beta.config, with_beta.kernel)
    assert plain.predicted is not None and with_beta.predicted is not None
    more = with_beta.predicted.seconds - plain.predicted.seconds
    assert more > 0.5 * 2 * 8192**2 / (gpu(name).bandwidth_gbs * 1e9)
    assert with_beta.predicted.terms["DRAM"] + with_beta.predicted.terms.get("reduction", 0) > 0
    assert with_beta.candidates[0].prediction == with_beta.predicted
    assert "another beta than 0" in with_beta.unmeasured


def test_products_with_block_scales_are_predicted() -> None:
    """Test measured microseconds."""
    measured = {
        (64, 7168, 16384): 31.6, (128, 4096, 7168): 12.0, (512, 2112, 7168): 19.5,
        (512, 4096, 7168): 24.8, (4096, 2112, 7168): 98.4, (4096, 7168, 16384): 732.8,
    }  # fmt: skip
    two_sets = {"kernel": "sm90_wgmma", "tile": (128, 64, 128), "warp_groups": 2, "swap_ab": 0}
    two_sets |= {"ping_pong": 0, "cluster": (1, 1)}
    e4m3 = DTYPES["float8_e4m3fn"].numpy
    for (m, n, k), us in measured.items():
        x, w, y = np.empty((m, k), e4m3), np.empty((n, k), e4m3), np.empty((m, n), np.float16)
        rows, blocks = np.empty((k // 128, m), np.float32).T, np.empty((-(-n // 128), k // 128))
        for options in ({}, two_sets)[: 1 + ((m, n) == (512, 2112))]:
            p = cg.plan("NT", x, w, y, scale_a=rows, scale_b=blocks.astype(np.float32),
                        arch="sm_90a", gpu="H200", backend="cpu", **options)  # fmt: skip
            prediction = p.candidates()[0].prediction
            assert prediction is not None and 0.85 < prediction.seconds * 1e6 / us < 1.2, (m, n, k)
        assert p.report().unmeasured == ()
        assert "block scales" in p.report(gpu="H100 SXM").unmeasured


#: Microseconds; kernel, tile and other options; op, m, n, k, type, order and padding of A's and B's
#: leading dimension; epilogue, or "" with beta = 1. Threads load operands of the epilogue, which
#: takes most of the time.
EPILOGUES: tuple[tuple[float, str, tuple[int, int, int], dict[str, Any], str, str], ...] = (
    (284.6, "sm80_pipeline", (128, 128, 32), {}, "NT 6928 7760 16 bfloat16 C 0", "residual"),
    (200.3, "sm80_pipeline", (128, 128, 32), {}, "NT 6169 5964 29 bfloat16 C 0", "residual"),
    (120.4, "sm80_pipeline", (128, 128, 32), {}, "TN 2420 15718 9 bfloat16 F 8", "gelu"),
    (81.1, "sm80_pipeline", (128, 128, 32), {}, "TT 1883 5999 67 bfloat16 C 0", "gelu"),
    (199.5, "sm80_pipeline", (128, 128, 32), {}, "TN 5393 6562 13 bfloat16 C 1", ""),
    (253.2, "sm90_wgmma", (128, 128, 64), {"warp_groups": 2, "ping_pong": 1, "cluster": (1, 2),
                                           "swap_ab": 0, "pack": "AB"},
     "TN 3118 10242 543 bfloat16 F 0", ""),
    (168.8, "double_buffered", (64, 128, 16), {}, "NN 1936 14704 48 float32 C 0", "gelu"),
    (9.9, "double_buffered", (128, 32, 16), {}, "NT 960 1488 48 float32 F 0", "gelu"),
)  # fmt: skip


@pytest.mark.parametrize(("us", "kernel", "tile", "options", "words", "end"), EPILOGUES)
def test_loads_and_functions_of_epilogues_are_predicted(
    us: float, kernel: str, tile: Any, options: dict[str, Any], words: str, end: str
) -> None:
    """Test epilogues. Predictions without them are at most 0.72 of the times."""
    epilogue = {"residual": "bias+silu+residual", "gelu": "bias+gelu", "": None}[end]
    op, *extents, dtype, order, pad = words.split()
    m, n, k = map(int, extents)
    plan = cg.plan(
        op, m=m, n=n, k=k, dtype=dtype, order=order, gpu="H200", backend="cpu", arch="sm_90a",
        lda=(m if op[0] == "N" else k) + int(pad), ldb=(k if op[1] == "N" else n) + int(pad),
        epilogue=epilogue, kernel=kernel, tile=tile, **options,
    )  # fmt: skip
    best = min(x.prediction.seconds for x in plan.candidates(reads_c=not epilogue))
    assert 0.75 < best * 1e6 / us < 1.25


def test_a_kernel_that_loads_operands_by_tma_is_selected_for_a_short_k() -> None:
    sizes = {"m": 6928, "n": 7760, "k": 16, "dtype": "bfloat16", "order": "C"}
    plan = cg.plan("NT", **sizes, epilogue="bias+silu+residual", gpu="H200", backend="cpu")
    assert plan.kernel == "sm90_wgmma" and plan.config.tma_c
