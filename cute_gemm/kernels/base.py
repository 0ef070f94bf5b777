"""Base classes of kernels.

A `Kernel` is a row of ``cg.kernels()``: a name, supported types, a config for a problem, and a
function that computes. A `Compiled` is emitted and compiled here: it has a translation unit, a
launch, and the accesses that the report counts. A `CompiledKernel` is both.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from math import gcd, prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from cute_gemm._kept import Kept
from cute_gemm.access.accesses import GlobalAccess, Shares
from cute_gemm.access.gmem import LINE
from cute_gemm.arch import Arch
from cute_gemm.cost_model.calibrated import calibration
from cute_gemm.cost_model.calibration import Pace
from cute_gemm.cost_model.footprint import (
    DEPTH,
    Counts,
    Footprint,
    Tally,
    Updates,
    counted,
    footprint,
    pitch,
    sample,
    steps,
    tally,
)
from cute_gemm.dtypes import FLOAT8
from cute_gemm.errors import OptionError, UnsupportedError
from cute_gemm.kernels.options import access_bytes
from cute_gemm.kernels.staging import Block, epilogue_loads
from cute_gemm.problem import reference
from cute_gemm.problem.epilogue.epilogue import LINEAR_COMBINATION
from cute_gemm.problem.scalars import ONE, ZERO, Scalar
from cute_gemm.toolchain.headers import template_path
from cute_gemm.toolchain.signature import Launch, Signature, gemm_signature

if TYPE_CHECKING:
    import numpy as np

    from cute_gemm.access.accesses import Access, Partition, Work
    from cute_gemm.access.ideal import Kind
    from cute_gemm.cost_model.calibration import Calibration
    from cute_gemm.gpus.gpu import Gpu
    from cute_gemm.problem.matrix import Matrix
    from cute_gemm.problem.problem import GemmProblem
    from cute_gemm.run.tensormap import TensorMap
    from cute_gemm.toolchain.cubin import Build
    from cute_gemm.toolchain.nvrtc import Compiler
    from cute_gemm.toolchain.unit import Emitter, TranslationUnit

#: Accepted values of options that many kernels have.
OPTION_VALUES = {
    "tile": "bM x bN x bK of a CTA, each a power of two: 128x128x32",
    "thread_tile": "results of a thread along M and N, each a power of two: 8x8",
    "warps": "warps along M and N: 2x2",
    "raster": "1 or more rows of CTAs that go together",
    "min_ctas": "1 or more CTAs of a multiprocessor to leave registers for",
}

#: Parts of a product besides A, B and C: an epilogue other than BLAS's; pairs of columns in it,
#: which otherwise need a launch after the kernel; groups; and block scales, which multiply products
#: before they are added.
Part = Literal["epilogue", "pairs", "groups", "scales"]

#: Direction and space of the accesses that copy A and B.
COPY = ("load", "global")


class Kernel(ABC):
    """A named way to compute a GEMM."""

    #: The public ``kernel=`` value.
    name: str
    #: One-line description.
    summary: str
    #: Lowest compute capability, as an int (80).
    minimum_cc: int
    #: Further requirement on the architecture, an argument of `Arch.has`.
    needs: ClassVar[str] = ""
    #: Element types (with ``compute`` where it matters: ``"float32/tf32"``).
    dtypes: tuple[str, ...] = ()
    #: The step from the previous kernel of the ladder, if no template's header describes it
    #: (``analysis.ideas``).
    idea: str = ""
    #: Fields of the config that may be set as kernel options.
    options: tuple[str, ...] = ()
    #: Options in a candidate's label, after the tile, and how they are written there.
    label_options: ClassVar[Mapping[str, str]] = {}
    #: Values of options that are names.
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    #: Accepted values of other options, if they differ from `OPTION_VALUES`.
    option_values: ClassVar[Mapping[str, str]] = {}
    #: Parts of a product that it supports besides A, B and C of its ``dtypes``.
    takes: ClassVar[frozenset[Part]] = frozenset()
    #: Whether `summation` of a config depends on neither the tile of C nor its place in the matrix.
    batch_invariant: ClassVar[bool] = False
    #: Where it computes: in a compiled kernel, on the host, or in another library.
    runs_on: ClassVar[Literal["gpu", "cpu", "library"]] = "gpu"

    def values(self) -> dict[str, str]:
        """Return a description of the values of each option."""
        named = {option: " | ".join(names) for option, names in self.choices.items()}
        said = {**OPTION_VALUES, **self.option_values, **named}
        return {option: said.get(option, "see its config") for option in self.options}

    def least_cc(self, spelled: str) -> int:
        """Return the lowest compute capability that supports types, a name of ``dtypes``."""
        return self.minimum_cc

    def traits(self, problem: GemmProblem) -> Any:
        """Return the properties of a problem that configs and footprints depend on.

        Properties in `common_traits` may be left out.
        """
        return problem

    def contends(self, problem: GemmProblem, arch: Arch) -> bool:
        """Return whether ``kernel="auto"`` considers it for a problem."""
        return True

    def shapes(self, extent: int) -> Iterable[tuple[int, int]]:
        """Return m and n, near an extent, of problems that together have all of the configs.

        The configs are those of one arch, for types, majors, and leading dimensions of this extent.
        """
        return ((extent, extent),)

    @abstractmethod
    def footprints(
        self, problem: GemmProblem, arch: str, options: dict[str, Any], gpu: Gpu
    ) -> list[tuple[Any, Footprint | None]]:
        """Return the candidate configs, and the footprint of each if known.

        `refusals.check` has accepted the problem and the options. Raise UnsupportedError if no
        config of this kernel supports the problem, OptionError for an illegal value of an option.
        """

    @abstractmethod
    def bind(
        self, config: Any, problem: GemmProblem, arch: str, device: int, alpha: Scalar = ONE,
        beta: Scalar = ZERO,
    ) -> Callable[..., None]:  # fmt: skip
        """Return a function of the addresses ``(a, b, c)`` and a stream, for any thread.

        Raise CompileError, CubinError, LaunchError, UnsupportedError or NoGpuError on failure.
        """

    def on_host(
        self, problem: GemmProblem, A: np.ndarray, B: np.ndarray, C: np.ndarray, alpha: complex,
        beta: complex, operands: Mapping[str, np.ndarray] | None = None,
    ) -> None:  # fmt: skip
        """Compute the kernel's result on host arrays with NumPy, in place.

        ``operands``: operands of the epilogue, by name.
        """
        reference.gemm(problem, A, B, C, alpha, beta, operands)

    def summation(self, config: Any) -> str:
        """Return the instructions and the order by which an element of C is summed over K.

        Configs with equal texts give the same bits. The text does not depend on the epilogue.
        """
        if operation := getattr(config, "operation", None):
            dtypes, widths = (*operation.dtypes[:2], operation.a.accumulator), operation.bytes
            plain = replace(
                operation, epilogue=LINEAR_COMBINATION, dtypes=dtypes, bytes=(*widths[:2], 0)
            )
            config = replace(config, operation=plain)
        return str(config.name)

    def shares(self, config: Any) -> Shares | None:
        """Return how many results share the data read; None if unknown."""
        return None

    def source(self, config: Any) -> str:
        """Return the source text of the kernel."""
        return self.compiled().unit(config).source

    def compiled(self) -> CompiledKernel:
        """Return this kernel if it is compiled here; else raise UnsupportedError."""
        raise UnsupportedError(self.not_compiled)

    #: Error message for requests for a unit, a build, a launch or a report that do not exist.
    not_compiled: str = ""


class Compiled(ABC):
    """A kernel that is emitted, compiled and launched here: a GEMM or an auxiliary kernel.

    Its configs have a ``.name``, the entry's symbol, which encodes all that the code depends on.
    """

    name: str
    #: Whether the grid depends on the number of multiprocessors of the GPU.
    persistent: ClassVar[bool] = False

    @abstractmethod
    def signature(self, config: Any) -> Signature:
        """Return the parameters of its entry."""

    @abstractmethod
    def unit(self, config: Any) -> TranslationUnit:
        """Return the C++ unit of ``config``."""

    @abstractmethod
    def launch(self, config: Any, problem: Any) -> Launch:
        """Return the launch of ``config`` for ``problem``."""

    def launch_on(self, config: Any, problem: Any, sms: int) -> Launch:
        """Return the launch on a GPU with ``sms`` multiprocessors, which a grid may depend on."""
        return self.launch(config, problem)

    @abstractmethod
    def accesses(self, config: Any, problem: Any, *, reads_c: bool = False) -> tuple[Access, ...]:
        """Return all memory instructions of the kernel; ``reads_c``: beta is not 0.

        Accesses of the epilogue's operands are left out; `all_accesses` includes them.
        """

    def epilogue_blocks(self, config: Any, problem: Any) -> list[tuple[GlobalAccess, Block]]:
        """Return the units of work of the epilogue: stores of C and their blocks."""
        stores = (x for x in self.accesses(config, problem) if isinstance(x, GlobalAccess))
        return [
            (x, Block((1, x.vector[1]) if x.axis else (x.vector[1], 1)))
            for x in stores if (x.operand, x.direction) == ("C", "store")
        ]  # fmt: skip

    def warps_of(self, config: Any, requests: int, warps: int) -> np.ndarray:
        """Return the warp of each request of `epilogue_blocks`: by default, warps take turns."""
        import numpy as np

        return np.arange(requests) % warps

    def persistent_results(
        self, config: Any, problem: Any, launch: Launch
    ) -> Iterator[tuple[np.ndarray, int]]:
        """Yield the threads of a CTA of a persistent grid that have results of the epilogue.

        Each item is a bool array [warps, 32] and the number of CTAs that it describes.
        """
        raise NotImplementedError

    def all_accesses(
        self, config: Any, problem: Any, *, reads_c: bool = False
    ) -> tuple[Access, ...]:
        """Return `accesses` and the loads of the epilogue's operands."""
        accesses = self.accesses(config, problem, reads_c=reads_c)
        if not problem.operands:
            return accesses
        return *accesses, *epilogue_loads(problem, self.epilogue_blocks(config, problem))

    def maps(self, config: Any, problem: Any) -> tuple[TensorMap | None, ...]:
        """Return the tensor maps of A, B and C, the kernel's last parameters; () without TMA."""
        return ()

    def proof(self, config: Any) -> TranslationUnit:
        """Return the unit whose asserts hold if C++ computes the same layouts as Python.

        By default this is the kernel's unit. If asserts take long to compile, it is a separate one.
        """
        return self.unit(config)

    def in_memory(self, config: Any, arch: str) -> bool:
        """Return whether the built kernel is in memory."""
        return (self.name, config, arch) in _builds

    def is_built(self, config: Any, arch: str) -> bool:
        """Return whether the built kernel is in memory or in the cache."""
        if self.in_memory(config, arch):
            return True
        from cute_gemm.toolchain.nvrtc import is_cached

        return is_cached(self.unit(config), arch)

    def build(self, config: Any, arch: str, compiler: Compiler | None = None) -> Build:
        """Return the compiled kernel, from memory, the cache or NVRTC."""
        key = (self.name, config, arch)
        built = _builds.get(key)
        if built is None:
            from cute_gemm.toolchain.nvrtc import build

            built = build(self.unit(config), arch, compiler=compiler)
            _builds[key] = replace(built, cached=True, seconds=0.0)
        return built

    def bind(
        self, config: Any, problem: Any, arch: str, device: int, alpha: Scalar = ONE,
        beta: Scalar = ZERO,
    ) -> Callable[..., None]:  # fmt: skip
        """Return a function of the operands' addresses and a stream, for any thread."""
        from cute_gemm.run.driver import multiprocessors
        from cute_gemm.run.launch import load
        from cute_gemm.run.tensormap import TensorMaps

        launch = self.launch(config, problem)
        if self.persistent:
            launch = self.launch_on(config, problem, multiprocessors(device))
        arguments = self.signature(config).arguments(problem, alpha, beta)
        described = self.maps(config, problem)
        maps = TensorMaps(described, device) if described else None
        return load(self.build(config, arch), device).bind(launch, arguments, maps)


