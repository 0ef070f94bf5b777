"""GPUs as data: rates, bandwidth and multiprocessors of each product, with their sources.

Peak rates are for dense matrices, in 10**12 operations per second at the clock that NVIDIA states
them for; where a datasheet gives only the rate of 2:4 sparse matrices, it is halved. Those of the
16-bit types are with float32 accumulation, which GeForce cards do at half the rate of float16.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Union

from cute_gemm.arch import Arch
from cute_gemm.errors import OptionError
from cute_gemm.gpus import own
from cute_gemm.gpus.gpu import Gpu, Peak, Unit

#: Rates of a GPU, in the order of `_peaks`.
_RATES: tuple[tuple[str, Unit], ...] = (
    ("float16", "tensor cores"),
    ("bfloat16", "tensor cores"),
    ("tf32", "tensor cores"),
    ("int8", "tensor cores"),
    ("float32", "CUDA cores"),
    ("float64", "CUDA cores"),
    ("float64", "tensor cores"),
)


def _peaks(half: float, *others: float) -> tuple[Peak, ...]:
    """Return the rates of one product: of 16 bits, tf32, int8, float32, float64.

    float16 and bfloat16 have the same on all of them. The last may be that of float64 on tensor
    cores.
    """
    rates = (half, half, *others)
    return tuple(Peak(*what, rate) for what, rate in zip(_RATES, rates, strict=False))


_MIB = 1 << 20

_A100 = _peaks(312, 156, 624, 19.5, 9.7, 19.5)
_H100_SXM = _peaks(989.4, 494.7, 1978.9, 66.9, 33.5, 66.9)
_HOPPER_NVL = _peaks(835.5, 417.5, 1670.5, 60, 30, 60)

_A100_SHEET = "NVIDIA A100 Tensor Core GPU datasheet"
_GA102_PAPER = "NVIDIA Ampere GA102 GPU architecture whitepaper v2"
_ADA_PAPER = "NVIDIA Ada GPU architecture whitepaper"
_H100_PAPER = "NVIDIA H100 Tensor Core GPU architecture whitepaper"
_RTX_BLACKWELL_PAPER = "NVIDIA RTX Blackwell GPU architecture whitepaper"


def _with_float8(row: Gpu) -> Gpu:
    """Return a GPU with the rate of 8-bit floats, which is int8's on Hopper and the B200.

    On Ada and later consumer chips it is twice float16's, whose sums are float32 too.
    """
    if row.cc < 89:
        return row
    rates = {peak.key: peak.tflops for peak in row.peaks}
    rate = rates["int8"] if row.cc in (90, 100) else 2 * rates["float16"]
    return replace(row, peaks=(*row.peaks, Peak("float8", "tensor cores", rate)))


#: All GPUs. A name or alias occurs once; the first of a family also answers to the family.
GPUS: tuple[Gpu, ...] = tuple(map(_with_float8, (
    Gpu("A100 SXM 80GB", ("A100", "A100 SXM", "A100-SXM4-80GB", "A100 80GB"),
        80, 108, 1.41, 2039, 40 * _MIB, _A100, _A100_SHEET),
    Gpu("A100 SXM 40GB", ("A100-SXM4-40GB", "A100 40GB"),
        80, 108, 1.41, 1555, 40 * _MIB, _A100, _A100_SHEET),
    Gpu("A100 PCIe 80GB", ("A100 PCIe", "A100 80GB PCIe"),
        80, 108, 1.41, 1935, 40 * _MIB, _A100, _A100_SHEET),
    Gpu("A100 PCIe 40GB", ("A100-PCIE-40GB", "A100 40GB PCIe"),
        80, 108, 1.41, 1555, 40 * _MIB, _A100, _A100_SHEET),
    Gpu("A800 SXM 80GB", ("A800", "A800-SXM4-80GB"),
        80, 108, 1.41, 2039, 40 * _MIB, _A100, "NVIDIA A800 Tensor Core GPU datasheet"),
    Gpu("A800 PCIe 80GB", ("A800 PCIe", "A800 80GB PCIe"),
        80, 108, 1.41, 1935, 40 * _MIB, _A100, "NVIDIA A800 Tensor Core GPU datasheet"),
    Gpu("A30", (),
        80, 56, 1.44, 933, 24 * _MIB, _peaks(165, 82, 330, 10.3, 5.2, 10.3),
        "NVIDIA A30 Tensor Core GPU datasheet"),
    # The FP64 rate of GA10x, Ada and GB20x is a 64th of that of FP32 (their whitepapers).
    Gpu("A10", (),
        86, 72, 1.695, 600, 6 * _MIB, _peaks(125, 62.5, 250, 31.2, 0.488),
        "NVIDIA A10 Tensor Core GPU datasheet"),
    Gpu("A40", (),
        86, 84, 1.74, 696, 6 * _MIB, _peaks(149.7, 74.8, 299.3, 37.4, 0.584), _GA102_PAPER),
    Gpu("RTX A6000", ("A6000",),
        86, 84, 1.8, 768, 6 * _MIB, _peaks(154.8, 77.4, 309.7, 38.7, 0.605), _GA102_PAPER),
    Gpu("RTX 3090", ("GeForce RTX 3090", "3090"),
        86, 82, 1.695, 936, 6 * _MIB, _peaks(71, 35.6, 284, 35.6, 0.556), _GA102_PAPER),
    Gpu("RTX 3080", ("GeForce RTX 3080", "3080"),
        86, 68, 1.71, 760, 5 * _MIB, _peaks(59.5, 29.8, 238, 29.8, 0.465), _GA102_PAPER),
    # Its tensor cores have twice the rate of GA102's; FP64 is a 64th of FP32.
    Gpu("Jetson AGX Orin 64GB", ("Jetson AGX Orin", "Orin"),
        87, 16, 1.3, 204.8, 4 * _MIB, _peaks(42.5, 21.3, 85, 5.3, 0.083),
        "NVIDIA Jetson AGX Orin Series Technical Brief v1.2"),
    Gpu("L4", (),
        89, 58, 2.04, 300, 48 * _MIB, _peaks(121, 60, 242.5, 30.3, 0.473),
        "NVIDIA L4 Tensor Core GPU datasheet"),
    # The datasheet has half of L40S's rates for the same chip.
    Gpu("L40", (),
        89, 142, 2.49, 864, 96 * _MIB, _peaks(181.05, 90.5, 362, 90.5, 1.41),
        "NVIDIA L40 GPU datasheet"),
    Gpu("L40S", (),
        89, 142, 2.52, 864, 96 * _MIB, _peaks(362, 183, 733, 91.6, 1.43),
        "NVIDIA L40S GPU datasheet"),
    Gpu("RTX 6000 Ada", ("RTX 6000 Ada Generation", "6000 Ada"),
        89, 142, 2.505, 960, 96 * _MIB, _peaks(364.2, 182.1, 728.5, 91.1, 1.42),
        "NVIDIA Ada professional GPU architecture whitepaper"),
    Gpu("RTX 4090", ("GeForce RTX 4090", "4090"),
        89, 128, 2.52, 1008, 72 * _MIB, _peaks(165.2, 82.6, 660.6, 82.6, 1.29), _ADA_PAPER),
    Gpu("RTX 4080", ("GeForce RTX 4080", "4080"),
        89, 76, 2.505, 716.8, 64 * _MIB, _peaks(97.5, 48.7, 389.9, 48.7, 0.761), _ADA_PAPER),
    Gpu("H100 SXM", ("H100", "H100 SXM5", "H100 80GB HBM3"),
        90, 132, 1.98, 3352, 50 * _MIB, _H100_SXM, _H100_PAPER),
    Gpu("H100 PCIe", (),
        90, 114, 1.755, 2039, 50 * _MIB, _peaks(756, 378, 1513, 51.2, 25.6, 51.2), _H100_PAPER),
    Gpu("H100 NVL", (),
        90, 132, 1.785, 3938, 60 * _MIB, _HOPPER_NVL, "NVIDIA H100 Tensor Core GPU datasheet"),
    Gpu("H200", ("H200 SXM",),
        90, 132, 1.98, 4800, 60 * _MIB, _H100_SXM, "NVIDIA H200 Tensor Core GPU datasheet"),
    Gpu("H200 NVL", (),
        90, 132, 1.785, 4800, 60 * _MIB, _HOPPER_NVL, "NVIDIA H200 Tensor Core GPU datasheet"),
    Gpu("GH200", ("GH200 480GB", "GH200 96GB HBM3"),
        90, 132, 1.98, 4000, 60 * _MIB, _H100_SXM, "NVIDIA GH200 Superchip datasheet (96 GB)"),
    Gpu("B200", (),
        100, 148, 1.98, 7700, 126 * _MIB, _peaks(2250, 1100, 4500, 75, 37, 37),
        "NVIDIA Blackwell datasheet (HGX B200)"),
    Gpu("RTX 5090", ("GeForce RTX 5090", "5090"),
        120, 170, 2.407, 1792, 96 * _MIB, _peaks(209.5, 104.8, 838, 104.8, 1.637),
        _RTX_BLACKWELL_PAPER),
    Gpu("RTX 5080", ("GeForce RTX 5080", "5080"),
        120, 84, 2.617, 960, 64 * _MIB, _peaks(112.6, 56.3, 450.2, 56.3, 0.88),
        _RTX_BLACKWELL_PAPER),
    Gpu("RTX PRO 6000", ("RTX PRO 6000 Blackwell", "RTX PRO 6000 Blackwell Workstation Edition"),
        120, 188, 2.617, 1792, 128 * _MIB, _peaks(503.8, 251.9, 1007.6, 126, 1.968),
        "NVIDIA RTX PRO Blackwell GPU architecture whitepaper"),
)))  # fmt: skip

_DEFAULTS = {
    80: "A100 SXM 80GB", 86: "RTX 3090", 87: "Jetson AGX Orin 64GB", 89: "RTX 4090",
    90: "H100 SXM", 100: "B200", 120: "RTX 5090",
}  # fmt: skip


def _plain(name: str) -> str:
    """Remove case, vendor and separators from a name."""
    words = re.split(r"[\s_-]+", name.strip().lower())
    return "".join(word for word in words if word not in ("nvidia", "geforce"))


_BY_NAME = {_plain(name): row for row in GPUS for name in (row.name, *row.aliases)}


#: How a GPU is named: by a name of the table, a file (``gpus.own``), or all its values.
GpuLike = Union[str, "Mapping[str, Any]", Gpu]


def gpu(name: GpuLike) -> Gpu:
    """Return the GPU of a name, of a file ``*.toml`` or ``*.json``, or of the values in a dict.

    Names are as printed in ``GPUS``, as users write them or as the driver reports them; case,
    ``"NVIDIA"``, spaces and hyphens do not matter. An unknown name raises OptionError with the
    known ones.
    """
    if isinstance(name, Gpu):
        return own.with_rates(name)
    if isinstance(name, Mapping) and name:
        return own.described(name, "what is given")
    if not isinstance(name, str):
        raise OptionError(
            f"gpu={name!r} is not a GPU; expected a name such as 'H200', a file .toml or .json, or "
            "a dict of its values"
        )
    if name.lower().endswith(own.SUFFIXES):
        return own.of_file(Path(name))
    known_gpu = _BY_NAME.get(_plain(name))
    if known_gpu is not None:
        return known_gpu
    import difflib

    near = difflib.get_close_matches(_plain(name), _BY_NAME, n=1)
    hint = f"; did you mean {_BY_NAME[near[0]].name!r}?" if near else ""
    known = ", ".join(row.name for row in GPUS)
    raise OptionError(f"gpu={name!r} is not known; expected one of {known}{hint}")


def of_arch(name: GpuLike, arch: Arch) -> Gpu:
    """Return the GPU called ``name``; OptionError if it does not run kernels of ``arch``."""
    row = gpu(name)
    if not arch.runs_on(divmod(row.cc, 10)):
        raise OptionError(
            f"gpu={row.name!r} has compute capability {row.cc // 10}.{row.cc % 10} and does "
            f"not run kernels of {arch}; expected a GPU of that arch, or another arch= with it"
        )
    return row


def stands_for(arch: Arch) -> Gpu | None:
    """Return the GPU that represents an arch if none was named; None for other archs."""
    name = _DEFAULTS.get(arch.cc)
    return gpu(name) if name else None


def of_device(name: str, arch: Arch, sms: int) -> Gpu:
    """Return the GPU with the driver's name ``name`` and number of multiprocessors.

    A GPU that is not in the table gets the rates per multiprocessor, and the memory, of the one
    that represents its arch (or the nearest older one).
    """
    row = _BY_NAME.get(_plain(name)) or nearest(arch)
    if row.sms == sms and row.cc == arch.cc:
        return row
    peaks = tuple(peak._replace(tflops=peak.tflops * sms / row.sms) for peak in row.peaks)
    return replace(row, name=name, aliases=(), cc=arch.cc, sms=sms, peaks=peaks)


def nearest(arch: Arch) -> Gpu:
    """Return the GPU that represents an arch or the nearest older one."""
    older = [cc for cc in _DEFAULTS if cc <= arch.cc]
    return gpu(_DEFAULTS[max(older, default=min(_DEFAULTS))])
