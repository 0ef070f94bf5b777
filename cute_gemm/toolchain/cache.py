"""Cubins on disk, by content: a unit that was compiled once is never compiled again.

One file per build, named by the SHA-256 of its inputs: source, content of the
headers, options, architecture, NVRTC version. No path of the machine is included, so a cache
may be filled on one machine and copied to another. A file contains its name and checksum; a file
that is damaged, or has another build's name, is deleted and the build repeated.

The program cache of ``cuda.core`` is not used: importing it loads CUDA's bindings (0.12 s),
and a process that finds its cubin here should load nothing but the driver.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from cute_gemm._kept import Kept
from cute_gemm._log import logger
from cute_gemm._text import named
from cute_gemm.errors import OptionError, shown, warn
from cute_gemm.toolchain.cubin import Build, Resources

if TYPE_CHECKING:
    from cute_gemm.toolchain.unit import TranslationUnit

#: The first line of every file; a new number makes old files unread.
_MAGIC = b"cute_gemm build 2\n"
_SUFFIX = ".build"
#: Digests of headers by their files.
_MEMO = "headers.json"
#: Bytes of the longest file that is read; cubins of CUTLASS have 2 MB.
_LONGEST = 64 * 2**20
_warned: set[str] = set()
#: Bytes that this process may write before it scans all files again, by directory and limit.
_room: Kept[tuple[Path, int], float] = Kept(16)
#: Share of the limit that is freed at a time, and share of the free bytes that a process
#: writes before it scans again: other processes write too.
_FREED, _SHARE = 1 / 16, 1 / 8


@dataclass(frozen=True, slots=True)
class Entry:
    """One cached build: key, entry symbol, architecture, bytes on disk, and two times (Unix).

    ``created``: when the file was written; ``used``: when it was last read or written.
    """

    key: str
    symbol: str
    arch: str
    size: int
    created: float
    used: float


class Cleared(NamedTuple):
    """Result of `clear`: builds that were deleted, their bytes, and builds that remain."""

    removed: int
    bytes: int
    left: int


def directories() -> list[Path]:
    """Return the directories of builds: ``$CUTE_GEMM_CACHE_DIR``, or the user's cache directory.

    The variable may list several directories, as ``PATH`` does: the first is written to, the others
    are only read.
    """
    chosen = os.environ.get("CUTE_GEMM_CACHE_DIR", "").split(os.pathsep)
    places = [Path(name).expanduser() for name in chosen if name]
    if places:
        return places
    import platformdirs

    return [Path(platformdirs.user_cache_dir("cute_gemm", appauthor=False))]


def directory() -> Path:
    """Return the directory that builds are written to."""
    return directories()[0]


def limit() -> int:
    """Return the size limit of the cache in bytes: ``$CUTE_GEMM_CACHE_LIMIT``, by default 1 GiB.

    The variable is a number of bytes, or of ``K``, ``M`` or ``G`` (powers of 1024). Any other text
    raises OptionError.
    """
    text = os.environ.get("CUTE_GEMM_CACHE_LIMIT") or "1G"
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise OptionError(
            f"CUTE_GEMM_CACHE_LIMIT={text!r} is not a size; expected bytes, or 500M or 2G"
        )
    return int(float(match[1]) * 1024 ** " KMG".index(match[2].upper() or " "))


def key(
    unit: TranslationUnit, headers: str, options: Mapping[str, Any], arch: str, nvrtc: str
) -> str:
    """Return the name of a build: the SHA-256 of all its inputs, as hex."""
    encoded_options = json.dumps(options, sort_keys=True)
    parts = [_MAGIC.decode(), unit.source, unit.symbol, headers, encoded_options, arch, nvrtc]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def get(key: str) -> Build | None:
    """Return the build of a key, or None; delete a damaged file of the first directory."""
    start = time.perf_counter()
    own = directory()
    for place, data in _found(f"{key}{_SUFFIX}"):
        path = place / f"{key}{_SUFFIX}"
        try:
            build = _decode(key, data)
        except ValueError:
            _warn(f"{path} is damaged, or of another build; the kernel is compiled again.")
            if place == own:
                _remove(path)
            continue
        if place == own:
            with suppress(OSError):  # many file systems do not record the time of use
                os.utime(path, (time.time(), path.stat().st_mtime))
        return replace(build, seconds=time.perf_counter() - start)
    return None


def _found(name: str) -> Iterator[tuple[Path, bytes]]:
    """Yield directories with a file of that name, and its content; warn of unreadable files."""
    for place in directories():
        try:
            data = read(place / name)
        except OSError as error:
            if reason := _unread(place, name, error):
                _warn(f"{reason}; nothing is read from there. CUTE_GEMM_CACHE_DIR names it.")
            continue
        yield place, data


def _unread(place: Path, name: str, error: OSError) -> str:
    """Return why a file is not read, ``""`` if it is only missing.

    A missing first directory is no error: it is created by the first write.
    """
    if place == directory() and not os.path.lexists(place / name):
        return ""
    if isinstance(error, FileNotFoundError):
        return "" if place.is_dir() else f"{place} does not exist"
    return _reason(error, place / name)


def unread() -> list[str]:
    """Return why directories after the first are not read, a sentence for each."""
    reasons = []
    for place in directories()[1:]:
        try:
            with _opened(place / _MEMO):
                pass
        except OSError as error:
            reasons.append(_unread(place, _MEMO, error))
    return [reason for reason in reasons if reason]


def has(key: str) -> bool:
    """Return whether a directory has a file of this key; `get` checks its content."""
    for place in directories():
        with suppress(OSError), _opened(place / f"{key}{_SUFFIX}"):
            return True
    return False


@contextmanager
def locked(key: str) -> Iterator[None]:
    """Hold the lock of ``key``: other threads and processes wait until the block ends.

    A process that dies releases it. On file systems without locks, no process waits.
    """
    with ExitStack() as stack:
        with suppress(ImportError, OSError):
            _lock(_place() / f".{key}.lock", stack)
        yield


def _lock(path: Path, stack: ExitStack) -> None:
    """Hold the lock of a file, which is created for it, until a stack closes; or raise OSError.

    A link is not opened: it may point to one of the user's files.
    """
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    while True:
        with ExitStack() as opened:
            if sys.platform == "win32":
                opened.callback(_remove, path)  # a file that is open cannot be deleted there
            handle = os.open(path, flags, 0o600)
            opened.callback(os.close, handle)
            if sys.platform == "win32":
                import msvcrt

                msvcrt.locking(handle, msvcrt.LK_LOCK, 1)  # OSError after ten seconds
            else:
                import fcntl

                fcntl.flock(handle, fcntl.LOCK_EX)
                # A child forked meanwhile has the file open: closing would not unlock it.
                opened.callback(fcntl.flock, handle, fcntl.LOCK_UN)
            # Its last holder may have removed it: others may lock a new file of that name.
            with suppress(FileNotFoundError):
                if os.path.samefile(path, handle):
                    if sys.platform != "win32":
                        opened.callback(_remove, path)
                    stack.enter_context(opened.pop_all())
                    return


def _remove(path: Path) -> bool:
    """Delete a file; return whether it could be deleted."""
    with suppress(OSError):
        path.unlink()
        return True
    return False


def put(key: str, build: Build) -> None:
    """Store a build; if that is not possible, warn once and continue.

    Beyond the limit, the least recently used builds are deleted.
    """
    place = _writable()
    if place is None:
        return
    path, data, most = place / f"{key}{_SUFFIX}", _encode(key, build), limit()
    _write(path, data)
    left = _room.get((place, most), 0) - len(data)
    _room[place, most] = left if left > 0 else _make_room(path, most)


def _make_room(new: Path, most: int) -> float:
    """Delete the least recently used files above ``most`` bytes, and some more.

    Return the bytes that may be written before the next scan of all files, which takes 0.1 s with
    many files: too long for every build.
    """
    builds = [(path == new, _used(x), x.st_size, path) for path, x in _statuses()]
    total = sum(size for _, _, size, _ in builds)
    enough = most - most * _FREED if total > most else most
    for is_new, _, size, path in sorted(builds):
        if total <= enough or is_new:
            break
        if _remove(path):
            logger.info("removed %s from the cache: beyond %d bytes", path.stem, most)
        total -= size
    return (most - total) * _SHARE


def _statuses() -> Iterator[tuple[Path, os.stat_result]]:
    """Yield the builds of the first directory, each with its size and times."""
    for path in files():
        with suppress(OSError):
            yield path, path.stat()


def _used(status: os.stat_result) -> float:
    """Return when a file was last read, as `get` records, or written."""
    return max(status.st_atime, status.st_mtime)


def entries() -> list[Entry]:
    """Return every readable build in the cache, newest first."""
    entries = []
    for path, status in _statuses():
        with suppress(OSError, ValueError):
            data = read(path)
            build, times = _decode(path.stem, data), (status.st_mtime, _used(status))
            entries.append(Entry(path.stem, build.symbol, build.arch, len(data), *times))
    return sorted(entries, key=lambda entry: -entry.created)


def size() -> int:
    """Return the bytes that the cache takes on disk."""
    return sum(status.st_size for _, status in _statuses())


def clear() -> Cleared:
    """Delete every build that can be deleted."""
    count = freed = 0
    builds = files()
    for path in builds:
        with suppress(OSError):
            length = path.lstat().st_size
            path.unlink()
            count, freed = count + 1, freed + length
    _remove(directory() / _MEMO)
    return Cleared(count, freed, len(builds) - count)


def writable() -> str | None:
    """Return None if builds can be stored, otherwise the reason; give no warning."""
    import tempfile

    try:
        with tempfile.TemporaryFile(dir=_place()):
            return None
    except OSError as error:
        return _reason(error, directory())


# Files next to the builds -----------------------------------------------------------------------


def contents(name: str) -> list[bytes]:
    """Return the contents of the files of that name, in the order of `directories`."""
    return [data for _, data in _found(name)]


def warn_damaged(name: str, error: ValueError, command: str) -> None:
    """Warn once that a file next to the builds is not used; ``command`` makes a new one."""
    reason = shown(str(error))
    _warn(
        f"{name} of the kernel cache is not used: {reason}; `cute-gemm {command}` makes a new one."
    )


def file_of(kind: str, gpu: str) -> str:
    """Return the name of a GPU's file of a kind."""
    return f"{kind}-{re.sub('[^A-Za-z0-9.]+', '-', gpu)}.json"


