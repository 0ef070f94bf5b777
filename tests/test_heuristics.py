"""What nvidia-matmul-heuristics recommends, as candidates: of a stand-in, and of the package."""

from __future__ import annotations

import sys
from typing import Any

import fake_heuristics
import pytest
from cases import OPS

import cute_gemm as cg
from cute_gemm.errors import OptionError
from cute_gemm.gpus.table import GPUS, of_device
from cute_gemm.gpus.table import gpu as gpu_called
from cute_gemm.kernels.candidate import Candidate
from cute_gemm.plan.heuristics import MOST, advised, recommended
from cute_gemm.problem.problem import from_sizes

SIZES: dict[str, Any] = {"m": 2048, "n": 1024, "k": 512, "dtype": "bfloat16"}
H200 = gpu_called("H200")
EACH = [(op, order) for op in OPS for order in ("F", "C")]


def candidates(op: str, gpu: str = "H200", **given: Any) -> tuple[Candidate, ...]:
    arch = gpu_called(gpu).arch
    return cg.plan(op, **{**SIZES, **given}, gpu=gpu, arch=arch, backend="interpreter").candidates()


def advice(op: str, **given: Any) -> list[Candidate]:
    """The candidates on an H200 that are nearest to what is recommended."""
    found = candidates(op, **given)
    given = {name: x for name, x in given.items() if name != "kernel"}
    return [found[i] for i in advised(from_sizes(op, **{**SIZES, **given}), H200, found)]


def seen(one: Candidate) -> tuple[int, ...]:
    return (*one.config.tile[:2], *one.config.cluster, one.route.split_k)


# -- what is asked ----------------------------------------------------------------------------


@pytest.mark.parametrize(("op", "order"), EACH)
def test_the_question_is_of_a_column_major_c(monkeypatch, op: str, order: str) -> None:
    """Of a row-major C it is C^T = op(B)^T op(A)^T, in which A^T of an N is a T."""
    asked = fake_heuristics.install(monkeypatch, (128, 128, 1, 1, 1))
    recommended(from_sizes(op, **SIZES, order=order), H200, "CUTLASS3")
    transposed = {"N": "T", "T": "N"}
    layout = op if order == "F" else transposed[op[1]] + transposed[op[0]]
    m, n = (2048, 1024) if order == "F" else (1024, 2048)
    assert asked == [
        {"target": "CUTLASS3", "gpu": "H200_SXM", "flags": "PERF_MODEL_BASED_AUTO_TUNING",
         "m": m, "n": n, "k": 512, "l": 1, "layout": f"{layout}_COL_MAJOR", "precision": "TST"}
    ]  # fmt: skip


def test_row_major_operands_are_what_they_are_to_blas(monkeypatch) -> None:
    asked = fake_heuristics.install(monkeypatch)
    for op, storage in (("NN", "F"), ("TT", "C"), ("NT", "F"), ("NT", "C"), ("TN", "C")):
        recommended(from_sizes(op, **SIZES, storage=storage), H200, "CUTLASS3")
    assert [one["layout"][:2] for one in asked] == ["NN", "NN", "NT", "TN", "NT"]


@pytest.mark.parametrize(
    ("given", "precision"),
    [
        ({"dtype": "float16"}, "HSH"),
        ({"dtype": "float16", "out_dtype": "float32"}, "HSS"),
        ({"dtype": "bfloat16", "out_dtype": "float32"}, "TSS"),
        ({"dtype": "float32"}, "SSS"),
        ({"dtype": "float32", "compute": "tf32"}, "SFS"),
        ({"dtype": "float64"}, "DDD"),
        ({"dtype": "complex64"}, "CCC"),
        ({"dtype": "complex128"}, "ZZZ"),
        ({"dtype": "int8"}, "BII"),
    ],
)
def test_types_by_the_packages_letters(monkeypatch, given: dict[str, str], precision: str) -> None:
    asked = fake_heuristics.install(monkeypatch)
    recommended(from_sizes("TN", **{**SIZES, **given}, l=3), H200, "CUTLASS")
    assert [(one["precision"], one["l"]) for one in asked] == [(precision, 3)]


