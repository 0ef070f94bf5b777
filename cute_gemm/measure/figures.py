"""The figures of two plans side by side, group by group, and their tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from cute_gemm._text import counted, duration, named, number, percent, size
from cute_gemm.kernels import registry
from cute_gemm.kernels.options import spelled
from cute_gemm.rendering.shown import size_text
from cute_gemm.rendering.tables import Column, Table

if TYPE_CHECKING:
    from cute_gemm.cost_model.price import Price
    from cute_gemm.plan.plan import Plan

#: Instructions that the table shows, those whose counts differ most.
SHOWN_INSTRUCTIONS = 16

#: The groups of figures, in order: a table for each.
PROBLEM, KERNEL, PREDICTED, LAUNCH = "Problem", "Kernel", "Predicted time", "Launch"
BUILD, ACCESSES, SUMS = "Build", "Accesses", "All accesses of the launch"
INSTRUCTIONS, MEASURED = "Instructions (SASS)", "Measured time"

#: Figures of an access: its key in the report's JSON, what it is called, and its unit.
_OF_ACCESS = (
    ("instruction", "instruction", ""),
    ("bits", "bits of a lane", ""),
    ("lanes", "lanes per request", ""),
    ("requests", "requests", ""),
    ("sectors", "sectors per request", ""),
    ("l2_sectors", "sectors of L2 per request", ""),
    ("wavefronts", "wavefronts per request", ""),
    ("conflicts", "conflicts per request", ""),
    ("efficiency", "efficiency", "fraction"),
    ("verdict", "verdict", ""),
)
#: How often an access of one side alone is made.
_OFTEN = ("requests of the launch",)
#: Totals of an access over the launch, which are added up over the accesses too.
_OF_LAUNCH = ("requests", "sectors", "l2_sectors", "wavefronts", "conflicts")


@dataclass(frozen=True, slots=True)
class Time:
    """Median time of a call in milliseconds, its quartiles, and 10**12 operations per second."""

    milliseconds: float
    quartiles: tuple[float, float]
    teraflops: float


@dataclass(frozen=True, eq=False)
class Side:
    """One of the two: a plan, and what is known of it.

    Attributes
    ----------
    given
        What was asked for, in words: ``"tile=128x256x64"``.
    report
        ``Plan.report().to_dict()``; None for a kernel that is not compiled here.
    instructions
        Counts of the kernel's machine instructions by opcode; None where nobody asked.
    time
        Its time on the GPU; None where it was not measured.
    missing
        Why there is no report or no time, a sentence each.
    reads_c
        Whether beta is not 0.
    """

    given: str
    plan: Plan
    report: dict[str, Any] | None
    instructions: dict[str, int] | None
    time: Time | None
    missing: tuple[str, ...] = ()
    reads_c: bool = False

    @cached_property
    def _price(self) -> Price | None:
        return self.plan.candidates(reads_c=self.reads_c)[0].price

    @property
    def seconds(self) -> float | None:
        """The predicted time; None of a kernel that has no prediction."""
        return None if self._price is None else self._price.seconds

    @property
    def terms(self) -> dict[str, float]:
        """Seconds of each unit if it were the only one; {} of a kernel without a prediction."""
        return {} if self._price is None else self._price.terms

    def to_dict(self) -> dict[str, Any]:
        """Return it as strings, numbers, lists and dicts."""
        plan, problem = self.plan, self.plan.problem
        time = named(self.time, "milliseconds", "quartiles", "teraflops") if self.time else None
        return {
            "given": self.given,
            **named(problem, "op", "blas_op", "m", "n", "k", "l", "dtype"),
            "out_dtype": problem.C.dtype,
            "compute": problem.compute,
            "kernel": plan.kernel,
            "config_name": plan.config.name,
            "arch": plan.arch,
            **plan.route._asdict(),
            "seconds": self.seconds,
            "terms": self.terms,
            "counts": self.instructions,
            "timing": time,
            "missing": list(self.missing),
        }

    def lines(self) -> Iterator[str]:
        """Yield what it is, in lines."""
        plan = self.plan
        if self.given:
            yield self.given
        yield f"gemm {plan.problem.op}{size_text(plan.problem)}"
        yield f"kernel {plan.kernel}, {plan.arch}, config {plan.config.name}"
        if plan.route.pack:
            yield f"{' and '.join(plan.route.pack)} packed before it"
        if plan.route.split_k > 1:
            yield f"{counted(plan.route.split_k, 'slice')} of K"
        said = [] if self.seconds is None else [f"{duration(self.seconds)} predicted"]
        if self.time is not None:
            time = f"{duration(1e-3 * self.time.milliseconds)} measured"
            said.append(f"{time}, {self.time.teraflops:.4g} TFLOP/s")
        yield from [", ".join(said)] * bool(said)
        yield from self.missing


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of both sides: a number, a text, or None on a side that does not have it.

    ``group`` is the table that it is in, ``of`` the access that it is of, if any. ``unit``:
    ``"seconds"``, ``"bytes"``, ``"fraction"``, or nothing.
    """

    group: str
    of: str
    what: str
    a: float | str | None
    b: float | str | None
    unit: str = ""

    @property
    def differs(self) -> bool:
        """Whether the sides have different values."""
        return self.a != self.b

    @property
    def ratio(self) -> float | None:
        """The figure of b over that of a; None unless both are numbers and a's is not 0."""
        if isinstance(self.a, str) or isinstance(self.b, str) or not self.a or self.b is None:
            return None
        return self.b / self.a

    def texts(self) -> tuple[str, str, str]:
        """Return both values and their ratio as they are printed."""
        ratio = self.ratio
        return self._text(self.a), self._text(self.b), "" if ratio is None else f"{ratio:.3g}"

    def _text(self, value: float | str | None) -> str:
        if value is None or isinstance(value, str):
            return value or "-"
        if self.unit == "seconds":
            return duration(value)
        if self.unit == "bytes":
            return size(int(value))
        return percent(value) if self.unit == "fraction" else number(value)


