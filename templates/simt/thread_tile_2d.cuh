// thread_tile_2d: TM x TN results per thread.
//
// The idea: outer products. TM elements of A and TN of B make TM * TN products, so that shared memory
// delivers (TM + TN) / (TM * TN) words per product: 1/4 of a word with 8 x 8. The results of a thread
// are apart, so that the words of the lanes are adjacent.

#pragma once

#include "mainloop.cuh"

namespace cute_gemm {

template <class Config>
struct ThreadTile2D : Config {
  using Tile = typename Config::Tile;
  enum : int {
    kBM = size<0>(Tile{}), kBN = size<1>(Tile{}),
    kTM = size(typename Config::ValuesM{}), kTN = size(typename Config::ValuesN{}),
    kThreadsM = kBM / kTM, kThreadsN = kBN / kTN
  };

  // Adjacent threads have adjacent results, along C's unit stride first.
  using Threads = conditional_t<Config::kMajorNC,
                                Layout<Shape<Int<kThreadsN>, Int<kThreadsM>>, Stride<Int<kBM>, _1>>,
                                Layout<Shape<Int<kThreadsM>, Int<kThreadsN>>, Stride<_1, Int<kBM>>>>;
  // The next result of a thread follows the results of all threads.
  using ValuesM = Layout<Shape<_1, Int<kTM>>, Stride<_0, Int<kThreadsM>>>;
  using ValuesN = Layout<Shape<_1, Int<kTN>>, Stride<_0, Int<kThreadsN>>>;
};

template <class Config>
CUTE_DEVICE void thread_tile_2d(Gemm<Config> const& gemm) {
  outer_products<ThreadTile2D<Config>, size<2>(typename Config::Tile{})>(gemm);
}

}  // namespace cute_gemm
