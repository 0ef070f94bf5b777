import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cute_gemm.commands import cli, doctor
from cute_gemm.commands.doctor import Check, checks
from cute_gemm.errors import HeaderError
from cute_gemm.run import driver as devices
from cute_gemm.toolchain import headers
from cute_gemm.toolchain import nvrtc as compiler
from cute_gemm.toolchain.headers import CudaHeaders


@pytest.fixture(params=[12, 13])
def major(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Set the CUDA release of the bindings."""
    for module in (headers, doctor, compiler):
        monkeypatch.setattr(module, "cuda_major", lambda: request.param)
    return request.param


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
    cuda, cccl = {12: ("12.", "2."), 13: ("13.0", "3.0.")}[headers.cuda_major()]
    assert named("CUDA headers").found.startswith(cuda)
    assert named("CCCL").found.startswith(cccl)


def test_what_is_not_good_has_a_fix() -> None:
    assert all(check.fix for check in checks() if not check.ok)


def planted(root: Path, cccl: str) -> CudaHeaders:
    version = root / "cccl" / "cuda" / "std" / "__cccl" / "version.h"
    version.parent.mkdir(parents=True)
    version.write_text(f"#pragma once\n#define CCCL_VERSION {cccl}\n")
    (root / "cuda_runtime_api.h").write_text("#define CUDART_VERSION  13020\n")
    return CudaHeaders("a test", root, None, root / "cccl")


@pytest.mark.parametrize(
    ("number", "ok"), [("3000001", True), ("3001004", True), ("3002000", False), ("3003002", False)]
)
def test_the_bound_on_cccl(
    number: str, ok: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = planted(tmp_path, number)
    monkeypatch.setattr(doctor, "cuda_headers", lambda: found)
    check = named("CCCL")
    assert check.ok is ok
    assert check.found.startswith(f"{number[0]}.{int(number[1:4])}.")
    assert (headers.install("cccl", how="")[1:] in check.fix) is not ok


def test_headers_of_another_release_than_nvrtc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = planted(tmp_path, "3000001")
    monkeypatch.setattr(doctor, "cuda_headers", lambda: found)
    check = named("NVRTC")
    assert check.ok is None
    assert f"headers are 13.2 and NVRTC is {compiler.loaded_nvrtc_version()}" in check.fix
    assert named("CRT").ok is False


def test_wheels_are_named_by_the_release_of_the_bindings(
    major: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "cuda_headers", lambda: None)
    wheels = {"runtime": "runtime", "CRT": "crt", "CCCL": "cccl"}
    if major == 12:
        wheels = {"runtime": "runtime-cu12", "CRT": "nvcc-cu12", "CCCL": "cccl-cu12"}
    release = {12: "12.9", 13: "13.0"}[major]
    fixes = named("CUDA headers").fix, named("CRT").fix, named("CCCL").fix
    for wheel, fix in zip(wheels.values(), fixes, strict=True):
        assert f'"nvidia-cuda-{wheel}=={release}.*"' in fix


@pytest.mark.parametrize(
    ("bindings", "python", "ok"),
    [("13.4.4", "13.4.4", True), ("12.9.10", "12.9.10", True), ("13.0.3", "12.9.10", None),
     ("12.8.0", "12.8.0", None), ("13.0.3", "12.6.0", None)],
)  # fmt: skip
def test_packages_of_cuda_python_that_do_not_fit(
    bindings: str, python: str, ok: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = {"cuda-bindings": bindings, "cuda-core": "1.2.2", "cuda-python": python}
    monkeypatch.setattr("importlib.metadata.version", versions.__getitem__)
    check = named("CUDA Python")
    assert check.ok is ok
    assert ("cuda-bindings>=" in check.fix) is not ok


def test_nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise HeaderError("NVRTC cannot be loaded")

    monkeypatch.setattr(headers, "package_dirs", lambda name: [])
    monkeypatch.setattr(doctor, "cuda_headers", lambda: None)
    monkeypatch.setattr(compiler, "loaded_nvrtc_version", missing)
    for name in ("CUTLASS", "CUDA headers", "CRT", "CCCL", "NVRTC"):
        check = named(name)
        assert check.ok is False, name
        assert "pip install" in check.fix, name


def test_no_gpu_is_no_illness(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "why_no_gpu", lambda: "there is no NVIDIA driver")
    monkeypatch.setattr(devices, "driver_version", lambda: None)
    assert (named("GPU").ok, named("driver").ok) == (None, None)


@pytest.mark.parametrize(
    ("nvrtc", "driver", "ok", "least"),
    [("13.0.88", "12.4", False, "580.65.06"), ("13.0.88", "13.1", True, "580.65.06"),
     ("12.9.86", "12.0", True, "525.60.13"), ("12.9.86", "11.8", False, "525.60.13")],
)  # fmt: skip
def test_the_least_driver(
    nvrtc: str, driver: str, ok: bool, least: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "driver_version", lambda: driver)
    monkeypatch.setattr(compiler, "nvrtc_version", lambda: nvrtc)
    check = named("driver")
    assert check.ok is ok and least in check.found
    assert ok or least in check.fix
    assert ("cute-gemm[cu12]" in check.fix) is (not ok and nvrtc > "13")


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
    assert "8.0 or higher" in second.fix


def test_a_cache_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("CUTE_GEMM_CACHE_DIR", str(tmp_path / "file"))
    check = named("cache")
    assert check.ok is None
    assert "CUTE_GEMM_CACHE_DIR" in check.fix


def test_templates_are_counted_against_those_that_are_included(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test that included templates are found by following includes, without a fixed list."""
    root = tmp_path / "templates"
    shutil.copytree(headers.templates_path(), root)
    files = len(list(root.rglob("*.cuh")))
    monkeypatch.setattr(doctor, "templates_path", lambda: root)
    assert named("templates") == Check("templates", True, f"{files} files in {root}")
    for name in ("simt/naive", "common/grids", "sm80/proof", "sm90/epilogue", "auxiliary/reduce"):
        (root / f"{name}.cuh").unlink()
    missing = "epilogue.cuh, grids.cuh, naive.cuh, proof.cuh, reduce.cuh"
    said = f"5 files missing in {root}: {missing}"
    assert named("templates") == Check("templates", False, said, "reinstall cute-gemm")


def test_a_look_that_breaks_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RuntimeError("what")

    monkeypatch.setattr(doctor, "templates_path", broken)
    assert named("templates") == Check("templates", False, "RuntimeError: what")


def test_programs_that_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Test that only commands that need nvdisasm or Nsight Compute fail without them."""
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
    assert "pip install 'cute-gemm[sass]'" in named("nvdisasm").fix


# -- missing modules --------------------------------------------------------------------------

#: A program for a new process that hides modules and then runs ``cute-gemm``.
WITHOUT = """
import sys
gone, words = sys.argv[1].split(","), sys.argv[2:]
class Gone:
    def find_spec(self, name, path=None, target=None):
        if any(name == one or name.startswith(one + ".") for one in gone):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Gone())
