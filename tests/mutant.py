"""The class of mutants, and the tests that execute the code that they change."""

from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent

#: Tests that execute the kernels. ``-k`` selects cases by the kernels' names.
TESTS = (
    "tests/kernels/test_steps.py", "tests/kernels/test_auxiliary.py", "tests/kernels/test_thin.py",
    "tests/kernels/test_batched.py", "tests/kernels/test_ptx_gemm.py",
    "tests/kernels/test_ladder_accesses.py", "tests/kernels/test_unaligned.py",
    "tests/unit/test_ptx_hopper.py", "tests/unit/test_ptx_cluster.py",
    "tests/kernels/test_ptx_wgmma.py",
)  # fmt: skip

#: Tests that execute kernels with operands of more than 2**31 elements.
FAR = ("tests/kernels/test_far_offsets.py", "tests/kernels/test_auxiliary.py")

TILED = "smem_tiled or bank_free"
ASYNC = "double_buffered or sm80_pipeline"
MMA = "sm80_pipeline or tensor_core"
WGMMA = "the_family"
ROWS = "the_family and (tf32 or int8)"
BYTES = "sm90_wgmma and (tf32 or int8)"


class Mutant(NamedTuple):
    """A planted error: in ``file``, ``old`` (which occurs once) becomes ``new``.

    ``kernels``: a ``-k`` expression that selects the affected cases of ``tests``.
    """

    name: str
    file: str
    old: str
    new: str
    kernels: str
    tests: tuple[str, ...] = TESTS


def in_template(name: str, file: str, old: str, new: str, kernels: str) -> Mutant:
    return Mutant(name, f"templates/{file}", old, new, kernels)


def in_package(name: str, file: str, old: str, new: str, kernels: str) -> Mutant:
    return Mutant(name, f"cute_gemm/{file}", old, new, kernels)


def far(name: str, file: str, old: str, new: str, only: str) -> Mutant:
    return Mutant(name, file, old, new, only, FAR)


def of_module(name: str, file: str, old: str, new: str, test: str, only: str) -> Mutant:
    (path,) = HERE.glob(f"*/test_{test}.py")
    return Mutant(name, f"cute_gemm/{file}", old, new, only, (f"tests/{path.relative_to(HERE)}",))
