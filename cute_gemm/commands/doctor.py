"""``cute-gemm doctor``: checks of this installation, and how to fix it."""

from __future__ import annotations

import argparse
import importlib.util
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cute_gemm._text import counted, size
from cute_gemm.commands.output import OK, WRONG, print_json, say
from cute_gemm.errors import HeaderError, ToolError
from cute_gemm.run import driver as devices
from cute_gemm.toolchain import cache
from cute_gemm.toolchain import nvrtc as compiler
from cute_gemm.toolchain.headers import (
    REINSTALL,
    cuda_headers,
    cuda_major,
    cutlass_path,
    cutlass_version,
    install,
    templates_path,
)

#: Modules that the package imports, and the packages that contain them.
_MODULES = {
    "numpy": "numpy", "ml_dtypes": "ml-dtypes", "rich": "rich", "platformdirs": "platformdirs",
    "pycute": "nvidia-cutlass", "cutlass_library": "nvidia-cutlass",
    "cuda.bindings": "cuda-bindings", "cuda.core": "cuda-core",
    "cuda.pathfinder": "cuda-pathfinder",
}  # fmt: skip
_INCLUDED = re.compile(r'^#include "(.*\.cuh)"', re.MULTILINE)
#: The oldest driver that loads the cubins of a CUDA release, by NVIDIA's table of compatibility.
_DRIVERS = {12: "525.60.13", 13: "580.65.06"}
#: ok, the finding, and the fix; and a number if there may be several.
_Finding = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Check:
    """One check: its name, the finding, with the version, and how to fix it, or "".

    ``ok`` is False where something will fail, and None for a note: without a GPU, for example,
    kernels are still emitted, compiled and analysed.
    """

    name: str
    ok: bool | None
    found: str
    fix: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add nothing."""


def command(arguments: argparse.Namespace) -> int:
    """Print the findings, and return 1 if anything is broken, else 0."""
    results = checks()
    if arguments.json:
        print_json({"checks": [asdict(check) for check in results]})
    else:
        width = max(len(check.name) for check in results)
        for check in results:
            mark = {True: "ok", False: "MISSING", None: "-"}[check.ok]
            say(f"{mark:<8} {check.name:<{width}}  {check.found}", hang=width + 11)
            if not check.ok and check.fix:
                say(f"{'':<8} {'':<{width}}  -> {check.fix}")
    return WRONG if any(check.ok is False for check in results) else OK


def checks() -> list[Check]:
    """Check Python, headers, compiler, driver, GPUs and cache; never raises."""
    results: list[Check] = []
    for name, look in _LOOKS.items():
        try:
            findings = look()
            for ok, text, fix, *which in findings if isinstance(findings, list) else [findings]:
                results.append(Check(" ".join((name, *which)), ok, text, "" if ok else fix))
        except ImportError as error:
            fix = "install the packages listed above"
            results.append(Check(name, None, f"not checked: it needs {error.name}", fix))
        except Exception as error:  # every failure is a finding
            results.append(Check(name, False, f"{type(error).__name__}: {error}"))
    return results


def _python() -> _Finding:
    major, minor, micro = sys.version_info[:3]
    return (major, minor) >= (3, 10), f"{major}.{minor}.{micro}", "use 3.10"


def _modules() -> _Finding:
    """Check the modules that the package imports, by the packages that contain them."""
    from importlib.metadata import PackageNotFoundError, requires

    try:
        pins = [text.partition(";")[0].strip() for text in requires("cute-gemm") or ()]
    except PackageNotFoundError:  # a checkout that is not installed
        pins = []
    missing = [package for module, package in _MODULES.items() if not _is_there(module)]
    requirements = [next((pin for pin in pins if pin.startswith(name)), name) for name in missing]
    fix = "pip install " + " ".join(f'"{pin}"' for pin in dict.fromkeys(requirements))
    names = ", ".join(dict.fromkeys(missing))
    state = f"not installed: {names}" if missing else f"all {len(set(_MODULES.values()))} installed"
    return not missing, state, fix


def _is_there(module: str) -> bool:
    """Return whether a module can be imported, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:  # its parent is missing
        return False


