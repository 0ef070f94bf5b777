// The epilogue of wgmma: accumulators to C, by TMA through shared memory, or element by element.

#pragma once

#include <cute/arch/copy_sm75.hpp>
#include <cute/arch/copy_sm90.hpp>
#include <cutlass/array.h>

#include "../common/epilogue.cuh"
#include "../tma/tile_scheduler.cuh"
#include "mma.cuh"

namespace cute_gemm {

// C (M,N,L), for accesses of single elements.
template <class Config>
struct TensorC {
  using ElementC = typename Config::ElementC;
  ElementC* C;
  int m, n;
  int64_t ldc, batch_stride;

  CUTE_DEVICE bool contains(int row, int column) const { return row < m && column < n; }

  CUTE_DEVICE ElementC* at(int row, int column, int batch) const {
    return C + batch * batch_stride + (Config::kColumnMajorC ? row + column * ldc : row * ldc + column);
  }
};

// C as a tile may store to it: with rows or columns up to the end of its group.
template <class Config>
CUTE_DEVICE decltype(auto) of_tile(TensorC<Config> const& c, Tile<Config> const& tile) {
  constexpr bool kRows = int(Config::kRagged) == kRaggedM, kColumns = int(Config::kRagged) == kRaggedN;
  if constexpr (kRows || kColumns) {
    TensorC<Config> part = c;
    (kRows ? part.m : part.n) = tile.end;
    return part;
  } else {
    return c;
  }
}

// A barrier of one warp group.
CUTE_DEVICE void warpgroup_sync(int group) {
  asm volatile("bar.sync %0, 128;\n" ::"r"(1 + group) : "memory");
}

// Element by element from registers, if TMA does not support C; inputs of a few elements are loaded together.
template <class Config>
CUTE_DEVICE void store_elements(Accumulators<Config> const& accumulators, Tile<Config> const& tile, int group,
                                int thread, TensorC<Config> const& whole,
                                typename Config::Epilogue const& epilogue) {
  using Accumulators = Accumulators<Config>;
  constexpr int kTogether = 4;
  AccumulatorCoord<Config> const own(thread);
  auto const& c = of_tile(whole, tile);
  CUTE_UNROLL
  for (int m = 0; m < Accumulators::kBlocks; ++m) {
    CUTE_UNROLL
    for (int first = 0; first < Accumulators::kResults; first += kTogether) {
      Update<1, true, typename Config::Epilogue, typename Config::ElementC> updates[kTogether];
      auto const each = [&](auto const& function) {
        CUTE_UNROLL
        for (int i = first; i < first + kTogether && i < Accumulators::kResults; ++i) {
          int const row = tile.row + Accumulators::row(group) + m * 64 + own.row(i);
          int const column = tile.column / Accumulators::kPerResult + Accumulators::column(group) + own.column(i);
          if (c.contains(row, column)) {
            function(i, c.at(row, column, tile.batch), coord<Config::kSwapAB>(row, column, tile.batch));
          }
        }
      };
      each([&](int i, auto* at, Coord const& place) { updates[i - first].load(epilogue, at, place); });
      each([&](int i, auto* at, Coord const& place) {
        auto const& sum = Accumulators::sum(accumulators.block(m), i);
        updates[i - first].store(epilogue, at, &sum, place);
      });
    }
  }
}

// A tile of C without products, stored by all threads that would have computed it.
template <class Config>
CUTE_DEVICE void update_elements(Tile<Config> const& tile, int thread, TensorC<Config> const& whole,
                                 typename Config::Epilogue const& epilogue) {
  constexpr int kPerResult = Accumulators<Config>::kPerResult;
  constexpr int kBM = size<0>(typename Config::CtaTiler{}), kBN = size<1>(typename Config::CtaTiler{}) / kPerResult;
  auto const& c = of_tile(whole, tile);
  CUTE_NO_UNROLL
  for (int i = thread; i < kBM * kBN; i += SharedStorage<Config>::kConsumerWarps * 32) {
    int const row = tile.row + (Config::kColumnMajorC ? i % kBM : i / kBN);
    int const column = tile.column / kPerResult + (Config::kColumnMajorC ? i / kBM : i % kBN);
    if (c.contains(row, column)) {
      update_without_products(epilogue, c.at(row, column, tile.batch), coord<Config::kSwapAB>(row, column, tile.batch));
    }
  }
}

// A tile of C without a group, by the same threads; 16 bytes at a time if the contiguous rows or columns of C are not
// parts of groups and TMA supports them.
template <class Config>
CUTE_DEVICE void zero_elements(Tile<Config> const& tile, int thread, TensorC<Config> const& c) {
  using CtaTiler = typename Config::CtaTiler;
  constexpr int kBM = size<0>(CtaTiler{}), kBN = size<1>(CtaTiler{}), kAlong = Config::kColumnMajorC ? kBM : kBN;
  constexpr int kThreads = SharedStorage<Config>::kConsumerWarps * 32, kEvery = 16 / sizeof(typename Config::ElementC);
  constexpr bool kWhole = int(Config::kRagged) == int(Config::kColumnMajorC ? kRaggedN : kRaggedM);
  constexpr int kVector = Config::kTmaC && kWhole && kAlong % kEvery == 0 ? kEvery : 1;
  store_zeros<kBM, kBN, kThreads, !Config::kColumnMajorC, kVector>(c.C, c.ldc, c.m, c.n, tile.row, tile.column, thread);
}

// The epilogue tiles (64,kColumns) of a warp group, one after the other: registers to shared memory, swizzled for
// TMA, and from there to C by TMA, which clips it; meanwhile the next is written to another stage. If C is read,
// TMA has loaded its tile into that stage before.
template <class Config>
struct TmaEpilogue {
  using Accumulators = Accumulators<Config>;
  using ElementC = typename Config::ElementC;
  using Accumulator = typename Config::Accumulator;
  using Epilogue = typename Config::Epilogue;
  using Barrier = cutlass::arch::ClusterTransactionBarrier;
  using SmemLayout = typename Config::SmemLayoutC;  // (64,kColumns)
  using WorkTile = Tile<Config>;
  enum : int {
    kColumns = size<1>(SmemLayout{}), kSpan = swizzle_span(SmemLayout{}), kStages = Config::kStagesC,
    kSize = size(SmemLayout{}),
    kBoxes = (Config::kColumnMajorC ? 64 : int(kColumns)) / kSpan,
    kWidth = Accumulators::kColumns / Accumulators::kPerResult,  // columns of C
    kTilesN = kWidth / kColumns, kTiles = Accumulators::kBlocks * kTilesN,
    kDepth = Config::kColumnMajorC ? int(kColumns) : 64  // extent of a box across
  };
  static_assert(kTiles % kStages == 0);
  // stmatrix stores the instruction's rows, which A from registers does not have.
  enum : bool { kMatrix = sizeof(ElementC) == 2 && !Config::kRegisterA };

