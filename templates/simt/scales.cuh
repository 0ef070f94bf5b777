// Block scales, which multiply the products of a k tile before they are added.

#pragma once

#include "../common/scales.cuh"
#include "gemm.cuh"

namespace cute_gemm {

// The scales of a thread's results in a k tile. Scales of 128 rows are one number for the CTA's tile.
template <class Config, int RowsA, int RowsB>
struct ScaleFactors {
  using ValuesM = typename Config::ValuesM;
  using ValuesN = typename Config::ValuesN;
  enum : int {
    kM = size(ValuesM{}), kN = size(ValuesN{}),
    kA = RowsA == 1 ? int(kM) : RowsA / 128, kB = RowsB == 1 ? int(kN) : RowsB / 128
  };

  BlockScales<RowsA> const& scale_a;
  BlockScales<RowsB> const& scale_b;
  int row, column, m, n;  // place of the first result, and extents of C
  float a[kA + 1], b[kB + 1];

  CUTE_DEVICE void load(int k) {
    CUTE_UNROLL
    for (int i = 0; i < kA; ++i) {
      int const at = row + (RowsA == 1 ? int(ValuesM{}(i)) : 0);
      a[i] = at < m ? scale_a.at(at, k) : 0.0f;
    }
    CUTE_UNROLL
    for (int j = 0; j < kB; ++j) {
      int const at = column + (RowsB == 1 ? int(ValuesN{}(j)) : 0);
      b[j] = at < n ? scale_b.at(at, k) : 0.0f;
    }
  }

  CUTE_DEVICE float factor(int i, int j) const {
    float const of_row = a[RowsA == 1 ? i : 0], of_column = b[RowsB == 1 ? j : 0];
    if constexpr (RowsA == 0) return of_column;
    if constexpr (RowsB == 0) return of_row;
    return of_row * of_column;
  }

  // Adds the products of a k tile, multiplied by their scales, and resets them.
  CUTE_DEVICE void add(float (&accumulators)[kM][kN], float (&products)[kM][kN]) const {
    CUTE_UNROLL
    for (int j = 0; j < kN; ++j) {
      CUTE_UNROLL
      for (int i = 0; i < kM; ++i) {
        accumulators[i][j] += products[i][j] * factor(i, j);
        products[i][j] = 0.0f;
      }
    }
  }
};

}  // namespace cute_gemm
