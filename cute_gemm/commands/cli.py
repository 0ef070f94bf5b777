"""The ``cute-gemm`` command; ``cute-gemm --help`` lists what it does."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from cute_gemm.commands.arguments import (
    join_negative_values,
    kernel_options,
    parsers,
    split_kernel_options,
)
from cute_gemm.errors import GemmError, OptionError
from cute_gemm.problem.dtypes import DTYPES

if TYPE_CHECKING:
    from cute_gemm.analysis.copy.report import CopyReport
    from cute_gemm.analysis.report import Report
    from cute_gemm.analysis.rows import AccessRow
    from cute_gemm.api import Plan
    from cute_gemm.problem.problem import Matrix

#: Exit statuses.
OK, WRONG, BAD_INPUT = 0, 1, 2

_MODES = {"A": "A(M,K)", "B": "B(N,K)", "C": "C(M,N)"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status.

    Parameters
    ----------
    argv
        Words after ``cute-gemm``; those of the process by default.

    Returns
    -------
    int
        0; 1 when a result is wrong, ``profile`` counted something else than the report says, or
        ``doctor`` found something missing; 2 for bad input and for every other `GemmError`, which
        is one line on standard error.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    parser, commands = parsers()
    if words and words[0] in _MODULES:
        _module(words[0]).add_arguments(commands[words[0]])
    words, kernel_words = split_kernel_options(words, commands)
    arguments = parser.parse_args(join_negative_values(words))
    try:
        arguments.options = kernel_options(kernel_words)
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            if arguments.command in _MODULES:
                status: int = _module(arguments.command).command(arguments)
                return status
            return _COMMANDS[arguments.command](arguments)
    except GemmError as error:
        if arguments.json in (True, "-"):  # --json of bench may name a file
            failure = {"type": type(error).__name__, "message": str(error)}
            log = getattr(error, "log", "")
            print(json.dumps({"error": failure | ({"log": log} if log else {})}, indent=2))
        print(f"cute-gemm: {_one_line(error)}", file=sys.stderr)
        return BAD_INPUT
    except BrokenPipeError:  # `cute-gemm emit ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except (MemoryError, OSError) as error:  # matrices of a terabyte, --output without permission
        print(f"cute-gemm: {_one_line(error)}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        return 130


# -- the commands -----------------------------------------------------------------------------


def _run(arguments: argparse.Namespace) -> int:
    from cute_gemm.api import plan as make_plan
    from cute_gemm.problem.scalars import scalar

    say = _Printer(quiet=arguments.json)
    # What is refused should be before a large matrix is made and a kernel compiled.
    sized = _plan(arguments).problem
    for name in ("alpha", "beta"):
        scalar(getattr(arguments, name), name, sized.A.dtype, None)
    A, B, C = _matrices(arguments)
    plan = make_plan(
        arguments.op, A, B, C, compute=arguments.compute, kernel=arguments.kernel,
        backend=arguments.backend, arch=arguments.arch, **arguments.options,
    )  # fmt: skip
    problem = plan.problem
    result: dict[str, Any] = {
        "op": problem.op, "blas_op": problem.blas_op, "m": problem.m, "n": problem.n,
        "k": problem.k, "dtype": problem.A.dtype, "out_dtype": problem.C.dtype,
        "compute": problem.compute, "alpha": arguments.alpha, "beta": arguments.beta,
    }  # fmt: skip

    say(
        f"op {problem.op}, BLAS-equivalent {problem.blas_op}: C({problem.m},{problem.n}) <- "
        f"{_scaled_product(problem.op, arguments.alpha, arguments.beta)}, "
        f"{problem.A.dtype} -> {problem.C.dtype}, compute {problem.compute}"
    )
    say()
    for line in _descriptors((problem.A, problem.B, problem.C)):
        say(f"  {line}")
    say()
    say(f"kernel   {plan.kernel} for {plan.arch}:\n         {plan.why}")

    if plan.compiled:
        _show_kernel(arguments, plan, say, result)

    before = C.copy(order="K") if arguments.beta != 0 else None
    plan(A, B, C, alpha=arguments.alpha, beta=arguments.beta)
    say(f"run      on the {_where(plan)}")
    result["backend"] = plan.backend

    status = OK
    if not arguments.no_check:
        status = _check(arguments, plan, A, B, C, before, say, result)
    if plan.backend == "cuda" and plan.compiled and status == OK and problem.flops:
        from cute_gemm.measure.bench import compare

        timing = compare(plan, A, B, C, alpha=arguments.alpha, beta=arguments.beta)
        result["timing"] = timing.to_dict()
        say(f"speed    {timing}")
    if arguments.json:
        _print_json(result)
    return status


def _show_kernel(
    arguments: argparse.Namespace, plan: Plan, say: _Printer, result: dict[str, Any]
) -> None:
    """Say how the kernel accesses memory and what its build is like."""
    report = plan.report(beta=arguments.beta)
    say()
    for line in _access_table([row for row in report.rows if row.space == "global"]):
        say(f"  {line}")
    for finding in report.findings:
        say(f"  - {finding}")
    say()

    say(f"compile  {plan.symbol}\n         ... ", end="")
    build = plan.build
    used = build.resources
    spilled = used.spill_stores + used.spill_loads
    say(
        f"{'cached, ' if build.cached else ''}{_seconds(build.seconds)}: "
        f"{used.registers} registers, "
        f"{plan.launch.smem + used.shared_static} bytes of shared memory, "
        + (f"{spilled} bytes spilled" if spilled else "no spills")
    )
    result |= {"report": report.to_dict(), "build": _build_dict(plan)}


def _check(
    arguments: argparse.Namespace, plan: Plan, A: Any, B: Any, C: Any, before: Any,
    say: _Printer, result: dict[str, Any],
) -> int:  # fmt: skip
    """Compare C with float64, say so, and return the exit status."""
    from cute_gemm.problem.verify import verify

    verdict = verify(plan.problem, A, B, C, C=before, alpha=arguments.alpha, beta=arguments.beta)
    result["check"] = {
        "ok": verdict.ok, "elements": verdict.elements, "wrong": verdict.wrong,
        "max_error": verdict.max_error, "max_error_over_bound": _finite(verdict.max_ratio),
        "worst": verdict.worst, "bound": verdict.bound,
    }  # fmt: skip
    say(f"check    {verdict.elements} elements against float64, bound {verdict.bound}:")
    say("         ", end="")
    if verdict.ok:
        say(
            f"all within; largest error {verdict.max_error:.3g}; "
            f"at most {verdict.max_ratio:.2g} of an element's bound"
        )
        return OK
    say(f"{verdict.wrong} WRONG; largest error {verdict.max_error:.3g}, worst at {verdict.worst}")
    print(
        f"cute-gemm: wrong result: {verdict.wrong} of {verdict.elements} elements are out of "
        f"bound, worst at {verdict.worst}",
        file=sys.stderr,
    )
    return WRONG


def _analyze(arguments: argparse.Namespace) -> int:
    from cute_gemm.gpus.table import arch_for

    _check_html(arguments)
    plan = _plan(arguments, arch=arch_for(arguments.arch, arguments.gpu))
    if arguments.build:
        _ = plan.build
    return _show(arguments, plan.report(gpu=arguments.gpu, beta=arguments.beta))


def _copy(arguments: argparse.Namespace) -> int:
    from cute_gemm.analysis.copy.report import analyze_copy

    _check_html(arguments)
    names = ("tensor", "threads", "values", "atom", "dtype", "space", "direction", "tile", "tv")
    question = {name: getattr(arguments, name) for name in (*names, "smem", "base_alignment")}
    return _show(arguments, analyze_copy(**question))


def _check_html(arguments: argparse.Namespace) -> None:
    if arguments.html == "-" and arguments.json:
        raise OptionError("--html - and --json both print to stdout; expected --html FILE")


def _show(arguments: argparse.Namespace, report: Report | CopyReport) -> int:
    """Print a report in the form that was asked for."""
    if arguments.html == "-":
        print(report.to_html(), end="")
        return OK
    if arguments.html:
        Path(arguments.html).write_text(report.to_html(), encoding="utf-8")
    if arguments.json:
        print(report.to_json())
    elif sys.stdout.isatty():
        from rich.console import Console

        Console().print(report)
    else:
        print(report)
    return OK


#: Commands with a module of their own.
_COMMAND_MODULES = {
    "bench": "measure.bench",
    "explain": "analysis.explain",
    "profile": "measure.profile",
}


def _module(name: str) -> Any:
    """Return the module of a command, imported when it is asked for."""
    return importlib.import_module(f"cute_gemm.{_COMMAND_MODULES[name]}")


def _emit(arguments: argparse.Namespace) -> int:
    plan = _plan(arguments)
    kind = "ptx" if arguments.ptx else "sass" if arguments.sass else "source"
    text: str = getattr(plan, kind)
    if arguments.output:
        arguments.output.write_text(text, encoding="utf-8")
    if arguments.json:
        _print_json({"kernel": plan.kernel, "arch": plan.arch, "symbol": plan.symbol, kind: text})
    elif not arguments.output:
        print(text, end="" if text.endswith("\n") else "\n")
    return OK


def _compile(arguments: argparse.Namespace) -> int:
    archs = arguments.arch.split(",") if arguments.arch else [None]
    if arguments.output and len(archs) * len(arguments.ops) > 1:
        raise OptionError(
            f"--output takes one cubin, and {len(arguments.ops)} ops for {len(archs)} "
            "architectures make more; leave it out, the cache keeps them all"
        )
    say = _Printer(quiet=arguments.json)
    built = []
    for op in arguments.ops:
        for arch in archs:
            plan = _plan(arguments, op=op, arch=arch)
            say(f"{plan.symbol}  {plan.arch}\n  ... ", end="")
            build = plan.build
            used = build.resources
            say(
                f"{'cached, ' if build.cached else ''}{_seconds(build.seconds)}, "
                f"{len(build.cubin)} bytes, {used.registers} registers"
            )
            built.append(_build_dict(plan))
            if arguments.output:
                arguments.output.write_bytes(build.cubin)
    if arguments.json:
        _print_json(built)
    return OK


def _kernels(arguments: argparse.Namespace) -> int:
    from cute_gemm.api import kernels

    found = kernels()
    if arguments.json:
        _print_json([asdict(info) for info in found])
        return OK
    for info in found:
        print(f"{info.name}: {info.summary}")
        if info.runs_on == "cpu":
            print("  on the CPU")
        else:
            print(f"  from compute capability {info.minimum_cc // 10}.{info.minimum_cc % 10}")
        print(f"  dtypes   {', '.join(info.dtypes)}")
        options = getattr(info, "options", ())
        if options:
            print(f"  options  {' '.join(f'--{_option_name(name)}' for name in options)}")
    return OK


def _doctor(arguments: argparse.Namespace) -> int:
    from cute_gemm.commands.doctor import checks

    found = checks()
    if arguments.json:
        _print_json([{"name": c.name, "ok": c.ok, "found": c.found, "mend": c.mend} for c in found])
    else:
        width = max(len(check.name) for check in found)
        for check in found:
            mark = {True: "ok", False: "MISSING", None: "-"}[check.ok]
            print(f"{mark:<8} {check.name:<{width}}  {check.found}")
            if not check.ok and check.mend:
                print(f"{'':<8} {'':<{width}}  -> {check.mend}")
    return WRONG if any(check.ok is False for check in found) else OK


def _cache(arguments: argparse.Namespace) -> int:
    from cute_gemm.toolchain import cache

    directory = str(cache.directory())
    size = cache.size()
    if arguments.action == "clear":
        count = cache.clear()
        if arguments.json:
            _print_json({"directory": directory, "removed": count, "bytes": size})
        else:
            print(f"{count} cubins, {size} bytes removed from {directory}")
        return OK
    entries = cache.entries()
    result: dict[str, Any] = {"directory": directory, "count": len(entries), "bytes": size}
    if arguments.action == "list":
        result["entries"] = [asdict(entry) for entry in entries]
    if arguments.json:
        _print_json(result)
        return OK
    if arguments.action == "list":
        for entry in entries:
            written = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.created))
            print(f"{written}  {entry.size:>9}  {entry.arch:<8}  {entry.symbol}")
    print(f"{len(entries)} cubins, {size} bytes in {directory}")
    return OK


#: Commands with a module of their own, which has ``add_arguments`` and ``command``.
_MODULES = ("profile", "bench", "explain")

_COMMANDS = {
    "run": _run,
    "analyze": _analyze,
    "copy": _copy,
    "emit": _emit,
    "compile": _compile,
    "kernels": _kernels,
    "doctor": _doctor,
    "cache": _cache,
}

# -- what the commands share ------------------------------------------------------------------


def _plan(arguments: argparse.Namespace, *, op: str | None = None, arch: str | None = None) -> Plan:
    """Return the plan of the problem that the arguments name, by sizes alone."""
    from cute_gemm.api import plan

    return plan(
        op or arguments.op, m=arguments.m, n=arguments.n, k=arguments.k, dtype=arguments.dtype,
        lda=arguments.lda, ldb=arguments.ldb, ldc=arguments.ldc, storage=arguments.storage,
        order=arguments.order, out_dtype=arguments.out_dtype, compute=arguments.compute,
        kernel=arguments.kernel, backend=getattr(arguments, "backend", "cpu"),
        arch=arch or arguments.arch, **arguments.options,
    )  # fmt: skip


def _matrices(arguments: argparse.Namespace) -> tuple[Any, Any, Any]:
    """Return random A, B and C as stored, each in a buffer with its leading dimension."""
    import numpy as np

    from cute_gemm.measure.matrices import random_values
    from cute_gemm.problem.problem import from_sizes

    problem = from_sizes(
        arguments.op, m=arguments.m, n=arguments.n, k=arguments.k, dtype=arguments.dtype,
        lda=arguments.lda, ldb=arguments.ldb, ldc=arguments.ldc, storage=arguments.storage,
        order=arguments.order, out_dtype=arguments.out_dtype, compute=arguments.compute,
    )  # fmt: skip
    rng = np.random.default_rng(arguments.seed)

    def matrix(
        rows: int, columns: int, order: str, ld: int | None, name: str, unread: bool = False
    ) -> Any:
        inner, outer = (rows, columns) if order == "F" else (columns, rows)
        buffer = np.empty((outer, max(ld or 0, inner)), DTYPES[name].numpy)
        if unread:  # what a kernel must neither read nor leave behind
            buffer[...] = -(2**31) if name == "int32" else np.nan
        else:
            buffer[...] = random_values(rng, buffer.shape, name)
        view = buffer[:, :inner]
        return view.T if order == "F" else view

    m, n, k = problem.m, problem.n, problem.k
    a, b = ((m, k), (k, n))
    a = a if problem.op[0] == "N" else a[::-1]
    b = b if problem.op[1] == "N" else b[::-1]
    name, storage = problem.A.dtype, arguments.storage
    return (
        matrix(*a, storage, arguments.lda, name),
        matrix(*b, storage, arguments.ldb, name),
        matrix(m, n, arguments.order, arguments.ldc, problem.C.dtype, unread=arguments.beta == 0),
    )


class _Printer:
    """``print`` that appears at once, or nothing at all."""

    def __init__(self, *, quiet: bool) -> None:
        self.quiet = quiet

    def __call__(self, text: str = "", end: str = "\n") -> None:
        if not self.quiet:
            print(text, end=end, flush=True)


def _scaled_product(op: str, alpha: complex, beta: complex) -> str:
    """Write ``2 A^T B + 1 C``."""
    marks = {"N": "", "T": "^T", "C": "^H", "H": "^H"}
    text = f"A{marks[op[0]]} B{marks[op[1]]}"
    text = text if alpha == 1 else f"{alpha} {text}"
    return text if beta == 0 else f"{text} + {beta} C"


def _descriptors(matrices: Sequence[Matrix]) -> list[str]:
    """Return a line for each matrix: modes, shape:stride, and what it is in memory."""
    width = max(len(str(matrix)) for matrix in matrices)
    return [
        f"{_MODES[matrix.name]}  {matrix!s:<{width}}  {matrix.dtype}, {matrix.major}-major, "
        f"ld{matrix.name.lower()} {matrix.ld}, base aligned to {matrix.alignment} bytes"
        for matrix in matrices
    ]


def _access_table(rows: Sequence[AccessRow]) -> list[str]:
    """Return the global accesses as lines of a table."""
    head = ("", "access", "bits", "requests", "sectors", "ideal", "efficiency", "coalesced")
    cells = [head] + [
        (
            row.operand,
            row.instruction,
            str(row.bits or "-"),
            f"{row.requests}/{row.unit}",
            f"{row.sectors:g}",
            f"{row.ideal_sectors:g}",
            "-" if row.efficiency is None else f"{100 * row.efficiency:.4g} %",
            "yes" if row.good else "NO",
        )
        for row in rows
    ]
    widths = [max(len(line[i]) for line in cells) for i in range(len(head))]
    left = (0, 1, 7)
    return [
        "  ".join(
            text.ljust(width) if i in left else text.rjust(width)
            for i, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    ]


def _where(plan: Plan) -> str:
    if plan.backend == "cpu":
        return "CPU (NumPy)"
    from cute_gemm.run.launch import device_arch

    return f"GPU ({device_arch()})"


def _build_dict(plan: Plan) -> dict[str, Any]:
    build = plan.build
    return {
        "kernel": plan.kernel, "symbol": plan.symbol, "arch": build.arch,
        "seconds": build.seconds, "cached": build.cached, "bytes": len(build.cubin),
        "resources": asdict(build.resources),
    }  # fmt: skip


def _option_name(field: str) -> str:
    return field.replace("_", "-")


def _seconds(value: float) -> str:
    return f"{1e3 * value:.0f} ms" if value < 1 else f"{value:.1f} s"


def _finite(value: float) -> float | None:
    return value if abs(value) < float("inf") else None


def _one_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, default=str))


def _show_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int,
    file: TextIO | None = None, line: str | None = None,
) -> None:  # fmt: skip
    """Print a warning as one line, without the place in the source it came from."""
    print(f"note: {message}", file=sys.stderr, flush=True)
