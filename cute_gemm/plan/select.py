"""Selection of kernel, config and algorithm: enumerate, refuse, predict, compare."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from itertools import product
from threading import RLock
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from cute_gemm._kept import Kept
from cute_gemm.arch import Arch
from cute_gemm.cost_model.calibrated import calibration
from cute_gemm.cost_model.footprint import Footprint
from cute_gemm.cost_model.prediction import Predictions
from cute_gemm.cost_model.roofline import least_seconds
from cute_gemm.dtypes import COMPONENT_PRODUCTS, integer
from cute_gemm.errors import OptionError, UnsupportedError
from cute_gemm.gpus.gpu import Gpu
from cute_gemm.gpus.table import nearest, of_device
from cute_gemm.kernels import registry
from cute_gemm.kernels.auxiliary import packer
from cute_gemm.kernels.base import HUGE, common_traits
from cute_gemm.kernels.candidate import Candidate
from cute_gemm.kernels.options import access_bytes
from cute_gemm.kernels.refusals import check, serves
from cute_gemm.kernels.summation import OrderOfSummation
from cute_gemm.plan.predict import LegalConfigs, Predicted
from cute_gemm.plan.steps import reduces
from cute_gemm.problem.epilogue.epilogue import LINEAR_COMBINATION
from cute_gemm.problem.parts.packing import (
    DIRECT,
    Algorithm,
    Packing,
    packed,
    padded,
    row_scales,
    wants_k_major,
)
from cute_gemm.problem.parts.slices import slice_extents, sliced_class

if TYPE_CHECKING:
    from cute_gemm.kernels.base import Kernel
    from cute_gemm.kernels.candidate import Measured
    from cute_gemm.problem.matrix import Matrix
    from cute_gemm.problem.problem import GemmProblem

#: Numbers of slices of K that are tried if the call gives none.
_SPLITS = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)
#: Values of ``pack``; by default ``"auto"`` with ``kernel="auto"``, ``"none"`` with a named one.
PACKS = ("auto", "none", "A", "B", "AB", "scales")


class Selection(NamedTuple):
    """The selected kernel, config and algorithm, the GPU of the predictions, and the candidates.

    ``candidates()`` returns the candidates by the predictions for ``gpu``, ``candidates(another)``
    those for another GPU. The keywords ``problem`` and ``kernel``, and options, replace those of
    the call. ``reads_c`` predicts for a beta other than 0, on which the selection and the order of
    candidates do not depend.
    """

    kernel: Kernel
    config: Any
    gpu: Gpu
    candidates: Callable[..., tuple[Candidate, ...]]
    algorithm: Algorithm = DIRECT
    measured: Measured | None = None


class _Late:
    """A `Selection` that is made when its first field is read."""

    def __init__(self, make: Callable[[], Selection]) -> None:
        self._made = cache(make)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._made(), name)


def select_late(problem: GemmProblem, arch: str, make: Callable[[], Selection]) -> Selection:
    """Return the selection among all kernels for a call that the CPU computes without it.

    ``make`` selects. It is called at once if no kernel might support the problem, to raise the
    error: extents and block scales are refused by configs.
    """
    contenders = map(registry.get, registry.CONTENDERS)
    huge = max(problem.m, problem.n, problem.k) >= HUGE
    if huge or problem.scales or not any(serves(x, problem, arch) for x in contenders):
        return make()
    return cast("Selection", _Late(make))


def select(
    problem: GemmProblem,
    arch: str,
    kernel: str = "auto",
    options: Mapping[str, Any] | None = None,
    gpu: Gpu | None = None,
    measured: Measured | None = None,
) -> Selection:
    """Select kernel, config and algorithm of a problem: enumerate, refuse, predict and compare.

    ``kernel``: a name, or ``"auto"``, which compares the contenders; ``options``: fields of the
    config; ``gpu``: the GPU to predict for, by default the one that represents the arch;
    ``measured``: the config to select instead of the fastest, if it is a candidate.
    Raises UnknownKernelError, UnsupportedError or OptionError if no config is legal.
    """
    target = gpu or nearest(Arch(arch if arch != "cpu" else "sm_80"))
    given = dict(options or {})
    space = _space(problem, kernel, given, target)
    order, empty = space.order, problem.is_empty
    if order is None and space.batch_invariant and not empty:
        order = _order_for_all_m(problem, arch, kernel, given, target)
        space = space._replace(splits=(order.slices,) if order.slices > 1 else ())
    legal, packings = _configs_of(problem, arch, kernel, space, target)
    if legal.predictions is None:
        # "auto" here means no packing and one piece: see `_space`.
        chosen, config, algorithm = legal.configs[0]
        algorithm = algorithm._replace(split_k=algorithm.split_k or space.splits[0])
        only = (Candidate(chosen, config, None, algorithm),)
        return Selection(
            chosen, config, target, lambda another=None, *_, **changed: only, algorithm
        )
    times = Predicted(problem, legal, packings, space.packs, space.splits, target)
    if order is not None and not empty:
        times.keep(order, problem, for_all_m=space.order is None)
    times.correct()

    def candidates(
        another: Gpu | None = None, reads_c: bool = False, within: float = np.inf, **changed: Any
    ) -> tuple[Candidate, ...]:
        if changed or another not in (None, target):
            name = changed.pop("kernel", kernel)
            kept = given
            if name != kernel:  # leave out options that the other kernel lacks
                owners = registry.options()
                kept = {x: kept[x] for x in kept if not owners.get(x) or name in owners[x]}
            arguments = changed.pop("problem", problem), arch, name
            selection = select(*arguments, kept | changed, another or target)
            return selection.candidates(reads_c=reads_c, within=within)
        most = within * times.seconds[times.kept].min()
        near = (i for i in times.kept if i == taken or times.seconds[i] <= most)
        listed = sorted(near, key=lambda i: (i != taken, times.seconds[i]))
        return tuple(times.candidate(problem, index, reads_c) for index in listed)

    taken = None if measured is None else times.find(measured)
    best = int(times.seconds.argmin()) if taken is None else taken
    chosen, config, _ = legal.configs[best]
    decision = None if taken is None else measured
    return Selection(chosen, config, target, candidates, times.algorithm(best)[0], decision)


class _Space(NamedTuple):
    """The search space of a call: options of the config, operands to pack, slices of K."""

    options: dict[str, Any]
    packs: tuple[str, ...]
    splits: tuple[int, ...]
    batch_invariant: bool = False
    order: OrderOfSummation | None = None


def _space(problem: GemmProblem, kernel: str, options: dict[str, Any], gpu: Gpu) -> _Space:
    """Separate ``pack`` and ``split_k`` from the options; raise OptionError if out of range."""
    options = dict(options)
    pack, split = options.pop("pack", None), options.pop("split_k", None)
    invariant = _flag("batch_invariant", options.pop("batch_invariant", False))
    order = options.pop("order_of_summation", None)
    if not (order is None or isinstance(order, OrderOfSummation)):
        raise OptionError(
            f"option order_of_summation={order!r} does not fit; expected plan.order_of_summation"
        )
    if invariant and kernel != "auto" and not registry.get(kernel).batch_invariant:
        able = [
            x for x in registry.names()
            if registry.get(x).batch_invariant and serves(registry.get(x), problem, gpu.arch)
        ]  # fmt: skip
        raise OptionError(
            f"batch_invariant=True came with kernel {kernel!r}, whose order of summation depends "
            f"on m; expected 'auto' or one of {', '.join(able)}"
        )
    asked = pack is not None
    if pack is None:
        # For some alignments of A the order of all others exists only when A is packed.
        pack = "auto" if kernel == "auto" or invariant else "none"
    if split is None:
        split = "auto" if kernel == "auto" else 1
    if pack not in PACKS:
        raise OptionError(f"option pack={pack!r} is unknown; expected one of {', '.join(PACKS)}")
    packs: tuple[str, ...] = ("" if pack == "none" else pack,)
    if problem.compute in COMPONENT_PRODUCTS:
        if pack not in ("auto", "AB") and asked:
            raise OptionError(
                f"option pack={pack!r} came with compute={problem.compute!r}, whose components of "
                "A and of B are packed: leave it out"
            )
        packs = ("AB",)
    elif pack == "auto":
        slow = [matrix for matrix in (problem.A, problem.B) if _worth_packing(problem, matrix)]
        packs = ("", "".join(matrix.name for matrix in slow)) if slow else ("",)
        registers = wants_k_major(problem) and gpu.arch.has("wgmma")
        if len(slow) == 2 and (registers or invariant):
            # A kernel may load one of them through registers, and the order may need B unpacked.
            packs += tuple(
                matrix.name
                for matrix, other in (slow, slow[::-1])
                if invariant or access_bytes(other, False)[0] == 16
            )
        if packs == ("",) and _worth_packing_scales(problem, gpu):
            packs = ("scales",)
    elif pack == "scales" and not row_scales(problem):
        raise OptionError(
            "option pack='scales' came without block scales in rows along K: leave it out"
        )
    if problem.groups:
        if split != "auto" and _slices(problem, split):
            raise OptionError(
                f"option split_k={split!r} came with a grouped GEMM, whose k is not cut: leave it "
                "out"
            )
        splits: tuple[int, ...] = ()
    elif split == "auto":
        where = _where_sliced(problem)
        tiles = problem.l * max(problem.m * problem.n / (128 * 128), 1) / gpu.sms
        most = min(problem.k // where.slice_k, int(where.slice_tiles / tiles)) if tiles else 0
        few = tiles <= where.tiles and problem.k >= where.k
        splits = _SPLITS[: bisect(_SPLITS, most)] if few else ()
    else:
        splits = _slices(problem, split)
    if problem.is_empty:
        # An empty product has no predictions to compare: any kernel fits, also one that packs.
        packs, splits = packs[:1] if kernel == "auto" else (max(packs, key=len),), ()
    if kernel != "auto" and registry.get(kernel).runs_on != "gpu":
        if (asked and any(packs)) or (splits and split != "auto"):
            raise OptionError(
                f"options pack and split_k are for kernels that are compiled here, and "
                f"{kernel!r} is not one of them: leave them out"
            )
        splits = ()
    if problem.scales and problem.is_empty:
        # Matrices without elements have no rows at multiples of 16 bytes, which the only kernel for
        # block scales needs. Nothing is packed.
        packs = ("AB",)
    return _Space(options, packs, splits, invariant, order)


def _flag(name: str, value: Any) -> bool:
    """Return a truth value, which may be given as text."""
    known = {"true": True, "false": False, "1": True, "0": False}
    flag = known.get(str(value).lower())
    if flag is None:
        raise OptionError(f"option {name}={value!r} does not fit; expected True or False")
    return flag


def _slices(problem: GemmProblem, split: Any) -> tuple[int, ...]:
    """Return the number of slices of ``split_k`` as a tuple, empty for 1."""
    try:
        count = int(split) if isinstance(split, str) else integer(split)
    except (TypeError, ValueError):
        count = 0
    if count < 1:
        raise OptionError(
            f"option split_k={split!r} does not fit; expected 'auto' or 1 or more slices of K"
        )
    count = min(count, max(problem.k, 1))
    if count * problem.l > _MOST_SLICES:
        raise OptionError(
            f"option split_k={split} cuts each of l={problem.l} products; expected "
            f"{max(1, _MOST_SLICES // problem.l)} slices or fewer, for {_MOST_SLICES} in all"
        )
    return (count,) if count > 1 else ()


#: Largest number of slices, which are counted in 32 bits.
_MOST_SLICES = 2**31 - 1


class _Sliced(NamedTuple):
    """Limits for slices of K: short sums gain nothing from them, and many tiles fill a GPU.

    ``k`` and ``slice_k``: the smallest K of a product and of a slice; ``tiles`` and
    ``slice_tiles``: the most tiles of 128 x 128 per multiprocessor, without and with slices. All of
    728 measured products that are fastest in slices are within these limits.
    """

    k: int
    slice_k: int
    tiles: float
    slice_tiles: float


#: Limits for types of two bytes and less, which tensor cores multiply, and for longer types.
_NARROW, _WIDE = _Sliced(768, 96, 1.25, 5), _Sliced(128, 32, 2, 10)


def _where_sliced(problem: GemmProblem) -> _Sliced:
    return _NARROW if max(problem.A.element.bytes, problem.B.element.bytes) <= 2 else _WIDE


def _worth_packing(problem: GemmProblem, matrix: Matrix) -> bool:
    """Return whether packing may help: it makes the operand K-major, or its accesses wider."""
    transposed = wants_k_major(problem) and matrix.major != "K"
    return transposed or access_bytes(matrix, False)[0] < 16


#: Bytes of a line of L1: rows of scales at multiples of it map to a few of its sets.
#: Share of a product's least time that these conflicts cost, 0.07 to 0.17 measured on an H200.
_LINE, _CONFLICTS = 128, 0.1


def _worth_packing_scales(problem: GemmProblem, gpu: Gpu) -> bool:
    """Return whether conflicts of rows of block scales in L1 take longer than packing them."""
    rows = row_scales(problem)
    if not any(x.shape[0] > 1 and x.stride[0] * x.element.bytes % _LINE == 0 for x in rows):
        return False
    packing = packed(problem, "scales")[1]
    seconds = packer(packing).seconds(packing, gpu, calibration(gpu).constants)
    return seconds < _CONFLICTS * least_seconds(gpu, problem)


def _configs_of(
    problem: GemmProblem, arch: str, kernel: str, space: _Space, gpu: Gpu
) -> tuple[LegalConfigs, dict[str, Packing]]:
    """Return the configs for a problem, and the packing of each pack of the space."""
    problems = {"": problem}
    packings = {}
    for pack in filter(None, space.packs):
        problems[pack], packings[pack] = packed(problem, pack)
    return _legal_configs(problems, arch, kernel, space, gpu), packings


#: Rows for which orders of summation are compared (decoding, prompts, training), and the share of
#: the speed of an unrestricted selection that is wanted for each, which weighs the losses.
_ROWS = {1: 0.85, 16: 0.85, 64: 0.85, 256: 0.97, 1024: 0.97, 4096: 0.97}
_orders: Kept[Any, OrderOfSummation] = Kept(1024, "orders_of_summation")


def _order_for_all_m(
    problem: GemmProblem, arch: str, kernel: str, options: dict[str, Any], gpu: Gpu
) -> OrderOfSummation:
    """Return the order of summation for every m, with the least loss over `_ROWS`.

    It depends on n, k, types, and the layout of B alone.
    """
    shapes = [_with_rows(problem, m) for m in _ROWS]
    words = tuple(sorted((name, str(value)) for name, value in options.items()))
    key = shapes[0], arch, kernel, words, gpu
    if (kept := _orders.get(key)) is not None:
        return kept
    slower: dict[OrderOfSummation, float] = {}
    for place, (shape, part) in enumerate(zip(shapes, _ROWS.values(), strict=True)):
        space = _space(shape, kernel, options, gpu)
        if problem.groups:
            space = space._replace(splits=())
        elif options.get("split_k", "auto") == "auto" and kernel == "auto":
            most = shape.k // _where_sliced(shape).slice_k
            space = space._replace(splits=_SPLITS[: bisect(_SPLITS, most)])
        legal, packings = _configs_of(shape, arch, kernel, space, gpu)
        times = Predicted(shape, legal, packings, space.packs, space.splits, gpu)
        least, orders = times.seconds.min(), times.by_order(shape)
        slower = {
            order: slower.get(order, 0.0) + float(np.log(least / seconds) / np.log(part))
            for order, seconds in orders.items()
            if not place or order in slower
        }
    if not slower:
        raise UnsupportedError(
            f"batch_invariant=True came with {problem.spelled}, for which no kernel has the same "
            "order of summation for every m: leave it out"
        )
    order = _orders[key] = min(slower, key=lambda x: slower[x])
    return order


def _with_rows(problem: GemmProblem, m: int) -> GemmProblem:
    """Return the problem for another m, with A and C aligned and row-major, without epilogue.

    A single row has no order: otherwise column-major matrices would look row-major. Each group
    along M has m rows. With groups along K, A is packed, so that every A can have the order.
    """
    if problem.groups.mode == "M":
        m *= problem.l

    def rows(matrix: Matrix, columns: int) -> Matrix:
        size = matrix.element.bytes
        ld = padded(columns * size) // size
        return replace(
            matrix, shape=(m, columns), stride=(ld, 1), alignment=256, first_alignment=0,
            batch_stride=ld * m if matrix.batch_stride else 0,
        )  # fmt: skip

    A, C = rows(problem.A, problem.k), rows(problem.C, problem.n)
    share = problem.scale_rows[0]
    scales = tuple(
        replace(x, shape=(-(-m // share), x.shape[1])) if x.name == "scale_a" else x
        for x in problem.scales
    )
    result = replace(
        problem, m=m, A=A, C=C, scales=scales, epilogue=LINEAR_COMBINATION, operands=(),
        numbers=(),
    )  # fmt: skip
    return packed(result, "A")[0] if problem.groups.mode == "K" else result


@cache
def gpu_of_device(device: int) -> Gpu:
    """Return the GPU of a device, with the number of multiprocessors that its driver reports."""
    from cute_gemm.run.driver import device_arch, device_name, multiprocessors

    name, arch, sms = device_name(device), device_arch(device), multiprocessors(device)
    return of_device(name, arch, sms)


#: Limited by the number of configs, up to 2 KB each; a class has tens to hundreds of configs.
_classes: Kept[Any, LegalConfigs] = Kept(
    1 << 17, "problem_classes", lambda legal: len(legal.configs)
)
_filling = RLock()


def _legal_configs(
    problems: dict[str, GemmProblem], arch: str, kernel: str, space: _Space, gpu: Gpu
) -> LegalConfigs:
    """Return the configs for a problem's class: everything but the extents.

    ``problems``: the problem that the kernel computes for each value of ``pack``; ``""``: unpacked.
    """
    problem = problems[""]
    if kernel == "auto":
        target = gpu.arch if arch == "cpu" else Arch(arch)
        kernels = _contenders(space, problem, target)
    else:
        kernels = [registry.get(kernel)]
    options = tuple(
        (name, tuple(value) if isinstance(value, list) else value)
        for name, value in sorted(space.options.items())
    )
    whole = [problems[pack] for pack in space.packs]
    parts = whole if len(space.splits) != 1 else []
    if space.splits:
        k, count = slice_extents(problem, space.splits[0], 1)
        parts = parts + [replace(unsliced, k=k, l=problem.l * count) for unsliced in whole]
    traits = [(id(contender), contender.traits(part)) for part in parts for contender in kernels]
    key = (
        arch, gpu, options, space.packs, len(space.splits) == 1, space.splits[:1],
        common_traits(problem), tuple(traits),
    )  # fmt: skip
    legal = _classes.get(key)  # the class keeps alive the kernels whose ids are in the key
    if legal is not None:
        return legal
    with _filling:  # one thread fills a class, the others wait for it
        legal = _classes.get(key)
        if legal is not None:
            return legal
        if kernel == "auto":  # a kernel that serves the request raises the error
            kernels = [x for x in kernels if serves(x, problem, target)] or kernels
        try:
            legal = _classes[key] = _filled(problems, arch, kernels, space, gpu)
        except UnsupportedError as error:
            if (
                kernel == "auto"
                and space.options
                and any(
                    _accepts(registry.get(name), problem, target) for name in registry.CONTENDERS
                )
            ):
                raise _no_owner(space, problem, target) from error
            raise
    return legal


def _contenders(space: _Space, problem: GemmProblem, arch: Arch) -> list[Kernel]:
    """Return the contenders for a problem that have these options."""
    kernels = [registry.get(name) for name in registry.CONTENDERS]
    contenders = [kernel for kernel in kernels if set(space.options) <= set(kernel.options)]
    contenders = [kernel for kernel in contenders if kernel.contends(problem, arch)] or contenders
    if not contenders:
        raise _no_owner(space, problem, arch)
    return contenders


def _no_owner(space: _Space, problem: GemmProblem, arch: Arch) -> OptionError:
    """Return the error that no contender has the options, with the kernels that do."""
    options = space.options
    kernels = [
        kernel
        for kernel in map(registry.get, registry.names())
        if kernel.batch_invariant or not space.batch_invariant
        if _accepts(kernel, problem, arch)
    ]
    having = [kernel.name for kernel in kernels if set(options) <= set(kernel.options)]
    contending = [kernel.name for kernel in kernels if kernel.contends(problem, arch)]
    among = [name for name in registry.CONTENDERS if name in contending]
    if len(among) < len(registry.CONTENDERS):
        among[-1:] = [f"{name} for this problem" for name in among[-1:]]
    alone = "it" if len(options) == 1 else "one"
    return OptionError(
        f"kernel='auto' chooses from {', '.join(among)}, none of which has the "
        f"option{'s' * (len(options) > 1)} {' and '.join(map(repr, options))}; "
        + (f"name a kernel that has: {', '.join(having)}" if having else f"leave {alone} out")
    )


def _accepts(kernel: Kernel, problem: GemmProblem, arch: Arch) -> bool:
    """Return whether a kernel takes a problem, unpacked or packed, with options it selects."""
    for asked in (problem, packed(problem, "AB")[0]):
        with suppress(OptionError, UnsupportedError):
            check(kernel, asked, arch)
            kernel.footprints(asked, arch, {}, nearest(arch))
            return True
    return False


def _filled(
    problems: dict[str, GemmProblem],
    arch: str,
    kernels: Sequence[Kernel],
    space: _Space,
    gpu: Gpu,
) -> LegalConfigs:
    configs: list[tuple[Kernel, Any, Algorithm]] = []
    footprints: list[Footprint] = []
    refused: Exception | None = None
    # If the call gives the number of slices, no other is tried.
    splits = [0] if len(space.splits) == 1 else [1, 0] if space.splits else [1]
    for split, pack in product(splits, space.packs):
        asked = problems[pack]
        for kernel, problem in product(kernels, _variants(asked, split or space.splits[0])):
            if problem is not asked and kernel.runs_on != "gpu":
                continue  # there is no reduction kernel after it
            try:
                check(kernel, problem, arch, space.options)
                for config, cost in kernel.footprints(problem, arch, space.options, gpu):
                    configs.append((kernel, config, Algorithm(pack, split)))
                    footprints += [cost] if cost is not None else []
            except (OptionError, UnsupportedError) as error:
                refused = refused or error
    if not configs and refused is not None:
        raise refused
    packs = np.array([space.packs.index(algorithm.pack) for *_, algorithm in configs])
    asked = problems[space.packs[0]]
    reduced = np.array([reduces(config, asked, algorithm) for _, config, algorithm in configs])
    if len(footprints) < len(configs):
        return LegalConfigs(configs, None, 0, packs, reduced)
    whole = sum(algorithm.split_k for *_, algorithm in configs)
    return LegalConfigs(configs, Predictions(footprints, gpu), whole, packs, reduced)


def _variants(problem: GemmProblem, slices: int) -> tuple[GemmProblem, ...]:
    """Return the problems for so many slices of K: with the epilogue, and without it.

    The reduction kernel applies an epilogue of pairs of columns if the kernel does not take it.
    """
    if slices > 1:
        return (sliced_class(problem, slices),)
    return (sliced_class(problem, 1), problem) if problem.epilogue.pairs else (problem,)
