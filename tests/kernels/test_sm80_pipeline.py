"""Test ``sm80_pipeline``: config, accesses, emitted unit, and compilation by NVRTC."""

import re
from dataclasses import fields, replace
from itertools import product
from random import Random
from typing import Any

import numpy as np
import pytest
from cases import OPS, ORDERS, configure, problem

import cute_gemm as cg
from cute_gemm.access import smem
from cute_gemm.access.accesses import GlobalAccess, SharedAccess
from cute_gemm.arch import Arch
from cute_gemm.dtypes import DTYPES
from cute_gemm.errors import GemmError, OptionError, UnsupportedError
from cute_gemm.kernels.sm80.pipeline import Sm80Pipeline
from cute_gemm.kernels.sm80.structure import Sm80Config
from cute_gemm.kernels.staging import UNUSED_PREFETCH
from cute_gemm.plan import select
from cute_gemm.problem.problem import GemmProblem
from cute_gemm.report.report import Report
from cute_gemm.toolchain.nvrtc import build as compile_unit
from cute_gemm.toolchain.unit import TranslationUnit

KERNEL = Sm80Pipeline()
#: dtype, compute
TYPES = (
    ("float16", None), ("bfloat16", None), ("float32", None), ("float32", "tf32"),
    ("float64", None), ("complex128", None), ("int8", None),
)  # fmt: skip
ARCHS = ("sm_90a", "sm_80")
types = pytest.mark.parametrize(("dtype", "compute"), TYPES, ids=lambda value: str(value or ""))


def analyze(op: str, size: int = 4096, arch: str = "sm_80", **given: Any) -> Report:
    sizes = {"m": size, "n": size, "k": size, "dtype": "float16"}
    return cg.analyze(op, arch=arch, kernel="sm80_pipeline", **{**sizes, **given})


def k_major(op: str, letter: str) -> bool:
    """Return whether BLAS's A is (lda,1), or its B (ldb,1)."""
    return op[0] == "T" if letter == "A" else op[1] == "N"


# -- accesses -------------------------------------------------------------------------------------


