"""``ProductCall``: the text of a custom call in an XLA program, and its execution.

A compiled program holds nothing but the text. A program that another process compiled and JAX
cached on disk runs here too.
"""

from __future__ import annotations

import ctypes
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from cute_gemm.arrays.base import ALIGNMENT, Operand, Order
from cute_gemm.call import Backend, Call
from cute_gemm.dtypes import DTYPES
from cute_gemm.jax import ffi
from cute_gemm.jax.ffi import Buffer
from cute_gemm.jax.parts import Submatrix, parts
from cute_gemm.plan import reused
from cute_gemm.plan.executable import Executable
from cute_gemm.plan.make import kept_plan
from cute_gemm.problem.epilogue.expression import Result
from cute_gemm.problem.epilogue.fuse import from_text as function_from_text
from cute_gemm.problem.matrix import common_power_of_two
from cute_gemm.problem.problem import GemmProblem
from cute_gemm.problem.scalars import ZERO, Scalar, scalar

#: The name of the custom call in XLA programs.
TARGET = "cute_gemm_product"


@dataclass(frozen=True)
class ProductCall(Call):
    """The computation on A, B and the epilogue's operands, which are arrays.

    ``operands`` are the names of the epilogue's array operands, ``numbers`` the other operands.
    """

    order: Order = "C"
    alpha: complex = 1.0
    operands: tuple[str, ...] = ()
    numbers: tuple[tuple[str, float], ...] = ()

    @property
    def text(self) -> str:
        """The call as JSON, without defaults."""
        given = {x.name: getattr(self, x.name) for x in fields(self)}
        given = {x.name: given[x.name] for x in fields(self) if given[x.name] != x.default}
        if "alpha" in given:
            given["alpha"] = [complex(self.alpha).real, complex(self.alpha).imag]
        if self.epilogue is not None:
            given["epilogue"] = self.epilogue.text
        return json.dumps(given)

    @property
    def results(self) -> tuple[Result, ...]:
        """Results of the epilogue in addition to C."""
        return () if self.epilogue is None else self.epilogue.expression.results[1:]

    def plain(self, out_dtype: str | None) -> ProductCall:
        """Return the call without its epilogue."""
        return replace(self, out_dtype=out_dtype, epilogue=None, operands=(), numbers=())


@lru_cache(maxsize=256)
def from_text(text: bytes) -> ProductCall:
    """Return the call that a text describes."""
    given = {name: _hashable(value) for name, value in json.loads(text).items()}
    if "alpha" in given:
        real, imaginary = given["alpha"]
        given["alpha"] = complex(real, imaginary) if imaginary else real
    if "epilogue" in given:
        given["epilogue"] = function_from_text(given["epilogue"])
    return ProductCall(**given)


def _hashable(value: Any) -> Any:
    return tuple(_hashable(each) for each in value) if isinstance(value, list) else value


class Shaped(NamedTuple):
    """Shape and type of an array."""

    shape: tuple[int, ...]
    dtype: str


@lru_cache(maxsize=1024)
def results(call: ProductCall, arrays: tuple[Shaped, ...]) -> tuple[Shaped, ...]:
    """Return the results of a call on A, B and operands; GemmError for arguments that do not fit.

    Batch dimensions, all but the last two, broadcast.
    """
    a, b, *operands = (
        Operand(0, x.shape[-2:], _strides(x.shape[-2:]), x.dtype, None, "jax", None, True)
        for x in arrays
    )
    problem, _ = _described(call, a, b, None, operands)
    batch = np.broadcast_shapes(*(x.shape[:-2] for x in arrays))
    shape = *batch, problem.m, problem.n
    C = Shaped(shape, problem.C.dtype)
    sums = problem.scalar.name
    return C, *(
        Shaped((), sums) if x.amax else Shaped(shape, x.dtype or C.dtype) for x in call.results
    )


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of a row-major array of at most two dimensions."""
    return (max(shape[-1], 1), 1)[-len(shape) :] if shape else ()


def _described(
    call: ProductCall, a: Operand, b: Operand, c: Operand | None, operands: Sequence[Operand]
) -> tuple[GemmProblem, tuple[float, ...]]:
    """Check operands; return the product with its epilogue, and the epilogue's numbers."""
    problem = (call if c is None else replace(call, out_dtype=None)).describe(a, b, c)
    given: dict[str, Any] = dict(zip(call.operands, operands, strict=True)) | dict(call.numbers)
    problem, own = call.fuse(problem, given, a.device)
    return problem, own.values


# ---- running ------------------------------------------------------------------------------------


class _Launch(NamedTuple):
    """A product of a call: its executable, alpha, numbers, and the places of its arrays.

    ``places``: of A, B, C, the operands, and further results, by their buffers' addresses.
    """

    executable: Executable
    alpha: Scalar
    numbers: tuple[float, ...]
    places: tuple[Submatrix, ...]
    offsets: tuple[int, ...]


