"""``cute-gemm run``: one GEMM on random matrices, checked and timed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, get_args

from cute_gemm._text import counted, named
from cute_gemm.commands.arguments import add, add_options, add_problem
from cute_gemm.commands.matrices import planned_on_matrices
from cute_gemm.commands.output import OK, WRONG, build_dict, build_time, print_json, say, silent
from cute_gemm.problem.parts.scales import SCALES

if TYPE_CHECKING:
    from cute_gemm.plan.plan import Plan
    from cute_gemm.problem.problem import GemmProblem


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``cute-gemm run``."""
    add_problem(parser)
    add(parser, "--alpha", "--beta")
    from cute_gemm.call import Backend

    text = "where to compute (default auto: the GPU, or the CPU without one)"
    add_options(parser, {"--backend": text}, choices=get_args(Backend), default="auto")
    add(parser, "--seed", "--group-sizes", "--no-check")


def command(arguments: argparse.Namespace) -> int:
    """Compute, and return 1 if the result is wrong, else 0."""
    from cute_gemm.report.candidates import candidates_dict, candidates_table

    tell = silent if arguments.json else say
    plan, (A, B, C), operands = planned_on_matrices(arguments, backend=arguments.backend)
    problem, ends = plan.problem, operands.get("offsets")
    result: dict[str, Any] = {
        **named(problem, "op", "blas_op", "m", "n", "k", "l", "dtype"),
        "out_dtype": problem.C.dtype,
        "compute": problem.compute,
        **named(arguments, *SCALES, "alpha", "beta"),
        **({} if ends is None else {"ragged": problem.groups.mode, "offsets": ends.tolist()}),
    }

    product = _scaled_product(problem.op, arguments.alpha, arguments.beta)
    of = f"op {problem.op}, BLAS-equivalent {problem.blas_op}"
    tell(f"{of}: C{str(problem.C).partition(':')[0]} <- {product}, {problem.types}\n")
    for line in _descriptors(problem):
        tell(f"  {line}")
    tell(f"\nkernel   {plan.kernel} for {plan.arch}:\n         {plan.why}")
    for predictions in candidates_table(plan.candidates(), plan.gpu.name):
        tell()
        tell(predictions)
    result["candidates"] = candidates_dict(plan.candidates())

    if plan.compiled:
        _show_kernel(arguments, plan, ends, tell, result)

    before = C.copy(order="K") if arguments.beta != 0 else None
    plan(A, B, C, alpha=arguments.alpha, beta=arguments.beta, **operands)
    tell(f"run      on the {_where(plan)}")
    result["backend"] = plan.backend

    status = OK
    if not arguments.no_check:
        status = _check(arguments, plan, A, B, C, before, operands, tell, result)
    if plan.backend == "cuda" and plan.compiled and status == OK and problem.flops:
        from cute_gemm.measure.timed import time_plan

        factors = named(arguments, "alpha", "beta")
        timing = time_plan(plan, A, B, C, **factors, operands=operands)
        result["timing"] = asdict(timing)
        tell(f"speed    {timing}")
    if arguments.json:
        print_json(result)
    return status


def _show_kernel(
    arguments: argparse.Namespace, plan: Plan, ends: Any, tell: Callable[..., None],
    result: dict[str, Any],
) -> None:  # fmt: skip
    """Print how the kernel accesses memory, and its build."""
    from cute_gemm.rendering.shown import spilled
    from cute_gemm.rendering.tables import Cell, table
    from cute_gemm.report.causes import Causes

    report = plan.report(beta=arguments.beta, offsets=ends)
    if report.groups:
        tell()
        tell(report.groups)
    cells = []
    for row in report.rows:
        if row.space != "global":
            continue
        first = (row.operand, row.instruction, str(row.bits or "-"), f"{row.requests}/{row.unit}")
        used = "-" if row.efficiency is None else f"{100 * row.efficiency:.4g} %"
        good = Cell("yes" if row.good else "NO", good=row.good)
        cells.append((*first, f"{row.sectors:g}", f"{row.ideal_sectors:g}", used, good))
    heads = ("", "access", "bits", "requests", "sectors", "ideal", "efficiency", "coalesced")
    tell()
    tell(table("", heads, cells, "", "access", "coalesced"))
    if report.causes:
        tell()
        tell(Causes(report.causes))

    tell(f"\ncompile  {plan.symbol}")
    built = plan.build.resources
    shared = f"{plan.launch.smem + built.shared_static} bytes of shared memory"
    used = f"{counted(built.registers, 'register')}, {shared}, {spilled(built)}"
    tell(f"         ... {build_time(plan)}: {used}")
    result |= {"report": report.to_dict(), "build": build_dict(plan.kernel, plan.build)}


def _check(
    arguments: argparse.Namespace, plan: Plan, A: Any, B: Any, C: Any, before: Any,
    given: dict[str, Any], tell: Callable[..., None], result: dict[str, Any],
) -> int:  # fmt: skip
    """Compare C with float64, print the result, and return the exit status."""
    from cute_gemm.problem.verify import verify
    from cute_gemm.rendering.shown import verdict_dict

    operands = plan.executable.on_host(A, B, C, arguments.beta, given)[3].on_host()
    verdict = verify(
        plan.problem, A, B, C, C=before, operands=operands, **named(arguments, "alpha", "beta")
    )
    result["check"] = verdict_dict(verdict)
    elements = f"{verdict.elements} element" + "s" * (verdict.elements != 1)
    tell(f"check    {elements} against float64, bound {verdict.bound}:")
    if verdict.ok:
        error = f"largest error {verdict.max_error:.3g}"
        tell(f"         all within; {error}; at most {verdict.max_ratio:.2g} of an element's bound")
        return OK
    error = f"largest error {verdict.max_error:.3g}, worst at {verdict.worst}"
    tell(f"         {verdict.wrong} WRONG; {error}")
    print(
        f"cute-gemm: wrong result: {verdict.wrong} of {verdict.elements} elements are out of "
        f"bound, worst at {verdict.worst}",
        file=sys.stderr,
    )
    return WRONG


def _scaled_product(op: str, alpha: complex, beta: complex) -> str:
    """Write ``2 A^T B + 1 C``."""
    marks = {"N": "", "T": "^T", "C": "^H", "H": "^H"}
    text = f"A{marks[op[0]]} B{marks[op[1]]}"
    text = text if alpha == 1 else f"{alpha} {text}"
    return text if beta == 0 else f"{text} + {beta} C"


def _descriptors(problem: GemmProblem) -> list[str]:
    """Return a line for each matrix: modes, shape:stride, type, major and alignment."""
    matrices = (problem.A, problem.B, problem.C)
    width = max(len(str(matrix)) for matrix in matrices)
    return [
        f"{matrix.name}({','.join(matrix.modes)})  {matrix!s:<{width}}  {matrix.dtype}, "
        f"{matrix.major}-major, ld{matrix.name.lower()} {matrix.ld}, "
        f"base aligned to {counted(matrix.alignment, 'byte')}"
        for matrix in matrices
    ]


def _where(plan: Plan) -> str:
    if plan.backend == "interpreter":
        return f"CPU, each instruction of the kernel's PTX for {plan.arch}"
    if plan.backend == "cpu":
        return "CPU (NumPy)"
    from cute_gemm.run.driver import device_arch

    return f"GPU ({device_arch()})"
