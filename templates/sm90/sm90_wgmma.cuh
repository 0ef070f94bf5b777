// sm90_wgmma: TMA, wgmma and a persistent grid, for GPUs of compute capability 9.0.
//
// The idea: A and B bypass the registers. One producer thread has TMA load the next k tiles into stages of
// shared memory, which signal their bytes on a full barrier; consumer warp groups multiply directly from shared
// memory by wgmma, 64 x N x 32 bytes at a time, and wait only for the products of the previous k tile. The grid
// is persistent: a CTA computes tile after tile, so that the loads of the next tile run while the accumulators
// of the last one go to C, also by TMA. The CTAs of a cluster share A and B by multicast. Elements of sizes other
// than 2 bytes along M, which wgmma does not read from shared memory, are loaded into registers a k step ahead.
// Block scales are loaded into the stages too (scales.cuh).
//
// The template parameters are one `Config`, for every layout of A(M,K), B(N,K), C(M,N):
//
//   ElementA, ElementB, ElementC, Accumulator   types
//   Epilogue                                 computation on the accumulators (LinearCombination)
//   CtaTiler                                 Shape<BLK_M,BLK_N,BLK_K>
//   Mma                                      CuTe's wgmma atom: 64 x columns of a group x 32 bytes
//   kMajorKA, kMajorKB                       true: K is the unit-stride mode
//   kRegisterA                               A from registers
//   kPromoted                                products of a k tile in separate accumulators, then added
//   kProducts                                products of components: 6 or 9 of bf16x6 and bf16x9; else 1
//   kScaleRowsA, kScaleRowsB                 rows that share a scale of 128 of k: 1, 128; 0: no scales
//   kTmaScalesA, kTmaScalesB                 scales of rows by TMA; else lane by lane
//   kColumnMajorC                            true: M is the unit-stride mode
//   kSwapAB                                  A, B and C are the problem's B, A and C^T
//   kTmaC                                    C by TMA; else element by element
//   kConsumers                               consumer warp groups
//   kGroupsAlongN                            warp groups divide the tile along N, not along M
//   kPingPong                                each warp group computes whole tiles, in turns
//   kStages, kStagesC                        pipeline stages, and epilogue stages of each group
//   Cluster                                  ClusterShape<M,N>
//   kConsumerRegisters, kProducerRegisters   of a thread (setmaxnreg)
//   kRasterGroup                             rows of tiles of a raster group
//   kRagged                                  mode of groups (Ragged), none but in a grouped GEMM
//   SmemLayoutA, SmemLayoutB                 (BLK_M,BLK_K), (BLK_N,BLK_K), swizzled for TMA and wgmma
//   SmemLayoutC                              (64,EPI_N) of an epilogue tile

#pragma once

#include "epilogue.cuh"
#include "promoted.cuh"

