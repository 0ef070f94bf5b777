"""Test the public functions on the CPU backend: results, plans, reports, errors."""

import ctypes
import itertools
import struct
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import cases
import numpy as np
import pytest
from cases import OPS, numbers, used

import cute_gemm as cg
from cute_gemm import api
from cute_gemm.dtypes import DTYPES
from cute_gemm.errors import (
    DeviceError,
    DTypeError,
    NoGpuError,
    OpError,
    OptionError,
    ScalarError,
    ShapeError,
    UnknownKernelError,
    UnsupportedError,
)
from cute_gemm.kernels import registry
from cute_gemm.kernels.simt.ladder import Naive
from cute_gemm.measure.timed import of_kernel
from cute_gemm.plan import backend, make, reused
from cute_gemm.plan.executable import raw_stream
from cute_gemm.problem.describe import from_sizes
from cute_gemm.problem.scalars import Scalar
from cute_gemm.toolchain.signature import gemm_signature

GEMM = gemm_signature(from_sizes("NN", m=1, n=1, k=1, dtype="float32").operation(4, 4, 4))
NO_GPU = "there is none in this test"
M, N, K = 33, 20, 47


def array(shape: tuple[int, int], dtype: str, order: str = "F", seed: int = 0) -> np.ndarray:
    values = numbers(np.random.default_rng(seed), shape, dtype)
    return np.asarray(values, order=order)  # type: ignore[call-overload]


operands = partial(cases.operands, mnk=(M, N, K))


