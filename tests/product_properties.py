"""Properties of random products: identities that are exact for small integers, and equal bits.

`PROPERTIES` are checks of a `Product` on a `Machine`. Each raises AssertionError if the property
does not hold, and RefusedError if the kernel does not support the product. All arrays are PyTorch
tensors, on the host for the backends ``"cpu"`` and ``"interpreter"``, otherwise on a GPU.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from drawn_arrays import Held, bits, place, stored
from drawn_products import PARTS, Given, Kind, Product, expected, given_of, groups

import cute_gemm as cg
from cute_gemm.dtypes import COMPONENT_PRODUCTS, DTYPES
from cute_gemm.errors import OptionError, UnsupportedError
from cute_gemm.kernels import registry

# ---- backends -----------------------------------------------------------------------------------


class RefusedError(Exception):
    """Raised with the package's error message if a kernel does not support a product."""


class Machine:
    """A backend, and the kernels that it has compiled.

    ``most``: kernels that may be compiled until `forget`. Products of further kernels are refused.
    """

    def __init__(self, backend: str, most: int | None = None) -> None:
        self.backend, self.most = backend, most
        self.device = "cuda" if backend == "cuda" else "cpu"
        self.symbols: set[str] = set()
        self._limit: int | None = most
        self._pinned: dict[Any, dict[str, Any]] = {}

    def forget(self) -> None:
        """Allow ``most`` further kernels."""
        self._limit = None if self.most is None else len(self.symbols) + self.most
        self._pinned.clear()

    def words(self, kind: Kind) -> dict[str, Any]:
        """Return the arguments of ``plan`` for a kind, except arrays."""
        words: dict[str, Any] = {"kernel": kind.kernel, "backend": self.backend}
        words["compute"] = kind.compute
        if self.backend != "cuda":
            words["arch"] = _arch_of(kind)
        return words

    def multiply(
        self, kind: Kind, op: str, A: Held, B: Held, C: Held, alpha: complex, beta: complex,
        *, operands: dict[str, Any] | None = None, **more: Any,
    ) -> torch.Tensor:  # fmt: skip
        """Compute in place, and return C in float64 or complex128. ``operands`` are arguments too.

        Raise AssertionError if anything but C changes, and RefusedError if the kernel does not
        support the product.
        """
        before, operands = [x.buffer.clone() for x in (A, B, C)], operands or {}
        arrays = A.view, B.view, C.view
        plan = self._plan(kind, op, arrays, more, operands)
        given = {x: y for x, y in operands.items() if x != "epilogue"}
        result = plan(*arrays, alpha=alpha, beta=beta, **given)
        assert result is C.view, "the result is not C"
        for name, held, old in zip("ABC", (A, B, C), before, strict=True):
            held.assert_untouched(old, name)
        return C.wide()

    def _plan(
        self, kind: Kind, op: str, arrays: tuple[Any, ...], more: dict[str, Any],
        operands: dict[str, Any],
    ) -> cg.Plan:  # fmt: skip
        words = self.words(kind) | more
        key = kind, op, tuple(more), arrays[0].ndim, arrays[1].ndim, tuple(operands)
        pinned = self._pinned.get(key, {})
        plan = None
        for options in (pinned, {}) if pinned else ({},):
            try:
                plan = cg.plan(op, *arrays, **words | options, **operands)
                break
            except (UnsupportedError, OptionError) as error:
                refused = error
        if plan is None:
            raise RefusedError(str(refused))
        if not plan.compiled or self.backend == "cpu":
            return plan
        symbols = {step.config.name for step in plan.steps}
        if self._limit is not None and len(self.symbols | symbols) > self._limit:
            raise RefusedError("one kernel more than may be compiled")
        self.symbols |= symbols
        if kind.kernel != "auto" and "batch_invariant" not in more:  # one kernel for all extents
            names = registry.get(kind.kernel).options
            self._pinned.setdefault(key, {x: getattr(plan.config, x) for x in names})
        return plan


def _arch_of(kind: Kind) -> str:
    """Return the lowest architecture that supports a kind."""
    if kind.compute in COMPONENT_PRODUCTS or kind.kernel == "sm90_wgmma":
        return "sm_90a"
    if kind.kernel == "auto":
        return "sm_89" if kind.a.startswith("float8") else "sm_80"
    return f"sm_{registry.get(kind.kernel).least_cc(kind.operands)}"


# ---- checks -------------------------------------------------------------------------------------


