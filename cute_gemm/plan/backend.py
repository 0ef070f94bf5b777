"""Selection of the backend of a call: the requested one, or what this machine has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

from cute_gemm.arch import Arch
from cute_gemm.call import Backend
from cute_gemm.errors import DeviceError, NoGpuError, OptionError, warn
from cute_gemm.kernels import registry
from cute_gemm.kernels.refusals import lack, serves

if TYPE_CHECKING:
    from cute_gemm.problem.problem import GemmProblem

#: Arch that kernels are compiled for without a GPU and without ``arch=``.
DEFAULT_ARCH = "sm_80"


def runs_on(kernel: str) -> Literal["gpu", "cpu", "library"]:
    """Return the kind of backend that a kernel is for."""
    return "gpu" if kernel == "auto" else registry.get(kernel).runs_on


def arch_without_backend(kernel: str, problem: GemmProblem) -> Arch:
    """Return the arch to emit for if the CPU computes: that of the GPU, if there is one.

    If the kernel does not run on it, nor on the default, it is the oldest arch that it runs on.
    """
    from cute_gemm.run.driver import device_arch, why_no_gpu

    here = Arch(DEFAULT_ARCH) if why_no_gpu() else device_arch(0)
    names = registry.CONTENDERS if kernel == "auto" else (kernel,)
    taking = [x for x in map(registry.get, names) if not lack(x, problem)]
    if not taking or any(serves(x, problem, here) for x in taking):
        return here
    cc = min(x.least_cc(problem.spelled) for x in taking)
    return Arch.of_device(divmod(cc, 10))


def device_without_backend(arch: Arch) -> int | None:
    """Return the GPU of this machine if its arch is ``arch``, for selection on the CPU."""
    from cute_gemm.run.driver import device_arch, why_no_gpu

    return 0 if not why_no_gpu() and device_arch(0) == arch else None


def resolved_backend(
    backend: Backend, device: int | None, kernel: str = "auto"
) -> Literal["cuda", "cpu", "interpreter"]:
    """Return the backend of a call from the request, the kernel and this machine."""
    if backend not in get_args(Backend):
        raise OptionError(
            f"backend={backend!r} is unknown; expected 'auto', 'cuda', 'cpu' or 'interpreter'"
        )
    place = runs_on(kernel)
    if backend == "interpreter" and place != "gpu":
        raise OptionError(
            f"kernel {kernel!r} is not compiled, and backend='interpreter' executes compiled code: "
            "leave one of the two out"
        )
    if place == "cpu" and backend == "cuda":
        raise OptionError(
            f"kernel {kernel!r} computes on the CPU and backend is 'cuda': leave one of the two out"
        )
    if place == "cpu" or backend in ("cpu", "interpreter"):
        asked = f"kernel={kernel!r}" if place == "cpu" else f"backend={backend!r}"
        if device is not None:
            raise DeviceError(
                f"{asked} cannot read A on CUDA device {device}: pass host arrays, "
                f"or leave {asked.partition('=')[0]} out"
            )
        return "interpreter" if backend == "interpreter" else "cpu"
    from cute_gemm.run.driver import why_no_gpu

    reason = why_no_gpu()
    if reason is None:
        return "cuda"
    if backend == "cuda" or device is not None:
        raise NoGpuError(f"backend='cuda' needs a GPU: {reason}")
    if place == "library":
        raise NoGpuError(f"kernel={kernel!r} needs a GPU: {reason}; kernel='host' needs none")
    _warn_cpu(reason)
    return "cpu"


_warned = False


def _warn_cpu(reason: str) -> None:
    """Warn once per process that the CPU computes."""
    global _warned
    if not _warned:
        _warned = True
        warn(f"no usable GPU ({reason}); computing on the CPU")
