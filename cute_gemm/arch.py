"""Properties of architectures."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from cute_gemm.errors import UnsupportedError

#: Shared memory that the driver reserves in every CTA, in bytes (compute capability 8.0 on).
RESERVED_SHARED = 1024
#: Registers of 32 bits, of a multiprocessor and of a thread (compute capability 5.0 on).
REGISTERS, REGISTERS_PER_THREAD = 65536, 255


@dataclass(frozen=True, slots=True)
class Multiprocessor:
    """Limits of a multiprocessor; shared memory in bytes, registers of 32 bits.

    ``shared_per_cta`` is the limit of one CTA; each of the ``partitions`` has a share of the warps
    and of the registers, which warps get in multiples of ``register_unit``.

    CUDA C++ Programming Guide, "Technical Specifications per Compute Capability", and
    ``cuda_occupancy.h`` of CUDA 13.0 (CTAs, units, partitions).
    """

    threads: int
    ctas: int
    shared_per_cta: int
    registers: int = REGISTERS
    register_unit: int = 256
    registers_per_thread: int = REGISTERS_PER_THREAD
    threads_per_cta: int = 1024
    partitions: int = 4
    shared_unit: int = 128

    @property
    def warps(self) -> int:
        """Most resident warps."""
        return self.threads // 32

    @property
    def shared(self) -> int:
        """Bytes of shared memory: the limit of one CTA plus what the driver reserves for it."""
        return self.shared_per_cta + RESERVED_SHARED


_KIB = 1024
#: Limits by compute capability.
MULTIPROCESSORS = {
    80: Multiprocessor(2048, 32, 163 * _KIB),
    86: Multiprocessor(1536, 16, 99 * _KIB),
    87: Multiprocessor(1536, 16, 163 * _KIB),
    89: Multiprocessor(1536, 24, 99 * _KIB),
    90: Multiprocessor(2048, 32, 227 * _KIB),
    100: Multiprocessor(2048, 32, 227 * _KIB),
    103: Multiprocessor(2048, 32, 227 * _KIB),
    110: Multiprocessor(1536, 24, 227 * _KIB),
    120: Multiprocessor(1536, 24, 99 * _KIB),
    121: Multiprocessor(1536, 24, 99 * _KIB),
}

#: Feature -> lowest compute capability; those of ``_EXACT`` are of one chip and its "a" target,
#: those of ``_FAMILY`` of all targets from there on that have a suffix (PTX ISA, "Target ISA
#: Notes" of ld, st, red, ldmatrix and stmatrix).
_FEATURES = {
    "cp.async": 80, "mma.sync": 80, "dmma.m16n8": 90, "stmatrix": 90, "tma": 90,
    "griddepcontrol": 90, "red.vector": 90, "ld.256": 100,
}  # fmt: skip
_EXACT = {"wgmma": 90, "setmaxnreg": 90}
_FAMILY = {"matrix.b8": 100}


class Arch(str):
    """An architecture by its name, ``"sm_90a"``: a string with the architecture's properties.

    An ``a`` target has the instructions of exactly that chip, and runs on no other.

    Raises
    ------
    UnsupportedError
        If the name is not that of an architecture.

    Examples
    --------
    >>> Arch("sm_90a").cc, Arch("sm_80").shared_limit, Arch("sm_90").has("wgmma")
    (90, 166912, False)
    """

    __slots__ = ("cc", "exact")
    #: Compute capability as an int (90), and whether it is an "a" target.
    cc: int
    exact: bool

    def __new__(cls, name: str) -> Arch:
        """Return the single instance with that name."""
        return name if isinstance(name, Arch) else _named(name)

    @classmethod
    def of_device(cls, capability: tuple[int, int]) -> Arch:
        """Return the architecture to compile for on a device: ``sm_80``, from 9.0 on ``sm_90a``.

        The suffix gives the instructions of exactly that chip (wgmma, TMA multicast, tcgen05).
        """
        major, minor = capability
        return cls(f"sm_{major}{minor}{'a' if major >= 9 else ''}")

    @property
    def multiprocessor(self) -> Multiprocessor | None:
        """Limits of a multiprocessor, None if they are unknown."""
        return MULTIPROCESSORS.get(self.cc)

    @property
    def shared_limit(self) -> int:
        """Limit of shared memory of a CTA in bytes; the least of all limits if it is unknown."""
        known = self.multiprocessor
        return known.shared_per_cta if known else 99 * _KIB

    def mma_sync_part(self, dtype: str) -> float:
        """Return the share of the tensor cores' peak that ``mma.sync`` reaches (not for float64).

        With wgmma or tcgen05 it is 0.62, measured on an H200, and half of it for
        8-bit floats, which ptxas converts to float16 there.
        """
        if not 90 <= self.cc < 120:
            return 1.0
        return 0.31 if dtype.startswith("float8") else 0.62

    def has(self, feature: str) -> bool:
        """Return whether it has ``"cp.async"``, ``"stmatrix"``, ``"tma"``, ``"wgmma"``, ..."""
        if feature in _EXACT:
            return self.exact and self.cc == _EXACT[feature]
        if feature in _FAMILY:
            return self[-1] in "af" and self.cc >= _FAMILY[feature]
        return self.cc >= _FEATURES[feature]

    @staticmethod
    def that_has(feature: str) -> str:
        """Return the architectures that have a feature as text: ``"sm_90 or newer"``."""
        if feature in _EXACT:
            return f"sm_{_EXACT[feature]}a"
        if feature in _FAMILY:
            return f"sm_{_FAMILY[feature]}a or newer, with its suffix a or f"
        return f"sm_{_FEATURES[feature]} or newer"

    def runs_on(self, capability: tuple[int, int]) -> bool:
        """Return whether a cubin for it runs on a device of that compute capability.

        A plain cubin runs on its own major version from its minor version on.

        >>> Arch("sm_80").runs_on((8, 6)), Arch("sm_80").runs_on((9, 0))
        (True, False)
        """
        own, (major, minor) = divmod(self.cc, 10), capability
        return own == (major, minor) if self.exact else own[0] == major and own[1] <= minor


@cache
def _named(name: str) -> Arch:
    match = re.fullmatch(r"sm_(\d+)([af]?)", name) if isinstance(name, str) else None
    if not match:
        raise UnsupportedError(f"arch is {name!r}; expected one like 'sm_80' or 'sm_90a'")
    arch = str.__new__(Arch, name)
    arch.cc, arch.exact = int(match[1]), match[2] == "a"
    return arch