def remove(kind: str) -> None:
    """Delete the files of a kind."""
    for path in files(f"{kind}-*.json"):
        _remove(path)


def put_file(name: str, data: bytes) -> None:
    """Store a file atomically; warn once if that is not possible."""
    place = _writable()
    if place is not None:
        _write(place / name, data)


# Headers ----------------------------------------------------------------------------------------


def headers_digest(paths: Sequence[Path]) -> str:
    """Return the SHA-256 of every header below ``paths``, names and content.

    Reading 45 MB takes 0.1 s, so digests are stored by the names, sizes and times of the files,
    which take 8 ms to read.
    """
    files = _trees(paths)
    state = hashlib.sha256(repr(files).encode()).hexdigest()

    digests: dict[str, str] = {}
    with suppress(OSError, ValueError, RecursionError):
        loaded = json.loads(read(directory() / _MEMO))
        digests = loaded if isinstance(loaded, dict) else {}
    if isinstance(digests.get(state), str):
        return digests[state]

    digest = _content_digest(files)
    newest = dict(list(digests.items())[-15:])  # one per install; old ones are dropped
    put_file(_MEMO, json.dumps({**newest, state: digest}).encode())
    return digest


def _content_digest(files: list[tuple[Path, list[tuple[str, int, int]]]]) -> str:
    content = hashlib.sha256()
    for root, tree in files:
        for name, length, _ in tree:
            content.update(f"{name}\0{length}\n".encode())
            content.update((root / name).read_bytes())
        content.update(b"\0")
    return content.hexdigest()


