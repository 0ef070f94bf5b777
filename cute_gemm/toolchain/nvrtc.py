"""Compilation of units to cubins by NVRTC through ``cuda.core``, without nvcc or a driver.

A unit that was built before comes from the disk cache, without importing anything of CUDA.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import io
import os
import re
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cute_gemm._cuda_core import cuda_core
from cute_gemm._log import logger
from cute_gemm.errors import CompileError, HeaderError, UnsupportedError
from cute_gemm.toolchain import cache as store
from cute_gemm.toolchain.cubin import Build, Proof, Resources
from cute_gemm.toolchain.headers import (
    cuda_major,
    include_paths,
    install,
    installed_versions,
    package_dirs,
    templates_path,
)
from cute_gemm.toolchain.interrupt import interruptible

if TYPE_CHECKING:
    from cute_gemm.toolchain.unit import TranslationUnit

_LIBC = None if sys.platform == "win32" else ctypes.CDLL(None)
#: The options of every build, as ``cuda.core.ProgramOptions`` names them. NDEBUG: a wgmma kernel
#: with asserts calls ``__assertfail`` and loses 10 % and more. The unroll limit is that
#: of CCCL under nvcc; its value for other compilers, 16, costs 0.3 s of every build, spent on the
#: preprocessing of one header (``type_list.h``), and changes nothing in the cubin.
OPTIONS: dict[str, Any] = {
    "std": "c++17",
    "device_as_default_execution_space": True,
    "define_macro": ["NDEBUG", ("_CCCL_META_UNROLL_LIMIT", "10")],
    "ptxas_options": ["-v"],
    # NVRTC's own cache would drop the output of ptxas -v.
    "no_cache": True,
}

#: Name of the unit in NVRTC. It is part of the symbol of every internal variable, of which
#: CuTe's headers have hundreds.
UNIT = "unit"
#: Characters of an error that are shown: errors of templates may have thousands.
_LONGEST = 400

#: Architectures accepted without asking NVRTC, so that a cached build need not load it.
_COMMON_ARCHS = frozenset(
    ("80", "86", "87", "89", "90", "90a", "100", "100a", "103", "103a", "120", "120a")
)


class Built(NamedTuple):
    """A build, and the version of the NVRTC that made it, as the library reports it: ``"13.0"``."""

    build: Build
    nvrtc: str


#: Compiles a unit for an arch, with headers of some paths; the last argument is the start time.
Compiler = Callable[["TranslationUnit", str, tuple[Path, ...], float], Built]


def build(
    unit: TranslationUnit, arch: str, *, cache: bool = True, compiler: Compiler | None = None
) -> Build:
    """Compile ``unit`` for ``arch``, or read it from the disk cache, where results are stored.

    ``arch`` is as for `normalize_arch`. ``CompileError`` if NVRTC refuses the unit or the
    arch, if registers spill, and if ptxas serializes wgmma: the message starts with the decisive
    line, ``.log`` has all of them. ``HeaderError`` if the headers or NVRTC are not
    installed. ``compiler``: the function that compiles, by default `compile_here`.
    """
    start = time.perf_counter()
    arch = normalize_arch(arch)
    paths = (*unit.folders, *include_paths())
    if not cache:
        return _compile(unit, arch, paths, start)

    return _once(unit, arch, lambda: (compiler or compile_here)(unit, arch, paths, start))


def _once(unit: TranslationUnit, arch: str, make: Callable[[], Built]) -> Build:
    """Return a build from the disk cache, or make and store it."""
    start, key = time.perf_counter(), _key(unit, arch, nvrtc_version())
    if stored := _stored(key, unit, arch):
        logger.debug("read %s for %s from the cache", unit.symbol, arch)
        return stored
    with store.locked(key):
        if stored := _stored(key, unit, arch):
            return stored
        built, used = make()
        # Another NVRTC may be loaded in the process (PyTorch brings one): then the build
        # is stored under its version.
        if nvrtc_version().split(".")[:2] != used.split("."):
            key = _key(unit, arch, used)
        store.put(key, built)
        took = time.perf_counter() - start
        logger.info("compiled %s for %s in %.2f s", unit.symbol, arch, took)
        return built


def _stored(key: str, unit: TranslationUnit, arch: str) -> Build | None:
    """Return the build of a key in the cache, if it has this entry and architecture."""
    found = store.get(key)
    return found if found and (found.symbol, found.arch) == (unit.symbol, arch) else None


def is_cached(unit: TranslationUnit, arch: str) -> bool:
    """Return whether the cache has a file of this build."""
    return store.has(_key(unit, normalize_arch(arch), nvrtc_version()))


def _key(unit: TranslationUnit, arch: str, nvrtc: str) -> str:
    """Return the key of a build; headers of CUTLASS and CUDA are read once per process."""
    own = (*unit.folders, templates_path())
    libraries = tuple(path for path in include_paths() if path not in own)
    digest = store.headers_digest(own) + _digest_of_libraries(libraries)
    return store.key(unit, digest, OPTIONS, arch, nvrtc)


_digest_of_libraries = functools.lru_cache(maxsize=8)(store.headers_digest)


def compile_here(unit: TranslationUnit, arch: str, paths: tuple[Path, ...], start: float) -> Built:
    """Compile in this process."""
    return Built(_compile(unit, arch, paths, start), loaded_nvrtc_version())


def prove(unit: TranslationUnit, arch: str) -> Proof:
    """Compile a unit for its asserts; ``CompileError`` names the first false one.

    Nothing is cached.
    """
    asserts = re.findall(r'static_assert\((.*?)(?:, "(.*)")?\);', unit.source)
    built = build(unit, arch, cache=False)
    return Proof(
        unit.source, tuple(name or fact for fact, name in asserts), built.arch, built.seconds
    )


def ptx(unit: TranslationUnit, arch: str) -> str:
    """Compile ``unit`` to PTX, or read it from the cache, with the options and errors of `build`.

    ptxas, which counts registers, does not run.
    """
    arch, start = normalize_arch(arch), time.perf_counter()
    virtual = arch.replace("sm_", "compute_")

    def make() -> Built:
        text, none = compile_ptx(unit, arch), Resources(0, 0, 0, 0, 0)
        took = time.perf_counter() - start
        build = Build(text.encode(), unit.symbol, virtual, none, took, False, "")
        return Built(build, loaded_nvrtc_version())

    return _once(unit, virtual, make).cubin.decode(errors="replace")


def compile_ptx(unit: TranslationUnit, arch: str, *, lines: bool = False) -> str:
    """Compile ``unit`` to PTX without the cache.

    ``lines``: whether the PTX has the source line of each instruction; the source is called `UNIT`
    there.
    """
    arch, paths = normalize_arch(arch), (*unit.folders, *include_paths())
    nvrtc = _nvrtc()
    # Not through cuda.core, which needs the driver for PTX.
    options = _options(arch.replace("sm_", "compute_"), paths, lines).as_bytes("nvrtc")
    _, program = nvrtc.nvrtcCreateProgram(unit.source.encode(), UNIT.encode(), 0, [], [])
    try:
        (code,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        if int(code):
            log = _text(program, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog)
            raise _from_log(log or code.name, arch)
        return _text(program, nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX)
    finally:
        nvrtc.nvrtcDestroyProgram(program)
        _trim_heap()


def _trim_heap() -> None:
    """Return freed memory to the system: glibc keeps some 200 MB that NVRTC used."""
    if _LIBC is not None and hasattr(_LIBC, "malloc_trim"):
        _LIBC.malloc_trim(0)


def _text(program: Any, size: Any, get: Any) -> str:
    """Return a text of NVRTC about a program; ``size`` and ``get`` are the functions for it."""
    _, length = size(program)
    buffer = b" " * length
    get(program, buffer)
    return buffer.decode(errors="replace").replace("\0", "").strip() + "\n"


def normalize_arch(arch: str | int | float) -> str:
    """Return ``"sm_90a"`` for ``"SM_90a"``, ``"90a"``, ``"9.0a"``, and ``"sm_90"`` for ``9.0``.

    ``UnsupportedError`` for a text that is not an architecture, ``CompileError``, with the known
    ones, for an architecture that the installed NVRTC does not know.
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
    (archs,) = _answer("nvrtcGetSupportedArchs")
    return tuple(f"sm_{number}" for number in sorted(archs))


