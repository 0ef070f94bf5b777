// smem_tiled: square tiles of A and B in shared memory, K in steps.
//
// The idea: smem_full_k in steps of K, so that shared memory does not limit K. A tile is stored with
// its M or N mode contiguous; if k is contiguous in memory, the tile is transposed on its way into
// rows that are padded so that the transposed stores use different banks.

#pragma once

#include "mainloop.cuh"

namespace cute_gemm {

template <class Config>
struct SmemTiled : Config {
  using Tile = typename Config::Tile;
  enum : int {
    kBM = size<0>(Tile{}), kBN = size<1>(Tile{}), kBK = size<2>(Tile{}),
    kPad = 16 / sizeof(typename Config::Element)
  };

  using SmemA = Layout<Shape<Int<kBM>, Int<kBK>>, Stride<_1, Int<kBM + (Config::kMajorKA ? kPad : 0)>>>;
  using SmemB = Layout<Shape<Int<kBN>, Int<kBK>>, Stride<_1, Int<kBN + (Config::kMajorKB ? kPad : 0)>>>;
};

template <class Config>
CUTE_DEVICE void smem_tiled(Gemm<Config> const& gemm) {
  outer_products<SmemTiled<Config>, size<2>(typename Config::Tile{})>(gemm);  // one row and one column
}

}  // namespace cute_gemm
