"""``epilogue=``: a Python function or a name, and its operands, as a problem's `Fused` epilogue."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from cute_gemm.arrays import BROADCAST, host_array, is_array, read
from cute_gemm.arrays.base import ALIGNMENT, Operand, place_of
from cute_gemm.dtypes import DTYPES
from cute_gemm.errors import DeviceError, DTypeError, OptionError, ShapeError
from cute_gemm.problem.epilogue.epilogue import LINEAR_COMBINATION, EpilogueOperand
from cute_gemm.problem.epilogue.expression import Expression, Result, from_parts, pairs, trace
from cute_gemm.problem.epilogue.functions import gelu, silu
from cute_gemm.problem.epilogue.fused import Fused
from cute_gemm.problem.epilogue.rows import ACTIVATIONS
from cute_gemm.problem.epilogue.value import Value
from cute_gemm.problem.matrix import Matrix, alignment_of, common_power_of_two
from cute_gemm.problem.overlap import refuse_overlap
from cute_gemm.problem.parts.groups import check_operand, operand_shape
from cute_gemm.problem.parts.scales import BLOCKS, check_strides, named_shape, read_scale
from cute_gemm.problem.parts.scales import DTYPE as SCALE_DTYPE
from cute_gemm.problem.problem import GemmProblem
from cute_gemm.problem.scalars import scalar

#: Parts of names: functions of the value before them, and of the operand of the same name.
_FUNCTIONS_OF_NAMES: dict[str, Callable[[Value], Value]] = {
    **{name: activation.function for name, activation in ACTIVATIONS.items()},
    "swiglu": lambda acc: silu((pair := pairs(acc))[0]) * pair[1],
    "geglu": lambda acc: gelu((pair := pairs(acc))[0]) * pair[1],
}
PARTS_WITH_OPERAND: dict[str, Callable[[Value, Value], Value]] = {
    "bias": lambda x, bias: x + bias,
    "residual": lambda x, residual: x + residual,
    "scale": lambda x, scale: x * scale,
}


@dataclass(frozen=True)
class EpilogueFunction:
    """A traced epilogue: its name and its expression. `epilogue` returns one."""

    name: str
    expression: Expression
    #: ``scale_a`` and ``scale_b``, if the call has them.
    scales: tuple[str, ...] = ()
    #: Name and expression as JSON without spaces, for PyTorch's graphs.
    text: str = field(init=False, compare=False, repr=False)

    @property
    def operands(self) -> tuple[str, ...]:
        """Names of the arguments of a call in addition to A, B and C."""
        return *self.scales, *self.expression.operands

    def __post_init__(self) -> None:
        text = json.dumps([self.name, *self.expression.parts], separators=(",", ":"))
        object.__setattr__(self, "text", text.replace(" ", r"\u0020"))


def epilogue(function: Callable[..., Any]) -> EpilogueFunction:
    """Trace a function of the accumulator and operands; a decorator.

    Parameters
    ----------
    function
        Its first parameter is the accumulator, ``alpha * op(A) @ op(B) + beta * C``, in the type of
        the accumulators. The others are the operands, arrays that broadcast to C, by the names
        that a call gives them. A keyword-only parameter with a default keeps the default.

        It returns the result, or a tuple of the result and further results.

    Returns
    -------
    EpilogueFunction
        The value for ``epilogue=``.

    Raises
    ------
    OptionError
        For a function that cannot be traced: it has an ``if`` on a value, or calls a function that
        is not known.

    Examples
    --------
    >>> import cute_gemm as cg
    >>> @cg.epilogue
    ... def leaky(acc, bias):
    ...     y = acc + bias
    ...     return y * 0.1 + cg.relu(y) * 0.9
    >>> leaky.name, leaky.expression.operands
    ('leaky', ('bias',))
    """
    if not callable(function):
        raise OptionError(
            f"epilogue={function!r}; expected a name such as 'bias+gelu', or a function of the "
            "accumulator and operands"
        )
    hashable = isinstance(function, Hashable)
    return _traced(function) if hashable else _traced.__wrapped__(function)


@lru_cache(maxsize=256)
def _traced(function: Callable[..., Any]) -> EpilogueFunction:
    return EpilogueFunction(getattr(function, "__name__", "epilogue"), trace(function))


@lru_cache(maxsize=256)
def from_text(text: str) -> EpilogueFunction:
    """Return the epilogue of a text: its `EpilogueFunction.text`, or a name."""
    if not text.startswith("["):
        return named(text)
    name, *parts = json.loads(text)
    return EpilogueFunction(name, from_parts(*parts))


@lru_cache(maxsize=256)
def named(name: str) -> EpilogueFunction:
    """Return the epilogue of a name, whose parts are joined by ``+``: ``"bias+gelu"``.

    The parts ``bias`` and ``residual`` add an operand of that name, ``scale`` multiplies by one.
    Other parts are `ACTIVATIONS`, and at the front ``swiglu`` and ``geglu``, which take `pairs` of
    columns, gate and up: ``silu(gate) * up`` and ``gelu(gate) * up``.

    >>> print(named("bias+relu").expression)
    v0 = acc
    v1 = bias
    v2 = add(v0, v1)
    v3 = 0.0
    v4 = maximum(v2, v3)
    return v4
    """
    parts = name.split("+")
    operands = [part for part in parts if part in PARTS_WITH_OPERAND]
    unknown = [part for part in parts if part not in (*PARTS_WITH_OPERAND, *_FUNCTIONS_OF_NAMES)]
    if unknown or len(set(operands)) < len(operands):
        known = ", ".join((*PARTS_WITH_OPERAND, *_FUNCTIONS_OF_NAMES))
        wrong = f"{unknown[0]!r} is not known" if unknown else "an operand is there twice"
        raise OptionError(
            f"epilogue={name!r}: {wrong}; expected some of {known}, each once, joined by '+'"
        )

    def composed(acc: Value, **operands: Value) -> Value:
        for part in parts:
            if part in PARTS_WITH_OPERAND:
                acc = PARTS_WITH_OPERAND[part](acc, operands[part])
            else:
                acc = _FUNCTIONS_OF_NAMES[part](acc)
        return acc

    return EpilogueFunction(name, trace(composed, operands))


#: The epilogue of a call with scales and no other epilogue.
_IDENTITY = trace(lambda acc: acc)


def with_scales(function: EpilogueFunction | None, scales: tuple[str, ...]) -> EpilogueFunction:
    """Return the epilogue, or None, of values multiplied by ``scale_a``, ``scale_b`` or both."""
    if function is None:
        return EpilogueFunction(" and ".join(scales), _IDENTITY, scales)
    return replace(function, scales=scales)


def as_function(value: Any) -> EpilogueFunction:
    """Return the traced epilogue of a value of ``epilogue=``: a name or a function."""
    if isinstance(value, EpilogueFunction):
        return value
    if isinstance(value, str):
        return named(value)
    return epilogue(value)


#: Bytes of the widest load.
VECTOR = 16


class Operands(NamedTuple):
    """An epilogue's operands of a call.

    ``arrays``: operands in memory by name, in the epilogue's order but block scales first;
    ``numbers``: operands passed by value, in that order too; ``recipes``: recipes of scales by
    name.
    """

    arrays: Mapping[str, Operand]
    numbers: Mapping[str, float]
    recipes: Mapping[str, str] = MappingProxyType({})

    @property
    def values(self) -> tuple[float, ...]:
        """The numbers."""
        return tuple(self.numbers.values())

    def with_offsets(self, ends: Operand) -> Operands:
        """Return the operands with the ends of groups after block scales."""
        blocks = {x: a for x, a in self.arrays.items() if self.recipes.get(x) in BLOCKS}
        return self._replace(arrays={**blocks, "offsets": ends, **self.arrays})

    def on_host(self) -> dict[str, np.ndarray]:
        """Return the operands as NumPy arrays."""
        arrays = {name: host_array(operand) for name, operand in self.arrays.items()}
        for name in self.recipes:
            if name in arrays:
                arrays[name] = arrays[name].reshape(self.arrays[name].shape)
        return arrays | {name: np.asarray(number) for name, number in self.numbers.items()}


#: The operands of a call without an epilogue.
NOTHING = Operands({}, {})


def read_offsets(value: Any) -> Operand:
    """Read the ends of groups; OptionError if they are missing or are not an array."""
    if value is None or not is_array(value):
        said = "it is missing" if value is None else f"it is {value!r}"
        raise OptionError(
            f"a grouped GEMM needs offsets, an int32 array of the end of each group: {said}"
        )
    return read(value, "offsets", (0, 1, 2, 3))


def read_operands(
    function: EpilogueFunction, given: Mapping[str, Any], problem: GemmProblem, device: int | None
) -> Operands:
    """Read the operands of a call, on the device (None: the host) of A and B.

    Numbers, and 0-d arrays on the host, are passed by value; an `Operand` needs no reading. Raises
    OptionError for a missing operand, and the errors of `read`, or DeviceError, for one that is
    not accessible there.
    """
    _check(problem, function)
    check_names(function, given)
    arrays: dict[str, Operand] = {}
    numbers: dict[str, float] = {}
    recipes: dict[str, str] = {}
    for name in function.operands:
        operand = value = given[name]
        if not isinstance(value, Operand):
            operand = read(value, name, BROADCAST) if is_array(value) else None
            if operand is None or (operand.device is None and not operand.shape):
                if name in function.scales:
                    recipes[name] = "tensor"
                number = value if operand is None else host_array(operand).item()
                numbers[name] = float(scalar(number, name, problem.scalar.name, None).value.real)
                continue
            if operand.device != device:
                raise DeviceError(
                    f"{name} is on {operand.place} and A is on {place_of(device)}; expected one"
                )
        if name in function.scales:
            operand, recipes[name] = read_scale(name, operand, problem)
        arrays[name] = operand
    ordered = sorted(arrays, key=lambda name: recipes.get(name) not in BLOCKS)
    return Operands({name: arrays[name] for name in ordered}, numbers, recipes)


def sized_operands(
    function: EpilogueFunction, given: Mapping[str, Any], problem: GemmProblem
) -> dict[str, Any]:
    """Return placeholders for the operands of a problem without arrays.

    ``given``: shapes of operands, and shapes or recipes of scales. By default a bias is (N,), a
    residual has C's layout, and a scale is passed by value.
    """
    C = problem.C
    lead, step = ((problem.l,), (C.batch_stride,)) if problem.l > 1 else ((), ())
    operands: dict[str, Any] = {}
    for name in dict.fromkeys((*function.operands, *given)):
        value = given.get(name, (problem.columns,) if name == "bias" else None)
        if isinstance(value, str) and name in function.scales:
            value = named_shape(name, value, problem)
        if isinstance(value, tuple):
            strides = tuple(math.prod(value[axis + 1 :]) for axis in range(len(value)))
            kind = SCALE_DTYPE if name in function.scales else C.dtype
            value = Operand(0, value, strides, kind, None, "numpy", None, True)
        elif value is None and name == "residual":
            layout = (*lead, *C.shape), (*step, *C.stride)
            value = Operand(0, *layout, C.dtype, None, "numpy", None, True)
        elif value is None and name == "scale":
            value = 1.0
        if value is not None:
            operands[name] = value
    return operands


def _check(problem: GemmProblem, function: EpilogueFunction) -> None:
    """Refuse an epilogue of integers or complex numbers."""
    if problem.is_complex:
        expected = "real floating-point types"
    elif not problem.scalar.roundoff:
        floats = next(name for name in problem.A.element.outputs if DTYPES[name].roundoff)
        expected = f"a C of floating-point numbers: pass out_dtype={floats!r}"
    else:
        return
    raise DTypeError(
        f"epilogue {function.name!r} came with A and B of {problem.dtype} and C of "
        f"{problem.C.dtype}; expected {expected}"
    )


def check_names(function: EpilogueFunction, given: Mapping[str, Any]) -> None:
    """Refuse operands that the epilogue does not have, and a call without one that it has."""
    # PyTorch's compiler reads the fields of a frozen dataclass, but no properties.
    names = *function.scales, *function.expression.operands
    missing = [name for name in names if name not in given]
    if missing:
        raise OptionError(f"epilogue {function.name!r} reads {missing[0]}: pass {missing[0]}=")
    others = [name for name in given if name not in names]
    if others:
        reads = f"reads {', '.join(names)}" if names else "reads no operand"
        raise OptionError(f"{others[0]}= came with epilogue {function.name!r}, which {reads}")


def takes_pairs(function: EpilogueFunction | None, grouped: bool = False) -> bool:
    """Return whether an epilogue takes pairs of columns, which a grouped GEMM refuses."""
    if function is None:
        return False
    kind = function.expression.pairs
    if kind and grouped:
        raise OptionError(
            f"epilogue {function.name!r} takes {kind} of columns, which grouped_gemm() does not "
            "have: return the product, and compute on its columns afterwards"
        )
    return bool(kind)


def check_overlap(c: Operand, operands: Operands) -> None:
    """Refuse a C that shares memory with an operand, unless the operand is C itself.

    A kernel reads each element of such an operand before it writes that element. This does not hold
    for scales.
    """
    for name, operand in operands.arrays.items():
        place = (operand.pointer, operand.shape, operand.strides, operand.dtype)
        same = place == (c.pointer, c.shape, c.strides, c.dtype) and name not in operands.recipes
        if not same:
            refuse_overlap(c, operand, name)


def check_scalar_overlap(c: Operand, name: str, pointer: int, dtype: str) -> None:
    """Refuse a device scalar within C; raise OverlapError."""
    operand = replace(c, pointer=pointer, shape=(), strides=(), dtype=dtype)
    refuse_overlap(c, operand, name, "a number")


def fuse(problem: GemmProblem, function: EpilogueFunction, operands: Operands) -> GemmProblem:
    """Return the problem with an epilogue and the descriptors of its operands.

    Equal arguments return the same object. Its numbers are 0 whatever those of ``operands`` are.

    Parameters
    ----------
    problem
        A problem of real floating-point numbers with BLAS's epilogue.
    function
        The epilogue.
    operands
        Its operands, which broadcast to C, (M, N) or (L, M, N), as in NumPy.

    Raises
    ------
    ShapeError, StrideError, DTypeError
        For an operand that does not broadcast to C, has negative strides or is complex; for
        accumulators that are integers or complex.
    """
    stored = tuple(
        (name, x.shape, x.strides, x.dtype, alignment_of(x)) for name, x in operands.arrays.items()
    )
    recipes = tuple(operands.recipes.items())
    return _fuse(problem, function, stored, tuple(operands.numbers), recipes)


@lru_cache(maxsize=1024)
def _fuse(
    problem: GemmProblem, function: EpilogueFunction, stored: tuple[Any, ...],
    numbers: tuple[str, ...], recipes: tuple[tuple[str, str], ...],
) -> GemmProblem:  # fmt: skip
    _check(problem, function)
    expression = function.expression
    if problem.groups and expression.results[1:]:
        raise OptionError(
            f"epilogue {function.name!r} has further results, which a grouped GEMM does not store: "
            "return one"
        )
    if expression.pairs and ("scale_b", "row") in recipes:
        raise OptionError(
            f"scale_b has a number for each column of the product, of which epilogue "
            f"{function.name!r} takes {expression.pairs}; expected one number, and those of "
            "columns as operands that the epilogue multiplies the two by"
        )
    blocks = [name for name, recipe in recipes if recipe in BLOCKS]
    scales = tuple(_block_scales(problem, *each) for each in stored if each[0] in blocks)
    matrices = tuple(_matrix(problem, *each) for each in stored if each[0] not in blocks)
    problem = replace(problem, scales=scales)
    own = tuple(name for name, recipe in recipes if recipe not in BLOCKS)
    if expression == _IDENTITY and not own:
        return replace(problem, epilogue=LINEAR_COMBINATION, operands=(), numbers=())
    after_C = expression.results[1:]
    further = tuple(
        _result(problem, f"result_{place}", result) for place, result in enumerate(after_C, 1)
    )
    results = tuple(
        replace(_operand(x), amax=result.amax) for x, result in zip(further, after_C, strict=True)
    )
    tensors = tuple(map(_operand, matrices))
    output = problem.C.dtype
    fused = Fused(expression, tensors, numbers, function.name, output, results, own)
    return replace(
        problem, epilogue=fused, operands=(*matrices, *further), numbers=(0.0,) * len(numbers),
    )  # fmt: skip


def _result(problem: GemmProblem, name: str, result: Result) -> Matrix:
    """Return the descriptor of a further result: a new matrix with C's order, or a number."""
    C = problem.C
    if result.amax:
        return Matrix(name, C.shape, (0, 0), problem.scalar.name, ALIGNMENT, l=problem.l)
    stride = (1, max(problem.m, 1)) if C.unit == 0 else (max(problem.columns, 1), 1)
    step = problem.m * problem.columns if problem.l != 1 else 0
    dtype = result.dtype or C.dtype
    alignment = common_power_of_two(ALIGNMENT, step * DTYPES[dtype].bytes)
    return Matrix(name, C.shape, stride, dtype, alignment, l=problem.l, batch_stride=step)


