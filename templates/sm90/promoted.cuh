// The main loops of types whose sums tensor cores keep with few bits: the products of each k tile, 128 of k, go
// into accumulators of their own, and are then added to the sums in float32, multiplied by their scales if there
// are any. While a warp group adds, another one multiplies. So are products of components, those of the largest ones
// behind the others.

#pragma once

#include "mainloop.cuh"

namespace cute_gemm {

// Scales of A or of B: a tensor (MN / Rows, K / 128, L), where Rows is 1 or 128, and L the batch or the groups; rows
// of all groups have a stride of 0 there.
struct BlockScales {
  float const* data;
  int64_t stride_mn, stride_k, stride_l;
};

// The scales of a thread's accumulators, of one k tile: those of its rows, and those of its columns. Of a Config,
// kScaleRowsA and kScaleRowsB say how many rows of A, or of B, share a scale: 1, 128, or 0 without scales.
template <class Config>
struct ScaleFactors {
  using Accumulators = Accumulators<Config>;
  enum : int {
    kRowsA = Config::kScaleRowsA, kRowsB = Config::kScaleRowsB,
    kBlocks = Accumulators::kBlocks, kValues = Accumulators::kValues, kColumns = Accumulators::kColumns,
    // Blocks of 128 columns that a group's columns may lie in: these begin at a multiple of their number.
    kStep = (kColumns & -kColumns) < 128 ? kColumns & -kColumns : 128,
    kColumnBlocks = (kColumns - kStep + 255) / 128,
    kA = kRowsA == 1 ? 2 * kBlocks : kRowsA == 0 ? 0 : int(kBlocks),
    kB = kRowsB == 1 ? kValues / 2 : kRowsB == 0 ? 0 : int(kColumnBlocks)
  };

  struct Values {
    float a[kA + 1], b[kB + 1];
  };

  BlockScales scale_a, scale_b;
  int row, column;  // of the thread's first accumulator
  int m, n;         // what is left of C, or of its group, from there on
  int block_column; // of the first column of the group in its block of 128
  Values next;      // of the next k tile

  CUTE_DEVICE ScaleFactors(BlockScales const& a, BlockScales const& b, int m, int n, int first_row, int first_column,
                           int batch, int first_k, int group, int thread)
      : scale_a(a), scale_b(b) {
    AccumulatorCoord<Config> const own(thread);
    first_row += Accumulators::row(group), first_column += Accumulators::column(group);
    row = first_row + (kRowsA == 1 ? own.first_row : 0), column = first_column + (kRowsB == 1 ? own.first_column : 0);
    this->m = m - row, this->n = n - column;
    block_column = first_column % 128;
    if constexpr (kRowsA > 0) scale_a.data += batch * scale_a.stride_l + first_k / 128 * scale_a.stride_k;
    if constexpr (kRowsB > 0) scale_b.data += batch * scale_b.stride_l + first_k / 128 * scale_b.stride_k;
    if constexpr (kRowsA == 1) scale_a.data += row * scale_a.stride_mn;
    if constexpr (kRowsB == 1) scale_b.data += column * scale_b.stride_mn;
    if constexpr (kRowsB == 128) scale_b.data += column / 128 * scale_b.stride_mn;
  }

  // Loads the scales of a k tile; what lies outside of C is 0.
  CUTE_DEVICE void load(int k_tile) {
    float const* const a = scale_a.data + k_tile * scale_a.stride_k;
    float const* const b = scale_b.data + k_tile * scale_b.stride_k;
    CUTE_UNROLL
    for (int i = 0; i < kA; ++i) {
      if constexpr (kRowsA == 1) {
        int const down = i / 2 * 64 + i % 2 * AccumulatorCoord<Config>::kRowStep;
        next.a[i] = down < m ? a[down * scale_a.stride_mn] : 0.0f;
      } else {
        next.a[i] = i * 64 < m ? a[(row + i * 64) / 128 * scale_a.stride_mn] : 0.0f;
      }
    }
    CUTE_UNROLL
    for (int i = 0; i < kB; ++i) {
      if constexpr (kRowsB == 1) {
        int const right = i / 2 * 8 + i % 2;
        next.b[i] = right < n ? b[right * scale_b.stride_mn] : 0.0f;
      } else {
        next.b[i] = i * 128 - block_column < n ? b[i * scale_b.stride_mn] : 0.0f;
      }
    }
  }

  // The scale of value i of block m.
  CUTE_DEVICE float factor(Values const& values, int m, int i) const {
    float b = 1.0f;
    if constexpr (kRowsB == 1) {
      b = values.b[i / 4 * 2 + i % 2];
    } else if constexpr (kRowsB == 128) {
      b = values.b[0];
      CUTE_UNROLL
      for (int block = 1; block < kB; ++block) {
        if (i / 4 * 8 >= block * 128 - (kStep < 128 ? block_column : 0)) b = values.b[block];
      }
    }
    if constexpr (kRowsA == 0) return b;
    return values.a[kRowsA == 1 ? 2 * m + i / 2 % 2 : m] * b;
  }

  // Adds the products of a block, multiplied by their scales.
  template <class Sums, class Products>
  CUTE_DEVICE void add(Values const& values, int m, Sums& sums, Products const& products) const {
    CUTE_UNROLL
    for (int i = 0; i < kValues; ++i) {
      if constexpr (kRowsA == 0 && kRowsB == 0) {
        sums[i] += products[i];
      } else {
        sums[i] += products[i] * factor(values, m, i);
      }
    }
  }
};

// The products of components, which follow each other along K, the smallest first: a k tile of all products is one
// of K, of a component of A and one of B.
template <int Count, bool kSwapAB>
struct ComponentProducts {
  static_assert(Count == 6 || Count == 9);
  enum : int { kCount = Count };
  // Of each product, from the last on, 4 bits: the components of A and of B, 0 being the largest. Swapped A and B
  // have the same order.
  static constexpr uint64_t kComponents = kSwapAB ? 0xa69285140 : 0xa96825410;

