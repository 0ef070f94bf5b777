// vectorized: 128-bit accesses.
//
// The idea: the outer products of thread_tile_2d, with four words to an instruction. A thread's copy
// is a vector along the operand's unit stride; along k, it is turned on its way into shared memory,
// which takes a store per element. A thread's results are neighbours, so that its part of a row of
// shared memory is read in vectors too: 4 reads for 64 products instead of 16. What it costs is bank
// conflicts: the vectors of neighbouring threads are 32 bytes apart.

#pragma once

#include "thread_tile_2d.cuh"

namespace cute_gemm {

template <class Config>
CUTE_DEVICE void vectorized(Gemm<Config> const& gemm) {
  static_assert(size<0>(typename Config::ValuesM{}) * sizeof(typename Config::Element) == 16 ||
                    size<1>(typename Config::ValuesM{}) == 1,
                "the results of a thread are neighbours");
  thread_tile_2d(gemm);
}

}  // namespace cute_gemm
