// sm80_pipeline: multistage cp.async -> swizzled shared memory -> ldmatrix -> mma.sync -> C.
//
// The idea: several k tiles are on their way at a time. cp.async copies them into a ring of stages in
// shared memory while tensor_core's products are made of the oldest, so that the time of a copy is
// waited for once and not once per tile.
//
// One template for every element type and every layout of A(M,K), B(N,K), C(M,N). What differs is
// data, and comes in `Config`:
//
//   Element, ElementC, Accumulator   types in gmem, and of the sums
//   CtaTiler                         Shape<bM,bN,bK>
//   kMajorKA, kMajorKB               true: K is the unit-stride mode (C is column-major)
//   TiledMma                         instruction, warps, permutation
//   GmemCopyA, GmemCopyB             TiledCopy: gmem -> smem
//   SmemLayoutA, SmemLayoutB         (bM,bK,PIPE), (bN,bK,PIPE), swizzled
//   SmemCopyA, SmemCopyB             TiledCopy: smem -> registers, as TiledMma partitions
//   EpilogueTile, EpilogueLayout     the part of the C tile that is staged at a time, and where
//   EpilogueStage, EpilogueCopy      TiledCopy: registers -> smem, smem -> gmem
//   kRasterGroup, kMinCtas           rows of tiles per L2 group, CTAs per SM to fit registers for

#pragma once

#include <cute/algorithm/gemm.hpp>
#include <cute/atom/copy_atom.hpp>
#include <cute/atom/mma_atom.hpp>
#include <cutlass/array.h>

#include "common.cuh"

namespace cute_gemm {

// One operand, gmem -> smem: tiles (bMN,bK) in pieces of a TiledCopy.
template <class TiledCopy, class SmemLayout, class Element, bool kVectorAlongK>
struct TileLoader {
  static constexpr int kRows = size<0>(SmemLayout{}), kColumns = size<1>(SmemLayout{});
  using TV = typename TiledCopy::TiledLayout_TV;  // (thread,value) -> (kStepRows,kStepColumns)
  static constexpr int kStepRows = size<0>(typename TiledCopy::Tiler_MN{});
  static constexpr int kStepColumns = size<1>(typename TiledCopy::Tiler_MN{});
  static constexpr int kValues = size<1>(TV{}), kVector = TiledCopy::NumValSrc;
  static constexpr int kBytes = kVector * sizeof(Element);
  using At = Position<TV, kStepRows>;

  // The copies of a tile go along the mode across the vectors first, each one step further on.
  static constexpr int kSteps = kVectorAlongK ? kRows / kStepRows : kColumns / kStepColumns;
  static constexpr int kRepeats = kVectorAlongK ? kColumns / kStepColumns : kRows / kStepRows;

  int64_t row_stride, column_stride;
  int64_t step, k_step;   // elements to the next step, to the next tile
  Element const* next;    // the thread's first element of the tile after this
  Element const* source;  // and of the step to come
  uint32_t smem, target;
  int smem_first;
  At first;
  int rows_left, rows;  // from the thread's first row to the matrix's last; 0 for a tile left out

  CUTE_DEVICE TileLoader(Element const* tile, int64_t row_stride, int64_t column_stride, uint32_t smem,
                         int thread, int rows_left)
      : row_stride(row_stride), column_stride(column_stride), smem(smem), first(thread, 0),
        rows_left(rows_left - first.row) {
    step = kVectorAlongK ? kStepRows * row_stride : kStepColumns * column_stride;
    k_step = kColumns * column_stride;
    next = tile + first.row * row_stride + first.column * column_stride;
    smem_first = SmemLayout{}(first.row, first.column, 0);
  }

  // The tile to load is number `k_tile`, into stage `pipe`.
  CUTE_DEVICE void seek(int k_tile, int pipe) {
    source = next + k_tile * k_step;
    target = smem + pipe * int(kRows * kColumns * sizeof(Element));
    rows = rows_left;
  }

  // The tile to load is the next one, into stage `pipe`; none unless `active`.
  CUTE_DEVICE void advance(int pipe, bool active) {
    source = next;
    next += k_step;
    target = smem + pipe * int(kRows * kColumns * sizeof(Element));
    rows = active ? rows_left : 0;
  }

