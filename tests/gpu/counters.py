"""Compare predicted with counted accesses of all kernels, dtypes, ops and layouts, in one ncu run.

``python tests/gpu/counters.py --output counters.csv`` compiles every kernel in parallel and
launches every case once under Nsight Compute. It prints the differences, the unsupported cases, and
a summary by class of accesses. It exits with 1 if a count differs or a kernel does not compile.
``--only REGEX``, ``--limit N`` and ``--sample N`` select cases, ``--order C`` takes a row-major C,
and ``--list`` prints the cases. ``--list`` with ``--arch`` needs no GPU.
"""

import argparse
import csv
import json
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

sys.path.append(str(Path(__file__).parents[1]))
from cases import COMPLEX, LADDER, OPS, PLAIN, TYPES, Type, complex_of, types_of
from gemm_cases import Builds

from cute_gemm.errors import CompileError, GemmError, OptionError, UnsupportedError
from cute_gemm.measure.profile import Case, Profile, compare, count, ncu, predict

#: Types of A and B, and of C.
EIGHT_BITS = {
    f"{kind}-{out}": Type(kind, f"float8_{kind}", None, out)
    for kind, out in (
        ("e4m3fn", "bfloat16"), ("e5m2", "float16"), ("e4m3fn", "float8_e4m3fn"),
        ("e4m3fn", "float32"),
    )
}  # fmt: skip
VARIANTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("sm80_pipeline", {"copy": "auto"}),
    ("sm80_pipeline", {"copy": "mn_major"}),
    ("cutlass_universal", {}),
)


class Place(NamedTuple):
    """A problem size, and the layout of the matrices in memory."""

    m: int
    n: int
    k: int
    pad: int = 0
    base_offset: int = 0
    beta: int = 0
    l: int = 1
    step: int = 1  #: Leading dimensions are multiples of this, plus the pad.
    padded: str = "ABC"


