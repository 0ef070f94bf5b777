"""Config of ``sm90_wgmma`` -> translation unit, in cutlass_library's emitter protocol."""

from __future__ import annotations

from itertools import product
from typing import Any

from cute_gemm.cute.atoms import COLUMNS, wgmma
from cute_gemm.kernels.sm90.accesses import held
from cute_gemm.kernels.sm90.structure import Sm90Config
from cute_gemm.kernels.tma import SPAN, tma_signature
from cute_gemm.problem.parts.scales import SCALES
from cute_gemm.toolchain.signature import cpp_type
from cute_gemm.toolchain.unit import (
    TYPES,
    Emitter,
    cpp_extents,
    cpp_shape,
    element_proofs,
    epilogue_params,
    layout_proofs,
)

_SM90_WGMMA = (
    """\
// C(M,N) = alpha * A(M,K) B(N,K)^T + beta * C: ${types}${swapped}
#include "sm90/sm90_wgmma.cuh"
${include}
"""
    + TYPES
    + """\
  using CtaTiler = ${kernel_tile};  // (bM,bN,bK)
  using Mma = ${mma};
  using Cluster = ${cluster};
  enum : int {
    kConsumers = ${warp_groups}, kStages = ${stages}, kStagesC = ${stages_c}, kRasterGroup = ${raster},
    kConsumerRegisters = ${registers}, kProducerRegisters = ${loader_registers},
    kProducts = ${operation.component_products}, kProductSets = ${product_sets},
    kScaleRowsA = ${product.scales.0}, kScaleRowsB = ${product.scales.1},
    kRagged = cute_gemm::${ragged}
  };
  enum : bool {
    kMajorKA = ${major_k_a}, kMajorKB = ${major_k_b}, kRegisterA = ${register_a},
    kColumnMajorC = ${column_major}, kTmaC = ${tma_c},
    kTmaScalesA = ${scale_boxes.0}, kTmaScalesB = ${scale_boxes.1},
    kPromoted = ${operation.promoted}, kSwapAB = ${swap_ab},
    kGroupsAlongN = ${side_by_side}, kPingPong = ${ping_pong}
  };

  using SmemLayoutA = ${operands.0.layout};
  using SmemLayoutB = ${operands.1.layout};
  using SmemLayoutC = ${epilogue_tile.layout};
};
"""  # noqa: E501
)

_CUTE = """
// The same by C++ CuTe: repeated atoms of GMMA's layouts.
struct Cute {
  using SmemLayoutA = ${smem_tiled_a};
  using SmemLayoutB = ${smem_tiled_b};
  using SmemLayoutC = ${smem_tiled_c};
};
"""

#: CuTe's header of the operations with other columns than `COLUMNS`, which takes a fifth of a
#: compilation.
OTHER_COLUMNS = "#include <cute/arch/mma_sm90_gmma_ext.hpp>"

#: The grid has no layer for each GEMM of a batch: a CTA takes tiles of all.
_ENTRY = """
extern "C" __global__ void __launch_bounds__(${threads}, ${min_ctas})
${symbol}(
    ${parameters}) {
  cute_gemm::TensorC<Config> const c{C, ${extents}, ldc, batch_c};
  ${epilogue_params}
  cute_gemm::sm90_wgmma<${config}>(
      ${maps}, c, k, k_last, l, slices, ${shared}, epilogue${scales}${ends});
}
"""


#: Bytes that ptxas may spill if A passes through registers, with accumulators and products: tiles
#: of 176 and 192 columns and block scales leave too few for values that are seldom read.
_SPILLS = 256


