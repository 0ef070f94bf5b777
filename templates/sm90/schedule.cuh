// What a CTA computes next: a persistent grid walks all tiles of all matrices of the batch.

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

// A CTA's tiles, one after the other, each with all of its k tiles.
template <class Schedule, int Cluster, bool Stream>
struct Walk {
  Schedule const& schedule;
  int index;

  CUTE_DEVICE Walk(Schedule const& schedule, int) : schedule(schedule), index(schedule.first()) {}

  CUTE_DEVICE bool more() const { return index < schedule.count; }
  CUTE_DEVICE void advance() { index += schedule.step(); }
  CUTE_DEVICE int tile() const { return index; }
  CUTE_DEVICE int begin() const { return 0; }
  CUTE_DEVICE int end(int k_tiles) const { return k_tiles; }
};

// Stream-K: where whole tiles would leave CTAs without work in the last round, the k tiles of that round and
// of the one before are dealt out evenly, each CTA a run of them, before the whole tiles. A run begins and
// ends anywhere: the CTA that has a tile's first k tile adds what those of the next runs have summed up. These
// are the CTAs before it in the grid, which were started before it: they wait for nobody.
template <class Schedule, int Cluster>
struct Walk<Schedule, Cluster, true> {
  Schedule const& schedule;
  int all, clusters, dealt;  // k tiles of a tile, clusters of the grid, tiles that are dealt out
  int mine, at, until, whole;  // which run; where in it; its end; the next whole tile

  CUTE_DEVICE Walk(Schedule const& schedule, int all)
      : schedule(schedule), all(all), clusters(gridDim.x / Cluster) {
    int const rest = schedule.count % clusters;
    dealt = all == 0 || rest == 0 ? 0 : min(schedule.count, rest + clusters);
    mine = clusters - 1 - int(blockIdx.x) / Cluster;
    at = start(mine);
    until = start(mine + 1);
    whole = dealt + int(blockIdx.x) / Cluster;
  }

  // The first k tile of a run, counted through all tiles.
  CUTE_DEVICE int start(int run) const {
    int const total = dealt * all;
    return run * (total / clusters) + min(run, total % clusters);
  }

  CUTE_DEVICE bool in_run() const { return at < until; }
  CUTE_DEVICE bool more() const { return in_run() || whole < schedule.count; }
  CUTE_DEVICE void advance() {
    if (in_run()) {
      at = min(until, (at / all + 1) * all);
    } else {
      whole += clusters;
    }
  }

  CUTE_DEVICE int tile() const { return in_run() ? at / all : whole; }
  CUTE_DEVICE int begin() const { return in_run() ? at % all : 0; }
  CUTE_DEVICE int end(int) const { return in_run() ? min(all, until - at / all * all) : all; }

  // Calls with each CTA that has summed up more of the tile, in the order of k.
  template <class Function>
  CUTE_DEVICE void others(Function const& function) const {
    int const first = at / all * all;
    int covered = until - first;
    for (int run = mine + 1; covered < all; ++run) {
      int const upto = start(run + 1) - first;
      if (upto > covered) function(int(blockIdx.x) - (run - mine) * Cluster);
      covered = upto;
    }
  }
};

}  // namespace cute_gemm