def computed(machine: Machine, given: Given, C: Held | None = None, **changes: Any) -> torch.Tensor:
    """Return the result of a product, with changed A, B, C, alpha or beta."""
    numbers = {x: changes.pop(x) for x in "AB" if x in changes}
    p = replace(given.product, **changes)
    A, B, own = replace(given, product=p).held(**numbers)
    C = own if C is None else C
    return machine.multiply(
        p.kind, p.kind.op, A, B, C, p.alpha, p.beta, operands=given.operands, **given.more
    )


def assert_equal(found: torch.Tensor, wanted: torch.Tensor, what: str) -> None:
    wrong = ~((found == wanted) | (found.isnan() & wanted.isnan()))
    if wrong.any():
        where = tuple(wrong.nonzero()[0].tolist())
        raise AssertionError(
            f"{what}: {int(wrong.sum())} of {wrong.numel()} elements differ, C{list(where)} is "
            f"{found[where].item()}, expected {wanted[where].item()}"
        )


def check_exact(product: Product, machine: Machine) -> None:
    """Check the result against float64. Elements without a group must not change."""
    given = given_of(product, machine.device)
    A, B, C = given.held()
    before = C.wide()
    wanted = expected(given)
    if product.kind.ragged and product.beta == 0:
        kept = torch.ones_like(before, dtype=torch.bool)
        for index, *_ in groups(given):
            kept[index] = False
        wanted = torch.where(kept, before, wanted)
    kind = product.kind
    found = machine.multiply(
        kind, kind.op, A, B, C, product.alpha, product.beta, operands=given.operands, **given.more
    )
    assert_equal(found, wanted, "beside float64")


def check_transposed(product: Product, machine: Machine) -> None:
    """Check ``C^T = op(B)^T op(A)^T``, with the same memory."""
    given = given_of(product, machine.device)
    wanted = computed(machine, given)
    A, B, C = given.held()
    C = Held(C.view.mT, C.buffer)
    # Another letter transposes a matrix. For a conjugate transpose the view is transposed.
    kind, turned = product.kind, {"N": "T", "T": "N", "C": "C"}
    A, B = (
        Held(x.view.mT, x.buffer) if letter == "C" else x
        for x, letter in zip((A, B), kind.op, strict=True)
    )
    op = turned[kind.op[1]] + turned[kind.op[0]]
    more = {"pack": "".join(sorted({"A": "B", "B": "A"}[x] for x in kind.detail))}
    found = machine.multiply(
        kind, op, B, A, C, product.alpha, product.beta,
        **(more if kind.part == "pack" else given.more),
    )  # fmt: skip
    assert_equal(found.mT, wanted, "the transposed product")


def check_relaid(product: Product, machine: Machine) -> None:
    """Check that operands stored with other letters and orders give the same result."""
    given, draw = given_of(product, machine.device), random.Random(product.seed)
    wanted = computed(machine, given)
    orders = "".join(draw.choice("FC") for _ in "ABC")
    other = replace(product.kind, op=draw.choice("NT") + draw.choice("NT"), orders=orders)
    found = computed(machine, given, kind=other)
    assert_equal(found, wanted, f"as op {other.op} of orders {orders}")


def check_block(product: Product, machine: Machine) -> None:
    """Check that the product of some rows of op(A) and columns of op(B) is a block of C."""
    given, draw = given_of(product, machine.device), random.Random(product.seed)
    wanted = computed(machine, given)
    i, j = sorted(draw.sample(range(product.m + 1), 2))
    p, q = sorted(draw.sample(range(product.n + 1), 2))
    A, B, C = given.held()
    kind = product.kind
    rows = A.view[..., i:j, :] if kind.op[0] == "N" else A.view[..., i:j]
    columns = B.view[..., p:q] if kind.op[1] == "N" else B.view[..., p:q, :]
    before = C.wide()
    found = machine.multiply(
        kind, kind.op, Held(rows, A.buffer), Held(columns, B.buffer),
        Held(C.view[..., i:j, p:q], C.buffer), product.alpha, product.beta, **given.more,
    )  # fmt: skip
    assert_equal(found, wanted[..., i:j, p:q], f"block {i}:{j}, {p}:{q}")
    before[..., i:j, p:q] = found
    assert_equal(C.wide(), before, f"around block {i}:{j}, {p}:{q}")


def check_slices_of_k(product: Product, machine: Machine) -> None:
    """Check that products of two slices of K, the second added with ``beta=1``, give C."""
    given, cut = given_of(product, machine.device), random.Random(product.seed)
    wanted, at = computed(machine, given), cut.randint(0, product.k)
    A, B, C = given.held()
    kind = product.kind
    for part, beta in ((slice(at), product.beta), (slice(at, None), 1)):
        a = A.view[..., part] if kind.op[0] == "N" else A.view[..., part, :]
        b = B.view[..., part, :] if kind.op[1] == "N" else B.view[..., part]
        found = machine.multiply(
            kind, kind.op, Held(a, A.buffer), Held(b, B.buffer), C, product.alpha, beta,
            **given.more,
        )  # fmt: skip
    assert_equal(found, wanted, f"slices of K that end at {at}")


