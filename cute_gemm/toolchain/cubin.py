"""Results of a compilation, which the cache keeps."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Resources:
    """Resources of a kernel as ptxas reports them: registers and bytes per thread."""

    registers: int
    shared_static: int  # bytes per CTA, without dynamic shared memory
    spill_stores: int
    spill_loads: int
    stack: int


@dataclass(frozen=True, slots=True)
class Proof:
    """A compiled unit of asserts: C++ computes the same values as Python."""

    source: str  # the CUDA C++ of the unit
    facts: tuple[str, ...]  # names of its asserts, or their texts
    arch: str
    seconds: float  # of the compilation

    def __repr__(self) -> str:
        return f"Proof({len(self.facts)} facts hold for {self.arch}, {self.seconds:.3f} s)"


@dataclass(frozen=True, slots=True)
class Build:
    """A compiled unit."""

    cubin: bytes  # the ELF image that the driver loads
    symbol: str  # its entry
    arch: str  # "sm_90a"
    resources: Resources  # of the entry
    seconds: float  # of the compilation, or of the look-up when cached
    cached: bool
    log: str  # output of the compiler

    def __repr__(self) -> str:
        where = "cache" if self.cached else "NVRTC"
        return (
            f"Build({self.symbol!r}, {self.arch!r}, {len(self.cubin)} bytes, "
            f"{self.resources.registers} registers, {self.seconds:.3f} s from {where})"
        )
