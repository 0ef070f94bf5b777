"""Results of a benchmark: frozen dataclasses, and their tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from cute_gemm._text import FORMAT, counted
from cute_gemm.cost_model.roofline import Roofline
from cute_gemm.errors import OptionError
from cute_gemm.rendering.shown import Shown
from cute_gemm.rendering.tables import Cell, Column, Findings, Table, styled

#: Characters per line of ``str(result)``.
WIDTH = 100
#: Ops side by side in one table.
_OPS_ABREAST = 4

Outcome = Literal["ok", "wrong", "refused", "failed"]


@dataclass(frozen=True, slots=True)
class Speed:
    """The speed of one kernel."""

    #: Median and quartiles over the rounds of the time of a call.
    milliseconds: float
    quartiles: tuple[float, float]
    #: Operations (2 m n k, or 8 m n k for complex types) over the median, in 10**9 per second.
    gflops: float
    #: Median over the rounds of cuBLAS's time over the kernel's; above 1 if the kernel is faster.
    #: For ``host``, which is timed separately, the ratio of the medians. None without cuBLAS.
    of_cublas: float | None
    #: ``gflops`` over the limit of the GPU's roofline; None if the roofline is not known.
    of_roofline: float | None
    #: Number of rounds in which the kernel was timed, and of calls in a batch.
    rounds: int
    calls: int


@dataclass(frozen=True, slots=True)
class Entry:
    """The result of one kernel, or of a user's function, for one op.

    ``outcome`` is ``"wrong"`` if elements are out of bound, ``"refused"`` if the kernel does not
    support the problem, and ``"failed"`` if it could not be built or a function raised an error.
    ``reason`` is the reason in one sentence. ``config`` is the name of the config. ``max_error`` is
    the largest difference from float64, None if nothing was compared. ``speed`` is None unless the
    outcome is ``"ok"``.
    """

    kernel: str
    op: str
    outcome: Outcome
    reason: str = ""
    config: str = ""
    max_error: float | None = None
    speed: Speed | None = None


@dataclass(frozen=True)
class SizeResult:
    """The entries of all kernels and ops for one size.

    ``copies`` is the number of copies of the matrices, which calls use in turn. ``roofline`` is the
    roofline of this GPU for the problem, None if it is not known.
    """

    m: int
    n: int
    k: int
    copies: int
    roofline: Roofline | None
    entries: tuple[Entry, ...]
    l: int = 1

    def find(self, kernel: str, op: str) -> Entry:
        """Return the entry of a kernel and an op; raise KeyError if it does not exist."""
        for entry in self.entries:
            if (entry.kernel, entry.op) == (kernel, op):
                return entry
        raise KeyError(f"no entry of kernel {kernel!r} and op {op!r} at this size")

    @property
    def kernels(self) -> tuple[str, ...]:
        """Names of the kernels, in the order of the table."""
        return tuple(dict.fromkeys(entry.kernel for entry in self.entries))

    @property
    def label(self) -> str:
        """The size as short text: ``"4096"`` or ``"1000x1003x1001"``."""
        cube = self.m == self.n == self.k
        size = str(self.m) if cube else f"{self.m}x{self.n}x{self.k}"
        return size if self.l == 1 else f"{self.l} x {size}"


@dataclass(frozen=True)
class BenchResult(Shown):
    """The result of `cute_gemm.measure.bench.bench`; ``print`` it, or use ``to_dict()``.

    ``gpu`` is the driver's name of the GPU, ``arch`` the architecture of the compiled kernels; both
    are None without a GPU. ``cublas`` is the version of cuBLAS, or the reason why it was not timed.
    ``checked``: whether results were compared with float64. ``rounds`` is the maximum number of
    rounds of a kernel. ``pad`` is the number of elements of padding after each column of A and B.
    """

    dtype: str
    compute: str
    order: str
    ops: tuple[str, ...]
    gpu: str | None
    arch: str | None
    cublas: str
    checked: bool
    rounds: int
    seed: int
    pad: int
    sizes: tuple[SizeResult, ...]

    width = WIDTH

    def __repr__(self) -> str:
        sizes = ", ".join(size.label for size in self.sizes)
        return (
            f"<BenchResult: {self.dtype} {' '.join(self.ops)}, {sizes}, on {self.gpu or 'the CPU'}>"
        )

    @property
    def ok(self) -> bool:
        """Whether no kernel was wrong or failed; a refused problem is not a failure."""
        return all(e.outcome in ("ok", "refused") for size in self.sizes for e in size.entries)

    def to_dict(self) -> dict[str, Any]:
        """Return everything in strings, numbers, lists and dicts, with stable keys."""
        values = asdict(self)
        for size, entry in zip(self.sizes, values["sizes"], strict=True):
            if size.roofline:
                entry["roofline"]["attainable_tflops"] = size.roofline.attainable_tflops
        sizes = values.pop("sizes")
        return {"format": FORMAT, **values, "ok": self.ok, "sizes": sizes}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> BenchResult:
        """Return the result whose ``to_dict()`` returned ``values``.

        Raise OptionError for other values, or for another version of the keys.

        Examples
        --------
        ``BenchResult.from_dict(json.loads(Path("run.json").read_text()))``
        """
        version = values.get("format") if isinstance(values, Mapping) else None
        if version != FORMAT:
            raise OptionError(
                f"the stored result has format {version!r}; expected {FORMAT}, as "
                "`cute-gemm bench --output FILE` writes it"
            )
        try:
            sizes = tuple(map(_size_of, values["sizes"]))
            result: BenchResult = _read(cls, values, ops=tuple(values["ops"]), sizes=sizes)
            return result
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            fault = "has no" if isinstance(error, KeyError) else "does not fit:"
            raise OptionError(
                f"the stored result {fault} {error}; expected what `cute-gemm bench --output FILE` "
                "writes"
            ) from error

    def _printed(self) -> Iterator[Any]:
        yield self._title()
        for size in self.sizes:
            yield from ("", styled((_size_line(size), "bold")))
            for start in range(0, len(self.ops), _OPS_ABREAST):
                yield self._table(size, self.ops[start : start + _OPS_ABREAST])
            yield _below(size, self.ops)
        yield from ("", self._method())

    def _title(self) -> str:
        where = f"{self.gpu} ({self.arch}), next to cuBLAS: {self.cublas}"
        where = where if self.gpu is not None else "the CPU"
        pad = f", leading dimensions of A and B + {self.pad}" if self.pad else ""
        major = "column-major" if self.order == "F" else "row-major"
        return f"gemm {self.dtype}, compute {self.compute}{pad}, C {major}, on {where}"

    def _method(self) -> str:
        text = f"GFLOP/s: median of up to {counted(self.rounds, 'round')}."
        if self.gpu is not None:
            text += " % of cuBLAS: median of the rounds' ratios; kernels took turns in each round."
        if self.checked:
            return f"{text} Results are within their bound of float64, except those marked WRONG."
        return f"{text} Results were not checked."

    def _table(self, size: SizeResult, ops: tuple[str, ...]) -> Table:
        # The columns depend on the machine, not on the kernels.
        compared = self.gpu is not None
        columns = [Column("\nkernel", left=True)]
        for op in ops:
            columns.append(Column(f"{op}\nGFLOP/s"))
            columns += [Column("% of\ncuBLAS", joined=True)] * compared
        columns += [Column("% of\nroofline")] * bool(size.roofline)
        rows = []
        for kernel in size.kernels:
            cells: list[str | Cell] = [kernel]
            shares = []
            for op in ops:
                entry = size.find(kernel, op)
                speed = entry.speed
                good = False if entry.outcome in ("wrong", "failed") else None
                cells.append(
                    Cell(_gflops(speed.gflops) if speed else _MARK[entry.outcome], "", good)
                )
                if compared:
                    cells.append(_percent(speed.of_cublas) if speed else "")
                if speed and speed.of_roofline is not None:
                    shares.append(_percent(speed.of_roofline))
            if size.roofline:
                ends = dict.fromkeys(sorted(shares, key=float)[:: max(1, len(shares) - 1)])
                cells.append("-".join(ends))
            rows.append(cells)
        return Table("", tuple(columns), rows)


def _read(kind: type, values: Mapping[str, Any], **own: Any) -> Any:
    """Return a dataclass with these values; other keys are ignored."""
    return kind(**{field.name: values[field.name] for field in fields(kind)} | own)


def _size_of(values: Mapping[str, Any]) -> SizeResult:
    roofline = values["roofline"] and _read(Roofline, values["roofline"])
    entries = []
    for entry in values["entries"]:
        of = entry["speed"]
        speed = of and _read(Speed, of, quartiles=tuple(of["quartiles"]))
        entries.append(_read(Entry, entry, speed=speed))
    size: SizeResult = _read(SizeResult, values, roofline=roofline, entries=tuple(entries))
    return size


#: Text instead of a speed.
_MARK: dict[str, str] = {"ok": "-", "refused": "-", "wrong": "WRONG", "failed": "FAILED"}


def _size_line(size: SizeResult) -> str:
    copies = f", {size.copies} copies of the matrices in turn, more than L2 holds"
    batch = f" L={size.l}" if size.l > 1 else ""
    return f"M={size.m} N={size.n} K={size.k}{batch}" + copies * (size.copies > 1)


def _below(size: SizeResult, ops: tuple[str, ...]) -> Findings:
    """Return the notes below a table: reasons of empty cells, and the roofline."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for entry in size.entries:
        if entry.reason:
            what = f"{_MARK[entry.outcome]}: " * (entry.outcome != "refused")
            reasons.setdefault((entry.kernel, f"{what}{entry.reason}"), []).append(entry.op)
    lines = []
    for (kernel, reason), of in reasons.items():
        only = of if len(of) != len(ops) else ()
        lines.append(f"{' '.join((kernel, *only))}: {reason}")
    if (roof := size.roofline) is not None:
        bound = "operations" if roof.bound == "compute" else "memory"
        lines.append(
            f"roofline: {1e3 * roof.attainable_tflops:,.0f} GFLOP/s, bound by {bound} "
            f"({roof.peak_tflops:g} TFLOP/s of the {roof.unit}, {roof.bandwidth_gbs:,.0f} GB/s, "
            f"both as NVIDIA states them)"
        )
    return Findings(lines)


def _gflops(value: float) -> str:
    """Return a speed with three digits or all before the point: ``0.123``, ``51,234``."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 1 else f"{value:.3f}"


def _percent(share: float | None) -> str:
    """Return a share in percent, with one digit, or two below 10 %."""
    if share is None:
        return "-"
    return f"{100 * share:.1f}" if share >= 0.0995 or share == 0 else f"{100 * share:.2f}"