#: Code depends on access widths and tile, not on sizes: "ld+1", "base+1" and "odd" share a kernel,
#: and so do "aligned" and "tail16", and "tail" and "tail beta".
PLACES = {
    "aligned": Place(512, 512, 256),
    "large": Place(2048, 1024, 128),  # enough CTAs for the large tiles
    "ld+1": Place(512, 512, 256, pad=1),
    "base+1": Place(512, 512, 256, base_offset=1),
    "tail16": Place(304, 272, 208),
    "tail": Place(300, 260, 200),
    "tail beta": Place(300, 260, 200, beta=1),
    "odd": Place(261, 131, 77),
}
#: Places of the tutorial kernels. K fits in shared memory, and partial tiles occur at every edge.
LADDER_PLACES = {
    "aligned": Place(384, 512, 192),
    "ragged": Place(382, 515, 189, beta=1),
    "ragged16": Place(376, 520, 184),  # vectors of 16 bytes, none partial
    "ld+1": Place(384, 512, 192, pad=1),
    "cut": Place(385, 518, 195, pad=3),  # ld allows vectors of 4, partial at the edges
}
#: Few columns. Every other op exchanges m and n.
THIN_PLACES = {
    "1": Place(1024, 1, 512), "4": Place(1000, 4, 520, beta=1),
    "17 ld+1": Place(1000, 17, 515, pad=1), "32": Place(2048, 32, 1024), "odd": Place(261, 7, 331),
}  # fmt: skip
#: Batches of small products: contiguous, vectorized, padded, and at unaligned addresses.
BATCHED_PLACES = {
    "run": Place(7, 5, 3, l=1000),
    "aligned": Place(16, 32, 64, l=201),
    "ld+1 beta": Place(49, 20, 33, pad=1, beta=1, l=101),
    "base+1": Place(12, 12, 12, base_offset=1, l=300),
}
#: Cases of the kernel with TMA and wgmma: type of each op, options, and changes of each case.
WGMMA_OPS = {"NN": "bfloat16", "NT": "float16", "TN": "bfloat16", "TT": "float16"}
WGMMA = {"tile": "128x128x64", "warp_groups": 2, "cluster": "1x1", "ping_pong": 0, "swap_ab": 0}
RAGGED = Place(328, 261, 197, beta=1, step=8)  # three tiles each way: clusters compute four
WGMMA_PLACES: tuple[tuple[str, dict[str, Any], Place], ...] = (
    ("aligned", {}, Place(512, 512, 256)),
    ("beta", {}, Place(512, 512, 256, beta=1)),
    ("ragged", {}, RAGGED),
    ("elements", {}, Place(325, 259, 197, step=8)),  # TMA cannot store this C
)
#: Options that are tested with two of the ops.
WGMMA_OPTIONS: tuple[tuple[str, dict[str, Any], Place], ...] = (
    ("cluster 2x1", {"cluster": "2x1"}, RAGGED),
    ("cluster 1x2", {"cluster": "1x2"}, RAGGED),
    ("cluster 2x2", {"cluster": "2x2"}, RAGGED),
    ("swap_ab", {"swap_ab": 1}, RAGGED),
    ("by turns", {"ping_pong": 1}, Place(2048, 2056, 200)),  # more tiles than CTAs
    ("side by side", {"tile": "64x128x64"}, RAGGED),
    ("narrow", {"tile": "128x16x64"}, RAGGED),
    ("deep", {"tile": "128x64x128"}, Place(328, 264, 150, step=8)),  # TMA boxes extend beyond K
    ("split", {"split_k": 3}, Place(328, 264, 1000, beta=1)),
    ("batch", {}, Place(328, 264, 200, l=3)),
    ("batch split", {"split_k": 3}, Place(328, 264, 1000, l=2, beta=1)),
    ("ld+8", {}, Place(512, 512, 256, beta=1, pad=8)),
    ("base+8", {}, Place(512, 512, 256, beta=1, base_offset=8)),
)
#: The operand A of wgmma is in registers.
WGMMA_ROWS: tuple[tuple[str, str, str, dict[str, Any], Place], ...] = tuple(
    (name, op, place, {"tile": f"{tile}x{deep}", "swap_ab": swap_ab, **options}, at)
    for name, deep in (("tf32", 32), ("int8", 128))
    for op, swap_ab in (("NN", 0), ("TT", 1))
    for place, tile, options, at in (
        ("aligned", "128x128", {}, Place(512, 512, 256)),
        ("ragged", "128x128", {}, Place(328, 264, 196, beta=1, step=16)),
        ("elements", "128x128", {}, Place(325, 259, 197, step=16)),
        ("by turns", "128x128", {"ping_pong": 1}, Place(2048, 2064, 208)),
        ("side by side", "128x64" if swap_ab else "64x128", {}, Place(336, 272, 208)),
    )
)
#: Packing of operands with an odd leading dimension or base address, and split-K.
PASSES: tuple[tuple[str, str, dict[str, Any], str, Place], ...] = (
    *(
        (kernel, name, {"pack": which}, f"{where}+1", at._replace(padded=which))
        for kernel, name in (
            ("sm90_wgmma", "bfloat16"), ("sm80_pipeline", "tf32"), ("sm80_pipeline", "int8")
        )
        for which, where, at in (
            ("A", "ld", Place(328, 264, 200, pad=1, step=16)),
            ("B", "ld", Place(328, 264, 200, pad=1, step=16)),
            ("AB", "ld", Place(261, 131, 77, pad=1, step=16, beta=1)),
            ("AB", "base", Place(328, 264, 200, base_offset=1, step=16)),
        )
    ),
    ("sm80_pipeline", "float32", {"split_k": 4}, "tail", Place(300, 260, 1000, beta=1)),
    ("double_buffered", "complex64", {"split_k": 4}, "odd", Place(261, 131, 1001)),
    ("sm80_pipeline", "float16", {"split_k": 3}, "batch", Place(300, 261, 1000, l=3, beta=1)),
    ("double_buffered", "float32", {"split_k": 2}, "batch ld+1", Place(131, 261, 500, l=3, pad=1)),
)  # fmt: skip
#: Options that change the code of a tutorial kernel.
LADDER_OPTIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("naive", {"warp_along": "m"}), ("bank_free", {"skew": "padding"}),
    ("warp_tiled", {"skew": "xor"}), ("double_buffered", {"skew": "xor"}),
    ("double_buffered", {"staging": "registers"}), ("double_buffered", {"tile": "128x128x8"}),
    ("double_buffered", {"tile": "128x64x16", "thread_tile": "8x8"}),
)  # fmt: skip
#: Epilogues. Their operands are vectors along N, and matrices with the layout of C.
EPILOGUES = ("bias+gelu", "residual", "bias+relu+residual")
EPILOGUE_PLACES: tuple[tuple[str, str, dict[str, Any], str, Place], ...] = (
    ("naive", "float32", {}, "odd", PLACES["odd"]),
    ("vectorized", "float32", {}, "ragged", LADDER_PLACES["ragged"]),
    ("double_buffered", "float32", {}, "aligned", LADDER_PLACES["aligned"]),
    ("tensor_core", "float16", {}, "ragged", LADDER_PLACES["ragged"]),
    ("sm80_pipeline", "float16", {}, "tail beta", PLACES["tail beta"]),
    ("sm80_pipeline", "bfloat16", {}, "aligned", PLACES["aligned"]),
    ("thin", "bfloat16", {}, "4", THIN_PLACES["4"]),
    ("sm90_wgmma", "bfloat16", WGMMA, "ragged", RAGGED),
    ("sm90_wgmma", "float16", WGMMA | {"swap_ab": 1}, "aligned", Place(512, 512, 256)),
    ("sm90_wgmma", "bfloat16", WGMMA, "elements", Place(325, 259, 197, step=8)),
    ("sm90_wgmma", "float16", WGMMA | {"split_k": 3}, "split", Place(328, 264, 1000, beta=1)),
)


