"""Test ``cute_gemm.torch`` on DTensors of two GPUs, with NCCL."""

from pathlib import Path

import pytest
import torch
from test_torch_distributed import run_two_processes


def test_two_gpus_agree_with_one(tmp_path: Path) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip(f"needs two GPUs; there is {torch.cuda.device_count()}")
    run_two_processes(tmp_path, "cuda", 300)
