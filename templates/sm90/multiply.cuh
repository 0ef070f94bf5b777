// Products of a stage by wgmma, which reads operands from shared memory through descriptors, or A from
// registers.

#pragma once

#define CUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED  // every multiple of 8 columns

#include <cute/arch/mma_sm90_desc.hpp>
#include <cute/arch/mma_sm90_gmma.hpp>
#include <cute/arch/util.hpp>
#include <cutlass/array.h>

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

// Of a block of 64 rows a thread of wgmma has two, and of each 8 columns two. They are rows r and r + 8 of the
// instruction; where A goes through registers these are whichever the threads bring: two side by side, so
// chosen that the threads read all banks, of columns of A whose swizzle differs.
template <class Config>
struct Held {
  enum : int { kBelow = Config::kRegisterA ? 1 : 8 };  // from the first row to the second
  int row, column;

  CUTE_DEVICE explicit Held(int thread) : column(thread % 4 * 2) {
    int const warp = thread / 32, eighth = thread % 32 / 4;
    if constexpr (!Config::kRegisterA) {
      row = warp * 16 + eighth;
    } else if constexpr (sizeof(typename Config::Element) == 1) {
      row = warp * 16 + eighth * 2;
    } else {
      row = warp / 2 * 32 + eighth % 2 * 16 + warp % 2 * 8 + eighth / 2 * 2;
    }
  }
};

// A's rows along M of elements of other than 2 bytes, which wgmma takes from registers alone: of a block of 64
// rows and 32 bytes of k a thread's two rows (Held) of 4 bytes t and t + 4 of k, t = thread % 4. `load` starts
// to bring those of a step from a stage, and `take` makes of them what wgmma takes, when all products are done
// but those of the last kAhead steps.
template <class Config, int Blocks, int Bytes = sizeof(typename Config::Element)>
struct Rows;

// An element is 4 bytes: those of a row are a register, and two rows side by side are loaded together.
template <class Config, int Blocks>
struct Rows<Config, Blocks, 4> {
  using SmemLayout = typename Config::SmemLayoutA;
  using Pair = cutlass::AlignedArray<uint32_t, 2>;
  enum : int { kAhead = 2, kSets = kAhead + 2 };

  int place;  // of the thread's first element in a stage
  Pair values[kSets][Blocks][2];

  CUTE_DEVICE Rows(int first, int thread)
      : place(SmemLayout{}(first + Held<Config>(thread).row, thread % 4)) {}

  CUTE_DEVICE void load(typename Config::Element const* stage, int step) {
    CUTE_UNROLL
    for (int i = 0; i < 2 * Blocks; ++i) {
      int const own = place ^ SmemLayout{}(0, i % 2 * 4), at = own + SmemLayout{}(i / 2 * 64, step * 8);
      values[step % kSets][i / 2][i % 2] = *reinterpret_cast<Pair const*>(stage + at);
    }
  }

  CUTE_DEVICE void take(int) {}
  CUTE_DEVICE uint32_t const* of(int step, int block) const { return values[step % kSets][block][0].data(); }
};

// An element is a byte: two rows side by side are loaded together, and put in order with those of the next
// three columns of k. From t = 2 on every two columns are exchanged, which lie in other banks.
template <class Config, int Blocks>
struct Rows<Config, Blocks, 1> {
  using SmemLayout = typename Config::SmemLayoutA;
  enum : int { kAhead = 1 };

  int place;
  uint32_t order, found[Blocks][2][4], values[2][Blocks][4];

  CUTE_DEVICE Rows(int first, int thread)
      : place(SmemLayout{}(first + Held<Config>(thread).row, thread % 4 * 4 + thread / 2 % 2)),
        order(thread / 2 % 2 ? 0x1504 : 0x5140) {}

  CUTE_DEVICE void load(typename Config::Element const* stage, int step) {
    CUTE_UNROLL
    for (int i = 0; i < 8 * Blocks; ++i) {
      int const own = place ^ SmemLayout{}(0, i % 4);
      int const at = own + SmemLayout{}(i / 8 * 64, step * 32 + i / 4 % 2 * 16);
      found[i / 8][i / 4 % 2][i % 4] = *reinterpret_cast<uint16_t const*>(stage + at);
    }
  }

  CUTE_DEVICE void take(int step) {
    CUTE_UNROLL
    for (int i = 0; i < 4 * Blocks; ++i) {
      uint32_t const* const four = found[i / 4][i / 2 % 2];
      uint32_t const one = __byte_perm(four[0], four[1], order), other = __byte_perm(four[2], four[3], order);
      uint32_t& value = values[step % 2][i / 4][i % 4];
      value = __byte_perm(one, other, i % 2 ? 0x7632 : 0x5410);
      warpgroup_fence_operand(value);
    }
  }

  CUTE_DEVICE uint32_t const* of(int step, int block) const { return values[step % 2][block]; }
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

  using Rows = Rows<Config, kMmas, Config::kRegisterA ? sizeof(Element) : 4>;

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

  // B's part of a step of k.
  CUTE_DEVICE static uint64_t of_step(uint64_t b, int step) { return b + B::step(0, kDeep * step); }

  // Starts the products of a k tile; `a` and `b` describe the group's rows of it. What was in the sums
  // before does not count for the first of a tile.
  CUTE_DEVICE void multiply(uint64_t a, uint64_t b, bool first) {
    warpgroup_arrive();
    CUTE_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      uint64_t const column = of_step(b, step);
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

  // The same of one step with A in registers. Before its products start the rows of the next one are loaded,
  // which lie in `stage`; all products but these and those before are done then.
  CUTE_DEVICE void multiply(int step, Rows& rows, Element const* stage, uint64_t b, bool first) {
    warpgroup_wait<Rows::kAhead>();
    rows.take(step);
    rows.load(stage, (step + 1) % kSteps);
    warpgroup_arrive();
    uint64_t const column = of_step(b, step);
    auto const scale = first ? SM90::GMMA::ScaleOut::Zero : SM90::GMMA::ScaleOut::One;
    CUTE_UNROLL
    for (int m = 0; m < kMmas; ++m) {
      uint32_t const* const row = rows.of(step, m);
      detail::explode(Mma::fma, row, int_sequence<0, 1, 2, 3>{}, &column, int_sequence<0>{}, values[m],
                      make_int_sequence<kValues>{}, &scale, int_sequence<0>{});
    }
    warpgroup_commit_batch();
  }
};

}  // namespace cute_gemm
