"""Test the benchmark on a fake GPU that computes with NumPy."""

import itertools
import json
from dataclasses import asdict, replace
from types import SimpleNamespace

import fake_gpu
import numpy as np
import pytest

import cute_gemm as cg
from cute_gemm.commands import bench as bench_command
from cute_gemm.commands import cli
from cute_gemm.commands.arguments import parse_sizes
from cute_gemm.errors import LaunchError, NoGpuError, OptionError, UnknownKernelError
from cute_gemm.kernels import registry
from cute_gemm.kernels.library import cublas
from cute_gemm.measure import bench
from cute_gemm.measure.result import BenchResult
from cute_gemm.measure.timed import Timing, time_plan
from cute_gemm.problem.describe import from_sizes
from cute_gemm.run import driver as devices

M, N, K = 5, 4, 3


@pytest.fixture
def gpu(monkeypatch) -> fake_gpu.FakeGpu:
    return fake_gpu.install(monkeypatch)


def timing_of(gpu, milliseconds: float, rounds: int) -> Timing:
    """Time a kernel that takes this long, with matrices that must not change."""
    gpu.add("one", milliseconds)
    rng = np.random.default_rng(0)
    A, B, C = (np.asfortranarray(rng.random(shape)) for shape in ((M, K), (K, N), (M, N)))
    before = C.copy()
    timing = time_plan(cg.plan("NN", A, B, C, kernel="one"), A, B, C, rounds=rounds)
    assert not gpu.memory and (before == C).all()
    return timing


def test_a_timing_is_next_to_cublas(gpu):
    gpu.cublas = 1.0
    timing = timing_of(gpu, 2.0, 8)
    assert timing.ratio == pytest.approx(0.5)
    assert (timing.calls, timing.rounds) == (5, 8)
    assert (timing.milliseconds, timing.cublas_milliseconds) == pytest.approx((2.0, 1.0))
    assert timing.teraflops == pytest.approx(2 * M * N * K / 2e9)
    assert "0.500 of cuBLAS 13.1 (1 ms; median of 8 interleaved rounds of 5 calls)" in str(timing)


def test_without_cublas_there_is_no_ratio(gpu):
    gpu.cublas = None
    timing = timing_of(gpu, 2.0, 3)
    assert timing.ratio is timing.cublas_milliseconds is None
    assert timing.milliseconds == pytest.approx(2.0)
    assert "no cuBLAS found" in str(timing)
    assert set(asdict(timing)) >= {"milliseconds", "teraflops", "ratio"}


def test_what_cublas_refuses_has_no_ratio(gpu, monkeypatch):
    def refuse(*_):
        raise cublas.CublasError("cuBLAS does not support it")

    monkeypatch.setattr(gpu, "bind_cublas", lambda *_: refuse)
    assert "no ratio to cuBLAS: cuBLAS does not support it" in str(timing_of(gpu, 2.0, 3))


# -- many kernels and sizes -------------------------------------------------------------------

SIZE = (40, 30, 20)


def run(gpu, *kernels: str, **arguments):
    """Bench a small size, and return the result and its only size."""
    arguments = {"sizes": [SIZE], **arguments}
    found = bench.bench(kernels=kernels, **arguments)
    assert not gpu.memory  # all memory was freed
    return found, found.sizes[0]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "complex64", "int8"])
@pytest.mark.parametrize("order", ["F", "C"])
def test_speed_is_of_the_device_and_next_to_cublas(gpu, dtype, order):
    gpu.add("fast", 1.0), gpu.add("slow", 4.0)
    found, size = run(gpu, "fast", "slow", dtype=dtype, order=order)
    assert found.ok and found.ops == ("NN", "NT", "TN", "TT")
    assert size.kernels == ("fast", "slow", "cublas")
    operations = 40 * 30 * 20 * (8 if dtype == "complex64" else 2)
    for op in found.ops:
        slow, fast = size.find("slow", op), size.find("fast", op).speed
        assert (slow.outcome, slow.config) == ("ok", f"slow_{op}")
        assert slow.max_error is not None and slow.max_error < 0.1
        assert slow.speed.milliseconds == pytest.approx(4)
        assert slow.speed.gflops == pytest.approx(operations / 4e6)
        assert (slow.speed.of_cublas, fast.of_cublas) == pytest.approx((0.5, 2.0))
        assert (slow.speed.calls, fast.calls, fast.rounds) == (2, 10, 9)
        assert size.find("cublas", op).speed.of_cublas == 1


