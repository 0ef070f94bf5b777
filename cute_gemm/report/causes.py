"""Why a kernel takes its time: each cause once, with its cost in time and its fix.

The cost of a cause is the predicted time minus the predicted time with ideal accesses. The model
(`cost_model/prediction.py`) evaluates counts of the same bytes in ideal requests:

- in global memory, ideal sectors, no partly touched lines and 16 bytes per lane, without the waits
  and the additional work of narrow copies,
- in shared memory, ideal wavefronts,

and in auxiliary kernels accesses of 16 bytes. A cost is at least what its fix saves, since a fix
may save more. The times of a kernel's units overlap, so costs of several causes do not add up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from cute_gemm._text import bound, duration, number, percent
from cute_gemm.access.accesses import LimitOfOption, OfMatrix, Option, SharedAccess
from cute_gemm.access.ideal import Kind, kind_of
from cute_gemm.cost_model.prediction import Prediction
from cute_gemm.kernels.options import access_bytes
from cute_gemm.rendering.rows import MISALIGNED, AccessRow
from cute_gemm.rendering.tables import Findings, Paragraph, markup, styled
from cute_gemm.report.remedies import (
    Remedy,
    misplaced,
    of_option,
    placed,
    rows_that_end_anywhere,
    turned,
)

if TYPE_CHECKING:
    from cute_gemm.problem.matrix import Matrix

#: Share of the predicted time below which the report gives no figure for a cost.
LITTLE = 0.01
#: The first remedy that saves this share of what the best one saves is suggested.
ENOUGH = 0.9
#: Share of the time above the bound from which one cause explains it.
MOST = 0.5
#: Multiple of the bound above which it is not informative: a few bytes take less than any launch.
FAR = 1000


class Predictor(NamedTuple):
    """Predicted times in seconds on one GPU.

    ``prediction`` is that of the report's config, or None; without one, the two functions are not
    called. ``ideal(kinds, wide)`` returns the time with ideal accesses of ``kinds`` in the kernel,
    and accesses of 16 bytes in the auxiliary kernels ``wide``. ``changed(**change)`` returns the
    time of the fastest config with other options, or another ``kernel`` or ``problem``, or None if
    there is no config. ``sizes``: whether ``base_offset`` gives base addresses, rather than arrays
    on a device.
    """

    prediction: Prediction | None = None
    gpu: str = ""
    ideal: Callable[[frozenset[Kind], frozenset[str]], float] = lambda *_: 0.0
    changed: Callable[..., float | None] = lambda **_: None
    sizes: bool = True
    #: Parts of the predicted time without measured times (`predicted.unmeasured`).
    unmeasured: Sequence[str] = ()


NO_PREDICTOR = Predictor()


@dataclass(frozen=True)
class Cause:
    """One cause of lost time, and the accesses that it explains.

    Attributes
    ----------
    what
        The cause: ``"C's ldc of 1001 (2,002 bytes) is not a multiple of 16 bytes"``.
    because
        Its costliest access, as a clause: ``"B's ld.global is not coalesced"``.
    accesses
        Every access it explains: ``"B ld.global: strided, 12.5 % of the bytes used"``.
    fault
        Whether an access would fault.
    seconds, share
        The lost time, and its share of the predicted time; None without a prediction.
    fix
        What to write or to change; ``""`` if no fix is known.
    change
        The arguments of ``analyze`` that the fix changes; {} if it changes none.
    fixed_seconds
        The predicted time with the fix, or None.
    """

    what: str
    because: str
    accesses: tuple[str, ...]
    fault: bool = False
    seconds: float | None = None
    share: float | None = None
    fix: str = ""
    change: tuple[tuple[str, Any], ...] = ()
    fixed_seconds: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes by name."""
        return asdict(self) | {"accesses": list(self.accesses), "change": dict(self.change)}

    @property
    def little(self) -> bool:
        """Whether the cost is known and small."""
        return self.share is not None and self.share < LITTLE and not self.fault

    @property
    def cost(self) -> str:
        """Cost as text: ``"9.10 ms, 94.0 % of the time"``; "" if unknown."""
        if self.fault:
            return "it would fault"
        if self.seconds is None or self.share is None:
            return ""
        if self.little:
            return "less than 1 %"
        return f"{duration(self.seconds)}, {percent(self.share)} of the time"

    @property
    def remedy(self) -> str:
        """Fix and predicted time with it; "" without a fix."""
        if not self.fix or self.fixed_seconds is None:
            return self.fix
        return f"{self.fix} ({duration(self.fixed_seconds)} predicted)"


