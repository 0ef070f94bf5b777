"""Test ``trace``: the method, the backend and the command; users' kernels, and their faults."""

import json
import re
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cute_gemm as cg
from cute_gemm import api
from cute_gemm.arrays import read
from cute_gemm.commands.cli import main
from cute_gemm.errors import DeviceError, FaultError, OptionError
from cute_gemm.toolchain.nvrtc import ptx
from cute_gemm.toolchain.unit import TranslationUnit

AXPY = """
extern "C" __global__ void axpy(float const* x, float* y, int n, float a) {
  __shared__ float held[64];
  int const i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) {
    held[threadIdx.x] = x[i];
    y[i] += a * held[threadIdx.x ^ OTHER];
  }
}
"""


def operands(dtype: str = "float32") -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(7)
    return rng.standard_normal((70, 37)).astype(dtype), rng.standard_normal((37, 45)).astype(dtype)


def test_the_interpreter_is_a_backend() -> None:
    A, B = operands()
    C = cg.gemm("NN", A, B, kernel="bank_free", backend="interpreter")
    assert isinstance(C, np.ndarray) and C.shape == (70, 45)
    assert np.allclose(C, A @ B, atol=1e-5)
    C[...] = 2
    assert cg.gemm("NN", A, B, C, alpha=0.5, beta=3, kernel="naive", backend="interpreter") is C
    assert np.allclose(C, 0.5 * (A @ B) + 6, atol=1e-5)
    with pytest.raises(OptionError, match="kernel 'host' is not compiled, and backend='interp"):
        cg.gemm("NN", A, B, kernel="host", backend="interpreter")
    with pytest.raises(OptionError, match="backend='gpu' is unknown; expected 'auto', 'cuda'"):
        cg.gemm("NN", A, B, backend="gpu")  # type: ignore[arg-type]


def test_bit_for_bit_what_the_instructions_give() -> None:
    """Test FMAs in the order of k, each rounded to float32."""
    A, B = operands()
    C = cg.gemm("NN", A, B, kernel="naive", backend="interpreter")
    sums = np.zeros((70, 45), np.float32)
    for k in range(37):  # float64 has float32 products exactly, and the sum is rounded once
        product = A[:, k, None].astype(np.longdouble) * B[None, k, :].astype(np.longdouble)
        sums = (product + sums).astype(np.float32)
    assert np.array_equal(C, sums)


def test_a_trace_computes_in_place() -> None:
    A, B = operands("int8")
    C = np.full((3, 70, 45), 5, np.int32)
    A, B = np.stack([A] * 3), np.stack([B] * 3)
    plan = cg.plan("NN", A, B, C, kernel="sm80_pipeline", arch="sm_90a", backend="interpreter")
    trace = plan.trace(A, B, C, alpha=-7, beta=1)
    assert trace.result is C and trace.verdict.ok and not trace.differences and trace.agrees
    product = A.astype(np.int32) @ B.astype(np.int32)
    assert (5 - 7 * product == C).all()


def test_a_trace_from_a_base_offset() -> None:
    """Test that ``base_offset`` replaces the view's own address."""
    A, B = operands("float16")
    view = np.concatenate((A.ravel()[:1], A.ravel()))[1:].reshape(A.shape)
    given: dict[str, Any] = {"kernel": "sm80_pipeline", "arch": "sm_80", "backend": "cpu"}
    alignments = [
        [(x.alignment) for x in (made.problem.A, made.problem.B, made.problem.C)]
        for made in (cg.plan("NN", view, B, **given), cg.plan("NN", A, B, base_offset=2, **given))
    ]
    assert alignments == [[256] * 3, [4] * 3]
    for offset in (1, 2, 64):
        found = cg.plan("NN", A, B, base_offset=offset, **given).trace(A, B)
        assert found.agrees
    report = cg.analyze("NN", A, B, base_offset=1, **given)
    sizes = {"m": 70, "n": 45, "k": 37, "dtype": "float16", "storage": "C"}
    assert report.to_dict() == cg.analyze("NN", **sizes, base_offset=1, **given).to_dict()


