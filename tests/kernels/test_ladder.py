"""Test the ladder's kernels: configs, options, coalescing, bank conflicts, builds."""

import re
from dataclasses import fields, replace
from itertools import product
from typing import Any

import pytest
from cases import OPS, ORDERS

import cute_gemm as cg
from cute_gemm.arch import Arch
from cute_gemm.dtypes import FLOAT8
from cute_gemm.errors import OptionError, UnsupportedError
from cute_gemm.kernels import refusals, registry
from cute_gemm.kernels.simt.kernel import SimtKernel
from cute_gemm.kernels.simt.structure import SimtConfig
from cute_gemm.plan.select import select
from cute_gemm.problem.describe import from_sizes
from cute_gemm.problem.problem import GemmProblem
from cute_gemm.rendering.rows import AccessRow, make_row
from cute_gemm.toolchain import sass
from cute_gemm.toolchain.nvrtc import build

CONJUGATES = ("CN", "NC", "CC", "CT", "TC")
ARCHS = ("sm_80", "sm_90a")
DTYPES = ("float32", "float16", "bfloat16", "float64", "complex64", "complex128")
SIMT = tuple(n for n in registry.LADDER[1:] if isinstance(registry.get(n), SimtKernel))
#: Kernels that adapt to the layouts: from this one on.
AWARE = SIMT[1:]
SKEWED = ("bank_free", "warp_tiled", "double_buffered")
SKEWS = ("xor", "padding")

dtypes = pytest.mark.parametrize("dtype", DTYPES)


def problem(op: str = "NN", dtype: str = "float32", size: int = 256, **given: Any) -> GemmProblem:
    return from_sizes(op, **{"m": size, "n": size, "k": size, **given}, dtype=dtype)


def configure(name: str, each: GemmProblem, arch: str = "sm_80", **options: Any) -> Any:
    kernel = registry.get(name)
    refusals.check(kernel, each, arch, options)
    return select(each, arch, name, options).config


def rows(name: str, each: GemmProblem, **options: Any) -> list[AccessRow]:
    config = configure(name, each, **options)
    return [make_row(access) for access in registry.get(name).accesses(config, each)]


def global_(found: list[AccessRow], operand: str) -> AccessRow:
    (row,) = (row for row in found if (row.operand, row.space) == (operand, "global"))
    return row


def test_the_ladder() -> None:
    assert registry.LADDER[0] == "host" and registry.LADDER[-1] == "sm90_wgmma"
    assert registry.LADDER[1:12] == SIMT and SIMT[0] == "naive" and SIMT[-1] == "double_buffered"
    assert registry.LADDER[12] == "tensor_core"
    for name in SIMT:
        kernel = registry.get(name)
        types = tuple(dtype for dtype in kernel.dtypes if dtype not in FLOAT8)
        assert kernel.name == name and types == DTYPES and kernel.runs_on == "gpu"


# -- coalesced ------------------------------------------------------------------------------------


@dtypes
@pytest.mark.parametrize("name", AWARE)
def test_loads_are_coalesced_in_every_op(name: str, dtype: str) -> None:
    for op, order in product(OPS, ORDERS):
        each = problem(op, dtype, 128, order=order)
        for row in rows(name, each):
            if row.space == "global" and row.direction == "load":
                assert row.good, (op, order, row.operand, row.verdict)


@dtypes
def test_naive_is_coalesced_by_luck(dtype: str) -> None:
    """Test a warp along n: lanes read one word of A, and B is coalesced if n is contiguous."""
    for op in OPS:
        found = rows("naive", problem(op, dtype))
        a, b, c = (global_(found, operand) for operand in "ABC")
        assert (a.sectors, a.good) == (1, True)
        assert b.good == (op[1] == "T") and (op[1] == "T" or b.sectors == 32)
        assert (c.sectors, c.good) == (32, False)
        # Along m, A and C may be contiguous.
        found = rows("naive", problem(op, dtype), warp_along="m")
        a, b, c = (global_(found, operand) for operand in "ABC")
        assert (b.sectors, b.good) == (1, True)
        assert a.good == (op[0] == "N") and (op[0] == "N" or a.sectors == 32)
        assert c.good


