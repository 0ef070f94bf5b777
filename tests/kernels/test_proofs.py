"""Test the proofs: C++ CuTe computes the layouts that the report evaluates in Python.

The proofs hold for every config, and a proof with a wrong layout in Python does not compile.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from altered import altered
from cases import OPS, configure, problem

import cute_gemm as cg
from cute_gemm.cute.copies import TiledCopy, TiledMma
from cute_gemm.cute.layout import Layout, Swizzle
from cute_gemm.cute.notation import parse
from cute_gemm.dtypes import DTYPES
from cute_gemm.errors import CompileError, OptionError
from cute_gemm.kernels import registry
from cute_gemm.kernels.base import CompiledKernel
from cute_gemm.kernels.cutlass.universal import CutlassUniversal
from cute_gemm.kernels.simt.kernel import SimtKernel
from cute_gemm.kernels.simt.structure import SimtConfig
from cute_gemm.kernels.simt.unit import EmitSimt
from cute_gemm.kernels.sm80.pipeline import Sm80Pipeline
from cute_gemm.kernels.sm80.structure import Sm80Config
from cute_gemm.kernels.sm80.tensor_core import TensorCore
from cute_gemm.kernels.sm80.unit import EmitSm80Pipeline
from cute_gemm.kernels.sm90.structure import Sm90Config
from cute_gemm.kernels.sm90.wgmma import Sm90Wgmma
from cute_gemm.toolchain.headers import template_path
from cute_gemm.toolchain.nvrtc import build, prove
from cute_gemm.toolchain.unit import TranslationUnit

Change = Callable[[Sm80Config], Sm80Config]
KERNEL = Sm80Pipeline()
ARCH = "sm_80"


def config(
    op: str = "TN", arch: str = ARCH, kernel: CompiledKernel = KERNEL, **given: Any
) -> Sm80Config:
    options = {key: given.pop(key) for key in kernel.options if key in given}
    made: Sm80Config = configure(kernel, problem(op, 256, **given), arch, **options)
    return made


SMALL = config(tile=(64, 64, 32), warps=(2, 2), stages=3)

# -- proofs of many configs in one unit -----------------------------------------------------------


def asserts(config: Sm80Config) -> str:
    """Return the proof without its includes and its entry."""
    return without_entry(EmitSm80Pipeline(config).proof())


def without_entry(unit: TranslationUnit) -> str:
    return unit.source.partition("using namespace cute;")[2].partition('extern "C"')[0]


def failing(cases: list[str], *headers: str) -> dict[int, set[str]]:
    """Return the names of failing asserts, by case, with one compilation."""
    includes = headers or ("sm80/proof.cuh", "sm80/sm80_pipeline.cuh")
    head = "".join(f'#include "{each}"\n' for each in includes) + "using namespace cute;\n"
    tail = '\nextern "C" __global__ void entry() {}\n'
    source, starts = head, []
    for number, text in enumerate(cases):
        starts.append(source.count("\n") + 1)
        source += f"namespace case{number} {{\n{text}\n}}\n"
    try:
        build(TranslationUnit(source + tail, "entry"), ARCH, cache=False)
    except CompileError as error:
        log = error.log
    else:
        return {}
    errors = re.findall(r"unit\((\d+)\): error: (.*)", log)
    found = defaultdict(set)
    for line, message in errors:
        name = re.fullmatch(r'static assertion failed with "(.*)"', message)
        assert name, message
        found[sum(start <= int(line) for start in starts) - 1].add(name[1])
    return dict(found)


# -- proofs that hold -----------------------------------------------------------------------------

TYPES = (
    ("float16", None), ("bfloat16", None), ("float32", None), ("float32", "tf32"),
    ("float64", None), ("complex128", None), ("int8", None),
)  # fmt: skip


def hold(configs: list[Sm80Config]) -> None:
    unique = {each.name: each for each in configs}
    cases = [asserts(each) for each in unique.values()]
    names = list(unique)
    assert {names[number]: found for number, found in failing(cases).items()} == {}


#: Configs: aligned, with large tiles, with a copy of columns, with unaligned rows, and of
#: `tensor_core`.
GIVEN: dict[str, dict[str, Any]] = {
    "aligned": {"op": "TN"},
    "large": {"op": "NT", "arch": "sm_90a", "m": 4096, "n": 4096, "k": 4096, "order": "C"},
    "mn_major": {"copy": "mn_major", "lda": 257},
    "words": {"op": "NN", "lda": 257, "ldb": 257},
    "tensor_core": {"op": "NN", "kernel": TensorCore(), "order": "C"},
}


def held_by(dtype: str, given: str) -> bool:
    """Return whether a type has such configs."""
    kinds = {"mn_major": dtype == "float16", "tensor_core": dtype == "bfloat16"}
    return kinds.get(given, given != "words" or DTYPES[dtype].bytes < 4)


@pytest.mark.parametrize(
    ("dtype", "compute", "given"),
    [
        # bfloat16 has the layouts of float16.
        pytest.param(*row, given, marks=[pytest.mark.matrix] * (row[0] == "bfloat16"))
        for row, given in product(TYPES, GIVEN)
        if held_by(row[0], given)
    ],
    ids=lambda value: str(value or ""),
)
def test_they_hold(dtype: str, compute: str | None, given: str) -> None:
    hold([config(dtype=dtype, compute=compute, **GIVEN[given])])


def test_they_hold_of_8_bit_floats() -> None:
    given = {"dtype": "float8_e4m3fn x float8_e5m2", "m": 4096, "n": 4096, "k": 4096}
    hold([config("TN", "sm_89", **given), config("NT", "sm_89", order="C", lda=4097, **given)])


TYPED = [
    (kernel, dtype, compute)
    for kernel in (KERNEL, TensorCore())
    for dtype, compute in TYPES
    if (f"{dtype}/{compute}" if compute else dtype) in kernel.dtypes
]


@pytest.mark.matrix
@pytest.mark.parametrize(("kernel", "dtype", "compute"), TYPED, ids=lambda v: getattr(v, "name", v))
@pytest.mark.parametrize("op", OPS)
def test_they_hold_everywhere(
    op: str, kernel: CompiledKernel, dtype: str, compute: str | None
) -> None:
    given: dict[str, Any] = {"dtype": dtype, "compute": compute, "kernel": kernel}
    for size in (256, 4096):
        given |= {"m": size, "n": size, "k": size}
        hold(
            [
                config(op, arch, lda=size + pad, ldb=size + pad, order=order, copy=copy, **given)
                for arch, order, copy, pad in product(
                    ("sm_80", "sm_90a"), "FC", ("auto", "mn_major"), (0, 1, 2, 4)
                )
            ]
        )


#: Kinds of scales of A and B, and the tile: 96 columns are in one block of 128 or in two; with 256
#: rows, epilogue tiles have half of the columns.
SCALED = (
    ("TN", "1x128", "128x128", {"tile": (64, 96, 128), "warp_groups": 1}),
    ("NN", "128x128", "1x128", {"tile": (128, 64, 128), "warp_groups": 2, "swap_ab": 0}),
    ("TN", "1x128", "128x128", {"tile": (256, 128, 128), "warp_groups": 2, "stages": 3}),
)


@pytest.mark.parametrize(("op", "of_a", "of_b", "options"), SCALED, ids=lambda v: str(v)[:7])
def test_those_of_scaled_8_bit_floats_hold(
    op: str, of_a: str, of_b: str, options: dict[str, Any]
) -> None:
    plan = cg.plan(op, m=256, n=256, k=256, dtype="float8_e4m3fn", scale_a=of_a, scale_b=of_b,
                   kernel="sm90_wgmma", arch="sm_90a", backend="cpu", **options)  # fmt: skip
    assert prove(Sm90Wgmma().proof(plan.config), "sm_90a").facts[-1] == "scales"


def test_a_wrong_number_of_scales_does_not_prove(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sm90Config, "scales_of_thread", (2, 1))
    with pytest.raises(CompileError, match="scales"):
        test_those_of_scaled_8_bit_floats_hold(*SCALED[0])


@pytest.mark.matrix
@pytest.mark.parametrize("dtype", CutlassUniversal.dtypes)
@pytest.mark.parametrize("op", OPS)
def test_those_of_cutlass_hold_everywhere(op: str, dtype: str) -> None:
    dtype, _, compute = dtype.partition("/")
    kernel = CutlassUniversal()
    for order in "FC":
        each = problem(op, 256, dtype=dtype, compute=compute or None, order=order)
        each = configure(kernel, each, ARCH)
        assert prove(kernel.proof(each), ARCH).facts


def test_a_proof_is_about_the_unit_that_is_shipped() -> None:
    for kernel, dtype in ((KERNEL, "bfloat16"), (registry.get("warp_tiled").compiled(), "float32")):
        each = config(kernel=kernel, dtype=dtype)
        unit, proof = kernel.unit(each), kernel.proof(each)
        assert without_entry(unit).strip() in proof.source
        assert "static_assert" not in unit.source and proof.source.count("static_assert(") > 15


# -- proofs that fail -----------------------------------------------------------------------------


class WrongMma(TiledMma):
    """A tiled MMA with a wrong number of threads."""

    @property
    def size(self) -> int:
        return 2 * TiledMma(self.atom, self.threads, self.tile).size

    def partition(self, operand: str) -> np.ndarray:
        return TiledMma(self.atom, self.threads, self.tile).partition(operand)


class WrongFragment(TiledMma):
    """A tiled MMA with registers in another compact order: the MMAs of the second mode first."""

    def __init__(self, right: TiledMma, operand: str) -> None:
        super().__init__(right.atom, right.threads, right.tile)
        object.__setattr__(self, "wrong", operand)

    def fragment(self, operand: str, extents: tuple[int, ...]) -> Layout:
        right = super().fragment(operand, extents)
        if operand != self.wrong:  # type: ignore[attr-defined]
            return right
        (values, first, second), _, columns = right.shape  # type: ignore[misc]
        step: Any = values * second  # type: ignore[operator]
        return replace(right, stride=((1, step * columns, values), step * columns * first, step))


class WrongLayout(Layout):
    """A layout of the right type with wrong offsets."""

    def __call__(self, *coordinate: Any) -> Any:
        return Layout.__call__(self, *coordinate) ^ 8


def operand(parts: Sm80Config, letter: str, **changes: Any) -> Sm80Config:
    a, b = parts.operands
    if letter == "A":
        return altered(parts, operands=(replace(a, **changes), b))
    return altered(parts, operands=(a, replace(b, **changes)))


def smem(letter: str, change: Callable[[Layout], Layout]) -> Change:
    index = "AB".index(letter)
    return lambda parts: operand(
        parts, letter, smem_layout=change(parts.operands[index].smem_layout)
    )


def staged(**changes: Callable[[Any], Any]) -> Change:
    def change(parts: Sm80Config) -> Sm80Config:
        of = parts.staged
        own = {name: change(getattr(of, name)) for name, change in changes.items()}
        wrong: Sm80Config = altered(parts, staged=of._replace(**own))
        return wrong

    return change


def wrong_arithmetic(layout: Layout) -> Layout:
    return WrongLayout(layout.shape, layout.stride, layout.swizzle)


def one_stage_less(layout: Layout) -> Layout:
    assert isinstance(layout.shape, tuple)
    return replace(layout, shape=(*layout.shape[:2], (1, SMALL.stages - 1)))


def copy(name: str, change: Callable[[TiledCopy], TiledCopy]) -> Change:
    where = {"GmemCopy": "gmem_copy", "SmemCopy": "smem_copy"}.get(name[:-1])
    if where is None:
        if name == "EpilogueStage":
            return lambda parts: altered(
                parts, staged=parts.staged._replace(write=change(parts.staged.write))
            )
        return lambda parts: altered(
            parts, staged=parts.staged._replace(read=change(parts.staged.read))
        )
    plan = "AB".index(name[-1])
    return lambda parts: operand(
        parts, name[-1], **{where: change(getattr(parts.operands[plan], where))}
    )


def swap_lanes(copy: TiledCopy) -> TiledCopy:
    lane = np.arange(len(copy.partition))
    swapped = lane & ~3 | (lane & 1) << 1 | (lane & 2) >> 1
    return replace(copy, partition=copy.partition[swapped])


def twice_the_tile(copy: TiledCopy) -> TiledCopy:
    return replace(copy, tile=(copy.tile[0], 2 * copy.tile[1]))


def half_the_vector(copy: TiledCopy) -> TiledCopy:
    atom = replace(copy.atom, bits=copy.atom.bits // 2, threads=1, destination=None)
    return replace(copy, atom=atom, partition=copy.source)


def twice_the_element(copy: TiledCopy) -> TiledCopy:
    atom = replace(copy.atom, bits=copy.atom.bits * 2, threads=1, destination=None)
    return replace(copy, atom=atom, partition=copy.source, element_bits=2 * copy.element_bits)


def mma(name: str, layout: str) -> Change:
    def change(parts: Sm80Config) -> Sm80Config:
        changes: dict[str, Any] = {name: parse(layout)}
        atom = replace(parts.tiled_mma.atom, **changes)
        wrong: Sm80Config = altered(parts, tiled_mma=replace(parts.tiled_mma, atom=atom))
        return wrong

    return change


COPIES = ("GmemCopyA", "GmemCopyB", "SmemCopyA", "SmemCopyB", "EpilogueStage", "EpilogueCopy")

#: Changes of Python's side only, and the asserts that detect them.
CORRUPTIONS: list[tuple[Change, set[str]]] = [
    (
        lambda parts: altered(
            parts,
            tiled_mma=WrongMma(parts.tiled_mma.atom, parts.tiled_mma.threads, parts.tiled_mma.tile),
        ),
        {"threads", *(f"{name}: threads" for name in COPIES)},
    ),
    (lambda parts: altered(parts, kernel_tile=(64, 128, 32)), {"CtaTiler", "FragmentB"}),
    (lambda parts: altered(parts, smem=parts.smem - 16), {"shared memory"}),
    (
        lambda parts: altered(parts, staged=parts.staged._replace(tile=(64, 16))),
        {"EpilogueLayout: extents"},
    ),
    (staged(layout=wrong_arithmetic), {"EpilogueLayout: offsets"}),
    # ((4,8),(2,2,2)):((32,1),(16,8,128)), ... with two modes exchanged
    (mma("a", "((4,8),(2,2,2)):((32,1),(8,16,128))"), {"TiledMma: A"}),
    (mma("b", "((8,4),(2,2)):((1,16),(8,64))"), {"TiledMma: B"}),
    (mma("c", "((4,8),(2,2)):((32,1),(8,16))"), {"TiledMma: C"}),
]
for _letter in "AB":
    _name = f"SmemLayout{_letter}"
    CORRUPTIONS += [
        (smem(_letter, lambda layout: replace(layout, swizzle=Swizzle(3, 3, 3))), {_name}),
        (smem(_letter, wrong_arithmetic), {f"{_name}: offsets"}),
        (smem(_letter, one_stage_less), {_name, f"{_name}: extents", "shared memory"}),
        (
            lambda parts, letter=_letter: operand(parts, letter, stage=3 * 64 * 32 // 2),  # type: ignore[misc]
            {f"{_name}: stage", "shared memory"},
        ),
    ]
for _letter in "ABC":
    CORRUPTIONS.append(
        (
            lambda parts, letter=_letter: altered(
                parts, tiled_mma=WrongFragment(parts.tiled_mma, letter)
            ),  # type: ignore[misc]
            {f"Fragment{_letter}"},
        )
    )
for _name in COPIES:
    CORRUPTIONS += [
        (copy(_name, swap_lanes), {_name}),
        (copy(_name, twice_the_tile), {f"{_name}: tile"}),
        (copy(_name, half_the_vector), {f"{_name}: vector"}),
        (copy(_name, twice_the_element), {f"{_name}: element"}),
    ]


def test_a_wrong_layout_fails_its_assert(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [asserts(change(SMALL)) for change, _ in CORRUPTIONS]
    expected = [names for _, names in CORRUPTIONS]
    right = altered(SMALL)
    with monkeypatch.context() as patch:
        patch.setitem(DTYPES, "float16", replace(DTYPES["float16"], bytes=4))
        cases.append(asserts(right))
        expected.append({"ElementA", "ElementB", "ElementC"})

    assert failing([*cases, asserts(SMALL)]) == dict(enumerate(expected))
    # Each assert fails for at least one of the changes above.
    every = re.findall(r'static_assert\(.*, "(.*)"\);', asserts(SMALL))
    assert len(every) == len(set(every)) and set().union(*expected) == set(every)


def test_a_wrong_layout_fails_the_proof() -> None:
    change, _ = CORRUPTIONS[-4]
    proof = EmitSm80Pipeline(change(SMALL)).proof()
    with pytest.raises(CompileError, match='static assertion failed with "EpilogueCopy"'):
        build(proof, ARCH, cache=False)


# -- the tutorial kernels -------------------------------------------------------------------------

SIMT = [name for name in registry.LADDER if isinstance(registry.get(name), SimtKernel)]
SimtChange = Callable[[SimtConfig], SimtConfig]


def simt_config(name: str, op: str, dtype: str = "float32", **given: Any) -> SimtConfig:
    kernel = registry.get(name)
    assert isinstance(kernel, SimtKernel)
    options = {key: given.pop(key) for key in kernel.options if key in given}
    return configure(kernel, problem(op, 128, dtype=dtype, **given), ARCH, **options)


def simt_asserts(
    config: SimtConfig, change: SimtChange = lambda parts: parts, python: bool = True
) -> str:
    """Return the asserts of a config after ``change`` in Python. Types are those before."""
    types = without_entry(EmitSimt(config).unit())
    wrong = without_entry(EmitSimt(change(config)).proof())
    return types + "".join(wrong.partition("static_assert")[1:])


def test_those_of_the_ladder_hold() -> None:
    dtypes = ("float32", "float16", "float64", "complex64", "complex128", "bfloat16")
    configs = {}
    for number, (name, op) in enumerate(product(SIMT, ("NN", "TN", "NT"))):
        each = simt_config(name, op, dtypes[number % 6], order="FC"[number % 2])
        configs[each.name] = each
    for name, skew in product(("bank_free", "warp_tiled", "double_buffered"), ("xor", "padding")):
        each = simt_config(name, "TN", skew=skew, lda=129)
        configs[each.name] = each
    found = failing(
        [simt_asserts(each) for each in configs.values()], *simt_headers("double_buffered")
    )
    assert {list(configs)[number]: names for number, names in found.items()} == {}


def simt_headers(name: str) -> tuple[str, str]:
    return "common/proof.cuh", f"simt/{name}.cuh"


def other_layout(layout: Layout) -> Layout:
    """Return a layout with the same extents and other offsets."""
    return WrongLayout(layout.shape, layout.stride, layout.swizzle)


def longer(layout: Layout) -> Layout:
    """Return a layout with one mode of twice the extent."""
    shape, stride = layout.shape, layout.stride
    assert isinstance(shape, tuple) and isinstance(stride, tuple)
    return replace(layout, shape=((shape[0], 2), *shape[1:]), stride=((stride[0], 0), *stride[1:]))


def simt_operand(index: int, **changes: Callable[[Any], Any]) -> SimtChange:
    def change(parts: SimtConfig) -> SimtConfig:
        operands = list(parts.operands)
        old = operands[index]
        operands[index] = replace(old, **{k: f(getattr(old, k)) for k, f in changes.items()})
        wrong: SimtConfig = altered(parts, operands=tuple(operands))
        return wrong

    return change


SIMT_CORRUPTIONS: list[tuple[SimtChange, set[str]]] = []
for _change, _fact in ((other_layout, "offsets"), (longer, "extents")):
    SIMT_CORRUPTIONS += [
        (lambda p, f=_change: altered(p, first_results=f(p.first_results)), {f"Threads: {_fact}"}),  # type: ignore[misc]
        (
            lambda p, f=_change: altered(p, values=(f(p.values[0]), p.values[1])),  # type: ignore[misc]
            {f"ValuesM: {_fact}"},
        ),
        (
            lambda p, f=_change: altered(p, values=(p.values[0], f(p.values[1]))),  # type: ignore[misc]
            {f"ValuesN: {_fact}"},
        ),
    ]
    for _index, _letter in enumerate("AB"):
        SIMT_CORRUPTIONS += [
            (simt_operand(_index, smem=_change), {f"Smem{_letter}: {_fact}"}),
            (simt_operand(_index, threads=_change), {f"Copy{_letter}::Threads: {_fact}"}),
        ]


@pytest.mark.parametrize("name", ["warp_tiled", "thread_tile_2d"])
def test_a_wrong_layout_of_the_ladder_fails_its_assert(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = simt_config(name, "TN")
    cases = [simt_asserts(config, change) for change, _ in SIMT_CORRUPTIONS]
    expected = [names for _, names in SIMT_CORRUPTIONS]
    right = altered(config)
    with monkeypatch.context() as patch:
        patch.setitem(DTYPES, "float32", replace(DTYPES["float32"], bytes=8))
        text = without_entry(EmitSimt(right).proof())
        cases.append(text)
        expected.append({"ElementA", "ElementB", "ElementC"})
    found = failing([*cases, simt_asserts(config)], *simt_headers(name))
    assert set(found) == set(range(len(expected)))
    for number, names in enumerate(expected):
        assert names <= found[number] <= names | {n.replace("extents", "offsets") for n in names}
    every = re.findall(r'static_assert\(.*, "(.*)"\);', simt_asserts(config))
    assert set().union(*expected) == set(every) and len(every) == len(set(every))


# -- the pages of the ladder ----------------------------------------------------------------------

#: Pages that also write their layouts in CuTe's terms.
PAGES = [name for name in SIMT if " : Config {" in template_path(name).read_text()]


def asserts_of_layouts(name: str) -> dict[str, str]:
    """Return the asserts of the layouts that a page states, by layout, also of mainloop.cuh."""
    text = template_path(name).read_text()
    every = text + template_path("mainloop").read_text()
    found = re.findall(r'(static_assert\(same_offsets.*"(\w+)"\);)', every)
    page = text.split(" : Config {")[1]
    return {layout: line for line, layout in found if f"using {layout} =" in page}


def page_asserts(config: SimtConfig, change: SimtChange = lambda parts: parts) -> str:
    """Return the asserts of a page for the config that Python emits after ``change``."""
    types = without_entry(EmitSimt(change(config)).unit())
    text = template_path(config.kernel).read_text()
    (page,) = re.findall(r"struct (\w+) : Config {", text)
    found = asserts_of_layouts(config.kernel)
    assert found.keys() >= set(re.findall(r'static_assert.*"(\w+)"', text))
    names = f"using cute_gemm::same_offsets;\nusing Page = cute_gemm::{page}<Config>;"
    return "\n".join((types, names, *found.values())).replace("typename ", "")


def options_of(name: str) -> list[dict[str, Any]]:
    """Return the default and other tiles and thread tiles, with every skew."""
    shapes: list[dict[str, Any]] = [{}]
    if name == "smem_tiled":
        shapes += [{"tile": (16, 16, 16)}, {"tile": (32, 16, 64)}]
    elif name in ("register_rows", "thread_tile_1d"):
        shapes += [{"tile": (32, 64, 16), "thread_tile": own} for own in ((1, 1), (4, 2), (16, 1))]
    else:
        shapes += [
            {"tile": tile, "thread_tile": own}
            for tile in ((64, 128, 16), (128, 64, 32), (256, 64, 64))
            for own in ((8, 8), (4, 8), (16, 4), (2, 2))
        ]
    skews = registry.get(name).choices.get("skew", ())  # type: ignore[attr-defined]
    return [{**shape, "skew": skew} for shape in shapes for skew in skews] or shapes


def pages_hold(name: str, cases: Iterable[tuple[str, str, str, int, dict[str, Any]]]) -> int:
    configs = {}
    for op, dtype, order, pad, options in cases:
        ld = {"lda": 128 + pad, "ldb": 128 + (pad * 2) % 6}
        with suppress(OptionError):  # a tile that is too small, or too large, for the type
            each = simt_config(name, op, dtype, order=order, **ld, **options)
            configs[each.name] = each
    found = failing([page_asserts(each) for each in configs.values()], f"simt/{name}.cuh")
    assert {list(configs)[number]: names for number, names in found.items()} == {}
    return len(configs)


SIMT_TYPES = ("float32", "float16", "bfloat16", "float64", "complex64", "complex128")


@pytest.mark.matrix
@pytest.mark.parametrize("name", SIMT)
@pytest.mark.parametrize("dtype", SIMT_TYPES)
def test_those_of_the_ladder_hold_everywhere(name: str, dtype: str) -> None:
    configs, given = {}, options_of(name) if name in PAGES else [{}]
    for op, order, pad, options in product(OPS, "FC", (0, 1, 2, 4), given):
        with suppress(OptionError):  # a tile that is too small, or too large, for the type
            each = simt_config(
                name, op, dtype, order=order, lda=128 + pad, ldb=128 + pad, **options
            )
            configs[each.name] = each
    found = failing([simt_asserts(each) for each in configs.values()], *simt_headers(name))
    assert {list(configs)[number]: names for number, names in found.items()} == {}


@pytest.mark.parametrize("name", PAGES)
def test_the_layouts_of_a_page_are_those_of_python(name: str) -> None:
    every = product(options_of(name), SIMT_TYPES, ("NT", "TN", "NN"), "FC", (0, 1, 2, 4))
    few = list(every)[:: 3 * len(options_of(name)) + 1]  # includes each option
    assert pages_hold(name, [(op, d, o, pad, given) for given, d, op, o, pad in few]) > 12


@pytest.mark.matrix
@pytest.mark.parametrize("dtype", SIMT_TYPES)
@pytest.mark.parametrize("name", PAGES)
def test_the_layouts_of_a_page_are_those_of_python_everywhere(name: str, dtype: str) -> None:
    cases = product(("NT", "TN", "NN", "TT"), [dtype], "FC", (0, 1, 2, 4), options_of(name))
    assert pages_hold(name, cases) > 15


@pytest.mark.parametrize("name", PAGES)
def test_another_layout_fails_the_assert_of_its_page(name: str) -> None:
    def doubled(layout: Layout) -> Layout:
        def twice(stride: Any) -> Any:
            return tuple(map(twice, stride)) if isinstance(stride, tuple) else 2 * stride

        return replace(layout, stride=twice(layout.stride))

    config = simt_config(name, "TN")
    names = list(asserts_of_layouts(name))
    changes: dict[str, SimtChange] = {
        "Threads": lambda parts: altered(parts, first_results=doubled(parts.first_results)),
        "ValuesM": lambda p: altered(p, values=(doubled(p.values[0]), p.values[1])),
        "ValuesN": lambda p: altered(p, values=(p.values[0], doubled(p.values[1]))),
    }
    for index, letter in enumerate("AB"):
        changes[f"Smem{letter}"] = simt_operand(index, smem=doubled)
        changes[f"Copy{letter}"] = simt_operand(index, threads=doubled)
    cases = [page_asserts(config, changes[each]) for each in names]
    found = failing([*cases, page_asserts(config)], f"simt/{name}.cuh")
    assert found == {number: {each} for number, each in enumerate(names)}