class CompiledKernel(Compiled, Kernel):
    """A kernel with a template.

    Its configs have a ``.tile``, (bM, bN, bK), and an ``.operation``, the `Operation` that the
    kernel computes.
    """

    takes: ClassVar[frozenset[Part]] = frozenset(("epilogue",))
    #: k-tiles of a `sample`.
    depth: ClassVar[int] = DEPTH
    #: Whether nvcc can also build the unit: it calls no host functions.
    nvcc: ClassVar[bool] = True

    def compiled(self) -> CompiledKernel:
        """Return this kernel."""
        return self

    def signature(self, config: Any) -> Signature:
        """Return the parameters of a GEMM, with those of the config's epilogue."""
        return gemm_signature(config.operation)

    @property
    def template(self) -> Path:
        """The package's file of CUDA C++, whose header explains the idea."""
        return template_path(self.name)

    @abstractmethod
    def candidates(
        self, problem: GemmProblem, arch: Arch, options: dict[str, Any]
    ) -> Iterator[Any]:
        """Yield the candidate configs with these options, the default first."""

    @abstractmethod
    def check(self, config: Any, problem: GemmProblem, arch: Arch) -> None:
        """Raise an error for the first legality rule that a config breaks.

        Any other config compiles within the spills of its unit, launches and gives right results.
        """

    def legal(self, problem: GemmProblem, arch: Arch, options: dict[str, Any]) -> list[Any]:
        """Return the legal candidates.

        If there are none, raise the first candidate's error if an option causes it, else the error
        of the last candidate, which supports the most problems.
        """
        legal: list[Any] = []
        refused: Exception | None = None
        for config in dict.fromkeys(self.candidates(problem, arch, options)):
            try:
                self.check(config, problem, arch)
                legal.append(config)
            except OptionError as error:
                refused = refused or error
            except UnsupportedError as error:
                refused = error
        if not legal and refused is not None:
            raise refused
        return legal

    def footprints(
        self, problem: GemmProblem, arch: str, options: dict[str, Any], gpu: Gpu
    ) -> list[tuple[Any, Footprint | None]]:
        """Return the legal candidates with their footprints.

        They are kept in memory, as are the candidates and the counts that do not depend on the
        operands' layouts.
        """
        words = tuple(sorted((name, str(value)) for name, value in options.items()))
        asked = self, arch, words, gpu, self.traits(problem)
        key = *asked, common_traits(problem)
        configs = _footprints.get(key)
        if configs is None:
            alike = *asked, _legal_traits(problem)
            fixed = _legal.get(alike)
            if fixed is None:
                legal = self.legal(problem, Arch(arch), options)
                fixed = _legal[alike] = [self._fixed(config, problem, gpu) for config in legal]
            operands, constants = self._operands(problem), calibration(gpu).constants
            configs = _footprints[key] = [
                (x.config, footprint(self._asked(x, problem, operands), x.pace, constants, gpu))
                for x in fixed
            ]
        return configs

    @abstractmethod
    def work(self, config: Any, problem: GemmProblem) -> Work:
        """Return the multiplications of a launch."""

    def pictures(self, config: Any) -> tuple[Partition, ...]:
        """Return how threads divide tiles, for pictures."""
        return ()

    #: How well the kernel keeps its units busy, by the type of its products (`kinds`), if
    #: calibrations do not contain it.
    paces: ClassVar[Mapping[str, Pace]] = {}

    def kinds(self, config: Any) -> tuple[str, ...]:
        """Return the types of products by which to look up the `Pace`, the preferred first."""
        element = config.operation.a
        if config.operation.compute == "tf32":
            return ("tf32",)
        if element.name in FLOAT8:
            return ("float8",)
        if element.is_complex:
            return element.name, "complex"
        return ("half" if element.bytes == 2 else element.name,)

    def pace(self, config: Any, calibration: Calibration) -> Pace:
        """Return how well a config keeps its units busy."""
        kinds = self.kinds(config)
        measured = calibration.pace(self.name, *kinds)
        return measured or next((self.paces[x] for x in kinds if x in self.paces), Pace())

    def ideal_pace(self, config: Any, calibration: Calibration, operands: Collection[str]) -> Pace:
        """Return the pace with ideal copies of these operands from global memory."""
        return self.pace(config, calibration)

    def traits(self, problem: GemmProblem) -> Any:
        """Return the properties that configs and footprints depend on besides `common_traits`."""
        return None

    def of_operand(self, config: Any, name: str) -> Any:
        """Return a config without the fields that accesses of an operand do not depend on.

        Configs with equal results share the counts of these accesses. ``name``: A, B or C.
        """
        return config

    def sample(self, config: Any, problem: GemmProblem) -> GemmProblem:
        """Return a problem with the accesses of `sampled` CTAs, for `footprint`."""
        return sample(problem, config.tile, self.sampled(config))

    def sampled(self, config: Any) -> tuple[int, int]:
        """Return the CTAs of a `sample` along M and N: those of a cluster."""
        return config.cluster

    def strides(self, matrix: Matrix) -> Any:
        """Return the properties of strides that counts of accesses in a `sample` depend on."""
        return pitch(matrix)

    def spill_clocks(self, config: Any, calibration: Calibration) -> float:
        """Return the clocks that a CTA loses to values of an epilogue that exceed its registers."""
        return 0.0

    def updates(self, config: Any) -> Updates:
        """Return the parts of the epilogue of a thread that stores its results from registers."""
        return Updates()

    def footprint(
        self, config: Any, problem: GemmProblem, gpu: Gpu, ideal: frozenset[Kind] = frozenset(),
        reads_c: bool = False,
    ) -> Footprint:  # fmt: skip
        """Return the footprint of a config; the counts of its accesses are kept in memory.

        ``ideal``: accesses to count as if they were ideal (`model.ideal`); ``reads_c``: whether
        beta is not 0.
        """
        measured = calibration(gpu)
        copies = {kind.operand for kind in ideal if (kind.direction, kind.space) == COPY}
        pace = self.ideal_pace(config, measured, copies) if copies else self.pace(config, measured)
        asked = self.counts(config, problem, gpu, ideal, reads_c)
        return footprint(asked, pace, measured.constants, gpu)

    def counts(
        self, config: Any, problem: GemmProblem, gpu: Gpu, ideal: frozenset[Kind] = frozenset(),
        reads_c: bool = False,
    ) -> Counts:  # fmt: skip
        """Return the demand of a CTA on a multiprocessor."""
        operands = self._operands(problem, ideal, reads_c)
        return self._asked(self._fixed(config, problem, gpu), problem, operands, ideal, reads_c)

    def _operands(
        self, problem: GemmProblem, ideal: frozenset[Kind] = frozenset(), reads_c: bool = False
    ) -> dict[str, Any]:
        """Return the properties of each operand that the counts of its accesses depend on."""
        return {
            x.name: (
                x.name, steps(x) if x in problem.scales else self.strides(x),
                min(x.alignment, LINE), reads_c and x.name == "C",
                frozenset(kind for kind in ideal if kind.operand == x.name),
            )
            for x in problem.matrices
        }  # fmt: skip

    def _fixed(self, config: Any, problem: GemmProblem, gpu: Gpu) -> _Fixed:
        """Return the part of a config's counts that does not depend on the operands' layouts."""
        typical, measured = self.sample(config, problem), calibration(gpu)
        work, launch = self.work(config, typical), self.launch(config, typical)
        spills, size = self.spill_clocks(config, measured), problem.accumulator.bytes
        counts = counted(config, work, launch, gpu, size, spills, self.depth)
        kinds = {
            x.name: _number((self.name, self.of_operand(config, x.name))) for x in problem.matrices
        }
        return _Fixed(config, counts, self.pace(config, measured), kinds)

    def _asked(
        self, fixed: _Fixed, problem: GemmProblem, operands: Mapping[str, Any],
        ideal: frozenset[Kind] = frozenset(), reads_c: bool = False,
    ) -> Counts:  # fmt: skip
        """Return the demand of a CTA for operands with these properties (`_operands`)."""
        config, tallies = fixed.config, dict[str, dict[str, Tally]]()
        accesses: tuple[Access, ...] = ()
        for name, lies in operands.items():
            key = fixed.kinds[name], lies
            counts = _tallies.get(key)
            if counts is None:
                if not accesses:
                    typical = self.sample(config, problem)
                    accesses = self.all_accesses(config, typical, reads_c=reads_c)
                own = (access for access in accesses if access.operand == name)
                counts = tally(own, prod(self.sampled(config)), ideal, self.depth)
                _tallies[key] = counts
            tallies[name] = counts
        updates, epilogue = self.updates(config), problem.epilogue
        matrices = reads_c or any(x.modes == "MN" for x in epilogue.operands)
        vectors = any(x.modes != "MN" for x in epilogue.operands)
        had = Updates(
            updates.matrices * matrices, updates.vectors * vectors,
            updates.results * epilogue.computes,
        )  # fmt: skip
        return fixed.counts.with_accesses(tallies)._replace(updates=had)


