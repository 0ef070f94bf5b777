"""The reduction kernel: it adds partial sums of the slices of K and applies the epilogue."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import gcd
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cute_gemm.access.accesses import Access, GlobalAccess
from cute_gemm.arch import Arch
from cute_gemm.dtypes import DTYPES, DType
from cute_gemm.kernels.auxiliary.packer import seconds
from cute_gemm.kernels.base import Compiled
from cute_gemm.kernels.config import Config, symbol
from cute_gemm.kernels.options import access_bytes, limit_of
from cute_gemm.kernels.staging import along_unit, load_of_rows, loads_of_c, with_cut_vectors
from cute_gemm.problem.epilogue.epilogue import LINEAR_COMBINATION, Epilogue
from cute_gemm.problem.parts.slices import partials_bytes
from cute_gemm.toolchain.signature import (
    Launch,
    Parameter,
    Pointer,
    Signature,
    cpp_type,
    epilogue_parameters,
    scalar_cpp,
)
from cute_gemm.toolchain.unit import TranslationUnit, cpp_bool, epilogue_params, epilogue_type

if TYPE_CHECKING:
    from cute_gemm.cost_model.calibration import Constants
    from cute_gemm.gpus.gpu import Gpu
    from cute_gemm.problem.matrix import Matrix
    from cute_gemm.problem.parts.slices import Reduction
    from cute_gemm.problem.problem import GemmProblem

#: Threads of a CTA, and bytes of a thread's partial sums.
THREADS, VECTOR = 128, 16


@dataclass(frozen=True)
class ReduceConfig(Config):
    """The types, and the number of neighbouring elements of C in a thread."""

    dtype: str  #: Type of the partial sums.
    out_dtype: str
    vector: int
    dependent: bool = False  #: Whether launches of the arch may start before the previous one ends.
    row_major: bool = False  #: Whether N is C's unit-stride mode.
    epilogue: Epilogue = LINEAR_COMBINATION

    @property
    def types(self) -> tuple[DType, DType]:
        """The types of the partial sums and of C."""
        return DTYPES[self.dtype], DTYPES[self.out_dtype]

    @property
    def runs(self) -> int:
        """Vectors of a thread."""
        return VECTOR // DTYPES[self.dtype].bytes // self.vector

    @property
    def name(self) -> str:
        """The kernel's symbol."""
        types = f"{DTYPES[self.dtype].tag}_{DTYPES[self.out_dtype].tag}"
        order = "row" if self.row_major else "col"
        return symbol("reduce", types, order, f"v{self.vector}", self.epilogue.name)


#: C++ of C's extents along M and N: column-major, and row-major.
_EXTENTS = ("int(shape.extent), int(shape.rows)", "int(shape.rows), int(shape.extent)")


class ReduceTiling(NamedTuple):
    """Tiling of C: the fields of `ReduceShape` except strides."""

    extent: int  #: Elements of a row, which has unit stride.
    rows: int
    slices: int
    along: int  #: Tiles along a row.
    across: int  #: log2 of the threads along a row of a tile.
    matrices: int  #: Matrices of a batch.