#: 8-bit floats with TMA and wgmma: op, scales of A and B, place and changes of each case.
PROMOTED = {"tile": "128x128x128", "warp_groups": 2, "cluster": "1x1", "ping_pong": 0, "swap_ab": 0}
BLOCKS = ("1x128", "128x128")
EDGES = Place(328, 264, 404, beta=1, step=16)  # partial blocks of 64, of 128 and along k
FP8: tuple[tuple[str, tuple[str | None, str | None], str, dict[str, Any], Place], ...] = (
    *(
        ("TN", scales, place, {}, at)
        for scales in (
            (None, None), ("tensor", "row"), ("1x128", None), (None, "128x128"), BLOCKS,
            BLOCKS[::-1], ("1x128", "1x128"), ("128x128", "128x128"),
        )
        for place, at in (("aligned", Place(512, 512, 512)), ("edges", EDGES))
    ),
    *(
        (op, scales, "registers", {"tile": tile, "swap_ab": swap_ab}, EDGES)
        for op, swap_ab, tile in (("NN", 0, "128x96x128"), ("TT", 1, "96x128x128"))
        for scales in ((None, None), BLOCKS, ("row", "1x128"))
    ),
    ("TN", BLOCKS, "swap_ab", {"swap_ab": 1}, EDGES),
    ("TN", BLOCKS, "blocks that tiles cut", {"tile": "128x160x128"}, Place(512, 528, 384)),
    ("TN", BLOCKS, "side by side", {"tile": "64x192x128"}, EDGES),
    ("TN", BLOCKS, "by turns", {"tile": "64x128x128", "ping_pong": 1}, Place(2048, 2064, 400)),
    ("TN", BLOCKS, "cluster 2x2", {"cluster": "2x2"}, EDGES),
    ("TN", BLOCKS, "split", {"split_k": 3}, Place(328, 264, 1200, beta=1, step=16)),
    ("TN", BLOCKS, "batch", {}, Place(328, 272, 400, l=3, step=16)),
    ("TN", BLOCKS, "batch split", {"split_k": 3}, Place(328, 272, 1200, l=2, step=16)),
    ("TN", BLOCKS, "elements", {}, Place(325, 259, 404, step=16)),
    ("NT", BLOCKS, "packed", {"pack": "AB"}, Place(325, 259, 404, pad=1)),
    ("TN", BLOCKS, "ld+16", {}, Place(512, 512, 256, pad=16)),
    ("TN", BLOCKS, "base+16", {}, Place(512, 512, 256, base_offset=16)),
)  # fmt: skip
#: 8-bit floats with the other kernels, which convert them.
FP8_OTHERS: tuple[tuple[str, str, Place], ...] = (
    *(
        (kernel, place, LADDER_PLACES[place])
        for kernel in ("naive", "coalesced", "double_buffered")
        for place in ("aligned", "ragged", "ragged16")
    ),
    *(("thin", place, THIN_PLACES[place]) for place in ("4", "17 ld+1", "odd")),
)
#: Grouped GEMMs: offsets, and for each kernel its type, ops and options. For some ops an operand
#: is contiguous along the ragged mode, and is packed for TMA.
ENDS = (0, 1, 4, 4, 68, 197, 325, 325, 448)
GROUPED: tuple[tuple[str, str, tuple[str, ...], str, dict[str, Any]], ...] = (
    *(
        ("sm90_wgmma", "bfloat16", ops, name, options)
        for name, options, ops in (
            ("", {}, OPS), ("swap_ab", {"swap_ab": 1}, ("TN", "NT")),
            ("by turns", {"ping_pong": 1}, ("TN", "NT")),
            ("cluster 2x1", {"cluster": "2x1"}, ("TN", "NT")),
            ("cluster 1x2", {"cluster": "1x2"}, ("TN", "NT")),
        )
    ),
    ("sm80_pipeline", "float16", OPS, "", {}),
    ("sm80_pipeline", "int8", ("TN", "NN"), "", {}),
    ("double_buffered", "float32", ("TN", "NT"), "", {}),
    ("double_buffered", "complex64", ("NN",), "", {}),
    ("tensor_core", "float16", ("TN", "NT"), "", {}),
)  # fmt: skip


