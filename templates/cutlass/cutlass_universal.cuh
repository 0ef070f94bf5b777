// CUTLASS's 2.x GemmUniversal, with the entry that every kernel of this project has.
//
// The idea: the same hierarchy and pipeline in another implementation, CUTLASS 2.x's GemmUniversal, with
// tile, warps, stages and alignments selected here.
//
// The kernel type comes from cutlass_library's EmitGemmUniversalInstance. This file only has the parts that
// CUTLASS otherwise executes on the host: Arguments -> Params, and the tile of each CTA.
#pragma once

#include "cutlass/gemm/kernel/default_gemm_universal.h"

#include "../common/epilogue.cuh"

namespace cute_gemm {

/// GemmIdentityThreadblockSwizzle<N> for a one-dimensional grid: bands of N columns of tiles, walked
/// row by row. The last band may be narrower, so that every CTA has a tile.
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

/// Updates the tile at (row, column) of a row-major C without products.
template <class Gemm, class Scalar, class Output>
CUTLASS_DEVICE void update_tile(LinearCombination<Scalar, Output> const& epilogue, Output* C, int rows,
                               int columns, int64_t ldc, int row, int column) {
  using Tile = typename Gemm::ThreadblockShape;
  for (int i = threadIdx.x; i < Tile::kM * Tile::kN; i += Gemm::kThreadCount) {
    int const r = row + i / Tile::kN;
    int const c = column + i % Tile::kN;
    if (r < rows && c < columns) {
      update_without_products(epilogue, C + r * ldc + c, Coord{r, c, 0});
    }
  }
}

/// C <- alpha * op(A) @ op(B) + beta * C through `Gemm`, a cutlass::gemm::kernel::GemmUniversal.
///
/// CUTLASS writes row-major outputs only. `SwapAB` means that C is column-major: then `Gemm` is the
/// kernel of the transposed problem, whose first operand is B. Every thread computes the Params: they are
/// a few integers from the entry's parameters, so they live in uniform registers.
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
    // GemmUniversal would read A and B anyway (with k == 0 even beyond their ends), and an alpha
    // that is not finite would reach C.
    auto const tile = swizzle.get_tile_offset(0);
    update_tile<Gemm>(epilogue, C, params.problem_size.m(), params.problem_size.n(), ldc,
                     tile.m() * Gemm::ThreadblockShape::kM, tile.n() * Gemm::ThreadblockShape::kN);
    return;
  }
  Gemm().run_with_swizzle(params, *reinterpret_cast<typename Gemm::SharedStorage*>(shared_storage), swizzle);
}

}  // namespace cute_gemm
