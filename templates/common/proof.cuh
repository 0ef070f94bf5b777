// What a proof says of layouts: those of a Config, which Python computed, are what C++ CuTe computes.

#pragma once

#include "layout.cuh"

namespace cute_gemm {

// Mode by mode, with inner modes merged as far as they go.
template <class Shape, class Stride>
CUTE_HOST_DEVICE constexpr auto canonical(Layout<Shape, Stride> const& layout) {
  return coalesce(layout, repeat<rank_v<Layout<Shape, Stride>>>(Int<1>{}));
}

template <class Swz, class Offset, class Affine>
CUTE_HOST_DEVICE constexpr auto canonical(ComposedLayout<Swz, Offset, Affine> const& layout) {
  return make_composed_layout(layout.layout_a(), layout.offset(), canonical(layout.layout_b()));
}

// True when both are the same function with the same top-level modes.
template <class Cpp, class Python>
CUTE_HOST_DEVICE constexpr bool same_layout(Cpp const&, Python const&) {
  return is_same_v<decltype(canonical(Cpp{})), decltype(canonical(Python{}))>;
}

// True when the offsets of the linear coordinates 1, 2, 4, ... are `offsets`. With compact extents
// that are powers of two these are all there is to know of a layout, swizzled or not.
template <class Layout, class... Offsets>
CUTE_HOST_DEVICE constexpr bool has_offsets(Layout const& layout, Offsets... offsets) {
  int coordinate = 1;
  bool same = true;
  ((same = same && layout(coordinate) == offsets, coordinate *= 2), ...);
  return same;
}

}  // namespace cute_gemm
