"""A kernel from outside the package: what a newcomer writes beside a template and a row."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cute_gemm.access.accesses import GlobalAccess, Shares, Work
from cute_gemm.errors import OptionError
from cute_gemm.kernels.base import CompiledKernel
from cute_gemm.kernels.config import Config
from cute_gemm.kernels.options import with_options
from cute_gemm.problem.operation import Operation
from cute_gemm.toolchain.signature import Launch
from cute_gemm.toolchain.unit import TranslationUnit, cpp_bool, entry

CPP = {"float32": "float", "float64": "double"}
UNIT = '#include "toy.cuh"\n\nusing Toy = toy::Gemm<{}, {}, {}>;\n\n'
CALL = "Toy::run(A, B, C, m, n, k, lda, ldb, ldc, product, epilogue);"


@dataclass(frozen=True, kw_only=True)
class ToyConfig(Config):
    """What the unit is spelled from: the operation, and how often the loop over K is unrolled."""

    operation: Operation
    unroll: int = 4
    tile: tuple[int, int, int] = (32, 1, 1)

    @property
    def name(self):
        """The symbol in the cubin, different for different code."""
        return f"toy_{self.operation.name}_u{self.unroll}"


class Toy(CompiledKernel):
    """A lane for each element of C."""

    name = "toy"
    summary = "a lane for each element of C, and a warp for 32 rows"
    minimum_cc = 80
    dtypes = tuple(CPP)
    options = ("unroll",)
    template = Path(__file__).parent / "toy.cuh"

    def candidates(self, problem, arch, options):
        """Yield the configs that take these options."""
        sizes = [matrix.element.bytes for matrix in (problem.A, problem.B, problem.C)]
        yield with_options(ToyConfig(operation=problem.operation(*sizes)), options)

    def check(self, config, problem, arch):
        """Raise for the first rule that a config breaks."""
        if not 1 <= config.unroll <= 64:
            raise OptionError(f"option unroll={config.unroll}; expected 1 to 64")

    def unit(self, config):
        """Return the C++ text: an include, a type, and the entry that all kernels have."""
        majors = ", ".join(cpp_bool(major in ("K", "N")) for major in config.operation.majors)
        text = UNIT.format(CPP[config.operation.a.name], majors, config.unroll)
        text += entry(config, CALL, prefix="Toy::", bounds="32")
        return TranslationUnit(text, config.name, (self.template.parent,))

    def launch(self, config, problem):
        """Return CTAs, threads, shared memory and batch."""
        return Launch(-(-problem.m // 32) * problem.n, 32, 0, problem.l)

    def accesses(self, config, problem, *, reads_c=False):
        """Return every memory instruction: which elements the lanes of a request move."""

        def access(x, way="load", what="ld.global", rows=32, **more):
            lanes = np.stack([np.arange(32) % rows, np.zeros(32, int)], axis=-1)[None]
            bits, tile = 8 * config.operation.a.bytes, (rows, 1)
            return GlobalAccess(x.name, way, what, bits, x, tile, lanes, x.unit, **more)

        C = {"x": problem.C, "sweeps": 1, "unit": "CTA"}
        return (
            access(problem.A, sweeps=problem.n),
            access(problem.B, rows=1, sweeps=-(-problem.m // 32)),
            *([access(**C)] if reads_c else []),
            access(way="store", what="st.global", **C),
        )

    def work(self, config, problem):
        """Return the products, and the unit that makes them."""
        return Work.of_tiles(problem, config.tile, "CUDA cores", problem.compute)

    def shares(self, config):
        """Return how many results a tile and a thread compute."""
        return Shares((1, 1), None)
