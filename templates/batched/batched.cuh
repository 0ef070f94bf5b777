// batched: small products, several per CTA.
//
// The idea: the cost of a batch of small products is to read and write its matrices, so a CTA has as
// many of them as keep its threads and the memory busy. Their extents are static. Lanes proceed along
// the unit-stride mode and on to the next row or the next product, whichever is nearer, so that adjacent
// lanes read adjacent elements even if rows are short. Consecutive matrices are copied as one run, in
// vectors that may cross the ends of matrices. From shared memory a few threads, or a warp by MMA,
// multiply each product, with accumulators in registers, which return through shared memory and are
// stored as A and B were loaded.
//
// A Config has, in addition to those of simt/gemm.cuh:
//
//   Tile                 Shape<M,N,K>: extents of a product
//   kProducts, kThreads  per CTA
//   kRunsC               whether vectors of C may have elements of several rows
//   Parts                (along C's unit-stride mode, across, product): how threads share the products
//   RowsA, RowsB         rows of A and of B that a thread reads, from the first
//   Mma                  CuTe's instruction, or void: FMA
//   kDepth               k that a thread reads at a time
//   CopyA, CopyB, CopyC  ProductCopy: how the threads share the copies of the matrices
//   SmemA, SmemB, SmemC  (M,K,product), (N,K,product), (M,N,product) -> element of shared memory, for C
//                        accumulator
//   kReadA, kReadB       elements per access of a multiplying thread
//   kWriteC              accumulators per access
//   kBeginB              byte of shared memory at which B's matrices begin

#pragma once

#include "../common/copy.cuh"
#include "../simt/tiles.cuh"

namespace cute_gemm {

// ---- gmem -> smem -------------------------------------------------------------------------------

// How the threads of a CTA copy its matrices A, B or C, vector by vector: Smem maps the number of a
// vector, with rows and products as modes 1 and 2, to its first element in shared memory.
// kProductMode says which mode is the product; 0: all matrices are one run.
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