  // Issues part `part` of `parts` of the tile's copies. kCut: the tile is the last along k, of which
  // `columns_left` columns are in the matrix; what is outside is not read and becomes zeros. Rows
  // beyond the matrix need no zeros, because what they are multiplied to is not stored. In other
  // tiles a vector that straddles the last row is read whole: it ends before the next column does.
  template <bool kCut>
  CUTE_DEVICE void load(int part = 0, int parts = 1, int columns_left = kColumns) {
    constexpr int kVectors = kValues / kVector, kInner = kRepeats * kVectors;
    // Many narrow copies: a few at a time, or they take too many registers.
    constexpr bool kMany = kSteps * kInner > 16;
    constexpr int kUnroll = kMany && kInner > 8 ? 8 : kInner;
    constexpr int kUnrollSteps = !kMany ? kSteps : kInner < 8 ? 8 / kInner : 1;
#pragma unroll kUnrollSteps
    for (int i = 0; i < kSteps; ++i) {
      if (i * parts / kSteps != part) continue;
#pragma unroll kUnroll
      for (int j = 0; j < kInner; ++j) {
        At const at(0, j % kVectors * kVector);
        int const inner_row = (kVectorAlongK ? 0 : j / kVectors * kStepRows) + at.row;
        int const inner_column = (kVectorAlongK ? j / kVectors * kStepColumns : 0) + at.column;
        int const row = inner_row + (kVectorAlongK ? i * kStepRows : 0);
        int const column = inner_column + (kVectorAlongK ? 0 : i * kStepColumns);
        uint32_t const to =
            target + sizeof(Element) * join(SmemLayout{}, smem_first, SmemLayout{}(row, column, 0));
        Element const* const from = source + inner_row * row_stride + inner_column * column_stride;
        if constexpr (kCut) {
          int const columns = columns_left - first.column - column;
          int const valid = kVectorAlongK ? (row < rows ? min(columns, kVector) : 0)
                                          : (columns > 0 ? min(rows - row, kVector) : 0);
          copy_async_cut<kVector>(to, from, valid);
        } else {
          copy_async_if<kBytes>(to, from, row < rows);
        }
      }
      source += step;
      // Otherwise every multiple of the step would be kept in registers through the k loop.
      asm("" : "+l"(source));
    }
  }
};

// One operand, smem -> registers: the part of a tile that the thread's MMAs take, a k block at a time.
template <class TiledCopy, class SmemLayout, class Element>
struct BlockLoader {
  static constexpr int kRows = size<0>(SmemLayout{}), kColumns = size<1>(SmemLayout{});
  using TV = decltype(TiledCopy::get_layoutS_TV());
  static constexpr int kStepRows = size<0>(typename TiledCopy::Tiler_MN{});
  static constexpr int kStepColumns = size<1>(typename TiledCopy::Tiler_MN{});
  static constexpr int kValues = size<1>(TV{}), kVector = TiledCopy::NumValSrc;
  static constexpr int kBlocks = kColumns / kStepColumns;
  using At = Position<TV, kStepRows>;

  uint32_t smem;
  int smem_first;

  CUTE_DEVICE BlockLoader(uint32_t smem, int thread) : smem(smem) {
    At const first(thread, 0);
    smem_first = SmemLayout{}(first.row, first.column, 0);
  }

