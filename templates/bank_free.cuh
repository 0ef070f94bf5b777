// bank_free: no bank conflicts.
//
// The idea: vectorized, with another place in shared memory for the same words, so that the vectors of
// eight neighbouring threads, and the words of a turned store, lie in different banks. Either by
// padding (16 bytes after every 128, and rows that begin in different banks), or without spending
// any memory by an XOR of the column's chunk with the row: Swizzle<3,M,3>.

#pragma once

#include "vectorized.cuh"

namespace cute_gemm {

template <class Config>
CUTE_DEVICE void bank_free(Gemm<Config> const& gemm) {
  using Tile = typename Config::Tile;
  static_assert(swizzled_bits(typename Config::SmemA{}) != 0 ||
                    Config::kSmemA > size<0>(Tile{}) * size<2>(Tile{}),
                "swizzled or padded");
  vectorized(gemm);
}

}  // namespace cute_gemm
