// The ring of stages: k tiles on their way from global to shared memory by TMA, and who waits for whom.

#pragma once

#include <cute/arch/cluster_sm90.hpp>
#include <cute/arch/copy_sm90_desc.hpp>
#include <cute/arch/copy_sm90_tma.hpp>
#include <cutlass/arch/barrier.h>
#include <cutlass/arch/reg_reconfig.h>

#include "../common/copy.cuh"
#include "../common/grids.cuh"

namespace cute_gemm {

// Elements of the span of a swizzle: what TMA and wgmma take side by side.
template <int B, int M, int S, class Offset, class Affine>
CUTE_HOST_DEVICE constexpr int span(ComposedLayout<Swizzle<B, M, S>, Offset, Affine> const&) {
  return 1 << (B + M);
}

// A stage, and the parity of the round in which it is used.
template <int Stages>
struct Turn {
  int stage = 0;
  uint32_t parity = 0;

  // Past k tiles that others take.
  CUTE_DEVICE void skip(int k_tiles) {
    stage += k_tiles;
    parity ^= stage / Stages & 1;
    stage %= Stages;
  }

  CUTE_DEVICE void operator++() {
    if (++stage == Stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// The CTAs of a cluster, one below the other first. Those below each other share B, those beside A.
template <int Below, int Beside>
struct Cluster {
  enum : int { kBelow = Below, kBeside = Beside, kCtas = Below * Beside, kPartners = Below + Beside - 1 };

  CUTE_DEVICE static int below(int rank) { return rank % Below; }
  CUTE_DEVICE static int beside(int rank) { return rank / Below; }

  // Bits of the CTAs that have the same rows, or the same columns.
  CUTE_DEVICE static uint16_t row(int rank) {
    constexpr int kFirst = ((1 << kCtas) - 1) / ((1 << Below) - 1);
    return uint16_t(kFirst << below(rank));
  }
  CUTE_DEVICE static uint16_t column(int rank) { return uint16_t(((1 << Below) - 1) << beside(rank) * Below); }

  // All of these, one by one: those of the same columns first.
  CUTE_DEVICE static int partner(int rank, int i) {
    if (i < Below) return beside(rank) * Below + i;
    return below(rank) + (i - Below + (i - Below >= beside(rank))) * Below;
  }
};

// Two groups take turns: one waits until the other has come to all stages of its tile, so that none is two
// rounds behind the stage that it waits for, whose parity would be the same.
CUTE_DEVICE void wait_for_turn(int group) { asm volatile("bar.sync %0, 256;\n" ::"r"(4 + group) : "memory"); }
CUTE_DEVICE void give_turn(int group) { asm volatile("bar.arrive %0, 256;\n" ::"r"(4 + group) : "memory"); }

// The boxes of one operand's k tile (bMN,bK) that TMA brings: a span along the unit-stride mode and all
// of the other or, where a cluster shares the tile, each CTA's part, which goes to all of them.
template <class SmemLayout, bool kMajorK, int Sharers>
struct Boxes {
  enum : int {
    kRows = size<0>(SmemLayout{}), kColumns = size<1>(SmemLayout{}), kSpan = span(SmemLayout{}),
    kCount = (kMajorK ? kColumns : kRows) / kSpan,
    kShare = (kMajorK ? kRows : kColumns) / Sharers,
    kPieces = ceil_div(int(kShare), 256),  // a box has up to 256
    kDepth = kShare / kPieces
  };

  template <class Element>
  CUTE_DEVICE static void load(TmaDescriptor const* map, uint64_t* full, Element* smem, int row, int k,
                               int batch, int share, uint16_t sharers) {
    constexpr uint64_t kHint = uint64_t(TMA::CacheHintSm90::EVICT_NORMAL);
    CUTE_UNROLL
    for (int i = 0; i < kCount * kPieces; ++i) {
      int const box = i / kPieces, first = (Sharers > 1 ? share * kShare : 0) + i % kPieces * kDepth;
      int const along = box * kSpan + (kMajorK ? k : row), across = first + (kMajorK ? row : k);
      Element* const to =
          smem + (kMajorK ? SmemLayout{}(0, box * kSpan) : SmemLayout{}(box * kSpan, 0)) + first * kSpan;
      if constexpr (Sharers > 1) {
        SM90_TMA_LOAD_MULTICAST_3D::copy(map, full, sharers, kHint, to, along, across, batch);
      } else {
        SM90_TMA_LOAD_3D::copy(map, full, kHint, to, along, across, batch);
      }
    }
  }
};

// What a kernel keeps in shared memory: the stages of A and of B, the parts of C on their way, and
// barriers. A stage is full when all its bytes have come, and empty when all that read it have.
template <class Config>
struct Shared {
  using Element = typename Config::Element;
  using Barrier = cutlass::arch::ClusterTransactionBarrier;
  enum : int {
    kStages = Config::kStages,
    kReaders = 4 * (Config::kPingPong ? 1 : Config::kConsumers),  // warps, of a stage
    kA = size(typename Config::SmemLayoutA{}), kB = size(typename Config::SmemLayoutB{}),
    kBytes = (kA + kB) * sizeof(Element),  // of a stage
    kC = Config::kStores * size(typename Config::SmemLayoutC{})  // of a group
  };

  alignas(1024) Element a[kStages][kA];
  alignas(1024) Element b[kStages][kB];
  alignas(1024) typename Config::ElementC c[Config::kConsumers][kC];
  uint64_t full[kStages], empty[kStages], came[Config::kConsumers][Config::kStores];

  CUTE_DEVICE void make_barriers() {
    CUTE_UNROLL
    for (int stage = 0; stage < kStages; ++stage) {
      Barrier::init(&full[stage], 1);
      Barrier::init(&empty[stage], kReaders * Config::Cluster::kPartners);
    }
    CUTE_UNROLL
    for (int i = 0; i < Config::kConsumers * Config::kStores; ++i) Barrier::init(&came[0][i], 1);
    cutlass::arch::fence_barrier_init();
  }

  // The warp has read a stage: it says so to all CTAs that write into it, a lane to its `partner`.
  CUTE_DEVICE void release(int stage, int partner) {
    int const lane = threadIdx.x % 32;
    if constexpr (Config::Cluster::kCtas > 1) {
      Barrier::arrive(&empty[stage], partner, lane < Config::Cluster::kPartners);
    } else if (lane == 0) {
      Barrier::arrive(&empty[stage]);
    }
  }
};

}  // namespace cute_gemm