@pytest.mark.parametrize("compute", [None, "fast_accum"])
def test_8_bit_floats_have_no_cublas_beside_them(gpu, compute):
    gpu.add("fast", 1.0)
    found, size = run(gpu, "fast", dtype="float8_e4m3fn", compute=compute)
    assert found.ok and found.compute == (compute or "float32")
    assert all(size.find("fast", op).speed for op in found.ops)
    said = "cublasGemmEx takes no float8_e4m3fn, which is for cublasLtMatmul"
    with pytest.raises(cublas.CublasError, match=said):
        cublas.call(from_sizes("TN", m=8, n=8, k=8, dtype="float8_e4m3fn", compute=found.compute))


def test_speed_is_beside_the_roofline(gpu):
    gpu.add("fast", 1.0)
    _, size = run(gpu, "fast", ops=["NN"])
    roof = size.roofline
    assert (roof.unit, roof.peak_tflops, roof.bound) == ("CUDA cores", 66.9, "memory")
    assert roof.attainable_tflops < 66.9
    speed = size.find("fast", "NN").speed
    assert speed.of_roofline == pytest.approx(speed.gflops / roof.attainable_tflops / 1e3)


def test_a_gpu_that_is_not_known_has_no_roofline(gpu, monkeypatch):
    monkeypatch.setattr(devices, "device_name", lambda device: "NVIDIA Voodoo 3")
    gpu.add("fast")
    found, size = run(gpu, "fast", ops=["NN"])
    assert size.roofline is size.find("fast", "NN").speed.of_roofline is None
    assert "Voodoo" in str(found) and "roofline" not in str(found)


@pytest.mark.parametrize("kind", ["wrong", "does nothing"])
def test_a_wrong_kernel_has_no_speed(gpu, kind):
    gpu.add("fast"), gpu.add("bad", kind=kind)
    found, size = run(gpu, "bad", "fast", ops=["NN", "TN"])
    assert not found.ok
    for op in ("NN", "TN"):
        bad = size.find("bad", op)
        assert (bad.outcome, bad.speed) == ("wrong", None)
        assert "of 1,200 elements are out of bound" in bad.reason
        assert size.find("fast", op).speed is not None
    assert sum(name == "bad" for name, _, _ in gpu.ran) == 2  # never timed
    if kind == "wrong":
        assert "1 of 1,200" in bad.reason and "(3, 4)" in bad.reason


def test_one_wrong_op_is_only_that_op(gpu):
    gpu.add("bad", kind="wrong TN")
    _, size = run(gpu, "bad")
    assert [size.find("bad", op).outcome for op in bench.OPS] == ["ok", "ok", "wrong", "ok"]


def test_without_a_check_wrong_is_as_good_as_right(gpu):
    gpu.add("bad", kind="wrong")
    found, size = run(gpu, "bad", check=False)
    assert found.ok and not found.checked
    assert size.find("bad", "NN").speed is not None
    assert size.find("bad", "NN").max_error is None
    assert "not checked" in str(found)


def test_what_a_kernel_does_not_take_is_no_failure(gpu):
    gpu.add("picky", kind="refuses TN"), gpu.add("fussy", kind="refuses")
    found, size = run(gpu, "picky", "fussy")
    assert found.ok
    assert size.find("picky", "NN").outcome == "ok"
    assert size.find("picky", "TN").outcome == size.find("fussy", "NN").outcome == "refused"
    text = str(found)
    assert "- picky TN: kernel 'picky' takes no K of 20" in text
    assert "- fussy: kernel 'fussy' takes no K of 20" in text  # every op, so none is named


def test_a_build_that_fails_is_a_failure_of_that_kernel(gpu):
    gpu.add("broken", kind="does not compile"), gpu.add("fast")
    found, size = run(gpu, "broken", "fast", ops=["NN"])
    assert not found.ok
    assert size.find("broken", "NN").outcome == "failed"
    assert "- broken: FAILED: it spills 12 bytes\n" in str(found)
    assert size.find("fast", "NN").speed is not None


def test_a_kernel_that_cannot_be_launched_is_a_failure_too(gpu):
    gpu.add("huge", kind="is not launched"), gpu.add("fast")
    found, size = run(gpu, "huge", "fast", ops=["NN"])
    assert not found.ok
    assert size.find("huge", "NN").reason == "too much shared memory"
    assert size.find("fast", "NN").speed is not None


