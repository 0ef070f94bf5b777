// The persistent tile scheduler: which tiles of C a CTA computes, in which order.

#pragma once

#include "../common/layout.cuh"

namespace cute_gemm {

// A tile's first row and column, and its matrix in the batch.
struct WorkTile {
  int row, column, batch;
};

// The tiles of C (M,N,L), in groups of `RasterGroup` rows of tiles, so that CTAs that run at the same time
// share rows of A and columns of B in L2. The CTAs of a cluster take adjacent tiles, of which the last may lie
// outside of C.
template <class CtaTiler, class Cluster, int RasterGroup>
struct TileScheduler {
  enum : int {
    kBM = size<0>(CtaTiler{}), kBN = size<1>(CtaTiler{}), kGroup = ceil_div(RasterGroup, int(Cluster::kM))
  };

  int clusters_m, clusters_n, count;  // clusters of tiles along M, along N, and in all

  CUTE_DEVICE TileScheduler(int m, int n, int l)
      : clusters_m(ceil_div(m, Cluster::kM * kBM)), clusters_n(ceil_div(n, Cluster::kN * kBN)),
        count(clusters_m * clusters_n * l) {}

  CUTE_DEVICE int first() const { return blockIdx.x / Cluster::kCtas; }
  CUTE_DEVICE int step() const { return gridDim.x / Cluster::kCtas; }

  CUTE_DEVICE WorkTile operator()(int index, int rank) const {
    int const batch = index / (clusters_m * clusters_n), place = index % (clusters_m * clusters_n);
    int const width = kGroup * clusters_n;
    int const above = place / width * kGroup;
    int const height = min(clusters_m - above, int(kGroup));
    int const inside = place % width;
    return {((above + inside % height) * Cluster::kM + Cluster::m(rank)) * kBM,
            (inside / height * Cluster::kN + Cluster::n(rank)) * kBN, batch};
  }
};

}  // namespace cute_gemm
