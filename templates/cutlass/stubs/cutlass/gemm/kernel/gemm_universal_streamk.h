// Replaces CUTLASS's header of that name: a base class that no kernel here has.

#pragma once

namespace cutlass::gemm::kernel {

template <class Mma, class Epilogue, class ThreadblockSwizzle>
struct GemmUniversalStreamk;

}  // namespace cutlass::gemm::kernel
