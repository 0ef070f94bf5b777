"""Test kernel selection: the config with the least predicted time is selected."""

from dataclasses import replace
from itertools import product
from math import prod
from random import Random
from typing import Any

import pytest
from cases import OPS, configure, refusal

import cute_gemm as cg
from cute_gemm.arch import Arch
from cute_gemm.cost_model.prediction import Prediction, Predictions
from cute_gemm.dtypes import DTYPES
from cute_gemm.errors import OptionError, UnsupportedError
from cute_gemm.gpus.table import gpu
from cute_gemm.kernels import base, refusals, registry
from cute_gemm.kernels.base import CompiledKernel
from cute_gemm.kernels.candidate import label
from cute_gemm.plan import select
from cute_gemm.plan.steps import steps
from cute_gemm.problem.describe import from_sizes
from cute_gemm.problem.parts.packing import DIRECT
from cute_gemm.problem.problem import GemmProblem
from cute_gemm.report.candidates import candidates_dict

COMPILED = tuple(name for name in registry.names() if registry.get(name).runs_on == "gpu")
#: Kernels whose configs are selected by predicted times.
PRICED = tuple(name for name in COMPILED if name != "cutlass_universal")
#: dtype, compute
TYPES = (
    ("float16", None), ("float32", None), ("float32", "tf32"), ("float64", None), ("int8", None),
    ("complex64", None), ("complex128", None),
)  # fmt: skip


def plan(op: str = "TN", arch: str = "sm_90a", **given: Any) -> cg.Plan:
    sizes = {"m": 64, "n": 64, "k": 64, "dtype": "float16", **given}
    return cg.plan(op, arch=arch, backend="cpu", **sizes)


def problems(random: Random, count: int) -> list[GemmProblem]:
    """Return random problems, each followed by three with one other extent."""
    found = []
    for _ in range(count):
        extents = {mode: random.choice((64, 128, 100, 4096)) for mode in "mnk"}
        pitches = {name: 4096 + random.choice((0, 0, 1, 2, 8)) for name in ("lda", "ldb", "ldc")}
        dtype, compute = random.choice(TYPES)
        op = random.choice(OPS)
        order: Any = random.choice("FC")
        for mode in (None, *"mnk"):
            sizes: dict[str, Any] = {**extents, **pitches, "dtype": dtype, "compute": compute}
            if mode is not None:
                sizes[mode] = random.choice((0, 1, 62, 63, 1000))
            found.append(from_sizes(op, order=order, **sizes))
    return found


def chosen(each: GemmProblem, arch: str, name: str) -> Any:
    """Return the selected config, or the error message."""
    try:
        return select.select(each, arch, name).config
    except (OptionError, UnsupportedError) as error:
        return str(error)


def alone(each: GemmProblem, arch: str, name: str) -> Any:
    """Return the same without cached results of other problems."""
    select._classes.clear()
    return chosen(each, arch, name)


@pytest.mark.parametrize("name", ["auto", *COMPILED])
def test_what_is_chosen_does_not_depend_on_what_was_chosen_before(name: str) -> None:
    random = Random(name)
    these = problems(random, 8)
    expected = [alone(each, "sm_90a", name) for each in these]
    select._classes.clear()
    for each, config in zip(these, expected, strict=True):
        assert chosen(each, "sm_90a", name) == config, each


def of_one_kind(random: Random, dtype: str, compute: str | None, op: str) -> list[GemmProblem]:
    """Return 36 problems that only differ in extents and batch, so that many share a class."""
    order, storage = random.choice("FC"), random.choice("FC")
    least = {mode: random.choice((1, 17, 129, 200)) for mode in "mnk"}
    pitches = {name: 2048 + random.choice((0, 0, 1, 2, 8)) for name in ("lda", "ldb", "ldc")}
    offsets = random.choices((0, 0, 0, 1, 2), k=3)
    products = random.choice(((1,), (1,), (1, 3, 40)))
    found = []
    for _ in range(36):
        sizes = {m: x + (x > 16) * random.choice((0, 0, 256, 1024)) for m, x in least.items()}
        each = from_sizes(
            op, **sizes, **pitches, l=random.choice(products), dtype=dtype, compute=compute,
            order=order, storage=storage,  # type: ignore[arg-type]
        )  # fmt: skip
        A, B, C = (
            x.at(256 + offset * DTYPES[x.dtype].bytes)
            for x, offset in zip((each.A, each.B, each.C), offsets, strict=True)
        )
        found.append(replace(each, A=A, B=B, C=C))
    return found


