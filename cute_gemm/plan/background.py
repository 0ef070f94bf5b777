"""Calls that do not wait for the compiler: another kernel computes until the best one is built.

``compile="background"``, or ``CUTE_GEMM_COMPILE=background`` in the environment, builds the
selected kernel in the background. Until then calls run a kernel that is already built and predicted
to take up to `WITHIN` times as long. ``prefer_loaded=0.02``, or ``CUTE_GEMM_PREFER_LOADED=0.02``,
uses a kernel that is built, by this process or on disk, if it is predicted to take up to 2 %
longer. Both are off with ``batch_invariant``: bits must not depend on what was built before.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from cute_gemm.errors import OptionError
from cute_gemm.plan.plan import Plan

if TYPE_CHECKING:
    from cute_gemm.call import Call

#: Largest predicted time of the kernel that computes meanwhile, in times of the best kernel.
WITHIN = 1.25
#: Values of ``compile``.
MODES = ("wait", "background")


class BuildMode(NamedTuple):
    """Behaviour of a call whose kernel is not built.

    ``background``: build it while another kernel computes; ``prefer``: a built kernel is used
    instead if its predicted time is longer by up to this fraction.
    """

    background: bool
    prefer: float


def build_mode(call: Call) -> tuple[Call, BuildMode]:
    """Return a call without its options ``compile`` and ``prefer_loaded``, and their values.

    Raises
    ------
    OptionError
        For a value other than ``"wait"`` or ``"background"``, and for a fraction below 0.
    """
    options = dict(call.options)
    asked = options.pop("compile", None)
    mode = (os.environ.get("CUTE_GEMM_COMPILE") or MODES[0]) if asked is None else asked
    if mode not in MODES:
        said = f"compile={asked!r}" if asked is not None else f"CUTE_GEMM_COMPILE={mode}"
        raise OptionError(f"option {said} does not fit; expected 'wait' or 'background'")
    given = options.pop("prefer_loaded", None)
    part = (os.environ.get("CUTE_GEMM_PREFER_LOADED") or 0.0) if given is None else given
    try:
        prefer = float(part)
    except (TypeError, ValueError):
        prefer = -1.0
    if not prefer >= 0:
        by_call = given is not None
        said = f"option prefer_loaded={given!r}" if by_call else f"CUTE_GEMM_PREFER_LOADED={part}"
        raise OptionError(
            f"{said} does not fit; expected a fraction of 0 or more, such as 0.02 for 2 %"
        )
    if len(options) < len(call.options):
        call = replace(call, options=tuple(options.items()))
    if is_batch_invariant(call):
        return call, BuildMode(False, 0.0)
    return call, BuildMode(mode == MODES[1], prefer)


def is_batch_invariant(call: Call) -> bool:
    """Return whether the bits of a call's results must depend on its arguments alone."""
    return str(dict(call.options).get("batch_invariant", False)).lower() in ("true", "1")


def prefer_built(plan: Plan, mode: BuildMode) -> Plan:
    """Return a plan, or the plan of a built kernel that is nearly as fast."""
    if not mode.prefer or not _waits(plan):
        return plan
    return _built(plan, 1 + mode.prefer, in_memory=False) or plan


def until_built(plan: Plan, mode: BuildMode) -> Plan:
    """Begin to build a plan's kernels; return it, or a plan that computes until they are built."""
    if not mode.background or not _waits(plan):
        return plan
    other = _built(plan, WITHIN, in_memory=True)
    if other is None:
        return plan
    other.replace_by(plan)
    return other


def _waits(plan: Plan) -> bool:
    """Return whether a call of a plan would wait for the compiler."""
    return plan.backend == "cuda" and plan.compiled and plan.measured is None and not plan.built


def _built(plan: Plan, within: float, *, in_memory: bool) -> Plan | None:
    """Return the plan with the fastest candidate that is built, or None.

    ``in_memory``: built by this process; otherwise its cubin may also be on disk.
    """
    for other in plan.candidates(within=within)[1:]:
        kernel = other.kernel.compiled()
        if (kernel.in_memory if in_memory else kernel.is_built)(other.config, plan.arch):
            taken = plan.taking(other, plan.device)
            if taken.built:
                taken.instead_of, taken._by_name = plan.config.name, plan._by_name
                return taken
    return None
