"""What this installation has, what it lacks, and what to do about that."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from cute_gemm._paths import templates_path
from cute_gemm.errors import HeaderError, ToolError
from cute_gemm.run import driver as devices
from cute_gemm.toolchain import cache
from cute_gemm.toolchain import nvrtc as compiler

_WHEELS = "pip install --upgrade --force-reinstall"


@dataclass(frozen=True, slots=True)
class Check:
    """One finding.

    Attributes
    ----------
    name
        What was looked at.
    ok
        True: as it should be. False: broken, and something will fail. None: worth knowing, as a
        missing GPU is, without which kernels are still emitted, compiled and analysed.
    found
        What there is, with its version.
    mend
        What to do, or "".
    """

    name: str
    ok: bool | None
    found: str
    mend: str = ""


def checks() -> list[Check]:
    """Look at Python, headers, compiler, driver, GPUs and cache; never raises.

    Examples
    --------
    >>> [check.name for check in checks()][:3]
    ['Python', 'templates', 'CUTLASS headers']
    """
    found: list[Check] = []
    for name, look in _LOOKS:
        try:
            found += look(name)
        except Exception as error:  # the doctor must not fall ill: what broke is a finding
            found.append(Check(name, False, f"{type(error).__name__}: {error}"))
    return found


def _python(name: str) -> Iterator[Check]:
    version = sys.version_info
    ok = version >= (3, 10)
    yield Check(
        name, ok, f"{version.major}.{version.minor}.{version.micro}", "" if ok else "use 3.10"
    )


def _templates(name: str) -> Iterator[Check]:
    try:
        path = templates_path()
    except FileNotFoundError as error:
        yield Check(name, False, str(error), "reinstall cute-gemm")
        return
    files = len(list(path.rglob("*.cuh")))
    yield Check(name, files > 0, f"{files} files in {path}", "" if files else "reinstall cute-gemm")


def _cutlass(name: str) -> Iterator[Check]:
    mend = 'pip install "nvidia-cutlass==4.2.0.0"'
    path = compiler.cutlass_path()
    if path is None:
        yield Check(name, False, "none", mend)
        return
    parts = [_macro(path / "cutlass" / "version.h", f"CUTLASS_{part}") for part in _SEMVER]
    version = ".".join("?" if part is None else str(part) for part in parts)
    ok = True if parts[:2] == [4, 2] else None
    yield Check(name, ok, f"{version} in {path}", "" if ok else f"4.2 was tested: {mend}")


def _cuda(name: str) -> Iterator[Check]:
    headers = compiler.cuda_headers()
    if headers is None or headers.runtime is None:
        yield Check(name, False, "none", compiler.INSTALL)
        return
    version = cuda_headers_version()
    yield Check(name, True, f"{version} from {headers.source}: {headers.runtime}")


def _crt(name: str) -> Iterator[Check]:
    headers = compiler.cuda_headers()
    ok = headers is not None and headers.crt is not None
    mend = "" if ok else 'pip install "nvidia-cuda-crt==13.0.*"'
    yield Check(name, ok, "crt/mma.h is there" if ok else "crt/mma.h is missing", mend)


def _cccl(name: str) -> Iterator[Check]:
    mend = f'{_WHEELS} "nvidia-cuda-cccl==13.0.*"'
    headers = compiler.cuda_headers()
    if headers is None or headers.cccl is None:
        yield Check(name, False, "none", mend)
        return
    number = _macro(headers.cccl / "cuda" / "std" / "__cccl" / "version.h", "CCCL_VERSION")
    if number is None:
        yield Check(name, None, f"unknown version in {headers.cccl}", mend)
        return
    version = f"{number // 1_000_000}.{number // 1000 % 1000}.{number % 1000}"
    # CCCL 3.2 is that of CUDA 13.2, where tuple_size is declared again against CUTLASS 4.2.
    ok = number < 3_002_000
    yield Check(
        name,
        ok,
        f"{version} in {headers.cccl}",
        "" if ok else f"CCCL 3.2 (CUDA 13.2) and later do not compile with CUTLASS 4.2: {mend}",
    )


def _nvrtc(name: str) -> Iterator[Check]:
    mend = f'{_WHEELS} "nvidia-cuda-nvrtc==13.0.*"'
    try:
        loaded, archs = compiler.loaded_nvrtc_version(), compiler.known_archs()
    except HeaderError as error:
        yield Check(name, False, str(error), mend)
        return
    installed = compiler.nvrtc_version()
    version = installed if installed.startswith(f"{loaded}.") else loaded
    headers = cuda_headers_version()
    fits = headers in (None, loaded)
    yield Check(
        name,
        True if fits else None,
        f"{version}, compiles for {archs[0]} to {archs[-1]}",
        "" if fits else f"the CUDA headers are of {headers}, NVRTC is of {loaded}: {mend}",
    )


def _packages(name: str) -> Iterator[Check]:
    """``cuda-python`` below 13 brings files that overwrite those of ``cuda-bindings``."""
    from importlib.metadata import PackageNotFoundError, version

    found, old = [], False
    for package in ("cuda-bindings", "cuda-core", "cuda-python"):
        try:
            this = version(package)
        except PackageNotFoundError:
            continue
        found.append(f"{package} {this}")
        old |= package != "cuda-core" and int(this.partition(".")[0]) < 13
    missing = not any(text.startswith("cuda-core") for text in found)
    mend = f'{_WHEELS} "cuda-python>=13,<14" "cuda-bindings>=13,<14" "cuda-core>=1,<2"'
    yield Check(
        name,
        False if missing else None if old else True,
        ", ".join(found) or "none",
        mend if missing or old else "",
    )


def _driver(name: str) -> Iterator[Check]:
    version = devices.driver_version()
    if version is None:
        yield Check(name, None, "none", "install the NVIDIA driver to run kernels on a GPU")
        return
    built = compiler.nvrtc_version().partition(".")[0]
    ok = int(version.partition(".")[0]) >= int(built)
    yield Check(
        name,
        ok,
        f"for CUDA {version}",
        "" if ok else f"update it: cubins of CUDA {built} need a driver for CUDA {built}",
    )


def _gpus(name: str) -> Iterator[Check]:
    reason = devices.why_no_gpu()
    if reason is not None:
        yield Check(name, None, reason, "without one, results are computed on the CPU")
        return
    for device in range(devices.device_count()):
        major, minor = devices.compute_capability(device)
        memory = devices.total_memory(device) / 2**30
        ok = major >= 8
        yield Check(
            f"{name} {device}",
            True if ok else None,
            f"{devices.device_name(device)}, compute capability {major}.{minor}, {memory:.0f} GiB, "
            f"{devices.multiprocessors(device)} multiprocessors",
            "" if ok else "kernels need compute capability 8.0 or higher",
        )


def _nvdisasm(name: str) -> Iterator[Check]:
    from cuda.pathfinder import find_nvidia_binary_utility

    path = find_nvidia_binary_utility("nvdisasm") or shutil.which("nvdisasm")
    mend = "pip install 'cute-gemm[sass]' to see machine code (emit --sass)"
    yield Check(name, True if path else None, path or "none", "" if path else mend)


def _ncu(name: str) -> Iterator[Check]:
    from cute_gemm.measure import (
        profile,  # it reaches up to the API, which this module must not need
    )

    try:
        yield Check(name, True, profile.ncu())
    except ToolError:
        mend = "install Nsight Compute to compare reports with its counters (profile)"
        yield Check(name, None, "none", mend)


def _cache(name: str) -> Iterator[Check]:
    reason = cache.writable()
    if reason is not None:
        mend = "set CUTE_GEMM_CACHE_DIR to a directory that you can write to"
        yield Check(name, None, reason, mend)
        return
    yield Check(
        name,
        True,
        f"{len(cache.entries())} builds, {cache.size() / 2**20:.1f} MiB in {cache.directory()}",
    )


_SEMVER = ("MAJOR", "MINOR", "PATCH")
_LOOKS: tuple[tuple[str, Callable[[str], Iterable[Check]]], ...] = (
    ("Python", _python),
    ("templates", _templates),
    ("CUTLASS headers", _cutlass),
    ("CUDA headers", _cuda),
    ("CRT headers", _crt),
    ("CCCL", _cccl),
    ("NVRTC", _nvrtc),
    ("CUDA Python", _packages),
    ("driver", _driver),
    ("GPU", _gpus),
    ("nvdisasm", _nvdisasm),
    ("Nsight Compute", _ncu),
    ("cache", _cache),
)


def cuda_headers_version() -> str | None:
    """Return the CUDA release of the headers, ``"13.0"``, or None when it cannot be told."""
    headers = compiler.cuda_headers()
    if headers is None or headers.runtime is None:
        return None
    number = _macro(headers.runtime / "cuda_runtime_api.h", "CUDART_VERSION")
    return None if number is None else f"{number // 1000}.{number % 1000 // 10}"


def _macro(path: Path, name: str) -> int | None:
    """Return the integer that a header defines ``name`` as."""
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return None
    match = re.search(rf"^\s*#\s*define\s+{name}\s+(\d+)", text, re.MULTILINE)
    return int(match[1]) if match else None
