// reduce: the sums of the slices of K, added up in their order and brought to C by the epilogue.
//
// The idea: a thread has one vector of C and reads that of each slice, several slices on their way
// at a time; neighbouring threads have neighbouring vectors. A vector is as wide as C's rows allow,
// 16 bytes of sums at most.

#pragma once

#include <cutlass/array.h>
#include <cutlass/complex.h>

#include "../common/epilogue.cuh"

namespace cute_gemm {

// A row is what has unit stride, in the sums as in C.
struct ReduceShape {
  int64_t ld, step;       // of the sums, in elements: from row to row, from slice to slice
  int64_t ldc;
  uint32_t extent, rows;  // elements of a row; rows
  int slices;
  uint32_t along;         // tiles along a row
  int across;             // log2 of the threads along a row of a tile
};

template <class Config>
CUTE_DEVICE void reduce(typename Config::Accumulator const* sums, typename Config::ElementC* C,
                        ReduceShape const& shape, typename Config::Accumulator alpha,
                        typename Config::Accumulator beta) {
  using Accumulator = typename Config::Accumulator;
  constexpr int kVector = Config::kVector, kAhead = 8;
  using Vector = cutlass::AlignedArray<Accumulator, kVector>;
  typename Config::Epilogue epilogue{alpha, beta};
  int const slices = epilogue.without_sums(shape.slices) ? 0 : shape.slices;

  uint32_t const tile_column = blockIdx.x % shape.along, tile_row = blockIdx.x / shape.along;
  uint32_t const column =
      ((tile_column << shape.across) + (threadIdx.x & ((1 << shape.across) - 1))) * kVector;
  uint32_t const row = tile_row * (Config::kThreads >> shape.across) + (threadIdx.x >> shape.across);
  if (row >= shape.rows || column >= shape.extent) return;

  Accumulator const* at = sums + row * shape.ld + column;
  Vector total;
  CUTE_UNROLL
  for (int e = 0; e < kVector; ++e) total[e] = Accumulator(0);
  for (int slice = 0; slice < slices; slice += kAhead, at += kAhead * shape.step) {
    Vector parts[kAhead];
    CUTE_UNROLL
    for (int i = 0; i < kAhead; ++i) {
      if (slice + i < slices) parts[i] = *reinterpret_cast<Vector const*>(at + i * shape.step);
    }
    CUTE_UNROLL
    for (int i = 0; i < kAhead; ++i) {
      CUTE_UNROLL
      for (int e = 0; e < kVector; ++e) {
        if (slice + i < slices) total[e] += parts[i][e];
      }
    }
  }

  typename Config::ElementC* const c = C + row * shape.ldc + column;
  if (column + kVector <= shape.extent) {
    epilogue.template update<kVector>(c, total);
  } else {
    CUTE_UNROLL
    for (int e = 0; e < kVector; ++e) {
      if (column + e < shape.extent) epilogue.template update<1>(c + e, &total[e]);
    }
  }
}

}  // namespace cute_gemm
