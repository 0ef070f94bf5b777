// tensor_core: tiled MMA on swizzled shared memory, without a pipeline.
//
// The idea: the products go to the tensor cores. A warp's mma.sync takes whole blocks of A and B, which
// ldmatrix brings from shared memory into the registers of the lanes that have to hold them; an XOR
// swizzle keeps both the copies and ldmatrix free of conflicts. Each k tile is copied, waited
// for and multiplied before the next.
//
// Config is that of sm80_pipeline, with one stage.

#pragma once

#include "sm80_pipeline.cuh"

namespace cute_gemm {

template <class Config>
CUTE_DEVICE void tensor_core(typename Config::Element const* A, typename Config::Element const* B,
                             typename Config::ElementC* C, int m, int n, int k, int64_t lda,
                             int64_t ldb, int64_t ldc, typename Config::Accumulator alpha,
                             typename Config::Accumulator beta) {
  using Element = typename Config::Element;
  using Accumulator = typename Config::Accumulator;
  using CtaTiler = typename Config::CtaTiler;
  using SmemLayoutA = typename Config::SmemLayoutA;  // (bM,bK,1)
  using SmemLayoutB = typename Config::SmemLayoutB;  // (bN,bK,1)
  constexpr int kBM = size<0>(CtaTiler{}), kBN = size<1>(CtaTiler{}), kBK = size<2>(CtaTiler{});
  typename Config::TiledMma mma;

  extern __shared__ __align__(128) char shared[];
  int const thread = threadIdx.x;
  auto const tile = raster<Config::kRasterGroup>(blockIdx.x, ceil_div(m, kBM), ceil_div(n, kBN));
  int const row = get<0>(tile) * kBM, column = get<1>(tile) * kBN;  // of the tile's corner in C
  // BLAS: A and B are not read when alpha or k is 0, and a sum of nothing is 0 whatever alpha is.
  int const k_tiles = alpha == Accumulator(0) ? 0 : ceil_div(k, kBK);
  if (k_tiles == 0) alpha = Accumulator(0);

  Tensor sums = partition_fragment_C(mma, select<0, 1>(CtaTiler{}));  // (MMA,MMA_M,MMA_N)
  clear(sums);

  if (k_tiles > 0) {
    uint32_t const smem_a = cast_smem_ptr_to_uint(shared);
    uint32_t const smem_b = smem_a + size(SmemLayoutA{}) * sizeof(Element);
    int64_t const a_row = Config::kMajorKA ? lda : 1, a_column = Config::kMajorKA ? 1 : lda;
    int64_t const b_row = Config::kMajorKB ? ldb : 1, b_column = Config::kMajorKB ? 1 : ldb;
    TileLoader<typename Config::GmemCopyA, SmemLayoutA, Element, Config::kMajorKA> tiles_a(
        A + row * a_row, a_row, a_column, smem_a, thread, m - row);
    TileLoader<typename Config::GmemCopyB, SmemLayoutB, Element, Config::kMajorKB> tiles_b(
        B + column * b_row, b_row, b_column, smem_b, thread, n - column);
    BlockLoader<typename Config::SmemCopyA, SmemLayoutA, Element> const blocks_a(smem_a, thread);
    BlockLoader<typename Config::SmemCopyB, SmemLayoutB, Element> const blocks_b(smem_b, thread);

    Tensor part_a = make_tensor<typename Config::TiledMma::FrgTypeA>(
        partition_shape_A(mma, select<0, 2>(CtaTiler{})));  // (MMA,MMA_M,MMA_K)
    Tensor part_b = make_tensor<typename Config::TiledMma::FrgTypeB>(
        partition_shape_B(mma, select<1, 2>(CtaTiler{})));  // (MMA,MMA_N,MMA_K)
    Tensor loaded_a = typename Config::SmemCopyA{}.get_slice(thread).retile_D(part_a);  // ((V,R),MMA_M,BLOCKS)
    Tensor loaded_b = typename Config::SmemCopyB{}.get_slice(thread).retile_D(part_b);  // ((V,R),MMA_N,BLOCKS)
    constexpr int kBlocks = decltype(blocks_a)::kBlocks;   // k blocks in a tile
    constexpr int kSteps = size<2>(part_a) / kBlocks;      // MMAs along k in a block

    // The last k tile, the only one that K can cut, comes first: the order of a sum is free.
    int const last = k_tiles - 1;
    tiles_a.seek(last, 0);
    tiles_b.seek(last, 0);
    tiles_a.template load<true>(0, 1, k - last * kBK);
    tiles_b.template load<true>(0, 1, k - last * kBK);
    CUTE_NO_UNROLL
    for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
      if (k_tile > 0) {
        __syncthreads();  // nobody reads the tile before any more
        tiles_a.advance(0, true);
        tiles_b.advance(0, true);
        tiles_a.template load<false>();
        tiles_b.template load<false>();
      }
      cp_async_fence();
      cp_async_wait<0>();
      __syncthreads();
      CUTE_UNROLL
      for (int block = 0; block < kBlocks; ++block) {
        blocks_a.load(block, 0, loaded_a);
        blocks_b.load(block, 0, loaded_b);
        CUTE_UNROLL
        for (int step = block * kSteps; step < (block + 1) * kSteps; ++step) {
          gemm(mma, part_a(_, _, step), part_b(_, _, step), sums);
        }
      }
    }
  }

  epilogue<Config>(sums, shared, C + row + column * ldc, ldc, m - row, n - column, alpha, beta);
}

}  // namespace cute_gemm
