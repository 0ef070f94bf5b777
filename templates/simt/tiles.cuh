// Tiles of A and B in shared memory: how threads fill and read them.

#pragma once

#include "../common/copy.cuh"
#include "gemm.cuh"

namespace cute_gemm {

// Dynamic shared memory: A's tile, then B's.
template <class Config>
CUTE_DEVICE typename Config::Element* shared_tiles() {
  extern __shared__ __align__(128) char shared[];
  return reinterpret_cast<typename Config::Element*>(shared);
}

// ---- gmem -> smem -------------------------------------------------------------------------------

// N adjacent elements to shared memory in one instruction: the compiler would split a vector whose
// elements come from different ones.
template <int N, class Element>
CUTE_DEVICE void store_shared(uint32_t to, Element const* elements) {
  constexpr int kBytes = N * sizeof(Element);
  uint32_t words[kBytes < 4 ? 1 : kBytes / 4];
  memcpy(words, elements, kBytes);
  if constexpr (kBytes == 16) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};\n" ::"r"(to), "r"(words[0]),
                 "r"(words[1]), "r"(words[2]), "r"(words[3])
                 : "memory");
  } else if constexpr (kBytes == 8) {
    asm volatile("st.shared.v2.b32 [%0], {%1, %2};\n" ::"r"(to), "r"(words[0]), "r"(words[1]) : "memory");
  } else if constexpr (kBytes == 4) {
    asm volatile("st.shared.b32 [%0], %1;\n" ::"r"(to), "r"(words[0]) : "memory");
  } else {
    uint_bit_t<8 * kBytes> both;
    memcpy(&both, elements, kBytes);
    *shared_pointer<uint_bit_t<8 * kBytes>>(to) = both;
  }
}

// How the threads share the copy of a tile. Threads maps a thread to the first element of its block
// (row + kStepRows * column); all blocks together are a step, and steps fill the tile. The mode of
// the block that is contiguous in gmem is one vector.
template <class Threads_, int StepRows, int StepColumns, int BlockRows, int BlockColumns>
struct Copy {
  using Threads = Threads_;
  enum : int {
    kStepRows = StepRows, kStepColumns = StepColumns,
    kBlockRows = BlockRows, kBlockColumns = BlockColumns
  };
  static_assert(size(Threads{}) * BlockRows * BlockColumns == StepRows * StepColumns,
                "the threads' blocks fill a step");
};

// One thread's part in copying the tiles (bMN,bK) of an operand, one after the other along k.
template <class Copy, class SmemLayout, class Element, bool kMajorK>
struct TileCopy {
  enum : int {
    kRows = size<0>(SmemLayout{}), kColumns = size<1>(SmemLayout{}),
    kRowSteps = kRows / Copy::kStepRows,
    kColumnSteps = kColumns / Copy::kStepColumns
  };
  static_assert(kRowSteps * Copy::kStepRows == kRows && kColumnSteps * Copy::kStepColumns == kColumns,
                "steps fill the tile");
  enum : int {
    kVectors = kMajorK ? Copy::kBlockRows : 1,  // per block
    kVector = kMajorK ? Copy::kBlockColumns : Copy::kBlockRows
  };

  Element const* source;  // the thread's first element of the next tile
  int64_t row_stride, column_stride;
  int rows_left, columns_left;  // from that element to the ends of the matrix
  int smem_first;
  Element values[kColumnSteps][kRowSteps][Copy::kBlockColumns][Copy::kBlockRows];

  // `matrix` points to the first of the remaining `rows` rows of `columns` elements each.
  CUTE_DEVICE TileCopy(Element const* matrix, int64_t ld, int rows, int columns, int thread)
      : row_stride(kMajorK ? ld : 1), column_stride(kMajorK ? 1 : ld) {
    int const at = typename Copy::Threads{}(thread);
    int const row = at % Copy::kStepRows, column = at / Copy::kStepRows;
    source = matrix + row * row_stride + column * column_stride;
    rows_left = rows - row;
    columns_left = columns - column;
    smem_first = SmemLayout{}(row, column);
  }

  CUTE_DEVICE Element const* at(int row, int column) const {
    return source + row * row_stride + column * column_stride;
  }

  // How many elements of a vector that starts here are read: those in the matrix; kLast: in the last tile
  // along k.
  template <bool kLast = false>
  CUTE_DEVICE int valid(int row, int column) const {
    if constexpr (kLast && !kMajorK) {
      return valid_in_column<kVector>(rows_left - row, columns_left - column);
    }
    return kMajorK ? (row < rows_left ? columns_left - column : 0) : (column < columns_left ? rows_left - row : 0);
  }