def test_selections_and_predictions_of_1000_problems_are_the_same_in_three_orders(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Test that selections do not depend on the order of problems, starting with empty caches."""
    random, predictions = Random(0), []

    class Times(select.Predicted):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            predictions.append(self.seconds.tobytes())

    monkeypatch.setattr(select, "Predicted", Times)
    cases = []
    for (dtype, compute), op in product(TYPES, OPS):
        place = gpu(random.choice(("H200", "H200", "A100", "L40S")))
        options = random.choice(({}, {}, {"pack": "none"}, {"split_k": 3}))
        cases += [(one, place, options) for one in of_one_kind(random, dtype, compute, op)]
    numbers = range(len(cases))
    assert len(numbers) >= 1000
    found: list[dict[int, Any]] = []
    for order in (numbers, numbers[::-1], random.sample(numbers, len(numbers))):
        select._classes.clear()
        base._tallies.clear()
        found.append({})
        for i in order:
            each, place, options = cases[i]
            selection = select.select(each, place.arch, "auto", options, place)
            key = selection.kernel.name, selection.config, selection.algorithm
            found[-1][i] = (*key, predictions.pop())
    assert [i for i in numbers if len({results[i] for results in found}) > 1] == []
    assert len({results[:3] for results in found[0].values()}) > 100


@pytest.mark.parametrize(
    ("kernel", "slices", "first", "second"),
    [
        # The second has enough rows for many CTAs without slices.
        ("thin", "auto", {"m": 1000, "n": 8}, {"m": 4000, "n": 8}),
        # The slices of the second would be more tiles than 32 bits can count.
        ("sm90_wgmma", 2**24, {"k": 2**31 - 128}, {"k": 2**31 - 128, "m": 2**20}),
    ],
)
def test_slices_of_k_are_chosen_by_their_own_extents(
    kernel: str, slices: Any, first: dict[str, int], second: dict[str, int]
) -> None:
    pitches = {"lda": 2**31, "ldb": 2**31, "ldc": 2**20}
    problem, like_it = (
        from_sizes("TN", **{"m": 64, "n": 64, "k": 4096, **sizes}, **pitches, dtype="int8")
        for sizes in (first, second)
    )

    def configs(each: GemmProblem) -> Any:
        try:
            found = select.select(each, "sm_90a", kernel, {"split_k": slices}).candidates()
            return {one.config for one in found}
        except UnsupportedError as error:
            return str(error)

    select._classes.clear()
    expected = configs(like_it)
    select._classes.clear()
    assert configs(problem) != expected
    assert configs(like_it) == expected


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_candidates_have_names_of_their_own(arch: str) -> None:
    for (dtype, compute), (m, n) in product(TYPES, ((2048, 1536), (1000, 8), (8, 8), (257, 130))):
        given = {"m": m, "n": n, "k": 4096, "dtype": dtype, "compute": compute, "lda": 4097}
        made = plan("TN", arch, **given, pack="auto", split_k="auto")
        names = [label(one) for one in made.candidates()]
        assert len(set(names)) == len(names), max(names, key=names.count)
        entries = [
            (x["kernel"], x["config"], x["pack"], x["split_k"])
            for x in candidates_dict(made.candidates())
        ]
        assert len(set(entries)) == len(entries)
    first, second, *_ = plan(m=1536, n=2944, k=4096, kernel="sm90_wgmma", arch="sm_90a",
                             tile=(128, 256, 64), cluster=(1, 1)).candidates()  # fmt: skip
    assert label(first) == "sm90_wgmma 128x256x64 g2"
    assert label(second) == "sm90_wgmma 128x256x64 g2 x"


def test_gpus_of_one_name_are_two() -> None:
    """Test a user's GPU with the name of another GPU."""
    own = replace(gpu("H200"), sms=8)
    each = from_sizes("TN", m=4096, n=4096, k=4096, dtype="float16")
    times = [
        select.select(each, "sm_90a", "auto", {}, place).candidates()[0].prediction
        for place in (gpu("H200"), own)
    ]
    assert times[1].seconds > times[0].seconds  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("kernel", "first", "second"),
    [
        ("smem_full_k", {"k": 64}, {"k": 100000}),
        ("sm80_pipeline", {"m": 2**31 - 257}, {"m": 2**31 - 1}),
        ("double_buffered", {"m": 2**31 - 257}, {"m": 2**31 - 1}),
        ("cutlass_universal", {"m": 2**31 - 257}, {"m": 2**31 - 1}),
        ("auto", {"m": 2**31 - 257}, {"m": 2**31 - 1}),
    ],
)
def test_a_problem_is_refused_after_one_like_it_was_not(
    kernel: str, first: dict[str, int], second: dict[str, int]
) -> None:
    sizes: dict[str, Any] = {"m": 64, "n": 1, "k": 1, "dtype": "float32", "kernel": kernel}
    said = "k=100000 needs" if "k" in second else f"m(=| is ){second['m']}"
    for _ in range(2):
        with pytest.raises(UnsupportedError, match=said):
            plan("NT", **{**sizes, **second})
        assert plan("NT", **{**sizes, **first}).config


