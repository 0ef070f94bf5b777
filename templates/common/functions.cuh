// Functions of float and double for epilogues that are written as expressions (problem/fused.py).

#pragma once

#include <cute/config.hpp>

namespace cute_gemm {

CUTE_DEVICE float abs(float x) { return ::fabsf(x); }
CUTE_DEVICE double abs(double x) { return ::fabs(x); }
CUTE_DEVICE float exp(float x) { return ::expf(x); }
CUTE_DEVICE double exp(double x) { return ::exp(x); }
CUTE_DEVICE float log(float x) { return ::logf(x); }
CUTE_DEVICE double log(double x) { return ::log(x); }
CUTE_DEVICE float sqrt(float x) { return ::sqrtf(x); }
CUTE_DEVICE double sqrt(double x) { return ::sqrt(x); }
CUTE_DEVICE float rsqrt(float x) { return ::rsqrtf(x); }
CUTE_DEVICE double rsqrt(double x) { return ::rsqrt(x); }
CUTE_DEVICE float tanh(float x) { return ::tanhf(x); }
CUTE_DEVICE double tanh(double x) { return ::tanh(x); }
CUTE_DEVICE float erf(float x) { return ::erff(x); }
CUTE_DEVICE double erf(double x) { return ::erf(x); }

}  // namespace cute_gemm