def test_a_kernel_that_crashes_is_named(gpu):
    gpu.add("crash", kind="crashes")
    with pytest.raises(LaunchError, match="crash NN: waiting .*ILLEGAL_ADDRESS"):
        bench.bench(["NN"], ["crash"], [SIZE])


def test_without_cublas_there_are_no_shares(gpu):
    gpu.cublas = None
    gpu.add("fast")
    found, size = run(gpu, "fast", ops=["NN"])
    assert found.ok
    assert size.find("fast", "NN").speed.of_cublas is None
    assert size.find("cublas", "NN").outcome == "refused"
    assert "- cublas: no cuBLAS found" in str(found)


def test_calls_take_copies_past_l2_in_turn(gpu):
    gpu.add("fast", 1.0)
    _, size = run(gpu, "fast", sizes=[(400, 300, 2)], ops=["NN"])
    assert size.copies == 2 * fake_gpu.L2_BYTES // (4 * (400 * 300 + 700 * 2)) + 1 == 5
    used = [c for name, _, c in gpu.ran if name in ("fast", "cublas")]
    assert len(set(used)) == 5
    timed = used[2:]  # without the checks
    assert all(len(set(timed[i : i + 5])) == 5 for i in range(len(timed) - 5))


def test_ops_and_kernels_share_the_rounds(gpu):
    gpu.add("a", 20.0), gpu.add("b", 20.0)
    run(gpu, "a", "b", ops=["NN", "TT"], rounds=4)
    timed = gpu.ran[-4 * (2 * 2 * 1 + 2 * 5) :]
    a_round = len(timed) // 4
    for start in range(0, len(timed), a_round):
        seen = {(name, op) for name, op, _ in timed[start : start + a_round]}
        assert seen == set(itertools.product(("a", "b", "cublas"), ("NN", "TT")))


def test_the_host_is_timed_by_the_wall_clock_on_small_sizes(gpu, monkeypatch):
    gpu.add("fast")
    found, size = run(gpu, "host", "fast", ops=["NN", "TN"])
    host = size.find("host", "TN")
    assert host.outcome == "ok" and host.max_error < 1e-4
    assert 0 < host.speed.of_cublas == pytest.approx(2.0 / host.speed.milliseconds, rel=1)
    monkeypatch.setattr(bench, "_HOST_MNK", 40 * 30 * 20 - 1)
    found, size = run(gpu, "host", "fast", ops=["NN"])
    assert found.ok and size.find("host", "NN").outcome == "refused"
    assert "2^30" in str(found)


def test_the_host_needs_no_gpu(monkeypatch):
    monkeypatch.setattr(devices, "why_no_gpu", lambda: "there is none")
    found = bench.bench(["NN", "CT"], "host", [16, SIZE], "complex64", rounds=2)
    assert found.ok and found.gpu is None
    assert [size.label for size in found.sizes] == ["16", "40x30x20"]
    assert all(entry.speed.of_cublas is None for size in found.sizes for entry in size.entries)
    assert "cuBLAS" not in str(found)
    batch = bench.bench(["TN"], "host", [16, (9, 8, 7)], order="C", l=3, rounds=2, pad=1)
    assert "leading dimensions of A and B + 1" in str(batch)
    assert batch.ok and [size.label for size in batch.sizes] == ["3 x 16", "3 x 9x8x7"]
    assert batch.to_dict()["sizes"][0]["l"] == 3 and "M=9 N=8 K=7 L=3" in str(batch)
    for more in ({"kernels": ["host", "naive"]}, {"kernels": "host", "against": [print]}):
        with pytest.raises(NoGpuError, match="there is none"):
            bench.bench(sizes=[16], **more)


def test_names_of_kernels(gpu, monkeypatch):
    names = ("host", gpu.add("one"), gpu.add("two"))
    monkeypatch.setattr(registry, "LADDER", names, raising=False)
    monkeypatch.setattr(registry, "names", lambda: (*names, gpu.add("three")))

    def listed(kernels):
        return bench.bench(["NN"], kernels, [16], rounds=1).sizes[0].kernels

    assert listed("ladder") == (*names, "cublas")
    assert listed("all") == (*names, "three", "cublas")
    assert listed("two, one,two") == listed(["two", "one"]) == ("two", "one", "cublas")
    assert listed(["cublas", "one"]) == ("one", "cublas")
    with pytest.raises(UnknownKernelError, match="'four'"):
        listed("one,four")


