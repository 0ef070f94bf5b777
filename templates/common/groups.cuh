// Groups of a grouped GEMM: consecutive parts of M, N or K, whose ends lie in device memory.

#pragma once

#include <cutlass/array.h>

#include "layout.cuh"

namespace cute_gemm {

// The mode of a kernel's GEMM along which the groups lie.
enum Ragged : int { kRaggedNone, kRaggedM, kRaggedN, kRaggedK };

// Group g begins at the end of g - 1, the first at 0. For all values of the ends, no group has a negative extent
// or ends beyond the total extent.
struct GroupEnds {
  int const* ends;
  int groups, total;

  CUTE_DEVICE int begin(int group) const { return group > 0 ? min(max(ends[group - 1], 0), total) : 0; }
  CUTE_DEVICE int end(int group, int begin) const { return min(max(ends[group], begin), total); }
};

// Stores zeros to the part of C (M,N) in the tile of (kBM,kBN) at (row,column), with a given number of threads, kVector
// elements at a time; M or N is a multiple of kVector.
template <int kBM, int kBN, int kThreads, bool kRowMajor, int kVector = 1, class Element>
CUTE_DEVICE void store_zeros(Element* C, int64_t ldc, int m, int n, int row, int column, int thread) {
  using Access = cutlass::AlignedArray<Element, kVector>;
  constexpr int kAlong = (kRowMajor ? kBN : kBM) / kVector;
  Access zero;
  zero.fill(Element(0));
  CUTE_NO_UNROLL
  for (int i = thread; i < kBM * kBN / kVector; i += kThreads) {
    int const along = i % kAlong * kVector, across = i / kAlong;
    int const r = row + (kRowMajor ? across : along), c = column + (kRowMajor ? along : across);
    if (r < m && c < n) *reinterpret_cast<Access*>(C + (kRowMajor ? r * ldc + c : r + c * ldc)) = zero;
  }
}

// The group of a CTA, in a grid with a CTA for each possible tile of (kBM,kBN), in the order of groups: its number, or
// -1 if there are fewer tiles, its begin and extent, and the CTA's tile in it. With `kZeroTail` the part after the last
// group is one more group, number `groups`, which has zeros in C.
template <int kRagged, int kBM, int kBN, bool kZeroTail = false>
struct CtaGroup {
  int number, size, cta;
  int64_t begin;

  CUTE_DEVICE CtaGroup(int const* offsets, int groups, int m, int n, int k) : number(-1), cta(blockIdx.x) {
    GroupEnds const ends{offsets, groups, kRagged == kRaggedM ? m : kRagged == kRaggedN ? n : k};
    if constexpr (kRagged == kRaggedK) {
      int const tiles = ceil_div(m, kBM) * ceil_div(n, kBN);
      if (cta < groups * tiles) set(cta / tiles, ends.begin(cta / tiles), cta / tiles * tiles);
      if (number >= 0) size = ends.end(number, int(begin)) - int(begin);
    } else {
      find(ends, kRagged == kRaggedM ? ceil_div(n, kBN) : ceil_div(m, kBM));
    }
  }

  // Stores zeros to the CTA's tile of C (M,N), which begins with the group.
  template <int kThreads, bool kRowMajor, class Element>
  CUTE_DEVICE void store_zeros(Element* C, int64_t ldc, int m, int n) const {
    int const tiles_n = ceil_div(n, kBN);
    cute_gemm::store_zeros<kBM, kBN, kThreads, kRowMajor>(C, ldc, m, n, cta / tiles_n * kBM, cta % tiles_n * kBN,
                                                          threadIdx.x);
  }

 private:
  CUTE_DEVICE void set(int group, int first, int tiles_before) {
    number = group;
    begin = first;
    cta -= tiles_before;
  }

  // Each lane of a warp has one group, 32 at a time: the greatest end so far, then the number of tiles so far.
  CUTE_DEVICE void find(GroupEnds const& ends, int across) {
    constexpr int kTile = kRagged == kRaggedM ? kBM : kBN;
    int const all = ends.groups + kZeroTail;
    int const lane = threadIdx.x % 32;
    int before = 0, above = 0;  // end of the last group of previous steps, and their tiles
    CUTE_NO_UNROLL
    for (int first = 0; first < all; first += 32) {
      int end = first + lane < ends.groups ? ends.end(first + lane, before) : before;
      if (kZeroTail && first + lane == ends.groups) end = ends.total;
      CUTE_UNROLL
      for (int step = 1; step < 32; step *= 2) {
        int const other = __shfl_up_sync(~0u, end, step);
        if (lane >= step) end = max(end, other);
      }
      int start = __shfl_up_sync(~0u, end, 1);
      if (lane == 0) start = before;
      int const count = ceil_div(end - start, kTile) * across;
      int sum = count;
      CUTE_UNROLL
      for (int step = 1; step < 32; step *= 2) {
        int const other = __shfl_up_sync(~0u, sum, step);
        if (lane >= step) sum += other;
      }
      unsigned const candidates = __ballot_sync(~0u, above + sum > cta);
      if (candidates) {
        int const owner = 32 - __popc(candidates);  // the first of those lanes: sums do not decrease
        size = __shfl_sync(~0u, end - start, owner);
        set(first + owner, __shfl_sync(~0u, start, owner), above + __shfl_sync(~0u, sum - count, owner));
        return;
      }
      above += __shfl_sync(~0u, sum, 31);
      before = __shfl_sync(~0u, end, 31);
    }
  }
};

}  // namespace cute_gemm
