"""Test ``sm90_wgmma``: config, launch, accesses, emitted unit, proof, build."""

import ctypes
import re
import struct
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import fields, replace
from itertools import product
from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import sass_claims
from altered import altered
from cases import OPS, ORDERS, problem

import cute_gemm as cg
from cute_gemm.access import smem, tma
from cute_gemm.access.accesses import GlobalAccess, SharedAccess, TmaAccess
from cute_gemm.arch import Arch
from cute_gemm.cute.atoms import COLUMNS
from cute_gemm.errors import CompileError, OptionError, UnsupportedError
from cute_gemm.kernels import refusals
from cute_gemm.kernels.sm90.structure import MOST_COLUMNS, Sm90Config
from cute_gemm.kernels.sm90.unit import OTHER_COLUMNS, EmitSm90Wgmma
from cute_gemm.kernels.sm90.wgmma import STEP, Sm90Wgmma
from cute_gemm.plan.select import select
from cute_gemm.problem.problem import GemmProblem
from cute_gemm.run import tensormap
from cute_gemm.run.tensormap import SIZE, TensorMap, TensorMaps
from cute_gemm.toolchain.nvrtc import build, prove, ptx

KERNEL = Sm90Wgmma()
#: Bounds of the tiles of a launch, and of rows or columns of C, which are counted in 32 bits.
MOST_TILES, MOST_EXTENT = 2**31 - 1025, 2**31 - 2048
ARCH = Arch("sm_90a")
SMALL = {"tile": (64, 64, 64), "warp_groups": 1, "stages": 2, "cluster": (1, 1), "swap_ab": 0}


def configure(asked: GemmProblem, **options: Any) -> Sm90Config:
    found: Sm90Config = select(asked, ARCH, KERNEL.name, options).config
    return found


#: A sample of op, order, types, ldc and options.
SPREAD: tuple[tuple[str, str, str, str | None, int, dict[str, Any]], ...] = (
    ("TN", "F", "bfloat16", None, 4096, {"tile": (128, 256, 64), "swap_ab": 0, "cluster": "2x1"}),
    ("NT", "F", "float16", None, 4096, {"tile": (256, 128, 64), "swap_ab": 1, "cluster": (1, 1)}),
    (
        "NN", "C", "float16", "float32", 4096,
        {"tile": (192, 192, 64), "warp_groups": 3, "swap_ab": 0},
    ),
    ("TT", "F", "bfloat16", None, 4099, {"tile": (128, 256, 64), "warp_groups": 2, "swap_ab": 0}),
    ("NT", "C", "bfloat16", "float32", 4099, {"tile": (16, 128, 64), "swap_ab": 1}),
    ("NN", "F", "float16", "float32", 4096, {"tile": (64, 96, 64), "warp_groups": 1, "swap_ab": 0}),
    ("NT", "C", "float16", None, 4096, {"tile": (64, 32, 64), "warp_groups": 1, "min_ctas": 2}),
    (
        "TN", "F", "float16", None, 4096,
        {"tile": (128, 160, 64), "warp_groups": 2, "ping_pong": 1, "swap_ab": 0, "cluster": (2, 4)},
    ),
    ("NT", "C", "bfloat16", None, 4096, {"tile": (320, 128, 64), "warp_groups": 2, "swap_ab": 0}),
    (
        "TN", "F", "bfloat16", "float32", 4096,
        {"tile": (112, 128, 64), "warp_groups": 2, "swap_ab": 1, "cluster": (1, 2)},
    ),
    ("TN", "F", "tf32", None, 4096, {"tile": (176, 128, 32), "ping_pong": 1, "swap_ab": 1}),
    ("TN", "C", "tf32", None, 4099, {"tile": (128, 256, 32), "swap_ab": 0, "cluster": (2, 1)}),
    ("NN", "F", "tf32", None, 4096, {"tile": (128, 256, 32), "swap_ab": 0, "cluster": (2, 1)}),
    ("TT", "F", "tf32", None, 4100, {"tile": (144, 128, 32), "ping_pong": 1, "swap_ab": 1}),
    ("NN", "C", "tf32", None, 4099, {"tile": (192, 64, 64), "warp_groups": 2, "swap_ab": 0}),
    ("NN", "F", "int8", None, 4096, {"tile": (128, 256, 128), "swap_ab": 0, "warp_groups": 2}),
    ("TT", "C", "int8", None, 4099, {"tile": (96, 128, 256), "ping_pong": 1, "swap_ab": 1}),
    ("TN", "C", "int8", None, 4096, {"tile": (128, 192, 128), "ping_pong": 1, "swap_ab": 0}),
    ("TN", "F", "int8", None, 4099, {"tile": (64, 64, 256), "swap_ab": 0, "cluster": (1, 2)}),
)  # fmt: skip
spread = pytest.mark.parametrize(
    "case", SPREAD, ids=lambda case: "-".join(map(str, case[:5])).replace("None", "same")
)