  TmaDescriptor const* map;
  ElementC* smem;    // (PIPE_C,EPI_M*EPI_N)
  uint64_t* full;    // (PIPE_C): epilogue tiles of C that have been read
  int group, thread;
  int offset;        // place of the thread's first value in a stage; for stmatrix, of its row
  uint32_t phase = 0;

  CUTE_DEVICE TmaEpilogue(TmaDescriptor const* map, ElementC* smem, uint64_t* full, int group, int thread)
      : map(map), smem(smem), full(full), group(group), thread(thread) {
    if constexpr (kMatrix) {
      int const lane = thread % 32, row = thread / 32 * 16 + lane / 8 % 2 * 8, column = lane / 16 * 8;
      offset = Config::kColumnMajorC ? SmemLayout{}(row, column + lane % 8) : SmemLayout{}(row + lane % 8, column);
    } else {
      AccumulatorCoord<Config> const own(thread);
      offset = SmemLayout{}(own.first_row, own.first_column);
    }
  }

  // The first row and column of epilogue tile i in C.
  CUTE_DEVICE int row_of(WorkTile const& tile, int i) const {
    return tile.row + Accumulators::row(group) + i / kTilesN * 64;
  }
  CUTE_DEVICE int column_of(WorkTile const& tile, int i) const {
    return tile.column / Accumulators::kPerResult + Accumulators::column(group) + i % kTilesN * kColumns;
  }

  // Calls `function` with the shared memory of each box of an epilogue tile, and with its coordinates.
  template <class Function>
  CUTE_DEVICE void for_each_box(WorkTile const& tile, int i, Function const& function) const {
    int const row = row_of(tile, i), column = column_of(tile, i);
    CUTE_UNROLL
    for (int box = 0; box < kBoxes; ++box) {
      ElementC* const stage = smem + i % kStages * kSize + box * kSpan * (Config::kColumnMajorC ? kColumns : 64);
      int const along = box * kSpan + (Config::kColumnMajorC ? row : column);
      int const across = Config::kColumnMajorC ? column : row;
      if constexpr (int(Config::kRagged) == kRaggedM || int(Config::kRagged) == kRaggedN) {
        function(stage, InGroup{tile.end}.at<kDepth>(along, across));
      } else {
        function(stage, InBatch{tile.batch}.at<kDepth>(along, across));
      }
    }
  }

