// vectorized: 128-bit accesses.
//
// The idea: the outer products of thread_tile_2d with four words per instruction. A thread copies a
// vector along the operand's unit stride; if that is k, the vector is transposed on its way into
// shared memory, with one store per element. The results of a thread are adjacent, so that it reads
// shared memory in vectors too: 4 reads for 64 products instead of 16. The cost is bank conflicts:
// the vectors of adjacent threads are 32 bytes apart.

#pragma once

#include "mainloop.cuh"

namespace cute_gemm {

// Which thread copies each vector of a tile (kRows,bK): adjacent threads follow each other along the
// operand's unit stride, down a whole column or, along k, for a sector of each row (for 8 elements
// if they are stored one by one and wider than 2 bytes). A vector is as long as base pointer and
// leading dimension allow.
template <class Config, class Copy, int kRows, bool kMajorK>
struct VectorCopy {
  enum : int {
    kBK = size<2>(typename Config::Tile{}), kSize = sizeof(typename Config::Element),
    kThreads = size(typename Config::Threads{}),
    kVector = kMajorK ? Copy::kBlockColumns : Copy::kBlockRows,

    kSector = kVector == 1 && kSize > 2 ? 8 : 32 / (kVector * kSize),
    kLanes = kMajorK ? cute::min(kSector, kBK / kVector) : cute::min(kRows / kVector, kThreads),
    kOthers = kThreads / kLanes, kDown = cute::min(kRows, kOthers)
  };

  // thread -> row + kStepRows * column
  using AlongK = Layout<Shape<Int<kLanes>, Int<kDown>, Int<kOthers / kDown>>,
                        Stride<Int<kVector * kDown>, _1, Int<kLanes * kVector * kDown>>>;
  using AlongMN = Layout<Shape<Int<kLanes>, Int<kOthers>>, Stride<Int<kVector>, Int<kVector * kLanes>>>;
  using Threads = conditional_t<kMajorK, AlongK, AlongMN>;
};

template <class Config>
struct Vectorized : Config {
  using Tile = typename Config::Tile;
  using CopyA = typename VectorCopy<Config, typename Config::CopyA, size<0>(Tile{}), Config::kMajorKA>::Threads;
  using CopyB = typename VectorCopy<Config, typename Config::CopyB, size<1>(Tile{}), Config::kMajorKB>::Threads;

  // `count` adjacent elements, in vectors of 16 bytes if there are enough.
  enum : int { kMost = 16 / sizeof(typename Config::Element) };
  template <int count, int run = count < kMost ? count : int(kMost)>
  using Neighbours = Layout<Shape<Int<run>, Int<count / run>>, Stride<_1, Int<run>>>;
  using ValuesM = Neighbours<size(typename Config::ValuesM{})>;
  using ValuesN = Neighbours<size(typename Config::ValuesN{})>;
};

template <class Config>
CUTE_DEVICE void vectorized(Gemm<Config> const& gemm) {
  using Page = Vectorized<Config>;
  static_assert(same_offsets(typename Config::CopyA::Threads{}, typename Page::CopyA{}), "CopyA");
  static_assert(same_offsets(typename Config::CopyB::Threads{}, typename Page::CopyB{}), "CopyB");
  outer_products<Page, size<2>(typename Config::Tile{})>(gemm);
}

}  // namespace cute_gemm