class EmittedKernel(CompiledKernel):
    """A kernel whose unit and proof are written by an `Emitter`."""

    #: The emitter of a config's kernel and proof.
    emitter: ClassVar[type[Emitter]]

    def shares(self, config: Any) -> Shares:
        """Return the results that share a load: those of the CTA tile and of a thread, if known."""
        return Shares(config.tile[:2], config.thread_tile or None)

    def unit(self, config: Any) -> TranslationUnit:
        """Return the C++ unit of ``config``."""
        return self.emitter(config).unit()

    def proof(self, config: Any) -> TranslationUnit:
        """Return the unit of the config's facts, without the kernel."""
        return self.emitter(config).proof()


class _Fixed(NamedTuple):
    """The part of a config's counts that does not depend on the operands' layouts.

    ``counts``: counts without accesses; ``kinds``: a number for each operand, equal if the accesses
    to it are (`CompiledKernel.of_operand`).
    """

    config: Any
    counts: Counts
    pace: Pace
    kinds: dict[str, Any]


def common_traits(problem: GemmProblem) -> tuple[Any, ...]:
    """Return the properties that configs and footprints of every kernel depend on."""
    lies = ((x.alignment, pitch(x)) for x in problem.matrices)
    return (*_shared_traits(problem), *lies, *map(steps, problem.scales))


