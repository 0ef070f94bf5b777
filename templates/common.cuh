// What the kernels share: the proof that C++ CuTe and Python mean the same layout, zero-filling
// asynchronous copies, the order of CTAs, and BLAS's scalars.

#pragma once

#include <cute/tensor.hpp>
#include <cute/arch/copy_sm80.hpp>

namespace cute_gemm {

using namespace cute;

// ---- layouts ------------------------------------------------------------------------------------

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

// The bits of an offset that a layout's swizzle changes.
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
// computed once, the other part is a constant, and what the swizzle leaves alone stays a sum, which
// the address field of the instruction takes.
template <class Layout>
CUTE_DEVICE int join(Layout const& layout, int thread_part, int static_part) {
  constexpr int kMask = swizzled_bits(Layout{});
  return (thread_part ^ (static_part & kMask)) + (static_part & ~kMask);
}

// Where one thread's values lie in a tile of which mode 0 has extent E0.
template <class TV, int E0>
struct Position {
  int row, column;
  CUTE_DEVICE Position(int thread, int value)
      : row(int(TV{}(thread, value)) % E0), column(int(TV{}(thread, value)) / E0) {}
};

// ---- copies -------------------------------------------------------------------------------------

// Shared memory is addressed by 32-bit byte addresses, so that a thread's part is one register and
// every static distance from it lies in the instruction.
template <class T>
CUTE_DEVICE T* shared_pointer(uint32_t address) {
  return reinterpret_cast<T*>(__cvta_shared_to_generic(address));
}

// Copies the first `valid` of N elements from global to shared memory, with zeros in place of the
// others; nothing is read when there are none. 4, 8 and 16 bytes go asynchronously; cp.async has no
// 1- or 2-byte form.
template <int N, class Element>
CUTE_DEVICE void copy_async_cut(uint32_t dst, Element const* src, int valid) {
  constexpr int kBytes = N * sizeof(Element);
  int const size = valid > 0 ? kBytes : 0;
  if (0 < valid && valid < N) {  // cp.async could cut it short too, but would read the rest
    CUTE_NO_UNROLL
    for (int i = 0; i < N; ++i) {
      shared_pointer<Element>(dst)[i] = i < valid ? src[i] : Element(0);
    }
  } else if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(dst), "l"(src), "r"(size));
  } else if constexpr (kBytes >= 4) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;\n" ::"r"(dst), "l"(src), "n"(kBytes),
                 "r"(size));
  } else {
    using Word = uint_bit_t<8 * kBytes>;
    *shared_pointer<Word>(dst) = size ? *reinterpret_cast<Word const*>(src) : Word(0);
  }
}

// Copies all of them, or nothing unless `active`: without a branch, around which ptxas would move no
// instruction.
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

// ---- CTA order ----------------------------------------------------------------------------------

// Walks the tiles in groups of `Group` rows, so that CTAs that run together share rows of A and
// columns of B in L2.
template <int Group>
CUTE_DEVICE auto raster(int cta, int tiles_m, int tiles_n) {
  int const width = Group * tiles_n;
  int const first = cta / width * Group;
  int const rows = min(tiles_m - first, Group);
  int const inside = cta % width;
  return make_coord(first + inside % rows, inside / rows);
}

// ---- scalars ------------------------------------------------------------------------------------

// BLAS's two pointer modes: the value in device memory when there is one, the argument otherwise.
template <class Scalar>
CUTE_DEVICE Scalar scalar(Scalar value, Scalar const* pointer) {
  return pointer ? *pointer : value;
}

}  // namespace cute_gemm