def of_spread(case: Any) -> tuple[GemmProblem, Sm90Config]:
    op, order, dtype, out, ldc, options = case
    asked = problem(op, 4096, order=order, dtype=dtype, out_dtype=out, ldc=ldc)
    if "min_ctas" in options:
        options = {**options, "swap_ab": 0, "stages": 5}
    return asked, configure(asked, **options)


# -- accesses -------------------------------------------------------------------------------------


def has_descriptor(access: Any) -> bool:
    """Return whether wgmma has a descriptor for the box: rows of the swizzle span, or 16 bytes."""
    row = access.box[access.matrix.unit] * access.matrix.element.bytes
    return max(row, access.swizzle) == (access.swizzle or 16)


@pytest.mark.parametrize("out", ["float16", "float32"])
@pytest.mark.parametrize(("op", "order"), [*product(OPS, ORDERS)])
def test_every_layout_goes_straight_to_wgmma(op: str, order: Any, out: str) -> None:
    asked = problem(op, order=order, out_dtype=out)
    for config in KERNEL.legal(asked, ARCH, {}):
        for access in KERNEL.accesses(config, asked, reads_c=True):
            if isinstance(access, TmaAccess):
                found = tma.analyze(access)
                assert found.legal and found.coalesced and found.ways == 1, (config, found)
                assert access.operand == "C" or has_descriptor(access)
                continue
            assert isinstance(access, SharedAccess)
            counts = smem.analyze(access).launch
            # Two columns of float32 for a lane of a row-major part take one more wavefront.
            pairs = access.instruction in ("st.shared", "ld.shared") and access.bits == 64
            assert counts.conflicts == 0 or pairs, (config, access)


