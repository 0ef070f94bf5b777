"""Backends that compute the cases of ``blas_contract``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import cute_gemm as cg
from cute_gemm.errors import OptionError, UnsupportedError
from cute_gemm.kernels import registry


class TooManyError(Exception):
    """Raised instead of compiling more kernels than a backend may."""


class Backend:
    """``"cpu"`` or ``"interpreter"``, with NumPy arrays. `Cuda` is a subclass.

    ``most``: kernels that may be compiled until `forget`; one more raises `TooManyError`.
    """

    def __init__(self, name: str, arch: str | None = None, most: int | None = None) -> None:
        self.name, self.arch, self.most = name, arch, most
        self.symbols: set[str] = set()
        self._pinned: dict[Any, dict[str, Any]] = {}

    def forget(self) -> None:
        """Reset the count of kernels."""
        self.symbols.clear()
        self._pinned.clear()

    def run(self, case: Any, *arrays: np.ndarray, change: Callable[..., Any] | None = None) -> None:
        """Compute a case in place. ``change`` modifies the arguments of the call."""
        self._call(case, *arrays, change)

    def _words(self, case: Any) -> dict[str, Any]:
        return {
            "kernel": case.kernel, "compute": case.kind.compute, "backend": self.name,
            "arch": self.arch,
        }  # fmt: skip

    def _compiles(self, case: Any) -> bool:
        return self.name != "cpu" and registry.get(case.kernel).runs_on == "gpu"

    def _call(self, case: Any, A: Any, B: Any, C: Any, change: Callable[..., Any] | None) -> None:
        scalars = {"alpha": case.alpha, "beta": case.beta}
        if change is not None:
            *arrays, given = change(A, B, C, {"op": case.op, **self._words(case), **scalars})
            cg.gemm(given.pop("op"), *arrays, **given)
            return
        plan, words = self._plan(case, A, B, C)
        if plan is None or case.m % 2:
            result = cg.gemm(case.op, A, B, C, **scalars, **words)
        else:
            result = plan(A, B, C, **scalars)
        assert result is C, "the result is not C"

    def _plan(self, case: Any, A: Any, B: Any, C: Any) -> tuple[cg.Plan | None, dict[str, Any]]:
        """Return the plan of a compiled kernel, and its options. TooManyError for a new kernel."""
        words = self._words(case)
        if not self._compiles(case):
            return None, words
        key = case.kernel, case.kind, case.op, case.layout
        pinned = self._pinned.get(key, {})
        plan, words = self._first(case, (A, B, C), words | pinned, words, words | {"pack": "AB"})
        if 0 not in (*C.shape, case.k):
            if plan.symbol not in self.symbols and len(self.symbols) == self.most:
                raise TooManyError(plan.symbol)
            self.symbols.add(plan.symbol)
            if key not in self._pinned:  # all extents use one kernel
                fields = {x: getattr(plan.config, x) for x in registry.get(case.kernel).options}
                self._pinned[key] = fields | {x: words[x] for x in ("pack",) if x in words}
        return plan, words

    @staticmethod
    def _first(case: Any, arrays: Any, *several: dict[str, Any]) -> tuple[cg.Plan, dict[str, Any]]:
        """Return the plan for the first options that the kernel supports."""
        refused: Exception | None = None
        for words in several:
            try:
                return cg.plan(case.op, *arrays, **words), words
            except (UnsupportedError, OptionError) as error:
                if not isinstance(refused, UnsupportedError):
                    refused = error
        assert refused is not None
        raise refused
