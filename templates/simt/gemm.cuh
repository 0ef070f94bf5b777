// The problem at the entry of the tutorial kernels, products of every type, and the epilogue.
//
// All of these kernels are templates on a `Config` that Python emits:
//
//   ElementA, ElementB, ElementC, Accumulator   types; Element if A and B have the same
//   Epilogue                         computation on the accumulators (LinearCombination)
//   kMajorKA, kMajorKB, kMajorNC     which mode of A, B and C has the unit stride
//   kConjA, kConjB                   whether to take the conjugate
//   Tile                             Shape<bM,bN,bK>
//   Threads                          thread -> m + bM * n of its first result in the CTA's tile
//   ValuesM, ValuesN                 (run,repeat) -> m, n of its other results, from the first
//   CopyA, CopyB                     how the threads share a tile's copy (TileCopy)
//   SmemA, SmemB                     (bM,bK), (bN,bK) -> element of shared memory
//   kSmemA, kSmemB                   elements of shared memory per tile
//   kVectorC, kRaster                elements per access of C; rows of tiles per L2 group
//   kLanesK                          coalesced: lanes that share an element of C, along k
//   kAsyncA, kAsyncB, kChunk         double_buffered: whether cp.async copies it; unrolled columns

#pragma once

#include <cute/arch/util.hpp>
#include <cutlass/array.h>
#include <cutlass/complex.h>

#include "../common/epilogue.cuh"
#include "../common/float8.cuh"
#include "../common/raster.cuh"

namespace cute_gemm {

// C (M,N) = alpha * A (M,K) B (N,K)^T + beta * C.
template <class Config>
struct Gemm {
  using ElementA = typename Config::ElementA;
  using ElementB = typename Config::ElementB;
  using ElementC = typename Config::ElementC;
  using Accumulator = typename Config::Accumulator;

  ElementA const* A;
  ElementB const* B;
  ElementC* C;
  int m, n, k;
  int64_t lda, ldb, ldc;
  int batch, cta;  // the tile of the CTA is number `cta`
  typename Config::Epilogue epilogue;

  CUTE_DEVICE Gemm(ElementA const* A, ElementB const* B, ElementC* C, int m, int n, int k, int64_t lda, int64_t ldb,
                   int64_t ldc, int batch, typename Config::Epilogue::Params const& params, int cta = blockIdx.x)
      : A(A), B(B), C(C), m(m), n(n), k(k), lda(lda), ldb(ldb), ldc(ldc), batch(batch), cta(cta), epilogue(params) {
    if (epilogue.skips_products(k)) this->k = 0;
  }

  CUTE_DEVICE ElementA const* a(int row, int k) const {
    return A + (Config::kMajorKA ? row * lda + k : row + k * lda);
  }
  CUTE_DEVICE ElementB const* b(int column, int k) const {
    return B + (Config::kMajorKB ? column * ldb + k : column + k * ldb);
  }
  // Distance of an element of A or B to that of the next k.
  CUTE_DEVICE int64_t a_step() const { return Config::kMajorKA ? 1 : lda; }
  CUTE_DEVICE int64_t b_step() const { return Config::kMajorKB ? 1 : ldb; }

  CUTE_DEVICE ElementC* c(int row, int column) const {
    return C + (Config::kMajorNC ? row * ldc + column : row + column * ldc);
  }

