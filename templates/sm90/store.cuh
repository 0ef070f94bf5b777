// The way of wgmma's sums to C: by TMA from shared memory, or element by element from the registers.

#pragma once

#include <cute/arch/copy_sm75.hpp>
#include <cute/arch/copy_sm90.hpp>
#include <cutlass/array.h>

#include "../common/epilogue.cuh"
#include "multiply.cuh"
#include "schedule.cuh"

namespace cute_gemm {

// C (M,N,L) and what of it a thread has to do with.
template <class Config>
struct Output {
  using ElementC = typename Config::ElementC;
  ElementC* C;
  int m, n;
  int64_t ldc, batch;

  CUTE_DEVICE bool has(int row, int column) const { return row < m && column < n; }

  CUTE_DEVICE ElementC* at(Tile const& tile, int row, int column) const {
    return C + tile.batch * batch +
           (Config::kColumnMajorC ? row + column * ldc : row * ldc + column);
  }
};

// Waits for all warps of a group.
CUTE_DEVICE void group_sync(int group) {
  asm volatile("bar.sync %0, 128;\n" ::"r"(1 + group) : "memory");
}

// Element by element, each where it is: for a C that TMA does not take.
template <class Config, class Sums, class Epilogue>
CUTE_DEVICE void store_elements(Sums const& sums, Tile const& tile, int group, int thread,
                                Output<Config> const& out, Epilogue const& epilogue) {
  Held<Config> const held(thread);
  int const column = tile.column + Sums::column(group) + held.column;
  CUTE_UNROLL
  for (int m = 0; m < Sums::kMmas; ++m) {
    int const row = tile.row + Sums::row(group) + m * 64 + held.row;
    CUTE_UNROLL
    for (int i = 0; i < Sums::kValues; ++i) {
      int const r = row + i / 2 % 2 * held.kBelow, c = column + i / 4 * 8 + i % 2;
      if (out.has(r, c)) epilogue.template update<1>(out.at(tile, r, c), sums.of(m) + i);
    }
  }
}

// Where nothing is summed: C is scaled, by all threads that would have summed.
template <class Config, class Epilogue>
CUTE_DEVICE void scale_elements(Tile const& tile, int thread, Output<Config> const& out,
                                Epilogue const& epilogue) {
  constexpr int kBM = size<0>(typename Config::CtaTiler{}), kBN = size<1>(typename Config::CtaTiler{});
  CUTE_NO_UNROLL
  for (int i = thread; i < kBM * kBN; i += Shared<Config>::kReaders * 32) {
    int const row = tile.row + (Config::kColumnMajorC ? i % kBM : i / kBN);
    int const column = tile.column + (Config::kColumnMajorC ? i / kBM : i % kBN);
    if (out.has(row, column)) epilogue.scale(*out.at(tile, row, column));
  }
}

// By TMA: a part (64,kColumns) of a group's sums at a time goes to shared memory, swizzled as TMA takes
// it, and from there to C, which clips it; meanwhile the next is made ready in another place. Where C is
// read, a part of it has come to that place before, by TMA too, and is brought up to date there.
template <class Config, class Sums>
struct Parts {
  using ElementC = typename Config::ElementC;
  using Accumulator = typename Config::Accumulator;
  using Barrier = cutlass::arch::ClusterTransactionBarrier;
  using SmemLayout = typename Config::SmemLayoutC;  // (64,kColumns)
  enum : int {
    kColumns = size<1>(SmemLayout{}), kSpan = span(SmemLayout{}), kStores = Config::kStores,
    kSize = size(SmemLayout{}),
    kBoxes = (Config::kColumnMajorC ? 64 : int(kColumns)) / kSpan,
    kAcross = Sums::kColumns / kColumns, kParts = Sums::kMmas * kAcross
  };
  static_assert(kParts % kStores == 0);

  TmaDescriptor const* map;
  ElementC* smem;    // kStores places
  uint64_t* came;    // a barrier for each, of what is read of C
  int group, thread;
  int mine;          // where the thread's values go or, of stmatrix, the row whose address it gives
  uint32_t parity = 0;

  static_assert(!Config::kRegisterA || sizeof(ElementC) == 4);  // stmatrix has the instruction's rows

  CUTE_DEVICE Parts(TmaDescriptor const* map, ElementC* smem, uint64_t* came, int group, int thread)
      : map(map), smem(smem), came(came), group(group), thread(thread) {
    if constexpr (sizeof(ElementC) == 2) {
      int const lane = thread % 32, row = thread / 32 * 16 + lane / 8 % 2 * 8, column = lane / 16 * 8;
      mine = Config::kColumnMajorC ? SmemLayout{}(row, column + lane % 8)
                                   : SmemLayout{}(row + lane % 8, column);
    } else {
      Held<Config> const held(thread);
      mine = SmemLayout{}(held.row, held.column);
    }
  }

  // Calls with each box of a part: its place, and its corner in C along the unit-stride mode and across.
  template <class Function>
  CUTE_DEVICE void boxes(Tile const& tile, int part, Function const& function) const {
    int const row = tile.row + Sums::row(group) + part / kAcross * 64;
    int const column = tile.column + Sums::column(group) + part % kAcross * kColumns;
    CUTE_UNROLL
    for (int box = 0; box < kBoxes; ++box) {
      ElementC* const place =
          smem + part % kStores * kSize + box * kSpan * (Config::kColumnMajorC ? kColumns : 64);
      function(place, box * kSpan + (Config::kColumnMajorC ? row : column),
               Config::kColumnMajorC ? column : row);
    }
  }

