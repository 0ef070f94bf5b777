// Overlapping launches: programmatic dependent launch, if the GPU supports it.

#pragma once

#include <cute/config.hpp>

namespace cute_gemm {

// Lets the next grid begin, and waits for the writes of the previous grid.
CUTE_DEVICE void follow_grids() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;\ngriddepcontrol.wait;\n" ::: "memory");
#endif
}

}  // namespace cute_gemm
