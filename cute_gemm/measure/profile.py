"""Predicted accesses of kernels, compared with the hardware counters of Nsight Compute.

The parent process makes the plans, predicts their counts and compiles them. Then Nsight Compute
(``ncu``) runs ``python -m cute_gemm.measure.profile CASES.json``, which launches the kernel of each
case exactly once. The counts of each class of accesses are compared with the predicted ones. They
should be equal.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cute_gemm._text import FORMAT, named
from cute_gemm.api import plan as make_plan
from cute_gemm.errors import GemmError, NoGpuError, OptionError, ToolError
from cute_gemm.measure.counters import CLASSES, Comparison, compare, parse, predicted
from cute_gemm.plan.plan import Plan
from cute_gemm.problem.parts.scales import SCALES
from cute_gemm.problem.scalars import Scalar, check_beta
from cute_gemm.rendering.shown import Shown, differing
from cute_gemm.rendering.tables import table

if TYPE_CHECKING:
    from cute_gemm.arrays.base import Order


#: Fields of a `Case` that `Case.plan` does not pass to `cute_gemm.plan` under their names.
_OTHERS = ("options", "beta", "base_offset", "ragged", "offsets")


class CounterPermissionError(GemmError, PermissionError):
    """The driver does not let this user read the hardware counters."""


@dataclass(frozen=True)
class Case:
    """One launch to count; its fields are parameters of `cute_gemm.plan`.

    ``arch`` is by default the architecture of GPU 0. ``options`` are fields of the kernel's config.
    If ``beta`` is not 0, C is read. ``epilogue`` is a name; its operands have the shapes that
    `cute_gemm.plan` gives them. ``scale_a`` and ``scale_b`` are recipes. ``base_offset`` is the
    distance in elements of each matrix from an allocation (aligned to 256 bytes): 0 or a power of
    two, since a unit depends on the alignment of addresses.

    For a grouped GEMM, ``offsets`` are the ends of the groups along the mode ``ragged``. The extent
    of that mode is the sum over all groups. A grouped GEMM has no batch and no ``base_offset``.
    """

    op: str
    m: int
    n: int
    k: int
    dtype: str
    lda: int | None = None
    ldb: int | None = None
    ldc: int | None = None
    storage: Order = "F"
    order: Order = "F"
    out_dtype: str | None = None
    compute: str | None = None
    kernel: str = "auto"
    arch: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    beta: int | float = 0
    base_offset: int = 0
    l: int = 1
    batch_a: int | None = None
    batch_b: int | None = None
    batch_c: int | None = None
    epilogue: str | None = None
    scale_a: str | None = None
    scale_b: str | None = None
    ragged: str = ""
    offsets: Sequence[int] = ()

    def plan(self) -> Plan:
        """Return the plan for matrices at these addresses.

        Raise OptionError for an offset that is not a power of two, or a problem without a launch.
        """
        words = named(self, *(x.name for x in fields(self) if x.name not in _OTHERS))
        if self.ragged:
            words |= {"ragged": self.ragged, "l": len(self.offsets)}
        else:
            words["base_offset"] = self.base_offset
        # Predictions do not need a device.
        plan = make_plan(**words, backend="cpu", **self.options)
        problem = plan.problem
        check_beta(Scalar(self.beta), problem.C, problem.epilogue.pairs)
        if not (problem.m and problem.n and problem.l):
            raise OptionError(
                f"m={problem.m}, n={problem.n}, l={problem.l}: no kernel is launched, so nothing "
                "can be counted; expected each to be 1 or more"
            )
        return plan

    def __str__(self) -> str:
        options = {
            **named(self, "lda", "ldb", "ldc"), "out": self.out_dtype, "compute": self.compute,
            **self.options, "beta": self.beta or None,
            "base": f"+{self.base_offset}" if self.base_offset else None,
            "l": self.l if self.l != 1 else None, **named(self, "batch_a", "batch_b", "batch_c"),
            **{n: v for n, v in named(self, "storage", "order").items() if v != "F"},
            **named(self, "epilogue", *SCALES), "ragged": self.ragged or None,
            "offsets": "+".join(map(str, self.offsets)) or None,
        }  # fmt: skip
        words = [f"{name}={value}" for name, value in options.items() if value is not None]
        size = f"{self.m}x{self.n}x{self.k}"
        return " ".join((self.kernel, self.op, size, self.dtype, *words))


def predict(case: Case) -> dict[str, int]:
    """Return the predicted counts of all accesses of a case's kernel."""
    from cute_gemm.rendering.rows import make_row

    arguments = case.beta != 0, case.offsets or None
    accesses = (access for step in case.plan().steps for access in step.accesses(*arguments))
    return predicted(map(make_row, accesses))


