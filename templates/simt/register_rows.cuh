// register_rows: shared-memory tiles, several rows of C per thread.
//
// The idea: an element of B in a register serves all rows of a thread, which are adjacent, so one
// vector of shared memory has their elements of A: two rows take 3/2 words per product instead of 2.

#pragma once

#include "mainloop.cuh"

namespace cute_gemm {

template <class Config>
struct RegisterRows : Config {
  enum : int {
    kTM = size(typename Config::ValuesM{}),
    kVector = cute::min(kTM, 16 / int(sizeof(typename Config::Element)))
  };

  using ValuesM = Layout<Shape<Int<kVector>, Int<kTM / kVector>>, Stride<_1, Int<kVector>>>;
};

template <class Config>
CUTE_DEVICE void register_rows(Gemm<Config> const& gemm) {
  outer_products<RegisterRows<Config>, 4>(gemm);  // more would take more registers than two CTAs leave
}

}  // namespace cute_gemm
