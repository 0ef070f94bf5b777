// The main loops of types that tensor cores accumulate with few bits: the products of each k tile, 128 of k, use
// separate accumulators, which are then added to the accumulators in float32, multiplied by their scales if there
// are any. While a warp group adds, another one multiplies. Products of components are accumulated in the same way,
// with those of the largest components last.

#pragma once

#include "mainloop.cuh"

namespace cute_gemm {

// The products of components, which follow each other along K, the smallest first: a k tile of all products is a k
// tile of one product, of a component of A and one of B.
template <int Count, bool kSwapAB>
struct ComponentProducts {
  static_assert(Count == 1 || Count == 6 || Count == 9);
  enum : int { kCount = Count };
  // 4 bits per product, from the last one on: the components of A and of B, 0 being the largest. Swapped A and B
  // have the same order.
  static constexpr uint64_t kComponents = kSwapAB ? 0xa69285140 : 0xa96825410;

  int k_tiles;  // k tiles of K

  CUTE_DEVICE explicit ComponentProducts(int all) : k_tiles(all / Count) {}

  CUTE_DEVICE int k_tile(int of_all) const { return Count == 1 ? of_all : of_all % k_tiles; }
  CUTE_DEVICE int matrix_a(int matrix, int of_all) const {
    return Count == 1 ? matrix : 3 * matrix + (components(of_all) >> 2);
  }
  CUTE_DEVICE int matrix_b(int matrix, int of_all) const {
    return Count == 1 ? matrix : 3 * matrix + (components(of_all) & 3);
  }
  // Whether the next products are those of the largest components.
  CUTE_DEVICE bool largest_from(int of_all) const { return Count > 1 && of_all == (Count - 1) * k_tiles; }

 private:
  CUTE_DEVICE int components(int of_all) const { return int(kComponents >> 4 * (Count - 1 - of_all / k_tiles)) & 15; }
};

// Infinity times a smaller component may be NaN: infinity and NaN come from the largest components alone.
template <class Accumulators>
CUTE_DEVICE void drop_not_finite(Accumulators& accumulators) {
  CUTE_UNROLL
  for (int m = 0; m < Accumulators::kBlocks; ++m) {
    CUTE_UNROLL
    for (int i = 0; i < Accumulators::kValues; ++i) {
      accumulators.values[m][i] = isfinite(accumulators.values[m][i]) ? accumulators.values[m][i] : 0.0f;
    }
  }
}

// Calls `turn` with two sets of products alternately: that of each k tile from the second on, and the previous one;
// and `last` with the set of the last k tile, when its products are complete.
template <class Products, class Turn, class Last>
CUTE_DEVICE void in_turns(Products (&products)[2], int k_tiles, Turn const& turn, Last const& last) {
  int k_tile = 1;
  CUTE_NO_UNROLL
  for (; k_tile + 1 < k_tiles; k_tile += 2) {
    turn(products[1], products[0], k_tile);
    turn(products[0], products[1], k_tile + 1);
  }
  if (k_tile < k_tiles) {
    turn(products[1], products[0], k_tile);
    warpgroup_wait<0>();
    last(products[1]);
  } else {
    warpgroup_wait<0>();
    last(products[0]);
  }
}

// A and B from shared memory: one block of 64 rows after the other. While the last products of a k tile run, the loop
// waits for the next k tile, computes its descriptors and reads its scales, if they are few: only additions remain
// between products.
template <class Config>
struct MainloopPromotedSmem : Consumer<Config> {
  using Base = Consumer<Config>;
  using Accumulators = typename Base::Accumulators;
  using Scales = ScaleFactors<Config>;
  using Base::Base;
  enum : bool {
    kWaitsAhead = !GroupPart<Config>::kZeroFill,  // threads do not write to shared memory while products run
    kReadsAhead = kWaitsAhead && int(Scales::kA) + int(Scales::kB) <= 8
  };

