// wgmma on a stage: A and B from shared memory through descriptors, or A from registers.

#pragma once

#include <cute/arch/mma_sm90_desc.hpp>
#include <cute/arch/mma_sm90_gmma.hpp>
#include <cute/arch/util.hpp>
#include <cutlass/array.h>

#include "../common/epilogue.cuh"
#include "../tma/pipeline.cuh"

namespace cute_gemm {

// The shared memory descriptor of an operand (bMN,bK), and of its blocks. Offsets are in units of 16 bytes.
template <class Element, class SmemLayout, bool kMajorK>
struct GmmaOperand {
  enum : int {
    kUnit = 16 / sizeof(Element),
    kSpan = swizzle_span(SmemLayout{}),
    kLayoutType = kSpan == 8 * kUnit ? 1 : kSpan == 4 * kUnit ? 2 : 3,  // SM90::GMMA::LayoutType
    kStrideOffset = (kMajorK ? SmemLayout{}.layout_b()(8, 0) : SmemLayout{}.layout_b()(0, 8)) / kUnit,
    kLeadingOffset = kMajorK || int(size<0>(SmemLayout{})) == int(kSpan)
                         ? 1 : SmemLayout{}.layout_b()(int(kSpan), 0) / kUnit
  };

  CUTE_DEVICE static uint64_t descriptor(void const* smem) {
    GmmaDescriptor descriptor;
    descriptor.bitfield.start_address_ = cast_smem_ptr_to_uint(smem) >> 4;
    descriptor.bitfield.leading_byte_offset_ = kLeadingOffset;
    descriptor.bitfield.stride_byte_offset_ = kStrideOffset;
    descriptor.bitfield.layout_type_ = kLayoutType;
    return descriptor;
  }

  // The distance from the descriptor of a tile to that of the block at (row, column).
  CUTE_HOST_DEVICE static constexpr int offset(int row, int column) {
    return SmemLayout{}.layout_b()(row, column) / kUnit;
  }
};

// The (row, column) of a thread's accumulators in a block of 64 rows: value i of the thread is at
// (row(i), column(i)). A thread has two rows. For the instruction they are r and r + 8. With A from registers
// they are the rows that the thread loads of A: two adjacent ones, chosen so that the loads are free of bank
// conflicts.
template <class Config>
struct AccumulatorCoord {
  enum : int { kRowStep = Config::kRegisterA ? 1 : 8 };
  int first_row, first_column;

  CUTE_HOST_DEVICE constexpr explicit AccumulatorCoord(int thread) : first_row(0), first_column(thread % 4 * 2) {
    int const warp = thread / 32, quad = thread % 32 / 4;
    if constexpr (!Config::kRegisterA) {
      first_row = warp * 16 + quad;
    } else if constexpr (sizeof(typename Config::ElementA) == 1) {
      first_row = warp * 16 + quad * 2;
    } else {
      first_row = warp / 2 * 32 + quad % 2 * 16 + warp % 2 * 8 + quad / 2 * 2;
    }
  }

  CUTE_HOST_DEVICE constexpr int row(int i) const { return first_row + i / 2 % 2 * kRowStep; }
  CUTE_HOST_DEVICE constexpr int column(int i) const { return first_column + i / 4 * 8 + i % 2; }
};

// A's fragments in registers, for elements of sizes other than 2 bytes along M, which wgmma does not read from shared
// memory. For a block of 64 rows and 32 bytes of K a thread holds 4 bytes of its two rows at bytes 4 t and
// 16 + 4 t of K, t = thread % 4. `load` starts the loads of a k step; `pack` makes wgmma's registers from the loaded
// values, once all products but those of the last kInFlight steps are complete.
//
// For elements of 4 bytes, an element is a register, and a load has it for both rows. For 1 byte, a load has one column
// for both rows; `pack` transposes four columns by two rows. Threads with t >= 2 load adjacent columns in the opposite
// order, which avoids bank conflicts.
template <class Config, int Blocks>
struct RegisterA {
  using Element = typename Config::ElementA;
  using SmemLayout = typename Config::SmemLayoutA;
  enum : bool { kTransposed = sizeof(Element) == 1 };
  enum : int { kInFlight = kTransposed ? 1 : 2, kBuffers = kTransposed ? 2 : kInFlight + 2 };

