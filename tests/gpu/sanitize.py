"""Small unaligned problems of all kernels and auxiliary kernels, to run under a sanitizer.

``python tests/gpu/sanitize.py --build`` compiles the kernels into the cache, in parallel. Then
``compute-sanitizer --tool memcheck --report-api-errors no python tests/gpu/sanitize.py`` (or
racecheck, initcheck, synccheck) runs them. API errors are not findings: the package launches again
if no context was current, and cuda-bindings looks up functions that the driver may lack. NumPy
arrays are copied to allocations that end with their last element. The padding between rows is NaN:
initcheck takes a partial ``cp.async`` for a read of all 16 bytes. It does not see what TMA stores.
So scratch memory is NaN before its first use, and a read of what no kernel wrote gives a wrong
result; with ``--check-api-memory-access no`` it does not report copies of C to the host. The script
exits with 1 if a result is wrong. Other arguments select the cases whose names contain all of them:
``fp8``, ``grouped`` and ``batched`` select 8-bit floats, grouped GEMMs and batches of small
products, and ``2/4`` selects the second of four parts.
"""

import re
import sys
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).parents[1]))
import auxiliary_cases
import batched_cases
import epilogue_cases
import fp8_cases
import fused_cases
import grouped_cases
import pairs_cases
from auxiliary_cases import REDUCED, TYPES, check_packing, check_reduction
from cases import Case
from epilogue_cases import CASES, epilogue_case, on_gpu
from gemm_cases import (
    Builds,
    awkward_cases,
    each_tile,
    host_case,
    matrix,
    small_complex,
    small_wgmma,
)
from grouped_cases import OTHERS, WGMMA, Arrays, GroupedCase, planned
from grouped_cases import arrays as grouped_arrays
from grouped_cases import check as check_grouped

import cute_gemm as cg
from cute_gemm.problem.verify import Verdict, verify
from cute_gemm.run import memory, sequence
from cute_gemm.run.driver import checked, device_arch, entered, load_driver


def set_to_nan(pointer: int, nbytes: int, stream: int) -> None:
    """Set memory to bytes of 255, which are NaN in every type of floats."""
    result = load_driver().cuMemsetD8Async(pointer, 255, nbytes, stream)
    checked(result, "setting memory")


def upload(array: np.ndarray, device: int = 0) -> memory.DeviceBuffer:
    """Copy an array to a device as the package does, with NaN in its padding."""
    buffer = memory.allocate_like(array, device)
    with entered(device):
        set_to_nan(buffer.pointer, buffer.nbytes, 0)
    memory._copy(array, buffer, to_device=True)
    return buffer


def scratch(nbytes: int, device: int, stream: int) -> int:
    """Allocate scratch memory as the package does, and set it to NaN."""
    pointer = memory.scratch(nbytes, device, stream)
    set_to_nan(pointer, nbytes, stream)
    return pointer


for module in (memory, epilogue_cases, auxiliary_cases):
    module.upload = upload
sequence.scratch = scratch


def run(case: Case) -> Verdict:
    """Compute a case with a C that is read, and with a C of NaN that is not."""
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


def epilogues(arch: str) -> dict[str, Any]:
    """Return cases of an epilogue with an operand of its own, by name."""
    runs = (case for case in CASES if case[1] != "sm_90a" or arch == "sm_90a")
    return {"epilogue " + " ".join(map(str, case)): case for case in runs}


def check_epilogue(case: Any, arch: str) -> None:
    """Raise AssertionError if a result is wrong."""
    verdict = on_gpu(case, arch)
    assert verdict.ok, verdict


def passes(arch: str) -> dict[str, Callable[[], None]]:
    """Return checks by name: auxiliary kernels with arrays of exact size, epilogues, and others."""
    found: dict[str, Callable[[], None]] = {}
    for size, op, transposed in product(TYPES, ("NT", "TN"), (False, True)):
        name = f"pack {8 * size} bits {op}{' transposed' * transposed}"
        found[name] = partial(check_packing, size, op, transposed, arch, 0)
    for types in REDUCED:
        found[f"reduce {' '.join(types)}"] = partial(check_reduction, types, arch, 0)
    for name, case in epilogues(arch).items():
        found[name] = partial(check_epilogue, case, arch)
    for fused in fused_cases.CASES:
        if fused.kernel != "sm90_wgmma" or arch == "sm_90a":
            found[f"epilogue {fused}"] = partial(fused_cases.run, fused, "cuda")
    for many in fused_cases.MANY_ACCUMULATORS if arch == "sm_90a" else ():
        found[f"epilogue beside many sums {many}"] = partial(
            fused_cases.run_many_accumulators, many, "cuda"
        )
    for name, of_pairs in paired(arch).items():
        found[name] = partial(pairs_cases.run, *of_pairs, "cuda")
    for name, case in scaled(arch).items():
        found[name] = partial(fp8_cases.execute, case, arch, "cuda")
    for name, case in groups(arch).items():
        found[name] = partial(check_groups, case, arch)
    for seed, kind in enumerate(sorted(batched_cases.KINDS) * 4):
        case = batched_cases.drawn(seed, kind)
        found[f"batched {case}"] = partial(check_batched, case)
    return found


