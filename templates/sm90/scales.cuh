// Block scales: those of a k tile are loaded into its stage, by TMA if those of rows are adjacent, else by a warp in
// addition to the producer's. Each thread that multiplies reads those of its accumulators from there.

#pragma once

#include "../tma/tile_scheduler.cuh"
#include "mma.cuh"

namespace cute_gemm {

// Scales of A or of B: a tensor (MN / Rows, K / 128, L), where Rows is 1 or 128, and L the batch or the groups; rows
// of all groups have a stride of 0 in it.
struct BlockScales {
  float const* data;
  int64_t stride_mn, stride_k, stride_l;
  TmaDescriptor const* map;
};

// The number of scales per stage, of A and then of B. In a Config, kScaleRowsA and kScaleRowsB are the rows that share
// a scale in memory: 1, 128, or 0 without scales. In a stage kStep rows share one, which never lie in two blocks of
// 128: a tile's rows begin at a multiple of 64, and a group's columns at a multiple of their number. Scales are kApart
// words apart: otherwise ptxas would merge loads, differently for each tile. 5 words have no bank conflicts.
template <class Config>
struct ScalePlaces {
  enum : int {
    kRowsA = Config::kScaleRowsA, kRowsB = Config::kScaleRowsB,
    kBM = size<0>(typename Config::CtaTiler{}), kBN = size<1>(typename Config::CtaTiler{}),
    kColumns = Accumulators<Config>::kColumns,
    kStepA = kRowsA == 128 ? 64 : 1,
    kStepB = kRowsB != 128 ? 1 : (kColumns & -kColumns) < 128 ? kColumns & -kColumns : 128,
    kA = kRowsA > 0 ? kBM / kStepA : 0, kB = kRowsB > 0 ? kBN / kStepB : 0,
    kApartA = kRowsA == 128 ? 5 : 1, kApartB = kRowsB == 128 ? 5 : 1,
    kFirstB = ceil_div(kA * kApartA, 32) * 32, kCount = kFirstB + ceil_div(kB * kApartB, 32) * 32
  };
  // Scales that TMA loads, and scales that the warp copies.
  enum : int {
    kBoxA = Config::kTmaScalesA ? int(kA) : 0, kBoxB = Config::kTmaScalesB ? int(kB) : 0,
    kCopiedA = kA - kBoxA, kCopiedB = kB - kBoxB
  };
};

// The scales of a stage.
template <class Config, bool = (ScalePlaces<Config>::kCount > 0)>
struct StageScales : NoStageData {};
template <class Config>
struct StageScales<Config, true> {
  using Places = ScalePlaces<Config>;
  enum : int {
    kBytes = (Places::kBoxA + Places::kBoxB) * sizeof(float),
    kCopiers = cute::min(cute::max(int(Places::kCopiedA), int(Places::kCopiedB)), 32)
  };

  alignas(128) float values[Places::kCount];
};

// Loads the scales of a k tile's rows of A, or of B, by TMA: `Count`, none with 0.
template <int Count>
CUTE_DEVICE void load_scales(BlockScales const& scales, uint64_t* full, float* to, int row, int k, int batch) {
  if constexpr (Count > 0) {
    BoxCoord{row, k / 128, scales.stride_l == 0 ? 0 : batch}.copy<SM90_TMA_LOAD>(
        scales.map, full, uint64_t(TMA::CacheHintSm90::EVICT_NORMAL), to);
  }
}

// The scales of a tile of A or of B that a warp copies to stages by cp.async: `Count`, every 32nd per lane.
template <int Rows, int Step, int Apart, int Count>
struct CopyScales {
  BlockScales scales;
  int lane, left;      // rows of C, or of its group, from the lane's first one on
  float const* first;  // the lane's first scale in the next k tile

  CUTE_DEVICE explicit CopyScales(BlockScales const& scales) : scales(scales), lane(threadIdx.x % 32) {}

  CUTE_DEVICE void start(int row, int end, int batch, int first_k) {
    if constexpr (Count > 0) {
      left = end - row - lane * Step;
      first = scales.data + (row + lane * Step) / Rows * scales.stride_mn + first_k / 128 * scales.stride_k +
              batch * scales.stride_l;
    }
  }

  // Starts the copies of a k tile. Elements outside are 0.
  CUTE_DEVICE void operator()(float* to) {
    if constexpr (Count > 0) {
      uint32_t const own = cast_smem_ptr_to_uint(to + lane * Apart);
      float const* from = first;
      CUTE_UNROLL
      for (int i = 0; i < ceil_div(Count, 32); ++i) {
        if (Count % 32 == 0 || i * 32 + lane < Count) {
          copy_async_cut<1>(own + i * 32 * Apart * sizeof(float), from, i * 32 * Step < left);
        }
        from += 32 * Step / Rows * scales.stride_mn;
      }
      first += scales.stride_k;
    }
  }
};

// The warp that copies scales of A and of B: those of a k tile once its stage is empty, so that as many are in flight
// as there are stages.
template <class Config>
struct ScaleLoader {
  using Places = ScalePlaces<Config>;

