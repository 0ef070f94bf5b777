"""``Steps``: the launches of a plan: packing, the kernel that multiplies, reduction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from cute_gemm.kernels.auxiliary import REDUCE, packer
from cute_gemm.kernels.ends import loads_of_ends, stores_of_zeros
from cute_gemm.kernels.greatest import atomics_of_results
from cute_gemm.problem.parts.groups import evenly, parts
from cute_gemm.problem.parts.packing import Algorithm, Packing, packed
from cute_gemm.problem.parts.slices import alike, sliced
from cute_gemm.problem.scalars import ONE, ZERO, Scalar
from cute_gemm.toolchain.signature import TensorMapParameter

if TYPE_CHECKING:
    from cute_gemm.access.accesses import Access
    from cute_gemm.kernels.base import Compiled, CompiledKernel
    from cute_gemm.problem.problem import GemmProblem
    from cute_gemm.toolchain.cubin import Build
    from cute_gemm.toolchain.nvrtc import Compiler
    from cute_gemm.toolchain.signature import Arguments, Launch
    from cute_gemm.toolchain.unit import TranslationUnit


class Location(NamedTuple):
    """Place of an operand of a step: an operand or ``"scratch"``, and bytes from its start."""

    name: str
    offset: int = 0


@dataclass(frozen=True)
class Step:
    """One launch: a kernel with its config, problem and places of operands.

    ``takes_factors``: alpha and beta are given to it; other launches compute plain products.
    ``sms``: multiprocessors that a persistent grid is for, if it is not launched on a GPU.
    """

    kernel: Compiled
    config: Any
    problem: Any
    places: tuple[Location, ...]
    arch: str
    takes_factors: bool = False
    sms: int = 0

    @cached_property
    def unit(self) -> TranslationUnit:
        """The CUDA C++ translation unit."""
        return self.kernel.unit(self.config)

    @cached_property
    def launch(self) -> Launch:
        """The launch that is executed without a GPU, and reported."""
        return self.on_gpu()

    def on_gpu(self) -> Launch:
        """Return CTAs, threads per CTA and dynamic shared memory in bytes on its SMs."""
        if not self.sms:
            return self.kernel.launch(self.config, self.problem)
        return self.kernel.launch_on(self.config, self.problem, self.sms)

    def addresses(self, operands: tuple[str, ...]) -> list[tuple[int, int]]:
        """Return the places of its operands: an index of these names, and bytes from there."""
        return [(operands.index(place.name), place.offset) for place in self.places]

    @property
    def built(self) -> bool:
        """Whether nothing has to be compiled."""
        return self.kernel.is_built(self.config, self.arch)

    def build(self, compiler: Compiler | None = None) -> Build:
        """Return the compiled kernel, from memory, the cache or a compiler."""
        return self.kernel.build(self.config, self.arch, compiler)

    @cached_property
    def ptx(self) -> str:
        """The kernel in PTX, read from the cache or compiled."""
        from cute_gemm.toolchain.nvrtc import ptx

        return ptx(self.unit, self.arch)

    def arguments(self, alpha: Scalar = ONE, beta: Scalar = ZERO) -> Arguments:
        """Return its packed arguments."""
        signature = self.kernel.signature(self.config)
        return signature.arguments(self.problem, *self.factors(alpha, beta))

    def factors(self, alpha: Scalar, beta: Scalar) -> tuple[Scalar, Scalar]:
        """Return the alpha and beta that this launch computes with, from those of the GEMM."""
        return (alpha, beta) if self.takes_factors else (ONE, ZERO)

    def bind(self, device: int, alpha: Scalar, beta: Scalar) -> Callable[..., None]:
        """Return a function of the operands' addresses and a stream that launches it."""
        factors = self.factors(alpha, beta)
        return self.kernel.bind(self.config, self.problem, self.arch, device, *factors)

    def accesses(self, reads_c: bool, ends: Sequence[int] | None = None) -> tuple[Access, ...]:
        """Return every memory instruction of the launch; ``reads_c``: beta is not 0.

        With groups these are the instructions of all groups, with these ``ends`` or equal sizes.
        """
        whole, config = self.problem, self.config
        problems: tuple[Any, ...]
        if not whole.groups:
            problems = alike(whole)
        elif ends is None:
            problems = (evenly(whole),)
        else:
            parameters = self.kernel.signature(config).parameters
            last = 0
            if any(isinstance(x, TensorMapParameter) for x in parameters):
                mode = "MNK".index(whole.groups.mode)
                last = config.tile[mode] * (*config.cluster, 1)[mode]
            # If TMA stores C, operands of the epilogue are read for whole tiles too.
            problems = tuple(parts(whole, ends, last, config.tma_c))
        accesses: list[Access] = []
        for problem in problems:
            reads = reads_c and self.takes_factors
            accesses += self.kernel.all_accesses(config, problem, reads_c=reads)
        if whole.groups:
            accesses += loads_of_ends(whole, config, self.launch, ends)
            if whole.groups.zero_tail and ends is not None:
                accesses.append(stores_of_zeros(whole, config, ends))
        if whole.operands:
            accesses += atomics_of_results(self.kernel, config, whole, self.launch)
        return tuple(accesses)


