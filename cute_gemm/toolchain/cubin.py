"""What a compilation gives, and the cache keeps."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Resources:
    """What one kernel takes, as ptxas reports it: registers and bytes per thread."""

    registers: int
    shared_static: int  # bytes per CTA; what is asked for at launch comes on top
    spill_stores: int
    spill_loads: int
    stack: int


@dataclass(frozen=True, slots=True)
class Proof:
    """A unit whose asserts the compiler found to hold: what Python computed, C++ computes too."""

    source: str  # the CUDA C++ of the unit
    facts: tuple[str, ...]  # what it asserts: a name, or the text where there is none
    arch: str
    seconds: float  # of the compilation

    def __repr__(self) -> str:
        return f"Proof({len(self.facts)} facts hold for {self.arch}, {self.seconds:.3f} s)"


@dataclass(frozen=True, slots=True)
class Build:
    """A compiled unit."""

    cubin: bytes  # the ELF image that the driver loads
    symbol: str  # its entry
    arch: str  # that it runs on, "sm_90a"
    resources: Resources  # of the entry
    seconds: float  # of the compilation, or of the look-up when cached
    cached: bool
    log: str  # what the compiler said

    def __repr__(self) -> str:
        where = "cache" if self.cached else "NVRTC"
        return (
            f"Build({self.symbol!r}, {self.arch!r}, {len(self.cubin)} bytes, "
            f"{self.resources.registers} registers, {self.seconds:.3f} s from {where})"
        )
