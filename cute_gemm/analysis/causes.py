"""Why a kernel takes the time that it does: each cause once, with its cost in time and its fix.

The cost of a cause is the predicted time less the predicted time with its accesses ideal: the price
model (`model/price.py`) is evaluated with counts of the same bytes in ideal requests, that is with

- in global memory the ideal sectors, no line touched in part, 16 bytes per lane, and without the
  waits and the additional work that narrow copies of the operand make,
- in shared memory the ideal wavefronts.

The time of a kernel's units overlaps, so that the costs of several causes do not add up. What a
packing or a reduction launch loses is the predicted time less that with the fix.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from cute_gemm._text import bound, duration, named, number, percent
from cute_gemm.analysis.rows import MISALIGNED, AccessRow
from cute_gemm.analysis.tables import Paragraph, markup
from cute_gemm.kernels.options import access_bytes
from cute_gemm.model.gmem import SECTOR
from cute_gemm.model.ideal import Kind, kind_of
from cute_gemm.model.price import Price

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

    from cute_gemm.analysis.passes import PassReport
    from cute_gemm.analysis.performance import Performance
    from cute_gemm.problem.matrix import Matrix
    from cute_gemm.problem.problem import GemmProblem

#: Part of the predicted time below which a cost is not told in figures.
LITTLE = 0.01
#: Part of the time above the bound from which on one cause explains it.
MOST = 0.5
#: Times of the bound beyond which it says nothing: that of a few bytes is less than any launch.
FAR = 1000
#: An option as it is pasted: ``copy="auto"``.
_OPTION = re.compile(r'(\w+)="(\w+)"')
#: A leading dimension or batch stride: ``ldc=1008``.
_NUMBER = re.compile(r"(\w+)=(\d+)")


class Pricing(NamedTuple):
    """How a report asks for predicted times, in seconds, on the GPU of this name.

    ``price``: that of the report's config, None where it has none; ``ideal(kinds)``: the time of
    the kernel with these accesses ideal; ``changed(**change)``: the time of the cheapest config
    with other options, or another ``kernel`` or ``problem``; None where there is none.
    """

    price: Price | None
    gpu: str
    ideal: Callable[[frozenset[Kind]], float]
    changed: Callable[..., float | None]


@dataclass(frozen=True)
class Cause:
    """One cause of time that is lost, and the accesses that it explains.

    Attributes
    ----------
    what
        The cause: ``"C's ldc of 1001 (2,002 bytes) is no multiple of 16 bytes"``.
    because
        Its costliest access, as a clause: ``"B's ld.global is not coalesced"``.
    accesses
        Every access that it explains: ``"B ld.global: strided, 12.5 % of the bytes used"``.
    fault
        Whether an access would fault.
    seconds, share
        What it costs, and as a part of the predicted time; None where that is not predicted.
    fix
        What to write, or to change; ``""`` where nothing is known.
    change
        The arguments of ``analyze`` that the fix changes; {} where it is no argument.
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
        """Return its attributes by their names."""
        names = "what", "because", "accesses", "fault", "seconds", "share", "fix", "change"
        values = named(self, *names, "fixed_seconds")
        return values | {"accesses": list(self.accesses), "change": dict(self.change)}

    @property
    def little(self) -> bool:
        """Whether it is known to cost little."""
        return self.share is not None and self.share < LITTLE and not self.fault

    @property
    def cost(self) -> str:
        """What it costs, in words: ``"9.10 ms, 94.0 % of the time"``; "" where that is unknown."""
        if self.fault:
            return "it would fault"
        if self.seconds is None or self.share is None:
            return ""
        if self.little:
            return "less than 1 %"
        return f"{duration(self.seconds)}, {percent(self.share)} of the time"

    @property
    def remedy(self) -> str:
        """The fix and what it takes; "" without one."""
        if not self.fix or self.fixed_seconds is None:
            return self.fix
        return f"{self.fix} ({duration(self.fixed_seconds)} predicted)"


