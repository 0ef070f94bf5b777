// Which tile of C a CTA computes next: a persistent grid walks all tiles of all matrices of the batch.

#pragma once

#include "../common/layout.cuh"

namespace cute_gemm {

// A tile's first row and column, and its matrix.
struct Tile {
  int row, column, batch;
};

// The tiles of C (M,N,L) in the order of their computation: in groups of `Group` rows of tiles, so that
// what runs together shares rows of A and columns of B in L2. CTAs of a cluster take tiles below each
// other; a last one may lie beyond M.
template <class CtaTiler, int Cluster, int Group>
struct Schedule {
  enum : int { kBM = size<0>(CtaTiler{}), kBN = size<1>(CtaTiler{}), kGroup = ceil_div(Group, Cluster) };

  int rows, columns, count;  // clusters of tiles along M, tiles along N, clusters of tiles in all

  CUTE_DEVICE Schedule(int m, int n, int l)
      : rows(ceil_div(m, Cluster * kBM)), columns(ceil_div(n, kBN)), count(rows * columns * l) {}

  CUTE_DEVICE int first() const { return blockIdx.x / Cluster; }
  CUTE_DEVICE int step() const { return gridDim.x / Cluster; }

  CUTE_DEVICE Tile operator()(int index, int rank) const {
    int const batch = index / (rows * columns), place = index % (rows * columns);
    int const width = kGroup * columns;
    int const above = place / width * kGroup;
    int const high = min(rows - above, int(kGroup));
    int const inside = place % width;
    return {((above + inside % high) * Cluster + rank) * kBM, inside / high * kBN, batch};
  }
};

}  // namespace cute_gemm
