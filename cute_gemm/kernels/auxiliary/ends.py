"""The kernel that checks the ends of groups and sets a flag (``templates/auxiliary/ends.cuh``)."""

from __future__ import annotations

from typing import NamedTuple

from cute_gemm.access.accesses import Access
from cute_gemm.kernels.base import Compiled
from cute_gemm.kernels.config import NothingToChoose
from cute_gemm.toolchain.signature import Launch, Parameter, Pointer, Signature
from cute_gemm.toolchain.unit import TranslationUnit


class Ends(NamedTuple):
    """A number of groups within an extent, and the nonzero number that identifies their owner."""

    groups: int
    total: int
    number: int


_SIGNATURE = Signature(
    (
        Pointer("offsets", "int const*"),
        Pointer("flag", "int*"),
        Parameter("groups", "int", 4, "=i", lambda ends: (ends.groups,)),
        Parameter("total", "int", 4, "=i", lambda ends: (ends.total,)),
        Parameter("number", "int", 4, "=i", lambda ends: (ends.number,)),
    )
)


class CheckEnds(Compiled):
    """A warp that writes a number to a flag if ends decrease or exceed the extent."""

    name = "check_ends"

    def signature(self, config: NothingToChoose) -> Signature:
        """Return the parameters: the ends, the flag, and the numbers of `Ends`."""
        return _SIGNATURE

    def configure(self, ends: Ends) -> NothingToChoose:
        """Return the config."""
        return NothingToChoose(self.name)

    def unit(self, config: NothingToChoose) -> TranslationUnit:
        source = f"""\
#include "auxiliary/ends.cuh"

extern "C" __global__ void __launch_bounds__(32)
{config.name}({self.signature(config).cpp("")}) {{
  cute_gemm::check_ends(offsets, flag, groups, total, number);
}}
"""
        return TranslationUnit(source, config.name)

    def launch(self, config: NothingToChoose, ends: Ends) -> Launch:
        return Launch(1, 32, 0)

    def accesses(
        self, config: NothingToChoose, ends: Ends, *, reads_c: bool = False
    ) -> tuple[Access, ...]:
        """Return no accesses: reports leave out this launch."""
        return ()