@pytest.mark.parametrize("dtype", ["tf32", "int8"])
def test_operands_along_k_go_straight_to_wgmma(dtype: str) -> None:
    asked = problem("TN", dtype=dtype)
    for config in KERNEL.legal(asked, ARCH, {}):
        a, read_a, b, read_b, *_ = KERNEL.accesses(config, asked)
        for load, read in ((a, read_a), (b, read_b)):
            found = tma.analyze(load)  # type: ignore[arg-type]
            assert found.legal and found.coalesced and found.ways == 1 and has_descriptor(load), (
                config
            )
            assert smem.analyze(read).launch.conflicts == 0  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("op", "order", "dtype"), [*product(("NN", "TT"), ORDERS, ("tf32", "int8"))]
)
def test_one_operand_goes_through_registers(op: str, order: Any, dtype: str) -> None:
    asked = problem(op, dtype=dtype, order=order)
    size = asked.factor.bytes
    configs = [*KERNEL.legal(asked, ARCH, {})]
    # wgmma reads the operand along K from shared memory, and the threads read the other one.
    assert configs and {config.swap_ab for config in configs} == {int(op == "TT")}
    for config in configs:
        a, rows, b, read, *_ = KERNEL.accesses(config, asked)
        assert (a.operand, b.operand) == (("A", "B") if op == "NN" else ("B", "A"))
        for load in (a, b):
            found = tma.analyze(load)  # type: ignore[arg-type]
            assert found.legal and found.coalesced and found.ways == 1, (config, found)
        assert isinstance(rows, SharedAccess) and isinstance(read, SharedAccess)
        assert (rows.instruction, read.instruction) == ("ld.shared", "wgmma")
        assert rows.bits == 2 * 8 * size  # two rows side by side
        counts = smem.analyze(rows).launch
        # Two lanes of bytes share a word.
        assert counts.conflicts == 0 and counts.wavefronts == counts.requests * max(1, size // 2)
        # Each group with other columns of the same rows reads each element of a stage once.
        tile = config.kernel_tile
        tiles, groups = 4096**3 // prod(tile), tile[1] // config.columns
        if all(4096 % extent == 0 for extent in tile):
            assert counts.bytes == size * tiles * groups * tile[0] * tile[2]
        along_k = replace(config.operation, majors=("K", "K", "M"))
        assert config.register_a and not replace(config, operation=along_k).register_a


def test_rows_of_a_leave_fewer_registers_for_sums() -> None:
    options = {"tile": (128, 160, 32), "warp_groups": 2, "ping_pong": 1, "swap_ab": 0}
    configure(problem(dtype="tf32"), **options)
    with pytest.raises(OptionError, match="needs 160 registers .* about 88 more; it has 232"):
        configure(problem("NN", dtype="tf32"), **options)


def test_the_traffic_of_a_tile() -> None:
    asked = problem(size=1024)
    config = configure(
        asked, tile=(128, 256, 64), swap_ab=0, cluster=(2, 1), warp_groups=2, ping_pong=0
    )
    a, read_a, b, read_b, staged, store = KERNEL.accesses(config, asked)
    assert (a.box, a.sweeps, a.multicast) == ((128, 64), 4, 1)  # type: ignore[union-attr]
    assert (b.box, b.sweeps, b.multicast) == ((128, 64), 8, 2)  # type: ignore[union-attr]
    assert tma.analyze(a).launch.bytes == 4 * 2 * 1024**2  # type: ignore[arg-type]
    assert tma.analyze(b).launch.bytes == 4 * 2 * 1024**2  # type: ignore[arg-type]
    assert (store.direction, store.box) == ("store", (64, 64))  # type: ignore[union-attr]
    tiles, k_tiles = 8 * 4, 1024 // 64
    # A wavefront is 128 bytes. B is read for each 64 rows of A.
    waves = [smem.analyze(one).launch.wavefronts for one in (read_a, read_b, staged)]  # type: ignore
    assert waves == [tiles * k_tiles * n for n in (128, 2 * 256)] + [tiles * 128 * 256 * 2 // 128]


def test_the_report_knows_what_tma_writes_to_shared_memory() -> None:
    options = {"tile": (128, 256, 64), "swap_ab": 0, "warp_groups": 2}
    for cluster in ((1, 1), (2, 1), (1, 2)):
        plan = cg.plan("TN", m=1024, n=1024, k=1024, dtype="float16", arch="sm_90a", backend="cpu",
                       kernel="sm90_wgmma", **options, cluster=cluster)  # fmt: skip
        per = plan.report().performance.per_result
        # Bytes that arrive: each CTA of a cluster loads a part of A and B, and receives all.
        assert per.global_loads == per.shared_stores == 1024 / 256 + 1024 / 128
        assert per.shared_loads == 1024 / 256 + 1024 / 64
    explained = cg.plan("TN", m=1024, n=1024, k=1024, dtype="float16", arch="sm_90a",
                        backend="cpu", kernel="sm90_wgmma").report()  # fmt: skip
    assert "TMA" in str(explained) and "L1" not in str(explained).partition("Predicted")[2]


def test_a_c_that_tma_does_not_take_goes_element_by_element() -> None:
    for changed in ({"ldc": 4097}, {"m": 4090, "lda": 4096, "ldc": 4096}):
        asked = problem("NN", **changed)
        config = configure(asked, **SMALL)
        *_, store = KERNEL.accesses(config, asked)
        assert isinstance(store, GlobalAccess) and store.bits == 16 and not config.tma_c
        seen = store.coords.reshape(-1, 2)
        assert len(np.unique(seen, axis=0)) == len(seen) == 64 * 64
        assert "tma" not in config.name


def test_a_cluster_beyond_the_matrix_is_counted() -> None:
    asked = problem(m=64 * 3, n=64, k=64)
    one, two = (configure(asked, **(SMALL | {"cluster": (n, 1)})) for n in (1, 2))
    alone, together = (KERNEL.accesses(config, asked) for config in (one, two))
    assert [x[3].executions for x in (alone, together)] == [3, 4]  # type: ignore[union-attr]
    # The CTA of the fourth tile loads B for the third, and the first tile of A instead of its own.
    loads = [x for x in together if isinstance(x, TmaAccess) and x.direction == "load"]
    boxes = [tma.analyze(x).launch for x in loads]
    assert [(x.operand, x.part) for x in loads] == [
        ("A", ""), ("B", ""), ("A", "in place of tiles outside of C")
    ]  # fmt: skip
    assert [found.requests for found in boxes] == [3, 4, 1]
    assert [found.bytes for found in boxes] == [3 * 64 * 64 * 2, 2 * 64 * 64 * 2, 64 * 64 * 2]


# -- config and launch ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"warp_groups": 4}, "warp_groups=4 is out of range; expected 1 to 3"),
        ({"stages": 1}, "stages=1 is out of range"),
        ({"cluster": (3, 1)}, "cluster=(3, 1); expected 1, 2 or 4 each, at most 8 CTAs"),
        ({"cluster": (4, 4)}, "cluster=(4, 4); expected 1, 2"),
        ({"cluster": 2}, "cluster=2 does not fit; expected 2 integers"),
        ({"swap_ab": 2}, "swap_ab=2 is out of range; expected 0 or 1"),
        ({"ping_pong": 2}, "ping_pong=2 is out of range"),
        ({"ping_pong": 1, "warp_groups": 1}, "ping_pong=1 needs warp_groups=2; it is 1"),
        ({"raster": 0}, "raster and min_ctas must be 1 or more"),
        (
            {"tile": (96, 64, 64), "warp_groups": 1, "swap_ab": 0},
            "M extent must be a multiple of 64",
        ),
        (
            {"tile": (64, 96, 64), "warp_groups": 1, "swap_ab": 1},
            "N extent must be a multiple of 64",
        ),
        (
            {"tile": (64, 168, 64), "warp_groups": 1, "swap_ab": 0},
            "its N extent must be a multiple of 16 up to 256; it is 168",
        ),
        (
            {"tile": (64, 48, 64), "warp_groups": 2, "swap_ab": 0, "ping_pong": 0},
            "its N extent must be a multiple of 32 up to 512; it is 48",
        ),
        (
            {"tile": (64, 16, 64), "warp_groups": 1, "swap_ab": 0, "cluster": (4, 1)},
            "each CTA loads a part of 16, which must be a multiple of 8",
        ),
        ({"tile": (64, 64, 32), "warp_groups": 1, "swap_ab": 0}, "its K extent must be 64 or 128"),
        (
            {"tile": (256, 256, 64), "warp_groups": 2, "swap_ab": 0, "ping_pong": 0},
            "needs 256 registers of a thread",
        ),
        (
            {"tile": (128, 256, 64), "warp_groups": 2, "swap_ab": 0, "stages": 5, "ping_pong": 0},
            "take fewer stages",
        ),
    ],
)
def test_what_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=re.escape(said)):
        configure(problem(), **options)