  // How many elements of a vector belong to existing products, which have `elements` in all.
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
  static CUTE_DEVICE void load(uint32_t to, Element const* from, int64_t ld, int64_t batch, int products, int thread) {
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
        if constexpr (kProductMode == 0 && kVector > 1) {  // the last CTA, whose products end earlier
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

// A thread's rows of A or of B of its product: their start in shared memory, and some k of them. Beyond
// the last row, the last one is repeated.
template <class Smem, class Values, int kRead, bool kMajorK, class Element>
struct ProductRows {
  enum : int {
    kCount = size(Values{}), kRun = kMajorK ? 1 : kRead, kStarts = kCount / kRun,
    kRows = size<0>(Smem{}), kK = size<1>(Smem{})
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

  // From k on; with kCut elements beyond the end of K are 0.
  template <bool kCut = false, class T, int kDepth>
  CUTE_DEVICE void read(T (&to)[kDepth][kCount], int k) const {
    constexpr int kTogether = kMajorK ? kRead : 1;  // k
    CUTE_UNROLL
    for (int e = 0; e < kDepth; e += kTogether) {
      bool const inside = !kCut || k + e < kK;
      CUTE_UNROLL
      for (int i = 0; i < kStarts; ++i) {
        T vector[kRead];
        if (inside) {
          cute_gemm::read<kRead>(vector, at(starts[i], k + e));
        } else {
          CUTE_UNROLL
          for (int v = 0; v < kRead; ++v) vector[v] = T(0);
        }
        CUTE_UNROLL
        for (int v = 0; v < kRead; ++v) (kMajorK ? to[e + v][i] : to[e][i * kRun + v]) = vector[v];
      }
    }
  }

  static CUTE_DEVICE Element const* at(uint32_t start, int k) {
    return shared_pointer<Element const>(start + sizeof(Element) * Smem{}(0, k, 0));
  }
};

template <class Config>
using ProductRowsA = ProductRows<typename Config::SmemA, typename Config::RowsA, Config::kReadA,
                                 Config::kMajorKA, typename Config::ElementA>;
template <class Config>
using ProductRowsB = ProductRows<typename Config::SmemB, typename Config::RowsB, Config::kReadB,
                                 Config::kMajorKB, typename Config::ElementB>;

// ---- products -----------------------------------------------------------------------------------

// A thread's accumulators: (row,column) is the place of the first.
template <class Config, bool kMma = !is_void_v<typename Config::Mma>>
struct ProductAccumulators {
  using Accumulator = typename Config::Accumulator;
  using ValuesM = typename Config::ValuesM;
  using ValuesN = typename Config::ValuesN;
  enum : int { kTM = size(ValuesM{}), kTN = size(ValuesN{}), kK = size<2>(typename Config::Tile{}) };

  int row, column, product;
  Accumulator accumulators[kTM][kTN] = {};

  CUTE_DEVICE explicit ProductAccumulators(int thread) {
    auto const part = idx2crd(thread, typename Config::Parts{});
    int const along = get<0>(part), across = get<1>(part);
    row = (Config::kMajorNC ? across : along) * size<0>(ValuesM{});
    column = (Config::kMajorNC ? along : across) * size<0>(ValuesN{});
    product = get<2>(part);
  }

  CUTE_DEVICE Accumulator operator()(int i, int j) const { return accumulators[i][j]; }

  CUTE_DEVICE void multiply(uint32_t smem) {
    constexpr int kDepth = Config::kDepth, kUnroll = Config::kUnroll;
    ProductRowsA<Config> const rows(smem, row, product);
    ProductRowsB<Config> const columns(smem + Config::kBeginB, column, product);
#pragma unroll kUnroll
    for (int k = 0; k < kK; k += kDepth) {
      Accumulator a[kDepth][kTM], b[kDepth][kTN];
      rows.read(a, k);
      columns.read(b, k);
      CUTE_UNROLL
      for (int e = 0; e < kDepth; ++e) outer_product<Config>(accumulators, a[e], b[e]);
    }
  }
};

// By MMA, a warp for 16 rows and 8 columns, or several times as many. A lane may have any k of an MMA if
// they are the same for A and for B, so it takes four adjacent ones.
template <class Config>
struct ProductAccumulators<Config, true> {
  using Mma = typename Config::Mma;
  using Element = typename Config::ElementA;
  using ValuesM = typename Config::ValuesM;
  using ValuesN = typename Config::ValuesN;
  enum : int {
    kTM = size(ValuesM{}), kTN = size(ValuesN{}), kK = size<2>(typename Config::Tile{}), kMmaK = 16,
    kDepth = Config::kDepth
  };
  static_assert(kDepth == 4 && sizeof(Element) == 2);

  int row, column, product;
  float accumulators[kTM / 2][kTN / 2][4] = {};

  CUTE_DEVICE explicit ProductAccumulators(int thread) {
    auto const part = idx2crd(thread / 32, typename Config::Parts{});
    int const along = get<0>(part), across = get<1>(part), lane = thread % 32;
    row = (Config::kMajorNC ? across : along) * 8 * kTM + lane / 4;
    column = (Config::kMajorNC ? along : across) * 4 * kTN + lane % 4 * 2;
    product = get<2>(part);
  }

  CUTE_DEVICE float operator()(int i, int j) const { return accumulators[i / 2][j / 2][i % 2 * 2 + j % 2]; }

  static CUTE_DEVICE uint32_t pair(Element const& low, Element const& high) {
    return uint32_t(low.raw()) | uint32_t(high.raw()) << 16;
  }

  CUTE_DEVICE void multiply(uint32_t smem) {
    int const lane = threadIdx.x % 32, first = lane % 4 * kDepth;
    ProductRowsA<Config> const rows(smem, row, product);
    ProductRowsB<Config> const columns(smem + Config::kBeginB, column - lane % 4 * 2 + lane / 4, product);
    CUTE_UNROLL
    for (int k = 0; k < kK; k += kMmaK) {
      Element a[kDepth][kTM], b[kDepth][kTN / 2];
      constexpr bool kCut = kK % kMmaK != 0;
      rows.template read<kCut>(a, k + first);
      columns.template read<kCut>(b, k + first);
      CUTE_UNROLL
      for (int i = 0; i < kTM; i += 2) {
        uint32_t const a0 = pair(a[0][i], a[1][i]), a1 = pair(a[0][i + 1], a[1][i + 1]);
        uint32_t const a2 = pair(a[2][i], a[3][i]), a3 = pair(a[2][i + 1], a[3][i + 1]);
        CUTE_UNROLL
        for (int j = 0; j < kTN / 2; ++j) {
          float(&c)[4] = accumulators[i / 2][j];
          Mma::fma(c[0], c[1], c[2], c[3], a0, a1, a2, a3, pair(b[0][j], b[1][j]),
                   pair(b[2][j], b[3][j]), c[0], c[1], c[2], c[3]);
        }
      }
    }
  }
};

// ---- epilogue -----------------------------------------------------------------------------------

// Updates the first `left` of N elements of C that are adjacent in memory, each at its own coordinate.
template <int N, class Epilogue, class ElementC, class Accumulator, class At>
CUTE_DEVICE void update_run(Epilogue const& epilogue, ElementC* c, Accumulator const* accumulators, int left,
                            At const& coord) {
  using Vector = cutlass::AlignedArray<ElementC, N>;
  using One = cutlass::AlignedArray<ElementC, 1>;
  bool const whole = left >= N, reads_c = epilogue.reads_c();
  Vector old, results;
  if (reads_c) {
    if (whole) {
      old = *reinterpret_cast<Vector const*>(c);
    } else {
      CUTE_UNROLL
      for (int e = 0; e < N; ++e) {
        if (e < left) {
          One const one = reinterpret_cast<One const*>(c)[e];
          old[e] = one[0];
        }
      }
    }
  }
  CUTE_UNROLL
  for (int e = 0; e < N; ++e) {
    if (e < left) {
      auto operands = epilogue.template load<Block<1, 1>>(coord(e));
      results[e] = reads_c ? epilogue(accumulators[e], old[e], operands, 0, 0)
                           : epilogue(accumulators[e], operands, 0, 0);
      epilogue.template store<Block<1, 1>>(coord(e), operands);
    }
  }
  if (whole) {
    *reinterpret_cast<Vector*>(c) = results;
  } else {
    CUTE_UNROLL
    for (int e = 0; e < N; ++e) {
      if (e < left) {
        One one;
        one[0] = results[e];
        reinterpret_cast<One*>(c)[e] = one;
      }
    }
  }
}

// ---- the kernel ---------------------------------------------------------------------------------

template <class Config>
CUTE_DEVICE void batched(typename Config::ElementA const* A, typename Config::ElementB const* B,
                         typename Config::ElementC* C, int k, uint32_t l, int64_t lda, int64_t ldb,
                         int64_t ldc, int64_t batch_a, int64_t batch_b, int64_t batch_c,
                         typename Config::Epilogue::Params const& params) {
  using Accumulator = typename Config::Accumulator;
  using Tile = typename Config::Tile;
  constexpr int kM = size<0>(Tile{}), kN = size<1>(Tile{}), kK = size<2>(Tile{});
  constexpr int kThreads = Config::kThreads;
  extern __shared__ __align__(128) char shared[];
  uint32_t const smem = cast_smem_ptr_to_uint(shared);
  int const thread = threadIdx.x;

  typename Config::Epilogue epilogue(params);
  uint32_t const first = blockIdx.x * Config::kProducts;
  int const products = cute::min(l - first, uint32_t(Config::kProducts));
  A += first * batch_a;
  B += first * batch_b;
  C += first * batch_c;

  ProductAccumulators<Config> accumulators(thread);
  bool const has_results = accumulators.product < products;
  if (!epilogue.skips_products(k)) {
    using CopyA = typename Config::CopyA;
    using CopyB = typename Config::CopyB;
    CopyA::template load<kThreads, kM * kK>(smem, A, lda, batch_a, products, thread);
    CopyB::template load<kThreads, kN * kK>(smem + Config::kBeginB, B, ldb, batch_b, products, thread);
    asm volatile("cp.async.wait_all;\n" ::: "memory");
    __syncthreads();
    if (has_results) accumulators.multiply(smem);
    __syncthreads();  // before accumulators replace A and B
  }

  // Accumulators to shared memory, adjacent ones along C's unit-stride mode together.
  using SmemC = typename Config::SmemC;
  constexpr int kWrite = Config::kWriteC;
  if (has_results) {
    typename Config::ValuesM const rows;
    typename Config::ValuesN const columns;
    constexpr bool kRows = Config::kMajorNC;
    constexpr int kOuter = kRows ? size(rows) : size(columns), kInner = kRows ? size(columns) : size(rows);
    CUTE_UNROLL
    for (int outer = 0; outer < kOuter; ++outer) {
      CUTE_UNROLL
      for (int inner = 0; inner < kInner; inner += kWrite) {
        Accumulator run[kWrite];
        CUTE_UNROLL
        for (int e = 0; e < kWrite; ++e) {
          run[e] = kRows ? accumulators(outer, inner + e) : accumulators(inner + e, outer);
        }
        int const m = accumulators.row + int(rows(kRows ? outer : inner));
        int const n = accumulators.column + int(columns(kRows ? inner : outer));
        if (m < kM && n < kN) {
          store_shared<kWrite>(smem + sizeof(Accumulator) * SmemC{}(m, n, accumulators.product), run);
        }
      }
    }
  }
  __syncthreads();

  // From there to C.
  using CopyC = typename Config::CopyC;
  constexpr int kVector = CopyC::kVector;
  CUTE_NO_UNROLL
  for (int vector = thread; vector < CopyC::kVectors; vector += kThreads) {
    int const left = CopyC::valid(vector, products, kM * kN);
    if (left <= 0) continue;
    Accumulator run[kVector];
    constexpr int kRead = cute::min(kVector, cute::max(1, 16 / int(sizeof(Accumulator))));
    uint32_t const from = smem + sizeof(Accumulator) * typename CopyC::Smem{}(vector);
    CUTE_UNROLL
    for (int e = 0; e < kVector; e += kRead) {
      read<kRead>(run + e, shared_pointer<Accumulator const>(from + e * int(sizeof(Accumulator))));
    }
    auto const at = CopyC::place(vector);
    auto* const c = C + CopyC::offset(vector, ldc, batch_c);
    auto const coord = [&](int along, int across, int product) {
      return Coord{Config::kMajorNC ? across : along, Config::kMajorNC ? along : across, int(first) + product};
    };
    if constexpr (Config::kRunsC) {
      constexpr int kRun = Config::kMajorNC ? kN : kM, kRows = Config::kMajorNC ? kM : kN;
      update_run<kVector>(epilogue, c, run, left, [&](int e) {
        int const place = at.along + e;
        return coord(place % kRun, place / kRun % kRows, at.product + place / (kRun * kRows));
      });
    } else {
      update<kVector, !Config::kMajorNC>(epilogue, c, run, coord(at.along, at.across, at.product));
    }
  }
}

}  // namespace cute_gemm