def figures(a: Side, b: Side) -> Iterator[Figure]:
    """Yield all figures, group by group."""
    for group, of_side in _GROUPS:
        values = of_side(a), of_side(b)
        for what, unit in _merged(*values):
            first, second = (x.get((what, unit)) for x in values)
            yield Figure(group, "", what, first, second, unit)
        if group == BUILD:
            yield from _of_accesses(a, b)


def _merged(a: Iterable[tuple[str, ...]], b: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """The names of both sides, each where the side that has it earlier has it.

    With the sides exchanged the order is the same.
    """
    places: dict[tuple[str, ...], int] = {}
    for side in (a, b):
        for place, name in enumerate(side):
            places[name] = min(place, places.get(name, place))
    return sorted(places, key=lambda name: (places[name], name))


#: Figures of a side by what they are called and their unit.
_Values = dict[tuple[str, str], Any]


def _problem(side: Side) -> _Values:
    problem = side.plan.problem
    values: dict[str, Any] = named(problem, "op", "m", "n", "k", "l", "types")
    for matrix in problem.matrices:
        values[f"{matrix.name}({','.join(matrix.modes)})"] = str(matrix)
        values[f"ld{matrix.name.lower()}"] = matrix.ld
        values[f"{matrix.name} aligned to"] = counted(matrix.alignment, "byte")
    return {(what, ""): value for what, value in values.items()}


def _kernel(side: Side) -> _Values:
    plan = side.plan
    values: dict[str, Any] = {"kernel": plan.kernel, "arch": plan.arch}
    values |= {"packed": " and ".join(plan.route.pack), "slices of K": plan.route.split_k}
    config = plan.config
    options = [field.name for field in fields(config)] if is_dataclass(config) else ()
    chosen = {x: getattr(config, x) for x in options if x in registry.get(plan.kernel).options}
    return {(what, ""): _number_or_text(value) for what, value in {**values, **chosen}.items()}


def _number_or_text(value: Any) -> Any:
    """A number as it is, and of anything else its text."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number else spelled(value)


def _predicted(side: Side) -> _Values:
    values: _Values = {}
    if side.seconds is not None:
        values["predicted time", "seconds"] = side.seconds
    return values | {(f"{unit} alone", "seconds"): x for unit, x in side.terms.items()}


def _launch(side: Side) -> _Values:
    if side.report is None:
        return {}
    launch, bounds = side.report["launch"], side.report["performance"]
    values: _Values = {
        ("CTAs", ""): side.plan.launch.ctas,
        ("threads of a CTA", ""): launch["block"],
        ("dynamic shared memory", "bytes"): launch["smem"],
    }
    if bounds["occupancy"] is not None:
        values["CTAs of a multiprocessor", ""] = bounds["occupancy"]["ctas_per_sm"]
        values["occupancy", "fraction"] = bounds["occupancy"]["fraction"]
    if bounds["waves"] is not None:
        values["waves", ""] = bounds["waves"]["waves"]
        values["time used of the waves", "fraction"] = bounds["waves"]["efficiency"]
    return values


def _build(side: Side) -> _Values:
    built = (side.report or {}).get("resources")
    if not built:
        return {}
    return {
        ("registers of a thread", ""): built["registers"],
        ("static shared memory", "bytes"): built["shared_static"],
        ("spill stores", "bytes"): built["spill_stores"],
        ("spill loads", "bytes"): built["spill_loads"],
        ("stack", "bytes"): built["stack"],
        ("cubin", "bytes"): len(side.plan.cubin),
    }


def _accesses(side: Side) -> list[tuple[str, dict[str, Any]]]:
    """The accesses of all launches, each with the pass that it is of, or ``""``."""
    if side.report is None:
        return []
    of_passes = [(x["kernel"], row) for x in side.report["passes"] for row in x["accesses"]]
    return [*of_passes, *(("", row) for row in side.report["accesses"])]


def _sums(side: Side) -> _Values:
    if side.report is None:
        return {}
    values: _Values = {}
    for _, row in _accesses(side):
        for name in _OF_LAUNCH:
            if (count := row["launch"][name]) is not None:
                key = f"{row['space']} {name.replace('l2_', 'L2 ')}", ""
                values[key] = values.get(key, 0) + count
    bounds = side.report["performance"]
    for operand, moved in bounds["traffic"]["requested"].items():
        values[f"requested of {operand}", "bytes"] = moved
    values["operations per requested byte", ""] = bounds["requested_intensity"]
    for name, count in bounds["per_result"].items():
        if count is not None:
            values[f"{name.replace('_', ' ')} per element of C", ""] = count
    return values


def _instructions(side: Side) -> _Values:
    counts = side.instructions
    if counts is None:
        return {}
    return {("all", ""): sum(counts.values())} | {(x, ""): n for x, n in counts.items()}


def _measured(side: Side) -> _Values:
    if side.time is None:
        return {}
    seconds = 1e-3 * side.time.milliseconds
    return {("time of a call", "seconds"): seconds, ("TFLOP/s", ""): side.time.teraflops}


_GROUPS = (
    (PROBLEM, _problem),
    (KERNEL, _kernel),
    (MEASURED, _measured),
    (PREDICTED, _predicted),
    (LAUNCH, _launch),
    (BUILD, _build),
    (SUMS, _sums),
    (INSTRUCTIONS, _instructions),
)


def _of_accesses(a: Side, b: Side) -> Iterator[Figure]:
    """Yield the figures of the accesses that correspond, and of those of one side alone."""
    names: dict[str, int] = {}
    for launch, first, second in _pairs(_accesses(a), _accesses(b)):
        either: Any = first or second
        what = f"{launch} {either['operand']}, {either['space']} {either['direction']}".strip()
        parts = sorted({row["part"] for row in (first, second) if row and row["part"]})
        what += f" ({', '.join(parts)})" * bool(parts)
        names[what] = names.get(what, 0) + 1
        what += f" #{names[what]}" * (names[what] > 1)
        pair = first, second
        for key, called, unit in _OF_ACCESS:
            values = tuple(_access_value(row, key) for row in pair)
            if values != (None, None):
                yield Figure(ACCESSES, what, called, values[0], values[1], unit)
        for key in _OF_LAUNCH:
            values = tuple(row["launch"][key] if row else None for row in pair)
            if values != (None, None):
                called = f"{key.replace('l2_sectors', 'sectors of L2')} of the launch"
                yield Figure(ACCESSES, what, called, *values)


def _access_value(row: dict[str, Any] | None, key: str) -> Any:
    if row is None:
        return None
    if key in ("bits", "lanes") and not row["bits"]:  # a bulk copy has no lanes
        return None
    return f"{number(row['requests'])}/{row['unit']}" if key == "requests" else row[key]


_Row = tuple[str, dict[str, Any]]


def _pairs(
    a: Sequence[_Row], b: Sequence[_Row]
) -> Iterator[tuple[str, dict[str, Any] | None, dict[str, Any] | None]]:
    """Yield the accesses that correspond: launch, a's, b's; None where a side has none.

    Of one operand, memory space and direction those of one instruction and part belong together,
    and of what is left the first to the first. Pairs and their order are the same with the sides
    exchanged: an access stands where the side that has it earlier has it.
    """

    def by_name(rows: Sequence[_Row]) -> dict[tuple[str, ...], list[int]]:
        groups: dict[tuple[str, ...], list[int]] = {}
        for at, (launch, row) in enumerate(rows):
            key = launch, row["operand"], row["space"], row["direction"]
            groups.setdefault(key, []).append(at)
        return groups

    def order(pair: tuple[int | None, int | None]) -> Any:
        of_sides = zip(pair, (a, b), strict=True)
        rows = [(at, side[at][1]) for at, side in of_sides if at is not None]
        names = sorted((row["instruction"], row["part"]) for _, row in rows)
        return min(at for at, _ in rows), len(rows) == 1, sorted(at for at, _ in rows), names

    first, second = by_name(a), by_name(b)
    # Those of launches beside the kernel come first, as in a report.
    for key in sorted(_merged(first, second), key=lambda key: not key[0]):
        mine, theirs = list(first.get(key, ())), list(second.get(key, ()))
        found: list[tuple[int | None, int | None]] = []
        for names in (("instruction", "part"), ("part",), ()):
            for at in list(mine):
                row = a[at][1]
                like = [x for x in theirs if all(b[x][1][name] == row[name] for name in names)]
                if like:
                    theirs.remove(like[0])
                    mine.remove(at)
                    found.append((at, like[0]))
        found += [(at, None) for at in mine] + [(None, at) for at in theirs]
        for x, y in sorted(found, key=order):
            yield key[0], None if x is None else a[x][1], None if y is None else b[y][1]


# ---- the tables ----------------------------------------------------------------------------------


def differing(group: str, of_group: list[Figure]) -> list[Figure]:
    """Return what is shown of a group: what differs, and of what one side lacks little or nothing.

    Nothing of a group that one side has no figures of; of a kernel the options that both have; of
    an access of one side alone, and of none that no lane takes part in, which one it is, and how
    often.
    """
    if group != INSTRUCTIONS and any(
        all(value is None for value in values)
        for values in ((x.a for x in of_group), (x.b for x in of_group))
    ):
        return []
    alone = set()
    for of in {figure.of for figure in of_group if figure.of}:
        (instruction,) = (x for x in of_group if x.of == of and x.what == "instruction")
        if None in (instruction.a, instruction.b):
            alone.add(of)
    idle = {x.of for x in of_group if x.of in alone and x.what in _OFTEN and 0 in (x.a, x.b)}
    return [
        x for x in of_group
        if x.differs and x.of not in idle
        and (x.of not in alone or x.what in ("instruction", "verdict", *_OFTEN))
        and (group != KERNEL or None not in (x.a, x.b))
    ]  # fmt: skip


def table(group: str, shown: list[Figure]) -> Iterator[Any]:
    """Yield the table of the figures of one group, and what is left out of it."""
    from rich.text import Text

    left_out = 0
    if group == INSTRUCTIONS:
        shown = sorted(shown, key=lambda x: -abs(float(x.a or 0) - float(x.b or 0)))
        left_out = len(shown[SHOWN_INSTRUCTIONS:])
        shown = shown[:SHOWN_INSTRUCTIONS]
    compared = group not in (PROBLEM, KERNEL)
    heads = Column(group, left=True), Column("a"), Column("b"), *[Column("b / a")] * compared
    rows, last = [], ""
    for figure in shown:
        if figure.of != last:
            rows.append([figure.of, *[""] * (2 + compared)])
        indent = "  " * bool(figure.of)
        rows.append([f"{indent}{figure.what}", *figure.texts()[: 2 + compared]])
        last = figure.of
    yield Table("", heads, rows)
    if left_out:
        opcodes = counted(left_out, "opcode")
        yield Text(f"and {opcodes} whose counts differ less; to_dict() and --json have all")