  // First row and column of this CTA's tile of C.
  CUTE_DEVICE Corner corner() const { return cta_corner<typename Config::Tile, Config::kRaster>(m, n, cta); }
};

// The place of a thread's first result in the CTA's tile.
template <class Config>
CUTE_DEVICE Corner first_result(int thread) {
  constexpr int kRows = size<0>(typename Config::Tile{});
  int const at = typename Config::Threads{}(thread);
  return {at % kRows, at / kRows};
}

// ---- products -----------------------------------------------------------------------------------

// sum += a * b, with conjugates if Config requires them.
template <class Config, class T>
CUTE_DEVICE void multiply_add(T& sum, T const& a, T const& b) {
  sum += a * b;
}

template <class Config, class T>
CUTE_DEVICE void multiply_add(cutlass::complex<T>& sum, cutlass::complex<T> const& a, cutlass::complex<T> const& b) {
  T const a_imag = Config::kConjA ? -a.imag() : a.imag();
  T const b_imag = Config::kConjB ? -b.imag() : b.imag();
  sum.real() += a.real() * b.real();
  sum.imag() += a.real() * b_imag;
  sum.real() -= a_imag * b_imag;
  sum.imag() += a_imag * b.real();
}

// accumulators += a b^T, in a serpentine order over the rows: two consecutive products share an operand, which need
// not be read again.
template <class Config, class T, int kM, int kN>
CUTE_DEVICE void outer_product(T (&accumulators)[kM][kN], T const (&a)[kM], T const (&b)[kN]) {
  CUTE_UNROLL
  for (int j = 0; j < kN; ++j) {
    CUTE_UNROLL
    for (int step = 0; step < kM; ++step) {
      int const i = j % 2 ? kM - 1 - step : step;
      multiply_add<Config>(accumulators[i][j], a[i], b[j]);
    }
  }
}

// The same for several columns in two passes, one for the real and one for the imaginary parts of b:
// products that are added to the same accumulator are far apart and need not wait for each other.
template <class Config, class T, int kM, int kN, class = enable_if_t<(kN > 1)>>
CUTE_DEVICE void outer_product(cutlass::complex<T> (&accumulators)[kM][kN], cutlass::complex<T> const (&a)[kM],
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
        accumulators[i][j].real() += pass ? -a_imag * b_imag : a_real * b_real;
        accumulators[i][j].imag() += pass ? a_real * b_imag : a_imag * b_real;
      }
    }
  }
}

// ---- vectors ------------------------------------------------------------------------------------

template <class T, int N>
using Vector = cutlass::AlignedArray<T, N>;

// N adjacent elements in the type of accumulators.
template <int N, class To, class From>
CUTE_DEVICE void read(To* to, From const* from) {
  Vector<From, N> const values = *reinterpret_cast<Vector<From, N> const*>(from);
  CUTE_UNROLL
  for (int i = 0; i < N; ++i) to[i] = number<To, From>(values[i]);
}

template <class To, class From>
CUTE_DEVICE To load(From const* from) {
  To value;
  read<1>(&value, from);
  return value;
}

// A value of any type from another lane: `shuffle` returns each of its words.
template <class T, class Shuffle>
CUTE_DEVICE T shuffled(T value, Shuffle const& shuffle) {
  constexpr int kWords = sizeof(T) / 4;
  static_assert(sizeof(T) % 4 == 0);
  Vector<uint32_t, kWords> words;
  memcpy(&words, &value, sizeof(T));
  CUTE_UNROLL
  for (int i = 0; i < kWords; ++i) words[i] = shuffle(words[i]);
  memcpy(&value, &words, sizeof(T));
  return value;
}

// ---- epilogue -----------------------------------------------------------------------------------

// The accumulators of a thread, to C. Results that are adjacent along C's unit stride are stored together.
template <class Config, int kM, int kN>
CUTE_DEVICE void write(Gemm<Config> const& gemm, int row, int column,
                       typename Config::Accumulator const (&accumulators)[kM][kN]) {
  constexpr bool kRows = Config::kMajorNC;  // outer loop over rows, or over columns
  constexpr int kVector = Config::kVectorC;
  typename Config::ValuesM const rows;
  typename Config::ValuesN const columns;
  CUTE_UNROLL
  for (int outer = 0; outer < (kRows ? kM : kN); ++outer) {
    int const r = row + (kRows ? int(rows(outer)) : 0);
    int const c = column + (kRows ? 0 : int(columns(outer)));
    int const left = kRows ? (r < gemm.m ? gemm.n - c : 0) : (c < gemm.n ? gemm.m - r : 0);
    int64_t offset = gemm.c(r, c) - gemm.C;
    asm volatile("" : "+l"(offset));  // otherwise all addresses would be kept in registers
    CUTE_UNROLL
    for (int inner = 0; inner < (kRows ? kN : kM); inner += kVector) {
      typename Config::Accumulator run[kVector];
      CUTE_UNROLL
      for (int e = 0; e < kVector; ++e) {
        run[e] = kRows ? accumulators[outer][inner + e] : accumulators[inner + e][outer];
      }
      int const along = kRows ? int(columns(inner)) : int(rows(inner));
      Coord const at{r + (kRows ? 0 : along), c + (kRows ? along : 0), gemm.batch};
      update_valid<kVector, !kRows>(gemm.epilogue, gemm.C + offset + along, run, at, left - along);
    }
  }
}

}  // namespace cute_gemm