@types
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("op", OPS)
def test_no_layout_is_slow(op: str, order: str, arch: str, dtype: str, compute: str | None) -> None:
    report = analyze(op, arch=arch, dtype=dtype, compute=compute, order=order, copy="auto")
    for view in report.operands:
        assert view.coalesced, report.findings
    for letter in "AB":
        assert report[letter].conflict_free, report.findings
        load, store, *reads = report[letter].rows
        assert (load.space, load.direction, load.instruction) == ("global", "load", "cp.async")
        assert (load.bits, load.limit, load.efficiency) == (128, "", 1.0)
        assert (store.space, store.direction, store.bits) == ("shared", "store", 128)
        assert reads and {(row.space, row.direction) for row in reads} == {("shared", "load")}
        kind = {row.instruction for row in reads}
        transposes = not k_major(op, letter)
        if dtype in ("float16", "bfloat16"):
            assert kind == {"ldmatrix.x4.trans" if transposes else "ldmatrix.x4"}
        elif dtype == "int8" or compute == "tf32":
            assert kind == {"ld.shared" if transposes else "ldmatrix.x4"}
        else:
            assert kind == {"ld.shared"}
    staged, read, out = report["C"].rows
    # Accumulators of 32 bits are read 128 bits at a time, which are four halves.
    assert (out.space, out.direction) == ("global", "store")
    assert out.bits == (64 if dtype in ("float16", "bfloat16") else 128)
    assert (out.efficiency, read.conflicts) == (1.0, 0)
    # For a row-major C the kernel's first operand is B. FMA threads with a K-major first operand
    # have rows that are one apart, and store them one by one.
    single = (dtype, compute) == ("float32", None) and k_major(op, "B" if order == "C" else "A")
    assert (staged.instruction, staged.verdict) == ("st.shared", "conflict-free")
    assert staged.bits == 32 or not single
    assert report["C"].conflict_free


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("op", OPS)
def test_the_staged_sums_of_every_fma_tile(op: str, order: Any) -> None:
    whole = problem(op, 256, dtype="float32", order=order)
    seen = 0
    for tile in product((16, 64, 256), (32, 128), (16,)):
        for warps in product((1, 2, 4), (1, 2, 4)):
            try:
                config = configure(KERNEL, whole, "sm_80", tile=tile, warps=warps)
            except GemmError:
                continue
            seen += 1
            staged_tile, layout, stage, copy, _ = config.staged
            offsets = stage.vector_offsets(layout, staged_tile)
            words = smem.phase_words("st.shared", stage.bits, offsets)
            wavefronts, distinct = smem.phase_wavefronts(words)
            assert (wavefronts == -(-distinct // 32)).all(), config.name
            assert layout.cosize * 4 <= config.smem
            assert len(np.unique(layout.table())) == layout.size
            # The template adds the offsets of a thread and of its step, because no mode carries.
            for tiled in (stage, copy):
                first = tiled.partition[:, :1]
                step = tiled.partition[:1] - tiled.partition[:1, :1]
                for m in range(0, layout.extents[0], tiled.tile[0]):
                    for n in range(0, layout.extents[1], tiled.tile[1]):
                        at = np.array((m, n))
                        offsets = [
                            layout(place[..., 0], place[..., 1])
                            for place in (first, step + at, tiled.partition + at)
                        ]
                        assert (offsets[0] + offsets[1] == offsets[2]).all(), config.name
    assert seen > 5


@pytest.mark.parametrize(
    ("op", "a", "b"),
    [("NT", True, True), ("NN", True, False), ("TN", False, False), ("TT", False, True)],
)
def test_the_fields_reference(op: str, a: bool, b: bool) -> None:
    report = analyze(op, copy="mn_major")
    assert report.config.tile == (128, 128, 32) and report.config.stages == 3
    assert report.launch.block == 128
    assert (report["A"].coalesced, report["B"].coalesced) == (a, b)
    for letter, good in (("A", a), ("B", b)):
        load, store, *reads = report[letter].rows
        if good:
            assert (load.instruction, load.bits, load.efficiency) == ("cp.async", 128, 1.0)
            assert store.verdict == "2-way conflict" and "counters show none" in store.why
            assert (store.launch.counted_wavefronts, store.launch.counted_conflicts) == (0, 0)
        else:
            assert (load.instruction, load.bits, load.efficiency) == ("ld.global", 16, 0.125)
            assert load.fix.startswith('copy="auto"')
            assert load.limit.startswith("copy='mn_major' copies along M or N, and")
            assert load.limit.endswith(f"{load.operand} is K-major")
            assert store.verdict == "4-way conflict"
        assert {row.instruction for row in reads} == {"ldmatrix.x4.trans"}
        assert {row.verdict for row in reads} == {"2-way conflict"}
    assert report["C"].coalesced and report["C"].conflict_free


@types
@pytest.mark.parametrize("op", OPS)
def test_vectors_step_down_with_the_leading_dimension(
    op: str, dtype: str, compute: str | None
) -> None:
    size = DTYPES[dtype].bytes
    for aligned in (8, 4, 2, 1):
        ld = 4096 + aligned
        given = {"dtype": dtype, "compute": compute, "lda": ld, "ldb": ld}
        report = analyze(op, **given)
        for letter in "AB":
            load, store = report[letter].rows[:2]
            width = min(16, aligned * size)
            words = width < 4  # the aligned words that cover a row
            assert load.bits == store.bits == (128 if words else 8 * width)
            assert load.instruction == store.instruction == "cp.async"
            limit = f"ld{letter.lower()}={ld} ({ld * size} B)"
            assert load.limit == ("" if words or width == 16 else limit)
            assert load.access.words == words
            for row in report[letter].rows:
                if row.space == "shared" and (not words or row.instruction.startswith("ldmatrix")):
                    assert row.good


def test_one_bad_operand_does_not_slow_the_other() -> None:
    report = analyze("TN", lda=4097)
    assert [report[letter].rows[0].access.words for letter in "AB"] == [True, False]
    assert (report["A"].rows[0].bits, report["B"].rows[0].bits) == (128, 128)
    assert report.config.operation.bytes == (2, 16, 16)


@pytest.mark.parametrize(
    ("ldc", "bits", "limit"),
    [
        (4104, 64, "128-bit reads of the staged accumulators"),
        (4100, 64, "ldc=4100 (8200 B)"),
        (4098, 32, "ldc=4098 (8196 B)"),
        (4097, 16, "ldc=4097 (8194 B)"),
    ],
)
def test_stores_step_down_with_ldc(ldc: int, bits: int, limit: str) -> None:
    (out,) = (row for row in analyze("TN", ldc=ldc)["C"].rows if row.space == "global")
    assert (out.bits, out.limit) == (bits, limit)


def test_the_extent_limits_stores_and_not_loads() -> None:
    report = analyze("NT", m=1022, lda=1024, ldc=1024)
    load = report["A"].rows[0]
    (out,) = (row for row in report["C"].rows if row.space == "global")
    assert (load.bits, load.limit) == (128, "")
    assert (out.bits, out.limit) == (32, "extent 1022 (2044 B)")


@pytest.mark.parametrize(("alignment", "bits"), [(16, 128), (8, 64), (4, 32), (2, 128)])
def test_the_address_limits(alignment: int, bits: int) -> None:
    even = problem("NT")
    each = replace(even, A=replace(even.A, alignment=alignment))
    load = KERNEL.accesses(configure(KERNEL, each, "sm_80"), each)[0]
    assert isinstance(load, GlobalAccess) and load.operand == "A"
    limit = "" if alignment in (16, 2) else f"base address aligned to {alignment} B"
    assert (load.bits, str(load.limit), load.words) == (bits, limit, alignment == 2)


def cover_once(access: GlobalAccess) -> bool:
    vector = access.bits // (8 * DTYPES[access.matrix.dtype].bytes)
    cells = np.repeat(access.coords.reshape(-1, 1, 2), vector, axis=1)
    cells[..., access.axis] += np.arange(vector)
    seen = np.zeros(access.tile, dtype=int)
    np.add.at(seen, (cells[..., 0].ravel(), cells[..., 1].ravel()), 1)
    return bool((seen == 1).all())


@types
@pytest.mark.parametrize("policy", ["auto", "mn_major"])
@pytest.mark.parametrize("size", [4096, 4095])
def test_accesses_cover_every_tile_once(
    size: int, policy: str, dtype: str, compute: str | None
) -> None:
    for op in OPS:
        for order in ORDERS:
            each = problem(op, size, dtype=dtype, compute=compute, order=order)
            config = configure(KERNEL, each, "sm_90a", copy=policy)
            for access in KERNEL.accesses(config, each):
                if isinstance(access, GlobalAccess):
                    if access.words and access.part:
                        continue  # after the rows, and at the matrix's ends
                    assert cover_once(access), (config.name, access.operand)
                elif access.guard is not None and access.guard.words:
                    continue  # words: rows have one more
                elif access.part in ("put in place", UNUSED_PREFETCH) and access.operand != "C":
                    if access.direction == "store":
                        tile = config.tile["AB".index(access.operand)] * config.tile[2]
                        rows = np.unique(access.offsets)
                        assert len(rows) * 16 == tile * DTYPES[dtype].bytes, config.name
                elif access.direction == "store" and access.operand != "C":
                    extent = config.tile["AB".index(access.operand)] * config.tile[2]
                    step = access.bits // 8
                    assert np.array_equal(
                        np.sort(access.offsets, axis=None),
                        np.arange(0, extent * DTYPES[dtype].bytes, step),
                    ), (config.name, access.operand)


def test_launch_and_executions() -> None:
    ragged = problem("TN", m=1000, n=129, k=65, lda=72, ldb=72)
    config = configure(KERNEL, ragged, "sm_80", tile=(128, 64, 32), warps=(2, 2), stages=3)
    launch = KERNEL.launch(config, ragged)
    assert (launch.grid, launch.block) == (8 * 3, 128)
    # Three stages of A and B, or the accumulators with a pitch of four more: the larger.
    assert launch.smem == max(3 * (128 + 64) * 32 * 2, (128 + 4) * 64 * 4)
    shared = [
        access
        for access in KERNEL.accesses(config, ragged)
        if isinstance(access, SharedAccess) and access.operand == "A"
    ]
    # The last k-tile, one element long, also writes zeros. Partial vectors are stored by elements.
    main, last, cut, load, again = shared
    assert (main.instruction, last.instruction, cut.instruction) == ("cp.async",) * 2 + (
        "st.shared",
    )
    assert (main.zero_fill, last.zero_fill, cut.zero_fill) == (False, True, True)
    assert smem.analyze(main).launch.lanes == 1000 * 3 * 64 // 8
    assert smem.analyze(last).launch.lanes == 8 * 3 * 128 * 4 - 1000 * 3
    assert smem.analyze(cut).launch.lanes == 1000 * 3 * 8
    assert load.executions == 24 * 3
    assert (again.unit, again.executions) == ("CTA", 24)  # the block that is loaded in vain
    assert 2 * len(again.offsets) == len(load.offsets)  # bK = 32 is two blocks of 16


@pytest.mark.parametrize(("m", "n", "k"), [(0, 64, 64), (64, 0, 64), (64, 64, 0), (1, 1, 1)])
def test_small_and_empty_problems(m: int, n: int, k: int) -> None:
    report = analyze("NN", m=m, n=n, k=k)
    bm, bn, _ = report.config.tile
    assert report.launch.grid == -(-m // bm) * -(-n // bn)
    assert (report.launch.grid > 0) == bool(m and n)
    assert all(row.launch.requests == 0 for row in report.rows) == (not (m and n))


# -- config ---------------------------------------------------------------------------------------


def test_defaults_follow_the_problem() -> None:
    def tile(each: GemmProblem, arch: str = "sm_80") -> tuple[int, ...]:
        return configure(KERNEL, each, arch).tile

    def tiles(each: GemmProblem, arch: str = "sm_80") -> set[tuple[int, ...]]:
        return {config.tile for config in KERNEL.legal(each, Arch(arch), {})}

    for arch in ARCHS:
        assert tile(problem(), arch) in ((128, 256, 64), (256, 128, 64))
        # 64 or 128 CTAs can run at a time; with the large tile there would be eight.
        assert tile(problem(size=512), arch) in (
            (64, 64, 64), (64, 32, 64), (32, 64, 64), (128, 16, 64),
        )  # fmt: skip
    # As measured on an H100, and on the H200 for others.
    assert tile(problem(size=1)) == (128, 16, 64)
    assert tile(problem(size=1), "sm_90a") == (16, 128, 64)
    for large in ((128, 256, 64), (256, 128, 64)):
        assert large in tiles(problem())
        assert large not in tiles(problem(), "sm_86")  # 99 KiB
        assert large not in tiles(problem(lda=4097))  # copies through registers
    assert (128, 128, 32) in tiles(problem(), "sm_86") & tiles(problem(lda=4097))
    for config in KERNEL.legal(problem(), Arch("sm_86"), {}):
        assert KERNEL.launch(config, problem()).smem <= Arch("sm_86").shared_limit
    assert configure(KERNEL, problem(dtype="float64"), "sm_80").mma.startswith("SM80_8x8x4")
    assert configure(KERNEL, problem(dtype="float64"), "sm_90a").mma.startswith("SM90_16x8x4")


def test_options_as_text() -> None:
    as_text = configure(KERNEL, problem(), "sm_80", tile="64x128x32", warps="2,2", stages="4")
    assert as_text == configure(
        KERNEL, problem(), "sm_80", tile=[64, 128, 32], warps=(2, 2), stages=4
    )
    assert as_text.tile == (64, 128, 32) and as_text.warps == (2, 2) and as_text.stages == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"swizzle": 1}, r"option 'swizzle' is not one of .*; expected tile, warps, stages, copy"),
        ({"dtype": "int8"}, r"option 'dtype' is not one of"),
        ({"tile": (100, 128, 32)}, r"tile=\(100, 128, 32\): each extent must be a power of two"),
        ({"tile": (128, 128)}, r"option tile=\(128, 128\) does not fit; expected 3 integers"),
        ({"tile": "128x64; x"}, r"option tile='128x64; x' does not fit; expected 3 integers"),
        ({"tile": 128}, r"option tile=128 does not fit; expected 3 integers"),
        (
            {"tile": (16, 128, 32), "warps": (2, 2)},
            r"tile=\(16, 128, 32\): with warps=\(2, 2\) and SM80_16x8x16_F32F16F16F32_TN the "
            r"kernel's M extent must be 32 to 256; it is 16",
        ),
        ({"tile": (8, 128, 32)}, r"kernel's M extent must be 32 to 256; it is 8"),
        ({"tile": (128, 512, 32)}, r"kernel's N extent must be 64 to 256; it is 512"),
        ({"tile": (128, 128, 16)}, r"kernel's K extent must be 32 to 256; it is 16"),
        (
            {"tile": (256, 256, 32), "warps": (1, 2)},
            r"tile=\(256, 256, 32\) with warps=\(1, 2\) needs more accumulators than a thread has "
            r"registers: 1024 and 128; take a smaller tile, or more warps",
        ),
        # 128 registers for each of 512 threads: these spill.
        ({"tile": (128, 256, 64), "warps": (4, 4)}, r"registers: 64 and 32; .* or fewer warps"),
        ({"warps": (3, 2)}, r"option warps=\(3, 2\) is not supported; expected 1, 2 or 4 each"),
        ({"warps": 4}, r"option warps=4 does not fit; expected 2 integers"),
        ({"stages": 1}, r"option stages=1 is out of range; expected 2 to 8"),
        ({"stages": 9}, r"option stages=9 is out of range; expected 2 to 8"),
        ({"stages": "three"}, r"option stages='three' does not fit; expected an integer"),
        (
            {"tile": (128, 256, 64), "stages": 8},
            r"stages=8 needs 393216 bytes of shared memory; sm_80 has 166912: take fewer stages",
        ),
        ({"copy": "best"}, r"option copy='best' is unknown; expected one of \('auto', 'mn_major'"),
        (
            {"copy": "mn_major", "tile": (64, 16, 64), "warps": (2, 1)},
            r"tile=\(64, 16, 64\): with copy='mn_major' M and N must be 32 or more",
        ),
        (
            {"tile": (128, 256, 32), "warps": (2, 4), "stages": 2, "min_ctas": 4},
            r"min_ctas=4 leaves each of 256 threads 64 registers, and its accumulators .* take 128",
        ),
        ({"raster": 0}, r"raster and min_ctas must be 1 or more"),
        ({"min_ctas": -1}, r"raster and min_ctas must be 1 or more"),
        ({"mma": "UniversalFMA<float>"}, r"does not multiply float16; expected one of SM80_16x8"),
        ({"mma": "x"}, r"option mma='x' does not multiply float16"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        select.select(problem(), "sm_80", KERNEL.name, options)


def test_the_exchanged_problem_is_checked_as_the_kernel_sees_it() -> None:
    # For a row-major C the kernel's M is the problem's N.
    with pytest.raises(OptionError, match="kernel's M extent must be 64 to 256; it is 32"):
        configure(KERNEL, problem(order="C"), "sm_80", tile=(128, 32, 32), warps=(2, 4))


def test_no_options_end_in_a_traceback() -> None:
    """Test that all invalid options raise an error that names the option."""
    random, taken = Random(0), 0
    powers = [2**i for i in range(9)]
    for _ in range(1500):
        kind = random.choice(("float32", "float16", "float64", "int8"))
        options = {
            "tile": tuple(random.choice(powers) for _ in "mnk"),
            "warps": (random.choice((1, 2, 4)), random.choice((1, 2, 4))),
            "copy": random.choice(("auto", "mn_major")),
        }
        try:
            configure(
                KERNEL,
                problem(random.choice(OPS), dtype=kind, order=random.choice("FC")),
                "sm_80",
                **options,
            )
            taken += 1
        except (OptionError, UnsupportedError):
            continue
    assert taken > 20


def test_a_fraction_is_no_number_of_stages() -> None:
    with pytest.raises(OptionError, match="expected an integer"):
        configure(KERNEL, problem(), "sm_80", stages=3.7)


def test_unsupported() -> None:
    with pytest.raises(UnsupportedError, match="needs sm_80 or newer; arch is 'sm_75'"):
        cg.plan("TN", m=64, n=64, k=64, dtype="float16", arch="sm_75", backend="cpu",
                kernel="sm80_pipeline")  # fmt: skip
    with pytest.raises(UnsupportedError, match="SM90_16x8x8_.* needs sm_90; arch is 'sm_80'"):
        configure(KERNEL, problem(dtype="float64"), "sm_80", mma="SM90_16x8x8_F64F64F64F64_TN")
    with pytest.raises(UnsupportedError, match=r"m=2147483647.*up to 2\*\*31 - 256"):
        configure(KERNEL, problem("NT", m=2**31 - 1, n=1, k=1), "sm_80")


#: A value of each field that differs from the default.
OTHER = {
    "kernel": "tensor_core", "tile": (128, 128, 64), "warps": (4, 2), "stages": 2,
    "copy": "mn_major", "raster": 4, "min_ctas": 2, "mma": "SM80_16x8x8_F32TF32TF32F32_TN",
    "operation": problem(dtype="bfloat16").operation(16, 16, 16),
}  # fmt: skip


@pytest.mark.parametrize("field", [field.name for field in fields(Sm80Config)])
def test_every_field_is_in_the_symbol(field: str) -> None:
    base = configure(KERNEL, problem(), "sm_80")
    assert getattr(base, field) != OTHER[field]
    assert replace(base, **{field: OTHER[field]}).name != base.name


def test_parts_of_a_field_are_in_the_symbol() -> None:
    base = configure(KERNEL, problem(), "sm_80")
    others = [
        *(replace(base, tile=tile) for tile in [(256, 128, 64), (64, 256, 64), (128, 256, 32)]),
        replace(base, warps=(4, 2)),
    ]
    assert len({base.name, *(other.name for other in others)}) == 1 + len(others)


@pytest.mark.parametrize("size", [4096, 4095, 100])
def test_every_problem_has_a_symbol_of_its_own(size: int) -> None:
    configs = [
        KERNEL.legal(
            problem(op, size, dtype=dtype, compute=compute, order=order),
            Arch(arch),
            {"copy": policy},
        )[0]
        for dtype, compute in TYPES
        for op in OPS
        for order in ORDERS
        for policy in ("auto", "mn_major")
        for arch in ARCHS
    ]
    found = {config.name: config for config in configs}
    assert len(found) == len(set(configs)) >= len(TYPES) * len(OPS) * len(ORDERS) * 2
    assert all(re.fullmatch(r"[a-z0-9_]+", name) for name in found)


# -- the unit -------------------------------------------------------------------------------------


def emit(each: GemmProblem, arch: str = "sm_80", **options: Any) -> TranslationUnit:
    return KERNEL.unit(configure(KERNEL, each, arch, **options))


@types
@pytest.mark.parametrize("policy", ["auto", "mn_major"])
@pytest.mark.parametrize("op", OPS)
def test_unit_structure(op: str, policy: str, dtype: str, compute: str | None) -> None:
    for order in ORDERS:
        each = problem(op, dtype=dtype, compute=compute, order=order)
        config = configure(KERNEL, each, "sm_80", copy=policy)
        unit = KERNEL.unit(config)
        assert unit.symbol == config.name
        assert re.findall(r"#include (.*)", unit.source) == [
            "<cute/arch/mma_sm80.hpp>",
            '"sm80/sm80_pipeline.cuh"',
        ]
        # Layouts are finished: C++ CuTe makes, retiles and partitions nothing.
        assert not re.search("decltype|make_|retile|partition|static", unit.source)
        assert unit.source.count('extern "C" __global__') == 1
        assert unit.source.count("cute_gemm::sm80_pipeline<Config>(") == 1
        assert re.search(rf"^{unit.symbol}\(", unit.source, re.M)
        assert "$" not in unit.source
        threads = config.threads
        assert f"__launch_bounds__({threads}, {config.min_ctas})" in unit.source
        assert unit == KERNEL.unit(config)


@pytest.mark.parametrize(
    ("order", "arguments", "tile", "majors"),
    [
        ("F", "A, B, C, m, n, k, lda, ldb, ldc", "_64,_128,_32", ("true", "false")),
        ("C", "B, A, C, n, m, k, ldb, lda, ldc", "_128,_64,_32", ("false", "true")),
    ],
)
def test_a_row_major_c_exchanges_a_and_b(
    order: str, arguments: str, tile: str, majors: tuple[str, str]
) -> None:
    source = emit(problem("TT", order=order), tile=(64, 128, 32), warps=(2, 2)).source
    assert f"sm80_pipeline<Config>({arguments}," in source
    assert f"using CtaTiler = Shape<{tile}>;" in source
    assert f"kMajorKA = {majors[0]}, kMajorKB = {majors[1]} }};" in source


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({"dtype": "float16"}, ("cutlass::half_t", "cutlass::half_t", "float")),
        ({"dtype": "float16", "out_dtype": "float32"}, ("cutlass::half_t", "float", "float")),
        ({"dtype": "bfloat16"}, ("cutlass::bfloat16_t", "cutlass::bfloat16_t", "float")),
        ({"dtype": "float32"}, ("float", "float", "float")),
        ({"dtype": "float32", "compute": "tf32"}, ("cutlass::tfloat32_t", "float", "float")),
        ({"dtype": "float64"}, ("double", "double", "double")),
        ({"dtype": "complex128"}, ("cutlass::complex<double>",) * 3),
        ({"dtype": "int8"}, ("int8_t", "int32_t", "int32_t")),
    ],
)
def test_element_types(given: dict[str, str], names: tuple[str, str, str]) -> None:
    source = emit(problem(**given)).source
    found = [
        re.search(rf"using {name} = (\S+);", source)[1]  # type: ignore[index]
        for name in ("ElementA", "ElementC", "Accumulator")
    ]
    assert tuple(found) == names