def test_c_that_goes_by_elements_leaves_fewer_registers_for_sums() -> None:
    options = {"tile": (128, 192, 64), "warp_groups": 2, "ping_pong": 1, "swap_ab": 0}
    assert configure(problem(), **options).tma_c
    with pytest.raises(OptionError, match="needs 192 registers .* 128 can be accumulators"):
        configure(problem(ldc=4099), **options)


def test_what_the_kernel_does_not_take() -> None:
    with pytest.raises(UnsupportedError, match=r"needs sm_90a; arch is 'sm_90'"):
        refusals.check(KERNEL, problem(), "sm_90")
    with pytest.raises(
        UnsupportedError, match=r"those of A are not, because of lda=4098 \(8196 B\): pack it"
    ):
        configure(problem(lda=4098))
    with pytest.raises(UnsupportedError, match="does not take float32"):
        refusals.check(KERNEL, problem(dtype="float32"), ARCH)
    for op, dtype, said in (
        ("NT", "tf32", "'sm90_wgmma' with swap_ab=1 takes float32/tf32 with K as the unit-stride "
         "mode of A, and that is M: pack it, with option pack='A' or 'AB'"),
        ("NT", "int8", "'sm90_wgmma' with swap_ab=1 takes int8 with K as the unit-stride mode of "
         "A, and that is M: pack it"),
    ):  # fmt: skip
        with pytest.raises(UnsupportedError, match=re.escape(said)):
            configure(problem(op, dtype=dtype))
    with pytest.raises(UnsupportedError, match="with swap_ab=1 .* mode of A, and that is M"):
        configure(problem("NN", dtype="tf32"), swap_ab=1)
    with pytest.raises(OptionError, match="swap_ab=2 is out of range"):
        configure(problem("TT", dtype="tf32"), swap_ab=2)
    for dtype, said in (("tf32", "32 or 64; it is 128"), ("int8", "128 or 256; it is 64")):
        deep = 128 if dtype == "tf32" else 64
        with pytest.raises(OptionError, match=f"its K extent must be {said}"):
            configure(problem(dtype=dtype), tile=(128, 128, deep))


