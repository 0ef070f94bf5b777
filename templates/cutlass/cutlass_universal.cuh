// CUTLASS's own 2.x GemmUniversal behind the entry that every kernel of this project has.
//
// The idea: the same hierarchy and pipeline, written by others. CUTLASS 2.x's GemmUniversal, with
// tile, warps, stages and alignments chosen here.
//
// The kernel type comes from cutlass_library's EmitGemmUniversalInstance. What is here is only what
// CUTLASS otherwise does on the host: Arguments -> Params, and which CTA computes which tile.
#pragma once

#include "cutlass/gemm/kernel/default_gemm_universal.h"

#include "../common/epilogue.cuh"

namespace cute_gemm {

/// GemmIdentityThreadblockSwizzle<N> for a one-dimensional grid: bands of N columns of tiles, walked
/// row by row. The last band may be narrower, so that no CTA is without a tile.
template <int N>
struct LinearThreadblockSwizzle {
  struct Tile {
    int m, n;
  };

  int tiles_m = 1;
  int tiles_n = 1;

  CUTLASS_HOST_DEVICE
  static cutlass::gemm::GemmCoord get_tiled_shape(cutlass::gemm::GemmCoord problem,
                                                  cutlass::gemm::GemmCoord tile, int split_k) {
    return {cutlass::ceil_div(problem.m(), tile.m()), cutlass::ceil_div(problem.n(), tile.n()), split_k};
  }

  CUTLASS_HOST_DEVICE
  static int get_log_tile(cutlass::gemm::GemmCoord) { return 0; }

  /// The tile of a CTA.
  CUTLASS_HOST_DEVICE
  static constexpr Tile tile_of(unsigned block, unsigned tiles_m, unsigned tiles_n) {
    unsigned const band = block / (tiles_m * N);
    unsigned const inside = block - band * (tiles_m * N);
    unsigned const width = tiles_n - band * N < N ? tiles_n - band * N : N;
    unsigned const row = inside / width;
    return {int(row), int(band * N + inside - row * width)};
  }

