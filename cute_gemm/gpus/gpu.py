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
    """The facts of a GPU that predicted times and reports use.

    Attributes
    ----------
    name
        ``"H100 SXM"``.
    aliases
        Other names, as users write them and as the driver reports them (without ``"NVIDIA"``).
    cc
        Compute capability, as an int: 90.
    sms
        Number of multiprocessors.
    clock_ghz
        Boost clock in GHz.
    bandwidth_gbs
        Memory bandwidth in 10**9 bytes per second.
    l2_bytes
        L2 cache in bytes.
    peaks
        Peak rates of dense matrices, in 10**12 operations per second.
    source
        The document that the rates and the bandwidth are from.

    Examples
    --------
    >>> from cute_gemm import plan
    >>> gpu = plan("TN", m=64, n=64, k=64, dtype="float16", arch="sm_80", gpu="A100 SXM 80GB").gpu
    >>> gpu.cc, gpu.sms
    (80, 108)
    """

    name: str
    aliases: tuple[str, ...]
    cc: int
    sms: int
    clock_ghz: float
    bandwidth_gbs: float
    l2_bytes: int
    peaks: tuple[Peak, ...]
    source: str

    @property
    def arch(self) -> Arch:
        """The architecture to compile for."""
        return Arch.of_device(divmod(self.cc, 10))

    def peak(self, key: str, unit: Unit | None = None) -> Peak | None:
        """Return the highest rate of a type, or None if the GPU has none.

        Parameters
        ----------
        key
            A type, such as ``"float16"``.
        unit
            The unit that computes it; by default any.
        """
        key = "float8" if key in FLOAT8 else key
        peaks = [p for p in self.peaks if p.key == key and unit in (None, p.unit)]
        return max(peaks, key=lambda peak: peak.tflops, default=None)