@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        ("H200", "H200_SXM"), ("H100 NVL", "H100_NVL"), ("A100", "A100_SXM_80GB"),
        ("A30", "A30_PCIE"), ("RTX 6000 Ada", "RTX_6000_ADA"),
        ("NVIDIA H20", "H20_SXM"), ("NVIDIA GB200", "GB200_NVL"),  # as the driver says
    ],
)  # fmt: skip
def test_gpus_by_the_packages_names(monkeypatch, name: str, theirs: str) -> None:
    asked = fake_heuristics.install(monkeypatch)
    gpu = of_device(name, H200.arch, 78) if name.startswith("NVIDIA") else gpu_called(name)
    recommended(from_sizes("TN", **SIZES), gpu, "CUTLASS3")
    assert [one["gpu"] for one in asked] == [theirs]


@pytest.mark.parametrize("name", ["GH200", "H200 NVL", "A100 SXM 40GB", "NVIDIA H200 MIG 1g.18gb"])
def test_a_gpu_that_is_not_known_is_said_to_be(monkeypatch, name: str) -> None:
    asked = fake_heuristics.install(monkeypatch)
    gpu = of_device(name, H200.arch, 16) if "MIG" in name else gpu_called(name)
    with pytest.raises(OptionError, match=f"which does not know the GPU {name}: leave it out here"):
        recommended(from_sizes("TN", **SIZES), gpu, "CUTLASS3")
    assert not asked


def test_the_fix_where_the_package_is_missing(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "nvMatmulHeuristics", None)
    with pytest.raises(OptionError) as caught:
        recommended(from_sizes("TN", **SIZES), H200, "CUTLASS3")
    assert str(caught.value) == (
        "heuristics=True needs nvidia-matmul-heuristics, which is not installed: "
        "pip install 'cute-gemm[heuristics]'"
    )


# -- recommendations as candidates ------------------------------------------------------------


@pytest.mark.parametrize(("op", "order"), EACH)
def test_a_tile_and_a_cluster_are_along_the_problems_m_and_n(
    monkeypatch, op: str, order: str
) -> None:
    fake_heuristics.install(monkeypatch, (256, 128, 1, 2, 1), (64, 192, 4, 1, 1))
    wishes = [(256, 128, 1, 2, 1), (64, 192, 4, 1, 1)]
    if order == "C":
        wishes = [(128, 256, 2, 1, 1), (192, 64, 1, 4, 1)]
    found = advice(op, order=order)
    assert [seen(one) for one in found] == wishes
    assert {one.kernel.name for one in found} == {"sm90_wgmma"}


@pytest.mark.parametrize("slices", [1, 2, 4, 5])
def test_slices_of_k_are_part_of_a_recommendation(monkeypatch, slices: int) -> None:
    """Each config is offered with its best number of slices and in one piece."""
    given = {"m": 64, "n": 8192, "k": 8192}
    tiles = {(one.config.tile[:2], one.config.cluster): None for one in candidates("TN", **given)
             if one.kernel.name == "sm90_wgmma" and one.route.split_k == slices}  # fmt: skip
    (tile, cluster), *_ = tiles
    fake_heuristics.install(monkeypatch, (*tile, *cluster, slices))
    (found,) = advice("TN", **given)
    assert seen(found) == (*tile, *cluster, slices)


@pytest.mark.parametrize(("op", "order"), EACH)
@pytest.mark.parametrize("k", [512, 16384])
def test_without_an_equal_one_the_nearest_is_taken_and_of_those_the_cheapest(
    monkeypatch, op: str, order: str, k: int
) -> None:
    wishes = [(128, 192, 4, 2, 1), (64, 256, 2, 1, 1), (512, 16, 1, 1, 7), (128, 80, 1, 2, 3)]
    fake_heuristics.install(monkeypatch, *wishes)
    given = {"m": 512, "n": 256, "k": k, "order": order}
    found = iter(advice(op, **given))
    offered = [one for one in candidates(op, **given) if hasattr(one.config, "cluster")]
    expected = []
    for m, n, below, beside, slices in wishes:
        wish = (m, n, below, beside, slices) if order == "F" else (n, m, beside, below, slices)

        def factor(one: Candidate, wish: tuple[int, ...] = wish) -> float:
            product = 1.0
            for x, y in zip(wish, seen(one), strict=True):
                product *= max(x, y) / min(x, y)
            return product

        least = min(map(factor, offered))
        first = next(one for one in offered if factor(one) < least * (1 + 1e-9))
        expected += [first] if first not in expected else []
    assert [(one.config, one.route) for one in found] == [(e.config, e.route) for e in expected]


