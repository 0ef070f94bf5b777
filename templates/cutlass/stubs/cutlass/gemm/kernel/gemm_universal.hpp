// Replaces CUTLASS's header of that name, which includes every 3.x kernel: the parts that the 2.x kernel needs.

#pragma once

#include <cute/container/tuple.hpp>
#include <cute/util/type_traits.hpp>

#include "cutlass/gemm/kernel/gemm_universal_decl.h"

namespace cutlass::gemm::kernel {

template <class ProblemShape, class = void>
struct IsCutlass3ArrayKernel : cute::false_type {};

template <class ProblemShape>
struct IsCutlass3ArrayKernel<ProblemShape, cute::void_t<typename ProblemShape::UnderlyingProblemShape>>
    : cute::true_type {};

}  // namespace cutlass::gemm::kernel
