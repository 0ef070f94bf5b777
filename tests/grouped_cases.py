"""Grouped GEMMs of every kind, with canaries around C and NaN around the operands."""

import zlib
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise, product
from typing import Any, NamedTuple

import numpy as np
from cases import OPS, placed, stored_shapes
from fp8_cases import PAIRS

import cute_gemm as cg
from cute_gemm.call import Call
from cute_gemm.dtypes import DTYPES, FLOAT8
from cute_gemm.problem.epilogue.fuse import read_operands
from cute_gemm.problem.verify import verify

#: Sizes of groups: empty, one row, about a tile of 64.
SIZES = (0, 0, 1, 3, 17, 63, 64, 65, 130)
#: Unit-stride modes of A and B for the letters N and T: arrays are row-major.
UNIT = (("K", "N"), ("M", "K"))
#: Value of elements that must not change.
CANARY = -99.0

#: Operands of an epilogue, named by their modes. G is the group.
EPILOGUES: dict[str, Any] = {
    "bias": cg.epilogue(lambda acc, G: acc + G),
    "all": cg.epilogue(lambda acc, G, N, M, MN: cg.silu(acc * M + N) - G * MN),
}

#: Small configs of ``sm90_wgmma``: one warp group, A and B swapped, warp groups that share a tile
#: or take turns, clusters along both modes.
WGMMA: dict[str, dict[str, Any]] = {
    "one": {"tile": (64, 64, 64), "warp_groups": 1, "stages": 2, "cluster": (1, 1), "swap_ab": 0},
    "swapped": {"tile": (16, 64, 64), "warp_groups": 1, "stages": 2, "cluster": (1, 1),
                "swap_ab": 1},
    "turns": {"tile": (64, 128, 64), "warp_groups": 2, "ping_pong": 1, "stages": 3,
              "cluster": (1, 1), "swap_ab": 0},
    "swapped turns": {"tile": (64, 64, 64), "warp_groups": 2, "ping_pong": 1, "stages": 3,
                      "cluster": (1, 2), "swap_ab": 1},
    "cluster": {"tile": (128, 64, 64), "warp_groups": 2, "stages": 3, "cluster": (2, 2),
                "swap_ab": 0},
    "packed": {"tile": (64, 64, 64), "warp_groups": 1, "stages": 2, "cluster": (1, 1),
               "pack": "AB"},
}  # fmt: skip


#: Smallest configs of other kernels, which take the interpreter the least time.
SMALL: dict[str, dict[str, Any]] = {
    "double_buffered": {"tile": (16, 32, 16), "thread_tile": (2, 2)},
    "tensor_core": {"tile": (32, 32, 32)},
}

#: Kernels without TMA, with their types.
OTHERS = tuple(
    (kernel, *kind)
    for kernel, kinds in {
        "double_buffered": (
            ("float32", ""), ("float64", ""), ("complex64", ""), ("complex128", ""),
            ("bfloat16", ""),
        ),
        "sm80_pipeline": (
            ("float16", ""), ("int8", ""), ("float32", "tf32"), ("float64", ""), ("float32", ""),
        ),
        "tensor_core": (("float16", ""),),
    }.items()
    for kind in kinds
)  # fmt: skip


