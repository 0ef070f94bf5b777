"""Test concurrent, interrupted and killed builds: one process builds, and the others wait."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cases import in_threads

import cute_gemm as cg
from cute_gemm.errors import CompileError, UnsupportedError
from cute_gemm.kernels import base
from cute_gemm.toolchain import cache, nvrtc, workers
from cute_gemm.toolchain.cubin import Build, Resources
from cute_gemm.toolchain.headers import include_paths
from cute_gemm.toolchain.unit import TranslationUnit

#: A unit that takes a second.
SLOW = "#include <cute/tensor.hpp>\n" + 'extern "C" __global__ void entry(float* x) { x[0] = 1; }\n'
#: SIGINT as in a foreground process. Shells start background processes with SIGINT ignored.
LISTENS = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
BUILD = f"""
{LISTENS}
import sys, time
from cute_gemm.toolchain.nvrtc import build
from cute_gemm.toolchain.unit import TranslationUnit
unit = TranslationUnit({SLOW!r}, "entry")
print("ready", flush=True)
try:
    time.sleep(max(0.0, float(sys.argv[1]) - time.time()))
    print("cached" if build(unit, "sm_90a").cached else "built", flush=True)
except KeyboardInterrupt:
    print("KeyboardInterrupt", flush=True)
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CUTE_GEMM_CACHE_DIR", str(tmp_path / "cubins"))
    return tmp_path / "cubins"


def start(at: float) -> subprocess.Popen[str]:
    """Start a process that builds the slow unit at the given time."""
    command = [sys.executable, "-c", BUILD, str(at)]
    found = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert found.stdout is not None and found.stdout.readline() == "ready\n"
    return found


def test_processes_that_want_one_kernel_build_it_once(place: Path) -> None:
    at = time.time() + 1
    asking = [start(at) for _ in range(3)]
    said = [process.communicate(timeout=120)[0] for process in asking]
    assert sorted(said) == ["built\n", "cached\n", "cached\n"]
    assert not list(place.glob(".*"))


