"""Translation unit -> cubin, by NVRTC through ``cuda.core``: no nvcc, no host compiler, no driver.

A unit that was built before comes from the disk cache, and that path imports nothing of CUDA.
"""

from __future__ import annotations

import functools
import importlib.util
import io
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cute_gemm._paths import templates_path
from cute_gemm.errors import CompileError, HeaderError, UnsupportedError
from cute_gemm.toolchain.cubin import Build, Resources

if TYPE_CHECKING:
    from cute_gemm.toolchain.unit import TranslationUnit

#: The options of every build, in the words of ``cuda.core.ProgramOptions``. NDEBUG: a wgmma kernel
#: whose asserts are alive calls ``__assertfail`` and loses 10 % and more. The unroll limit is that
#: of CCCL under nvcc; its value for other compilers, 16, costs 0.3 s of every build, spent on the
#: preprocessing of one header (``type_list.h``), and changes nothing in the cubin.
OPTIONS: dict[str, Any] = {
    "std": "c++17",
    "device_as_default_execution_space": True,
    "define_macro": ["NDEBUG", ("_CCCL_META_UNROLL_LIMIT", "10")],
    "ptxas_options": ["-v"],
    # NVRTC's own cache would leave out what ptxas -v says.
    "no_cache": True,
}

#: What NVRTC calls the unit. The name goes into the symbol of every internal variable, of which
#: CuTe has thousands: the entry's own would make a cubin a quarter larger.
_NAME = "unit"

#: Architectures accepted without asking NVRTC, so that a cached build need not load it.
_COMMON_ARCHS = frozenset(
    ("80", "86", "87", "89", "90", "90a", "100", "100a", "103", "103a", "120", "120a")
)

#: What brings the CUDA headers.
INSTALL = (
    'pip install "nvidia-cuda-runtime==13.0.*" "nvidia-cuda-crt==13.0.*" "nvidia-cuda-cccl==13.0.*"'
)


def build(unit: TranslationUnit, arch: str, *, cache: bool = True) -> Build:
    """Compile ``unit`` for ``arch``, or take it from the cache.

    Parameters
    ----------
    unit
        C++ text and the name of its ``extern "C" __global__`` entry.
    arch
        ``"sm_80"``, ``"sm_90a"``, or what else `normalize_arch` takes.
    cache
        Look into the disk cache, and store the result there.

    Raises
    ------
    CompileError
        When NVRTC refuses the unit or the arch, when registers spill, and when ptxas serialises
        wgmma. The message starts with the line that matters; ``.log`` has all of them.
    HeaderError
        When the headers or NVRTC itself are not installed.

    Examples
    --------
    >>> from cute_gemm.toolchain.unit import TranslationUnit
    >>> unit = TranslationUnit('extern "C" __global__ void one(float* x) { *x = 1; }', "one")
    >>> build(unit, "sm_80").resources.spill_stores
    0
    """
    start = time.perf_counter()
    arch = normalize_arch(arch)
    paths = include_paths()
    if not cache:
        return _compile(unit, arch, paths, start)

    from cute_gemm.toolchain import cache as store  # it builds on this module

    headers = store.headers_digest(paths)
    key = store.key(unit, headers, OPTIONS, arch, nvrtc_version())
    found = store.get(key)
    if found is not None:
        return found
    built = _compile(unit, arch, paths, start)
    # Another NVRTC may have been in the process already (PyTorch brings one): then the build goes
    # under that one's name.
    used = loaded_nvrtc_version()
    if nvrtc_version().split(".")[:2] != used.split("."):
        key = store.key(unit, headers, OPTIONS, arch, used)
    store.put(key, built)
    return built


