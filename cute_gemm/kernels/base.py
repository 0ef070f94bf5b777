"""What a kernel is to the rest of the project: a config, C++ text, a launch and its accesses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from cute_gemm.errors import UnsupportedError

if TYPE_CHECKING:
    from cute_gemm.access import Access, Partition, Shares, Work
    from cute_gemm.problem.problem import GemmProblem
    from cute_gemm.toolchain.unit import TranslationUnit


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch: CTAs of a one-dimensional grid, threads per CTA, dynamic shared memory in bytes."""

    grid: int
    block: int
    smem: int


class Kernel(ABC):
    """A family of kernels that share one template."""

    #: The public ``kernel=`` value.
    name: str
    #: One line on what it is.
    summary: str
    #: Lowest compute capability, as an int (80).
    minimum_cc: int
    #: Element types (with ``compute`` where it matters: ``"float32/tf32"``).
    dtypes: tuple[str, ...] = ()
    #: What it does that the kernel before it on the ladder does not, where no template's header
    #: says so (``analysis.ideas``).
    idea: str = ""
    #: Fields of the config that may be set as kernel options.
    options: tuple[str, ...] = ()
    #: What computes: a kernel that is emitted and compiled, the host itself, or another library,
    #: of which nothing but the result is known.
    runs_on: Literal["gpu", "cpu", "library"] = "gpu"

    @abstractmethod
    def configure(self, problem: GemmProblem, arch: str, **options: Any) -> Any:
        """Return the frozen, hashable config, with a ``.name``, for ``problem`` on ``arch``.

        Raises
        ------
        UnsupportedError
            When this kernel cannot serve the problem or the arch.
        OptionError
            For an option that is not a field of the config, or whose value is illegal.
        """

    @abstractmethod
    def emit(self, config: Any) -> TranslationUnit:
        """Return the C++ unit of ``config``."""

    @abstractmethod
    def launch(self, config: Any, problem: GemmProblem) -> Launch:
        """Return the launch of ``config`` for ``problem``."""

    @abstractmethod
    def accesses(
        self, config: Any, problem: GemmProblem, *, reads_c: bool = False
    ) -> tuple[Access, ...]:
        """Return every memory instruction of the kernel; ``reads_c``: beta is not 0."""

    @abstractmethod
    def work(self, config: Any, problem: GemmProblem) -> Work:
        """Return what the launch multiplies."""

    def shares(self, config: Any) -> Shares | None:
        """Return how many results share what is read; None where nothing is known of it."""
        return None

    def pictures(self, config: Any) -> tuple[Partition, ...]:
        """Return how its threads divide tiles, as far as that is worth a picture."""
        return ()


class NotCompiled(Kernel):
    """What computes, and is not emitted, launched or reported here: asking for it is an error."""

    #: The error's message.
    not_compiled: str

    def emit(self, config: Any) -> TranslationUnit:
        """Refuse."""
        raise UnsupportedError(self.not_compiled)

    def launch(self, config: Any, problem: GemmProblem) -> Launch:
        """Refuse."""
        raise UnsupportedError(self.not_compiled)

    def accesses(
        self, config: Any, problem: GemmProblem, *, reads_c: bool = False
    ) -> tuple[Access, ...]:
        """Refuse."""
        raise UnsupportedError(self.not_compiled)

    def work(self, config: Any, problem: GemmProblem) -> Work:
        """Refuse."""
        raise UnsupportedError(self.not_compiled)