  template <class Fragment>
  CUTE_DEVICE void load(int block, int pipe, Fragment&& fragment) const {  // ((Vector,Rest),MMA_MN,Blocks)
    uint32_t const source = smem + pipe * int(kRows * kColumns * sizeof(Element));
    CUTE_UNROLL
    for (int mn = 0; mn < kRows / kStepRows; ++mn) {
      CUTE_UNROLL
      for (int v = 0; v < kValues / kVector; ++v) {
        At const step(0, v * kVector);
        int const offset = SmemLayout{}(mn * kStepRows + step.row, block * kStepColumns + step.column, 0);
        auto const* from = shared_pointer<Element const>(
            source + sizeof(Element) * join(SmemLayout{}, smem_first, offset));
        Tensor to = fragment(make_coord(_, v), mn, block);
        if constexpr (TiledCopy::AtomNumThr::value == 1) {
          using Vector = cutlass::AlignedArray<Element, kVector>;
          Vector const values = *reinterpret_cast<Vector const*>(from);
          CUTE_UNROLL
          for (int i = 0; i < kVector; ++i) to(i) = values[i];
        } else {
          TiledCopy{}.call(make_tensor(make_smem_ptr(from), Layout<Int<kVector>>{}), to);
        }
      }
    }
    if constexpr (is_same_v<Element, cutlass::tfloat32_t>) {
      // tf32 operands come as float32 and are rounded to nearest; the instruction would truncate.
      Tensor loaded = fragment(_, _, block);
      CUTE_UNROLL
      for (int i = 0; i < size(loaded); ++i) {
        loaded(i) = cutlass::tfloat32_t(reinterpret_cast<float const&>(loaded(i)));
      }
    }
  }
};

// Registers -> smem -> C, a part of the tile at a time: the sums change hands so that neighbouring
// threads hold neighbouring rows of C, which is column-major.
template <class Config, class Sums>
CUTE_DEVICE void epilogue(Sums const& sums, char* shared, typename Config::ElementC* C, int64_t ldc,
                          int rows_left, int columns_left, typename Config::Accumulator alpha,
                          typename Config::Accumulator beta) {
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
          using Results = cutlass::AlignedArray<ElementC, kVector>;
          Values const values = *reinterpret_cast<Values const*>(staged_in + layout(m, n));
          auto* target = reinterpret_cast<Results*>(out + m + column * ldc);
          Results results;
          if (beta == Accumulator(0)) {  // BLAS: C is not read
            CUTE_UNROLL
            for (int i = 0; i < kVector; ++i) results[i] = ElementC(alpha * values[i]);
          } else {
            Results const old = *target;
            CUTE_UNROLL
            for (int i = 0; i < kVector; ++i) {
              results[i] = ElementC(alpha * values[i] + beta * Accumulator(old[i]));
            }
          }
          *target = results;
        }
      }
    }
  }
}