def _trees(roots: Sequence[Path]) -> list[tuple[Path, list[tuple[str, int, int]]]]:
    """Return the files below each root; a root below another one is not scanned again."""
    trees: dict[Path, list[tuple[str, int, int]]] = {}
    for root in sorted(roots, key=lambda root: len(root.parts)):
        outer = next((ancestor for ancestor in trees if ancestor in root.parents), None)
        if outer is None:
            trees[root] = _tree(root)
        else:
            below = f"{root.relative_to(outer).as_posix()}/"
            inside = (entry for entry in trees[outer] if entry[0].startswith(below))
            trees[root] = [(name[len(below) :], size, changed) for name, size, changed in inside]
    return [(root, trees[root]) for root in roots]


def _tree(root: Path) -> list[tuple[str, int, int]]:
    """Return (name below ``root``, bytes, modification time) of every file, in order."""
    pending, entries = [""], []
    while pending:
        below = pending.pop()
        with os.scandir(root / below) as listing:
            for item in listing:
                name = f"{below}{item.name}"
                if item.is_dir():
                    pending.append(f"{name}/")
                else:
                    status = item.stat()
                    entries.append((name, status.st_size, status.st_mtime_ns))
    return sorted(entries)


# Files ------------------------------------------------------------------------------------------


def _encode(key: str, build: Build) -> bytes:
    about = named(build, "symbol", "arch", "log")
    about |= {"key": key, "resources": asdict(build.resources)}
    body = json.dumps(about).encode() + b"\n" + build.cubin
    return _MAGIC + hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def _decode(key: str, data: bytes) -> Build:
    if not data.startswith(_MAGIC):
        raise ValueError("not a build")
    checksum, _, body = data[len(_MAGIC) :].partition(b"\n")
    if hashlib.sha256(body).hexdigest().encode() != checksum:
        raise ValueError("damaged")
    about, _, cubin = body.partition(b"\n")
    try:
        fields = json.loads(about)
        if fields.pop("key") != key:
            raise ValueError("another build")
        resources = Resources(**fields.pop("resources"))
        build = Build(cubin, seconds=0.0, cached=True, resources=resources, **fields)
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError("not a build") from error
    texts = all(isinstance(text, str) for text in (build.symbol, build.arch, build.log))
    if not texts or any(type(x) is not int or x < 0 for x in asdict(resources).values()):
        raise ValueError("not a build")
    return build