@pytest.mark.parametrize("op", ["NN", "CN", "NC", "HH"])
def test_the_conjugate_is_of_the_operand_as_the_kernel_sees_it(op: str) -> None:
    for order in ORDERS:
        each = problem(op, dtype="complex128", order=order)
        said = ["true" if letter in "CH" else "false" for letter in op]
        a, b = said[::-1] if order == "C" else said
        assert f"kConjA = {a}, kConjB = {b} }};" in emit(each).source
        assert "kConjA = false, kConjB = false }" in emit(problem(op, order=order)).source


def test_layouts_of_design() -> None:
    def emit(each: GemmProblem, **options: Any) -> TranslationUnit:
        """Return the proof, in which C++ CuTe makes the layouts."""
        return KERNEL.proof(configure(KERNEL, each, "sm_80", **options))

    # bK = 32: Swizzle<2,3,3> on (8,32):(32,1), threads (32,4):(4,1), values (1,8).
    half = emit(problem("TN"), tile=(128, 128, 32), warps=(2, 2)).source
    assert "ComposedLayout<Swizzle<2,3,3>,_0,Layout<Shape<_8,_32>,Stride<_32,_1>>>{}" in half
    assert "Layout<Shape<_32,_4>,Stride<_4,_1>>{}, Layout<Shape<_1,_8>" in half
    # bK = 64: Swizzle<3,3,3> on (8,64):(64,1), threads (16,8):(8,1).
    wide = emit(problem("TN"), tile=(128, 128, 64), warps=(2, 2), stages=3).source
    assert "ComposedLayout<Swizzle<3,3,3>,_0,Layout<Shape<_8,_64>,Stride<_64,_1>>>{}" in wide
    assert "Layout<Shape<_16,_8>,Stride<_8,_1>>{}, Layout<Shape<_1,_8>" in wide
    # MN-major: Swizzle<3,3,3> on (64,8):(1,64), threads (16,8):(1,16), values (8,1).
    across = emit(problem("NT"), tile=(128, 128, 32), warps=(2, 2)).source
    assert "ComposedLayout<Swizzle<3,3,3>,_0,Layout<Shape<_64,_8>,Stride<_1,_64>>>{}" in across
    assert "Layout<Shape<_16,_8>,Stride<_1,_16>>{}, Layout<Shape<_8,_1>" in across
    # The reference policy, for all majors of the operands.
    reference = emit(problem("TN"), copy="mn_major").source
    assert "ComposedLayout<Swizzle<3,3,4>,_0,Layout<Shape<_32,_8>,Stride<_1,_32>>>{}" in reference
    assert "Layout<Shape<_16,_8>,Stride<_1,_16>>{}, Layout<Shape<_8,_1>" in reference