class GroupedCase(NamedTuple):
    """A grouped GEMM: ``sizes`` of groups along ``ragged``, and ``rest`` rows without a group."""

    ragged: str
    op: str
    order: Any
    sizes: tuple[int, ...]
    extents: tuple[int, int]  #: Extents of the other two modes, in the order M, N, K.
    rest: int = 0
    dtype: str = "float16"
    alpha: float = 1.0
    beta: float = 0.0
    epilogue: str = ""
    pad: int = 8  #: Elements between rows or columns of A, B and C, besides alignment to 16 bytes.
    kernel: str = "sm90_wgmma"
    options: str = "one"
    compute: str = ""
    dtype_b: str = ""  #: Type of B, if it is not A's.
    scales: tuple[str, str] = ("", "")  #: Kinds of `scale`, of A and of B.
    fast_accum: bool | None = None
    zero_tail: bool = False  #: Whether elements without a group become zeros.

    def __str__(self) -> str:
        sizes = "+".join(map(str, self.sizes)) + f"+({self.rest})" * bool(self.rest)
        words = (self.kernel, self.options, self.ragged, self.op, self.order, sizes, self.dtype)
        extents = "x".join(map(str, self.extents))
        more = self.dtype_b, *self.scales, "fast" * bool(self.fast_accum), self.compute, extents
        more = *more, f"a={self.alpha:g}", f"b={self.beta:g}", self.epilogue
        more = *more, "zeros" * self.zero_tail
        return " ".join(filter(None, (*words, *more)))

    @property
    def all_extents(self) -> dict[str, int]:
        """M, N and K. The ragged one is the sum over all groups."""
        others = iter(self.extents)
        whole = sum(self.sizes) + self.rest
        return {mode: whole if mode == self.ragged else next(others) for mode in "MNK"}

    @property
    def chosen(self) -> dict[str, Any]:
        """The options of the call."""
        options = dict((WGMMA | SMALL).get(self.options, {}))
        if self.options in WGMMA:
            deep = options["tile"][2] * 2 // DTYPES[self.dtype].bytes
            options["tile"] = (*options["tile"][:2], deep)
        if self.compute:
            options["compute"] = self.compute
        # TMA supports no groups along the unit-stride mode; wgmma reads some types only along K.
        if self.kernel == "sm90_wgmma" and "pack" not in options:
            units = {"A": UNIT[self.op[0] != "N"][0], "B": UNIT[self.op[1] != "N"][1]}
            shared = "AB"[not options.get("swap_ab")]
            along_k = DTYPES[self.dtype].bytes == 1 or self.compute == "tf32"
            pack = "".join(
                name
                for name, unit in units.items()
                if unit == self.ragged != "K" or (along_k and name == shared and unit != "K")
            )
            options |= {"pack": pack} if pack else {}
        if self.fast_accum is not None:
            options["compute"] = "fast_accum" if self.fast_accum else None
        tail = {"tail": "zero"} if self.zero_tail else {}
        return {"kernel": self.kernel, **tail, **options}


class Arrays(NamedTuple):
    """The arrays of a case. C is a view into ``whole``, whose other elements are canaries."""

    A: np.ndarray
    B: np.ndarray
    C: np.ndarray
    offsets: np.ndarray
    operands: dict[str, np.ndarray]
    whole: np.ndarray


def of_no_group(case: GroupedCase, array: np.ndarray, modes: str = "MN") -> np.ndarray:
    """Return the part of an array with these modes that is in no group."""
    end = sum(case.sizes)
    if case.ragged == modes[0]:
        return array[..., end:, :]
    return array[..., end if case.ragged == modes[1] else array.shape[-1] :]