def test_kernels_with_options():
    def named(kernels, **options):
        return {one.name: one.options for one in bench.asked(kernels, options)}

    words = "sm80_pipeline[tile=64,64,32,stages=3], sm80_pipeline[stages=4],auto[pack=B],cublas"
    assert named(words) == {
        "sm80_pipeline[tile=64x64x32,stages=3]": {"tile": (64, 64, 32), "stages": 3},
        "sm80_pipeline[stages=4]": {"stages": 4}, "auto[pack=B]": {"pack": "B"}, "cublas": {},
    }  # fmt: skip
    assert named(["sm80_pipeline", "sm80_pipeline[stages=4]", "host", "cublas"], stages=2) == {
        "sm80_pipeline[stages=2]": {"stages": 2},
        "sm80_pipeline[stages=4]": {"stages": 4},
        "host": {},
        "cublas": {},
    }
    for words, part in (
        ("cublas[stages=4]", "'cublas' takes no options"),
        ("naive[stages=4]", "'naive' has no option 'stages'; expected one of "),
        ("sm80_pipeline[stagse=4]", "did you mean stages"),
        ("sm80_pipeline[stages]", "has 'stages'; expected NAME=VALUE"),
    ):
        with pytest.raises(OptionError, match=part):
            named(words)
    with pytest.raises(UnknownKernelError):
        named("sm80_pipeline[stages=4")


def test_two_configs_of_a_kernel_are_two_entries(gpu):
    """Test that each config has its own options, and that cuBLAS has none."""
    configured = []

    def footprints(problem, arch, options, gpu):
        configured.append(dict(options))
        if options.get("stages") == 9:
            raise OptionError("too many")
        return [(fake_gpu.FakeConfig(f"fast_s{options.get('stages')}"), None)]

    gpu.add("fast")
    gpu.kernels["fast"].footprints = footprints
    gpu.kernels["fast"].options = ("stages",)
    found, size = run(gpu, "fast[stages=3]", "fast[stages=9]", "fast", "cublas", ops=["NN"],
                      options={"stages": 2})  # fmt: skip
    assert size.kernels == ("fast[stages=3]", "fast[stages=9]", "fast[stages=2]", "cublas")
    assert configured == [{"stages": 3}, {"stages": 9}, {"stages": 2}]
    assert [entry.config for entry in size.entries] == ["fast_s3", "", "fast_s2", ""]
    assert size.find("fast[stages=9]", "NN").outcome == "refused"
    assert "fast[stages=3]" in str(found)


@pytest.mark.parametrize("sizes", [[0], [(1, 2)], [(5, 5, 0)], []])
def test_sizes_that_are_none(gpu, sizes):
    with pytest.raises(OptionError, match="size"):
        bench.bench(["NN"], ["cublas"], sizes)


def test_ops_in_any_case_count_once(gpu):
    gpu.add("fast")
    assert run(gpu, "fast", ops=["nt", "NT"])[0].ops == ("NT",)
    with pytest.raises(OptionError, match="ops=\\[\\]"):
        bench.bench([], ["cublas"], [8])
    with pytest.raises(OptionError, match="rounds=0"):
        bench.bench(["NN"], ["cublas"], [8], rounds=0)


def test_progress_is_reported(gpu):
    gpu.add("fast")
    told = []
    run(gpu, "fast", ops=["NN"], rounds=3, progress=lambda *words: told.append(words))
    assert all(0 <= done <= total for _, done, total in told)
    assert told[-1] == ("40 x 30 x 20: time", 8, 8)
    assert ("40 x 30 x 20: check fast NN", 0, 2) in told


# -- a user's function ------------------------------------------------------------------------


def from_interface(x, writable: bool = False) -> np.ndarray:
    """Return a NumPy view of a matrix on the fake GPU."""
    interface = x.__cuda_array_interface__
    assert (interface["version"], interface["stream"]) == (3, None)
    return np.asarray(SimpleNamespace(__array_interface__={**interface, "version": 3}))


def mine(op, A, B, C):
    """A user's function for ``--against``."""
    left, right = (from_interface(x) for x in (A, B))
    assert left.flags.f_contiguous and right.flags.f_contiguous
    left = {"N": left, "T": left.T, "C": left.conj().T}[op[0]]
    right = {"N": right, "T": right.T, "C": right.conj().T}[op[1]]
    from_interface(C)[...] = left @ right


