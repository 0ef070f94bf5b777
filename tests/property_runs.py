"""Runs of hypothesis: examples of one property and kind, with a seed, shrunk after a failure."""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from drawn_products import Kind, Product, kind_of, products
from hypothesis import HealthCheck, Phase, given, seed, settings
from product_properties import PROPERTIES, Machine, RefusedError

#: Errors after which a process cannot continue.
FATAL = ("CUDA error", "CUDA_ERROR")

#: Seconds to shrink a failure, and unsupported examples after which a kind is skipped.
SHRINKING, REFUSED = 20, 5


@dataclass
class Tally:
    """Number of examples that held, and of unsupported ones by error message."""

    held: int = 0
    refused: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Run:
    """A property of products of one kind."""

    name: str
    kind: Kind
    seed: int

    def __str__(self) -> str:
        return f"{self.name}, {self.kind}, seed {self.seed}"

    def check(
        self, machine: Machine, examples: int, largest: int, tally: Tally,
        until: float = math.inf,
    ) -> str:  # fmt: skip
        """Check examples, and return the simplest failure with its reason, or ``""``.

        No more examples are computed after the time ``until``, and shrinking ends ``SHRINKING``
        seconds later. If the first examples are not supported, the others are skipped.
        """
        check, _ = PROPERTIES[self.name]
        failed: list[tuple[Product, Exception]] = []
        held, refused = tally.held, tally.refused.total()
        machine.forget()

        @seed(self.seed)
        @settings(
            max_examples=examples, database=None, deadline=None, report_multiple_bugs=False,
            phases=(Phase.generate, Phase.shrink), suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(products(self.kind, largest))
        def run(product: Product) -> None:
            if failed and any(word in str(failed[-1][1]) for word in FATAL):
                raise failed[-1][1]
            if time.time() > until + (SHRINKING if failed else 0):
                return
            if not failed and tally.held == held and tally.refused.total() >= refused + REFUSED:
                return
            try:
                check(product, machine)
            except RefusedError as error:
                tally.refused[str(error)] += 1
            except Exception as error:
                failed.append((product, error))
                raise
            else:
                tally.held += 1

        try:
            run()
        except Exception:
            if not failed:
                raise
        if not failed:
            return ""
        product, error = failed[-1]  # hypothesis ends with the simplest
        return f"{self.name}: {product.line}\n    {type(error).__name__}: {error}"


def runs(first: int, kernels: Sequence[str], names: Sequence[str]) -> Iterator[Run]:
    """Yield runs without end, of each property in turn, with random kinds."""
    number = 0
    while True:
        for name in names:
            draw = random.Random(f"{first} {number} {name}")
            yield Run(name, kind_of(draw.choice, kernels, PROPERTIES[name][1]), first + number)
        number += 1
