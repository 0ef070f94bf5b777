"""CUTLASS's iterators, run on the device, touch the shared memory that Python says."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor

import numpy as np
import pytest
from cutlass_traces import SECTION, SECTIONS, check, configs, unit

from cute_gemm.kernels.cutlass.config import CutlassUniversalConfig
from cute_gemm.problem.problem import from_sizes
from cute_gemm.problem.scalars import ONE, ZERO
from cute_gemm.run.launch import load
from cute_gemm.run.memory import download, upload
from cute_gemm.toolchain.cubin import Build
from cute_gemm.toolchain.nvrtc import build
from cute_gemm.toolchain.signature import GEMM, Launch

pytestmark = pytest.mark.gpu

CONFIGS = {config.name: config for config in configs()}


@pytest.fixture(scope="module")
def traces(arch: str) -> Iterator[dict[str, Future[Build]]]:
    """Every trace, compiled by processes of their own."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(16, len(os.sched_getaffinity(0))), context) as pool:
        yield {name: pool.submit(build, unit(config), arch) for name, config in CONFIGS.items()}
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_offsets(config: CutlassUniversalConfig, traces: dict[str, Future[Build]]) -> None:
    kernel = load(traces[config.name].result())
    out = np.full((SECTIONS, SECTION), -2, np.int32)
    nothing = from_sizes("NN", m=0, n=0, k=0, dtype="float32")
    arguments = GEMM.arguments(nothing, ONE, ZERO)
    launch = kernel.bind(Launch(1, config.threads, config.smem), arguments)
    with upload(out) as memory:
        launch(memory.pointer, 0, 0)
        download(memory, out)
    check(config, out)