  // Starts to load epilogue tile i of C; one thread.
  CUTE_DEVICE void load(WorkTile const& tile, int i) const {
    uint64_t* const barrier = full + i % kStages;
    Barrier::arrive_and_expect_tx(barrier, kSize * sizeof(ElementC));
    for_each_box(tile, i, [&](ElementC* stage, auto const& at) {
      at.template copy<SM90_TMA_LOAD>(map, barrier, uint64_t(TMA::CacheHintSm90::EVICT_NORMAL), stage);
    });
  }

  // Starts to load the first epilogue tiles of C, and to prefetch the epilogue's operands into L2, before the main
  // loop.
  CUTE_DEVICE void prefetch(WorkTile const& tile, Epilogue const& epilogue) const {
    constexpr int kRows = 64 * Accumulators::kBlocks;
    epilogue.template prefetch<Config::kSwapAB ? int(kWidth) : kRows, Config::kSwapAB ? kRows : int(kWidth), 128>(
        coord<Config::kSwapAB>(row_of(tile, 0), column_of(tile, 0), tile.batch), thread);
    if (epilogue.reads_c() && thread == 0) {
      tma_store_wait<0>();
      CUTE_UNROLL
      for (int i = 0; i < kStages; ++i) load(tile, i);
    }
  }

  // A thread's four results in 8 columns: two rows of two columns.
  enum : int { kRowStep = AccumulatorCoord<Config>::kRowStep };
  using QuadBlock = cute::conditional_t<Config::kSwapAB, Block<2, 2, 1, kRowStep>, Block<2, 2, kRowStep, 1>>;
  // The epilogue's operands for these results.
  using QuadOperands = decltype(cute::declval<Epilogue>().template load<QuadBlock>(Coord{}));

  // The operands of an epilogue tile, and of as many later tiles as registers allow: none if a thread has so many
  // accumulators that its group takes turns with another one, whose products hide these loads.
  enum : int {
    kMostLoadsAhead = Accumulators::kBlocks * Accumulators::kValues > 144 ? 0 : 32,
    kLoads = QuadOperands::kLoads * kColumns / 8,
    kAhead = kLoads == 0 ? 0 : kMostLoadsAhead / kLoads < kTiles - 1 ? kMostLoadsAhead / kLoads : kTiles - 1
  };
  struct Operands {
    QuadOperands values[kAhead + 1][kColumns / 8];
  };

  // Calls a function with each block of 8 columns of an epilogue tile, and the coordinate of the thread's first result.
  template <class Function>
  CUTE_DEVICE void for_each_block(WorkTile const& tile, int i, Function const& function) const {
    AccumulatorCoord<Config> const own(thread);
    int const row = row_of(tile, i) + own.first_row, column = column_of(tile, i) + own.first_column;
    CUTE_UNROLL
    for (int block = 0; block < kColumns / 8; ++block) {
      function(block, coord<Config::kSwapAB>(row, column + block * 8, tile.batch));
    }
  }

  CUTE_DEVICE void load_operands(Operands& operands, WorkTile const& tile, int i, Epilogue const& epilogue) const {
    for_each_block(tile, i, [&](int block, Coord const& at) {
      operands.values[i % (kAhead + 1)][block] = epilogue.template load<QuadBlock>(at);
    });
  }

  // Starts to load the operands of the first epilogue tiles, while the last products are in flight.
  CUTE_DEVICE void load_operands(Operands& operands, WorkTile const& tile, Epilogue const& epilogue) const {
    CUTE_UNROLL
    for (int i = 0; i < kAhead; ++i) load_operands(operands, tile, i, epilogue);
  }

