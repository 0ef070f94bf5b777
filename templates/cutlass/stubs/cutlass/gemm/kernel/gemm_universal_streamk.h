// In place of CUTLASS's header of that name: a base that no kernel of ours has.

#pragma once

namespace cutlass::gemm::kernel {

template <class Mma, class Epilogue, class ThreadblockSwizzle>
struct GemmUniversalStreamk;

}  // namespace cutlass::gemm::kernel
