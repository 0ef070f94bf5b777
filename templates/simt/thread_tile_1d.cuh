// thread_tile_1d: a column of results per thread, of larger and flatter tiles.
//
// The idea: more of register_rows, balanced: eight results for each element of B that a thread
// holds, in tiles of 64 x 64 whose bK of 8 keeps shared memory and the copies small. What a CTA
// reads of global memory halves (K/32 words per result), of shared memory 9/8 K words are left.

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

  // A warp lies along n: its lanes take the same rows of A, and columns of B side by side.
  using Threads = Layout<Shape<Int<kBN / kTN>, Int<kBM / kTM>>, Stride<Int<kTN * kBM>, Int<kTM>>>;
};

template <class Config>
CUTE_DEVICE void thread_tile_1d(Gemm<Config> const& gemm) {
  outer_products<ThreadTile1D<Config>, 4>(gemm);
}

}  // namespace cute_gemm
