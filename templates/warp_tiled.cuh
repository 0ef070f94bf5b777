// warp_tiled: tiles of CTA, warp and thread, as CUTLASS's hierarchy has them.
//
// The idea: bank_free, with the results dealt out again. A warp takes a compact tile of C, so that it
// reads few different words; of its 8 x 4 lanes, neighbours share a vector of A and those two apart
// one of B, so that shared memory serves 16 lanes of a 128-bit read at a time instead of 8.

#pragma once

#include "thread_tile_2d.cuh"

namespace cute_gemm {

template <class Config>
CUTE_DEVICE void warp_tiled(Gemm<Config> const& gemm) {
  using Threads = typename Config::Threads;
  constexpr int kRows = size<0>(typename Config::Tile{});
  static_assert(Threads{}(1) % kRows == 0 && Threads{}(2) / kRows == 0,
                "lane 1 has lane 0's rows, lane 2 its columns");
  thread_tile_2d(gemm);
}

}  // namespace cute_gemm