  // Starts to bring a part of C; one thread.
  CUTE_DEVICE void fetch(Tile const& tile, int part) const {
    uint64_t* const barrier = came + part % kStores;
    Barrier::arrive_and_expect_tx(barrier, kSize * sizeof(ElementC));
    boxes(tile, part, [&](ElementC* place, int along, int across) {
      SM90_TMA_LOAD_3D::copy(map, barrier, uint64_t(TMA::CacheHintSm90::EVICT_NORMAL), place, along,
                             across, tile.batch);
    });
  }

  // Starts to bring the first parts of C, before the tile is computed.
  template <class Epilogue>
  CUTE_DEVICE void begin(Tile const& tile, Epilogue const& epilogue) const {
    if (epilogue.reads_c() && thread == 0) {
      tma_store_wait<0>();
      CUTE_UNROLL
      for (int part = 0; part < kStores; ++part) fetch(tile, part);
    }
  }

  // 8 results of 16 columns, of which the first is `column` of the part; with what was there, or without.
  template <bool kReads, class Epilogue>
  CUTE_DEVICE void put(ElementC* place, int column, Accumulator const* sums,
                       Epilogue const& epilogue) const {
    alignas(16) ElementC values[8];
    if constexpr (sizeof(ElementC) == 2) {
      auto* const pairs = reinterpret_cast<uint32_t*>(values);
      auto& at = *reinterpret_cast<uint128_t*>(
          place + join(SmemLayout{}, mine, SmemLayout{}(0, column)));
      if constexpr (kReads && Config::kColumnMajorC) {
        SM75_U16x8_LDSM_T::copy(at, pairs[0], pairs[1], pairs[2], pairs[3]);
      } else if constexpr (kReads) {
        SM75_U32x4_LDSM_N::copy(at, pairs[0], pairs[1], pairs[2], pairs[3]);
      }
      CUTE_UNROLL
      for (int i = 0; i < 8; ++i) values[i] = kReads ? epilogue(sums[i], values[i]) : epilogue(sums[i]);
      if constexpr (Config::kColumnMajorC) {
        SM90_U16x8_STSM_T::copy(pairs[0], pairs[1], pairs[2], pairs[3], at);
      } else {
        SM90_U32x4_STSM_N::copy(pairs[0], pairs[1], pairs[2], pairs[3], at);
      }
    } else {
      // Two neighbours along the unit-stride mode go together: two columns, or two rows side by side.
      using Held = Held<Config>;
      constexpr int kNext = Config::kColumnMajorC ? 2 : 1;  // from a value to its neighbour
      constexpr int kWidth = kNext == 1 || Held::kBelow == 1 ? 2 : 1;
      using Vector = cutlass::AlignedArray<ElementC, kWidth>;
      CUTE_UNROLL
      for (int i = 0; i < 8; ++i) {
        if (i / kNext % kWidth != 0) continue;
        int const step = SmemLayout{}(i / 2 % 2 * Held::kBelow, column + i / 4 * 8 + i % 2);
        auto& at = *reinterpret_cast<Vector*>(place + join(SmemLayout{}, mine, step));
        Vector vector;
        if constexpr (kReads) vector = at;
        CUTE_UNROLL
        for (int j = 0; j < kWidth; ++j) {
          Accumulator const sum = sums[i + j * kNext];
          vector[j] = kReads ? epilogue(sum, vector[j]) : epilogue(sum);
        }
        at = vector;
      }
    }
  }

  template <class Epilogue>
  CUTE_DEVICE void store(Sums const& sums, Tile const& tile, Output<Config> const& out,
                         Epilogue const& epilogue) {
    CUTE_UNROLL
    for (int part = 0; part < kParts; ++part) {
      ElementC* const place = smem + part % kStores * kSize;
      Accumulator const* const values = sums.of(part / kAcross) + part % kAcross * (kColumns / 2);
      if (epilogue.reads_c()) {
        Barrier::wait(came + part % kStores, parity);
        __syncwarp();  // the thread that fetched comes later
        if (part % kStores == kStores - 1) parity ^= 1;
        CUTE_UNROLL
        for (int step = 0; step < kColumns; step += 16) put<true>(place, step, values + step / 2, epilogue);
      } else {
        if (thread == 0) tma_store_wait<kStores - 1>();  // what was there before has been read
        group_sync(group);
        CUTE_UNROLL
        for (int step = 0; step < kColumns; step += 16) put<false>(place, step, values + step / 2, epilogue);
      }
      asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");  // TMA sees what was written
      group_sync(group);
      if (thread == 0) {
        boxes(tile, part, [&](ElementC* from, int along, int across) {
          SM90_TMA_STORE_3D::copy(map, from, along, across, tile.batch);
        });
        tma_store_arrive();
        if (part + kStores < kParts && epilogue.reads_c()) {
          tma_store_wait<0>();
          fetch(tile, part + kStores);
        }
      }
    }
  }
};

}  // namespace cute_gemm
