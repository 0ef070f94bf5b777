// thread_tile_1d: a column of results per thread, of larger and flatter tiles.
//
// The idea: more of register_rows, balanced: eight results for each element of B that a thread
// holds, in tiles of 64 x 64 whose bK of 8 keeps shared memory and the copies small. What a CTA
// reads of global memory halves (K/32 words per result), of shared memory 9/8 K words are left.

#pragma once

#include "register_rows.cuh"

namespace cute_gemm {

template <class Config>
CUTE_DEVICE void thread_tile_1d(Gemm<Config> const& gemm) {
  using Tile = typename Config::Tile;
  static_assert(size<2>(Tile{}) < size<0>(Tile{}) && size(typename Config::ValuesM{}) > 2,
                "a flat tile, and a column that is worth the name");
  register_rows(gemm);
}

}  // namespace cute_gemm