def legal_of(kernel: CompiledKernel, asked: GemmProblem, arch: str) -> list[Any]:
    """Return legal configs, or none if the kernel does not support the problem."""
    try:
        refusals.check(kernel, asked, arch)
        return kernel.legal(asked, Arch(arch), {})
    except (OptionError, UnsupportedError):
        return []


def test_cutlass_heeds_k_and_rows_after_a_problem_like_it() -> None:
    given: dict[str, Any] = {"kernel": "cutlass_universal", "lda": 2**18, "ldb": 2**18}
    maths = [plan(k=k, dtype="int8", **given).config.math for k in (1024, 2**17, 1024)]
    assert maths == ["int8", "dp4a", "int8"]  # from 2**17 on the first of them could saturate
    widths = [plan(k=k, **given).config.alignments[0] for k in (64, 63, 62, 64)]
    assert widths == [8, 1, 2, 8]


@pytest.mark.parametrize(("dtype", "compute"), TYPES)
@pytest.mark.parametrize("name", ["auto", *PRICED])
def test_the_cheapest_that_is_not_refused_is_chosen(
    name: str, dtype: str, compute: str | None
) -> None:
    given: dict[str, Any] = {"dtype": dtype, "compute": compute, "kernel": name}
    if (
        name != "auto"
        and (f"{dtype}/{compute}" if compute else dtype) not in registry.get(name).dtypes
    ):
        with pytest.raises(UnsupportedError, match=f"kernel '{name}' does not take {dtype}"):
            plan("TN", **given)
        return
    archs, sizes = ("sm_80", "sm_90a"), (4, 100, 1024)
    if name == "sm90_wgmma":  # rows that are multiples of 16 bytes
        archs, sizes = ("sm_90a",), (16, 112, 1024)  # type: ignore[assignment]
    for arch, size in product(archs, sizes):
        k = min(size, 256) if name == "smem_full_k" else size
        size = min(size, 64) if name == "batched" else size
        k = min(size, k)
        m = min(size, 32) if name == "thin" else size
        found = plan("TN", arch, m=m, n=size, k=k, **given)
        first, *others = found.candidates()
        assert (first.kernel.name, first.config) == (found.kernel, found.config)
        predictions = [first.prediction.seconds, *(one.prediction.seconds for one in others)]  # type: ignore
        assert predictions == sorted(predictions) and predictions[0] > 0
        for one in found.candidates():
            assert isinstance(one.kernel, CompiledKernel)
            launches = steps(one.kernel, one.config, found.problem, arch, one.algorithm)
            left = launches.main.problem
            assert refusal(one.kernel, one.config, left, arch) == ""
        legal = [
            config
            for kernel in map(registry.get, registry.CONTENDERS if name == "auto" else (name,))
            if isinstance(kernel, CompiledKernel)
            and (f"{dtype}/{compute}" if compute else dtype) in kernel.dtypes
            and (kernel.name != "thin" or min(m, size) <= 32)
            and (name != "auto" or kernel.contends(found.problem, Arch(arch)))
            for config in legal_of(kernel, found.problem, arch)
        ]
        direct = [one.config for one in found.candidates() if one.algorithm == DIRECT]
        assert set(direct) == set(legal)
        assert len(direct) == len(legal)
        if name != "auto":
            assert found.config == configure(registry.get(name), found.problem, arch)