  // A thread's 8 results in 16 columns from `column` on, into a stage.
  template <bool kReadsC>
  CUTE_DEVICE void write(ElementC* stage, int column, Accumulator const* accumulators, QuadOperands* operands,
                         Epilogue const& epilogue) const {
    auto const result = [&](int i, ElementC const& c) {
      int const row = i / 2 % 2, next = i % 2;
      int const m = Config::kSwapAB ? next : row, n = Config::kSwapAB ? row : next;
      auto const& sum = Accumulators::sum(accumulators, i);
      return kReadsC ? epilogue(sum, c, operands[i / 4], m, n) : epilogue(sum, operands[i / 4], m, n);
    };
    alignas(16) ElementC values[8];
    if constexpr (kMatrix) {
      auto* const pairs = reinterpret_cast<uint32_t*>(values);
      auto& at = *reinterpret_cast<uint128_t*>(stage + join(SmemLayout{}, offset, SmemLayout{}(0, column)));
      if constexpr (kReadsC && Config::kColumnMajorC) {
        SM75_U16x8_LDSM_T::copy(at, pairs[0], pairs[1], pairs[2], pairs[3]);
      } else if constexpr (kReadsC) {
        SM75_U32x4_LDSM_N::copy(at, pairs[0], pairs[1], pairs[2], pairs[3]);
      }
      CUTE_UNROLL
      for (int i = 0; i < 8; ++i) values[i] = result(i, values[i]);
      if constexpr (Config::kColumnMajorC) {
        SM90_U16x8_STSM_T::copy(pairs[0], pairs[1], pairs[2], pairs[3], at);
      } else {
        SM90_U32x4_STSM_N::copy(pairs[0], pairs[1], pairs[2], pairs[3], at);
      }
    } else {
      // Values that are adjacent along the unit-stride mode are one access: two columns, or two adjacent rows.
      using Coord = AccumulatorCoord<Config>;
      constexpr int kNext = Config::kColumnMajorC ? 2 : 1;  // distance to the adjacent value
      constexpr int kWidth = kNext == 1 || Coord::kRowStep == 1 ? 2 : 1;
      using Vector = cutlass::AlignedArray<ElementC, kWidth>;
      CUTE_UNROLL
      for (int i = 0; i < 8; ++i) {
        if (i / kNext % kWidth != 0) continue;
        int const step = SmemLayout{}(i / 2 % 2 * Coord::kRowStep, column + i / 4 * 8 + i % 2);
        auto& at = *reinterpret_cast<Vector*>(stage + join(SmemLayout{}, offset, step));
        Vector vector;
        if constexpr (kReadsC) vector = at;
        CUTE_UNROLL
        for (int j = 0; j < kWidth; ++j) {
          vector[j] = result(i + j * kNext, vector[j]);
        }
        at = vector;
      }
    }
  }

  // A thread's results of an epilogue tile, into a stage.
  template <bool kReadsC>
  CUTE_DEVICE void write_tile(ElementC* stage, Accumulator const* accumulators, QuadOperands* operands,
                              Epilogue const& epilogue) const {
    CUTE_UNROLL
    for (int step = 0; step < kColumns; step += 16) {
      write<kReadsC>(stage, step, accumulators + step / 2, operands + step / 8, epilogue);
    }
  }

  CUTE_DEVICE void store(Accumulators const& accumulators, Operands& operands, WorkTile const& tile,
                         Epilogue const& epilogue) {
    CUTE_UNROLL
    for (int i = 0; i < kTiles; ++i) {
      ElementC* const stage = smem + i % kStages * kSize;
      Accumulator const* const values = accumulators.block(i / kTilesN) + i % kTilesN * (kColumns / 2);
      auto& own_operands = operands.values[i % (kAhead + 1)];
      if (i + kAhead < kTiles) load_operands(operands, tile, i + kAhead, epilogue);
      if (epilogue.reads_c()) {
        Barrier::wait(full + i % kStages, phase);
        __syncwarp();  // the thread that issued the load arrives later
        if (i % kStages == kStages - 1) phase ^= 1;
        write_tile<true>(stage, values, own_operands, epilogue);
      } else {
        if (thread == 0) tma_store_wait<kStages - 1>();  // the stage's previous store has read it
        warpgroup_sync(group);
        write_tile<false>(stage, values, own_operands, epilogue);
      }
      for_each_block(tile, i, [&](int block, Coord const& at) {
        epilogue.template store<QuadBlock>(at, own_operands[block]);
      });
      asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");  // TMA sees these writes
      warpgroup_sync(group);
      if (thread == 0) {
        for_each_box(tile, i, [&](ElementC* from, auto const& at) { at.template copy<SM90_TMA_STORE>(map, from); });
        tma_store_arrive();
        if (i + kStages < kTiles && epilogue.reads_c()) {
          tma_store_wait<0>();
          load(tile, i + kStages);
        }
      }
      __syncwarp();  // otherwise this thread may compute the next tile separately
    }
  }
};

}  // namespace cute_gemm
