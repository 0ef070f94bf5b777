"""Pictures of one warp's request: sectors of global memory, or banks of shared memory.

Every function returns an SVG element as text. Colour is never the only sign: bad cells are hatched,
and every cell has numbers.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from cute_gemm._text import counted
from cute_gemm.access import gmem, smem
from cute_gemm.rendering.pictures import svg

if TYPE_CHECKING:
    from collections.abc import Iterable

_SIDE_TEXT = f'font-family="{svg.MONO}" font-size="11"'
_HEAD = f'font-size="11" fill="{svg.GREY}"'


def spans(numbers: Iterable[int]) -> str:
    """Return ascending numbers as ranges: ``"0-3,8"``."""
    # Numbers that follow each other have the same distance from their places.
    grouped = groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])
    runs = ([number for _, number in pairs] for _, pairs in grouped)
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


# ---- global memory ------------------------------------------------------------------------------

_BYTE = 6.25  # pixels per byte: two digits fit two bytes
_LINE_RIGHT = 78
_ROW, _BAR = 21, 17


#: The part of a request within one 128-byte line: (first byte, one past the last) -> lanes.
_Pieces = dict[tuple[int, int], list[int]]


def _lines(starts: np.ndarray, lengths: np.ndarray) -> dict[int, _Pieces]:
    """Sort the bytes of the lanes by line."""
    lines: dict[int, _Pieces] = {}
    for lane, (start, length) in enumerate(zip(starts.tolist(), lengths.tolist(), strict=True)):
        if length <= 0 or start < 0:
            continue
        for at in range(start // gmem.LINE, (start + length - 1) // gmem.LINE + 1):
            begin = max(start - at * gmem.LINE, 0)
            end = min(start + length - at * gmem.LINE, gmem.LINE)
            lines.setdefault(at, {}).setdefault((begin, end), []).append(lane)
    return dict(sorted(lines.items()))


def _true_runs(mask: np.ndarray) -> list[tuple[int, int]]:
    """Return the runs [begin, end) of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(np.int8), [0]])))
    return [(int(a), int(b)) for a, b in edges.reshape(-1, 2)]


def _lane_labels(pieces: _Pieces, y: float) -> list[str]:
    """Return the labels of a line's lanes: inside a lane if they fit, else one per run of lanes."""
    out = []
    narrow: tuple[int, int, list[int]] = (0, -1, [])  # the run of lanes that this one may extend
    ordered = sorted(pieces.items())
    begins = [begin for (begin, _), _ in ordered[1:]]
    for ((begin, end), lanes), following in zip(ordered, [*begins, None], strict=True):
        names = [f"lane {lanes[0]}", str(lanes[0])]
        if len(lanes) > 1:
            names = [f"lanes {spans(lanes)}", spans(lanes), f"x{len(lanes)}"]
        fitting = [name for name in names if svg.cell_width(name) <= (end - begin) * _BYTE]
        if fitting:
            out.append(svg.text((begin + end) / 2 * _BYTE, y, fitting[0]))
            continue
        if narrow[1] == begin:
            begin, lanes = narrow[0], narrow[2] + lanes
        if following == end:
            narrow = begin, end, lanes
            continue
        narrow = (0, -1, [])
        label = spans(sorted(lanes))
        wide = svg.cell_width(label)
        if wide + 1 <= (end - begin) * _BYTE:
            out.append(svg.text((begin + end) / 2 * _BYTE, y, label))
        elif ((gmem.LINE if following is None else following) - end) * _BYTE >= wide + 6:
            x = end * _BYTE + 2
            out.append(svg.rect(x, y - 10, wide + 3, 13, 'fill="#ffffff"'))
            out.append(svg.text(x + wide / 2 + 1.5, y, label))
    return out