def test_a_base_offset_of_arrays_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "read", lambda x, name: replace(read(x, name), device=0))
    with pytest.raises(OptionError, match="base_offset=4 came with arrays on a device, which have"):
        cg.plan("NN", *operands(), base_offset=4, backend="cpu")


def test_what_a_trace_says() -> None:
    A, B = operands("float16")
    plan = cg.plan("NN", A, B, kernel="sm80_pipeline", arch="sm_80", backend="cpu")
    trace = plan.trace(A, B, beta=0.0)
    assert repr(trace) == f"<Trace: {plan.symbol}: 0 figures differ>"
    said = trace.to_dict()
    assert said["agrees"] and said["symbol"] == plan.symbol
    assert json.loads(trace.to_json())["figures"] == said["figures"]
    assert any("mma.sync" in opcode for opcode in trace.counts)
    text = str(trace)
    assert "no difference" in text and "3,150 elements of C within" in text
    assert "Predicted and executed" in trace.to_html()


def test_requests_lane_by_lane() -> None:
    A, B = np.ones((64, 40), "f4"), np.ones((40, 64), "f4")
    trace = cg.plan("NN", A, B, kernel="naive", arch="sm_80", backend="cpu").trace(A, B)
    first = trace.requests("A", cta=0, warp=1)[0]
    # The warp is along n: all lanes read the same element of A's second row.
    assert (first.instruction, first.bits) == ("ld.global", 32)
    assert set(first.offsets.tolist()) == {40 * 4} and first.elements is not None
    assert first.elements.tolist() == [[1, 0]] * 32
    assert "A(1,0)" in str(first.table()) and "<svg" in first.picture()
    second = trace.requests("B", warp=1)[1]
    assert second.elements is not None
    assert second.elements[:3].tolist() == [[0, 1], [1, 1], [2, 1]]  # B is (N,K)
    with pytest.raises(OptionError, match="access to 'D' is unknown; expected A, B, C or shared"):
        trace.requests("D")
    with pytest.raises(OptionError, match="cta=99, warp=0 accessed nothing; expected CTAs 0 to 3"):
        trace.requests("A", cta=99)

    tiled = cg.plan("TT", A.T, B.T, kernel="smem_tiled", arch="sm_80", backend="cpu")
    shared = tiled.trace(A.T, B.T).requests("shared")[0]
    assert shared.elements is None and "bank" in str(shared.table())


def test_a_trace_is_of_host_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    from cute_gemm.plan import executable

    A, B = operands()
    plan = cg.plan("NN", A, B, kernel="naive", backend="cpu")
    read = executable.read

    class There:
        def __getattr__(self, name: str) -> Any:
            return 0 if name == "device" else getattr(read(A, "A"), name)

    monkeypatch.setattr(executable, "read", lambda x, name: There())
    monkeypatch.setattr(executable.Executable, "_check", lambda *_: None)
    with pytest.raises(DeviceError, match="a trace is of host arrays"):
        plan.trace(A, B)