def _legal_traits(problem: GemmProblem) -> tuple[Any, ...]:
    """Return the properties of a problem that legal configs of every kernel depend on."""
    widths = (access_bytes(x, False)[0] for x in problem.matrices)
    return (*_shared_traits(problem), *widths)


def _shared_traits(problem: GemmProblem) -> tuple[Any, ...]:
    """Return the properties that both depend on, except layouts of matrices."""
    huge = (x if x >= HUGE else 0 for x in (problem.m, problem.n, problem.k))
    kinds = ((x.dtype, x.unit, x.conj) for x in problem.matrices)
    C = problem.C  # its vectors may not straddle the end of a row
    row = gcd(C.shape[C.unit] * C.element.bytes, 16)
    groups, scales = (problem.groups.mode, problem.groups.zero_tail), problem.scale_rows
    return problem.compute, *groups, *huge, problem.epilogue, scales, *kinds, row


#: Extents near the range of 32-bit coordinates, where each tile has its own limit.
HUGE = 2**31 - 4096

#: Builds, by kernel, config and arch.
_builds: Kept[tuple[str, Any, str], Build] = Kept(4096, "builds")
#: Candidates and legal configs of kernels, limited by the number of configs.
_footprints: Kept[Any, list[tuple[Any, Footprint | None]]] = Kept(1 << 16, "footprints", len)
_legal: Kept[Any, list[_Fixed]] = Kept(16384, "legal_configs", len)
#: Counts of an operand's accesses, by the number of the properties of the config that they depend
#: on, and by the operand's layout.
_tallies: Kept[Any, dict[str, Tally]] = Kept(16384, "operand_counts")
_numbers: Kept[Any, int] = Kept(16384, "operand_configs")
_COUNT = itertools.count()


def _number(kind: Any) -> int:
    """Return a unique number for the properties that accesses of an operand depend on."""
    number = _numbers.get(kind)
    if number is None:
        number = _numbers[kind] = next(_COUNT)
    return number
