"""Test the wheel and the sdist: their content, and that they run without a checkout."""

import re
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest

import cute_gemm

pytest.importorskip("hatchling", reason="hatchling builds the wheel and the sdist")

ROOT = Path(__file__).parents[2]
REPOSITORY = "https://github.com/cute-gemm/cute-gemm"


def built(kind: str, source: Path, place: Path) -> Path:
    """Build a distribution of a folder with installed packages."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(place)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    [path] = place.iterdir()
    return path


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    return zipfile.ZipFile(built("wheel", ROOT, tmp_path_factory.mktemp("wheel")))


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> tarfile.TarFile:
    return tarfile.open(built("sdist", ROOT, tmp_path_factory.mktemp("sdist")))


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> Message:
    [name] = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    return message_from_bytes(wheel.read(name))


def files(folder: str) -> set[str]:
    """Return the files of a folder of the checkout."""
    paths = (path for path in (ROOT / folder).rglob("*") if path.is_file())
    return {path.relative_to(ROOT).as_posix() for path in paths if "__pycache__" not in path.parts}


def test_a_wheel_has_the_package_and_its_templates(wheel: zipfile.ZipFile) -> None:
    expected = files("cute_gemm") | {f"cute_gemm/{name}" for name in files("templates")}
    kept = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert {"cute_gemm/py.typed", "cute_gemm/templates/simt/naive.cuh"} < expected
    assert kept == expected


def test_an_sdist_has_what_a_checkout_has_and_builds_the_same_wheel(
    sdist: tarfile.TarFile, wheel: zipfile.ZipFile, tmp_path: Path
) -> None:
    sdist.extractall(tmp_path / "source", filter="data")
    [source] = (tmp_path / "source").iterdir()
    for name in ("CHANGELOG.md", "LICENSE", "README.md", "SECURITY.md", "mkdocs.yml", "docs",
                 "examples", "tests/conftest.py", "templates/simt/naive.cuh"):  # fmt: skip
        assert (source / name).exists(), name
    assert not (source / ".ci").exists()
    again = zipfile.ZipFile(built("wheel", source, tmp_path / "wheel"))
    for name in wheel.namelist():
        assert again.read(name) == wheel.read(name), name


def test_the_version_stands_in_one_place(metadata: Message) -> None:
    assert metadata["Version"] == cute_gemm.__version__
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "cute_gemm").rglob("*.py")]
    texts.append((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert sum(text.count(f'"{cute_gemm.__version__}"') for text in texts) == 1


def test_the_page_of_an_index_has_no_relative_links(metadata: Message) -> None:
    page = metadata.get_payload()
    links = re.findall(r"\]\(([^)#]*)", page)
    assert len(links) > 30 and all(link.startswith("https://") for link in links)
    for link in links:
        name = re.fullmatch(rf"{REPOSITORY}/blob/main/(.*)", link)
        assert name is None or (ROOT / name[1]).exists(), link
    pictures = re.findall(r"!\[[^]]*\]\(([^)]*)", page)
    raw = "https://raw.githubusercontent.com/cute-gemm/cute-gemm/main/"
    assert len(pictures) == 2
    for picture in pictures:
        assert picture.startswith(raw) and (ROOT / picture.removeprefix(raw)).is_file()


def test_what_pip_is_told(metadata: Message) -> None:
    extras = set(metadata.get_all("Provides-Extra"))
    assert extras == {"cu12", "cu13", "docs", "jax", "sass", "test", "torch"}
    urls = dict(text.split(", ") for text in metadata.get_all("Project-URL"))
    assert {"Homepage", "Documentation", "Source", "Changelog"} <= set(urls)
    assert all(url.startswith(REPOSITORY) for url in urls.values())
    assert metadata["License-File"] == "LICENSE" and metadata["Requires-Python"] == ">=3.10"


def test_a_wheel_runs_without_a_checkout(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    """Run in an empty directory, with the wheel's files instead of an editable install."""
    site, empty = tmp_path / "site", tmp_path / "empty"
    wheel.extractall(site)
    empty.mkdir()
    environment = {"PYTHONPATH": str(site), "CUTE_GEMM_CACHE_DIR": str(tmp_path / "cubins")}

    def said(*words: str) -> str:
        command = [sys.executable, *words]
        done = subprocess.run(command, cwd=empty, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert said("-c", "import cute_gemm; print(cute_gemm.__file__)").startswith(str(site))
    sizes = ("-m", "64", "-n", "64", "-k", "64", "--kernel", "naive", "--arch", "sm_80")
    assert "all within" in said("-m", "cute_gemm", "run", "TN", *sizes, "--backend", "cpu")
    assert str(site) in said("-m", "cute_gemm", "doctor")
    assert not list(empty.iterdir())
