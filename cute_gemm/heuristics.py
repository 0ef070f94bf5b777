"""A second opinion: what ``nvidia-matmul-heuristics`` recommends, as candidates of a plan.

NVIDIA's package estimates times of CUTLASS's kernels on a GPU that is named, and needs none. Of
what it recommends, the CTA tile, the cluster and the number of slices of K are read here.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log2
from typing import TYPE_CHECKING, Any, NamedTuple

from cute_gemm.errors import OptionError

if TYPE_CHECKING:
    from cute_gemm.gpus.gpu import Gpu
    from cute_gemm.kernels.candidate import Candidate
    from cute_gemm.problem.problem import GemmProblem

#: The package's letters of types; of tf32, in which products are made, it is F.
_LETTERS = {
    "float16": "H", "bfloat16": "T", "float32": "S", "float64": "D", "complex64": "C",
    "complex128": "Z", "int8": "B", "int32": "I",
}  # fmt: skip
#: Behind our name of a GPU, what the package's may have: ``"H200"`` is ``H200_SXM``.
_FORMS = ("", "_SXM", "_PCIE", "_NVL")
#: How many recommendations are taken; and asked for, since many differ in what is not read.
MOST, _ASKED = 8, 64


class Recommendation(NamedTuple):
    """Extents of a CTA tile, and CTAs of a cluster, along M and N; slices of K."""

    tile: tuple[int, int]
    cluster: tuple[int, int]
    split_k: int

    def distance(self, one: Candidate) -> float:
        """Factors of two between this and a candidate, summed over all five."""
        mine = (*self.tile, *self.cluster, self.split_k)
        cluster = getattr(one.config, "cluster", (1, 1))
        its = (*one.config.tile[:2], *cluster, one.route.split_k)
        return sum(abs(log2(x / y)) for x, y in zip(mine, its, strict=True))


def advised(problem: GemmProblem, gpu: Gpu, candidates: Sequence[Candidate]) -> list[int]:
    """Return the numbers of the candidates that are nearest to what is recommended.

    Each once, the first recommendation's first; of equally near ones the first in the order given.
    Where kernels have clusters the recommendations are for them.
    """
    clusters = [i for i, one in enumerate(candidates) if hasattr(one.config, "cluster")]
    wishes = recommended(problem, gpu, "CUTLASS3" if clusters else "CUTLASS")
    among = clusters or range(len(candidates))
    nearest = (min(among, key=lambda i: wish.distance(candidates[i])) for wish in wishes)
    return list(dict.fromkeys(nearest))


def recommended(problem: GemmProblem, gpu: Gpu, target: str) -> list[Recommendation]:
    """Return what the package recommends for kernels of CUTLASS 3 or 2, its first choice first.

    OptionError where it is not installed, and for a GPU that it does not know.
    """
    theirs = _package()
    known = {x.name: x for x in theirs.NvMatmulHeuristicsNvidiaGpu if x.name != "END"}
    name = gpu.name.removeprefix("NVIDIA ").upper().replace(" ", "_")
    named = [known[name + form] for form in _FORMS if name + form in known]
    if not named:
        raise OptionError(
            "heuristics=True asks nvidia-matmul-heuristics, which does not know the GPU "
            f"{gpu.name}: leave it out here"
        )
    # It is asked for a column-major C; of a row-major one that is C^T, with A and B swapped.
    swapped = problem.C.major == "N"
    m, n, a, b = problem.m, problem.n, problem.A, problem.B
    if swapped:
        m, n, a, b = n, m, b, a
    layout = ("T" if a.major == "K" else "N") + ("N" if b.major == "K" else "T") + "_COL_MAJOR"
    made_in = "F" if problem.compute == "tf32" else _LETTERS[problem.accumulator.name]
    asked = theirs.NvMatmulHeuristicsInterfaceEx(
        backend=theirs.NvMatmulHeuristicsTarget[target],
        flags=theirs.NvMatmulHeuristicsFlags.PERF_MODEL_BASED_AUTO_TUNING,
        gpu=named[0],
    )
    question = asked.makeNvMatmulHeuristicsProblem(
        m, n, problem.k, theirs.NvMatmulHeuristicsMatmulLayout[layout], problem.l
    )
    precision = _LETTERS[problem.A.dtype] + made_in + _LETTERS[problem.C.dtype]
    recommended = []
    for row in asked.get(question, _ASKED, precision):
        kernel = row["kernel"]
        tile, cluster = (kernel.cta_tile_m, kernel.cta_tile_n), (kernel.cluster_m, kernel.cluster_n)
        if swapped:
            tile, cluster = tile[::-1], cluster[::-1]
        recommended.append(Recommendation(tile, cluster, kernel.split_k))
    return list(dict.fromkeys(recommended))[:MOST]


def _package() -> Any:
    try:
        import nvMatmulHeuristics
    except ImportError:
        raise OptionError(
            "heuristics=True needs nvidia-matmul-heuristics, which is not installed: "
            "pip install 'cute-gemm[heuristics]'"
        ) from None
    return nvMatmulHeuristics