def _prepared(
    call: ProductCall, given: Sequence[Buffer], outputs: Sequence[Buffer], device: int | None
) -> tuple[_Launch, ...]:
    """Return the launches of a call on buffers with this layout and alignment."""
    c, *further = outputs
    if 0 in c.shape:
        return ()
    a, b, *operands = given
    buffers = a, b, c, *operands
    m, n = c.shape[-2:]
    shapes = [x.shape for x in operands]
    launches = []
    for places in parts(call.op.upper(), a.shape, b.shape, shapes, m, n):
        A, B, C, *others = (
            _operand(buffer, place, device, buffer is not c)
            for buffer, place in zip(buffers, places, strict=True)
        )
        # On the host only C's address matters; XLA keeps C apart from the other buffers.
        problem, numbers = _described(call, A, B, C, others)
        alpha = scalar(call.alpha, "alpha", problem.scalar.name, None)
        backend: Backend = "cpu" if device is None else "cuda"
        plan = kept_plan(problem, device, replace(call, backend=backend))
        ends = [Submatrix(0, (), ()) if x.amax else places[2] for x in call.results]
        where = *places, *ends
        sizes = (
            place.offset * DTYPES[buffer.dtype].bytes
            for place, buffer in zip(where, (*buffers, *further), strict=True)
        )
        launches.append(_Launch(plan.executable, alpha, numbers, where, tuple(sizes)))
    return tuple(launches)


def _operand(buffer: Buffer, place: Submatrix, device: int | None, readonly: bool) -> Operand:
    row = DTYPES.get(buffer.dtype)
    pointer = buffer.pointer + place.offset * (1 if row is None else row.bytes)
    return Operand(pointer, place.shape, place.strides, buffer.dtype, device, "jax", None, readonly)


def _launch(
    text: bytes, given: list[Buffer], outputs: list[Buffer], device: int | None
) -> tuple[list[Buffer], tuple[_Launch, ...], list[Buffer]]:
    """Return buffers in the order of `_Launch.places`, kept launches, and magnitudes."""
    call = from_text(text)
    buffers = *given, *outputs
    alignments = [common_power_of_two(x.pointer, ALIGNMENT) for x in buffers]
    key = text, device, *(x[:2] for x in buffers), *(alignments if device is not None else ())
    launches: tuple[_Launch, ...] | None = reused.jax_launches.get(key)
    if launches is None or any(x.executable.replaced for x in launches):
        launches = reused.jax_launches[key] = _prepared(call, given, outputs, device)
    places = [*given[:2], outputs[0], *given[2:], *outputs[1:]]
    further = zip(call.results, outputs[1:], strict=True)
    return places, launches, [buffer for result, buffer in further if result.amax]


def on_device(
    text: bytes, given: list[Buffer], outputs: list[Buffer], context: ffi.Context
) -> None:
    """Start a call on device buffers, on the stream of the context."""
    device = context.device
    if device is None:
        device = _device_of(next((x.pointer for x in (*outputs, *given) if x.pointer), 0))
    stream = context.stream
    buffers, launches, greatest = _launch(text, given, outputs, device)
    for buffer in greatest:
        from cute_gemm.run.memory import zero

        zero(buffer.pointer, DTYPES[buffer.dtype].bytes, device, stream)
    for launch in launches:
        at = [x.pointer + offset for x, offset in zip(buffers, launch.offsets, strict=True)]
        bound = launch.executable.launch(launch.alpha, ZERO, launch.numbers)
        bound(at, stream)


def _device_of(pointer: int) -> int:
    """Return the device of an address; the first device for a null address."""
    if not pointer:
        return 0
    from cute_gemm.run.driver import checked, load_driver

    driver = load_driver()
    which = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    (device,) = checked(driver.cuPointerGetAttribute(which, pointer), "asking for a device")
    return int(device)


def on_host(text: bytes, given: list[Buffer], outputs: list[Buffer], context: ffi.Context) -> None:
    """Compute a call on host buffers."""
    buffers, launches, magnitudes = _launch(text, given, outputs, None)
    greatest = [_array(buffer, Submatrix(0, (), ())) for buffer in magnitudes]
    for array in greatest:
        array[...] = 0
    for launch in launches:
        before = [array.copy() for array in greatest]
        arrays = [_array(x, place) for x, place in zip(buffers, launch.places, strict=True)]
        executable, problem = launch.executable, launch.executable.problem
        others = dict(zip((x.name for x in problem.operands), arrays[3:], strict=True))
        numbers = zip(problem.epilogue.numbers, launch.numbers, strict=True)
        others |= {name: np.asarray(number) for name, number in numbers}
        A, B, C = arrays[:3]
        executable.by_numpy(A, B, C, launch.alpha.value, 0.0, others)
        for array, old in zip(greatest, before, strict=True):
            np.maximum(array, old, out=array)


def _array(buffer: Buffer, place: Submatrix) -> np.ndarray:
    """Return a part of a buffer as a NumPy array, without a copy."""
    row = DTYPES[buffer.dtype]
    nbytes = math.prod(buffer.shape) * row.bytes
    if not nbytes:
        return np.empty(place.shape, row.numpy)
    memory: Any = (ctypes.c_char * nbytes).from_address(buffer.pointer)
    strides = tuple(stride * row.bytes for stride in place.strides)
    return np.ndarray(place.shape, row.numpy, memory, place.offset * row.bytes, strides)


ffi.register(TARGET, dict(zip(ffi.PLATFORMS, (on_host, on_device), strict=True)))
