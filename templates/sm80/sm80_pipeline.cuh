// sm80_pipeline: multistage cp.async -> swizzled shared memory -> ldmatrix -> mma.sync -> C.
//
// The idea: several k tiles are in flight at a time. cp.async copies them into a ring of stages in
// shared memory while tensor_core's products of the oldest tile are computed, so that the kernel waits
// for the latency of a copy once and not once per tile.
//
// CuTe computes layouts at compile time here, and the loops are written out:
//
// - An address in shared memory is a 32-bit register with the thread's part, computed once, and a
//   distance that the compiler knows and puts into the instruction. In a swizzled layout, the part of
//   the distance that the swizzle affects is XORed into the register and the rest stays in the
//   instruction (join). A partitioned CuTe tensor swizzles the sum of both parts at each access, which
//   costs instructions and registers.
// - In global memory a pointer steps through the tile. A partitioned tensor has all offsets at a time,
//   and the compiler keeps every multiple of the leading dimension in registers through the loop.
// - cute::copy issues the copies of a tile together, with a predicate each. Here they are issued in parts
//   between the products, predicated by one number of rows and without a branch, across which ptxas
//   would move nothing; only the last tile along k, which is loaded first, checks the end of K.
// - Rows that begin at any element are copied by the aligned words that cover them, and shifted into
//   place one tile before they are multiplied (unaligned.cuh).

#pragma once

#include "mainloop.cuh"
#include "scales.cuh"
#include "write.cuh"

namespace cute_gemm {

// C (M,N):(1,ldc) = alpha * A (M,K) B (N,K)^T + beta * C; one CTA computes one (bM,bN) tile. With block
// scales, 128 is a multiple of bK.
template <class Config, int RowsA = 0, int RowsB = 0>
CUTE_DEVICE void sm80_pipeline(void const* A, void const* B, typename Config::ElementC* C, int m, int n, int k,
                               int64_t lda, int64_t ldb, int64_t ldc, int batch,
                               typename Config::Epilogue::Params const& params, int cta = blockIdx.x,
                               BlockScales<RowsA> const& scale_a = {}, BlockScales<RowsB> const& scale_b = {}) {
  using CtaTiler = typename Config::CtaTiler;
  using SmemLayoutA = typename Config::SmemLayoutA;  // (bM,bK,PIPE)
  using Element = typename Config::Element;
  using Accumulator = typename Config::Accumulator;
  constexpr int kBK = size<2>(CtaTiler{}), kStages = size<2>(SmemLayoutA{});
  // A tile that is shifted into place must have arrived one tile before it is multiplied.
  constexpr int kPlaces = Tiles<Config>::kPlaces, kWait = kStages - 2 - (kPlaces > 0);
  extern __shared__ __align__(128) char shared[];
  Corner const corner = cta_corner<CtaTiler, Config::kRasterGroup>(m, n, cta);
  typename Config::Epilogue epilogue(params);
  int const k_tiles = epilogue.skips_products(k) ? 0 : ceil_div(k, kBK);

  constexpr int kAccumulators = size(typename Config::FragmentC{});
  Accumulator accumulators[kAccumulators] = {};  // (MMA,MMA_M,MMA_N)

  if (k_tiles > 0) {
    uint32_t const smem_a = cast_smem_ptr_to_uint(shared);
    uint32_t const smem_b = smem_a + kStages * int(Config::kStageA * sizeof(Element));
    Tiles<Config> tiles(static_cast<Element const*>(A), static_cast<Element const*>(B), m, n, k, lda, ldb, corner,
                        smem_a, smem_b, threadIdx.x);

    // The last k tile, the only one that can be cut short, is loaded first: the loop needs no
    // predicate along k, and the order of summation is free.
    int const tail = k - (k_tiles - 1) * kBK;
    constexpr int kUnroll = kPlaces > 0 ? 1 : kStages;
#pragma unroll kUnroll
    for (int stage = 0; stage < kStages - 1; ++stage) {
      tiles.fetch(stage, stage, k_tiles, tail);
      cp_async_fence();
    }

    Blocks<Config> blocks(smem_a, smem_b, threadIdx.x);
    constexpr int kBlocks = Blocks<Config>::kBlocks;
    static_assert(kBlocks > 1, "the fragments of the next block are loaded while one is multiplied");
    cp_async_wait<kWait>();
    __syncthreads();
    if constexpr (kPlaces > 0) {
      tiles.realign(0, tail);
      __syncthreads();
    }
    blocks.load(0, 0);

    constexpr bool kScaled = RowsA > 0 || RowsB > 0;
    ScaleFactors<Config, RowsA, RowsB> scales(scale_a, scale_b, corner, m, n);
    int read = 0, write = kStages - 1;
    CUTE_NO_UNROLL
    for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
      if constexpr (kScaled) {
        constexpr int kEnds = Tiles<Config>::kEnds;
        scales.load((k_tile < kEnds ? k_tiles - 1 - k_tile : k_tile - kEnds) * kBK);
      }
      // For 8-bit floats tensor cores keep some 14 bits of a sum: the products of a k tile are added to the
      // accumulators in float32.
      Accumulator products[Config::kPromoted ? kAccumulators : 1] = {};
      CUTE_UNROLL
      for (int block = 0; block < kBlocks; ++block) {
        if (block == kBlocks - 1) {
          cp_async_wait<kWait>();
          __syncthreads();
          read = read == kStages - 1 ? 0 : read + 1;
        }
        // The next tile is shifted into place meanwhile, run by run, each read before some of the products
        // and written after them.
        int const first = ceil_div(block * kPlaces, kBlocks - 1);
        int const runs = min(ceil_div((block + 1) * kPlaces, kBlocks - 1), kPlaces) - first;
        int const next = read == kStages - 1 ? 0 : read + 1;
        CUTE_UNROLL
        for (int part = 0; part < (runs > 0 ? runs : 1); ++part) {
          Word words[Tiles<Config>::kRun + 1];
          if (part == 0) {
            blocks.load((block + 1) % kBlocks, read);
            // The copies of a later tile are spread over the blocks, if the wait above allows it.
            if (block == 0) tiles.advance(k_tile + kStages - 1, write, k_tiles);
            if (block < kBlocks - 1) tiles.load(block, kBlocks - 1);
            if (block == kBlocks - 2) {
              cp_async_fence();
              write = write == kStages - 1 ? 0 : write + 1;
            }
          }
          if (part < runs) tiles.take(next, first + part, words);
          blocks.multiply(block, Config::kPromoted ? products : accumulators, part, runs > 0 ? runs : 1);
          if (part < runs) tiles.template put<false>(next, first + part, words, kBK);
        }
      }
      if constexpr (kScaled) {
        scales.add(accumulators, products);
      } else if constexpr (Config::kPromoted) {
        CUTE_UNROLL
        for (int i = 0; i < kAccumulators; ++i) accumulators[i] += products[i];
      }
    }
    cp_async_wait<0>();
  }

  write_staged<Config>(accumulators, shared, C, m, n, ldc, corner, batch, epilogue);
}

}  // namespace cute_gemm
