"""Test CUTLASS's kernel: config, emitted unit, compilation, and recorded accesses."""

import re
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import numpy as np
import pytest
from cases import OPS, configure, problem

import cute_gemm as cg
from cute_gemm.access.accesses import GlobalAccess
from cute_gemm.dtypes import DTYPES
from cute_gemm.errors import HeaderError, OptionError, UnsupportedError
from cute_gemm.kernels import refusals
from cute_gemm.kernels.cutlass import recording as recording_module
from cute_gemm.kernels.cutlass import unit as unit_module
from cute_gemm.kernels.cutlass.config import CutlassUniversalConfig
from cute_gemm.kernels.cutlass.recording import recording
from cute_gemm.kernels.cutlass.universal import CutlassUniversal
from cute_gemm.plan import select
from cute_gemm.problem.problem import GemmProblem
from cute_gemm.rendering.rows import make_row
from cute_gemm.toolchain.cubin import Resources
from cute_gemm.toolchain.headers import cutlass_path, cutlass_version
from cute_gemm.toolchain.nvrtc import ptx
from cute_gemm.toolchain.unit import TranslationUnit

KERNEL = CutlassUniversal()
#: dtype, compute, output type
TYPES = (
    ("float16", None, "float16"), ("float16", None, "float32"), ("bfloat16", None, "bfloat16"),
    ("float32", "float32", "float32"), ("float32", "tf32", "float32"), ("float64", None, "float64"),
    ("int8", None, "int32"),
)  # fmt: skip


def every_problem(size: int) -> list[GemmProblem]:
    return [
        problem(op, size, dtype=dtype, compute=compute, out_dtype=out, order=order)
        for dtype, compute, out in TYPES
        for op in OPS
        for order in ("F", "C")
    ]


@pytest.mark.parametrize("size", [4096, 100])
def test_names_tell_configs_apart(size: int) -> None:
    configs = [configure(KERNEL, each, "sm_80") for each in every_problem(size)]
    assert len(set(configs)) == len(TYPES) * len(OPS) * 2
    names = {config.name for config in configs}
    assert len(names) == len(configs)
    assert all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) for name in names)


@pytest.mark.parametrize("options", [{"tile": (128, 256, 32)}, {"stages": 3}, {"swizzle": 1}])
def test_every_option_is_in_the_name(options: dict[str, object]) -> None:
    base = configure(KERNEL, problem(), "sm_80")
    config = configure(KERNEL, problem(), "sm_80", **options)
    for option, value in options.items():
        assert getattr(config, option) == value
    assert config.name != base.name
    assert hash(config) != hash(base)


def test_alignment_is_in_the_name() -> None:
    even = problem(m=96, n=96, k=96)
    base = configure(KERNEL, even, "sm_80")
    odd = replace(even, C=replace(even.C, alignment=2))
    narrow = base.name.replace("_v128_128_128_", "_v128_128_16_")
    assert configure(KERNEL, odd, "sm_80").name == narrow


def test_options_as_text() -> None:
    as_text = configure(KERNEL, problem(), "sm_80", tile="256x128x32", stages="4")
    assert as_text == configure(KERNEL, problem(), "sm_80", tile=[256, 128, 32], stages=4)
    assert (as_text.tile, as_text.warps, as_text.stages) == ((256, 128, 32), (4, 2), 4)


