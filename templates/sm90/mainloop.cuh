// The main loops of a consumer warp group: products of the k tiles of one tile of C.

#pragma once

#include "scales.cuh"

namespace cute_gemm {

// The part of a k tile that belongs to its group, if groups lie along K and K is the unit-stride mode of A or B. There
// TMA does not cut boxes, and begins them at multiples of 16 bytes: it also loads elements of other groups, which
// threads replace by zeros before the products.
template <class Config>
struct GroupPart {
  enum : bool { kZeroFill = int(Config::kRagged) == kRaggedK && (Config::kMajorKA || Config::kMajorKB) };
  enum : int {
    kBK = size<2>(typename Config::CtaTiler{}), kThreads = 128 * (Config::kPingPong ? 1 : Config::kConsumers),
    kUnit = 16 / sizeof(typename Config::ElementA)  // elements of A and of B
  };

  int begin, end;  // range of the group from the first k tile on

  // Start of the k tiles of a group.
  CUTE_DEVICE static int aligned(int begin) { return kZeroFill ? begin / kUnit * kUnit : begin; }

  // Executed by all threads that read the stage of a k tile.
  template <class Memory>
  CUTE_DEVICE void zero_fill(Memory& memory, int stage, int group, int k_tile) const {
    if constexpr (kZeroFill) {
      int const first = begin - k_tile * kBK, last = end - k_tile * kBK;
      if (first <= 0 && last >= kBK) return;
      zero_fill<typename Config::SmemLayoutA, Config::kMajorKA>(memory.a[stage], first, last);
      zero_fill<typename Config::SmemLayoutB, Config::kMajorKB>(memory.b[stage], first, last);
      asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");  // wgmma sees these writes
      asm volatile("bar.sync %0, %1;\n" ::"r"(Config::kPingPong ? 1 + group : 6), "r"(int(kThreads)) : "memory");
    }
  }

 private:
  // Vectors along the unit-stride mode that are not entirely in the group. Each lane of a warp has one along K.
  template <class SmemLayout, bool kMajorK, class Element>
  CUTE_DEVICE static void zero_fill(Element* tile, int first, int last) {
    using Vector = cutlass::AlignedArray<Element, kUnit>;
    constexpr int kRows = size<0>(SmemLayout{}), kAlong = kRows / kUnit;
    int const thread = threadIdx.x % kThreads;
    auto const at = [&](int row, int k) -> Vector& { return *reinterpret_cast<Vector*>(tile + SmemLayout{}(row, k)); };
    Vector zeros;
    zeros.clear();
    if constexpr (kMajorK) {
      CUTE_NO_UNROLL
      for (int k = 0; k < kBK; k += kUnit) {
        if (k >= first && k + kUnit <= last) continue;
        bool const none = k + kUnit <= first || k >= last;  // no element of the vector belongs to the group
        CUTE_UNROLL
        for (int row = thread; row < kRows; row += kThreads) {
          Vector values = zeros;
          if (!none) {
            values = at(row, k);
            CUTE_UNROLL
            for (int e = 0; e < kUnit; ++e) {
              if (k + e < first || k + e >= last) values[e] = Element(0);
            }
          }
          at(row, k) = values;
        }
      }
    } else {
      int const before = max(first, 0), end = min(last, int(kBK));
      CUTE_NO_UNROLL
      for (int i = thread; i < (before + kBK - end) * kAlong; i += kThreads) {
        int const other = i / kAlong, k = other < before ? other : other - before + end;
        at(i % kAlong * kUnit, k) = zeros;
      }
    }
  }
};

// The state that all loops share: where a consumer's warp group reads A, B and their scales, and which peer each
// lane releases.
template <class Config>
struct Consumer {
  using Memory = SharedStorage<Config, StageScales<Config>>;
  using Accumulators = Accumulators<Config>;
  using State = PipelineState<Config::kStages>;

  Memory& memory;
  int group, peer;
  uint64_t desc_a, desc_b;  // descriptors of the group's part of stage 0
  GroupPart<Config> part;   // for a tile with groups along K, set by the caller
  ScaleFactors<Config> scales;