class _Found(NamedTuple):
    """An access that is not as good as it could be, and the launch that makes it."""

    row: AccessRow
    launch: str  #: ``""`` for that of the kernel.


class _Group(NamedTuple):
    """What is known of a cause before it is priced."""

    what: str
    fix: str = ""
    #: The matrix that the fix places elsewhere.
    placed: Matrix | None = None
    #: Options that fix it, of which the cheapest is taken.
    options: tuple[str, ...] = ()
    ideal: bool = False  #: Whether the fix makes its accesses ideal.


def causes(
    problem: GemmProblem, kernel: str, config: Any, rows: Sequence[AccessRow],
    passes: Sequence[PassReport], pricing: Pricing | None,
) -> tuple[Cause, ...]:  # fmt: skip
    """Return the causes of time that is lost, the costliest first; faults before them."""
    groups: dict[Any, tuple[_Group, list[_Found]]] = {}
    for found in (
        *(_Found(row, "") for row in rows),
        *(_Found(row, of_pass.kernel) for of_pass in passes for row in of_pass.rows),
    ):
        if _is_bad(found.row):
            key, group = _group(problem, kernel, config, found)
            groups.setdefault(key, (group, []))[1].append(found)
    made = [_cause(problem, group, members, pricing) for group, members in groups.values()]
    return tuple(sorted(made, key=lambda cause: (not cause.fault, -(cause.seconds or 0.0))))


def _is_bad(row: AccessRow) -> bool:
    """Whether an access has a finding; what only edge tiles do has none."""
    if row.at_edges or not row.counts.requests or getattr(row.access, "tail", "") == "elements":
        return False
    return not row.good or bool(row.notes) or bool(row.limit and row.bits < 128)


# -- which accesses have one cause ----------------------------------------------------------------


def _group(problem: GemmProblem, kernel: str, config: Any, found: _Found) -> tuple[Any, _Group]:
    """The cause of an access, and the key that accesses of the same cause share."""
    row = found.row
    changes = (f'{name}="{value}"' for fix in row.fixes for name, value in fix.change.items())
    own = tuple(text for text in (*changes, row.access.fix) if _OPTION.fullmatch(text))
    if own and not row.good:
        own = tuple(sorted(set(own)))
        option = own[0].partition("=")[0]
        now = kernel if option == "kernel" else getattr(config, option, "")
        return own, _Group(f'{option}="{now}"', options=own)
    for matrix in problem.matrices:
        words = _misplaced(problem, matrix)
        if words and _is_of(found, matrix):
            if not problem.groups_along_unit(matrix):
                placed, fix = _placed(problem, matrix)
                return matrix.name, _Group(words, fix, placed)
            if matrix.name == "C":
                return matrix.name, _Group(words, *_turned(problem))
            options = (f'pack="{matrix.name}"',) * (matrix.name in ("A", "B"))
            return matrix.name, _Group(words, options=options)
    if row.good and row.limit:
        return row.limit, _Group(row.limit.rstrip("."))
    best = next(iter(row.fixes), None)
    if best is None:
        key = found.launch, row.operand, row.space, row.direction, row.access.fix
        return key, _Group(_clause(found), row.access.fix)
    ideal = best.figures.get("ideal_sectors", 0) == best.figures.get("sectors", 0)
    ideal = ideal and not best.figures.get("conflicts")
    what = f"{row.operand} has bank conflicts" if row.space == "shared" else _clause(found)
    if row.space == "global" and row.why:
        what += f": {row.why}"
    return (row.operand, row.space, best.what), _Group(what, best.what, ideal=ideal)