def test_the_large_tile_is_taken_where_it_fills_the_gpu() -> None:
    def tile(**given: object) -> tuple[object, ...]:
        config = configure(KERNEL, problem(**given), "sm_80")  # type: ignore[arg-type]
        return config.tile, config.stages

    assert tile() == ((128, 128, 32), 4)
    assert tile(size=512) == ((64, 64, 32), 6)
    assert tile(size=512, l=8) == ((128, 128, 32), 4)  # 128 CTAs on 108 multiprocessors
    # Copies of 16 bytes, and of less.
    assert tile(dtype="float32", compute="tf32") == ((128, 128, 32), 3)
    assert tile(dtype="float32", compute="tf32", lda=4098) == ((128, 128, 16), 4)
    assert configure(KERNEL, problem(size=512), "sm_80", tile="128x128x32").stages == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"warps": (2, 2)},
            r"option 'warps' is not one of kernel 'cutlass_universal'; "
            r"expected tile, stages, swizzle",
        ),
        ({"tile": "128x128"}, r"option tile='128x128' does not fit; expected 3 integers"),
        ({"tile": "64; x", "stages": 3}, r"option tile='64; x' does not fit"),
        (
            {"tile": (100, 128, 32)},
            r"tile is \(100, 128, 32\); expected one of 128x128x32, .*, 64x64x32 for half",
        ),
        ({"stages": 1}, r"stages is 1; expected 2 to 12 for half"),
        ({"stages": 2.5}, r"option stages=2.5 does not fit; expected an integer"),
        (
            {"tile": (128, 128, 32), "stages": 11},
            r"stages is 11: 180224 bytes of shared memory; expected at most 166912 on sm_80",
        ),
        ({"stages": 13}, r"stages is 13; expected 2 to 12 for half"),
        ({"swizzle": 3}, r"swizzle is 3; expected 1, 2, 4 or 8"),
    ],
)
def test_bad_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        select.select(problem(), "sm_80", KERNEL.name, options)


def test_pipeline_of_registers_where_cp_async_cannot_copy() -> None:
    odd = problem("NT", lda=4097)
    assert configure(KERNEL, odd, "sm_80").stages == 2
    with pytest.raises(OptionError, match="A allows only accesses of 2 bytes"):
        configure(KERNEL, odd, "sm_80", stages=3)
    # 4 bytes are enough for it.
    assert configure(KERNEL, problem("NT", lda=4098), "sm_80").stages > 2


def test_unsupported() -> None:
    with pytest.raises(UnsupportedError, match="needs sm_80 or newer; arch is 'sm_75'"):
        refusals.check(KERNEL, problem(), "sm_75")
    with pytest.raises(UnsupportedError, match="sm80_pipeline"):
        configure(KERNEL, problem("NT", lda=4098, dtype="int8"), "sm_80")
    with pytest.raises(UnsupportedError, match="m is 2147483647; .* takes up to"):
        configure(KERNEL, problem("NT", m=2**31 - 1, n=1, k=1), "sm_80")


def test_int8_takes_the_instruction_that_is_exact() -> None:
    assert configure(KERNEL, problem("TN", dtype="int8"), "sm_80").math == "int8"
    assert configure(KERNEL, problem("TT", dtype="int8"), "sm_80").math == "dp4a"
    # From here on CUTLASS's tensor core kernel could saturate where int32 wraps around.
    assert configure(KERNEL, problem("TN", dtype="int8", k=2**17), "sm_80").math == "dp4a"


@pytest.mark.parametrize(
    ("op", "a", "b"),  # the instance's operands are the swapped B and A
    [("NN", "Row", "Row"), ("NT", "Col", "Row"), ("TN", "Row", "Col"), ("TT", "Col", "Col")],
)
def test_unit_of_a_column_major_c(op: str, a: str, b: str) -> None:
    names = {"Row": "RowMajor", "Col": "ColumnMajor"}
    config = configure(KERNEL, problem(op), "sm_80", tile=(256, 128, 32))
    unit = KERNEL.unit(config)
    layouts = re.findall(r"cutlass::half_t, cutlass::layout::(\w+)", unit.source)
    assert layouts == [names[a], names[b], "RowMajor"]
    assert "GemmShape<128, 256, 32>" in unit.source  # transposed, like the operands
    assert "/* SwapAB */ true" in unit.source


