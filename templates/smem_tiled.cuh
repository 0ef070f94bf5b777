// smem_tiled: square tiles of A and B in shared memory, K in steps.
//
// The idea: what smem_full_k does, a step of K at a time, so that shared memory does not limit K. A
// tile is stored with its M or N mode contiguous; one that comes with k contiguous is turned on its
// way, into rows padded so that the turned stores hit different banks.

#pragma once

#include "simt.cuh"

namespace cute_gemm {

template <class Config>
CUTE_DEVICE void smem_tiled(Gemm<Config> const& gemm) {
  using Accumulator = typename Config::Accumulator;
  constexpr int kBK = size<2>(typename Config::Tile{});
  int const thread = threadIdx.x;
  Corner const corner = gemm.corner(), mine = first_result<Config>(thread);

  auto* tile_a = shared_tiles<Config>();
  auto* tile_b = tile_a + Config::kSmemA;
  TileCopyA<Config> a(gemm.a(corner.row, 0), gemm.lda, gemm.m - corner.row, gemm.k, thread);
  TileCopyB<Config> b(gemm.b(corner.column, 0), gemm.ldb, gemm.n - corner.column, gemm.k, thread);

  FragmentsA<Config> const fragments_a(tile_a, mine.row);
  FragmentsB<Config> const fragments_b(tile_b, mine.column);

  Accumulator sum[1][1] = {};
  CUTE_NO_UNROLL
  for (int first = 0; first < gemm.k; first += kBK) {
    a.fetch();
    b.fetch();
    __syncthreads();  // nobody reads the tile before any more
    a.store(tile_a);
    b.store(tile_b);
    __syncthreads();
    CUTE_UNROLL
    for (int k = 0; k < kBK; ++k) {
      Accumulator a_k[1], b_k[1];
      fragments_a.read(a_k, k);
      fragments_b.read(b_k, k);
      multiply_add<Config>(sum[0][0], a_k[0], b_k[0]);
    }
  }
  write(gemm, corner.row + mine.row, corner.column + mine.column, sum);
}

}  // namespace cute_gemm
