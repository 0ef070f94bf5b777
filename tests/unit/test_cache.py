import hashlib
import os
import shutil
import stat
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from cases import in_threads

from cute_gemm.errors import OptionError
from cute_gemm.plan import tuned
from cute_gemm.toolchain import cache
from cute_gemm.toolchain.cubin import Build, Resources
from cute_gemm.toolchain.unit import TranslationUnit

BUILD = Build(
    cubin=b"\x7fELF\n\0" + bytes(range(256)) * 4, symbol="entry", arch="sm_80",
    resources=Resources(40, 1024, 0, 0, 8), seconds=1.5, cached=False, log="ptxas info\nénd",
)  # fmt: skip
KEY = hashlib.sha256(b"key").hexdigest()
POSIX = pytest.mark.skipif(sys.platform == "win32", reason="modes and links of POSIX")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cache, "_warned", set())
    place = tmp_path / "deep" / "cache"
    monkeypatch.setenv("CUTE_GEMM_CACHE_DIR", str(place))
    return place


def test_what_goes_in_comes_out() -> None:
    assert cache.get(KEY) is None
    cache.put(KEY, BUILD)
    found = cache.get(KEY)
    assert found is not None
    assert found.cached
    assert found.seconds < 1
    for name in ("cubin", "symbol", "arch", "resources", "log"):
        assert getattr(found, name) == getattr(BUILD, name)