@pytest.mark.parametrize("order", ["F", "C"])
def test_a_function_gets_the_matrices_as_stored(gpu, order):
    found, size = run(gpu, against=[mine], ops=["NN", "NT", "CN", "TC"], dtype="complex64",
                      order=order, rounds=1)  # fmt: skip
    assert found.ok
    assert size.kernels == ("test_bench:mine", "cublas")
    assert size.find("test_bench:mine", "CN").max_error < 1e-4


def test_a_function_is_timed_like_a_kernel(gpu):
    def slow(op, A, B, C):
        gpu.now += 8.0
        mine(op, A, B, C)

    _, size = run(gpu, against=[slow], ops=["NN"])
    (name, _) = size.kernels
    assert size.find(name, "NN").speed.of_cublas == pytest.approx(0.25)


def test_a_function_that_raises_or_is_wrong(gpu):
    def raises(op, A, B, C):
        raise KeyError("no idea")

    found, size = run(gpu, against=[raises, lambda op, A, B, C: None], ops=["NN"])
    assert not found.ok
    first, second, _ = size.entries
    assert (first.outcome, second.outcome) == ("failed", "wrong")
    assert first.reason == "KeyError: 'no idea'"


def test_two_functions_of_one_name_are_refused(gpu):
    with pytest.raises(OptionError, match="<lambda>"):
        bench.bench(["NN"], [], [8], against=[lambda *a: 1, lambda *a: 2])
    assert run(gpu, against=[mine, mine], ops=["NN"])[1].kernels == ("test_bench:mine", "cublas")


