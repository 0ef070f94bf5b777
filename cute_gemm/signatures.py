"""Keyword arguments of the public functions, as type checkers read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict, TypeVar

if TYPE_CHECKING:
    from cute_gemm.arrays.base import Order
    from cute_gemm.call import Backend, Tune
    from cute_gemm.gpus.table import GpuLike
    from cute_gemm.plan.tune import Tuning


class _DLPack(Protocol):
    def __dlpack__(self, *args: Any, **keywords: Any) -> Any: ...


class _CudaArray(Protocol):
    @property
    def __cuda_array_interface__(self) -> Any: ...


#: An array of any library: the result has the type of A, and no library is imported to say so.
Array = TypeVar("Array", bound=_DLPack | _CudaArray)

#: A number, or its text as on the command line.
Number = int | str
#: Numbers, such as (128, 128, 32), or their text: "128x128x32".
Extents = Sequence[int] | str


class KernelOptions(TypedDict, total=False):
    """Options of kernels: those of each config, and those that go with every kernel."""

    pack: Literal["A", "B", "AB", "scales", "none", "auto"]
    split_k: Number
    batch_invariant: bool
    order_of_summation: Any
    compile: str
    prefer_loaded: float
    tile: Extents
    thread_tile: Extents
    warps: Number | Extents
    warp_groups: Number
    warp_along: str
    stages: Number
    staging: str
    cluster: Extents
    raster: Number
    min_ctas: Number
    copy: str
    mma: str
    skew: str
    swizzle: Number
    ping_pong: bool | Number
    swap_ab: bool | Number
    thin: str
    unit: str
    products: Number


class NamedOperands(TypedDict, total=False):
    """Operands of the epilogues that have a name."""

    bias: Any
    residual: Any
    scale: Any


class ProductWords(KernelOptions, NamedOperands, total=False):
    """What `gemm`, `grouped_gemm`, `plan`, `analyze` and `cute_gemm.jax.gemm` have in common."""

    out_dtype: Any
    compute: str | None
    scale_a: Any
    scale_b: Any
    kernel: str


class _ArrayWords(ProductWords, total=False):
    order: Order
    backend: Backend
    arch: str | None


class _RunWords(_ArrayWords, total=False):
    alpha: Any
    beta: Any
    stream: Any


class GemmWords(_RunWords, total=False):
    """Keyword arguments of `gemm` except ``epilogue``."""

    tune: Tune


class GroupedWords(_RunWords, total=False):
    """Keyword arguments of `grouped_gemm` except ``epilogue``."""

    tail: str
    check: str


class PlanWords(_ArrayWords, total=False):
    """Keyword arguments of `plan` except ``epilogue``."""

    m: int | None
    n: int | None
    k: int | None
    dtype: Any
    l: int | None
    lda: int | None
    ldb: int | None
    ldc: int | None
    batch_a: int | None
    batch_b: int | None
    batch_c: int | None
    ragged: str | None
    base_offset: int
    storage: Order
    gpu: GpuLike | None
    tune: Tune | Tuning
    offsets: Any
    tail: str
    check: str


class AnalyzeWords(PlanWords, total=False):
    """Keyword arguments of `analyze` except ``epilogue``."""

    beta: complex


class JaxWords(ProductWords, total=False):
    """Keyword arguments of `cute_gemm.jax.gemm` except ``epilogue``."""

    alpha: Any
