// The TMA pipeline: stages of k tiles in shared memory, and the barriers between producer and consumers.

#pragma once

#include <cute/arch/cluster_sm90.hpp>
#include <cute/arch/copy_sm90_desc.hpp>
#include <cute/arch/copy_sm90_tma.hpp>
#include <cutlass/arch/barrier.h>
#include <cutlass/arch/reg_reconfig.h>

#include "../common/copy.cuh"
#include "../common/grids.cuh"
#include "../common/groups.cuh"

namespace cute_gemm {

// Elements per swizzle span: the contiguous elements of a TMA box.
template <int B, int M, int S, class Offset, class Affine>
CUTE_HOST_DEVICE constexpr int swizzle_span(ComposedLayout<Swizzle<B, M, S>, Offset, Affine> const&) {
  return 1 << (B + M);
}

// The stage of a k tile, and the phase of its barriers: the parity of the number of earlier uses.
template <int Stages>
struct PipelineState {
  int stage = 0;
  uint32_t phase = 0;

  CUTE_DEVICE void advance(int k_tiles) {
    stage += k_tiles;
    phase ^= stage / Stages & 1;
    stage %= Stages;
  }

  CUTE_DEVICE void operator++() {
    if (++stage == Stages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

// A cluster of M x N CTAs; ranks run along M first. CTAs along M have the same tile of B, CTAs along N the
// same tile of A. `kPeers` is the number of CTAs that write into a CTA's stages, itself included.
template <int M, int N>
struct ClusterShape {
  enum : int { kM = M, kN = N, kCtas = M * N, kPeers = M + N - 1 };

  CUTE_DEVICE static int m(int rank) { return rank % M; }
  CUTE_DEVICE static int n(int rank) { return rank / M; }

  // Multicast masks: the CTAs that receive A, those with the same m, and B, those with the same n.
  CUTE_DEVICE static uint16_t mask_a(int rank) {
    constexpr int kFirst = ((1 << kCtas) - 1) / ((1 << M) - 1);
    return uint16_t(kFirst << m(rank));
  }
  CUTE_DEVICE static uint16_t mask_b(int rank) { return uint16_t(((1 << M) - 1) << n(rank) * M); }

  // The rank of the peer that a lane releases, or -1: the CTAs with the same n, then the others with the same m.
  CUTE_DEVICE static int peer(int rank, int lane) {
    if (lane >= kPeers) return -1;
    if (lane < M) return n(rank) * M + lane;
    return m(rank) + (lane - M + (lane - M >= n(rank))) * M;
  }
};

// A box in the terms of a tensor map: its coordinates along the unit-stride mode, across it, and in the third mode.
// It passes them to CuTe's copy between global and shared memory after the other arguments.
struct BoxCoord {
  int along, across, third;

  template <class Copy, class... Arguments>
  CUTE_DEVICE void copy(Arguments... arguments) const { Copy::copy(arguments..., along, across, third); }
};

// Boxes of one matrix of a batch.
struct InBatch {
  int batch;

  template <int kDepth>
  CUTE_DEVICE BoxCoord at(int const& along, int const& across) const { return {along, across, batch}; }
};

// A box of a group, or of columns of pairs, whose tensor map has four modes.
struct GroupBoxCoord : BoxCoord {
  int fourth;

  template <class Copy, class... Arguments>
  CUTE_DEVICE void copy(Arguments... arguments) const { Copy::copy(arguments..., along, across, third, fourth); }
};

// Boxes of the columns of pairs of one matrix of a batch: the map's third mode selects one of a pair.
struct InPairs {
  int batch;

  CUTE_DEVICE GroupBoxCoord at(int along, int across, int which) const { return {{along, across, which}, batch}; }
};

// Boxes that a group ends at `end`, at any place of the mode across: the part after it is not stored, and is loaded as
// zeros. The tensor map has the mode across twice, with one stride: first with 2^30 elements, of which the box begins
// as many before the end as it has elements of the group; then unchanged. A fourth mode subtracts the 2^30 strides,
// since addresses wrap around at 2^64 bytes: the map's address is that of the matrix, from which TMA reads even if a
// box has no element of it.
struct InGroup {
  enum : int { kLong = 1 << 30 };

  int end;

  template <int kDepth>
  CUTE_DEVICE GroupBoxCoord at(int along, int across) const {
    int const inside = min(max(end - across, 0), kDepth);
    return {{along, kLong - inside, across + inside}, kLong};
  }
};

// Loads of one operand's k tile (bMN,bK) by TMA. A box is a swizzle span along the unit-stride mode by up to
// 256 along the other. In a cluster each of the `Sharers` CTAs with the same tile loads a part of it, and
// multicasts it to all. With `kPairs` the first half of the tile's rows are the first ones of pairs, from `row` on,
// and the second half are the second ones of the same pairs.
template <class SmemLayout, bool kMajorK, int Sharers, bool kPairs = false>
struct TmaLoad {
  enum : int {
    kRows = size<0>(SmemLayout{}), kColumns = size<1>(SmemLayout{}), kSpan = swizzle_span(SmemLayout{}),
    kSpans = (kMajorK ? kColumns : kRows) / kSpan,
    kHalf = kRows / 2,
    kShare = (kMajorK ? kRows : kColumns) / Sharers,
    kMost = kPairs && kMajorK && kHalf < 256 ? int(kHalf) : 256,
    kPieces = ceil_div(int(kShare), int(kMost)),
    kDepth = kShare / kPieces
  };

  template <class Element, class Place>
  CUTE_DEVICE static void load(TmaDescriptor const* map, uint64_t* full, Element* smem, int row, int k,
                               Place const& place, int share, uint16_t mask) {
    constexpr uint64_t kHint = uint64_t(TMA::CacheHintSm90::EVICT_NORMAL);
    CUTE_UNROLL
    for (int i = 0; i < kSpans * kPieces; ++i) {
      int const box = i / kPieces, first = (Sharers > 1 ? share * kShare : 0) + i % kPieces * kDepth;
      int const along = box * kSpan + (kMajorK ? k : row), across = first + (kMajorK ? row : k);
      Element* const to =
          smem + (kMajorK ? SmemLayout{}(0, box * kSpan) : SmemLayout{}(box * kSpan, 0)) + first * kSpan;
      auto const at = [&] {
        if constexpr (kPairs) {
          int const which = (kMajorK ? first : box * kSpan) / kHalf, others = which * kHalf;
          return place.at(along - (kMajorK ? 0 : others), across - (kMajorK ? others : 0), which);
        } else {
          return place.template at<kDepth>(along, across);
        }
      }();
      if constexpr (Sharers > 1) {
        at.template copy<SM90_TMA_LOAD_MULTICAST>(map, full, mask, kHint, to);
      } else {
        at.template copy<SM90_TMA_LOAD>(map, full, kHint, to);
      }
    }
  }
};

// The contents of a stage in addition to A and B, here none: the bytes that TMA loads, and the number of lanes of a
// warp that copy other data.
struct NoStageData {
  enum : int { kBytes = 0, kCopiers = 0 };
};

// Shared memory of a kernel: the stages of A and B, the epilogue tiles of C, and their barriers. A stage's
// full barrier completes when all of its bytes have arrived, its empty barrier when all consumer warps of all
// peers have read it. `full_c` completes when an epilogue tile of C has been read. Lanes that copy other data of
// a stage arrive at the full barrier once their copies are complete. If threads write where other threads have
// read, each of the readers arrives at the empty barrier of its CTA.
template <class Config, class StageData = NoStageData>
struct SharedStorage {
  using ElementA = typename Config::ElementA;
  using ElementB = typename Config::ElementB;
  using Barrier = cutlass::arch::ClusterTransactionBarrier;
  enum : int {
    kStages = Config::kStages,
    kConsumerWarps = 4 * (Config::kPingPong ? 1 : Config::kConsumers),  // that read a stage
    kCopiers = StageData::kCopiers,
    kThreadsWrite = kCopiers > 0 || (Config::kRegisterA && int(Config::kRagged) == kRaggedK),  // to a stage
    kThreadsRead = !is_base_of<NoStageData, StageData>::value || Config::kRegisterA,  // from a stage
    kA = size(typename Config::SmemLayoutA{}), kB = size(typename Config::SmemLayoutB{}),
    kStageBytes = kA * sizeof(ElementA) + kB * sizeof(ElementB) + StageData::kBytes,
    kC = Config::kStagesC * size(typename Config::SmemLayoutC{})  // per warp group
  };

  alignas(1024) ElementA a[kStages][kA];                              // (PIPE,BLK_M*BLK_K)
  alignas(1024) ElementB b[kStages][kB];                              // (PIPE,BLK_N*BLK_K)
  alignas(1024) typename Config::ElementC c[Config::kConsumers][kC];  // (GROUP,PIPE_C*EPI_M*EPI_N)
  uint64_t full[kStages], empty[kStages], full_c[Config::kConsumers][Config::kStagesC];
  StageData stage_data[kStages];

  CUTE_DEVICE void init_barriers() {
    CUTE_UNROLL
    for (int stage = 0; stage < kStages; ++stage) {
      Barrier::init(&full[stage], 1 + kCopiers);
      Barrier::init(&empty[stage], kConsumerWarps * (Config::Cluster::kPeers + (kThreadsWrite ? 32 : 0)));
    }
    CUTE_UNROLL
    for (int i = 0; i < Config::kConsumers * Config::kStagesC; ++i) Barrier::init(&full_c[0][i], 1);
    cutlass::arch::fence_barrier_init();
  }

  CUTE_DEVICE void wait_empty(PipelineState<kStages> const& state) {
    Barrier::wait(&empty[state.stage], state.phase ^ 1);
  }

  // Producer: waits until a stage is empty, and expects its bytes. Returns its full barrier.
  CUTE_DEVICE uint64_t* producer_acquire(PipelineState<kStages> const& state) {
    uint64_t* const barrier = &full[state.stage];
    wait_empty(state);
    Barrier::arrive_and_expect_tx(barrier, kStageBytes);
    return barrier;
  }

  CUTE_DEVICE void consumer_wait(PipelineState<kStages> const& state) {
    Barrier::wait(&full[state.stage], state.phase);
  }

  // Consumer: the warp has read a stage, and arrives at the empty barriers of all peers; `peer` is the rank
  // at which this lane arrives, or -1.
  CUTE_DEVICE void consumer_release(int stage, int peer) {
    // Wait until all lanes have finished their own reads: scales, and A for registers.
    if constexpr (kThreadsRead) __syncwarp();
    if constexpr (kThreadsWrite) Barrier::arrive(&empty[stage]);
    if constexpr (Config::Cluster::kCtas > 1) {
      Barrier::arrive(&empty[stage], peer, peer >= 0);
    } else if (peer == 0) {
      Barrier::arrive(&empty[stage]);
    }
  }
};

}  // namespace cute_gemm
