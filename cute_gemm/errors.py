"""An exception class for each cause; ``except GemmError`` catches all of them.

Each class also derives from a builtin exception, so ``except ValueError`` works as in NumPy.
"""

from __future__ import annotations

import functools
import os
import sys
import warnings


class GemmError(Exception):
    """Base class of all errors that this package raises."""


class OpError(GemmError, ValueError):
    """An op that is not two of the letters N, T, C, H."""


class ShapeError(GemmError, ValueError):
    """Arrays that are not matrices, or whose shapes do not match."""


class StrideError(GemmError, ValueError):
    """Strides that no GEMM descriptor has: without a unit stride, negative, or too small."""


class AlignmentError(GemmError, ValueError):
    """A device array whose address is not a multiple of its element size."""


class OffsetsError(GemmError, ValueError):
    """Ends of groups that decrease or exceed the extent, in this call or an earlier one."""


class DTypeError(GemmError, TypeError):
    """A data type, or a combination of data types, that is not supported."""


class ArrayError(GemmError, TypeError):
    """An object that is not an array of any known library."""


class DeviceError(GemmError, ValueError):
    """Arrays on different devices, or a device that cannot be used."""


class OverlapError(GemmError, ValueError):
    """C shares memory with A, with B or with itself."""


class ReadOnlyError(GemmError, ValueError):
    """C cannot be written to."""


class ScalarError(GemmError, ValueError):
    """An alpha or beta that is not a number of the accumulator's kind."""


class OptionError(GemmError, ValueError):
    """An option that does not exist, or one whose value is not legal."""


class UnknownKernelError(GemmError, ValueError):
    """A kernel name that is not in the list."""


class UnsupportedError(GemmError, ValueError):
    """A kernel that cannot serve this problem or this architecture."""


class NoGpuError(GemmError, RuntimeError):
    """The call needs a GPU, and none can be used."""


class CompileError(GemmError, RuntimeError):
    """NVRTC reports an error, or the build spills registers or serializes its MMAs.

    Parameters
    ----------
    message
        The first error of the compiler comes first.
    log
        The output of the compiler.
    """

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log


class HeaderError(GemmError, RuntimeError):
    """CUDA or CUTLASS headers, or NVRTC itself, are missing or do not fit each other."""


class CubinError(GemmError, RuntimeError):
    """A cubin that was built for another architecture."""


class ToolError(GemmError, RuntimeError):
    """A program of the CUDA toolkit is missing, or cannot read the cubin."""


class OutOfMemoryError(GemmError, MemoryError):
    """The device has less memory than the call needs."""


class LaunchError(GemmError, RuntimeError):
    """The driver reports an error for a launch."""


class PtxError(GemmError, ValueError):
    """PTX text that cannot be parsed, or an instruction that the interpreter does not execute."""


class FaultError(GemmError, RuntimeError):
    """A fault of a kernel in the interpreter, such as a race.

    Parameters
    ----------
    message
        The instruction, the thread and the address.
    kind
        ``"out of bounds"``, ``"misaligned"``, ``"uninitialised"``, ``"race"``, ``"in flight"``,
        ``"divergent"``, ``"barrier"``, ``"fence"``, ``"proxy"``, ``"transaction"``, ``"deadlock"``
        or ``"endless"``.
    line
        The line of the PTX text, from 1; 0 if the fault is of no single instruction.
    """

    def __init__(self, message: str, kind: str, line: int = 0) -> None:
        super().__init__(message)
        self.kind = kind
        self.line = line


class NotationError(GemmError, ValueError):
    """Layout text that does not parse.

    Parameters
    ----------
    message
        What the text should have.
    column
        The column of the text, counted from 0.
    """

    def __init__(self, message: str, column: int) -> None:
        super().__init__(message)
        self.column = column


def missing(name: str) -> ModuleNotFoundError:
    """Return the error for a package that is missing."""
    said = f"cute_gemm needs {name}, which is missing: run `cute-gemm doctor`"
    return ModuleNotFoundError(said, name=name)


def shown(text: str) -> str:
    """Shorten a part of a text for messages."""
    text = " ".join(text.split())
    return repr(text if len(text) < 100 else f"{text[:80]} ...")


def warn(message: str) -> None:
    """Warn with the first line outside this package, PyTorch and what its compiler wrote."""
    torch = getattr(sys.modules.get("torch"), "__file__", None)
    packages = map(os.path.dirname, filter(None, (__file__, torch)))
    passed = (*(f"{path}{os.sep}" for path in packages), functools.__file__, "<eval_with_key>")
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and _is_passed(frame.f_code.co_filename, passed):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, UserWarning, stacklevel=level)


def _is_passed(file: str, passed: tuple[str, ...]) -> bool:
    return file.startswith(passed) or f"{os.sep}torchinductor_" in file
