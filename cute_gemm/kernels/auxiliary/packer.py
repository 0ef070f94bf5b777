"""Base class of packing kernels: a CTA copies a tile of A or B into scratch."""

from __future__ import annotations

import struct
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from cute_gemm.arch import Arch
from cute_gemm.kernels.base import Compiled
from cute_gemm.kernels.config import Config
from cute_gemm.toolchain.signature import Launch, Parameter, Pointer, Signature
from cute_gemm.toolchain.unit import TranslationUnit

if TYPE_CHECKING:
    from cute_gemm.access.accesses import Access
    from cute_gemm.cost_model.calibration import Constants
    from cute_gemm.gpus.gpu import Gpu
    from cute_gemm.problem.matrix import Matrix
    from cute_gemm.problem.parts.packing import Packing

#: Threads of a CTA.
THREADS = 256


def seconds(moved: Any, gpu: Gpu, constants: Constants, launch: float, narrow: bool = False) -> Any:
    """Return the predicted time of a launch that reads and writes ``moved`` bytes.

    ``moved`` may be an array. ``launch``: microseconds before the first and after the last
    instruction.
    """
    part = constants.stream_part * (constants.narrow_part if narrow else 1.0)
    start = launch * 1e-6 + constants.start / (gpu.clock_ghz * 1e9)
    return start + moved / (part * gpu.bandwidth_gbs * 1e9)


@dataclass(frozen=True)
class PackConfig(Config):
    """How A and B are copied."""

    kernel: str
    A: Any
    B: Any
    dependent: bool = False  #: Whether launches of the arch may start before the previous one ends.

    @property
    def name(self) -> str:
        """The kernel's symbol."""
        return f"{self.kernel}_{self.A}_{self.B}"


class Packer(Compiled):
    """A kernel that packs A, B or both."""

    #: Format of its description, with ``A`` and ``B``: how these are copied.
    about: ClassVar[str]
    #: Type that `copy` returns; without arguments, of an operand that is not copied.
    form: ClassVar[Callable[..., Any]]
    #: C++ struct of the numbers of an operand, and its ``struct`` format.
    operand: ClassVar[tuple[str, str]]
    #: Fewest CTAs of a launch that starts early.
    few: ClassVar[int] = 0

    def __init__(self) -> None:
        kind, form = self.operand
        size = struct.calcsize(form)

        def numbers_of(name: str) -> Callable[[Packing], tuple[int, ...]]:
            def numbers(packing: Packing) -> tuple[int, ...]:
                if name not in packing.by_place:
                    return struct.unpack(form, bytes(size))
                source, target, offset = packing.by_place[name]
                strides = source.ld, source.batch_stride, target.ld, target.batch_stride
                return *strides, *self.numbers(source, target, offset)

            return numbers

        operands = (
            Parameter(name.lower(), f"cute_gemm::{kind}", size, form, numbers_of(name))
            for name in "AB"
        )
        inputs = (Pointer(name, "void const*") for name in "AB")
        self._signature = Signature((*inputs, Pointer("scratch", "void*"), *operands))

    @abstractmethod
    def copy(self, source: Matrix, target: Matrix) -> Any:
        """Return how an operand is copied; its ``cpp`` is the template's parameter."""

    @abstractmethod
    def place(self, source: Matrix, target: Matrix) -> Any:
        """Return the tiling of an operand: ``tiles`` of a matrix, and ``matrices``."""

    @abstractmethod
    def numbers(self, source: Matrix, target: Matrix, offset: int) -> tuple[int, ...]:
        """Return the kernel's arguments for an operand, except its strides."""

    @abstractmethod
    def copied(self, copy: Any, source: Matrix, target: Matrix) -> Iterator[Access]:
        """Yield the accesses of the copy of one operand."""

    def smem(self, config: PackConfig) -> int:
        """Return the bytes of shared memory."""
        return 0

    def narrow(self, packing: Packing) -> bool:
        """Return whether accesses of an operand are single elements."""
        return False

    def signature(self, config: PackConfig) -> Signature:
        """Return the parameters of the entry."""
        return self._signature

    def configure(self, packing: Packing, arch: str = "sm_80") -> PackConfig:
        """Return the config that the operands' layouts and the arch determine."""
        copies = {place: self.copy(*x[:2]) for place, x in packing.by_place.items()}
        a, b = (copies.get(name) or self.form() for name in "AB")
        return PackConfig(self.name, a, b, Arch(arch).has("griddepcontrol"))

    def unit(self, config: PackConfig) -> TranslationUnit:
        source = f"""\
// {self.about.format(A=config.A, B=config.B)}
#include "auxiliary/{self.name}.cuh"

struct Config {{
  using A = {config.A.cpp};
  using B = {config.B.cpp};
}};

extern "C" __global__ void __launch_bounds__({THREADS})
{config.name}(
    {self._signature.cpp("")}) {{
  cute_gemm::{self.name}<Config>(A, B, scratch, a, b);
}}
"""
        return TranslationUnit(source, config.name)

    def launch(self, config: PackConfig, packing: Packing) -> Launch:
        places = [self.place(source, target) for source, target, _ in packing.copies]
        tiles, matrices = sum(x.tiles for x in places), max(x.matrices for x in places)
        early = config.dependent and tiles * matrices >= self.few
        return Launch(tiles, THREADS, self.smem(config), matrices, dependent=early)

    def accesses(
        self, config: PackConfig, packing: Packing, *, reads_c: bool = False
    ) -> tuple[Access, ...]:
        accesses: list[Access] = []
        for place, (source, target, _) in packing.by_place.items():
            accesses += self.copied(getattr(config, place), source, target)
        return tuple(accesses)

    def seconds(self, packing: Packing, gpu: Gpu, constants: Constants) -> float:
        """Return the predicted time."""
        moved = sum(matrix.nbytes for matrix in (*packing.sources, *packing.targets))
        return float(seconds(moved, gpu, constants, constants.ahead_us, self.narrow(packing)))
