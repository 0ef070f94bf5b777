// pack: operands copied into aligned scratch, with the same or the transposed major.
//
// The idea: a row that begins anywhere is read by the aligned 16-byte words that cover it, and each
// vector is assembled from two of them in registers, so all reads and writes are whole adjacent
// vectors. If the other mode becomes the one of unit stride, a tile goes through shared memory in
// words of at least 4 bytes, swizzled to avoid bank conflicts.
//
// A tile is 16 KB, 4 vectors for each of 256 threads. A warp takes 8 vectors (a line of L2 if rows
// are aligned) of 4 rows at a time, or of 4 groups of rows whose elements form a 4-byte word.

#pragma once

#include <cute/config.hpp>
#include <cute/numeric/int.hpp>
#include <cutlass/array.h>

#include "../common/grids.cuh"

namespace cute_gemm {

// Division of a number below 2^31 by one whose reciprocal, 2^shift / divisor rounded up, comes from
// the host: exact, and many times faster.
struct Divisor {
  uint32_t reciprocal, shift;
  CUTE_DEVICE uint32_t divide(uint32_t number) const {
    return uint32_t(uint64_t(number) * reciprocal >> shift);
  }
};

// Source and target of an operand. A row has unit stride in the source.
struct PackOperand {
  int64_t ld, batch;                // source, in elements
  int64_t target_ld, target_batch;  // target
  int64_t offset;                   // target in scratch, in bytes
  Divisor by_group, by_along;
  uint32_t extent, rows;  // elements of a row; rows
  int matrices;           // copied matrices
  int tiles;              // tiles of one matrix
  int lines;              // log2 of the lines of a tile's row
  uint32_t group, along;  // rows of tiles in a group; tiles along a row
  int unused;
};

// 16 bytes.
using PackVector = cutlass::AlignedArray<uint32_t, 4>;

// Copies of elements of `Bytes` bytes. Words: 16-byte words that form a vector; 1 if all rows are
// aligned. Turned: whether the other mode has unit stride in the target; then Lines is log2 of the
// lines of a tile's row. 0 bytes: nothing to copy.
template <int Bytes, int Words, bool Turned, int Lines>
struct Pack {
  enum : int {
    kElements = 16 / Bytes,  // per vector
    kGroup = Turned && Bytes < 4 ? 4 / Bytes : 1,
    kWarps = 8,
    kRowBytes = (128 >> Lines) * Bytes,  // written row of a transposed tile
    kChunks = kRowBytes / 16 / 8,        // 8 vectors each
  };
  using Element = cute::uint_bit_t<8 * Bytes>;

  // 16 bytes from this address on, from the aligned words that hold them.
  CUTE_DEVICE static PackVector shifted(PackVector const& first, PackVector const& second, uint32_t address) {
    uint32_t w[8];
    CUTE_UNROLL
    for (int i = 0; i < 4; ++i) w[i] = first[i], w[4 + i] = second[i];
    if constexpr (Bytes <= 8) {
      CUTE_UNROLL
      for (int i = 0; i < 6; ++i) w[i] = address & 8 ? w[i + 2] : w[i];
    }
    if constexpr (Bytes <= 4) {
      CUTE_UNROLL
      for (int i = 0; i < 5; ++i) w[i] = address & 4 ? w[i + 1] : w[i];
    }
    // For 4 bytes no shift remains, but the last word is used: otherwise ptxas makes narrower and more
    // loads of its vector.
    PackVector found;
    CUTE_UNROLL
    for (int i = 0; i < 4; ++i) {
      found[i] = Bytes <= 4 ? __funnelshift_r(w[i], w[i + 1], 8 * (address & 3)) : w[i];
    }
    return found;
  }

