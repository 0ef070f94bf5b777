"""Problem -> kernel and config."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from cute_gemm.errors import UnknownKernelError
from cute_gemm.problem.dtypes import dtype

if TYPE_CHECKING:
    from cute_gemm.kernels.base import Kernel
    from cute_gemm.problem.problem import GemmProblem

#: name -> (module, class); imported when asked for.
_KERNELS = {
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
    "cutlass_universal": ("cute_gemm.kernels.cutlass.universal", "CutlassUniversal"),
    "cublas": ("cute_gemm.kernels.library.kernel", "CublasLibrary"),
}


#: The road of the tutorials, each kernel one idea further; cuBLAS to compare with.
LADDER = tuple(_KERNELS)


class Choice(NamedTuple):
    """A kernel, its config, and one sentence on why."""

    kernel: Kernel
    config: Any
    why: str


def names() -> tuple[str, ...]:
    """Names of all kernels: the values of ``kernel=``."""
    return tuple(_KERNELS)


@cache
def get(name: str) -> Kernel:
    """Return the kernel called ``name``.

    Raises
    ------
    UnknownKernelError
        When there is none; the message lists those there are.
    """
    if name not in _KERNELS:
        raise UnknownKernelError(
            f"kernel {name!r} is not known; expected 'auto' or one of {', '.join(_KERNELS)}"
        )
    module, kind = _KERNELS[name]
    kernel: Kernel = getattr(import_module(module), kind)()
    return kernel


def select(problem: GemmProblem, arch: str, kernel: str = "auto", **options: Any) -> Choice:
    """Choose the kernel for a problem and configure it.

    Parameters
    ----------
    kernel
        A name, or ``"auto"``.
    **options
        Fields of the kernel's config.

    Raises
    ------
    UnknownKernelError, UnsupportedError, OptionError
        See :meth:`cute_gemm.kernels.base.Kernel.configure`.
    """
    if kernel != "auto":
        chosen = get(kernel)
        return Choice(chosen, chosen.configure(problem, arch, **options), "asked for by name")
    element = problem.inputs.name
    chosen = get("double_buffered" if dtype(element).is_complex else "sm80_pipeline")
    config = chosen.configure(problem, arch, **options)
    return Choice(
        chosen,
        config,
        f"it takes {element} in every layout; its copies follow "
        f"A {problem.A.major}-major, B {problem.B.major}-major, C {problem.C.major}-major",
    )
