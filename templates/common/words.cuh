// Words of 16 bytes, and vectors that lie across two of them.

#pragma once

#include <cute/config.hpp>
#include <cutlass/array.h>

namespace cute_gemm {

using Word = cutlass::AlignedArray<uint32_t, 4>;

// The aligned word that holds this address.
CUTE_DEVICE Word const* word_of(void const* address) {
  return reinterpret_cast<Word const*>(reinterpret_cast<uint64_t>(address) & ~15ull);
}

// The 16 bytes of two words from byte `shift` on, of which 4 bits count, and which is a multiple of `Bytes`.
template <int Bytes>
CUTE_DEVICE Word shifted(Word const& low, Word const& high, uint32_t shift) {
  uint32_t w[8];
  CUTE_UNROLL
  for (int i = 0; i < 4; ++i) w[i] = low[i], w[4 + i] = high[i];
  if constexpr (Bytes <= 8) {
    CUTE_UNROLL
    for (int i = 0; i < 6; ++i) w[i] = shift & 8 ? w[i + 2] : w[i];
  }
  if constexpr (Bytes <= 4) {
    CUTE_UNROLL
    for (int i = 0; i < 5; ++i) w[i] = shift & 4 ? w[i + 1] : w[i];
  }
  // Of 4 bytes nothing is left to shift, but the last word is used: else ptxas makes narrower loads of its
  // vector, and more of them.
  if constexpr (Bytes <= 4) {
    CUTE_UNROLL
    for (int i = 0; i < 4; ++i) {  // of the bits to shift by 5 count
      asm("shf.r.wrap.b32 %0, %1, %2, %3;\n" : "=r"(w[i]) : "r"(w[i]), "r"(w[i + 1]), "r"(8 * shift));
    }
  }
  return {w[0], w[1], w[2], w[3]};
}

}  // namespace cute_gemm