  // Those of a word's elements that lie in the matrix, one by one; each is shifted in at the end.
  CUTE_DEVICE static PackVector element_by_element(Element const* at, Element const* begin, Element const* end) {
    constexpr int kStep = Bytes / 4;  // distance in words between them
    PackVector found{};
    CUTE_NO_UNROLL
    for (int e = 0; e < kElements; ++e) {
      uint32_t last[Bytes < 4 ? 1 : kStep] = {};
      if (at + e >= begin && at + e < end) {
        Element const element = at[e];
        memcpy(last, &element, Bytes);
      }
      CUTE_UNROLL
      for (int i = 0; i < 4; ++i) {
        if constexpr (Bytes < 4) {
          found[i] = __funnelshift_r(found[i], i < 3 ? found[i + 1] : last[0], 8 * Bytes);
        } else {
          found[i] = i + kStep < 4 ? found[i + kStep] : last[i + kStep - 4];
        }
      }
    }
    return found;
  }

  // Place in shared memory of a vector of a transposed tile's target row. Threads write columns of 8
  // adjacent vectors at a time and read rows: each column has a separate place in a row.
  CUTE_DEVICE static int swizzled(int row, int vector, int column) {
    return row * kRowBytes + 16 * (vector ^ (column % 8));
  }

  // Stores the vectors of a group of rows to shared memory in the order of the target's rows.
  CUTE_DEVICE static void store(char* shared, PackVector const (&rows)[kGroup], int row, int column) {
    char* const to = shared + swizzled(column * kElements, row * Bytes / 16, column) + row * Bytes % 16;
    if constexpr (Bytes >= 4) {
      constexpr int kStep = Bytes / 4;
      CUTE_UNROLL
      for (int i = 0; i < kElements; ++i) {
        cutlass::AlignedArray<uint32_t, kStep> element;
        CUTE_UNROLL
        for (int w = 0; w < kStep; ++w) element[w] = rows[0][i * kStep + w];
        *reinterpret_cast<decltype(element)*>(to + i * kRowBytes) = element;
      }
    } else {
      CUTE_UNROLL
      for (int w = 0; w < 4; ++w) {
        uint32_t words[4];  // columns of these words of the rows
        if constexpr (Bytes == 2) {
          words[0] = __byte_perm(rows[0][w], rows[1][w], 0x5410);
          words[1] = __byte_perm(rows[0][w], rows[1][w], 0x7632);
        } else {
          CUTE_UNROLL
          for (int half = 0; half < 2; ++half) {
            uint32_t const pairs = half ? 0x7362 : 0x5140;
            uint32_t const upper = __byte_perm(rows[0][w], rows[1][w], pairs);
            uint32_t const lower = __byte_perm(rows[2][w], rows[3][w], pairs);
            words[2 * half] = __byte_perm(upper, lower, 0x5410);
            words[2 * half + 1] = __byte_perm(upper, lower, 0x7632);
          }
        }
        CUTE_UNROLL
        for (int i = 0; i < 4 / Bytes; ++i) {
          *reinterpret_cast<uint32_t*>(to + (w * (4 / Bytes) + i) * kRowBytes) = words[i];
        }
      }
    }
  }

  // Row and vector of a thread's vector number i.
  struct Place {
    uint32_t row, column;
    CUTE_DEVICE Place(int i, int lines, uint32_t first_row, uint32_t first_column) {
      int const lane = threadIdx.x % 32, block = threadIdx.x / 32 + i / kGroup * kWarps;
      row = first_row + ((block >> lines) * 4 + lane / 8) * kGroup + i % kGroup;
      column = first_column + (block & ((1 << lines) - 1)) * 8 + lane % 8;
    }
  };

  // The aligned word that holds this address.
  CUTE_DEVICE static PackVector const* word(Element const* at) {
    return reinterpret_cast<PackVector const*>(reinterpret_cast<uint64_t>(at) & ~15ull);
  }