from cute_gemm.commands.cli import main
sys.exit(main(words))
"""
TOY = ("-m", "8", "-n", "8", "-k", "8", "--arch", "sm_80", "--kernel", "naive")


def without(gone: str, *words: str, place: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT, gone, *words], capture_output=True, text=True, check=False,
        env=os.environ | {"CUTE_GEMM_CACHE_DIR": str(place)},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("gone", "package", "words"),
    [
        ("pycute", "nvidia-cutlass==4.2.0.0", ("kernels",)),
        ("cutlass_library", "nvidia-cutlass==4.2.0.0", ("compile", "TN", *TOY)),
        ("numpy", "numpy", ("run", "TN", "--json")),
        ("rich", "rich", ("analyze", "TN", *TOY)),
        ("cuda.bindings", "cuda-bindings", ("compile", "TN", *TOY)),
        ("cuda.core", "cuda-core", ("compile", "TN", *TOY)),
        ("cuda.pathfinder", "cuda-pathfinder", ("emit", "TN", *TOY, "--show", "ptx")),
    ],
)
def test_without_a_package_there_is_the_doctor(
    gone: str, package: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    done = without(gone, "doctor", "--json", place=tmp_path)
    assert (done.returncode, done.stderr) == (1, "")
    listed = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert listed["Python packages"]["ok"] is False
    assert re.search(f'pip install "{package}[<>="]', listed["Python packages"]["fix"])
    assert all(check["fix"] for check in listed.values() if not check["ok"])

    done = without(gone, *words, place=tmp_path)
    assert done.returncode == 2
    [line] = [line for line in done.stderr.splitlines() if not line.startswith("note:")]
    assert gone in line and line.endswith("; run `cute-gemm doctor`")
    if "--json" in words:
        assert json.loads(done.stdout)["error"]["type"] == "HeaderError"


@pytest.mark.parametrize("name", ["gemm", "plan"])
def test_a_package_that_is_missing_is_named_in_python_too(name: str) -> None:
    code = WITHOUT.split("from cute_gemm")[0]
    code += f"import cute_gemm as cg, numpy as np\ncg.__all__\ncg.{name}('NN', *np.ones((2, 2, 2)))"
    done = subprocess.run(
        [sys.executable, "-c", code, "pycute"], capture_output=True, text=True, check=False
    )
    last = done.stderr.splitlines()[-1]
    assert last.endswith("cute_gemm needs pycute, which is missing: run `cute-gemm doctor`")


def test_without_nvrtc(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    from cuda.bindings import nvrtc

    def nowhere() -> None:
        raise RuntimeError("Failure finding libnvrtc.so:\n  listdir('/usr/lib'):\n  ...")

    monkeypatch.setattr(nvrtc, "nvrtcVersion", nowhere)
    compiler._nvrtc.cache_clear()
    try:
        assert cli.main(["emit", "TN", *TOY, "--show", "ptx"]) == 2
    finally:
        compiler._nvrtc.cache_clear()
    [line] = capsys.readouterr().err.splitlines()
    fix = headers.install("nvrtc")
    assert line == f"cute-gemm: NVRTC cannot be loaded: {fix}; run `cute-gemm doctor`"


def test_cccl_of_another_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    found = replace(planted(tmp_path, "3003002"), crt=tmp_path)
    monkeypatch.setattr(headers, "cuda_headers", lambda: found)
    headers.include_paths.cache_clear()
    try:
        assert cli.main(["emit", "TN", *TOY, "--show", "ptx"]) == 2
    finally:
        headers.include_paths.cache_clear()
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("cute-gemm: CCCL 3.3.2 in ") and headers.install("cccl", how="") in line
    assert line.endswith("; run `cute-gemm doctor`") and ".log" not in line
