"""Test occupancy against NVIDIA's cuda_occupancy.h and hand-derived cases; waves by counting."""

import shutil
import subprocess
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cute_gemm.arch import MULTIPROCESSORS
from cute_gemm.gpus.occupancy import occupancy, waves

CASES = [
    (cc, threads, registers, shared)
    for cc, threads, registers, shared in product(
        MULTIPROCESSORS,
        (32, 64, 96, 128, 160, 256, 288, 384, 512, 544, 1024),
        (0, 16, 24, 32, 40, 41, 64, 72, 96, 128, 168, 232, 255),
        (0, 1, 1024, 3968, 16384, 49152, 65536, 98304, 101376, 131072, 166912, 232448),
    )
    if shared <= MULTIPROCESSORS[cc].shared_per_cta
]

_ORACLE = """
#include <stdio.h>
#include "cuda_occupancy.h"
int main(void) {
  int cc, threads, sm_threads, optin;
  unsigned long shared, sm_shared;
  int registers;
  while (scanf("%d %d %d %lu %d %lu %d", &cc, &threads, &registers, &shared, &sm_threads,
               &sm_shared, &optin) == 7) {
    struct cudaOccDeviceProp p = {0};
    struct cudaOccFuncAttributes a = {0};
    struct cudaOccDeviceState s = {0};
    struct cudaOccResult r = {0};
    p.computeMajor = cc / 10; p.computeMinor = cc % 10;
    p.maxThreadsPerBlock = 1024; p.maxThreadsPerMultiprocessor = sm_threads;
    p.regsPerBlock = p.regsPerMultiprocessor = 65536;
    p.warpSize = 32; p.numSms = 1;
    p.sharedMemPerBlock = 49152; p.sharedMemPerBlockOptin = optin;
    p.sharedMemPerMultiprocessor = sm_shared; p.reservedSharedMemPerBlock = 1024;
    a.maxThreadsPerBlock = 1024; a.numRegs = registers;
    a.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN; a.maxDynamicSharedSizeBytes = shared;
    a.numBlockBarriers = 1;
    s.carveoutConfig = SHAREDMEM_CARVEOUT_DEFAULT;
    int error = cudaOccMaxActiveBlocksPerMultiprocessor(&r, &p, &a, &s, threads, shared);
    printf("%d %d %d %d %d %d\\n", error, r.activeBlocksPerMultiprocessor, r.blockLimitWarps,
           r.blockLimitBlocks, r.blockLimitSharedMem, r.blockLimitRegs);
  }
  return 0;
}
"""


def test_the_rules_are_those_of_cuda_occupancy_h(tmp_path):
    from cute_gemm.toolchain.headers import cuda_major, include_paths

    cc = shutil.which("cc")
    headers = [p for p in include_paths() if (p / "cuda_occupancy.h").is_file()]
    if cc is None or not headers:
        pytest.skip("needs a C compiler and cuda_occupancy.h")
    source, program = tmp_path / "oracle.c", tmp_path / "oracle"
    source.write_text(_ORACLE)
    subprocess.run([cc, "-w", f"-I{headers[0]}", source, "-o", program], check=True)
    cases = [case for case in CASES if case[0] != 110 or cuda_major() > 12]  # from CUDA 13 on
    asked = "\n".join(
        f"{cc} {threads} {registers} {shared} {sm.threads} {sm.shared} {sm.shared_per_cta}"
        for cc, threads, registers, shared in cases
        for sm in (MULTIPROCESSORS[cc],)
    )
    answers = subprocess.run([program], input=asked, capture_output=True, text=True, check=True)
    lines = answers.stdout.splitlines()
    assert len(lines) == len(cases) > 10_000
    for case, line in zip(cases, lines, strict=True):
        error, ctas, by_warps, by_ctas, by_shared, by_registers = map(int, line.split())
        assert error == 0, case
        found = occupancy(MULTIPROCESSORS[case[0]], *case[1:])
        assert found.ctas_per_sm == ctas, case
        if found.limits["registers"]:  # the header stops at the first resource of which none fits
            assert found.limits["warps"] == by_warps, case
            assert found.limits["CTAs"] == by_ctas, case
            assert found.limits["shared memory"] == by_shared, case
            if case[2]:
                assert found.limits["registers"] == by_registers, case


@pytest.mark.parametrize(
    ("cc", "threads", "registers", "shared", "ctas", "limiter"),
    [
        (80, 256, 128, 0, 2, ("registers",)),
        (80, 128, 255, 0, 2, ("registers",)),
        (80, 1024, 32, 0, 2, ("warps", "registers")),
        (86, 1024, 32, 0, 1, ("warps",)),
        (80, 32, 16, 0, 32, ("CTAs",)),
        (86, 32, 16, 0, 16, ("CTAs",)),
        (89, 32, 16, 0, 24, ("CTAs",)),
        (90, 384, 168, 200 * 1024, 1, ("shared memory", "registers")),
        (80, 128, 96, 81 * 1024, 2, ("shared memory",)),  # 2 x (81 + 1) KiB is all of 164
        (80, 128, 96, 81 * 1024 + 1, 1, ("shared memory",)),
        (80, 96, 168, 0, 4, ("registers",)),  # 3 warps; 12 of 5376 registers fit in 4 x 16384
        (80, 160, 232, 0, 1, ("registers",)),  # 5 warps of 7424: 8 fit
        (80, 288, 200, 0, 0, ("registers",)),  # 9 warps of 6400: 8 fit
        (80, 128, None, 0, 16, ("warps",)),
    ],
)
def test_by_hand(cc, threads, registers, shared, ctas, limiter):
    found = occupancy(MULTIPROCESSORS[cc], threads, registers, shared)
    assert (found.ctas_per_sm, found.limiter) == (ctas, limiter)
    assert found.warps_per_sm == ctas * -(-threads // 32)
    assert found.fraction == found.warps_per_sm / found.max_warps
    assert found.registers_known == (registers is not None)


@pytest.mark.parametrize(
    ("case", "limiter"),
    [
        ((80, 1056, 16, 0), "warps"),
        ((80, 128, 256, 0), "registers"),
        ((80, 128, 16, MULTIPROCESSORS[80].shared_per_cta + 1), "shared memory"),
    ],
)
def test_what_cannot_be_launched(case, limiter):
    found = occupancy(MULTIPROCESSORS[case[0]], *case[1:])
    assert (found.ctas_per_sm, found.fraction, found.limiter) == (0, 0.0, (limiter,))


def test_bad_numbers():
    for case in ((80, 0, 16, 0), (80, 32, -1, 0), (80, 32, 16, -1)):
        with pytest.raises(ValueError, match="expected"):
            occupancy(MULTIPROCESSORS[case[0]], *case[1:])


@given(st.integers(0, 3000), st.integers(1, 8), st.integers(1, 150))
def test_waves_by_counting(grid, ctas, sms):
    left, full, tail = grid, 0, 0
    while left >= ctas * sms:
        left, full = left - ctas * sms, full + 1
    tail = left
    found = waves(grid, ctas * sms)
    assert (found.full, found.tail_ctas) == (full, tail)
    assert found.tail_fraction == tail / (ctas * sms)
    assert found.waves == pytest.approx(full + tail / (ctas * sms))
    rounds = full + bool(tail)
    assert found.efficiency == pytest.approx(found.waves / rounds if rounds else 1.0)


def test_waves_of_nothing_resident():
    for case in ((1, 0), (-1, 1)):
        with pytest.raises(ValueError, match="expected"):
            waves(*case)
