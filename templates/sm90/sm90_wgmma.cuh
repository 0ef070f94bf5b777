// sm90_wgmma: TMA, wgmma and a persistent grid, for GPUs of compute capability 9.0.
//
// The idea: nothing of A and B passes through registers. One thread asks the TMA unit for whole boxes of
// the next k tiles, which land swizzled in a ring of stages and count their bytes on a barrier; warp
// groups of 128 threads start products of 64 x N x 32 bytes on the stages that are full, straight from shared
// memory, and wait only for those of the k tile before. A CTA stays and takes tile after tile, so that the
// loads of the next are under way while the sums of the last go through shared memory to C, by TMA too.
// CTAs of a cluster share A and B: each loads a part for all that have the same rows, or columns.
// A along M of elements of other than 2 bytes, which wgmma takes no other way, passes through registers after
// all: a step of k is loaded from its stage while the products of the one before run.
//
// One `Config` for every layout of A(M,K), B(N,K), C(M,N):
//
//   Element, ElementC, Accumulator   types in gmem, and of the sums
//   Epilogue                         what becomes of the sums (LinearCombination)
//   CtaTiler                         Shape<bM,bN,bK>
//   Mma                              CuTe's wgmma, 64 x columns of a group x 32 bytes
//   kMajorKA, kMajorKB               true: K is the unit-stride mode
//   kRegisterA                       A goes through registers
//   kColumnMajorC                    true: M is the unit-stride mode
//   kTmaC                            C is stored by TMA; else element by element
//   kConsumers                       warp groups that multiply
//   kSideBySide                      the groups' parts of the tile lie beside, not below each other
//   kPingPong                        each group has tiles of its own, by turns
//   kStages, kStores                 k tiles in shared memory, and parts of C of each group
//   Cluster                          CTAs of a cluster, below and beside each other (Cluster)
//   kRegisters, kLoaderRegisters     of a thread that multiplies, and of the group that loads
//   kRasterGroup                     rows of tiles per L2 group
//   SmemLayoutA, SmemLayoutB         (bM,bK), (bN,bK), swizzled as TMA writes and wgmma reads
//   SmemLayoutC                      (64,columns) of a part of C

#pragma once

#include "multiply.cuh"
#include "store.cuh"

