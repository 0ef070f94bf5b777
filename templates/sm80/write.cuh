// Stores of the tensor core kernels' accumulators to C.

#pragma once

#include <cutlass/array.h>

#include "../common/epilogue.cuh"
#include "../common/layout.cuh"

namespace cute_gemm {

// Registers -> smem -> C, a part of the tile at a time: the accumulators are exchanged so that adjacent
// threads hold adjacent rows of C, which is column-major.
template <class Config>
CUTE_DEVICE void write_staged(typename Config::Accumulator const* accumulators, char* shared,
                              typename Config::ElementC* C, int extent_m, int extent_n, int64_t ldc,
                              Corner const& corner, int batch, typename Config::Epilogue const& epilogue) {
  using Accumulator = typename Config::Accumulator;
  using ElementC = typename Config::ElementC;
  using Tile = typename Config::EpilogueTile;
  constexpr int kRows = size<0>(Tile{}), kColumns = size<1>(Tile{});
  constexpr int kParts = size<1>(typename Config::CtaTiler{}) / kColumns;
  static_assert(kRows == size<0>(typename Config::CtaTiler{}));
  typename Config::EpilogueLayout layout;  // (kRows,kColumns), padded
  auto* staged = reinterpret_cast<Accumulator*>(shared);

  typename Config::FragmentC fragment;  // ((MMA,REST_M,REST_N),TILES_M,TILES_N)
  using Stage = typename Config::EpilogueStage;
  typename Stage::At const sum(threadIdx.x, 0);
  Accumulator* const sum_out = staged + layout(sum.row, sum.column);

  using Copy = typename Config::EpilogueCopy;
  static_assert(int(Copy::kValues) == Copy::kVector);
  constexpr int kCopies = kRows / Copy::kRows * (kColumns / Copy::kColumns);
  constexpr int kTogether = 4;  // values of C and of operands are loaded before the first store
  typename Copy::At const mine(threadIdx.x, 0);
  Accumulator const* const staged_in = staged + layout(mine.row, mine.column);
  ElementC* const out = C + corner.row + corner.column * ldc + mine.row + mine.column * ldc;
  int const rows_left = extent_m - corner.row, columns_left = extent_n - corner.column;

  CUTE_UNROLL
  for (int part = 0; part < kParts; ++part) {
    __syncthreads();  // the previous contents of shared memory have been read
    CUTE_UNROLL
    for (int n = 0; n < kColumns / Stage::kColumns; ++n) {
      CUTE_UNROLL
      for (int m = 0; m < kRows / Stage::kRows; ++m) {
        CUTE_UNROLL
        for (int v = 0; v < Stage::kValues; v += Stage::kVector) {
          typename Stage::At const step(0, v);
          int const index = fragment(v, m, n + part * (kColumns / Stage::kColumns));
          cutlass::AlignedArray<Accumulator, Stage::kVector> values;
          CUTE_UNROLL
          for (int i = 0; i < Stage::kVector; ++i) values[i] = accumulators[index + i];
          *reinterpret_cast<decltype(values)*>(
              sum_out + layout(m * Stage::kRows + step.row, n * Stage::kColumns + step.column)) = values;
        }
      }
    }
    __syncthreads();
    CUTE_UNROLL
    for (int first = 0; first < kCopies; first += kTogether) {
      Update<Copy::kVector, !Config::kSwapAB, typename Config::Epilogue, ElementC> updates[kTogether];
      auto const each = [&](auto const& function) {
        CUTE_UNROLL
        for (int i = first; i < first + kTogether && i < kCopies; ++i) {
          int const m = i % (kRows / Copy::kRows) * Copy::kRows, n = i / (kRows / Copy::kRows) * Copy::kColumns;
          int const column = part * kColumns + n;
          if (mine.row + m < rows_left && mine.column + column < columns_left) {
            function(updates[i - first], out + m + column * ldc, staged_in + layout(m, n),
                     coord<Config::kSwapAB>(corner.row + mine.row + m, corner.column + mine.column + column, batch));
          }
        }
      };
      each([&](auto& update, ElementC* c, Accumulator const*, Coord const& at) { update.load(epilogue, c, at); });
      each([&](auto& update, ElementC* c, Accumulator const* from, Coord const& at) {
        using Values = cutlass::AlignedArray<Accumulator, Copy::kVector>;
        Values const values = *reinterpret_cast<Values const*>(from);
        update.store(epilogue, c, values, at);
      });
    }
  }
}

}  // namespace cute_gemm
