"""Signatures of kernels: C++ parameters, their packed values, and the launch.

The parameter list of the emitted entry and the block of arguments that the driver reads are two
renderings of one `Signature`.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import takewhile
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from cute_gemm.dtypes import DTYPES, DType, scalar_of
from cute_gemm.errors import ScalarError

if TYPE_CHECKING:
    from cute_gemm.problem import scalars
    from cute_gemm.problem.epilogue.epilogue import Epilogue
    from cute_gemm.problem.operation import Operation
    from cute_gemm.problem.problem import GemmProblem

#: Largest extent of a grid along y and z.
_MOST_ALONG_Y = 65535


@dataclass(frozen=True, slots=True)
class Launch:
    """The launch of a kernel.

    ``grid``: CTAs of one GEMM; ``block``: threads per CTA; ``smem``: dynamic shared memory, bytes;
    ``batch``: GEMMs; ``cluster``: CTAs of a cluster; ``dependent``: it may start before the
    previous launch has ended (programmatic dependent launch), and waits for it itself.

    For a persistent grid, whose CTAs take tiles of C in turns, ``tiles``: the number of tiles, and
    ``places``: the number of CTAs that the GPU holds, which the grid does not exceed.
    """

    grid: int
    block: int
    smem: int
    batch: int = 1
    cluster: int = 1
    dependent: bool = False
    tiles: int = 0
    places: int = 0

    @property
    def ctas(self) -> int:
        """CTAs of all GEMMs."""
        return self.grid * self.batch

    @property
    def dimensions(self) -> tuple[int, int, int]:
        """Extents of the grid: tiles along x, the batch along y and, above 65535, z."""
        layers = -(-self.batch // _MOST_ALONG_Y)
        return self.grid, min(self.batch, _MOST_ALONG_Y), layers


#: Values for `Signature.arguments` in addition to the problem: addresses and scalars by name.
Given = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter: name, C++ type, with ``{}`` as prefix of type names, and bytes.

    ``form`` is a format of ``struct``, and ``of`` returns the numbers for it from a problem.
    """

    name: str
    cpp: str
    size: int = 8
    form: str = "="
    of: Callable[[Any], tuple[int, ...]] = field(default=lambda problem: ())

    def pack(self, block: Any, offset: int, problem: Any, given: Given) -> None:
        """Write its value into ``block``."""
        struct.pack_into(self.form, block, offset, *self.of(problem))


class Pointer(Parameter):
    """An address: of an operand, which every call writes, or of alpha or beta."""

    def pack(self, block: Any, offset: int, problem: Any, given: Given) -> None:
        """Write the given address, or 0."""
        struct.pack_into("=Q", block, offset, given.get(self.name, 0))


class Scalar(Parameter):
    """alpha, beta or a number of the epilogue, in the epilogue's type."""

    def pack(self, block: Any, offset: int, problem: Any, given: Given) -> None:
        """Write the given value, or the problem's."""
        name = self.name
        own = name not in given
        value = problem.numbers[problem.epilogue.numbers.index(name)] if own else given[name]
        pack_scalar(problem.scalar.name, block, offset, value, name)


class TensorMapParameter(Parameter):
    """A tensor map of a matrix, by value; every call writes the maps of its matrices."""


def _step(name: str, step: Callable[[Any], int]) -> Parameter:
    """Return the parameter for a step in elements."""
    return Parameter(name, "int64_t", 8, "=q", lambda problem: (step(problem),))


def _steps(part: str, name: str, modes: Sequence[str]) -> list[Parameter]:
    """Return the steps of a matrix of that name along two modes, and between matrices of a batch.

    ``part``: the attribute of a problem that has the matrix.
    """

    def step(mode: int, problem: Any) -> int:
        matrix = next(x for x in getattr(problem, part) if x.name == name)
        return int((*matrix.stride, matrix.batch_stride)[mode])

    return [_step(f"{name}_{letters}", partial(step, mode)) for mode, letters in enumerate(modes)]


