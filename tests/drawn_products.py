"""Random products for hypothesis: kinds, extents, strides, scalars, and their numbers.

A `Kind` has all properties that determine the kernel: kernel, types, op, orders, alignments and
parts besides the product. A `Product` is a kind with extents, strides, scalars and numbers.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import torch
from cases import NamedTypes
from drawn_arrays import Held, fill_operands, place, stored
from hypothesis import strategies as st

from cute_gemm.dtypes import COMPONENT_PRODUCTS, DTYPES
from cute_gemm.kernels import registry

#: Parts of a kind besides A, B and C.
PARTS = (
    "", "", "batch", "shared A", "shared B", "pack", "split_k", "epilogue", "scales",
    "groups M", "groups N", "groups K",
)  # fmt: skip
#: Factors of the addresses and strides of A, B and C, in bytes.
ALIGNED = (
    (1, 1, 1), (16, 16, 16), (16, 16, 1), (4, 8, 16), (16, 1, 8), (8, 4, 4), (1, 16, 16),
    (16, 16, 4),
)  # fmt: skip
EPILOGUES = ("bias+relu", "bias+residual", "relu")


@dataclass(frozen=True)
class Kind(NamedTypes):
    """The properties of a product that determine its kernel.

    ``operands``: types as a kernel names them (``"float32/tf32"``); ``orders`` and ``aligned``:
    orders of the stored A, B and C, and factors of their addresses and strides in bytes.
    """

    kernel: str
    operands: str
    out: str
    op: str
    orders: str
    aligned: tuple[int, int, int]
    part: str = ""
    detail: str = ""  #: The epilogue, the operands to pack, or the kind of scale.

    @property
    def ragged(self) -> str:
        """The mode that groups split, or ``""``."""
        return self.part[-1] if self.part.startswith("groups") else ""

    @property
    def batched(self) -> bool:
        return self.part in ("batch", "shared A", "shared B")


@dataclass(frozen=True)
class Product:
    """A product of a kind.

    ``l``: matrices of a batch, or groups; ``seed``: of the numbers and cuts.
    """

    kind: Kind
    m: int
    n: int
    k: int
    l: int
    pads: tuple[int, int, int]
    alpha: complex
    beta: complex
    seed: int

    @property
    def line(self) -> str:
        """The product as JSON."""
        return json.dumps(asdict(self), default=lambda z: [z.real, z.imag])

    @classmethod
    def of(cls, line: str) -> Product:
        """Return the product of a line."""
        given = json.loads(line)
        kind = given.pop("kind")
        kind["aligned"], given["pads"] = tuple(kind["aligned"]), tuple(given["pads"])
        for name in ("alpha", "beta"):
            if isinstance(given[name], list):
                given[name] = complex(*given[name])
        return cls(Kind(**kind), **given)


# ---- random kinds and products ------------------------------------------------------------------

Choose = Callable[[Sequence[Any]], Any]


def kind_of(choose: Choose, kernels: Sequence[str], parts: Sequence[str] = PARTS) -> Kind:
    """Return a random kind. ``choose`` returns an element of a sequence."""
    kernel = choose(kernels)
    names = registry.get("host" if kernel == "auto" else kernel).dtypes
    if kernel == "auto":
        names = (*names, *(f"float32/{compute}" for compute in COMPONENT_PRODUCTS))
    operands = choose(names)
    row = DTYPES[operands.partition("/")[0].partition(" x ")[0]]
    # Integers beyond 16 are not exact in 8 bits.
    out = choose([name for name in row.outputs if not name.startswith("float8")])
    letters = "NTC" if row.is_complex else "NT"
    real = not row.is_complex and out != "int32"
    part = choose(parts)
    if (part in ("epilogue", "scales") and not real) or ("bf16x" in operands and part):
        part = ""
    detail = ""
    if part == "epilogue":
        detail = choose(EPILOGUES)
    elif part == "pack":
        detail = choose(("A", "B", "AB"))
    elif part == "scales":
        blocks = ("1x128", "128x128") if row.name.startswith("float8") else ()
        detail = choose(("tensor", "row", *blocks))
    aligned = choose(ALIGNED)
    orders = "".join(choose("FC") for _ in range(3))
    op = choose(letters) + choose(letters)
    return Kind(kernel, operands, out, op, orders, aligned, part, detail)


@st.composite
def kinds(draw: st.DrawFn, kernels: Sequence[str], parts: Sequence[str] = PARTS) -> Kind:
    """Draw kinds of the given kernels."""
    return kind_of(lambda several: draw(st.sampled_from(several)), kernels, parts)


@st.composite
def products(draw: st.DrawFn, kind: Kind, largest: int = 130) -> Product:
    """Draw products of a kind, with extents up to ``largest``. In some, m or n is small."""
    extents = [draw(st.integers(1, largest)) for _ in range(3)]
    short = draw(st.sampled_from("mn-"))
    few = draw(st.integers(1, 17))
    m, n = (few if short == "m" else extents[0]), (few if short == "n" else extents[1])
    if kind.kernel == "batched":  # the kernel depends on the extents: only three of them
        m, n, extents[2] = draw(st.sampled_from(((7, 5, 9), (16, 32, 17), (33, 1, 20))))
    l = draw(st.integers(1, 4)) if kind.batched or kind.ragged else 0
    pads = tuple(draw(st.integers(0, 4)) for _ in range(3))
    if kind.out == "int32":
        alphas, betas = (1, -1, 3, -7), (0, 1, -2, 5)
    elif DTYPES[kind.a].is_complex:
        alphas, betas = (1, 1j, 2 - 1j), (0, 1, -1j)  # type: ignore[assignment]
    elif kind.part == "scales":
        alphas, betas = (1,), (0, 1, -1)  # type: ignore[assignment]
    else:
        alphas, betas = (1, -1, 2, 0.5), (0, 1, -1, 2, 0.5)  # type: ignore[assignment]
    alpha, beta = draw(st.sampled_from(alphas)), draw(st.sampled_from(betas))
    return Product(kind, m, n, extents[2], l, pads, alpha, beta, draw(st.integers(0, 2**20)))  # type: ignore[arg-type]


# ---- arrays of a product ------------------------------------------------------------------------


@dataclass
class Given:
    """op(A), op(B) and C of a product in float64 or complex128, and operands and options."""

    product: Product
    A: torch.Tensor
    B: torch.Tensor
    C: torch.Tensor
    operands: dict[str, Any]
    more: dict[str, Any]
    ends: list[int]

    def held(self, **changes: torch.Tensor) -> tuple[Held, Held, Held]:
        """Return the stored A, B and C, or changed ones. C is NaN if it must not be read."""
        kind, pads = self.product.kind, self.product.pads
        numbers = {"A": self.A, "B": self.B, "C": self.C} | changes
        letters = {"A": kind.op[0], "B": kind.op[1], "C": "N"}
        found = []
        for number, (name, dtype) in enumerate(zip("ABC", (kind.a, kind.b, kind.out), strict=True)):
            found.append(
                place(stored(numbers[name], letters[name]), dtype, kind.orders[number],
                      kind.aligned[number], pads[number], shared=kind.part == f"shared {name}")
            )  # fmt: skip
        if self.product.beta == 0:
            found[2].poison()
        return found[0], found[1], found[2]


def given_of(product: Product, device: str) -> Given:
    """Return the numbers of a product: small integers, so that results are exact in every type."""
    kind, (m, n, k) = product.kind, (product.m, product.n, product.k)
    several = (product.l,) if product.l else ()
    of_a = several if kind.batched or kind.ragged == "N" else ()
    of_b = several if kind.batched or kind.ragged == "M" else ()
    of_c = several if kind.batched or kind.ragged == "K" else ()
    few = 6 if kind.part == "scales" else 24
    A, B, C = fill_operands(
        product.seed, device, (*of_a, m, k), (*of_b, k, n), (*of_c, m, n),
        few=few if kind.out in ("float16", "bfloat16") else None,
        is_complex=DTYPES[kind.a].is_complex,
    )  # fmt: skip
    if kind.part == "shared A":
        A = A[:1].expand_as(A)
    if kind.part == "shared B":
        B = B[:1].expand_as(B)
    draw, more, operands, ends = random.Random(product.seed), {}, {}, []
    if kind.part == "pack":
        more = {"pack": kind.detail}
    elif kind.part == "split_k":
        more = {"split_k": draw.choice((2, 3))}
    elif kind.part == "epilogue":
        operands = {"epilogue": kind.detail}
        if "bias" in kind.detail:
            operands["bias"] = _integers(draw, device, n).float()
        if "residual" in kind.detail:
            operands["residual"] = _integers(draw, device, m, n).float()
    elif kind.part == "scales":
        operands = {f"scale_{x}": _scale(draw, device, kind, y, k) for x, y in (("a", m), ("b", n))}
    elif kind.ragged:
        extent = {"M": m, "N": n, "K": k}[kind.ragged]
        ends = sorted(draw.choices(range(extent + 1), k=product.l))
        operands = {"offsets": torch.tensor(ends, dtype=torch.int32, device=device)}
    return Given(product, A, B, C, operands, more, ends)


def _integers(draw: random.Random, device: str, *shape: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(draw.randrange(2**31))
    return torch.randint(-4, 5, shape, generator=random).to(device)


def _scale(draw: random.Random, device: str, kind: Kind, rows: int, k: int) -> torch.Tensor:
    """Return random powers of two in the shape of a kind of scale."""
    up = lambda x: -(-x // 128)  # noqa: E731
    shape = {
        "tensor": (), "row": (rows, 1), "1x128": (rows, up(k)), "128x128": (up(rows), up(k)),
    }[kind.detail]  # fmt: skip
    return 2.0 ** (_integers(draw, device, *shape) % 3 - 1).float()


def _spread(scale: torch.Tensor, kind: Kind, rows: int, k: int) -> torch.Tensor:
    """Return a scale for each element of (rows, k)."""
    scale = scale.double()
    if kind.detail in ("1x128", "128x128"):
        scale = scale.repeat_interleave(128, 1)[:, :k]
    if kind.detail == "128x128":
        scale = scale.repeat_interleave(128, 0)[:rows]
    return scale.expand(rows, k)


def expected(given: Given) -> torch.Tensor:
    """Return the exact result. Elements without a group keep their values."""
    p, A, B = given.product, given.A, given.B
    kind, operands = p.kind, given.operands
    if kind.part == "scales":
        A = A * _spread(operands["scale_a"], kind, p.m, p.k)
        B = B * _spread(operands["scale_b"], kind, p.n, p.k).mT
    if kind.ragged:
        result = given.C.clone()
        for index, a, b, c in groups(given):
            result[index] = p.alpha * (a @ b) + (p.beta * c if p.beta else 0)
        return result
    result = p.alpha * (A @ B) + (p.beta * given.C if p.beta else 0)
    if "bias" in operands:
        result = result + operands["bias"]
    if "residual" in operands:
        result = result + operands["residual"]
    return result.relu() if "relu" in kind.detail else result


def groups(given: Given) -> list[tuple[Any, torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Return the index in C of each group, and its op(A), op(B) and C."""
    A, B, C, found = given.A, given.B, given.C, []
    for g, (begin, end) in enumerate(pairwise((0, *given.ends))):
        part = slice(begin, end)
        if given.product.kind.ragged == "M":
            found.append((part, A[part], B[g], C[part]))
        elif given.product.kind.ragged == "N":
            found.append(((slice(None), part), A[g], B[:, part], C[:, part]))
        else:
            found.append((g, A[:, part], B[part], C[g]))
    return found
