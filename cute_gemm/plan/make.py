"""``Plan`` of a problem and a `Call`: backend, arch and kernel; plans that are kept."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from cute_gemm.arch import Arch
from cute_gemm.call import Backend, Call
from cute_gemm.errors import NoGpuError, OptionError
from cute_gemm.gpus import table as gpus
from cute_gemm.plan import background, online, reused, select, tuned
from cute_gemm.plan.backend import (
    arch_without_backend,
    device_without_backend,
    resolved_backend,
    runs_on,
)
from cute_gemm.plan.plan import Plan
from cute_gemm.problem.problem import GemmProblem
from cute_gemm.toolchain.nvrtc import normalize_arch

if TYPE_CHECKING:
    from cute_gemm.gpus.table import GpuLike
    from cute_gemm.kernels.candidate import Measured
    from cute_gemm.plan.tune import Tuning


def kept_plan(problem: GemmProblem, device: int | None, call: Call, tune: Any = False) -> Plan:
    """Return the plan that `gemm` made of a problem, or make and keep it."""
    call, mode = background.build_mode(call)
    in_use = online.asks(tune)
    where = device, call.kernel, call.backend, call.arch, mode, in_use
    key = id(problem), *where, *sorted(call.options)
    found = reused.plans.get(key)
    if found is None or not (in_use or tune is False or found.measured):
        made = _made(problem, device, call, None, tune, late=True)
        found = reused.plans[key] = background.until_built(
            background.prefer_built(made, mode), mode
        )
    elif found.better is not None and found.executable.replaced:
        found = reused.plans[key] = found.better
    return found


def make_plan(
    problem: GemmProblem, device: int | None, call: Call, name: GpuLike | None = None,
    tune: bool | str | Tuning = False,
) -> Plan:  # fmt: skip
    """Return the plan of a problem for a device, or for no device.

    ``name``: the GPU to predict for; ``tune``: whether, or how, its kernel is measured. With
    ``compile="background"`` the builds of its kernels begin.
    """
    call, mode = background.build_mode(call)
    result = background.prefer_built(_made(problem, device, call, name, tune), mode)
    if mode.background and result.backend == "cuda" and result.compiled:
        result.prepare()
    return result


def _made(
    problem: GemmProblem, device: int | None, call: Call, name: GpuLike | None,
    tune: bool | str | Tuning, late: bool = False,
) -> Plan:  # fmt: skip
    """Return a plan; ``late``: its kernel may be selected after it is returned."""
    kernel, backend, arch = call.kernel, call.backend, call.arch
    in_use = online.asks(tune)
    tuning = None if in_use or tune is False else _tuning(tune, kernel, backend, name)
    where = resolved_backend(backend, device, kernel)
    gpu = None if name is None else gpus.gpu(name)
    arch = gpu.arch if arch is None and gpu is not None else arch
    here: int | None = None  # the device whose measured configs apply, or None
    if runs_on(kernel) == "cpu":
        target: str = "cpu"
    elif where == "cuda":
        from cute_gemm.run.driver import device_arch

        here = device = device or 0
        target = device_arch(device) if arch is None else Arch(normalize_arch(arch))
    else:
        without = arch_without_backend
        target = without(kernel, problem) if arch is None else Arch(normalize_arch(arch))
        here = device_without_backend(target)
    if gpu is not None and target != "cpu":
        gpus.of_arch(gpu, Arch(target))
    asked, measured, known_as = (problem, target, kernel, dict(call.options)), None, ""
    if here is not None and gpu is None:
        from cute_gemm.run.driver import device_name

        known_as, gpu = device_name(here), select.gpu_of_device(here)
        measured = tuned.find(known_as, *asked)
        if tuning is not None and not tuning.takes(measured):
            measured = None

    def selected(measured: Measured | None) -> Plan:
        make = partial(select.select, *asked, gpu, measured)
        # The CPU computes without a selection, but options may be refused.
        later = where == "cpu" and kernel == "auto" and not call.options and late
        selection = select.select_late(problem, target, make) if later else make()
        return Plan(problem, where, device, target, selection, kernel != "auto")

    def stored(measured: Measured) -> Plan:
        tuned.store(known_as, *asked, measured)
        return selected(measured)

    result = selected(measured)
    if where == "cpu" or result.measured or problem.is_empty:
        return result
    if tuning is not None:
        from cute_gemm.plan.tune import measure

        found = measure(result, tuning)
        reused.drop()
        return stored(found)
    if in_use and where == "cuda" and known_as and online.may_vary(result, call):
        online.tune_online(result, stored)
    return result


def _tuning(tune: Any, kernel: str, backend: Backend, gpu: GpuLike | None) -> Tuning:
    """Return how to measure; refuse without a GPU to measure on, or without candidates."""
    from cute_gemm.plan.tune import Tuning
    from cute_gemm.run.driver import why_no_gpu

    tuning = Tuning() if tune is True else tune
    if not isinstance(tuning, Tuning):
        raise OptionError(f"tune={tune!r} does not fit; expected True, False or 'online'")
    if not isinstance(tuning.candidates, int) or tuning.candidates < 1:
        raise OptionError(f"candidates={tuning.candidates}; expected 1 or more configs to measure")
    # The command line gives a Tuning and has no argument to leave out.
    asked = "tune=True" if tune is True else "tuning"
    unfit = [f"backend={backend!r}"] if backend in ("cpu", "interpreter") else []
    unfit += [f"kernel={kernel!r}"] if runs_on(kernel) != "gpu" else []
    unfit += ["gpu="] if gpu is not None else []
    if unfit:
        raise OptionError(
            f"{asked} measures kernels that are compiled here on this machine's GPU, and came with "
            f"{unfit[0]}: leave {'one of the two' if tune is True else 'that'} out"
        )
    reason = why_no_gpu()
    if reason is not None:
        hint = "; leave it out here" if tune is True else ""
        raise NoGpuError(f"{asked} measures on a GPU: {reason}{hint}")
    return tuning
