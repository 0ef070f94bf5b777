// Groups along K: the last k tile of one reaches into the next group.

#pragma once

#include "epilogue.cuh"

namespace cute_gemm {

// Sets what a group's last k tile has of the next group to zero, in shared memory, by all consumers of the stage:
// products with it would be NaN where the other operand has NaN there. Only of operands whose unit-stride mode is
// K: of others TMA brings zeros (InGroup).
template <class Config>
struct GroupCut {
  using Memory = SharedStorage<Config>;
  enum : int { kBK = size<2>(typename Config::CtaTiler{}), kThreads = Memory::kConsumerWarps * 32 };

  Memory& memory;
  int group, thread;  // warp group, and the thread among those that share stages
  int last, inside;   // the last k tile of the group, and how many k of it are the group's

  CUTE_DEVICE GroupCut(Memory& memory, int group, int thread, GroupedWorkTile const& tile, int k_tiles)
      : memory(memory), group(group), thread(thread), last(k_tiles - 1),
        inside(tile.end - tile.begin - last * kBK) {}

  CUTE_DEVICE void operator()(int stage, int k_tile) const {
    if constexpr (Config::kMajorKA || Config::kMajorKB) {
      if (k_tile != last || inside == kBK) return;
      if constexpr (Config::kMajorKA) set_zero<typename Config::SmemLayoutA>(memory.a[stage]);
      if constexpr (Config::kMajorKB) set_zero<typename Config::SmemLayoutB>(memory.b[stage]);
      asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");  // wgmma sees what was written
      if constexpr (Config::kPingPong) {
        warpgroup_sync(group);
      } else {
        asm volatile("bar.sync %0, %1;\n" ::"r"(6), "r"(int(kThreads)) : "memory");
      }
    }
  }

  // Of a stage (bMN,bK), 16 bytes of k at a time: rows first, which lie in different banks.
  template <class SmemLayout, class Element>
  CUTE_DEVICE void set_zero(Element* stage) const {
    using Vector = cutlass::AlignedArray<Element, 16 / sizeof(Element)>;
    constexpr int kVector = 16 / sizeof(Element), kRows = size<0>(SmemLayout{});
    int const first = inside / kVector;
    Vector zeros;
    zeros.fill(Element(0));
    CUTE_NO_UNROLL
    for (int i = thread; i < (kBK / kVector - first) * kRows; i += kThreads) {
      int const row = i % kRows, k = (first + i / kRows) * kVector;
      auto& vector = *reinterpret_cast<Vector*>(stage + SmemLayout{}(row, k));
      if (k >= inside) {
        vector = zeros;
      } else {
        Vector values = vector;
        CUTE_UNROLL
        for (int e = 0; e < kVector; ++e) {
          if (k + e >= inside) values[e] = Element(0);
        }
        vector = values;
      }
    }
  }
};

}  // namespace cute_gemm
