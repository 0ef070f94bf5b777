"""Two plans side by side: what differs in kernel, accesses, build, instructions and time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from cute_gemm._text import FORMAT, counted, named
from cute_gemm.errors import UnsupportedError
from cute_gemm.measure.figures import Figure, Side, Time, differing, figures, table
from cute_gemm.rendering.shown import Shown

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

    from cute_gemm.measure.timed import Turns
    from cute_gemm.plan.plan import Plan


@dataclass(frozen=True, eq=False)
class Comparison(Shown):
    """Two plans side by side; ``print`` it, or take ``to_dict()``.

    Attributes
    ----------
    a, b
        The sides.
    ratio
        Median over the rounds of b's time over a's; None where not both were measured.
    rounds
        Rounds of timing; 0 without.
    gpu
        The driver's name of the GPU that both were measured on, or None.
    """

    a: Side
    b: Side
    ratio: float | None = None
    rounds: int = 0
    gpu: str | None = None

    def __repr__(self) -> str:
        differing = sum(figure.differs for figure in self.figures)
        return f"<Comparison: {self.a.plan!r}, {self.b.plan!r}, {differing} figures differ>"

    @cached_property
    def figures(self) -> tuple[Figure, ...]:
        """Every figure of both sides, those that are equal too, group by group."""
        return tuple(figures(self.a, self.b))

    def to_dict(self) -> dict[str, Any]:
        """Return everything in strings, numbers, lists and dicts, with keys that stay."""
        names = "group", "of", "what", "a", "b", "unit", "differs"
        return {
            "format": FORMAT,
            "a": self.a.to_dict(),
            "b": self.b.to_dict(),
            "figures": [named(figure, *names) for figure in self.figures],
            **named(self, "ratio", "rounds", "gpu"),
        }

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        for name, side in (("a", self.a), ("b", self.b)):
            for count, line in enumerate(side.lines()):
                yield Text.assemble((" " if count else name, "bold"), f"  {line}")
        if self.ratio is not None:
            yield Text()
            rounds = counted(self.rounds, "round")
            yield Text(f"b takes {self.ratio:.3f} of a's time on {self.gpu}, median of {rounds}")
        for group in dict.fromkeys(figure.group for figure in self.figures):
            of_group = [figure for figure in self.figures if figure.group == group]
            if shown := differing(group, of_group):
                yield Text()
                yield from table(group, shown)
        equal = sum(not figure.differs for figure in self.figures)
        yield Text()
        one = "1 figure is" if equal == 1 else f"{equal:,} figures are"
        yield Text(f"{one} equal on both sides and not shown.")


def compare(
    a: Plan, b: Plan, *, given: tuple[str, str] = ("", ""), build: bool = False,
    sass: bool = False, time: bool = False, beta: complex = 0.0, rounds: int = 9, seed: int = 0,
    device: int = 0,
) -> Comparison:  # fmt: skip
    """Put two plans side by side: of other configs, kernels, ops, layouts, types or sizes.

    Parameters
    ----------
    a, b
        The plans; for GPUs of one arch or of two.
    given
        What each is called where it is printed.
    build
        Compile both, for registers, shared memory and spills; done for the others too.
    sass
        Compile and disassemble both, for the counts of their instructions.
    time
        Time both on the GPU, in turns, on random matrices that come past L2. Results are not
        checked: `cute_gemm.measure.bench.bench` does.
    beta
        With another than 0, C is read too.
    rounds, seed, device
        Of timing: how often each takes its turn, seed of the matrices, CUDA ordinal.

    Raises
    ------
    CompileError
        When one of them cannot be built.
    ToolError
        When there is no ``nvdisasm`` to disassemble with.

    Examples
    --------
    >>> from cute_gemm import plan
    >>> sizes = {"m": 4096, "n": 4096, "k": 4096, "dtype": "float16", "arch": "sm_80"}
    >>> found = compare(plan("TN", **sizes), plan("TN", **sizes, copy="mn_major"))
    >>> {(x.a, x.b) for x in found.figures if x.of == "A, global load" and x.what == "verdict"}
    {('coalesced', 'strided')}
    """
    from cute_gemm.api import compile

    plans = a, b
    if build or sass:
        compile([plan for plan in plans if plan.compiled])
    turns: Turns | None = None
    if time:
        from cute_gemm.measure.timed import time_in_turns

        turns = time_in_turns(plans, beta=beta, rounds=rounds, seed=seed, device=device)
    first, second = (
        _side(plan, words, turns, at, beta, build or sass or time, sass)
        for at, (plan, words) in enumerate(zip(plans, given, strict=True))
    )
    if turns is None:
        return Comparison(first, second)
    ours, theirs = turns.samples
    ratio = ours.ratio(theirs) if ours and theirs else None
    return Comparison(first, second, ratio, rounds, turns.gpu)


def _side(
    plan: Plan, given: str, turns: Turns | None, at: int, beta: complex, build: bool, sass: bool
) -> Side:
    """Work out one side."""
    from cute_gemm.toolchain.sass import instructions

    missing = []
    report = counts = time = None
    try:
        if build:
            _ = plan.build
        report = plan.report(beta=beta).to_dict()
    except UnsupportedError as error:
        missing.append(str(error))
    if sass and report is not None:
        counts = dict(instructions(plan.sass).most_common())
    if turns is not None:
        samples = turns.samples[at]
        missing += [turns.refused[at]] * bool(turns.refused[at])
        if samples is not None:
            teraflops = plan.problem.flops / samples.median / 1e9
            time = Time(samples.median, samples.quartiles, teraflops)
    return Side(given, plan, report, counts, time, tuple(missing), beta != 0)