@pytest.mark.parametrize(
    ("op", "a", "b"),
    [("NN", "Col", "Col"), ("NT", "Col", "Row"), ("TN", "Row", "Col"), ("TT", "Row", "Row")],
)
def test_unit_of_a_row_major_c(op: str, a: str, b: str) -> None:
    names = {"Row": "RowMajor", "Col": "ColumnMajor"}
    config = configure(KERNEL, problem(op, order="C"), "sm_80", tile=(256, 128, 32))
    unit = KERNEL.unit(config)
    layouts = re.findall(r"cutlass::half_t, cutlass::layout::(\w+)", unit.source)
    assert layouts == [names[a], names[b], "RowMajor"]
    assert "GemmShape<256, 128, 32>" in unit.source
    assert "/* SwapAB */ false" in unit.source


def test_unit_is_cutlass_librarys() -> None:
    config = configure(KERNEL, problem(), "sm_80")
    unit = KERNEL.unit(config)
    assert unit.symbol == config.name
    assert unit.source.count('extern "C" __global__') == 1
    assert re.search(rf"^{unit.symbol}\(", unit.source, re.M)
    assert re.findall(r"#include (.*)", unit.source) == ['"cutlass/cutlass_universal.cuh"']
    assert "${" not in unit.source
    assert "typename cutlass::gemm::kernel::DefaultGemmUniversal<" in unit.source
    assert unit == KERNEL.unit(config)


def test_launch_has_a_cta_for_each_tile() -> None:
    ragged = problem(m=1000, n=129, k=64)
    config = configure(KERNEL, ragged, "sm_80", tile=(128, 64, 32))
    launch = KERNEL.launch(config, ragged)
    assert (launch.grid, launch.block) == (8 * 3, 128)
    assert launch.smem == config.smem <= 101376


#: A config of each math, with copies through registers and with ``cp.async``.
SOME = [
    problem("TN", 4096), problem("NT", 101),
    problem("NN", 100, dtype="float32", compute="tf32", order="C"),
    problem("TN", 100, dtype="float32"), problem("NT", 101, dtype="float64", order="C"),
    problem("TN", 100, dtype="int8"), problem("NN", 100, dtype="int8"),
]  # fmt: skip
some = pytest.mark.parametrize("each", SOME, ids=lambda each: configure(KERNEL, each, "sm_80").name)