  int k_tiles;  // of K

  CUTE_DEVICE explicit ComponentProducts(int all) : k_tiles(all / Count) {}

  CUTE_DEVICE int k_tile(int of_all) const { return of_all % k_tiles; }
  CUTE_DEVICE int matrix_a(int matrix, int of_all) const { return 3 * matrix + (components(of_all) >> 2); }
  CUTE_DEVICE int matrix_b(int matrix, int of_all) const { return 3 * matrix + (components(of_all) & 3); }
  // Whether the products that follow are those of the largest components.
  CUTE_DEVICE bool largest_from(int of_all) const { return of_all == (Count - 1) * k_tiles; }

 private:
  CUTE_DEVICE int components(int of_all) const {
    return int(kComponents >> 4 * (Count - 1 - of_all / k_tiles)) & 15;
  }
};

template <bool kSwapAB>
struct ComponentProducts<1, kSwapAB> {
  enum : int { kCount = 1 };

  CUTE_DEVICE explicit ComponentProducts(int) {}

  CUTE_DEVICE int k_tile(int of_all) const { return of_all; }
  CUTE_DEVICE int matrix_a(int matrix, int) const { return matrix; }
  CUTE_DEVICE int matrix_b(int matrix, int) const { return matrix; }
  CUTE_DEVICE bool largest_from(int) const { return false; }
};

// Infinity times a smaller component may be NaN: what is not finite comes from the largest components alone.
template <class Accumulators>
CUTE_DEVICE void drop_not_finite(Accumulators& sums) {
  CUTE_UNROLL
  for (int m = 0; m < Accumulators::kBlocks; ++m) {
    CUTE_UNROLL
    for (int i = 0; i < Accumulators::kValues; ++i) {
      sums.values[m][i] = isfinite(sums.values[m][i]) ? sums.values[m][i] : 0.0f;
    }
  }
}

// A and B from shared memory: one block of 64 rows after the other.
template <class Config>
struct MainloopPromotedSmem : Consumer<Config> {
  using Base = Consumer<Config>;
  using Accumulators = typename Base::Accumulators;

  CUTE_DEVICE MainloopPromotedSmem(typename Base::Memory& memory, int group, int, int peer)
      : Base(memory, group, peer) {}

  // Returns the last stage, which the caller releases.
  CUTE_DEVICE int operator()(Accumulators& sums, typename Base::State& state, int k_tiles,
                             ScaleFactors<Config> scales) {
    int last = 0;
    ComponentProducts<Config::kProducts, Config::kSwapAB> const order(k_tiles);
    sums.clear();
    scales.load(0);
    CUTE_NO_UNROLL
    for (int k_tile = 0; k_tile < k_tiles; ++k_tile, ++state) {
      if (order.largest_from(k_tile)) drop_not_finite(sums);
      typename ScaleFactors<Config>::Values const values = scales.next;
      bool const more = k_tile + 1 < k_tiles;
      this->memory.consumer_wait(state);
      if (more) scales.load(k_tile + 1);
      CUTE_UNROLL
      for (int m = 0; m < Accumulators::kBlocks; ++m) {
        typename Accumulators::Mma::CRegisters products;
        Accumulators::fence(products);
        Accumulators::multiply_block(products, m, this->stage_a(state.stage), this->stage_b(state.stage));
        Accumulators::fence(products);
        warpgroup_wait<0>();
        Accumulators::fence(products);
        if (m == Accumulators::kBlocks - 1 && more) this->memory.consumer_release(state.stage, this->peer);
        scales.add(values, m, sums.values[m], products);
      }
      last = state.stage;
    }
    return last;
  }
};

// A from registers: all blocks of 64 rows together, whose k steps are loaded while those before are multiplied.
template <class Config>
struct MainloopPromotedRegisterA : MainloopRegisterA<Config> {
  using Base = MainloopRegisterA<Config>;
  using Accumulators = typename Base::Accumulators;
  using Base::Base;

  CUTE_DEVICE int operator()(Accumulators& sums, typename Base::State& state, int k_tiles,
                             ScaleFactors<Config> scales) {
    int last = state.stage;
    auto const* a = this->wait(state);
    sums.clear();
    scales.load(0);
    this->fragment.load(a, 0);
    CUTE_NO_UNROLL
    for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
      typename ScaleFactors<Config>::Values const values = scales.next;
      bool const more = k_tile + 1 < k_tiles;
      if (more) scales.load(k_tile + 1);
      Accumulators products;
      uint64_t const b = this->stage_b(state.stage);
      products.fence();
      this->multiply(products, a, b, true);
      last = state.stage;
      ++state;
      if (more) a = this->wait(state);
      products.multiply(Base::kLast, this->fragment, a, b, false);
      products.fence();
      warpgroup_wait<0>();
      products.fence();
      if (more) this->memory.consumer_release(last, this->peer);
      CUTE_UNROLL
      for (int m = 0; m < Accumulators::kBlocks; ++m) scales.add(values, m, sums.values[m], products.values[m]);
    }
    return last;
  }
};

template <class Config>
using MainloopPromoted =
    conditional_t<Config::kRegisterA, MainloopPromotedRegisterA<Config>, MainloopPromotedSmem<Config>>;
template <class Config>
using MainloopInPlace = conditional_t<Config::kRegisterA, MainloopRegisterA<Config>, MainloopSmem<Config>>;

}  // namespace cute_gemm
