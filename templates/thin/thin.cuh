// thin: a matrix of up to 32 rows or columns times a large one, which is read once at memory speed.
//
// The idea: the cost of a thin product is to read the large operand, so nothing delays these reads. They
// are the widest vectors along the contiguous mode, and each lane multiplies what it copied itself:
// shared memory is only a queue for a lane's vectors, many blocks ahead. A CTA has a few rows and its
// warps divide k, which fills the GPU even with few rows. The order of summation is free, so each lane
// takes the k of its vectors, and the thin operand is read to match.
//
// A Config has, in addition to those of simt/gemm.cuh:
//
//
//   kThinM               whether A is the thin operand (m up to 32), or B (n up to 32)
//   Large, Thin          Part of a lane of each; both distribute k in the same way
//   Mma                  CuTe's instruction, or void: FMA
//   kColumns             columns of a CTA's tile
//   kSkewed              whether CTAs begin at different k
//   kWarps               warps that divide k
//   kStages              blocks of a warp in shared memory; 1: in registers, if a vector is too
//                        narrow for cp.async
//   kThinQueued          whether the thin operand is queued too; else it is read a block ahead
//   kPitch               accumulators from one column to the next in shared memory

#pragma once

#include <cute/arch/mma.hpp>

#include "../simt/gemm.cuh"
#include "part.cuh"

namespace cute_gemm {

// ---- products -----------------------------------------------------------------------------------

// Lanes are distributed as in a fragment of an MMA: 8 along the rows, and 4 along k, which are adjacent.
CUTE_DEVICE int row_lane(int lane) { return lane / 4; }
CUTE_DEVICE int depth_lane(int lane) { return lane % 4; }

// By FMA: each lane has all columns of the tile, and the accumulators of the lanes along k are added at the end. The
// thin operand comes from L1 when it is needed, a few columns at a time.
template <class Config>
struct FmaAccumulators {
  using Accumulator = typename Config::Accumulator;
  using Large = typename Config::Large;
  using Thin = typename Config::Thin;
  enum : int { kRows = Large::kRows, kColumns = Config::kColumns, kAccumulators = kRows * kColumns };
  static_assert(kAccumulators % 4 == 0);

  Accumulator accumulators[kAccumulators];  // column by column

  static CUTE_DEVICE int column_lane(int) { return 0; }

  template <bool kCut, class Element>
  CUTE_DEVICE void fetch(Element const*, int64_t, int, int) {}

  template <bool kCut, class Element>
  CUTE_DEVICE void multiply(Large const& large, Element const* thin, int64_t ld, int columns, int depth) {
    constexpr bool kMajorK = Config::kThinM ? Config::kMajorKA : Config::kMajorKB;
    CUTE_UNROLL
    for (int first = 0; first < kColumns; first += Thin::kRows) {
      Thin part;
      part.template load<kCut>(thin + first * (kMajorK ? ld : 1), ld, columns - first, depth);
      CUTE_UNROLL
      for (int e = 0; e < Large::kDepth; ++e) {
        CUTE_UNROLL
        for (int j = 0; j < Thin::kRows; ++j) {
          auto const y = part.element(j, e);
          CUTE_UNROLL
          for (int i = 0; i < kRows; ++i) {
            Accumulator& sum = accumulators[(first + j) * kRows + i];
            if constexpr (Config::kThinM) {
              multiply_add<Config>(sum, y, large.element(i, e));
            } else {
              multiply_add<Config>(sum, large.element(i, e), y);
            }
          }
        }
      }
    }
  }

  // The lanes along k add their accumulators, after which each has a quarter of them.
  template <int kLeft>
  CUTE_DEVICE void halve(int lane, int bit) {
    CUTE_UNROLL
    for (int n = 0; n < kLeft / 2; ++n) {
      Accumulator const low = accumulators[n], high = accumulators[n + kLeft / 2];
      Accumulator const keep = lane & bit ? high : low, give = lane & bit ? low : high;
      accumulators[n] = keep + shuffled(give, [&](uint32_t word) { return __shfl_xor_sync(~0u, word, bit); });
    }
  }

