"""A fake GPU whose kernels take given times, and a folder for tuned configs."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fake_gpu
import pytest

import cute_gemm as cg
from cute_gemm.errors import CompileError
from cute_gemm.gpus.table import gpu as gpu_called
from cute_gemm.kernels import base
from cute_gemm.kernels.candidate import Candidate
from cute_gemm.plan import reused, select, tuned
from cute_gemm.plan.executable import Executable
from cute_gemm.problem.parts.packing import Algorithm

SQUARE: dict[str, Any] = {"m": 512, "n": 512, "k": 512, "dtype": "float16"}
FILE = "tuned-NVIDIA-H200.json"


class Device:
    """The GPU, the time of each config, and errors of configs that fail to compile or launch."""

    def __init__(self, gpu: fake_gpu.FakeGpu) -> None:
        self.gpu = gpu
        self.milliseconds: dict[tuple[str, Algorithm], float] = {}
        self.errors: dict[str, Exception] = {}  # errors of the compilation or the launch, by config
        self.ran: list[tuple[str, tuple[int, ...]]] = []

    def takes(self, candidate: Candidate, milliseconds: float) -> None:
        self.milliseconds[candidate.config.name, candidate.algorithm] = milliseconds

    def build(self, config: Any) -> Any:
        error = self.errors.get(config.name)
        if isinstance(error, CompileError):
            raise error
        return SimpleNamespace(arch="sm_90a")

    def bind(self, executable: Executable, *_: Any) -> Callable[..., None]:
        symbol = executable.config.name
        took = self.milliseconds.get((symbol, executable.algorithm), 2.0)

        def run(addresses: Sequence[int], stream: int = 0) -> None:
            if symbol in self.errors:
                raise self.errors[symbol]
            self.gpu.now += took
            self.ran.append((symbol, tuple(addresses)))

        return run


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of tuned configs."""
    monkeypatch.setenv("CUTE_GEMM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(tuned, "_tuned", {})
    return tmp_path / "cache"


@pytest.fixture
def device(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    found = Device(fake_gpu.install(monkeypatch))
    monkeypatch.setattr(select, "gpu_of_device", lambda device: gpu_called("H200"))
    monkeypatch.setattr(base.Compiled, "build", lambda kernel, config, *_: found.build(config))
    monkeypatch.setattr(Executable, "bind", lambda made, *given: found.bind(made, *given))
    monkeypatch.setattr(reused, "plans", type(reused.plans)(64))
    monkeypatch.setattr(reused, "recent_calls", type(reused.recent_calls)(64))
    yield found
    assert not found.gpu.memory  # all memory was freed


def anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clear the tuned configs in memory, as in a new process."""
    monkeypatch.setattr(tuned, "_tuned", {})


def fastest(device: Device, number: int, op: str = "TN", **given: Any) -> Candidate:
    """Make a candidate the fastest, and return it."""
    found = cg.plan(op, **(given or SQUARE)).candidates()[number]
    device.takes(found, 1.0)
    return found
