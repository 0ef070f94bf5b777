// check_ends: whether the ends of groups decrease or exceed the total extent.

#pragma once

#include <cute/config.hpp>

namespace cute_gemm {

// Writes `number` to `flag`, which the host reads later, if an end is invalid. One warp.
CUTE_DEVICE void check_ends(int const* offsets, int* flag, int groups, int total, int number) {
  bool wrong = false;
  for (int group = threadIdx.x; group < groups; group += 32) {
    int const begin = group > 0 ? offsets[group - 1] : 0;
    wrong |= offsets[group] < begin || offsets[group] > total;
  }
  if (__ballot_sync(~0u, wrong) != 0 && threadIdx.x == 0) *flag = number;
}

}  // namespace cute_gemm