def test_auto_takes_it_where_tma_takes_the_operands() -> None:
    for op, order in product(OPS, ORDERS):
        sizes = {"m": 4096, "n": 4096, "k": 4096, "dtype": "bfloat16", "order": order}
        assert cg.plan(op, **sizes, arch="sm_90a", backend="cpu").kernel == "sm90_wgmma"
        assert cg.plan(op, **sizes, arch="sm_80", backend="cpu").kernel != "sm90_wgmma"
    # For tf32 and int8, one operand along M or N is in registers; the smaller of two is packed.
    for (op, packed), more in product(
        {"TN": "", "NN": "", "TT": "", "NT": "B"}.items(),
        ({"dtype": "float32", "compute": "tf32"}, {"dtype": "int8"}),
    ):
        found = cg.plan(op, m=4096, n=1024, k=2048, gpu="H200", backend="cpu", **more)
        assert (found.kernel, found.algorithm.pack) == ("sm90_wgmma", packed)
    # Without a GPU, the oldest supported architecture is the default.
    plan = cg.plan("TN", m=64, n=64, k=64, dtype="float16", backend="cpu", kernel="sm90_wgmma")
    assert plan.arch == "sm_90a"


@pytest.mark.parametrize(
    ("columns", "stored", "box"),
    [
        (16, 16, 16), (32, 32, 32), (48, 64, 64), (64, 64, 64), (80, 96, 32), (96, 96, 32),
        (112, 128, 64), (144, 160, 32), (160, 160, 32), (176, 192, 64), (208, 224, 32),
        (224, 256, 64), (240, 256, 64), (256, 256, 64),
    ],
)  # fmt: skip
def test_boxes_of_b_are_lines_or_half_lines(columns: int, stored: int, box: int) -> None:
    """Test boxes of N as unit-stride mode. The last box may extend into the next tile."""
    asked = problem("NT", m=512, n=960, k=512)
    config = configure(asked, tile=(64, columns, 64), warp_groups=1, swap_ab=0, cluster=(1, 1))
    _, b = config.operands
    assert (b.layout.extents, b.box, b.span) == ((stored, 64), (box, 64), 2 * box)
    loads = [x for x in KERNEL.accesses(config, asked) if isinstance(x, TmaAccess)]
    assert loads[1].times == stored // box and loads[1].boxes % loads[1].times == 0
    # K-major operands do not depend on it.
    a, b = configure(problem("TN", m=512, n=960, k=512), tile=(64, columns, 64),
                     warp_groups=1, swap_ab=0).operands  # fmt: skip
    assert b.layout.extents == (columns, 64) and a.layout.extents == (64, 64)