  CUTE_DEVICE static void copy(void const* source, void* scratch, PackOperand const& operand,
                               uint32_t tile, char* shared) {
    int64_t const batch = blockIdx.y + int64_t(blockIdx.z) * gridDim.y;
    if (batch >= operand.matrices) return;
    Element const* const from = static_cast<Element const*>(source) + batch * operand.batch;
    char* const to = static_cast<char*>(scratch) + operand.offset + batch * operand.target_batch * Bytes;

    int const lines = Turned ? Lines : operand.lines;
    uint32_t const vectors = operand.extent / kElements + (operand.extent % kElements != 0);
    // Tiles are walked in groups of rows, so that concurrent CTAs also write long pieces of the
    // target's rows. The last group may have missing rows.
    uint32_t const step = operand.by_group.divide(tile);
    uint32_t const whole = operand.by_along.divide(step);  // groups before this one
    uint32_t const first_column = (step - whole * operand.along) * (8 << lines);
    uint32_t const first_row = (tile + (whole - step) * operand.group) * (128 >> lines);
    if (first_row >= operand.rows) return;
    // Reads words that have elements of the tile's rows: whole words if they lie in the matrix,
    // including bytes between rows, but nothing before its first byte or after its last.
    Element const* const end = from + (operand.rows - 1) * operand.ld + operand.extent;
    uint32_t const last = min(operand.extent, (first_column + (8 << lines)) * kElements);
    PackVector words[4][Words];
    uint32_t cut = 0;  // other words, one bit each
    CUTE_UNROLL
    for (int i = 0; i < 4; ++i) {
      Place const place(i, lines, first_row, first_column);
      Element const* const row = from + place.row * operand.ld;
      PackVector const* const at = word(row + uint64_t(place.column) * kElements);
      CUTE_UNROLL
      for (int w = 0; w < Words; ++w) {
        auto const* const first = reinterpret_cast<Element const*>(at + w);
        bool const inside = first >= from && first + kElements <= end;
        words[i][w] = PackVector{};
        if (place.row < operand.rows && first < row + last) {
          if (inside) {
            words[i][w] = at[w];
          } else {
            cut |= 1 << (i * Words + w);
          }
        }
      }
    }

    PackVector group[kGroup];
    CUTE_UNROLL
    for (int i = 0; i < 4; ++i) {
      Place const place(i, lines, first_row, first_column);
      Element const* const at = from + place.row * operand.ld + uint64_t(place.column) * kElements;
      CUTE_UNROLL
      for (int w = 0; w < Words; ++w) {
        if (cut >> (i * Words + w) & 1) {
          auto const* const first = reinterpret_cast<Element const*>(word(at) + w);
          words[i][w] = element_by_element(first, from, end);
        }
      }
      PackVector vector = words[i][0];
      if constexpr (Words > 1) {
        vector = shifted(vector, words[i][1], uint32_t(reinterpret_cast<uint64_t>(at)));
      }
      if constexpr (Turned) {
        group[i % kGroup] = vector;
        if (i % kGroup == kGroup - 1) {
          store(shared, group, place.row - first_row - i % kGroup, place.column - first_column);
        }
      } else if (place.row < operand.rows && place.column < vectors) {
        *reinterpret_cast<PackVector*>(to + place.row * operand.target_ld * Bytes + place.column * 16ull) = vector;
      }
    }
    if constexpr (Turned) {
      __syncthreads();
      int const warp = threadIdx.x / 32, lane = threadIdx.x % 32;
      CUTE_UNROLL
      for (int i = 0; i < 4; ++i) {
        int const block = warp + i * kWarps;
        int const column = block / kChunks * 4 + lane / 8;  // column of elements
        int const chunk = block % kChunks * 8 + lane % 8;
        uint64_t const target = uint64_t(first_column) * kElements + column;
        uint32_t const row = first_row + chunk * kElements;
        if (target < operand.extent && row < operand.rows) {
          *reinterpret_cast<PackVector*>(to + (target * operand.target_ld + row) * Bytes) =
              *reinterpret_cast<PackVector const*>(shared + swizzled(column, chunk, column / kElements));
        }
      }
    }
  }
};

template <int Words, bool Turned, int Lines>
struct Pack<0, Words, Turned, Lines> {
  CUTE_DEVICE static void copy(void const*, void*, PackOperand const&, uint32_t, char*) {}
};

// A CTA has one tile of A or of B.
template <class Config>
CUTE_DEVICE void pack(void const* A, void const* B, void* scratch, PackOperand const& a, PackOperand const& b) {
  extern __shared__ __align__(128) char shared[];
  int const tile = blockIdx.x;
  follow_grids();
  if (tile < a.tiles) {
    Config::A::copy(A, scratch, a, tile, shared);
  } else {
    Config::B::copy(B, scratch, b, tile - a.tiles, shared);
  }
}

}  // namespace cute_gemm