namespace cute_gemm {

// The order of two ping-pong groups: a group waits until the other has started all products of its tile. So
// no group waits for a stage of two rounds ago, which would have the same phase.
CUTE_DEVICE void order_wait(int group) { asm volatile("bar.sync %0, 256;\n" ::"r"(4 + group) : "memory"); }
CUTE_DEVICE void order_arrive(int group) { asm volatile("bar.arrive %0, 256;\n" ::"r"(4 + group) : "memory"); }

// C (M,N,L) = epilogue(A (M,K,L) B (N,K,L)^T). Each tensor map describes one matrix, with its unit-stride mode first;
// a shared matrix (`shared_a`, `shared_b`) has one for the batch. Each `slices` of the batch are slices of K of
// one matrix; with `k_last` the last slice has that extent.
//
// With products of components A and B are three consecutive matrices each in the batch.
//
// In a grouped GEMM the `l` groups are consecutive along M, N or K, and end at `ends`. The operand without that mode,
// or C, has a separate matrix for each group. With `kZeroTail` rows or columns of C after the last end become
// zeros.
//
// If the epilogue takes pairs of columns, C has half as many columns as the product. A tile has the first ones of
// its pairs, followed by the second ones: B's tensor map has a mode for the two of a pair.
template <class Config, bool kZeroTail = false>
CUTE_DEVICE void sm90_wgmma(TmaDescriptor const* map_a, TmaDescriptor const* map_b,
                            TmaDescriptor const* map_c, TensorC<Config> const& c, int k, int k_last, int l,
                            int slices, bool shared_a, bool shared_b, typename Config::Epilogue::Params const& params,
                            BlockScales const& scale_a = {}, BlockScales const& scale_b = {},
                            int const* ends = nullptr) {
  using CtaTiler = typename Config::CtaTiler;  // (BLK_M,BLK_N,BLK_K)
  using Cluster = typename Config::Cluster;
  using Memory = typename Consumer<Config>::Memory;
  using Scales = StageScales<Config>;
  constexpr int kBK = size<2>(CtaTiler{}), kConsumers = Config::kConsumers;
  using Products = ComponentProducts<Config::kProducts, Config::kSwapAB>;
  constexpr bool kGrouped = int(Config::kRagged) != kRaggedNone, kGroupsAlongK = int(Config::kRagged) == kRaggedK;
  // TMA cuts boxes along a mode with a stride: the group's last k tile has zeros after its end.
  constexpr bool kZeroFill = GroupPart<Config>::kZeroFill;
  using Place = conditional_t<kGroupsAlongK && !kZeroFill, InGroup, InBatch>;
  constexpr int kPerResult = Accumulators<Config>::kPerResult;  // columns of B per column of C
  constexpr bool kPairs = kPerResult > 1;
  using PlaceB = conditional_t<kPairs, InPairs, Place>;
  static_assert(!kPairs || int(Config::kRagged) == kRaggedNone);
  extern __shared__ __align__(1024) char shared[];
  Memory& memory = *reinterpret_cast<Memory*>(shared);

  int const warp = __shfl_sync(~0u, threadIdx.x / 32, 0), group = warp / 4;
  int const rank = Cluster::kCtas > 1 ? int(block_rank_in_cluster()) : 0;
  Scheduler<Config, kZeroTail> scheduler(c.m, kPerResult * c.n, l, k, ends);
  PipelineState<Config::kStages> state;

  // No thread waits on a barrier before all are initialized, in all CTAs of the cluster.
  if (threadIdx.x == 0) memory.init_barriers();
  if constexpr (Cluster::kCtas > 1) {
    cluster_sync();
  } else {
    __syncthreads();
  }
  follow_grids();

  typename Config::Epilogue epilogue(params);
  int const all = epilogue.skips_products(k) ? 0 : ceil_div(k, kBK);
  int const fewer = min(all, ceil_div(k_last, kBK));
  auto const first_k_of = [&](Tile<Config> const& tile) {
    if constexpr (kGroupsAlongK) return GroupPart<Config>::aligned(tile.begin);
    return tile.batch % slices * k;
  };
  auto const k_tiles_of = [&](Tile<Config> const& tile) {
    if (kZeroTail && tile.batch == l) return 0;
    if constexpr (kGroupsAlongK) {
      bool const none = all == 0 || tile.end == tile.begin;
      return none ? 0 : ceil_div(tile.end - first_k_of(tile), kBK);
    }
    return Products::kCount * (k_last > 0 && tile.batch % slices == slices - 1 ? fewer : all);
  };

  if (group == kConsumers) {
    cutlass::arch::warpgroup_reg_dealloc<Config::kProducerRegisters>();
    auto const for_each_tile = [&](auto const& function) {
      for (int index = scheduler.first(); index < scheduler.known(index); index += scheduler.step()) {
        function(scheduler(index, rank));
      }
    };
    // Producer: one thread waits for an empty stage, and has TMA load a k tile of A and B into it.
    auto const load = [&](Tile<Config> const& tile) {
      int const matrix = tile.batch / slices, first_k = first_k_of(tile), k_tiles = k_tiles_of(tile);
      int const matrix_a = shared_a ? 0 : matrix, matrix_b = shared_b ? 0 : matrix;
      int const along_k = kZeroFill ? 0 : end_of(tile);  // groups along K are parts of one matrix
      // In a cluster a tile may lie outside C. Its CTA loads the data that others of the cluster need, and the rows of
      // the first tile instead of rows outside: boxes outside a matrix take TMA longer. Without them it could release
      // a stage of a peer for the second time before all others have for the first.
      bool const rows_inside = Cluster::kM == 1 || kGrouped || tile.row < c.m;
      bool const columns_inside = Cluster::kN == 1 || kGrouped || tile.column < kPerResult * c.n;
      int const row = rows_inside ? tile.row : 0, column = columns_inside ? tile.column : 0;
      Products const products(k_tiles);
      CUTE_NO_UNROLL
      for (int k_tile = 0; k_tile < k_tiles; ++k_tile, ++state) {
        Place const place_a{kGroupsAlongK ? along_k : products.matrix_a(matrix_a, k_tile)};
        PlaceB const place_b{kGroupsAlongK ? along_k : products.matrix_b(matrix_b, k_tile)};
        int const at_k = first_k + products.k_tile(k_tile) * kBK;
        uint64_t* const full = memory.producer_acquire(state);
        TmaLoad<typename Config::SmemLayoutA, Config::kMajorKA, Cluster::kN>::load(
            map_a, full, memory.a[state.stage], row, at_k, place_a,
            Cluster::n(rank), Cluster::mask_a(rank));
        TmaLoad<typename Config::SmemLayoutB, Config::kMajorKB, Cluster::kM, kPairs>::load(
            map_b, full, memory.b[state.stage], column / kPerResult, at_k, place_b,
            Cluster::m(rank), Cluster::mask_b(rank));
        if constexpr (Scales::kBytes > 0) {
          float* const scales = memory.stage_data[state.stage].values;
          load_scales<Scales::Places::kBoxA>(scale_a, full, scales, row, at_k, matrix);
          load_scales<Scales::Places::kBoxB>(scale_b, full, scales + Scales::Places::kFirstB, column, at_k, matrix);
        }
      }
    };
    // Another warp copies the block scales of the same k tiles that TMA does not load.
    ScaleLoader<Config> copy_scales(scale_a, scale_b);
    auto const copy_scales_of = [&](auto const& tile) {
      auto const& part = of_tile(c, tile);
      copy_scales(memory, state, k_tiles_of(tile), tile, part.m, part.n, tile.batch / slices, first_k_of(tile));
    };
    if (warp % 4 == 0 && elect_one_sync()) for_each_tile(load);
    if constexpr (Memory::kCopiers > 0) {
      if (warp % 4 == 1 && threadIdx.x % 32 < Memory::kCopiers) for_each_tile(copy_scales_of);
    }
    __syncwarp();
  } else {
    // Consumers: a warp group waits for full stages, multiplies, releases them, and stores its part of the tile.
    cutlass::arch::warpgroup_reg_alloc<Config::kConsumerRegisters>();
    int const thread = threadIdx.x % 128;
    int peer = Cluster::peer(rank, thread % 32);
    asm("" : "+r"(peer));  // kept in a register: it is needed between products
    Accumulators<Config> accumulators;  // (kBlocks,kValues)
    TmaEpilogue<Config> tma_epilogue(map_c, memory.c[group], memory.full_c[group], group, thread);
    using Mainloop = conditional_t<Config::kPromoted, MainloopPromoted<Config>, MainloopInPlace<Config>>;
    Mainloop mainloop(memory, group, thread, peer);
    // Ping-pong: the other group's tiles alternate with a group's own; their k tiles are skipped.
    bool const second = Config::kPingPong && group == 1;
    auto const skip = [&](int index) {
      if (index < scheduler.known(index)) state.advance(k_tiles_of(scheduler(index, rank)));
    };
    if (second) skip(scheduler.first());
    for (int index = scheduler.first() + second * scheduler.step(); index < scheduler.known(index);
         index += (1 + Config::kPingPong) * scheduler.step()) {
      Tile<Config> const tile = scheduler(index, rank);
      int const k_tiles = k_tiles_of(tile);
      if (k_tiles == 0) {
        // Other groups have products, and their turns.
        constexpr bool kTurns = (kGroupsAlongK || kZeroTail) && Config::kPingPong;
        int const next = index + scheduler.step(), tile_thread = Config::kPingPong ? thread : threadIdx.x;
        if (kTurns && index > scheduler.first()) order_wait(group);
        if (kTurns && next < scheduler.known(kGroupsAlongK ? 0 : next)) order_arrive(1 - group);
        if (kZeroTail && tile.batch == l) {
          zero_elements<Config>(tile, tile_thread, c);
        } else {
          auto const alpha = epilogue.alpha;
          if constexpr (kGroupsAlongK) epilogue.skips_products(0);
          update_elements(tile, tile_thread, c, epilogue);
          epilogue.alpha = alpha;
        }
        if (kTurns) skip(index + scheduler.step());
        continue;
      }
      if constexpr (Config::kTmaC) tma_epilogue.prefetch(tile, epilogue);
      if (Config::kPingPong && index > scheduler.first()) order_wait(group);
      if constexpr (kZeroFill) mainloop.part = {tile.begin - first_k_of(tile), tile.end - first_k_of(tile)};
      int const last = mainloop(accumulators, state, k_tiles);
      if (Config::kPingPong && index + scheduler.step() < scheduler.known(index + scheduler.step())) {
        order_arrive(1 - group);
      }
      typename TmaEpilogue<Config>::Operands operands;
      if constexpr (Config::kTmaC) tma_epilogue.load_operands(operands, tile, epilogue);
      warpgroup_wait<0>();
      accumulators.fence();
      memory.consumer_release(last, peer);
      if constexpr (Config::kTmaC) {
        tma_epilogue.store(accumulators, operands, tile, epilogue);
      } else {
        store_elements(accumulators, tile, group, thread, c, epilogue);
      }
      if (Config::kPingPong) skip(index + scheduler.step());
    }
    if (Config::kTmaC && thread == 0) tma_store_wait<0>();
  }
  // A CTA's shared memory must outlive the multicasts and arrivals of its peers.
  if constexpr (Cluster::kCtas > 1) cluster_sync();
}

}  // namespace cute_gemm