  CUTE_DEVICE void store(Accumulator* shared, int lane) {
    halve<kAccumulators>(lane, 2);
    halve<kAccumulators / 2>(lane, 1);
    CUTE_UNROLL
    for (int n = 0; n < kAccumulators / 4; ++n) {
      int const sum = depth_lane(lane) * (kAccumulators / 4) + n;
      int const row = Large::row(row_lane(lane), sum % kRows);
      shared[sum / kRows * Config::kPitch + row] = accumulators[n];
    }
  }
};

// On tensor cores: a register of a fragment is a word of adjacent k of one row. Rows and columns of the fragment
// are those of the lanes, 8 at a time; the kernel may assign rows, columns and k of the matrix to them in any
// order.
template <class Config>
struct TensorAccumulators {
  using Accumulator = typename Config::Accumulator;
  using Large = typename Config::Large;
  using Thin = typename Config::Thin;
  using Mma = typename Config::Mma;
  using A = typename Mma::ARegisters;
  using B = typename Mma::BRegisters;
  using C = typename Mma::CRegisters;
  using Word = typename remove_extent<A>::type;
  enum : int {
    kWords = extent<B>::value,              // words of a row in an instruction
    kEights = extent<A>::value / kWords,    // eights of rows
    // k per word: 8-bit floats are multiplied as halves.
    kStep = sizeof(Word) / (kFloat8<typename Large::Type> ? 2 : int(Large::kSize)),
    kDepth = kStep * kWords,
    kRows = Large::kRows, kColumns = Thin::kRows  // in eighths
  };
  static_assert(kRows % kEights == 0 && Large::kDepth % kDepth == 0 && extent<C>::value == 2 * kEights);

  Thin held;  // the next block
  Accumulator accumulators[kRows / kEights][kColumns][2 * kEights];

  static CUTE_DEVICE int column_lane(int lane) { return row_lane(lane); }

  template <bool kCut, class Element>
  CUTE_DEVICE void fetch(Element const* thin, int64_t ld, int columns, int depth) {
    held.template load<kCut>(thin, ld, columns, depth);
  }

  // Adjacent k of the i-th row, from the e-th on; float32 as tf32, rounded to nearest.
  template <class Part>
  static CUTE_DEVICE Word word(Part const& part, int i, int e) {
    if constexpr (sizeof(Word) == 8) {
      return part.element(i, e);
    } else if constexpr (kFloat8<typename Part::Type>) {
      return part.half_word(i, e);
    } else {
      Word const word = part.word(i, e);
      return Part::kSize == 4 ? nearest_tf32(word) : word;
    }
  }

  template <bool kCut, class Element>
  CUTE_DEVICE void multiply(Large const& large, Element const*, int64_t, int, int) {
    CUTE_UNROLL
    for (int e = 0; e < Large::kDepth; e += kDepth) {
      Word b[kColumns][kWords];
      CUTE_UNROLL
      for (int j = 0; j < kColumns; ++j) {
        CUTE_UNROLL
        for (int w = 0; w < kWords; ++w) b[j][w] = word(held, j, e + w * kStep);
      }
      CUTE_UNROLL
      for (int i = 0; i < kRows / kEights; ++i) {
        Word a[kEights * kWords];
        CUTE_UNROLL
        for (int r = 0; r < kEights * kWords; ++r) {
          a[r] = word(large, i * kEights + r % kEights, e + r / kEights * kStep);
        }
        CUTE_UNROLL
        for (int j = 0; j < kColumns; ++j) {
          auto* const c = reinterpret_cast<typename remove_extent<C>::type*>(accumulators[i][j]);
          make_int_sequence<2 * kEights> const registers;
          detail::explode(Mma::fma, c, registers, a, make_int_sequence<kEights * kWords>{}, b[j],
                          make_int_sequence<kWords>{}, c, registers);
        }
      }
    }
  }

