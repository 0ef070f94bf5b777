"""``tensor_core``: a tensor core kernel without a pipeline."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from cute_gemm.cute.atoms import MMA_ATOMS
from cute_gemm.kernels.sm80.pipeline import Sm80Pipeline, Tile

if TYPE_CHECKING:
    from cute_gemm.problem.problem import GemmProblem


class TensorCore(Sm80Pipeline):
    """Tiled MMA, ldmatrix and XOR-swizzled shared memory; no overlap of loads and MMAs."""

    name = "tensor_core"
    summary = "tiled MMA (mma.sync), ldmatrix, XOR-swizzled shared memory; no pipeline"
    dtypes = ("float16", "bfloat16", "float32/tf32", "float64", "complex128", "int8")
    options = ("tile", "warps", "copy", "raster", "min_ctas", "mma")
    choices: ClassVar = {
        **Sm80Pipeline.choices,
        "mma": tuple(name for name in MMA_ATOMS if not re.search("FMA|SM89", name)),
    }  # fmt: skip
    stages = (1, 1)

    def tiles(self, problem: GemmProblem, policy: str) -> Sequence[Tile]:
        """Return one tile, for two CTAs per multiprocessor: one computes while the other waits."""
        tile = {1: (128, 128, 64), 2: (128, 128, 32), 4: (128, 64, 32)}
        return ((tile.get(problem.A.element.bytes, (64, 64, 16)), (2, 2), 1, 2),)