def _write(path: Path, data: bytes) -> None:
    """Write a file atomically: other processes see all or nothing."""
    import tempfile

    temporary = None
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None:
            _remove(Path(temporary))
        _warn_unwritten(error)


def read(path: Path) -> bytes:
    """Return the content of a file in a directory of the cache.

    OSError if it is not a file, is too long, or is writable by other users.
    """
    with _opened(path) as file:
        data = file.read(_LONGEST + 1)
    if len(data) > _LONGEST:
        raise OSError(f"{path} has more than {_LONGEST} bytes")
    return data


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file; OSError if it or its directory is writable by other users.

    The open file is checked, not the path, which may change meanwhile. A directory may
    be a link, as some home directories are; a file may not. Opening a FIFO does not block, and the
    access time does not change if this user may do so.
    """
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0)
    flags |= getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)
    with ExitStack() as stack:
        where, name = None, str(path)
        if os.open in os.supports_dir_fd:
            search = getattr(os, "O_PATH", os.O_RDONLY)  # permission to list it is not needed
            where, name = os.open(path.parent, search | os.O_DIRECTORY), path.name
            stack.callback(os.close, where)
            _trusted(path.parent, os.fstat(where))
        try:
            handle = os.open(name, flags | getattr(os, "O_NOATIME", 0), dir_fd=where)
        except PermissionError:
            handle = os.open(name, flags, dir_fd=where)
        file = stack.enter_context(open(handle, "rb"))
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{path} is not a file")
        _trusted(path, status)
        yield file


def files(pattern: str = f"*{_SUFFIX}") -> list[Path]:
    """Return the files of the first directory whose names match, by default the builds."""
    try:
        return sorted(directory().glob(pattern))
    except OSError:
        return []


def _place() -> Path:
    """Return the directory, which is created if it is missing; OSError if it is not trusted.

    Other users must not be able to write to it: cubins are executed.
    """
    place = directory()
    place.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        place.mkdir(mode=0o700)
    status = place.stat()
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(f"{place} is not a directory")
    _trusted(place, status)
    return place


def _trusted(path: Path, status: os.stat_result) -> None:
    """Raise OSError for a file or directory that other users can write to."""
    if hasattr(os, "geteuid"):
        if status.st_uid not in (os.geteuid(), 0):
            raise PermissionError(f"{path} belongs to another user")
        if status.st_mode & 0o022:
            raise PermissionError(f"{path} can be written by other users (chmod go-w fixes it)")


def _writable() -> Path | None:
    try:
        return _place()
    except OSError as error:
        _warn_unwritten(error)
        return None


def _reason(error: OSError, path: Path) -> str:
    return str(error) if error.errno is None else f"{path}: {error.strerror}"


def _warn_unwritten(error: OSError) -> None:
    _warn(
        f"the kernel cache cannot be used ({_reason(error, directory())}); kernels are compiled "
        "again in each process. Set CUTE_GEMM_CACHE_DIR to a directory that you can write to."
    )


def _warn(message: str) -> None:
    """Warn once in a process."""
    if message not in _warned:
        _warned.add(message)
        warn(message)