def check_alpha_in_a(product: Product, machine: Machine) -> None:
    """Check that ``alpha = 2`` gives the same result as twice op(A)."""
    given = given_of(product, machine.device)
    wanted = computed(machine, given, alpha=2)
    assert_equal(computed(machine, given, A=2 * given.A, alpha=1), wanted, "alpha in A")


def check_loop(product: Product, machine: Machine) -> None:
    """Check that a batch, or groups, equal a loop over their products."""
    if not product.l:
        raise RefusedError("the product is a single one")
    given = given_of(product, machine.device)
    kind, single = product.kind, replace(product.kind, part="", detail="")
    A, B, C = given.held()
    before = C.wide()
    found = machine.multiply(
        kind, kind.op, A, B, C, product.alpha, product.beta, operands=given.operands
    )
    products = groups(given) if kind.ragged else zip(
        range(product.l), given.A, given.B, given.C, strict=True
    )  # fmt: skip
    wanted = before.clone()
    for index, a, b, c in products:
        extents = {"m": c.shape[0], "n": c.shape[1], "k": a.shape[1]}
        one = replace(given, product=replace(product, kind=single, l=0, **extents), C=c)
        held = one.held(A=a, B=b)
        wanted[index] = machine.multiply(
            single, kind.op, *held, product.alpha, product.beta
        )  # fmt: skip
    assert_equal(found, wanted, "a loop")


def check_rows_keep_their_bits(product: Product, machine: Machine) -> None:
    """Check that with ``batch_invariant=True`` some rows alone have the same bits as with all."""
    given, draw = given_of(product, machine.device), random.Random(product.seed)
    numbers = torch.Generator().manual_seed(product.seed)
    A, B, C = (
        torch.randn(x.shape, generator=numbers, dtype=x.dtype).to(x.device)
        for x in (given.A, given.B, given.C)
    )
    if DTYPES[product.kind.a].roundoff == 0:
        A, B, C = (30 * x for x in (A, B, C))
    given = replace(given, A=A, B=B, C=C)
    kind, residual = product.kind, given.operands.get("residual")
    held = given.held()
    words: dict[str, Any] = {"batch_invariant": True}
    whole = machine.multiply(
        kind, kind.op, *held, product.alpha, product.beta, operands=given.operands, **words
    )
    for count in (1, draw.randint(1, product.m)):
        i = draw.randint(0, product.m - count)
        rows = slice(i, i + count)
        a, b, _ = held
        view = a.view[..., rows, :] if kind.op[0] == "N" else a.view[..., rows]
        some = Held(view, a.buffer)
        if draw.random() < 0.5:  # rows at another address, with another leading dimension
            some = place(stored(A[..., rows, :], kind.op[0]), kind.a, draw.choice("FC"), 16)
        operands = given.operands
        if residual is not None:
            operands = operands | {"residual": residual[rows]}
        own = place(C[..., rows, :], kind.out, kind.orders[2], kind.aligned[2], product.pads[2])
        if product.beta == 0:
            own.poison()
        found = machine.multiply(
            kind, kind.op, some, b, own, product.alpha, product.beta, operands=operands, **words
        )
        differ = (bits(found) != bits(whole[..., rows, :])).flatten(-1).any(-1)
        assert not differ.any(), (
            f"{int(differ.sum())} of rows {i}:{i + count} have other bits than of {product.m} rows"
        )


#: Not checked on the CPU, where NumPy's BLAS determines the bits.
BITS = "rows keep their bits"
#: A check, and the parts of the kinds that it supports.
Property = tuple[Callable[[Product, Machine], None], tuple[str, ...]]
_PLAIN = ("", "", "batch", "shared A", "shared B", "pack", "split_k")
PROPERTIES: dict[str, Property] = {
    "exact": (check_exact, tuple(dict.fromkeys(PARTS))),
    "transposed": (check_transposed, _PLAIN),
    "relaid": (check_relaid, ("", "pack")),
    "block": (check_block, ("", "batch", "pack")),
    "slices of k": (check_slices_of_k, ("", "batch", "pack")),
    "alpha in A": (check_alpha_in_a, ("", "pack")),
    "loop": (
        check_loop,
        tuple(x for x in dict.fromkeys(PARTS) if "groups" in x or x in _PLAIN[2:5]),
    ),
    BITS: (check_rows_keep_their_bits, ("", "", "epilogue", "batch")),
}
