"""Cases for a GPU and the interpreter, in selections, and a pool that compiles kernels."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import cycle, islice, product, takewhile
from typing import Any

import numpy as np
from cases import (
    COMPLEX,
    LADDER,
    OPS,
    PLAIN,
    POLICIES,
    SIZES,
    THIN,
    TYPES,
    WIDE,
    Buffer,
    Case,
    complex_of,
    cutlass_takes,
    narrow,
    types_of,
    wide,
)

from cute_gemm.dtypes import DTYPES
from cute_gemm.kernels import registry
from cute_gemm.plan import select
from cute_gemm.plan.builds import Builds as PlanBuilds
from cute_gemm.plan.plan import Plan


def pipeline_cases() -> Iterator[Case]:
    """Yield every dtype, op and policy with every unaligned size in each of m, n and k."""
    count = len(SIZES)
    for name in TYPES:
        for op in OPS:
            for copy in POLICIES if name in PLAIN else ("auto",):
                base = narrow("sm80_pipeline", name, op, copy)
                for i, m in enumerate(SIZES):
                    n, k = SIZES[(i + 6) % count], SIZES[(i + 7) % count]
                    yield replace(base, m=m, n=n, k=k, padded=i % 2 == 0)
                base = wide("sm80_pipeline", name, op, copy)
                for i, m in enumerate(SIZES[:10] if name in PLAIN else ()):
                    yield replace(base, m=m, k=SIZES[(i + 7) % count], padded=i % 2 == 0)
                if name not in PLAIN:
                    continue
                # Enough tiles for the large tile shapes.
                large = wide("sm80_pipeline", name, op, copy, "F")
                for k in (1, 63, 129):
                    yield replace(large, m=1000, n=4095, k=k)
                if copy == "auto":
                    large = narrow("sm80_pipeline", name, op, copy, "C")
                    for k in (3, 127):
                        yield replace(large, m=4095, n=1000, k=k)
                    yield from _other_widths(name, op)


def _other_widths(name: str, op: str) -> Iterator[Case]:
    """Yield access widths between an element and 16 bytes, different by operand; a middle tile."""
    case = wide("sm80_pipeline", name, op, "auto", "F")
    element = TYPES[name].bytes
    if element < 8:
        yield replace(case, k=129, widths=(8, 4, 8))
    if element < 4:
        yield replace(case, k=129, widths=(4, 8, 4))
        yield replace(case, n=1000, k=127)
    if element < 2:
        yield replace(case, k=129, widths=(2, 16, 16))


#: Tile, warp groups and cluster of a kernel with wgmma; swap_ab; ping_pong.
_WGMMA = (
    ((128, 256, 64), 2, (1, 1), 0, 0), ((256, 128, 64), 2, (1, 2), 1, 0),
    ((192, 192, 64), 3, (2, 1), 0, 0), ((96, 192, 64), 3, (1, 1), 1, 0),
    ((128, 128, 64), 1, (1, 1), 0, 0), ((128, 128, 64), 2, (4, 2), 1, 0),
    ((256, 64, 64), 2, (1, 1), 0, 0), ((64, 32, 64), 1, (4, 2), 0, 0),
    ((16, 128, 64), 2, (1, 1), 1, 0), ((64, 64, 128), 1, (2, 1), 0, 0),
    ((192, 192, 64), 2, (2, 1), 0, 0), ((128, 288, 64), 2, (1, 1), 0, 0),
    ((320, 96, 64), 2, (1, 1), 0, 0), ((256, 144, 64), 2, (1, 1), 0, 0),
    ((128, 128, 64), 2, (1, 1), 0, 1), ((144, 128, 64), 2, (4, 1), 1, 1),
    ((64, 64, 64), 2, (2, 2), 0, 1), ((128, 112, 64), 2, (1, 2), 0, 1),
    ((160, 128, 64), 2, (1, 4), 1, 0), ((192, 192, 64), 2, (4, 1), 0, 0),
)  # fmt: skip


#: Tiles, as the kernel sees them, with A along M and in registers; bk in bytes.
_ROWS = (
    ((128, 256, 128), 2, (1, 1), 0), ((256, 128, 128), 2, (1, 2), 0), ((64, 32, 128), 1, (4, 2), 0),
    ((192, 64, 128), 2, (1, 1), 0), ((128, 144, 128), 2, (2, 1), 1), ((64, 64, 256), 1, (2, 1), 0),
    ((192, 96, 128), 3, (1, 1), 0), ((128, 16, 256), 2, (1, 1), 1),
)  # fmt: skip
#: Operands that are packed, so that wgmma reads both from shared memory.
_TURNED = {"NN": "A", "NT": "AB", "TN": "none", "TT": "B"}


def wgmma_cases(tiles: Iterable[Any] = _WGMMA, every: int = 5) -> Iterator[Case]:
    """Yield tiles of ``sm90_wgmma`` in all ops, orders and types, with varying unaligned sizes.

    TMA stores C if its rows are multiples of 16 bytes; otherwise threads store elements.
    """
    number, count = 0, len(SIZES)
    names = ("float16", "tf32", "bfloat16", "float16-float32", "int8", "bfloat16-float32")
    for (bm, bn, bk), groups, cluster, swap_ab, ping_pong in tiles:
        for op, order in ((op, order) for op in OPS for order in "FC"):
            for name in names:
                number += 1
                if number % every:
                    continue
                size = TYPES[name].bytes
                more = (
                    ("tile", (bm, bn, 2 * bk // size)), ("warp_groups", groups),
                    ("cluster", cluster),
                    ("swap_ab", swap_ab), ("ping_pong", ping_pong),
                    *(() if size == 2 else (("pack", _TURNED[op]),)),
                )  # fmt: skip
                turn = number // every
                other = turn // len(names)  # varies independently of the type
                m, n, k = (SIZES[(number + step) % count] for step in (0, 5, 7))
                if other % 2:
                    m, n = -(-m // 8) * 8, -(-n // 8) * 8
                c = 16 if turn % 5 else 4
                yield _stored(Case("sm90_wgmma", name, op, None, m, n, k, order,
                                   (16, 16, c), other % 4 > 1, more))  # fmt: skip
    for number, op in enumerate(OPS):  # many tiles per CTA, and selected configs
        case = wide("sm90_wgmma", ("float16", "bfloat16")[number % 2], op, None, "FC"[number // 2])
        yield replace(case, m=4104, n=4088, k=200)
        yield replace(case, m=16, n=4096, k=4096)
        yield replace(case, m=1000, n=120, k=4095)
    for number, op in enumerate(OPS):  # most accumulators, many tiles per CTA
        case = wide("sm90_wgmma", ("float16", "bfloat16")[number % 2], op, None, "FC"[number // 2])
        for tile, cluster in (
            ((128, 192, 64), (2, 1)),
            ((192, 128, 64), (1, 1)),
            ((128, 176, 64), (1, 2)),
        ):
            more = (
                ("tile", tile), ("warp_groups", 2), ("ping_pong", 1), ("cluster", cluster),
                ("swap_ab", 0),
            )  # fmt: skip
            yield replace(case, m=4000, n=2000, k=520, more=more)
    for number, case in enumerate(register_cases()):
        yield case
        if number % 6 == 0:  # many tiles per CTA
            yield replace(case, m=2064, n=1984, k=336, widths=(16, 16, 16))


def register_cases() -> Iterator[Case]:
    """Yield tiles of ``sm90_wgmma`` for tf32 and int8 with an operand along M or N."""
    count, kinds = len(SIZES), product(_ROWS, ("NN", "TT", "NT"), "FC", ("tf32", "int8"))
    for number, ((tile, groups, cluster, ping_pong), op, order, name) in enumerate(kinds):
        swap_ab, size = int(op == "TT"), TYPES[name].bytes
        bm, bn, bk = tile
        more = (
            ("tile", ((bn, bm) if swap_ab else (bm, bn)) + (bk // size,)), ("warp_groups", groups),
            ("cluster", cluster[::-1] if swap_ab else cluster), ("ping_pong", ping_pong),
            ("swap_ab", swap_ab), ("pack", "B" if op == "NT" else "none"),
        )  # fmt: skip
        m, n, k = (SIZES[(number + step) % count] for step in (0, 5, 7))
        if number % 3:
            m, n = -(-m // 4) * 4, -(-n // 4) * 4
        yield _stored(Case("sm90_wgmma", name, op, None, m, n, k, order,
                           (16, 16, 16 if number % 4 else 4), number % 5 > 2, more))  # fmt: skip


def _stored(case: Case) -> Case:
    """Return the case with a C for TMA if element stores do not support so many accumulators."""
    options = dict(case.more)
    groups = 1 if options["ping_pong"] else options["warp_groups"]
    if math.prod(options["tile"][:2]) <= 128 * 128 * groups:
        return case
    m, n = -(-case.m // 16) * 16, -(-case.n // 16) * 16
    return replace(case, m=m, n=n, widths=(*case.widths[:2], 16))


def small_wgmma(**replacements: Any) -> Iterator[Case]:
    """Yield a small case of each kind, and ping-pong cases."""
    tiled = takewhile(lambda case: case.more, wgmma_cases(_WGMMA[::2], 7))
    for case in (*tiled, *islice(register_cases(), 0, None, 3)):
        small = replace(case, m=min(case.m, 129), n=min(case.n, 129), k=min(case.k, 129))
        small = _stored(small)
        yield replace(small, **replacements)
        if dict(small.more)["ping_pong"]:
            yield replace(small, **{"m": 1032, "n": 1048, "k": 136, **replacements})


def cutlass_cases() -> Iterator[Case]:
    """Yield the cases that CUTLASS's kernel supports."""
    yield from filter(cutlass_takes, _cutlass_narrow())
    for name in PLAIN:
        for op in OPS:
            base = wide("cutlass_universal", name, op)
            for m, n, k in ((80, 1008, 272), (16, 144, 4096), (1008, 16, 16)):
                yield replace(base, m=m, n=n, k=k)
            yield replace(base, m=4096, n=1008, k=144, order="F")


