// thread_tile_2d: TM x TN results per thread.
//
// The idea: outer products. TM elements of A and TN of B make TM * TN products, so that shared memory
// gives (TM + TN) / (TM * TN) words per product: 1/4 of a word with 8 x 8. A thread's results lie
// apart, so that the lanes' words are neighbours.

#pragma once

#include "simt.cuh"

namespace cute_gemm {

// One tile's products: outer products of the thread's part of each column of A's tile and of B's.
template <class Config, class Sums>
CUTE_DEVICE void multiply_tile(Sums& sums, FragmentsA<Config> const& fragments_a,
                               FragmentsB<Config> const& fragments_b) {
  using Accumulator = typename Config::Accumulator;
  using ValuesM = typename Config::ValuesM;
  using ValuesN = typename Config::ValuesN;
  CUTE_UNROLL
  for (int k = 0; k < size<2>(typename Config::Tile{}); ++k) {
    Accumulator a[size(ValuesM{})], b[size(ValuesN{})];
    fragments_a.read(a, k);
    fragments_b.read(b, k);
    outer_product<Config>(sums, a, b);
  }
}

template <class Config>
CUTE_DEVICE void thread_tile_2d(Gemm<Config> const& gemm) {
  int const thread = threadIdx.x;
  Corner const corner = gemm.corner(), mine = first_result<Config>(thread);

  auto* tile_a = shared_tiles<Config>();
  auto* tile_b = tile_a + Config::kSmemA;
  TileCopyA<Config> a(gemm.a(corner.row, 0), gemm.lda, gemm.m - corner.row, gemm.k, thread);
  TileCopyB<Config> b(gemm.b(corner.column, 0), gemm.ldb, gemm.n - corner.column, gemm.k, thread);

  FragmentsA<Config> const fragments_a(tile_a, mine.row);
  FragmentsB<Config> const fragments_b(tile_b, mine.column);

  typename Config::Accumulator sums[size(typename Config::ValuesM{})][size(typename Config::ValuesN{})] =
      {};
  CUTE_NO_UNROLL
  for (int first = 0; first < gemm.k; first += size<2>(typename Config::Tile{})) {
    a.fetch();
    b.fetch();
    __syncthreads();
    a.store(tile_a);
    b.store(tile_b);
    __syncthreads();
    multiply_tile<Config>(sums, fragments_a, fragments_b);
  }
  write(gemm, corner.row + mine.row, corner.column + mine.column, sums);
}

}  // namespace cute_gemm
