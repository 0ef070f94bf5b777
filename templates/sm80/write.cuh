// The way of the tensor core kernels' sums to C.

#pragma once

#include <cute/atom/copy_atom.hpp>

#include "../common/epilogue.cuh"
#include "../common/layout.cuh"

namespace cute_gemm {

// Registers -> smem -> C, a part of the tile at a time: the sums change hands so that neighbouring
// threads hold neighbouring rows of C, which is column-major.
template <class Config, class Sums, class Epilogue>
CUTE_DEVICE void write_staged(Sums const& sums, char* shared, typename Config::ElementC* C,
                              int64_t ldc, int rows_left, int columns_left,
                              Epilogue const& epilogue) {
  using Accumulator = typename Config::Accumulator;
  using ElementC = typename Config::ElementC;
  using Tile = typename Config::EpilogueTile;
  constexpr int kRows = size<0>(Tile{}), kColumns = size<1>(Tile{});
  constexpr int kParts = size<1>(typename Config::CtaTiler{}) / kColumns;
  static_assert(kRows == size<0>(typename Config::CtaTiler{}));
  typename Config::EpilogueLayout layout;  // (kRows,kColumns), padded
  auto* staged = reinterpret_cast<Accumulator*>(shared);

  // A thread's sums: (MMA,MMA_M,MMA_N) in registers, values of the tiled MMA within a tile.
  using Stage = typename Config::EpilogueStage;
  using StageTV = decltype(Stage::get_layoutS_TV());
  constexpr int kStageRows = size<0>(typename Stage::Tiler_MN{});
  constexpr int kStageColumns = size<1>(typename Stage::Tiler_MN{});
  constexpr int kStageValues = size<1>(StageTV{}), kStageVector = Stage::NumValSrc;
  constexpr int kMma = size<0>(Sums{}), kMmaM = size<1>(Sums{});
  constexpr int kTileM = kMmaM / (kRows / kStageRows);  // MMAs along M in a tile of the tiled MMA
  constexpr int kTileN = kStageValues / kMma / kTileM;
  Position<StageTV, kStageRows> const sum(threadIdx.x, 0);
  Accumulator* const sum_out = staged + layout(sum.row, sum.column);

  using Copy = typename Config::EpilogueCopy;
  using CopyTV = typename Copy::TiledLayout_TV;
  constexpr int kCopyRows = size<0>(typename Copy::Tiler_MN{});
  constexpr int kCopyColumns = size<1>(typename Copy::Tiler_MN{});
  constexpr int kVector = Copy::NumValSrc;
  static_assert(size<1>(CopyTV{}) == kVector);
  Position<CopyTV, kCopyRows> const mine(threadIdx.x, 0);
  Accumulator const* const staged_in = staged + layout(mine.row, mine.column);
  ElementC* const out = C + mine.row + mine.column * ldc;

  CUTE_UNROLL
  for (int part = 0; part < kParts; ++part) {
    __syncthreads();  // what was in shared memory before has been read
    CUTE_UNROLL
    for (int n = 0; n < kColumns / kStageColumns; ++n) {
      CUTE_UNROLL
      for (int m = 0; m < kRows / kStageRows; ++m) {
        CUTE_UNROLL
        for (int v = 0; v < kStageValues; v += kStageVector) {
          Position<StageTV, kStageRows> const step(0, v);
          int const mma_m = v / kMma % kTileM + m * kTileM;
          int const mma_n = v / kMma / kTileM + (n + part * (kColumns / kStageColumns)) * kTileN;
          int const index = v % kMma + kMma * (mma_m + kMmaM * mma_n);
          cutlass::AlignedArray<Accumulator, kStageVector> values;
          CUTE_UNROLL
          for (int i = 0; i < kStageVector; ++i) values[i] = sums(index + i);
          *reinterpret_cast<decltype(values)*>(
              sum_out + layout(m * kStageRows + step.row, n * kStageColumns + step.column)) = values;
        }
      }
    }
    __syncthreads();
    CUTE_UNROLL
    for (int n = 0; n < kColumns; n += kCopyColumns) {
      CUTE_UNROLL
      for (int m = 0; m < kRows; m += kCopyRows) {
        int const column = part * kColumns + n;
        if (mine.row + m < rows_left && mine.column + column < columns_left) {
          using Values = cutlass::AlignedArray<Accumulator, kVector>;
          Values const values = *reinterpret_cast<Values const*>(staged_in + layout(m, n));
          epilogue.template update<kVector>(out + m + column * ldc, values);
        }
      }
    }
  }
}

}  // namespace cute_gemm