  CUTE_DEVICE void store(Accumulator* shared, int lane) const {
    CUTE_UNROLL
    for (int i = 0; i < kRows; ++i) {
      CUTE_UNROLL
      for (int j = 0; j < kColumns; ++j) {
        CUTE_UNROLL
        for (int c = 0; c < 2; ++c) {
          int const row = Large::row(row_lane(lane), i);
          int const column = Thin::row(2 * depth_lane(lane) + c, j);
          shared[column * Config::kPitch + row] = accumulators[i / kEights][j][i % kEights * 2 + c];
        }
      }
    }
  }
};

template <class Config>
using AccumulatorsOf =
    conditional_t<is_same_v<typename Config::Mma, void>, FmaAccumulators<Config>, TensorAccumulators<Config>>;

// ---- the kernel ---------------------------------------------------------------------------------

template <class Config>
CUTE_DEVICE void thin(Gemm<Config> const& gemm) {
  using Accumulator = typename Config::Accumulator;
  using Accumulators = AccumulatorsOf<Config>;
  using Large = typename Config::Large;
  using Thin = typename Config::Thin;
  constexpr bool kThinM = Config::kThinM, kQueued = Config::kStages > 1;
  constexpr int kRows = 8 * Large::kRows, kColumns = Config::kColumns;
  constexpr int kBlock = 4 * Large::kDepth, kTile = Config::kWarps * kBlock;
  int const warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  extern __shared__ __align__(128) char shared[];

  // The rest of each operand from the lane's first element of the first tile on.
  int const across = ceil_div(kThinM ? gemm.m : gemm.n, kColumns);
  int const first_row = blockIdx.x / across * kRows, first_column = blockIdx.x % across * kColumns;
  int const rows = (kThinM ? gemm.n : gemm.m) - first_row;
  int const columns = (kThinM ? gemm.m : gemm.n) - first_column;
  int const row = Large::row(row_lane(lane), 0), column = Thin::row(Accumulators::column_lane(lane), 0);
  int const depth = warp * kBlock + Large::column(depth_lane(lane), 0);
  auto const first = [&](auto of_a, int i) {
    if constexpr (decltype(of_a)::value) {
      return gemm.a(i, depth);
    } else {
      return gemm.b(i, depth);
    }
  };
  auto const* large = first(bool_constant<!kThinM>{}, first_row + row);
  auto const* thin = first(bool_constant<kThinM>{}, first_column + column);
  int64_t const ld_large = kThinM ? gemm.ldb : gemm.lda, ld_thin = kThinM ? gemm.lda : gemm.ldb;
  int64_t const large_step = kTile * (kThinM ? gemm.b_step() : gemm.a_step());
  int64_t const thin_step = kTile * (kThinM ? gemm.a_step() : gemm.b_step());

  // A lane's places in the warp's queue: for the large operand and, after them, for the thin one.
  constexpr bool kThinQueued = Config::kThinQueued;
  constexpr int kLargePlaces = Large::kVectors * Large::kPlaces;
  constexpr int kPlaces = kLargePlaces + (kThinQueued ? Thin::kVectors * Thin::kPlaces : 0);
  uint32_t const queue = cast_smem_ptr_to_uint(shared) + warp * Config::kStages * kPlaces;
  uint32_t const large_queue = queue + Large::place_of(lane);
  uint32_t const thin_queue = queue + kLargePlaces + Thin::place_of(lane);

  Accumulators accumulators = {};
  Large block;
  int const tiles = ceil_div(gemm.k, kTile);
  // The last tile, which alone may be cut, comes first: its latency is hidden like that of the others. If
  // rows lie along k, CTAs process the other tiles from different places on, so that they do not use
  // the same memory channels at a time; columns are best read by all CTAs together.
  int const skew = Config::kSkewed && tiles > 1 ? blockIdx.x / across % (tiles - 1) : 0;
  auto const tile_of = [&](int turn) {
    int const tile = turn - 1 + skew;
    return tile < tiles - 1 ? tile : tile - (tiles - 1);
  };
  auto const begin = [&](auto cut, int turn) {
    constexpr bool kCut = decltype(cut)::value;
    int const tile = kCut ? tiles - 1 : tile_of(turn);
    auto const* const from = large + tile * large_step;
    int const left = gemm.k - depth - tile * kTile;
    if constexpr (kQueued) {
      if (turn < tiles) {
        int const stage = turn % Config::kStages * kPlaces;
        Large::template copy<kCut>(large_queue + stage, from, ld_large, rows - row, left);
        if constexpr (kThinQueued) {
          Thin::template copy<kCut>(thin_queue + stage, thin + tile * thin_step, ld_thin, columns - column, left);
        }
      }
      asm volatile("cp.async.commit_group;\n" ::);
    } else if (turn < tiles) {
      block.template load<kCut>(from, ld_large, rows - row, left);
    }
  };
  auto const fetch = [&](auto cut, int tile) {
    accumulators.template fetch<decltype(cut)::value>(thin + tile * thin_step, ld_thin, columns - column,
                                              gemm.k - depth - tile * kTile);
  };
  auto const multiply = [&](auto cut, int turn, int tile) {
    if constexpr (kQueued) {
      asm volatile("cp.async.wait_group %0;\n" ::"n"(Config::kStages - 2) : "memory");
      int const stage = turn % Config::kStages * kPlaces;
      block.take(large_queue + stage);
      if constexpr (kThinQueued) accumulators.held.take(thin_queue + stage);
      begin(false_type{}, turn + Config::kStages - 1);
    }
    accumulators.template multiply<decltype(cut)::value>(block, thin + tile * thin_step, ld_thin,
                                                 columns - column, gemm.k - depth - tile * kTile);
    if constexpr (!kQueued) begin(false_type{}, turn + 1);
    if (!kThinQueued && turn + 1 < tiles) fetch(false_type{}, tile_of(turn + 1));
  };
  if (tiles > 0) {
    begin(true_type{}, 0);
    CUTE_UNROLL
    for (int turn = 1; turn < Config::kStages - 1; ++turn) begin(false_type{}, turn);
    if (!kThinQueued) fetch(true_type{}, tiles - 1);
    multiply(true_type{}, 0, tiles - 1);
    CUTE_NO_UNROLL
    for (int turn = 1; turn < tiles; ++turn) multiply(false_type{}, turn, tile_of(turn));
  }

  // The accumulators of all warps replace the queues, column by column; then they go to C along its unit stride.
  auto* const partial = reinterpret_cast<Accumulator*>(shared);
  constexpr int kPartial = kColumns * Config::kPitch;
  if (kQueued) {
    asm volatile("cp.async.wait_all;\n" ::: "memory");
    __syncthreads();
  }
  accumulators.store(partial + warp * kPartial, lane);
  __syncthreads();
  constexpr bool kAlongRows = kThinM == bool(Config::kMajorNC);
  CUTE_NO_UNROLL
  for (int at = threadIdx.x; at < kRows * kColumns; at += 32 * Config::kWarps) {
    int const r = kAlongRows ? at % kRows : at / kColumns, c = kAlongRows ? at / kRows : at % kColumns;
    if (r >= rows || c >= columns) continue;
    Accumulator const* const from = partial + c * Config::kPitch + r;
    Accumulator sum[1] = {from[0]};
    CUTE_UNROLL
    for (int w = 1; w < Config::kWarps; ++w) sum[0] += from[w * kPartial];
    int const row = first_row + r, column = first_column + c;
    Coord const own = coord<kThinM>(row, column, gemm.batch);
    update<1>(gemm.epilogue, gemm.c(own.m, own.n), sum, own);
  }
}

}  // namespace cute_gemm