@pytest.mark.parametrize("op", ["NN", "NT", "TN", "TT"])
def test_boxes_of_32_bytes_are_only_taken_on_request(op: str) -> None:
    """Test operands with unit stride along M or N. TMA would move 16 halves at a time."""
    sizes = {"m": 752, "n": 1424, "k": 5880, "dtype": "bfloat16", "arch": "sm_90a"}
    plan = cg.plan(op, **sizes, gpu="H200", backend="cpu", kernel="sm90_wgmma")
    boxes = [plan.span for x in plan.candidates() for plan in x.config.operands]
    assert min(boxes) >= 64
    asked = cg.plan(
        op, **sizes, gpu="H200", backend="cpu", kernel="sm90_wgmma", tile=(128, 288, 64),
        warp_groups=2,
    )  # fmt: skip
    assert min(x.span for x in asked.config.operands) == (32 if op[1] == "T" else 128)


def test_few_rows_take_narrow_products() -> None:
    plan = cg.plan("TN", m=16, n=8192, k=8192, dtype="float16", arch="sm_90a", backend="cpu",
                   kernel="sm90_wgmma", gpu="H200")  # fmt: skip
    assert plan.config.swap_ab and plan.config.tile[0] == 16


def test_the_grid_stays_and_clusters_fit_it() -> None:
    for size, cluster in product((64, 2000, 8192), ((1, 1), (2, 1), (1, 4), (4, 2))):
        asked, ctas = problem(size=size, l=3), prod(cluster)
        config = configure(asked, cluster=cluster)
        launch = KERNEL.launch(config, asked)
        assert launch.grid % ctas == 0 and launch.grid <= 132 and launch.batch == 1
        # Clusters leave some multiprocessors of a GPC unused.
        assert launch.grid <= 120 or ctas < 4
        assert launch.cluster == ctas and launch.dependent
    few = KERNEL.launch_on(configure(problem(), min_ctas=1), problem(), 7)
    assert few.grid == 7 // few.cluster * few.cluster
    # Launch at least one cluster even if it may not fit, because an empty grid would do nothing.
    for sms in (1, 8):
        assert KERNEL.launch_on(configure(problem(), cluster=(4, 2)), problem(), sms).grid == 8


