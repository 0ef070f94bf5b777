"""Small awkward problems of every kernel x dtype x op x copy, for a sanitizer to watch.

``python tests/gpu/sanitize.py --build`` compiles their kernels into the cache, in parallel; then
``compute-sanitizer --tool memcheck python tests/gpu/sanitize.py`` (or ``--tool racecheck``) runs
them. NumPy arrays only, which are copied to allocations that end with their last element. Exits
with 1 if a result is wrong; words on the command line choose the cases whose names contain all of
them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from gemm_cases import LADDER, OPS, Builds, Case, Place, narrow, small_cases, types_of, wide

import cute_gemm as cg
from cute_gemm.problem.dtypes import DTYPES
from cute_gemm.problem.verify import Verdict, verify
from cute_gemm.run.driver import device_arch


def cases() -> list[Case]:
    """Element-wise accesses, and 16-byte ones that reach beyond the end of a column."""
    found = []
    for case in (*small_cases([narrow], m=33, n=65, k=47), *small_cases([wide])):
        if case.widths[0] == 16 and case.kernel == "sm80_pipeline":
            case = replace(case, m=33, n=72, k=47)
        found.append(case)
    found += ladder()
    return [*found, *(replace(case, l=3) for case in found[::8])]


def ladder() -> Iterator[Case]:
    """A ragged case of each tutorial kernel, and both stagings and other tiles of the last."""
    sizes = {"m": 33, "n": 70, "k": 47}
    for number, kernel in enumerate(LADDER):
        name, op = types_of(kernel)[number % len(types_of(kernel))], OPS[number % 4]
        yield replace(narrow(kernel, name, op), **sizes)
        yield replace(wide(kernel, types_of(kernel)[0], op, None, "FC"[number % 2]), **sizes)
    for name in ("float32", "float16"):
        for op in ("NN", "TT"):  # one operand by cp.async, the other through registers
            case = replace(wide("double_buffered", name, op, None, "F"), **sizes)
            yield case
            yield replace(case, more=(("skew", "xor"),))
            yield replace(case, more=(("staging", "registers"),))
            if name == "float32":
                yield replace(case, widths=(4, 16, 16))
                yield replace(case, more=(("tile", (128, 128, 8)),))
                yield replace(case, more=(("tile", (128, 64, 16)), ("thread_tile", (8, 8))))


def host_case(case: Case) -> Case:
    """The case with the addresses that copies have: aligned, whatever the array's is."""
    return _OnHost(**{name: getattr(case, name) for name in case.__dataclass_fields__})


class _OnHost(Case):
    def _place(self, *given: Any) -> Place:
        return replace(super()._place(*given), offset=0)


def matrix(place: Place, dtype: str, fill: Callable[[tuple[int, ...]], np.ndarray]) -> np.ndarray:
    """A matrix in a buffer of its leading dimension, or a batch of them."""
    rows, columns = place.matrix if place.order == "C" else place.matrix[::-1]
    buffer = np.zeros((place.l, rows, place.ld), DTYPES[dtype].numpy)
    view = buffer[..., :columns] if place.order == "C" else buffer[..., :columns].swapaxes(1, 2)
    view[...] = fill(view.shape)
    return view if place.l != 1 else view[0]


def run(case: Case) -> Verdict:
    """Compute one case with a C that is read, and one with a C of NaN that is not."""
    random = np.random.default_rng(len(str(case)))
    integers = case.t.integer

    def fill(shape: tuple[int, ...]) -> np.ndarray:
        return random.integers(-128, 128, shape) if integers else random.standard_normal(shape)

    a, b, c = case.places
    A, B = matrix(a, case.t.dtype, fill), matrix(b, case.t.dtype, fill)
    C = matrix(c, case.t.out, fill)
    old, (alpha, beta) = C.copy(), (-7, 1) if integers else (-0.75, 0.5)
    cg.gemm(case.op, A, B, C, alpha=alpha, beta=beta, backend="cuda", **case.options)
    verdict = verify(case.problem, A, B, C, C=old, alpha=alpha, beta=beta)
    if verdict.ok:
        C[...] = 99 if integers else np.nan
        cg.gemm(case.op, A, B, C, backend="cuda", **case.options)
        verdict = verify(case.problem, A, B, C)
    return verdict


def main(words: list[str]) -> int:
    """Build the chosen kernels, or run them one by one."""
    build_only = "--build" in words
    chosen = [
        host_case(case)
        for case in cases()
        if all(word in str(case) for word in words if word != "--build")
    ]
    arch = device_arch(0)
    print(f"{len(chosen)} cases for {arch}", flush=True)
    if build_only:
        builds = Builds(case.plan(arch) for case in chosen)
        try:
            for case in chosen:
                builds.wait(case.plan(arch))
        finally:
            builds.close()
        print(f"{len(builds)} kernels built", flush=True)
        return 0
    wrong = 0
    for case in chosen:
        verdict = run(case)
        wrong += not verdict.ok
        if not verdict.ok:
            print(f"WRONG {case}: {verdict}", flush=True)
    print(f"{len(chosen) - wrong} right, {wrong} wrong", flush=True)
    return 1 if wrong or not chosen else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