class _Member(NamedTuple):
    """An access that is not ideal, and its launch."""

    row: AccessRow
    launch: str  #: ``""`` for the GEMM kernel.


class _Group(NamedTuple):
    """A cause before its cost is predicted.

    ``fix`` is the text if no remedy helps, ``otherwise`` the cause if no other place of a matrix
    helps. ``ideal``: whether the fix makes the accesses ideal.
    """

    what: str
    remedies: tuple[Remedy, ...] = ()
    fix: str = ""
    otherwise: str = ""
    ideal: bool = False
    option: Option | None = None  #: The option that is the cause, with its present value.


def causes(report: Any) -> tuple[Cause, ...]:
    """Return the causes of lost time: faults first, then the costliest."""
    groups: dict[Any, tuple[_Group, list[_Member]]] = {}
    every = [_Member(row, "") for row in report.rows]
    every += [_Member(row, each.kernel) for each in report.auxiliary for row in each.rows]
    inside = {_copy_of(member) for member in every if not _at_edges(member.row)}
    for member in every:
        if _is_bad(member.row) and not (_at_edges(member.row) and _copy_of(member) in inside):
            key, group = _group(report, member)
            groups.setdefault(key, (group, []))[1].append(member)
    listed = [_cause(group, members, report.predictor) for group, members in groups.values()]
    return tuple(sorted(listed, key=lambda cause: (not cause.fault, -(cause.seconds or 0.0))))


def _is_bad(row: AccessRow) -> bool:
    """Return whether an access has a finding."""
    return bool(row.counts.requests) and (
        not row.good or bool(row.notes) or bool(row.limit and row.bits < 128)
    )


def _at_edges(row: AccessRow) -> bool:
    """Return whether only edge tiles, or no tiles, make an access."""
    return row.at_edges or row.access.tail == "elements" or not row.counts.requests


def _copy_of(member: _Member) -> tuple[str, ...]:
    """Return what an edge access shares with the interior access that decides for it."""
    return member.launch, member.row.operand, member.row.space, member.row.direction


# -- accesses with a common cause -----------------------------------------------------------------


def _group(report: Any, member: _Member) -> tuple[Any, _Group]:
    """Return the cause of an access, and the key that all accesses of this cause share."""
    row, problem = member.row, report.problem
    own = {Option(*change) for fix in row.fixes for change in fix.change.items()}
    own |= {row.access.fix} if isinstance(row.access.fix, Option) else set()
    if row.good:  # but narrow: an option limits it
        own = {option for option in own if option.name == _limiting(row).name}
    if own:
        options = tuple(sorted(own))
        name = options[0].name
        now = Option(name, report.kernel if name == "kernel" else getattr(report.config, name, ""))
        return options, _Group(str(now), tuple(map(of_option, options)), option=now)
    for matrix in problem.matrices:
        words = misplaced(problem, matrix)
        if words and _is_of(report, member, matrix):
            return matrix.name, _of_place(report, matrix, words)
    of_c = (member.launch, row.operand, row.space) == ("", "C", "global")
    if of_c and _ends_short(row):
        words = rows_that_end_anywhere(problem.C)
        if words:
            return "rows of C", _Group(words, tuple(turned(problem)))
    if row.good and row.limit:
        return row.limit, _Group(row.limit.rstrip("."))
    other = tuple(turned(problem)) if (row.operand, row.space) == ("C", "global") else ()
    best = next(iter(row.fixes), None)
    if best is None:
        fix = str(row.access.fix)
        key = member.launch, row.operand, row.space, row.direction, fix
        return key, _Group(_clause(member), other, fix)
    ideal = best.figures.get("ideal_sectors", 0) == best.figures.get("sectors", 0)
    ideal = ideal and not best.figures.get("conflicts")
    what = f"{row.operand} has bank conflicts" if row.space == "shared" else _clause(member)
    if row.space == "global" and row.why:
        what += f": {row.why}"
    return (row.operand, row.space, best.what), _Group(what, other, best.what, ideal=ideal)