  CUTE_DEVICE Consumer(Memory& memory, int group, int thread, int peer)
      : memory(memory), group(group), peer(peer),
        desc_a(Accumulators::A::descriptor(memory.a[0]) + Accumulators::A::offset(Accumulators::row(group), 0)),
        desc_b(Accumulators::B::descriptor(memory.b[0]) + Accumulators::B::offset(Accumulators::column(group), 0)),
        scales(group, thread) {}

  // Waits for the stage of a k tile.
  CUTE_DEVICE void wait(State const& state, int k_tile) {
    memory.consumer_wait(state);
    part.zero_fill(memory, state.stage, group, k_tile);
  }

  CUTE_DEVICE uint64_t stage_a(int stage) const {
    return desc_a + stage * int(Memory::kA * sizeof(typename Config::ElementA) / 16);
  }
  CUTE_DEVICE uint64_t stage_b(int stage) const {
    return desc_b + stage * int(Memory::kB * sizeof(typename Config::ElementB) / 16);
  }
};

// A and B from shared memory. The products of a k tile run while those of the next are started, so a stage is
// released one k tile later. Returns the last stage, which the caller releases.
template <class Config>
struct MainloopSmem : Consumer<Config> {
  using Base = Consumer<Config>;
  using Base::Base;

  CUTE_DEVICE int operator()(typename Base::Accumulators& accumulators, typename Base::State& state, int k_tiles) {
    int previous = 0;  // the stage of the previous k tile
    CUTE_NO_UNROLL
    for (int k_tile = 0; k_tile < k_tiles; ++k_tile, ++state) {
      this->wait(state, k_tile);
      accumulators.fence();
      accumulators.multiply(this->stage_a(state.stage), this->stage_b(state.stage), k_tile == 0);
      accumulators.fence();
      warpgroup_wait<1>();
      if (k_tile > 0) this->memory.consumer_release(previous, this->peer);
      previous = state.stage;
    }
    return previous;
  }
};

// A from registers: each k step of A is loaded while the products of the previous step run. The last step of a k
// tile starts after the full barrier of the next k tile, because it loads that tile's first step.
template <class Config>
struct MainloopRegisterA : Consumer<Config> {
  using Base = Consumer<Config>;
  using ElementA = typename Config::ElementA;
  enum : int { kLast = Base::Accumulators::kSteps - 1 };

  typename Base::Accumulators::FragmentA fragment;

  CUTE_DEVICE MainloopRegisterA(typename Base::Memory& memory, int group, int thread, int peer)
      : Base(memory, group, thread, peer), fragment(Base::Accumulators::row(group), thread) {}

  CUTE_DEVICE ElementA const* wait(typename Base::State const& state, int k_tile) {
    Base::wait(state, k_tile);
    return this->memory.a[state.stage];
  }

  // All steps of a k tile but the last.
  CUTE_DEVICE void multiply(typename Base::Accumulators& accumulators, ElementA const* a, uint64_t b, bool first) {
    CUTE_UNROLL
    for (int step = 0; step < kLast; ++step) {
      accumulators.multiply(step, fragment, a, b, first && step == 0);
    }
  }

  CUTE_DEVICE int operator()(typename Base::Accumulators& accumulators, typename Base::State& state, int k_tiles) {
    ElementA const* a = wait(state, 0);
    fragment.load(a, 0);
    accumulators.fence();
    multiply(accumulators, a, this->stage_b(state.stage), true);
    CUTE_NO_UNROLL
    for (int k_tile = 1; k_tile < k_tiles; ++k_tile) {
      uint64_t const b = this->stage_b(state.stage);
      int const previous = state.stage;
      ++state;
      a = wait(state, k_tile);
      accumulators.multiply(kLast, fragment, a, b, false);
      multiply(accumulators, a, this->stage_b(state.stage), false);
      this->memory.consumer_release(previous, this->peer);
    }
    accumulators.multiply(kLast, fragment, a, this->stage_b(state.stage), false);
    int const last = state.stage;
    ++state;
    return last;
  }
};

}  // namespace cute_gemm
