// Layouts: offsets with a static part, and the places of a thread's values.

#pragma once

#include <cute/swizzle_layout.hpp>

namespace cute_gemm {

using namespace cute;

// True if both give every linear coordinate the same offset, for compact extents
// that are powers of two.
template <class One, class Other>
CUTE_HOST_DEVICE constexpr bool same_offsets(One const& one, Other const& other) {
  bool same = size(one) == size(other);
  for (int coordinate = 1; coordinate < size(one); coordinate *= 2) {
    same = same && one(coordinate) == other(coordinate);
  }
  return same;
}

// The bits of an offset that the swizzle of a layout changes.
template <class Shape, class Stride>
CUTE_HOST_DEVICE constexpr int swizzled_bits(Layout<Shape, Stride> const&) {
  return 0;
}

template <int B, int M, int S, class Offset, class Affine>
CUTE_HOST_DEVICE constexpr int swizzled_bits(ComposedLayout<Swizzle<B, M, S>, Offset, Affine> const&) {
  static_assert(S > 0);
  return ((1 << B) - 1) << M;
}

// Offset of the sum of two coordinates, from the offsets of each. All extents are powers of two and
// the coordinates have no bit in common, so a swizzle is linear over XOR: the thread's part is
// computed once, the other part is a constant, and bits outside the swizzle are a sum, which fits
// into the address field of the instruction.
template <class Layout>
CUTE_DEVICE int join(Layout const& layout, int thread_part, int static_part) {
  constexpr int kMask = swizzled_bits(Layout{});
  return (thread_part ^ (static_part & kMask)) + (static_part & ~kMask);
}

// The places of one thread's values in a tile whose mode 0 has extent E0.
template <class TV, int E0>
struct Position {
  int row, column;
  CUTE_DEVICE Position(int thread, int value)
      : row(int(TV{}(thread, value)) % E0), column(int(TV{}(thread, value)) / E0) {}
};

}  // namespace cute_gemm
