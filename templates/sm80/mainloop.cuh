// Parts of the loops over k of the tensor core kernels: copies of tiles to shared memory, and of blocks
// of them to the registers of the MMAs.
//
// One `Config` for every element type and every layout of A(M,K), B(N,K), C(M,N):
//
//   Element, ElementC, Accumulator   types in gmem (B's has the size of A's), and of the accumulators
//   Epilogue                         computation on the accumulators (LinearCombination)
//   CtaTiler                         Shape<bM,bN,bK>
//   kMajorKA, kMajorKB               true: K is the unit-stride mode (C is column-major)
//   kSwapAB                          A, B and C are the problem's B, A and C^T, of a row-major C
//   kPromoted                        products of a k tile in separate accumulators, then added
//   kConjA, kConjB                   whether to take the conjugate
//   Mma                              CuTe's instruction; for complex numbers, that of their parts
//   GmemCopyA, GmemCopyB             Copy: gmem -> smem
//   PlaceA, PlaceB                   Copy: smem -> smem, for rows that begin anywhere; else void
//   SmemLayoutA, SmemLayoutB         (bM,bK,PIPE), (bN,bK,PIPE), swizzled
//   SmemCopyA, SmemCopyB             Copy: smem -> registers, as the tiled MMA partitions
//   FragmentA, FragmentB             ((MMA,REST_MN,REST_K),TILES,BLOCKS) -> a thread's value
//   FragmentC                        ((MMA,REST_M,REST_N),TILES_M,TILES_N) -> a thread's sum
//   EpilogueTile, EpilogueLayout     the part of the C tile that is staged at a time
//   EpilogueStage, EpilogueCopy      Copy: registers -> smem, smem -> gmem
//   kStageA, kStageB                 distance of tiles in shared memory in elements
//   kRasterGroup                     rows of tiles per L2 group
//
// These layouts are finished: they replace what CuTe's make_tiled_copy, retile and partition would compute
// from thread and value layouts. CuTe provides the arithmetic of layouts and the instructions. A separate
// unit proves that CuTe computes the same (common/proof.cuh).

#pragma once

#include <cute/arch/copy_sm75.hpp>
#include <cute/arch/mma.hpp>
#include <cutlass/array.h>
#include <cutlass/complex.h>

#include "../common/copy.cuh"
#include "../common/raster.cuh"
#include "unaligned.cuh"

