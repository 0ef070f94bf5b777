// warp_tiled: tiles of CTA, warp and thread, the hierarchy of CUTLASS.
//
// The idea: another distribution of results than in bank_free. A warp takes a compact tile of C, so that
// it reads few different words. Adjacent lanes of its 8 x 4 share a vector of A, and lanes two
// apart one of B, so that shared memory serves 16 lanes of a 128-bit read at a time instead of 8.

#pragma once

#include "mainloop.cuh"

namespace cute_gemm {

template <class Config>
struct WarpTiled : Config {
  using Tile = typename Config::Tile;
  enum : int {
    kBM = size<0>(Tile{}), kBN = size<1>(Tile{}),
    kTM = size(typename Config::ValuesM{}), kTN = size(typename Config::ValuesN{}),
    kWarpM = 8 * kTM, kWarpN = 4 * kTN,  // a warp's tile
    kVector = 16 / sizeof(typename Config::Element),
    kRunM = cute::min(kTM, kVector), kRunN = cute::min(kTN, kVector)
  };

  // The bits of a lane's number are n m m m n; those of a warp's number begin with m.
  using Threads = Layout<
      Shape<_2, _8, _2, Int<kBM / kWarpM>, Int<kBN / kWarpN>>,
      Stride<Int<kRunN * kBM>, Int<kRunM>, Int<2 * kRunN * kBM>, Int<kWarpM>, Int<kWarpN * kBM>>>;
  // The vectors of the lanes are adjacent; a thread's next vector follows those of its warp.
  using ValuesM = Layout<Shape<Int<kRunM>, Int<kTM / kRunM>>, Stride<_1, Int<8 * kRunM>>>;
  using ValuesN = Layout<Shape<Int<kRunN>, Int<kTN / kRunN>>, Stride<_1, Int<4 * kRunN>>>;
};

template <class Config>
CUTE_DEVICE void warp_tiled(Gemm<Config> const& gemm) {
  outer_products<WarpTiled<Config>, size<2>(typename Config::Tile{})>(gemm);
}

}  // namespace cute_gemm