def test_the_command(capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    words = ["trace", "NN", "-m", "70", "-n", "45", "-k", "37", "--dtype", "float32", "--kernel"]
    page = tmp_path / "trace.html"
    access = ["--access", "B", "--warp", "1", "--html", str(page)]
    assert main([*words, "smem_tiled", "--beta", "2", *access]) == 0
    out = capsys.readouterr().out
    assert "no difference" in out and "B(" in out and "ld.shared" in out
    assert "<svg" in page.read_text() and "Request" in page.read_text()
    assert main([*words, "smem_tiled", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["agrees"] and all(one["difference"] == 0 for one in said["figures"])
    assert main([*words, "smem_tiled", "--access", "A", "--request", "9999"]) == 2
    assert (
        "--request 9999 does not fit; CTA 0, warp 0 has 2 requests to A" in capsys.readouterr().err
    )
    assert main(["trace", "--dtype", "float32"]) == 2
    assert "OP is missing; expected NN, NT, TN or TT, or --ptx FILE" in capsys.readouterr().err
    assert main([*words, "host"]) == 2
    assert "is not compiled" in capsys.readouterr().err


@pytest.mark.parametrize("terminal", [True, False])
def test_a_long_trace_shows_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, terminal: bool
) -> None:
    from rich.progress import Progress

    from cute_gemm.commands import trace

    told: list[tuple[str, int, int]] = []

    def update(self: Progress, task: int, description: str, completed: int, total: int) -> None:
        told.append((description, completed, total))
        while not self.live.is_started:  # a thread determines when the bar is shown
            time.sleep(0.001)

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(Progress, "update", update)
    monkeypatch.setattr(trace, "_PATIENCE", 1e-3)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    words = ["-m", "1024", "-n", "32", "-k", "8", "--dtype", "float32", "--kernel", "naive"]
    assert main(["trace", "NN", *words]) == 0
    said = capsys.readouterr()
    assert "no difference" in said.out and ("0:00:0" in said.err) == terminal
    ctas = told[0][2] if terminal else 0
    assert told == ([("CTAs executed", 0, ctas), ("CTAs executed", ctas // 2, ctas)] * terminal)


def test_a_wrong_prediction_is_a_difference(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    from cute_gemm.kernels.simt.ladder import Naive

    accesses = Naive.accesses
    monkeypatch.setattr(Naive, "accesses", lambda *a, **k: accesses(*a, **k)[1:])
    words = ["-m", "32", "-n", "32", "-k", "8", "--dtype", "float32", "--kernel", "naive"]
    assert main(["trace", "NN", *words]) == 1
    assert "3 of 9 figures differ" in capsys.readouterr().out


@pytest.fixture
def axpy(tmp_path: Path) -> dict[str, str]:
    """Return another kernel, with and without a race."""
    found = {}
    for name, other in (("right", "0"), ("race", "32")):
        path = tmp_path / f"{name}.ptx"
        path.write_text(ptx(TranslationUnit(AXPY.replace("OTHER", other), "axpy"), "sm_80"))
        found[name] = str(path)
    return found


def test_a_kernel_of_ones_own(
    axpy: dict[str, str], capsys: pytest.CaptureFixture, tmp_path: Path
) -> None:
    x = np.arange(1, 301, dtype=np.float32)
    np.save(tmp_path / "x.npy", x)
    launch = ["--grid", "5", "--block", "64", "--arg", f"x={tmp_path}/x.npy"]
    rest = ["--arg", "y=float32:300", "--arg", "300", "--arg", "0.5", "--save", str(tmp_path / "o")]
    assert main(["trace", "--ptx", axpy["right"], *launch, *rest]) == 0
    out = capsys.readouterr().out
    assert "y       float32   300                  300" in out and "x ld.global" in out
    y = np.load(tmp_path / "o" / "y.npy")
    again = np.random.default_rng(0).standard_normal((300,), np.float32)
    assert np.array_equal(y, again + np.float32(0.5) * x)

    assert main(["trace", "--ptx", axpy["right"], *launch, *rest, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["arrays"][1] == {"name": "y", "dtype": "float32", "shape": [300], "changed": 300}
    stores = next(one for one in said["accesses"] if one["instruction"] == "st.global")
    assert (stores["operand"], stores["requests"], stores["sectors"]) == ("y", 10, 38)

    for bad, said in (
        ("y=float33:3", "float33"),
        ("z", "--arg 'z' is not understood; expected A="),
    ):
        assert main(["trace", "--ptx", axpy["right"], "--arg", bad]) == 2
        assert said in capsys.readouterr().err
    assert main(["trace", "--ptx", axpy["right"], "--grid", "a"]) == 2
    assert "--grid 'a' does not fit; expected one to three extents" in capsys.readouterr().err


def test_a_kernel_of_ones_own_in_cuda(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Test that CUDA C++ gives the results of its PTX, and that errors of NVRTC name the line."""
    file = tmp_path / "axpy.cu"
    (tmp_path / "other.h").write_text("#define OTHER 0\n")
    file.write_text(f'#include "other.h"\n#include <cuda_fp16.h>\n{AXPY}')
    arguments = ["x=float32:300", "y=float32:300", "300", "0.5"]
    words = ["trace", "--ptx", str(file), "--grid", "5", "--block", "64"]
    words += [word for one in arguments for word in ("--arg", one)]
    for arch in ([], ["--arch", "sm_90a"]):
        assert main([*words, *arch, "--json"]) == 0
        said = json.loads(capsys.readouterr().out)
        assert said["entry"] == "axpy" and said["arrays"][1]["changed"] == 300
    (tmp_path / "other.h").write_text("#define OTHER 32\n")
    assert main(words) == 1
    # The lines of the source and of the PTX.
    said = capsys.readouterr().err
    assert re.match(r"cute-gemm: axpy.cu\(9\), PTX line \d+: ld.shared.f32 .*race", said)

    file.write_text(AXPY.replace("OTHER", "other"))
    assert main(words) == 2
    said = capsys.readouterr().err
    assert said == 'cute-gemm: axpy.cu(7): error: identifier "other" is undefined\n'
    file.write_text("#if __CUDA_ARCH__ != 900\n#error only there\n#endif\n" + AXPY)
    assert main([*words, "--arch", "sm_80"]) == 2
    assert re.match(r"cute-gemm: axpy.cu\(2\): .*error.* only there", capsys.readouterr().err)
    assert main([*words, "--arch", "sm_12"]) == 2
    assert "is not known to NVRTC" in capsys.readouterr().err


def test_a_fault_in_an_inlined_function_of_a_header(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Test that the message names the line of the calling file."""
    (tmp_path / "other.h").write_text(
        "\n__device__ inline float other(float const* x, int i) {\n  return x[i];\n}\n"
    )
    file = tmp_path / "axpy.cu"
    text = AXPY.replace("held[threadIdx.x ^ OTHER]", "other(x, i + 1)")
    file.write_text(f'#include "other.h"\n{text}')
    words = ["trace", "--ptx", str(file), "--grid", "5", "--block", "64"]
    for one in ("x=float32:300", "y=float32:300", "300", "0.5"):
        words += ["--arg", one]
    assert main(words) == 1
    said = capsys.readouterr().err
    assert re.match(r"cute-gemm: axpy.cu\(8\), PTX line \d+: ld.global.f32 .*out of bounds", said)
    file.write_text(f'#include "other.h"\n{text.replace("+=", "+= __ldcv(x) +")}')
    assert main([*words, "--limit", "9999"]) in (1, 2)
    assert "axpy.cu(8), PTX line" in capsys.readouterr().err


def test_an_error_of_a_template_is_short(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    file = tmp_path / "long.cu"
    name = "a" * 3000
    file.write_text(
        f"template <class T> struct {name} {{}};\n{name}<{name}<int>> x = 3;\nint y = z;\n"
    )
    assert main(["trace", "--ptx", str(file)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("cute-gemm: long.cu(2): error: ") and len(said) < 600
    assert said.endswith("(and 1 more errors; --json prints the whole log)\n")
    assert main(["trace", "--ptx", str(file), "--json"]) == 2
    assert len(json.loads(capsys.readouterr().out)["error"]["log"]) > 3000


#: Content of FILE.npy in "x=FILE.npy", and the error message.
FILES: dict[str, tuple[Any, str]] = {
    "missing": (None, "cannot be read: No such file or directory; expected what np.save wrote"),
    "empty": (b"", "is not an array that NumPy reads; expected what np.save wrote"),
    "random": (bytes(range(256)), "is not an array that NumPy reads"),
    "objects": (np.array([{}, 1], object), "is not an array that NumPy reads"),
    "words": (np.array(["a"]), "has '<U1'; expected an array of numbers"),
    "absurd": (
        b"\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False, 'shape': (10**13,), }",
        "is not an array that NumPy reads",
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_files_that_hold_no_array(
    name: str, tmp_path: Path, axpy: dict[str, str], capsys: pytest.CaptureFixture
) -> None:
    content, said = FILES[name]
    file = tmp_path / "x.npy"
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif content is not None:
        np.save(file, content)
    words = ["--arg", f"x={file}", "--arg", "y=float32:300", "--arg", "300", "--arg", "1"]
    assert main(["trace", "--ptx", axpy["right"], *words]) == 2
    error = capsys.readouterr().err
    assert said in error and f"--arg file '{file}'" in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--grid", "99999999999"], "has 6,399,999,999,936 threads; expected at most 268,435,456"),
        (["--grid", "1,70000"], "grid=(1, 70000) does not fit; expected at most 2,147,483,647, 65"),
        (["--block", "1,1,65"], "block=(1, 1, 65) does not fit; expected at most 1,024, 1,024, 64"),
        (["--shared", "-1"], "--shared -1 does not fit; expected 0 to 232,448 bytes"),
        (["--limit", "0"], "--limit 0 does not fit; expected 1 or more"),
        (["--arg", "2"], "5 arguments; axpy takes 4"),
        (["--arg", "x=float32:3"], "--arg x= is given twice; expected a name for each array"),
        (["--arg", "shared=float32:3"], "--arg shared= is a name of memory; expected another"),
        (
            ["--arg", "z=int8:99999999999x99999999999"],
            "bytes; expected at most 8 and 17,179,869,18",
        ),
        (["--arg", "z=int8:1x1x1x1x1x1x1x1x1"], "has 9 extents and 1 bytes; expected at most 8"),
        (["--save", __file__], "is a file; expected a directory"),
        (
            ["--ptx", "/"],
            "--ptx '/' cannot be read: Is a directory; expected PTX, or CUDA C++ in a",
        ),
        (
            ["--ptx", "/none"],
            "--ptx '/none' cannot be read: No such file or directory; expected PT",
        ),
    ],
)
def test_launches_that_are_refused(
    words: list[str], said: str, axpy: dict[str, str], capsys: pytest.CaptureFixture
) -> None:
    launch = ["--grid", "5", "--block", "64", "--arg", "x=float32:300", "--arg", "y=float32:300"]
    launch += ["--arg", "300", "--arg", "0.5"]
    assert main(["trace", "--ptx", axpy["right"], *launch, *words]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        (
            ("0.5", "0.5"),
            "argument 2 is 0.5; parameter 'axpy_param_2' is .u32: expected an integer",
        ),
        (
            ("4294967296", "1"),
            "argument 2 is an integer of 33 bits; parameter 'axpy_param_2' is .u",
        ),
        (("-2147483649", "1"), "argument 2 is an integer of 32 bits"),
        (("1", "1e39"), "argument 3 is 1e+39, which is beyond the numbers of .f32, the type of"),
        (("x=float32:3", "1"), "argument 2 of axpy has 8 bytes; its parameter 4"),
    ],
)
def test_numbers_that_do_not_fit_their_parameters(
    numbers: tuple[str, str], said: str, axpy: dict[str, str], capsys: pytest.CaptureFixture
) -> None:
    words = ["--arg", "a=float32:9", "--arg", "b=float32:9", "--arg", numbers[0]]
    assert main(["trace", "--ptx", axpy["right"], *words, "--arg", numbers[1]]) == 2
    assert said in capsys.readouterr().err


def test_an_integer_for_a_float_and_arrays_of_any_order(
    axpy: dict[str, str], tmp_path: Path
) -> None:
    x = np.asfortranarray(np.arange(60, dtype=np.float32).reshape(6, 10))
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", np.zeros((10, 6), np.float32))
    words = ["--grid", "1", "--block", "64", "--arg", "60", "--arg", "3", "--save", str(tmp_path)]
    words[4:4] = ["--arg", f"x={tmp_path}/x.npy", "--arg", f"y={tmp_path}/y.npy"]
    assert main(["trace", "--ptx", axpy["right"], *words]) == 0
    assert np.array_equal(np.load(tmp_path / "y.npy"), 3 * x.T)
    for none in ("y=float32:0", "y=float32:0x3"):
        words = ["--arg", "x=float32:3", "--arg", none, "--arg", "0", "--arg", "3"]
        assert main(["trace", "--ptx", axpy["right"], *words]) == 0


def test_a_file_that_is_not_text(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    for name in ("random.ptx", "random.cu"):
        (tmp_path / name).write_bytes(bytes(range(256)))
        assert main(["trace", "--ptx", str(tmp_path / name)]) == 2
        said = capsys.readouterr().err
        assert "is not text; expected PTX, or CUDA C++ in a file whose name ends in .cu" in said


def test_a_request_of_a_kernel_of_ones_own(
    axpy: dict[str, str], capsys: pytest.CaptureFixture
) -> None:
    words = ["trace", "--ptx", axpy["right"], "--grid", "5", "--block", "64", "--arg", "300"]
    words[7:7] = ["--arg", "x=float32:300", "--arg", "y=float32:300"]
    words += ["--arg", "0.5"]
    for where, served in (("y", "sector"), ("shared", "bank")):
        assert main([*words, "--access", where, "--cta", "4", "--warp", "0"]) == 0
        shown = capsys.readouterr().out.split("Instructions")[1]
        assert ["lane", "byte", served] in [line.split() for line in shown.splitlines()]
    for more, said in (
        (["--access", "z"], "an access to 'z' is unknown; expected x, y or shared"),
        (["--access", "x", "--cta", "9"], "cta=9, warp=0 accessed nothing; expected CTAs 0 to 4"),
        (
            ["--access", "x", "--request", "7"],
            "--request 7 does not fit; CTA 0, warp 0 has 1 request to x,",
        ),
        (["--html", "page.html"], "--html writes the report of a problem; with --ptx expected"),
    ):
        assert main([*words, *more]) == 2
        assert said in capsys.readouterr().err
    assert main([*words, "--limit", "5"]) == 1
    assert "has not ended after 5 instructions" in capsys.readouterr().err


def test_atomics_of_a_kernel_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Test an atomic whose result is unused, and one whose result is stored."""
    text = AXPY.replace("y[i] += a *", "y[i] = atomicAdd(y + 1024, 1.f) + a *").replace(
        "held[threadIdx.x] = x[i]", "held[threadIdx.x] = x[i]; atomicAdd(y + i / 2, x[i])"
    )
    path = tmp_path / "atomics.ptx"
    code = ptx(TranslationUnit(text.replace("OTHER", "0"), "axpy"), "sm_80")
    path.write_text(re.sub(r"atom(\.global\.add\.f32\s+)%f\d+, ", r"red\1", code, count=1))
    arguments = ["x=float32:64", "y=float32:1025", "64", "0.5"]
    words = [word for one in arguments for word in ("--arg", one)]
    assert main(["trace", "--ptx", str(path), "--block", "64", *words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["accesses"]
    atomics = {
        one["instruction"]: (one["operand"], one["bits"], one["requests"], one["lanes"])
        for one in found
        if one["instruction"][:2] in ("re", "at")
    }
    assert atomics == {"atom.global": ("y", 32, 2, 64), "red.global": ("y", 32, 2, 64)}


def test_integers_of_thousands_of_digits(capsys: pytest.CaptureFixture) -> None:
    digits = "9" * 5000
    for words in (
        ["trace", "--ptx", __file__, "--grid", digits],
        ["trace", "--ptx", __file__, "--arg", f"A=float32:{digits}"],
        ["bench", "NN", "--sizes", digits],
        ["copy", "--tensor", f"({digits},32):(32,1)", "--atom", "ldmatrix.x4"],
    ):
        assert main(words) == 2
        said = capsys.readouterr().err
        assert "has an integer of 5,000 digits" in said and "63 bits" in said and len(said) < 300


def test_faults_are_findings(axpy: dict[str, str], capsys: pytest.CaptureFixture) -> None:
    launch = ["--grid", "5", "--block", "64", "--arg", "x=float32:300"]
    assert main(["trace", "--ptx", axpy["race"], *launch, "--arg", "y=float32:300", "--arg", "300",
                 "--arg", "0.5", "--json"]) == 1  # fmt: skip
    found = capsys.readouterr()
    assert json.loads(found.out)["fault"]["kind"] == "race" and "race" in found.err
    assert main(["trace", "--ptx", axpy["right"], *launch, "--arg", "y=float32:299", "--arg", "300",
                 "--arg", "0.5"]) == 1  # fmt: skip
    said = capsys.readouterr().err
    assert "out of bounds" in said and "1 bytes after the end of y" in said and "thread 43" in said


def test_a_plan_that_reads_outside_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    A, B = operands()
    plan = cg.plan("NN", A, B, kernel="naive", arch="sm_80", backend="cpu")
    wrong = plan.ptx.replace("setp.ge.s32", "setp.eq.s32")
    assert wrong != plan.ptx
    monkeypatch.setitem(plan.steps.each[0].__dict__, "ptx", wrong)
    with pytest.raises(FaultError, match="out of bounds"):
        plan.trace(A, B)
