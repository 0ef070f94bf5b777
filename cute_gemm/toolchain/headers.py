"""Locations of headers for builds: templates, CUTLASS, CUDA runtime, crt, CCCL."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
from dataclasses import dataclass
from pathlib import Path

from cute_gemm.errors import HeaderError

#: Command that replaces an installed package.
REINSTALL = "pip install --upgrade --force-reinstall"


@functools.cache
def cuda_major() -> int:
    """Return the CUDA release of headers and NVRTC, 12 or 13: that of ``cuda-bindings``.

    It imports nothing.
    """
    versions = installed_versions("cuda", r"cuda_bindings")
    return int(versions[0].partition(".")[0]) if versions else 13


def installed_versions(package: str, name: str) -> list[str]:
    """Return versions of distributions, from metadata next to a package, in 0.1 ms.

    ``name``: a pattern for the first part of the metadata's name.
    """
    pattern = re.compile(rf"{name}-([\d.]+)(?:\.post\d+)?\.dist-info")
    names = (name for root in package_dirs(package) for name in os.listdir(root.parent))
    return [match[1] for match in map(pattern.fullmatch, names) if match]


def install(*parts: str, how: str = "pip install") -> str:
    """Return the command that installs parts of CUDA: runtime, crt, cccl, nvrtc."""
    if cuda_major() == 12:
        wheels = [f"nvidia-cuda-{'nvcc' if part == 'crt' else part}-cu12" for part in parts]
        return " ".join((how, *(f'"{wheel}==12.9.*"' for wheel in wheels)))
    return " ".join((how, *(f'"nvidia-cuda-{part}==13.0.*"' for part in parts)))


def templates_path() -> Path:
    """Return the directory of the CUDA C++ templates, whose files kernels include by name.

    In a wheel it is ``cute_gemm/templates``; in a checkout, and so in an editable install, it is
    ``templates`` at the root of the repository. Raises ``HeaderError`` without either.
    """
    package = Path(__file__).resolve().parents[1]
    for directory in (package / "templates", package.parent / "templates"):
        if directory.is_dir():
            return directory
    raise HeaderError(
        f"the CUDA templates are missing: expected a directory {package / 'templates'}; "
        "install cute-gemm again"
    )


def template_path(name: str) -> Path:
    """Return the file of a template of the package: ``NAME.cuh`` in its family's folder."""
    path = next(templates_path().rglob(f"{name}.cuh"), None)
    if path is None:
        raise HeaderError(f"the template {name}.cuh is missing: reinstall cute-gemm")
    return path


@dataclass(frozen=True, slots=True)
class CudaHeaders:
    """One set of CUDA headers: the directory of each part, None for a missing part."""

    source: str
    runtime: Path | None
    crt: Path | None
    cccl: Path | None

    @property
    def version(self) -> str | None:
        """The CUDA release, ``"13.0"``; None if it is unknown."""
        number = _macro(self.runtime, "cuda_runtime_api.h", "CUDART_VERSION")
        return None if number is None else f"{number // 1000}.{number % 1000 // 10}"

    @property
    def missing(self) -> tuple[str, ...]:
        """The names of the missing parts."""
        return tuple(name for name in _PARTS if getattr(self, name) is None)

    @property
    def cccl_version(self) -> str | None:
        """The release of CCCL, ``"3.0.1"``; None if it is unknown."""
        number = _macro(self.cccl, "cuda/std/__cccl/version.h", "CCCL_VERSION")
        if number is None:
            return None
        return f"{number // 1_000_000}.{number // 1000 % 1000}.{number % 1000}"

    @property
    def cccl_fits(self) -> bool:
        """Whether this CCCL compiles: from 3.2 (CUDA 13.2) on tuple_size is declared twice."""
        version = self.cccl_version or "0.0"
        return tuple(map(int, version.split("."))) < (3, 2)


#: Parts of a set of CUDA headers.
_PARTS = ("runtime", "crt", "cccl")