  // Returns the last stage, which the caller releases.
  CUTE_DEVICE int operator()(Accumulators& accumulators, typename Base::State& state, int k_tiles) {
    int last = 0;
    ComponentProducts<Config::kProducts, Config::kSwapAB> const order(k_tiles);
    accumulators.clear();
    if constexpr (kWaitsAhead) this->wait(state, 0);
    if constexpr (kReadsAhead) this->scales.read(this->memory.stage_data[state.stage]);
    uint64_t a = this->stage_a(state.stage), b = this->stage_b(state.stage);
    CUTE_NO_UNROLL
    for (int k_tile = 0; k_tile < k_tiles; ++k_tile, ++state) {
      if (order.largest_from(k_tile)) drop_not_finite(accumulators);
      bool const more = k_tile + 1 < k_tiles;
      if constexpr (!kWaitsAhead) this->wait(state, k_tile);
      if constexpr (!kReadsAhead) this->scales.read(this->memory.stage_data[state.stage]);
      Scales next_scales = this->scales;
      uint64_t next_a = a, next_b = b;
      CUTE_UNROLL
      for (int m = 0; m < Accumulators::kBlocks; ++m) {
        typename Accumulators::Mma::CRegisters products;
        Accumulators::fence(products);
        Accumulators::template multiply<1>(&products, m, a, b, true);
        Accumulators::fence(products);
        bool const releases = m == Accumulators::kBlocks - 1 && more;
        if (releases) {
          typename Base::State next = state;
          ++next;
          next_a = this->stage_a(next.stage), next_b = this->stage_b(next.stage);
          if constexpr (kWaitsAhead) this->wait(next, k_tile + 1);
          if constexpr (kReadsAhead) next_scales.read(this->memory.stage_data[next.stage]);
        }
        warpgroup_wait<0>();
        Accumulators::fence(products);
        if (releases) this->memory.consumer_release(state.stage, this->peer);
        this->scales.add(m, accumulators.values[m], products);
      }
      if constexpr (kReadsAhead) this->scales = next_scales;
      a = next_a, b = next_b;
      last = state.stage;
    }
    return last;
  }
};

// The same for one block with double-buffered accumulators: the products of a k tile run while those of the previous k
// tile are added. ptxas supports this if the same number of products is in flight at the start of each iteration.
template <class Config>
struct MainloopPromotedDoubleBuffered : Consumer<Config> {
  using Base = Consumer<Config>;
  using Accumulators = typename Base::Accumulators;
  using Products = typename Accumulators::Mma::CRegisters;
  using Base::Base;

  static_assert(int(Accumulators::kBlocks) == 1);

  // Returns the last stage, which the caller releases.
  CUTE_DEVICE int operator()(Accumulators& accumulators, typename Base::State& state, int k_tiles) {
    ComponentProducts<Config::kProducts, Config::kSwapAB> const order(k_tiles);
    Products products[2];
    accumulators.clear();
    auto const start = [&](Products& of_k_tile, int k_tile) {
      this->wait(state, k_tile);
      Accumulators::fence(of_k_tile);
      Accumulators::template multiply<1>(&of_k_tile, 0, this->stage_a(state.stage), this->stage_b(state.stage), true);
      Accumulators::fence(of_k_tile);
    };
    auto const add = [&](Products& of_k_tile, int k_tile, int stage) {
      Accumulators::fence(of_k_tile);
      this->scales.read(this->memory.stage_data[stage]);
      if (k_tile + 1 < k_tiles) this->memory.consumer_release(stage, this->peer);
      if (order.largest_from(k_tile)) drop_not_finite(accumulators);
      this->scales.add(0, accumulators.values[0], of_k_tile);
    };
    // Starts the products of a k tile, and adds those of the previous one.
    auto const turn = [&](Products& of_k_tile, Products& before, int k_tile) {
      int const stage = state.stage;
      ++state;
      start(of_k_tile, k_tile);
      warpgroup_wait<1>();
      add(before, k_tile - 1, stage);
    };
    start(products[0], 0);
    in_turns(products, k_tiles, turn, [&](Products& of_last) { add(of_last, k_tiles - 1, state.stage); });
    int const last = state.stage;
    ++state;
    return last;
  }
};

// A from registers: all blocks of 64 rows together, whose k steps are loaded while the previous ones are multiplied.
template <class Config>
struct MainloopPromotedRegisterA : MainloopRegisterA<Config> {
  using Base = MainloopRegisterA<Config>;
  using Accumulators = typename Base::Accumulators;
  using Base::Base;

