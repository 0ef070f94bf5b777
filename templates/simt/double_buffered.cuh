// double_buffered: the next tile is loaded while the present one is computed.
//
// The idea: two buffers of shared memory, so that a tile's copies overlap with warp_tiled's products
// of the previous tile, and a k tile takes one barrier instead of two. An operand whose M or N mode is
// contiguous is copied by cp.async; one that must be transposed is held in registers meanwhile, and
// stored when the products are done. Fragments are read one column ahead of their products.

#pragma once

#include "scales.cuh"
#include "tiles.cuh"

namespace cute_gemm {

// Words of a vector, read at this place in the program: the compiler would move a plain load next to the
// store that uses it, after all the products that should hide it. Reads nothing unless `active`.
CUTE_DEVICE void read_now(uint32_t (&words)[1], void const* from, bool active) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\n@p ld.global.b32 %0, [%1];\n}\n"
               : "+r"(words[0]) : "l"(from), "r"(int(active)));
}
CUTE_DEVICE void read_now(uint32_t (&words)[2], void const* from, bool active) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %3, 0;\n@p ld.global.v2.b32 {%0, %1}, [%2];\n}\n"
               : "+r"(words[0]), "+r"(words[1]) : "l"(from), "r"(int(active)));
}
CUTE_DEVICE void read_now(uint32_t (&words)[4], void const* from, bool active) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\n"
      "@p ld.global.v4.b32 {%0, %1, %2, %3}, [%4];\n}\n"
      : "+r"(words[0]), "+r"(words[1]), "+r"(words[2]), "+r"(words[3])
      : "l"(from), "r"(int(active)));
}

// One thread's part in copying an operand's tiles, by cp.async or through registers.
template <class Copy, class SmemLayout, class Element, bool kMajorK, bool kAsync>
struct BufferedCopy : TileCopy<Copy, SmemLayout, Element, kMajorK> {
  using Base = TileCopy<Copy, SmemLayout, Element, kMajorK>;
  using Base::Base;
  using Base::kColumnSteps, Base::kRowSteps, Base::kVectors, Base::kVector;
  enum : int { kBytes = kVector * sizeof(Element), kWords = kBytes < 4 ? 1 : kBytes / 4 };

  uint32_t words[kColumnSteps][kRowSteps][kVectors][kWords];  // the tile in flight

  CUTE_DEVICE uint32_t target(Element* smem, int row, int column) const {
    int const to = join(SmemLayout{}, this->smem_first, SmemLayout{}(row, column));
    return cast_smem_ptr_to_uint(smem) + to * sizeof(Element);
  }

  // The last tile along k, gmem -> smem; elements outside the matrix become 0.
  CUTE_DEVICE void copy_cut(Element* smem) {
    if constexpr (kAsync) {
      this->each_vector([&](int, int, int, int row, int column) {
        copy_async_cut<kVector>(target(smem, row, column), this->at(row, column),
                                this->template valid<true>(row, column));
      });
      this->advance();
    } else {
      this->template fetch<true>();
      this->store(smem);
    }
  }

  // Another tile, whose copy begins here and ends with `end` or with a wait for cp.async. It does not
  // check the end of K: an existing row is read whole, and so is a vector that straddles the last
  // row, because the next column follows it.
  CUTE_DEVICE void begin(Element* smem, bool active) {
    int const rows = active ? this->rows_left : 0;
    this->each_vector([&](int i, int j, int v, int row, int column) {
      if constexpr (kAsync) {
        copy_async_if<kBytes>(target(smem, row, column), this->at(row, column), row < rows);
      } else if constexpr (kBytes >= 4) {
        read_now(words[j][i][v], this->at(row, column), row < rows);
      } else if (row < rows) {  // 1 or 2 bytes, otherwise read one by one
        auto const read = *reinterpret_cast<uint_bit_t<8 * kBytes> const*>(this->at(row, column));
        memcpy(words[j][i][v], &read, kBytes);
      }
    });
    this->advance();
  }

  // For a copy through registers: stores them to smem.
  CUTE_DEVICE void end(Element* smem) {
    this->each_vector([&](int i, int j, int v, int, int) {
      Element vector[kVector];
      memcpy(vector, words[j][i][v], kBytes);
      this->keep(i, j, v, vector);
    });
    this->store(smem);
  }
};

