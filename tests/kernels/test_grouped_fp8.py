"""Test ``grouped_gemm`` of 8-bit floats with every kind of scale, in NumPy and in kernels' PTX."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from fp8_cases import E4M3
from grouped_cases import (
    BLOCK_PAIRS,
    BOXED_PAIRS,
    RAGGED,
    SHARED,
    GroupedCase,
    arrays,
    check,
    planned,
    scaled_cases,
)
from test_grouped import by, few_multiprocessors, plan_of  # noqa: F401
from unity_build import unity_build

import cute_gemm as cg
from cute_gemm.arrays import read
from cute_gemm.call import Call
from cute_gemm.errors import DTypeError, GemmError, OptionError, ShapeError, UnsupportedError
from cute_gemm.problem.epilogue.fuse import read_offsets

_ROWS = [(RAGGED[i % 7], kind) for i, kind in enumerate(SHARED, 2)]
_BOTH = [(SHARED[(i + 4) % 9], kind) for i, kind in enumerate(SHARED)]
#: Cases for the interpreter.
EXECUTED = (
    *scaled_cases("sm90_wgmma", "M", [*BLOCK_PAIRS, *BOXED_PAIRS]),
    *scaled_cases("sm90_wgmma", "N", [*BLOCK_PAIRS[::2], *BOXED_PAIRS]),
    *scaled_cases("sm90_wgmma", "M", _ROWS[::2]),
    *scaled_cases("sm90_wgmma", "N", _ROWS[1::2]),
    *scaled_cases("double_buffered", "M", [*_ROWS[1::5], *BLOCK_PAIRS[::3]]),
    *scaled_cases("double_buffered", "N", [*_ROWS[::5], *BLOCK_PAIRS[1::5]]),
    *scaled_cases("double_buffered", "K", _BOTH[::3]),
    *scaled_cases("sm80_pipeline", "M", [*_ROWS[2:3], *BLOCK_PAIRS[2::3]]),
    *scaled_cases("sm80_pipeline", "N", BLOCK_PAIRS[::5]),
    *scaled_cases("sm80_pipeline", "K", _BOTH[1:2]),
    *scaled_cases("sm90_wgmma", "K", _BOTH[::2]),
)  # fmt: skip


@pytest.mark.parametrize("case", EXECUTED, ids=str)
@unity_build(plan_of)
def test_interpreted(case: GroupedCase) -> None:
    check(case, by("interpreter"))


@pytest.mark.parametrize("ragged", "MNK")
def test_every_pair_of_kinds_on_the_cpu(ragged: str) -> None:
    pairs = [*product(RAGGED, SHARED), *BLOCK_PAIRS, *BOXED_PAIRS]
    if ragged == "K":
        pairs = [*product(SHARED, SHARED)][::2]
    kernel = "sm90_wgmma" if ragged != "K" else "double_buffered"  # the CPU computes
    for case in scaled_cases(kernel, ragged, pairs):
        check(case, by("cpu"))


@pytest.mark.parametrize(
    ("kernel", "dtype", "compute", "options", "kinds"),
    [
        ("sm90_wgmma", "bfloat16", "", "one", ("row", "row of group")),
        ("sm90_wgmma", "float32", "tf32", "swapped", ("group", "flat")),
        ("sm80_pipeline", "float64", "", "", ("flat", "row of group 3")),
        ("tensor_core", "float16", "", "tensor_core", ("number", "group")),
    ],
)
def test_scales_of_other_types(
    kernel: str, dtype: str, compute: str, options: str, kinds: tuple[str, str]
) -> None:
    case = GroupedCase(
        "M", "NT", "C", (3, 0, 40, 1), (24, 40), 5, dtype, 2.0, 0.5, kernel=kernel,
        options=options, compute=compute, scales=kinds,
    )  # fmt: skip
    check(case, by("interpreter"))


def test_an_epilogue_behind_scales() -> None:
    case = GroupedCase(
        "M", "NT", "C", (3, 64, 0, 30), (72, 272), 9, E4M3, epilogue="all", pad=16,
        scales=("1x128", "row of group"),
    )  # fmt: skip
    check(case, by("interpreter"))


# -- interpretation of scales ----------------------------------------------------------------------


def planned_with(ragged: str = "M", m: int = 256, n: int = 384, k: int = 512, groups: int = 4,
                 dtype: str = E4M3, **words: Any) -> cg.Plan:  # fmt: skip
    """Return a plan of ones, op ``NT``. Scales may be shapes."""
    kind = cg.dtypes.DTYPES[dtype].numpy
    lead = (groups,)
    A = np.ones((*lead * (ragged == "N"), m, k), kind)
    B = np.ones((*lead * (ragged == "M"), n, k), kind)
    words = {
        name: np.ones(x, np.float32) if isinstance(x, tuple) else x for name, x in words.items()
    }
    words = {"arch": "sm_90a", "backend": "cpu"} | words
    return cg.plan("NT", A, B, offsets=np.full(groups, 9, np.int32), **words)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"scale_a": (256,)}, "scale_a is read as a number for each row"),
        ({"scale_a": (4, 1, 1)}, "scale_a is read as one number for each group"),
        ({"scale_a": (256, 4), "scale_b": (4, 3, 4)},
         "scale_a is read as 1x128, a number for 128 of k of each row and scale_b is read as "
         "128x128, a number for 128 of k of 128 rows of each group"),
        ({"scale_b": (4, 384)}, "scale_b is read as a number for each row of each group"),
        ({"scale_b": (1, 384, 1)}, "scale_b is read as a number for each row"),
        ({"scale_b": (1, 384, 4)}, "scale_b is read as 1x128, a number for 128 of k of each row"),
        ({"scale_b": 2.0}, "scale_b is read as one number"),
        ({"ragged": "K", "scale_a": (4, 256)}, "a number for each row of each group"),
        # Ambiguous shapes: rows take precedence over groups, and groups over blocks.
        ({"m": 4, "scale_a": (4,)}, "scale_a is read as a number for each row"),
        ({"m": 4, "scale_a": (4, 1, 1)}, "scale_a is read as one number for each group"),
        ({"n": 4, "scale_b": (4, 4)}, "scale_b is read as a number for each row of each group"),
        ({"n": 4, "scale_b": (1, 4, 4)}, "scale_b is read as 1x128, a number for 128 of k of each"),
    ],
)  # fmt: skip
def test_a_plan_says_what_was_read(words: dict[str, Any], said: str) -> None:
    first, _, _ = planned_with(**words).why.partition(";")
    assert said in first and first.count("each group") == said.count("each group")


@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        ({"scale_a": (2, 4)}, ShapeError,
         r"scale_a has shape \(2, 4\); expected .* \(256, 4\) for 128 of k of each row, because "
         "blocks of 128x128 would straddle groups, since M is ragged"),
        ({"ragged": "N", "scale_b": (3, 4)}, ShapeError, "straddle groups, since N is ragged"),
        ({"ragged": "K", "scale_a": (256, 4)}, ShapeError,
         r"\(G, M\) = \(4, 256\) for rows of each group, because blocks of 1x128 would straddle "
         "groups, since K is ragged"),
        ({"scale_b": (5, 384)}, ShapeError,
         r"\(4, 384, 4\) for those of each group, \(4, 3, 4\) or \(3, 4\) for 128 x 128, because "
         "B has 384 rows, k = 512 and M is ragged"),
        ({"scale_a": (4, 256, 1)}, ShapeError, r"\(M,\) = \(256,\) for rows"),
        ({"scale_a": (256, 4), "dtype": "float16"}, DTypeError, "expected A and B of 8-bit floats"),
        ({"scale_a": (256, 4), "compute": "fast_accum"}, OptionError, "leave one of the two out"),
        ({"scale_a": (256, 4), "kernel": "tensor_core"}, UnsupportedError, "take kernel='auto'"),
        ({"scale_a": np.ones(256)}, DTypeError, "scale_a has dtype float64; expected float32"),
        ({"dtype": "float16", "compute": "fast_accum"}, OptionError, "does not go with dtype"),
    ],
)  # fmt: skip
def test_refusals(words: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        planned_with(**words)


def test_a_plan_refuses_scales_of_another_recipe() -> None:
    case = GroupedCase("M", "NT", "C", (3, 5), (8, 256), dtype=E4M3, pad=16,
                       scales=("1x128", "1x128 of group"))  # fmt: skip
    given = arrays(case)
    plan = planned(case, given, backend="cpu")
    words = {"offsets": given.offsets, **given.operands}
    plan(given.A, given.B, given.C, **words)
    for other in (given.operands["scale_b"][0], np.ones((8, 1), np.float32)):
        with pytest.raises(ShapeError, match="the plan was made for"):
            plan(given.A, given.B, given.C, **(words | {"scale_b": other}))


@pytest.mark.parametrize(
    "scales",
    [("1x128", "128x128 of group"), ("row", "1x128 of group"), ("1x128", "row"), ("row", "tensor")],
)
def test_operands_come_as_launches_take_them(scales: tuple[str, str]) -> None:
    case = GroupedCase("M", "NT", "C", (3, 5), (8, 256), dtype=E4M3, pad=16, scales=scales)
    given = arrays(case)
    call = Call.like(planned(case, given, backend="cpu").problem)
    a, b, c = (read(x, name) for x, name in zip((given.A, given.B, given.C), "ABC", strict=True))
    ends = read_offsets(given.offsets)
    described = call.describe(a, b, c, ends)
    problem, operands = call.fuse(described, given.operands, None, c, ends)
    assert list(operands.arrays) == [x.name for x in problem.matrices[3:]]


def test_large_groups_are_multiplied_by_wgmma() -> None:
    for more in ({"m": 8192}, {"ragged": "K", "k": 8192}):
        assert planned_with(**more).kernel == "sm90_wgmma"


@pytest.mark.parametrize(
    "scales",
    [
        ("1x128", "128x128 of group"), ("1x128 boxed", "128x128 of group"),
        ("row", "1x128 boxed of group"), ("row", "128x128 of group"),
    ],
)  # fmt: skip
def test_report_and_trace(scales: tuple[str, str]) -> None:
    case = GroupedCase("M", "NT", "C", (3, 64, 0, 61), (72, 256), 5, E4M3, pad=16,
                       scales=scales)  # fmt: skip
    given = arrays(case)
    plan = planned(case, given, backend="cpu")
    report = plan.report(gpu="H200", offsets=given.offsets)
    assert report.groups.startswith("4 groups of 0 to 64 along M: 6 tiles")
    words = {"offsets": given.offsets, **given.operands}
    trace = plan.trace(given.A, given.B, given.C, **words)
    assert trace.verdict.ok and trace.agrees, [x for x in trace.figures if x.difference]


@pytest.mark.parametrize(
    ("ragged", "scales"), [("M", ("1x128", "1x128 of group")), ("N", ("128x128", "1x128"))]
)
def test_scales_that_are_packed(ragged: str, scales: tuple[str, str]) -> None:
    case = GroupedCase(ragged, "NT", "C", (3, 64, 0, 61), (72, 256), 5, E4M3, pad=16,
                       scales=scales, options="one")  # fmt: skip
    given = arrays(case)
    plan = planned(case, given, backend="cpu", pack="scales")
    assert {x.kernel for x in plan.report(offsets=given.offsets).auxiliary} == {"pack"}
    trace = plan.trace(given.A, given.B, given.C, offsets=given.offsets, **given.operands)
    assert trace.verdict.ok and trace.agrees, [x for x in trace.figures if x.difference]


def test_torch_tensors_on_the_host() -> None:
    torch = pytest.importorskip("torch")
    case = GroupedCase("M", "NT", "C", (3, 0, 9), (16, 32), dtype=E4M3, pad=16,
                       scales=("flat", "row of group"))  # fmt: skip
    given = arrays(case)
    A, B = (torch.from_numpy(x.astype(np.float32)).to(torch.float8_e4m3fn) for x in given[:2])
    operands = {name: torch.from_numpy(x.copy()) for name, x in given.operands.items()}
    words: dict[str, Any] = {"order": "C", "backend": "cpu", "out_dtype": "float32"}
    C = cg.grouped_gemm("NT", A, B, torch.from_numpy(given.offsets), **operands, **words)
    expected = cg.grouped_gemm("NT", *given[:2], given.offsets, **given.operands, **words)
    assert np.array_equal(C.numpy(), expected)


@pytest.mark.parametrize("backend", ["cpu", "interpreter"])
@pytest.mark.parametrize("groups", [0, 2])
def test_no_rows_at_all(backend: Any, groups: int) -> None:
    """Test block scales of a layer without tokens. ``groups=0``: a dense product."""
    lead = (groups,) * bool(groups)
    A, B = (np.ones(shape, cg.dtypes.DTYPES[E4M3].numpy) for shape in ((0, 256), (*lead, 16, 256)))
    words: dict[str, Any] = {"backend": backend, "arch": "sm_90a"}
    words |= {"scale_a": np.ones((0, 2), "f4"), "scale_b": np.ones((*lead, 1, 2), "f4")}
    if groups:
        C = cg.grouped_gemm("NT", A, B, np.zeros(groups, np.int32), **words)
    else:
        C = cg.gemm("NT", A, B, **words)
    assert C.shape == (0, 16)


def test_fast_accum_of_a_call() -> None:
    case = GroupedCase("M", "NT", "C", (3, 5), (8, 256), dtype=E4M3)
    given = arrays(case)
    with pytest.raises(OptionError, match="blocks, which multiply accumulators of 128 of k"):
        cg.grouped_gemm("NT", *given[:2], given.offsets, backend="cpu", compute="fast_accum",
                        scale_a=np.ones((8, 2), np.float32))  # fmt: skip


def test_nothing_is_written_where_a_scale_does_not_fit() -> None:
    case = GroupedCase("M", "NT", "C", (3, 5), (8, 256), dtype=E4M3)
    given = arrays(case)
    given.C[...] = 7
    with pytest.raises(GemmError, match="scale_b has shape"):
        cg.grouped_gemm("NT", given.A, given.B, given.offsets, given.C, backend="cpu",
                        scale_b=np.ones((3, 3), np.float32))  # fmt: skip
    assert (given.C == 7).all()
