"""What one instance of CUTLASS's ``GemmUniversal`` is: tile, warps, stages, types, layouts.

``cutlass_universal.py`` says what is meant by the *instance*.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from cute_gemm.arch import Arch
from cute_gemm.errors import OptionError
from cute_gemm.kernels.cutlass.epilogue import check_staging
from cute_gemm.kernels.cutlass.maps import LoadMap, StoreMap, raked, striped, stripmined
from cute_gemm.kernels.cutlass.shared import shared_tile
from cute_gemm.problem.dtypes import dtype

#: Smallest copy of cp.async, and the widest of any load, in bytes.
CP_ASYNC, WIDEST = 4, 16


class Math(NamedTuple):
    """How CUTLASS computes one kind of product.

    ``large`` and ``small`` are the default tiles, for many and for few CTAs: (bM, bN, bK), warps
    along (M, N), stages.
    """

    opcode: Literal["TensorOp", "Simt"]
    instruction: tuple[int, int, int]
    large: tuple[tuple[int, int, int], tuple[int, int], int]
    small: tuple[tuple[int, int, int], tuple[int, int], int]
    stages: tuple[int, int]  # fewest and most
    vector: bool  # whether a thread moves vectors, or single elements


MATH: dict[str, Math] = {
    "half": Math(
        "TensorOp",
        (16, 8, 16),
        ((128, 128, 32), (2, 2), 4),
        ((64, 64, 32), (2, 2), 6),
        (2, 12),
        True,
    ),
    "tf32": Math(
        "TensorOp",
        (16, 8, 8),
        ((128, 128, 32), (2, 2), 3),
        ((64, 64, 32), (2, 2), 4),
        (3, 12),
        True,
    ),
    "float64": Math(
        "TensorOp", (8, 8, 4), ((128, 128, 16), (4, 2), 3), ((64, 64, 16), (2, 2), 4), (3, 8), False
    ),
    "float32": Math(
        "Simt", (1, 1, 1), ((128, 128, 8), (4, 2), 4), ((64, 64, 8), (2, 2), 5), (3, 8), False
    ),
    "int8": Math(
        "TensorOp",
        (16, 8, 32),
        ((128, 128, 64), (2, 2), 4),
        ((64, 64, 64), (2, 2), 6),
        (2, 12),
        True,
    ),
    "dp4a": Math(
        "Simt", (1, 1, 4), ((128, 128, 32), (4, 2), 2), ((64, 64, 32), (2, 2), 2), (2, 2), True
    ),
}


@dataclass(frozen=True, slots=True)
class CutlassUniversalConfig:
    """One instance of CUTLASS's kernel.

    The first four are options of ``gemm``; the rest follows from the problem.

    Attributes
    ----------
    tile
        CTA tile (bM, bN, bK).
    warps
        Warps of a CTA along M and N.
    stages
        Stages of the shared-memory pipeline; 2 is the pipeline through registers (``ld.global``),
        3 and more the one of ``cp.async``.
    swizzle
        Tiles of a band of the CTA swizzle: 1, 2, 4 or 8.
    math
        ``"half"``, ``"tf32"``, ``"float64"`` or ``"int8"`` on tensor cores, else ``"float32"`` or
        ``"dp4a"``.
    dtype, out_dtype
        Types of A and B, and of C.
    major_a, major_b, major_c
        The contiguous mode: ``"M"``, ``"N"`` or ``"K"``.
    align_a, align_b, align_c
        Elements of each access: what base address, leading dimension and extent allow.
    """

    tile: tuple[int, int, int]
    warps: tuple[int, int]
    stages: int
    swizzle: int
    math: str
    dtype: str
    out_dtype: str
    major_a: str
    major_b: str
    major_c: str
    align_a: int
    align_b: int
    align_c: int

    @property
    def name(self) -> str:
        """The kernel's symbol: every type, layout, alignment and tile, C's too.

        Examples
        --------
        ``cutlass_universal_sm80_tensorop_16x8x16_f16xf16_f16_f32_AK8_BK8_CM8_128x128x32_2x2_4_swz8``
        """
        element, output = dtype(self.dtype), dtype(self.out_dtype)
        return "_".join(
            (
                "cutlass_universal_sm80",
                MATH[self.math].opcode.lower(),
                "x".join(map(str, MATH[self.math].instruction)),
                f"{element.tag}x{element.tag}",
                output.tag,
                dtype(element.accumulator).tag,
                f"A{self.major_a}{self.align_a}",
                f"B{self.major_b}{self.align_b}",
                f"C{self.major_c}{self.align_c}",
                "x".join(map(str, self.tile)),
                "x".join(map(str, self.warps)),
                str(self.stages),
                f"swz{self.swizzle}",
            )
        )

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return 32 * self.warps[0] * self.warps[1]

    @property
    def exchange(self) -> bool:
        """Whether the instance is the transposed problem: C is column-major."""
        return self.major_c == "M"

    @property
    def instance_tile(self) -> tuple[int, int, int]:
        """The tile in the instance's modes."""
        m, n, k = self.tile
        return (n, m, k) if self.exchange else (m, n, k)

    @property
    def instance_warps(self) -> tuple[int, int]:
        """The warps in the instance's modes."""
        m, n = self.warps
        return (n, m) if self.exchange else (m, n)

    @property
    def k_step(self) -> int:
        """Elements along K of one step of a warp's matrix instructions."""
        return MATH[self.math].instruction[2]

    @property
    def smem(self) -> int:
        """Bytes of dynamic shared memory.

        At least the size of CUTLASS's ``SharedStorage``, which the unit asserts.
        """
        m, n, k = self.instance_tile
        # SIMT kernels that transpose on the way to shared memory pad each row by up to 4 elements.
        pad = 4 if MATH[self.math].opcode == "Simt" else 0
        mainloop = (m + n + 2 * pad) * k * self.stages * dtype(self.dtype).bytes
        # The epilogue passes 8 rows of each row of warps at a time, 16 for some tensor core types.
        rows = self.instance_warps[0] * (16 if MATH[self.math].opcode == "TensorOp" else 8)
        epilogue = rows * (n + 32) * dtype(dtype(self.dtype).accumulator).bytes
        return -(-max(mainloop, epilogue) // 128) * 128

    def alignment(self, operand: str) -> int:
        """Elements of each access of ``"A"`` or ``"B"``."""
        return self.align_a if operand == "A" else self.align_b

    def load_map(self, operand: str) -> LoadMap:
        """CUTLASS's thread map of ``"A"`` or ``"B"`` (default_mma_core_{sm75,sm80,simt}.h).

        Raises
        ------
        ValueError
            When CUTLASS cannot divide the tile among the threads.
        """
        extent = self.tile[0] if operand == "A" else self.tile[1]
        k = self.tile[2]
        k_major = (self.major_a if operand == "A" else self.major_b) == "K"
        contiguous, strided = (k, extent) if k_major else (extent, k)
        if self.math == "float32":
            return stripmined(contiguous, strided, self.threads)
        if self.math == "dp4a":
            return stripmined(contiguous, strided, self.threads, 4)
        if self.math == "float64":
            make = raked if k_major else striped
            return make(contiguous, strided, self.threads, (16, 2), 1)
        vector = WIDEST // dtype(self.dtype).bytes
        lanes = contiguous // vector if k_major else min(contiguous // vector, 8)
        if not 1 <= lanes <= 32:
            raise ValueError(
                f"contiguous tile extent: {contiguous} is not 1 to 32 vectors of {vector}"
            )
        return raked(contiguous, strided, self.threads, (lanes, 32 // lanes), vector)

    def store_map(self) -> StoreMap:
        """CUTLASS's thread map of C (default_thread_map_{tensor_op,simt}.h)."""
        m, n, _ = self.instance_tile
        warps_m, warps_n = self.instance_warps
        warp_m, warp_n = m // warps_m, n // warps_n
        bits = 8 * dtype(self.out_dtype).bytes
        if MATH[self.math].opcode == "TensorOp":
            shape = (n, 8, warps_m, 1, 1)
            count = (1, warp_m // 8, 1, 1, warp_m // 8)
        else:
            rows = 8 if self.math == "dp4a" and warp_m > warp_n else 4
            lane = min(4, warp_m // rows)
            groups = warp_m // (rows * lane)
            shape = (n, 1, rows, warps_m, 1)
            count = (1, lane, groups, 1, lane * groups)
        return StoreMap(shape, count, self.threads, self.align_c, bits)


def check(config: CutlassUniversalConfig, cc: int) -> None:
    """Raise ``OptionError`` for what CUTLASS cannot build, or what would not run."""
    row = MATH[config.math]
    tile, warps = config.tile, config.warps
    fewest, most = row.stages
    size = dtype(config.dtype).bytes
    if config.swizzle not in (1, 2, 4, 8):
        raise OptionError(f"swizzle is {config.swizzle}; expected 1, 2, 4 or 8")
    if not fewest <= config.stages <= most:
        expected = f"{fewest}" if fewest == most else f"{fewest} to {most}"
        raise OptionError(f"stages is {config.stages}; expected {expected} for {config.math}")
    for operand, elements in (("A", config.align_a), ("B", config.align_b)):
        if config.stages > 2 and elements * size < CP_ASYNC:
            raise OptionError(
                f"stages is {config.stages}, but {operand} allows accesses of {elements * size} "
                f"bytes only and cp.async copies at least {CP_ASYNC}; expected stages=2"
            )
    if max(tile) > 512 or max(warps) > 32 or not 1 <= warps[0] * warps[1] <= 32:
        raise OptionError(
            f"tile is {tile}, warps is {warps}; expected extents up to 512, and up to 32 warps"
        )
    warp = []
    for mode in (0, 1):
        extent, rest = divmod(tile[mode], warps[mode])
        # A SIMT warp is 4 or 8 lanes wide in either direction; the instance may be transposed.
        step = 8 if row.opcode == "Simt" else max(row.instruction[:2])
        if rest or extent % step:
            raise OptionError(
                f"tile is {tile}, warps is {warps}; expected the {'MN'[mode]} extent of a warp to "
                f"be a multiple of {step}"
            )
        warp.append(extent)
    step = 2 * row.instruction[2]
    if tile[2] % step:
        raise OptionError(f"tile is {tile}; expected bK to be a multiple of {step}")
    registers = warp[0] * warp[1] * dtype(dtype(config.dtype).accumulator).bytes // 4 // 32
    if registers > 128:
        raise OptionError(
            f"tile is {tile}, warps is {warps}: {registers} accumulator registers per thread; "
            f"expected at most 128 (take more warps or a smaller tile)"
        )
    try:
        for operand, elements in (("A", config.align_a), ("B", config.align_b)):
            found = config.load_map(operand)
            vectors = found.iterations[0] * found.iterations[1] * found.rows
            if (steps := vectors * found.vector // elements) > 64:
                raise ValueError(f"{operand} takes {steps} accesses per thread, CUTLASS at most 64")
            shared_tile(config, operand)
        config.store_map().check()
        check_staging(config)
    except ValueError as error:
        raise OptionError(f"tile is {tile}, warps is {warps}: {error}") from None
    limit = Arch(f"sm_{cc}").shared_limit
    if config.smem > limit:
        raise OptionError(
            f"tile is {tile}, stages is {config.stages}: {config.smem} bytes of shared memory; "
            f"expected at most {limit} on sm_{cc}"
        )


def integer(option: str, value: Any) -> int:
    """Return ``value``, an integer or its text, as an int; ``OptionError`` for anything else."""
    if isinstance(value, str) and re.fullmatch(r"\d{1,4}", value):
        return int(value)
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise OptionError(f"{option} is {value!r}; expected an integer")
    return int(value)


def extents_of(option: str, value: Any, count: int) -> Any:
    """Return ``count`` positive extents, from a sequence or from text like ``"128x128x32"``."""
    parts = re.split(r"\s*[x,]\s*", value.strip(" ()")) if isinstance(value, str) else value
    expected = f"{count} positive integers, like {(128, 128, 32) if count == 3 else (2, 2)}"
    if not isinstance(parts, (tuple, list)) or len(parts) != count:
        raise OptionError(f"{option} is {value!r}; expected {expected}")
    try:
        extents = tuple(integer(option, part) for part in parts)
    except OptionError:
        raise OptionError(f"{option} is {value!r}; expected {expected}") from None
    if min(extents) < 1:
        raise OptionError(f"{option} is {value!r}; expected {expected}")
    return extents
