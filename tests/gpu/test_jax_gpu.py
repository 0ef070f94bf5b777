"""Test ``cute_gemm.jax`` on the GPU."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from activations import of_library
from cases import in_threads

import cute_gemm as cg

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402

import cute_gemm.jax as cj  # noqa: E402
from cute_gemm.jax import calls  # noqa: E402


@pytest.fixture(autouse=True)
def on_gpu() -> None:
    if jax.default_backend() != "gpu":
        pytest.skip("JAX was installed without CUDA")


REAL = ["float16", "bfloat16", "float32"]
#: Tolerances relative to the largest element of the exact result.
TOLERANCE = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 1e-5, "complex64": 1e-5}
ACTIVATIONS: dict[Any, Callable[[Any], Any]] = {None: lambda z: z, **of_library(jax)}


def random(*shape: int, dtype: str = "float32", seed: int = 0) -> Any:
    rng = np.random.default_rng([seed, *shape])
    values = rng.standard_normal(shape) / 4
    if dtype.startswith("complex"):
        values = values + 1j * rng.standard_normal(shape)
    return jnp.asarray(values, dtype)


def close(found: Any, expected: Any, dtype: str, factor: float = 1.0) -> None:
    assert found.shape == expected.shape and isinstance(found, jax.Array)
    one, other = (
        np.asarray(x, np.complex128 if jnp.iscomplexobj(x) else np.float64)
        for x in (found, expected)
    )
    scale = np.abs(other).max(initial=0) or 1.0
    error = np.abs(one - other).max(initial=0)
    assert error <= factor * TOLERANCE[dtype] * scale, (error, scale)


def reference(function: Callable[..., Any], *arrays: Any) -> Any:
    """Return a function of JAX of the same numbers, in the widest arithmetic."""
    with jax.default_matmul_precision("highest"):
        wide = (x.astype("float32") if x.dtype in ("float16", "bfloat16") else x for x in arrays)
        return function(*wide)


@pytest.mark.parametrize("dtype", REAL)
def test_matmul(dtype: str) -> None:
    shapes = [((96, 64), (64, 80)), ((2, 3, 40, 64), (64, 80)), ((40, 64), (3, 64, 80))]
    shapes += [((2, 1, 40, 64), (3, 64, 80)), ((33, 65), (65, 31)), ((0, 8), (8, 8))]
    shapes += [((5, 33, 65), (5, 65, 31)), ((4, 0), (0, 8)), ((2, 1, 33, 7), (1, 3, 7, 5))]
    for first, second in shapes:
        a, b = random(*first, dtype=dtype), random(*second, dtype=dtype)
        expected = reference(jnp.matmul, a, b)
        for found in (cj.matmul(a, b), jax.jit(cj.matmul)(a, b)):
            assert found.device == a.device and found.dtype == dtype
            close(found, expected, dtype)
        gradient = jax.grad(lambda a, b: (cj.matmul(a, b).astype("float32") ** 2).sum(), (0, 1))
        exact = jax.grad(lambda a, b: (jnp.matmul(a, b) ** 2).sum(), (0, 1))
        for one, other in zip(jax.jit(gradient)(a, b), reference(exact, a, b), strict=True):
            close(one, other, dtype, 3)


@pytest.mark.parametrize("op", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("dtype", [*REAL, "complex64"])
def test_gemm(op: str, dtype: str) -> None:
    a = random(*((130, 72) if op[0] == "N" else (72, 130)), dtype=dtype)
    b = random(*((72, 66) if op[1] == "N" else (66, 72)), dtype=dtype)
    turn = {"N": lambda x: x, "T": lambda x: x.T}
    found = jax.jit(lambda a, b: cj.gemm(op, a, b, alpha=-0.5))(a, b)
    close(found, reference(lambda a, b: -0.5 * turn[op[0]](a) @ turn[op[1]](b), a, b), dtype)
    close(cg.gemm(op, a, b, alpha=-0.5), found, dtype)


def test_int8_and_wide_results() -> None:
    rng = np.random.default_rng(0)
    a, b = (jnp.asarray(rng.integers(-128, 128, s), "int8") for s in ((96, 64), (80, 64)))
    found = jax.jit(lambda a, b: cj.matmul(a, b.T))(a, b)
    assert (np.asarray(found) == np.asarray(a, np.int32) @ np.asarray(b, np.int32).T).all()
    half, other = random(96, 64, dtype="bfloat16"), random(64, 80, dtype="bfloat16")
    wide = jax.jit(partial(cj.matmul, out_dtype="float32"))(half, other)
    close(wide, reference(jnp.matmul, half, other), "float32")


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
@pytest.mark.parametrize("dtype", REAL)
def test_linear(activation: Any, dtype: str) -> None:
    given = random(4, 33, 64, dtype=dtype), random(80, 64, dtype=dtype), random(80, dtype=dtype)

    def ours(x: Any, w: Any, b: Any) -> Any:
        return cj.linear(x, w, b, activation)

    def theirs(x: Any, w: Any, b: Any) -> Any:
        return ACTIVATIONS[activation](x @ w.T + b)

    close(jax.jit(ours)(*given), reference(theirs, *given), dtype)
    close(jax.jit(jax.vmap(ours, (0, None, None)))(*given), reference(theirs, *given), dtype)
    weights = random(4, 33, 80)
    found, expected = (
        jax.grad(lambda *x, f=f: (f(*x).astype("float32") * weights).sum(), (0, 1, 2))
        for f in (ours, theirs)
    )
    for one, other in zip(jax.jit(found)(*given), reference(expected, *given), strict=True):
        assert one.dtype == dtype
        close(one, other, dtype, 4)


def test_epilogues() -> None:
    def several(acc: Any, bias: Any, scale: Any) -> Any:
        y = acc * scale + bias
        return y, cg.cast(y * 3, "int8"), cg.amax(y), cg.exp(-abs(acc))

    def theirs(a: Any, b: Any, bias: Any, scale: Any) -> Any:
        acc = a @ b
        y = acc * scale + bias
        eighth = jnp.clip(jnp.round(y * 3), -128, 127)
        return y, eighth, jnp.abs(y).max(), jnp.exp(-jnp.abs(acc))

    def ours(a: Any, b: Any, bias: Any, scale: Any) -> Any:
        return cj.gemm("NN", a, b, epilogue=several, bias=bias, scale=scale)

    a, b, bias, scale = random(3, 40, 64), random(64, 80), random(3, 80), random(3)
    cases: list[tuple[Any, Any]] = [
        ((0, None, None, None), (a, b, bias[0], scale[0])),
        ((None, None, 0, 0), (a[0], b, bias, scale)),
        ((0, None, 0, None), (a, b, bias, scale[0])),
    ]
    for axes, given in cases:
        found = jax.jit(jax.vmap(ours, axes))(*given)
        expected = reference(jax.vmap(theirs, axes), *given)
        for place, (one, other) in enumerate(zip(found, expected, strict=True)):
            if place == 1:  # a value may be rounded either way
                assert np.abs(np.asarray(one, int) - np.asarray(other, int)).max() <= 1
            else:
                close(one, other, "float32", 4)
    whole = jax.jit(partial(ours, scale=1.0))(a, b, bias[:1])
    close(whole[2], reference(lambda *x: theirs(*x)[2], a, b, bias[:1], jnp.ones(())), "float32")
    again = jax.jit(partial(ours, scale=0.25))(a, b, bias[:1])  # the maximum is reset to 0
    assert again[2] < whole[2]


def test_named_kernels_and_options() -> None:
    a, b = random(256, 128, dtype="float16"), random(128, 256, dtype="float16")
    expected = reference(jnp.matmul, a, b)
    for options in (
        {"kernel": "sm80_pipeline", "stages": 3}, {"split_k": 4}, {"kernel": "naive"},
        {"pack": "AB"}, {"kernel": "cublas"},
    ):  # fmt: skip
        close(jax.jit(partial(cj.gemm, "NN", **options))(a, b), expected, "float16")
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match="stages"):
        jax.jit(partial(cj.gemm, "NN", kernel="sm80_pipeline", stages=1000))(a, b)[0, 0].item()
    close(cj.matmul(a, b), expected, "float16")


def test_between_other_operations() -> None:
    """Test that a call waits for earlier work of the stream, and later work for the call."""
    a, b = random(1024, 1024), random(1024, 1024, seed=1)

    @partial(jax.jit, static_argnums=2)
    def program(a: Any, b: Any, product: Any) -> Any:
        turn = jnp.eye(1024)[::-1]
        start = jax.lax.fori_loop(0, 300, lambda _, y: turn @ y, a)  # reversed 300 times: a
        y = product(start, b)
        for step in range(6):
            y = jnp.cos(product(y, b) / 64 + step)  # these steps do not amplify errors
            y = product(jnp.tanh(y), jnp.sort(start, axis=0)) / 512
        total = jax.lax.scan(lambda c, row: (c + product(row[None], y)[0], row.sum()), y[0], a[:8])
        return y, *total

    with jax.default_matmul_precision("highest"):
        expected = program(a, b, jnp.matmul)
        for _ in range(5):
            found = program(a, b, cj.matmul)
            for one, other in zip(found, expected, strict=True):
                close(one, other, "float32", 10)


def test_training() -> None:
    """Compare the losses of 30 steps, in one program, with those of JAX's own products."""
    x, y = random(30, 64, 128), random(30, 64, 32, seed=1)
    start = {"w1": random(256, 128), "b1": jnp.zeros(256), "w2": random(32, 256) / 2}

    def losses(linear: Any) -> Any:
        def loss(p: Any, x: Any, y: Any) -> Any:
            h = linear(jnp.tanh(x), p["w1"], p["b1"], "gelu")
            return ((linear(h, p["w2"], None, None) - y) ** 2).mean()

        def step(p: Any, batch: Any) -> Any:
            value, gradients = jax.value_and_grad(loss)(p, *batch)
            return jax.tree.map(lambda p, g: p - 0.05 * g, p, gradients), value

        return jax.jit(lambda p: jax.lax.scan(step, p, (x, y)))(start)[1]

    def theirs(x: Any, w: Any, b: Any, activation: Any) -> Any:
        return ACTIVATIONS[activation](x @ w.T + (0 if b is None else b))

    with jax.default_matmul_precision("highest"):
        close(losses(cj.linear), losses(theirs), "float32", 10)


