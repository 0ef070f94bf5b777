"""Why a kernel does not support a problem, and which kernel supports it instead.

This depends only on types, epilogue, scales, groups and the architecture. The checks of configs
cover extents and layouts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from cute_gemm.arch import Arch
from cute_gemm.dtypes import COMPONENT_PRODUCTS, DTYPES
from cute_gemm.errors import OptionError, UnsupportedError
from cute_gemm.kernels import registry
from cute_gemm.problem.epilogue.epilogue import LINEAR_COMBINATION

if TYPE_CHECKING:
    from cute_gemm.kernels.base import Kernel
    from cute_gemm.problem.problem import GemmProblem


class Lack(NamedTuple):
    """A part of a problem that a kernel does not support, as parts of a sentence."""

    kernel: str  # its predicate, "takes no grouped GEMM"
    asked: str = ""  # the part, if only kernels of some architectures support it


def _parts(problem: GemmProblem) -> Iterator[tuple[str, Lack]]:
    """Yield the parts of a problem that a kernel must support, each with its `Lack`."""
    if problem.epilogue != LINEAR_COMBINATION:
        label = problem.epilogue.label
        yield "epilogue", Lack(f"computes alpha A B + beta C alone, not epilogue {label!r}")
    if problem.scalar is not problem.accumulator:
        accumulator, out = problem.accumulator.name, problem.C.dtype
        yield "epilogue", Lack(f"stores products of {problem.dtype} as {accumulator}, not as {out}")
    if problem.groups:
        yield "groups", Lack("takes no grouped GEMM")
    if problem.scales:
        have = "have" if problem.scales[1:] else "has"
        names = " and ".join(matrix.name for matrix in problem.scales)
        said = f"{names} {have} a number for each 128 of k"
        yield "scales", Lack("takes only tensor scales and row scales", said)
    if problem.compute in COMPONENT_PRODUCTS:
        said = f"compute={problem.compute!r} requires products of components"
        yield problem.spelled, Lack("computes no products of components", said)
    yield problem.spelled, Lack(f"does not take {problem.dtype} with compute={problem.compute!r}")


def lack(kernel: Kernel, problem: GemmProblem) -> Lack | None:
    """Return what the kernel lacks on every architecture."""
    taken = {*kernel.takes, *kernel.dtypes}
    return next((lacked for part, lacked in _parts(problem) if part not in taken), None)


def runs_on(kernel: Kernel, spelled: str, arch: str) -> bool:
    """Return whether an architecture has what the kernel needs for these types."""
    here = Arch(arch)
    return here.cc >= kernel.least_cc(spelled) and (not kernel.needs or here.has(kernel.needs))


def serves(kernel: Kernel, problem: GemmProblem, arch: str) -> bool:
    """Return whether the kernel supports problems like this on an architecture."""
    return lack(kernel, problem) is None and runs_on(kernel, problem.spelled, arch)


def check(kernel: Kernel, problem: GemmProblem, arch: str, options: Iterable[str] = ()) -> None:
    """Raise an error for an arch, a problem or an option name that no config of a kernel supports.

    UnsupportedError names a kernel that supports the problem, OptionError lists the options.
    """
    _check_problem(kernel, problem, arch)
    if problem.epilogue.pairs and "pairs" not in kernel.takes:
        raise UnsupportedError(
            f"kernel {kernel.name!r} has columns of a pair in different threads: take kernel='auto'"
        )
    for option in options:
        if option not in kernel.options:
            known = ", ".join(kernel.options) or "none"
            raise OptionError(
                f"option {option!r} is not one of kernel {kernel.name!r}; expected {known}"
            )


def _check_problem(kernel: Kernel, problem: GemmProblem, arch: str) -> None:
    if arch == "cpu":  # nothing is compiled: a kernel of any architecture may be suggested
        arch = "sm_80"
    lacked = lack(kernel, problem)
    if lacked is None and runs_on(kernel, problem.spelled, arch):
        return
    contenders = [registry.get(name) for name in registry.CONTENDERS]
    takers = [other.name for other in contenders if serves(other, problem, arch)]
    instead = f": take kernel={takers[0] if len(takers) == 1 else 'auto'!r}" if takers else ""
    if lacked is None:
        needs = f"needs {_needs(kernel, problem)}; arch is {arch!r}"
        raise UnsupportedError(f"kernel {kernel.name!r} {needs}{instead}")
    if lacked.asked and not takers:  # on this architecture no kernel does
        others = [
            f"{other.name!r}, for {_needs(other, problem)}"
            for other in contenders
            if not lack(other, problem)
        ]
        raise UnsupportedError(
            f"{lacked.asked}, for which the only kernel is {' or '.join(others)}; "
            f"arch is {arch!r}: expected {_plainer(kernel, problem, arch)}"
        )
    said = f"kernel {kernel.name!r} {lacked.kernel}" + f", and {lacked.asked}" * bool(lacked.asked)
    if problem.spelled not in kernel.dtypes and not lacked.asked:
        types = [spelled for spelled in kernel.dtypes if runs_on(kernel, spelled, arch)]
        instead += f"; expected one of {', '.join(types)}" * bool(types)
    raise UnsupportedError(said + instead)


def _plainer(kernel: Kernel, problem: GemmProblem, arch: str) -> str:
    """Return what to use in place of block scales or of components."""
    if problem.scales:
        said = "tensor scales or row scales"
        alone = serves(kernel, replace(problem, scales=()), arch)
        return said if alone else f"{said}, and kernel='auto'"
    # The operands may be packed components already, so the type is spelled out.
    types = {name: DTYPES["float32"].spelled(name) for name in ("float32", "tf32")}
    taken = [x for x in types if types[x] in kernel.dtypes and runs_on(kernel, types[x], arch)]
    computes = " or ".join(f"compute={name!r}" for name in taken or types)
    return computes if taken else f"{computes}, and kernel='auto'"


def _needs(kernel: Kernel, problem: GemmProblem) -> str:
    """Return the architectures that have what the kernel needs: ``"sm_90a"``."""
    if kernel.needs:
        return Arch.that_has(kernel.needs)
    least = kernel.least_cc(problem.spelled)
    types = f" for {problem.dtype}" * (least > kernel.minimum_cc)
    return f"sm_{least} or newer{types}"