@pytest.mark.parametrize(("op", "along"), [("NN", "m"), ("NT", "m"), ("TT", "n"), ("TN", "k")])
def test_the_warps_of_coalesced_lie_along_what_is_contiguous(op: str, along: str) -> None:
    assert configure("coalesced", problem(op)).warp_along == along
    found = rows("coalesced", problem(op))
    lanes = {operand: global_(found, operand).sectors for operand in "AB"}
    # 32 adjacent floats are four sectors, and one float for all lanes is one.
    assert lanes == {"A": 4 if along in "mk" else 1, "B": 4 if along in "nk" else 1}


@dtypes
@pytest.mark.parametrize("name", AWARE)
def test_which_stores_of_c_are_coalesced(name: str, dtype: str) -> None:
    """Test which stores are coalesced: adjacent lanes must have adjacent results of C."""
    for op, order in product(OPS, ORDERS):
        (store,) = (
            row for row in rows(name, problem(op, dtype, 128, order=order)) if row.operand == "C"
        )
        if name == "coalesced":  # follows A and B, not C; along k, one lane writes one element
            along = {"NN": "m", "NT": "m", "TT": "n", "TN": "k"}[op]
            good = along in ("k", "m" if order == "F" else "n")
        elif name in ("register_rows", "thread_tile_1d"):  # warps along n, rows of a thread
            good = order == "C"
        elif name in ("vectorized", "bank_free"):  # 16 of the 32 bytes that a thread has in a row
            good = dtype in ("float16", "bfloat16")
        else:
            good = True
        assert store.good == good, (op, order)


@pytest.mark.parametrize("name", SIMT)
def test_a_and_b_at_most_16_bytes_at_a_time_where_asked(name: str) -> None:
    kernel = registry.get(name)
    assert isinstance(kernel, SimtKernel)
    for op in OPS:
        for pad, bits in ((0, 128), (2, 64), (1, 32)):
            ld = {"lda": 256 + pad, "ldb": 256 + pad}
            found = rows(name, problem(op, **ld))
            for operand in "AB":
                row = global_(found, operand)
                assert row.bits == (bits if kernel.wide else 32)
                named = f"ld{operand.lower()}={256 + pad}"
                assert kernel.wide is False or (named in row.limit) == (pad > 0)


# -- bank conflicts -------------------------------------------------------------------------------


def shared(name: str, op: str, order: str, dtype: str, **options: Any) -> list[AccessRow]:
    size = 128 if name == "smem_full_k" else 256
    found = rows(name, problem(op, dtype, size, order=order), **options)
    return [row for row in found if row.space == "shared"]


@pytest.mark.parametrize("skew", SKEWS)
@pytest.mark.parametrize("name", SKEWED)
def test_no_bank_conflicts_with_float32(name: str, skew: str) -> None:
    for op, order in product(OPS, ORDERS):
        found = shared(name, op, order, "float32", skew=skew)
        assert {row.direction for row in found} == {"load", "store"}
        for row in found:
            assert row.good and row.conflicts == 0, (op, order, row.operand, row.direction)


#: Worst verdict on the stores of transposed operands.
STORES = {
    ("bank_free", "xor"): {"complex128": "8-way conflict"},
    ("bank_free", "padding"): {
        "float16": "2-way conflict",
        "float64": "2-way conflict",
        "complex64": "2-way conflict",
    },
    ("warp_tiled", "padding"): {"float16": "2-way conflict"},
    ("double_buffered", "padding"): {"float16": "2-way conflict"},
}


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype != "bfloat16"])
@pytest.mark.parametrize("skew", SKEWS)
@pytest.mark.parametrize("name", SKEWED)
def test_bank_conflicts_of_other_types(name: str, skew: str, dtype: str) -> None:
    """Test that reads have no conflicts. Stores have some if too few lanes are along k."""
    expected = STORES.get((name, skew), {}).get(dtype, "conflict-free")
    for op, order in product(OPS, ORDERS):
        for row in shared(name, op, order, dtype, skew=skew):
            transposed = op[0] == "T" if row.operand == "A" else op[1] == "N"
            stored = row.direction == "store" and transposed and row.instruction == "st.shared"
            assert row.verdict == (expected if stored else "conflict-free"), (
                op,
                order,
                row.operand,
            )


