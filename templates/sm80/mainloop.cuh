// What the loops over k of the tensor core kernels are made of: tiles on their way to shared memory,
// and blocks of them on their way to the registers of the MMAs.
//
// One `Config` for every element type and every layout of A(M,K), B(N,K), C(M,N):
//
//   Element, ElementC, Accumulator   types in gmem, and of the sums
//   Epilogue                         what becomes of the sums (LinearCombination)
//   CtaTiler                         Shape<bM,bN,bK>
//   kMajorKA, kMajorKB               true: K is the unit-stride mode (C is column-major)
//   Mma                              CuTe's instruction
//   GmemCopyA, GmemCopyB             Copy: gmem -> smem
//   SmemLayoutA, SmemLayoutB         (bM,bK,PIPE), (bN,bK,PIPE), swizzled
//   SmemCopyA, SmemCopyB             Copy: smem -> registers, as the tiled MMA partitions
//   FragmentA, FragmentB             ((MMA,REST_MN,REST_K),TILES,BLOCKS) -> a thread's value
//   FragmentC                        ((MMA,REST_M,REST_N),TILES_M,TILES_N) -> a thread's sum
//   EpilogueTile, EpilogueLayout     the part of the C tile that is staged at a time, and where
//   EpilogueStage, EpilogueCopy      Copy: registers -> smem, smem -> gmem
//   kRasterGroup                     rows of tiles per L2 group
//
// These layouts are finished: what CuTe's make_tiled_copy, retile and partition would compute of thread
// and value layouts is spelled out, and of CuTe come the layouts' arithmetic and the instructions. That
// CuTe computes the same is proved by a unit of its own (common/proof.cuh).

#pragma once

#include <cute/arch/copy_sm75.hpp>
#include <cute/arch/mma.hpp>
#include <cutlass/array.h>

#include "../common/copy.cuh"
#include "../common/raster.cuh"

namespace cute_gemm {

// What each thread moves of a step (kRows,kColumns), which repeated fills a tile: TV takes (thread,value)
// to row + kRows * column of what it addresses, kVector values at a time, with CuTe's Instruction.
template <class Instruction_, class TV_, int Rows, int Columns, int Vector>
struct Copy {
  using Instruction = Instruction_;
  using TV = TV_;
  using At = Position<TV, Rows>;
  enum : int { kRows = Rows, kColumns = Columns, kVector = Vector, kValues = size<1>(TV{}) };
};

// One operand, gmem -> smem: tiles (bMN,bK) in steps of a Copy.
template <class Copy, class SmemLayout, class Element, bool kVectorAlongK>
struct TileLoader {
  using At = typename Copy::At;
  enum : int {
    kRows = size<0>(SmemLayout{}), kColumns = size<1>(SmemLayout{}),
    kStepRows = Copy::kRows, kStepColumns = Copy::kColumns,
    kValues = Copy::kValues, kVector = Copy::kVector,
    kBytes = kVector * sizeof(Element),
    // The copies of a tile go along the mode across the vectors first, each one step further on.
    kSteps = kVectorAlongK ? kRows / kStepRows : kColumns / kStepColumns,
    kRepeats = kVectorAlongK ? kColumns / kStepColumns : kRows / kStepRows
  };

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
          int const valid = kVectorAlongK ? (row < rows ? min(columns, int(kVector)) : 0)
                                          : (columns > 0 ? min(rows - row, int(kVector)) : 0);
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
template <class Copy, class Fragment, class SmemLayout, class Element>
struct BlockLoader {
  using Instruction = typename Copy::Instruction;
  using Given = typename remove_extent<typename Instruction::SRegisters>::type;
  using Taken = typename remove_extent<typename Instruction::DRegisters>::type;
  using At = typename Copy::At;
  enum : int {
    kRows = size<0>(SmemLayout{}), kColumns = size<1>(SmemLayout{}),
    kBlocks = kColumns / Copy::kColumns
  };

  uint32_t smem;
  int smem_first;
  alignas(16) Element values[size(Fragment{})];

  CUTE_DEVICE BlockLoader(uint32_t smem, int thread) : smem(smem) {
    At const first(thread, 0);
    smem_first = SmemLayout{}(first.row, first.column, 0);
  }