def test_several_threads() -> None:
    arrays = [(random(200 + 8 * i, 96, seed=i), random(96, 72, seed=i)) for i in range(8)]
    expected = [reference(jnp.matmul, *pair) for pair in arrays]
    found: dict[int, Any] = {}

    def run(place: int) -> None:
        function = jax.jit(lambda a, b: cj.matmul(a, b) + 0)
        for _ in range(20):
            found[place] = function(*arrays[place])

    in_threads(run, range(8))
    for place, each in enumerate(expected):
        close(found[place], each, "float32")


def test_the_stream_and_device_of_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Test that a call uses XLA's stream and device, and not the default stream."""
    seen = []
    launch = calls._launch

    def spy(text: bytes, given: Any, made: Any, device: int | None) -> Any:
        seen.append(device)
        return launch(text, given, made, device)

    streams = []

    class Context(calls.ffi.Context):
        @property
        def stream(self) -> int:
            streams.append(super().stream)
            return streams[-1]

    monkeypatch.setattr(calls, "_launch", spy)
    monkeypatch.setattr(calls.ffi, "Context", Context)
    a = random(64, 64)
    jax.jit(lambda a: cj.matmul(a, a) @ a)(a).block_until_ready()
    assert seen == [a.device.local_hardware_id] and streams[0] not in (0, 1, 2)


def test_every_device() -> None:
    devices = jax.devices()
    if len(devices) < 2:
        pytest.skip("one GPU")
    a, b = random(96, 64), random(64, 80)
    for device in devices:
        found = jax.jit(cj.matmul)(*(jax.device_put(x, device) for x in (a, b)))
        assert found.device == device
        close(found, reference(jnp.matmul, a, b), "float32")


def test_arrays_of_the_cpu_stay_there() -> None:
    cpu = jax.devices("cpu")[0]
    a, b = (jax.device_put(x, cpu) for x in (random(8, 5), random(5, 7)))
    found = jax.jit(cj.matmul)(a, b)
    assert found.device == cpu
    close(found, a @ b, "float32")
