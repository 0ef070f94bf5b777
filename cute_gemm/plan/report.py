"""The report of a plan: accesses and launches of its kernels, and predicted times of changes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cute_gemm.arch import Arch
from cute_gemm.cost_model.roofline import least_seconds
from cute_gemm.errors import GemmError, OptionError
from cute_gemm.gpus.table import of_arch
from cute_gemm.plan.predict import prediction_of, unmeasured
from cute_gemm.problem.parts.groups import ends_of
from cute_gemm.problem.scalars import check_beta, scalar
from cute_gemm.rendering.rows import make_row
from cute_gemm.report.auxiliary import AuxiliaryReport
from cute_gemm.report.causes import Predictor
from cute_gemm.report.groups import describe_groups
from cute_gemm.report.report import Report, make_report

if TYPE_CHECKING:
    from cute_gemm.access.accesses import Access
    from cute_gemm.access.ideal import Kind
    from cute_gemm.gpus.gpu import Gpu
    from cute_gemm.gpus.table import GpuLike
    from cute_gemm.kernels.base import CompiledKernel
    from cute_gemm.kernels.candidate import Candidate
    from cute_gemm.plan.steps import Step


def report(plan: Any, gpu: GpuLike | None, beta: complex, offsets: Any) -> Report:
    """Return the report of a `Plan`; the other arguments are those of its method."""
    problem, kernel = plan.problem, plan._kernel.compiled()
    factor = scalar(beta, "beta", problem.scalar.name, None)
    reads_c = factor.value != 0
    check_beta(factor, problem.C, problem.epilogue.pairs)
    if offsets is not None and not problem.groups:
        raise OptionError("offsets= came to the report of a plan without groups: leave it out")
    ends = None if offsets is None else ends_of(offsets, problem.l)
    place = plan.gpu if gpu is None else of_arch(gpu, Arch(plan.arch))
    step = replace(plan.steps.main, sms=place.sms)
    launch = step.on_gpu()
    built = plan.build.resources if "build" in plan.__dict__ else None
    known = Arch(plan.arch).runs_on(divmod(place.cc, 10))  # or it is the nearest that exists
    candidates = plan.candidates(place, reads_c=reads_c)
    groups = ""
    if problem.groups:
        places = launch.places or place.sms * plan.config.min_ctas
        groups = describe_groups(problem, plan.config.tile, places, ends)
    return make_report(
        problem, plan.kernel, plan.config, plan.arch, step.accesses(reads_c, ends), launch,
        built, gpu=place if known else None, reads_c=reads_c,
        pictures=kernel.pictures(plan.config), candidates=candidates,
        measured=plan.measured if place == plan.gpu else None,
        others=lambda: _others(kernel, plan.steps.main, reads_c),
        auxiliary=_auxiliary(plan, reads_c),
        predictor=_predictor(plan, place, candidates, reads_c), groups=groups,
    )  # fmt: skip


def _predictor(plan: Any, gpu: Gpu, candidates: tuple[Candidate, ...], reads_c: bool) -> Predictor:
    """Return the predictor of a report on a GPU, for these candidates."""
    problem, kernel = plan.problem, plan._kernel.compiled()
    own = kernel, plan.config, plan.algorithm
    prediction = next(
        (x.prediction for x in candidates if (x.kernel, x.config, x.algorithm) == own), None
    )
    correction = prediction.correction if prediction else 1.0
    least = least_seconds(gpu, problem, reads_c)

    def ideal(kinds: frozenset[Kind], wide: frozenset[str] = frozenset()) -> float:
        ideal_time = prediction_of(problem, *own, gpu, reads_c, kinds, wide)
        return ideal_time.corrected(correction).bounded(least).seconds

    def changed(**change: Any) -> float | None:
        try:
            prediction = plan.candidates(gpu, reads_c=reads_c, **change)[0].prediction
        except GemmError:
            return None
        return prediction.seconds if prediction else None

    derived = unmeasured(gpu, problem, kernel, plan.config, reads_c)
    return Predictor(prediction, gpu.name, ideal, changed, plan.device is None, derived)


def _auxiliary(plan: Any, reads_c: bool) -> Iterator[AuxiliaryReport]:
    """Yield reports of the auxiliary kernels."""
    for step in plan.steps:
        if step is not plan.steps.main:
            rows = tuple(map(make_row, step.accesses(reads_c)))
            yield AuxiliaryReport(step.kernel.name, step.config, step.problem, step.launch, rows)


def _others(
    kernel: CompiledKernel, main: Step, reads_c: bool
) -> Iterator[tuple[dict[str, Any], list[Access]]]:
    """Yield other values of the options that a kernel selects, and their accesses."""
    for option, values in kernel.choices.items():
        for value in values:
            config = replace(main.config, **{option: value})
            step = replace(main, config=config)
            try:
                kernel.check(config, step.problem, Arch(main.arch))
            except GemmError:
                continue
            if config != main.config:
                yield {option: value}, list(step.accesses(reads_c))