def test_vectorized_has_conflicts() -> None:
    """Test the conflicts that bank_free removes: vectors of adjacent threads are 32 bytes apart."""
    for op, order in product(OPS, ORDERS):
        along = "A" if order == "F" else "B"  # along C's unit stride
        for row in shared("vectorized", op, order, "float32"):
            if row.direction == "load":
                bad = row.operand == along
            else:
                bad = op[0] == "T" if row.operand == "A" else op[1] == "N"
            assert row.verdict == ("2-way conflict" if bad else "conflict-free"), (op, order)
            assert not bad or "bank_free" in row.fix


@pytest.mark.parametrize(
    "name", ["smem_full_k", "smem_tiled", "register_rows", "thread_tile_1d", "thread_tile_2d"]
)
def test_simpler_kernels_have_none(name: str) -> None:
    for op, order in product(OPS, ORDERS):
        assert all(row.good for row in shared(name, op, order, "float32"))


# -- config ---------------------------------------------------------------------------------------


@dtypes
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", SIMT)
def test_defaults_are_legal(name: str, arch: str, dtype: str) -> None:
    for op in OPS:
        each = problem(op, dtype, 64)
        config = configure(name, each, arch)
        launch = registry.get(name).launch(config, each)
        assert launch.block == config.threads and launch.block % 32 == 0
        assert launch.block * config.min_ctas <= 2048
        limit = Arch(arch).shared_limit
        assert launch.smem * (config.min_ctas if name != "smem_full_k" else 1) <= limit


