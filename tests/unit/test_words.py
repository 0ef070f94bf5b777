"""Test arguments of the wrong type: the error is one sentence that names the argument."""

from typing import Any

import numpy as np
import pytest
import torch

import cute_gemm as cg

A, B, C = np.ones((4, 6), np.float32), np.ones((6, 5), np.float32), np.zeros((4, 5), np.float32)
SIZES: dict[str, Any] = {"m": 64, "n": 64, "k": 64, "dtype": "float16"}
ENDS = np.array([1, 4], np.int32)
GROUPED = {"B": np.ones((2, 6, 5), np.float32), "offsets": ENDS}
BAD: tuple[Any, ...] = (
    True, np.True_, "x", "", b"x", 1.5, -1, 2**70, float("nan"), 1j, [1], {}, {"a": 1}, set(),
    np.ones(3), np.array("x"), torch.ones(2), object(), len, int, ..., np.dtype("f4"),
)  # fmt: skip


def wrong(name: str, values: tuple[Any, ...] = BAD, but: tuple[int, ...] = ()) -> list[Any]:
    chosen = [x for place, x in enumerate(values) if place not in but]
    return [pytest.param(name, x, id=f"{name}-{type(x).__name__}") for x in chosen]


def one_sentence(call: Any, name: str) -> None:
    with pytest.raises(cg.GemmError) as caught:
        call()
    said = str(caught.value)
    assert name in said and "\n" not in said and len(said) < 600


@pytest.mark.parametrize(
    ("name", "value"),
    [*wrong("tune", but=(0,)), *wrong("stream", but=(7,)),
     *wrong("arch"), *wrong("compute"), *wrong("kernel"), *wrong("backend"), *wrong("order"),
     *wrong("split_k", but=(7,)), *wrong("stages"), *wrong("batch_invariant", but=(0, 1))],
)  # fmt: skip
def test_words_of_calls(name: str, value: Any) -> None:
    one_sentence(lambda: cg.gemm("NN", A, B, C, **{"backend": "cpu", name: value}), name)
    given = {"backend": "cpu", name: value} | GROUPED
    if name != "tune":
        one_sentence(lambda: cg.grouped_gemm("NN", A, C=C, **given), name)
    assert not C.any()


@pytest.mark.parametrize(
    ("name", "value"),
    [*wrong("m"), *wrong("n"), *wrong("k"), *wrong("l"), *wrong("lda"), *wrong("ldb"),
     *wrong("ldc"), *wrong("batch_a", but=()), *wrong("ragged"), *wrong("base_offset", but=(7,)),
     *wrong("storage"), *wrong("gpu"), *wrong("beta", but=(0, 1, 5, 6, 7, 8))],
)  # fmt: skip
def test_sizes_and_words_of_reports(name: str, value: Any) -> None:
    given = SIZES | {"backend": "cpu", "l": 2, name: value}
    one_sentence(lambda: cg.analyze("NN", **given), name)


def test_a_storage_beside_arrays() -> None:
    one_sentence(lambda: cg.plan("NN", A, B, storage="x", backend="cpu"), "storage")


def test_what_is_no_plan() -> None:
    plan = cg.plan("NN", A, B, backend="cpu", kernel="naive")
    for value in (plan, [1], "x", np.ones(3), [np.ones(3)], None):
        one_sentence(lambda value=value: cg.compile(value), "plans")
    one_sentence(lambda: cg.compile([plan], 3), "tell")
    grouped = cg.plan("NN", A, backend="cpu", **GROUPED)
    for ends in (3, "x", [1], [1.0, 2.0], [1, 2, 3], np.array(2)):
        one_sentence(lambda ends=ends: grouped.report(offsets=ends), "offsets")
    for value in ([1], {}, np.ones(3), "x", object()):
        one_sentence(lambda value=value: cg.epilogue(value), "epilogue")
        one_sentence(lambda value=value: plan.candidates(value), "gpu")


@pytest.mark.parametrize(("m", "n", "k"), [(0, 131, 129), (257, 0, 129), (257, 131, 0)])
@pytest.mark.parametrize("pack", ["AB", "auto"])
def test_empty_products_may_be_packed(m: int, n: int, k: int, pack: str) -> None:
    """Test empty products, which are not packed. The kernel is selected anyway."""
    given = {"dtype": "float16", "kernel": "sm90_wgmma", "arch": "sm_90a", "pack": pack}
    assert cg.plan("NN", m=m, n=n, k=k, backend="cpu", **given).kernel == "sm90_wgmma"


def test_the_advice_for_a_strided_c_keeps_beta() -> None:
    strided = np.full((4, 10), 2, np.float32)[:, ::2][::1]
    said = r"C\[...\] = gemm\(op, A, B, np.asfortranarray\(C\), ...\)"
    with pytest.raises(cg.GemmError, match=said):
        cg.gemm("NN", A, B, strided, beta=3, backend="cpu")
    strided[...] = cg.gemm("NN", A, B, np.asfortranarray(strided), beta=3, backend="cpu")
    assert (strided == 6 + 6).all()


def test_a_report_of_two_types_reads_c() -> None:
    kinds = {"m": 64, "n": 64, "k": 64, "dtype": "float8_e4m3fn x float8_e5m2", "arch": "sm_90a"}
    report = cg.analyze("TN", **kinds, beta=0.5)
    assert any(row.operand == "C" and row.direction == "load" for row in report.rows)