def _unknown_arch(arch: str, known: tuple[str, ...]) -> CompileError:
    return CompileError(
        f"arch={arch!r} is not known to NVRTC {loaded_nvrtc_version()}, "
        f"which compiles for {', '.join(known)}"
    )


@functools.cache
def nvrtc_version() -> str:
    """Return the version of the installed NVRTC, ``"13.0.88"``.

    If there are several, it is that of `cuda_major`. The wheel's metadata has it in 0.1 ms;
    loading the library takes 30 ms. Without a wheel the library reports only
    ``"13.0"``.
    """
    versions = installed_versions("nvidia", r"nvidia_cuda_nvrtc(?:_cu\d+)?")
    release = f"{cuda_major()}."
    return next((x for x in versions if x.startswith(release)), None) or loaded_nvrtc_version()


@functools.cache
def loaded_nvrtc_version() -> str:
    """Return the version that the loaded NVRTC reports, ``"13.0"``."""
    return "{}.{}".format(*_answer("nvrtcVersion"))


def _answer(question: str) -> list[Any]:
    """Return the result of a query function of NVRTC."""
    code, *answer = getattr(_nvrtc(), question)()
    if int(code):
        raise HeaderError(f"{question} failed: {code.name}")
    return answer


@functools.cache
def _nvrtc() -> Any:
    """Return ``cuda.bindings.nvrtc`` with a loaded library of `cuda_major`."""
    from cuda.bindings import nvrtc

    expected = cuda_major()
    try:
        if expected == 12:
            _load_cuda_12()
        _, major, minor = nvrtc.nvrtcVersion()
    except (RuntimeError, OSError) as error:  # the bindings found no library
        raise HeaderError(f"NVRTC cannot be loaded: {install('nvrtc')}") from error
    if major != expected:  # PyTorch may have loaded its own
        raise HeaderError(
            f"NVRTC {major}.{minor} is loaded, expected that of CUDA {expected}, as cuda-bindings "
            f'is: pip install "cute-gemm[cu{major}]", or import nothing before that loads NVRTC'
        )
    return nvrtc


