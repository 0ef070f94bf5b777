// sum: a matrix added up over M or over N, as it is stored, in the order of its elements.
//
// The idea: a warp has neighbouring vectors of a few rows, steps from rows to rows, or along its rows, with
// several loads on their way, and adds its lanes up at the end. What is long is cut into chunks, whose sums
// go to scratch, a row for each chunk, and are added up by another launch.

#pragma once

#include <cutlass/array.h>
#include <cutlass/numeric_types.h>

#include "../common/grids.cuh"

namespace cute_gemm {

// A row is what has unit stride in the source.
struct SumShape {
  int64_t ld, batch;                // of the source, in elements
  int64_t target_ld, target_batch;  // of the sums: from chunk to chunk, from matrix to matrix
  uint32_t extent, rows;            // elements of a row; rows
  uint32_t depth, chunks;           // what a chunk has of those that are added up; chunks
  uint32_t along;                   // tiles along the sums
  int across;                       // log2 of the lanes along a row
  int stacked;                      // log2 of the warps of a CTA that have chunks of their own
  uint32_t matrices;
};

template <class Config>
CUTE_DEVICE void sum(typename Config::Element const* source, typename Config::Sum* target, SumShape const& shape) {
  using Sum = typename Config::Sum;
  constexpr int kVector = Config::kVector, kAhead = Config::kAhead, kStored = Config::kStored;
  constexpr bool kOverRows = Config::kOverRows;
  using Vector = cutlass::AlignedArray<typename Config::Element, kVector>;

  uint32_t const warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  uint32_t const x = lane & ((1u << shape.across) - 1), y = lane >> shape.across;
  uint32_t const matrix = blockIdx.y + blockIdx.z * gridDim.y;
  int const beside = Config::kLogWarps - shape.stacked;
  uint32_t const block = (blockIdx.x % shape.along << beside) + (warp & ((1u << beside) - 1));
  uint32_t const chunk = (blockIdx.x / shape.along << shape.stacked) + (warp >> beside);
  if (matrix >= shape.matrices || chunk >= shape.chunks) return;  // all lanes of a warp

  // Of what is added up: where the chunk begins and ends, the lane's first, and from step to step.
  uint32_t const begin = chunk * shape.depth;
  uint32_t const end = min(begin + shape.depth, kOverRows ? shape.rows : shape.extent);
  uint32_t const first = kOverRows ? y : x * kVector;
  uint32_t const step = kOverRows ? 32u >> shape.across : kVector << shape.across;
  uint32_t const row = kOverRows ? begin + y : (block << (5 - shape.across)) + y;
  uint32_t const column = kOverRows ? ((block << shape.across) + x) * kVector : begin + x * kVector;
  bool const inside = kOverRows ? column < shape.extent : row < shape.rows;
  int64_t const stride = kOverRows ? step * shape.ld : int64_t(step);

  typename Config::Element const* at = source + matrix * shape.batch + row * shape.ld + column;
  Sum total[kVector] = {};
  for (uint32_t i = begin; i < end; i += kAhead * step, at += kAhead * stride) {
    Vector parts[kAhead];
    CUTE_UNROLL
    for (int j = 0; j < kAhead; ++j) {
      parts[j].fill(typename Config::Element(0));
      if (inside && i + first + j * step < end) parts[j] = *reinterpret_cast<Vector const*>(at + j * stride);
    }
    CUTE_UNROLL
    for (int j = 0; j < kAhead; ++j) {
      CUTE_UNROLL
      for (int e = 0; e < kVector; ++e) total[e] += Sum(parts[j][e]);
    }
  }

  target += matrix * shape.target_batch + chunk * shape.target_ld;
  if constexpr (kOverRows) {
    for (int distance = 1 << shape.across; distance < 32; distance *= 2) {
      CUTE_UNROLL
      for (int e = 0; e < kVector; ++e) total[e] += __shfl_xor_sync(~0u, total[e], distance);
    }
    // All rows of lanes have the sums now: each stores a part of its own.
    constexpr int kParts = kVector / kStored, kRows = Config::kLaneRows;
    CUTE_UNROLL
    for (int part = 0; part < kParts; part += kRows) {
      cutlass::AlignedArray<Sum, kStored> own;
      CUTE_UNROLL
      for (int j = 0; j < kRows && part + j < kParts; ++j) {
        CUTE_UNROLL
        for (int e = 0; e < kStored; ++e) {
          if (j == 0 || y == j) own[e] = total[(part + j) * kStored + e];
        }
      }
      if (inside && y < kRows && part + y < kParts) {
        *reinterpret_cast<cutlass::AlignedArray<Sum, kStored>*>(target + column + (part + y) * kStored) = own;
      }
    }
  } else {
    CUTE_UNROLL
    for (int e = 1; e < kVector; ++e) total[0] += total[e];
    for (int distance = 1; distance < 1 << shape.across; distance *= 2) {
      total[0] += __shfl_xor_sync(~0u, total[0], distance);
    }
    if (inside && x == 0) target[row] = total[0];
  }
}

}  // namespace cute_gemm
