// toy: a warp for every 32 rows of a column of C, a lane for each element.
//
// The idea: none at all. What a newcomer writes first, on nothing of the ladder's but what becomes of
// the sums.

#pragma once

#include "common/epilogue.cuh"

namespace toy {

// A and B with K contiguous or not, C with N or M; products that are unrolled.
template <class T, bool MajorKA, bool MajorKB, bool MajorNC, int Unroll>
struct Gemm {
  using ElementA = T;
  using ElementB = T;
  using ElementC = T;
  using Accumulator = T;
  using Epilogue = cute_gemm::LinearCombination<T, T>;

  static CUTE_DEVICE void run(T const* A, T const* B, T* C, int m, int n, int k, int64_t lda,
                              int64_t ldb, int64_t ldc, int batch, typename Epilogue::Params const& params) {
    Epilogue epilogue(params);
    int const strips = (m - 1) / 32 + 1;
    int const row = blockIdx.x % strips * 32 + threadIdx.x, column = blockIdx.x / strips;
    if (row >= m) return;
    A += row * (MajorKA ? lda : 1);
    B += column * (MajorKB ? ldb : 1);
    C += MajorNC ? row * ldc + column : row + column * ldc;

    T sum[1] = {};
    if (epilogue.skips_products(k)) k = 0;
#pragma unroll Unroll
    for (int i = 0; i < k; ++i) sum[0] += A[i * (MajorKA ? 1 : lda)] * B[i * (MajorKB ? 1 : ldb)];
    cute_gemm::update<1>(epilogue, C, sum, {row, column, batch});
  }
};

}  // namespace toy