def _templates() -> _Finding:
    """Check the templates of all kernels, with the files that they include."""
    fix = "reinstall cute-gemm"
    try:
        path = templates_path()
    except HeaderError as error:
        return False, str(error), fix
    needed = _needed_templates(path)
    missing = sorted(file.name for file in needed if not file.is_file())
    if missing:
        text = f"{counted(len(missing), 'file')} missing in {path}: {', '.join(missing)}"
        return False, text, fix
    return True, f"{counted(len(needed), 'file')} in {path}", fix


def _needed_templates(root: Path) -> set[Path]:
    """Return the templates that units of each kernel and of epilogues include, also indirectly."""
    from cute_gemm.api import plan
    from cute_gemm.kernels import registry
    from cute_gemm.problem.epilogue.fused import FUNCTOR

    pending = [root / name for name in _INCLUDED.findall(FUNCTOR)]
    pending += [root / "auxiliary" / name for name in ("components.cuh", "ends.cuh")]
    for kernel in map(registry.get, registry.names()):
        if kernel.runs_on != "gpu":
            continue
        dtype, _, compute = kernel.dtypes[0].partition("/")
        m, n = next(iter(kernel.shapes(64)))
        example = plan(
            "NN", m=m, n=n, k=64, dtype=dtype, compute=compute or None, kernel=kernel.name,
            pack="AB", split_k=2, backend="cpu",
        )  # fmt: skip
        for step in example.steps:
            for unit in (step.unit, step.kernel.proof(step.config)):
                pending += [root / name for name in _INCLUDED.findall(unit.source)]
    needed: set[Path] = set()
    while pending:
        file = pending.pop().resolve()
        if file not in needed:
            needed.add(file)
            text = file.read_text(encoding="utf-8") if file.is_file() else ""
            pending += [file.parent / name for name in _INCLUDED.findall(text)]
    return needed


def _cutlass() -> _Finding:
    fix = 'pip install "nvidia-cutlass==4.2.0.0"'
    path = cutlass_path()
    if path is None:
        return False, "none", fix
    version = cutlass_version()
    text = "unknown version" if version is None else ".".join(map(str, version))
    tested = version is not None and version[:2] == (4, 2)
    return tested or None, f"{text} in {path}", f"only 4.2 is tested: {fix}"


def _cuda() -> _Finding:
    headers = cuda_headers()
    if headers is None or headers.runtime is None:
        return False, f"none of CUDA {cuda_major()}", install("runtime", "crt", "cccl")
    return True, f"{headers.version} from {headers.source}: {headers.runtime}", ""


def _crt() -> _Finding:
    headers = cuda_headers()
    ok = headers is not None and headers.crt is not None
    text = "crt/mma.h found" if ok else "crt/mma.h is missing"
    return ok, text, install("crt")


def _cccl() -> _Finding:
    headers = cuda_headers()
    if headers is None or headers.cccl is None:
        return False, "none", install("cccl")
    fix = install("cccl", how=REINSTALL)
    if headers.cccl_version is None:
        return None, f"unknown version in {headers.cccl}", fix
    fix = f"CCCL 3.2 (CUDA 13.2) and later do not compile with CUTLASS 4.2: {fix}"
    return headers.cccl_fits, f"{headers.cccl_version} in {headers.cccl}", fix


def _nvrtc() -> _Finding:
    fix = install("nvrtc", how=REINSTALL)
    try:
        loaded, archs = compiler.loaded_nvrtc_version(), compiler.known_archs()
    except HeaderError as error:
        return False, str(error), fix
    installed, found = compiler.nvrtc_version(), cuda_headers()
    headers = None if found is None else found.version
    version = installed if installed.startswith(f"{loaded}.") else loaded
    fix = f"the CUDA headers are {headers} and NVRTC is {loaded}: {fix}"
    text = f"{version}, compiles for {archs[0]} to {archs[-1]}"
    return headers in (None, loaded) or None, text, fix