  CUTE_DEVICE void advance() {
    source += kColumns * column_stride;
    columns_left -= kColumns;
  }

  // Calls a function with row step, column step and number of each vector, and its offset in the tile from
  // the thread's first element.
  template <class Function>
  CUTE_DEVICE static void each_vector(Function const& function) {
    CUTE_UNROLL
    for (int j = 0; j < kColumnSteps; ++j) {
      CUTE_UNROLL
      for (int i = 0; i < kRowSteps; ++i) {
        CUTE_UNROLL
        for (int v = 0; v < kVectors; ++v) {
          function(i, j, v, i * Copy::kStepRows + v, j * Copy::kStepColumns);
        }
      }
    }
  }

  // The next tile, gmem -> registers. Elements outside the matrix become 0; a vector that the matrix's end
  // cuts is read element by element.
  template <bool kLast = false>
  CUTE_DEVICE void fetch() {
    each_vector([&](int i, int j, int v, int row, int column) {
      auto const* from = at(row, column);
      int inside = valid<kLast>(row, column);
      // Otherwise nvcc would repeat the loads for each path to this number.
      if constexpr (kLast) asm volatile("" : "+r"(inside));
      Element vector[kVector];
      if (kVector > 1 && inside >= kVector) {
        read<kVector>(vector, from);
      } else {
        CUTE_UNROLL
        for (int e = 0; e < kVector; ++e) {
          vector[e] = e < inside ? load<Element>(from + e) : Element(0);
        }
      }
      keep(i, j, v, vector);
    });
    advance();
  }

  CUTE_DEVICE void keep(int i, int j, int v, Element const* vector) {
    CUTE_UNROLL
    for (int e = 0; e < kVector; ++e) values[j][i][kMajorK ? e : 0][kMajorK ? v : e] = vector[e];
  }

  // Registers -> smem, with the rows of a block together.
  CUTE_DEVICE void store(Element* smem) const {
    uint32_t const first = cast_smem_ptr_to_uint(smem);
    CUTE_UNROLL
    for (int j = 0; j < kColumnSteps; ++j) {
      CUTE_UNROLL
      for (int i = 0; i < kRowSteps; ++i) {
        CUTE_UNROLL
        for (int column = 0; column < Copy::kBlockColumns; ++column) {
          int const to = SmemLayout{}(i * Copy::kStepRows, j * Copy::kStepColumns + column);
          store_shared<Copy::kBlockRows>(
              first + sizeof(Element) * join(SmemLayout{}, smem_first, to), values[j][i][column]);
        }
      }
    }
  }
};

template <class Config>
using TileCopyA = TileCopy<typename Config::CopyA, typename Config::SmemA, typename Config::ElementA, Config::kMajorKA>;
template <class Config>
using TileCopyB = TileCopy<typename Config::CopyB, typename Config::SmemB, typename Config::ElementB, Config::kMajorKB>;

// ---- smem -> registers --------------------------------------------------------------------------

// A thread's elements of the columns of an operand's tile, from its first one on. 32-bit byte addresses
// of shared memory let instructions contain the distances between them.
template <class Values, class SmemLayout, class Element>
struct Fragments {
  uint32_t first;

  CUTE_DEVICE Fragments(Element const* tile, int row)
      : first(cast_smem_ptr_to_uint(tile) + SmemLayout{}(row, 0) * sizeof(Element)) {}

  template <class T, int N>
  CUTE_DEVICE void read(T (&to)[N], int k) const {
    constexpr int kRun = size<0>(Values{});
    constexpr int kMask = swizzled_bits(SmemLayout{});
    static_assert(N == size(Values{}));
    CUTE_UNROLL
    for (int i = 0; i < N; i += kRun) {
      int const at = SmemLayout{}(Values{}(i), k);
      uint32_t const address = (first ^ (at & kMask) * sizeof(Element)) + (at & ~kMask) * sizeof(Element);
      cute_gemm::read<kRun>(to + i, shared_pointer<Element const>(address));
    }
  }
};

template <class Config>
using FragmentsA = Fragments<typename Config::ValuesM, typename Config::SmemA, typename Config::ElementA>;
template <class Config>
using FragmentsB = Fragments<typename Config::ValuesN, typename Config::SmemB, typename Config::ElementB>;

}  // namespace cute_gemm