def cutlass_refuses() -> Iterator[Case]:
    """Return the cases that CUTLASS's kernel does not support."""
    return (case for case in _cutlass_narrow() if not cutlass_takes(case))


def _cutlass_narrow() -> Iterator[Case]:
    count = len(SIZES)
    for name in TYPES:
        for op in OPS:
            base = narrow("cutlass_universal", name, op)
            for i, m in enumerate(SIZES):
                n, k = SIZES[(i + 6) % count], SIZES[(i + 7) % count]
                yield replace(base, m=m, n=n, k=k, padded=i % 2 == 0)


def ladder_cases() -> Iterator[Case]:
    """Yield every tutorial kernel, type and op, with unaligned sizes. k fits in shared memory."""
    sizes, number = SIZES[:10], 0
    for kernel in LADDER:
        for name in types_of(kernel):
            for op in OPS[1:3] if name == "bfloat16" else OPS:  # the program is float16's
                for kind, order, count in ((narrow, "F", 3), (wide, "C", 2)):
                    for _ in range(count):
                        m, n, k = (sizes[(number + step) % len(sizes)] for step in (0, 3, 7))
                        base = kind(kernel, name, op, None, order)
                        yield replace(base, m=m, n=n, k=k, padded=number % 2 == 0)
                        number += 1
                # Many tiles. The last group of rasterized rows is partial.
                if name in ("float32", "tf32"):
                    yield replace(wide(kernel, name, op, None, "F"), m=1000, n=1003, k=129)
                    yield replace(narrow(kernel, name, op, None, "C"), m=1003, n=1000, k=63)
                if kernel in WIDE:
                    element = TYPES[name].bytes
                    base = replace(wide(kernel, name, op, None, "F"), k=129)
                    if element < 8:
                        yield replace(base, m=255, widths=(8, 4, 8))
                    if element < 4:
                        yield replace(base, m=255, widths=(4, 8, 4))
        if kernel != "tensor_core":
            yield replace(wide(kernel, "float16-float32", "TN", None), m=65)
            yield replace(narrow(kernel, "bfloat16-float32", "NN", None), m=129)
    yield from ladder_options()


