"""Recommendations of ``nvidia-matmul-heuristics``, as candidates of a plan.

NVIDIA's package estimates times of CUTLASS's kernels on a GPU given by its name; none has to be
present. The CTA tile, the cluster and the number of slices of K of its recommendations are used.
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

#: The package's letters of types; that of tf32, a compute type, is F.
_LETTERS = {
    "float16": "H", "bfloat16": "T", "float32": "S", "float64": "D", "complex64": "C",
    "complex128": "Z", "int8": "B", "int32": "I",
}  # fmt: skip
#: Suffixes of the package's names of GPUs: ``"H200"`` is ``H200_SXM``.
_FORMS = ("", "_SXM", "_PCIE", "_NVL")
#: Recommendations that are used at most, and requested: many differ only in fields not used.
MOST, _ASKED = 8, 64


class Recommendation(NamedTuple):
    """Extents of a CTA tile, and CTAs of a cluster, along M and N; slices of K."""

    tile: tuple[int, int]
    cluster: tuple[int, int]
    split_k: int

    def distance(self, candidate: Candidate) -> float:
        """Factors of two between recommendation and candidate, summed over the five numbers."""
        recommended = (*self.tile, *self.cluster, self.split_k)
        cluster = getattr(candidate.config, "cluster", (1, 1))
        priced = (*candidate.config.tile[:2], *cluster, candidate.route.split_k)
        return sum(abs(log2(x / y)) for x, y in zip(recommended, priced, strict=True))


def advised(problem: GemmProblem, gpu: Gpu, candidates: Sequence[Candidate]) -> list[int]:
    """Return the indices of the candidates that are nearest to the recommendations.

    They are in the order of the recommendations, without repetitions; of equally near candidates
    the first is taken. Where some kernels have clusters, only their candidates are compared.
    """
    clusters = [i for i in range(len(candidates)) if hasattr(candidates[i].config, "cluster")]
    recommendations = recommended(problem, gpu, "CUTLASS3" if clusters else "CUTLASS")
    among = clusters or range(len(candidates))
    nearest = (
        min(among, key=lambda i: recommendation.distance(candidates[i]))
        for recommendation in recommendations
    )
    return list(dict.fromkeys(nearest))


def recommended(problem: GemmProblem, gpu: Gpu, target: str) -> list[Recommendation]:
    """Return the package's recommendations for kernels of CUTLASS 3 or 2, the best first.

    OptionError if the package is not installed, or does not know the GPU.
    """
    package = _package()
    gpus = {x.name: x for x in package.NvMatmulHeuristicsNvidiaGpu if x.name != "END"}
    name = gpu.name.removeprefix("NVIDIA ").upper().replace(" ", "_")
    named = [gpus[name + form] for form in _FORMS if name + form in gpus]
    if not named:
        raise OptionError(
            "heuristics=True asks nvidia-matmul-heuristics, which does not know the GPU "
            f"{gpu.name}: leave it out here"
        )
    # The layouts are for a column-major C; a row-major C is C^T, with A and B swapped.
    swapped = problem.C.major == "N"
    m, n, a, b = problem.m, problem.n, problem.A, problem.B
    if swapped:
        m, n, a, b = n, m, b, a
    layout = ("T" if a.major == "K" else "N") + ("N" if b.major == "K" else "T") + "_COL_MAJOR"
    compute_letter = "F" if problem.compute == "tf32" else _LETTERS[problem.accumulator.name]
    interface = package.NvMatmulHeuristicsInterfaceEx(
        backend=package.NvMatmulHeuristicsTarget[target],
        flags=package.NvMatmulHeuristicsFlags.PERF_MODEL_BASED_AUTO_TUNING,
        gpu=named[0],
    )
    question = interface.makeNvMatmulHeuristicsProblem(
        m, n, problem.k, package.NvMatmulHeuristicsMatmulLayout[layout], problem.l
    )
    precision = _LETTERS[problem.A.dtype] + compute_letter + _LETTERS[problem.C.dtype]
    recommendations = []
    for row in interface.get(question, _ASKED, precision):
        kernel = row["kernel"]
        tile, cluster = (kernel.cta_tile_m, kernel.cta_tile_n), (kernel.cluster_m, kernel.cluster_n)
        if swapped:
            tile, cluster = tile[::-1], cluster[::-1]
        recommendations.append(Recommendation(tile, cluster, kernel.split_k))
    return list(dict.fromkeys(recommendations))[:MOST]


def _package() -> Any:
    try:
        import nvMatmulHeuristics
    except ImportError:
        raise OptionError(
            "heuristics=True needs nvidia-matmul-heuristics, which is not installed: "
            "pip install 'cute-gemm[heuristics]'"
        ) from None
    return nvMatmulHeuristics
