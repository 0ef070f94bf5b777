// What a CTA computes next: a persistent grid walks all tiles of all matrices of the batch.

#pragma once

#include "../common/layout.cuh"

namespace cute_gemm {

// A tile's first row and column, and its matrix.
struct Tile {
  int row, column, batch;
};

// The tiles of C (M,N,L) in the order of their computation: in groups of `Group` rows of tiles, so that
// what runs together shares rows of A and columns of B in L2. CTAs of a cluster take tiles below and beside
// each other, of which the last may lie beyond M or N.
template <class CtaTiler, class Cluster, int Group>
struct Schedule {
  enum : int {
    kBM = size<0>(CtaTiler{}), kBN = size<1>(CtaTiler{}), kBelow = Cluster::kBelow,
    kBeside = Cluster::kBeside, kCtas = kBelow * kBeside, kGroup = ceil_div(Group, int(kBelow))
  };

  int rows, columns, count;  // clusters of tiles along M, along N, and in all

  CUTE_DEVICE Schedule(int m, int n, int l)
      : rows(ceil_div(m, kBelow * kBM)), columns(ceil_div(n, kBeside * kBN)), count(rows * columns * l) {}

  CUTE_DEVICE int first() const { return blockIdx.x / kCtas; }
  CUTE_DEVICE int step() const { return gridDim.x / kCtas; }

  CUTE_DEVICE Tile operator()(int index, int rank) const {
    int const batch = index / (rows * columns), place = index % (rows * columns);
    int const width = kGroup * columns;
    int const above = place / width * kGroup;
    int const high = min(rows - above, int(kGroup));
    int const inside = place % width;
    return {((above + inside % high) * kBelow + Cluster::below(rank)) * kBM,
            (inside / high * kBeside + Cluster::beside(rank)) * kBN, batch};
  }
};

}  // namespace cute_gemm