def ladder_options() -> Iterator[Case]:
    """Yield options that change the code of a kernel, with ops that use both kinds of copies."""
    for op, order in (("NN", "F"), ("TN", "C")):
        for kernel in ("bank_free", "warp_tiled", "double_buffered"):
            for skew, name in (("xor", "float32"), ("padding", "float32"), ("xor", "float16")):
                more = (("skew", skew),)
                yield replace(wide(kernel, name, op, None, order), m=129, n=127, more=more)
        for name in ("float32", "float16", "float64"):
            more = (("staging", "registers"),)
            yield replace(wide("double_buffered", name, op, None, order), m=129, n=127, more=more)
            yield replace(narrow("double_buffered", name, op, None, order), more=more)
        for along in "mnk":
            more = (("warp_along", along),)
            yield replace(narrow("coalesced", "float32", op, None, order), more=more)
        yield replace(narrow("naive", "float32", op, None, order), more=(("warp_along", "m"),))
    # The size determines which of these is selected.
    for op in OPS:
        for tile, own, ctas in (
            ((128, 128, 8), (8, 16), 2),
            ((128, 64, 16), (8, 8), 2),
            ((64, 64, 16), (4, 8), 4),
        ):
            more = (("tile", tile), ("thread_tile", own), ("min_ctas", ctas))
            yield replace(wide("double_buffered", "float32", op, None), m=257, n=255, more=more)


