"""The kernels by name: a new kernel needs a row here."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from cute_gemm.errors import UnknownKernelError

if TYPE_CHECKING:
    from cute_gemm.kernels.base import Kernel

#: name -> (module, class), imported on first use. A program may add rows.
KERNELS = {
    "host": ("cute_gemm.kernels.host", "Host"),
    "naive": ("cute_gemm.kernels.simt.ladder", "Naive"),
    "coalesced": ("cute_gemm.kernels.simt.ladder", "Coalesced"),
    "smem_full_k": ("cute_gemm.kernels.simt.ladder", "SmemFullK"),
    "smem_tiled": ("cute_gemm.kernels.simt.ladder", "SmemTiled"),
    "register_rows": ("cute_gemm.kernels.simt.ladder", "RegisterRows"),
    "thread_tile_1d": ("cute_gemm.kernels.simt.ladder", "ThreadTile1d"),
    "thread_tile_2d": ("cute_gemm.kernels.simt.ladder", "ThreadTile2d"),
    "vectorized": ("cute_gemm.kernels.simt.ladder", "Vectorized"),
    "bank_free": ("cute_gemm.kernels.simt.ladder", "BankFree"),
    "warp_tiled": ("cute_gemm.kernels.simt.ladder", "WarpTiled"),
    "double_buffered": ("cute_gemm.kernels.simt.ladder", "DoubleBuffered"),
    "tensor_core": ("cute_gemm.kernels.sm80.tensor_core", "TensorCore"),
    "sm80_pipeline": ("cute_gemm.kernels.sm80.pipeline", "Sm80Pipeline"),
    "sm90_wgmma": ("cute_gemm.kernels.sm90.wgmma", "Sm90Wgmma"),
    "cutlass_universal": ("cute_gemm.kernels.cutlass.universal", "CutlassUniversal"),
    "thin": ("cute_gemm.kernels.thin.kernel", "Thin"),
    "batched": ("cute_gemm.kernels.batched.kernel", "Batched"),
    "cublas": ("cute_gemm.kernels.library.kernel", "CublasLibrary"),
}

#: Options of every kernel that is compiled here: auxiliary launches, and the kernel that computes
#: until this one is built.
EVERYWHERE = (
    "pack", "split_k", "batch_invariant", "order_of_summation", "compile", "prefer_loaded",
)  # fmt: skip

#: The kernels of the ladder, from the loop on the host to TMA and wgmma: each adds one idea.
LADDER = tuple(KERNELS)[: list(KERNELS).index("sm90_wgmma") + 1]

#: The kernels that ``"auto"`` selects from; other kernels of the ladder are slower on purpose.
CONTENDERS = ("sm80_pipeline", "double_buffered", "thin", "batched", "sm90_wgmma")


def names() -> tuple[str, ...]:
    """Return the names of all kernels: the values of ``kernel=``."""
    return tuple(KERNELS)


def get(name: str) -> Kernel:
    """Return the kernel called ``name``.

    Raises
    ------
    UnknownKernelError
        If no kernel has this name; the message lists the kernels.
    """
    if name not in KERNELS:
        raise UnknownKernelError(
            f"kernel {name!r} is not known; expected 'auto' or one of {', '.join(KERNELS)}"
        )
    return _made(*KERNELS[name])


def options() -> dict[str, tuple[str, ...]]:
    """Return all options, each with the names of its kernels, or () if all kernels have it."""
    return _options(tuple(KERNELS.items()))


@cache
def _options(kernels: tuple[tuple[str, tuple[str, str]], ...]) -> dict[str, tuple[str, ...]]:
    owners: dict[str, tuple[str, ...]] = dict.fromkeys(EVERYWHERE, ())
    for name, row in kernels:
        for option in _made(*row).options:
            owners[option] = (*owners.get(option, ()), name)
    return owners


@cache
def _made(module: str, kind: str) -> Kernel:
    kernel: Kernel = getattr(import_module(module), kind)()
    return kernel