// C (M,N):(1,ldc) = alpha * A (M,K) B (N,K)^T + beta * C; one CTA computes one (bM,bN) tile.
template <class Config>
CUTE_DEVICE void sm80_pipeline(typename Config::Element const* A, typename Config::Element const* B,
                               typename Config::ElementC* C, int m, int n, int k, int64_t lda,
                               int64_t ldb, int64_t ldc, typename Config::Accumulator alpha,
                               typename Config::Accumulator beta) {
  using Element = typename Config::Element;
  using Accumulator = typename Config::Accumulator;
  using CtaTiler = typename Config::CtaTiler;
  using SmemLayoutA = typename Config::SmemLayoutA;  // (bM,bK,PIPE)
  using SmemLayoutB = typename Config::SmemLayoutB;  // (bN,bK,PIPE)
  constexpr int kBM = size<0>(CtaTiler{}), kBN = size<1>(CtaTiler{}), kBK = size<2>(CtaTiler{});
  constexpr int kStages = size<2>(SmemLayoutA{});
  typename Config::TiledMma mma;

  extern __shared__ __align__(128) char shared[];
  int const thread = threadIdx.x;
  auto const tile = raster<Config::kRasterGroup>(blockIdx.x, ceil_div(m, kBM), ceil_div(n, kBN));
  int const row = get<0>(tile) * kBM, column = get<1>(tile) * kBN;  // of the tile's corner in C
  // BLAS: A and B are not read when alpha or k is 0, and a sum of nothing is 0 whatever alpha is.
  int const k_tiles = alpha == Accumulator(0) ? 0 : ceil_div(k, kBK);
  if (k_tiles == 0) alpha = Accumulator(0);

  Tensor tCrC = partition_fragment_C(mma, select<0, 1>(CtaTiler{}));  // (MMA,MMA_M,MMA_N)
  clear(tCrC);

  if (k_tiles > 0) {
    uint32_t const smem_a = cast_smem_ptr_to_uint(shared);
    uint32_t const smem_b = smem_a + size(SmemLayoutA{}) * sizeof(Element);
    int64_t const a_row = Config::kMajorKA ? lda : 1, a_column = Config::kMajorKA ? 1 : lda;
    int64_t const b_row = Config::kMajorKB ? ldb : 1, b_column = Config::kMajorKB ? 1 : ldb;
    TileLoader<typename Config::GmemCopyA, SmemLayoutA, Element, Config::kMajorKA> tiles_a(
        A + row * a_row, a_row, a_column, smem_a, thread, m - row);
    TileLoader<typename Config::GmemCopyB, SmemLayoutB, Element, Config::kMajorKB> tiles_b(
        B + column * b_row, b_row, b_column, smem_b, thread, n - column);

    // The last k tile, the only one that can be cut short, is loaded first: the loop needs no
    // predicate along k, and the order of a sum is free.
    int const last = k_tiles - 1;
    tiles_a.seek(last, 0);
    tiles_b.seek(last, 0);
    tiles_a.template load<true>(0, 1, k - last * kBK);
    tiles_b.template load<true>(0, 1, k - last * kBK);
    cp_async_fence();
    CUTE_UNROLL
    for (int stage = 1; stage < kStages - 1; ++stage) {
      tiles_a.advance(stage, stage < k_tiles);
      tiles_b.advance(stage, stage < k_tiles);
      tiles_a.template load<false>();
      tiles_b.template load<false>();
      cp_async_fence();
    }

    BlockLoader<typename Config::SmemCopyA, SmemLayoutA, Element> const blocks_a(smem_a, thread);
    BlockLoader<typename Config::SmemCopyB, SmemLayoutB, Element> const blocks_b(smem_b, thread);
    Tensor tCrA = make_tensor<typename Config::TiledMma::FrgTypeA>(
        partition_shape_A(mma, select<0, 2>(CtaTiler{})));  // (MMA,MMA_M,MMA_K)
    Tensor tCrB = make_tensor<typename Config::TiledMma::FrgTypeB>(
        partition_shape_B(mma, select<1, 2>(CtaTiler{})));  // (MMA,MMA_N,MMA_K)
    Tensor tXrA = typename Config::SmemCopyA{}.get_slice(thread).retile_D(tCrA);  // ((V,R),MMA_M,BLOCKS)
    Tensor tXrB = typename Config::SmemCopyB{}.get_slice(thread).retile_D(tCrB);  // ((V,R),MMA_N,BLOCKS)
    constexpr int kBlocks = decltype(blocks_a)::kBlocks;  // k blocks in a tile
    constexpr int kSteps = size<2>(tCrA) / kBlocks;       // MMAs along k in a block
    static_assert(kBlocks > 1, "the fragments of the next block are loaded while one is multiplied");

    cp_async_wait<kStages - 2>();
    __syncthreads();
    blocks_a.load(0, 0, tXrA);
    blocks_b.load(0, 0, tXrB);

    int read = 0, write = kStages - 1;
    CUTE_NO_UNROLL
    for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
      CUTE_UNROLL
      for (int block = 0; block < kBlocks; ++block) {
        if (block == kBlocks - 1) {
          cp_async_wait<kStages - 2>();
          __syncthreads();
          read = read == kStages - 1 ? 0 : read + 1;
        }
        blocks_a.load((block + 1) % kBlocks, read, tXrA);
        blocks_b.load((block + 1) % kBlocks, read, tXrB);
        // The copies of a tile to come are spread over the blocks, as far as the wait above allows.
        if (block == 0) {
          bool const active = k_tile + kStages - 1 < k_tiles;
          tiles_a.advance(write, active);
          tiles_b.advance(write, active);
        }
        if (block < kBlocks - 1) {
          tiles_a.template load<false>(block, kBlocks - 1);
          tiles_b.template load<false>(block, kBlocks - 1);
        }
        if (block == kBlocks - 2) {
          cp_async_fence();
          write = write == kStages - 1 ? 0 : write + 1;
        }
        CUTE_UNROLL
        for (int step = block * kSteps; step < (block + 1) * kSteps; ++step) {
          gemm(mma, tCrA(_, _, step), tCrB(_, _, step), tCrC);
        }
      }
    }
    cp_async_wait<0>();
  }

  epilogue<Config>(tCrC, shared, C + row + column * ldc, ldc, m - row, n - column, alpha, beta);
}

}  // namespace cute_gemm