def _is_of(found: _Found, matrix: Matrix) -> bool:
    """Whether where a matrix lies is the cause of an access."""
    row, access = found.row, found.row.access
    limits = [text for stores in (True, False) if (text := access_bytes(matrix, stores)[1])]
    if any(limit in row.limit for limit in limits):
        return f"ld{matrix.name.lower()}=" in row.limit or row.operand == matrix.name
    if row.operand != matrix.name:
        return False
    if row.space == "shared":  # rows that are put in place on their way
        return bool(limits) and row.instruction == "cp.async" and not row.fixes
    if found.launch:
        return not row.good
    lies = getattr(access, "matrix", matrix)
    here = (lies.ld, lies.alignment) == (matrix.ld, matrix.alignment)
    words = getattr(access, "words", False) or f"{matrix.name}'s" in access.fix
    return here and (row.verdict in ("off sector", MISALIGNED) or (words and not row.good))


def _misplaced(problem: GemmProblem, matrix: Matrix) -> str:
    """What is wrong with the leading dimension and the base address of a matrix; "" if nothing.

    Groups along the unit-stride mode begin anywhere; those along the other one where a row begins.
    """
    if matrix.alignment < SECTOR and problem.groups_along_unit(matrix):
        return (
            f"{matrix.name}'s groups begin at any element, since {problem.ragged} is ragged and "
            "its unit-stride mode"
        )
    pitch = matrix.ld * matrix.element.bytes
    words = []
    if matrix.shape[1 - matrix.unit] > 1 and pitch % SECTOR:
        of = 16 if pitch % 16 else SECTOR
        words.append(
            f"ld{matrix.name.lower()} of {matrix.ld} ({pitch:,} bytes) is no multiple of {of} bytes"
        )
    if matrix.alignment < SECTOR <= matrix.first_alignment:
        if not _in_groups(problem, matrix):
            words.append(f"batch stride of {matrix.batch_stride} is no multiple of {SECTOR} bytes")
    elif matrix.alignment < SECTOR:
        words.append(f"base address is aligned to {matrix.alignment} bytes only")
    return f"{matrix.name}'s {' and its '.join(words)}" if words else ""


def _in_groups(problem: GemmProblem, matrix: Matrix) -> bool:
    """Whether groups lie one behind the other in a matrix, which has no batch stride then."""
    return bool(problem.ragged) and problem.ragged in matrix.modes


def _turned(problem: GemmProblem) -> tuple[str, Matrix]:
    """What to write for a C of the other order, and that C."""
    C, order = problem.C, "FC"[problem.C.unit == 0]
    strides = (1, max(problem.m, 1)) if order == "F" else (max(problem.columns, 1), 1)
    first = max(C.alignment, C.first_alignment)
    placed = replace(C, stride=strides, alignment=first, first_alignment=0)
    return f'order="{order}"', placed.of_groups(problem.ragged)


