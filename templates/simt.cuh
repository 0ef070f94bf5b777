// What the tutorial kernels share: the problem as the entry gets it, products of every type, the copy
// of a tile from global to shared memory, fragments, and the way back to C.
//
// All of them are templates on a `Config` that Python emits:
//
//   Element, ElementC, Accumulator   types in gmem, and of the sums
//   kMajorKA, kMajorKB, kMajorNC     which mode of A, B and C has the unit stride
//   kConjA, kConjB                   whether the conjugate is meant
//   Tile                             Shape<bM,bN,bK>
//   Threads                          thread -> m + bM * n of its first result in the CTA's tile
//   ValuesM, ValuesN                 (run,repeat) -> m, n of its other results, from the first
//   CopyA, CopyB                     how the threads share a tile's copy (TileCopy)
//   SmemA, SmemB                     (bM,bK), (bN,bK) -> element of shared memory
//   kSmemA, kSmemB                   elements of shared memory that a tile takes
//   kVectorC, kRaster                elements of a C access; rows of tiles per L2 group
//   kLanesK                          coalesced: lanes that share an element of C, along k
//   kAsyncA, kAsyncB, kChunk         double_buffered: whether cp.async copies it; columns unrolled

#pragma once

#include <cute/tensor.hpp>
#include <cutlass/array.h>
#include <cutlass/complex.h>

#include "common.cuh"

namespace cute_gemm {

struct Corner {
  int row, column;
};

// C (M,N) = alpha * A (M,K) B (N,K)^T + beta * C.
template <class Config>
struct Gemm {
  using Element = typename Config::Element;
  using ElementC = typename Config::ElementC;
  using Accumulator = typename Config::Accumulator;

  Element const *A, *B;
  ElementC* C;
  int m, n, k;
  int64_t lda, ldb, ldc;
  Accumulator alpha, beta;

  CUTE_DEVICE Gemm(Element const* A, Element const* B, ElementC* C, int m, int n, int k, int64_t lda,
                   int64_t ldb, int64_t ldc, Accumulator alpha, Accumulator beta)
      : A(A), B(B), C(C), m(m), n(n), k(k), lda(lda), ldb(ldb), ldc(ldc), alpha(alpha), beta(beta) {
    // BLAS: A and B are not read when alpha is 0, and a sum of nothing is 0 whatever alpha is.
    if (k == 0 || alpha == Accumulator(0)) {
      this->k = 0;
      this->alpha = Accumulator(0);
    }
  }

  CUTE_DEVICE Element const* a(int row, int k) const {
    return A + (Config::kMajorKA ? row * lda + k : row + k * lda);
  }
  CUTE_DEVICE Element const* b(int column, int k) const {
    return B + (Config::kMajorKB ? column * ldb + k : column + k * ldb);
  }
  // From an element of A or B to that of the next k.
  CUTE_DEVICE int64_t a_step() const { return Config::kMajorKA ? 1 : lda; }
  CUTE_DEVICE int64_t b_step() const { return Config::kMajorKB ? 1 : ldb; }

  CUTE_DEVICE ElementC* c(int row, int column) const {
    return C + (Config::kMajorNC ? row * ldc + column : row + column * ldc);
  }

