// batched: small products, several of which a CTA computes.
//
// The idea: what a batch of small products costs is to read and write its matrices, so that a CTA has
// as many of them as keep its threads and the memory busy. Their extents are static. Lanes go along the
// unit-stride mode and on to the next row or the next product, whichever is nearer, so that neighbours
// read neighbours, however short the rows are; matrices that lie one behind the other are copied as one
// run, in vectors that take no notice of where one ends. From shared memory a few threads multiply each
// product, with sums in registers; these go back through shared memory and leave as A and B came.
//
// Of a Config, beside what simt/gemm.cuh says:
//
//   Tile                 Shape<M,N,K>: extents of a product
//   kProducts, kThreads  of a CTA
//   Parts                (along C's unit-stride mode, across, product): how threads share the products
//   kDepth               k that are multiplied at a time
//   CopyA, CopyB, CopyC  ProductCopy: how the threads share the copies of the matrices
//   SmemA, SmemB, SmemC  (M,K,product), (N,K,product), (M,N,product) -> element of shared memory, of C
//                        accumulator
//   kReadA, kReadB       elements of an access of a thread that multiplies
//   kWriteC              sums of an access
//   kBeginB              byte of shared memory where B's matrices begin

#pragma once

#include "../common/copy.cuh"
#include "../simt/tiles.cuh"

namespace cute_gemm {

// ---- gmem -> smem -------------------------------------------------------------------------------

// How the threads of a CTA copy its matrices A, B or C, vector by vector: Smem takes the number of a
// vector, of which modes 1 and 2 are rows and products, to its first element in shared memory.
// kProductMode says which of them is the product; 0: all matrices are one run.
template <int Vector, class Smem_, int ProductMode>
struct ProductCopy {
  using Smem = Smem_;  // (vectors, rows, products) or (vectors, products, rows)
  enum : int { kVector = Vector, kVectors = size(Smem{}), kProductMode = ProductMode };

  // The first element of a vector in gmem, from the first of the first product.
  static CUTE_DEVICE int64_t offset(int vector, int64_t ld, int64_t batch) {
    bool constexpr kProductFirst = kProductMode == 1;
    return make_layout(shape(Smem{}), make_stride(Int<kVector>{}, kProductFirst ? batch : ld,
                                                  kProductFirst ? ld : batch))(vector);
  }

  // Element of the run, row and product of a vector's first element.
  struct Place {
    int along, across, product;
  };
  static CUTE_DEVICE Place place(int vector) {
    auto const at = idx2crd(vector, shape(Smem{}));
    int const along = get<0>(at) * kVector, second = get<1>(at), third = get<2>(at);
    return kProductMode == 1 ? Place{along, third, second} : Place{along, second, third};
  }

  // How many elements of a vector belong to products that there are, all of which have `elements`.
  static CUTE_DEVICE int valid(int vector, int products, int elements) {
    if (vector >= kVectors) return 0;
    if constexpr (kProductMode == 0) {
      return cute::max(0, products * elements - vector * kVector);
    } else {
      return place(vector).product < products ? kVector : 0;
    }
  }