def request(
    starts: np.ndarray, lengths: np.ndarray, base: int = 0,
    title: str = "one request to global memory",
) -> str:  # fmt: skip
    """Draw the lines, sectors and bytes of one warp's request to global memory.

    ``starts``, int [32], are bytes from the start of the matrix; an inactive lane has -1, and 0 in
    ``lengths``. Only the residue modulo 128 of ``base``, the matrix's address, is drawn. Elements
    of class ``sector`` are touched sectors, of ``waste`` runs of their bytes that no lane uses, of
    ``lane`` vectors.
    """
    starts, lengths = np.asarray(starts, np.int64).ravel(), np.asarray(lengths, np.int64).ravel()
    active = (starts >= 0) & (lengths > 0)
    base %= gmem.LINE
    starts, lengths = np.where(active, starts + base, -1), np.where(active, lengths, 0)
    lines = _lines(starts, lengths)

    names = {at: f"{at * gmem.LINE - base:,}" for at in lines}
    left = max(84.0, max(map(svg.cell_width, names.values()), default=0) * 1.1 + 10)
    sectors: list[str] = []
    idle: list[str] = []
    lanes, waste, labels, sides, gaps = [], [], [], [], []
    hatched: list[svg.Box] = []
    sector = gmem.SECTOR * _BYTE
    right = left + 4 * sector
    top, before = 36, None
    place = np.arange(gmem.LINE)
    for row, (at, pieces) in enumerate(lines.items()):
        y = top + row * _ROW
        used = np.any([(place >= begin) & (place < end) for begin, end in pieces], axis=0)
        touched = used.reshape(-1, gmem.SECTOR).any(axis=-1)
        for n, is_touched in enumerate(touched.tolist()):
            where, kind = (sectors, 'class="sector"') if is_touched else (idle, "")
            where.append(svg.rect(left + n * sector, y, sector, _BAR, kind))
        for begin, end in _true_runs(np.repeat(touched, gmem.SECTOR) & ~used):
            box = (left + begin * _BYTE, y, (end - begin) * _BYTE, _BAR)
            waste.append(svg.rect(*box, 'class="waste"'))
            hatched.append(box)
        for (begin, end), who in sorted(pieces.items()):
            # Neighbours differ in shade, which separates narrow lanes.
            kind = f'class="lane" fill="{svg.TINTS[6 if who[0] % 2 else 0]}"'
            first = at * gmem.LINE - base + begin
            tip = f"lane {spans(who)}: {end - begin} bytes from {first:,} on"
            lanes.append(svg.rect(left + begin * _BYTE, y, (end - begin) * _BYTE, _BAR, kind, tip))
        labels += _lane_labels(pieces, y + 12.5)
        sides.append(svg.text(left - 8, y + 13, names[at], 'text-anchor="end"'))
        moved = gmem.SECTOR * int(touched.sum())
        sides.append(svg.text(right + 8, y + 13, f"{int(used.sum())} of {moved}"))
        if before is not None and at != before + 1:
            gaps.append(f"M0 {svg.number(y - 2)}h{svg.number(right + _LINE_RIGHT)}")
        before = at

    ticks = [f"M{svg.number(left + n * sector)} 30v5" for n in range(5)]
    body = [
        svg.text(left - 8, 11, "line begins", f'{_HEAD} text-anchor="end"'),
        svg.text(left - 8, 25, "at byte", f'{_HEAD} text-anchor="end"'),
        svg.text(right + 8, 11, "bytes used", _HEAD),
        svg.text(right + 8, 25, "of touched", _HEAD),
    ]
    marks = [(n + 0.5, 11, f"sector {n}") for n in range(4)]
    marks += [(n, 27, f"+{gmem.SECTOR * n}") for n in (1, 2, 3)]
    middle = 'text-anchor="middle"'
    heads = [svg.text(left + at * sector, y, word, middle) for at, y, word in marks]
    body += [
        svg.group(_HEAD, heads),
        svg.path(ticks, f'stroke="{svg.GREY}"'),
        svg.group('fill="#eeeeee" stroke="#aaaaaa" stroke-dasharray="3 2"', idle),
        svg.group('fill="#ffffff"', waste),
        svg.hatch(hatched),
        svg.group(f'stroke="{svg.INK}" stroke-width="0.6"', lanes),
        svg.group(f'fill="none" stroke="{svg.INK}" stroke-width="1.6"', sectors),
        svg.group(f'{svg.CELL_TEXT} transform="translate({svg.number(left)} 0)"', labels),
        svg.group(_SIDE_TEXT, sides),
        svg.path(gaps, f'stroke="{svg.GREY}" stroke-dasharray="1 4"'),
    ]
    legend = [
        svg.Item(svg.TINTS[0], "bytes that a lane uses, and its number", text="7"),
        svg.Item("#ffffff", "touched, not used", hatched=True),
        svg.Item("#eeeeee", "sector not touched", stroke="#aaaaaa", dashed=True),
    ]
    if gaps:
        legend.append(svg.Item("#ffffff", "dotted: bytes left out", stroke=svg.GREY, dashed=True))
    size = (right + _LINE_RIGHT, top + len(lines) * _ROW)
    return svg.document(title, _request_caption(starts, lengths, base), body, size, legend)


