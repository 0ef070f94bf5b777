// Assertions of proofs: the layouts of a Config, which Python computed, equal those of C++ CuTe.

#pragma once

#include "layout.cuh"

namespace cute_gemm {

// Modes with their inner modes merged.
template <class Shape, class Stride>
CUTE_HOST_DEVICE constexpr auto canonical(Layout<Shape, Stride> const& layout) {
  return coalesce(layout, repeat<rank_v<Layout<Shape, Stride>>>(Int<1>{}));
}

template <class Swz, class Offset, class Affine>
CUTE_HOST_DEVICE constexpr auto canonical(ComposedLayout<Swz, Offset, Affine> const& layout) {
  return make_composed_layout(layout.layout_a(), layout.offset(), canonical(layout.layout_b()));
}

// True if both are the same function with the same top-level modes.
template <class Cpp, class Python>
CUTE_HOST_DEVICE constexpr bool same_layout(Cpp const&, Python const&) {
  return is_same_v<decltype(canonical(Cpp{})), decltype(canonical(Python{}))>;
}

// True if the offsets of the linear coordinates 1, 2, 4, ... are `offsets`. With compact extents
// that are powers of two these determine a layout, swizzled or not.
template <class Layout, class... Offsets>
CUTE_HOST_DEVICE constexpr bool has_offsets(Layout const& layout, Offsets... offsets) {
  int coordinate = 1;
  bool same = true;
  ((same = same && layout(coordinate) == offsets, coordinate *= 2), ...);
  return same;
}

}  // namespace cute_gemm