def cases(order: str, arch: str | None) -> Iterator[tuple[str, Case]]:
    """Yield the name and the case of every cell of the table."""

    def cell(
        kernel: str, options: dict[str, Any], name: str, op: str, place: str, at: Place,
        title: str = "", **more: Any,
    ) -> tuple[str, Case]:  # fmt: skip
        m, n, k = at[:3]
        rows = {
            "A": m if op[0] == "N" else k,
            "B": k if op[1] == "N" else n,
            "C": m if order == "F" else n,
        }
        leading = {
            f"ld{letter.lower()}": -(-row // at.step) * at.step + at.pad * (letter in at.padded)
            for letter, row in rows.items()
        }
        t = (TYPES | COMPLEX | EIGHT_BITS)[name]
        title = title or " ".join((kernel, *options.values()))
        return " ".join((title, name, op, place)), Case(
            op, m, n, k, t.dtype, **leading, order=order,  # type: ignore[arg-type]
            out_dtype=t.out, compute=t.compute, kernel=kernel, arch=arch, options=options,
            beta=at.beta, base_offset=at.base_offset, l=at.l, **more,
        )  # fmt: skip

    for kernel, options in VARIANTS:
        for name in (*PLAIN, *complex_of(kernel)):
            for op in OPS:
                for place, at in PLACES.items():
                    yield cell(kernel, options, name, op, place, at)
    for kernel in LADDER:
        for name in (*types_of(kernel), *complex_of(kernel)):
            for op in OPS:
                for place, at in LADDER_PLACES.items():
                    if name in ("float32", "tf32") or place in ("aligned", "ragged"):
                        yield cell(kernel, {}, name, op, place, at)
    for name in (*PLAIN, *COMPLEX):
        for number, op in enumerate(OPS):
            for place, at in THIN_PLACES.items():
                transposed = at._replace(m=at.n, n=at.m) if number % 2 else at
                yield cell("thin", {}, name, op, place, transposed)
    for name in (*PLAIN, *COMPLEX):
        units = ("fma", "mma") if TYPES.get(name) and TYPES[name].bytes == 2 else ("fma",)
        for (place, at), op, unit in product(BATCHED_PLACES.items(), OPS, units):
            if name != "tf32":
                yield cell("batched", {"unit": unit}, name, op, place, at)
    for kernel, options in LADDER_OPTIONS:
        for op in OPS:
            for place in ("aligned", "ragged"):
                yield cell(kernel, options, "float32", op, place, LADDER_PLACES[place])
    for number, (op, name) in enumerate(WGMMA_OPS.items()):
        for place, options, at in WGMMA_PLACES + WGMMA_OPTIONS * (op in ("NT", "TN")):
            yield cell("sm90_wgmma", WGMMA | options, name, op, place, at, "sm90_wgmma")
        place, _, at = WGMMA_PLACES[number]
        yield cell("sm90_wgmma", WGMMA, f"{name}-float32", op, place, at, "sm90_wgmma")
    for name, op, place, options, at in WGMMA_ROWS:
        yield cell("sm90_wgmma", WGMMA | options, name, op, place, at, "sm90_wgmma")
    for kernel, name, options, place, at in PASSES:
        title = " ".join(("auxiliary", kernel, *map(str, options.values())))
        for op in ("NT", "TN"):
            yield cell(kernel, options, name, op, place, at, title)
    for kernel, name, options, place, at in EPILOGUE_PLACES:
        for op, epilogue in zip(("TN", "NT", "TN"), EPILOGUES, strict=True):
            title = f"epilogue {epilogue} {kernel}{' x' * options.get('swap_ab', 0)}"
            yield cell(kernel, options, name, op, place, at, title, epilogue=epilogue)
    for number, (op, (a, b), place, options, at) in enumerate(FP8):
        title = " ".join(("fp8 sm90_wgmma", *filter(None, (a, b))))
        name = [*EIGHT_BITS][number % len(EIGHT_BITS)]
        found = PROMOTED | options
        yield cell("sm90_wgmma", found, name, op, place, at, title, scale_a=a, scale_b=b)
        if (a, b) == (None, None):
            title += " fast_accum"
            yield cell("sm90_wgmma", found, name, op, place, at, title, compute="fast_accum")
    for kernel, place, at in FP8_OTHERS:
        for name, op in zip(EIGHT_BITS, OPS, strict=False):
            title = f"fp8 {kernel} row"
            yield cell(kernel, {}, name, op, place, at, title, scale_a="row", scale_b="tensor")
    for ragged, (kernel, name, ops, place, options) in product("MNK", GROUPED):
        at = Place(*(ENDS[-1] + 5 if mode == ragged else 328 for mode in "MNK"), step=16)
        for op in ops:
            own = dict(options)
            if kernel == "sm90_wgmma":
                unit = {"A": "MK"[op[0] == "T"], "B": "KN"[op[1] == "T"]}
                pack = "".join(letter for letter, mode in unit.items() if mode == ragged)
                own = WGMMA | own | ({"pack": pack} if pack else {})
            title = f"grouped {ragged} {kernel} {place}".rstrip()
            more = {"ragged": ragged, "offsets": ENDS}
            yield cell(kernel, own, name, op, "ends", at, title, **more)


class Sorted(NamedTuple):
    """The supported cases, and the reason for each unsupported one, by name."""

    taken: dict[str, Case]
    refused: dict[str, str]


def sort(found: dict[str, Case]) -> Sorted:
    """Separate supported from unsupported cases."""
    taken, refused = {}, {}
    for name, case in found.items():
        try:
            case.plan()
            taken[name] = case
        except (UnsupportedError, OptionError) as error:
            refused[name] = str(error)
    return Sorted(taken, refused)


def build(taken: dict[str, Case]) -> dict[str, str]:
    """Compile all kernels into the cache, in parallel. Return the errors by name."""
    failed = {}
    builds = Builds(case.plan() for case in taken.values())
    try:
        for name, case in taken.items():
            try:
                builds.wait(case.plan())
            except CompileError as error:
                failed[name] = str(error).partition("\n")[0]
    finally:
        builds.close()
    print(f"{len(builds)} kernels built", flush=True)
    return failed


def write(path: Path, profiles: dict[str, Profile], refused: dict[str, str]) -> None:
    """Write all figures as JSON if the file's suffix is .json, otherwise as CSV."""
    if path.suffix == ".json":
        table = {name: found.to_dict() for name, found in profiles.items()}
        path.write_text(json.dumps({"cases": table, "refused": refused}, indent=1) + "\n")
        return
    with path.open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(("case", "access", "figure", "predicted", "counted", "difference", "metric"))
        for name, found in profiles.items():
            for one in found.figures:
                numbers = (one.predicted, one.counted, one.difference)
                rows.writerow((name, one.access, one.figure, *numbers, one.metric))


def summary(profiles: dict[str, Profile]) -> Iterator[str]:
    """Yield a line for each figure: cases that have it, units counted, cases that differ."""
    had, differ, units = Counter[str](), Counter[str](), Counter[str]()
    for found in profiles.values():
        for one in found.figures:
            name = f"{one.access} {one.figure}" + ("" if one.metric else " *")
            had[name] += bool(one.predicted or one.counted)
            units[name] += one.counted
            differ[name] += bool(one.difference)
    yield f"{'':<28}{'cases':>7}{'counted':>16}{'differing':>11}"
    for name in had:
        yield f"{name:<28}{had[name]:>7}{units[name]:>16,}{differ[name]:>11}"
    yield f"{'all figures but *':<28}{sum(v for n, v in had.items() if n[-1] != '*'):>7}"
    yield "* wavefronts counted less the fewest possible: no counter of its own"


def main() -> int:
    """Select, compile, count and compare the cases."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", metavar="REGEX", help="only cases whose names match")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N cases")
    parser.add_argument("--sample", type=int, metavar="N", help="N random cases, with a fixed seed")
    parser.add_argument("--order", choices=("F", "C"), default="F", help="order of C (default F)")
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="write all figures: .csv or .json"
    )
    parser.add_argument("--arch", help="default: arch of GPU 0")
    parser.add_argument("--ncu", metavar="PATH")
    parser.add_argument("--list", action="store_true", help="print the cases and exit")
    arguments = parser.parse_args()

    start = time.perf_counter()
    everything = cases(arguments.order, arguments.arch)
    chosen = [one for one in everything if re.search(arguments.only, one[0])]
    if arguments.sample is not None:
        chosen = random.Random(0).sample(chosen, min(arguments.sample, len(chosen)))
    taken, refused = sort(dict(chosen[: arguments.limit]))
    for name, why in refused.items():
        print(f"refused  {name}: {why}")
    expected = {name: predict(case) for name, case in taken.items()}
    if arguments.list:
        print(*taken, f"{len(taken)} cases, {len(refused)} refused", sep="\n")
        return 0
    print(f"{len(taken)} cases, {len(refused)} refused", flush=True)
    tool = ncu(arguments.ncu)
    failed = build(taken)
    for name, why in failed.items():
        print(f"FAILED   {name}: {why}", flush=True)
        del taken[name]
    print(f"counting after {time.perf_counter() - start:.0f} s", flush=True)
    counted = dict(zip(taken, count(list(taken.values()), tool), strict=True))
    profiles = {
        name: Profile(case, case.plan().config.name, compare(expected[name], counted[name]))
        for name, case in taken.items()
    }
    if arguments.output:
        write(arguments.output, profiles, refused)
    wrong = {name: found for name, found in profiles.items() if found.differences}
    for name, found in wrong.items():
        print(f"DIFFERS  {name}")
        for one in found.differences:
            print(
                f"         {one.access} {one.figure}: predicted {one.predicted:,}, counted "
                f"{one.counted:,}, difference {one.difference:+,}"
            )
    print(*summary(profiles), sep="\n")
    print(
        f"{len(profiles)} cases, {len(wrong)} differ, {len(failed)} did not build, {len(refused)} "
        f"refused; {time.perf_counter() - start:.0f} s"
    )
    return 1 if wrong or failed or not profiles else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except GemmError as error:
        print(f"counters.py: {error}", file=sys.stderr)
        sys.exit(2)