def _vector(C: Matrix, partials: str, pairs: str) -> int:
    """Return the number of neighbouring elements of C in a thread: at most its widest access."""
    widest = access_bytes(C, False)[0] // C.element.bytes
    if pairs == "halves" and C.unit == 1:  # the second half of a row begins at any of them
        widest = gcd(widest, C.shape[1])
    return min(widest, VECTOR // _partial_bytes(C, partials, pairs))


def _partial_bytes(C: Matrix, partials: str, pairs: str) -> int:
    """Return the bytes of the neighbouring partial sums that make an element of C."""
    return DTYPES[partials].bytes * (2 if pairs == "pairs" and C.unit == 1 else 1)


def _place(config: ReduceConfig, reduction: Reduction) -> ReduceTiling:
    """Return the tiling of C: the longest tiles with no more threads than a row needs."""
    C = reduction.C
    extent, rows = C.shape[C.unit], C.shape[1 - C.unit]
    vectors = -(-extent // config.vector)
    across = min((vectors - 1).bit_length(), THREADS.bit_length() - 1)
    along = -(-vectors // (config.runs << across))
    return ReduceTiling(extent, rows, reduction.slices, along, across, C.l)


def _numbers(reduction: Reduction) -> tuple[int, ...]:
    partials, C, config = reduction.partials, reduction.C, Reduce().configure(reduction)
    return (partials.ld, partials.batch_stride, C.ld, C.batch_stride, *_place(config, reduction))


@lru_cache(maxsize=64)
def _signature(epilogue: Epilogue, scalar: str) -> Signature:
    pointers, strides, scalars = epilogue_parameters(epilogue, scalar)
    shape = Parameter("shape", "cute_gemm::ReduceShape", 56, "=4q6i", _numbers)
    partials, C = Pointer("sums", "{}Accumulator const*"), Pointer("C", "{}ElementC*")
    return Signature((partials, C, *pointers, shape, *strides, *scalars))


def _of_pairs(load: GlobalAccess, config: ReduceConfig) -> list[GlobalAccess]:
    """Return the loads of both columns of pairs, from the load of partial sums laid out as C."""
    (m, n), coords = load.tile, np.asarray(load.coords)
    if config.epilogue.pairs == "halves":
        rows, columns = load.matrix.shape
        first = replace(load, extents=(rows, columns // 2), part="first half")
        return [first, replace(first, origin=(0, columns // 2), part="second half")]
    if config.row_major:  # both are in one vector
        return [replace(load, bits=2 * load.bits, tile=(m, 2 * n), coords=coords * (1, 2))]
    both = [coords * (1, 2) + (0, which) for which in (0, 1)]
    return [replace(load, tile=(m, 2 * n), coords=np.concatenate(both))]


class Reduce(Compiled):
    """The last kernel of a split-k GEMM: a thread has 16 bytes of partial sums of each slice."""

    name = "reduce"

    def signature(self, config: ReduceConfig) -> Signature:
        """Return the parameters of the entry, with those of the epilogue."""
        return _signature(config.epilogue, scalar_cpp(*config.types))

    def configure(self, reduction: Reduction, arch: str = "sm_80") -> ReduceConfig:
        """Return the config that the types, the layout of C and the arch determine."""
        partials, C = reduction.partials.dtype, reduction.C
        dependent = Arch(arch).has("griddepcontrol")
        vector = _vector(C, partials, reduction.epilogue.pairs)
        return ReduceConfig(partials, C.dtype, vector, dependent, C.unit == 1, reduction.epilogue)

    def unit(self, config: ReduceConfig) -> TranslationUnit:
        source = f"""\
{config.epilogue.source}\
// C = epilogue(the sum over slices of K, C): {config.dtype} sums, {config.out_dtype} C
#include "auxiliary/reduce.cuh"

struct Config {{
  using Accumulator = {cpp_type(DTYPES[config.dtype])};
  using ElementC = {cpp_type(DTYPES[config.out_dtype])};
  using Epilogue = {epilogue_type(config.epilogue, *config.types)};
  enum : int {{ kThreads = {THREADS}, kVector = {config.vector} }};
  enum : bool {{ kRowMajorC = {cpp_bool(config.row_major)} }};
}};

extern "C" __global__ void __launch_bounds__({THREADS})
{config.name}(
    {self.signature(config).cpp("Config::")}) {{
  cute_gemm::follow_grids();
  {epilogue_params(config.epilogue, extents=_EXTENTS[config.row_major])}
  cute_gemm::reduce<Config>(sums, C, shape, epilogue);
}}
"""
        return TranslationUnit(source, config.name)

    def launch(self, config: ReduceConfig, reduction: Reduction) -> Launch:
        place = _place(config, reduction)
        ctas = place.along * -(-place.rows // (THREADS >> place.across))
        return Launch(ctas, THREADS, 0, place.matrices, dependent=config.dependent)

    def accesses(
        self, config: ReduceConfig, reduction: Reduction, *, reads_c: bool = False
    ) -> tuple[Access, ...]:
        """Return the accesses of a launch whose alpha is not 0."""
        place = _place(config, reduction)
        thread = np.arange(THREADS).reshape(-1, 32)
        run = (np.arange(config.runs) << place.across)[:, None, None]
        along = ((thread & (1 << place.across) - 1) + run) * config.vector
        coords = along_unit(reduction.partials, along, thread >> place.across)
        tile = ((config.runs << place.across) * config.vector, THREADS >> place.across)
        full = config.vector * DTYPES[config.dtype].bytes == VECTOR
        limit = "" if full else limit_of(reduction.C, False)
        bits = 8 * DTYPES[config.dtype].bytes * config.vector
        load = load_of_rows(
            "scratch", bits, reduction.partials, tile, coords, limit=limit, tail="whole"
        )
        bits = 8 * DTYPES[config.out_dtype].bytes * config.vector
        store = replace(
            load, operand="C", direction="store", instruction="st.global", bits=bits,
            matrix=reduction.C, tail="full",
            limit=(limit or "a thread's sums are 16 bytes") if bits < 128 else "",
        )  # fmt: skip
        stores = with_cut_vectors(store)
        loads = _of_pairs(load, config) if config.epilogue.pairs else [load]
        return (*loads, *loads_of_c(stores, reads_c), *stores)

    def seconds(
        self, problem: GemmProblem, slices: Any, gpu: Gpu, constants: Constants,
        reads_c: bool = False,
    ) -> Any:  # fmt: skip
        """Return the predicted time for one number of slices, or for an array of numbers.

        The argument is the problem: selection would need a `Reduction` for each number of slices.
        """
        of = problem.C, problem.accumulator.name, problem.epilogue.pairs
        narrow = _vector(*of) * _partial_bytes(*of) < VECTOR
        moved = problem.C.nbytes * (1 + reads_c) + problem.l * slices * partials_bytes(problem)
        launch = constants.launch(gpu.arch.has("griddepcontrol"))
        return seconds(moved, gpu, constants, launch, narrow)
