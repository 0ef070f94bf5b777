"""A GPU as a value: multiprocessors, clock, memory and peak rates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from cute_gemm.arch import Arch
from cute_gemm.dtypes import FLOAT8

Unit = Literal["tensor cores", "CUDA cores"]


#: Types of products that rates are known of.
KEYS = ("float16", "bfloat16", "tf32", "float32", "float64", "int8", "float8")


class Peak(NamedTuple):
    """One peak rate: the type of the products, what makes them, 10**12 operations per second."""

    #: One of ``KEYS``.
    key: str
    unit: Unit
    tflops: float


@dataclass(frozen=True, slots=True)
class Gpu:
    """One product: a row of `GPUS`."""

    name: str  #: ``"H100 SXM"``.
    #: Other names, as users write them and as the driver gives them (without ``"NVIDIA"``).
    aliases: tuple[str, ...]
    cc: int  #: Compute capability (90).
    sms: int  #: Multiprocessors.
    clock_ghz: float  #: Boost clock.
    bandwidth_gbs: float  #: Memory bandwidth in 10**9 bytes per second.
    l2_bytes: int  #: L2 cache.
    peaks: tuple[Peak, ...]  #: Peak rates of dense matrices.
    source: str  #: Document that the rates and the bandwidth are from.

    @property
    def arch(self) -> Arch:
        """The architecture to compile for."""
        return Arch.of_device(divmod(self.cc, 10))

    def peak(self, key: str, unit: Unit | None = None) -> Peak | None:
        """Return the highest rate of ``key``, of ``unit`` if one is given; None without one.

        ``key`` is one of `KEYS`, or the name of an 8-bit float.
        """
        key = "float8" if key in FLOAT8 else key
        peaks = [p for p in self.peaks if p.key == key and unit in (None, p.unit)]
        return max(peaks, key=lambda peak: peak.tflops, default=None)