def test_a_function_is_found_in_the_working_directory(gpu, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    (tmp_path / "my_own_gemm.py").write_text("from test_bench import mine\nnumber = 3\n")
    found, size = run(gpu, against=["my_own_gemm:mine"], ops=["TT"])
    assert found.ok and size.kernels[0] == "my_own_gemm:mine"
    for name, part in (
        ("my_own_gemm", "expected MODULE:FUNCTION"),
        ("my_own_gemm:", "expected MODULE:FUNCTION"),
        ("my_own_gemm:gemm", "has no gemm"),
        ("my_own_gemm:number", "is a int"),
        ("not_there:gemm", "No module named 'not_there'"),
    ):
        with pytest.raises(OptionError, match=part):
            bench.bench(["NN"], ["cublas"], [8], against=[name])


# -- the command ------------------------------------------------------------------------------


@pytest.fixture
def command(gpu, capsys, monkeypatch):
    """Return a function: arguments -> (exit status, standard output, standard error)."""
    monkeypatch.setattr(registry, "LADDER", ("fast",), raising=False)
    gpu.add("fast", 1.0), gpu.add("bad", kind="wrong")

    def call(*words: str) -> tuple[int, str, str]:
        status = cli.main(["bench", *words])
        return status, *capsys.readouterr()

    return call


def test_the_command_prints_tables(command):
    status, out, err = command("NN", "TT", "--kernel", "fast", "--sizes", "16,40x30x20")
    assert (status, err) == (0, "")
    assert "M=16 N=16 K=16" in out and "M=40 N=30 K=20" in out
    assert out.count("\n fast ") == 2
    assert max(map(len, out.splitlines())) <= 100


def test_the_command_fails_for_a_wrong_kernel(command):
    status, out, _ = command("--kernel", "bad,fast", "--sizes", "16")
    assert status == 1
    assert "WRONG" in out
    assert command("--kernel", "bad", "--sizes", "16", "--no-check")[0] == 0


def test_the_commands_json(command, tmp_path):
    words = ("--kernel", "fast", "--sizes", "16", "--dtype", "float64", "--rounds", "3",
             "--order", "C", "--seed", "5")  # fmt: skip
    status, out, _ = command(*words, "--json")
    found = json.loads(out)
    assert status == 0
    assert (found["dtype"], found["order"], found["rounds"], found["seed"]) == (
        "float64", "C", 3, 5,
    )  # fmt: skip
    first = found["sizes"][0]["entries"][0]
    assert (first["kernel"], first["op"], first["outcome"]) == ("fast", "NN", "ok")
    assert first["speed"]["quartiles"] == [first["speed"]["milliseconds"]] * 2
    file = tmp_path / "found.json"
    status, out, _ = command(*words, "--output", str(file))
    assert json.loads(file.read_text()) == found
    assert "fast" in out and "{" not in out


def test_the_command_takes_every_argument(command, monkeypatch):
    seen = {}

    def instead(ops, kernels, sizes, dtype, **more):
        seen.update(more, ops=ops, kernels=kernels, sizes=sizes, dtype=dtype)
        raise OptionError("enough")

    monkeypatch.setattr(bench_command, "bench", instead)
    command("NT", "--kernel", "all", "--sizes", "8,1x2x3", "--dtype", "float16",
            "--compute", "tf32", "--order", "C", "--rounds", "4",
            "--seed", "6", "--no-check", "--against", "a:b", "--against", "c:d", "-l", "5",
            "--pad", "3", "--stages", "4")  # fmt: skip
    del seen["progress"]
    assert seen == {
        "ops": ["NT"], "kernels": "all", "sizes": [(8, 8, 8), (1, 2, 3)], "dtype": "float16",
        "compute": "tf32", "order": "C", "rounds": 4, "seed": 6,
        "check": False, "pad": 3, "against": ["a:b", "c:d"], "l": 5, "options": {"stages": 4},
    }  # fmt: skip
    command()
    assert (seen["ops"], seen["kernels"]) == (["NN", "NT", "TN", "TT"], "ladder")
    assert seen["sizes"] == [(4096, 4096, 4096)]
    command("-m", "8", "-n", "16")
    assert seen["sizes"] == [(8, 16, 4096)]
    assert (seen["dtype"], seen["check"], seen["against"]) == ("float32", True, [])


def test_a_stored_run_is_shown(command, gpu, tmp_path):
    file, stored = tmp_path / "run.json", tmp_path / "stored.json"
    words = ("NN", "--kernel", "fast", "--sizes", "16", "--rounds", "3")
    printed = command(*words, "--output", str(file))[1]
    again = json.loads(file.read_text())
    stored.write_text(json.dumps({"command": "cute-gemm bench", "text": "", "result": again}))
    gpu.ran.clear()
    for path in (file, stored):
        assert command("--from", str(path)) == (0, printed, "")
        assert json.loads(command("--from", str(path), "--json")[1]) == again
    assert not gpu.ran
    wrong = (
        replace(BenchResult.from_dict(again), checked=False).to_json().replace('"ok"', '"wrong"')
    )
    file.write_text(wrong)
    assert command("--from", str(file))[0] == 1
    for words, part in (
        (("NN", "--stages", "4"), "omit OP, the options of kernels"),
        (("--no-check",), "omit --no-check"),
    ):  # fmt: skip
        status, _, err = command(*words, "--from", str(file))
        assert status == 2 and part in err
    file.write_text("{")
    assert "is not JSON" in command("--from", str(file))[2]
    assert "No such file" in command("--from", "/nonexistent")[2]


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--sizes", "4096,"], "size ''"),
        (["--sizes", "12x3"], "size '12x3'; expected N or MxNxK"), (["--sizes", "-4"], "size '-4'"),
        (["--sizes", "0"], "1 or more"), (["--output", "/nonexistent/a.json"], "does not exist"),
        (["--json", "--output", "-"], "both print to stdout"), (["--json", "a.json"], "a.json"),
        (["--sizes", "64", "-m", "32"], "--sizes came with -m, which it replaces: omit one"),
        (["--kernel", "fast,slow"], "'slow'"), (["--dtype", "float12"], "float12"), (["XY"], "XY"),
    ],
)  # fmt: skip
def test_what_is_refused_is_refused_before_anything_is_run(command, gpu, words, part):
    status, _, err = command(*words)
    assert status == 2 and part in err and err.count("\n") == 1
    assert not gpu.ran


def test_an_error_in_json_is_printed_where_json_is(command):
    status, out, _ = command("--kernel", "slow", "--json")
    assert status == 2 and json.loads(out)["error"]["type"] == "UnknownKernelError"
    assert command("--kernel", "slow", "--output", "a.json")[1] == ""


def test_without_a_gpu_it_is_one_line(monkeypatch, capsys):
    monkeypatch.setattr(devices, "why_no_gpu", lambda: "there is none")
    assert cli.main(["bench", "NN", "--kernel", "naive"]) == 2
    assert capsys.readouterr().err.endswith("there is none\n")
    assert cli.main(["bench", "NN", "--kernel", "host", "--sizes", "16", "--rounds", "1"]) == 0


def test_sizes_as_text():
    assert parse_sizes(" 8, 1X2x3") == [(8, 8, 8), (1, 2, 3)]


def test_negative_padding_is_refused(capsys):
    assert cli.main(["bench", "--pad", "-1"]) == 2
    assert "pad=-1; expected 0 or more" in capsys.readouterr().err