  CUTE_DEVICE int operator()(Accumulators& accumulators, typename Base::State& state, int k_tiles) {
    int last = state.stage;
    auto const* a = this->wait(state, 0);
    accumulators.clear();
    this->fragment.load(a, 0);
    CUTE_NO_UNROLL
    for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
      bool const more = k_tile + 1 < k_tiles;
      Accumulators products;
      uint64_t const b = this->stage_b(state.stage);
      products.fence();
      this->multiply(products, a, b, true);
      this->scales.read(this->memory.stage_data[state.stage]);
      last = state.stage;
      ++state;
      if (more) a = this->wait(state, k_tile + 1);
      products.multiply(Base::kLast, this->fragment, a, b, false);
      products.fence();
      warpgroup_wait<0>();
      products.fence();
      if (more) this->memory.consumer_release(last, this->peer);
      CUTE_UNROLL
      for (int m = 0; m < Accumulators::kBlocks; ++m) this->scales.add(m, accumulators.values[m], products.values[m]);
    }
    return last;
  }
};

// The same for one block with double-buffered accumulators: the products of a k tile are added when the second step
// of the next one has been started, before which all of them are complete.
template <class Config>
struct MainloopPromotedRegisterADoubleBuffered : MainloopRegisterA<Config> {
  using Base = MainloopRegisterA<Config>;
  using Accumulators = typename Base::Accumulators;
  using Base::Base;

  static_assert(int(Accumulators::kBlocks) == 1 && int(Accumulators::FragmentA::kInFlight) == 1 && Base::kLast >= 2);

  CUTE_DEVICE int operator()(Accumulators& accumulators, typename Base::State& state, int k_tiles) {
    Accumulators products[2];
    int stage = state.stage;  // stage of the k tile whose products are not added yet
    auto const* a = this->wait(state, 0);
    accumulators.clear();
    this->fragment.load(a, 0);
    auto const add = [&](Accumulators& of_k_tile, bool release) {
      of_k_tile.fence();
      this->scales.read(this->memory.stage_data[stage]);
      if (release) this->memory.consumer_release(stage, this->peer);
      this->scales.add(0, accumulators.values[0], of_k_tile.values[0]);
    };
    // Starts the products of a k tile, and adds those of the previous one; `_0`: there is no previous one.
    auto const turn = [&](Accumulators& of_k_tile, Accumulators& before, auto k_tile) {
      uint64_t const b = this->stage_b(state.stage);
      of_k_tile.fence();
      of_k_tile.multiply(0, this->fragment, a, b, true);
      of_k_tile.multiply(1, this->fragment, a, b, false);
      if constexpr (!is_static<decltype(k_tile)>::value) add(before, true);
      CUTE_UNROLL
      for (int step = 2; step < Base::kLast; ++step) of_k_tile.multiply(step, this->fragment, a, b, false);
      stage = state.stage;
      ++state;
      bool const more = k_tile + 1 < k_tiles;
      if (more) a = this->wait(state, k_tile + 1);
      of_k_tile.multiply(Base::kLast, this->fragment, a, b, false, more);
      of_k_tile.fence();
    };
    turn(products[0], products[1], _0{});
    in_turns(products, k_tiles, turn, [&](Accumulators& of_last) { add(of_last, false); });
    return stage;
  }
};

template <class Config>
using MainloopPromoted = conditional_t<
    Config::kProductSets == 2,
    conditional_t<Config::kRegisterA, MainloopPromotedRegisterADoubleBuffered<Config>,
                  MainloopPromotedDoubleBuffered<Config>>,
    conditional_t<Config::kRegisterA, MainloopPromotedRegisterA<Config>, MainloopPromotedSmem<Config>>>;
template <class Config>
using MainloopInPlace = conditional_t<Config::kRegisterA, MainloopRegisterA<Config>, MainloopSmem<Config>>;

}  // namespace cute_gemm