  // First row and column of this CTA's tile of C.
  CUTE_DEVICE Corner corner() const {
    using Tile = typename Config::Tile;
    auto const tile = raster<Config::kRaster>(blockIdx.x, ceil_div(m, int(size<0>(Tile{}))),
                                              ceil_div(n, int(size<1>(Tile{}))));
    return {get<0>(tile) * int(size<0>(Tile{})), get<1>(tile) * int(size<1>(Tile{}))};
  }
};

// The place of a thread's first result in the CTA's tile.
template <class Config>
CUTE_DEVICE Corner first_result(int thread) {
  constexpr int kRows = size<0>(typename Config::Tile{});
  int const at = typename Config::Threads{}(thread);
  return {at % kRows, at / kRows};
}

// ---- products -----------------------------------------------------------------------------------

// sum += a * b, either of them conjugated if Config says so.
template <class Config, class T>
CUTE_DEVICE void multiply_add(T& sum, T const& a, T const& b) {
  sum += a * b;
}

template <class Config, class T>
CUTE_DEVICE void multiply_add(cutlass::complex<T>& sum, cutlass::complex<T> const& a,
                              cutlass::complex<T> const& b) {
  T const a_imag = Config::kConjA ? -a.imag() : a.imag();
  T const b_imag = Config::kConjB ? -b.imag() : b.imag();
  sum.real() += a.real() * b.real();
  sum.imag() += a.real() * b_imag;
  sum.real() -= a_imag * b_imag;
  sum.imag() += a_imag * b.real();
}

// sums += a b^T. The way goes back and forth through the rows: two products that follow each other
// share an operand, which the multipliers need not read again.
template <class Config, class T, int kM, int kN>
CUTE_DEVICE void outer_product(T (&sums)[kM][kN], T const (&a)[kM], T const (&b)[kN]) {
  CUTE_UNROLL
  for (int j = 0; j < kN; ++j) {
    CUTE_UNROLL
    for (int step = 0; step < kM; ++step) {
      int const i = j % 2 ? kM - 1 - step : step;
      multiply_add<Config>(sums[i][j], a[i], b[j]);
    }
  }
}

// The same in two passes, one for the real and one for the imaginary parts of b: products that are
// added to the same sum are then far apart, and need not wait for each other.
template <class Config, class T, int kM, int kN>
CUTE_DEVICE void outer_product(cutlass::complex<T> (&sums)[kM][kN],
                               cutlass::complex<T> const (&a)[kM],
                               cutlass::complex<T> const (&b)[kN]) {
  CUTE_UNROLL
  for (int pass = 0; pass < 2; ++pass) {
    CUTE_UNROLL
    for (int j = 0; j < kN; ++j) {
      T const b_real = b[j].real(), b_imag = Config::kConjB ? -b[j].imag() : b[j].imag();
      CUTE_UNROLL
      for (int step = 0; step < kM; ++step) {
        int const i = j % 2 ? kM - 1 - step : step;
        T const a_real = a[i].real(), a_imag = Config::kConjA ? -a[i].imag() : a[i].imag();
        sums[i][j].real() += pass ? -a_imag * b_imag : a_real * b_real;
        sums[i][j].imag() += pass ? a_real * b_imag : a_imag * b_real;
      }
    }
  }
}

// ---- vectors ------------------------------------------------------------------------------------

template <class T, int N>
using Vector = cutlass::AlignedArray<T, N>;

// N neighbouring elements, as sums take them.
template <int N, class To, class From>
CUTE_DEVICE void read(To* to, From const* from) {
  Vector<From, N> const values = *reinterpret_cast<Vector<From, N> const*>(from);
  CUTE_UNROLL
  for (int i = 0; i < N; ++i) to[i] = To(values[i]);
}

template <class To, class From>
CUTE_DEVICE To load(From const* from) {
  To value;
  read<1>(&value, from);
  return value;
}

// N neighbouring elements to shared memory, in one instruction: the compiler would take a vector apart
// whose elements come from different ones.
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
    asm volatile("st.shared.v2.b32 [%0], {%1, %2};\n" ::"r"(to), "r"(words[0]), "r"(words[1])
                 : "memory");
  } else if constexpr (kBytes == 4) {
    asm volatile("st.shared.b32 [%0], %1;\n" ::"r"(to), "r"(words[0]) : "memory");
  } else {
    *shared_pointer<Element>(to) = *elements;
  }
}

// The first `valid` of N neighbouring elements of C <- alpha * sums + beta * C.
template <class Config, int N>
CUTE_DEVICE void update(Gemm<Config> const& gemm, typename Config::ElementC* c,
                        typename Config::Accumulator const* sums, int valid) {
  using ElementC = typename Config::ElementC;
  using Accumulator = typename Config::Accumulator;
  if constexpr (N > 1) {
    if (valid < N) {
      CUTE_UNROLL
      for (int i = 0; i < N; ++i) update<Config, 1>(gemm, c + i, sums + i, valid - i);
      return;
    }
  }
  if (valid <= 0) return;
  auto* target = reinterpret_cast<Vector<ElementC, N>*>(c);
  Vector<ElementC, N> results;
  if (gemm.beta == Accumulator(0)) {  // BLAS: C is not read
    CUTE_UNROLL
    for (int i = 0; i < N; ++i) results[i] = ElementC(gemm.alpha * sums[i]);
  } else {
    Vector<ElementC, N> const old = *target;
    CUTE_UNROLL
    for (int i = 0; i < N; ++i) {
      results[i] = ElementC(gemm.alpha * sums[i] + gemm.beta * Accumulator(old[i]));
    }
  }
  *target = results;
}

// ---- gmem -> smem -------------------------------------------------------------------------------

// How the threads share the copy of a tile: Threads takes a thread to the first element of its block
// (row + kStepRows * column), all blocks together are a step, and steps fill the tile. The mode of
// the block that is contiguous in gmem is one vector.
template <class Threads_, int StepRows, int StepColumns, int BlockRows, int BlockColumns>
struct Copy {
  using Threads = Threads_;
  static constexpr int kStepRows = StepRows, kStepColumns = StepColumns;
  static constexpr int kBlockRows = BlockRows, kBlockColumns = BlockColumns;
  static_assert(size(Threads{}) * BlockRows * BlockColumns == StepRows * StepColumns,
                "the threads' blocks fill a step");
};