  CopyScales<Places::kRowsA, Places::kStepA, Places::kApartA, Places::kCopiedA> a;
  CopyScales<Places::kRowsB, Places::kStepB, Places::kApartB, Places::kCopiedB> b;

  CUTE_DEVICE ScaleLoader(BlockScales const& scale_a, BlockScales const& scale_b) : a(scale_a), b(scale_b) {}

  // The scales of `k_tiles` of a tile of C with rows up to m and columns up to n.
  template <class Memory, class State>
  CUTE_DEVICE void operator()(Memory& memory, State& state, int k_tiles, WorkTile const& tile, int m, int n,
                              int batch, int first_k) {
    a.start(tile.row, m, batch, first_k);
    b.start(tile.column, n, batch, first_k);
    CUTE_NO_UNROLL
    for (int k_tile = 0; k_tile < k_tiles; ++k_tile, ++state) {
      memory.wait_empty(state);
      float* const values = memory.stage_data[state.stage].values;
      a(values);
      b(values + Places::kFirstB);
      cutlass::arch::cpasync_barrier_arrive_noinc(&memory.full[state.stage]);
    }
  }
};

// The scales of a thread's accumulators for one k tile, of its rows and of its columns.
template <class Config>
struct ScaleFactors {
  using Accumulators = Accumulators<Config>;
  using Places = ScalePlaces<Config>;
  enum : int {
    kRowsA = Config::kScaleRowsA, kRowsB = Config::kScaleRowsB,
    kBlocks = Accumulators::kBlocks, kValues = Accumulators::kValues,
    kA = kRowsA == 1 ? 2 * kBlocks : kRowsA == 0 ? 0 : int(kBlocks),
    kB = kRowsB == 1 ? kValues / 2 : kRowsB == 0 ? 0 : Accumulators::kColumns / Places::kStepB
  };

  int row, column;  // places of the first scales in a stage
  float a[kA + 1], b[kB + 1];

  CUTE_DEVICE ScaleFactors(int group, int thread)
      : row(Accumulators::row(group) / Places::kStepA * Places::kApartA),
        column(Accumulators::column(group) / Places::kStepB * Places::kApartB) {
    AccumulatorCoord<Config> const own(thread);
    if constexpr (kRowsA == 1) row += own.first_row;
    if constexpr (kRowsB == 1) column += own.first_column;
    if constexpr (kRowsA > 0) asm("" : "+r"(row));
    if constexpr (kRowsB > 0) asm("" : "+r"(column));
  }

  CUTE_DEVICE void read(StageScales<Config> const& stage) {
    if constexpr (kRowsA > 0) {
      float const* const from = stage.values + row;
      CUTE_UNROLL
      for (int m = 0; m < kBlocks; ++m) {
        if constexpr (kRowsA == 128) {
          a[m] = from[m * Places::kApartA];
        } else if constexpr (int(AccumulatorCoord<Config>::kRowStep) == 1) {
          read_pair(a + 2 * m, from + m * 64);
        } else {
          a[2 * m] = from[m * 64], a[2 * m + 1] = from[m * 64 + AccumulatorCoord<Config>::kRowStep];
        }
      }
    }
    if constexpr (kRowsB > 0) {
      float const* const from = stage.values + Places::kFirstB + column;
      if constexpr (kRowsB == 128) {
        CUTE_UNROLL
        for (int i = 0; i < kB; ++i) b[i] = from[i * Places::kApartB];
      } else {
        CUTE_UNROLL
        for (int i = 0; i < kB; i += 2) read_pair(b + i, from + i * 4);
      }
    }
  }

  CUTE_DEVICE static void read_pair(float* to, float const* from) {
    float2 const pair = *reinterpret_cast<float2 const*>(from);
    to[0] = pair.x, to[1] = pair.y;
  }

  // The scale of value i of block m.
  CUTE_DEVICE float factor(int m, int i) const {
    int const of_row = kRowsA == 1 ? 2 * m + i / 2 % 2 : m;
    int const of_column = kRowsB == 1 ? i / 4 * 2 + i % 2 : i / 4 * 8 / Places::kStepB;
    if constexpr (kRowsA == 0) return b[of_column];
    if constexpr (kRowsB == 0) return a[of_row];
    return a[of_row] * b[of_column];
  }

  // Adds the products of a block, multiplied by their scales.
  template <class Accumulators, class Products>
  CUTE_DEVICE void add(int m, Accumulators& accumulators, Products const& products) const {
    CUTE_UNROLL
    for (int i = 0; i < kValues; ++i) {
      if constexpr (kRowsA == 0 && kRowsB == 0) {
        accumulators[i] += products[i];
      } else {
        accumulators[i] += products[i] * factor(m, i);
      }
    }
  }
};

}  // namespace cute_gemm