class EmitSm90Wgmma(Emitter):
    """Emitter of ``sm90_wgmma.cuh``."""

    template = _SM90_WGMMA
    header = "sm90/proof.cuh"
    cute = _CUTE
    end = _ENTRY

    @property
    def spills(self) -> int:
        """Bytes that ptxas may spill: more if products and rows of A also need registers."""
        full = self.config.register_a and self.config.operation.promoted
        return _SPILLS if full else super().spills

    def values(self) -> dict[str, Any]:
        config, operation = self.config, self.config.operation
        (a, b), c = config.operands, config.epilogue_tile
        factor_a, factor_b = config.product.factors
        cluster_m, cluster_n = config.kernel_cluster
        columns = "n / 2" if operation.epilogue.pairs else "n"  # of C
        types = operation.accumulator.tag, factor_a.tag, factor_b.tag
        majors = a.major, b.major
        return {
            # A and B as the kernel sees them.
            "element_a": cpp_type(factor_a),
            "element_b": cpp_type(factor_b),
            "swapped": ", A and B swapped" * config.swap_ab,
            "mma": wgmma(config.columns, types, factor_a.bytes, majors, config.register_a),
            "include": f"{OTHER_COLUMNS}\n" * (config.columns not in COLUMNS),
            "stages_c": c.stores or 1,
            "cluster": f"cute_gemm::ClusterShape<{cluster_m}, {cluster_n}>",
            "major_k_a": a.major == "K",
            "major_k_b": b.major == "K",
            "ragged": f"kRagged{config.product.groups or 'None'}",
            "swap_ab": bool(config.swap_ab),
            "ping_pong": bool(config.ping_pong),
            "smem_tiled_a": _tiled("ElementA", a.major == "K", a.span, a.layout.extents),
            "smem_tiled_b": _tiled("ElementB", b.major == "K", b.span, b.layout.extents),
            "smem_tiled_c": _tiled("ElementC", not config.column_major, c.span, c.layout.extents),
            "symbol": config.name,
            "parameters": tma_signature(operation).cpp("Config::"),
            "extents": ", ".join(config.turned(("m", columns))),
            "epilogue_params": epilogue_params(operation.epilogue, extents=f"m, {columns}"),
            "maps": ", ".join((*config.turned(("&map_a", "&map_b")), "&map_c")),
            "shared": ", ".join(config.turned(("batch_a == 0", "batch_b == 0"))),
            "scales": _scales(config),
            "ends": ", offsets" * bool(operation.groups),
            "config": "Config" + ", true" * operation.zero_tail,
        }

    def facts(self) -> list[tuple[str, str]]:
        config, c = self.config, self.config.epilogue_tile.layout
        a, b = config.operands
        facts = [
            *element_proofs(config),
            (cpp_extents("Config::CtaTiler{}", (a.extents[0], *b.extents)), "CtaTiler"),
            (f"sizeof(cute_gemm::Consumer<Config>::Memory) <= {config.smem}", "shared memory"),
        ]
        for letter, layout in zip("ABC", (a.layout, b.layout, c), strict=True):
            name = f"SmemLayout{letter}"
            facts += [
                (f"cute_gemm::same_layout(Cute::{name}{{}}, Config::{name}{{}})", name),
                *layout_proofs(name, layout, layout.extents),
            ]
        accumulators = held(config)
        for name, threads, values in (("threads", range(128), (0,)), ("values", (0,), range(8))):
            places = (
                f"cute_gemm::AccumulatorCoord<Config>({t}).row({v}) == {accumulators[t, v, 0]} && "
                f"cute_gemm::AccumulatorCoord<Config>({t}).column({v}) == {accumulators[t, v, 1]}"
                for t, v in product(threads, values)
            )
            facts.append((" && ".join(places), f"accumulators: {name}"))
        for letter, plan in zip("AB", config.operands, strict=True):
            boxes = f"cute_gemm::TmaLoad<Config::SmemLayout{letter}, Config::kMajorK{letter}, "
            pairs = letter == "B" and config.operation.epilogue.pairs
            boxes += f"{plan.sharers}{', true' if pairs else ''}>"
            run, deep = (plan.box[::-1]) if plan.major == "K" else plan.box
            facts.append((f"{boxes}::kSpan == {run} && {boxes}::kDepth == {deep}", f"box {letter}"))
        if any(config.operation.scales):
            staged, own = (f"cute_gemm::{x}<Config>::" for x in ("ScalePlaces", "ScaleFactors"))
            down, across = config.scales_of_stage
            first, end = config.places_of_scales
            of_stage = f"{staged}kA == {down} && {staged}kB == {across}"
            of_stage += f" && {staged}kFirstB == {first} && {staged}kCount == {end}"
            facts.append((of_stage, "scales of a stage"))
            down, across = config.scales_of_thread
            facts.append((f"{own}kA == {down} && {own}kB == {across}", "scales"))
        return facts


def _scales(config: Sm90Config) -> str:
    """Return the arguments for block scales, in the order of the kernel's A and B."""
    if not (any(config.operation.scales) or config.operation.groups):
        return ""  # both are left out, with the ends of groups after them
    names = config.turned(SCALES)
    given = (
        f"{{{name}, {name}_mn, {name}_k, {name}_l, &map_{name}}}" if rows else "{}"
        for name, rows in zip(names, config.product.scales, strict=True)
    )
    return "".join(f", {each}" for each in given)


def _tiled(element: str, unit_last: bool, span: int, extents: tuple[int, ...]) -> str:
    """Return C++ of a tile of GMMA's atoms, in order across the unit-stride mode first."""
    major, step = ("K", "Step<_1,_2>") if unit_last else ("MN", "Step<_2,_1>")
    atom = f"SM90::GMMA::Layout_{major}_SW{min(span, SPAN)}_Atom<Config::{element}>"
    tiled = f"tile_to_shape({atom}{{}}, {cpp_shape(extents)}{{}}, {step}{{}})"
    return f"decltype(as_position_independent_swizzle_layout({tiled}))"
