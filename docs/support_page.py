"""The table of what each kernel takes, from ``cute_gemm.kernels()``."""

from __future__ import annotations

import cute_gemm as cg
from cute_gemm.dtypes import operand_types


def support(names: str) -> str:
    """Return a row for each of these kernels, a column for each type of A and B."""
    types = operand_types()
    chosen = [info for info in cg.kernels() if info.name in names.split()]
    heads = ("kernel", "GPUs, from", *(name.removeprefix("float32/") for name in types))
    lines = [heads, ["---"] * len(heads)]
    for info in chosen:
        cc = f"{info.minimum_cc / 10:.1f}" if info.minimum_cc else "the CPU"
        only = "9.0 alone" if info.name == "sm90_wgmma" else cc
        takes = ("yes" if name in info.dtypes else "" for name in types)
        lines.append((f"`{info.name}`", only, *takes))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