def _of_place(report: Any, matrix: Matrix, words: str) -> _Group:
    """Return the cause that a matrix is misplaced, described by ``words``."""
    problem = report.problem
    if not problem.groups_along_unit(matrix):
        remedies = (placed(problem, matrix, report.predictor.sizes),)
        if matrix.name != "C":
            return _Group(words, remedies)
        rows = rows_that_end_anywhere(matrix)
        return _Group(words, (*remedies, *turned(problem)), otherwise=rows)
    if matrix.name == "C":
        return _Group(words, tuple(turned(problem)))
    if matrix.name not in ("A", "B"):
        return _Group(words)
    packed = {name for each in report.auxiliary for name in each.packs}
    pack = "".join(sorted({matrix.name, *packed} & {"A", "B"}))
    return _Group(words, (of_option(Option("pack", pack)),))


def _limiting(row: AccessRow) -> Option:
    """Return the option that limits the width of an access; one without a name if none does."""
    limit = row.access.limit
    return limit.option if isinstance(limit, LimitOfOption) else Option("", "")


def _ends_short(row: AccessRow) -> bool:
    """Return whether the ends of rows make an access of C narrow or element by element."""
    limit = row.access.limit
    short = isinstance(limit, OfMatrix) and limit.what == "extent"
    return short or (not row.good and _fixed_by(row, "C"))


def _fixed_by(row: AccessRow, name: str) -> bool:
    """Return whether the kernel names another place of this matrix as the fix of an access."""
    return isinstance(row.access.fix, OfMatrix) and row.access.fix.matrix == name


def _is_of(report: Any, member: _Member, matrix: Matrix) -> bool:
    """Return whether the place of a matrix is the cause of an access."""
    row, access = member.row, member.row.access
    limit = access_bytes(matrix, False)[1]
    own = access.limit
    if isinstance(limit, OfMatrix) and isinstance(own, OfMatrix) and limit[:3] == own[:3]:
        return limit.what == "ld" or row.operand == matrix.name
    if row.operand != matrix.name:
        return False
    if row.space == "shared":  # rows that are shifted on their way
        return bool(limit) and row.instruction == "cp.async" and not row.fixes
    if member.launch:
        return not row.good
    lies = matrix if isinstance(access, SharedAccess) else access.matrix
    if (lies.ld, lies.alignment) != (matrix.ld, matrix.alignment):
        return False
    if row.verdict in ("off sector", MISALIGNED):
        return True
    words = access.words or _fixed_by(row, matrix.name)
    return words and not row.good and _widens(report, matrix)


def _widens(report: Any, matrix: Matrix) -> bool:
    """Return whether another place alone allows wider accesses to a matrix."""
    if report.problem.groups_along_unit(matrix):
        return True
    there = placed(report.problem, matrix, report.predictor.sizes).problem
    assert there is not None
    new = next(x for x in there.matrices if x.name == matrix.name)
    stores = matrix.name == "C"
    return access_bytes(new, stores)[0] > access_bytes(matrix, stores)[0]


# -- costs of causes, and predicted times of fixes ------------------------------------------------


