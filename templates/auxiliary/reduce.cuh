// reduce: adds the partial sums of the slices of K in order, and applies the epilogue to C.
//
// The idea: a thread loads 16 bytes of partial sums of each slice, several slices at a time. They
// are one vector, or several narrower ones if C's rows do not allow wider ones; adjacent threads
// have adjacent vectors. If the epilogue takes pairs of columns, a thread has both.

#pragma once

#include <cutlass/array.h>
#include <cutlass/complex.h>

#include "../common/epilogue.cuh"
#include "../common/grids.cuh"

namespace cute_gemm {

// A row has unit stride, in the partial sums and in C.
struct ReduceShape {
  int64_t ld, step;       // partial sums, in elements: from row to row, from slice to slice
  int64_t ldc, batch;     // C: from row to row, from matrix to matrix
  uint32_t extent, rows;  // elements of a row; rows
  int slices;
  uint32_t along;         // tiles along a row
  int across;             // log2 of the threads along a row of a tile
  uint32_t matrices;      // matrices of a batch; each has `slices` of partial sums
};

template <class Config>
CUTE_DEVICE void reduce(typename Config::Accumulator const* sums, typename Config::ElementC* C,
                        ReduceShape const& shape,
                        typename Config::Epilogue::Params const& params) {
  using Accumulator = typename Config::Accumulator;
  constexpr int kVector = Config::kVector, kRuns = 16 / sizeof(Accumulator) / kVector, kAhead = 8;
  // The columns of a pair are two rows of the partial sums, or lie in one row: adjacent, or half of it apart.
  constexpr int kPairs = Config::Epilogue::kPairs;
  constexpr bool kAdjacent = kPairs == kPairsOfColumns, kInterleaved = kAdjacent && Config::kRowMajorC;
  constexpr int kStep = kInterleaved ? 2 : 1;                           // sums from an element of C to the next
  constexpr int kParts = kPairs == kPairsNone || kInterleaved ? 1 : 2;  // vectors of a run
  using Vector = cutlass::AlignedArray<Accumulator, kStep * kVector>;
  typename Config::Epilogue epilogue(params);
  int const slices = epilogue.skips_products(shape.slices) ? 0 : shape.slices;

  uint32_t const tile_column = blockIdx.x % shape.along, tile_row = blockIdx.x / shape.along;
  uint32_t const step = kVector << shape.across;  // from run to run
  uint32_t const thread = threadIdx.x & ((1 << shape.across) - 1);
  uint32_t const first = tile_column * kRuns * step + thread * kVector;
  uint32_t const row = tile_row * (Config::kThreads >> shape.across) + (threadIdx.x >> shape.across);
  uint32_t const matrix = blockIdx.y + blockIdx.z * gridDim.y;
  if (row >= shape.rows || matrix >= shape.matrices) return;

  int64_t const half = Config::kRowMajorC ? shape.extent : shape.rows * shape.ld;
  int64_t const other = kAdjacent ? shape.ld : half;  // from a vector to that of the other columns
  int64_t const own_row = kAdjacent && !kInterleaved ? 2 * int64_t(row) : row;
  Accumulator const* at = sums + matrix * shape.slices * shape.step + own_row * shape.ld + kStep * first;
  C += matrix * shape.batch;
  Vector total[kRuns * kParts];
  CUTE_UNROLL
  for (int run = 0; run < kRuns * kParts; ++run) total[run].fill(Accumulator(0));
  for (int slice = 0; slice < slices; slice += kAhead, at += kAhead * shape.step) {
    Vector parts[kAhead][kRuns * kParts];
    CUTE_UNROLL
    for (int i = 0; i < kAhead; ++i) {
      CUTE_UNROLL
      for (int run = 0; run < kRuns * kParts; ++run) {
        uint32_t const in_row = run / kParts * step;
        if (slice + i < slices && first + in_row < shape.extent) {
          parts[i][run] = *reinterpret_cast<Vector const*>(at + i * shape.step + kStep * in_row + run % kParts * other);
        }
      }
    }
    CUTE_UNROLL
    for (int i = 0; i < kAhead; ++i) {
      CUTE_UNROLL
      for (int run = 0; run < kRuns * kParts; ++run) {
        CUTE_UNROLL
        for (int e = 0; e < kStep * kVector; ++e) {
          if (slice + i < slices) total[run][e] += parts[i][run][e];
        }
      }
    }
  }

  // The partial sums of a vector of C, as accumulators of the epilogue.
  auto const sums_of = [&](int run) -> decltype(auto) {
    if constexpr (kPairs == kPairsNone) {
      return (total[run]);
    } else {
      cutlass::AlignedArray<typename Config::Epilogue::Sum, kVector> pairs;
      CUTE_UNROLL
      for (int e = 0; e < kVector; ++e) {
        if constexpr (kInterleaved) {
          pairs[e] = {total[run][2 * e], total[run][2 * e + 1]};
        } else {
          pairs[e] = {total[2 * run][e], total[2 * run + 1][e]};
        }
      }
      return pairs;
    }
  };

  CUTE_UNROLL
  for (int run = 0; run < kRuns; ++run) {
    uint32_t const column = first + run * step;
    Coord const at = coord<Config::kRowMajorC>(column, row, matrix);
    update_valid<kVector, !Config::kRowMajorC>(epilogue, C + row * shape.ldc + column, sums_of(run), at,
                                               int(shape.extent - column));
  }
}

}  // namespace cute_gemm
