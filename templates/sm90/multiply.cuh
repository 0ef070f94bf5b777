// Products of a stage by wgmma, which reads both operands from shared memory through descriptors.

#pragma once

#define CUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED  // every multiple of 8 columns

#include <cute/arch/mma_sm90_desc.hpp>
#include <cute/arch/mma_sm90_gmma.hpp>
#include <cute/arch/util.hpp>

#include "pipeline.cuh"

namespace cute_gemm {

// How wgmma finds blocks of an operand (bMN,bK): the address of a block's first element, and the steps
// between the atoms of the layout, 8 rows of a swizzle's span; in units of 16 bytes.
template <class Element, class SmemLayout, bool kMajorK>
struct Operand {
  enum : int {
    kUnit = 16 / sizeof(Element),
    kSpan = span(SmemLayout{}),
    kType = kSpan == 8 * kUnit ? 1 : kSpan == 4 * kUnit ? 2 : 3,  // SM90::GMMA::LayoutType
    kAcross = (kMajorK ? SmemLayout{}.layout_b()(8, 0) : SmemLayout{}.layout_b()(0, 8)) / kUnit,
    kAlong = kMajorK || int(size<0>(SmemLayout{})) == int(kSpan)
                 ? 1 : SmemLayout{}.layout_b()(int(kSpan), 0) / kUnit
  };

  CUTE_DEVICE static uint64_t descriptor(void const* smem) {
    GmmaDescriptor found;
    found.bitfield.start_address_ = cast_smem_ptr_to_uint(smem) >> 4;
    found.bitfield.leading_byte_offset_ = kAlong;
    found.bitfield.stride_byte_offset_ = kAcross;
    found.bitfield.layout_type_ = kType;
    return found;
  }

  // From the descriptor of a tile to that of a block of it.
  CUTE_HOST_DEVICE static constexpr int step(int row, int column) {
    return SmemLayout{}.layout_b()(row, column) / kUnit;
  }
};

// A warp group's part of the tile, kMmas blocks of 64 rows and kColumns: its sums, in the registers of wgmma.
// The groups' parts lie below each other or, with `kSideBySide`, beside each other; with `kPingPong` each has
// tiles of its own.
template <class Config>
struct Sums {
  using Mma = typename Config::Mma;
  using Element = typename Config::Element;
  using A = Operand<Element, typename Config::SmemLayoutA, Config::kMajorKA>;
  using B = Operand<Element, typename Config::SmemLayoutB, Config::kMajorKB>;
  using Accumulator = typename Config::Accumulator;
  enum : int {
    kBelow = Config::kSideBySide || Config::kPingPong ? 1 : Config::kConsumers,
    kMmas = size<0>(typename Config::CtaTiler{}) / (64 * kBelow),
    kColumns = size<1>(typename Config::CtaTiler{}) / (Config::kSideBySide ? Config::kConsumers : 1),
    kValues = kColumns / 2,  // of a thread and block
    kDeep = 32 / sizeof(Element),  // k of an instruction
    kSteps = size<2>(typename Config::CtaTiler{}) / kDeep
  };

  static_assert(kValues == extent<typename Mma::CRegisters>::value);

  typename Mma::CRegisters values[kMmas];

  // Those of a block, as what they are: wgmma has integers without a sign.
  CUTE_DEVICE Accumulator const* of(int m) const { return reinterpret_cast<Accumulator const*>(values[m]); }

  // Where a group's part begins in the tile.
  CUTE_HOST_DEVICE static constexpr int row(int group) {
    return kBelow > 1 ? group * 64 * kMmas : 0;
  }
  CUTE_HOST_DEVICE static constexpr int column(int group) {
    return Config::kSideBySide ? group * kColumns : 0;
  }

  CUTE_DEVICE void fence() {
    CUTE_UNROLL
    for (int m = 0; m < kMmas; ++m) {
      CUTE_UNROLL
      for (int i = 0; i < kValues; ++i) warpgroup_fence_operand(values[m][i]);
    }
  }

  // Starts the products of a k tile; `a` and `b` describe the group's rows of it. What was in the sums
  // before does not count for the first of a tile.
  CUTE_DEVICE void multiply(uint64_t a, uint64_t b, bool first) {
    warpgroup_arrive();
    CUTE_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      uint64_t const column = b + B::step(0, kDeep * step);
      auto const scale = first && step == 0 ? SM90::GMMA::ScaleOut::Zero : SM90::GMMA::ScaleOut::One;
      CUTE_UNROLL
      for (int m = 0; m < kMmas; ++m) {
        uint64_t const row = a + A::step(64 * m, kDeep * step);
        detail::explode(Mma::fma, &row, int_sequence<0>{}, &column, int_sequence<0>{}, values[m],
                        make_int_sequence<kValues>{}, &scale, int_sequence<0>{});
      }
    }
    warpgroup_commit_batch();
  }
};

}  // namespace cute_gemm
