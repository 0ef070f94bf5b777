// bank_free: no bank conflicts.
//
// The idea: vectorized, with other places in shared memory for the same words, so that the vectors of
// eight adjacent threads, and the words of a transposed store, lie in different banks. This takes
// either padding (16 bytes after every 128, and rows that begin in different banks) or, without
// additional memory, an XOR of the column's chunk with the row: Swizzle<3,M,3>.

#pragma once

#include "mainloop.cuh"

namespace cute_gemm {

// The places of an operand's tile (kRows,kColumns), whose M or N mode is contiguous.
template <class Config, class Smem, class Copy, bool kMajorK>
struct BankFreeTile {
  enum : int {
    kRows = size<0>(Smem{}), kColumns = size<1>(Smem{}),
    kChunk = 16 / sizeof(typename Config::Element), kLine = 8 * kChunk,
    kVector = kMajorK ? Copy::kBlockColumns : 1
  };

  // 16 bytes after every 128 of a column and, for elements of 4 bytes and more, after the column.
  enum : int { kPitch = kRows / kLine * (kLine + kChunk) + (kChunk <= 4 ? kChunk : 0) };
  using Padded = Layout<Shape<Shape<Int<kLine>, Int<kRows / kLine>>, Int<kColumns>>,
                        Stride<Stride<_1, Int<kLine + kChunk>>, Int<kPitch>>>;

  // The columns of a thread's vector are apart, so that those of adjacent threads are adjacent.
  enum : int { kCopies = kColumns / kVector };
  using Plain = Layout<Shape<Int<kRows>, Shape<Int<kVector>, Int<kCopies>>>,
                       Stride<_1, Stride<Int<kRows * kCopies>, Int<kRows>>>>;
  using Swizzled = ComposedLayout<Swizzle<3, log_2(uint32_t(kChunk)), 3>, _0, Plain>;

  using Type = conditional_t<swizzled_bits(Smem{}) != 0, Swizzled, Padded>;
};

template <class Config>
struct BankFree : Config {
  using SmemA = typename BankFreeTile<Config, typename Config::SmemA, typename Config::CopyA, Config::kMajorKA>::Type;
  using SmemB = typename BankFreeTile<Config, typename Config::SmemB, typename Config::CopyB, Config::kMajorKB>::Type;
};

template <class Config>
CUTE_DEVICE void bank_free(Gemm<Config> const& gemm) {
  outer_products<BankFree<Config>, size<2>(typename Config::Tile{})>(gemm);
}

}  // namespace cute_gemm