  // Copies the matrices, of so many elements each, to shared memory.
  template <int kThreads, int kElements, class Element>
  static CUTE_DEVICE void load(uint32_t to, Element const* from, int64_t ld, int64_t batch, int products,
                               int thread) {
    constexpr int kBytes = kVector * sizeof(Element), kTurns = (kVectors + kThreads - 1) / kThreads;
    // By cp.async; narrower vectors go through registers, some at a time.
    constexpr bool kAsync = kBytes >= 4;
    constexpr int kAhead = kAsync ? 1 : cute::min(8, kTurns);
    using Word = uint_bit_t<8 * cute::min(kBytes, 4)>;
#pragma unroll(kAsync ? 8 : 1)
    for (int turn = 0; turn < kTurns; turn += kAhead) {
      Word words[kAhead];
      CUTE_UNROLL
      for (int i = 0; i < kAhead; ++i) {
        int const vector = (turn + i) * kThreads + thread, left = valid(vector, products, kElements);
        Element const* const source = from + offset(vector, ld, batch);
        uint32_t const target = to + sizeof(Element) * Smem{}(vector);
        if constexpr (kAsync) {
          copy_async_if<kBytes>(target, source, left >= kVector);
        } else {
          if (left >= kVector) words[i] = *reinterpret_cast<Word const*>(source);
        }
        if constexpr (kProductMode == 0 && kVector > 1) {  // of the last CTA, whose products end earlier
          if (0 < left && left < kVector) {
            CUTE_NO_UNROLL
            for (int e = 0; e < left; ++e) {
              using Whole = uint_bit_t<8 * sizeof(Element)>;
              shared_pointer<Whole>(target)[e] = reinterpret_cast<Whole const*>(source)[e];
            }
          }
        }
      }
      if constexpr (!kAsync) {
        CUTE_UNROLL
        for (int i = 0; i < kAhead; ++i) {
          int const vector = (turn + i) * kThreads + thread;
          uint32_t const target = to + sizeof(Element) * Smem{}(vector);
          if (valid(vector, products, kElements) >= kVector) *shared_pointer<Word>(target) = words[i];
        }
      }
    }
  }
};

// ---- smem -> registers --------------------------------------------------------------------------

// A thread's rows of A, or of B, of its product: where they begin in shared memory, and some k of them.
// What lies beyond the last row is the last one again.
template <class Smem, class Values, int kRead, bool kMajorK, class Element>
struct ProductRows {
  enum : int {
    kCount = size(Values{}), kRun = kMajorK ? 1 : kRead,
    kStarts = kCount / kRun, kRows = size<0>(Smem{})
  };
  static_assert(kRun == size<0>(Values{}) || kMajorK);

  uint32_t starts[kStarts];

  CUTE_DEVICE ProductRows(uint32_t matrices, int row, int product) {
    CUTE_UNROLL
    for (int i = 0; i < kStarts; ++i) {
      int const own = cute::min(row + int(Values{}(i * kRun)), kRows - kRun);
      starts[i] = matrices + sizeof(Element) * Smem{}(own, 0, product);
    }
  }

  template <class T, int kDepth>
  CUTE_DEVICE void read(T (&to)[kDepth][kCount], int k) const {
    if constexpr (kMajorK) {
      CUTE_UNROLL
      for (int i = 0; i < kCount; ++i) {
        CUTE_UNROLL
        for (int e = 0; e < kDepth; e += kRead) {
          T vector[kRead];
          cute_gemm::read<kRead>(vector, at(starts[i], k + e));
          CUTE_UNROLL
          for (int v = 0; v < kRead; ++v) to[e + v][i] = vector[v];
        }
      }
    } else {
      CUTE_UNROLL
      for (int e = 0; e < kDepth; ++e) {
        CUTE_UNROLL
        for (int i = 0; i < kStarts; ++i) cute_gemm::read<kRun>(to[e] + i * kRun, at(starts[i], k + e));
      }
    }
  }