def arrays(case: GroupedCase) -> Arrays:
    """Return random A, B and operands. Elements without a group, and an unread C, are NaN."""
    random = np.random.default_rng(zlib.crc32(str(case).encode()))
    extents, groups = case.all_extents, len(case.sizes)
    m, n, k = extents.values()
    around = 99.0 if DTYPES[case.dtype].roundoff == 0 else np.nan
    out = DTYPES[case.dtype].outputs[0]

    def view(shape: tuple[int, ...], dtype: str, order: str, outside: float) -> Any:
        """Return a view of random numbers, and its array."""
        step = max(8, 16 // DTYPES[dtype].bytes)
        return placed(shape, dtype, order, case.pad, step, (0, 1), outside, random)

    lead = {letter: (groups,) * (case.ragged == "NMK"["ABC".index(letter)]) for letter in "ABC"}
    found = []
    for name, modes, letter, stored, dtype in zip(
        "AB", ("MK", "KN"), case.op, stored_shapes(case.op, m, n, k),
        (case.dtype, case.dtype_b or case.dtype), strict=True,
    ):  # fmt: skip
        found.append(view((*lead[name], *stored), dtype, "C", around)[0])
        logical = found[-1] if letter == "N" else found[-1].swapaxes(-1, -2)
        of_no_group(case, logical, modes)[...] = around
    C, whole = view((*lead["C"], m, n), out, case.order, CANARY)
    if not case.beta:
        C[...] = around
    of_no_group(case, C)[...] = CANARY
    operands = {}
    for name in {"bias": "G", "all": ("G", "N", "M", "MN")}.get(case.epilogue, ()):
        shape = {"G": (groups, n), "N": (n,), "M": (m, 1), "MN": (m, n)}[name]
        operands[name] = random.standard_normal(shape).astype(DTYPES[out].numpy)
    for name, kind in zip(("scale_a", "scale_b"), case.scales, strict=True):
        if kind:
            operands[name] = scale(case, name, kind, random)
    offsets = np.cumsum(case.sizes).astype(np.int32)
    return Arrays(found[0], found[1], C, offsets, operands, whole)


def scale(case: GroupedCase, name: str, kind: str, random: np.random.Generator) -> Any:
    """Return a scale of a kind, of either sign, with its own strides; NaN outside of groups."""
    extents, mode = case.all_extents, {"scale_a": "M", "scale_b": "N"}[name]
    groups, rows, end = len(case.sizes), extents[mode], sum(case.sizes)
    across, down = -(-extents["K"] // 128), -(-rows // 128)

    def numbers(*shape: int) -> np.ndarray:
        signs = np.where(random.random(shape) < 0.3, -1, 1)
        found = ((random.random(shape) + 0.5) * signs).astype(np.float32)
        if case.ragged == mode and shape[0] == 2 * rows:
            found[2 * end :] = np.nan
        return found

    def boxed(*lead: int) -> np.ndarray:
        """Return 1x128 scales with strides that are multiples of 16 bytes, as TMA requires."""
        found = numbers(*lead, 2 * across, -(-rows // 4) * 4).swapaxes(-1, -2)
        if case.ragged == mode:
            found[end:] = np.nan
        return found[..., :rows, ::2]

    if kind == "number":
        return 0.75
    return {
        "tensor": lambda: numbers(1, 1), "group": lambda: numbers(2 * groups)[::2],
        "group 3": lambda: numbers(groups, 1, 1), "flat": lambda: numbers(2 * rows)[::2],
        "row": lambda: numbers(2 * rows, 3)[::2, 1:2],
        "row of group": lambda: numbers(rows + 1, groups).T[:, :rows],
        "row of group 3": lambda: numbers(groups, rows, 3)[..., 1:2],
        "1x128": lambda: numbers(2 * rows, across + 1)[::2, :across],
        "1x128 of group": lambda: numbers(groups, 2 * across, rows + 3).swapaxes(1, 2)[
            :, :rows, ::2
        ],
        "1x128 boxed": boxed, "1x128 boxed of group": lambda: boxed(groups),
        "128x128": lambda: numbers(down, across + 1)[:, :across],
        "128x128 of group": lambda: numbers(groups, across, down).swapaxes(1, 2),
    }[kind]()  # fmt: skip


def expanded(case: GroupedCase, name: str, kind: str, array: Any) -> np.ndarray:
    """Return a scale as (1 or G, 1 or rows, 1 or K) in float64, as its kind defines it."""
    extents = case.all_extents
    rows = extents["M" if name == "scale_a" else "N"]
    found = np.asarray(array, np.float64)
    if "128" not in kind:
        return found.reshape(-1, rows if "row" in kind or kind == "flat" else 1, 1)
    found = np.repeat(found, 128, axis=-1)[..., : extents["K"]]
    if "128x128" in kind:
        found = np.repeat(found, 128, axis=-2)[..., :rows, :]
    return found if found.ndim == 3 else found[None]


def products(case: GroupedCase, given: Arrays) -> Iterator[tuple[tuple[Any, ...], np.ndarray]]:
    """Yield the index in C of each group, and its scaled product in float64."""
    factors = {}
    for name, letter, kind in zip("AB", case.op, case.scales, strict=True):
        array = getattr(given, name).astype(np.float64)
        array = array if (letter == "N") == (name == "A") else array.swapaxes(-1, -2)
        operand = f"scale_{name.lower()}"
        scales = expanded(case, operand, kind, given.operands[operand]) if kind else 1.0
        # both are (1 or G, rows, K)
        factors[name] = array.reshape(-1, *array.shape[-2:]) * scales
    A, B = factors["A"], factors["B"]
    for g, (end, size) in enumerate(zip(given.offsets.tolist(), case.sizes, strict=True)):
        part = slice(end - size, end)
        a, b = A[g % len(A)], B[g % len(B)]
        if case.ragged == "M":
            yield (part,), a[part] @ b.T
        elif case.ragged == "N":
            yield (..., part), a @ b[part].T
        else:
            yield (g,), a[:, part] @ b[:, part].T


def check(
    case: GroupedCase, call: Callable[[GroupedCase, Arrays], Any], problem: Any = None
) -> None:
    """Check that ``call`` computes C in place, right in all groups, and writes nothing else.

    ``problem``: the problem of its plan, if it is known.
    """
    given = arrays(case)
    before = given.C.copy()
    call(case, given)
    problem = problem or planned(case, given, backend="cpu").problem
    held = {"C": before} if case.beta else {}
    operands = given.operands
    if any(case.scales):
        function = Call.like(problem).epilogue
        assert function is not None
        operands = read_operands(function, given.operands, problem, None).on_host()
    verdict = verify(
        problem, given.A, given.B, given.C, alpha=case.alpha, beta=case.beta,
        operands={"offsets": given.offsets, **operands}, **held,
    )  # fmt: skip
    assert verdict.ok, verdict
    if any(case.scales) and not case.epilogue:
        # Compare with scales as the case defines them, independently of how the package reads them.
        for place, product in products(case, given):
            expected = case.alpha * product
            if case.beta:
                expected += case.beta * before[place].astype(np.float64)
            apart = abs(given.C[place].astype(np.float64) - expected)
            assert (apart <= 0.02 * (abs(expected) + case.all_extents["K"] ** 0.5)).all()
    # Elements without a group, and elements around C.
    kept = 0 if case.zero_tail else CANARY
    np.testing.assert_array_equal(of_no_group(case, given.C), kept)
    given.C[...] = CANARY
    np.testing.assert_array_equal(given.whole, CANARY)


def planned(case: GroupedCase, given: Arrays, **more: Any) -> cg.Plan:
    """Return the plan of a case."""
    # Without instructions for 8-bit floats, a conversion takes many others.
    newer = case.kernel == "sm90_wgmma" or case.dtype in FLOAT8
    arch = {"arch": "sm_90a"} if newer else {}
    epilogue = {"epilogue": EPILOGUES[case.epilogue]} if case.epilogue else {}
    return cg.plan(
        case.op, given.A, given.B, given.C, offsets=given.offsets,
        **(case.chosen | arch | epilogue | given.operands | more),
    )  # fmt: skip


def cases(count: int, seed: int = 1, *, times: int = 1, **fixed: Any) -> list[GroupedCase]:
    """Return random cases of all kinds, ops, orders and configs. ``times``: larger extents."""
    found = []
    random = np.random.default_rng(seed)
    for number in range(count):
        sizes = tuple(int(x) for x in random.choice(SIZES, random.integers(1, 9 * times)))
        first, second = (8 * int(x) for x in random.integers(1, 22 * times, 2))
        ragged = "MKN"[number % 3]
        epilogue = ("", "", "bias", "all")[number % 4] if ragged == "M" else ""
        case = GroupedCase(
            ragged, OPS[number // 3 % 4], "CF"[number // 12 % 2], sizes, (first, second),
            rest=int(random.choice((0, 1, 40))) if sum(sizes) else 40,
            alpha=float(random.choice((1.0, -1.5, 0.0), p=(0.6, 0.3, 0.1))),
            beta=float(random.choice((0.0, 0.75))), epilogue=epilogue,
            options=tuple(WGMMA)[number % 7 % len(WGMMA)],
        )  # fmt: skip
        case = case._replace(**{"pad": 7 if case.options == "packed" else 8, **fixed})
        found.append(case)
    return found


def zero_tails(found: list[GroupedCase]) -> list[GroupedCase]:
    """Return the cases that have a tail, with ``tail="zero"``."""
    return [case._replace(zero_tail=True) for case in found if case.ragged != "K"]


#: Zero tails: empty, in several tiles, all of C; with ping-pong, in clusters, after as many groups
#: as a warp has lanes, one less and one more; without products; with every kind of type.
ZERO_TAILS = zero_tails(
    [
        GroupedCase("M", "NN", "C", (3, 64, 0, 61), (72, 64), rest=0),
        GroupedCase("M", "NT", "F", (0, 0), (72, 64), rest=70, beta=0.75),
        GroupedCase("N", "NT", "C", (3, 64, 65, 0), (72, 64), rest=200, options="turns"),
        GroupedCase("M", "TN", "C", (65, 0, 130), (264, 64), rest=200, options="turns", beta=1.0),
        GroupedCase("M", "TN", "F", (65, 3), (136, 64), rest=130, options="turns", alpha=0.0,
                    beta=0.5),
        GroupedCase("N", "TT", "F", (65, 0, 3), (136, 40), rest=200, options="swapped turns"),
        GroupedCase("M", "NT", "C", (3, 130, 1), (136, 72), rest=300, options="cluster",
                    epilogue="all"),
        GroupedCase("N", "NN", "C", (3, 17, 1), (72, 40), rest=90, options="packed"),
        GroupedCase("M", "TN", "C", (5, 0, 64), (272, 304), rest=70, options="swapped",
                    dtype="float8_e4m3fn", scales=("1x128", "128x128 of group"), pad=16),
        *(
            GroupedCase("MN"[number % 2], OPS[number % 4], "CF"[number // 2 % 2], sizes, (40, 24),
                        rest=70, kernel="sm80_pipeline", options="", dtype=dtype, alpha=2.0)
            for number, (sizes, dtype) in enumerate(
                (((3, 0) * 16, "float16"), ((1,) * 31, "int8"), ((2,) * 33, "bfloat16"))
            )
        ),
        GroupedCase("M", "NN", "C", (3, 0, 20), (40, 24), rest=70, kernel="sm80_pipeline",
                    options="", epilogue="bias", alpha=0.0),
        GroupedCase("N", "TN", "F", (5, 0, 33), (40, 24), rest=33, kernel="double_buffered",
                    options="", dtype="complex64", beta=1.0),
        GroupedCase("M", "TN", "C", (5, 0, 33), (40, 24), rest=33, kernel="tensor_core",
                    options=""),
    ]
)  # fmt: skip


#: Sizes of groups of a list, their maximal sum, and their number.
LISTED, WHOLE, GROUPS = (0, 0, 0, 1, 1, 2, 5, 8, 16, 17, 33, 65), 80, 9
#: Kernels and types that are executed with many lists, and their options.
KINDS: tuple[dict[str, Any], ...] = (
    *(
        {"options": "swapped" if number % 2 else "one", **kind}
        for number, kind in enumerate((
            {"dtype": "float16"}, {"dtype": "bfloat16"}, {"dtype": "float32", "compute": "tf32"},
            {"dtype": "int8"}, {"dtype": "float8_e4m3fn", "scales": ("1x128", "1x128 of group")},
            {"dtype": "float8_e5m2", "dtype_b": "float8_e4m3fn", "scales": ("row", "group")},
            {"dtype": "float8_e4m3fn", "scales": ("1x128 boxed", "1x128 boxed of group")},
        ))
    ),
    *(
        {"kernel": kernel, "options": kernel, "dtype": dtype, "compute": compute}
        for kernel, dtype, compute in OTHERS
    ),
    {"kernel": "double_buffered", "options": "double_buffered", "dtype": "float8_e4m3fn",
     "scales": ("row", "tensor")},
)  # fmt: skip


def lists(case: GroupedCase, count: int) -> Iterator[GroupedCase]:
    """Yield a case with other groups of random sizes: many empty, of one row, one with all rows."""
    random = np.random.default_rng(zlib.crc32(str(case).encode()))
    for number in range(count):
        drawn = [WHOLE] if number == 0 else random.choice(LISTED, GROUPS).tolist()
        drawn += [0] * (GROUPS - len(drawn))
        random.shuffle(drawn)
        ends = [min(end, WHOLE) for end in accumulate(drawn)]
        sizes = tuple(end - begin for begin, end in pairwise((0, *ends)))
        yield case._replace(sizes=sizes, rest=WHOLE - ends[-1], beta=float(number % 2))


def listed_cases() -> list[GroupedCase]:
    """Return each of `KINDS` along two modes, with varying ops."""
    found = []
    for number, kind in enumerate(KINDS * 2):
        ragged = "MNK"[(number + number // len(KINDS)) % 3]
        case = GroupedCase(ragged, OPS[number % 4], "CF"[number // 4 % 2], (WHOLE,), (24, 40))
        case = case._replace(**{"pad": 16, "alpha": 2.0, **kind})
        if "128" in "".join(case.scales) and ragged == "K":
            case = case._replace(ragged="MN"[number % 2])
        if case.ragged == "N":
            case = case._replace(scales=case.scales[::-1])
        if case.kernel != "sm90_wgmma":
            case = case._replace(extents=(13, 19), pad=3)
        found.append(case)
    return found


def other_cases(count: int, seed: int = 1, *, times: int = 1) -> list[GroupedCase]:
    """Return random cases of kernels without TMA: every type, more groups than lanes of a warp."""
    random, kinds, found = np.random.default_rng(seed), tuple(OTHERS), []
    for number, case in enumerate(cases(count, seed, times=times, options="", pad=3)):
        kernel, dtype, compute = kinds[number % len(kinds)]
        row = DTYPES[dtype]
        case = case._replace(kernel=kernel, dtype=dtype, compute=compute)
        if row.is_complex or row.roundoff == 0:
            case = case._replace(epilogue="", alpha=2.0, beta=float(case.beta != 0))
        if number % 4 == 1:
            sizes = tuple(int(x) for x in random.choice((0, 1, 3, 9), 45))
            case = case._replace(sizes=sizes)
        case = case._replace(extents=tuple(x - int(random.integers(8)) for x in case.extents))
        found.append(case)
    return found


#: Kinds of `scale` of the operand whose rows are ragged, and of the other one, except block scales;
#: and pairs with block scales.
RAGGED = ("", "number", "tensor", "group", "group 3", "flat", "row")
SHARED = (*RAGGED, "row of group", "row of group 3")
_BLOCKS = ("1x128", "1x128 of group", "128x128", "128x128 of group")
BLOCK_PAIRS = [
    *product(("1x128", "row", ""), _BLOCKS), ("1x128", ""), ("1x128", "row of group"),
]  # fmt: skip
BOXED_PAIRS = [
    ("1x128 boxed", "128x128 of group"), ("1x128 boxed", "1x128 boxed of group"),
    ("1x128 boxed", ""), ("row", "1x128 boxed of group"),
]  # fmt: skip


def scaled_cases(
    kernel: str, ragged: str, pairs: Sequence[tuple[str, str]], times: int = 1
) -> list[GroupedCase]:
    """Return a case of 8-bit floats for each pair of kinds, of the ragged operand and the other.

    ``times``: larger groups and extents.
    """
    lists = (3, 64, 0, 65, 1), (0, 0, 130, 1), (1, 1, 1, 17, 0, 63), (70,)
    options = "one", "swapped", "swapped turns", "cluster", "packed"
    found = []
    for i, kinds in enumerate(pairs):
        dtype, dtype_b = PAIRS[i % 4]
        blocks = any("128" in kind for kind in kinds)
        case = GroupedCase(
            ragged, OPS[(i + i // 4) % 4], "CF"[i // 2 % 2],
            tuple(size * times for size in lists[i % 4]),
            tuple(extent * times for extent in ((72, 304), (136, 160))[i % 2]),
            rest=(0, 5)[i % 3 > 0], dtype=dtype, dtype_b=dtype_b,
            scales=kinds[::-1] if ragged == "N" else kinds, alpha=(1.0, -1.25)[i % 2],
            beta=(0.0, 0.5)[i // 2 % 2], kernel=kernel, pad=16,
            options=options[i % len(options)] if kernel == "sm90_wgmma" else "",
            fast_accum=True if i % 5 == 0 and not blocks else None,
        )  # fmt: skip
        found.append(case)
    return found
