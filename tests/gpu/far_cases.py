"""Problems with an operand that spans 2**31 elements or more, in its rows or its batch."""

from dataclasses import dataclass
from typing import Any

import numpy as np

#: Fewest elements that the operand spans: element and byte offsets exceed 32 bits.
FAR = 2**31
M, N, K, L = 40, 24, 32, 3
#: One kernel of each family, and of each way in which a family accesses A, B and C.
KERNELS = (
    "naive", "coalesced", "smem_tiled", "vectorized", "double_buffered", "sm80_pipeline",
    "tensor_core", "sm90_wgmma", "thin", "cutlass_universal", "batched",
)  # fmt: skip


@dataclass(frozen=True)
class Far:
    """A float16 GEMM whose operand ``which`` spans ``FAR`` elements, by its ld or its batch."""

    kernel: str
    op: str
    order: str
    which: str
    batch: bool = False
    options: tuple[tuple[str, Any], ...] = ()
    #: Elements added to C's leading dimension. TMA cannot store C if it is odd.
    pad: int = 0

    def __str__(self) -> str:
        batch = "-batch" * self.batch
        options = "".join(f"-{name}" for name, _ in self.options)
        return (
            f"{self.kernel}{options}-{self.op}-{self.order}-{self.which}{batch}{'-odd' * self.pad}"
        )

    @property
    def arch(self) -> str:
        return "sm_90a" if self.kernel == "sm90_wgmma" else "sm_80"

    @property
    def places(self) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Return shapes and strides, in elements, of the stored A, B and C."""
        stored = (
            ((M, K) if self.op[0] == "N" else (K, M), "F"),
            ((K, N) if self.op[1] == "N" else (N, K), "F"),
            ((M, N), self.order),
        )
        found = []
        for name, (shape, order) in zip("ABC", stored, strict=True):
            inner, rows = shape if order == "F" else shape[::-1]
            here = name == self.which
            ld = -(-(FAR // (rows - 1)) // 64) * 64 + 64 if here and not self.batch else inner + 8
            ld += self.pad * (name == "C")
            strides = (1, ld) if order == "F" else (ld, 1)
            if self.batch:
                step = FAR // (L - 1) + 64 if here else ld * rows
                shape, strides = (L, *shape), (step, *strides)
            found.append((shape, strides))
        return found


def cases() -> list[Far]:
    """Return cases of each kernel and operand, along K and across it; batches, packing, split-K."""
    found = []
    for number, kernel in enumerate(KERNELS):
        for which in "ABC":
            op, order = (("TN", "F"), ("NT", "C"))[(number + "ABC".index(which)) % 2]
            found.append(Far(kernel, op, order, which))
        found.append(Far(kernel, "TN", "F", "ABC"[number % 3], True))
    found += [Far("naive", "NT", "C", which) for which in "ABC"]
    found += [Far("naive", "TN", "F", which) for which in "ABC"]
    found += [Far("naive", "TN", "F", which, True) for which in "ABC"]
    found += [Far("sm90_wgmma", "TN", order, "C", pad=1) for order in "FC"]
    found += [Far("sm90_wgmma", "TN", "F", "C", True, pad=1)]
    for batch in (False, True):
        found.append(Far("sm80_pipeline", "NN", "F", "A", batch, (("pack", "A"),)))
        found.append(Far("sm80_pipeline", "TN", "F", "B", batch, (("pack", "B"),)))
        found.append(Far("sm80_pipeline", "TN", "C", "C", batch, (("split_k", 2),)))
    return list(dict.fromkeys(found))


def values(shape: tuple[int, ...], number: int) -> np.ndarray:
    return np.random.default_rng(number).standard_normal(shape).astype(np.float16)
