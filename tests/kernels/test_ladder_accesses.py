"""Test the executed accesses of the ladder's kernels: each element as often as tiles need it.

In addition to the comparison of ``interpreted.check``, accesses of shared memory are attributed to
operands, bytes of global memory are counted, and reads and writes of each element of A, B and C.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np
import pytest
from cases import COMPLEX, OPS, Case, at_widths, narrow
from interpreted import Run, plan_of, run, takes
from unity_build import unity_build

from cute_gemm.kernels import registry
from cute_gemm.kernels.simt.kernel import SimtKernel
from cute_gemm.ptx.memory import GLOBAL
from cute_gemm.ptx.record import Accesses
from cute_gemm.rendering.rows import make_row
from cute_gemm.report.executed import compare, distinct

TYPES = ("float32", "float16", "bfloat16", "float64", *COMPLEX)

#: Tiles that are so small that a small problem has several.
SMALL: dict[str, dict[str, Any]] = {
    "naive": {"tile": (16, 16, 1)},
    "coalesced": {},  # the warp is along another mode for each op
    "smem_full_k": {"tile": (16, 16, 16)},
    "smem_tiled": {"tile": (16, 16, 16)},
    "register_rows": {"tile": (32, 16, 16)},
    "thread_tile_1d": {"tile": (32, 32, 8)},
    "thread_tile_2d": {"tile": (32, 32, 16), "thread_tile": (4, 4)},
    "vectorized": {"tile": (32, 32, 16), "thread_tile": (4, 4)},
    "bank_free": {"tile": (32, 32, 16), "thread_tile": (4, 4)},
    "warp_tiled": {"tile": (32, 64, 16), "thread_tile": (4, 8)},
    "double_buffered": {"tile": (32, 32, 16), "thread_tile": (4, 4)},
}
SKEWED = ("bank_free", "warp_tiled", "double_buffered")


def odd(kernel: str, op: str = "NN", name: str = "float32", order: str = "F", **given: Any) -> Case:
    """Return a case with partial tiles, and partial 16-byte vectors at edges of A, B and C."""
    fields = {one: given.pop(one) for one in ("m", "n", "k", "widths") if one in given}
    widths = fields.pop("widths", (16, 16, 16))
    more = tuple((SMALL[kernel] | given).items())
    case = replace(narrow(kernel, name, op, None, order), more=more, **fields)
    return at_widths(case, *widths)


# -- executed accesses ----------------------------------------------------------------------------


@lru_cache(maxsize=1)
def whose(found: Run) -> np.ndarray:
    """Return the operand of each access, by its buffer or its place in shared memory."""
    accesses = found.execution.accesses
    assert accesses is not None
    first = np.where(accesses.lanes, accesses.addresses, 1 << 62).min(axis=1)
    names = np.full(len(accesses), "")
    for region in found.execution.regions:
        inside = (first >= GLOBAL + region.begin) & (first < GLOBAL + region.end)
        names[inside & ~accesses.shared] = region.name
    elements = [int(size) for size in re.findall(r"kSmem[AB] = (\d+)", found.plan.source)]
    if elements:
        plan = found.plan
        of_a, of_b = (count * found.A.itemsize for count in elements)
        if plan.kernel == "smem_full_k":  # all of A, then all of B
            of_a *= -(-plan.problem.k // plan.config.tile[2])
            of_b = plan.launch.smem - of_a
        in_a = first % max(1, of_a + of_b) < of_a
        names[accesses.shared] = np.where(in_a, "A", "B")[accesses.shared]
    return names


def of_operand(found: Run, name: str) -> Accesses:
    accesses = found.execution.accesses
    assert accesses is not None
    return accesses.of(whose(found) == name)


def times(found: Run, name: str, store: bool = False) -> np.ndarray:
    """Return how often each element of a matrix was read, or written."""
    matrix = getattr(found, name)
    region = next(one for one in found.execution.regions if one.name == name)
    counts = np.zeros(region.end - region.begin, int)
    mine = of_operand(found, name)
    mine = mine.of(~mine.shared & (mine.store == store))
    for width in np.unique(mine.width):
        one = mine.of(mine.width == width)
        first = one.addresses[one.lanes] - GLOBAL - region.begin
        np.add.at(counts, (first[:, None] + np.arange(width)).ravel(), 1)
    steps = [stride * counts.itemsize for stride in matrix.strides]
    each = (*matrix.shape, matrix.itemsize)
    every_byte = np.lib.stride_tricks.as_strided(counts, each, (*steps, counts.itemsize))
    assert (every_byte == every_byte[..., :1]).all()
    return every_byte[..., 0]


def bytes_used(found: Run, accesses: Accesses) -> Counter[tuple[bool, int]]:
    """Count distinct bytes of requests to global memory, of loads and of stores, by width."""
    used: Counter[tuple[bool, int]] = Counter()
    for store, width in product((False, True), np.unique(accesses.width).tolist()):
        one = accesses.of(~accesses.shared & (accesses.store == store) & (accesses.width == width))
        used[store, width] += distinct(one.addresses) * width
    return +used


def assert_true(case: Case, reads_c: bool = False) -> Run:
    """Check that C is written once, and A and B are read as often as tiles need, as reported."""
    found = run(case, reads_c)
    assert found.verdict.ok, found.verdict
    problem, tile = found.plan.problem, found.plan.config.tile
    assert (times(found, "C", store=True) == 1).all()
    assert (times(found, "C") == reads_c).all()
    tiles = (-(-problem.m // tile[0]), -(-problem.n // tile[1]))
    direct = case.kernel in ("naive", "coalesced")
    assert (times(found, "A") == (problem.n if direct else tiles[1])).all()
    assert (times(found, "B") == (problem.m if direct else tiles[0])).all()
    assert whose(found).all()
    for name in "ABC":
        rows = [row for row in found.rows if row.operand == name]
        mine = of_operand(found, name)
        figures = compare(rows, replace(found.execution, accesses=mine))
        assert not [one for one in figures if one.difference], (name, figures)
        used: Counter[tuple[bool, int]] = Counter()
        for row in rows:
            if row.space == "global":
                used[row.direction == "store", row.bits // 8] += row.launch.bytes
        assert +used == bytes_used(found, mine)
    return found


# -- every kernel ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "case", [odd(name, op, order="FC"[at % 2]) for name in SMALL for at, op in enumerate(OPS)]
)
@unity_build(plan_of)
def test_every_op(case: Case) -> None:
    assert_true(case)


def of_every_type() -> Iterator[Case]:
    for (row, kernel), (column, name) in product(enumerate(SMALL), enumerate(TYPES[1:], 1)):
        op = OPS[(row + column) % 4]
        yield odd(kernel, op, name, "C", m=33, n=47, k=41)
    # Complex numbers of a partial vector are loaded whole.
    yield odd("double_buffered", "NN", "complex64", m=33, n=47, k=41)


@pytest.mark.parametrize("case", list(of_every_type()))
@unity_build(plan_of)
def test_every_type(case: Case) -> None:
    assert_true(case, reads_c=True)


def of_narrow_vectors() -> Iterator[Case]:
    for kernel, pad in product(("vectorized", *SKEWED), (1, 2, 4)):
        for op, order in (("TN", "C"), ("NT", "F")):
            yield odd(kernel, op, order=order, widths=(4 * pad, 16, 4 * pad))


@pytest.mark.parametrize("case", list(of_narrow_vectors()))
@unity_build(plan_of)
def test_narrow_vectors(case: Case) -> None:
    found = assert_true(case)
    mine = of_operand(found, "A")
    assert case.widths[0] in mine.width[~mine.shared]


@pytest.mark.parametrize(
    "case",
    [
        odd(name, "TN", m=m, n=n, k=k)
        for name in SMALL
        for m, n, k in ((64, 64, 64), (1, 1, 1), (1, 63, 5), (33, 1, 128), (31, 32, 0))
    ],
)
@unity_build(plan_of)
def test_other_sizes(case: Case) -> None:
    assert_true(case)


@pytest.mark.parametrize(
    "case",
    [
        odd(kernel, op, name, order, m=33, n=47, k=41, skew=skew)
        for kernel, skew in product(SKEWED, ("xor", "padding"))
        for name in ("float32", "float64")
        for op, order in (("TN", "F"), ("NT", "C"))
    ],
)
@unity_build(plan_of)
def test_skews(case: Case) -> None:
    assert_true(case)


@pytest.mark.parametrize(
    "case",
    [
        odd("double_buffered", op, name, staging="registers")
        for name, op in (("float32", "NT"), ("float16", "NN"), ("float64", "TT"))
    ],
)
@unity_build(plan_of)
def test_staging_in_registers(case: Case) -> None:
    found = assert_true(case)
    assert not re.search(r"cp\.async\.c[ag]", " ".join(found.execution.counts or ()))


@pytest.mark.parametrize(
    "case",
    [
        odd(kernel, op, warp_along=along)
        for kernel, ways in (("naive", "mn"), ("coalesced", "mnk"))
        for op, along in product(OPS, ways)
    ],
)
@unity_build(plan_of)
def test_warps_along(case: Case) -> None:
    found = assert_true(case)
    # With "k", 32 lanes share an element of C, and one of them writes it.
    shared = dict(case.more)["warp_along"] == "k"
    assert f"kLanesK = {32 if shared else 1}" in found.plan.source


@pytest.mark.parametrize(
    "case",
    [
        odd(
            "double_buffered", op, "float16", m=130, n=129, k=140, skew=skew, tile=(128, 128, 64),
            thread_tile=(8, 8),
        )
        for op, skew in product(("NN", "TT"), ("padding", "xor"))
    ],
)  # fmt: skip
@unity_build(plan_of)
def test_columns_in_chunks(case: Case) -> None:
    """Test tiles with too many products to unroll, which take some of 64 columns at a time."""
    found = assert_true(case)
    chunk = re.search(r"kChunk = (\d+)", found.plan.source)
    assert chunk and int(chunk[1]) < found.plan.config.tile[2]


def test_the_last_k_tile_comes_first_and_alone_is_cut() -> None:
    # With cp.async, m cuts a vector of A only in the last k-tile.
    found = assert_true(odd("double_buffered", "NN"))
    parts = {
        name: [row.access.part for row in found.rows if (row.operand, row.instruction) == name]
        for name in (("A", "cp.async"), ("A", "ld.global"))
    }
    assert parts["A", "cp.async"][:2] == ["all but the last k-tile", "last k-tile"]
    assert parts["A", "ld.global"] == ["last k-tile, cut vectors"]
    mine = of_operand(found, "A")
    loads = mine.of(~mine.shared & (mine.width == 16))
    first = loads.of(loads.order == loads.order.min())
    begin = next(one.begin for one in found.execution.regions if one.name == "A")
    offsets = first.addresses[first.lanes] - GLOBAL - begin
    assert (offsets // found.A.strides[1]).min() >= 112
    # In other k-tiles, a vector that straddles m is read whole, and nothing is read twice.
    assert (times(found, "A") == 2).all()


def test_a_warp_without_results_reads_nothing() -> None:
    # One row of C for warps of 32 columns: the other warps of naive's CTA return at once.
    found = assert_true(odd("naive", "NT", m=1, n=32, k=4, tile=(16, 32, 1)))
    assert [len(of_operand(found, name)) for name in "AB"] == [4, 4]


# -- random options -------------------------------------------------------------------------------


def random_case(seed: int) -> Case:
    random = np.random.default_rng(seed)

    def one(*choices: Any) -> Any:
        return choices[random.integers(len(choices))]

    name = one(*SMALL)
    kernel = registry.get(name)
    assert isinstance(kernel, SimtKernel)
    sizes = {letter: one(1, 3, 8, 17, 31, 32, 40, 64, 65) for letter in "mnk"}
    widths = one(1, 4, 8, 16), one(1, 4, 8, 16), one(1, 4, 8, 16)
    options: dict[str, Any] = {"raster": one(1, 2, 3)} if "raster" in kernel.options else {}
    for option, known in kernel.choices.items():
        options[option] = one(*known)
    what = one(*OPS), one(*TYPES), one("F", "C")
    staged = name not in ("naive", "coalesced")
    for _ in range(100):  # until a tile is legal
        extents = (8, 16, 32, 64, 128) if staged else (4, 8, 16, 32)
        inner = (8, 16, 32) if staged else (1, 32)
        options["tile"] = one(*extents), one(*extents), one(*inner)
        if "thread_tile" in kernel.options:
            column = name in ("register_rows", "thread_tile_1d")
            options["thread_tile"] = (one(2, 4, 8, 16), 1 if column else one(1, 2, 4, 8, 16))
        case = odd(name, *what, widths=widths, **sizes, **options)
        if takes(case):
            break
    return case


@pytest.mark.parametrize("case", [random_case(seed) for seed in range(60)])
@unity_build(plan_of)
def test_random_options(case: Case) -> None:
    assert_true(case, bool(case.m % 2))


def with_default_tiles() -> Iterator[Case]:
    for kernel, op, order, name in product(SMALL, OPS, "FC", TYPES):
        small = odd(kernel, op, name, order, m=193, n=95, k=71)
        yield from (replace(small, more=()), small)


@pytest.mark.matrix
@pytest.mark.parametrize("case", list(dict.fromkeys(with_default_tiles())))
@unity_build(plan_of)
def test_everything_with_default_tiles(case: Case) -> None:
    assert_true(case, reads_c=case.order == "C")


# -- failures are detected ------------------------------------------------------------------------


def test_a_wrong_description_is_found() -> None:
    for name, right in (("smem_tiled", "transposed"), ("bank_free", "xor")):
        tiles = {"tile": (64, 64, 16), "thread_tile": (8, 8)} if name == "bank_free" else {}
        found = run(odd(name, "TN", **tiles))
        plan, kernel = found.plan, registry.get(name)
        assert isinstance(kernel, SimtKernel) and plan.config.skew == right
        wrong = kernel.accesses(replace(plan.config, skew="none"), plan.problem)
        rows = [make_row(access) for access in wrong]
        assert any(one.difference for one in compare(rows, found.execution))