  static CUTE_DEVICE Element const* at(uint32_t start, int k) {
    return shared_pointer<Element const>(start + sizeof(Element) * Smem{}(0, k, 0));
  }
};

// ---- the kernel ---------------------------------------------------------------------------------

template <class Config>
CUTE_DEVICE void batched(typename Config::ElementA const* A, typename Config::ElementB const* B,
                         typename Config::ElementC* C, int k, uint32_t l, int64_t lda, int64_t ldb,
                         int64_t ldc, int64_t batch_a, int64_t batch_b, int64_t batch_c,
                         typename Config::Epilogue::Params const& params) {
  using ElementA = typename Config::ElementA;
  using ElementB = typename Config::ElementB;
  using Accumulator = typename Config::Accumulator;
  using Tile = typename Config::Tile;
  using ValuesM = typename Config::ValuesM;
  using ValuesN = typename Config::ValuesN;
  constexpr int kM = size<0>(Tile{}), kN = size<1>(Tile{}), kK = size<2>(Tile{});
  constexpr int kTM = size(ValuesM{}), kTN = size(ValuesN{}), kDepth = Config::kDepth;
  constexpr int kThreads = Config::kThreads, kUnroll = Config::kUnroll;
  extern __shared__ __align__(128) char shared[];
  uint32_t const smem = cast_smem_ptr_to_uint(shared);
  int const thread = threadIdx.x;

  typename Config::Epilogue epilogue(params);
  uint32_t const first = blockIdx.x * Config::kProducts;
  int const products = cute::min(l - first, uint32_t(Config::kProducts));
  A += first * batch_a;
  B += first * batch_b;
  C += first * batch_c;

  // Which results a thread has: of the first, its run of neighbours, and the others' distances.
  auto const part = idx2crd(thread, typename Config::Parts{});
  int const along = get<0>(part), across = get<1>(part), product = get<2>(part);
  int const row = (Config::kMajorNC ? across : along) * size<0>(ValuesM{});
  int const column = (Config::kMajorNC ? along : across) * size<0>(ValuesN{});
  bool const has_results = product < products;

  Accumulator sums[kTM][kTN] = {};
  if (!epilogue.skips_products(k)) {
    using CopyA = typename Config::CopyA;
    using CopyB = typename Config::CopyB;
    CopyA::template load<kThreads, kM * kK>(smem, A, lda, batch_a, products, thread);
    CopyB::template load<kThreads, kN * kK>(smem + Config::kBeginB, B, ldb, batch_b, products, thread);
    asm volatile("cp.async.wait_all;\n" ::: "memory");
    __syncthreads();
    if (has_results) {
      ProductRows<typename Config::SmemA, ValuesM, Config::kReadA, Config::kMajorKA, ElementA> const rows(
          smem, row, product);
      ProductRows<typename Config::SmemB, ValuesN, Config::kReadB, Config::kMajorKB, ElementB> const columns(
          smem + Config::kBeginB, column, product);
#pragma unroll kUnroll
      for (int step = 0; step < kK; step += kDepth) {
        Accumulator a[kDepth][kTM], b[kDepth][kTN];
        rows.read(a, step);
        columns.read(b, step);
        CUTE_UNROLL
        for (int e = 0; e < kDepth; ++e) outer_product<Config>(sums, a[e], b[e]);
      }
    }
    __syncthreads();  // before sums take the place of A and B
  }

  // Sums to shared memory, neighbours along C's unit-stride mode together.
  using SmemC = typename Config::SmemC;
  constexpr int kWrite = Config::kWriteC;
  if (has_results) {
    constexpr bool kRows = Config::kMajorNC;
    CUTE_UNROLL
    for (int outer = 0; outer < (kRows ? kTM : kTN); ++outer) {
      CUTE_UNROLL
      for (int inner = 0; inner < (kRows ? kTN : kTM); inner += kWrite) {
        Accumulator run[kWrite];
        CUTE_UNROLL
        for (int e = 0; e < kWrite; ++e) run[e] = kRows ? sums[outer][inner + e] : sums[inner + e][outer];
        int const m = row + int(ValuesM{}(kRows ? outer : inner));
        int const n = column + int(ValuesN{}(kRows ? inner : outer));
        if (m < kM && n < kN) store_shared<kWrite>(smem + sizeof(Accumulator) * SmemC{}(m, n, product), run);
      }
    }
  }
  __syncthreads();

  // And on to C.
  using CopyC = typename Config::CopyC;
  constexpr int kVector = CopyC::kVector;
  CUTE_NO_UNROLL
  for (int vector = thread; vector < CopyC::kVectors; vector += kThreads) {
    auto const at = CopyC::place(vector);
    if (at.product >= products) continue;
    Accumulator run[kVector];
    constexpr int kRead = cute::min(kVector, cute::max(1, 16 / int(sizeof(Accumulator))));
    uint32_t const from = smem + sizeof(Accumulator) * typename CopyC::Smem{}(vector);
    CUTE_UNROLL
    for (int e = 0; e < kVector; e += kRead) {
      read<kRead>(run + e, shared_pointer<Accumulator const>(from + e * int(sizeof(Accumulator))));
    }
    Coord const own{Config::kMajorNC ? at.across : at.along, Config::kMajorNC ? at.along : at.across,
                    int(first) + at.product};
    update<kVector, !Config::kMajorNC>(epilogue, C + CopyC::offset(vector, ldc, batch_c), run, own);
  }
}

}  // namespace cute_gemm