def _load_cuda_12() -> None:
    """Load NVRTC from its wheel for CUDA 12, so that `cuda.pathfinder` finds it loaded.

    With wheels of both versions it would load that of CUDA 13.
    """
    for root in package_dirs("nvidia"):
        for name in ("lib/libnvrtc.so.12", "bin/nvrtc64_120_0.dll"):
            if (path := root / "cuda_nvrtc" / name).exists():
                ctypes.CDLL(str(path))
                return


def _options(arch: str, paths: tuple[Path, ...], lines: bool = False) -> Any:
    """Return ``cuda.core.ProgramOptions``; ``lines``: with the source line of each instruction."""
    return cuda_core().ProgramOptions(
        name=UNIT, arch=arch, include_path=[*map(str, paths)], lineinfo=lines, **OPTIONS
    )


def _compile(unit: TranslationUnit, arch: str, paths: tuple[Path, ...], start: float) -> Build:
    _nvrtc()
    core = cuda_core()
    logs = io.StringIO()
    try:
        program = core.Program(unit.source, "c++", _options(arch, paths))
        # Not "ptx": cuda.core then needs the driver.
        with closing(program), interruptible():
            cubin = bytes(program.compile("cubin", logs=logs).code)
    except Exception as error:
        raise _explained(error, arch, logs.getvalue()) from error
    finally:
        _trim_heap()

    log = logs.getvalue().replace("\0", "").strip()
    resources = _checked_resources(log, unit)
    return Build(cubin, unit.symbol, arch, resources, time.perf_counter() - start, False, log)


def _explained(error: Exception, arch: str, log: str) -> Exception:
    """Return an exception of ``cuda.core`` as one whose message has the decisive line."""
    text = f"{error}\n{log}".replace("\0", "").strip()
    if os.strerror(errno.EMFILE) in text:
        return _no_files(text)
    if type(error).__name__ != "NVRTCError" and "NVRTC" not in text:
        return CompileError(f"{type(error).__name__}: {text}", text)
    # The message of cuda.core repeats the whole log after its own line.
    return _from_log(text.partition("compilation log:")[2].strip() or text, arch)


def _no_files(log: str) -> CompileError:
    return CompileError(
        "NVRTC cannot open its headers, because this process has reached its limit of open files: "
        "close some, or raise the limit (ulimit -n)",
        log,
    )


def _from_log(text: str, arch: str) -> CompileError:
    """Return the error whose message is the first decisive line of NVRTC's log."""
    if os.strerror(errno.EMFILE) in text:
        return _no_files(text)
    if re.search(r"--gpu-architecture|--nv_arch|-arch\b", text):
        return _unknown_arch(arch, known_archs())
    lines = [line.strip() for line in text.splitlines()]
    decisive = [line for line in lines if re.search(r"\b(error|fatal)\b", line)]
    first = next(filter(None, (*decisive, *lines)), text)
    count = len(re.findall(r": (?:catastrophic )?error\b", text))
    cut = len(first) > _LONGEST
    first = f"{first[:_LONGEST]} ..." if cut else first
    more = f"and {count - 1} more errors; " if count > 1 else ""
    return CompileError(f"{first} ({more}the whole log is in .log)" if more or cut else first, text)


def _checked_resources(log: str, unit: TranslationUnit) -> Resources:
    """Read ``ptxas -v``; raise if it spills more than the unit allows, or serializes wgmma."""
    symbol = unit.symbol
    serialised = re.search(r".*(?:C7509|C7510|wgmma.*serialized).*", log)
    if serialised:
        raise CompileError(f"{serialised[0].strip()}: a build that waits after each wgmma", log)
    spills = re.findall(
        r"Function properties for (\S+)\s+.*?"
        r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads",
        log,
    )
    stack = stored = loaded = 0
    for name, *figures in spills:
        frame, stores, loads = map(int, figures)
        if max(stores, loads) > unit.spills:
            raise CompileError(
                f"{name} spills registers ({stores} bytes of stores, {loads} bytes of loads per "
                "thread): use a smaller tile or min_ctas, fewer stages or more threads",
                log,
            )
        if name == symbol:
            stack, stored, loaded = frame, stores, loads
    entry = re.search(
        rf"Compiling entry function '{re.escape(symbol)}' for.*?Used (\d+) registers([^\n]*)",
        log,
        re.DOTALL,
    )
    if entry is None:
        raise CompileError(f"the unit has no entry named {symbol!r}", log)
    shared = re.search(r"(\d+) bytes smem", entry[2])
    static = int(shared[1]) if shared else 0
    return Resources(int(entry[1]), static, stored, loaded, stack)
