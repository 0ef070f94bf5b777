"""CUTLASS's shared memory, evaluated in Python: layouts, fragments, epilogue, how often.

That CUTLASS's iterators touch just these bytes is what its kernels say when they are executed.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cute_gemm.access import Access, GlobalAccess, SharedAccess
from cute_gemm.cute.notation import parse
from cute_gemm.errors import CompileError, OptionError
from cute_gemm.kernels.cutlass import epilogue
from cute_gemm.kernels.cutlass.config import CutlassUniversalConfig
from cute_gemm.kernels.cutlass.shared import (
    Requests,
    SharedTile,
    fragment_loads,
    shared_stores,
    shared_tile,
)
from cute_gemm.kernels.cutlass.universal import CutlassUniversal
from cute_gemm.model import smem
from cute_gemm.problem.dtypes import dtype
from cute_gemm.problem.passes import DIRECT
from cute_gemm.problem.problem import GemmProblem, from_sizes
from cute_gemm.problem.verify import verify
from cute_gemm.ptx import execute
from cute_gemm.ptx.record import Accesses
from cute_gemm.steps import steps
from cute_gemm.toolchain.nvrtc import build

KERNEL = CutlassUniversal()

#: dtype, compute, output type.
TYPES = (
    ("float16", None, "float16"),
    ("bfloat16", None, "bfloat16"),
    ("float16", None, "float32"),
    ("float32", "tf32", "float32"),
    ("float32", "float32", "float32"),
    ("float64", None, "float64"),
    ("int8", None, "int32"),
)


def problems() -> Iterator[GemmProblem]:
    """Every math with every layout, wide and narrow, of large and small tiles."""
    for name, compute, out in TYPES:
        for op in ("NN", "NT", "TN", "TT"):
            for size, order in ((4096, "F"), (4096, "C"), (4092, "F"), (100, "C"), (101, "F")):
                if name == "int8" and op != "TN" and size % 4:
                    continue
                yield from_sizes(
                    op, m=size, n=size, k=size, dtype=name, compute=compute, out_dtype=out,
                    order=order,  # type: ignore[arg-type]
                )  # fmt: skip


CONFIGS, PROBLEMS = {}, {}
for _problem in problems():
    _config = KERNEL.configure(_problem, "sm_80")
    CONFIGS[_config.name], PROBLEMS[_config.name] = _config, _problem
every_config = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


def configure(op: str, **given: object) -> tuple[GemmProblem, CutlassUniversalConfig]:
    options = {name: given.pop(name) for name in ("tile", "warps", "stages") if name in given}
    sizes = {"m": 4096, "n": 4096, "k": 4096, "dtype": "float16", **given}
    problem = from_sizes(op, **sizes)  # type: ignore[arg-type]
    return problem, KERNEL.configure(problem, "sm_80", **options)


# ---- layouts ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tile", "swizzled"),
    [
        # K contiguous: (strided, contiguous), as one stage lies.
        (SharedTile("Crosswise", 2, 32, 32, 64), "Sw<2,3,3> o 0 o (64,32):(32,1)"),
        (SharedTile("Crosswise", 2, 64, 64, 64), "Sw<3,3,3> o 0 o (64,64):(64,1)"),
        (SharedTile("Crosswise", 4, 16, 16, 64), "Sw<2,2,3> o 0 o (64,16):(16,1)"),
        (SharedTile("Crosswise", 4, 32, 32, 64), "Sw<3,2,3> o 0 o (64,32):(32,1)"),
        (SharedTile("Crosswise", 1, 64, 64, 64), "Sw<2,4,3> o 0 o (64,64):(64,1)"),
        (SharedTile("Crosswise", 1, 128, 128, 64), "Sw<3,4,3> o 0 o (64,128):(128,1)"),
        # M or N contiguous.
        (SharedTile("Congruous", 2, 64, 64, 64), "Sw<3,3,3> o 0 o (32,64):(64,1)"),
        (SharedTile("Congruous", 2, 32, 32, 32), "Sw<2,3,3> o 0 o (32,32):(32,1)"),
        (SharedTile("Congruous", 4, 32, 32, 32), "Sw<2,3,2> o 0 o (32,32):(32,1)"),
    ],
    ids=lambda value: value.split()[0] if isinstance(value, str) else value.layout,
)
def test_layouts_are_swizzles(tile: SharedTile, swizzled: str) -> None:
    layout = parse(swizzled)
    strided, contiguous = np.indices((layout.size // tile.crosswise, tile.crosswise))
    expected = np.vectorize(layout)(strided, contiguous)
    assert (tile.offsets(contiguous, strided) == expected * tile.size).all()


def test_stages_lie_side_by_side_along_k() -> None:
    _, config = configure("TN")
    assert shared_tile(config, "A").stride == 4 * 32
    # The third row begins the next line of 128 bytes of this stage, behind those of the others.
    assert shared_tile(config, "A").offsets(np.array([0]), np.array([2])) == [4 * 128 + 16]


@pytest.mark.parametrize(
    ("op", "given", "message"),
    [
        ("TN", {"tile": (128, 128, 128)}, "bK is 128; CUTLASS takes 32 or 64 here"),
        ("TN", {"dtype": "float32", "tile": (64, 64, 32)}, "padding takes bK below 32"),
        ("NT", {"dtype": "float64", "tile": (32, 64, 16), "warps": (4, 1)}, "8 rows of A; .* 16"),
        (
            "NT",
            {"dtype": "float32", "compute": "tf32", "tile": (16, 64, 32), "warps": (1, 2)},
            "operand A: a tile 16 wide; CUTLASS takes 32",
        ),
    ],
)
def test_layouts_that_cutlass_has_not(op: str, given: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        configure(op, **given)


# ---- main loop ----------------------------------------------------------------------------------


def touched(requests: Requests, offsets: np.ndarray | None = None) -> np.ndarray:
    """Every byte that lanes of a load or store of vectors touch, with repetitions."""
    offsets = requests.offsets if offsets is None else offsets
    return (offsets.reshape(-1, 1) + np.arange(requests.bits // 8)).ravel()


@every_config
def test_a_stage_is_stored_once_and_read_whole(config: CutlassUniversalConfig) -> None:
    extents = {"A": config.tile[0], "B": config.tile[1]}
    size = dtype(config.dtype).bytes
    warps = dict(zip("AB", config.warps[::-1], strict=True))
    for operand, extent in extents.items():
        stored = touched(shared_stores(config, operand))
        assert np.unique(stored).size == stored.size == extent * config.tile[2] * size
        loads = fragment_loads(config, operand)
        groups = [touched(loads, group) for group in loads.offsets]
        # The groups share the tile among them, whatever the other operand's warps.
        assert sum(np.unique(group).size for group in groups) == stored.size
        assert np.array_equal(np.unique(np.concatenate(groups)), np.sort(stored))
        repeated = {count for group in groups for count in np.unique(group, return_counts=True)[1]}
        # SIMT lanes of a row (or column) of the grid read the same vector.
        assert len(repeated) == 1
        lanes = repeated.pop() // warps[operand]
        assert lanes == 1 or (config.math in ("float32", "dp4a") and lanes in (4, 8))


@pytest.mark.parametrize(
    ("operand", "rows_of_warps", "matrices"),
    [
        # mma.m16n8k16 takes A's matrices down M first, and two instructions' B along K first.
        ("A", (0, 64, 0, 64), ((0, 0), (8, 0), (0, 8), (8, 8))),
        ("B", (0, 0, 32, 32), ((0, 0), (0, 8), (8, 0), (8, 8))),
    ],
)
@pytest.mark.parametrize("op", ["TN", "NT"])
def test_ldmatrix_by_hand(
    op: str,
    operand: str,
    rows_of_warps: tuple[int, ...],
    matrices: tuple[tuple[int, int], ...],
) -> None:
    _, config = configure(op, order="C", tile=(128, 64, 32), warps=(2, 2))
    tile, loads = shared_tile(config, operand), fragment_loads(config, operand)
    assert loads.instruction == ("ldmatrix.x4" if op == "TN" else "ldmatrix.x4.trans")
    for warp, row in enumerate(rows_of_warps):
        mn, k = np.array(matrices).T + np.array([[row], [0]])
        expected = tile.offsets(*((k, mn) if op == "TN" else (mn, k)))
        assert np.array_equal(loads.offsets[0, warp, ::8], expected)
        # The next group is 16 further along K.
        expected = tile.offsets(*((k + 16, mn) if op == "TN" else (mn, k + 16)))
        assert np.array_equal(loads.offsets[1, warp, ::8], expected)


def conflicts(requests: Requests, direction: str) -> int:
    access = SharedAccess("A", direction, requests.instruction, requests.bits, requests.offsets)  # type: ignore[arg-type]
    return smem.analyze(access).ways


@every_config
def test_known_conflicts(config: CutlassUniversalConfig) -> None:
    size = dtype(config.dtype).bytes
    for operand, major in (("A", config.major_a), ("B", config.major_b)):
        assert conflicts(fragment_loads(config, operand), "load") == 1
        found = conflicts(shared_stores(config, operand), "store")
        if config.math == "float32":
            # Transposing on the way, without padding: 8 rows of K meet in 4 lines.
            assert found == (8 if major == "K" else 1)
        elif config.stages == 2 or config.side(operand).alignment * size == 16 or size == 8:
            assert found == 1
    if config.align_c == 8:
        # What the exchange of halves is for; bfloat16 goes without.
        assert conflicts(epilogue.staged_loads(config), "load") == 2 - epilogue.is_mixed(config)


# ---- epilogue -----------------------------------------------------------------------------------


@every_config
def test_what_is_staged_is_read(config: CutlassUniversalConfig) -> None:
    stored, loaded = (
        touched(requests)
        for requests in (epilogue.staged_stores(config), epilogue.staged_loads(config))
    )
    rows, columns = config.instance_warps[0], config.instance_tile[1]
    expected = rows * epilogue.staged_rows(config) * columns
    assert (
        np.unique(stored).size
        == stored.size
        == expected * dtype(dtype(config.dtype).accumulator).bytes
    )
    assert np.array_equal(np.sort(stored), np.sort(loaded))
    assert epilogue.iterations(config) * expected == columns * config.instance_tile[0]


@pytest.mark.parametrize(
    ("tile", "warps"),
    [((128, 128, 32), (2, 2)), ((128, 128, 32), (2, 4)), ((64, 16, 32), (2, 1))],
    ids=["64 wide", "32 wide", "16 wide"],
)
def test_exchanged_halves_are_found(tile: tuple[int, int, int], warps: tuple[int, int]) -> None:
    _, config = configure("TN", order="C", tile=tile, warps=warps)
    assert epilogue.is_mixed(config)
    plain = replace(config, out_dtype="bfloat16")  # the same, without the exchange
    pitch = epilogue.row_elements(config) * 4

    def exchanged(offsets: np.ndarray) -> np.ndarray:
        column = offsets % pitch // 4
        return np.where(column // 32 % 2, offsets + ((column ^ 4) - column) * 4, offsets)

    stores, loads = epilogue.staged_stores, epilogue.staged_loads
    assert np.array_equal(stores(config).offsets, exchanged(stores(plain).offsets))
    assert np.array_equal(loads(config).offsets, exchanged(loads(plain).offsets))


@pytest.mark.parametrize("warps", [(4, 1), (1, 4)])
def test_exchanged_halves_that_would_be_lost(warps: tuple[int, int]) -> None:
    order = "C" if warps[1] == 1 else "F"
    with pytest.raises(OptionError, match=r"a warp is 128 wide along [MN]; .* takes 16, 32 or 64"):
        configure("TN", order=order, tile=(128, 128, 32), warps=warps)
    # Other types have no such epilogue.
    configure("TN", dtype="bfloat16", order=order, tile=(128, 128, 32), warps=warps)


# ---- how often ----------------------------------------------------------------------------------


def shared(accesses: tuple[Access, ...], operand: str, direction: str) -> list[SharedAccess]:
    return [
        access
        for access in accesses
        if isinstance(access, SharedAccess)
        and (access.operand, access.direction) == (operand, direction)
    ]


@pytest.mark.parametrize(("k", "tiles"), [(1, 1), (32, 1), (72, 3), (96, 3), (320, 10), (321, 11)])
def test_executions_of_the_cp_async_pipeline(k: int, tiles: int) -> None:
    problem, config = configure("NT", m=256, n=384, k=k, stages=4)
    ctas = 4 * 6
    assert config.tile == (64, 64, 32)
    accesses = KERNEL.accesses(config, problem)
    for operand in "AB":
        (stores,) = shared(accesses, operand, "store")
        assert (stores.executions, stores.guard) == (ctas * max(tiles, 3), None)
        loads, ahead = shared(accesses, operand, "load")
        assert (loads.executions, ahead.executions) == (ctas * tiles, ctas)
        assert len(loads.offsets) == 2 * len(ahead.offsets)
    staged = [*shared(accesses, "C", "store"), *shared(accesses, "C", "load")]
    assert [access.executions for access in staged] == [ctas * 4] * 2


@pytest.mark.parametrize(("k", "tiles"), [(1, 1), (33, 2), (320, 10)])
def test_executions_of_the_pipeline_of_registers(k: int, tiles: int) -> None:
    problem, config = configure("NT", m=255, n=383, k=k)
    assert config.stages == 2
    for operand in "AB":
        (stores,) = shared(KERNEL.accesses(config, problem), operand, "store")
        # Once more than there are k-tiles, and every lane: zeros, where there is nothing.
        assert (stores.executions, stores.guard) == (4 * 6 * (tiles + 1), None)
        assert (stores.instruction, stores.bits) == ("st.shared", 128)


def test_the_main_loop_leaves_out_what_the_prologue_fills_with_zeros() -> None:
    problem, config = configure("TN", m=200, n=256, k=72, stages=3)
    prologue, main = shared(KERNEL.accesses(config, problem), "A", "store")
    assert (prologue.executions, prologue.guard) == (4 * 4 * 2, None)
    assert main.guard is not None
    assert (main.guard.origin, main.guard.region) == ((0, 40), (200, 32))
    assert not main.zero_fill
    # B has only whole tiles.
    assert len(shared(KERNEL.accesses(config, problem), "B", "store")) == 1


def elements(access: GlobalAccess) -> np.ndarray:
    """(row, column) of every element that one sweep moves; a vector inside moves whole."""
    width = access.bits // 8 // dtype(access.matrix.dtype).bytes
    region, tile = access.region, access.tile
    corners = np.indices([-(-r // t) for r, t in zip(region, tile, strict=True)]).reshape(2, -1)
    first = access.coords.reshape(1, -1, 2) + corners.T[:, None, :] * np.array(tile)
    first = first.reshape(-1, 2)
    first = first[(first < np.array(region)).all(axis=-1)]
    cells = np.repeat(first[:, None, :], width, axis=1)
    cells[..., access.axis] += np.arange(width)
    assert (cells < np.array(region)).all()
    return cells.reshape(-1, 2) + np.array(access.origin)


@pytest.mark.parametrize(
    "given",
    [
        {"dtype": "float16", "k": 250},
        {"dtype": "float16", "k": 248},
        {"dtype": "float32", "compute": "tf32", "k": 65},
        {"dtype": "float64", "k": 33},
        {"dtype": "float32", "k": 7},
        {"dtype": "int8", "k": 100, "m": 140, "n": 76},
    ],
    ids=lambda given: given["dtype"],
)
@pytest.mark.parametrize("op", ["NN", "NT", "TN", "TT"])
def test_every_element_is_moved_once_a_sweep(op: str, given: dict[str, object]) -> None:
    problem, config = configure(op, **{"m": 141, "n": 75, **given})
    accesses = KERNEL.accesses(config, problem, reads_c=True)
    for matrix, direction in (
        (problem.A, "load"),
        (problem.B, "load"),
        (problem.C, "load"),
        (problem.C, "store"),
    ):
        parts = [
            access
            for access in accesses
            if isinstance(access, GlobalAccess)
            and (access.operand, access.direction) == (matrix.name, direction)
        ]
        moved = np.concatenate([elements(access) for access in parts])
        cells = moved[:, 0] * matrix.shape[1] + moved[:, 1]
        assert np.array_equal(np.sort(cells), np.arange(matrix.shape[0] * matrix.shape[1]))
        tiles = {"A": -(-problem.n // config.tile[1]), "B": -(-problem.m // config.tile[0])}
        assert {access.sweeps for access in parts} == {tiles.get(matrix.name, 1)}


def test_without_products_c_is_scaled_element_by_element() -> None:
    problem, config = configure("TN", m=70, n=50, k=0)
    load, store = KERNEL.accesses(config, problem, reads_c=True)
    for access in (load, store):
        assert isinstance(access, GlobalAccess)
        assert (access.operand, access.bits) == ("C", 16)
        assert np.unique(elements(access), axis=0).shape == (70 * 50, 2)
    assert len(KERNEL.accesses(config, problem)) == 1


# ---- as executed --------------------------------------------------------------------------------


def executed(config: CutlassUniversalConfig) -> Accesses:
    """What a CTA of its kernel accesses, for one tile of each operand."""
    (m, n, k), large = config.tile, PROBLEMS[config.name]
    op, order = large.op, "FC"[large.C.major == "N"]
    problem = from_sizes(
        op, m=m, n=n, k=k, dtype=config.dtype, out_dtype=config.out_dtype,
        compute=large.compute if config.dtype == "float32" else None,
        order=order,  # type: ignore[arg-type]
    )  # fmt: skip
    random = np.random.default_rng(m + n)

    def matrix(rows: int, columns: int, kind: str, order: str) -> np.ndarray:
        values = random.integers(-8, 9, (rows, columns))
        return np.asarray(values.astype(dtype(kind).numpy), order=order)  # type: ignore[call-overload]

    A = matrix(*((m, k) if op[0] == "N" else (k, m)), config.dtype, "F")
    B = matrix(*((k, n) if op[1] == "N" else (n, k)), config.dtype, "F")
    C = matrix(m, n, config.out_dtype, order)
    plan: Any = SimpleNamespace(
        problem=problem, steps=steps(KERNEL, config, problem, "sm_80", DIRECT)
    )
    (execution,) = execute(plan, A, B, C, record=True)
    found = execution.accesses
    assert verify(problem, A, B, C).ok and found is not None
    return found


def by_warp(requests: Requests, warps: int, base: int = 0) -> list[Counter[tuple[int, ...]]]:
    """The requests of each warp, each as the addresses of its lanes."""
    rows = (requests.offsets + base).reshape(-1, warps, 32)
    return [counted(rows[:, warp]) for warp in range(warps)]


def counted(rows: np.ndarray) -> Counter[tuple[int, ...]]:
    return Counter(map(tuple, rows.tolist()))


def check_offsets(config: CutlassUniversalConfig) -> None:
    """The requests of the first stage, and all of the epilogue, warp by warp and lane by lane."""
    found, warps = executed(config), config.threads // 32
    mine = [found.of(found.shared & (found.warp == warp)) for warp in range(warps)]
    iterations = epilogue.iterations(config)
    staged = by_warp(epilogue.staged_stores(config), warps)
    read = by_warp(epilogue.staged_loads(config), warps)
    base, rows = 0, 0
    for operand in ("B", "A") if config.swap_ab else ("A", "B"):
        stores, loads = shared_stores(config, operand), fragment_loads(config, operand)
        its = len(stores.offsets.reshape(-1, 32)) // warps
        first = mine[0].addresses[mine[0].store][rows]
        base = int(first[0] - stores.offsets.reshape(-1, 32)[0, 0]) if rows else 0
        for warp, expected in enumerate(by_warp(stores, warps, base)):
            addresses = mine[warp].addresses[mine[warp].store]
            assert counted(addresses[rows : rows + its]) == expected
        for warp, expected in enumerate(by_warp(loads, warps, base)):
            assert not expected - counted(mine[warp].addresses[~mine[warp].store])
        rows += its
    for warp in range(warps):
        stores_of_c = np.flatnonzero(mine[warp].store)[-iterations * staged[warp].total() :]
        assert counted(mine[warp].addresses[stores_of_c]) == scaled(staged[warp], iterations)
        behind = mine[warp].of(np.arange(len(mine[warp])) > stores_of_c[0])
        assert counted(behind.addresses[~behind.store]) == scaled(read[warp], iterations)


def scaled(found: Counter[tuple[int, ...]], factor: int) -> Counter[tuple[int, ...]]:
    return Counter({one: count * factor for one, count in found.items()})


#: One of each math, with two stages and with more.
SOME = {(config.math, config.stages == 2): config for config in CONFIGS.values()}


@pytest.mark.parametrize("config", SOME.values(), ids=lambda config: config.name)
def test_offsets(config: CutlassUniversalConfig) -> None:
    check_offsets(config)


def test_offsets_elsewhere_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    config = SOME["half", False]
    for module, name in ((epilogue, "staged_loads"), (sys.modules[__name__], "fragment_loads")):
        right = getattr(module, name)

        def wrong(*given: Any, right: Any = right) -> Requests:
            requests = right(*given)
            return requests._replace(offsets=requests.offsets[..., ::-1])

        with monkeypatch.context() as patch:
            patch.setattr(module, name, wrong)
            with pytest.raises(AssertionError):
                check_offsets(config)


@pytest.mark.matrix
@every_config
def test_offsets_of_every_config(config: CutlassUniversalConfig) -> None:
    check_offsets(config)


# ---- C++ ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "given", "before", "after"),
    [
        ("TN", {}, "Crosswise<16, 32>", "Crosswise<16, 64>"),
        ("NT", {}, "8, 8, 136, 4, true>", "8, 8, 136, 4, false>"),
        ("NT", {"dtype": "float32"}, "RowMajorInterleaved<1>", "RowMajorInterleaved<2>"),
    ],
)
def test_the_unit_proves_what_python_assumes(
    op: str, given: dict[str, object], before: str, after: str
) -> None:
    emitted = KERNEL.unit(configure(op, **given)[1])
    assert before in emitted.source
    with pytest.raises(CompileError, match="static assertion failed"):
        build(replace(emitted, source=re.sub(re.escape(before), after, emitted.source)), "sm_80")
