// components: float32 operands as sums of three bfloat16, the components of compute="bf16x9".
//
// The idea: the first component is the element rounded to nearest, the second the rounded remainder, and the third
// the remainder of that, which bfloat16 represents exactly: 3 x 8 bits are the 24 of a float32. Each component is a
// separate matrix in scratch with the operand's major.
//
// A warp has 32 adjacent vectors of a row, and the same of the next rows.

#pragma once

#include <cute/numeric/int.hpp>
#include <cutlass/array.h>
#include <cutlass/numeric_types.h>

#include "../common/grids.cuh"

namespace cute_gemm {

// Source and target of an operand. A row has unit stride.
struct ComponentsOperand {
  int64_t ld, batch;                // source, in elements
  int64_t target_ld, target_batch;  // components
  int64_t component;                // elements from one component to the next
  int64_t offset;                   // of components in scratch, in bytes
  uint32_t extent, rows;            // elements of a row; rows
  uint32_t along;                   // tiles along a row
  int tiles, matrices;              // tiles of a matrix; copied matrices
  int unused;
};

// The components of an element, which is their sum. The first component of infinity and NaN is the element.
struct Float32Components {
  cutlass::bfloat16_t values[3];

  CUTE_DEVICE explicit Float32Components(float element) {
    constexpr uint32_t kInfinity = 0x7f80;
    uint32_t const upper = __float_as_uint(element) >> 16;
    bool const finite = (upper & kInfinity) != kInfinity;
    values[0] = cutlass::bfloat16_t(element);
    // The largest elements would be rounded to infinity.
    if (finite && (values[0].raw() & kInfinity) == kInfinity) values[0] = cutlass::bfloat16_t::bitcast(upper);
    float const rest = finite ? element - float(values[0]) : 0.0f;
    values[1] = cutlass::bfloat16_t(rest);
    values[2] = cutlass::bfloat16_t(rest - float(values[1]));
  }
};

// Vector: elements per load; 0: nothing to copy.
template <int Vector>
struct CopyComponents {
  enum : int { kRows = 4, kWarps = 8 };
  using Packed = cute::uint_bit_t<16 * Vector>;  // a component of a vector

  CUTE_DEVICE static void copy(void const* source, void* scratch, ComponentsOperand const& operand, uint32_t tile) {
    uint32_t const matrix = blockIdx.y + blockIdx.z * gridDim.y;
    if (matrix >= uint32_t(operand.matrices)) return;
    uint32_t const column = (tile % operand.along * 32 + threadIdx.x % 32) * Vector;
    uint32_t const first = (tile / operand.along * kWarps + threadIdx.x / 32) * kRows;
    float const* const from = static_cast<float const*>(source) + matrix * operand.batch + column;
    auto* const to = reinterpret_cast<cutlass::bfloat16_t*>(static_cast<char*>(scratch) + operand.offset) +
                     matrix * operand.target_batch + column;
    bool const inside = column < operand.extent;
    cutlass::AlignedArray<float, Vector> elements[kRows];
    CUTE_UNROLL
    for (int i = 0; i < kRows; ++i) {
      if (inside && first + i < operand.rows) {
        elements[i] = *reinterpret_cast<cutlass::AlignedArray<float, Vector> const*>(from + (first + i) * operand.ld);
      }
    }
    CUTE_UNROLL
    for (int i = 0; i < kRows; ++i) {
      Packed parts[3] = {};
      CUTE_UNROLL
      for (int e = 0; e < Vector; ++e) {
        Float32Components const components(elements[i][e]);
        CUTE_UNROLL
        for (int c = 0; c < 3; ++c) parts[c] |= Packed(components.values[c].raw()) << 16 * e;
      }
      if (inside && first + i < operand.rows) {
        CUTE_UNROLL
        for (int c = 0; c < 3; ++c) {
          auto* const place = to + c * operand.component + (first + i) * operand.target_ld;
          *reinterpret_cast<Packed*>(place) = parts[c];
        }
      }
    }
  }
};

template <>
struct CopyComponents<0> {
  CUTE_DEVICE static void copy(void const*, void*, ComponentsOperand const&, uint32_t) {}
};

// A CTA has one tile of A or of B.
template <class Config>
CUTE_DEVICE void components(void const* A, void const* B, void* scratch, ComponentsOperand const& a,
                            ComponentsOperand const& b) {
  follow_grids();
  int const tile = blockIdx.x;
  if (tile < a.tiles) {
    Config::A::copy(A, scratch, a, tile);
  } else {
    Config::B::copy(B, scratch, b, tile - a.tiles);
  }
}

}  // namespace cute_gemm
