"""Test ``grouped_gemm``: groups of any size along M, N and K, in NumPy and in all kernels' PTX."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from grouped_cases import (
    CANARY,
    OPS,
    OTHERS,
    ZERO_TAILS,
    Arrays,
    GroupedCase,
    arrays,
    cases,
    check,
    listed_cases,
    lists,
    other_cases,
    planned,
    zero_tails,
)
from unity_build import unity_build

import cute_gemm as cg
from cute_gemm.errors import OffsetsError, OptionError, UnsupportedError
from cute_gemm.kernels.auxiliary import CHECK_ENDS
from cute_gemm.kernels.auxiliary.ends import Ends
from cute_gemm.kernels.sm90.wgmma import Sm90Wgmma
from cute_gemm.plan import checked
from cute_gemm.problem.parts.packing import packed
from cute_gemm.ptx.launch import Buffer, run
from cute_gemm.toolchain.nvrtc import ptx

#: Multiprocessors of the launches, so few that CTAs compute several tiles of several groups.
SMS = 8


@pytest.fixture(autouse=True)
def few_multiprocessors(monkeypatch: pytest.MonkeyPatch) -> None:
    def launch(self: Sm90Wgmma, config: Any, problem: Any) -> Any:
        return self.launch_on(config, problem, SMS)

    monkeypatch.setattr(Sm90Wgmma, "launch", launch)


def plan_of(case: GroupedCase) -> cg.Plan:
    return planned(case, arrays(case), backend="cpu")


def by(backend: str) -> Any:
    def call(case: GroupedCase, given: Arrays) -> None:
        plan = planned(case, given, backend=backend)
        result = plan(
            given.A, given.B, given.C, offsets=given.offsets, alpha=case.alpha, beta=case.beta,
            **given.operands,
        )  # fmt: skip
        assert result is given.C

    return call


@pytest.mark.parametrize("case", cases(36), ids=str)
def test_on_the_cpu(case: GroupedCase) -> None:
    check(case, by("cpu"))


#: Empty groups between others, with ping-pong; groups that end within columns of C that TMA would
#: store.
EDGES = (
    GroupedCase("K", "TN", "C", (0, 70, 130, 0, 0, 3, 65, 0), (128, 256), options="turns"),
    GroupedCase("K", "NT", "F", (0, 3, 0, 0, 65, 130, 0, 2), (128, 256), beta=0.5, options="turns"),
    GroupedCase("M", "NT", "F", (3, 64, 65, 28), (72, 64)),
    GroupedCase("N", "NT", "C", (3, 64, 65, 28), (72, 64)),
    GroupedCase("M", "NT", "C", (3, 64, 65, 28), (72, 64), epilogue="all", options="swapped"),
)


@pytest.mark.parametrize("case", [*EDGES, *cases(30)], ids=str)
@unity_build(plan_of)
def test_interpreted(case: GroupedCase) -> None:
    check(case, by("interpreter"))


@pytest.mark.parametrize("case", other_cases(3 * len(OTHERS)), ids=str)
@unity_build(plan_of)
def test_interpreted_by_others(case: GroupedCase) -> None:
    check(case, by("interpreter"))


@pytest.mark.parametrize("case", listed_cases(), ids=str)
def test_lists_of_groups(case: GroupedCase) -> None:
    """Test one kernel with many lists of groups, 500 over all types."""
    plan = None
    for listed in lists(case, 14):
        if plan is None:
            plan = planned(listed, arrays(listed), backend="interpreter")

        def call(case: GroupedCase, given: Arrays, plan: Any = plan) -> None:
            plan(
                given.A, given.B, given.C, offsets=given.offsets, alpha=case.alpha, beta=case.beta,
                **given.operands,
            )  # fmt: skip

        check(listed, call, plan.problem)


@pytest.mark.parametrize("case", [*ZERO_TAILS, *zero_tails(cases(24, 3))], ids=str)
@unity_build(plan_of)
def test_zeros_behind_the_last_group(case: GroupedCase) -> None:
    check(case, by("cpu"))
    check(case, by("interpreter"))


@pytest.mark.parametrize("case", zero_tails(other_cases(2 * len(OTHERS), 3)), ids=str)
@unity_build(plan_of)
def test_zeros_behind_the_last_group_by_others(case: GroupedCase) -> None:
    check(case, by("interpreter"))


@pytest.mark.parametrize("kernel", ["sm90_wgmma", "sm80_pipeline"])
def test_words_of_zeros_behind_the_last_group(kernel: str) -> None:
    case = GroupedCase("M", "NN", "C", (3, 64, 0, 61, 17), (72, 40), 70, kernel=kernel)
    case = case._replace(options="one" if kernel == "sm90_wgmma" else "")
    without = planned(case, arrays(case), backend="cpu")
    plan = planned(case._replace(zero_tail=True), arrays(case), backend="cpu")
    assert plan.symbol == without.symbol.replace("groups_m", "groups_m_zero_tail")
    assert "zeros after the last group by the same launch" in plan.why
    report = plan.report(offsets=[3, 67, 67, 128, 145])
    tile = plan.config.tile
    zeros = -(-70 // tile[0]) * -(-72 // tile[1])
    assert f"; {zeros} tiles of zeros after the last group; " in report.groups
    (row,) = (row for row in report.rows if row.part == "after the last group")
    assert row.launch.bytes == 70 * 72 * plan.problem.C.element.bytes
    assert "zeros after" not in without.report(offsets=[3, 67, 67, 128, 145]).groups


#: Ends of groups within 9 rows, and the index of the first invalid one.
WRONG_ENDS = (
    ([2, 5, 9], None), ([0, 0, 0], None), ([9, 9, 9], None), ([2, 1, 9], 1), ([-1, 2, 3], 0),
    ([2, 5, 10], 2), ([1] * 40 + [9], None), ([1] * 40 + [0], 40),
)  # fmt: skip


@pytest.mark.parametrize(("ends", "wrong"), WRONG_ENDS)
def test_the_launch_that_checks_ends(ends: list[int], wrong: int | None) -> None:
    asked, config = Ends(len(ends), 9, 7), CHECK_ENDS.configure(Ends(1, 1, 1))
    text = ptx(CHECK_ENDS.unit(config), "sm_80")
    flag = np.zeros(1, np.int32)
    numbers = [number.to_bytes(4, "little") for number in asked]
    given = [Buffer(np.array(ends, np.int32), "offsets"), Buffer(flag, "flag"), *numbers]
    launch = CHECK_ENDS.launch(config, asked)
    run(text, config.name, launch.dimensions, (launch.block,), 0, given)
    assert flag[0] == (0 if wrong is None else 7)


@pytest.mark.parametrize("backend", ["cpu", "interpreter"])
@pytest.mark.parametrize(("ends", "wrong"), WRONG_ENDS[:6])
def test_ends_on_the_host_are_checked_at_once(
    ends: list[int], wrong: int | None, backend: str
) -> None:
    A, B, offsets = np.ones((9, 8), "f4"), np.ones((3, 8, 4), "f4"), np.array(ends, np.int32)
    options: dict[str, Any] = {"backend": backend, "kernel": "double_buffered", "arch": "sm_80"}
    C = np.full((9, 4), CANARY, np.float32)
    if wrong is None:
        cg.grouped_gemm("NN", A, B, offsets, C, check="device", **options)
        assert (C[: ends[-1]] == 8).all()
        return
    said = rf"offsets\[{wrong}\]={ends[wrong]} does not fit; expected an end of .* to m=9"
    with pytest.raises(OffsetsError, match=said):
        cg.grouped_gemm("NN", A, B, offsets, C, check="device", **options)
    assert (C == CANARY).all()
    cg.grouped_gemm("NN", A, B, offsets, C, **options)


def test_a_later_call_reads_the_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    """Test without a device: the checking launch comes first, and a flag stops both calls, once."""
    started: list[Any] = []
    flag = SimpleNamespace(pointer=77, value=0)
    flag.take = lambda: [flag.value, setattr(flag, "value", 0)][0]
    monkeypatch.setattr(checked, "flag_of", lambda device: flag)
    numbers = []

    def bind(config: Any, ends: Ends, *_: Any) -> Any:
        numbers.append(ends)
        return lambda addresses, stream: started.append(("check", addresses, stream))

    monkeypatch.setattr(CHECK_ENDS, "bind", bind)
    A, B, ends = np.ones((9, 256)), np.ones((3, 256, 4)), np.array([2, 5, 9], np.int32)
    problem = cg.plan("NN", A, B, offsets=ends, check="device", backend="cpu").problem
    assert problem.groups.checked
    launch = checked.CheckedLaunch(
        lambda addresses, stream: started.append(("product", addresses, stream)),
        problem,
        "sm_90a",
        0,
    )
    assert numbers[0][:2] == (3, 9)
    for _ in range(2):
        launch((1, 2, 3, 4), 5)
        assert started == [("check", (4, 77), 5), ("product", (1, 2, 3, 4), 5)]
        started.clear()
        flag.value = numbers[0].number
        with pytest.raises(OffsetsError) as caught:
            launch((1, 2, 3, 4), 5)
        assert "of 3 groups along M, m=9, n=4, k=256, float64, had offsets that" in str(
            caught.value
        )
        assert not started


def test_tails_that_do_not_fit() -> None:
    A, B, ends = np.ones((8, 8)), np.ones((1, 8, 8)), np.array([4], np.int32)
    for call, said in (
        (lambda: cg.grouped_gemm("NN", A, B, ends, tail="nan", backend="cpu"),
         "tail='nan' is unknown; expected 'unwritten' or 'zero'"),
        (lambda: cg.grouped_gemm("NN", A, B, ends, check=True, backend="cpu"),
         "check=True is unknown; expected 'none' or 'device'"),
        (lambda: cg.plan("NN", A, B[0], check="device"), "check='device' came without groups"),
        (lambda: cg.plan("NN", A, B[0], tail="zero"), "tail='zero' came without groups"),
        (lambda: cg.plan("NN", m=8, n=8, k=8, dtype="float32", arch="sm_80", tail="zero"),
         "tail='zero' came without groups"),
        (lambda: cg.gemm("NN", A, B[0], tail="zero"), "gemm() has no argument 'tail'"),
    ):  # fmt: skip
        with pytest.raises(OptionError) as caught:
            call()
        assert said in str(caught.value)
    sized = cg.plan("NN", m=8, n=8, k=8, l=1, ragged="M", dtype="float64", arch="sm_80",
                    storage="C", order="C", tail="zero", backend="cpu")  # fmt: skip
    assert (sized(A, B, offsets=ends)[4:] == 0).all()


@pytest.mark.parametrize("zero_tail", [False, True])
@pytest.mark.parametrize("ends", [[90, 20, 400, -7], [10**9] * 4, [-1] * 4, [3, 2, 1, 0]])
@pytest.mark.parametrize("ragged", ["M", "N", "K"])
@pytest.mark.parametrize("kernel", ["sm90_wgmma", "sm80_pipeline"])
def test_ends_are_not_trusted(ends: list[int], ragged: str, kernel: str, zero_tail: bool) -> None:
    """Test invalid offsets: no access outside of the arrays, and no element is written twice."""
    case = GroupedCase(ragged, "NN", "C" if ragged != "N" else "F", (40, 0, 61, 27), (72, 64))
    case = case._replace(zero_tail=zero_tail)
    if kernel != case.kernel:
        case = case._replace(kernel=kernel, options="")
    given, expected = arrays(case), arrays(case)
    for each, backend in ((given, "interpreter"), (expected, "cpu")):
        each.offsets[...] = ends
        plan = planned(case, each, backend=backend)
        plan(each.A, each.B, each.C, offsets=each.offsets)
    if ragged != "K" or ends == sorted(ends):
        np.testing.assert_allclose(given.C, expected.C, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("kernel", ["sm90_wgmma", "sm80_pipeline", "double_buffered"])
def test_groups_along_k_begin_inside(kernel: str) -> None:
    """Test groups that would begin before the first element of K, and after the last."""
    case = GroupedCase("K", "NN", "C", (40, 0, 61, 27), (72, 64))
    if kernel != case.kernel:
        dtype = {"double_buffered": "float32"}.get(kernel, case.dtype)
        case = case._replace(kernel=kernel, dtype=dtype, options="")
    given, expected = arrays(case), arrays(case)
    for each, backend in ((given, "interpreter"), (expected, "cpu")):
        each.offsets[...] = [-30, 40, 400, 500]
        plan = planned(case, each, backend=backend)
        plan(each.A, each.B, each.C, offsets=each.offsets)
    np.testing.assert_allclose(given.C, expected.C, rtol=2e-3, atol=2e-3)
    assert not expected.C[[0, 3]].any() and expected.C[[1, 2]].any()


@pytest.mark.parametrize("kernel", ["sm80_pipeline", "double_buffered"])
def test_vectors_of_columns_with_as_many_columns_as_groups(kernel: str) -> None:
    """Test that (N,) is an element, or a scale, of each column, and not of each group."""
    A, B = np.ones((9, 8), np.float32), np.ones((3, 8, 3), np.float32)
    ends, each = np.array([2, 2, 9], np.int32), np.array([1, 10, 100], np.float32)
    for backend in ("cpu", "interpreter"):
        options = {"backend": backend, "kernel": kernel, "arch": "sm_80"}
        found = cg.grouped_gemm("NN", A, B, ends, epilogue="bias", bias=each, **options)
        assert (found == 8 + each).all()
        found = cg.grouped_gemm("NN", A, B, ends, scale_b=each, **options)
        assert (found == 8 * each).all()
        # (G, 1) is unambiguous: with another extent of N, (G,) is a scale of each group.
        found = cg.grouped_gemm("NN", A, B[..., :2].copy(), ends, scale_b=each, **options)
        assert (found == 8 * np.repeat(each, (2, 0, 7))[:, None]).all()


def test_rows_with_as_many_rows_as_groups() -> None:
    """Test groups along N: (M,) scales each row of A, and not each group."""
    A, B = np.ones((3, 3, 8), np.float32), np.ones((8, 9), np.float32)
    ends, each = np.array([2, 2, 9], np.int32), np.array([1, 10, 100], np.float32)
    found = cg.grouped_gemm("NN", A, B, ends, scale_a=each, backend="cpu")
    assert (found == 8 * each[:, None]).all()


@pytest.mark.parametrize("compute", ["tf32", "int8"])
@pytest.mark.parametrize("pack", ["A", "AB"])
def test_packed_groups_along_k_begin_anywhere(pack: str, compute: str) -> None:
    """Test types that tensor cores read only along K, the unit-stride mode in scratch."""
    random = np.random.default_rng(5)
    A, B = (random.integers(-4, 5, (rows, 97)).astype("f4") for rows in (20, 12))
    given: dict[str, Any] = {"compute": compute}
    if compute == "int8":
        A, B, given = A.astype("i1"), B.astype("i1"), {}
    ends = np.array([33, 70, 97], np.int32)
    found = cg.grouped_gemm("NT", A, B, ends, pack=pack, kernel="sm80_pipeline", arch="sm_80",
                            backend="interpreter", **given)  # fmt: skip
    for C, begin, end in zip(found, (0, 33, 70), ends, strict=True):
        assert (A[:, begin:end].astype(int) @ B[:, begin:end].T.astype(int) == C).all()


def test_bound_of_tiles() -> None:
    """Test that groups of one row have a tile each."""
    case = GroupedCase("M", "NN", "C", (1,) * 9, (40, 24))
    launch = planned(case, arrays(case), backend="cpu").launch
    assert launch.grid >= 9


@pytest.mark.parametrize("ragged", ["M", "N", "K"])
@pytest.mark.parametrize("op", OPS)
def test_groups_along_the_unit_stride_mode(op: str, ragged: str) -> None:
    """Test TMA: a ragged M or N of unit stride is an error, and ``"auto"`` packs it."""
    case = GroupedCase(ragged, op, "C", (3, 64, 61, 0), (72, 64))
    given = arrays(case)
    along = case.chosen.get("pack", "")
    if along:
        with pytest.raises(UnsupportedError) as caught:
            planned(case, given, backend="cpu", pack="none")
        said = f"those of {along[0]} may begin at any element, since {ragged} is ragged"
        assert said in str(caught.value)
        assert f"pack={along[0]!r} or 'AB'" in str(caught.value)
    large = case._replace(kernel="auto", options="", sizes=(2999, 2001), extents=(1024, 1024))
    plan = planned(large, arrays(large), backend="cpu", arch="sm_90a")
    assert (plan.kernel, plan.algorithm.pack) == ("sm90_wgmma", along)
    for name in along:
        _, packing = packed(plan.problem, name)
        assert packing.targets[0].modes[packing.targets[0].unit] != ragged


@pytest.mark.parametrize("ragged", ["M", "N", "K"])
@pytest.mark.parametrize(("dtype", "compute"), [("int8", ""), ("float32", "tf32")])
def test_elements_of_one_byte_or_four(dtype: str, compute: str, ragged: str) -> None:
    """Test types that tensor cores read only along K: other modes are packed."""
    case = GroupedCase(ragged, "TN", "C", (3, 64, 61, 0), (80, 64), dtype=dtype, compute=compute)
    case = case._replace(pad=16, options="packed")
    check(case, by("interpreter"))


#: Clusters, whose CTAs may have tiles after the end of a group; packed operands; complex numbers.
TRACED = (
    *(GroupedCase(ragged, "NN", "C", (3, 64, 0, 61, 17), (72, 40), 5) for ragged in "MNK"),
    GroupedCase("M", "TN", "F", (3, 130, 0, 61), (136, 72), options="cluster"),
    GroupedCase("K", "TT", "C", (70, 3, 70), (72, 88), options="swapped", beta=1.0),
    *(
        GroupedCase(
            "K", op, "C", (70, 0, 3, 290, 17, 128), (72, 288), 5, options=options, dtype=dtype,
            pad=16, scales=scales,
        )
        for op, options, dtype, scales in (
            ("NT", "one", "bfloat16", ("", "")),
            ("NN", "turns", "float8_e4m3fn", ("row", "tensor")),
            ("TT", "cluster", "bfloat16", ("", "")),
            ("TN", "swapped", "float8_e4m3fn", ("row", "tensor")),
        )
    ),
    GroupedCase("M", "NT", "F", (3, 64, 64, 1), (40, 24), 9, kernel="sm80_pipeline", options=""),
    GroupedCase("N", "TN", "C", (3, 65), (40, 24), kernel="sm80_pipeline", options="", beta=1.0),
    GroupedCase(
        "M", "TN", "C", (5, 0, 65), (40, 24), kernel="double_buffered", options="",
        dtype="complex64",
    ),
    GroupedCase(
        "K", "TT", "F", (5, 0, 65), (40, 24), kernel="double_buffered", options="",
        dtype="float32",
    ),
    GroupedCase("K", "TT", "C", (70, 0, 3, 70), (72, 288), options="turns"),
    GroupedCase("M", "NT", "F", (3, 0, 70) * 13, (40, 24), kernel="sm80_pipeline", options=""),
    # Operands and scales, which are loaded for whole tiles if TMA stores C.
    GroupedCase("M", "NN", "C", (3, 64, 0, 61, 17), (72, 40), 5, epilogue="all"),
    GroupedCase("M", "NN", "F", (3, 64, 0, 61, 17), (72, 40), 5, epilogue="all"),
    GroupedCase("M", "TN", "C", (3, 130, 0, 61), (136, 72), 40, options="cluster", epilogue="all"),
    GroupedCase(
        "M", "NT", "C", (3, 64, 64, 1), (40, 24), 9, kernel="sm80_pipeline", options="",
        epilogue="all",
    ),
    *(
        case._replace(rest=40, zero_tail=True)
        for case in (
            GroupedCase("M", "NN", "C", (3, 64, 0, 61, 17), (72, 40), beta=1.0),
            GroupedCase("M", "TN", "F", (3, 130, 0, 61), (136, 72), options="cluster"),
            GroupedCase("N", "TT", "C", (3, 64, 17), (136, 72), options="swapped turns"),
            GroupedCase("M", "NT", "F", (3, 64, 17), (72, 40), epilogue="bias"),
            GroupedCase("M", "NN", "F", (3, 0, 70) * 13, (40, 24), kernel="sm80_pipeline",
                        options=""),
            GroupedCase("N", "TN", "C", (5, 0, 65), (40, 24), kernel="double_buffered", options="",
                        dtype="complex64", beta=1.0),
        )
    ),
    *(
        GroupedCase(
            "M", "TN", "CF"[number % 2], (3, 64, 0, 61, 61), (272, 304), 5, options=options,
            dtype="float8_e4m3fn", scales=scales, pad=16,
        )
        for number, (scales, options) in enumerate((
            (("row", "row of group"), "one"), (("1x128", "1x128 of group"), "swapped"),
            (("1x128", "128x128 of group"), "turns"), (("row", "128x128"), "cluster"),
        ))
    ),
)  # fmt: skip


@pytest.mark.parametrize("case", TRACED, ids=str)
@unity_build(plan_of)
def test_rows_are_what_is_executed(case: GroupedCase) -> None:
    given = arrays(case)
    plan = planned(case, given, backend="cpu")
    trace = plan.trace(
        given.A, given.B, given.C, offsets=given.offsets, beta=case.beta, **given.operands
    )
    assert trace.verdict.ok
    assert trace.agrees, [x for x in trace.figures if x.difference]
    # Each warp loads each end.
    assert [x.predicted > 0 for x in trace.figures if x.kind.operand == "offsets"] == [True]


def test_a_plan_of_sizes_is_that_of_arrays() -> None:
    for ragged in "MNK":
        case = GroupedCase(ragged, "TN", "F", (64, 64), (72, 40), pad=0, kernel="sm80_pipeline")
        given = arrays(case._replace(options=""))
        m, n, k = case.all_extents.values()
        A, B = (np.ascontiguousarray(x) for x in (given.A, given.B))
        described = {"kernel": "sm80_pipeline", "arch": "sm_80", "backend": "cpu"}
        ours = cg.plan("TN", A, B, offsets=given.offsets, order="C", **described)
        sizes = {"m": m, "n": n, "k": k, "dtype": "float16", "storage": "C", "order": "C"}
        sized = cg.plan("TN", **sizes, l=2, ragged=ragged, **described)
        assert sized.problem == ours.problem and sized.symbol == ours.symbol
        offset = cg.plan("TN", **sizes, l=2, ragged=ragged, base_offset=8, **described).problem
        assert offset.C.alignment == {"M": 16, "N": 2, "K": 16}[ragged]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"ragged": "L"}, "ragged='L' is unknown; expected 'M', 'N' or 'K'"),
        ({"ragged": "M", "l": 0}, "l=0 groups came with ragged='M'"),
        ({"ragged": "M", "batch_b": 64}, "batch_b came with ragged='M', whose matrices are"),
        ({"ragged": "M", "compute": "bf16x9"}, "compute='bf16x9' came with a grouped GEMM"),
        ({"offsets": np.array([8], np.int32)}, "offsets= came without A and B"),
    ],
)
def test_sizes_of_groups_that_do_not_fit(given: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        cg.plan("NN", m=8, n=8, k=8, dtype="float32", arch="sm_90a", backend="cpu", **given)


def test_what_a_report_says_of_groups() -> None:
    case = GroupedCase("M", "NN", "C", (3, 64, 0, 61, 17), (72, 40), 5)
    plan = planned(case, arrays(case), backend="cpu")
    said = plan.report(gpu="H200").groups
    assert said.startswith("5 groups of 30 along M, taken to be equal: 10 tiles of 64 x 64, 5 of")
    report = plan.report(gpu="H200", offsets=[3, 67, 67, 128, 145])
    assert report.groups.startswith(
        "5 groups of 0 to 64 along M: 8 tiles of 64 x 64, 3 of the groups end within one; 43.4 % "
        "of their products lie beyond the groups; 0.06"
    )
    assert report.groups in " ".join(str(report).split())
    assert report.to_dict()["groups"] == report.groups
    along_k = planned(case._replace(ragged="K"), arrays(case._replace(ragged="K")), backend="cpu")
    said = along_k.report(offsets=[16, 82, 98, 114, 145]).groups
    assert "2 tiles along K at most, 1.20 on average" in said
    with pytest.raises(OptionError, match="expected 5 integers on the host, the end of each group"):
        along_k.report(offsets=[64, 130])
    with pytest.raises(OptionError, match="offsets= came to the report of a plan without groups"):
        cg.plan("NN", m=8, n=8, k=8, dtype="float16", arch="sm_80").report(offsets=[8])