  CUTLASS_DEVICE
  cutlass::gemm::GemmCoord get_tile_offset(int) const {
    Tile const tile = tile_of(blockIdx.x, tiles_m, tiles_n);
    return {tile.m, tile.n, 0};
  }
};

/// Whether CUTLASS's thread map of a load is the one that the analysis evaluated.
template <class Map, int Threads, int Vector, int StepsContiguous, int StepsStrided, int DeltaContiguous,
          int DeltaStrided>
inline constexpr bool is_load_map =
    Map::kThreads == Threads && Map::kElementsPerAccess == Vector &&
    Map::Iterations::kContiguous == StepsContiguous && Map::Iterations::kStrided == StepsStrided &&
    // The step along a mode that has a single one is nobody's business.
    (StepsContiguous == 1 || Map::Delta::kContiguous == DeltaContiguous) &&
    (StepsStrided == 1 || Map::Delta::kStrided == DeltaStrided);

/// The same for the epilogue's map. Column, row, group, cluster: accesses, then the steps between them.
template <class Map, int Threads, int Vector, int C, int R, int G, int K, int DC, int DR, int DG, int DK>
inline constexpr bool is_store_map =
    Map::kThreads == Threads && Map::kElementsPerAccess == Vector && Map::Iterations::kColumn == C &&
    Map::Iterations::kRow == R && Map::Iterations::kGroup == G && Map::Iterations::kCluster == K &&
    (C == 1 || Map::Delta::kColumn == DC) && (R == 1 || Map::Delta::kRow == DR) &&
    (G == 1 || Map::Delta::kGroup == DG) && (K == 1 || Map::Delta::kCluster == DK);

/// Whether operands lie in shared memory as the analysis says: `Rows` and `Columns` of the instance's
/// tile with their padding, `Depth` elements of K in all stages, `Groups` steps of a warp per k-tile.
template <class Mma, class LayoutA, class LayoutB, int Rows, int Columns, int Depth, int Groups>
inline constexpr bool is_shared =
    cutlass::platform::is_same<typename Mma::Operator::LayoutA, LayoutA>::value &&
    cutlass::platform::is_same<typename Mma::Operator::LayoutB, LayoutB>::value &&
    cutlass::platform::is_same<typename Mma::SmemIteratorA::Layout, LayoutA>::value &&
    cutlass::platform::is_same<typename Mma::SmemIteratorB::Layout, LayoutB>::value &&
    Mma::SharedStorage::ShapeA::kRow == Rows && Mma::SharedStorage::ShapeA::kColumn == Depth &&
    Mma::SharedStorage::ShapeB::kRow == Depth && Mma::SharedStorage::ShapeB::kColumn == Columns &&
    Mma::Base::kWarpGemmIterations == Groups;

/// Whether a warp's tile is M x N, of tensor core instructions with this shape.
template <class Operator, int M, int N, int InstructionM, int InstructionN, int InstructionK>
inline constexpr bool is_tensor_op =
    Operator::Shape::kM == M && Operator::Shape::kN == N && Operator::InstructionShape::kM == InstructionM &&
    Operator::InstructionShape::kN == InstructionN && Operator::InstructionShape::kK == InstructionK;

/// The same without tensor cores: lanes in Rows x Columns, vectors of VectorM and VectorN elements.
template <class Operator, int M, int N, class LaneLayout, int Rows, int Columns, int VectorM, int VectorN>
inline constexpr bool is_simt =
    Operator::Shape::kM == M && Operator::Shape::kN == N &&
    cutlass::platform::is_same<typename Operator::Policy::LaneLayout, LaneLayout>::value &&
    Operator::Policy::WarpShape::kRow == Rows && Operator::Policy::WarpShape::kColumn == Columns &&
    Operator::Policy::LaneMmaShape::kM == VectorM && Operator::Policy::LaneMmaShape::kN == VectorN;

/// Whether the epilogue stages its sums as the analysis says: `Iterations` times `Rows` rows of each
/// warp, `Pitch` elements apart, read in vectors of `Vector`, which `Mixed` exchanges.
template <class Epilogue, int Iterations, int Rows, int Pitch, int Vector, bool Mixed>
inline constexpr bool is_staged = [] {
  using Load = typename Epilogue::SharedLoadIterator;
  using Plain = cutlass::epilogue::threadblock::SharedLoadIterator<typename Load::ThreadMap,
                                                                   typename Load::Element>;
  return Epilogue::OutputTileIterator::kIterations == Iterations &&
         Epilogue::WarpTileIterator::Shape::kRow == Rows &&
         Epilogue::Base::SharedStorage::StorageShape::kColumn == Pitch &&
         Load::LoadType::kElements == Vector && cutlass::platform::is_same<Load, Plain>::value != Mixed;
}();

/// Updates the tile at (row, column) of a row-major C without products.
template <class Gemm, class Scalar, class Output>
CUTLASS_DEVICE void update_tile(LinearCombination<Scalar, Output> const& epilogue, Output* C, int rows,
                               int columns, int64_t ldc, int row, int column) {
  using Tile = typename Gemm::ThreadblockShape;
  for (int i = threadIdx.x; i < Tile::kM * Tile::kN; i += Gemm::kThreadCount) {
    int const r = row + i / Tile::kN;
    int const c = column + i % Tile::kN;
    if (r < rows && c < columns) {
      update_without_products<Scalar>(epilogue, C + r * ldc + c, Coord{r, c, 0});
    }
  }
}

/// C <- alpha * op(A) @ op(B) + beta * C through `Gemm`, a cutlass::gemm::kernel::GemmUniversal.
///
/// CUTLASS writes row-major outputs only. `SwapAB` says that C is column-major: then `Gemm` is the
/// kernel of the transposed problem, whose first operand is B. Params are computed by every thread:
/// they are a few integers of the entry's parameters, so they live in uniform registers.
template <class Gemm, bool SwapAB, class Scalar, class Element, class Output>
CUTLASS_DEVICE void cutlass_universal(Element const* A, Element const* B, Output* C, int m, int n,
                                      int k, int64_t lda, int64_t ldb, int64_t ldc,
                                      typename LinearCombination<Scalar, Output>::Params const& scalars) {
  extern __shared__ __align__(128) char shared_storage[];

  LinearCombination<Scalar, Output> epilogue(scalars);
  typename Gemm::Arguments const arguments(
      cutlass::gemm::GemmUniversalMode::kGemm,
      SwapAB ? cutlass::gemm::GemmCoord(n, m, k) : cutlass::gemm::GemmCoord(m, n, k),
      /* batch_count */ 1, typename Gemm::EpilogueOutputOp::Params(epilogue.alpha, epilogue.beta),
      SwapAB ? B : A, SwapAB ? A : B, C, C, /* batch strides */ 0, 0, 0, 0, SwapAB ? ldb : lda,
      SwapAB ? lda : ldb, ldc, ldc);
  typename Gemm::Params const params(arguments, /* device_sms */ 1, /* sm_occupancy */ 1);
  typename Gemm::ThreadblockSwizzle swizzle{params.grid_tiled_shape.m(), params.grid_tiled_shape.n()};

  if (epilogue.skips_products(k)) {
    // GemmUniversal would read A and B all the same (with k == 0 even beyond them), and an alpha
    // that is not finite would reach C.
    auto const tile = swizzle.get_tile_offset(0);
    update_tile<Gemm>(epilogue, C, params.problem_size.m(), params.problem_size.n(), ldc,
                     tile.m() * Gemm::ThreadblockShape::kM, tile.n() * Gemm::ThreadblockShape::kN);
    return;
  }
  Gemm().run_with_swizzle(params, *reinterpret_cast<typename Gemm::SharedStorage*>(shared_storage),
                          swizzle);
}

}  // namespace cute_gemm
