// The loop over k of the kernels that copy tiles of A and B, wait for them and multiply them.

#pragma once

#include "tiles.cuh"

namespace cute_gemm {

// One tile's products: outer products of the thread's part of each column of A's tile and of B's,
// with `kUnroll` columns unrolled.
template <class Config, int kUnroll, class Accumulator, int kTM, int kTN>
CUTE_DEVICE void multiply_tile(Accumulator (&accumulators)[kTM][kTN], FragmentsA<Config> const& rows,
                               FragmentsB<Config> const& columns) {
#pragma unroll kUnroll
  for (int k = 0; k < size<2>(typename Config::Tile{}); ++k) {
    Accumulator a[kTM], b[kTN];
    rows.read(a, k);
    columns.read(b, k);
    outer_product<Config>(accumulators, a, b);
  }
}

// A CTA's tile of C: each tile of A and B goes gmem -> registers -> smem, and is multiplied there. The layouts of a
// `Page` of the ladder are those of its Config, which Python emits.
template <class Page, int kUnroll, class Config>
CUTE_DEVICE void outer_products(Gemm<Config> const& gemm) {
  static_assert(same_offsets(typename Config::Threads{}, typename Page::Threads{}), "Threads");
  static_assert(same_offsets(typename Config::ValuesM{}, typename Page::ValuesM{}), "ValuesM");
  static_assert(same_offsets(typename Config::ValuesN{}, typename Page::ValuesN{}), "ValuesN");
  static_assert(same_offsets(typename Config::SmemA{}, typename Page::SmemA{}), "SmemA");
  static_assert(same_offsets(typename Config::SmemB{}, typename Page::SmemB{}), "SmemB");
  constexpr int kTM = size(typename Config::ValuesM{}), kTN = size(typename Config::ValuesN{});
  int const thread = threadIdx.x;
  Corner const corner = gemm.corner(), mine = first_result<Config>(thread);

  auto* tile_a = shared_tiles<Config>();
  auto* tile_b = tile_a + Config::kSmemA;
  TileCopyA<Config> copy_a(gemm.a(corner.row, 0), gemm.lda, gemm.m - corner.row, gemm.k, thread);
  TileCopyB<Config> copy_b(gemm.b(corner.column, 0), gemm.ldb, gemm.n - corner.column, gemm.k, thread);
  FragmentsA<Config> const rows(tile_a, mine.row);
  FragmentsB<Config> const columns(tile_b, mine.column);

  typename Config::Accumulator accumulators[kTM][kTN] = {};
  CUTE_NO_UNROLL
  for (int first = 0; first < gemm.k; first += size<2>(typename Config::Tile{})) {
    copy_a.fetch();
    copy_b.fetch();
    __syncthreads();  // no thread reads the previous tiles any more
    copy_a.store(tile_a);
    copy_b.store(tile_b);
    __syncthreads();
    multiply_tile<Config, kUnroll>(accumulators, rows, columns);
  }
  write(gemm, corner.row + mine.row, corner.column + mine.column, accumulators);
}

}  // namespace cute_gemm