// With block scales, 128 is a multiple of bK, and of bM or bN if rows share them.
template <class Config, int RowsA = 0, int RowsB = 0>
CUTE_DEVICE void double_buffered(Gemm<Config> const& gemm, BlockScales<RowsA> const& scale_a = {},
                                 BlockScales<RowsB> const& scale_b = {}) {
  using Element = typename Config::Element;
  using Accumulator = typename Config::Accumulator;
  using SmemA = typename Config::SmemA;  // (bM,bK)
  using SmemB = typename Config::SmemB;  // (bN,bK)
  using ValuesM = typename Config::ValuesM;
  using ValuesN = typename Config::ValuesN;
  constexpr int kBK = size<2>(typename Config::Tile{}), kM = size(ValuesM{}), kN = size(ValuesN{});
  constexpr int kBuffer = Config::kSmemA + Config::kSmemB;
  int const thread = threadIdx.x;
  Corner const corner = gemm.corner(), mine = first_result<Config>(thread);
  Element* const shared = shared_tiles<Config>();
  auto const tile_b = [](Element* buffer) {
    return reinterpret_cast<typename Config::ElementB*>(buffer + Config::kSmemA);
  };
  Accumulator accumulators[kM][kN] = {};
  constexpr bool kScaled = RowsA > 0 || RowsB > 0;
  ScaleFactors<Config, RowsA, RowsB> scales{scale_a, scale_b, corner.row + (RowsA == 1 ? mine.row : 0),
                                            corner.column + (RowsB == 1 ? mine.column : 0), gemm.m, gemm.n};

  int const k_tiles = ceil_div(gemm.k, kBK);
  if (k_tiles > 0) {
    // The last tile, the only one that K can cut, comes first: the order of summation is free.
    int const last = (k_tiles - 1) * kBK;
    using CopyA =
        BufferedCopy<typename Config::CopyA, SmemA, typename Config::ElementA, Config::kMajorKA, Config::kAsyncA>;
    using CopyB =
        BufferedCopy<typename Config::CopyB, SmemB, typename Config::ElementB, Config::kMajorKB, Config::kAsyncB>;
    CopyA a(gemm.a(corner.row, last), gemm.lda, gemm.m - corner.row, gemm.k - last, thread);
    CopyB b(gemm.b(corner.column, last), gemm.ldb, gemm.n - corner.column, gemm.k - last, thread);
    a.copy_cut(shared);
    b.copy_cut(tile_b(shared));
    cp_async_fence();
    a.source -= k_tiles * kBK * a.column_stride;
    b.source -= k_tiles * kBK * b.column_stride;
    if constexpr (!Config::kAsyncA) a.begin(shared, k_tiles > 1);
    if constexpr (!Config::kAsyncB) b.begin(tile_b(shared), k_tiles > 1);
    cp_async_wait<0>();
    __syncthreads();

    FragmentsA<Config> rows(shared, mine.row);
    FragmentsB<Config> columns(tile_b(shared), mine.column);
    Accumulator row_parts[2][kM], column_parts[2][kN];
    rows.read(row_parts[0], 0);
    columns.read(column_parts[0], 0);

    constexpr int kChunk = Config::kChunk, kChunks = kBK / kChunk;  // unrolled columns
    constexpr int kChunkA = SmemA{}(0, kChunk % kBK) * sizeof(Element);
    constexpr int kChunkB = SmemB{}(0, kChunk % kBK) * sizeof(Element);
    static_assert((kChunkA / sizeof(Element) & swizzled_bits(SmemA{})) == 0 &&
                      (kChunkB / sizeof(Element) & swizzled_bits(SmemB{})) == 0,
                  "a chunk further on, a fragment lies a constant further on");
    int step = kBuffer;  // from this buffer to the other
    Element* next = shared;
    Accumulator products[kScaled ? kM : 1][kScaled ? kN : 1] = {};  // products of a k tile, if scaled
    CUTE_NO_UNROLL
    for (int tile = 1; tile <= k_tiles; ++tile) {
      if constexpr (kScaled) scales.load(tile == 1 ? last : (tile - 2) * kBK);
      next += step;
      // Predicates instead of branches, across which no product would be moved.
      bool const one_more = tile < k_tiles, two_more = tile + 1 < k_tiles;
      // With cp.async a tile is copied as soon as no thread reads the previous tile in the same buffer;
      // through registers, when the previous tile has left these.
      if constexpr (Config::kAsyncA) a.begin(next, one_more);
      if constexpr (Config::kAsyncB) b.begin(tile_b(next), one_more);
      cp_async_fence();
      CUTE_NO_UNROLL
      for (int chunk = 1; chunk <= kChunks; ++chunk) {
        CUTE_UNROLL
        for (int k = 0; k < kChunk; ++k) {
          if (chunk == kChunks) {  // stores of A and of B separately: products hide some at a time
            if (!Config::kAsyncA && k == kChunk / 4) a.end(next);
            if (!Config::kAsyncB && k == kChunk / 2) b.end(tile_b(next));
            if (!Config::kAsyncA && k == kChunk / 2) a.begin(next, two_more);
            if (!Config::kAsyncB && k == kChunk / 2) b.begin(tile_b(next), two_more);
          }
          if (k == kChunk - 1) {
            rows.first += kChunkA;
            columns.first += kChunkB;
            if (chunk == kChunks) {  // the products of the last column hide the change of buffers
              cp_async_wait<0>();
              __syncthreads();
              rows.first += step * int(sizeof(Element)) - kChunks * kChunkA;
              columns.first += step * int(sizeof(Element)) - kChunks * kChunkB;
              step = -step;
            }
          }
          rows.read(row_parts[(k + 1) % 2], (k + 1) % kChunk);
          columns.read(column_parts[(k + 1) % 2], (k + 1) % kChunk);
          if constexpr (kScaled) {
            outer_product<Config>(products, row_parts[k % 2], column_parts[k % 2]);
          } else {
            outer_product<Config>(accumulators, row_parts[k % 2], column_parts[k % 2]);
          }
        }
      }
      if constexpr (kScaled) scales.add(accumulators, products);
    }
  }
  write(gemm, corner.row + mine.row, corner.column + mine.column, accumulators);
}

}  // namespace cute_gemm