def test_stages_are_what_fits() -> None:
    for config in KERNEL.legal(problem(), ARCH, {}):
        more = replace(config, stages=config.stages + 1).smem
        assert config.smem <= ARCH.shared_limit < more or config.stages == 12
        # No more registers than the CTA has. setmaxnreg waits until other warps have released some.
        entry = min(65536 // config.threads // 8 * 8, 240)
        assert 128 * 40 + config.warp_groups * 128 * config.registers <= entry * config.threads


def test_names_say_all_that_the_code_depends_on() -> None:
    config = configure(problem(), **SMALL)
    others: dict[str, Any] = {
        "tile": (64, 128, 64), "warp_groups": 2, "ping_pong": 1, "stages": 3, "cluster": (2, 1),
        "raster": 4, "swap_ab": 1, "min_ctas": 2, "tma_c": False,
        "tma_scales": (True, False),
        "operation": problem(dtype="bfloat16").operation(16, 16, 16),
    }  # fmt: skip
    assert {field.name for field in fields(Sm90Config)} == set(others)
    names = {config.name, *(replace(config, **{key: x}).name for key, x in others.items())}
    assert len(names) == len(others) + 1
    units = {KERNEL.unit(replace(config, stages=n)).source for n in (2, 3)}
    assert len(units) == 2


# -- the unit -------------------------------------------------------------------------------------


@spread
def test_it_compiles_and_has_the_instructions(case: Any) -> None:
    asked, config = of_spread(case)
    built = KERNEL.build(config, ARCH)
    assert built.resources.spill_stores == built.resources.spill_loads == 0
    assert sass_claims.check(built.cubin, KERNEL.accesses(config, asked, reads_c=True)) == []


@pytest.mark.matrix
@pytest.mark.parametrize(("op", "order"), [*product(OPS, ORDERS)])
def test_tiles_with_many_accumulators_do_not_spill(op: str, order: Any) -> None:
    for more in ({}, {"out_dtype": "float32"}, {"ldc": 4099}):
        asked = problem(op, dtype="bfloat16", order=order, **more)
        for config in KERNEL.legal(asked, ARCH, {"swap_ab": 0}):
            if config.accumulators_per_thread >= 128:
                KERNEL.build(config, ARCH)  # spills raise an error


def test_what_is_emitted() -> None:
    _, config = of_spread(SPREAD[0])
    text = KERNEL.unit(config).source
    assert "SM90::GMMA::MMA_64x256x16_F32BF16BF16_SS<SM90::GMMA::Major::K, SM90" in text
    assert "ComposedLayout<Swizzle<3,3,3>,_0,Layout<Shape<_256,Shape<_64,_1>>" in text
    assert "kConsumers = 2, kStages = 4, kStagesC = 2, kRasterGroup = 8," in text
    code = ptx(KERNEL.unit(config), ARCH)
    for word in (
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16", "setmaxnreg.dec", "setmaxnreg.inc",
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast",
        "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group", "griddepcontrol.wait",
    ):  # fmt: skip
        assert word in code
    # Parameters have the addresses of the signature, and are passed to the driver one by one.
    assert len(re.findall(r"\.param ", code.partition("{")[0])) == len(
        KERNEL.signature(config).parameters
    )


@spread
def test_the_proof_holds(case: Any) -> None:
    if case[4] != 4096:
        pytest.skip("what it proves does not depend on the way to C")
    _, config = of_spread(case)
    facts = prove(KERNEL.proof(config), ARCH).facts
    facts_of_smem = {"SmemLayoutA", "SmemLayoutB", "SmemLayoutC", "box A", "shared memory"}
    assert facts_of_smem | {"accumulators: threads", "accumulators: values"} <= set(facts)


def test_a_wrong_layout_does_not_prove() -> None:
    _, config = of_spread(SPREAD[5])
    a, b = config.operands
    wrong = altered(config, operands=(replace(a, box=(a.box[0], a.box[1] // 2)), b))
    with pytest.raises(CompileError, match="box A"):
        prove(EmitSm90Wgmma(wrong).proof(), ARCH)
    transposed = replace(b, layout=replace(b.layout, swizzle=replace(b.layout.swizzle, bits=1)))
    with pytest.raises(CompileError, match="SmemLayoutB"):
        prove(EmitSm90Wgmma(altered(config, operands=(a, transposed))).proof(), ARCH)


@pytest.mark.parametrize(
    ("columns", "header"),
    [(COLUMNS, ""), (range(STEP, MOST_COLUMNS + 1, STEP), f"{OTHER_COLUMNS}\n")],
    ids=["few", "all"],
)
def test_each_kind_of_wgmma_is_one_that_cute_has(columns: Iterable[int], header: str) -> None:
    kinds = (
        "16_F32F16F16_SS<cute::SM90::GMMA::Major::K, cute::SM90::GMMA::Major::MN>",
        "16_F32BF16BF16_SS<cute::SM90::GMMA::Major::K, cute::SM90::GMMA::Major::MN>",
        "8_F32TF32TF32_SS_TN<>", "8_F32TF32TF32_RS_TN<>", "32_S32S8S8_SS_TN", "32_S32S8S8_RS_TN",
    )  # fmt: skip
    names = "\n".join(
        f"static_assert(sizeof(cute::SM90::GMMA::MMA_64x{n}x{kind}::CRegisters) == {2 * n});"
        for n in columns for kind in kinds
    )  # fmt: skip
    entry = 'extern "C" __global__ void entry() {}'
    source = f'#include "sm90/mma.cuh"\n{header}{names}\n{entry}\n'
    unit = replace(KERNEL.unit(configure(problem(), **SMALL)), source=source, symbol="entry")
    build(unit, ARCH)


# -- tensor maps ----------------------------------------------------------------------------------


class FakeDriver(SimpleNamespace):
    """The driver functions that tensor maps call, with a record of the calls."""

    def __init__(self) -> None:
        super().__init__(asked=[], replaced=[], cuuint32_t=int, cuuint64_t=int)

    def __getattr__(self, name: str) -> Any:
        class Names:
            def __getattr__(self, member: str) -> str:
                return member.rpartition("_")[2]

        return Names()

    def cuTensorMapEncodeTiled(self, *given: Any) -> Any:
        self.asked.append(given)
        return 0, SimpleNamespace(opaque=[len(self.asked)] * 16)

    def CUtensorMap(self, place: int) -> int:
        return place

    def cuTensorMapReplaceAddress(self, place: int, address: int) -> tuple[int]:
        self.replaced.append((place, address))
        return (0,)


def test_a_matrix_is_described_by_its_unit_stride_mode_first(monkeypatch: Any) -> None:
    driver = FakeDriver()
    monkeypatch.setattr(tensormap, "load_driver", lambda: driver)
    asked = problem("NN", m=100, n=200, k=300, lda=104, l=3, batch_b=0)
    TensorMap(asked.A, (64, 32), 128).encode(1 << 20)
    TensorMap(asked.B, (16, 64), 128).encode(1 << 21)
    kind, rank, address, extents, steps, box, ones, _, span, _, _ = driver.asked[0]
    assert (kind, rank, address, span) == ("FLOAT16", 3, 1 << 20, "128B")
    assert (extents, box, ones) == ([100, 300, 3], [64, 32, 1], [1, 1, 1])
    assert steps == [208, 2 * asked.A.batch_stride]
    # B(N,K) with K first; the batch shares it, so its stride is arbitrary.
    assert driver.asked[1][3:6] == ([300, 200, 1], [600, 600], [64, 16, 1])


def test_what_tma_brings_operands_as(monkeypatch: Any) -> None:
    """Test data types of tensor maps: tf32 rounds floats, and bytes have no sign."""
    driver = FakeDriver()
    monkeypatch.setattr(tensormap, "load_driver", lambda: driver)
    for dtype in ("tf32", "int8"):
        asked = problem(dtype=dtype)
        maps = KERNEL.maps(configure(asked), asked)
        assert [one.encode(256) for one in maps if one is not None]
    kinds = [given[0] for given in driver.asked]
    assert kinds == ["TFLOAT32", "TFLOAT32", "FLOAT32", "UINT8", "UINT8", "INT32"]


def test_tensor_maps_get_the_addresses_of_matrices(monkeypatch: Any) -> None:
    driver = FakeDriver()
    monkeypatch.setattr(tensormap, "load_driver", lambda: driver)
    devices: list[int] = []
    monkeypatch.setattr(tensormap, "entered", lambda x: nullcontext(devices.append(x)))
    one = TensorMap(problem().A, (64, 64), 128)
    maps = TensorMaps((one, one, None), 1)

    def read() -> list[bytes]:
        return [ctypes.string_at(place, SIZE) for place in maps.places]

    assert all(place % 64 == 0 for place in maps.places)
    # An empty matrix has no address and no tensor map.
    maps.set_addresses((256, 0, 768))
    assert read() == [struct.pack("=Q", 1) * 16, bytes(SIZE), bytes(SIZE)]
    maps.set_addresses((256, 512, 1024))
    assert [given[2] for given in driver.asked] == [256, 512] and not driver.replaced
    assert devices == [1, 1]  # independent of the thread's current context
    maps.set_addresses((256, 1024, 768))
    assert len(driver.asked) == 2 and driver.replaced == [(maps.places[1], 1024)]
    assert read()[2] == bytes(SIZE)


# -- 32-bit counts -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "legal"),
    [
        ({"l": MOST_TILES}, True), ({"l": MOST_TILES + 1}, False),
        ({"m": 128, "l": MOST_TILES // 2}, True), ({"m": 65, "l": MOST_TILES // 2 + 1}, False),
        ({"n": 128, "l": MOST_TILES // 2 + 1}, False), ({"m": MOST_EXTENT}, True),
        ({"m": MOST_EXTENT + 8}, False), ({"n": MOST_EXTENT}, True),
        ({"n": MOST_EXTENT + 8}, False),
    ],
)  # fmt: skip
def test_tiles_and_extents_of_32_bits(sizes: dict[str, int], legal: bool) -> None:
    asked = problem(size=64, **{"batch_a": 0, "batch_b": 0} | sizes if "l" in sizes else sizes)
    if legal:
        assert configure(asked, **SMALL).tile == (64, 64, 64)
        return
    with pytest.raises(UnsupportedError, match="counts tiles in 32-bit integers"):
        configure(asked, **SMALL)
