// Block scales of A or of B, in global memory.

#pragma once

#include <cute/config.hpp>

namespace cute_gemm {

// A tensor (MN / Rows, K / 128); Rows is 1 or 128, or 0 without scales.
template <int Rows>
struct BlockScales {
  enum : int { kRows = Rows };

  float const* data;
  int64_t stride_mn, stride_k;

  CUTE_DEVICE float at(int row, int k) const { return data[row / Rows * stride_mn + k / 128 * stride_k]; }
};
template <>
struct BlockScales<0> {
  enum : int { kRows = 0 };

  CUTE_DEVICE float at(int, int) const { return 1.0f; }
};

}  // namespace cute_gemm
