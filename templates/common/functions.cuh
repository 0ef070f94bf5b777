// Functions of float and double for epilogues written as expressions (problem/epilogue/functions.py states
// their errors).
//
// They are templates over the type of the results, `Output`: for 16-bit types, float functions are
// the hardware's approximations, without branches.

#pragma once

#include <cute/config.hpp>
#include <cutlass/bfloat16.h>
#include <cutlass/half.h>

namespace cute_gemm {

// Whether approximations are accurate enough for results of this type.
template <class Output>
constexpr bool kApproximate = sizeof(Output) == 2;

// Additions are rounded separately. Otherwise the compiler would fuse them with a product in some kernels only,
// depending on what it computes once per column, and a row's bits would depend on the tile.
CUTE_DEVICE float add(float x, float y) { return __fadd_rn(x, y); }
CUTE_DEVICE double add(double x, double y) { return __dadd_rn(x, y); }
CUTE_DEVICE float subtract(float x, float y) { return __fsub_rn(x, y); }
CUTE_DEVICE double subtract(double x, double y) { return __dsub_rn(x, y); }

CUTE_DEVICE float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
CUTE_DEVICE float tanh_approx(float x) {
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
CUTE_DEVICE float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

template <class Output>
CUTE_DEVICE float divide(float x, float y) {
  if constexpr (kApproximate<Output>) {
    float quotient;
    asm("div.approx.ftz.f32 %0, %1, %2;" : "=f"(quotient) : "f"(x), "f"(y));
    return quotient;
  } else {
    return x / y;
  }
}
template <class Output>
CUTE_DEVICE float exp(float x) {
  if constexpr (kApproximate<Output>) return exp2_approx(x * 1.4426950408889634f);
  return ::expf(x);
}
template <class Output>
CUTE_DEVICE float tanh(float x) {
  if constexpr (kApproximate<Output>) return tanh_approx(x);
  return ::tanhf(x);
}
// The hyperbolic tangent of a polynomial fitted for the least absolute error, for bfloat16; for half,
// Abramowitz and Stegun, 7.1.26.
template <class Output>
CUTE_DEVICE float erf(float x) {
  if constexpr (!kApproximate<Output>) {
    return ::erff(x);
  } else if constexpr (cute::is_same_v<Output, cutlass::bfloat16_t>) {
    float const square = x * x;
    float p = 3.224442449e-5f;
    p = p * square - 4.151407182e-4f;
    p = p * square - 4.968179281e-4f;
    p = p * square + 1.029329265e-1f;
    p = p * square + 1.128358169f;
    return tanh_approx(x * p);
  } else {
    float const t = reciprocal_approx(1.0f + 0.3275911f * ::fabsf(x));
    float p = 1.061405429f;
    p = p * t - 1.453152027f;
    p = p * t + 1.421413741f;
    p = p * t - 0.284496736f;
    p = p * t + 0.254829592f;
    return ::copysignf(1.0f - p * t * exp2_approx(x * x * -1.4426950408889634f), x);
  }
}
template <class Output>
CUTE_DEVICE float sigmoid(float x) {
  if constexpr (cute::is_same_v<Output, cutlass::bfloat16_t>) {
    return 0.5f * tanh_approx(0.5f * x) + 0.5f;
  } else if constexpr (kApproximate<Output>) {
    return reciprocal_approx(1.0f + exp2_approx(x * -1.4426950408889634f));
  } else {
    return 1.0f / (1.0f + ::expf(-x));
  }
}

// For bfloat16 the sigmoid is (1 + tanh(x / 2)) / 2, by tanh.approx.
template <class Output>
CUTE_DEVICE float silu(float x) {
  if constexpr (!cute::is_same_v<Output, cutlass::bfloat16_t>) return x * sigmoid<Output>(x);
  float const half = 0.5f * x;
  return half * tanh_approx(half) + half;
}
// x (1 + erf(x / sqrt(2))) / 2; for bfloat16 the first two terms of the fit are enough.
template <class Output>
CUTE_DEVICE float gelu(float x) {
  float const half = 0.5f * x;
  if constexpr (!cute::is_same_v<Output, cutlass::bfloat16_t>) {
    return half * erf<Output>(x * 0.7071067811865476f) + half;
  }
  return half * tanh_approx(x * (0.0352821f * (x * x) + 0.7988014f)) + half;
}
// x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2, which is x times the sigmoid of twice tanh's argument.
template <class Output>
CUTE_DEVICE float gelu_tanh(float x) {
  float const argument = x * (0.03567740813f * (x * x) + 0.7978845608f);
  if constexpr (!cute::is_same_v<Output, cutlass::bfloat16_t>) return x * sigmoid<Output>(2.0f * argument);
  float const half = 0.5f * x;
  return half * tanh_approx(argument) + half;
}

template <class>
CUTE_DEVICE double divide(double x, double y) { return x / y; }
template <class>
CUTE_DEVICE double exp(double x) { return ::exp(x); }
template <class>
CUTE_DEVICE double tanh(double x) { return ::tanh(x); }
template <class>
CUTE_DEVICE double erf(double x) { return ::erf(x); }
template <class>
CUTE_DEVICE double sigmoid(double x) { return 1.0 / (1.0 + ::exp(-x)); }

template <class Output>
CUTE_DEVICE double silu(double x) { return x * sigmoid<Output>(x); }
template <class>
CUTE_DEVICE double gelu(double x) { return 0.5 * x * (1.0 + ::erf(x * 0.7071067811865476)); }
template <class Output>
CUTE_DEVICE double gelu_tanh(double x) {
  return x * sigmoid<Output>(2.0 * x * (0.035677408136300125 * (x * x) + 0.7978845608028654));
}

CUTE_DEVICE float abs(float x) { return ::fabsf(x); }
CUTE_DEVICE double abs(double x) { return ::fabs(x); }
CUTE_DEVICE float log(float x) { return ::logf(x); }
CUTE_DEVICE double log(double x) { return ::log(x); }
CUTE_DEVICE float sqrt(float x) { return ::sqrtf(x); }
CUTE_DEVICE double sqrt(double x) { return ::sqrt(x); }
CUTE_DEVICE float rsqrt(float x) { return ::rsqrtf(x); }
CUTE_DEVICE double rsqrt(double x) { return ::rsqrt(x); }

// Numbers rounded to another type, to nearest with ties to even; doubles are rounded to float first.
template <class Type>
CUTE_DEVICE float round_to(float x) { return float(Type(x)); }
template <class Type>
CUTE_DEVICE double round_to(double x) { return round_to<Type>(float(x)); }

// The conversion of the hardware, and of CUTLASS, rounds ties away from 0.
CUTE_DEVICE float round_to_tf32(float x) {
  uint32_t const bits = __float_as_uint(x);
  float const rounded = __uint_as_float((bits + 0xfffu + (bits >> 13 & 1u)) & 0xffffe000u);
  return x == x ? rounded : x;
}
CUTE_DEVICE double round_to_tf32(double x) { return round_to_tf32(float(x)); }

// Functions with the bits of PyTorch: the operations of its CUDA kernels in their order. A product and a sum that its
// compiler fuses are one operation.
namespace torch {

template <class Number>
CUTE_DEVICE Number tanh(Number x) { return cute_gemm::tanh<Number>(x); }
template <class Number>
CUTE_DEVICE Number sigmoid(Number x) { return Number(1) / add(Number(1), cute_gemm::exp<Number>(-x)); }
template <class Number>
CUTE_DEVICE Number silu(Number x) { return x / add(Number(1), cute_gemm::exp<Number>(-x)); }
template <class Number>
CUTE_DEVICE Number gelu(Number x) {
  return x * Number(0.5) * add(Number(1), cute_gemm::erf<Number>(x * Number(0.70710678118654752440)));
}
template <class Number>
CUTE_DEVICE Number gelu_tanh(Number x) {
  Number const beta = Number(1.41421356237309504880 * 1.12837916709551257390 * 0.5), cube = x * x * x;
  Number const argument = beta * ::fma(Number(0.044715), cube, x);
  return Number(0.5) * x * add(Number(1), cute_gemm::tanh<Number>(argument));
}

}  // namespace torch

// A number in the type of a result: rounded to nearest, and saturated for integers.
template <class Result, class Number>
CUTE_DEVICE Result converted(Number x) {
  if constexpr (cute::is_same_v<Result, int8_t>) {
    Number const rounded = sizeof(Number) == 4 ? ::rintf(float(x)) : ::rint(double(x));
    // NaN becomes 0.
    int const least = rounded < Number(-128) ? -128 : rounded == rounded ? int(rounded) : 0;
    return Result(rounded > Number(127) ? 127 : least);
  } else if constexpr (cute::is_same_v<Result, int32_t>) {
    return sizeof(Number) == 4 ? __float2int_rn(float(x)) : x == x ? __double2int_rn(double(x)) : 0;
  } else {
    return Result(x);
  }
}

// NaN in either argument gives NaN.
CUTE_DEVICE float maximum(float x, float y) {
  float z;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}
CUTE_DEVICE float minimum(float x, float y) {
  float z;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}
CUTE_DEVICE double maximum(double x, double y) { return (x > y || x != x) ? x : y; }
CUTE_DEVICE double minimum(double x, double y) { return (x < y || x != x) ? x : y; }

}  // namespace cute_gemm
