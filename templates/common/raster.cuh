// The order in which CTAs compute tiles of C.

#pragma once

#include "groups.cuh"

namespace cute_gemm {

struct Corner {
  int row, column;
};

// The first row and column of the tile of C (M,N) of this CTA, or of CTA number `cta`. The tiles are walked in groups
// of `Group` rows, so that concurrent CTAs share rows of A and columns of B in L2.
template <class Tile, int Group>
CUTE_DEVICE Corner cta_corner(int m, int n, int cta = blockIdx.x) {
  constexpr int kBM = size<0>(Tile{}), kBN = size<1>(Tile{});
  int const tiles_m = ceil_div(m, kBM), tiles_n = ceil_div(n, kBN);
  int const width = Group * tiles_n;
  int const first = cta / width * Group;
  int const rows = min(tiles_m - first, Group);
  int const inside = cta % width;
  return {(first + inside % rows) * kBM, inside / rows * kBN};
}

}  // namespace cute_gemm