  int offset;  // place of the thread's first element in a stage
  uint32_t selector, columns[Blocks][2][4], values[kBuffers][Blocks][4];

  CUTE_DEVICE RegisterA(int row, int thread)
      : offset(SmemLayout{}(row + AccumulatorCoord<Config>(thread).first_row,
                            kTransposed ? thread % 4 * 4 + thread / 2 % 2 : thread % 4)),
        selector(thread / 2 % 2 ? 0x1504 : 0x5140) {}

  CUTE_DEVICE void load(Element const* stage, int step) {
    CUTE_UNROLL
    for (int i = 0; i < (kTransposed ? 8 : 2) * Blocks; ++i) {
      if constexpr (kTransposed) {
        int const own = offset ^ SmemLayout{}(0, i % 4);
        int const at = own + SmemLayout{}(i / 8 * 64, step * 32 + i / 4 % 2 * 16);
        columns[i / 8][i / 4 % 2][i % 4] = *reinterpret_cast<uint16_t const*>(stage + at);
      } else {
        int const own = offset ^ SmemLayout{}(0, i % 2 * 4), at = own + SmemLayout{}(i / 2 * 64, step * 8);
        auto const pair = *reinterpret_cast<cutlass::AlignedArray<uint32_t, 2> const*>(stage + at);
        CUTE_UNROLL
        for (int row = 0; row < 2; ++row) values[step % kBuffers][i / 2][i % 2 * 2 + row] = pair[row];
      }
    }
  }

  CUTE_DEVICE void pack(int step) {
    CUTE_UNROLL
    for (int i = 0; i < (kTransposed ? 4 * Blocks : 0); ++i) {
      uint32_t const* const four = columns[i / 4][i / 2 % 2];
      uint32_t const low = __byte_perm(four[0], four[1], selector);
      uint32_t const high = __byte_perm(four[2], four[3], selector);
      uint32_t& value = values[step % kBuffers][i / 4][i % 4];
      value = __byte_perm(low, high, i % 2 ? 0x7632 : 0x5410);
      warpgroup_fence_operand(value);
    }
  }

  CUTE_DEVICE uint32_t const* fragment(int step, int block) const { return values[step % kBuffers][block]; }
};

// A warp group's accumulators: kBlocks blocks of (64,kColumns) of the CTA tile. The groups divide the tile along
// M or, with `kGroupsAlongN`, along N; with `kPingPong` each group computes whole tiles. If the epilogue takes
// pairs of columns, the first half of the columns are the first ones of pairs, and the second half the second ones;
// both make one column of C.
template <class Config>
struct Accumulators {
  using Mma = typename Config::Mma;
  using ElementA = typename Config::ElementA;
  using A = GmmaOperand<ElementA, typename Config::SmemLayoutA, Config::kMajorKA>;
  using B = GmmaOperand<typename Config::ElementB, typename Config::SmemLayoutB, Config::kMajorKB>;
  using Accumulator = typename Config::Accumulator;
  enum : int {
    kGroupsM = Config::kGroupsAlongN || Config::kPingPong ? 1 : Config::kConsumers,
    kBlocks = size<0>(typename Config::CtaTiler{}) / (64 * kGroupsM),
    kColumns = size<1>(typename Config::CtaTiler{}) / (Config::kGroupsAlongN ? Config::kConsumers : 1),
    kValues = kColumns / 2,  // per thread and block
    kPerResult = int(Config::Epilogue::kPairs) == kPairsNone ? 1 : 2,  // columns per column of C
    kResults = kValues / kPerResult,                                   // results per thread and block
    kMmaK = 32 / sizeof(ElementA),
    kSteps = size<2>(typename Config::CtaTiler{}) / kMmaK
  };

  static_assert(kPerResult == 1 || !(Config::kGroupsAlongN || Config::kSwapAB));

  using FragmentA = RegisterA<Config, kBlocks>;