def ptx(unit: TranslationUnit, arch: str) -> str:
    """Compile ``unit`` to PTX for ``arch``, with the options of every build.

    Parameters
    ----------
    unit, arch
        As for `build`. Nothing is taken from the cache or stored there.

    Raises
    ------
    CompileError
        When NVRTC refuses the unit or the arch; ptxas, which counts registers, is not asked.
    HeaderError
        When the headers or NVRTC itself are not installed.

    Examples
    --------
    >>> from cute_gemm.toolchain.unit import TranslationUnit
    >>> unit = TranslationUnit('extern "C" __global__ void one(float* x) { *x = 1; }', "one")
    >>> ".visible .entry one(" in ptx(unit, "sm_80")
    True
    """
    arch = normalize_arch(arch)
    _need_nvrtc()
    from cuda.bindings import nvrtc

    # Not through cuda.core, which looks for the driver when it is asked for PTX.
    options = _options(arch.replace("sm_", "compute_"), include_paths()).as_bytes("nvrtc")
    _, program = nvrtc.nvrtcCreateProgram(unit.source.encode(), _NAME.encode(), 0, [], [])
    try:
        (code,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        if int(code):
            log = _text(program, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog)
            raise _from_log(log or code.name, arch)
        return _text(program, nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _text(program: Any, size: Any, get: Any) -> str:
    """What NVRTC says of a program; ``size`` and ``get`` are the two functions that tell it."""
    _, length = size(program)
    buffer = b" " * length
    get(program, buffer)
    return buffer.decode(errors="replace").replace("\0", "").strip() + "\n"


def normalize_arch(arch: str | int | float) -> str:
    """Return the architecture in NVRTC's spelling.

    Parameters
    ----------
    arch
        ``"sm_90a"``, ``"90a"``, ``"9.0"``, ``90`` or ``9.0``.

    Raises
    ------
    UnsupportedError
        When it does not name an architecture.
    CompileError
        When the NVRTC that is installed does not know it; the message lists those that it knows.

    Examples
    --------
    >>> normalize_arch("80"), normalize_arch(9.0), normalize_arch("SM_90a")
    ('sm_80', 'sm_90', 'sm_90a')
    """
    text = f"{arch:.1f}" if isinstance(arch, float) else str(arch)
    match = re.fullmatch(r"(?:sm_?)?(\d+?)\.?(\d)([af]?)", text.strip().lower())
    if match is None:
        raise UnsupportedError(
            f'arch={arch!r} is not an architecture; expected a name such as "sm_80" or "sm_90a"'
        )
    name = "".join(match.groups())
    if name not in _COMMON_ARCHS:
        known = known_archs()
        if f"sm_{name.rstrip('af')}" not in known:
            raise _unknown_arch(f"sm_{name}", known)
    return f"sm_{name}"


@functools.cache
def known_archs() -> tuple[str, ...]:
    """Return the architectures that the installed NVRTC compiles for, without suffixes."""
    from cuda.bindings import nvrtc

    _need_nvrtc()
    code, archs = nvrtc.nvrtcGetSupportedArchs()
    if int(code):
        raise HeaderError(f"nvrtcGetSupportedArchs failed: {code.name}")
    return tuple(f"sm_{number}" for number in sorted(archs))


def _unknown_arch(arch: str, known: tuple[str, ...]) -> CompileError:
    return CompileError(
        f"arch={arch!r} is not known to NVRTC {loaded_nvrtc_version()}, "
        f"which compiles for {', '.join(known)}"
    )


# Headers ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CudaHeaders:
    """One set of CUDA headers: where each part lies, or None for a part that is missing."""

    source: str
    runtime: Path | None
    crt: Path | None
    cccl: Path | None

    @property
    def missing(self) -> tuple[str, ...]:
        """The names of the parts that are not there."""
        parts = {"runtime": self.runtime, "crt": self.crt, "cccl": self.cccl}
        return tuple(name for name, path in parts.items() if path is None)


@functools.cache
def include_paths() -> tuple[Path, ...]:
    """Return the include directories of every build: templates, CUTLASS, CUDA runtime, crt, CCCL.

    Raises
    ------
    HeaderError
        When one of them is not installed; the message says what to install.
    """
    try:
        templates = templates_path()
    except FileNotFoundError as error:
        raise HeaderError(str(error)) from None
    cutlass, cuda = cutlass_path(), cuda_headers()
    if cutlass is None:
        raise HeaderError('CUTLASS headers were not found: pip install "nvidia-cutlass==4.2.*"')
    if cuda is None:
        raise HeaderError(f"CUDA headers were not found: {INSTALL}, or set CUDA_HOME to a toolkit")
    if cuda.missing:
        raise HeaderError(
            f"the CUDA headers of {cuda.source} lack {' and '.join(cuda.missing)}: {INSTALL}"
        )
    paths = (templates, cutlass, cuda.runtime, cuda.crt, cuda.cccl)
    return tuple(dict.fromkeys(path for path in paths if path is not None))


def cutlass_path() -> Path | None:
    """Return the CUTLASS include directory of the ``nvidia-cutlass`` wheel."""
    return _first(
        *(root / "source" / "include" for root in _package_dirs("cutlass_library")),
        holding="cute/tensor.hpp",
    )


def cuda_headers() -> CudaHeaders | None:
    """Return the first complete set of CUDA headers, else the first incomplete one.

    Wheels come before a toolkit, because the pins of this package choose the wheels. Sets are not
    mixed: CCCL, crt and the runtime of different releases do not fit each other.
    """
    sets = [_headers_of_wheels(root) for root in _package_dirs("nvidia")]
    for variable in ("CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX"):
        if os.environ.get(variable):
            sets += _headers_of_toolkit(variable, Path(os.environ[variable]))
    sets += _headers_of_toolkit("/usr/local/cuda", Path("/usr/local/cuda"))
    found = [one for one in sets if one.runtime is not None]
    return next((one for one in found if not one.missing), found[0] if found else None)


def _headers_of_wheels(root: Path) -> CudaHeaders:
    # CUDA 13 wheels share one tree; those of CUDA 12 have one tree each.
    whole = root / "cu13" / "include"
    runtime, crt = root / "cuda_runtime" / "include", root / "cuda_nvcc" / "include"
    cccl = root / "cuda_cccl" / "include"
    return CudaHeaders(
        source="the nvidia wheels",
        runtime=_first(whole, runtime, holding="cuda_runtime.h"),
        crt=_first(whole, runtime, crt, holding="crt/mma.h"),
        cccl=_first(whole / "cccl", cccl / "cccl", cccl, holding="cuda/std/version"),
    )


def _headers_of_toolkit(source: str, root: Path) -> list[CudaHeaders]:
    trees = (root / "include", root / "targets" / "x86_64-linux" / "include")
    return [
        CudaHeaders(
            source=f"{source} ({root})",
            runtime=_first(tree, holding="cuda_runtime.h"),
            crt=_first(tree, holding="crt/mma.h"),
            cccl=_first(tree / "cccl", tree, holding="cuda/std/version"),
        )
        for tree in trees
    ]


def _package_dirs(name: str) -> list[Path]:
    """Return the directories of a package without importing it."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.submodule_search_locations is None:
        return []
    return [Path(path) for path in spec.submodule_search_locations]


def _first(*candidates: Path, holding: str = "") -> Path | None:
    return next((path for path in candidates if (path / holding).exists()), None)


# NVRTC ------------------------------------------------------------------------------------------


@functools.cache
def nvrtc_version() -> str:
    """Return the version of the NVRTC that is installed, ``"13.0.88"``.

    The name of the wheel's metadata tells it in 0.1 ms, where loading the library takes 30 ms;
    without a wheel the library is asked, which knows only ``"13.0"``.
    """
    pattern = re.compile(r"nvidia_cuda_nvrtc(?:_cu\d+)?-([\d.]+)\.dist-info")
    for directory in _package_dirs("nvidia"):
        matches = (pattern.fullmatch(name) for name in os.listdir(directory.parent))
        versions = [match[1] for match in matches if match]
        if versions:
            return max(versions, key=lambda text: [int(part) for part in text.split(".") if part])
    return loaded_nvrtc_version()


@functools.cache
def loaded_nvrtc_version() -> str:
    """Return what the library that compiles in this process says of itself, ``"13.0"``."""
    from cuda.bindings import nvrtc

    _need_nvrtc()
    code, major, minor = nvrtc.nvrtcVersion()
    if int(code):
        raise HeaderError(f"nvrtcVersion failed: {code.name}")
    return f"{major}.{minor}"


@functools.cache
def _need_nvrtc() -> None:
    from cuda.bindings import nvrtc

    try:
        nvrtc.nvrtcVersion()
    except RuntimeError as error:  # the bindings found no library
        raise HeaderError(
            f'NVRTC cannot be loaded: pip install "nvidia-cuda-nvrtc==13.0.*" ({error})'
        ) from error


def _options(arch: str, paths: tuple[Path, ...]) -> Any:
    """``cuda.core.ProgramOptions`` of every compilation."""
    from cuda.core import ProgramOptions

    include = [str(path) for path in paths]
    return ProgramOptions(name=_NAME, arch=arch, include_path=include, **OPTIONS)


def _compile(unit: TranslationUnit, arch: str, paths: tuple[Path, ...], start: float) -> Build:
    from cuda.core import Program

    _need_nvrtc()
    logs = io.StringIO()
    try:
        program = Program(unit.source, "c++", _options(arch, paths))
        try:
            # Not "ptx": cuda.core looks for the driver then.
            cubin = bytes(program.compile("cubin", logs=logs).code)
        finally:
            program.close()
    except Exception as error:
        raise _explained(error, arch, logs.getvalue()) from error

    log = logs.getvalue().replace("\0", "").strip()
    return Build(
        cubin=cubin,
        symbol=unit.symbol,
        arch=arch,
        resources=_checked_resources(log, unit.symbol),
        seconds=time.perf_counter() - start,
        cached=False,
        log=log,
    )


def _explained(error: Exception, arch: str, log: str) -> Exception:
    """Turn an exception of ``cuda.core`` into one that names what matters."""
    text = f"{error}\n{log}".replace("\0", "").strip()
    if type(error).__name__ != "NVRTCError" and "NVRTC" not in text:
        return CompileError(f"{type(error).__name__}: {text}", text)
    # The message of cuda.core repeats the whole log after a line of its own.
    return _from_log(text.partition("compilation log:")[2].strip() or text, arch)


def _from_log(text: str, arch: str) -> CompileError:
    """The error whose message is the first line of NVRTC's log that matters."""
    if re.search(r"--gpu-architecture|--nv_arch|-arch\b", text):
        return _unknown_arch(arch, known_archs())
    lines = [line.strip() for line in text.splitlines()]
    first = next((line for line in lines if re.search(r"\b(error|fatal)\b", line)), "")
    if not first:
        first = next((line for line in lines if line), text)
    count = len(re.findall(r": (?:catastrophic )?error\b", text))
    more = f" (and {count - 1} more errors; the whole log is in .log)" if count > 1 else ""
    return CompileError(first + more, text)


def _checked_resources(log: str, symbol: str) -> Resources:
    """Read ``ptxas -v``; spills and serialised wgmma are errors."""
    serialised = re.search(r".*(?:C7509|C7510|wgmma.*serialized).*", log)
    if serialised:
        raise CompileError(f"{serialised[0].strip()}: a build that waits after each wgmma", log)
    spills = re.findall(
        r"Function properties for (\S+)\s+.*?"
        r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads",
        log,
    )
    for name, _, stores, loads in spills:
        if int(stores) or int(loads):
            raise CompileError(
                f"{name} spills registers ({stores} bytes of stores, {loads} bytes of loads per "
                "thread): use a smaller tile, fewer stages or more threads",
                log,
            )
    stack = next((int(stack) for name, stack, _, _ in spills if name == symbol), 0)
    entry = re.search(
        rf"Compiling entry function '{re.escape(symbol)}' for.*?Used (\d+) registers([^\n]*)",
        log,
        re.DOTALL,
    )
    if entry is None:
        raise CompileError(f"the unit has no entry named {symbol!r}", log)
    shared = re.search(r"(\d+) bytes smem", entry[2])
    return Resources(
        registers=int(entry[1]),
        shared_static=int(shared[1]) if shared else 0,
        spill_stores=0,
        spill_loads=0,
        stack=stack,
    )
