"""``cublas``: NVIDIA's own GEMM, through whichever cuBLAS another package brought.

A row to compare with: it is never chosen for anybody, nothing depends on it, and of its kernels no
more is known than their results.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cute_gemm.arch import compute_capability
from cute_gemm.errors import UnsupportedError
from cute_gemm.kernels.base import NotCompiled
from cute_gemm.kernels.library import cublas
from cute_gemm.kernels.options import check_names
from cute_gemm.problem.dtypes import operand_types
from cute_gemm.run.driver import entered

if TYPE_CHECKING:
    from cute_gemm.problem.problem import GemmProblem

#: Device -> handle; cuBLAS's are made in milliseconds and meant to be kept.
_handles: dict[int, cublas.Cublas] = {}
_making = threading.Lock()


@dataclass(frozen=True, slots=True)
class CublasConfig:
    """Nothing to choose: cuBLAS's heuristics do."""

    name: str = "cublas"


class CublasLibrary(NotCompiled):
    """``cublasGemmEx`` on device arrays, in their library's stream, and on copies of NumPy's."""

    name = "cublas"
    summary = "cuBLAS, as PyTorch, CuPy or nvmath brought it: a row to compare with"
    minimum_cc = 80
    dtypes = operand_types()
    options = ()
    runs_on = "library"
    idea = (
        "A library of kernels, of which heuristics choose one for the problem and the GPU. On "
        "Hopper they use what this ladder stops before, where the type has it: wgmma and TMA."
    )
    not_compiled = (
        "kernel 'cublas' is a library of NVIDIA's, called as it is: its source, code, launch and "
        "accesses are not known; take another kernel to see them"
    )

    def configure(self, problem: GemmProblem, arch: str, **options: Any) -> CublasConfig:
        """See :meth:`Kernel.configure`; there are no options.

        Raises
        ------
        UnsupportedError
            For an arch before sm_80, an operand that is to be conjugated and not transposed in
            memory, and a leading dimension below the extent, as of a broadcast.
        OptionError
            For any option.
        """
        if compute_capability(arch) < self.minimum_cc:
            raise UnsupportedError(f"kernel {self.name!r} needs sm_80 or newer; arch is {arch!r}")
        check_names(self, options)
        if problem.m and problem.n:
            cublas.call(problem)
        return CublasConfig()

    def bind(
        self,
        problem: GemmProblem,
        device: int,
        alpha: complex,
        beta: complex,
        alpha_pointer: int = 0,
        beta_pointer: int = 0,
    ) -> Callable[..., None]:
        """Return a function of the matrices' addresses and a stream, for any thread.

        Parameters
        ----------
        problem
            Descriptors, extents and types.
        device
            CUDA ordinal.
        alpha, beta, alpha_pointer, beta_pointer
            As for :meth:`cute_gemm.kernels.library.cublas.Cublas.launcher`.

        Raises
        ------
        UnsupportedError
            When there is no cuBLAS; by the function, when it refuses the types or sizes.
        NoGpuError
            Without a GPU.
        """
        with entered(device):
            with _making:
                handle = _handles.get(device)
                if handle is None:
                    handle = _handles[device] = cublas.Cublas()
            launcher = handle.launcher(problem, alpha, beta, alpha_pointer, beta_pointer, device)

        def launch(a: int, b: int, c: int, stream: int = 0) -> None:
            with entered(device):
                launcher(a, b, c, stream)

        return launch
