// coalesced: one thread per element of C, warps along the mode that is contiguous in memory.
//
// The idea: the lanes of a request read adjacent words. Warps lie along m if A's unit stride is m,
// and along n if B's is n. If both have unit stride along k, a warp shares one element of C, its
// lanes take the products of adjacent k, and a reduction by shuffles adds them.

#pragma once

#include "gemm.cuh"

namespace cute_gemm {

template <class Config>
CUTE_DEVICE void coalesced(Gemm<Config> const& gemm) {
  using Accumulator = typename Config::Accumulator;
  constexpr int kLanes = Config::kLanesK;  // threads that share an element of C: 1, or a warp
  Corner const corner = gemm.corner(), mine = first_result<Config>(threadIdx.x / kLanes);
  int const row = corner.row + mine.row, column = corner.column + mine.column;
  if (row >= gemm.m || column >= gemm.n) return;  // a whole warp, if it shares the element
  int const lane = threadIdx.x % kLanes;

  Accumulator sum[1][1] = {};
  auto const* a = gemm.a(row, lane);
  auto const* b = gemm.b(column, lane);
  int const whole = gemm.k / kLanes;
#pragma unroll 16  // enough loads in flight to hide their latency
  for (int i = 0; i < whole; ++i) {
    multiply_add<Config>(sum[0][0], load<Accumulator>(a), load<Accumulator>(b));
    a += kLanes * gemm.a_step();
    b += kLanes * gemm.b_step();
  }
  if (whole * kLanes + lane < gemm.k) {
    multiply_add<Config>(sum[0][0], load<Accumulator>(a), load<Accumulator>(b));
  }
  CUTE_UNROLL
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    sum[0][0] += shuffled(sum[0][0], [&](uint32_t word) { return __shfl_down_sync(~0u, word, distance); });
  }
  if (lane == 0) write(gemm, row, column, sum);
}

}  // namespace cute_gemm
