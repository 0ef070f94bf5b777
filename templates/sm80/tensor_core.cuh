// tensor_core: tiled MMA on swizzled shared memory, without a pipeline.
//
// The idea: tensor cores compute the products. A warp's mma.sync takes whole blocks of A and B, which
// ldmatrix loads from shared memory into the registers of the lanes that need them; an XOR swizzle
// keeps both the copies and ldmatrix free of conflicts. Each k tile is copied, waited for and
// multiplied before the next.

#pragma once

#include "mainloop.cuh"
#include "write.cuh"

namespace cute_gemm {

// C (M,N):(1,ldc) = alpha * A (M,K) B (N,K)^T + beta * C; one CTA computes one (bM,bN) tile.
template <class Config>
CUTE_DEVICE void tensor_core(typename Config::Element const* A, typename Config::Element const* B,
                             typename Config::ElementC* C, int m, int n, int k, int64_t lda,
                             int64_t ldb, int64_t ldc, int batch,
                             typename Config::Epilogue::Params const& params, int cta = blockIdx.x) {
  using CtaTiler = typename Config::CtaTiler;
  constexpr int kBK = size<2>(CtaTiler{});
  extern __shared__ __align__(128) char shared[];
  Corner const corner = cta_corner<CtaTiler, Config::kRasterGroup>(m, n, cta);
  typename Config::Epilogue epilogue(params);
  int const k_tiles = epilogue.skips_products(k) ? 0 : ceil_div(k, kBK);

  typename Config::Accumulator accumulators[size(typename Config::FragmentC{})] = {};  // (MMA,MMA_M,MMA_N)

  if (k_tiles > 0) {
    uint32_t const smem_a = cast_smem_ptr_to_uint(shared);
    uint32_t const smem_b = smem_a + int(Config::kStageA * sizeof(typename Config::Element));
    Tiles<Config> tiles(A, B, m, n, k, lda, ldb, corner, smem_a, smem_b, threadIdx.x);
    Blocks<Config> blocks(smem_a, smem_b, threadIdx.x);

    // The last k tile, the only one that K can cut, comes first: the order of summation is free.
    int const tail = k - (k_tiles - 1) * kBK;
    CUTE_NO_UNROLL
    for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
      if (k_tile > 0) __syncthreads();  // no thread reads the previous tile any more
      tiles.fetch(k_tile, 0, k_tiles, tail);
      cp_async_fence();
      cp_async_wait<0>();
      __syncthreads();
      if constexpr (Tiles<Config>::kPlaces > 0) {
        tiles.realign(0, k_tile > 0 ? kBK : tail);
        __syncthreads();
      }
      CUTE_UNROLL
      for (int block = 0; block < Blocks<Config>::kBlocks; ++block) {
        blocks.load(block, 0);
        blocks.multiply(block, accumulators, 0, 1);
      }
    }
  }

  write_staged<Config>(accumulators, shared, C, m, n, ldc, corner, batch, epilogue);
}

}  // namespace cute_gemm
