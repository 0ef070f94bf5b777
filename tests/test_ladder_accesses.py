"""The accesses of the ladder's kernels against their templates, interpreted (``simt_traces``).

The interpreter takes the emitted C++ text and nothing of what describes the accesses. It computes
C on the way, so it has read the program aright, and so has the program's config; every figure of
the report is then counted lane by lane (``trace_counts``).
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from simt_traces import Key, Machine
from trace_counts import count

from cute_gemm.access import Access
from cute_gemm.analysis.rows import make_row
from cute_gemm.errors import OptionError, UnsupportedError
from cute_gemm.kernels import registry
from cute_gemm.kernels.simt.kernel import SimtKernel
from cute_gemm.problem.problem import GemmProblem, from_sizes

OPS = ("NN", "NT", "TN", "TT")
DTYPES = ("float32", "float16", "bfloat16", "float64", "complex64", "complex128")

#: Tiles of which a small problem takes several.
SMALL: dict[str, dict[str, Any]] = {
    "naive": {"tile": (16, 16, 1)},
    "coalesced": {},  # the warp lies along another mode in each op
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


def reported(accesses: tuple[Access, ...]) -> dict[Key, dict[str, int]]:
    """The launch totals of a report, by instruction."""
    totals: dict[Key, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for row in map(make_row, accesses):
        if not row.launch.requests:
            continue
        key = Key(row.operand, row.space, row.direction, row.instruction, row.bits)
        for figure in ("requests", "lanes", "sectors", "bytes", "wavefronts"):
            value = getattr(row.launch, figure)
            if value is not None and (row.space, figure) != ("shared", "bytes"):
                totals[key][figure] += value
    return {key: dict(figures) for key, figures in totals.items()}


def run(
    name: str, problem: GemmProblem, reads_c: bool = False, **options: Any
) -> tuple[Machine, tuple[Access, ...]]:
    kernel = registry.get(name)
    assert isinstance(kernel, SimtKernel)
    config = kernel.configure(problem, "sm_80", **options)
    launch = kernel.launch(config, problem)
    machine = Machine(kernel.unit(config).source, problem, launch.grid, launch.smem, reads_c)
    assert machine.config.block == launch.block
    return machine, kernel.accesses(config, problem, reads_c=reads_c)


def assert_true(
    name: str, problem: GemmProblem, reads_c: bool = False, **options: Any
) -> tuple[Machine, tuple[Access, ...]]:
    """The product is right, C is written once, A and B are read as often as tiles need them."""
    machine, accesses = run(name, problem, reads_c, **options)
    a, b, c = machine.a, machine.b, machine.c
    assert np.array_equal(c.values, a.values @ b.values.T)
    assert (c.writes == 1).all() and (c.reads == reads_c).all()
    tiles = (-(-problem.m // machine.config.tile[0]), -(-problem.n // machine.config.tile[1]))
    direct = name in ("naive", "coalesced")
    assert (a.reads == (problem.n if direct else tiles[1])).all()
    assert (b.reads == (problem.m if direct else tiles[0])).all()
    assert reported(accesses) == count(machine.trace)
    return machine, accesses


def odd(op: str = "NN", dtype: str = "float32", order: str = "F", **given: Any) -> GemmProblem:
    """Nothing divides; 16-byte vectors that the ends of A, B and C cut."""
    ld = {"lda": 144, "ldb": 144, "ldc": 80}
    return from_sizes(op, **{"m": 65, "n": 63, "k": 127, **ld, "dtype": dtype, **given},
                      order=order)  # fmt: skip


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("name", SMALL)
def test_every_op(name: str, op: str) -> None:
    assert_true(name, odd(op, order="FC"[OPS.index(op) % 2]), **SMALL[name])


@pytest.mark.parametrize("dtype", DTYPES[1:])
@pytest.mark.parametrize("name", SMALL)
def test_every_type(name: str, dtype: str) -> None:
    op = OPS[(DTYPES.index(dtype) + list(SMALL).index(name)) % 4]
    small = odd(op, dtype, m=33, n=47, k=41, order="C")
    assert_true(name, small, reads_c=True, **SMALL[name])


@pytest.mark.parametrize(("pad", "offset"), [(1, 4), (2, 8), (4, 16)])
@pytest.mark.parametrize("name", ["vectorized", "bank_free", "warp_tiled", "double_buffered"])
def test_narrow_vectors(name: str, pad: int, offset: int) -> None:
    for op, order in (("TN", "C"), ("NT", "F")):
        ld = {"lda": 128 + pad, "ldb": 128 + 4 * pad, "ldc": 64 + pad}
        problem = odd(op, order=order, **ld)
        problem = replace(problem, A=replace(problem.A, alignment=offset))
        machine, _ = assert_true(name, problem, **SMALL[name])
        assert Key("A", "global", "load", "ld.global", 32 * pad) in machine.trace.requests or (
            Key("A", "global", "load", "cp.async", 32 * pad) in machine.trace.requests
        )


@pytest.mark.parametrize("sizes", [(64, 64, 64), (1, 1, 1), (1, 63, 5), (33, 1, 128), (31, 32, 0)])
@pytest.mark.parametrize("name", SMALL)
def test_other_sizes(name: str, sizes: tuple[int, int, int]) -> None:
    m, n, k = sizes
    assert_true(name, odd("TN", m=m, n=n, k=k), **SMALL[name])


@pytest.mark.parametrize("skew", ["xor", "padding"])
@pytest.mark.parametrize("name", ["bank_free", "warp_tiled", "double_buffered"])
def test_skews(name: str, skew: str) -> None:
    for dtype, (op, order) in product(("float32", "float64"), (("TN", "F"), ("NT", "C"))):
        problem = odd(op, dtype, order, m=33, n=47, k=41)
        assert_true(name, problem, skew=skew, **SMALL[name])


def test_staging_in_registers() -> None:
    for dtype, op in (("float32", "NT"), ("float16", "NN"), ("float64", "TT")):
        machine, _ = assert_true(
            "double_buffered", odd(op, dtype), staging="registers", **SMALL["double_buffered"]
        )
        assert not any(key.instruction == "cp.async" for key in machine.trace.requests)


@pytest.mark.parametrize("along", ["m", "n", "k"])
def test_warps_along(along: str) -> None:
    for op in OPS:
        machine, _ = assert_true("coalesced", odd(op), warp_along=along)
        if along != "k":
            assert_true("naive", odd(op), warp_along=along)
    # With "k" 32 lanes share an element of C, and one of them writes it.
    assert machine.config.lanes_k == (32 if along == "k" else 1)


@pytest.mark.parametrize("op", ["NN", "TT"])
def test_columns_in_chunks(op: str) -> None:
    """More products in a tile than are unrolled: some of its 64 columns at a time."""
    for skew in ("padding", "xor"):
        problem = odd(op, "float16", m=130, n=129, k=140, ldc=144)
        machine, _ = run("double_buffered", problem, skew=skew, tile=(128, 128, 64))
        assert machine.config.chunk < machine.config.tile[2]
        assert np.array_equal(machine.c.values, machine.a.values @ machine.b.values.T)


def parts(accesses: tuple[Access, ...], operand: str, instruction: str) -> list[str]:
    return [
        access.part
        for access in accesses
        if (access.operand, getattr(access, "instruction", "")) == (operand, instruction)
    ]


def test_the_last_k_tile_comes_first_and_alone_is_cut() -> None:
    # A is (65,127):(1,144) by cp.async: m cuts a vector, in the last k-tile alone.
    machine, accesses = assert_true("double_buffered", odd("NN"), **SMALL["double_buffered"])
    assert parts(accesses, "A", "cp.async")[:2] == ["all but the last k-tile", "last k-tile"]
    assert parts(accesses, "A", "ld.global") == ["last k-tile, cut vectors"]
    first = machine.trace.requests[Key("A", "global", "load", "cp.async", 128)][0]
    column = (first[first >= 0] - machine.a.base) // 4 // 144
    assert column.min() >= 112
    # Elsewhere a vector that straddles m is read whole: nothing is read twice, nothing left out.
    assert (machine.a.reads == 2).all()


def test_a_warp_without_results_reads_nothing() -> None:
    # One row of C for warps of 32 columns: the other warps of naive's CTA return at once.
    machine, _ = assert_true("naive", odd("NT", m=1, n=32, k=4), tile=(16, 32, 1))
    (requests,) = {
        len(np.concatenate(parts))
        for key, parts in machine.trace.requests.items()
        if key.operand in "AB"
    }
    assert requests == 4


@pytest.mark.parametrize("seed", range(60))
def test_random_options(seed: int) -> None:
    random = np.random.default_rng(seed)

    def one(*choices: Any) -> Any:
        return choices[random.integers(len(choices))]

    name = one(*SMALL)
    kernel = registry.get(name)
    assert isinstance(kernel, SimtKernel)
    sizes = {letter: one(1, 3, 8, 17, 31, 32, 40, 64, 65) for letter in "mnk"}
    ld = {letter: one(128, 129, 130, 132, 136) for letter in ("lda", "ldb", "ldc")}
    problem = odd(one(*OPS), one(*DTYPES), one("F", "C"), **sizes, **ld)
    options: dict[str, Any] = {"raster": one(1, 2, 3)} if "raster" in kernel.options else {}
    for option, known in kernel.choices.items():
        options[option] = one(*known)
    for _ in range(100):  # until a tile is legal
        extents = (8, 16, 32, 64, 128) if kernel.staged else (4, 8, 16, 32)
        options["tile"] = (
            one(*extents),
            one(*extents),
            one(8, 16, 32) if kernel.staged else one(1, 32),
        )
        if "thread_tile" in kernel.options:
            column = name in ("register_rows", "thread_tile_1d")
            options["thread_tile"] = (one(2, 4, 8, 16), 1 if column else one(1, 2, 4, 8, 16))
        try:
            kernel.configure(problem, "sm_80", **options)
            break
        except (OptionError, UnsupportedError):
            continue
    assert_true(name, problem, bool(seed % 2), **options)


@pytest.mark.matrix
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("op", "order"), list(product(OPS, "FC")))
@pytest.mark.parametrize("name", SMALL)
def test_everything_with_default_tiles(name: str, op: str, order: str, dtype: str) -> None:
    ld = {"lda": 208, "ldb": 208, "ldc": 208}
    problem = odd(op, dtype, order, m=193, n=95, k=71, **ld)
    assert_true(name, problem, reads_c=order == "C")
    assert_true(name, problem, **SMALL[name])


# -- and it can fail ------------------------------------------------------------------------------


def test_a_wrong_program_is_found() -> None:
    """The interpreter does what the text says, and that would be seen in C."""
    problem = odd("TN")
    kernel = registry.get("smem_tiled")
    config = kernel.configure(problem, "sm_80", **SMALL["smem_tiled"])
    source, launch = kernel.unit(config).source, kernel.launch(config, problem)
    right = Machine(source, problem, launch.grid, launch.smem).c.values
    for text, other in (
        (r"kSmemA = \d+", "kSmemA = 64"),  # B's tile on A's
        (r"(?<=Threads = Layout<Shape<)(.*),Stride<.*>>;", r"\1,Stride<_0>>;"),
    ):
        wrong = re.sub(text, other, source, count=1)
        assert wrong != source
        found = Machine(wrong, problem, launch.grid, launch.smem).c.values
        assert not np.array_equal(found, right)


def test_a_wrong_description_is_found() -> None:
    problem = odd("TN")
    for name, right, wrong in (("smem_tiled", "turned", "none"), ("bank_free", "xor", "none")):
        tiles = {"tile": (64, 64, 16), "thread_tile": (8, 8)} if name == "bank_free" else {}
        config = registry.get(name).configure(problem, "sm_80", **tiles)
        assert config.skew == right
        machine, _ = run(name, problem, **tiles)
        other = registry.get(name).accesses(replace(config, skew=wrong), problem)
        assert reported(other) != count(machine.trace)