# -- NVRTC ----------------------------------------------------------------------------------------


def builds(each: GemmProblem, arch: str, **options: Any) -> None:
    config = configure(KERNEL, each, arch, **options)
    built = compile_unit(KERNEL.unit(config), arch)
    assert built.symbol == config.name and built.arch == arch
    assert built.cubin[:4] == b"\x7fELF"
    # If CuTe computed the layouts it would be 0.9 MB. An unaligned C is loaded by 4 elements.
    aligned = each.C.ld * each.C.element.bytes % 16 == 0
    assert len(built.cubin) < (225_000 if aligned else 270_000)
    assert built.resources.spill_stores == built.resources.spill_loads == 0
    assert 0 < built.resources.registers * config.threads * config.min_ctas <= 65536


@pytest.mark.parametrize(
    ("each", "arch"),
    [
        (problem("TN"), "sm_90a"),
        (problem("NN", dtype="int8"), "sm_80"),
        (problem("NT", dtype="float64", order="C"), "sm_80"),
        (problem("TT", dtype="float32"), "sm_90a"),
        (problem("CC", dtype="complex128"), "sm_90a"),
    ],
    ids=["float16-TN", "int8-NN", "float64-NT-row", "float32-TT", "complex128-CC"],
)
def test_nvrtc_builds(each: GemmProblem, arch: str) -> None:
    builds(each, arch)


@pytest.mark.matrix
@types
@pytest.mark.parametrize("size", [4096, 4095, 100])
@pytest.mark.parametrize("policy", ["auto", "mn_major"])
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("op", OPS)
def test_nvrtc_builds_everything(
    op: str, order: str, arch: str, policy: str, size: int, dtype: str, compute: str | None
) -> None:
    builds(problem(op, size, dtype=dtype, compute=compute, order=order), arch, copy=policy)


def test_8_bit_floats_compile_where_there_is_no_mma_of_them() -> None:
    of = {"m": 1919, "n": 537, "k": 1253, "dtype": "float8_e4m3fn", "arch": "sm_90a"}
    tiled = {"kernel": "sm80_pipeline", "tile": (128, 64, 128), "warps": (2, 2), "stages": 3}
    plan = cg.plan("TN", **of, lda=1264, ldb=1264, **tiled)
    assert 16 < plan.resources.spill_stores + plan.resources.spill_loads <= 256
