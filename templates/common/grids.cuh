// Launches that overlap: programmatic dependent launch, where GPUs have it.

#pragma once

#include <cute/config.hpp>

namespace cute_gemm {

// Lets the grid after this one begin, and waits for what the one before has written.
CUTE_DEVICE void follow_grids() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;\ngriddepcontrol.wait;\n" ::: "memory");
#endif
}

}  // namespace cute_gemm