@dataclass(frozen=True)
class Profile(Shown):
    """Predicted and counted figures of one launch; ``print`` it, or use ``to_dict()``.

    ``symbol`` is the kernel's name in the cubin. ``figures`` has a `Comparison` for each of
    ``CLASSES`` that the device counts.
    """

    case: Case
    symbol: str
    figures: tuple[Comparison, ...]

    def __repr__(self) -> str:
        return f"<Profile: {self.case}: {len(self.differences)} figures differ>"

    @property
    def differences(self) -> tuple[Comparison, ...]:
        """The figures that differ; empty if the model is right."""
        return tuple(figure for figure in self.figures if figure.difference)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as strings, numbers, lists and dicts."""
        return {
            "format": FORMAT,
            "case": asdict(self.case),
            "symbol": self.symbol,
            "agrees": not self.differences,
            "figures": [asdict(figure) | named(figure, "difference") for figure in self.figures],
        }

    def _printed(self) -> Iterator[Any]:
        shown = [row for row in self.figures if row.predicted or row.counted]
        rows = []
        for row in shown:
            mark = "" if row.metric else "*"
            numbers = (f"{row.predicted:,}", f"{row.counted:,}{mark}", f"{row.difference:,}")
            rows.append((f"{row.access} {row.figure}", *numbers))
        figures = table("", ("", "predicted", "counted", "difference"), rows, "")
        yield from (str(self.case), self.symbol, "", figures)
        if any(not row.metric for row in shown):
            yield "* wavefronts counted less the fewest possible"
        yield from ("", differing(self.differences, len(shown)))


# ---- Nsight Compute -----------------------------------------------------------------------------


def ncu(path: str | None = None) -> str:
    """Return the path of ncu: the given one, or one on ``PATH`` or in a CUDA toolkit."""
    homes = (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda")
    # Sorted as text, 2025.3 comes after 2025.10; any version is sufficient.
    alone = sorted(map(str, Path("/opt/nvidia/nsight-compute").glob("*/ncu")), reverse=True)
    looked = ["ncu", *(f"{home}/bin/ncu" for home in homes if home), *alone]
    places = [path] if path else looked
    for place in places:
        if program := shutil.which(place):
            return program
    raise ToolError(
        f"Nsight Compute was not found at {', '.join(map(repr, places))}: it comes with the CUDA "
        "toolkit, or alone from https://developer.nvidia.com/nsight-compute; name it with --ncu "
        "PATH"
    )


def count(cases: Sequence[Case], path: str) -> list[dict[str, int]]:
    """Run the kernel of each case once under ``ncu``; return the counts of each case by metric.

    One process runs all kernels. Raise CounterPermissionError if the driver refuses its counters;
    the message describes how to get the permission. Raise ToolError if ``ncu``, or the program that
    it runs, fails.
    """
    from cute_gemm.arch import Arch

    plans = [case.plan() for case in cases]
    cc = min((Arch(plan.arch).cc for plan in plans), default=80)
    metrics = [entry.metric for entry in CLASSES if entry.metric and cc in entry.ccs]
    with tempfile.TemporaryDirectory() as directory:
        listed = Path(directory, "cases.json")
        listed.write_text(json.dumps([asdict(case) for case in cases]))
        done = subprocess.run(
            [path, "--clock-control", "none", "--csv", "--print-units", "base",
             "--metrics", ",".join(metrics), "--target-processes", "all",
             sys.executable, "-m", "cute_gemm.measure.profile", str(listed)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    output = f"{done.stdout}\n{done.stderr}"
    if "ERR_NVGPUCTRPERM" in output:
        raise CounterPermissionError(
            "the driver refuses its counters to this user (ERR_NVGPUCTRPERM): run as root, or let "
            "everybody read them with the module option NVreg_RestrictProfilingToAdminUsers=0 of "
            "nvidia.ko; a container also needs --cap-add=SYS_ADMIN; see "
            "https://developer.nvidia.com/ERR_NVGPUCTRPERM"
        )
    launches = parse(done.stdout)
    expected = [[step.unit.symbol for step in plan.steps] for plan in plans]
    if done.returncode or len(launches) != sum(map(len, expected)):
        lines = [line.strip() for line in output.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("==ERROR==")]
        # The program's own error is clearer than "The application returned an error code (1)".
        program = [line for line in done.stderr.splitlines() if line.strip()]
        last = (program[-1:] + errors) or lines[-1:]
        raise ToolError(
            f"ncu counted {len(launches)} of {sum(map(len, expected))} launches and returned "
            f"{done.returncode}: {'; '.join(last) or 'it printed nothing'}"
        )
    counted, rest = [], iter(launches)
    for case, symbols in zip(cases, expected, strict=True):
        sums: Counter[str] = Counter()
        for symbol, (name, counters) in zip(symbols, rest, strict=False):
            missing = [metric for metric in metrics if metric not in counters]
            if name != symbol or missing:
                lacks = f"; it has no number for {', '.join(missing)}" * bool(missing)
                what = f"a kernel {name} where {symbol} was expected ({case})"
                raise ToolError(f"ncu counted {what}{lacks}")
            sums.update(counters)
        counted.append(dict(sums))
    return counted


def profile(cases: Sequence[Case], path: str | None = None) -> list[Profile]:
    """Predict the counts of each case, run it under Nsight Compute, and compare.

    Kernels that are not in the cache are compiled first. ``path`` is the path of ``ncu``; by
    default the function `ncu` searches for it. Raise NoGpuError without a GPU, and the errors of
    `count`, `Case.plan` and a build.
    """
    tool = ncu(path)
    expected = [_prepared(case) for case in cases]
    return [
        Profile(case, case.plan().config.name, compare(*figures))
        for case, *figures in zip(cases, expected, count(cases, tool), strict=True)
    ]


def _prepared(case: Case) -> dict[str, int]:
    """Compile a case's kernel into the cache before ncu runs, and predict its counts."""
    from cute_gemm.run.driver import why_no_gpu

    reason = why_no_gpu()
    if reason is not None:
        raise NoGpuError(f"profile needs a GPU: {reason}")
    for step in case.plan().steps:
        step.build()
    return predict(case)


