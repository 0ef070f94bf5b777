"""The table of what each kernel takes, from ``cute_gemm.kernels()``."""

from __future__ import annotations

from collections.abc import Iterable

import cute_gemm as cg
from cute_gemm.dtypes import FLOAT8, operand_types
from cute_gemm.kernels import registry


def support(names: str) -> str:
    """Return a row for each of these kernels, a column for each type of A and B."""
    types = _shown(operand_types())
    chosen = [info for info in cg.kernels() if info.name in names.split()]
    heads = ("kernel", "GPUs, from", *(name.removeprefix("float32/") for name in types))
    lines = [heads, ["---"] * len(heads)]
    for info in chosen:
        takes = ("yes" if name in _shown(info.dtypes) else "" for name in types)
        lines.append((f"`{info.name}`", _gpus(info), *takes))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _gpus(info: cg.KernelInfo) -> str:
    """Return the least compute capability of a kernel, and that of 8-bit floats if it differs."""
    if info.name == "sm90_wgmma":
        return "9.0 alone"
    if not info.minimum_cc:
        return "the CPU"
    least = f"{info.minimum_cc / 10:.1f}"
    if FLOAT8[0] not in info.dtypes:
        return least
    of_fp8 = registry.get(info.name).least_cc(FLOAT8[0])
    return least + f", float8 {of_fp8 / 10:.1f}" * (of_fp8 > info.minimum_cc)


def _shown(types: Iterable[str]) -> tuple[str, ...]:
    """Return types with one name for those of 8 bits, which kernels take all or none of."""
    return tuple(dict.fromkeys("float8" if name in FLOAT8 else name for name in types))
