"""What a benchmark times: a kernel of this package, cuBLAS, a function of the user's own."""

from __future__ import annotations

import functools
import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cute_gemm import select
from cute_gemm.errors import OptionError
from cute_gemm.toolchain import cache

if TYPE_CHECKING:
    import numpy as np

    from cute_gemm.api import Plan
    from cute_gemm.kernels.library.cublas import Cublas
    from cute_gemm.measure.matrices import Place
    from cute_gemm.problem.problem import GemmProblem

#: Starts the GEMM on the copy of the matrices that has this number.
Start = Callable[[int], object]
#: ``f(op, A, B, C)``: what ``--against`` names.
Function = Callable[[str, Any, Any, Any], object]


def runs_on(name: str) -> str:
    """Return ``"gpu"``, ``"cpu"`` or ``"library"``: what computes with a kernel of this name.

    Raises
    ------
    UnknownKernelError
        When there is none.
    """
    return "gpu" if name == "auto" else select.get(name).runs_on


def of_kernel(
    plan: Plan, places: Sequence[Place], device: int, alpha: complex = 1, beta: complex = 0
) -> Start:
    """Return what starts a plan's kernel on the legacy default stream.

    Raises
    ------
    CompileError
        When its build fails.
    LaunchError
        When the device cannot launch it.
    """
    bound = plan.bind(device, alpha, beta)
    return lambda index: bound(*places[index])


def of_cublas(
    blas: Cublas, problem: GemmProblem, places: Sequence[Place], alpha: complex = 1,
    beta: complex = 0,
) -> Start:  # fmt: skip
    """Return what starts cuBLAS's GEMM on the legacy default stream.

    Raises
    ------
    CublasError
        When cuBLAS does not support the combination; some it refuses only when it is started.
    """
    calls = [blas.bind(problem, *place, alpha, beta) for place in places]
    return lambda index: calls[index]()


@dataclass(frozen=True, eq=False)
class DeviceArray:
    """A matrix on the device, as ``__cuda_array_interface__`` of version 3 shows it.

    Attributes
    ----------
    pointer
        Address of the first element.
    shape
        Rows and columns as stored.
    strides
        In bytes.
    dtype
        NumPy or ``ml_dtypes`` type; of bfloat16 the interface only says that it has two bytes.
    """

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "version": 3,
            "shape": self.shape,
            "strides": self.strides,
            "typestr": self.dtype.str,
            "data": (self.pointer, False),
            # Nothing is under way on them when a function is called: to wait would only take time.
            "stream": None,
        }


def of_function(
    function: Function, op: str, matrices: Sequence[np.ndarray], places: Sequence[Place]
) -> Start:
    """Return what calls ``function(op, A, B, C)``.

    Parameters
    ----------
    function
        What is to be timed.
    op
        The op, two letters.
    matrices
        Host matrices of the shapes, strides and types of A, B and C.
    places
        Their copies on the device.
    """
    arrays = [
        tuple(
            DeviceArray(pointer, like.shape, like.strides, like.dtype)
            for pointer, like in zip(place, matrices, strict=True)
        )
        for place in places
    ]
    return lambda index: function(op, *arrays[index])


def named_function(given: str | Function) -> tuple[str, Function]:
    """Return name and function of ``"module:function"``, or of a function.

    Parameters
    ----------
    given
        A module that Python finds, also in the working directory, and a callable in it; or the
        callable itself.

    Raises
    ------
    OptionError
        When there is no such thing.

    Examples
    --------
    >>> named_function("os.path:join")[0]
    'os.path:join'
    """
    if not isinstance(given, str):
        name = getattr(given, "__qualname__", type(given).__name__)
        return f"{getattr(given, '__module__', '')}:{name}", given
    module, colon, name = given.partition(":")
    if not (module and colon and name):
        raise OptionError(f"against={given!r}; expected MODULE:FUNCTION")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        function = functools.reduce(getattr, name.split("."), importlib.import_module(module))
    except ImportError as error:
        raise OptionError(
            f"against={given!r} cannot be imported ({error}); expected a module of the working "
            "directory or an installed one"
        ) from error
    except AttributeError:
        raise OptionError(f"against={given!r}: {module} has no {name}") from None
    if not callable(function):
        raise OptionError(
            f"against={given!r} is a {type(function).__name__}; expected a function f(op, A, B, C)"
        )
    return given, function


def compile_missing(plans: Sequence[Plan], tell: Callable[[int, int], None]) -> None:
    """Compile what is not in the cache, in processes side by side: threads do not compile so.

    What goes wrong here goes wrong again, with its message, when the plan builds.

    Parameters
    ----------
    plans
        Plans whose builds will be needed, of matrices without padding.
    tell
        Called with how many are done, and how many there are.
    """
    known = {(entry.symbol, entry.arch) for entry in cache.entries()}
    missing = {
        (plan.symbol, plan.arch): plan for plan in plans if (plan.symbol, plan.arch) not in known
    }
    if len(missing) < 2:
        return
    tell(0, len(missing))
    # A compiler takes half a gigabyte.
    with ThreadPoolExecutor(min(len(missing), os.cpu_count() or 1, 32)) as pool:
        started = [pool.submit(_compile, plan) for plan in missing.values()]
        for done, _ in enumerate(as_completed(started), 1):
            tell(done, len(missing))


def _compile(plan: Plan) -> None:
    problem = plan.problem
    words = [
        "compile", problem.op, "-m", problem.m, "-n", problem.n, "-k", problem.k,
        "--dtype", problem.inputs.name, "--compute", problem.compute, "--arch", plan.arch,
        "--order", "F" if problem.C.unit == 0 else "C", "--kernel", plan.kernel,
    ]  # fmt: skip
    subprocess.run(
        [sys.executable, "-m", "cute_gemm", *map(str, words)], capture_output=True, check=False
    )
