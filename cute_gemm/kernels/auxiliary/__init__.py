"""Auxiliary kernels before and after the GEMM: packing, reduction over slices of K, group ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cute_gemm.kernels.auxiliary.components import Components
from cute_gemm.kernels.auxiliary.ends import CheckEnds
from cute_gemm.kernels.auxiliary.pack import Pack
from cute_gemm.kernels.auxiliary.packer import Packer
from cute_gemm.kernels.auxiliary.reduce import Reduce

if TYPE_CHECKING:
    from cute_gemm.problem.parts.packing import Packing

PACK, COMPONENTS, REDUCE, CHECK_ENDS = Pack(), Components(), Reduce(), CheckEnds()


def packer(packing: Packing) -> Packer:
    """Return the packing kernel: of components, or of elements."""
    return COMPONENTS if packing.splits else PACK
