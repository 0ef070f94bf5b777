// 8-bit floats as numbers to multiply.

#pragma once

#include <cute/util/type_traits.hpp>
#include <cutlass/float8.h>
#include <cutlass/half.h>

namespace cute_gemm {

template <class Element>
constexpr bool kFloat8 =
    cute::is_same_v<Element, cutlass::float_e4m3_t> || cute::is_same_v<Element, cutlass::float_e5m2_t>;

// Two adjacent elements, the first in the lower byte, as half2: every 8-bit float is a half. Before compute
// capability 8.9 there is no instruction for it; the code has no branches.
template <class Element>
CUTE_DEVICE uint32_t halves(uint16_t pair) {
  constexpr bool kE4M3 = cute::is_same_v<Element, cutlass::float_e4m3_t>;
  uint32_t both;
#if defined(CUDA_PTX_FP8_CVT_ENABLED)
  if constexpr (kE4M3) {
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;\n" : "=r"(both) : "h"(pair));
  } else {
    asm("cvt.rn.f16x2.e5m2x2 %0, %1;\n" : "=r"(both) : "h"(pair));
  }
#else
  both = __byte_perm(pair, 0, 0x1404);  // each in an upper byte: an E5M2 is then a half
  if constexpr (kE4M3) {
    // Fewer exponent bits: this number is 2^8 times smaller.
    auto const half = [](uint32_t magnitude) {
      float const scaled = float(cutlass::half_t::bitcast(uint16_t(magnitude))) * 256.0f;
      return cutlass::half_t(scaled).raw() | (magnitude == 0x3f80 ? 0x7fffu : 0u);
    };
    both = half(both >> 1 & 0x3f80) | half(both >> 17 & 0x3f80) << 16 | (both & 0x80008000);
  }
#endif
  return both;
}

// An element in the type of products.
template <class Number, class Element>
CUTE_DEVICE Number number(Element const& element) {
  if constexpr (kFloat8<Element> && !kFloat8<Number>) {
    return Number(float(cutlass::half_t::bitcast(uint16_t(halves<Element>(element.storage)))));
  } else {
    return Number(element);
  }
}

}  // namespace cute_gemm