def _matrix(
    problem: GemmProblem, name: str, stored_shape: tuple[int, ...],
    stored_strides: tuple[int, ...], dtype: str, alignment: int,
) -> Matrix:  # fmt: skip
    """Return the descriptor of an operand, with stride 0 in a mode that it lacks."""
    whole = (problem.l, problem.m, problem.columns)
    if problem.groups and operand_shape(problem, stored_shape) != stored_shape:
        stored_shape = operand_shape(problem, stored_shape)
        stored_strides = stored_strides[0], 0, stored_strides[1]
    shape = (1, 1, 1, *stored_shape)[-3:]
    strides = (0, 0, 0, *stored_strides)[-3:]
    fits = all(own in (1, extent) for own, extent in zip(shape, whole, strict=True))
    if len(stored_shape) > 3 or not fits:
        m, n = problem.m, problem.columns
        batch = f" in a batch of {problem.l}" * (problem.l != 1)
        raise ShapeError(
            f"{name} has shape {stored_shape}, and C is ({m}, {n}){batch}; expected ({n},), "
            f"({m}, 1), ({m}, {n}) or another shape that broadcasts to C"
        )
    check_operand(problem, name, stored_shape)
    check_strides(name, stored_strides)
    row = DTYPES.get(dtype)
    if row is None or row.is_complex:
        raise DTypeError(f"{name} has dtype {dtype}; expected a real type")
    step, along_m, along_n = (
        0 if own == 1 else stride for own, stride in zip(shape, strides, strict=True)
    )
    # Groups begin anywhere along their mode.
    jump = {"M": along_m, "N": along_n}.get(problem.groups.mode, 0)
    common = common_power_of_two(alignment, step * row.bytes, jump * row.bytes)
    return Matrix(
        name, problem.C.shape, (along_m, along_n), dtype, common, l=problem.l, batch_stride=step
    )


def _block_scales(
    problem: GemmProblem, name: str, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str,
    alignment: int,
) -> Matrix:  # fmt: skip
    """Return the descriptor of block scales, such as (M, K / 128)."""
    step = strides[0] if len(shape) == 3 and shape[0] > 1 else 0
    common = common_power_of_two(alignment, step * DTYPES[dtype].bytes)
    down, across = strides[-2:]
    return Matrix(
        name, (shape[-2], shape[-1]), (down, across), dtype, common, l=problem.l,
        batch_stride=step, own_modes="MK" if name == "scale_a" else "NK",
    )  # fmt: skip


def _operand(matrix: Matrix) -> EpilogueOperand:
    """Return the properties that code depends on: modes, such as ``"N"``, and width of loads."""
    modes = "".join(mode for mode, stride in zip("MN", matrix.stride, strict=True) if stride)
    if 1 not in matrix.stride:
        return EpilogueOperand(matrix.name, matrix.dtype, modes)
    unit = matrix.unit
    size = matrix.element.bytes
    common = common_power_of_two(matrix.alignment // size, matrix.shape[unit], matrix.ld)
    vector = min(common or 1, VECTOR // size)
    return EpilogueOperand(matrix.name, matrix.dtype, modes, "MN"[unit], vector)