// The part of one thread in copying the tiles (bMN,bK) of an operand, one after the other along k.
template <class Copy, class SmemLayout, class Element, bool kMajorK>
struct TileCopy {
  static constexpr int kRows = size<0>(SmemLayout{}), kColumns = size<1>(SmemLayout{});
  static constexpr int kRowSteps = kRows / Copy::kStepRows;
  static constexpr int kColumnSteps = kColumns / Copy::kStepColumns;
  static_assert(kRowSteps * Copy::kStepRows == kRows && kColumnSteps * Copy::kStepColumns == kColumns,
                "steps fill the tile");
  static constexpr int kVectors = kMajorK ? Copy::kBlockRows : 1;  // of a block
  static constexpr int kVector = kMajorK ? Copy::kBlockColumns : Copy::kBlockRows;

  Element const* source;  // the thread's first element of the next tile
  int64_t row_stride, column_stride;
  int rows_left, columns_left;  // from that element to the ends of the matrix
  int smem_first;
  Element values[kColumnSteps][kRowSteps][Copy::kBlockColumns][Copy::kBlockRows];

  // `matrix` points to the first of `rows` rows, of `columns` elements each, that are left.
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

  // How many elements of a vector that starts here are in the matrix.
  CUTE_DEVICE int valid(int row, int column) const {
    return kMajorK ? (row < rows_left ? columns_left - column : 0)
                   : (column < columns_left ? rows_left - row : 0);
  }

  CUTE_DEVICE void advance() {
    source += kColumns * column_stride;
    columns_left -= kColumns;
  }

  // Calls with row and column step and number of each vector, and its place in the tile from the
  // thread's first element.
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

  // The next tile, gmem -> registers. What is outside becomes 0; a vector that the matrix's end cuts
  // is read element by element.
  CUTE_DEVICE void fetch() {
    each_vector([&](int i, int j, int v, int row, int column) {
      auto const* from = at(row, column);
      int const inside = valid(row, column);
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

  // Registers -> smem, the rows of a block together.
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
using TileCopyA = TileCopy<typename Config::CopyA, typename Config::SmemA, typename Config::Element,
                           Config::kMajorKA>;
template <class Config>
using TileCopyB = TileCopy<typename Config::CopyB, typename Config::SmemB, typename Config::Element,
                           Config::kMajorKB>;

// ---- smem -> registers -> C ---------------------------------------------------------------------

// A thread's elements of the columns of an operand's tile, from its first one on. Shared memory is
// addressed by 32-bit byte addresses, so that the distances between them lie in the instructions.
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
      uint32_t const address =
          (first ^ (at & kMask) * sizeof(Element)) + (at & ~kMask) * sizeof(Element);
      cute_gemm::read<kRun>(to + i, shared_pointer<Element const>(address));
    }
  }
};

template <class Config>
using FragmentsA =
    Fragments<typename Config::ValuesM, typename Config::SmemA, typename Config::Element>;
template <class Config>
using FragmentsB =
    Fragments<typename Config::ValuesN, typename Config::SmemB, typename Config::Element>;

// The sums of a thread, to C. Neighbours along C's unit stride go together.
template <class Config, int kM, int kN>
CUTE_DEVICE void write(Gemm<Config> const& gemm, int row, int column,
                       typename Config::Accumulator const (&sums)[kM][kN]) {
  constexpr bool kRows = Config::kMajorNC;  // the outer loop goes over rows, or over columns
  constexpr int kVector = Config::kVectorC;
  typename Config::ValuesM const rows;
  typename Config::ValuesN const columns;
  CUTE_UNROLL
  for (int outer = 0; outer < (kRows ? kM : kN); ++outer) {
    int const r = row + (kRows ? int(rows(outer)) : 0);
    int const c = column + (kRows ? 0 : int(columns(outer)));
    int const left = kRows ? (r < gemm.m ? gemm.n - c : 0) : (c < gemm.n ? gemm.m - r : 0);
    int64_t offset = gemm.c(r, c) - gemm.C;
    asm volatile("" : "+l"(offset));  // or all the addresses would be kept at a time
    CUTE_UNROLL
    for (int inner = 0; inner < (kRows ? kN : kM); inner += kVector) {
      typename Config::Accumulator run[kVector];
      CUTE_UNROLL
      for (int e = 0; e < kVector; ++e) {
        run[e] = kRows ? sums[outer][inner + e] : sums[inner + e][outer];
      }
      int const along = kRows ? int(columns(inner)) : int(rows(inner));
      update<Config, kVector>(gemm, gemm.C + offset + along, run, left - along);
    }
  }
}

// Dynamic shared memory: A's tile, then B's.
template <class Config>
CUTE_DEVICE typename Config::Element* shared_tiles() {
  extern __shared__ __align__(128) char shared[];
  return reinterpret_cast<typename Config::Element*>(shared);
}

}  // namespace cute_gemm