@dataclass(frozen=True)
class Signature:
    """The parameters of a kernel's entry, in order; the pointers of its operands come first."""

    parameters: tuple[Parameter, ...]
    offsets: tuple[int, ...] = field(init=False)
    size: int = field(init=False)

    def __post_init__(self) -> None:
        offsets, end = [], 0
        for parameter in self.parameters:
            end = -(-end // parameter.size) * parameter.size
            offsets.append(end)
            end += parameter.size
        object.__setattr__(self, "offsets", tuple(offsets))
        object.__setattr__(self, "size", end)

    @property
    def operands(self) -> tuple[str, ...]:
        """Names of the operands, whose addresses every call passes: the first pointers."""
        pointers = takewhile(lambda parameter: isinstance(parameter, Pointer), self.parameters)
        return tuple(pointer.name for pointer in pointers)

    def cpp(self, prefix: str) -> str:
        """Return the C++ parameter list; ``prefix``: scope of Element, ElementC, Accumulator."""
        return ", ".join(f"{x.cpp.format(prefix)} {x.name}" for x in self.parameters)

    def arguments(
        self, problem: GemmProblem, alpha: scalars.Scalar, beta: scalars.Scalar
    ) -> Arguments:
        """Pack the arguments of a problem; ScalarError for a value of another type."""
        given = {
            "alpha": alpha.value, "beta": beta.value,
            "alpha_ptr": alpha.pointer, "beta_ptr": beta.pointer,
        }  # fmt: skip
        return Arguments(self, problem, given)


class Arguments:
    """Packed arguments, and the table of their addresses that the driver reads.

    ``operands``: number of addresses of operands at the start of the block.
    """

    __slots__ = ("block", "operands", "table")

    def __init__(
        self, signature: Signature, problem: GemmProblem, given: Mapping[str, Any]
    ) -> None:
        self.block = ctypes.create_string_buffer(signature.size)
        self.operands = len(signature.operands)
        for parameter, offset in zip(signature.parameters, signature.offsets, strict=True):
            parameter.pack(self.block, offset, problem, given)
        base = ctypes.addressof(self.block)
        count = len(signature.parameters)
        self.table = (ctypes.c_void_p * count)(*(base + offset for offset in signature.offsets))


def cpp_type(row: DType) -> str:
    """Return the C++ type of elements, as in cutlass_library."""
    from cutlass_library import DataType, DataTypeTag

    return str(DataTypeTag[DataType[row.tag]])


@lru_cache(maxsize=64)
def epilogue_parameters(
    epilogue: Epilogue, scalar: str
) -> tuple[tuple[Parameter, ...], tuple[Parameter, ...], tuple[Parameter, ...]]:
    """Return an epilogue's pointers, the strides of its operands, and its scalars and numbers.

    ``scalar``: their C++ type, as returned by `scalar_cpp`.
    """
    tensors = [(x, " const*") for x in epilogue.operands] + [(x, "*") for x in epilogue.results]
    pointers = tuple(Pointer(x.name, f"{cpp_type(DTYPES[x.dtype])}{kind}") for x, kind in tensors)
    strides = tuple(step for x, _ in tensors for step in _steps("operands", x.name, "mnl"))
    scalars = (
        Scalar("alpha", scalar, 16),
        Scalar("beta", scalar, 16),
        Pointer("alpha_ptr", f"{scalar} const*"),
        Pointer("beta_ptr", f"{scalar} const*"),
        *(Scalar(name, scalar) for name in epilogue.numbers),
    )
    return pointers, strides, scalars


def scalar_cpp(accumulator: DType, out: DType) -> str:
    """Return the C++ type of alpha, beta and the epilogue, with a placeholder for a prefix."""
    row = scalar_of(accumulator, out)
    return "{}Accumulator" if row is accumulator else cpp_type(row)


def gemm_signature(operation: Operation, *maps: str) -> Signature:
    """Return the signature of a kernel of one GEMM, or of a batch or groups of them.

    ``maps``: names of tensor maps, which come last.
    """
    scalar, scales = scalar_cpp(operation.accumulator, operation.c), tuple(operation.block_scales)
    return _gemm_signature(operation.epilogue, scalar, maps, scales, bool(operation.groups))


@lru_cache(maxsize=64)
def _gemm_signature(
    epilogue: Epilogue, scalar: str, maps: tuple[str, ...], scales: tuple[str, ...], ends: bool
) -> Signature:
    pointers, strides, scalars = epilogue_parameters(epilogue, scalar)
    return Signature(
        (
            Pointer("A", "{}ElementA const*"),
            Pointer("B", "{}ElementB const*"),
            Pointer("C", "{}ElementC*"),
            *(Pointer(name, "float const*") for name in scales),
            *(Pointer("offsets", "int const*"),) * ends,
            *pointers,
            *(_extent(name) for name in "mnk"),
            _extent("l", "uint32_t"),
            _extent("k_last"),
            _extent("slices", "uint32_t"),
            *(_step(f"ld{x.lower()}", attrgetter(f"{x}.ld")) for x in "ABC"),
            *(_step(f"batch_{x.lower()}", attrgetter(f"{x}.batch_stride")) for x in "ABC"),
            *(_step(f"slice_{x.lower()}", attrgetter(f"{x}.slice_stride")) for x in "AB"),
            *(step for name in scales for step in _steps("scales", name, ("mn", "k", "l"))),
            *strides,
            *scalars,
            *(
                TensorMapParameter(name, "const __grid_constant__ cute::TmaDescriptor", 128)
                for name in maps
            ),
        )
    )


def _extent(name: str, cpp: str = "int") -> Parameter:
    """Return the parameter for an extent of the problem."""
    return Parameter(name, cpp, 4, "=i", lambda problem: (getattr(problem, name),))


def pack_scalar(scalar: str, block: Any, offset: int, value: complex, name: str) -> None:
    """Write alpha or beta into ``block`` as a number of type ``scalar``, or raise ScalarError."""
    form = f"={DTYPES[scalar].scalar}"
    parts = [value.real, value.imag] if form[1] == "2" else [value]
    try:
        struct.pack_into(form, block, offset, *parts)
    except OverflowError:  # a float64 beyond float32 is cast to infinity
        parts = [_clipped(part) for part in parts]
        struct.pack_into(form, block, offset, *parts)
    except struct.error as error:
        raise ScalarError(f"{name}={value!r} is not a number of type {scalar}: {error}") from None


def _clipped(value: Any) -> float:
    return math.copysign(math.inf, value) if abs(value) > 3.4e38 else float(value)