def test_what_was_not_used_for_longest_goes(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, name in enumerate("abc"):
        cache.put(name, BUILD)
        os.utime(place / f"{name}.build", (100 + number, 100 + number))
    size = (place / "a.build").stat().st_size
    monkeypatch.setenv("CUTE_GEMM_CACHE_LIMIT", str(int(3.3 * size)))  # removes several at once
    assert cache.get("a") is not None  # now the newest entry
    assert {entry.key: entry.used > 1e9 for entry in cache.entries()} == {
        "a": True, "b": False, "c": False,
    }  # fmt: skip
    assert [entry.created for entry in cache.entries()] == [102, 101, 100]
    cache.put("d", BUILD)
    assert sorted(entry.key for entry in cache.entries()) == ["a", "c", "d"]
    monkeypatch.setenv("CUTE_GEMM_CACHE_LIMIT", "0")
    cache.put("e", BUILD)
    assert [entry.key for entry in cache.entries()] == ["e"]  # kept, because it is needed now


def test_few_builds_look_at_all_files(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0

    def files() -> list[Path]:
        nonlocal looks
        looks += 1
        return sorted(place.glob("*.build"))

    monkeypatch.setattr(cache, "files", files)
    cache.put("0", BUILD)
    size = (place / "0.build").stat().st_size
    monkeypatch.setenv("CUTE_GEMM_CACHE_LIMIT", str(1000 * size))
    for number in range(1500):
        cache.put(str(number), BUILD)
        assert number % 100 or len(os.listdir(place)) <= 1000
    assert looks < 300
    assert cache.get("1499") is not None and cache.get("1") is None


@pytest.mark.parametrize(
    ("text", "size"),
    [("", 2**30), ("7", 7), ("2k", 2048), ("1.5M", 3 * 2**19), ("2 GiB", 2**31), ("1GB", 2**30)],
)
def test_the_limit(text: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTE_GEMM_CACHE_LIMIT", text)
    assert cache.limit() == size


@pytest.mark.parametrize("text", ["much", "-1", "1T", "1e9"])
def test_what_is_no_limit(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTE_GEMM_CACHE_LIMIT", text)
    with pytest.raises(OptionError, match=f"CUTE_GEMM_CACHE_LIMIT='{text}' .*500M"):
        cache.limit()


def test_more_directories_are_read_only(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.put(KEY, BUILD)
    first, shared = tmp_path / "mine", tmp_path / "shared"
    shared.mkdir(mode=0o700)
    monkeypatch.setenv("CUTE_GEMM_CACHE_DIR", os.pathsep.join(map(str, (first, shared, place))))
    found = cache.get(KEY)
    assert found is not None and found.cubin == BUILD.cubin
    cache.put("other", BUILD)
    assert [entry.key for entry in cache.entries()] == ["other"]
    assert [path.name for path in first.iterdir()] == ["other.build"]
    assert cache.clear().removed == 1 and cache.get(KEY) is not None
    place.chmod(0o777)  # another user may have written it
    assert cache.get(KEY) is None
    place.chmod(0o700)
    (place / f"{KEY}.build").write_bytes(b"damaged")
    assert cache.get(KEY) is None and (place / f"{KEY}.build").exists()


def test_the_directory_is_private(place: Path) -> None:
    cache.put(KEY, BUILD)
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert [path.name for path in place.iterdir()] == [f"{KEY}.build"]  # no temporary file


def test_entries_size_and_clear(place: Path) -> None:
    assert (cache.entries(), cache.size(), cache.clear()) == ([], 0, (0, 0, 0))
    cache.put(KEY, BUILD)
    cache.put("other", BUILD)
    os.utime(place / "other.build", (1, 1))
    (place / "stray.build").write_bytes(b"x")
    (place / "note.txt").write_text("not ours")
    entries = cache.entries()
    assert [entry.key for entry in entries] == [KEY, "other"]
    assert (entries[0].symbol, entries[0].arch) == ("entry", "sm_80")
    assert entries[1].created == 1
    total = sum(entry.size for entry in entries) + 1
    assert cache.size() == total
    assert cache.clear() == (3, total, 0)
    assert [path.name for path in place.iterdir()] == ["note.txt"]
    assert cache.get(KEY) is None


@pytest.mark.parametrize("where", [0, 5, 20, 90, 130, 300, -1])
def test_a_damaged_file_is_noticed_and_deleted(place: Path, where: int) -> None:
    cache.put(KEY, BUILD)
    path = place / f"{KEY}.build"
    data = bytearray(path.read_bytes())
    data[where] ^= 1
    path.write_bytes(data)
    assert cache.get(KEY) is None
    assert not path.exists()
    cache.put(KEY, BUILD)
    assert cache.get(KEY) is not None


def test_a_build_under_the_name_of_another_is_not_taken(place: Path) -> None:
    cache.put(KEY, BUILD)
    path, other = place / f"{KEY}.build", hashlib.sha256(b"other").hexdigest()
    shutil.copy(path, place / f"{other}.build")
    assert [entry.key for entry in cache.entries()] == [KEY]
    assert cache.get(other) is None and not (place / f"{other}.build").exists()
    assert cache.get(KEY) is not None


@pytest.mark.parametrize("length", [0, 1, 18, 60, 200, -1])
def test_a_cut_file_is_noticed(place: Path, length: int) -> None:
    cache.put(KEY, BUILD)
    path = place / f"{KEY}.build"
    path.write_bytes(path.read_bytes()[:length])
    assert cache.get(KEY) is None


def test_where_nothing_can_be_written_it_warns_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("CUTE_GEMM_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.warns(UserWarning, match="compiled again in each process.*CUTE_GEMM_CACHE_DIR"):
        cache.put(KEY, BUILD)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache.put(KEY, BUILD)
        assert cache.get(KEY) is None
        assert cache.entries() == []
        assert cache.size() == 0
        assert len(cache.headers_digest([tmp_path])) == 64
    assert str(tmp_path) in (cache.writable() or "")


def test_a_full_disk_leaves_no_half_file(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache.os, "replace", full)
    with pytest.warns(UserWarning, match="No space left on device"):
        cache.put(KEY, BUILD)
    assert list(place.iterdir()) == []


@POSIX
@pytest.mark.parametrize("mode", [0o777, 0o770, 0o720, 0o702])
def test_a_directory_that_others_can_write_to_is_not_used(place: Path, mode: int) -> None:
    cache.put(KEY, BUILD)
    place.chmod(mode)
    assert cache.get(KEY) is None and not cache.has(KEY)
    with pytest.warns(UserWarning, match="can be written by other users"):
        cache.put("other", BUILD)
    assert "chmod go-w" in (cache.writable() or "")
    place.chmod(0o755)
    assert cache.get(KEY) is not None and cache.has(KEY)
    assert cache.writable() is None


@POSIX
@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_a_file_that_others_can_write_to_is_not_read(place: Path, mode: int) -> None:
    cache.put(KEY, BUILD)
    (place / f"{KEY}.build").chmod(mode)
    assert cache.get(KEY) is None and cache.entries() == []


@POSIX
def test_a_file_of_another_user_is_not_read(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.put(KEY, BUILD)
    asked, other = os.fstat, os.geteuid() + 1

    def fstat(handle: int) -> os.stat_result:
        status = asked(handle)
        if stat.S_ISDIR(status.st_mode):
            return status
        return os.stat_result((*status[:4], other, *status[5:]))

    monkeypatch.setattr(cache.os, "fstat", fstat)
    assert cache.get(KEY) is None


@POSIX
def test_what_is_not_read_is_said_once(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test later directories of the path too, and tuned configs as well as builds."""
    cache.put(KEY, BUILD)
    theirs, missing, good = tmp_path / "theirs", tmp_path / "missing", tmp_path / "good"
    for folder in (theirs, good):
        folder.mkdir(0o755)
    theirs.chmod(0o777)
    parts = (place, theirs, missing, good)
    monkeypatch.setenv("CUTE_GEMM_CACHE_DIR", os.pathsep.join(map(str, parts)))
    with pytest.warns(UserWarning, match="nothing is read from there") as said:
        assert cache.get("another") is None and cache.contents("tuned-A100.json") == []
    first, second = (str(each.message) for each in said)
    assert first.startswith(f"{theirs} can be written by other users (chmod go-w fixes it);")
    assert second.startswith(f"{missing} does not exist; nothing is read from there")
    assert cache.unread() == [first.partition(";")[0], second.partition(";")[0]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cache.get("another") is None and cache.get(KEY) is not None
    (place / f"{KEY}.build").chmod(0o602)
    with pytest.warns(UserWarning, match=f"{KEY}.build can be written by other users"):
        assert cache.get(KEY) is None


@POSIX
def test_a_file_may_not_be_a_link(place: Path, tmp_path: Path) -> None:
    cache.put(KEY, BUILD)
    path = place / f"{KEY}.build"
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert cache.get(KEY) is None and cache.entries() == []


@POSIX
def test_a_lock_that_is_a_link_leads_to_no_file(place: Path, tmp_path: Path) -> None:
    """Test a lock that links to a user's file, which opening it for writing would truncate."""
    cache.put(KEY, BUILD)
    (tmp_path / "precious").write_text("precious")
    (place / f".{KEY}.lock").symlink_to(tmp_path / "precious")
    with cache.locked(KEY):
        pass
    assert (tmp_path / "precious").read_text() == "precious"


@POSIX
@pytest.mark.parametrize("free", [True, False])
def test_a_lock_on_windows(free: bool, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Test ``msvcrt``, which times out. The file is deleted when it is closed."""
    seen = list[int]()

    class Msvcrt(ModuleType):
        LK_LOCK = 1

        @staticmethod
        def locking(handle: int, mode: int, count: int) -> None:
            assert (mode, count) == (1, 1) and list(place.glob(".*.lock"))
            seen.append(os.fstat(handle).st_ino)
            if not free:
                raise OSError("Resource deadlock avoided")

    monkeypatch.setitem(sys.modules, "msvcrt", Msvcrt("msvcrt"))
    monkeypatch.setattr(sys, "platform", "win32")
    with cache.locked(KEY):
        assert len(seen) == 1 and len(list(place.glob(".*.lock"))) == free
    assert not list(place.glob(".*.lock"))


@POSIX
def test_the_directory_that_was_asked_is_the_one_that_is_read(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test a link that is changed after its target was found to be the user's own directory."""
    cache.put(KEY, BUILD)
    theirs, link = tmp_path / "theirs", tmp_path / "link"
    shutil.copytree(place, theirs)
    evil = replace(BUILD, cubin=b"evil")
    (theirs / f"{KEY}.build").write_bytes(cache._encode(KEY, evil))
    theirs.chmod(0o777)
    link.symlink_to(place)
    monkeypatch.setenv("CUTE_GEMM_CACHE_DIR", str(link))
    trusted = cache._trusted

    def flips(*words: object) -> None:
        trusted(*words)
        link.unlink()
        link.symlink_to(theirs)

    monkeypatch.setattr(cache, "_trusted", flips)
    found = cache.get(KEY)
    assert found is not None and found.cubin == BUILD.cubin
    assert cache.get(KEY) is None


@POSIX
@pytest.mark.parametrize("name", [f"{KEY}.build", "tuned-x.json", "headers.json"])
def test_what_never_ends_is_not_read(place: Path, tmp_path: Path, name: str) -> None:
    cache.put(KEY, BUILD)
    (place / name).unlink(missing_ok=True)
    (place / name).symlink_to("/dev/zero")
    assert cache.get(KEY) is None or not name.endswith(".build")
    assert cache.contents(name) == [] and tuned.stored() == {} and len(cache.entries()) <= 1
    (tmp_path / "headers").mkdir()
    assert len(cache.headers_digest([tmp_path / "headers"])) == 64


def test_a_file_beyond_all_measure_is_not_read(place: Path) -> None:
    cache.put(KEY, BUILD)
    with (place / "tuned-x.json").open("wb") as file:
        file.truncate(2**40)  # sparse: no bytes on the disk
    assert cache.contents("tuned-x.json") == [] and tuned.stored() == {}


def test_writers_at_once_leave_a_whole_file() -> None:
    in_threads(lambda _: cache.put(KEY, BUILD), range(8))
    assert cache.get(KEY) is not None
    assert len(cache.entries()) == 1


def test_the_platform_chooses_without_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUTE_GEMM_CACHE_DIR")
    assert cache.directory().name.lower().startswith("cute_gemm") or (
        "cute_gemm" in cache.directory().parts
    )
    monkeypatch.setenv("CUTE_GEMM_CACHE_DIR", "~/x")
    assert cache.directory() == Path.home() / "x"


def test_everything_that_changes_a_cubin_changes_the_key() -> None:
    unit = TranslationUnit("source", "entry")
    keys = [
        cache.key(unit, "headers", {"std": "c++17"}, "sm_80", "13.0.88"),
        cache.key(replace(unit, source="s"), "headers", {"std": "c++17"}, "sm_80", "13.0.88"),
        cache.key(replace(unit, symbol="e"), "headers", {"std": "c++17"}, "sm_80", "13.0.88"),
        cache.key(unit, "headerz", {"std": "c++17"}, "sm_80", "13.0.88"),
        cache.key(unit, "headers", {"std": "c++20"}, "sm_80", "13.0.88"),
        cache.key(unit, "headers", {"std": "c++17"}, "sm_86", "13.0.88"),
        cache.key(unit, "headers", {"std": "c++17"}, "sm_80", "13.0.89"),
    ]
    assert len(set(keys)) == len(keys)
    assert keys[0] == cache.key(unit, "headers", {"std": "c++17"}, "sm_80", "13.0.88")


class TestHeadersDigest:
    @pytest.fixture
    def tree(self, tmp_path: Path) -> Path:
        root = tmp_path / "one"
        (root / "sub").mkdir(parents=True)
        (root / "a.h").write_text("a")
        (root / "sub" / "b.h").write_text("b")
        return root

    def test_content_counts_and_not_the_place(self, tree: Path, tmp_path: Path) -> None:
        digest = cache.headers_digest([tree])
        copy = shutil.copytree(tree, tmp_path / "two")
        assert cache.headers_digest([copy]) == digest
        (copy / "sub" / "b.h").write_text("c")
        assert cache.headers_digest([copy]) != digest

    def test_a_root_in_another_is_looked_at_once(
        self, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tree / "sub" / "a.h").write_text("z")
        (tmp_path / "one2").mkdir()
        roots = [tree / "sub", tree, tmp_path / "one2"]
        expected = [(root, cache._tree(root)) for root in roots]
        looked, tree_of = list[Path](), cache._tree
        monkeypatch.setattr(cache, "_tree", lambda root: looked.append(root) or tree_of(root))
        assert cache._trees(roots) == expected
        assert sorted(looked) == sorted(roots[1:])

    def test_names_count(self, tree: Path) -> None:
        digest = cache.headers_digest([tree])
        (tree / "a.h").rename(tree / "c.h")
        assert cache.headers_digest([tree]) != digest

    def test_an_edit_of_equal_length_is_seen(self, tree: Path) -> None:
        digest = cache.headers_digest([tree])
        before = (tree / "a.h").stat().st_mtime_ns
        (tree / "a.h").write_text("z")
        os.utime(tree / "a.h", ns=(before + 1000, before + 1000))
        assert cache.headers_digest([tree]) != digest

    def test_it_is_read_once_per_install(
        self, tree: Path, place: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        digest = cache.headers_digest([tree])
        with monkeypatch.context() as patch:
            patch.setattr(cache, "_content_digest", None)  # calling it would fail
            assert cache.headers_digest([tree]) == digest
        (place / "headers.json").write_text("{damaged")
        assert cache.headers_digest([tree]) == digest
        (place / "headers.json").write_text("[]")
        assert cache.headers_digest([tree]) == digest
        cache.clear()
        assert not (place / "headers.json").exists()