namespace cute_gemm {

// Each thread's part of a step (kRows,kColumns); repeated steps fill a tile. TV maps (thread,value) to
// row + kRows * column of the addressed elements, kVector values at a time, with CuTe's Instruction.
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
    kPlaces = 0, kRun = 0,  // no rows are shifted into place
    kRows = size<0>(SmemLayout{}), kColumns = size<1>(SmemLayout{}),
    kStepRows = Copy::kRows, kStepColumns = Copy::kColumns,
    kValues = Copy::kValues, kVector = Copy::kVector,
    kBytes = kVector * sizeof(Element),
    // The copies of a tile proceed along the mode across the vectors first, each one step further.
    kSteps = kVectorAlongK ? kRows / kStepRows : kColumns / kStepColumns,
    kRepeats = kVectorAlongK ? kColumns / kStepColumns : kRows / kStepRows
  };

  int64_t row_stride, column_stride;
  int64_t step, k_step;   // elements to the next step, to the next tile
  Element const* next;    // the thread's first element of the tile after this
  Element const* source;  // and of the next step
  uint32_t smem, target;
  int smem_first;
  At first;
  int rows_left, rows;  // from the thread's first row to the matrix's last; 0 for a tile left out

  // The tiles of the matrix (extent,depth) from row `corner` on.
  CUTE_DEVICE TileLoader(Element const* matrix, int corner, int extent, int /*depth*/, int64_t ld,
                         uint32_t smem, int thread)
      : row_stride(kVectorAlongK ? ld : 1), column_stride(kVectorAlongK ? 1 : ld), smem(smem),
        first(thread, 0), rows_left(extent - corner - first.row) {
    step = kVectorAlongK ? kStepRows * row_stride : kStepColumns * column_stride;
    k_step = kColumns * column_stride;
    next = matrix + (corner + first.row) * row_stride + first.column * column_stride;
    smem_first = SmemLayout{}(first.row, first.column, 0);
  }

  // The tile to load is the next one, load number `number` of `k_tiles`, into stage `pipe`.
  CUTE_DEVICE void advance(int number, int pipe, int k_tiles) {
    source = next;
    next += k_step;
    target = smem + pipe * int(kRows * kColumns * sizeof(Element));
    rows = number < k_tiles ? rows_left : 0;
  }

  // Issues all copies of load number `number`. The last `ends` tiles come first; the last one, of which
  // `tail` columns are in the matrix, precedes all others.
  CUTE_DEVICE void fetch(int number, int pipe, int k_tiles, int tail, int ends) {
    if (number >= ends) {
      advance(number, pipe, k_tiles);
      load<false>(0, 1);
      return;
    }
    source = next + (k_tiles - 1 - number) * k_step;
    target = smem + pipe * int(kRows * kColumns * sizeof(Element));
    rows = number < k_tiles ? rows_left : 0;
    if (number == 0) {
      load<true>(0, 1, tail);
    } else {
      load<false>(0, 1);
    }
  }

  // Issues part `part` of `parts` of the tile's copies. kCut: the tile is the last along k, of which
  // `columns_left` columns are in the matrix; elements outside are not read and become zeros. Rows
  // beyond the matrix need no zeros, because their products are not stored: in all columns but the last
  // one a vector that straddles the last row is read whole.
  template <bool kCut>
  CUTE_DEVICE void load(int part, int parts, int columns_left = kColumns) {
    constexpr int kVectors = kValues / kVector, kInner = kRepeats * kVectors;
    // Many narrow copies: a few at a time, otherwise they take too many registers.
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
        uint32_t const to = target + sizeof(Element) * join(SmemLayout{}, smem_first, SmemLayout{}(row, column, 0));
        Element const* const from = source + inner_row * row_stride + inner_column * column_stride;
        if constexpr (kCut) {
          int const columns = columns_left - first.column - column;
          int const valid = kVectorAlongK ? (row < rows ? min(columns, int(kVector)) : 0)
                                          : valid_in_column<kVector>(rows - row, columns);
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

// The loader of an operand: rows that begin anywhere are shifted into place (unaligned.cuh).
template <class Copy, class Place, class SmemLayout, class Element, bool kMajorK, int kThreads>
using Loader = conditional_t<is_void_v<Place>, TileLoader<Copy, SmemLayout, Element, kMajorK>,
                             WordLoader<Copy, Place, SmemLayout, Element, kMajorK, kThreads>>;

// Both operands of the CTA's tile of C, gmem -> smem.
template <class Config>
struct Tiles {
  using Element = typename Config::Element;
  using LoaderA = Loader<typename Config::GmemCopyA, typename Config::PlaceA, typename Config::SmemLayoutA, Element,
                         Config::kMajorKA, Config::kThreads>;
  using LoaderB = Loader<typename Config::GmemCopyB, typename Config::PlaceB, typename Config::SmemLayoutB, Element,
                         Config::kMajorKB, Config::kThreads>;
  // Runs of a loaded tile that each thread shifts into place, and the words of the longest.
  enum : int {
    kPlaces = LoaderA::kPlaces + LoaderB::kPlaces,
    kRun = int(LoaderA::kRun) > int(LoaderB::kRun) ? int(LoaderA::kRun) : int(LoaderB::kRun),
    kEnds = kPlaces > 0 ? 2 : 1  // tiles along k that are loaded before the others
  };

  LoaderA a;
  LoaderB b;

  CUTE_DEVICE Tiles(Element const* A, Element const* B, int m, int n, int k, int64_t lda, int64_t ldb,
                    Corner corner, uint32_t smem_a, uint32_t smem_b, int thread)
      : a(A, corner.row, m, k, lda, smem_a, thread), b(B, corner.column, n, k, ldb, smem_b, thread) {}

  CUTE_DEVICE void fetch(int number, int pipe, int k_tiles, int tail) {
    a.fetch(number, pipe, k_tiles, tail, kEnds);
    b.fetch(number, pipe, k_tiles, tail, kEnds);
  }

  CUTE_DEVICE void advance(int number, int pipe, int k_tiles) {
    a.advance(number, pipe, k_tiles);
    b.advance(number, pipe, k_tiles);
  }

  CUTE_DEVICE void load(int part, int parts) {
    a.template load<false>(part, parts);
    b.template load<false>(part, parts);
  }

  // Reads run number `i` of a tile and, once its words are complete, shifts it into place.
  CUTE_DEVICE void take(int pipe, int i, Word* words) const {
    if constexpr (LoaderA::kPlaces > 0) {
      if (i < LoaderA::kPlaces) a.take(pipe, i, words);
    }
    if constexpr (LoaderB::kPlaces > 0) {
      if (i >= LoaderA::kPlaces) b.take(pipe, i - LoaderA::kPlaces, words);
    }
  }

  template <bool kCut>
  CUTE_DEVICE void put(int pipe, int i, Word const* words, int columns) {
    if constexpr (LoaderA::kPlaces > 0) {
      if (i < LoaderA::kPlaces) a.template put<kCut>(pipe, i, words, columns);
    }
    if constexpr (LoaderB::kPlaces > 0) {
      if (i >= LoaderA::kPlaces) b.template put<kCut>(pipe, i - LoaderA::kPlaces, words, columns);
    }
  }

  // The whole tile, of which `columns` columns are in the matrices.
  CUTE_DEVICE void realign(int pipe, int columns) {
    CUTE_UNROLL
    for (int i = 0; i < kPlaces; ++i) {
      Word words[kRun + 1];
      take(pipe, i, words);
      put<true>(pipe, i, words, columns);
    }
  }
};

// One operand, smem -> registers: a thread's part of a tile for its MMAs, one k block at a time.
template <class Copy, class Fragment, class SmemLayout, class Element, int kStage>
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
    uint32_t const source = smem + pipe * int(kStage * sizeof(Element));
    CUTE_UNROLL
    for (int mn = 0; mn < kRows / Copy::kRows; ++mn) {
      CUTE_UNROLL
      for (int v = 0; v < Copy::kValues; v += Copy::kVector) {
        At const step(0, v);
        int const offset = SmemLayout{}(mn * Copy::kRows + step.row, block * Copy::kColumns + step.column, 0);
        uint32_t const from = source + sizeof(Element) * join(SmemLayout{}, smem_first, offset);
        if constexpr (is_same_v<Given, Taken>) {
          using Vector = cutlass::AlignedArray<Element, Copy::kVector>;
          Vector const vector = *shared_pointer<Vector const>(from);
          CUTE_UNROLL
          for (int i = 0; i < Copy::kVector; ++i) values[Fragment{}(v + i, mn, block)] = vector[i];
        } else {  // a row for other threads, and words from their rows (ldmatrix)
          static_assert(Fragment{}(Copy::kVector - 1, 0, 0) == Copy::kVector - 1);
          detail::explode(Instruction::copy, shared_pointer<Given const>(from), int_sequence<0>{},
                          reinterpret_cast<Taken*>(values + Fragment{}(v, mn, block)),
                          make_int_sequence<extent<typename Instruction::DRegisters>::value>{});
        }
      }
    }
    if constexpr (is_same_v<Element, cutlass::tfloat32_t>) {
      CUTE_UNROLL
      for (int mn = 0; mn < kRows / Copy::kRows; ++mn) {
        CUTE_UNROLL
        for (int v = 0; v < size<0>(Fragment{}); ++v) {
          auto& bits = reinterpret_cast<uint32_t&>(values[Fragment{}(v, mn, block)]);
          bits = nearest_tf32(bits);
        }
      }
    }
  }
};