def test_each_candidate_comes_once_and_the_first_eight_recommendations_count(monkeypatch) -> None:
    columns = (32, 64, 96, 128, 144, 160, 176, 192, 224, 240, 256)
    rows = [(128, bn, 1, 1, 1) for bn in columns]
    asked = fake_heuristics.install(monkeypatch, *(row for row in rows for _ in range(3)))
    assert [seen(one) for one in advice("TN")] == rows[:MOST] and MOST == 8
    assert len(asked) == 1
    fake_heuristics.install(monkeypatch, (128, 128, 1, 1, 1), (128, 130, 1, 1, 1))
    assert len(advice("TN")) == 1


def test_kernels_without_clusters_are_advised_as_cutlass_2(monkeypatch) -> None:
    asked = fake_heuristics.install(monkeypatch, (256, 128, 1, 1, 1), (64, 64, 1, 1, 1))
    problem = from_sizes("NT", **SIZES)
    for found in (candidates("NT", "A100"), candidates("NT", kernel="sm80_pipeline")):
        first, second = advised(problem, gpu_called("A100"), found)
        assert found[first].config.tile[:2] == (256, 128)
        assert found[second].config.tile[:2] == (64, 64)
    assert [one["target"] for one in asked] == ["CUTLASS", "CUTLASS"]


# -- the package itself -----------------------------------------------------------------------

REASON = "nvidia-matmul-heuristics is an extra of one option, which CI does without"


@pytest.mark.parametrize(("op", "order"), EACH)
def test_the_package_recommends_what_is_legal_here(op: str, order: str) -> None:
    pytest.importorskip("nvMatmulHeuristics", reason=REASON)
    problem = from_sizes(op, m=4096, n=4096, k=4096, dtype="bfloat16", order=order)
    wishes = recommended(problem, H200, "CUTLASS3")
    assert 1 < len(wishes) <= MOST and len(set(wishes)) == len(wishes)
    assert {(256, 128), (128, 256)} & {one.tile for one in wishes}
    found = advice(op, m=4096, n=4096, k=4096, order=order)
    exact = [(*one.tile, *one.cluster, one.split_k) for one in wishes]
    assert set(map(seen, found)) & set(exact)


def test_the_package_cuts_a_long_k_and_swaps_a_thin_c() -> None:
    pytest.importorskip("nvMatmulHeuristics", reason=REASON)
    long = from_sizes("TN", m=1280, n=1280, k=65536, dtype="bfloat16")
    assert recommended(long, H200, "CUTLASS3")[0].split_k > 1
    thin = {"n": 8192, "k": 8192, "dtype": "bfloat16"}
    first = recommended(from_sizes("TN", m=64, **thin), H200, "CUTLASS3")[0]
    again = recommended(
        from_sizes("TN", m=8192, n=64, k=8192, dtype="bfloat16", order="C"), H200, "CUTLASS3"
    )[0]
    assert again == (first.tile[::-1], first.cluster[::-1], first.split_k)


@pytest.mark.parametrize(
    "given",
    [{"dtype": "float16", "out_dtype": "float32"}, {"dtype": "float32"}, {"dtype": "float64"},
     {"dtype": "float32", "compute": "tf32"}, {"dtype": "complex64"}, {"dtype": "complex128"},
     {"dtype": "int8"}],
    ids=str,
)  # fmt: skip
def test_the_package_knows_every_type(given: dict[str, str]) -> None:
    """To a type that it does not know it answers with tiles of 0."""
    pytest.importorskip("nvMatmulHeuristics", reason=REASON)
    for target in ("CUTLASS", "CUTLASS3"):
        wishes = recommended(from_sizes("TN", **{**SIZES, **given}), H200, target)
        assert wishes and all(min(*one.tile, *one.cluster, one.split_k) > 0 for one in wishes)


def test_the_package_knows_most_gpus() -> None:
    pytest.importorskip("nvMatmulHeuristics", reason=REASON)
    unknown = []
    for gpu in GPUS:
        try:
            assert recommended(from_sizes("TN", **SIZES), gpu, "CUTLASS")
        except OptionError:
            unknown.append(gpu.name)
    assert {*unknown} <= {
        "A100 SXM 40GB", "A100 PCIe 40GB", "A800 SXM 80GB", "A800 PCIe 80GB", "RTX 3080",
        "Jetson AGX Orin 64GB", "RTX 4080", "H200 NVL", "GH200",
    }  # fmt: skip
