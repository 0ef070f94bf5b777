// register_rows: shared-memory tiles, each thread some rows of C.
//
// The idea: an element of B, once in a register, serves all of a thread's rows, which are neighbours
// and so come out of shared memory in one vector: two rows take 3/2 words per product instead of 2.

#pragma once

#include "simt.cuh"

namespace cute_gemm {

template <class Config>
CUTE_DEVICE void register_rows(Gemm<Config> const& gemm) {
  using Accumulator = typename Config::Accumulator;
  constexpr int kBK = size<2>(typename Config::Tile{});
  constexpr int kRows = size(typename Config::ValuesM{});
  int const thread = threadIdx.x;
  Corner const corner = gemm.corner(), mine = first_result<Config>(thread);

  auto* tile_a = shared_tiles<Config>();
  auto* tile_b = tile_a + Config::kSmemA;
  TileCopyA<Config> a(gemm.a(corner.row, 0), gemm.lda, gemm.m - corner.row, gemm.k, thread);
  TileCopyB<Config> b(gemm.b(corner.column, 0), gemm.ldb, gemm.n - corner.column, gemm.k, thread);

  FragmentsA<Config> const fragments_a(tile_a, mine.row);
  FragmentsB<Config> const fragments_b(tile_b, mine.column);

  Accumulator sums[kRows][1] = {};
  CUTE_NO_UNROLL
  for (int first = 0; first < gemm.k; first += kBK) {
    a.fetch();
    b.fetch();
    __syncthreads();
    a.store(tile_a);
    b.store(tile_b);
    __syncthreads();
#pragma unroll 4  // further ahead, the reads would take more registers than two CTAs leave
    for (int k = 0; k < kBK; ++k) {
      Accumulator rows[kRows], shared[1];
      fragments_a.read(rows, k);
      fragments_b.read(shared, k);
      CUTE_UNROLL
      for (int i = 0; i < kRows; ++i) multiply_add<Config>(sums[i][0], rows[i], shared[0]);
    }
  }
  write(gemm, corner.row + mine.row, corner.column + mine.column, sums);
}

}  // namespace cute_gemm