@functools.cache
def include_paths() -> tuple[Path, ...]:
    """Return the include directories of builds; ``HeaderError`` names the packages to install."""
    templates, cutlass, cuda = templates_path(), cutlass_path(), cuda_headers()
    if cutlass is None:
        raise HeaderError('CUTLASS headers were not found: pip install "nvidia-cutlass==4.2.*"')
    if cuda is None:
        raise HeaderError(
            f"headers of CUDA {cuda_major()}, the release of cuda-bindings, were not found: "
            f"{install(*_PARTS)}, or set CUDA_HOME to a toolkit"
        )
    if cuda.missing:
        raise HeaderError(
            f"the CUDA headers of {cuda.source} lack {' and '.join(cuda.missing)}: "
            f"{install(*cuda.missing)}"
        )
    if not cuda.cccl_fits:
        raise HeaderError(
            f"CCCL {cuda.cccl_version} in {cuda.cccl} does not compile with CUTLASS 4.2: "
            f"{install('cccl', how=REINSTALL)}"
        )
    paths = (templates, cutlass, cuda.runtime, cuda.crt, cuda.cccl)
    return tuple(dict.fromkeys(path for path in paths if path is not None))


def cutlass_path() -> Path | None:
    """Return the CUTLASS include directory of the ``nvidia-cutlass`` wheel."""
    return _first(
        *(root / "source" / "include" for root in package_dirs("cutlass_library")),
        holding="cute/tensor.hpp",
    )


def cutlass_version() -> tuple[int, int, int] | None:
    """Return the version of the CUTLASS headers, None if they are not installed."""
    path, file = cutlass_path(), "cutlass/version.h"
    parts = "CUTLASS_MAJOR", "CUTLASS_MINOR", "CUTLASS_PATCH"
    major, minor, patch = (_macro(path, file, part) for part in parts)
    return None if major is None or minor is None or patch is None else (major, minor, patch)


def cuda_headers() -> CudaHeaders | None:
    """Return the first complete set of CUDA headers, otherwise the first incomplete one.

    Wheels come before a toolkit, because this package pins the wheels. Sets are not
    mixed: CCCL, crt and the runtime of different releases are incompatible. Sets of another
    release than `cuda_major` are left out.
    """
    sets = [_headers_of_wheels(root) for root in package_dirs("nvidia")]
    for variable in ("CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX"):
        if os.environ.get(variable):
            sets += _headers_of_toolkit(variable, Path(os.environ[variable]))
    sets += _headers_of_toolkit("/usr/local/cuda", Path("/usr/local/cuda"))
    release = f"{cuda_major()}."
    some = [x for x in sets if x.runtime and (x.version or release).startswith(release)]
    return next((headers for headers in some if not headers.missing), some[0] if some else None)


def _headers_of_wheels(root: Path) -> CudaHeaders:
    # CUDA 13 wheels share one tree; those of CUDA 12 have one tree each.
    if cuda_major() == 12:
        trees = tuple(root / f"cuda_{name}" / "include" for name in ("runtime", "nvcc", "cccl"))
    else:
        trees = (root / f"cu{cuda_major()}" / "include",) * 3
    return _headers_of("the nvidia wheels", *trees)


def _headers_of_toolkit(source: str, root: Path) -> list[CudaHeaders]:
    trees = (root / "include", root / "targets" / "x86_64-linux" / "include")
    return [_headers_of(f"{source} ({root})", tree, tree, tree) for tree in trees]


def _headers_of(source: str, runtime: Path, crt: Path, cccl: Path) -> CudaHeaders:
    """Return the headers in the include directories of the parts."""
    return CudaHeaders(
        source=source,
        runtime=_first(runtime, holding="cuda_runtime.h"),
        crt=_first(runtime, crt, holding="crt/mma.h"),
        cccl=_first(cccl / "cccl", cccl, holding="cuda/std/version"),
    )


def package_dirs(name: str) -> list[Path]:
    """Return the directories of a package without importing it."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.submodule_search_locations is None:
        return []
    return [Path(path) for path in spec.submodule_search_locations]


def _macro(folder: Path | None, header: str, name: str) -> int | None:
    """Return the integer that a header defines ``name`` as, None if it does not define it."""
    if folder is None:
        return None
    try:
        text = (folder / header).read_text(errors="replace")
    except OSError:
        return None
    match = re.search(rf"^\s*#\s*define\s+{name}\s+(\d+)", text, re.MULTILINE)
    return int(match[1]) if match else None


def _first(*candidates: Path, holding: str = "") -> Path | None:
    return next((path for path in candidates if (path / holding).exists()), None)
