"""What a compilation gives, and the cache keeps."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Resources:
    """What one kernel takes, as ptxas reports it.

    Attributes
    ----------
    registers
        Registers per thread.
    shared_static
        Static shared memory per CTA in bytes; what is asked for at launch comes on top.
    spill_stores, spill_loads
        Bytes of register spills per thread.
    stack
        Bytes of stack frame per thread.
    """

    registers: int
    shared_static: int
    spill_stores: int
    spill_loads: int
    stack: int


@dataclass(frozen=True, slots=True)
class Build:
    """A compiled unit.

    Attributes
    ----------
    cubin
        The ELF image that the driver loads.
    symbol, arch
        Its entry, and the architecture that it runs on (``"sm_90a"``).
    resources
        Registers, shared memory and spills of the entry.
    seconds
        Wall time of the compilation, or of the look-up when ``cached``.
    cached
        Whether it came from the disk cache.
    log
        What the compiler said.
    """

    cubin: bytes
    symbol: str
    arch: str
    resources: Resources
    seconds: float
    cached: bool
    log: str

    def __repr__(self) -> str:
        where = "cache" if self.cached else "NVRTC"
        return (
            f"Build({self.symbol!r}, {self.arch!r}, {len(self.cubin)} bytes, "
            f"{self.resources.registers} registers, {self.seconds:.3f} s from {where})"
        )
