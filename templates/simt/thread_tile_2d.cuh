// thread_tile_2d: TM x TN results per thread.
//
// The idea: outer products. TM elements of A and TN of B make TM * TN products, so that shared memory
// gives (TM + TN) / (TM * TN) words per product: 1/4 of a word with 8 x 8. A thread's results lie
// apart, so that the lanes' words are neighbours.

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

  // Neighbouring threads, neighbouring results, along C's unit stride first.
  using Threads = conditional_t<Config::kMajorNC,
                                Layout<Shape<Int<kThreadsN>, Int<kThreadsM>>, Stride<Int<kBM>, _1>>,
                                Layout<Shape<Int<kThreadsM>, Int<kThreadsN>>, Stride<_1, Int<kBM>>>>;
  // A thread's next result lies behind those of all threads.
  using ValuesM = Layout<Shape<_1, Int<kTM>>, Stride<_0, Int<kThreadsM>>>;
  using ValuesN = Layout<Shape<_1, Int<kTN>>, Stride<_0, Int<kThreadsN>>>;
};

template <class Config>
CUTE_DEVICE void thread_tile_2d(Gemm<Config> const& gemm) {
  outer_products<ThreadTile2D<Config>, size<2>(typename Config::Tile{})>(gemm);
}

}  // namespace cute_gemm
