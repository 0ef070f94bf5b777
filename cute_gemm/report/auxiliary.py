"""Reports of auxiliary kernels, which are launched before and after the GEMM kernel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cute_gemm._text import counted, named
from cute_gemm.problem.parts.packing import Packing
from cute_gemm.rendering.rows import access_tables
from cute_gemm.rendering.tables import styled

if TYPE_CHECKING:
    from cute_gemm.rendering.rows import AccessRow
    from cute_gemm.toolchain.signature import Launch


@dataclass(frozen=True, eq=False)
class AuxiliaryReport:
    """A launch that packs operands or adds slices of K.

    Attributes
    ----------
    kernel, config
        ``"pack"``, ``"components"`` or ``"reduce"``, and its config.
    problem
        The operands and their copies (`Packing`), or the partial sums and C (`Reduction`).
    launch
        CTAs, threads per CTA, dynamic shared memory (bytes).
    rows
        One ``AccessRow`` per memory instruction.
    """

    kernel: str
    config: Any
    problem: Any
    launch: Launch
    rows: tuple[AccessRow, ...]

    @property
    def what(self) -> tuple[str, ...]:
        """What the kernel does, one line per matrix."""
        problem = self.problem
        if isinstance(problem, Packing):
            return tuple(f"{a.name}  {a} to {b} in scratch" for a, b, _ in problem.copies)
        parts = [f"{problem.slices} slices of K"] * (problem.slices > 1)
        parts += [f"{problem.epilogue.pairs} of columns"] * bool(problem.epilogue.pairs)
        return (f"C  from {' and '.join(parts)}: {problem.partials} in scratch",)

    @property
    def packs(self) -> tuple[str, ...]:
        """Names of the packed operands."""
        sources = self.problem.sources if isinstance(self.problem, Packing) else ()
        return tuple(source.name for source in sources)

    @property
    def coalesced(self) -> bool:
        """Whether all accesses are coalesced and free of bank conflicts, apart from edge tiles."""
        return all(row.good for row in self.rows if not row.at_edges)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as strings, numbers, lists and dicts."""
        return {
            "kernel": self.kernel,
            "config_name": self.config.name,
            "what": list(self.what),
            "nbytes": self.problem.nbytes,
            "launch": named(self.launch, "grid", "block", "smem"),
            "coalesced": self.coalesced,
            "accesses": [row.to_dict() for row in self.rows],
        }

    def shown(self) -> Iterator[Any]:
        """Yield the lines and tables of the report."""
        yield styled((self.kernel, "bold"), f"  config {self.config.name}")
        yield from self.what
        yield f"launch {launched(self.launch)}; {self.problem.nbytes:,} bytes of scratch"
        for table, _ in access_tables(self.rows):
            yield from ("", table)


def launched(launch: Launch) -> str:
    """Return the shape of a launch: ``"64 CTAs x 128 threads"``."""
    return f"{counted(launch.ctas, 'CTA')} x {counted(launch.block, 'thread')}"