def check_batched(case: batched_cases.BatchedCase) -> None:
    """Raise AssertionError if a result of a batch of small products is wrong."""
    A, B, C = case.views(case.buffers())
    before, beta = C.copy(), int(case.beta) if C.dtype.kind == "i" else case.beta
    options = {"kernel": "batched", "backend": "cuda", **dict(case.options)}
    plan = cg.plan(case.op, A, B, C, **options)
    plan(A, B, C, alpha=2, beta=beta)
    verdict = verify(plan.problem, A, B, C, C=before, alpha=2, beta=beta)
    assert verdict.ok, verdict


def paired(arch: str) -> dict[str, tuple[pairs_cases.PairsCase, str]]:
    """Return cases of epilogues of pairs of columns by name, each with its kind of pairs."""
    runs = (*pairs_cases.APART, *(pairs_cases.WGMMA if arch == "sm_90a" else ()))
    both = product(runs, pairs_cases.BOTH)
    return {f"epilogue of {kind}, {case}": (case, kind) for case, kind in both}


def scaled(arch: str) -> dict[str, fp8_cases.Case]:
    """Return cases of 8-bit floats by name, with all kernels and kinds of scales."""
    every = (
        *fp8_cases.spread(),
        *fp8_cases.block_scaled(),
        *fp8_cases.k_tiles(),
        *fp8_cases.loaded(),
    )
    every += (*fp8_cases.boxed(), *fp8_cases.packed())
    takes = (case for case in every if case.kernel != "sm90_wgmma" or arch == "sm_90a")
    return {f"fp8 {case}": case for case in takes}


def groups(arch: str) -> dict[str, GroupedCase]:
    """Return grouped GEMMs by name: ragged M, N and K of each kernel, empty groups, scales."""
    sizes, kinds = (0, 1, 65, 17), [*WGMMA] if arch == "sm_90a" else []
    every = [
        GroupedCase(ragged, op, "C", sizes, (72, 40), 5, options=kind, beta=0.75)
        for kind in kinds for ragged, op in zip("MNK", ("TN", "NT", "NN"), strict=True)
    ]  # fmt: skip
    given: dict[str, Any] = {"beta": 2.0, "options": ""}
    every += [
        GroupedCase(
            ragged, op, "F", sizes, (70, 37), 5, dtype, kernel=kernel, compute=compute, **given
        )
        for kernel, dtype, compute in OTHERS
        for ragged, op in zip("MNK", ("TN", "NT", "NN"), strict=True)
    ]
    pairs = [("row", kind) for kind in grouped_cases.RAGGED]
    for ragged in "MNK":
        every += grouped_cases.scaled_cases("double_buffered", ragged, pairs)
    pairs = [*grouped_cases.BLOCK_PAIRS, *grouped_cases.BOXED_PAIRS, ("row", "row of group")]
    for ragged in "MN" if arch == "sm_90a" else "":
        every += grouped_cases.scaled_cases("sm90_wgmma", ragged, pairs)
    every += [
        case for case in grouped_cases.ZERO_TAILS
        if case.kernel != "sm90_wgmma" or arch == "sm_90a"
    ]  # fmt: skip
    for case in grouped_cases.listed_cases() if arch == "sm_90a" else ():
        if case.kernel == "sm90_wgmma" and case.ragged == "K":
            every += [*grouped_cases.lists(case, 2)]
    return {f"grouped {case}": case for case in every}


def plan_groups(case: GroupedCase, arch: str) -> cg.Plan:
    """Return the plan of a grouped GEMM."""
    return planned(case, grouped_arrays(case), backend="cpu", arch=arch)


def check_groups(case: GroupedCase, arch: str) -> None:
    """Raise AssertionError if a result is wrong."""

    def call(case: GroupedCase, given: Arrays) -> None:
        plan = planned(case, given, backend="cuda", arch=arch)
        factors = {"alpha": case.alpha, "beta": case.beta}
        plan(given.A, given.B, given.C, **factors, offsets=given.offsets, **given.operands)

    check_grouped(case, call)


def main(words: list[str]) -> int:
    """Compile the selected kernels, or run them one by one."""
    build_only = "--build" in words
    part, parts = next(
        (map(int, w.split("/")) for w in words if re.fullmatch(r"\d+/\d+", w)), (1, 1)
    )
    words = [word for word in words if word != "--build" and "/" not in word]
    arch = device_arch(0)
    chosen = [
        host_case(case)
        for case in (*awkward_cases(), *small_complex(), *each_tile(arch), *small_wgmma())
        if case.runs_on(arch) and all(word in str(case) for word in words)
    ][part - 1 :: parts]
    named = {name: one for name, one in passes(arch).items() if all(w in name for w in words)}
    small = dict([*named.items()][part - 1 :: parts])
    print(f"{len(chosen)} cases and {len(small)} other checks for {arch}", flush=True)
    if build_only:
        plans = [case.plan(arch) for case in chosen]
        for case in epilogues(arch).values():
            plans.append(epilogue_case((case[0], arch, *case[2:])).plan)
        plans += [
            fp8_cases.planned(case, arch)[0] for name, case in scaled(arch).items() if name in small
        ]
        plans += [plan_groups(case, arch) for name, case in groups(arch).items() if name in small]
        plans += [
            pairs_cases.planned(*case, "cpu", arch)[0]
            for name, case in paired(arch).items()
            if name in small
        ]
        builds = Builds(plans)
        try:
            for plan in plans:
                builds.wait(plan)
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
    for name, check in small.items():
        try:
            check()
        except AssertionError as error:
            wrong += 1
            print(f"WRONG {name}: {error}", flush=True)
    total = len(chosen) + len(small)
    print(f"{total - wrong} right, {wrong} wrong", flush=True)
    return 1 if wrong or not total else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