  static_assert(kValues == extent<typename Mma::CRegisters>::value);

  typename Mma::CRegisters values[kBlocks];  // (kBlocks,kValues)

  // The accumulators of a block in their own type: wgmma's registers are unsigned for integers.
  CUTE_DEVICE Accumulator const* block(int m) const {
    return reinterpret_cast<Accumulator const*>(values[m]);
  }

  // The epilogue's argument for result i of a block.
  CUTE_DEVICE static decltype(auto) sum(Accumulator const* block, int i) {
    if constexpr (kPerResult == 1) {
      return (block[i]);
    } else {
      return Config::Epilogue::Sum::of(block[i], block[i + kResults]);
    }
  }

  // The first row and column of a group's part of the tile.
  CUTE_HOST_DEVICE static constexpr int row(int group) { return kGroupsM > 1 ? group * 64 * kBlocks : 0; }
  CUTE_HOST_DEVICE static constexpr int column(int group) { return Config::kGroupsAlongN ? group * kColumns : 0; }

  CUTE_DEVICE static void fence(typename Mma::CRegisters& block) {
    CUTE_UNROLL
    for (int i = 0; i < kValues; ++i) warpgroup_fence_operand(block[i]);
  }
  CUTE_DEVICE void fence() {
    CUTE_UNROLL
    for (int m = 0; m < kBlocks; ++m) fence(values[m]);
  }
  CUTE_DEVICE void clear() {
    CUTE_UNROLL
    for (int m = 0; m < kBlocks; ++m) {
      CUTE_UNROLL
      for (int i = 0; i < kValues; ++i) values[m][i] = 0;
    }
  }

  // The descriptor of a k step of B, from that of its k tile.
  CUTE_DEVICE static uint64_t step_b(uint64_t b, int step) { return b + B::offset(0, kMmaK * step); }

  // Starts the products of a k tile from the descriptors of A and B, of `Count` blocks from block m on; `first`
  // overwrites their accumulators.
  template <int Count>
  CUTE_DEVICE static void multiply(typename Mma::CRegisters* blocks, int m, uint64_t a, uint64_t b, bool first) {
    warpgroup_arrive();
    CUTE_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      uint64_t const desc_b = step_b(b, step);
      auto const scale = first && step == 0 ? SM90::GMMA::ScaleOut::Zero : SM90::GMMA::ScaleOut::One;
      CUTE_UNROLL
      for (int i = 0; i < Count; ++i) {
        uint64_t const desc_a = a + A::offset(64 * (m + i), kMmaK * step);
        detail::explode(Mma::fma, &desc_a, int_sequence<0>{}, &desc_b, int_sequence<0>{}, blocks[i],
                        make_int_sequence<kValues>{}, &scale, int_sequence<0>{});
      }
    }
    warpgroup_commit_batch();
  }
  CUTE_DEVICE void multiply(uint64_t a, uint64_t b, bool first) { multiply<kBlocks>(values, 0, a, b, first); }

  // Starts the products of one k step with A from registers, and the loads of the next step from `next_a`, if there
  // is one. All products but those of the last kInFlight steps are complete afterwards.
  CUTE_DEVICE void multiply(int step, FragmentA& a, ElementA const* next_a, uint64_t b, bool first, bool more = true) {
    warpgroup_wait<FragmentA::kInFlight>();
    a.pack(step);
    if (more) a.load(next_a, (step + 1) % kSteps);
    warpgroup_arrive();
    uint64_t const desc_b = step_b(b, step);
    auto const scale = first ? SM90::GMMA::ScaleOut::Zero : SM90::GMMA::ScaleOut::One;
    CUTE_UNROLL
    for (int m = 0; m < kBlocks; ++m) {
      uint32_t const* const fragment = a.fragment(step, m);
      detail::explode(Mma::fma, fragment, int_sequence<0, 1, 2, 3>{}, &desc_b, int_sequence<0>{}, values[m],
                      make_int_sequence<kValues>{}, &scale, int_sequence<0>{});
    }
    warpgroup_commit_batch();
  }
};

}  // namespace cute_gemm