// accumulators += a b^T, by one instruction on a thread's registers.
template <class Mma, class Accumulator, class Element>
CUTE_DEVICE void multiply(Accumulator* accumulators, Element const* a, Element const* b) {
  using A = typename Mma::ARegisters;
  using B = typename Mma::BRegisters;
  using C = typename Mma::CRegisters;
  auto* const c = reinterpret_cast<typename remove_extent<C>::type*>(accumulators);
  make_int_sequence<extent<C>::value> const registers;
  detail::explode(Mma::fma, c, registers, reinterpret_cast<typename remove_extent<A>::type const*>(a),
                  make_int_sequence<extent<A>::value>{},
                  reinterpret_cast<typename remove_extent<B>::type const*>(b),
                  make_int_sequence<extent<B>::value>{}, c, registers);
}

// Half of the same for complex numbers, by two instructions on their parts: the products with the real or with
// the imaginary parts of the problem's B, which is `a` if A and B are swapped: accumulators have one order. Signs are
// applied to a, whose registers the instruction negates as it reads them.
template <class Config, class T>
CUTE_DEVICE void multiply(cutlass::complex<T>* accumulators, cutlass::complex<T> const* a,
                          cutlass::complex<T> const* b, bool imaginary) {
  using Mma = typename Config::Mma;
  constexpr int kA = extent<typename Mma::ARegisters>::value, kB = extent<typename Mma::BRegisters>::value;
  constexpr int kC = extent<typename Mma::CRegisters>::value;
  bool const by_imag = imaginary != Config::kSwapAB;  // a's real parts by b's imaginary ones
  T to_real[kA], to_imag[kA], of_real[kB], of_imag[kB], real[kC], imag[kC];
  CUTE_UNROLL
  for (int i = 0; i < kA; ++i) {
    T const a_imag = Config::kConjA ? -a[i].imag() : a[i].imag();
    T const transposed = Config::kConjA == Config::kConjB ? -a[i].imag() : a[i].imag();
    to_real[i] = imaginary ? transposed : a[i].real();
    to_imag[i] = !by_imag ? a_imag : Config::kConjB ? -a[i].real() : a[i].real();
  }
  CUTE_UNROLL
  for (int i = 0; i < kB; ++i) {
    of_real[i] = imaginary ? b[i].imag() : b[i].real();
    of_imag[i] = by_imag ? b[i].imag() : b[i].real();
  }
  CUTE_UNROLL
  for (int i = 0; i < kC; ++i) {
    real[i] = accumulators[i].real();
    imag[i] = accumulators[i].imag();
  }
  multiply<Mma>(real, to_real, of_real);
  multiply<Mma>(imag, to_imag, of_imag);
  CUTE_UNROLL
  for (int i = 0; i < kC; ++i) accumulators[i] = {real[i], imag[i]};
}

