"""Config of ``sm90_wgmma`` -> translation unit, in cutlass_library's emitter protocol."""

from __future__ import annotations

from typing import Any

from cute_gemm.kernels.sm90.structure import (
    DEEP,
    LOADER_REGISTERS,
    ROWS,
    SIGNATURE,
    SPAN,
    Config,
    Structure,
    kernel_cluster,
    register_a,
)
from cute_gemm.problem.dtypes import DTYPES
from cute_gemm.toolchain.unit import (
    EPILOGUE_PARAMS,
    TYPES,
    Emitter,
    cpp_bool,
    cpp_extents,
    cpp_shape,
    element_proofs,
    layout_proofs,
)

_SM90_WGMMA = (
    """\
// C(M,N) = alpha * A(M,K) B(N,K)^T + beta * C: ${summary}
#include "sm90/sm90_wgmma.cuh"

"""
    + TYPES
    + """\
  using CtaTiler = ${cta_tiler};  // (bM,bN,bK)
  using Mma = ${mma};
  using Cluster = ${cluster};
  enum : int {
    kConsumers = ${groups}, kStages = ${stages}, kStagesC = ${stages_c}, kRasterGroup = ${raster},
    kConsumerRegisters = ${registers}, kProducerRegisters = ${producer_registers}
  };
  enum : bool {
    kMajorKA = ${major_k_a}, kMajorKB = ${major_k_b}, kRegisterA = ${register_a},
    kColumnMajorC = ${column_major_c}, kTmaC = ${tma_c},
    kSwapAB = ${swap_ab}, kGroupsAlongN = ${groups_along_n}, kPingPong = ${ping_pong}
  };

  using SmemLayoutA = ${smem_layout_a};
  using SmemLayoutB = ${smem_layout_b};
  using SmemLayoutC = ${smem_layout_c};
};
"""
)

_CUTE = """
// The same by C++ CuTe: repeated atoms of GMMA's layouts.
struct Cute {
  using SmemLayoutA = ${smem_tiled_a};
  using SmemLayoutB = ${smem_tiled_b};
  using SmemLayoutC = ${smem_tiled_c};
};
"""

#: A batch has no layer of the grid for each GEMM: a CTA takes tiles of all.
_ENTRY = """
extern "C" __global__ void __launch_bounds__(${threads}, ${min_ctas})
${symbol}(
    ${parameters}) {
  cute_gemm::TensorC<Config> const c{C, ${extents}, ldc, batch_c};
  ${epilogue_params}
  cute_gemm::sm90_wgmma<Config>(${maps}, c, k, k_last, l, slices, ${shared}, epilogue);
}
"""


