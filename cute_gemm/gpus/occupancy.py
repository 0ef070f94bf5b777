"""Occupancy of a multiprocessor, what limits it, and how a grid fills a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cute_gemm.arch import RESERVED_SHARED, Multiprocessor


@dataclass(frozen=True, slots=True)
class Occupancy:
    """The numbers of CTAs and warps of a kernel that are resident on one multiprocessor.

    ``ctas_per_sm`` and ``warps_per_sm`` are 0 if the kernel cannot be launched at all;
    ``max_warps``: the limit of the multiprocessor; ``limits``: CTAs that each resource alone would
    allow: ``"warps"``, ``"CTAs"``, ``"shared memory"``, and ``"registers"`` if their number is
    known; ``limiter``: the resources with the lowest limit.
    """

    ctas_per_sm: int
    warps_per_sm: int
    max_warps: int
    limits: dict[str, int]
    limiter: tuple[str, ...]

    @property
    def fraction(self) -> float:
        """Resident warps over the maximum: Nsight Compute's theoretical occupancy."""
        return self.warps_per_sm / self.max_warps

    @property
    def registers_known(self) -> bool:
        """Whether registers are among the limits; otherwise the occupancy is an upper bound."""
        return "registers" in self.limits


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def occupancy(sm: Multiprocessor, threads: int, registers: int | None, shared: int) -> Occupancy:
    """Return the number of CTAs of a kernel that are resident on a multiprocessor.

    ``threads`` per CTA (at least 1), ``registers`` per thread (None if nothing was built),
    ``shared``: static and dynamic shared memory per CTA in bytes. Raises ValueError for impossible
    numbers.

    The rules are those of NVIDIA's ``cuda_occupancy.h`` (CUDA 13.0): registers are allocated to
    warps in units of 256, and every partition has a quarter; shared memory is allocated in units of
    128 bytes, plus 1 KiB for the driver. The split between L1 and shared memory is assumed to be
    the one with most shared memory.
    """
    if threads < 1 or shared < 0 or (registers is not None and registers < 0):
        raise ValueError(
            f"threads={threads}, registers={registers}, shared={shared}: expected at least 1 "
            "thread and no negative number"
        )
    warps = -(-threads // 32)
    limits = {"warps": sm.warps // warps if threads <= sm.threads_per_cta else 0, "CTAs": sm.ctas}
    taken = _round_up(shared + RESERVED_SHARED, sm.shared_unit)
    limits["shared memory"] = sm.shared // taken if shared <= sm.shared_per_cta else 0
    if registers is not None:
        per_warp = _round_up(registers * 32, sm.register_unit)
        if registers > sm.registers_per_thread:
            limits["registers"] = 0
        elif per_warp:
            fit = sm.registers // sm.partitions // per_warp * sm.partitions
            limits["registers"] = fit // warps
        else:
            limits["registers"] = sm.ctas
    ctas = min(limits.values())
    limiter = tuple(name for name, count in limits.items() if count == ctas)
    return Occupancy(ctas, ctas * warps, sm.warps, limits, limiter)


@dataclass(frozen=True, slots=True)
class Waves:
    """How a grid fills a GPU.

    ``waves``: CTAs of the grid over those that are resident at a time, Nsight Compute's "Waves Per
    SM"; ``full``: waves that fill the GPU; ``tail_ctas``: CTAs that are left over for a last,
    partial wave, and ``tail_fraction`` the part of the GPU that they fill, both 0 without one;
    ``efficiency``: CTAs over the places of all waves, the last one included: the part of the GPU's
    time that is used if all CTAs take equally long. ``places``: CTAs that are resident at a time.

    ``of``: ``"CTAs"``, or ``"tiles"`` of a persistent grid, whose resident CTAs take one each in
    every round: then a wave is such a round, and what is said of CTAs is of tiles.
    """

    waves: float
    full: int
    tail_ctas: int
    tail_fraction: float
    efficiency: float
    places: int
    of: Literal["CTAs", "tiles"] = "CTAs"


def waves(grid: int, places: int, of: Literal["CTAs", "tiles"] = "CTAs") -> Waves:
    """Return how ``grid`` CTAs, or tiles, fill a GPU with ``places`` for resident CTAs.

    ValueError if nothing would be resident. 512 CTAs in 216 places: 2 full waves and a tail of
    80.
    """
    if grid < 0 or places < 1:
        raise ValueError(
            f"grid={grid}, places={places}: expected a grid of 0 or more, and at least 1 place"
        )
    full, tail = divmod(grid, places)
    number = full + (tail > 0)
    return Waves(
        waves=grid / places, full=full, tail_ctas=tail, tail_fraction=tail / places,
        efficiency=grid / (number * places) if number else 1.0, places=places, of=of,
    )  # fmt: skip


def clusters_at_a_time(sms: int, ctas: int) -> int:
    """Return how many clusters of ``ctas`` CTAs, one per multiprocessor, run at a time.

    The CTAs of a cluster share a GPC, of which an H100's or H200's have 16 or 18 multiprocessors:
    clusters of 4 or 8 leave some of these out. At least one: where none fits the launch is refused.
    """
    return max(1, sms // ctas if ctas < 4 else sms * 10 // 11 // ctas)