  CUTE_DEVICE void load(int block, int pipe) {
    uint32_t const source = smem + pipe * int(kRows * kColumns * sizeof(Element));
    CUTE_UNROLL
    for (int mn = 0; mn < kRows / Copy::kRows; ++mn) {
      CUTE_UNROLL
      for (int v = 0; v < Copy::kValues; v += Copy::kVector) {
        At const step(0, v);
        int const offset =
            SmemLayout{}(mn * Copy::kRows + step.row, block * Copy::kColumns + step.column, 0);
        uint32_t const from = source + sizeof(Element) * join(SmemLayout{}, smem_first, offset);
        if constexpr (is_same_v<Given, Taken>) {
          using Vector = cutlass::AlignedArray<Element, Copy::kVector>;
          Vector const vector = *shared_pointer<Vector const>(from);
          CUTE_UNROLL
          for (int i = 0; i < Copy::kVector; ++i) values[Fragment{}(v + i, mn, block)] = vector[i];
        } else {  // a row for other threads, and words of theirs (ldmatrix)
          static_assert(Fragment{}(Copy::kVector - 1, 0, 0) == Copy::kVector - 1);
          detail::explode(Instruction::copy, shared_pointer<Given const>(from), int_sequence<0>{},
                          reinterpret_cast<Taken*>(values + Fragment{}(v, mn, block)),
                          make_int_sequence<extent<typename Instruction::DRegisters>::value>{});
        }
      }
    }
    if constexpr (is_same_v<Element, cutlass::tfloat32_t>) {
      // tf32 operands come as float32 and are rounded to nearest; the instruction would truncate.
      CUTE_UNROLL
      for (int mn = 0; mn < kRows / Copy::kRows; ++mn) {
        CUTE_UNROLL
        for (int v = 0; v < size<0>(Fragment{}); ++v) {
          Element& value = values[Fragment{}(v, mn, block)];
          value = cutlass::tfloat32_t(reinterpret_cast<float const&>(value));
        }
      }
    }
  }
};

// sums += a b^T, by one instruction on a thread's registers.
template <class Mma, class Accumulator, class Element>
CUTE_DEVICE void multiply(Accumulator* sums, Element const* a, Element const* b) {
  using A = typename Mma::ARegisters;
  using B = typename Mma::BRegisters;
  using C = typename Mma::CRegisters;
  auto* const c = reinterpret_cast<typename remove_extent<C>::type*>(sums);
  make_int_sequence<extent<C>::value> const registers;
  detail::explode(Mma::fma, c, registers, reinterpret_cast<typename remove_extent<A>::type const*>(a),
                  make_int_sequence<extent<A>::value>{},
                  reinterpret_cast<typename remove_extent<B>::type const*>(b),
                  make_int_sequence<extent<B>::value>{}, c, registers);
}

// Calls with all (outer,inner), to and fro along inner, `kRun` of outer together: what follows each
// other shares an operand.
template <int kRun, int kOuter, int kInner, class Function>
CUTE_DEVICE void serpentine(Function const& function) {
  CUTE_UNROLL
  for (int i = 0; i < kOuter * kInner; ++i) {
    int const turn = i / (kRun * kInner), inner = i % (kRun * kInner) / kRun;
    function(turn * kRun + i % kRun, turn % 2 ? kInner - 1 - inner : inner);
  }
}

// Both operands, smem -> registers -> products, a k block at a time.
template <class Config>
struct Blocks {
  using Element = typename Config::Element;
  using Accumulator = typename Config::Accumulator;
  using FragmentA = typename Config::FragmentA;  // ((MMA,REST_M,REST_K),TILES_M,BLOCKS)
  using FragmentB = typename Config::FragmentB;  // ((MMA,REST_N,REST_K),TILES_N,BLOCKS)
  using LoaderA =
      BlockLoader<typename Config::SmemCopyA, FragmentA, typename Config::SmemLayoutA, Element>;
  using LoaderB =
      BlockLoader<typename Config::SmemCopyB, FragmentB, typename Config::SmemLayoutB, Element>;
  enum : int {
    kBlocks = LoaderA::kBlocks,        // k blocks in a tile
    kSteps = size<0, 2>(FragmentA{}),  // MMAs along k in a block
    kMmaM = size<0, 1>(FragmentA{}) * size<1>(FragmentA{}),
    kMmaN = size<0, 1>(FragmentB{}) * size<1>(FragmentB{}),
    kA = size<0, 0>(FragmentA{}), kB = size<0, 0>(FragmentB{}),  // values of an MMA
    kC = size<0, 0>(typename Config::FragmentC{})
  };

  LoaderA a;
  LoaderB b;

  CUTE_DEVICE Blocks(uint32_t smem_a, uint32_t smem_b, int thread)
      : a(smem_a, thread), b(smem_b, thread) {}

  CUTE_DEVICE void load(int block, int pipe) {
    a.load(block, pipe);
    b.load(block, pipe);
  }

  // In the order of cute::gemm, which follows the bytes of the operands' registers.
  CUTE_DEVICE void multiply(int block, Accumulator* sums) const {  // (MMA,MMA_M,MMA_N)
    constexpr int kBytesA = kA * sizeof(Element), kBytesB = kB * sizeof(Element);
    CUTE_UNROLL
    for (int step = block * kSteps; step < (block + 1) * kSteps; ++step) {
      auto const one = [&](int m, int n) {
        cute_gemm::multiply<typename Config::Mma>(sums + kC * (m + kMmaM * n),
                                                  a.values + kA * (m + kMmaM * step),
                                                  b.values + kB * (n + kMmaN * step));
      };
      if constexpr (kBytesA <= 8 && kBytesA == kBytesB) {
        serpentine<(kBytesA == 4 && kMmaM > 1) ? 2 : 1, kMmaM, kMmaN>(one);
      } else {
        serpentine<1, kMmaN, kMmaM>([&](int n, int m) { one(m, n); });
      }
    }
  }
};

}  // namespace cute_gemm