def _cause(group: _Group, members: Sequence[_Member], predictor: Predictor) -> Cause:
    """Predict the cost of a cause and the time with its fix."""
    own = [Remedy(group.fix, {})] * bool(group.fix)
    fix, change, *_ = next(iter((*own, *group.remedies)), Remedy("", {}))
    what, worst = group.what, members[0]
    seconds = fixed = share = None
    if predictor.prediction is not None:
        predicted = predictor.prediction.seconds
        seconds, worst = _cost(members, predictor)
        helpful = list(_helpful(group.remedies, predictor, predicted))
        if helpful:
            best = predicted - min(time for time, _ in helpful)
            fixed, remedy = next(x for x in helpful if predicted - x[0] >= ENOUGH * best)
            fix, change = remedy.what, remedy.change
        else:
            fix, change = group.fix, {}
            fixed = predicted - seconds if group.ideal and seconds else None
        if group.otherwise and not any(remedy.moves for _, remedy in helpful):
            what = group.otherwise
        # A fix may do more than make these accesses ideal.
        seconds = seconds if fixed is None else max(seconds, predicted - fixed)
        share = seconds / predicted
    return Cause(
        _reason(group.option, members) or what, _clause(worst), tuple(_listed(members)),
        any(_faults(member.row) for member in members), seconds, share, fix,
        tuple(change.items()), fixed,
    )  # fmt: skip


def _helpful(
    remedies: Sequence[Remedy], predictor: Predictor, predicted: float
) -> Iterator[tuple[float, Remedy]]:
    """Return the remedies that reduce the predicted time, each with that time."""
    for remedy in remedies:
        change = remedy.change if remedy.problem is None else {"problem": remedy.problem}
        time = predictor.changed(**change)
        if time is not None and time < predicted:
            yield time, remedy


def _cost(members: Sequence[_Member], predictor: Predictor) -> tuple[float, _Member]:
    """Return the cost of accesses, and the costliest one."""
    now = predictor.ideal(frozenset(), frozenset())

    def lost(*members: _Member) -> float:
        kinds = frozenset(kind_of(x.row.access) for x in members if not x.launch)
        return now - predictor.ideal(kinds, frozenset(x.launch for x in members if x.launch))

    return max(0.0, lost(*members)), max(members, key=lost)


def _faults(row: AccessRow) -> bool:
    return row.verdict in (MISALIGNED, "illegal")


def _reason(option: Option | None, members: Sequence[_Member]) -> str:
    """Return why an option limits all operands that it limits; "" without a limit."""
    limits = {x.row.access.limit for x in members if _limiting(x.row) == option}
    listed = sorted(limit for limit in limits if isinstance(limit, LimitOfOption))
    of_each = " and ".join(limit.own for limit in listed)
    return f"{option} {listed[0].why}, and {of_each}" if listed else ""


def _clause(member: _Member) -> str:
    """Return the fault of an access: ``"B's ld.global is not coalesced"``."""
    row = member.row
    of_launch = f" of the {member.launch} launch" * bool(member.launch)
    access = f"{row.operand}'s {row.instruction}{of_launch}"
    if _faults(row):
        return f"{access} would fault"
    if row.space == "shared":
        return f"{access} has {row.verdict}s"
    return f"{access} is of {row.bits} bits" if row.good else f"{access} is not coalesced"


def _listed(members: Sequence[_Member]) -> Iterator[str]:
    """Yield each access once; accesses of one verdict share the figures of the first."""
    first: dict[tuple[str, str], AccessRow] = {}
    for row, launch in members:
        first.setdefault((f"{launch} {row.operand} {row.instruction}".lstrip(), row.space), row)
    listed: dict[str, list[str]] = {}
    for (name, space), row in first.items():
        words = row.verdict
        if space == "global" and row.good:
            words = f"{row.bits} bits"
        elif space == "global":
            words += f", {number(row.sectors)} sectors where {number(row.ideal_sectors)} would do"
        listed.setdefault(words, []).append(name)
    for words, names in listed.items():
        yield f"{', '.join(names)}: {words}"


# -- the headline ---------------------------------------------------------------------------------


