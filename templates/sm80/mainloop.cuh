// What the loops over k of the tensor core kernels are made of: tiles on their way to shared memory,
// and blocks of them on their way to the registers of the MMAs.
//
// One `Config` for every element type and every layout of A(M,K), B(N,K), C(M,N):
//
//   Element, ElementC, Accumulator   types in gmem, and of the sums
//   Epilogue                         what becomes of the sums (LinearCombination)
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

#include "../common/copy.cuh"
#include "../common/raster.cuh"

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

// Both operands of the CTA's tile of C, gmem -> smem.
template <class Config>
struct Tiles {
  using Element = typename Config::Element;
  TileLoader<typename Config::GmemCopyA, typename Config::SmemLayoutA, Element, Config::kMajorKA> a;
  TileLoader<typename Config::GmemCopyB, typename Config::SmemLayoutB, Element, Config::kMajorKB> b;

  CUTE_DEVICE Tiles(Element const* A, Element const* B, int m, int n, int64_t lda, int64_t ldb,
                    Corner corner, uint32_t smem_a, uint32_t smem_b, int thread)
      : a(A + corner.row * (Config::kMajorKA ? lda : 1), Config::kMajorKA ? lda : 1,
          Config::kMajorKA ? 1 : lda, smem_a, thread, m - corner.row),
        b(B + corner.column * (Config::kMajorKB ? ldb : 1), Config::kMajorKB ? ldb : 1,
          Config::kMajorKB ? 1 : ldb, smem_b, thread, n - corner.column) {}

  CUTE_DEVICE void seek(int k_tile, int pipe) {
    a.seek(k_tile, pipe);
    b.seek(k_tile, pipe);
  }

  CUTE_DEVICE void advance(int pipe, bool active = true) {
    a.advance(pipe, active);
    b.advance(pipe, active);
  }

  // The last tile along k, of which `columns_left` columns are in the matrices.
  CUTE_DEVICE void load_cut(int columns_left) {
    a.template load<true>(0, 1, columns_left);
    b.template load<true>(0, 1, columns_left);
  }

  CUTE_DEVICE void load(int part = 0, int parts = 1) {
    a.template load<false>(part, parts);
    b.template load<false>(part, parts);
  }
};

// One operand, smem -> registers: what the thread's MMAs take of a tile, a k block at a time.
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
  CUTE_DEVICE void load(int block, int pipe, Fragment&& fragment) const {  // ((V,R),MMA_MN,BLOCKS)
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

// Both operands, smem -> registers -> products, a k block at a time.
template <class Config>
struct Blocks {
  using Element = typename Config::Element;
  using CtaTiler = typename Config::CtaTiler;
  using TiledMma = typename Config::TiledMma;
  using LoaderA = BlockLoader<typename Config::SmemCopyA, typename Config::SmemLayoutA, Element>;
  using LoaderB = BlockLoader<typename Config::SmemCopyB, typename Config::SmemLayoutB, Element>;
  using PartA = decltype(make_tensor<typename TiledMma::FrgTypeA>(
      partition_shape_A(TiledMma{}, select<0, 2>(CtaTiler{}))));
  using PartB = decltype(make_tensor<typename TiledMma::FrgTypeB>(
      partition_shape_B(TiledMma{}, select<1, 2>(CtaTiler{}))));
  static constexpr int kBlocks = LoaderA::kBlocks;           // k blocks in a tile
  static constexpr int kSteps = size<2>(PartA{}) / kBlocks;  // MMAs along k in a block

  LoaderA from_a;
  LoaderB from_b;
  PartA part_a;  // (MMA,MMA_M,MMA_K)
  PartB part_b;  // (MMA,MMA_N,MMA_K)

  CUTE_DEVICE Blocks(uint32_t smem_a, uint32_t smem_b, int thread)
      : from_a(smem_a, thread), from_b(smem_b, thread) {}

  CUTE_DEVICE void load(int block, int pipe) {
    from_a.load(block, pipe, typename Config::SmemCopyA{}.get_slice(0).retile_D(part_a));
    from_b.load(block, pipe, typename Config::SmemCopyB{}.get_slice(0).retile_D(part_b));
  }

  template <class Sums>
  CUTE_DEVICE void multiply(int block, Sums& sums) const {  // (MMA,MMA_M,MMA_N)
    CUTE_UNROLL
    for (int step = block * kSteps; step < (block + 1) * kSteps; ++step) {
      gemm(TiledMma{}, part_a(_, _, step), part_b(_, _, step), sums);
    }
  }
};

}  // namespace cute_gemm
