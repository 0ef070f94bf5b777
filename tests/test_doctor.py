from __future__ import annotations

from pathlib import Path

import pytest

from cute_gemm.commands import doctor
from cute_gemm.commands.doctor import Check, checks
from cute_gemm.errors import HeaderError
from cute_gemm.run import driver as devices
from cute_gemm.toolchain import headers
from cute_gemm.toolchain import nvrtc as compiler
from cute_gemm.toolchain.headers import CudaHeaders


def named(name: str) -> Check:
    return next(check for check in checks() if check.name.startswith(name))


def test_this_installation_is_well() -> None:
    found = checks()
    assert [check.name for check in found if check.ok is False] == []
    assert all(check.found for check in found)
    names = [check.name for check in found]
    for name in ("Python", "templates", "CUTLASS headers", "CUDA headers", "CRT headers", "CCCL"):
        assert name in names
    assert named("NVRTC").found.startswith(compiler.loaded_nvrtc_version())
    assert named("CUTLASS").found.startswith("4.2.0")
    assert named("CUDA headers").found.startswith("13.0")
    assert named("CCCL").found.startswith("3.0.")


def test_what_is_not_good_has_a_mend() -> None:
    assert all(check.mend for check in checks() if not check.ok)


def planted(root: Path, cccl: str) -> CudaHeaders:
    version = root / "cccl" / "cuda" / "std" / "__cccl" / "version.h"
    version.parent.mkdir(parents=True)
    version.write_text(f"#pragma once\n#define CCCL_VERSION {cccl}\n")
    (root / "cuda_runtime_api.h").write_text("#define CUDART_VERSION  13020\n")
    return CudaHeaders("a test", root, None, root / "cccl")


@pytest.mark.parametrize(
    ("number", "ok"),
    [("3000001", True), ("3001004", True), ("3002000", False), ("3003002", False)],
)
def test_the_bound_on_cccl(
    number: str, ok: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = planted(tmp_path, number)
    monkeypatch.setattr(doctor, "cuda_headers", lambda: found)
    check = named("CCCL")
    assert check.ok is ok
    assert check.found.startswith(f"{number[0]}.{int(number[1:4])}.")
    assert ("nvidia-cuda-cccl==13.0.*" in check.mend) is not ok


def test_headers_of_another_release_than_nvrtc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = planted(tmp_path, "3000001")
    monkeypatch.setattr(doctor, "cuda_headers", lambda: found)
    check = named("NVRTC")
    assert check.ok is None
    assert "headers are of 13.2, NVRTC is of 13.0" in check.mend
    assert named("CRT").ok is False
    assert "nvidia-cuda-crt" in named("CRT").mend


def test_nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise HeaderError("NVRTC cannot be loaded")

    monkeypatch.setattr(headers, "package_dirs", lambda name: [])
    monkeypatch.setattr(doctor, "cuda_headers", lambda: None)
    monkeypatch.setattr(compiler, "loaded_nvrtc_version", missing)
    for name in ("CUTLASS", "CUDA headers", "CRT", "CCCL", "NVRTC"):
        check = named(name)
        assert check.ok is False, name
        assert "pip install" in check.mend, name


def test_no_gpu_is_no_illness(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "why_no_gpu", lambda: "there is no NVIDIA driver")
    monkeypatch.setattr(devices, "driver_version", lambda: None)
    assert (named("GPU").ok, named("driver").ok) == (None, None)


def test_an_old_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "driver_version", lambda: "12.4")
    assert named("driver").ok is False
    assert "driver for CUDA 13" in named("driver").mend


def test_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "why_no_gpu", lambda: None)
    monkeypatch.setattr(devices, "device_count", lambda: 2)
    monkeypatch.setattr(devices, "compute_capability", lambda device: (9 - 2 * device, 0))
    monkeypatch.setattr(devices, "device_name", lambda device: "Fake H200")
    monkeypatch.setattr(devices, "total_memory", lambda device: 2**37)
    monkeypatch.setattr(devices, "multiprocessors", lambda device: 132)
    first, second = (check for check in checks() if check.name.startswith("GPU"))
    assert (first.name, first.ok) == ("GPU 0", True)
    assert first.found == "Fake H200, compute capability 9.0, 128 GiB, 132 multiprocessors"
    assert second.ok is None
    assert "8.0 or higher" in second.mend


def test_a_cache_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("CUTE_GEMM_CACHE_DIR", str(tmp_path / "file"))
    check = named("cache")
    assert check.ok is None
    assert "CUTE_GEMM_CACHE_DIR" in check.mend


def test_a_look_that_breaks_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RuntimeError("what")

    monkeypatch.setattr(doctor, "templates_path", broken)
    assert named("templates") == Check("templates", False, "RuntimeError: what")


def test_programs_that_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without nvdisasm and Nsight Compute only the commands that need them fail."""
    import shutil

    from cuda import pathfinder

    def place(name: str, *_: object, **__: object) -> str:
        return f"/opt/tools/{Path(name).name}"

    monkeypatch.setattr(pathfinder, "find_nvidia_binary_utility", lambda name: None)
    monkeypatch.setattr(shutil, "which", place)
    for name, path in (("nvdisasm", "/opt/tools/nvdisasm"), ("Nsight Compute", "/opt/tools/ncu")):
        assert (named(name).ok, named(name).found) == (True, path)
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    assert (named("nvdisasm").ok, named("Nsight Compute").ok) == (None, None)
    assert "pip install 'cute-gemm[sass]'" in named("nvdisasm").mend
