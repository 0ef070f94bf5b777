"""The table of candidate configs with their predicted times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cute_gemm._text import counted, duration, named
from cute_gemm.kernels.candidate import Candidate, labels
from cute_gemm.rendering.tables import Table, table

#: Number of configs in the table.
SHOWN = 5


def candidates_table(candidates: Sequence[Candidate], gpu: str) -> list[Table]:
    """Return a table of the fastest configs, or [].

    Each row has the two largest terms of the predicted time. The terms are times of units that work
    in parallel, so they do not add up to the predicted time.
    """
    rows = []
    for name, candidate in zip(labels(candidates[:SHOWN]), candidates, strict=False):
        prediction = candidate.prediction
        if prediction is None:
            return []
        most = ", ".join(f"{name} {duration(seconds)}" for name, seconds in prediction.largest(2))
        counts = f"{prediction.ctas:,}", f"{prediction.rounds:,}"
        rows.append((name, duration(prediction.seconds), most, *counts))
    heads = ("config", "predicted", "most of it", "tiles", "rounds")
    title = f"Predicted on {gpu}, {len(rows)} of {counted(len(candidates), 'config')}"
    return [table(title, heads, rows, "config", "most of it")] if rows else []


def candidates_dict(candidates: Sequence[Candidate]) -> list[dict[str, Any]]:
    """Return all candidates as strings, numbers, lists and dicts, with times in seconds."""
    return [
        {"kernel": x.kernel.name, "config": x.config.name, **x.algorithm._asdict()}
        | named(
            x.prediction, "seconds", "correction", "terms", "ctas", "resident", "rounds", "full"
        )
        for x in candidates
        if x.prediction is not None
    ]
