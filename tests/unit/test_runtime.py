"""Test the runtime without a GPU, with a fake driver that has its own memory."""

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver as cuda_driver
from fake_driver import ILLEGAL_ADDRESS, FakeDriver, install

from cute_gemm.arch import Arch
from cute_gemm.errors import CubinError, DeviceError, LaunchError, NoGpuError, ScalarError
from cute_gemm.problem.describe import from_sizes
from cute_gemm.problem.scalars import Scalar
from cute_gemm.run import driver as devices
from cute_gemm.run import launch as runtime
from cute_gemm.run import memory
from cute_gemm.toolchain.cubin import Build, Resources
from cute_gemm.toolchain.signature import Arguments, Launch, gemm_signature

without_gpu = pytest.mark.skipif(devices.why_no_gpu() is None, reason="there is a GPU")


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    yield from install(monkeypatch)


def a_build(arch: str = "sm_90a", symbol: str = "entry", static: int = 0) -> Build:
    return Build(b"cubin", symbol, arch, Resources(32, static, 0, 0, 0), 0.0, False, "")


def arguments(
    dtype: str = "float32", alpha: complex = 1, beta: complex = 0, beta_pointer: int = 0
) -> Arguments:
    """Return the arguments of a batch of two GEMMs."""
    sizes = {"m": 3, "n": 4, "k": 5, "lda": 2**33, "ldb": 7, "ldc": 8}
    problem = from_sizes("NN", dtype=dtype, **sizes)
    A, B = replace(problem.A, l=2, batch_stride=2**40), replace(problem.B, l=2)
    C = replace(problem.C, l=2, batch_stride=99)
    problem = replace(problem, l=2, A=A, B=B, C=C)
    return gemm_signature(problem.operation(4, 4, 4)).arguments(
        problem, Scalar(alpha), Scalar(beta, beta_pointer)
    )