@some
def test_a_recorded_tile_is_moved_once(each: GemmProblem) -> None:
    """Test that each element of a k-tile and of C is moved once."""
    config = configure(KERNEL, each, "sm_80")
    recorded = recording(config, products=True, reads_c=True)
    assert (
        recorded.staged and recorded.accumulators and not recorded.accumulators[0].places.min() < 0
    )
    for matrix, lists in (
        (each.A, [recorded.loads["A"]]),
        (each.B, [recorded.loads["B"]]),
        (each.C, [recorded.loads["C"], recorded.results]),
    ):
        m, n, k = config.tile
        tile = {"A": (m, k), "B": (n, k), "C": (m, n)}[matrix.name]
        size = DTYPES[matrix.dtype].bytes
        for (requests,) in lists:
            first = np.repeat(requests.places.reshape(-1, 1, 2), requests.bits // 8 // size, axis=1)
            first[..., matrix.unit] += np.arange(first.shape[1])
            elements = first.reshape(-1, 2)
            assert len(elements) == len(np.unique(elements, axis=0)) == tile[0] * tile[1]
            assert (elements >= 0).all() and (elements < tile).all()
        if matrix.name != "C":
            stored = recorded.stores[matrix.name]
            assert sum(x.places.size * x.bits // 8 for x in stored) == tile[0] * tile[1] * size


@pytest.mark.matrix
@some
def test_other_archs_access_the_same(each: GemmProblem, monkeypatch: pytest.MonkeyPatch) -> None:
    config = configure(KERNEL, each, "sm_80")
    here = KERNEL.accesses(config, each)
    recording.cache_clear()
    text = ptx(KERNEL.unit(config), "sm_90a")
    monkeypatch.setattr(recording_module, "_ptx", lambda _: text)
    there = KERNEL.accesses(config, each)
    recording.cache_clear()
    assert list(map(make_row, here)) == list(map(make_row, there))


@pytest.mark.parametrize(
    ("op", "given"),
    [
        ("TN", {}), ("NT", {"m": 141}), ("TN", {"m": 136, "order": "C", "tile": (128, 256, 32)}),
        ("NN", {"dtype": "float32", "compute": "tf32"}), ("NT", {"dtype": "float32"}),
        ("TT", {"dtype": "float64"}), ("NN", {"dtype": "int8"}),
    ],
)  # fmt: skip
def test_a_launch_accesses_what_its_report_says(op: str, given: dict[str, Any]) -> None:
    """Test k with and without a residue, with fewer and with more k-tiles than stages."""
    random, configs = np.random.default_rng(0), set()
    for k, beta in ((8, 1), (200, 0)):
        sizes = {"m": 140, "n": 76, "dtype": "float16", **given}
        m, n = sizes["m"], sizes["n"]
        values = [random.integers(-8, 9, (rows, k)).astype(sizes["dtype"]) for rows in (m, n)]
        of_a, of_b = values[0], values[1].T  # M x K with a contiguous K, K x N with a contiguous K
        A = of_a.T if op[0] == "T" else np.asfortranarray(of_a)
        B = np.ascontiguousarray(of_b).T if op[1] == "T" else of_b
        order = sizes.pop("order", "F")
        out = "int32" if sizes["dtype"] == "int8" else sizes["dtype"]
        C = np.ones((m, n), out, order=order) if beta else None
        options = {name: x for name, x in sizes.items() if name in ("tile", "compute")}
        plan = cg.plan(
            op, A, B, C, order=order, kernel="cutlass_universal", arch="sm_80",
            backend="interpreter", **options,
        )  # fmt: skip
        configs.add(plan.config)
        plan.steps.each[0].__dict__["ptx"] = recording_module._ptx(plan.config)
        trace = plan.trace(A, B, C, beta=beta)
        assert trace.agrees, trace.differences
    assert len(configs) == 1  # one kernel is compiled


def test_accesses_of_a_leftover_of_k_come_first() -> None:
    ragged = problem("TN", m=256, n=256, k=72)
    config = configure(KERNEL, ragged, "sm_80")
    first, rest = (
        each
        for each in KERNEL.accesses(config, ragged)
        if isinstance(each, GlobalAccess) and each.operand == "A"
    )
    assert (first.origin, first.region, first.part) == ((0, 0), (256, 8), "first k-tile")
    assert (rest.origin, rest.region, rest.part) == ((0, 8), (256, 64), "other k-tiles")
    assert first.matrix == rest.matrix == ragged.A


def test_accesses_without_products() -> None:
    empty = problem(m=64, n=64, k=0)
    config = configure(KERNEL, empty, "sm_80")
    assert [each.operand for each in KERNEL.accesses(config, empty)] == ["C"]
    nothing = problem(m=0, n=64, k=64)
    assert KERNEL.accesses(configure(KERNEL, nothing, "sm_80"), nothing) == ()
    assert KERNEL.launch(configure(KERNEL, nothing, "sm_80"), nothing).grid == 0


def test_limits_name_their_cause() -> None:
    def limits(each: GemmProblem) -> dict[str, str]:
        config = configure(KERNEL, each, "sm_80")
        found = KERNEL.accesses(config, each)
        return {each.operand: each.limit for each in found if isinstance(each, GlobalAccess)}

    assert limits(problem()) == {"A": "", "B": "", "C": ""}
    padded = problem("NT", lda=4098, ldb=4100)
    assert limits(padded) == {"A": "lda = 4098", "B": "ldb = 4100", "C": ""}
    assert limits(problem("TN", k=4095, lda=4096, ldb=4096))["A"] == "k = 4095"
    assert "one element" in limits(problem(dtype="float64"))["C"]


def build(config: CutlassUniversalConfig, arch: str) -> Resources:
    """Compile, and return the resources. Too many spills raise an error."""
    from cute_gemm.toolchain.nvrtc import build as compile_unit

    unit = KERNEL.unit(config)
    built = compile_unit(unit, arch)
    assert built.symbol == config.name
    assert built.cubin[:4] == b"\x7fELF"
    return built.resources


@pytest.mark.parametrize(
    ("each", "arch"),
    [
        (problem("NN"), "sm_90a"),
        (problem("TN", 101, dtype="bfloat16", order="C", out_dtype="float32"), "sm_80"),
    ],
    ids=["aligned", "odd"],
)
def test_nvrtc_builds(each: GemmProblem, arch: str) -> None:
    found = build(configure(KERNEL, each, arch), arch)
    assert found.spill_stores == found.spill_loads == 0


@pytest.mark.matrix
@pytest.mark.parametrize("size", [4096, 4095, 100, 101])
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("types", TYPES, ids=lambda types: "-".join(map(str, types)))
def test_nvrtc_builds_everything(
    types: tuple[str, str | None, str], op: str, size: int, arch: str
) -> None:
    dtype, compute, out = types
    if dtype == "int8" and size % 2 and op != "TN":
        pytest.skip("sm80_pipeline's job")
    for order in ("F", "C"):
        each = problem(op, size, dtype=dtype, compute=compute, out_dtype=out, order=order)
        build(configure(KERNEL, each, arch), arch)


SWIZZLE = """
#include "cutlass/cutlass_universal.cuh"

template <int N>
constexpr bool each_tile_once(int tiles_m, int tiles_n) {
  unsigned seen[16] = {};
  for (int block = 0; block < tiles_m * tiles_n; ++block) {
    auto const tile = cute_gemm::LinearThreadblockSwizzle<N>::tile_of(block, tiles_m, tiles_n);
    if (tile.m < 0 || tile.m >= tiles_m || tile.n < 0 || tile.n >= tiles_n) return false;
    if (seen[tile.m] >> tile.n & 1) return false;
    seen[tile.m] |= 1u << tile.n;
  }
  return true;
}

template <int N>
constexpr bool every_grid() {
  for (int m = 1; m <= 9; ++m) {
    for (int n = 1; n <= 18; ++n) {
      if (!each_tile_once<N>(m, n)) return false;
    }
  }
  return true;
}

static_assert(every_grid<1>() && every_grid<2>() && every_grid<4>() && every_grid<8>());
extern "C" __global__ void nothing() {}
"""


def test_swizzle_gives_each_tile_to_one_cta() -> None:
    from cute_gemm.toolchain.nvrtc import build as compile_unit

    compile_unit(TranslationUnit(SWIZZLE, "nothing"), "sm_80")


def test_stubs_are_those_of_one_cutlass(monkeypatch: pytest.MonkeyPatch) -> None:
    config = configure(KERNEL, problem(), "sm_80")
    (stubs,) = KERNEL.unit(config).folders
    own = cutlass_path()
    assert own is not None
    names = [path.relative_to(stubs) for path in stubs.rglob("*.h*")]
    assert len(names) == 3 and all((own / name).is_file() for name in names)

    monkeypatch.setattr(unit_module, "cutlass_version", lambda: (4, 3, 1))
    unit_module._stubs.cache_clear()
    with pytest.raises(HeaderError, match=r"CUTLASS 4\.3\.1.*cutlass_universal.*==4\.2\.\*"):
        KERNEL.unit(config)


def test_the_version_of_the_headers_is_the_wheels() -> None:
    found = cutlass_version()
    assert found is not None
    assert version("nvidia-cutlass").startswith("{}.{}.{}".format(*found))