def test_launch() -> None:
    each = problem(m=1000, n=129, k=65)
    config = configure("double_buffered", each)
    launch = registry.get("double_buffered").launch(config, each)
    assert launch.grid == -(-1000 // config.tile[0]) * -(-129 // config.tile[1])
    elements = sum(operand.elements for operand in config.operands)
    assert launch.smem == 2 * 4 * elements
    naive = registry.get("naive").launch(configure("naive", each), each)
    assert (naive.grid, naive.block, naive.smem) == (32 * 5, 1024, 0)


@pytest.mark.parametrize(
    ("size", "tile", "narrow"),
    [
        (2048, (128, 128, 8), (128, 64, 16)),  # 256 CTAs: two for each multiprocessor
        (1792, (128, 64, 16), (128, 64, 16)),  # 196 CTAs would take as long as 256
        (1280, (128, 64, 16), (128, 64, 16)),
        (1152, (64, 64, 16), (64, 64, 16)),
        (448, (32, 16, 32), (32, 16, 32)),
        (48, (32, 16, 32), (32, 16, 32)),
    ],
)
def test_the_tile_of_double_buffered_fills_the_chip(
    size: int, tile: tuple[int, int, int], narrow: tuple[int, int, int]
) -> None:
    for op in OPS:
        each = problem(op, m=size, n=size)
        odd = problem(op, m=size, n=size, lda=8193, ldb=8193, ldc=8193)
        for one, expected in ((each, tile), (odd, narrow)):
            found = configure("double_buffered", one, "sm_90a").tile
            assert (found[0] * found[1], found[2]) == (expected[0] * expected[1], expected[2]), op


def test_double_buffered_takes_large_tiles_for_large_problems() -> None:
    for op, arch in product(OPS, ARCHS):
        each = problem(op, size=4096)
        found = configure("double_buffered", each, arch)
        assert found.tile[0] * found.tile[1] >= 128 * 64, (op, arch)
        # If neither is read in vectors, elements wait in registers.
        odd = problem(op, size=4096, lda=4097, ldb=4097)
        kernel = registry.get("double_buffered")
        assert isinstance(kernel, SimtKernel)
        thread_tiles = {one.thread_tile for one in kernel.legal(each, Arch(arch), {})}
        narrow = {one.thread_tile for one in kernel.legal(odd, Arch(arch), {})}
        assert narrow == thread_tiles - {(8, 16)} != thread_tiles


def test_a_given_tile_of_double_buffered_is_the_one_that_is_chosen_from() -> None:
    kernel = registry.get("double_buffered")
    assert isinstance(kernel, SimtKernel)
    for op in OPS:
        for ld in (4096, 4097):
            each = problem(op, size=4096, lda=ld, ldb=ld)
            for own in kernel.legal(each, Arch("sm_90a"), {}):
                tile, thread_tile = ("x".join(map(str, x)) for x in (own.tile, own.thread_tile))
                found = configure("double_buffered", each, tile=tile, thread_tile=thread_tile)
                assert own == found
                alike = [x for x in kernel.legal(each, Arch("sm_90a"), {}) if x.tile == own.tile]
                assert configure("double_buffered", each, tile=tile) in alike


def test_beside_any_other_tile_double_buffered_is_as_for_a_large_problem() -> None:
    config = configure("double_buffered", problem(size=64), thread_tile="8x8")
    assert (config.tile, config.min_ctas) in (((128, 64, 16), 2), ((64, 128, 16), 2))
    config = configure("double_buffered", problem(size=64), thread_tile="4x16")
    assert (config.tile, config.min_ctas) == ((128, 128, 8), 1)
    config = configure("double_buffered", problem(size=64), tile="128x256x8")
    assert (config.thread_tile, config.min_ctas) == ((8, 16), 1)
    with pytest.raises(OptionError, match="with min_ctas=2 needs 128 registers .* has 128"):
        configure("double_buffered", problem(size=64), tile="128x256x8", min_ctas=2)
    # With another tile than the default, min_ctas is not the default either.
    wide = problem(size=64, lda=65)
    assert configure("warp_tiled", wide).min_ctas == 3
    assert configure("warp_tiled", wide, tile="256x128x64").min_ctas == 1
    # Registers alone do not restrict the tile.
    config = configure("double_buffered", problem(size=64))
    assert config.min_ctas == 4
    assert configure("double_buffered", problem(size=64), min_ctas=3) == replace(config, min_ctas=3)


def test_smem_full_k_refuses_a_k_that_does_not_fit() -> None:
    for arch, dtype, order in product(ARCHS, ("float32", "float16", "complex128"), ("NT", "TN")):
        with pytest.raises(
            UnsupportedError,
            match=r"k=100000 needs \d+ bytes of shared memory in kernel 'smem_full_k'",
        ) as caught:
            configure("smem_full_k", problem(order, dtype, k=100000), arch)
        text = str(caught.value)
        assert "smem_tiled" in text
        number = re.search(r"k up to (\d+) fits", text)
        assert number
        most = int(number[1])
        configure("smem_full_k", problem(order, dtype, k=most), arch)
        with pytest.raises(UnsupportedError):
            configure("smem_full_k", problem(order, dtype, k=most + 1), arch)
        tile = configure("smem_full_k", problem(order, dtype, k=1), arch).tile
        assert most % tile[2] == 0


#: A legal value of each option that differs from the default, or from that of some kernels.
OTHER: dict[str, Any] = {
    "tile": "64x128x16", "thread_tile": (8, 4), "skew": "padding", "staging": "registers",
    "raster": 4, "min_ctas": "3", "warp_along": "m",
}  # fmt: skip
OF_KERNEL: dict[tuple[str, str], Any] = {
    ("naive", "tile"): "16x32x1", ("coalesced", "tile"): "16x32x1",
    ("coalesced", "warp_along"): "n", ("smem_full_k", "tile"): "16x16x16",
    ("smem_tiled", "tile"): "16x16x16", ("register_rows", "tile"): "32x32x32",
    ("register_rows", "thread_tile"): (4, 1), ("thread_tile_1d", "tile"): "32x32x8",
    ("thread_tile_1d", "thread_tile"): (16, 1), ("warp_tiled", "skew"): "xor",
    ("double_buffered", "skew"): "xor", ("double_buffered", "thread_tile"): (16, 8),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "option"), [(name, o) for name in SIMT for o in registry.get(name).options]
)
def test_options(name: str, option: str) -> None:
    value = OF_KERNEL.get((name, option), OTHER[option])
    each = problem(size=64)
    base, other = configure(name, each), configure(name, each, **{option: value})
    assert getattr(base, option) != getattr(other, option)
    assert base.name != other.name
    assert other == configure(name, each, **{option: getattr(other, option)})


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("naive", {"raster": 4}, r"option 'raster' is not one of kernel 'naive'; expected warp_al"),
        ("smem_tiled", {"skew": "xor"}, r"option 'skew' is not one of"),
        ("warp_tiled", {"staging": "cp.async"}, r"option 'staging' is not one of"),
        ("bank_free", {"dtype": "float16"}, r"option 'dtype' is not one of"),
        ("naive", {"warp_along": "k"}, r"warp_along='k' is unknown; expected one of m, n"),
        ("coalesced", {"warp_along": "x"}, r"warp_along='x' is unknown; expected one of m, n, k"),
        ("bank_free", {"skew": "none"}, r"skew='none' is unknown; expected one of xor, padding"),
        ("double_buffered", {"staging": "tma"}, r"staging='tma' is unknown; expected one of cp.as"),
        ("naive", {"tile": (24, 32, 1)}, r"tile=\(24, 32, 1\): each extent must be a power of two"),
        ("naive", {"tile": (32, 32)}, r"tile=\(32, 32\) does not fit; expected 3 integers"),
        ("naive", {"tile": "big"}, r"tile='big' does not fit; expected 3 integers"),
        ("naive", {"tile": (64, 32, 1)}, r"makes 2048 threads; expected 32 to 1024"),
        ("naive", {"tile": (32, 32, 8)}, r"has no tile along k; expected tile=\(32, 32, 1\)"),
        (
            "coalesced",
            {"tile": (8, 4, 1), "warp_along": "k"},
            r"warp_along='k' computes each result by a warp; expected tile=\(8, 4, 32\)",
        ),
        ("coalesced", {"tile": (16, 4, 32), "warp_along": "k"}, r"makes 2048 threads; expected 32"),
        ("naive", {"tile": (4, 4, 1)}, r"makes 16 threads; expected 32 to 1024"),
        ("register_rows", {"thread_tile": (3, 1)}, r"thread_tile=\(3, 1\): each extent must be a"),
        ("thread_tile_2d", {"thread_tile": (256, 1)}, r"with thread_tile=\(256, 1\) makes"),
        (
            "thread_tile_2d",
            {"thread_tile": (16, 16)},
            r"needs 256 registers for the accumulators of a thread, which has 255",
        ),
        ("warp_tiled", {"tile": (256, 16, 16)}, r"must consist of warp tiles of 64 x 32"),
        ("vectorized", {"tile": (512, 64, 16)}, r"M and N at most 256"),
        ("vectorized", {"tile": (64, 64, 128)}, r"K at most 64"),
        ("smem_tiled", {"tile": (32, 32, 4)}, r"M x K must be 1024 elements \(one for each thread"),
        ("thread_tile_2d", {"raster": 0}, r"raster and min_ctas must be 1 or more"),
        ("naive", {"min_ctas": -1}, r"raster and min_ctas must be 1 or more"),
        ("naive", {"min_ctas": 1.5}, r"min_ctas=1.5 does not fit; expected an integer"),
        ("bank_free", {"skew": 3}, r"skew=3 does not fit; expected a name"),
        ("register_rows", {"thread_tile": (0, 1)}, r"each extent must be a power of two"),
    ],
)
def test_bad_options(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        configure(name, problem(), **options)


@pytest.mark.parametrize(
    ("name", "tile", "own", "skew"),
    [
        ("bank_free", (16, 64, 16), (8, 2), "padding"),
        ("warp_tiled", (8, 32, 8), (1, 4), "xor"),
        ("double_buffered", (32, 64, 32), (2, 8), "xor"),
    ],
)
def test_a_tile_too_small_for_its_skew(
    name: str, tile: tuple[int, int, int], own: tuple[int, int], skew: str
) -> None:
    """Test that every legal config can be emitted, and that errors name the option."""
    for dtype, op in product(DTYPES, OPS):
        each = problem(op, dtype)
        try:
            config = configure(name, each, tile=tile, thread_tile=own, skew=skew)
        except OptionError:
            continue
        registry.get(name).unit(config)


def test_a_tile_that_does_not_fit_shared_memory() -> None:
    with pytest.raises(OptionError, match=r"needs \d+ bytes of shared memory; sm_86 has 101376"):
        configure(
            "double_buffered", problem("NN", "complex128"), "sm_86", tile=(128, 64, 32),
            thread_tile=(4, 4),
        )  # fmt: skip


@pytest.mark.parametrize("name", SIMT)
def test_what_is_refused(name: str) -> None:
    with pytest.raises(UnsupportedError, match=rf"kernel '{name}' does not take int8 with"):
        configure(name, problem("NN", "int8"))
    with pytest.raises(UnsupportedError, match="does not take float32 with compute='tf32'"):
        configure(name, problem("NN", compute="tf32"))
    with pytest.raises(UnsupportedError, match="needs sm_80 or newer; arch is 'sm_75'"):
        configure(name, problem(), "sm_75")
    with pytest.raises(UnsupportedError, match=r"m=2147483647.*up to 2\*\*31 - 1 - "):
        configure(name, problem("NT", m=2**31 - 1, n=1, k=1))


def test_tensor_core_is_sm80_pipeline_with_one_stage() -> None:
    kernel = registry.get("tensor_core")
    config = configure("tensor_core", problem("TN", "float16"))
    assert (config.kernel, config.stages) == ("tensor_core", 1)
    other = configure("sm80_pipeline", problem("TN", "float16"))
    assert config.name != other.name
    with pytest.raises(OptionError, match="option 'stages' is not one of kernel 'tensor_core'"):
        refusals.check(kernel, problem("TN", "float16"), "sm_80", ("stages",))
    for dtype in ("float32", "complex64"):
        with pytest.raises(UnsupportedError, match=f"'tensor_core' does not take {dtype} with"):
            refusals.check(kernel, problem("TN", dtype), "sm_80")


@pytest.mark.parametrize(
    ("dtype", "compute"),
    [("float16", None), ("bfloat16", None), ("float32", "tf32"), ("float64", None), ("int8", None)],
)
@pytest.mark.parametrize("arch", ARCHS)
def test_tensor_core_is_fast_in_every_op(arch: str, dtype: str, compute: str | None) -> None:
    for op, order in product(OPS, ORDERS):
        report = cg.analyze(op, m=512, n=512, k=256, dtype=dtype, compute=compute, order=order,
                            kernel="tensor_core", arch=arch)  # fmt: skip
        assert all(view.coalesced for view in report.operands), report.findings
        assert report["A"].conflict_free and report["B"].conflict_free, report.findings
        # Nothing is read in vain: each k-tile has its own blocks.
        for row in report.rows:
            if row.space == "shared" and row.direction == "load" and row.operand != "C":
                assert row.unit == "k-tile" and row.part == ""


# -- names ----------------------------------------------------------------------------------------

#: A value of each field that differs from the default of double_buffered.
FIELDS: dict[str, Any] = {
    "kernel": "warp_tiled", "tile": (64, 64, 8), "thread_tile": (8, 8), "warps": (4, 1),
    "skew": "xor", "staging": "registers", "raster": 4, "min_ctas": 1,
    "operation": problem("NT", "float64").operation(16, 16, 16),
}  # fmt: skip


@pytest.mark.parametrize("field", [field.name for field in fields(SimtConfig)])
def test_every_field_is_in_the_symbol(field: str) -> None:
    base = configure("double_buffered", problem("NT"))
    if field in ("warp_along", "results"):  # kernel and other fields determine these
        naive = configure("naive", problem("NT"))
        other = configure("naive", problem("NT"), warp_along="m")
        assert naive.name != other.name
        return
    assert getattr(base, field) != FIELDS[field]
    assert replace(base, **{field: FIELDS[field]}).name != base.name


@pytest.mark.parametrize("size", [256, 255])
def test_every_config_has_a_symbol_of_its_own(size: int) -> None:
    found: dict[str, SimtConfig] = {}
    configs = set()
    for name, dtype, op, order in product(SIMT, DTYPES, (*OPS, *CONJUGATES), ORDERS):
        if set(op) & {"C"} and not dtype.startswith("complex"):
            continue
        each = problem(op, dtype, size if name != "smem_full_k" else 64, order=order)
        variants: list[dict[str, Any]] = [{}]
        if name in SKEWED:
            variants = [{"skew": skew} for skew in SKEWS]
        for variant in variants:
            kernel = registry.get(name)
            assert isinstance(kernel, SimtKernel)
            for config in kernel.legal(each, Arch("sm_80"), variant):
                configs.add(config)
                found[config.name] = config
    assert len(found) == len(configs) > 11 * 6 * 8
    assert all(re.fullmatch(r"[a-z0-9_]+", name) for name in found)


def test_out_dtype() -> None:
    for dtype in ("float16", "bfloat16"):
        each = problem("NN", dtype, out_dtype="float32")
        for name in SIMT:
            if name != "smem_full_k":
                config = configure(name, each)
                assert config.operation.dtypes == (dtype, dtype, "float32")


# -- NVRTC ----------------------------------------------------------------------------------------


def builds(name: str, each: GemmProblem, arch: str, **options: Any) -> None:
    kernel = registry.get(name)
    config = configure(name, each, arch, **options)
    unit = kernel.unit(config)
    family = "simt" if name in SIMT else "sm80"
    assert unit.symbol == config.name
    *instruction, template = re.findall(r"#include (.*)", unit.source)
    assert template == f'"{family}/{name}.cuh"' and "$" not in unit.source
    assert len(instruction) == (family == "sm80")
    built = build(unit, arch)  # raises for spills
    launch = kernel.launch(config, each)
    assert 0 < built.resources.registers * launch.block * config.min_ctas <= 65536
    # All indices are known to the compiler.
    spilled = name == "vectorized" and built.resources.spill_stores
    assert built.resources.stack == 0 or spilled


@pytest.mark.parametrize(
    ("name", "op", "dtype"),
    [
        ("naive", "TN", "float64"), ("coalesced", "CN", "complex128"),
        ("smem_full_k", "NT", "bfloat16"), ("smem_tiled", "TT", "float32"),
        ("register_rows", "NN", "float16"), ("thread_tile_1d", "TN", "float32"),
        ("thread_tile_2d", "NC", "complex64"), ("vectorized", "TN", "float32"),
        ("bank_free", "NN", "float32"), ("warp_tiled", "TT", "float64"),
        ("double_buffered", "NN", "float32"), ("double_buffered", "TT", "float32"),
        ("double_buffered", "CC", "complex64"), ("tensor_core", "TN", "float16"),
    ],
)  # fmt: skip
def test_nvrtc_builds(name: str, op: str, dtype: str) -> None:
    index = list(DTYPES).index(dtype)
    size = 4096 if op == "TT" else 128
    builds(name, problem(op, dtype, size, order=ORDERS[index % 2]), ARCHS[index % 2])


@pytest.mark.parametrize(
    ("op", "order", "pads"),
    [("NT", "C", (1, 2, 2)), ("NT", "F", (1, 1, 2)), ("TN", "C", (0, 0, 2))],
)
def test_vectorized_builds_with_mixed_alignments(op: str, order: str, pads: Any) -> None:
    """Test the layouts with the most registers, which spill some bytes."""
    lda, ldb, ldc = (256 + pad for pad in pads)
    builds("vectorized", problem(op, order=order, lda=lda, ldb=ldb, ldc=ldc), "sm_90a")


@pytest.mark.parametrize(("op", "arch"), [("TN", "sm_90a"), ("TT", "sm_80")])
def test_single_halves_are_not_read_by_the_byte(op: str, arch: str) -> None:
    """Test a copy through registers of operands with an odd leading dimension."""
    each = problem(op, "float16", lda=257, ldb=257)
    kernel = registry.get("double_buffered")
    unit = kernel.unit(configure(kernel.name, each, arch))
    code = sass.disassemble(build(unit, arch).cubin)
    loads = " ".join(opcode for opcode in sass.instructions(code) if opcode.startswith("LDG"))
    assert "LDG.E.U16" in loads and "U8" not in loads


@pytest.mark.matrix
@pytest.mark.parametrize("name", [*SIMT, "tensor_core"])
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(("op", "order"), list(product(OPS, ORDERS)))
@pytest.mark.parametrize("dtype", [*DTYPES, "tf32", "int8"])
def test_nvrtc_builds_everything(dtype: str, op: str, order: str, arch: str, name: str) -> None:
    types: dict[str, Any] = {"compute": "tf32"} if dtype == "tf32" else {}
    each = problem(op, "float32" if types else dtype, 128, order=order, **types)
    if dtype.startswith("complex") and order == "C":
        each = problem(op.replace("T", "C"), dtype, 128, order=order)
    taken = registry.get(name).dtypes
    if (f"float32/{dtype}" if types else dtype) not in taken:
        with pytest.raises(UnsupportedError):
            refusals.check(registry.get(name), each, arch)
        return
    builds(name, each, arch)


@pytest.mark.matrix
@pytest.mark.parametrize("name", [n for n in SIMT if n in ("vectorized", *SKEWED)])
@pytest.mark.parametrize("pad", [1, 2, 4])
@pytest.mark.parametrize("op", OPS)
@dtypes
def test_nvrtc_builds_narrow_accesses_and_options(dtype: str, op: str, pad: int, name: str) -> None:
    for order, *pads in product(ORDERS, *((0, pad, 2 * pad),) * 3):
        lda, ldb, ldc = (128 + pad for pad in pads)
        builds(name, problem(op, dtype, 128, order=order, lda=lda, ldb=ldb, ldc=ldc), "sm_90a")
    order = ORDERS[OPS.index(op) % 2]
    if name == "double_buffered":
        builds(name, problem(op, dtype, 128, order=order), "sm_90a", staging="registers")
    if name in SKEWED:
        for skew in SKEWS:
            builds(name, problem(op, dtype, 128, order=order), "sm_90a", skew=skew)


@pytest.mark.matrix
@pytest.mark.parametrize("pads", [(0, 0, 0), (1, 1, 1), (1, 0, 0), (0, 2, 1), (2, 1, 4)])
@pytest.mark.parametrize("size", [256, 1024, 4096])
@pytest.mark.parametrize(("op", "order"), list(product(OPS, ORDERS)))
def test_nvrtc_builds_every_tile_of_double_buffered(
    op: str, order: str, size: int, pads: tuple[int, int, int]
) -> None:
    lda, ldb, ldc = (size + pad for pad in pads)
    each = problem(op, "float32", size, order=order, lda=lda, ldb=ldb, ldc=ldc)
    builds("double_buffered", each, "sm_90a")
    builds("double_buffered", each, "sm_80")
