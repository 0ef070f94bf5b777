"""Two plans side by side: the figures of their reports that differ, with build and time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from cute_gemm._text import FORMAT, counted, duration, named
from cute_gemm.errors import UnsupportedError
from cute_gemm.kernels.options import spelled
from cute_gemm.measure.timed import Turns, time_in_turns
from cute_gemm.rendering.shown import Shown, size_text
from cute_gemm.rendering.tables import styled, table

if TYPE_CHECKING:
    from cute_gemm.plan.plan import Plan
    from cute_gemm.run.timing import Samples

#: Keys of a report whose figures are compared, in order; and those left out: sentences,
#: and repeated figures.
_KEYS = ("matrices", "config", "predicted", "launch", "resources", "performance", "auxiliary",
         "accesses")  # fmt: skip
_LEFT_OUT = frozenset((
    "operation", "modes", "shape", "stride", "what", "why", "limit", "fix", "notes", "source",
    "excess", "ideal_sectors", "ideal_wavefronts", "counted_wavefronts", "counted_conflicts",
))  # fmt: skip
#: Figures of an access that are shown if only one side has it.
_OF_ONE_SIDE = (".instruction", ".launch.requests")


@dataclass(frozen=True, eq=False)
class Side:
    """One side of a comparison.

    ``given``: the request as text: ``"tile=128x256x64"``. ``figures``: numbers and texts
    by name, ``"accesses[A global load].launch.sectors"``, as ``Plan.report().to_dict()`` has them.
    ``missing``: why there is no report or no time, a sentence each.
    """

    given: str
    plan: Plan
    figures: dict[str, Any]
    missing: tuple[str, ...] = ()

    def lines(self) -> Iterator[str]:
        """Yield the description of the side, in lines."""
        plan = self.plan
        if self.given:
            yield self.given
        yield f"gemm {plan.problem.op}{size_text(plan.problem)}"
        yield f"kernel {plan.kernel}, {plan.arch}, config {plan.config.name}"
        yield from self.missing


@dataclass(frozen=True, eq=False)
class Comparison(Shown):
    """Two plans side by side; ``print`` it, or take ``to_dict()``.

    Attributes
    ----------
    a, b
        The sides.
    ratio
        Median over the rounds of b's time over a's; None unless both were measured.
    rounds
        Number of rounds of timing; 0 without timing.
    gpu
        The driver's name of the GPU that both were measured on, or None.
    """

    a: Side
    b: Side
    ratio: float | None = None
    rounds: int = 0
    gpu: str | None = None

    def __repr__(self) -> str:
        return f"<Comparison: {self.a.plan!r}, {self.b.plan!r}, {len(self.differing)} differ>"

    @cached_property
    def figures(self) -> dict[str, tuple[Any, Any]]:
        """Every figure by name, a's and b's; None for a side that lacks it."""
        a, b = self.a.figures, self.b.figures
        return {name: (a.get(name), b.get(name)) for name in {**a, **b}}

    @property
    def differing(self) -> dict[str, tuple[Any, Any]]:
        """The figures that are printed: those that both sides have and that differ.

        For an access of one side alone, they are its identity and its count.
        """
        return {
            name: pair
            for name, pair in self.figures.items()
            if pair[0] != pair[1]
            and (None not in pair or name.endswith(_OF_ONE_SIDE) or name.startswith("instructions"))
        }

    def to_dict(self) -> dict[str, Any]:
        """Return everything in strings, numbers, lists and dicts, with stable keys."""
        sides = {
            name: {**named(side, "given"), "missing": list(side.missing)}
            for name, side in (("a", self.a), ("b", self.b))
        }
        figures = {name: list(pair) for name, pair in self.figures.items()}
        return {"format": FORMAT, **sides, "figures": figures,
                **named(self, "ratio", "rounds", "gpu")}  # fmt: skip

    def _printed(self) -> Iterator[Any]:
        for name, side in (("a", self.a), ("b", self.b)):
            for count, line in enumerate(side.lines()):
                yield styled((" " if count else name, "bold"), f"  {line}")
        if self.ratio is not None:
            rounds = counted(self.rounds, "round")
            words = f"b takes {self.ratio:.3f} of a's time on {self.gpu}, median of {rounds}"
            yield from ("", words)
        rows = [
            (name, _text(name, a), _text(name, b), _ratio(a, b))
            for name, (a, b) in self.differing.items()
        ]
        if rows:
            yield from ("", table("", ("figure", "a", "b", "b / a"), rows, "figure"))
        equal = sum(a == b for a, b in self.figures.values())
        figures = counted(equal, "figure is", "figures are")
        yield from ("", f"{figures} equal on both sides and not shown.")


def compare(
    a: Plan, b: Plan, *, given: tuple[str, str] = ("", ""), build: bool = False,
    sass: bool = False, time: bool = False, beta: complex = 0.0, rounds: int = 9, device: int = 0,
) -> Comparison:  # fmt: skip
    """Compare two plans that differ in config, kernel, op, layout, type or size.

    Parameters
    ----------
    a, b
        The plans, for GPUs of the same or of different architectures.
    given
        Text that describes each plan in the output.
    build
        Whether both are compiled, for registers, shared memory and spills. ``sass`` and ``time``
        compile them too.
    sass
        Whether both are disassembled, for the counts of their instructions.
    time
        Whether both are timed on the GPU in turns, on random matrices that exceed L2. Results are
        not checked; `cute_gemm.measure.bench.bench` checks them.
    beta
        The factor of C. C is read unless it is 0.
    rounds
        Number of rounds of timing.
    device
        Ordinal of the CUDA device.

    Raises
    ------
    CompileError
        If a plan cannot be built.
    ToolError
        If ``nvdisasm`` is not installed.

    Examples
    --------
    >>> from cute_gemm import plan
    >>> sizes = {"m": 4096, "n": 4096, "k": 4096, "dtype": "float16", "arch": "sm_80"}
    >>> comparison = compare(plan("TN", **sizes), plan("TN", **sizes, copy="mn_major"))
    >>> comparison.figures["accesses[A global load].verdict"]
    ('coalesced', 'strided')
    """
    from cute_gemm.api import compile

    plans = a, b
    if build or sass:
        compile([plan for plan in plans if plan.compiled])
    turns = Turns((None, None), ("", ""), None)
    if time:
        turns = time_in_turns(plans, beta=beta, rounds=rounds, device=device)
    first, second = (
        _side(*of_side, beta, build or sass or time, sass)
        for of_side in zip(plans, given, turns.samples, turns.refused, strict=True)
    )
    ours, theirs = turns.samples
    ratio = ours.ratio(theirs) if ours and theirs else None
    return Comparison(first, second, ratio, rounds * time, turns.gpu)


def _side(
    plan: Plan, given: str, samples: Samples | None, refused: str, beta: complex, build: bool,
    sass: bool,
) -> Side:  # fmt: skip
    """Return one side with its figures; ``refused``: why it was not timed."""
    from cute_gemm.toolchain.sass import instructions

    missing = [refused] * bool(refused)
    figures: dict[str, Any] = named(plan.problem, "op", "m", "n", "k", "l", "dtype", "compute")
    figures |= named(plan, "kernel", "arch") | plan.algorithm._asdict()
    if samples is not None:
        seconds = 1e-3 * samples.median
        teraflops = plan.problem.flops / seconds / 1e12
        figures["measured"] = {"seconds": seconds, "teraflops": teraflops}
    try:
        if build:
            _ = plan.build
        report = plan.report(beta=beta).to_dict()
    except UnsupportedError as error:
        missing.append(str(error))
    else:
        figures |= {key: report.get(key) for key in _KEYS}
        for fastest in report["candidates"][:1]:
            figures["predicted"] = {name: fastest[name] for name in ("seconds", "terms")}
        if sass:
            figures["instructions"] = dict(instructions(plan.sass).most_common())
    return Side(given, plan, dict(_figures(figures)), tuple(missing))


def _figures(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the numbers and texts of nested dicts and lists, with their names."""
    if isinstance(value, dict):
        for key, each in value.items():
            if key not in _LEFT_OUT:
                yield from _figures(each, f"{name}.{key}" if name else key)
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        labels: dict[str, int] = {}
        for each in value:
            label = _label(each)
            labels[label] = labels.get(label, 0) + 1
            count = f" #{labels[label]}" * (labels[label] > 1)
            yield from _figures(each, f"{name}[{label}{count}]")
    elif value is not None:
        yield name, spelled(tuple(value)) if isinstance(value, (list, tuple)) else value


def _label(of: dict[str, Any]) -> str:
    """Return the name of an access, or of an auxiliary kernel."""
    words = (of.get(key) for key in ("operand", "space", "direction", "part"))
    return " ".join(filter(None, words)) or of["kernel"]


def _text(name: str, value: Any) -> str:
    if value is None or isinstance(value, (str, bool)):
        return "-" if value in (None, "") else str(value)
    if name.endswith("seconds") or ".terms." in name:
        return duration(value)
    return f"{value:,.0f}" if value == int(value) else f"{value:.4g}"


def _ratio(a: Any, b: Any) -> str:
    if isinstance(a, str) or isinstance(b, str) or not a or b is None:
        return ""
    return f"{b / a:.3g}"
