// thread_tile_1d: a column of results per thread, with larger and flatter tiles.
//
// The idea: more of register_rows, balanced: eight results for each element of B in a thread, in
// tiles of 64 x 64 whose bK of 8 keeps shared memory and the copies small. A CTA reads half as much
// from global memory (K/32 words per result), and 9/8 K words from shared memory.

#pragma once

#include "mainloop.cuh"

namespace cute_gemm {

template <class Config>
struct ThreadTile1D : Config {
  using Tile = typename Config::Tile;
  enum : int {
    kBM = size<0>(Tile{}), kBN = size<1>(Tile{}),
    kTM = size(typename Config::ValuesM{}), kTN = size(typename Config::ValuesN{})
  };

  // A warp lies along n: its lanes read the same rows of A, and adjacent columns of B.
  using Threads = Layout<Shape<Int<kBN / kTN>, Int<kBM / kTM>>, Stride<Int<kTN * kBM>, Int<kTM>>>;
};

template <class Config>
CUTE_DEVICE void thread_tile_1d(Gemm<Config> const& gemm) {
  outer_products<ThreadTile1D<Config>, 4>(gemm);
}

}  // namespace cute_gemm