def _request_caption(starts: np.ndarray, lengths: np.ndarray, base: int) -> list[str]:
    active = lengths > 0
    if not active.any():
        return ["No lane takes part."]
    order = np.argsort(starts[active], kind="stable")
    run = (starts[active][order], lengths[active][order])
    sectors, lines, used = (int(gmem.covered(*run, of)) for of in (gmem.SECTOR, gmem.LINE, 1))
    ideal = -(-used // gmem.SECTOR)
    efficiency = used / (gmem.SECTOR * sectors)
    verdict = "coalesced" if sectors == ideal else "not coalesced"
    caption = (
        f"{int(active.sum())} of {active.size} lanes use {counted(used, 'byte')}: "
        f"{counted(sectors, 'sector')} of 32 bytes where {ideal} would do, in "
        f"{counted(lines, 'line')} of 128 bytes; efficiency {100 * efficiency:.1f} %; {verdict}."
    )
    return [caption + f" The matrix begins {base} bytes into a line." * bool(base)]


# ---- shared memory ------------------------------------------------------------------------------

_BANK, _BANK_LEFT, _BANK_ROW = 24, 146, 20


def _word_lanes(instruction: str, bits: int, offsets: np.ndarray) -> list[dict[int, list[int]]]:
    """Return the words that each phase of the model touches, each with its lanes."""
    words = smem.lane_words(instruction, bits, offsets)[0]
    phase_of = smem.lane_phases(instruction, bits, offsets)[0]
    count = smem.phase_words(instruction, bits, offsets).shape[1]
    phases: list[dict[int, list[int]]] = [{} for _ in range(count)]
    for lane, touched in enumerate(words.tolist()):
        for word in touched:
            if word >= 0:
                phases[phase_of[lane]].setdefault(word, []).append(lane)
    return phases


def banks(
    instruction: str, bits: int, offsets: np.ndarray, title: str = "one request to shared memory"
) -> str:
    """Draw one warp's request to shared memory: banks across, a row for each wavefront.

    ``instruction`` (``"ldmatrix.x4"``) and ``bits`` per lane determine which lanes are served
    together. ``offsets``, int [32], are bytes of each lane's vector (ldmatrix: row), -1 for an
    inactive lane. Elements of class ``conflict`` are words of a bank that serves several in a
    phase, of ``broadcast`` words that several lanes share, of ``word`` other words, of
    ``wavefront`` the numbers of the wavefronts.
    """
    offsets = np.asarray(offsets, np.int64).ravel()
    wavefronts, distinct = smem.phase_wavefronts(smem.phase_words(instruction, bits, offsets))
    cells: dict[str, list[str]] = {"word": [], "broadcast": [], "conflict": []}
    grid: list[str] = []
    labels, sides = [], []
    hatched: list[svg.Box] = []
    edges = range(_BANK_LEFT, _BANK_LEFT + smem.BANKS * _BANK + 1, _BANK)
    y = 34.0
    for phase, touched in enumerate(_word_lanes(instruction, bits, offsets)):
        rows = int(wavefronts[0, phase])
        who = sorted({lane for lanes in touched.values() for lane in lanes})
        named = f"lanes {spans(who)}" if len(spans(who)) < 7 else f"{len(who)} lanes"
        sides.append(svg.text(0, y + 14, f"phase {phase}: {named if who else 'no lane'}"))
        by_bank: dict[int, list[int]] = {}
        for word in sorted(touched):
            by_bank.setdefault(word % smem.BANKS, []).append(word)
        kind = f'class="wavefront" text-anchor="end" fill="{svg.GREY}"'
        for row in range(rows):
            sides.append(svg.text(_BANK_LEFT - 8, y + row * _BANK_ROW + 14, str(row), kind))
        if rows:
            lines = [svg.number(y + n * _BANK_ROW) for n in range(rows + 1)]
            grid += (f"M{x} {lines[0]}V{lines[-1]}" for x in edges)
            grid += (f"M{edges[0]} {line}H{edges[-1]}" for line in lines)
        for bank, words in by_bank.items():
            for row, word in enumerate(words):
                lanes, who_ = touched[word], spans(touched[word])
                x, top = edges[bank], y + row * _BANK_ROW
                kind = what = "broadcast" if len(lanes) > 1 else "word"
                if len(words) > 1:
                    kind, what = "conflict", "conflict" + " shared" * (len(lanes) > 1)
                    hatched += [(at, top, 6.0, float(_BANK_ROW)) for at in (x, x + _BANK - 6)]
                tip = f"bank {bank}, bytes {word * smem.WORD:,}-{word * smem.WORD + 3:,}: "
                tip += f"lane {who_}"
                cells[kind].append(svg.rect(x, top, _BANK, _BANK_ROW, f'class="{what}"', tip))
                short = who_ if svg.cell_width(who_) < _BANK - 3 else f"x{len(lanes)}"
                labels.append(svg.text(x + _BANK / 2, top + 14, short))
        y += max(rows, 1) * _BANK_ROW + 8

    heads = [svg.text(x + _BANK / 2, 28, str(bank)) for bank, x in enumerate(edges[:-1])]
    looks = {  # fill, stroke and its width
        "word": (svg.TINTS[0], svg.INK, 0.8), "broadcast": (svg.TINTS[3], svg.INK, 2),
        "conflict": (svg.BAD_TINT, svg.BAD, 1.2),
    }  # fmt: skip
    body = [
        svg.text((edges[0] + edges[-1]) / 2, 11, "bank", f'{_HEAD} text-anchor="middle"'),
        svg.text(_BANK_LEFT - 8, 28, "wavefront", f'{_HEAD} text-anchor="end"'),
        svg.group(f'{svg.CELL_TEXT} fill="{svg.GREY}"', heads),
        svg.path(grid, 'stroke="#cccccc"'),
        *(
            svg.group(f'fill="{fill}" stroke="{stroke}" stroke-width="{width}"', cells[kind])
            for kind, (fill, stroke, width) in looks.items()
        ),
        svg.hatch(hatched),
        svg.group(svg.CELL_TEXT, labels),
        svg.group('font-size="11"', sides),
    ]
    conflict = "conflict: the bank serves other words of the phase too"
    legend = [
        svg.Item(svg.TINTS[0], "a word (4 bytes), and the lane that uses it", text="7"),
        svg.Item(svg.TINTS[3], "word shared by n lanes", text="xn"),
        svg.Item(svg.BAD_TINT, conflict, svg.BAD, hatched=True),
    ]
    total, ideal = int(wavefronts.sum()), int((-(-distinct // smem.BANKS)).sum())
    used, more = int((offsets >= 0).sum()), total - ideal
    caption = (
        f"{instruction}, {bits} bits per lane, {used} of {offsets.size} lanes: "
        f"{counted(total, 'wavefront')} where {ideal} would do, {counted(more, 'bank conflict')}."
    )
    caption = caption if used else "No lane takes part."
    return svg.document(title, [caption], body, (edges[-1] + 1, y), legend)
