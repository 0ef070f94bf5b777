"""Array classes with only DLPack or ``__cuda_array_interface__``, and a check of any result."""

from typing import Any

import numpy as np

from cute_gemm.arrays import read
from cute_gemm.problem.describe import from_operands
from cute_gemm.problem.verify import verify


class Capsule:
    """An array that only supports DLPack."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor

    def __dlpack__(self, **arguments: Any) -> Any:
        return self.tensor.__dlpack__(**arguments)

    def __dlpack_device__(self) -> Any:
        return self.tensor.__dlpack_device__()


class Interface:
    """An array that only supports ``__cuda_array_interface__``."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor

    @property
    def __cuda_array_interface__(self) -> Any:
        return self.tensor.__cuda_array_interface__


def assert_product(op: str, A: np.ndarray, B: np.ndarray, result: Any, **given: Any) -> None:
    """Check a result against float64, element by element."""
    result = np.array(result, order="K")  # arrays of JAX are read-only
    problem = from_operands(op, read(A, "A"), read(B, "B"), read(result, "C"))
    verdict = verify(problem, A, B, result, **given)
    assert verdict.ok, verdict
