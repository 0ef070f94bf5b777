// A lane's part of a block of A or of B: read from global memory, or copied to a separate place in
// shared memory and read from there.

#pragma once

#include <cute/arch/util.hpp>
#include <cutlass/array.h>

#include "../common/copy.cuh"
#include "../common/float8.cuh"

namespace cute_gemm {

// 1 to 16 bytes in one load, as words of registers.
template <int kBytes>
CUTE_DEVICE void read_words(uint32_t* words, void const* from) {
  using Words = cutlass::AlignedArray<uint_bit_t<8 * cute::min(kBytes, 4)>, cute::max(kBytes / 4, 1)>;
  Words const read = *static_cast<Words const*>(from);
  CUTE_UNROLL
  for (int i = 0; i < cute::max(kBytes / 4, 1); ++i) words[i] = read[i];
}

// A block of an operand, rows x k, is distributed over Lanes x 4 lanes: (row lane, k lane). A lane has
// Rows of its rows and Depth of their k. Lanes alternate along the rows after Run of them, and along k
// after DepthRun: within such a run, along the mode that is contiguous in memory, lie its vectors of
// Width elements. The numbers of rows and of k may have any order that both operands share, since the
// order of summation is free.
template <class Element, int Rows, int Lanes, int Run, int Depth, int DepthRun, int Width, bool MajorK>
struct Part {
  using Type = Element;
  enum : int {
    kRows = Rows, kDepth = Depth, kVectors = Rows * Depth / Width, kAlongK = Depth / Width,
    kSize = sizeof(Element), kBytes = Width * kSize, kWords = kBytes < 4 ? 1 : kBytes / 4,
    kPlaces = 32 * kBytes  // a warp's places in shared memory for one vector per lane
  };
  static_assert(Rows % Run == 0 && Depth % DepthRun == 0 && (MajorK ? DepthRun : Run) % Width == 0);

  uint32_t held[kVectors][kWords];

  // Place in the block of the i-th row of a row lane, and of the e-th k of a k lane.
  CUTE_HOST_DEVICE static constexpr int row(int lane, int i) { return (i / Run * Lanes + lane) * Run + i % Run; }
  CUTE_HOST_DEVICE static constexpr int column(int lane, int e) {
    return (e / DepthRun * 4 + lane) * DepthRun + e % DepthRun;
  }

  // The lane's part of a block whose first element of the lane is `from`; from there on the matrix
  // has the given numbers of rows and columns. Elements outside become 0. If the matrix may end along k
  // (`kCut`), a vector that straddles that end, or the last row in the last column, is read element by
  // element; otherwise it is read whole.
  template <bool kCut>
  CUTE_DEVICE void load(Element const* from, int64_t ld, int rows, int columns) {
    each_vector<kCut>(from, ld, rows, columns, [&](int v, Element const* at, int inside) {
      CUTE_UNROLL
      for (int w = 0; w < kWords; ++w) held[v][w] = 0;
      if (kCut && 0 < inside && inside < Width) {
        CUTE_UNROLL
        for (int e = 0; e < Width; ++e) {
          if (e < inside) read_into(held[v], e, at + e);
        }
      } else if (inside > 0) {
        read_words<kBytes>(held[v], at);
      }
    });
  }

  // The same to the lane's place in shared memory, asynchronously.
  template <bool kCut>
  CUTE_DEVICE static void copy(uint32_t place, Element const* from, int64_t ld, int rows, int columns) {
    each_vector<kCut>(from, ld, rows, columns, [&](int v, Element const* at, int inside) {
      // An element at the end is copied as one number, not part by part.
      using Whole = conditional_t<kSize <= 8, uint_bit_t<8 * (kSize <= 8 ? kSize : 8)>, Element>;
      copy_async_cut<Width>(place + v * kPlaces, reinterpret_cast<Whole const*>(at), inside);
    });
  }

  CUTE_DEVICE void take(uint32_t place) {
    CUTE_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      read_words<kBytes>(held[v], shared_pointer<char>(place + v * kPlaces));
    }
  }

  // The lane's place among those of a warp's vectors: a line of global memory stays a line, and each 8
  // lanes use all banks.
  CUTE_HOST_DEVICE static constexpr int place_of(int lane) {
    return (MajorK ? lane : lane % 4 * 8 + (lane / 4 ^ lane % 4 * 2)) * kBytes;
  }

  // Calls a function with number and address of each vector, and how many of its elements to read.
  template <bool kCut, class Function>
  CUTE_DEVICE static void each_vector(Element const* from, int64_t ld, int rows, int columns,
                                      Function const& function) {
    CUTE_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      int const down = row(0, MajorK ? v / kAlongK : v / Depth * Width);
      int const along = column(0, MajorK ? v % kAlongK * Width : v % Depth);
      int const left = !kCut    ? int(Width)
                       : MajorK ? columns - along
                                : valid_in_column<Width>(rows - down, columns - along);
      function(v, from + (MajorK ? down * ld + along : down + along * ld), down < rows ? left : 0);
    }
  }

  CUTE_DEVICE static void read_into(uint32_t* words, int e, Element const* from) {
    if constexpr (kSize >= 4) {
      read_words<kSize>(words + e * kSize / 4, from);
    } else {
      uint32_t read;
      read_words<kSize>(&read, from);
      words[e * kSize / 4] |= read << e * kSize * 8 % 32;
    }
  }

  // The vector with the e-th k of the i-th row, and the element's place in it.
  CUTE_HOST_DEVICE static constexpr int vector(int i, int e) {
    return MajorK ? i * kAlongK + e / Width : i / Width * Depth + e;
  }
  CUTE_HOST_DEVICE static constexpr int place(int i, int e) { return MajorK ? e % Width : i % Width; }

  CUTE_DEVICE Element element(int i, int e) const {
    static_assert(kSize >= 4);
    Element value;
    memcpy(&value, &held[vector(i, e)][place(i, e) * kSize / 4], kSize);
    return value;
  }

  // A word of adjacent k of one row, from the e-th on, for tensor cores.
  CUTE_DEVICE uint32_t word(int i, int e) const {
    if constexpr (kSize == 4 || (MajorK && kBytes >= 4)) {
      return around(i, e);
    } else if constexpr (kSize == 2) {
      int const low = byte(i, e), high = byte(i, e + 1) + 4;
      return __byte_perm(around(i, e), around(i, e + 1), low * 0x11 + high * 0x1100 + 0x1010);
    } else {
      return __byte_perm(pair(i, e), pair(i, e + 2), 0x5410);
    }
  }

  // The same for 8-bit floats, as two halves.
  CUTE_DEVICE uint32_t half_word(int i, int e) const {
    if constexpr (MajorK && kBytes >= 2) return halves<Element>(uint16_t(around(i, e) >> byte(i, e) * 8));
    return halves<Element>(uint16_t(pair(i, e)));
  }

  // Two bytes: the e-th k and the next one.
  CUTE_DEVICE uint32_t pair(int i, int e) const {
    return __byte_perm(around(i, e), around(i, e + 1), byte(i, e) + (byte(i, e + 1) + 4) * 0x10);
  }
  // The word of an element, and the element's first byte in it.
  CUTE_DEVICE uint32_t around(int i, int e) const {
    return held[vector(i, e)][place(i, e) * kSize / 4];
  }
  CUTE_HOST_DEVICE static constexpr int byte(int i, int e) { return place(i, e) * kSize % 4; }
};

}  // namespace cute_gemm
