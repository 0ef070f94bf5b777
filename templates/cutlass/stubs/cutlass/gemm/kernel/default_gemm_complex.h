// Replaces CUTLASS's header of that name: complex kernels, which do not use CUTLASS here.

#pragma once

#include "cutlass/complex.h"

namespace cutlass::gemm::kernel {

template <class ElementA, class LayoutA, class ElementB, class LayoutB, class ElementC, class LayoutC,
          class ElementAccumulator, class OperatorClass, class ArchTag, class ThreadblockShape,
          class WarpShape, class InstructionShape, class EpilogueOutputOp, class ThreadblockSwizzle,
          int Stages, ComplexTransform TransformA, ComplexTransform TransformB, class Operator,
          bool SplitKSerial>
struct DefaultGemmComplex;

}  // namespace cutlass::gemm::kernel