# ---- under ncu ----------------------------------------------------------------------------------


def launch(case: Case) -> None:
    """Run a case's kernel once, on random bytes, and wait for it."""
    import numpy as np

    from cute_gemm.run.driver import entered, synchronize
    from cute_gemm.run.launch import unload
    from cute_gemm.run.memory import upload

    plan, random = case.plan(), np.random.default_rng(0)
    problem = plan.problem
    with ExitStack() as stack:
        stack.enter_context(entered(0))
        addresses = []
        for matrix in problem.matrices:
            offset = case.base_offset * matrix.element.bytes * (matrix.name in "ABC")
            content = np.frombuffer(random.bytes(offset + matrix.span), np.uint8)
            if matrix.name == "offsets":
                content = np.array(case.offsets, np.int32).view(np.uint8)
            buffer = stack.enter_context(upload(content[None]))
            addresses.append(buffer.pointer + offset)
        plan.bind(beta=case.beta)(addresses)
        synchronize()
    unload()  # ncu saves the variables of every loaded module before each of its passes


def main(argv: Sequence[str]) -> int:
    """Launch the cases of a JSON file; ``ncu`` runs this program."""
    for values in json.loads(Path(argv[0]).read_text()):
        case = Case(**values)
        try:
            launch(case)
        except GemmError as error:
            print(f"{case}: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