def thin_cases() -> Iterator[Case]:
    """Yield every type and op of ``thin``, with varying numbers of rows or columns and widths."""
    number = 0
    for name in PLAIN:
        element = TYPES[name].bytes
        for op in OPS:
            for t in THIN:
                number += 1
                kind = (narrow, wide)[number % 2]
                base = kind("thin", name, op, None, "FC"[number // 2 % 2])
                k = SIZES[number % len(SIZES)]
                rows = SIZES[-1 - number % 5]
                m, n = (t, rows) if number // 3 % 2 else (rows, t)
                case = replace(base, m=m, n=n, k=k, padded=number % 5 > 1)
                yield case if number % 7 else replace(case, l=3, shared=("", "A", "B")[number % 3])
                if element < 4 and number % 3 == 0:
                    yield replace(case, widths=(4, 8, 4) if number % 2 else (8, 4, 4))
    for name in ("float16-float32", "bfloat16-float32"):
        yield replace(wide("thin", name, "TN", None), m=9)


def ragged_thin() -> Iterator[Case]:
    """Yield small ragged cases of the thin kernel: each type, with several layouts."""
    number = 0
    for name in PLAIN:
        for kind in (narrow, wide):
            for op in OPS[number % 2 :: 2]:
                number += 1
                t = THIN[number % len(THIN)]
                m, n = (t, 77) if number % 2 else (77, t)
                base = kind("thin", name, op, None, "FC"[number // 2 % 2])
                yield replace(base, m=m, n=n, k=147 if TYPES[name].bytes > 2 else 347)


def small_ladder(kinds: Iterable[Any] = (narrow, wide), **replacements: Any) -> Iterator[Case]:
    """Yield a small case of each tutorial kernel, type and kind, with varying ops and orders."""
    number = 0
    for kind in kinds:
        for kernel in LADDER:
            for name in types_of(kernel):
                number += 1
                order = "FC"[number // 4 % 2]
                yield replace(kind(kernel, name, OPS[number % 4], None, order), **replacements)


def small_cases(kinds: Iterable[Any] = (narrow, wide), **replacements: Any) -> Iterator[Case]:
    """Yield a small case of each supported kernel, type, op, policy and kind."""
    for kind in kinds:
        for name in TYPES:
            for op in OPS:
                for copy in POLICIES if name in PLAIN else ("auto",):
                    if name in PLAIN or kind is narrow:
                        yield replace(kind("sm80_pipeline", name, op, copy), **replacements)
                case = kind("cutlass_universal", name, op)
                if cutlass_takes(case) and (name in PLAIN or kind is narrow):
                    yield replace(case, **replacements)


def batches() -> Iterator[Case]:
    """Yield batches of three of the small cases: with separate A and B, and with one shared."""
    for number, case in enumerate((*small_cases(), *small_ladder(), *small_wgmma())):
        for step in range(2):
            shared = ("", "A", "B")[(number + step) % 3]
            yield replace(case, l=3, shared=shared, padded=bool((number + step) % 2))


def each_tile(arch: str) -> Iterator[Case]:
    """Yield every candidate tile of a kernel for each of its types, with varying ops and widths."""
    number = 0
    for kernel in ("double_buffered", "tensor_core", "sm80_pipeline"):
        taken = registry.get(kernel).options
        fields = [one for one in ("tile", "thread_tile", "warps", "stages") if one in taken]
        for name in (*types_of(kernel), *complex_of(kernel)):
            found: dict[tuple[tuple[str, Any], ...], list[Case]] = {}
            for op, kind in product((*OPS, "CN", "TC", "CC", "HN"), (narrow, wide)):
                if name not in COMPLEX and not set(op) <= set("NT"):
                    continue
                case = replace(kind(kernel, name, op, None, "FC"[number % 2]), m=67, n=70, k=77)
                for one in select.select(case.problem, arch, kernel).candidates():
                    more = tuple((field, getattr(one.config, field)) for field in fields)
                    found.setdefault(more, []).append(replace(case, more=more))
                number += 1
            for turn, fitting in enumerate(found.values(), number):
                for step in range(3 if name in COMPLEX else 1):
                    yield fitting[(turn + 3 * step) % len(fitting)]


def small_complex() -> Iterator[Case]:
    """Yield two small ragged cases of each complex type of the tutorial kernels and thin."""
    turns = cycle((*OPS, "CN", "TC", "CC", "HN"))
    for kernel in (*LADDER, "thin"):
        for name, kind in product(complex_of(kernel), (narrow, wide)):
            case = kind(kernel, name, next(turns), None)
            yield replace(case, m=5 if kernel == "thin" else 33, n=70, k=47)


# Host arrays --------------------------------------------------------------------------------------


def awkward_cases() -> list[Case]:
    """Return cases of element-wise accesses, and of 16-byte ones with partial vectors."""
    found = []
    for case in (*small_cases([narrow], m=33, n=65, k=47), *small_cases([wide])):
        if case.widths[0] == 16 and case.kernel == "sm80_pipeline":
            case = replace(case, m=33, n=72, k=47)
        found.append(case)
    found += [*_ragged_ladder(), *ragged_thin()]
    return [*found, *(replace(case, l=3) for case in found[::8])]


def _ragged_ladder() -> Iterator[Case]:
    """Yield a ragged case of each tutorial kernel, and options of the last one."""
    sizes = {"m": 33, "n": 70, "k": 47}
    for number, kernel in enumerate(LADDER):
        name, op = types_of(kernel)[number % len(types_of(kernel))], OPS[number % 4]
        yield replace(narrow(kernel, name, op), **sizes)
        yield replace(wide(kernel, types_of(kernel)[0], op, None, "FC"[number % 2]), **sizes)
    for name in ("float32", "float16"):
        for op in ("NN", "TT"):  # one operand by cp.async, the other through registers
            case = replace(wide("double_buffered", name, op, None, "F"), **sizes)
            yield case
            yield replace(case, more=(("skew", "xor"),))
            yield replace(case, more=(("staging", "registers"),))
            if name == "float32":
                yield replace(case, widths=(4, 16, 16))
                yield replace(case, more=(("tile", (128, 128, 8)),))
                yield replace(case, more=(("tile", (128, 64, 16)), ("thread_tile", (8, 8))))


def host_case(case: Case) -> Case:
    """Return the case with the aligned addresses that copies on the device have."""
    return _OnHost(**{name: getattr(case, name) for name in case.__dataclass_fields__})


class _OnHost(Case):
    def _place(self, *given: Any) -> Buffer:
        return replace(super()._place(*given), offset=0)


def matrix(place: Buffer, dtype: str, fill: Callable[[tuple[int, ...]], np.ndarray]) -> np.ndarray:
    """Return a matrix in a buffer of its leading dimension, or a batch of them."""
    rows, columns = place.matrix if place.order == "C" else place.matrix[::-1]
    buffer = np.zeros((place.l, rows, place.ld), DTYPES[dtype].numpy)
    view = buffer[..., :columns] if place.order == "C" else buffer[..., :columns].swapaxes(1, 2)
    view[...] = fill(view.shape)
    return view if place.l != 1 else view[0]


# Builds -------------------------------------------------------------------------------------------


class Builds:
    """Kernels that other processes compile into the cache, by the symbols of their steps.

    Parameters
    ----------
    plans
        Plans to compile ahead, each once. None: `wait` compiles the kernel.
    """

    def __init__(self, plans: Iterable[Plan] | None = None) -> None:
        self._ahead = plans is not None
        self._plans = {_symbols(plan): plan for plan in plans or ()}
        self._builds = PlanBuilds(list(self._plans.values()))

    def __len__(self) -> int:
        return len(self._plans)

    def wait(self, plan: Plan) -> None:
        """Wait until the kernel of ``plan`` is in the cache, or raise the error of its compilation.

        Raises
        ------
        LookupError
            If the kernel was not requested: the case does not describe its arrays.
        """
        if not self._ahead:
            plan.prepare().result()
            return
        if _symbols(plan) not in self._plans:
            raise LookupError(f"{plan.symbol} is not one of the {len(self)} kernels to be built")
        self._builds.of(self._plans[_symbols(plan)])

    def close(self) -> None:
        """Stop the processes, and drop compilations that have not begun."""
        self._builds.close()


def _symbols(plan: Plan) -> tuple[str, ...]:
    return tuple(step.config.name for step in plan.steps)
