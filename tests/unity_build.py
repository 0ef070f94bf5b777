"""Compile the kernels of several tests in one unit: headers take most of a compilation."""

import os
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cache, lru_cache, partial

import pytest

from cute_gemm.errors import CompileError, GemmError
from cute_gemm.plan.plan import Plan
from cute_gemm.toolchain import nvrtc
from cute_gemm.toolchain.unit import TranslationUnit

#: Tests whose kernels are compiled together; 1 if only the first failing test is of interest.
TOGETHER = int(os.environ.get("CUTE_GEMM_TEST_TOGETHER", "24"))


def unity_build(plan: Callable[..., Plan]) -> pytest.MarkDecorator:
    """Mark a test that executes the kernels of ``plan(**parameters)`` in the interpreter."""
    return pytest.mark.unity_build(plan=plan)


def together(units: Iterable[TranslationUnit]) -> TranslationUnit:
    """Return one unit with the includes of all, and each unit in a namespace of its own."""
    includes, parts, folders = {}, [], {}
    for number, unit in enumerate(units):
        lines = unit.source.splitlines()
        includes.update(dict.fromkeys(line for line in lines if line.startswith("#include")))
        rest = "\n".join(line for line in lines if not line.startswith("#include"))
        parts.append(f"namespace unit_{number} {{\n{rest}\n}}")
        folders.update(dict.fromkeys(unit.folders))
    return TranslationUnit("\n".join((*includes, *parts)), "", tuple(folders))


class UnityBuilds:
    """Compile PTX as `nvrtc.ptx` does, in marked tests together with kernels of others.

    A unit has the kernels of a family of `TOGETHER` tests of a module. All processes of a run
    compile the same units, and share their PTX in the cache.
    """

    def __init__(self, items: Sequence[pytest.Item]) -> None:
        self._compile = nvrtc.ptx
        self._plans: dict[str, list[Callable[[], Plan]]] = {}
        self._texts: dict[tuple[TranslationUnit, str], str] = {}
        last: dict[str, list[Callable[[], Plan]]] = {}
        for item in items:
            mark = item.get_closest_marker("unity_build")
            if mark and not item.get_closest_marker("skip"):
                plans = last.get(item.location[0], [])
                if len(plans) % TOGETHER == 0:
                    plans = last[item.location[0]] = []
                plans.append(partial(mark.kwargs["plan"], **item.callspec.params))
                self._plans[item.nodeid] = plans

    def __call__(self, unit: TranslationUnit, arch: str) -> str:
        plans = self._plans.get(os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0], [])
        if len(plans) < 2:
            return self._compile(unit, arch)
        if (unit, arch) not in self._texts:
            kind = arch, _families(unit)
            units = [x for x, other in _units(*plans) if (other, _families(x)) == kind]
            if unit not in units:
                return self._compile(unit, arch)
            try:
                text = self._compile(together(units), arch)
            except CompileError:  # of one of them, whose own test is to fail
                return self._compile(unit, arch)
            self._texts |= dict.fromkeys(((each, arch) for each in units), text)
        return self._texts[unit, arch]


@lru_cache(8)
def _units(*plans: Callable[[], Plan]) -> list[tuple[TranslationUnit, str]]:
    """Return the different units of plans, with the architecture of each."""
    found: dict[tuple[TranslationUnit, str], None] = {}
    for plan in plans:
        with suppress(GemmError):
            found |= dict.fromkeys((step.unit, step.arch) for step in plan().steps)
    return [*found]


@cache
def _families(unit: TranslationUnit) -> frozenset[str]:
    """Return the folders of its templates, which include much the same headers."""
    return frozenset(re.findall(r'^#include "(\w+)/', unit.source, re.MULTILINE)) - {"common"}