class TestDevices:
    def test_why_no_gpu_never_raises_and_is_a_sentence(self) -> None:
        reason = devices.why_no_gpu()
        assert reason is None or len(reason) > 10

    @without_gpu
    def test_without_a_gpu(self) -> None:
        assert devices.device_count() == 0
        for call in (devices.device_name, devices.device_arch, devices.synchronize):
            with pytest.raises(NoGpuError, match="driver"):
                call(0)
        with pytest.raises(NoGpuError):
            memory.upload(np.zeros((2, 2)))
        with pytest.raises(NoGpuError):
            runtime.load(a_build())

    def fake_library(self, init: int = 0, count: int = 1, version: int = 13000) -> Any:
        def into(value: int) -> Callable[[Any], int]:
            def call(reference: Any) -> int:
                reference._obj.value = value
                return 0

            return call

        def text(code: int, reference: Any) -> int:
            reference._obj.value = b"CUDA_ERROR_NO_DEVICE"
            return 0

        return SimpleNamespace(
            cuInit=lambda flags: init,
            cuDeviceGetCount=into(count),
            cuDriverGetVersion=into(version),
            cuGetErrorName=text,
            cuGetErrorString=lambda code, reference: 1,
        )

    @pytest.mark.parametrize(
        ("about", "reason"),
        [
            ({"init": 100}, "no usable GPU (CUDA_ERROR_NO_DEVICE; CUDA_VISIBLE_DEVICES is '')"),
            ({"count": 0}, "found no GPU"),
            ({"version": 11080}, "for CUDA 11.8 and does not load cubins"),
        ],
    )
    def test_reasons(
        self, monkeypatch: pytest.MonkeyPatch, about: dict[str, int], reason: str
    ) -> None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        monkeypatch.setattr(devices, "load_libcuda", lambda: self.fake_library(**about))
        assert reason in (devices._why_no_gpu() or "")

    def test_a_child_of_who_used_it_cannot(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(devices, "load_libcuda", self.fake_library)
        monkeypatch.setattr(devices, "_forked", False)
        devices.why_no_gpu.cache_clear()
        try:
            devices._after_fork()
            assert devices.why_no_gpu() is None  # the driver was not used before the fork
            devices._after_fork()
            assert "before this process was forked" in (devices.why_no_gpu() or "")
            with pytest.raises(NoGpuError, match="start processes by multiprocessing's 'spawn'"):
                devices.checked((3,), "a launch")
        finally:
            devices.why_no_gpu.cache_clear()

    def test_a_good_driver_has_no_reason(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(devices, "load_libcuda", self.fake_library)
        assert devices._why_no_gpu() is None

    def test_properties(self, driver: FakeDriver) -> None:
        assert devices.device_name(1) == "Fake H200"
        assert devices.device_arch(1) == "sm_90a"
        assert devices.multiprocessors(1) == 132
        assert devices.total_memory(1) == 2**34
        with pytest.raises(DeviceError, match="device=2 does not exist; expected 0 to 1"):
            devices.device_name(2)
        with pytest.raises(DeviceError, match="device=-1"):
            devices.device_name(-1)

    @pytest.mark.parametrize(
        ("capability", "arch"),
        [((8, 0), "sm_80"), ((8, 9), "sm_89"), ((9, 0), "sm_90a"), ((12, 0), "sm_120a")],
    )
    def test_arch_of(self, capability: tuple[int, int], arch: str) -> None:
        assert Arch.of_device(capability) == arch
        assert Arch(arch).runs_on(capability)

    def test_a_failure_of_the_device_has_a_name(self, driver: FakeDriver) -> None:
        driver.code = ILLEGAL_ADDRESS
        with pytest.raises(LaunchError, match="waiting for device 0 failed with CUDA_ERROR 700"):
            devices.synchronize(0)
        assert driver.contexts == [0]


def test_which_context_is_current(driver: FakeDriver) -> None:
    assert not devices.is_current(0)  # no context is current
    with devices.entered(1):
        assert devices.is_current(1) and not devices.is_current(0)
    with devices.entered(0):
        assert devices.is_current(0)


@pytest.mark.parametrize(
    ("arch", "capability", "runs"),
    [
        ("sm_80", (8, 0), True), ("sm_80", (8, 9), True), ("sm_86", (8, 0), False),
        ("sm_80", (9, 0), False), ("sm_90", (9, 0), True), ("sm_90a", (10, 0), False),
        ("sm_100a", (10, 3), False), ("sm_100f", (10, 3), True), ("sm_120", (12, 1), True),
    ],
)  # fmt: skip
def test_runs_on(arch: str, capability: tuple[int, int], runs: bool) -> None:
    assert Arch(arch).runs_on(capability) is runs


class TestLaunch:
    def test_the_arguments_arrive(self, driver: FakeDriver) -> None:
        bound = runtime.load(a_build()).bind(
            Launch(7, 128, 1000), arguments(alpha=1.5, beta=-0.5, beta_pointer=2**63 + 1)
        )
        bound((2**63 + 11, 12, 13), 17)
        (seen,) = driver.launches
        assert seen["launch"] == (7, 128, 1000) and seen["grid"] == (7, 1, 1)
        assert seen["attributes"] == []
        assert seen["stream"] == 17
        assert seen["matrices"] == [2**63 + 11, 12, 13]
        assert seen["extents"] == [3, 4, 5, 2, 0, 1]
        assert seen["leading"] == [2**33, 7, 8]
        assert seen["batch"] == [2**40, 0, 99, 0, 0]
        assert seen["scalars"] == [1.5, -0.5]
        assert seen["pointers"] == [0, 2**63 + 1]

    @pytest.mark.parametrize("kind", ["complex64", "complex128"])
    def test_complex_scalars(self, driver: FakeDriver, kind: str) -> None:
        kernel = runtime.load(a_build())
        for given in ((1.5 - 2j, 3), (complex(1e60, float("nan")), 0)):
            kernel.bind(Launch(7, 128, 0), arguments(kind, *given))((1, 2, 3))
        found = [np.frombuffer(x, kind)[0] for seen in driver.launches for x in seen["bytes"]]
        assert found[:2] == [1.5 - 2j, 3] and found[3] == 0
        assert found[2].real == (np.inf if kind == "complex64" else 1e60)
        assert np.isnan(found[2].imag)

    def test_only_the_matrices_and_the_stream_change(self, driver: FakeDriver) -> None:
        bound = runtime.load(a_build()).bind(Launch(7, 128, 0), arguments(alpha=2))
        bound((1, 2, 3))
        bound((4, 5, 6), 2**47)
        first, second = driver.launches
        assert second["matrices"] == [4, 5, 6] and second["stream"] == 2**47
        changed = ("matrices", "stream")
        assert {k: v for k, v in first.items() if k not in changed} == {
            k: v for k, v in second.items() if k not in changed
        }

    @pytest.mark.parametrize(
        ("batch", "grid"),
        [(1, (7, 1, 1)), (65535, (7, 65535, 1)), (65536, (7, 65535, 2)), (0, None)],
    )
    def test_a_batch_is_layers_of_the_grid(
        self, driver: FakeDriver, batch: int, grid: tuple[int, int, int] | None
    ) -> None:
        runtime.load(a_build()).bind(Launch(7, 128, 0, batch), arguments())((1, 2, 3))
        assert [seen["grid"] for seen in driver.launches] == ([grid] if grid else [])

    def test_attributes_of_a_launch(self, driver: FakeDriver) -> None:
        launch = Launch(8, 128, 0, cluster=2, dependent=True)
        runtime.load(a_build()).bind(launch, arguments())((1, 2, 3))
        names = cuda_driver.CUlaunchAttributeID
        assert driver.launches[0]["attributes"] == [
            int(names.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION),
            int(names.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION),
        ]

    @pytest.mark.parametrize("before", [0, 0x1000, 0x1001, 0x9999])
    def test_any_context_may_be_current(self, driver: FakeDriver, before: int) -> None:
        bound = runtime.load(a_build(), 1).bind(Launch(7, 128, 0), arguments())
        driver.contexts, driver.context = [before], 0x1001
        bound((1, 2, 3))
        (seen,) = driver.launches
        assert seen["context"] == 0x1001
        assert driver.contexts == [before]

    def test_no_ctas_is_no_launch(self, driver: FakeDriver) -> None:
        runtime.load(a_build()).bind(Launch(0, 128, 0), arguments())((1, 2, 3))
        assert driver.launches == []

    def test_a_refused_launch(self, driver: FakeDriver) -> None:
        bound = runtime.load(a_build()).bind(Launch(1, 128, 0), arguments())
        driver.contexts, driver.code = [0x1000], ILLEGAL_ADDRESS
        with pytest.raises(LaunchError, match="launching entry failed: CUDA_ERROR 700"):
            bound((1, 2, 3))
        assert len(driver.launches) == 1 and driver.contexts == [0x1000]

    def test_shared_memory_is_asked_for_once(self, driver: FakeDriver) -> None:
        kernel = runtime.load(a_build(static=1024))
        for smem in (0, 47 * 1024, 47 * 1024 + 1, 100_000, 60_000, 100_000):
            kernel.bind(Launch(1, 128, smem), arguments())
        assert driver.smem == [47 * 1024 + 1, 100_000]

    @pytest.mark.parametrize(
        ("launch", "message"),
        [
            (Launch(2**31, 128, 0), "cannot have 2147483648 CTAs"),
            (Launch(1, 128, 0, 65535**2 + 1), "CTAs for each of 4294836226 matrices"),
            (Launch(1, 1025, 0), "cannot have 1025 threads per CTA; at most 1024"),
            (Launch(1, 128, 232_448), "232449 bytes of shared memory per CTA; at most 232448"),
        ],
    )
    def test_limits(self, driver: FakeDriver, launch: Launch, message: str) -> None:
        with pytest.raises(LaunchError, match=message):
            runtime.load(a_build(static=1)).bind(launch, arguments())

    def test_one_cubin_is_loaded_once_per_device(self, driver: FakeDriver) -> None:
        assert runtime.load(a_build()) is runtime.load(a_build())
        assert runtime.load(a_build(), 1) is not runtime.load(a_build(), 0)

    def test_kernels_are_unloaded_in_their_context(self, driver: FakeDriver) -> None:
        kernels = [runtime.load(a_build(), device) for device in (0, 1)]
        runtime.unload()
        assert sorted(driver.unloaded) == [("module", 0x1000), ("module", 0x1001)]
        assert runtime.load(a_build()) not in kernels

    def test_cubin_for_another_arch(self, driver: FakeDriver) -> None:
        with pytest.raises(CubinError, match="is for sm_80, and device 0 .* is sm_90a"):
            runtime.load(a_build("sm_80"))
        driver.load_code = 209
        with pytest.raises(CubinError, match="refuses the sm_90 cubin of entry: CUDA_ERROR 209"):
            runtime.load(a_build("sm_90"))
        assert driver.contexts == [0]

    def test_missing_symbol(self, driver: FakeDriver) -> None:
        with pytest.raises(LaunchError, match="looking up other in its cubin"):
            runtime.load(a_build(symbol="other"))


class TestScalars:
    def bound(self, scalar: str, alpha: Any, beta: Any = 0) -> None:
        given = arguments({"int32": "int8"}.get(scalar, scalar), alpha, beta)
        runtime.load(a_build()).bind(Launch(1, 1, 0), given)((1, 2, 3))

    def test_types(self, driver: FakeDriver) -> None:
        self.bound("float64", 0.1, np.float64(1e300))
        assert driver.launches[-1]["doubles"] == [0.1, 1e300]
        self.bound("int32", -3, np.int64(5))
        assert driver.launches[-1]["ints"] == [-3, 5]
        self.bound("float32", np.float16(0.5), True)
        assert driver.launches[-1]["scalars"] == [0.5, 1.0]

    def test_what_float32_cannot_hold(self, driver: FakeDriver) -> None:
        self.bound("float32", 1e300, -1e300)
        assert driver.launches[-1]["scalars"] == [np.inf, -np.inf]
        self.bound("float32", np.nan, -np.inf)
        alpha, beta = driver.launches[-1]["scalars"]
        assert np.isnan(alpha)
        assert beta == -np.inf

    @pytest.mark.parametrize("value", [2**31, 0.5, "1"])
    def test_what_int32_cannot_hold(self, driver: FakeDriver, value: Any) -> None:
        with pytest.raises(ScalarError, match="beta="):
            self.bound("int32", 1, value)


def test_events_tell_the_time_between_them(driver: FakeDriver) -> None:
    bound = runtime.load(a_build()).bind(Launch(1, 1, 0), arguments())
    marks = [runtime.Event() for _ in range(4)]
    for mark in marks:
        mark.record()
        bound((1, 2, 3))
    marks[-1].synchronize()
    assert [b.since(a) for a, b in zip(marks, marks[1:], strict=False)] == [1.0, 3.0, 5.0]


def test_nothing_of_cuda_is_imported_before_it_is_needed() -> None:
    script = (
        "import sys; before = set(sys.modules);"  # CUDA 12 imports an empty package at startup
        "import cute_gemm.toolchain.nvrtc, cute_gemm.toolchain.cache;"
        "import cute_gemm.run.launch, cute_gemm.commands.doctor;"
        "new = set(sys.modules) - before;"
        "print(sorted(n for n in new if n.split('.')[0] in ('cuda', 'cutlass_library')))"
    )
    root = str(Path(runtime.__file__).parent.parent)
    answer = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": root}, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    assert answer.stdout.strip() == "[]"


def test_a_call_tells_the_tensor_maps(driver: FakeDriver) -> None:
    """Test that the addresses of tensor maps are at the end of the argument table."""
    from cute_gemm.kernels.tma import tma_signature

    class Maps:
        memory = ctypes.create_string_buffer(3 * 128)
        places = tuple(range(ctypes.addressof(memory), ctypes.addressof(memory) + 384, 128))

        def set_addresses(self, addresses: tuple[int, ...]) -> None:
            for place, address in zip(self.places, addresses, strict=True):
                ctypes.memset(place, address // 256, 128)

    problem = from_sizes("NN", m=64, n=64, k=64, dtype="float16")
    given = tma_signature(problem.operation(16, 16, 16)).arguments(problem, Scalar(1), Scalar(0))
    kernel = runtime.load(a_build())
    bound = kernel.bind(Launch(1, 384, 0, 1, 2, True), given, Maps())  # type: ignore[arg-type]
    for addresses in ((256, 512, 768), (512, 256, 1024)):
        bound(addresses, 7)
        last = driver.launches[-1]
        assert (last["matrices"], last["extents"][:3]) == ([*addresses], [64] * 3)
        assert last["attributes"] == [4, 6]  # cluster, programmatic stream serialization
        for number, address in enumerate(addresses, len(given.table) - 3):
            at = given.table[number]
            assert at is not None and ctypes.string_at(at, 128) == bytes([address // 256]) * 128