def headline(report: Any) -> str:
    """Return a line: predicted time, bound, largest loss, and the predicted time with its fix."""
    bounds, prediction = report.performance, report.predicted
    roof, first = bounds.roofline, next((x for x in report.causes if not x.little), None)
    bound = f"its bound is {duration(roof.seconds)} ({roof.limit})" if roof else ""
    if prediction is None:
        where = f"on {bounds.gpu.name} {bound}" if bounds.gpu and roof else ""
        parts = ["time not predicted", where, first.because if first else ""]
        return "; ".join(filter(None, parts))
    parts = [f"{duration(prediction.seconds)} predicted on {report.predictor.gpu}", bound]
    times, above = "", prediction.seconds
    if roof is not None and roof.seconds:
        ratio, above = prediction.seconds / roof.seconds, prediction.seconds - roof.seconds
        times = f"{ratio:.0f} times" if ratio >= 9.95 else f"{ratio:.1f} times"
        times = times if ratio < FAR else f"more than {FAR:,} times"
    if first is None:
        (unit, seconds), *_ = prediction.largest(1)
        largest = f"most of it is {unit} ({duration(seconds)}), and no access costs 1 %"
        parts.append(f"{times} that: {largest}" if times else largest)
    elif first.fault:
        parts.append(first.because)
    else:
        whole = (first.seconds or 0.0) >= MOST * above
        part = "" if whole else f", {duration(first.seconds or 0.0)} of it"
        parts.append(f"{times} slower{part} because {first.because}".lstrip())
    fixed = first.fixed_seconds if first is not None else None
    if first is not None and fixed is not None and fixed < (1 - LITTLE) * prediction.seconds:
        parts.append(f"{first.fix} takes {duration(fixed)}")
    return "; ".join(filter(None, parts))


# -- the list -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Causes:
    """The causes as a numbered list; cheap ones without a known fix share one item."""

    causes: Sequence[Cause]

    def _divided(self) -> tuple[list[Cause], str]:
        """Return the causes with an item each, and a text on the rest."""
        others = [cause for cause in self.causes if cause.little and not cause.fix]
        own = [cause for cause in self.causes if cause not in others]
        if not others:
            return own, ""
        each = "less than 1 % each" if len(others) > 1 else "less than 1 %"
        accesses = (f" ({'; '.join(x.accesses)})" * (x.what != x.because) for x in others)
        listed = "; ".join(x.what + more for x, more in zip(others, accesses, strict=True))
        return own, f"{each}, no fix known: {listed}"

    def __rich_console__(self, *_: Any) -> Iterator[Any]:
        own, others = self._divided()
        yield styled(("Causes" if len(self.causes) != 1 else "Cause", "bold"))
        for number_, cause in enumerate(own, 1):
            cost = f": {cause.cost}" * bool(cause.cost)
            lines = [f"{number_}. {cause.what}{cost}", "; ".join(cause.accesses)]
            lines += [f"fix: {cause.remedy}"] * bool(cause.fix)
            for line, indent in zip(lines, (1, 4, 4), strict=False):
                yield Paragraph(line, indent, hang=3 if indent == 1 else 2)
        if others:
            yield Paragraph(f"-  {others}", 1, hang=3)

    def html(self) -> str:
        """Return an ordered list, or a sentence without causes."""
        own, others = self._divided()
        if not self.causes:
            return Findings(()).html()
        items = ""
        for cause in own:
            cost = f' <span class="cost">{markup(bound(cause.cost))}</span>' * bool(cause.cost)
            items += f"<li><p><b>{markup(cause.what)}</b>{cost}</p>\n"
            accesses = bound("; ".join(cause.accesses)).replace("-way", "\u2011way")
            items += f'<p class="accesses">{markup(accesses)}</p>\n'
            if cause.fix:
                takes = markup(bound(cause.remedy.removeprefix(cause.fix)))
                items += f"<p><b>Fix:</b> <code>{markup(cause.fix)}</code>{takes}</p>\n"
            items += "</li>\n"
        listed = f'<ol class="causes">\n{items}</ol>\n' if items else ""
        others = others[:1].upper() + others[1:]
        return listed + (f"<p>{markup(others)}.</p>\n" if others else "")
