"""What a kernel was chosen from: the cheapest configs and their predicted times, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cute_gemm._text import counted, duration, named
from cute_gemm.analysis.tables import Column, Table
from cute_gemm.select import Candidate, label

#: How many are shown.
SHOWN = 5


def prices_table(candidates: Sequence[Candidate], gpu: str) -> list[Table]:
    """Return the cheapest few, each with the two largest terms of its price; [] without prices.

    The terms are times of units that work side by side: none of them is the whole, and their sum
    is not either.
    """
    rows = []
    for one in candidates[:SHOWN]:
        price = one.price
        if price is None:
            return []
        most = ", ".join(f"{name} {duration(seconds)}" for name, seconds in price.largest(2))
        counts = f"{price.ctas:,}", f"{price.rounds:,}"
        rows.append((label(one), duration(price.seconds), most, *counts))
    heads = ("config", "predicted", "most of it", "CTAs", "rounds")
    columns = tuple(Column(head, left=head in ("config", "most of it")) for head in heads)
    title = f"Predicted on {gpu}, {len(rows)} of {counted(len(candidates), 'config')}"
    return [Table(title, columns, rows)] if rows else []


def prices_dict(candidates: Sequence[Candidate]) -> list[dict[str, Any]]:
    """Return the same of all candidates, in strings, numbers, lists and dicts; seconds."""
    return [
        {"kernel": one.kernel.name, "config": one.config.name}
        | named(one.price, "seconds", "terms", "ctas", "resident", "rounds", "full")
        for one in candidates
        if one.price is not None
    ]
