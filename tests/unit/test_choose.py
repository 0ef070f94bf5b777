"""Test the selection of copies and layouts: known good ones, and conflict-free by the model."""

from itertools import product
from typing import Any

import pytest
from cases import OPS, configure

from cute_gemm.access import smem
from cute_gemm.access.accesses import SharedAccess
from cute_gemm.arch import Arch
from cute_gemm.cute import choose
from cute_gemm.cute.atoms import LDMATRIX, LDMATRIX_TRANS, universal
from cute_gemm.cute.layout import tile_to_shape
from cute_gemm.errors import OptionError
from cute_gemm.kernels import registry
from cute_gemm.kernels.base import CompiledKernel
from cute_gemm.problem.describe import from_sizes


@pytest.mark.parametrize(
    ("extents", "axis", "threads", "values", "atom"),
    [
        ((128, 32), 1, "(32,4):(4,1)", "(1,8):(8,1)", "Sw<2,3,3> o 0 o (8,32):(32,1)"),
        ((128, 64), 1, "(16,8):(8,1)", "(1,8):(8,1)", "Sw<3,3,3> o 0 o (8,64):(64,1)"),
        ((128, 32), 0, "(16,8):(1,16)", "(8,1):(1,8)", "Sw<3,3,3> o 0 o (64,8):(1,64)"),
    ],
)
def test_known_good_layouts(
    extents: tuple[int, int], axis: int, threads: str, values: str, atom: str
) -> None:
    copy = choose.vector_copy("cp.async", 2, extents, axis, 8, 128)
    assert tuple(map(str, copy.layouts)) == (threads, values)
    assert copy.atom.name == "cp.async" and copy.bits == 128 and copy.covers(extents)
    by = choose.reader(2, axis)
    assert by is (LDMATRIX if axis else LDMATRIX_TRANS)
    assert str(choose.swizzled_atom(2, extents, axis, by)) == atom


def test_a_tile_too_small_for_its_threads_is_not_covered() -> None:
    assert choose.vector_copy("cp.async", 4, (64, 8), 0, 4, 128).covers((64, 8))
    assert not choose.vector_copy("cp.async", 4, (64, 8), 0, 4, 256).covers((64, 8))
    problem = from_sizes("NT", m=512, n=512, k=512, dtype="float32")
    with pytest.raises(
        OptionError,
        match="256 threads copy 64 x 16 elements of A at a time, which do not fill its tile 64 x 8",
    ):
        configure(registry.get("sm80_pipeline"), problem, "sm_80", tile=(64, 64, 8), warps=(2, 4))


def test_narrow_copies_do_without_cp_async() -> None:
    assert choose.copy_atom("cp.async", 32).name == "cp.async"
    assert choose.copy_atom("cp.async", 16).name == "ld.global"
    assert choose.shared_side(choose.vector_copy("cp.async", 2, (64, 32), 0, 1, 128)).atom == (
        universal("st.shared", 16)
    )


# -- the kernels' rule is conflict-free by the report's model -------------------------------------

TILES = ((64, 64), (128, 64), (64, 128), (128, 128), (256, 128), (128, 256))
WARPS = ((1, 2), (2, 2), (2, 4), (4, 2))


@pytest.mark.parametrize(
    ("kernel", "dtype", "compute"),
    [
        ("sm80_pipeline", "float32", None),
        *product(
            ("sm80_pipeline", "tensor_core"), ("float16", "float64", "complex128", "int8"), (None,)
        ),
        *product(("sm80_pipeline", "tensor_core"), ("float32",), ("tf32",)),
    ],
)
def test_every_reader_and_writer_of_tensor_core_kernels(
    kernel: str, dtype: str, compute: str | None
) -> None:
    seen, chosen = set(), registry.get(kernel)
    assert isinstance(chosen, CompiledKernel)
    for op, tile, bk, warps, pad, arch in product(
        ("NT", "TN"), TILES, (4, 8, 16, 32, 64, 128), WARPS, (0, 1), ("sm_80", "sm_90a")
    ):
        problem = from_sizes(
            op, m=256, n=256, k=256, dtype=dtype, compute=compute, lda=256 + pad, ldb=256 + pad
        )
        options: dict[str, Any] = {"tile": (*tile, bk), "warps": warps}
        try:  # the number of stages does not affect one stage
            config, *_ = chosen.legal(problem, Arch(arch), options)
        except OptionError:
            continue
        for plan in config.operands:
            layout = tile_to_shape(plan.smem_atom, plan.extents)
            store = choose.shared_side(plan.gmem_copy)
            pairs = [(store, "store"), (plan.smem_copy, "load")]
            if plan.place:  # unaligned rows are spaced, not swizzled, and copied as they are
                layout, axis = plan.smem_atom, int(plan.major == "K")
                lanes = plan.extents[axis] // plan.place.partition.shape[1]
                ldmatrix = plan.smem_copy.atom.threads == 32
                pairs = [(plan.place, "store")] * (lanes <= 4) + pairs[1:] * ldmatrix
            for copy, direction in pairs:
                question = (
                    str(layout), plan.extents, direction, copy.bits, config.warps, config.mma
                )  # fmt: skip
                if question in seen:
                    continue
                seen.add(question)
                access = SharedAccess(
                    plan.source,
                    direction,  # type: ignore[arg-type]
                    copy.atom.name,
                    copy.bits,
                    copy.vector_offsets(layout),
                )
                assert smem.analyze(access).conflict_free, (config, direction)
    assert len(seen) > 30


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize(
    ("kernel", "skew"),
    [
        ("smem_tiled", None),
        ("thread_tile_2d", None),
        *product(("bank_free", "warp_tiled", "double_buffered"), ("xor", "padding")),
    ],
)
def test_every_reader_of_fma_kernels(kernel: str, skew: str | None, dtype: str) -> None:
    """Test also writers of whole 16-byte vectors of float32. Others are in test_ladder."""
    for op in OPS:
        problem = from_sizes(op, m=256, n=256, k=256, dtype=dtype)
        chosen = registry.get(kernel)
        config = configure(chosen, problem, "sm_80", **({"skew": skew} if skew else {}))
        for access in chosen.accesses(config, problem):
            if isinstance(access, SharedAccess) and (
                access.direction == "load" or (skew and dtype == "float32")
            ):
                assert smem.analyze(access).conflict_free, (op, access.operand, access.direction)