namespace cute_gemm {

// C (M,N,L) = alpha * A (M,K,L) B (N,K,L)^T + beta * C. Each map describes one matrix to TMA, its modes
// with the unit-stride one first; of a shared matrix (`shared_a`, `shared_b`) there is one for all. Each
// `slices` of the batch are slices along K of the map's matrix; with `k_last` the last is shorter.
template <class Config>
CUTE_DEVICE void sm90_wgmma(TmaDescriptor const* map_a, TmaDescriptor const* map_b,
                            TmaDescriptor const* map_c, Output<Config> const& out, int k, int k_last,
                            int l, int slices, bool shared_a, bool shared_b, typename Config::Accumulator alpha,
                            typename Config::Accumulator beta,
                            typename Config::Accumulator const* alpha_ptr,
                            typename Config::Accumulator const* beta_ptr) {
  using CtaTiler = typename Config::CtaTiler;
  using Memory = Shared<Config>;
  using Barrier = typename Memory::Barrier;
  using Element = typename Config::Element;
  constexpr int kBK = size<2>(CtaTiler{}), kConsumers = Config::kConsumers;
  extern __shared__ __align__(1024) char shared[];
  Memory& memory = *reinterpret_cast<Memory*>(shared);

  int const warp = __shfl_sync(~0u, threadIdx.x / 32, 0), group = warp / 4;
  using Cluster = typename Config::Cluster;
  int const rank = Cluster::kCtas > 1 ? int(block_rank_in_cluster()) : 0;
  Schedule<CtaTiler, Cluster, Config::kRasterGroup> const schedule(out.m, out.n, l);
  Turn<Config::kStages> turn;

  if (threadIdx.x == 0) memory.make_barriers();
  if constexpr (Cluster::kCtas > 1) {
    cluster_sync();
  } else {
    __syncthreads();
  }
  follow_grids();

  typename Config::Epilogue epilogue{scalar(alpha, alpha_ptr), scalar(beta, beta_ptr)};
  int const all = epilogue.without_sums(k) ? 0 : ceil_div(k, kBK);
  int const fewer = min(all, ceil_div(k_last, kBK));
  auto const depth = [&](Tile const& tile) {
    return k_last > 0 && tile.batch % slices == slices - 1 ? fewer : all;
  };

  if (group == kConsumers) {  // the group that loads, by one thread
    cutlass::arch::warpgroup_reg_dealloc<Config::kLoaderRegisters>();
    if (warp % 4 == 0 && elect_one_sync()) {
      for (int index = schedule.first(); index < schedule.count; index += schedule.step()) {
        Tile const tile = schedule(index, rank);
        int const product = tile.batch / slices, first = tile.batch % slices * k, end = depth(tile);
        int const matrix_a = shared_a ? 0 : product, matrix_b = shared_b ? 0 : product;
        CUTE_NO_UNROLL
        for (int k_tile = 0; k_tile < end; ++k_tile, ++turn) {
          uint64_t* const full = &memory.full[turn.stage];
          Barrier::wait(&memory.empty[turn.stage], turn.parity ^ 1);
          Barrier::arrive_and_expect_tx(full, Memory::kBytes);
          Boxes<typename Config::SmemLayoutA, Config::kMajorKA, Cluster::kBeside>::load(
              map_a, full, memory.a[turn.stage], tile.row, first + k_tile * kBK, matrix_a,
              Cluster::beside(rank), Cluster::row(rank));
          Boxes<typename Config::SmemLayoutB, Config::kMajorKB, Cluster::kBelow>::load(
              map_b, full, memory.b[turn.stage], tile.column, first + k_tile * kBK, matrix_b,
              Cluster::below(rank), Cluster::column(rank));
        }
      }
    }
    __syncwarp();
  } else {
    cutlass::arch::warpgroup_reg_alloc<Config::kRegisters>();
    using Sums = Sums<Config>;
    int const thread = threadIdx.x % 128, partner = Cluster::partner(rank, thread % 32);
    Sums sums;
    Parts<Config, Sums> parts(map_c, memory.c[group], memory.came[group], group, thread);
    uint64_t const first_a = Sums::A::descriptor(memory.a[0]) + Sums::A::step(Sums::row(group), 0);
    typename Sums::Rows rows(Sums::row(group), thread);
    uint64_t const first_b = Sums::B::descriptor(memory.b[0]) + Sums::B::step(Sums::column(group), 0);
    // With ping-pong the other group's tiles are between a group's own.
    bool const second = Config::kPingPong && group == 1;
    auto const skip = [&](int index) {
      if (index < schedule.count) turn.skip(depth(schedule(index, rank)));
    };
    if (second) skip(schedule.first());
    for (int index = schedule.first() + second * schedule.step(); index < schedule.count;
         index += (1 + Config::kPingPong) * schedule.step()) {
      Tile const tile = schedule(index, rank);
      int const end = depth(tile);
      if (end == 0) {
        scale_elements(tile, Config::kPingPong ? thread : threadIdx.x, out, epilogue);
        continue;
      }
      if constexpr (Config::kTmaC) {
        parts.begin(tile, epilogue);
      }
      if (Config::kPingPong && index > schedule.first()) wait_for_turn(group);
      int last = 0;  // the stage of the k tile before
      auto const come = [&] {
        Barrier::wait(&memory.full[turn.stage], turn.parity);
        return memory.a[turn.stage];
      };
      auto const b = [&] {
        return first_b + turn.stage * int(Memory::kB * sizeof(Element) / 16);
      };
      if constexpr (Config::kRegisterA) {
        // The last step of a k tile comes behind the barrier of the next, whose first rows it loads.
        constexpr int kLast = Sums::kSteps - 1;
        auto const others = [&](Element const* stage, bool first) {
          CUTE_UNROLL
          for (int step = 0; step < kLast; ++step) sums.multiply(step, rows, stage, b(), first && step == 0);
        };
        Element const* stage = come();
        rows.load(stage, 0);
        sums.fence();
        others(stage, true);
        CUTE_NO_UNROLL
        for (int k_tile = 1; k_tile < end; ++k_tile) {
          uint64_t const before = b();
          last = turn.stage;
          ++turn;
          stage = come();
          sums.multiply(kLast, rows, stage, before, false);
          others(stage, false);
          memory.release(last, partner);
        }
        sums.multiply(kLast, rows, stage, b(), false);
        last = turn.stage;
        ++turn;
      } else {
        CUTE_NO_UNROLL
        for (int k_tile = 0; k_tile < end; ++k_tile, ++turn) {
          come();
          sums.fence();
          sums.multiply(first_a + turn.stage * int(Memory::kA * sizeof(Element) / 16), b(), k_tile == 0);
          sums.fence();
          warpgroup_wait<1>();
          if (k_tile > 0) memory.release(last, partner);
          last = turn.stage;
        }
      }
      if (Config::kPingPong && index + schedule.step() < schedule.count) give_turn(1 - group);
      warpgroup_wait<0>();
      sums.fence();
      memory.release(last, partner);
      if constexpr (Config::kTmaC) {
        parts.store(sums, tile, out, epilogue);
      } else {
        store_elements(sums, tile, group, thread, out, epilogue);
      }
      if (Config::kPingPong) skip(index + schedule.step());
    }
    if (Config::kTmaC && thread == 0) tma_store_wait<0>();
  }
  // The shared memory of a CTA stays until the others no longer write to it.
  if constexpr (Cluster::kCtas > 1) cluster_sync();
}

}  // namespace cute_gemm
