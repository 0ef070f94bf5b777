// What becomes of the sums. A kernel is given a functor of this kind and asks it how deep to sum and,
// with N neighbouring sums at a time, to bring C up to date.

#pragma once

#include <cute/config.hpp>
#include <cutlass/array.h>

namespace cute_gemm {

// BLAS's two pointer modes: the value in device memory when there is one, the argument otherwise.
template <class Scalar>
CUTE_DEVICE Scalar scalar(Scalar value, Scalar const* pointer) {
  return pointer ? *pointer : value;
}

// C <- alpha * sums + beta * C, by BLAS's rules.
template <class Accumulator, class ElementC>
struct LinearCombination {
  Accumulator alpha, beta;

  // Whether there is nothing to sum: A and B are not read when alpha is 0, and a sum of nothing is 0
  // whatever alpha is.
  CUTE_DEVICE bool without_sums(int k) {
    if (k == 0 || alpha == Accumulator(0)) {
      alpha = Accumulator(0);
      return true;
    }
    return false;
  }

  // C is not read when beta is 0: NaN there does not spread.
  CUTE_DEVICE bool reads_c() const { return beta != Accumulator(0); }

  CUTE_DEVICE ElementC operator()(Accumulator const& sum) const { return ElementC(alpha * sum); }

  CUTE_DEVICE ElementC operator()(Accumulator const& sum, ElementC const& old) const {
    return ElementC(alpha * sum + beta * Accumulator(old));
  }

  // An element of C where nothing was summed.
  CUTE_DEVICE void scale(ElementC& c) const {
    c = ElementC(reads_c() ? beta * Accumulator(c) : Accumulator(0));
  }

  // N neighbouring elements of C, in one access each way.
  template <int N, class Sums>
  CUTE_DEVICE void update(ElementC* c, Sums const& sums) const {
    using Vector = cutlass::AlignedArray<ElementC, N>;
    Vector results;
    if (!reads_c()) {
      CUTE_UNROLL
      for (int i = 0; i < N; ++i) results[i] = (*this)(sums[i]);
    } else {
      Vector const old = *reinterpret_cast<Vector const*>(c);
      CUTE_UNROLL
      for (int i = 0; i < N; ++i) results[i] = (*this)(sums[i], old[i]);
    }
    *reinterpret_cast<Vector*>(c) = results;
  }
};

}  // namespace cute_gemm
