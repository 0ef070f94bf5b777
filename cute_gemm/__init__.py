"""A layout-aware GEMM frontend for NVIDIA GPUs."""

from cute_gemm._version import __version__ as __version__
from cute_gemm.commands.interrupt import while_starting

while_starting()  # before the imports below, which take most of a command's first second

from importlib import import_module  # noqa: E402
from typing import TYPE_CHECKING, Any  # noqa: E402

try:
    # First: a later import of the subpackage of that name would replace the function.
    import cute_gemm.kernels  # noqa: F401
    from cute_gemm.api import KernelInfo, analyze, compile, gemm, grouped_gemm, kernels, plan
    from cute_gemm.arrays.torch import loaded_by
    from cute_gemm.errors import GemmError
    from cute_gemm.gpus.gpu import Gpu
    from cute_gemm.problem.epilogue import functions as _functions
    from cute_gemm.problem.epilogue.expression import amax, cast, halves, pairs
    from cute_gemm.problem.epilogue.functions import *  # noqa: F403
    from cute_gemm.problem.epilogue.fuse import epilogue
except ModuleNotFoundError as error:
    # If a dependency is missing, the doctor still runs and reports it.
    if str(error.name).startswith("cute_gemm"):
        raise
    _missing = error.name
else:
    _missing = None
    loaded_by(lambda: import_module("cute_gemm.torch"))

__all__ = [
    "CopyReport", "GemmError", "Gpu", "KernelInfo", "Layout", "Plan", "Report", "amax", "analyze",
    "analyze_copy", "cast", "compile", "epilogue", "gemm", "grouped_gemm", "halves", "kernels",
    "pairs", "plan",
]  # fmt: skip
if _missing is None:
    __all__ += _functions.__all__

#: Names that a GEMM does not need, imported on first use.
_LATER = {
    "CopyReport": "cute_gemm.copies.report",
    "Layout": "cute_gemm.cute.layout",
    "Plan": "cute_gemm.plan.plan",
    "Report": "cute_gemm.report.report",
    "analyze_copy": "cute_gemm.copies.report",
}


def __dir__() -> list[str]:
    return sorted([*__all__, *(name for name in globals() if name[:2] == "__")])


if TYPE_CHECKING:
    from cute_gemm.copies.report import CopyReport, analyze_copy
    from cute_gemm.cute.layout import Layout
    from cute_gemm.plan.plan import Plan
    from cute_gemm.report.report import Report
else:

    def __getattr__(name: str) -> Any:
        if _missing is not None and not name.startswith("_"):  # no list has functions then
            from cute_gemm.errors import missing

            raise missing(str(_missing))
        if name in _LATER:
            return getattr(import_module(_LATER[name]), name)
        raise AttributeError(f"module 'cute_gemm' has no attribute {name!r}")