def test_threads_that_want_one_kernel_build_it_once(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built, compile_ = [], nvrtc._compile
    monkeypatch.setattr(nvrtc, "_compile", lambda *given: built.append(1) or compile_(*given))
    unit = TranslationUnit('extern "C" __global__ void entry(float* x) { x[0] = 1; }', "entry")
    in_threads(lambda _: nvrtc.build(unit, "sm_90a"), range(8))
    assert built == [1] and len(cache.entries()) == 1


def plans(count: int) -> list[cg.Plan]:
    """Return plans of different kernels."""
    tiles = [(32, 2**i, 1) for i in range(count)]
    sizes = {"m": 64, "n": 64, "k": 64, "dtype": "float32", "arch": "sm_90a", "backend": "cpu"}
    return [cg.plan("NN", kernel="naive", tile=tile, **sizes) for tile in tiles]


@pytest.fixture
def compiler(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Replace NVRTC by a function in which two builds end together, and which rejects a tile."""
    together, began = threading.Barrier(2), list[str]()

    def compile_(unit: TranslationUnit, *_: object) -> Build:
        began.append(unit.symbol)
        if "32x8" in unit.symbol:
            raise CompileError("it spills")
        together.wait(20)
        return Build(b"", unit.symbol, "sm_90a", Resources(1, 0, 0, 0, 0), 0.0, False, "")

    monkeypatch.setattr(nvrtc, "_compile", compile_)
    monkeypatch.setattr(base, "_builds", {})
    monkeypatch.setattr(workers, "at_once", lambda builds: 1)
    pool = ThreadPoolExecutor(2)
    monkeypatch.setattr("cute_gemm.toolchain.workers.builders", lambda: pool)
    yield began
    pool.shutdown()


def test_plans_are_built_at_once(compiler: list[str]) -> None:
    asked, told = plans(2), list[tuple[int, int]]()
    builds = cg.compile(asked, tell=lambda *done: told.append(done))
    assert [build.symbol for build in builds] == [plan.symbol for plan in asked]
    assert told == [(0, 2), (1, 2), (2, 2)] and len(compiler) == 2
    assert [plan.build.symbol for plan in asked] == [build.symbol for build in builds]
    assert len(compiler) == 2


def test_what_cannot_be_built_does_not_keep_the_others(compiler: list[str]) -> None:
    with pytest.raises(CompileError, match="it spills"):
        cg.compile([plans(4)[3], *plans(2)])
    assert len(compiler) == 3 and len(cache.entries()) == 2


def test_whether_a_kernel_is_built_is_asked_of_its_key(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "_builds", {})
    first, second = plans(2)
    assert not first.built and not second.built
    built = Build(b"", first.symbol, "sm_90a", Resources(1, 0, 0, 0, 0), 0.0, False, "")
    monkeypatch.setattr(nvrtc, "_compile", lambda *_: built)
    first.build  # noqa: B018
    monkeypatch.setattr(base, "_builds", {})
    monkeypatch.setattr(cache, "get", lambda key: pytest.fail("nothing is read"))
    monkeypatch.setattr(cache, "entries", lambda: pytest.fail("nothing is read"))
    again, other = plans(2)
    assert again.built and not other.built
    monkeypatch.setenv("CUTE_GEMM_CACHE_DIR", os.pathsep.join((str(place) + "2", str(place))))
    assert again.built and not other.built  # in any of the directories


@pytest.fixture
def hands() -> Iterator[workers.Workers]:
    """Yield a pool of processes that compile, none of which has been started."""
    made = workers.Workers()
    yield made
    made.close()
    assert all(worker.poll() is not None for worker in made._all)


PATHS = (*include_paths(),)
GOOD = TranslationUnit('extern "C" __global__ void entry(float* x) { x[0] = 1; }', "entry")


def test_a_process_builds_what_this_one_would(hands: workers.Workers, place: Path) -> None:
    here = nvrtc.build(GOOD, "sm_90a", cache=False)
    there = nvrtc.build(GOOD, "sm_90a", compiler=hands.compile)
    assert (there.cubin, there.resources) == (here.cubin, here.resources)
    assert "ptxas info" in there.log
    assert len(hands._all) == 1 and not there.cached
    assert nvrtc.build(GOOD, "sm_90a").cached and len(cache.entries()) == 1


def test_a_process_says_what_is_wrong_and_goes_on(hands: workers.Workers) -> None:
    bad = TranslationUnit("int x = nothing;\nint y = anything;", "entry")
    with pytest.raises(CompileError, match="nothing.*1 more error") as caught:
        hands.compile(bad, "sm_90a", PATHS, 0.0)
    assert caught.value.log.count("error") >= 2
    assert hands.compile(GOOD, "sm_90a", PATHS, 0.0).build.symbol == "entry"
    assert len(hands._all) == 1


def test_what_a_process_that_died_was_to_compile_is_compiled_here(hands: workers.Workers) -> None:
    hands.compile(GOOD, "sm_90a", PATHS, 0.0)
    hands._all[0].kill()
    assert hands.compile(GOOD, "sm_90a", PATHS, 0.0).build.symbol == "entry"


def test_where_no_process_can_be_started_all_is_compiled_here(
    hands: workers.Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert hands.compile(GOOD, "sm_90a", PATHS, 0.0).build.symbol == "entry"
    assert hands._all == []


#: A script without a main guard. If another process imported it, it would build again.
SCRIPT = """
import sys, cute_gemm as cg
from cute_gemm.toolchain import workers
workers.at_once = lambda builds: min(builds, 3)
print("begun", flush=True)
sizes = {"m": 64, "n": 64, "k": 64, "arch": "sm_90a", "backend": "cpu"}
plans = [
    cg.plan(op, dtype=dtype, kernel="sm80_pipeline", **sizes)
    for op in ("NN", "TN") for dtype in ("float16", "float32", "float64")
]
try:
    builds = cg.compile(plans, lambda *told: print(*told, flush=True))
    print("built", sum(not build.cached for build in builds))
except KeyboardInterrupt:
    print("KeyboardInterrupt")
"""


def test_a_script_without_a_guard_builds_in_processes(place: Path) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    said = ["begun", *(f"{number} 6" for number in range(7)), "built 6"]
    assert (done.stdout.splitlines(), done.stderr, done.returncode) == (said, "", 0)
    assert len(cache.entries()) == 6 and not list(place.glob(".*"))


def compiling(script: str) -> tuple[subprocess.Popen[str], set[int]]:
    """Return a process whose first kernel is built, and the ids of its children."""
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(3)] == ["begun\n", "0 6\n", "1 6\n"]
    found = children(process)
    assert len(found) == 3
    return process, found


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="children as Linux tells them")
def test_ctrl_c_ends_the_processes_that_compile(place: Path) -> None:
    process, found = compiling(LISTENS + SCRIPT)
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (out.splitlines()[-1], err, process.returncode) == ("KeyboardInterrupt", "", 0)
    assert not [child for child in found if Path(f"/proc/{child}").exists()]
    assert {path.suffix for path in place.iterdir()} == {".build", ".json"}


def children(process: subprocess.Popen[str]) -> set[int]:
    """Return the ids of processes that any thread of a process started."""
    tasks = Path(f"/proc/{process.pid}/task").glob("*/children")
    return {int(child) for task in tasks for child in task.read_text().split()}


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="children as Linux tells them")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_processes_that_compile_end_in_silence_with_who_started_them(
    place: Path, number: int
) -> None:
    process, found = compiling(SCRIPT)
    process.send_signal(number)
    # Children also hold standard error, so it ends with the last of them.
    _, err = process.communicate(timeout=60)
    assert (err, process.returncode) == ("", -number)
    assert not [child for child in found if Path(f"/proc/{child}/exe").exists()]


def test_a_launch_of_several_plans_is_built_and_counted_once(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test that the packing kernel of A is shared by both plans, and that progress counts files."""
    built: list[str] = []

    def compile_(unit: TranslationUnit, arch: str, *_: object) -> Build:
        built.append(unit.symbol)
        return Build(b"", unit.symbol, arch, Resources(1, 0, 0, 0, 0), 0.0, False, "")

    monkeypatch.setattr(nvrtc, "_compile", compile_)
    monkeypatch.setattr(base, "_builds", {})
    monkeypatch.setattr(workers, "at_once", lambda builds: 1)
    sizes = {"m": 64, "n": 64, "k": 64, "dtype": "float16", "arch": "sm_80", "backend": "cpu"}
    asked = [
        cg.plan("NN", kernel="sm80_pipeline", pack="A", stages=stages, **sizes) for stages in (2, 3)
    ]
    told: list[tuple[int, int]] = []
    found = cg.compile(asked, lambda *done: told.append(done))
    assert [one.symbol for one in found] == [one.symbol for one in asked]
    assert len(built) == len(set(built)) == len(cache.entries()) == 3
    assert told == [(0, 3), (1, 3), (2, 3), (3, 3)]


def test_a_plan_of_which_nothing_is_compiled_is_refused() -> None:
    host = cg.plan("NN", m=4, n=4, k=4, dtype="float32", kernel="host")
    with pytest.raises(UnsupportedError, match="kernel 'host' is a loop in Python"):
        cg.compile([host])


FORKS = """
import os, sys, time, cute_gemm as cg
from cute_gemm.toolchain import cache
def plan(n):
    return cg.plan("NN", m=64, n=64, k=64, dtype="float32", kernel="naive", tile=(32, n, 1),
                   arch="sm_80", backend="cpu")
plan(1).prepare().result()
with cache.locked("k"):
    child = os.fork()
    if child:
        time.sleep(0.5)
    else:
        with cache.locked("k"):  # waits for the parent alone
            print("waited", flush=True)
if child:
    sys.exit(os.waitpid(child, 0)[1])
plan(2).prepare().result(60)
cg.compile([plan(4)])
print("built", flush=True)
os._exit(0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is forked here")
def test_a_child_that_was_forked_builds_too(place: Path) -> None:
    """Test that a forked child does not have the parent's build threads."""
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=90)
    assert (done.stdout, done.stderr, done.returncode) == ("waited\nbuilt\n", "", 0)
    assert len(cache.entries()) == 3


def test_who_is_killed_lets_go(place: Path) -> None:
    holds = "from cute_gemm.toolchain import cache\nwith cache.locked('k'):\n print(1, flush=True)"
    command = [sys.executable, "-c", f"{holds}\n import time; time.sleep(60)"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "1\n"
        entered = threading.Event()

        def wait() -> None:
            with cache.locked("k"):
                entered.set()

        thread = threading.Thread(target=wait)
        thread.start()
        assert not entered.wait(0.3)
        process.kill()
        assert entered.wait(10)
        thread.join()
    assert not list(place.glob(".*"))


def test_one_at_a_time_holds_a_lock(place: Path) -> None:
    """Test that each holder removes the lock file while others have it open."""
    inside: list[int] = []
    most = 0

    def hold() -> None:
        nonlocal most
        for _ in range(50):
            with cache.locked("k"):
                inside.append(1)
                most = max(most, len(inside))
                time.sleep(0.0002)
                inside.pop()

    threads = [threading.Thread(target=hold) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    assert not list(place.glob(".*"))


def test_where_nothing_can_be_locked_everybody_builds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("CUTE_GEMM_CACHE_DIR", str(tmp_path / "file"))
    with cache.locked("k"), cache.locked("k"):
        pass


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="signals as POSIX has them")
def test_ctrl_c_while_a_unit_is_compiled(place: Path) -> None:
    """Test Ctrl-C. NVRTC's own handler would end the process with status 4."""
    process = start(0.0)
    time.sleep(0.5)  # a compilation takes a second
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (out, process.returncode) == ("KeyboardInterrupt\n", 0), err
    again = start(0.0)
    assert again.communicate(timeout=60)[0] in ("built\n", "cached\n")
    assert {path.suffix for path in place.iterdir()} == {".build", ".json"}


def test_threads_import_what_compiles_at_once() -> None:
    """Test that each thread gets a complete ``cuda.core``, also while another one imports it."""
    program = """
import sys, threading
from cute_gemm._cuda_core import cuda_core
found = []
sys.setswitchinterval(1e-5)
threads = [threading.Thread(target=lambda: found.append(cuda_core().Program)) for _ in range(16)]
[thread.start() for thread in threads], [thread.join() for thread in threads]
sys.exit(len(found) != 16)
"""
    processes = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(6)]
    assert [process.wait(timeout=60) for process in processes] == [0] * 6
