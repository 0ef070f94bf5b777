// reduce: the sums of the slices of K, added up in their order and brought to C by the epilogue.
//
// The idea: a thread has 16 bytes of sums of each slice, several slices on their way at a time. They
// are one vector, or several narrower ones where C's rows allow no wider; neighbouring threads have
// neighbouring vectors. Where the epilogue takes pairs of columns a thread has both.

#pragma once

#include <cutlass/array.h>
#include <cutlass/complex.h>

#include "../common/epilogue.cuh"
#include "../common/grids.cuh"

namespace cute_gemm {

// A row is what has unit stride, in the sums as in C.
struct ReduceShape {
  int64_t ld, step;       // of the sums, in elements: from row to row, from slice to slice
  int64_t ldc, batch;     // of C; from matrix to matrix
  uint32_t extent, rows;  // elements of a row; rows
  int slices;
  uint32_t along;         // tiles along a row
  int across;             // log2 of the threads along a row of a tile
  uint32_t matrices;      // of a batch; of the sums each has `slices`
};

template <class Config>
CUTE_DEVICE void reduce(typename Config::Accumulator const* sums, typename Config::ElementC* C,
                        ReduceShape const& shape, 
                        typename Config::Epilogue::Params const& params) {
  using Accumulator = typename Config::Accumulator;
  constexpr int kVector = Config::kVector, kRuns = 16 / sizeof(Accumulator) / kVector, kAhead = 8;
  using Vector = cutlass::AlignedArray<Accumulator, kVector>;
  typename Config::Epilogue epilogue(params);
  int const slices = epilogue.skips_products(shape.slices) ? 0 : shape.slices;
  // The columns of a pair: of rows along M they are rows, of rows along N places of a row.
  constexpr int kPairs = Config::Epilogue::kPairs, kBoth = kPairs == kPairsNone ? 1 : 2;
  constexpr bool kBeside = kPairs == kPairsOfColumns, kInterleaved = kBeside && Config::kRowMajorC;
  constexpr int kStep = kInterleaved ? 2 : 1;  // from an element of C to the next, in the sums

  uint32_t const tile_column = blockIdx.x % shape.along, tile_row = blockIdx.x / shape.along;
  uint32_t const step = kVector << shape.across;  // from run to run
  uint32_t const thread = threadIdx.x & ((1 << shape.across) - 1);
  uint32_t const first = tile_column * kRuns * step + thread * kVector;
  uint32_t const row = tile_row * (Config::kThreads >> shape.across) + (threadIdx.x >> shape.across);
  uint32_t const matrix = blockIdx.y + blockIdx.z * gridDim.y;
  if (row >= shape.rows || matrix >= shape.matrices) return;

  int64_t const other = kInterleaved             ? kVector
                        : kBeside                ? shape.ld
                        : kPairs == kPairsNone   ? 0
                        : Config::kRowMajorC     ? shape.extent
                                                 : shape.rows * shape.ld;
  int64_t const own_row = kBeside && !Config::kRowMajorC ? 2 * int64_t(row) : row;
  Accumulator const* at = sums + matrix * shape.slices * shape.step + own_row * shape.ld + kStep * first;
  C += matrix * shape.batch;
  Vector total[kRuns * kBoth];
  CUTE_UNROLL
  for (int run = 0; run < kRuns * kBoth; ++run) {
    CUTE_UNROLL
    for (int e = 0; e < kVector; ++e) total[run][e] = Accumulator(0);
  }
  for (int slice = 0; slice < slices; slice += kAhead, at += kAhead * shape.step) {
    Vector parts[kAhead][kRuns * kBoth];
    CUTE_UNROLL
    for (int i = 0; i < kAhead; ++i) {
      CUTE_UNROLL
      for (int run = 0; run < kRuns * kBoth; ++run) {
        uint32_t const in_row = run / kBoth * step;
        if (slice + i < slices && first + in_row < shape.extent) {
          parts[i][run] = *reinterpret_cast<Vector const*>(at + i * shape.step + kStep * in_row + run % kBoth * other);
        }
      }
    }
    CUTE_UNROLL
    for (int i = 0; i < kAhead; ++i) {
      CUTE_UNROLL
      for (int run = 0; run < kRuns * kBoth; ++run) {
        CUTE_UNROLL
        for (int e = 0; e < kVector; ++e) {
          if (slice + i < slices) total[run][e] += parts[i][run][e];
        }
      }
    }
  }

  // The sums of a vector of C, as the epilogue takes them.
  auto const sums_of = [&](int run) -> decltype(auto) {
    if constexpr (kPairs == kPairsNone) {
      return (total[run]);
    } else {
      Vector const* const both = total + 2 * run;
      constexpr int kNext = kInterleaved ? 1 : kVector;  // from the sum of a pair's first column to the second's
      cutlass::AlignedArray<typename Config::Epilogue::Sum, kVector> pairs;
      CUTE_UNROLL
      for (int e = 0; e < kVector; ++e) {
        int const first = kStep * e, second = first + kNext;
        pairs[e] = {both[first / kVector][first % kVector], both[second / kVector][second % kVector]};
      }
      return pairs;
    }
  };

  CUTE_UNROLL
  for (int run = 0; run < kRuns; ++run) {
    uint32_t const column = first + run * step;
    auto const& vector = sums_of(run);
    typename Config::ElementC* const c = C + row * shape.ldc + column;
    if (column + kVector <= shape.extent) {
      update<kVector, !Config::kRowMajorC>(epilogue, c, vector, coord<Config::kRowMajorC>(column, row, matrix));
    } else {
      CUTE_UNROLL
      for (int e = 0; e < kVector; ++e) {
        if (column + e < shape.extent) {
          update<1>(epilogue, c + e, &vector[e], coord<Config::kRowMajorC>(column + e, row, matrix));
        }
      }
    }
  }
}

}  // namespace cute_gemm
