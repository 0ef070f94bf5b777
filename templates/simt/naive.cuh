// naive: one thread per element of C, independent of the layout.
//
// The idea: none yet. A warp lies along one mode of C for every layout of the matrices. All lanes
// therefore load the same word of one operand, and of the other a whole line or, if its unit stride
// is k, 32 words of 32 lines.

#pragma once

#include "gemm.cuh"

namespace cute_gemm {

template <class Config>
CUTE_DEVICE void naive(Gemm<Config> const& gemm) {
  using Accumulator = typename Config::Accumulator;
  Corner const corner = gemm.corner(), mine = first_result<Config>(threadIdx.x);
  int const row = corner.row + mine.row, column = corner.column + mine.column;

  if (row >= gemm.m || column >= gemm.n) return;

  Accumulator sum[1][1] = {};
  auto const* a = gemm.a(row, 0);
  auto const* b = gemm.b(column, 0);
#pragma unroll 4
  for (int k = 0; k < gemm.k; ++k) {
    multiply_add<Config>(sum[0][0], load<Accumulator>(a), load<Accumulator>(b));
    a += gemm.a_step();
    b += gemm.b_step();
  }
  write(gemm, row, column, sum);
}

}  // namespace cute_gemm