def test_a_prediction_is_of_the_accesses_of_its_own_problem() -> None:
    """Test that predictions do not use cached counts of other problems."""
    kernel = registry.get("sm80_pipeline")
    these = [each for each in problems(Random(1), 6) if each.dtype != "complex64"]
    assert {"complex128"} < {each.dtype for each in these}
    gpu = select.select(these[0], "sm_90a", "sm80_pipeline").gpu
    configs = [configure(kernel, each, "sm_90a") for each in these]
    assert isinstance(kernel, CompiledKernel)

    def prediction_of(config: Any, problem: GemmProblem) -> Prediction:
        return Predictions([kernel.footprint(config, problem, gpu)], gpu).predict(problem, 0)

    kept = [prediction_of(one, each) for one, each in zip(configs, these, strict=True)]
    for one, each, prediction in zip(configs, these, kept, strict=True):
        base._tallies.clear()
        assert prediction_of(one, each) == prediction


@pytest.mark.parametrize("name", [name for name in PRICED if name != "batched"])
def test_configs_that_share_the_counts_of_an_operand_have_the_same(name: str) -> None:
    """Test that fields ignored by `of_operand` do not change the accesses of that operand."""
    kernel = registry.get(name)
    assert isinstance(kernel, CompiledKernel)
    kept: dict[Any, Any] = {}
    shared = 0
    random = Random(name)
    for number in range(28):
        step = 16 if name == "sm90_wgmma" else 1
        pitches = {which: 4096 + step * random.choice((0, 1, 2)) for which in ("lda", "ldb", "ldc")}
        dtype, _, compute = kernel.dtypes[-(number % 4)].partition("/")
        op = random.choice(OPS)
        m, n, k = random.choice((128, 126, 125)), random.choice((128, 126, 125)), 64
        m = m // 4 if name == "thin" else m
        each = from_sizes(op, m=m, n=n, k=k, dtype=dtype, compute=compute or None, **pitches)
        for config in legal_of(kernel, each, "sm_90a"):
            ctas = kernel.sampled(config)
            one = base.sample(each, config.tile, ctas)
            accesses = kernel.accesses(config, one)
            for x in (one.A, one.B, one.C):
                key = (kernel.of_operand(config, x.name), x.name, base.pitch(x), x.alignment)
                mine = (access for access in accesses if access.operand == x.name)
                found = base.tally(mine, prod(ctas))
                shared += key in kept and kept[key][0] != config
                assert kept.setdefault(key, (config, found))[1] == found, (each, config)
    assert shared


@pytest.mark.parametrize(
    ("kernel", "options"),
    [
        ("sm80_pipeline", {"stages": 8}),
        ("sm80_pipeline", {"tile": (16, 128, 32)}),
        ("sm80_pipeline", {"warps": (4, 2), "raster": 4}),
        ("sm80_pipeline", {"tile": (128, 128, 32), "warps": (4, 4)}),
        ("double_buffered", {"min_ctas": 2}),
        ("double_buffered", {"tile": (64, 64, 8), "staging": "registers"}),
        ("cutlass_universal", {"stages": 11}),
        ("cutlass_universal", {"tile": (64, 128, 32), "swizzle": 2}),
    ],
)
def test_what_is_given_is_kept_and_what_is_left_is_chosen(
    kernel: str, options: dict[str, Any]
) -> None:
    found = plan(m=4096, n=4096, k=4096, kernel=kernel, arch="sm_80", **options)
    for one in found.candidates():
        assert {name: getattr(one.config, name) for name in options} == options
    # Builds, or raises if the kernel spills.
    assert found.resources.registers > 0