def _packages() -> _Finding:
    """Check versions: old ``cuda-python`` overwrites files of ``cuda-bindings``."""
    from importlib.metadata import PackageNotFoundError, version

    versions, releases = [], []
    for package in ("cuda-bindings", "cuda-core", "cuda-python"):
        try:
            installed = version(package)
        except PackageNotFoundError:
            continue
        versions.append(f"{package} {installed}")
        if package != "cuda-core":
            releases.append(tuple(map(int, installed.split(".")[:2])))
    old = any(release < (12, 9) for release in releases) or len({x[0] for x in releases}) > 1
    missing = not any(text.startswith("cuda-core") for text in versions)
    floor, major = ("12.9", 12) if cuda_major() == 12 else ("13", 13)
    both = " ".join(f'"{name}>={floor},<{major + 1}"' for name in ("cuda-python", "cuda-bindings"))
    fix = f'{REINSTALL} {both} "cuda-core>=1,<2"'
    return False if missing else None if old else True, ", ".join(versions) or "none", fix


def _driver() -> _Finding:
    version = devices.driver_version()
    if version is None:
        return None, "none", "install the NVIDIA driver to run kernels on a GPU"
    built = int(compiler.nvrtc_version().partition(".")[0])
    fix = f"update it to {_DRIVERS[built]} or newer: cubins are of CUDA {built}"
    if built > 12:
        fix += f", or pip install 'cute-gemm[cu12]', which needs {_DRIVERS[12]} or newer"
    text = f"for CUDA {version}; cubins of CUDA {built} need {_DRIVERS[built]} or newer"
    return int(version.partition(".")[0]) >= built, text, fix


def _gpus() -> _Finding | list[_Finding]:
    reason = devices.why_no_gpu()
    if reason is not None:
        return None, reason, "without one, results are computed on the CPU"
    findings: list[_Finding] = []
    for device in range(devices.device_count()):
        major, minor = devices.compute_capability(device)
        memory = size(devices.total_memory(device))
        text = (
            f"{devices.device_name(device)}, compute capability {major}.{minor}, {memory}, "
            f"{counted(devices.multiprocessors(device), 'multiprocessor')}"
        )
        fix = "kernels need compute capability 8.0 or higher"
        findings.append((major >= 8 or None, text, fix, str(device)))
    return findings


def _nvdisasm() -> _Finding:
    try:
        from cuda.pathfinder import find_nvidia_binary_utility as find
    except ImportError:
        find = shutil.which
    path = find("nvdisasm") or shutil.which("nvdisasm")
    fix = "pip install 'cute-gemm[sass]' to see machine code (emit --show sass)"
    return True if path else None, path or "none", fix


def _ncu() -> _Finding:
    from cute_gemm.measure import profile

    try:
        return True, profile.ncu(), ""
    except ToolError:
        return None, "none", "install Nsight Compute to compare reports with its counters (profile)"


def _cache() -> _Finding:
    if reason := cache.writable():
        return None, reason, "set CUTE_GEMM_CACHE_DIR to a directory that you can write to"
    if unread := cache.unread():
        return None, "; ".join(unread), "repair it, or leave it out of CUTE_GEMM_CACHE_DIR"
    builds = counted(len(cache.entries()), "build")
    return True, f"{builds}, {size(cache.size())} in {cache.directory()}", ""


_LOOKS: dict[str, Callable[[], _Finding | list[_Finding]]] = {
    "Python": _python, "Python packages": _modules, "templates": _templates,
    "CUTLASS headers": _cutlass, "CUDA headers": _cuda, "CRT headers": _crt, "CCCL": _cccl,
    "NVRTC": _nvrtc, "CUDA Python": _packages, "driver": _driver, "GPU": _gpus,
    "nvdisasm": _nvdisasm, "Nsight Compute": _ncu, "cache": _cache,
}  # fmt: skip
