"""``Steps``: the launches of a plan: packing, the kernel that multiplies, reduction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from cute_gemm.kernels.passes import PACK, REDUCE
from cute_gemm.problem.passes import Packing, Route, alike, packed, sliced
from cute_gemm.problem.scalars import ONE, ZERO, Scalar

if TYPE_CHECKING:
    from cute_gemm.access import Access
    from cute_gemm.kernels.base import Compiled, CompiledKernel
    from cute_gemm.problem.problem import GemmProblem
    from cute_gemm.toolchain.cubin import Build
    from cute_gemm.toolchain.nvrtc import Compiler
    from cute_gemm.toolchain.signature import Arguments, Launch
    from cute_gemm.toolchain.unit import TranslationUnit


#: What a plan is called with, and the memory between its launches.
OPERANDS = ("A", "B", "C", "scratch")


class Place(NamedTuple):
    """Where a step finds or puts something: in A, B, C or ``"scratch"``, bytes from its start."""

    name: str
    offset: int = 0


@dataclass(frozen=True)
class Step:
    """One launch: a kernel with its config, what it is asked, and where its operands are.

    ``scales``: alpha and beta are given to it; the others compute plain sums.
    """

    kernel: Compiled
    config: Any
    problem: Any
    places: tuple[Place, ...]
    arch: str
    scales: bool = False

    @cached_property
    def unit(self) -> TranslationUnit:
        """The CUDA C++ translation unit."""
        return self.kernel.unit(self.config)

    @cached_property
    def launch(self) -> Launch:
        """CTAs, threads per CTA, dynamic shared memory in bytes."""
        return self.kernel.launch(self.config, self.problem)

    @property
    def addresses(self) -> list[tuple[int, int]]:
        """Where its operands are: a number in `OPERANDS`, and bytes from its start."""
        return [(OPERANDS.index(place.name), place.offset) for place in self.places]

    @property
    def built(self) -> bool:
        """Whether nothing need be compiled."""
        return self.kernel.is_built(self.config, self.arch)

    def build(self, compiler: Compiler | None = None) -> Build:
        """Return the compiled kernel, from memory, the cache or a compiler."""
        return self.kernel.build(self.config, self.arch, compiler)

    @cached_property
    def ptx(self) -> str:
        """The kernel in PTX; compiled for this alone."""
        from cute_gemm.toolchain.nvrtc import ptx

        return ptx(self.unit, self.arch)

    def arguments(self, alpha: Scalar = ONE, beta: Scalar = ZERO) -> Arguments:
        """Return its packed parameters."""
        return self.kernel.signature.arguments(self.problem, *self.factors(alpha, beta))

    def factors(self, alpha: Scalar, beta: Scalar) -> tuple[Scalar, Scalar]:
        """Return the alpha and beta that it computes with, of the whole's."""
        return (alpha, beta) if self.scales else (ONE, ZERO)

    def bind(self, device: int, alpha: Scalar, beta: Scalar) -> Callable[..., None]:
        """Return a function of its operands' addresses and a stream."""
        factors = self.factors(alpha, beta)
        return self.kernel.bind(self.config, self.problem, self.arch, device, *factors)

    def accesses(self, reads_c: bool) -> tuple[Access, ...]:
        """Return every memory instruction of the launch; ``reads_c``: beta is not 0."""
        found: list[Access] = []
        for problem in alike(self.problem):
            reads = reads_c and self.scales
            found += self.kernel.accesses(self.config, problem, reads_c=reads)
        return tuple(found)


@dataclass(frozen=True)
class Steps:
    """Launches in order, which of them multiplies, and the bytes of scratch between them."""

    each: tuple[Step, ...]
    main: int
    scratch: int

    def __iter__(self) -> Iterator[Step]:
        return iter(self.each)


def steps(
    kernel: CompiledKernel, config: Any, problem: GemmProblem, arch: str, route: Route,
    kept: str = "",
) -> Steps:  # fmt: skip
    """Return the launches of a problem by a kernel and a route that take it.

    ``kept``: operands of those to pack that are packed already, and found at their own addresses.
    """
    places = {name: Place(name) for name in "ABC"}
    before: list[Step] = []
    behind: list[Step] = []
    scratch = 0
    which = "".join(name for name in route.pack if name not in kept)
    if which:
        _, packing = packed(problem, which)
        before = [packing_step(packing, arch)]
        for target, offset in zip(packing.targets, packing.offsets, strict=True):
            places[target.name] = Place("scratch", offset)
        scratch = packing.nbytes
    if route.pack:
        problem, _ = packed(problem, route.pack)
    if route.split_k > 1:
        problem, reduction = sliced(problem, route.split_k, config.tile[2])
        sums = places["C"] = Place("scratch", scratch)
        ends = sums, Place("C")
        behind = [
            Step(REDUCE, REDUCE.configure(reduction, arch), reduction, ends, arch, scales=True)
        ]
        scratch += reduction.nbytes
    where = places["A"], places["B"], places["C"]
    main = Step(kernel, config, problem, where, arch, scales=not behind)
    return Steps((*before, main, *behind), len(before), scratch)


def packing_step(packing: Packing, arch: str) -> Step:
    """Return the launch that packs."""
    ends = Place("A"), Place("B"), Place("scratch")
    return Step(PACK, PACK.configure(packing, arch), packing, ends, arch)