// Calls a function with part `part` of `parts` of all (outer,inner), in serpentine order along inner, with `kRun` of
// outer together: consecutive calls share an operand.
template <int kRun, int kOuter, int kInner, class Function>
CUTE_DEVICE void serpentine(int part, int parts, Function const& function) {
  CUTE_UNROLL
  for (int i = 0; i < kOuter * kInner; ++i) {
    if (i * parts / (kOuter * kInner) != part) continue;
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
  using LoaderA = BlockLoader<typename Config::SmemCopyA, FragmentA, typename Config::SmemLayoutA,
                              Element, Config::kStageA>;
  using LoaderB = BlockLoader<typename Config::SmemCopyB, FragmentB, typename Config::SmemLayoutB,
                              Element, Config::kStageB>;
  enum : int {
    kBlocks = LoaderA::kBlocks,        // k blocks in a tile
    kSteps = size<0, 2>(FragmentA{}),  // MMAs along k in a block
    kMmaM = size<0, 1>(FragmentA{}) * size<1>(FragmentA{}),
    kMmaN = size<0, 1>(FragmentB{}) * size<1>(FragmentB{}),
    kA = size<0, 0>(FragmentA{}), kB = size<0, 0>(FragmentB{}),  // values of an MMA
    kC = size<0, 0>(typename Config::FragmentC{}),
    kPasses = cutlass::is_complex<Element>::value ? 2 : 1
  };

  LoaderA a;
  LoaderB b;

  CUTE_DEVICE Blocks(uint32_t smem_a, uint32_t smem_b, int thread) : a(smem_a, thread), b(smem_b, thread) {}

  CUTE_DEVICE void load(int block, int pipe) {
    a.load(block, pipe);
    b.load(block, pipe);
  }

  // Part `part` of `parts` of a block's products, in the order of cute::gemm, which follows the bytes of
  // the operands' registers. For complex numbers, products with b's real and with its imaginary parts are
  // separate loops over m, so that no product waits for the previous one on the same accumulator.
  CUTE_DEVICE void multiply(int block, Accumulator* accumulators, int part, int parts) const {  // (MMA,MMA_M,MMA_N)
    constexpr int kBytesA = kA * sizeof(Element), kBytesB = kB * sizeof(Element);
    CUTE_UNROLL
    for (int step = block * kSteps; step < (block + 1) * kSteps; ++step) {
      auto const one = [&](int m, int n, int pass = 0) {
        auto* const to = accumulators + kC * (m + kMmaM * n);
        auto* const left = a.values + kA * (m + kMmaM * step);
        auto* const right = b.values + kB * (n + kMmaN * step);
        if constexpr (kPasses > 1) {
          cute_gemm::multiply<Config>(to, left, right, pass > 0);
        } else {
          cute_gemm::multiply<typename Config::Mma>(to, left, right);
        }
      };
      if constexpr (kBytesA <= 8 && kBytesA == kBytesB) {
        serpentine<(kBytesA == 4 && kMmaM > 1) ? 2 : 1, kMmaM, kMmaN>(part, parts, one);
      } else {
        // Serpentine along m, but the real parts first in each n: the order of summation is that of every tile.
        serpentine<1, kMmaN, kPasses * kMmaM>(
            part, parts, [&](int n, int i) { one(i % kMmaM, n, (i / kMmaM) ^ (kPasses > 1 && n % 2)); });
      }
    }
  }
};

}  // namespace cute_gemm