class EmitSm90Wgmma(Emitter):
    """Emitter of ``sm90_wgmma.cuh``."""

    template = _SM90_WGMMA
    header = "sm90/proof.cuh"
    cute = _CUTE
    structure: Structure

    def operation(self) -> Any:
        """See :meth:`Emitter.operation`."""
        config, parts = self.config, self.structure
        deep = DEEP // DTYPES[config.dtype].bytes
        return self.described(
            config.factor.tag,
            instruction=((ROWS, parts.columns, deep), "TensorOp", 90),
            stages=config.stages,
            row_major=(config.majors[0] == "K", config.majors[1] != "K", config.major_c == "N"),
        )

    def values(self) -> dict[str, str]:
        """See :meth:`Emitter.values`."""
        config, parts = self.config, self.structure
        a, b = parts.operands
        order = (lambda x, y: f"{y}, {x}") if config.swap_ab else (lambda x, y: f"{x}, {y}")
        below, beside = kernel_cluster(config)
        entry = {
            "threads": str(parts.threads),
            "min_ctas": str(config.min_ctas),
            "symbol": config.name,
            "parameters": SIGNATURE.cpp("Config::"),
            "extents": order("m", "n"),
            "epilogue_params": EPILOGUE_PARAMS.format("Config::"),
            "maps": order("&map_a", "&map_b") + ", &map_c",
            "shared": order("batch_a == 0", "batch_b == 0"),
        }
        values = {
            "summary": f"{config.dtype}, majors A {config.majors[0]}, B {config.majors[1]}, "
            f"C {'column' if config.major_c == 'M' else 'row'}-major"
            + ", A and B swapped" * config.swap_ab,
            "cta_tiler": cpp_shape(parts.tile),
            "mma": _mma(config, parts),
            "groups": str(config.groups),
            "stages": str(config.stages),
            "stages_c": str(parts.stores or 1),
            "cluster": f"cute_gemm::ClusterShape<{below}, {beside}>",
            "registers": str(parts.registers),
            "producer_registers": str(LOADER_REGISTERS),
            "major_k_a": cpp_bool(a.major == "K"),
            "major_k_b": cpp_bool(b.major == "K"),
            "register_a": cpp_bool(register_a(config)),
            "column_major_c": cpp_bool(parts.column_major),
            "tma_c": cpp_bool(config.tma_c),
            "groups_along_n": cpp_bool(parts.side_by_side),
            "swap_ab": cpp_bool(bool(config.swap_ab)),
            "ping_pong": cpp_bool(bool(config.ping_pong)),
            "smem_layout_a": a.layout.cpp(),
            "smem_layout_b": b.layout.cpp(),
            "smem_layout_c": parts.part.cpp(),
            "smem_tiled_a": _tiled("Element", a.major == "K", a.span, a.extents),
            "smem_tiled_b": _tiled("Element", b.major == "K", b.span, b.extents),
            "smem_tiled_c": _tiled(
                "ElementC", not parts.column_major, parts.span, parts.part.extents
            ),
        }  # fmt: skip
        return {**values, **entry}

    def emit(self, operation: Any, end: str = _ENTRY) -> str:
        """See :meth:`Emitter.emit`."""
        return super().emit(operation, end)

    def facts(self) -> list[tuple[str, str]]:
        """See :meth:`Emitter.facts`."""
        config, parts = self.config, self.structure
        a, b = parts.operands
        facts = [
            *element_proofs(config),
            (cpp_extents("Config::CtaTiler{}", (a.extents[0], *b.extents)), "CtaTiler"),
            (f"sizeof(cute_gemm::SharedStorage<Config>) <= {parts.smem}", "shared memory"),
        ]
        layouts = ((a.layout, a.extents), (b.layout, b.extents), (parts.part, parts.part.extents))
        for letter, (layout, extents) in zip("ABC", layouts, strict=True):
            name = f"SmemLayout{letter}"
            facts += [
                (f"cute_gemm::same_layout(Cute::{name}{{}}, Config::{name}{{}})", name),
                *layout_proofs(name, layout, extents),
            ]
        for letter, plan in zip("AB", parts.operands, strict=True):
            boxes = f"cute_gemm::TmaLoad<Config::SmemLayout{letter}, Config::kMajorK{letter}, "
            boxes += f"{plan.sharers}>"
            run, deep = (plan.box[::-1]) if plan.major == "K" else plan.box
            facts.append((f"{boxes}::kSpan == {run} && {boxes}::kDepth == {deep}", f"box {letter}"))
        return facts


def _mma(config: Config, parts: Structure) -> str:
    """CuTe's wgmma: of other than 2 bytes what it reads from shared memory is along K."""
    size, types = DTYPES[config.dtype].bytes, (config.accumulator, config.factor, config.factor)
    tags = "".join(one.tag.upper() for one in types)
    source = "RS" if register_a(config) else "SS"
    name = f"SM90::GMMA::MMA_{ROWS}x{parts.columns}x{DEEP // size}_{tags}_{source}"
    if size == 2:
        majors = ", ".join(f"SM90::GMMA::Major::{plan.major}" for plan in parts.operands)
        return f"{name}<{majors}>"
    return f"{name}_TN" + "<>" * (config.factor.name == "tf32")


def _tiled(element: str, unit_last: bool, span: int, extents: tuple[int, ...]) -> str:
    """C++ of a tile of GMMA's atoms, one behind the other across the unit-stride mode first."""
    major, step = ("K", "Step<_1,_2>") if unit_last else ("MN", "Step<_2,_1>")
    atom = f"SM90::GMMA::Layout_{major}_SW{min(span, SPAN)}_Atom<Config::{element}>"
    tiled = f"tile_to_shape({atom}{{}}, {cpp_shape(extents)}{{}}, {step}{{}})"
    return f"decltype(as_position_independent_swizzle_layout({tiled}))"
