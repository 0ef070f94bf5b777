// smem_full_k: all of K in shared memory.
//
// The idea: a CTA reads its rows of A and columns of B from global memory once, into shared memory,
// and a whole row or column of threads then uses each element. All of K must fit.

#pragma once

#include "mainloop.cuh"

namespace cute_gemm {

template <class Config>
CUTE_DEVICE void smem_full_k(Gemm<Config> const& gemm) {
  constexpr int kBK = size<2>(typename Config::Tile{});  // columns per step of the copy
  int const thread = threadIdx.x;
  Corner const corner = gemm.corner(), mine = first_result<Config>(thread);
  int const steps = ceil_div(gemm.k, kBK);

  auto* panel_a = shared_tiles<Config>();
  auto* panel_b = panel_a + steps * Config::kSmemA;
  TileCopyA<Config> a(gemm.a(corner.row, 0), gemm.lda, gemm.m - corner.row, gemm.k, thread);
  TileCopyB<Config> b(gemm.b(corner.column, 0), gemm.ldb, gemm.n - corner.column, gemm.k, thread);
  for (int step = 0; step < steps; ++step) {
    a.fetch();
    b.fetch();
    a.store(panel_a + step * Config::kSmemA);
    b.store(panel_b + step * Config::kSmemB);
  }
  __syncthreads();

  typename Config::Accumulator sum[1][1] = {};
  for (int step = 0; step < steps; ++step) {
    FragmentsA<Config> const fragments_a(panel_a + step * Config::kSmemA, mine.row);
    FragmentsB<Config> const fragments_b(panel_b + step * Config::kSmemB, mine.column);
    multiply_tile<Config, kBK>(sum, fragments_a, fragments_b);
  }
  write(gemm, corner.row + mine.row, corner.column + mine.column, sum);
}

}  // namespace cute_gemm