def check(C: np.ndarray, op: str, A: np.ndarray, B: np.ndarray, extra: Any = 0.0) -> None:
    """Check that C is op(A) op(B) + extra, with each element within the bound of its type."""
    a, b = used(A, op[0]), used(B, op[1])
    expected = a @ b + extra
    sums = DTYPES[DTYPES[A.dtype.name].accumulator]
    out = DTYPES[C.dtype.name].roundoff
    weights = np.abs(a) @ np.abs(b) + np.abs(extra)
    terms = (a.shape[1] + 2) * (2 * np.sqrt(2) if C.dtype.kind == "c" else 1)
    bound = out * np.abs(expected) + terms * sums.roundoff * weights
    assert np.isfinite(C.astype(a.dtype)).all()
    assert (np.abs(C.astype(a.dtype) - expected) <= bound).all()


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Emulate a machine without a GPU, in a process that has not warned yet."""
    monkeypatch.setattr("cute_gemm.run.driver.why_no_gpu", lambda: NO_GPU)
    monkeypatch.setattr(backend, "_warned", False)
    monkeypatch.setattr(reused, "plans", {})


# -- gemm -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [row.name for row in DTYPES.values() if row.outputs])
@pytest.mark.parametrize("op", [*OPS, "nt", "CH", "cn", "NH"])
def test_gemm(op: str, dtype: str) -> None:
    for storage, order in itertools.product("FC", "FC"):
        A, B = operands(op, dtype, storage)
        C = cg.gemm(op, A, B, order=order, backend="cpu")
        assert C.shape == (M, N)
        assert C.flags.f_contiguous == (order == "F") and C.flags.c_contiguous == (order == "C")
        assert C.dtype.name == DTYPES[dtype].outputs[0]
        check(C, op, A, B)


def test_the_bound_would_catch_a_wrong_result() -> None:
    A, B = operands("TN", "float16")
    C = cg.gemm("TN", A, B, backend="cpu")
    C[3, 4] += np.float16(0.1)
    with pytest.raises(AssertionError):
        check(C, "TN", A, B)


def test_a_new_c_is_column_major() -> None:
    A, B = operands("NN", "float32", "C")
    assert cg.gemm("NN", A, B, backend="cpu").flags.f_contiguous


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_out_dtype(dtype: str) -> None:
    A, B = operands("NN", dtype)
    C = cg.gemm("NN", A, B, out_dtype="float32", backend="cpu")
    assert C.dtype == np.float32
    check(C, "NN", A, B)


@pytest.mark.parametrize("order", ["F", "C"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_c_is_updated_in_place_and_returned(dtype: str, order: str) -> None:
    A, B = operands("TN", dtype)
    C = array((M, N), dtype, order, 3)
    before = C.astype(np.float64)
    assert cg.gemm("TN", A, B, C, alpha=2.0, beta=-0.5, backend="cpu") is C
    check(C, "TN", (2 * A).astype(dtype), B, -0.5 * before)


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_complex_alpha_and_beta(dtype: str) -> None:
    A, B = operands("HN", dtype)
    C = array((M, N), dtype, "F", 3)
    before = C.astype(np.complex128)
    beta = np.array(0.5 - 1j)  # a 0-d array of another type
    assert cg.gemm("HN", A, B, C, alpha=2j, beta=beta, backend="cpu") is C
    check(C, "HN", (-2j * A).astype(dtype), B, (0.5 - 1j) * before)


@pytest.mark.parametrize(
    ("kernel", "dtype", "others"),
    [
        ("sm80_pipeline", "complex64", "float64, complex128, int8"),
        ("cutlass_universal", "complex64", "float64, int8"),
        ("cutlass_universal", "complex128", "float64, int8"),
    ],
)
def test_kernels_without_a_complex_type_say_so(kernel: str, dtype: str, others: str) -> None:
    message = rf"^[^;]*{dtype}[^;]*; [^;]*float16, bfloat16, float32, float32/tf32, {others}$"
    with pytest.raises(UnsupportedError, match=message) as caught:
        cg.plan("CN", m=M, n=N, k=K, dtype=dtype, kernel=kernel, backend="cpu")
    assert kernel in str(caught.value)


def test_int8_is_exact() -> None:
    A, B = operands("TT", "int8")
    C = np.asfortranarray(np.arange(M * N, dtype=np.int32).reshape(M, N))
    expected = 3 * (A.T.astype(np.int64) @ B.T.astype(np.int64)) - 2 * C
    assert cg.gemm("TT", A, B, C, alpha=3, beta=-2, backend="cpu") is C
    assert np.array_equal(C, expected)


def test_nan_in_c_does_not_spread_without_beta() -> None:
    A, B = operands("NN", "float32")
    C = np.full((M, N), np.nan, np.float32, order="F")
    check(cg.gemm("NN", A, B, C, backend="cpu"), "NN", A, B)


def test_nothing_beside_c_is_written() -> None:
    A, B = operands("NT", "float32")
    buffer = np.full((M + 3, N), 77, np.float32, order="F")
    cg.gemm("NT", A, B, buffer[:M], backend="cpu")
    assert (buffer[M:] == 77).all()
    check(buffer[:M], "NT", A, B)


@pytest.mark.parametrize(("m", "n", "k"), [(0, 3, 2), (3, 0, 2), (3, 2, 0)])
def test_empty(m: int, n: int, k: int) -> None:
    C = cg.gemm("NN", np.ones((m, k), "f4"), np.ones((k, n), "f4"), backend="cpu")
    assert C.shape == (m, n) and (C == 0).all()


def test_gemm_plans_once_for_equal_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    original = make._made

    def counted(*arguments: Any, **words: Any) -> cg.Plan:
        made.append(arguments)
        return original(*arguments, **words)

    monkeypatch.setattr(reused, "plans", {})
    monkeypatch.setattr(make, "_made", counted)
    A, B = operands("TN", "float32")
    first = cg.gemm("TN", A, B, backend="cpu")
    second = cg.gemm("TN", A + 1, B, alpha=3.0, backend="cpu")
    assert len(made) == 1
    assert not np.array_equal(first, second)
    cg.gemm("TN", A, B, backend="cpu", stages=2)
    cg.gemm("TN", A, B, backend="cpu", arch="sm_90a")
    cg.gemm("TN", A, B, backend="cpu", order="C")
    cg.gemm("TN", A, B, backend="cpu", kernel="cutlass_universal")
    assert len(made) == 5


def test_an_option_may_be_a_list_as_in_plan() -> None:
    A, B = operands("TN", "float16")
    assert cg.plan("TN", A, B, backend="cpu", tile=[64, 64, 64]).config.tile == (64, 64, 64)
    cg.gemm("TN", A, B, backend="cpu", tile=[64, 64, 64])


def test_nothing_is_written_before_all_checks_have_passed() -> None:
    A, B = operands("NN", "float32")
    C = np.full((M, N), 5, np.float32, order="F")
    for wrong in (
        {"stages": 99},
        {"kernel": "none"},
        {"no_such_option": 1},
        {"alpha": "x"},
        {"beta": 1j},
        {"backend": "tpu"},
        {"compute": "int4"},
    ):
        with pytest.raises(cg.GemmError):
            cg.gemm("NN", A, B, C, **{"backend": "cpu", **wrong})  # type: ignore[arg-type]
    assert (C == 5).all()


def test_beta_without_c() -> None:
    A, B = operands("NN", "float32")
    with pytest.raises(ScalarError, match=r"beta = 2.0 scales C, and no C is given"):
        cg.gemm("NN", A, B, beta=2.0, backend="cpu")
    with pytest.raises(ScalarError, match=r"no C is given"):
        cg.plan("NN", A, B, backend="cpu")(A, B, beta=2.0)


def test_unknown_kernel_lists_those_there_are() -> None:
    A, B = operands("NN", "float32")
    with pytest.raises(
        UnknownKernelError,
        match=r"kernel 'fastest' is not known; .*'auto' or one of host, .*sm80_pipeline, .*cublas$",
    ):
        cg.gemm("NN", A, B, kernel="fastest", backend="cpu")


def test_bad_op_and_bad_shapes() -> None:
    A, B = operands("NN", "float32")
    with pytest.raises(OpError, match="'NX'"):
        cg.gemm("NX", A, B, backend="cpu")
    with pytest.raises(ShapeError, match=f"{K}"):
        cg.gemm("TN", A, B, backend="cpu")


# -- plan -----------------------------------------------------------------------------------------


def test_a_plan_runs_again_on_other_data() -> None:
    A, B = operands("TN", "float16")
    plan = cg.plan("TN", A, B, backend="cpu")
    check(plan(A, B), "TN", A, B)
    other = array((K, M), "float16", "F", 7)
    check(plan(other, B), "TN", other, B)
    C = array((M, N), "float16", "F", 8)
    before = C.astype(np.float64)
    assert plan(other, B, C, beta=1.0) is C
    check(C, "TN", other, B, before)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda A, B: (A[:, :-1], B), r"A is .*\(32,47\).* plan was made for \(33,47\)"),
        (lambda A, B: (A, B[:, 1:]), r"B is .*\(19,47\).* plan was made for \(20,47\)"),
        (lambda A, B: (A[:-1], B[:-1]), r"A is \(33,46\):\(47,1\)"),
        (lambda A, B: (np.ascontiguousarray(A), B), r"A is \(33,47\):\(1,33\)"),
    ],
    ids=["m", "n", "k", "layout"],
)
def test_a_plan_refuses_other_arrays(change: Any, message: str) -> None:
    A, B = operands("TN", "float16")
    plan = cg.plan("TN", A, B, backend="cpu")
    with pytest.raises(ShapeError, match=message + r".*; make a plan with these arrays"):
        plan(*change(A, B))


def test_a_plan_refuses_another_dtype() -> None:
    A, B = operands("TN", "float16")
    plan = cg.plan("TN", A, B, backend="cpu")
    with pytest.raises(DTypeError, match="A has dtype float32, and the plan was made for float16"):
        plan(A.astype(np.float32), B.astype(np.float32))


def test_a_plan_refuses_another_c() -> None:
    A, B = operands("TN", "float16")
    plan = cg.plan("TN", A, B, backend="cpu")
    C = np.full((M, N), 5, np.float16)
    with pytest.raises(ShapeError, match=r"C is \(33,20\):\(20,1\).* \(33,20\):\(1,33\)"):
        plan(A, B, C)
    assert (C == 5).all()


def test_plan_from_sizes_is_the_plan_from_arrays() -> None:
    A, B = operands("TN", "float16")
    given: dict[str, Any] = {"backend": "cpu", "arch": "sm_90a"}
    sizes = cg.plan("TN", m=M, n=N, k=K, dtype="float16", **given)
    arrays = cg.plan("TN", A, B, **given)
    assert sizes.problem.A.stride == arrays.problem.A.stride == (K, 1)
    assert sizes.config == arrays.config and sizes.source == arrays.source
    check(sizes(A, B), "TN", A, B)


def test_what_a_plan_says() -> None:
    plan = cg.plan("TN", m=4096, n=4096, k=4096, dtype="float16", backend="cpu", arch="90a")
    assert (plan.backend, plan.device, plan.arch) == ("cpu", None, "sm_90a")
    assert plan.kernel == "sm90_wgmma" and plan.config.tile == (128, 256, 64)
    first, second, *_ = found = plan.candidates()
    assert (first.kernel.name, first.config) == (plan.kernel, plan.config)
    assert [one.prediction.seconds for one in found] == sorted(
        one.prediction.seconds for one in found
    )
    assert plan.gpu.name == "H100 SXM" and plan.gpu.arch == plan.arch
    tile = "x".join(map(str, second.config.tile))
    beside = f"least of {len(found)} configs; next sm90_wgmma {tile} "
    assert beside in plan.why and plan.why.startswith("178 us predicted (161 us of tensor cores")
    assert plan.symbol == plan.config.name and plan.symbol in plan.source
    assert plan.launch.grid == 132
    assert repr(plan) == f"Plan(TN m=4096 n=4096 k=4096 float16, {plan.symbol}, sm_90a)"
    named = cg.plan("TN", m=64, n=64, k=64, dtype="float16", backend="cpu", kernel="sm80_pipeline",
                    stages=2)  # fmt: skip
    assert named.why.startswith("asked for by name; ") and named.config.stages == 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, r"needs A and B, or m, n, k and dtype; m, n, k, dtype is missing"),
        ({"m": 4, "k": 4, "dtype": "float32"}, r"; n is missing"),
        ({"m": 4, "n": 4, "k": 4}, r"; dtype is missing"),
        ({"m": 4, "n": 4, "k": 4, "dtype": "float32", "order": "K"}, r"order"),
        ({"m": 4, "n": 4, "k": 4, "dtype": "float32", "backend": "tpu"}, r"backend='tpu' is unk"),
        (
            {"m": 4, "n": 4, "k": 4, "dtype": "float32", "beta": 3},
            r"^plan\(\) .*'beta'; analyze\(\)",
        ),
    ],
)
def test_plan_arguments(given: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        cg.plan("NN", **{"backend": "cpu", **given})


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ({"bias": np.ones(3)}, r"name it in epilogue=, as in epilogue='bias'$"),
        ({"weight": 3}, "expected op, A, B, C, alpha, .*, or an option of a kernel: pack"),
        ({"out": np.ones((3, 3))}, "pass the array to write to as C$"),
        ({"gpu": "H200"}, r"plan\(\) and analyze\(\) have one$"),
        ({"trans_a": True}, "the letters of op say what is transposed, as in TN$"),
        ({"transposeB": True}, "the letters of op"),
        ({"stage": 3}, r"did you mean stages\?$"),
        ({"dtype": "float32"}, r"did you mean out_dtype\?$"),
    ],
)
def test_an_unknown_argument_has_a_hint(given: dict[str, Any], hint: str) -> None:
    """Test that the error names the function, for any kernel."""
    A, B = operands("NN", "float32")
    [name] = given
    with pytest.raises(OptionError, match=rf"^gemm\(\) has no argument '{name}'; {hint}"):
        cg.gemm("NN", A, B, backend="cpu", **given)


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"warp_along": "M"}, "the option 'warp_along'; name a kernel that has: naive, coalesced$"),
        ({"copy": "auto", "skew": 1}, "the options 'copy' and 'skew'; leave one out$"),
        ({"thin": 2, "warp_along": "M"}, "the options 'thin' and 'warp_along'; leave one out$"),
    ],
)
def test_an_option_of_no_kernel_to_choose_from(options: dict[str, Any], hint: str) -> None:
    sizes: dict[str, Any] = {"m": 64, "n": 64, "k": 64, "dtype": "float32"}
    with pytest.raises(OptionError, match=f"^kernel='auto' chooses from sm80.* has {hint}"):
        cg.plan("NN", **sizes, backend="cpu", **options)


def test_a_refused_value_is_reported_by_a_kernel_that_has_the_option() -> None:
    A, B = operands("NN", "float32")
    with pytest.raises(OptionError, match="option skew='3' is unknown; expected one of"):
        cg.gemm("NN", A, B, backend="cpu", skew="3")


@pytest.mark.parametrize("extra", [{"m": M}, {"dtype": "float32"}, {"ldb": 64, "ldc": 64}])
def test_plan_takes_arrays_or_sizes(extra: dict[str, Any]) -> None:
    A, B = operands("NN", "float32")
    with pytest.raises(
        OptionError, match=rf"takes arrays or sizes; {', '.join(extra)} came with arrays"
    ):
        cg.plan("NN", A, B, backend="cpu", **extra)


# -- analyze, kernels -----------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", ["auto", "sm80_pipeline", "cutlass_universal"])
def test_analyze_is_the_plans_report(kernel: str) -> None:
    given: dict[str, Any] = {"m": 512, "n": 384, "k": 256, "dtype": "float16", "lda": 515}
    given |= {"kernel": kernel, "arch": "sm_90a"}
    report = cg.analyze("NT", **given)
    plan = cg.plan("NT", backend="cpu", **given)
    assert report.to_dict() == plan.report().to_dict()
    assert report.kernel == plan.kernel and report.config == plan.config
    assert report.resources is None  # nothing was compiled
    assert "build" not in vars(plan)


def test_analyze_takes_arrays_and_options(no_gpu: None) -> None:
    A, B = operands("TN", "float16")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no warning, because nothing is computed
        report = cg.analyze("TN", A, B, copy="mn_major")
    assert report.config.copy == "mn_major" and report.arch == "sm_80"
    assert (report.problem.m, report.problem.n, report.problem.k) == (M, N, K)


def test_kernels() -> None:
    found = {info.name: info for info in api.kernels()}
    assert tuple(found) == registry.names()
    elsewhere = {name: info.runs_on for name, info in found.items() if info.runs_on != "gpu"}
    assert elsewhere == {"host": "cpu", "cublas": "library"}
    pipeline = found["sm80_pipeline"]
    assert pipeline.options == ("tile", "warps", "stages", "copy", "raster", "min_ctas", "mma")
    assert pipeline.minimum_cc == 80 and "cp.async" in pipeline.summary
    for info in found.values():
        m = 32 if info.name == "thin" else 64
        for name in info.dtypes:
            dtype, _, compute = name.partition("/")
            plan = cg.plan("TN", m=m, n=64, k=64, dtype=dtype, compute=compute or None,
                           kernel=info.name, backend="cpu")  # fmt: skip
            assert plan.kernel == info.name
            options = {option: getattr(plan.config, option) for option in info.options}
            again = cg.plan("TN", m=m, n=64, k=64, dtype=dtype, compute=compute or None,
                            kernel=info.name, backend="cpu", **options)  # fmt: skip
            assert again.config == plan.config


def test_kernels_can_be_called_after_a_plan() -> None:
    cg.plan("TN", m=64, n=64, k=64, dtype="float16", backend="cpu")
    assert cg.kernels() == api.kernels()


# -- backends -------------------------------------------------------------------------------------


def test_cuda_without_a_gpu(no_gpu: None) -> None:
    A, B = operands("NN", "float32")
    message = rf"backend='cuda' needs a GPU: {NO_GPU}"
    with pytest.raises(NoGpuError, match=message):
        cg.gemm("NN", A, B, backend="cuda")
    with pytest.raises(NoGpuError, match=message):
        cg.plan("NN", m=8, n=8, k=8, dtype="float32", backend="cuda")
    with pytest.raises(NoGpuError, match=message):
        backend.resolved_backend("auto", 0)  # arrays on a device


def test_the_cpu_does_not_take_device_arrays() -> None:
    with pytest.raises(DeviceError, match=r"backend='cpu' cannot read A on CUDA device 1"):
        backend.resolved_backend("cpu", 1)


def test_the_cpu_says_so_once(no_gpu: None) -> None:
    A, B = operands("NN", "float32")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        check(cg.gemm("NN", A, B), "NN", A, B)
        cg.gemm("NN", A, B)
        cg.gemm("NN", A, B, order="C")
        assert cg.plan("NN", A, B).backend == "cpu"
        assert cg.plan("NN", m=8, n=8, k=8, dtype="float32").backend == "cpu"
    (warning,) = seen
    assert warning.category is UserWarning
    assert str(warning.message) == f"no usable GPU ({NO_GPU}); computing on the CPU"


@pytest.mark.parametrize(
    "call",
    [
        lambda A, B: cg.gemm("NN", A, B),
        lambda A, B: cg.plan("NN", A, B)(A, B),
        lambda A, B: cg.analyze("NN", A, B, backend="auto"),
    ],
)
def test_the_warning_points_at_the_caller(no_gpu: None, call: Callable[..., Any]) -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        call(*operands("NN", "float32"))
    (warning,) = seen
    assert (warning.filename, warning.lineno) == (__file__, call.__code__.co_firstlineno)


def test_what_the_package_has_is_listed() -> None:
    public = [name for name in dir(cg) if name[:1] != "_"]
    assert public == sorted(cg.__all__) and all(hasattr(cg, name) for name in dir(cg))
    assert {"analyze_copy", "Report", "Layout", "CopyReport"} < set(public)


def test_the_cpu_that_was_asked_for_does_not(no_gpu: None) -> None:
    A, B = operands("NN", "float32")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cg.gemm("NN", A, B, backend="cpu")
        assert cg.plan("NN", A, B, backend="cpu").arch == backend.DEFAULT_ARCH


# -- streams --------------------------------------------------------------------------------------


class Stream:
    """A stream object with the given attributes."""

    def __init__(self, **attributes: object) -> None:
        vars(self).update(attributes)


class ProtocolStream:
    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, 44


def test_streams_of_every_library() -> None:
    assert raw_stream(7) == 7
    assert raw_stream(Stream(cuda_stream=11)) == 11  # PyTorch
    assert raw_stream(Stream(ptr=22)) == 22  # CuPy
    assert raw_stream(Stream(handle=33)) == 33  # cuda.core
    assert raw_stream(ProtocolStream()) == 44
    with pytest.raises(OptionError, match=r"stream='default' is not a CUDA stream"):
        raw_stream("default")


def test_a_launch_is_bound_to_all_of_the_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Any, ...]] = []

    class Loaded:
        def bind(self, launch: Any, arguments: Any, maps: None) -> Any:
            # Every argument has the address of the table, and no space between arguments is unused.
            base = ctypes.addressof(arguments.block)
            assert [at - base for at in arguments.table] == list(GEMM.offsets)
            assert ctypes.sizeof(arguments.block) == GEMM.size
            values = []
            for one, at in zip(GEMM.parameters, arguments.table, strict=True):
                code = "2f" if one.size == 16 else {4: "i", 8: "q"}[one.size]
                values += struct.unpack(code, ctypes.string_at(at, struct.calcsize(code)))
            seen[-1] += (launch, values[3:])
            return lambda addresses: addresses

    def load(build: Any, device: int) -> Loaded:
        seen.append((build, device))
        return Loaded()

    monkeypatch.setattr("cute_gemm.run.launch.load", load)
    monkeypatch.setattr(Naive, "build", lambda self, config, arch: ("the build", config, arch))
    sizes = {"m": 3, "n": 5, "k": 7, "l": 2, "lda": 8, "ldb": 9, "ldc": 4, "batch_b": 0}
    plan = cg.plan("TN", **sizes, dtype="complex64", kernel="naive", arch="sm_80", backend="cpu")
    build = ("the build", plan.config, "sm_80")
    given = [3, 5, 7, 2, 0, 1, 8, 9, 4, 8 * 3, 0, 4 * 5, 0, 0]
    plan.bind(2, Scalar(1 + 2j, 11), Scalar(3j, 13))
    assert seen == [(build, 2, plan.launch, [*given, 1, 2, 0, 3, 11, 13])]
    assert plan.launch.batch == 2

    plan.executable.device = 1
    plan.executable.launch(Scalar(0.5), Scalar(0, 17), (), "")
    assert seen[1:] == [(build, 1, plan.launch, [*given, 0.5, 0, 0, 0, 0, 17])]

    start = of_kernel(plan, [(1, 2, 3), (4, 5, 6)], 3, 0.5, 2.0)
    assert seen[2:] == [(build, 3, plan.launch, [*given, 0.5, 0, 2, 0, 0, 0])]
    assert start(1) == (4, 5, 6)
