"""A stand-in for the package ``nvMatmulHeuristics``: it recommends what a test says."""

from __future__ import annotations

import sys
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import pytest

GPUS = ("A100_SXM_80GB", "A30_PCIE", "RTX_6000_ADA", "H100_NVL", "H200_SXM", "H20_SXM", "GB200_NVL")
LAYOUTS = [f"{a}{b}_{order}_MAJOR" for order in ("ROW", "COL") for a in "NT" for b in "NT"]


def install(monkeypatch: pytest.MonkeyPatch, *rows: tuple[int, ...]) -> list[dict[str, Any]]:
    """Let it recommend ``rows`` (tile and cluster along M and N, slices of K) to any question.

    Returns the questions, as they come.
    """
    asked: list[dict[str, Any]] = []
    fields = "cta_tile_m", "cta_tile_n", "cluster_m", "cluster_n", "split_k"

    class Interface:
        def __init__(self, *, backend: Any, flags: Any, gpu: Any) -> None:
            self.words = {"target": backend.name, "gpu": gpu.name, "flags": flags.name}

        def makeNvMatmulHeuristicsProblem(self, *sizes: Any) -> Any:
            return dict(zip(("m", "n", "k", "layout", "l"), sizes, strict=True))

        def get(self, problem: Any, count: int, precision: str) -> list[dict[str, Any]]:
            layout = problem["layout"].name
            asked.append({**self.words, **problem, "layout": layout, "precision": precision})
            kernels = (SimpleNamespace(**dict(zip(fields, row, strict=True))) for row in rows)
            return [{"kernel": one, "runtime": 1e-5} for one in kernels][:count]

    fake = SimpleNamespace(
        NvMatmulHeuristicsNvidiaGpu=IntEnum("Gpu", [*GPUS, "END"]),
        NvMatmulHeuristicsTarget=IntEnum("Target", ["CUTLASS", "CUTLASS3"]),
        NvMatmulHeuristicsFlags=IntEnum("Flags", ["NONE", "PERF_MODEL_BASED_AUTO_TUNING"]),
        NvMatmulHeuristicsMatmulLayout=IntEnum("Layout", LAYOUTS),
        NvMatmulHeuristicsInterfaceEx=Interface,
    )
    monkeypatch.setitem(sys.modules, "nvMatmulHeuristics", fake)
    return asked
