"""``PackedOperand``: A or B in the layout that a plan's kernel reads, kept for many calls."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from cute_gemm.arrays.base import Operand
from cute_gemm.errors import OptionError, ShapeError
from cute_gemm.problem.matrix import Matrix
from cute_gemm.problem.parts.packing import packed
from cute_gemm.problem.problem import GemmProblem


@dataclass(frozen=True, eq=False)
class PackedOperand:
    """A or B, packed by `Plan.pack`, which plans accept in its place.

    It serves every plan that packs this operand and has the same descriptor of it, also for other
    extents of C.

    Attributes
    ----------
    name
        ``"A"`` or ``"B"``.
    source, target
        Its descriptor as given, and as packed.
    """

    name: str
    source: Matrix
    target: Matrix
    operand: Operand = field(repr=False)  # as given, without its array once packed
    memory: Any = field(default=None, repr=False)  # device memory, or None where a CPU computes

    def check(self, problem: GemmProblem, pack: str) -> None:
        """Refuse plans of another operand, or that read this one unpacked."""
        if self.name not in pack:
            raise OptionError(
                f"{self.name} is packed, and this plan reads it unpacked: make the plan with "
                f"pack={self.name!r}, or pass the array"
            )
        target = getattr(packed(problem, pack)[0], self.name)
        if self.target != target:
            raise ShapeError(
                f"{self.name} was packed from {self.source} of {self.source.dtype}, and this plan "
                f"is for {getattr(problem, self.name)} of {target.dtype}: pack it for this plan"
            )

    def there(self) -> Operand:
        """Return the packed operand on the device."""
        if self.memory is None:
            return self.operand
        return replace(self.operand, pointer=self.memory.pointer, device=self.memory.device)