@dataclass(frozen=True)
class Steps:
    """Launches in order, and the bytes of scratch between them.

    ``index``: place of the launch that multiplies; ``operands``: names of the launches' operands,
    the scratch last.
    """

    each: tuple[Step, ...]
    index: int
    scratch: int
    operands: tuple[str, ...]

    @property
    def main(self) -> Step:
        """The launch that multiplies."""
        return self.each[self.index]

    def __iter__(self) -> Iterator[Step]:
        return iter(self.each)


def reduces(config: Any, problem: GemmProblem, algorithm: Algorithm) -> bool:
    """Return whether a reduction kernel after the kernel of this config applies the epilogue.

    It adds slices of K, or applies pairs of columns if the kernel does not.
    """
    pairs = problem.epilogue.pairs
    return algorithm.split_k > 1 or (bool(pairs) and config.operation.epilogue.pairs != pairs)


def steps(
    kernel: CompiledKernel, config: Any, problem: GemmProblem, arch: str, algorithm: Algorithm,
    kept: str = "", sms: int = 0,
) -> Steps:  # fmt: skip
    """Return the launches of a problem by a kernel and an algorithm that take it.

    ``kept``: names of operands that are already packed, at their own addresses;
    ``sms``: multiprocessors that a persistent grid is for.
    """
    names = tuple(matrix.name for matrix in problem.matrices)
    places = {name: Location(name) for name in names}
    before_epilogue = 3 + len(problem.ends) + len(problem.scales)
    before: list[Step] = []
    after: list[Step] = []
    scratch = 0
    which = "".join(name for name in algorithm.pack if name not in kept)
    if which:
        _, packing = packed(problem, which)
        if problem.l and all(0 not in source.shape for source in packing.sources):
            before = [packing_step(packing, arch)]
        for _, target, offset in packing.copies:
            places[target.name] = Location("scratch", offset)
        scratch = packing.nbytes
    if algorithm.pack:
        problem, _ = packed(problem, algorithm.pack)
    if reduces(config, problem, algorithm):
        problem, reduction = sliced(problem, algorithm.split_k, config.tile[2])
        slices = places["C"] = Location("scratch", scratch)
        ends = (slices, Location("C"), *(Location(name) for name in names[before_epilogue:]))
        after = [
            Step(
                REDUCE, REDUCE.configure(reduction, arch), reduction, ends, arch, takes_factors=True
            )
        ]
        scratch += reduction.nbytes
    where = tuple(places[name] for name in (names[:before_epilogue] if after else names))
    main = Step(kernel, config, problem, where, arch, takes_factors=not after, sms=sms)
    return Steps((*before, main, *after), len(before), scratch, (*names, "scratch"))


def packing_step(packing: Packing, arch: str) -> Step:
    """Return the launch of the packing kernel."""
    sources = {place: source.name for place, (source, *_) in packing.by_place.items()}
    ends = (*(Location(sources.get(name, name)) for name in "AB"), Location("scratch"))
    kernel = packer(packing)
    return Step(kernel, kernel.configure(packing, arch), packing, ends, arch)