def _placed(problem: GemmProblem, matrix: Matrix) -> tuple[Matrix, str]:
    """The matrix with rows that begin with a sector, and what to write for that."""
    step, words, stride = max(1, SECTOR // matrix.element.bytes), [], list(matrix.stride)
    ld = -(-matrix.ld // step) * step
    if ld != matrix.ld and matrix.shape[1 - matrix.unit] > 1:
        stride[1 - matrix.unit] = ld
        words.append(f"ld{matrix.name.lower()}={ld}")
    batch = matrix.batch_stride
    if matrix.alignment < SECTOR <= matrix.first_alignment:
        if not _in_groups(problem, matrix):
            batch = -(-max(batch, ld * matrix.shape[1 - matrix.unit]) // step) * step
            words.append(f"batch_{matrix.name.lower()}={batch}")
    elif matrix.alignment < SECTOR:
        words.append(f"{matrix.name}'s base address aligned to {SECTOR} bytes")
    placed = replace(
        matrix, stride=(stride[0], stride[1]), alignment=max(matrix.alignment, SECTOR),
        first_alignment=0, batch_stride=batch,
    )  # fmt: skip
    return placed, " and ".join(words)


# -- what a cause costs, and what its fix takes ---------------------------------------------------


def _cause(
    problem: GemmProblem, group: _Group, members: Sequence[_Found], pricing: Pricing | None
) -> Cause:
    """Price a cause and its fix."""
    fix, worst = group.fix or next(iter(group.options), ""), members[0]
    seconds = fixed = share = None
    if pricing is not None and pricing.price is not None:
        predicted = pricing.price.seconds
        seconds, worst = _cost(members, pricing)
        if group.placed is not None:
            placed = replace(problem, **_field(problem, group.placed))
            fixed = pricing.changed(problem=placed)
            if fixed is not None:
                seconds = max(seconds or 0.0, predicted - fixed)
        elif group.options:
            times = ((pricing.changed(**_argument(option)), option) for option in group.options)
            known = [(time, option) for time, option in times if time is not None]
            fixed, fix = min(known, default=(None, fix))
        elif group.ideal:
            fixed = predicted - (seconds or 0.0)
        if fixed is not None and fixed >= predicted:  # it would not help
            fix, fixed = "", None
        share = None if seconds is None else seconds / predicted
    change = _argument(fix) if fix and group.options else {}
    if group.placed is not None and group.placed.name in "ABC":
        change = {name: int(value) for name, value in _NUMBER.findall(fix)}
        change |= dict(_OPTION.findall(fix))
    return Cause(
        _reason(group.what, members), _clause(worst), tuple(_listed(members)),
        any(_faults(found.row) for found in members), seconds, share, fix,
        tuple(change.items()), fixed,
    )  # fmt: skip


def _cost(members: Sequence[_Found], pricing: Pricing) -> tuple[float | None, _Found]:
    """What accesses cost, None where none is the kernel's own, and the one that costs most."""
    kinds = {at: kind_of(x.row.access) for at, x in enumerate(members) if not x.launch}
    if not kinds:
        return None, members[0]
    now = pricing.ideal(frozenset())
    lost = {at: now - pricing.ideal(frozenset([kind])) for at, kind in kinds.items()}
    worst = members[max(lost, key=lost.__getitem__)]
    return max(0.0, now - pricing.ideal(frozenset(kinds.values()))), worst


def _argument(option: str) -> dict[str, Any]:
    """``{"copy": "auto"}`` of ``copy="auto"``."""
    name, _, value = option.partition("=")
    return {name: value.strip('"')}


def _field(problem: GemmProblem, matrix: Matrix) -> dict[str, Any]:
    """The field of a problem that a matrix is."""
    if matrix.name in "ABC":
        return {matrix.name: matrix}
    operands = (matrix if x.name == matrix.name else x for x in problem.operands)
    return {"operands": tuple(operands)}


def _faults(row: AccessRow) -> bool:
    return row.verdict in (MISALIGNED, "illegal")


def _reason(what: str, members: Sequence[_Found]) -> str:
    """The cause: of an option what the kernel says of it, of all operands that it says it of."""
    name, _, value = what.partition("=")
    start = f"{name}={value.strip(chr(34))!r} "
    said = sorted({x.row.limit for x in members if value and x.row.limit.startswith(start)})
    if not said:
        return what
    common, comma, _ = said[0].partition(", and ")
    of_each = " and ".join(limit.rpartition(", and ")[2] for limit in said)
    return f"{what} {common.removeprefix(start)}{comma}{of_each if comma else ''}"


def _clause(found: _Found) -> str:
    """What is wrong with an access: ``"B's ld.global is not coalesced"``."""
    row = found.row
    of_launch = f" of the {found.launch} launch" * bool(found.launch)
    access = f"{row.operand}'s {row.instruction}{of_launch}"
    if _faults(row):
        return f"{access} would fault"
    if row.space == "shared":
        return f"{access} has {row.verdict}s"
    return f"{access} is of {row.bits} bits" if row.good else f"{access} is not coalesced"


def _listed(members: Sequence[_Found]) -> Iterator[str]:
    """The accesses, each once, those of one verdict together with the figures of the first."""
    listed: dict[str, tuple[str, list[str]]] = {}
    seen = set()
    for found in members:
        row, name = found.row, f"{found.launch} {found.row.operand} {found.row.instruction}"
        if (name, row.space) in seen:
            continue
        seen.add((name, row.space))
        words = row.verdict
        if row.space == "global" and row.good:
            words = f"{row.bits} bits"
        elif row.space == "global":
            words += f", {number(row.sectors)} sectors where {number(row.ideal_sectors)} would do"
        listed.setdefault(words, (words, []))[1].append(name.lstrip())
    for words, names in listed.values():
        yield f"{', '.join(names)}: {words}"


# -- the first line -------------------------------------------------------------------------------


def headline(bounds: Performance, found: Sequence[Cause], pricing: Pricing | None) -> str:
    """Say in a line what a kernel takes, its bound, what it loses most by, and what a fix takes."""
    roof, price = bounds.roofline, pricing.price if pricing else None
    first = next((cause for cause in found if not cause.little), None)
    bound = ""
    if roof is not None:
        limit = roof.unit if roof.bound == "compute" else "memory"
        bound = f"bound is {duration(roof.seconds)} ({limit})"
    if price is None or pricing is None:
        where = f"on {bounds.gpu.name} its {bound}" if bounds.gpu and roof else ""
        said = "time not predicted", where, first.because if first else ""
        return "; ".join(filter(None, said))
    parts = [f"{duration(price.seconds)} predicted on {pricing.gpu}", f"its {bound}" * bool(bound)]
    times, above = "", price.seconds
    if roof is not None and roof.seconds:
        ratio, above = price.seconds / roof.seconds, price.seconds - roof.seconds
        times = f"{ratio:.0f} times" if ratio >= 9.95 else f"{ratio:.1f} times"
        times = times if ratio < FAR else f"more than {FAR:,} times"
    if first is None:
        (unit, seconds), *_ = price.largest(1)
        largest = f"most of it is {unit} ({duration(seconds)}), and no access costs 1 %"
        parts.append(f"{times} that: {largest}" if times else largest)
    elif first.fault:
        parts.append(first.because)
    else:
        whole = (first.seconds or 0.0) >= MOST * above or first.seconds is None
        part = "" if whole else f", {duration(first.seconds or 0.0)} of it"
        parts.append(f"{times} slower{part} because {first.because}".lstrip())
    fixed = first.fixed_seconds if first is not None else None
    if first is not None and fixed is not None and fixed < (1 - LITTLE) * price.seconds:
        parts.append(f"{first.fix} takes {duration(fixed)}")
    return "; ".join(filter(None, parts))


# -- all of them ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Causes:
    """The causes as a numbered list; those of little cost that nothing is known for in one item."""

    causes: Sequence[Cause]

    def _divided(self) -> tuple[list[Cause], str]:
        """Those with an item of their own, and what is said of the others."""
        others = [cause for cause in self.causes if cause.little and not cause.fix]
        own = [cause for cause in self.causes if cause not in others]
        if not others:
            return own, ""
        each = "less than 1 % each" if len(others) > 1 else "less than 1 %"
        accesses = (f" ({'; '.join(x.accesses)})" * (x.what != x.because) for x in others)
        listed = "; ".join(x.what + more for x, more in zip(others, accesses, strict=True))
        return own, f"{each}, no fix known: {listed}"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        own, others = self._divided()
        yield Text("Causes" if len(self.causes) != 1 else "Cause", "bold")
        for number_, cause in enumerate(own, 1):
            cost = f": {cause.cost}" * bool(cause.cost)
            lines = [f"{number_}. {cause.what}{cost}", "; ".join(cause.accesses)]
            lines += [f"fix: {cause.remedy}"] * bool(cause.fix)
            for line, indent in zip(lines, (1, 4, 4), strict=False):
                shown = Paragraph(line, indent, hang=3 if indent == 1 else 2)
                yield from shown.__rich_console__(console, options)
        if others:
            yield from Paragraph(f"-  {others}", 1, hang=3).__rich_console__(console, options)

    def html(self) -> str:
        """Return an ordered list, or a sentence where there is no cause."""
        own, others = self._divided()
        if not self.causes:
            return "<p>No finding: every access is as good as it can be.</p>\n"
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
