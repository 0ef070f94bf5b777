"""Problem -> kernel and config: enumerate, refuse, price, compare."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from cute_gemm._kept import Kept
from cute_gemm._text import duration
from cute_gemm.arch import Arch
from cute_gemm.errors import OptionError, UnsupportedError
from cute_gemm.gpus.gpu import Gpu
from cute_gemm.gpus.table import nearest, of_device
from cute_gemm.kernels import registry
from cute_gemm.kernels.base import common_traits
from cute_gemm.model.price import Footprint, Price, Prices

if TYPE_CHECKING:
    from cute_gemm.kernels.base import Kernel
    from cute_gemm.problem.problem import GemmProblem

#: What ``"auto"`` chooses from: the other rungs of the ladder are there to be overtaken.
CONTENDERS = ("sm80_pipeline", "double_buffered", "cutlass_universal", "sm90_wgmma")


class Candidate(NamedTuple):
    """A kernel with a config that takes the problem, and what it is predicted to cost."""

    kernel: Kernel
    config: Any
    price: Price | None  # None where nothing is known of the kernel


class Choice(NamedTuple):
    """The kernel and config that were chosen, whose prices said so, and what from."""

    kernel: Kernel
    config: Any
    gpu: Gpu
    candidates: Callable[[], tuple[Candidate, ...]]


def select(
    problem: GemmProblem,
    arch: str,
    kernel: str = "auto",
    options: Mapping[str, Any] | None = None,
    gpu: Gpu | None = None,
) -> Choice:
    """Enumerate the configs that take a problem, refuse, price and compare.

    ``kernel``: a name, or ``"auto"``: the cheapest config of the kernels that contend; ``options``:
    fields of the config; ``gpu``: whose prices, by default those of the GPU that stands for the
    arch. UnknownKernelError, UnsupportedError or OptionError when there is nothing to choose from.
    """
    place = gpu or nearest(Arch(arch if arch != "cpu" else "sm_80"))
    shelf = _shelf(problem, arch, kernel, dict(options or {}), place)
    if shelf.prices is None:
        made, config = shelf.configs[0]
        only = (Candidate(made, config, None),)
        return Choice(made, config, place, lambda: only)
    prices, seconds = shelf.prices, shelf.prices.seconds(problem)
    made, config = shelf.configs[int(seconds.argmin())]

    def candidates() -> tuple[Candidate, ...]:
        order = sorted(range(len(shelf.configs)), key=lambda index: float(seconds[index]))
        return tuple(
            Candidate(*shelf.configs[index], prices.price(problem, index)) for index in order
        )

    return Choice(made, config, place, candidates)


@cache
def gpu_of_device(device: int) -> Gpu:
    """Return what a device is, with the multiprocessors that its driver says it has."""
    from cute_gemm.run.driver import device_arch, device_name, multiprocessors

    return of_device(device_name(device), device_arch(device), multiprocessors(device))


def why(candidates: Sequence[Candidate], by_name: bool) -> str:
    """Say why the first of these was chosen, with figures, and who came next."""
    asked = "asked for by name" if by_name else ""
    price = candidates[0].price
    if price is None:
        return asked
    parts = " and ".join(f"{duration(seconds)} of {name}" for name, seconds in price.largest(2))
    text = f"{duration(price.seconds)} predicted ({parts} alone)"
    if len(candidates) > 1:
        text += f", the least of {len(candidates)} configs; next "
        text += ", ".join(
            f"{label(one)} {duration(one.price.seconds)}"
            for one in candidates[1:3]
            if one.price is not None
        )
    return "; ".join(filter(None, (asked, text)))


def label(one: Candidate) -> str:
    """Return ``"sm80_pipeline 128x256x64"``."""
    tile = getattr(one.config, "tile", ())
    return " ".join((one.kernel.name, "x".join(map(str, tile)))).strip()


class _Shelf(NamedTuple):
    """Legal configs of one class of problems, and their prices, where they have any."""

    configs: list[tuple[Kernel, Any]]
    prices: Prices | None


_shelves: Kept[Any, _Shelf] = Kept(2048, "problem_classes")


def _shelf(
    problem: GemmProblem, arch: str, kernel: str, options: dict[str, Any], gpu: Gpu
) -> _Shelf:
    """Return the configs for a problem's class: what it depends on beside its extents."""
    kernels = [registry.get(name) for name in (CONTENDERS if kernel == "auto" else (kernel,))]
    asked = tuple(
        (name, tuple(value) if isinstance(value, list) else value)
        for name, value in sorted(options.items())
    )
    traits = tuple((id(made), made.traits(problem)) for made in kernels)  # the shelf keeps them
    key = (arch, gpu.name, asked, common_traits(problem), traits)
    found = _shelves.get(key)
    if found is None:
        found = _shelves[key] = _filled(problem, arch, kernels, options, gpu)
    return found


def _filled(
    problem: GemmProblem, arch: str, kernels: Sequence[Kernel], options: dict[str, Any], gpu: Gpu
) -> _Shelf:
    configs: list[tuple[Kernel, Any]] = []
    footprints: list[Footprint] = []
    refused: Exception | None = None
    for made in kernels:
        try:
            made.check_call(problem, arch, options)
            for config, cost in made.offers(problem, arch, options, gpu):
                configs.append((made, config))
                footprints += [cost] if cost is not None else []
        except (OptionError, UnsupportedError) as error:
            refused = refused or error
    if not configs and refused is not None:
        raise refused
    priced = len(footprints) == len(configs)
    return _Shelf(configs, Prices(footprints, gpu) if priced else None)
