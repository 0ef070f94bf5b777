// Block scales, which multiply the products of 128 of k before they are added: each thread loads those of its
// accumulators from global memory while it multiplies.

#pragma once

#include "../common/raster.cuh"
#include "../common/scales.cuh"

namespace cute_gemm {

// The scales of a thread's accumulators in a k tile, for its rows and for its columns.
template <class Config, int RowsA, int RowsB>
struct ScaleFactors {
  using Stage = typename Config::EpilogueStage;  // places of the accumulators of an MMA of all warps
  // In an MMA of a warp, m16n8, a thread has two rows, and two columns of each atom along N.
  enum : int {
    kBM = size<0>(typename Config::CtaTiler{}), kBN = size<1>(typename Config::CtaTiler{}),
    kTilesM = kBM / Stage::kRows, kTilesN = kBN / Stage::kColumns, kColumns = Stage::kValues / 2,
    kA = RowsA == 1 ? 2 * kTilesM : RowsA == 0 ? 0 : ceil_div(kBM, 128),
    kB = RowsB == 1 ? kColumns * kTilesN : RowsB == 0 ? 0 : ceil_div(kBN, 128)
  };

  BlockScales<RowsA> scale_a;
  BlockScales<RowsB> scale_b;
  int rows_left, columns_left;  // remaining from the thread's first row and column
  float a[kA + 1], b[kB + 1];

  CUTE_DEVICE ScaleFactors(BlockScales<RowsA> const& scale_a, BlockScales<RowsB> const& scale_b, Corner const& corner,
                           int m, int n)
      : scale_a(scale_a), scale_b(scale_b) {
    typename Stage::At const first(threadIdx.x, 0);
    int const row = corner.row + (RowsA == 1 ? first.row : 0);
    int const column = corner.column + (RowsB == 1 ? first.column : 0);
    if constexpr (RowsA > 0) this->scale_a.data += row / RowsA * scale_a.stride_mn;
    if constexpr (RowsB > 0) this->scale_b.data += column / RowsB * scale_b.stride_mn;
    rows_left = m - row, columns_left = n - column;
  }

  // The value of an MMA of all warps that is the first in row, or in column, `i` of a thread.
  CUTE_HOST_DEVICE static constexpr int of_row(int i) { return 2 * i; }
  CUTE_HOST_DEVICE static constexpr int of_column(int i) { return i % 2 + i / 2 * 4; }

  CUTE_DEVICE void load(int k) {
    CUTE_UNROLL
    for (int i = 0; i < kA; ++i) {
      typename Stage::At const step(0, of_row(i % 2));
      int const row = RowsA == 1 ? i / 2 * Stage::kRows + step.row : i * 128;
      a[i] = row < rows_left ? scale_a.at(row, k) : 0.0f;
    }
    CUTE_UNROLL
    for (int i = 0; i < kB; ++i) {
      typename Stage::At const step(0, of_column(i % kColumns));
      int const column = RowsB == 1 ? i / kColumns * Stage::kColumns + step.column : i * 128;
      b[i] = column < columns_left ? scale_b.at(column, k) : 0.0f;
    }
  }

  // The scale of value v of MMA (m,n) of all warps.
  CUTE_DEVICE float factor(int v, int m, int n) const {
    int const row = RowsA == 1 ? 2 * m + v / 2 % 2 : m * Stage::kRows / 128;
    int const column = RowsB == 1 ? n * kColumns + v / 4 * 2 + v % 2 : n * Stage::kColumns / 128;
    if constexpr (RowsA == 0) return b[column];
    if constexpr (RowsB == 0) return a[row];
    return a[row] * b[column];
  }

  // Adds the products of a k tile, multiplied by their scales.
  template <class Accumulator>
  CUTE_DEVICE void add(Accumulator* accumulators, Accumulator const* products) const {
    typename Config::FragmentC const fragment;  // ((MMA,REST_M,REST_N),TILES_M,TILES_N)
    CUTE_UNROLL
    for (int n = 0; n < kTilesN; ++n) {
      CUTE_UNROLL
      for (int m = 0; m < kTilesM; ++m) {
        CUTE_UNROLL
        for (int v = 0; v < Stage::kValues; ++v) {
          int const i = fragment(v, m, n);
          accumulators[i] += products[i] * factor(v, m, n);
        }
      }
    }
  }
};

}  // namespace cute_gemm
