// The persistent tile scheduler: the tiles of C that a CTA computes, in order.

#pragma once

#include "../common/groups.cuh"

namespace cute_gemm {

// A tile's first row and column, and its matrix in the batch.
struct WorkTile {
  int row, column, batch;
};

// The tiles of C (M,N,L), in groups of `RasterGroup` rows of tiles, so that concurrent CTAs share rows of A
// and columns of B in L2. The CTAs of a cluster take adjacent tiles, the last of which may lie outside C.
template <class CtaTiler, class Cluster, int RasterGroup>
struct TileScheduler {
  enum : int {
    kBM = size<0>(CtaTiler{}), kBN = size<1>(CtaTiler{}), kGroup = ceil_div(RasterGroup, int(Cluster::kM))
  };

  int clusters_m, clusters_n, count;  // clusters of tiles along M, along N, and in all

  CUTE_DEVICE TileScheduler(int m, int n, int l, int = 0, int const* = nullptr)
      : clusters_m(ceil_div(m, Cluster::kM * kBM)), clusters_n(ceil_div(n, Cluster::kN * kBN)),
        count(clusters_m * clusters_n * l) {}

  CUTE_DEVICE int first() const { return blockIdx.x / Cluster::kCtas; }
  CUTE_DEVICE int step() const { return gridDim.x / Cluster::kCtas; }
  // The number of known tiles, including that of `index` if it exists.
  CUTE_DEVICE int known(int) const { return count; }

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

// A tile of one group, whose number is `batch`: along the ragged mode the group ends at `end`. With ragged K its k
// begin at `begin`.
struct GroupedWorkTile : WorkTile {
  int begin, end;
};

// The end of the group of a tile; 0 without a group.
CUTE_DEVICE int end_of(WorkTile const&) { return 0; }
CUTE_DEVICE int end_of(GroupedWorkTile const& tile) { return tile.end; }

// The tiles of a grouped GEMM: those of each group, in the order of TileScheduler, one group after the other.
// If M or N is ragged, the number of tiles of a group is read from the device: a CTA's tiles have increasing
// indices, so it steps from group to group. Each thread that asks has its own scheduler. With `kZeroTail` the
// part after the last group is one more group, number `groups`, which has zeros in C.
template <class CtaTiler, class Cluster, int RasterGroup, int kRagged, bool kZeroTail>
struct GroupedTileScheduler {
  using Tiles = TileScheduler<CtaTiler, Cluster, RasterGroup>;

  GroupEnds ends;
  int m, n;             // extents of C
  int group, above;     // the present group, and the number of tiles before it
  int begin, end;       // range of the group along the ragged mode
  Tiles tiles;          // tiles of the group or, with ragged K, of all groups

  CUTE_DEVICE GroupedTileScheduler(int m, int n, int groups, int k, int const* ends)
      : ends{ends, groups, kRagged == kRaggedM ? m : kRagged == kRaggedN ? n : k}, m(m), n(n), group(-1), above(0),
        begin(0), end(0),
        tiles(kRagged == kRaggedM ? 0 : m, kRagged == kRaggedN ? 0 : n, kRagged == kRaggedK ? groups : 1) {}

  CUTE_DEVICE int first() const { return tiles.first(); }
  CUTE_DEVICE int step() const { return tiles.step(); }

  // The number of known tiles, including that of `index` if it exists. Steps to its group; an index must not be
  // less than that of a previous call.
  CUTE_DEVICE int known(int index) {
    if constexpr (kRagged != kRaggedK) {
      CUTE_NO_UNROLL
      while (index - above >= tiles.count && group + 1 < ends.groups + kZeroTail) {
        ++group;
        above += tiles.count;
        begin = end;
        end = kZeroTail && group == ends.groups ? ends.total : ends.end(group, begin);
        tiles = Tiles(kRagged == kRaggedM ? end - begin : m, kRagged == kRaggedN ? end - begin : n, 1);
      }
    }
    return above + tiles.count;
  }

  // The tile of the last index for which `known` was called.
  CUTE_DEVICE GroupedWorkTile operator()(int index, int rank) const {
    WorkTile const tile = tiles(index - above, rank);
    if constexpr (kRagged == kRaggedK) {
      int const first = ends.begin(tile.batch);
      return {tile, first, ends.end(tile.batch, first)};
    }
    int const down = kRagged == kRaggedM ? begin : 0, right = kRagged == kRaggedN ? begin : 0;
    return {{tile.row + down, tile.column + right, group}, begin, end};
  }
};

// The scheduler of a kernel, and its tiles.
template <class Config, bool kZeroTail = false>
using Scheduler = cute::conditional_t<
    int(Config::kRagged) == kRaggedNone,
    TileScheduler<typename Config::CtaTiler, typename Config::Cluster, Config::kRasterGroup>,
    GroupedTileScheduler<typename Config::CtaTiler, typename Config::Cluster, Config::kRasterGroup, Config::kRagged,
                         kZeroTail>>;
template <class Config>
using Tile = cute::conditional_t<int(Config::kRagged) == kRaggedNone, WorkTile, GroupedWorkTile>;

}  // namespace cute_gemm
