"""``cublas``: NVIDIA's own GEMM, through whichever cuBLAS another package brought.

A row to compare with: it is never chosen for anybody, nothing depends on it, and of its kernels no
more is known than their results.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from cute_gemm.dtypes import FLOAT8, OF_COMPONENTS, operand_types
from cute_gemm.errors import UnsupportedError
from cute_gemm.kernels.base import Kernel
from cute_gemm.kernels.config import Config, NothingToChoose
from cute_gemm.kernels.library import cublas
from cute_gemm.problem.scalars import ONE, ZERO, Scalar
from cute_gemm.run.driver import entered

if TYPE_CHECKING:
    from cute_gemm.cost_model.footprint import Footprint
    from cute_gemm.problem.problem import GemmProblem

#: Device -> handle; cuBLAS's are made in milliseconds and meant to be kept.
_handles: dict[int, cublas.Cublas] = {}
_making = threading.Lock()


def handle_on(device: int) -> cublas.Cublas:
    """Return the handle of a device, whose primary context is current."""
    with _making:
        if device not in _handles:
            _handles[device] = cublas.Cublas()
        return _handles[device]


class CublasLibrary(Kernel):
    """``cublasGemmEx`` on device arrays, in their library's stream, and on copies of NumPy's."""

    name = "cublas"
    summary = "cuBLAS, as PyTorch, CuPy or nvmath brought it: a row to compare with"
    minimum_cc = 80
    dtypes = tuple(name for name in operand_types() if name not in (*FLOAT8, *OF_COMPONENTS))
    options = ()
    runs_on = "library"
    idea = (
        "A library of kernels, of which heuristics choose one for the problem and the GPU. On "
        "Hopper they use wgmma and TMA, as sm90_wgmma does, where the type has them."
    )
    not_compiled = (
        "kernel 'cublas' is a library of NVIDIA's, called as it is: its source, code, launch and "
        "accesses are not known; take another kernel to see them"
    )

    def footprints(self, problem: GemmProblem, *others: Any) -> list[tuple[Any, Footprint | None]]:
        """Refuse what cuBLAS cannot be asked for.

        That is an operand to be conjugated but not transposed, and a leading dimension below the
        extent, as of a broadcast.
        """
        if problem.m and problem.n and problem.l:
            cublas.call(problem)
        return [(NothingToChoose(self.name), None)]

    def on_host(self, *arguments: Any) -> None:
        """Refuse: a library's result is not NumPy's."""
        raise UnsupportedError(
            f"kernel {self.name!r} computes on a GPU only and backend is 'cpu': leave one of "
            "the two out"
        )

    def bind(
        self, config: Config, problem: GemmProblem, arch: str, device: int, alpha: Scalar = ONE,
        beta: Scalar = ZERO,
    ) -> Callable[..., None]:  # fmt: skip
        """Return a function that raises for types and sizes that cuBLAS does not support."""
        with entered(device):
            launcher = handle_on(device).launcher(problem, alpha, beta, device)

        def launch(addresses: Sequence[int], stream: int = 0) -> None:
            with entered(device):
                launcher(*addresses, stream)

        return launch
