"""``cublas``: NVIDIA's GEMM, from the cuBLAS that another package installed.

It is a baseline: ``"auto"`` never selects it, nothing depends on it, and only the results of its
kernels are known.
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

#: Device -> handle; creating one takes milliseconds, so handles are kept.
_handles: dict[int, cublas.Cublas] = {}
_making = threading.Lock()


def handle_on(device: int) -> cublas.Cublas:
    """Return the handle of a device, whose primary context is current."""
    with _making:
        if device not in _handles:
            _handles[device] = cublas.Cublas()
        return _handles[device]


class CublasLibrary(Kernel):
    """``cublasGemmEx`` on device arrays, in their library's stream, or copies of NumPy arrays."""

    name = "cublas"
    summary = "cuBLAS, as installed by PyTorch, CuPy or nvmath: a baseline"
    minimum_cc = 80
    dtypes = tuple(name for name in operand_types() if name not in (*FLOAT8, *OF_COMPONENTS))
    options = ()
    runs_on = "library"
    idea = (
        "A library of kernels. Heuristics select one for the problem and the GPU. On Hopper the "
        "kernels use wgmma and TMA, as sm90_wgmma does, if the type supports them."
    )
    not_compiled = (
        "kernel 'cublas' is NVIDIA's library: its source, code, launch and accesses are not known; "
        "take another kernel to see them"
    )

    def footprints(self, problem: GemmProblem, *others: Any) -> list[tuple[Any, Footprint | None]]:
        """Raise an error for problems that cuBLAS cannot express.

        They have an operand that is conjugated but not transposed, or a leading dimension below the
        extent, as a broadcast has.
        """
        if problem.m and problem.n and problem.l:
            cublas.call(problem)
        return [(NothingToChoose(self.name), None)]

    def on_host(self, *arguments: Any) -> None:
        """Raise UnsupportedError: NumPy does not compute a library's result."""
        raise UnsupportedError(
            f"kernel {self.name!r} computes only on a GPU and backend is 'cpu': leave one of "
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
