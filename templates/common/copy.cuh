// Copies of a vector to shared memory, mostly by cp.async.

#pragma once

#include <cute/arch/copy_sm80.hpp>

#include "layout.cuh"

namespace cute_gemm {

// Shared memory is addressed by 32-bit byte addresses: a thread's part is one register, and
// instructions contain every static distance from it.
template <class T>
CUTE_DEVICE T* shared_pointer(uint32_t address) {
  return reinterpret_cast<T*>(__cvta_shared_to_generic(address));
}

// The bits of a float32 as tf32, rounded to nearest. Without rounding tensor cores take the upper bits,
// which turn some NaN into infinity.
CUTE_DEVICE uint32_t nearest_tf32(uint32_t bits) {
  asm("cvt.rna.tf32.f32 %0, %0;\n" : "+r"(bits));
  return bits;
}

// How many of N elements along a column are read, if so many rows and columns remain from the first
// one on. A vector that straddles the last row is read whole, since the next column follows it, except
// in the last column.
template <int N>
CUTE_DEVICE int valid_in_column(int rows, int columns) {
  int const read = N == 1 || columns > 1 ? N : cute::min(rows, N);
  return rows > 0 && columns > 0 ? read : 0;
}

// Copies the first `valid` of N elements from global to shared memory, followed by zeros; reads nothing
// if there are none. 4, 8 and 16 bytes are copied asynchronously; cp.async has no 1- or 2-byte form.
template <int N, class Element>
CUTE_DEVICE void copy_async_cut(uint32_t dst, Element const* src, int valid) {
  constexpr int kBytes = N * sizeof(Element);
  int const size = valid > 0 ? kBytes : 0;
  if (0 < valid && valid < N) {  // cp.async could cut it short too, but would read the rest
    CUTE_NO_UNROLL
    for (int i = 0; i < N; ++i) {
      if constexpr (alignof(Element) < sizeof(Element)) {  // complex: both parts at once
        using Whole = cutlass::AlignedArray<Element, 1>;
        Whole const zero{};
        shared_pointer<Whole>(dst)[i] = i < valid ? reinterpret_cast<Whole const*>(src)[i] : zero;
      } else {
        shared_pointer<Element>(dst)[i] = i < valid ? src[i] : Element(0);
      }
    }
  } else if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(dst), "l"(src), "r"(size));
  } else if constexpr (kBytes >= 4) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;\n" ::"r"(dst), "l"(src), "n"(kBytes), "r"(size));
  } else {
    using Word = uint_bit_t<8 * kBytes>;
    *shared_pointer<Word>(dst) = size ? *reinterpret_cast<Word const*>(src) : Word(0);
  }
}

// Copies all of them, or nothing unless `active`, without a branch, since ptxas moves no instruction
// across a branch.
template <int Bytes>
CUTE_DEVICE void copy_async_if(uint32_t dst, void const* src, bool active) {
  if constexpr (Bytes == 16) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\n"
        "@p cp.async.cg.shared.global [%0], [%1], 16;\n}\n" ::"r"(dst), "l"(src), "r"(int(active)));
  } else if constexpr (Bytes >= 4) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\n"
        "@p cp.async.ca.shared.global [%0], [%1], %3;\n}\n" ::"r"(dst), "l"(src), "r"(int(active)),
        "n"(Bytes));
  } else if (active) {
    using Word = uint_bit_t<8 * Bytes>;
    *shared_pointer<Word>(dst) = *static_cast<Word const*>(src);
  }
}

}  // namespace cute_gemm
